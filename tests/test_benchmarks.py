"""Tests of the asv suites in fresh environments, and of the tables and pages about speed."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import Results
from asv.runner import BenchmarkResult

sys.path.append(str(Path(__file__).parents[1]))  # last, so that what is installed is tested

from benchmarks import dashboard, peers, rates
from fastltl.experiments.peers import fit_gpboost, fit_lme4, rows_of

ROOT = Path(__file__).parents[1]

#: What `pip install .` and asv need of the repository.
PARTS = ("fastltl", "benchmarks", "asv.conf.json", "pyproject.toml", "README.md", "LICENSE")

#: A cheap benchmark of each suite, as patterns for asv.
CHEAP = [
    r"Kernels.track_time_ratio\('ridge_weights', \(50, 20\)\)",
    r"RankTwoUpdate.track_time_ratio\(50, 'all'\)",
    r"\.Batch.track_time_ratio\(0.01\)",
    r"BatchError.track_time_ratio\(0.01\)",
    r"Wide.track_time_ratio\(0.01\)",
    r"Multitask.track_time_ratio\(0.01\)",
    r"\.Path.track_time_ratio\('paper'\)",
    r"Independent.track_time_ratio\(10\)",
    r"Online.track_time_ratio\('entropic', \(50, 20\), 50\)",
    r"Growth.time_hundred_tasks\('entropic', 100\)",
    r"Prior.track_time_ratio\(\(10, 20\)\)",
    r"PriorAndPath.track_time_ratio",
    r"Stream.track_time_ratio\('parquet'\)",
    r"RandomSlopes.track_time_ratio\(100\)",
    r"Start.timeraw_import_fastltl",
    r"Memory.peakmem_run\('entropic', 50\)",
]


def run(*command, cwd=ROOT, env=None):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(folder, message, date="2026-01-01T00:00:00Z"):
    """Commit all files of a folder; return the hash."""
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    env = os.environ | names | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    run("git", "add", ".", cwd=folder)
    run("git", "commit", "-q", "--allow-empty", "-m", message, cwd=folder, env=env)
    return run("git", "rev-parse", "HEAD", cwd=folder).strip()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Install `.[bench]` from a copy of the tree; return the copy, Python and the environment."""
    folder = tmp_path_factory.mktemp("fresh")
    tree = folder / "tree"
    tree.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, tree / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, tree)
    shutil.copy(ROOT / ".gitignore", tree)
    run("git", "init", "-q", "-b", "main", cwd=tree)
    commit(tree, "measured")
    run(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv" / "bin" / "python")
    left_out = ("PYTHONPATH", "NUMBA_CACHE_DIR", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    run(python, "-m", "pip", "install", "-q", ".[bench]", cwd=tree, env=env)
    return tree, python, env


@pytest.mark.slow
@pytest.mark.compiled
def test_every_suite_runs_with_the_extra_bench_and_is_on_both_pages(fresh):
    tree, python, env = fresh
    env = env | {"HOME": str(tree.parent)}  # where asv keeps what it knows of the machine
    head = run("git", "rev-parse", "HEAD", cwd=tree).strip()
    asv = [python, "-m", "asv"]
    run(*asv, "machine", "--yes", cwd=tree, env=env)
    patterns = [option for pattern in CHEAP for option in ("--bench", pattern)]
    options = ["--python=same", "--quick", "--show-stderr", f"--set-commit-hash={head}"]
    run(*asv, "run", *options, *patterns, cwd=tree, env=env)
    (file,) = (tree / ".asv/results").glob("*/*-existing*.json")
    benchmarks = json.loads((tree / ".asv/results/benchmarks.json").read_text())
    suites = {name.rsplit(".", 1)[0] for name in benchmarks if name != "version"}
    measured = {
        name.rsplit(".", 1)[0]
        for name, (values, *_) in json.loads(file.read_text())["results"].items()
        if any(value is not None and math.isfinite(value) for value in values)
    }
    assert len(CHEAP) == len(suites)
    assert measured == suites

    run(*asv, "publish", cwd=tree, env=env)
    graphs = (tree / ".asv/html/graphs/summary").glob("*.json")
    assert {graph.stem.rsplit(".", 1)[0] for graph in graphs} >= suites

    table = run(python, "-m", "benchmarks.dashboard", "--picture", "speed.png", cwd=tree, env=env)
    assert (tree / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "| Prior | d, n = (10, 20) |" in table
    page = (tree / ".asv/dashboard.html").read_text()
    assert set(re.findall(r'<h3 id="(\w+)"', page)) == {suite.split(".")[1] for suite in suites}
    assert "No results" not in page
    assert not re.search(r"https?:|<script|<link rel=.stylesheet", page)


@pytest.mark.slow
@pytest.mark.compiled
def test_environments_that_asv_builds_can_import_every_suite(fresh):
    tree, python, env = fresh
    run(python, "-m", "asv", "check", cwd=tree, env=env)
    (built,) = (tree / ".asv/env").glob("*/bin/python")
    run(str(built), "-c", "import gpboost, fastltl")


def benchmark(name):
    """Describe a benchmark with one parameter as asv does."""
    return {
        "name": name,
        "params": [["10", "50"]],
        "param_names": ["d"],
        "version": "2",
        "unit": "fastltl / NumPy",
        "type": "track",
    }


RATIO = benchmark("prior.Prior.track_time_ratio")
ERROR = benchmark("prior.Prior.track_relative_error")
SECONDS = benchmark("prior.Prior.time_fastltl") | {"type": "time", "unit": "seconds"}


def store(head, values, version="2", python="3.12", hour=0, seconds=()):
    """Store the ratios for d = 10 and 50 at a commit as asv does, measured at an hour."""
    params = {"machine": "here", "cpu": "A <CPU>", "python": python}
    results = Results(params, {}, head, 0, python, f"env-{python}", {})
    rows = [(RATIO, values), (ERROR, [1e-15, 2e-15]), *([(SECONDS, seconds)] if seconds else [])]
    for found, row in rows:
        results.add_result(
            found | {"version": version},
            BenchmarkResult(
                result=row,
                samples=[None] * 2,
                number=[None] * 2,
                errcode=0,
                stderr="",
                profile=None,
            ),
            started_at=datetime(2026, 2, 1, hour, tzinfo=UTC),
        )
    results.save(".asv/results")


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Make a repository of four commits, with a function to store ratios."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "asv.conf.json", tmp_path)
    run("git", "init", "-q", "-b", "main", cwd=tmp_path)
    # The clock went back after the first commit, so that dates are not in the commits' order.
    hashes = [commit(tmp_path, str(i), f"2026-01-0{5 - i}T00:00:00Z") for i in range(4)]
    folder = tmp_path / ".asv/results/here"
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text('{"machine": "here", "version": 1}')
    Benchmarks(Config.load(), [RATIO, ERROR, SECONDS, benchmark("peers.Other.track_x")]).save()
    return hashes


def test_dashboard_marks_a_rise_above_the_median_of_the_earlier_commits(history, capsys):
    for head, ratios in zip(
        history, [(0.1, 0.1), (0.2, 0.1), (0.1, 0.1), (0.13, 0.12)], strict=True
    ):
        store(head, ratios)
    dashboard.main([])
    out, page = capsys.readouterr().out, Path(".asv/dashboard.html").read_text()
    assert "| Prior | d = 10 | – | 7.69× (regression) | NumPy | relative error 1e-15 |" in out
    assert "| Prior | d = 50 | – | 8.33× | NumPy | relative error 2e-15 |" in out
    assert "1 of 2 ratios has regressed" in page
    assert page.count('<span class="badge">') == 1
    assert "No results, because they failed or a package is not installed: Other." in page
    assert "A &lt;CPU&gt;" in page
    titles = re.findall(r"<title>(\w{8}): (.*?)</title>", page)
    shown = ["10×", "5×", "10×", "7.69×", "10×", "10×", "10×", "8.33×"]
    assert titles == list(zip([head[:8] for head in history] * 2, shown, strict=True))


def test_dashboard_of_one_commit_has_no_regression(history):
    store(history[0], (0.1, None))
    dashboard.main([])
    page = Path(".asv/dashboard.html").read_text()
    assert "<strong>1 ratio at one commit</strong>" in page
    assert "regressed" not in page.split("<section>")[1]


def test_dashboard_leaves_out_old_versions_and_unknown_commits(history, capsys):
    store(history[0], (0.5, 0.5), version="1")
    store("0" * 40, (0.5, 0.5))
    store(history[1], (0.1, math.nan))
    store(history[2], (0.2, 0.2))
    dashboard.main([])
    assert "| d = 10 | – | 5× (regression) |" in capsys.readouterr().out
    page = Path(".asv/dashboard.html").read_text()
    assert len(re.findall(r"<circle", page)) == 3
    assert "2×" not in page


def test_dashboard_shows_seconds_beside_ratios_where_they_were_measured(history, capsys):
    store(history[0], (0.1, 0.1), seconds=(0.02, 2e-5))
    store(history[1], (0.1, 0.1), seconds=(0.03, 3e-5))
    dashboard.main([])
    assert "| Prior | d = 10 | 30 ms | 10× | NumPy |" in capsys.readouterr().out
    page = Path(".asv/dashboard.html").read_text()
    assert "30 ms <small>before 20 ms</small>" in page
    assert "30 µs <small>before 20 µs</small>" in page
    store(history[2], (0.1, 0.1))
    dashboard.main([])
    assert "| Prior | d = 10 | – | 10× | NumPy |" in capsys.readouterr().out
    assert "– <small>before 25 ms</small>" in Path(".asv/dashboard.html").read_text()


def test_dashboard_shows_the_last_of_several_values_of_a_commit(history, capsys):
    for python, hour, ratio in (("3.11", 1, 0.1), ("3.12", 3, 0.5), ("3.13", 2, 0.2)):
        store(history[0], (ratio, ratio), python=python, hour=hour)
    dashboard.main([])
    assert "| d = 10 | – | 2× |" in capsys.readouterr().out


@pytest.mark.compiled
def test_dashboard_without_results_says_what_to_do(tmp_path):
    shutil.copy(ROOT / "asv.conf.json", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dashboard"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no asv results in" in done.stderr
    assert "Traceback" not in done.stderr


def test_ratios_of_pytest_benchmark_groups(tmp_path):
    runs = [
        {
            "group": "work",
            "extra_info": {"way": way, "against": "NumPy"},
            "stats": {"median": median},
        }
        for way, median in (("fastltl", 0.002), ("plain", 0.03))
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"benchmarks": runs}))
    out = run(sys.executable, "-m", "benchmarks.groups", str(tmp_path / "speed.json"))
    assert "| work | 2 ms | NumPy 30 ms | 15.0× |" in out


@pytest.fixture(scope="module")
def need():
    """Return a function that skips a test if a mixed model cannot be fitted here."""
    missing = peers.missing_peers()

    def check(method):
        if method in missing:
            pytest.skip(f"{method} needs {missing[method]}")

    return check


@pytest.fixture(scope="module")
def compared():
    """Compare all methods that can be fitted here on 30 tasks with random slopes."""
    missing = peers.missing_peers()
    methods = [name for name in peers.METHODS if name not in missing]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best lam")  # at the edge of the candidates
        return peers.compare(peers.slopes_problem(30), methods, repeats=1)


@pytest.mark.compiled
@pytest.mark.parametrize("method", peers.METHODS)
def test_methods_err_alike_on_new_tasks(need, compared, method):
    need(method)
    found, ours = compared[method], compared[peers.BAYES]
    assert found.cpu > 0
    assert found.wall > 0
    if method in (peers.PATH, peers.ALONE, peers.POOLED):  # they know less of the tasks
        assert ours.mse < found.mse < 10 * ours.mse
    else:
        assert found.mse == pytest.approx(ours.mse, rel=0.2)
        assert found.coverage == pytest.approx(0.95, abs=0.05)


@pytest.mark.parametrize(
    ("peer", "estimate", "predict"),
    [
        (peers.GPBOOST, peers.estimate_gpboost, partial(fit_gpboost, **peers.GPBOOST_FIT)),
        (peers.LME4, peers.estimate_lme4, fit_lme4),
    ],
)
def test_estimates_predict_as_the_mixed_model_does(need, peer, estimate, predict):
    need(peer)
    given, held_out = peers.draw_tasks(20, 40).split_samples(0.5, random_state=0)
    rows, new = rows_of(given), rows_of(held_out)
    mse, _ = estimate(peers.Problem(given, rows, given, held_out)).score(given, held_out)
    assert mse == pytest.approx(np.mean((new.y - predict(rows, new)) ** 2), rel=1e-6)


@pytest.mark.compiled
def test_comparison_has_a_row_for_each_method_and_a_dash_for_what_takes_long(
    compared, capsys, monkeypatch
):
    lines = peers.format_table("MSE", {"30": compared}, lambda one: f"{one.mse:.4f}").splitlines()
    assert lines[0] == "| MSE | T = 30 |"
    assert [line.split(" | ")[0][2:] for line in lines[2:]] == list(compared)
    monkeypatch.setattr(peers, "REPEATS", 1)
    monkeypatch.setattr(peers, "MOST_TASKS", {peers.POOLED: 30})
    peers.main(["30", "Exam"], [peers.BAYES, peers.ALONE, peers.POOLED])
    printed = capsys.readouterr().out
    assert re.search(r"^\| `BayesLTL` \| 1\.\d+ \| 0\.\d+ \|$", printed, re.MULTILINE)
    assert re.search(r"^\| one least squares for all \| \d\.\d+ \| – \|$", printed, re.MULTILINE)


@pytest.mark.compiled
def test_rates_are_printed_for_each_size(capsys):
    rates.print_rates([(3, 8), (9, 4)], repeats=1)
    rates.print_growth([(3, 4)], repeats=1, n_seen=2000)
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if "---" not in row] == [
        "| d, n",
        "| 3, 8",
        "| 9, 4",
        "| d, n",
        "| 3, 4",
    ]
