"""The command line: output of the commands, and one line for each error."""

import dataclasses
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys

import numba
import numpy as np
import pytest

import fastltl
from fastltl import _kernels, cli, experiments
from fastltl.experiments import compare, paper
from fastltl.experiments.verdict import METHODS


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fastltl {fastltl.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dem"], "invalid choice: 'dem'"),
        (["demo", "--seed", "-1"], "--seed: must be a whole number from 0 up, got '-1'"),
        (["demo", "--seed", "x"], "--seed: must be a whole number from 0 up, got 'x'"),
        (["demo", "--sed", "1"], "unrecognized arguments: --sed 1"),
        (["demo", "--jobs", "0"], "--jobs: must be a whole number from 1 up, got '0'"),
        (["compare", "x.csv", "--task", "t"], "the following arguments are required: --target"),
        (["reproduce", "figure"], "bounds|all|prior: invalid choice: 'figure'"),
        (["reproduce", "grid", "--trials", "-3"], "--trials: "),
        (["train", "x.csv", "--target", "y"], "the following arguments are required: --checkpoint"),
        (["adapt", "c.npz", "x.csv", "--level", "101"], "--level: must be a percentage between 1"),
    ],
)
def test_argument_errors_are_one_line_with_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_parser_lists_all_experiments():
    """The parser has its own list, so that --help does not import the experiments."""
    assert tuple(paper.EXPERIMENTS) == cli.EXPERIMENTS


def test_every_command_has_help(capsys):
    for command in ("demo", "compare", "reproduce", "train", "adapt", "info", "warmup"):
        with pytest.raises(SystemExit) as stop:
            cli.main([command, "--help"])
        assert stop.value.code == 0
        assert f"usage: fastltl {command}" in capsys.readouterr().out


@pytest.fixture
def table(tmp_path):
    """Write a table of 16 tasks with 8 rows each."""
    path = tmp_path / "table.csv"
    random = np.random.default_rng(0)
    rows = ["shop,size,kind,sales"]
    for shop in range(16):
        slope = random.normal()
        for _ in range(8):
            size, kind = random.normal(), random.choice(["new", "old"])
            rows.append(f"{shop},{size:.4f},{kind},{slope * size + 0.1 * random.normal():.4f}")
    path.write_text("\n".join(rows))
    return path


def test_compare_prints_a_summary_and_writes_the_report(table, capsys):
    out = table.parent / "out"
    arguments = [str(table), "--task", "shop", "--target", "sales", "--out", str(out)]
    assert cli.main(["compare", *arguments, "--jobs", "1", "--repeats", "1"]) == 0
    printed, err = capsys.readouterr()
    assert "comparing: 100%" in err
    assert "16 tasks, 3 features, 128 rows" in printed
    for method in METHODS:
        assert re.search(rf"^{re.escape(method)} .* \d+\.\d( +<- use this)?$", printed, flags=re.M)
    assert re.search(
        r"^Use .* Whether sharing helps is not certain with only 16 tasks", printed, re.M
    )
    command = f"fastltl train {table} --task shop --target sales --checkpoint {table.stem}.npz"
    step = printed.splitlines()[-2]
    assert step == f"Next: {command}" or step.startswith("Next: the report has the code for ")
    assert printed.splitlines()[-1] == f"Report: {out / 'report.html'}"
    results = json.loads((out / "results.json").read_text())
    assert results["verdict"]["sentence"] in printed
    assert results["manifest"]["parameters"] == {"seed": 0, "repeats": 1, "jobs": 1}
    assert (out / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (None, ["--target", "sale"], "target must name a column"),
        (None, ["--task", "store"], "task must name a column"),
        (None, ["--target", "kind"], "target must name a column of numbers, got 'kind'"),
        (None, ["--features", "height"], "features must name a column"),
        (None, ["--drop", "size", "--drop", "kind"], "besides task and target, got none"),
        ("PK\3\4", [], "must be CSV or Parquet, got an Excel workbook or zip file"),
        ("", [], "is empty"),
        ("shop,size,sales\n1,2,3\n1,3,4\n1,4,5\n1,5,6\n", [], "at least 4 tasks with 2 rows"),
        ("shop,size,sales\n1,2,3\n1,,4\n", [], "'size' must have no missing values, got 1"),
        ("%PDF-1.4 \0\1\2\nshop", [], "task must name a column of"),
        ("gone", [], "No such file or directory"),
    ],
)
def test_table_errors_are_one_line(table, change, arguments, message, capsys):
    out = table.parent / "out"
    if change == "gone":
        table.unlink()
    elif change is not None:
        table.write_text(change)
    defaults = ["compare", str(table), "--task", "shop", "--target", "sales", "--out", str(out)]
    assert cli.main([*defaults, *arguments]) == 2
    printed, err = capsys.readouterr()
    assert printed == ""
    assert err.count("\n") == 1
    assert err.startswith("fastltl compare: ")
    assert message in err
    assert not out.exists()


@pytest.mark.parametrize("folder", ["table.csv", "table.csv/below", "", "x" * 300])
def test_unwritable_folder_is_reported_first(table, folder, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--out", str(table.parent / folder) if folder else ""])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert "argument --out: " in err
    assert err.count("\n") == 1
    assert [path.name for path in table.parent.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_error_without_report_packages_names_the_extra(package, monkeypatch, capsys):
    for name in ("fastltl.experiments.report", "fastltl.experiments.figures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(experiments, name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["demo"]) == 2
    assert "pip install 'fastltl[cli]'" in capsys.readouterr().err


def test_reproduce_without_schools_data(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FASTLTL_SCHOOLS", raising=False)
    out = tmp_path / "out"
    assert cli.main(["reproduce", "schools", "--out", str(out)]) == 2
    assert "schools must say where schoolData.mat is" in capsys.readouterr().err
    for what in ("schools", "all", "prior"):
        assert cli.main(["reproduce", what, "--schools", "gone.mat", "--out", str(out)]) == 2
        assert "gone.mat: No such file" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_reproduce_prints_claims_and_writes_the_report(tmp_path, capsys, monkeypatch):
    experiment = paper.EXPERIMENTS["grid"]
    cells = [
        {"seed": 0, "noise": noise, "n_samples": 5, "trial": 0, "n_tasks": [4]}
        for noise in paper.NOISES
    ]
    fewer = dataclasses.replace(experiment, cells=lambda *_: cells)
    monkeypatch.setitem(paper.EXPERIMENTS, "grid", fewer)
    assert cli.main(["reproduce", "grid", "--out", str(tmp_path), "--trials", "1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^  (yes|no|partly) +Online LTL consistently outperforms ITL", printed, re.M)
    assert printed.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".html", ".png", ".svg"}


@pytest.mark.slow
def test_demo_reports_that_sharing_helps(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "Use BayesLTL: " in printed
    gains = dict(re.findall(r"^(\S+ ?\w*) .*? ([+-]\d+\.\d)  ", printed, flags=re.M))
    assert float(gains["BayesLTL "]) > float(gains["batch LTL"]) > float(gains["online LTL"]) > 10
    assert printed.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"


def test_interrupted_demo_prints_one_line(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "compare", interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "fastltl demo: interrupted"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("no memory\nfor 9 GB"), "no memory for 9 GB"),
        (OverflowError("date value out of range"), "date value out of range"),
    ],
)
def test_limits_of_the_machine_are_reported_in_one_line(error, message, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(compare, "compare", fail)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"fastltl demo: {message}"


@pytest.mark.compiled
def test_module_runs_and_survives_a_closed_pipe():
    command = [sys.executable, "-m", "fastltl"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"fastltl {fastltl.__version__}\n"
    with subprocess.Popen(
        [*command, "info"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert err == ""


def test_info_prints_versions_and_threads(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"fastltl {fastltl.__version__}, Python ")
    for word in (f"numpy {np.__version__}", "numba ", "threads: ", "BLAS: ", "compiled kernels: "):
        assert word in out


@pytest.mark.slow
def test_warmup_compiles_every_kernel(capsys):
    assert cli.main(["warmup"]) == 0
    assert capsys.readouterr().out.startswith("compiled, or loaded from the cache, in ")
    if numba.config.DISABLE_JIT:
        return
    compiled = {
        f"{part.name}.{name}": kernel
        for part in pkgutil.iter_modules(_kernels.__path__)
        for name, kernel in vars(importlib.import_module(f"fastltl._kernels.{part.name}")).items()
        if hasattr(kernel, "signatures")
    }
    entries = {name for name, kernel in compiled.items() if kernel.signatures}
    assert {"online.learn_euclidean", "online.learn_entropic"} <= entries
    before = {name: len(kernel.signatures) for name, kernel in compiled.items()}
    tasks = fastltl.TaskSet([(np.ones((2, 3)), np.ones(2)), (np.ones((4, 3)), np.ones(4))])
    for learner in (fastltl.OnlineLTL(), fastltl.BatchLTL(), fastltl.MTL(), fastltl.ITL()):
        learner.fit(tasks).adapt(np.ones((2, 3)), np.ones(2))
    environment = fastltl.datasets.make_environment(10, random_state=0)
    fastltl.MTL(n_threads=2).fit(environment.tasks(200, 8))
    fastltl.evaluate(np.eye(3), tasks, tasks, fit_intercept=True)
    assert before == {name: len(kernel.signatures) for name, kernel in compiled.items()}
