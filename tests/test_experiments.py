"""Tests of fastltl.experiments.paper: cells, results files and summaries."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from schools import PATH, needs_schools

import fastltl as ltl
from fastltl import reference
from fastltl.experiments import paper
from fastltl.selection import LAMS

SMALL = {
    "grid": [
        {"seed": 0, "noise": noise, "n_samples": n, "trial": trial, "n_tasks": [4, 8]}
        for trial in range(2)
        for n in (5, 8)
        for noise in paper.NOISES
    ],
    "stream": [
        {"seed": 0, "noise": noise, "n_samples": 6, "trial": trial, "batch_after": [1, 5]}
        for trial in range(2)
        for noise in paper.NOISES
    ],
    "timing": [{"seed": 0, "trial": 0, "n_tasks": 50, "n_samples": 20}],
    "schools": [{"seed": 0, "trial": trial, "batch_after": [35]} for trial in range(2)],
}


@pytest.fixture
def small(monkeypatch):
    """Replace the cells of every experiment by fewer and smaller ones."""
    monkeypatch.setattr(paper, "STREAM_TASKS", 5)
    monkeypatch.setattr(paper, "N_TEST_TASKS", 6)
    for name, cells in SMALL.items():
        smaller = dataclasses.replace(paper.EXPERIMENTS[name], cells=lambda *_, cells=cells: cells)
        monkeypatch.setitem(paper.EXPERIMENTS, name, smaller)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid", "stream"])
def test_results_are_saved_and_reproducible(name, small, tmp_path):
    first = paper.reproduce(name, tmp_path / "one", n_jobs=1)
    saved = json.loads((tmp_path / "one" / f"{name}.json").read_text())
    assert saved == first
    assert [cell["cell"] for cell in first["cells"]] == SMALL[name]
    assert first["manifest"]["parameters"] == {"seed": 0, "trials": 10, "quick": False}
    second = paper.reproduce(name, tmp_path / "two", n_jobs=1)
    assert second["summary"] == first["summary"]


@pytest.mark.compiled
def test_only_missing_cells_are_computed(small, tmp_path, monkeypatch):
    whole = paper.reproduce("grid", tmp_path)
    path = tmp_path / "grid.json"
    cut = json.loads(path.read_text())
    kept = cut["cells"][:3]
    path.write_text(json.dumps(cut | {"cells": kept}))
    computed = []

    def record(cell):
        computed.append(cell)
        return paper._grid_cell(cell)

    smaller = dataclasses.replace(paper.EXPERIMENTS["grid"], compute=record)
    monkeypatch.setitem(paper.EXPERIMENTS, "grid", smaller)
    again = paper.reproduce("grid", tmp_path)
    assert computed == SMALL["grid"][3:]
    assert again["cells"][:3] == kept
    assert again["summary"] == whole["summary"]


def test_number_of_cells_of_each_experiment():
    for name, (full, quick) in {"grid": (300, 20), "stream": (20, 6), "timing": (18, 2)}.items():
        experiment = paper.EXPERIMENTS[name]
        assert len(experiment.cells(0, experiment.trials, False)) == full
        assert len(experiment.cells(0, experiment.quick_trials, True)) == quick
    assert len(paper.EXPERIMENTS["schools"].cells(0, 20, False)) == 20
    grid = paper.EXPERIMENTS["grid"].cells(0, 1, False)
    assert {cell["n_samples"] for cell in grid} == set(range(10, 151, 10))
    assert all(cell["n_tasks"] == list(range(10, 151, 10)) for cell in grid)


@pytest.mark.filterwarnings("ignore:the best lam")
def test_grid_cell_matches_public_functions():
    """Select each lam with a quarter as many validation tasks as training tasks."""
    cell = {"seed": 5, "noise": 0.1, "n_samples": 6, "trial": 1, "n_tasks": [4, 12]}
    ours = paper._grid_cell(cell)
    random = np.random.default_rng([5, 1, 6])
    environment = ltl.datasets.make_environment(50, noise=0.1, random_state=random)
    training = environment.tasks(12, 6)
    validation, test = environment.tasks(3, 12), environment.tasks(100, 12)
    validation = validation.split_samples(0.5, random)
    test = test.split_samples(0.5, random)
    for k, (n_tasks, n_validation) in enumerate([(4, 1), (12, 3)]):
        halves = tuple(half[:n_validation] for half in validation)
        for method, objective, geometry, step in (
            (paper.DEFAULT, "regularized", "entropic", "adaptive"),
            (paper.PAPER, "error", "euclidean", "theory"),
        ):
            settings = {"objective": objective, "geometry": geometry, "step": step}
            path = ltl.OnlineLTLPath(LAMS, halves, **settings)
            path.fit(training[:n_tasks])
            best = path.representations_[np.argmin(path.scores_)]
            expected = ltl.evaluate(best, *test).mean()
            assert ours[method][k] == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_timing_cell_and_warm_started_reference(small):
    row = paper._timing_cell(SMALL["timing"][0])
    assert len(row["seconds"]) == 8
    assert len(row["iterations"]) == 4
    assert all(value > 0 for values in row.values() for value in values.values())
    tasks = ltl.datasets.make_environment(8, random_state=0).tasks(6, 5)
    D = None
    for t in range(1, 7):
        D = reference.batch_solution(tasks[:t], 1e-2, tol=1e-4, start=D)
    warm, _ = reference.mean_objective(D, tasks)
    cold, _ = reference.mean_objective(reference.batch_solution(tasks, 1e-2, tol=1e-4), tasks)
    assert warm == pytest.approx(cold, rel=2e-4)


def test_means_and_intervals():
    row = paper.mean_with_interval([1.0, 2.0, 3.0, 4.0])
    assert row["mean"] == 2.5
    # 3.182 is the 97.5 % quantile of Student's t with three degrees of freedom.
    assert row["high"] - row["mean"] == pytest.approx(
        3.1824 * np.std([1, 2, 3, 4], ddof=1) / 2, 1e-4
    )
    assert paper.mean_with_interval([1.0])["low"] is None


@needs_schools
@pytest.mark.slow
def test_online_ltl_beats_itl_on_the_schools(tmp_path):
    results = paper.reproduce("schools", tmp_path, quick=True, n_jobs=2, schools=PATH)
    last = {row["method"]: row for row in results["summary"]}
    assert last[paper.DEFAULT]["trials"] == 20
    assert last[paper.DEFAULT]["n_tasks"] == 35
    assert last[paper.DEFAULT]["gain"]["mean"] >= 4
    assert last[paper.DEFAULT]["mean"] >= last[paper.BATCH]["mean"] - 1.5
    assert {*paper.BATCHES, *paper.ONLINE, paper.MULTITASK, paper.ALONE} == set(last)


def test_schools_needs_the_path_of_its_file(tmp_path):
    with pytest.raises(ValueError, match="schools must say where"):
        paper.reproduce("schools", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.mat"):
        paper.reproduce("schools", tmp_path, schools="nowhere.mat")
    assert list(tmp_path.iterdir()) == []


#: Runs the command line, and sends Ctrl-C to the process once three cells are on disk.
INTERRUPTED = """
import os, signal, sys
from fastltl import cli
from fastltl.experiments import results
write = results.write_results
def write_and_interrupt(path, found):
    write(path, found)
    if len(found["cells"]) == 3:
        os.kill(os.getpid(), signal.SIGINT)
results.write_results = write_and_interrupt
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_interrupted_run_resumes(tmp_path):
    """The interrupted command prints one line; run again, it computes the missing cells."""
    arguments = ["reproduce", "grid", "--quick", "--trials", "1"]
    arguments += ["--jobs", "2", "--out", str(tmp_path)]
    path = tmp_path / "grid.json"
    command = [sys.executable, "-c", INTERRUPTED, *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 130
    # Not necessarily the last line: joblib's resource tracker process may add a warning.
    message = "fastltl reproduce: interrupted; run the same command to resume"
    assert message in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    partial = json.loads(path.read_text())
    assert len(partial["cells"]) == 3
    command = [sys.executable, "-m", "fastltl", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    whole = json.loads(path.read_text())
    assert whole["cells"][: len(partial["cells"])] == partial["cells"]
    assert len(whole["cells"]) == 10
    assert len(whole["summary"]) == 150
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".")] == []
