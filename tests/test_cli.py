"""The command line: the demonstration, and one line for each mistake."""

import re
import subprocess
import sys

import numba
import numpy as np
import pytest

import fastltl
from fastltl import cli, experiments, kernels


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
        (["demo", "--seed", "-1"], "--seed: wanted a whole number from 0 up, got '-1'"),
        (["demo", "--seed", "x"], "--seed: wanted a whole number from 0 up, got 'x'"),
        (["demo", "--sed", "1"], "unrecognized arguments: --sed 1"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_demo_prints_the_table_and_a_progress_bar(capsys):
    assert cli.main(["demo"]) == 0
    out, err = capsys.readouterr()
    assert "500/500" in err
    rows = dict(re.findall(r"^(.+?) {2,}(?:\d+|-) .* ([+-]\d+\.\d)%$", out, flags=re.MULTILINE))
    assert float(rows["true subspace"]) < float(rows["batch LTL"]) < float(rows["online LTL"]) < -10
    assert abs(float(rows["online LTL, paper's step"])) < 5


def test_an_interrupted_demo_ends_in_one_line(monkeypatch, capsys):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(experiments, "demo", interrupt)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "fastltl: interrupted"


@pytest.mark.slow
def test_it_runs_as_a_module_and_survives_a_reader_that_leaves():
    command = [sys.executable, "-m", "fastltl"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"fastltl {fastltl.__version__}\n"
    with subprocess.Popen(
        [*command, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "Traceback" not in err


@pytest.mark.filterwarnings("ignore:the best lam")
def test_demo_is_reproducible_and_measures_what_it_says():
    small = {"n_features": 6, "n_samples": 8, "checkpoints": (2, 5), "seed": 3}
    first, second = experiments.demo(**small), experiments.demo(**small)
    assert first == second
    assert [(row.method, row.n_tasks) for row in first] == [
        ("independent ridge (ITL)", 0),
        ("online LTL", 2),
        ("online LTL", 5),
        ("online LTL, paper's step", 5),
        ("batch LTL", 5),
        ("true subspace", 0),
    ]
    assert all(row.lam in experiments.LAMS for row in first)
    assert all(np.isfinite(row.test_error) and row.test_error > 0 for row in first)


def test_info_names_what_results_depend_on(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"fastltl {fastltl.__version__}, Python ")
    for word in (f"numpy {np.__version__}", "numba ", "threads: ", "BLAS: ", "compiled kernels: "):
        assert word in out


def test_warmup_leaves_nothing_to_compile(capsys):
    assert cli.main(["warmup"]) == 0
    assert capsys.readouterr().out.startswith("compiled, or found compiled, in ")
    if numba.config.DISABLE_JIT:
        return
    compiled = {name for name, kernel in vars(kernels).items() if hasattr(kernel, "signatures")}
    entries = [name for name in compiled if getattr(kernels, name).signatures]
    assert {"learn_euclidean", "learn_entropic", "objectives", "follow_duals"} <= set(entries)
    before = {name: len(getattr(kernels, name).signatures) for name in compiled}
    tasks = fastltl.TaskSet([(np.ones((2, 3)), np.ones(2)), (np.ones((4, 3)), np.ones(4))])
    for learner in (fastltl.OnlineLTL(), fastltl.BatchLTL(), fastltl.MTL(), fastltl.ITL()):
        learner.fit(tasks).adapt(np.ones((2, 3)), np.ones(2))
    fastltl.evaluate(np.eye(3), tasks, tasks, fit_intercept=True)
    assert before == {name: len(getattr(kernels, name).signatures) for name in compiled}
