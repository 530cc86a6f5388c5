"""Tests of fastltl.experiments.prior: BayesLTL against other methods."""

import json
import sys
from functools import partial

import numpy as np
import pytest
from schools import needs_schools, schools_tasks

from fastltl import cli
from fastltl.experiments import figures, paper, peers, prior, report
from fastltl.experiments.results import select

SYNTHETIC = "T = 4, n = 8, noise 0.05"
OURS = tuple(method for method in prior.METHODS if method not in prior.PEERS)


@pytest.fixture
def small(monkeypatch):
    """Replace the problems of a quick run by fewer and smaller ones."""
    _shrink(monkeypatch)


def _shrink(monkeypatch):
    monkeypatch.setattr(prior, "QUICK_TABLES", ("sleepstudy", "Exam"))
    monkeypatch.setattr(prior, "SIZES", ((4, 8),))
    monkeypatch.setattr(prior, "NOISES", (0.05,))
    monkeypatch.setattr(paper, "N_FEATURES", 6)
    monkeypatch.setattr(paper, "N_TEST_TASKS", 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run two small trials; return the folder and the results."""
    out = tmp_path_factory.mktemp("prior")
    with pytest.MonkeyPatch.context() as monkeypatch:
        _shrink(monkeypatch)
        return out, prior.reproduce(out, quick=True)


def test_every_method_has_plausible_errors(run):
    _, results = run
    summary = results["summary"]
    for problem in ("sleepstudy", "Exam", SYNTHETIC):
        rows = {row["method"]: row for row in select(summary, problem=problem)}
        assert set(OURS) <= set(rows)
        for row in rows.values():
            assert row["trials"] + row["left_out"] == 2
            assert 0 < row["mean"] < 3
            assert row["low"] <= row["mean"] <= row["high"]
        alone = rows[prior.ALONE]
        assert alone["gain"]["mean"] == 0
        assert alone["reference"] != prior.GPBOOST or problem != SYNTHETIC
    exam = {row["method"]: row["mean"] for row in select(summary, problem="Exam")}
    for method in (prior.ONE_PASS, prior.JOINT, prior.PASSES):
        assert exam[method] < 0.97 * exam[prior.ALONE]
        if prior.GPBOOST in exam:
            assert exam[method] == pytest.approx(exam[prior.GPBOOST], rel=0.03)


def test_intervals_cover_a_share_of_the_rows(run):
    for row in select(run[1]["summary"], method=prior.ONE_PASS):
        shares = [level["mean"] for level in row["coverage"]]
        assert 0 < shares[0] < shares[1] <= shares[2] <= 1
    exam = select(run[1]["summary"], method=prior.ONE_PASS, problem="Exam")[0]
    assert exam["coverage"][2]["mean"] == pytest.approx(0.95, abs=0.04)


def test_only_missing_cells_are_computed(run, small, tmp_path, monkeypatch):
    _, whole = run
    kept = whole["cells"][:4]
    (tmp_path / "prior.json").write_text(json.dumps(whole | {"cells": kept}))
    computed = []
    compute = prior.compute_cell

    def record(cell, schools):
        computed.append(cell)
        return compute(cell, schools)

    monkeypatch.setattr(prior, "compute_cell", record)
    again = prior.reproduce(tmp_path, quick=True)
    assert computed == [one["cell"] for one in whole["cells"][4:]]
    assert again["summary"] == whole["summary"]
    assert json.loads((tmp_path / "prior.json").read_text()) == again


def test_missing_gpboost_is_left_out_with_a_note(run, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpboost", None)
    monkeypatch.setattr(prior, "QUICK_TABLES", ("sleepstudy",))
    monkeypatch.setattr(peers.shutil, "which", lambda _: None)
    results = prior.reproduce(tmp_path, quick=True, trials=1)
    errors = results["cells"][0]["values"]["errors"]
    assert errors[prior.GPBOOST] is None
    assert errors[prior.LME4] is None
    assert {row["method"] for row in results["summary"]} == set(OURS)
    assert {row["reference"] for row in results["summary"]} == {prior.ALONE}
    notes = " ".join(report.prior_notes(results))
    assert "(GPBoost) is left out: GPBoost is not installed (pip install 'fastltl[peers]')" in notes
    assert "(lme4) is left out: Rscript with the package lme4 was not found" in notes


@pytest.mark.parametrize("n_failures", [1, 2])
def test_failed_fits_are_counted(small, n_failures, tmp_path, monkeypatch):
    calls = []

    def fail(fitted, new):
        calls.append(fitted)
        if len(calls) <= n_failures:
            raise ValueError("singular")
        return np.zeros(len(new.y))

    monkeypatch.setattr(prior, "PEERS", {prior.GPBOOST: fail})
    monkeypatch.setattr(prior, "QUICK_TABLES", ("sleepstudy",))
    monkeypatch.setattr(prior, "NOISES", ())
    monkeypatch.setattr(prior, "available_peers", lambda: [prior.GPBOOST])
    results = prior.reproduce(tmp_path, quick=True)
    row = select(results["summary"], method=prior.GPBOOST)[0]
    assert row["left_out"] == n_failures
    assert row["trials"] == 2 - n_failures
    assert (row["mean"] is None) == (n_failures == 2)
    assert results["warnings"]["mixed model (GPBoost) failed: singular."] == n_failures
    note = f"(GPBoost) was not fitted on {n_failures} of 2 splits of sleepstudy."
    assert note in " ".join(report.prior_notes(results))
    report.write_prior(results, tmp_path)


def random_rows(n_tasks, seed=0):
    """Return rows whose level and slope vary by task."""
    random = np.random.default_rng(seed)
    X, task = random.normal(size=(8 * n_tasks, 1)), np.repeat(np.arange(n_tasks), 8)
    level, slope = random.normal(size=(2, n_tasks))
    y = level[task] + slope[task] * X[:, 0] + 0.01 * random.normal(size=len(X))
    return peers.Rows(X, y, task)


def test_gpboost_fits_intercepts_and_slopes():
    pytest.importorskip("gpboost")
    rows = random_rows(20)
    assert peers.fit_gpboost(rows, rows) == pytest.approx(rows.y, abs=0.1)


def test_clusters_do_not_change_predictions_of_gpboost(monkeypatch):
    pytest.importorskip("gpboost")
    rows = random_rows(50)  # the last cluster is smaller
    predictions = []
    for n_tasks in (peers.TASKS_PER_CLUSTER, len(rows.y)):
        monkeypatch.setattr(peers, "TASKS_PER_CLUSTER", n_tasks)
        predictions.append(peers.fit_gpboost(rows, rows))
    assert predictions[0] == pytest.approx(predictions[1], abs=1e-3)  # an iteration more or less


def test_gpboost_that_does_not_converge_raises(monkeypatch):
    gpboost = pytest.importorskip("gpboost")
    fit = gpboost.GPModel.fit
    monkeypatch.setattr(gpboost.GPModel, "fit", partial_fit(fit))
    rows = random_rows(20)
    with pytest.raises(RuntimeError, match="maximal number of iterations"):
        peers.fit_gpboost(rows, rows)


def partial_fit(fit):
    """Return GPBoost's `fit` with one iteration."""
    return lambda self, **arguments: fit(self, **arguments, params={"maxit": 1})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows runs no scripts by their first line")
@pytest.mark.parametrize("works", [True, False])
def test_lme4_is_called_with_tables_of_the_rows(works, tmp_path, monkeypatch):
    """A stand-in for Rscript predicts 2 x0, or fails as R does."""
    predict = (
        "print(*(2 * float(row['x0']) for row in new), sep='\\n', file=open('found.txt', 'w'))"
    )
    code = [
        f"#!{sys.executable}",
        "import csv, sys",
        "if sys.argv[1] == '-e': sys.exit()",
        "assert '|| task' in open(sys.argv[1]).read()",
        "assert next(open('fitted.csv')) == 'x0,y,task\\n'",
        "new = list(csv.DictReader(open('new.csv')))",
        predict if works else "sys.exit('Error in lmer:\\n  downdated VtV')",
    ]
    script = tmp_path / "Rscript"
    script.write_text("\n".join(code))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert prior.LME4 in prior.available_peers()
    fitted, new = random_rows(3), random_rows(2)
    if works:
        assert peers.fit_lme4(fitted, new) == pytest.approx(2 * new.X[:, 0], rel=1e-15)
    else:
        with pytest.raises(RuntimeError, match="Error in lmer: downdated VtV"):
            peers.fit_lme4(fitted, new)


def test_dependent_columns_are_dropped():
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 30))
    first = (a > 0).astype(float)
    X = np.column_stack([first, 1 - first, np.full(30, 7.0), b, 3 * b - first])
    assert np.array_equal(peers.drop_dependent(X), X[:, [0, 3]])
    assert np.array_equal(peers.drop_dependent(X, backwards=True), X[:, [3, 4]])


def test_tables_have_indicators_without_the_first_value():
    tasks = prior.load_table("Exam")
    X = tasks[0][0]
    assert X[0] == pytest.approx([0.6190592, 0, 0, 0])  # sex=F and intake=bottom 25% are dropped
    assert prior.load_table("bdf").n_features == 8
    assert prior.load_table("Chem97").sizes.min() == 4


@needs_schools
def test_schools_have_22_independent_columns():
    assert prior.load_table(prior.SCHOOLS, schools_tasks()).n_features == 22


def test_split_is_standardised_and_keeps_held_out_rows_apart():
    tasks = prior.load_table("Hsb82")
    split = prior.split_table(tasks, np.random.default_rng(0))
    given, held_out = split.trial.test
    X, y, _ = peers.rows_of(split.training, given)
    assert X.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-9)
    assert X.std(axis=0) == pytest.approx(np.ones(3))
    assert (y.mean(), y.std()) == pytest.approx((0, 1), abs=1e-9)
    assert len(split.training) + len(given) == len(tasks)
    assert not set(split.training.labels) & set(given.labels)
    assert given.sizes + held_out.sizes == pytest.approx(
        [len(tasks[list(tasks.labels).index(label)][1]) for label in given.labels]
    )
    # Validation tasks are training tasks that the first fits do not see.
    validation = set(split.trial.validation[0].labels)
    assert validation == set(split.training.labels) - set(split.trial.training.labels)


@pytest.mark.filterwarnings("ignore:the best lam")
def test_tasks_without_structure_have_a_cell_of_their_own():
    cells = prior.list_cells(0, 2, False, [], [])
    assert len(cells) == 2 * 9
    cell = next(cell for cell in cells if cell["problem"] == prior.UNSTRUCTURED)
    values = prior.compute_cell(cell | {"n_tasks": 20})
    assert values["errors"][prior.GPBOOST] is None
    assert values["errors"][prior.ONE_PASS] < 1.1 * values["errors"][prior.ALONE]
    assert all(0 < share < 1 for share in values["coverage"])


def test_missing_schools_are_noted(run):
    manifest = {"parameters": {"quick": False, "trials": 2}}
    notes = report.prior_notes(run[1] | {"manifest": manifest})
    assert notes[0] == "Schools is left out: no path of schoolData.mat was given."
    assert not any("Schools" in note for note in report.prior_notes(run[1]))


def test_picture_of_one_trial_has_no_intervals(run):
    _, results = run
    single = [
        row | {"ratio": row["ratio"] | {"low": None, "high": None}} for row in results["summary"]
    ]
    (picture,) = figures.draw(results | {"summary": single})
    assert picture.name == "prior"
    assert "Exam " in picture.caption


def test_command_prints_tables_and_writes_the_report(run, small, capsys, monkeypatch):
    out, results = run
    monkeypatch.setattr(prior, "compute_cell", partial(pytest.fail, "the cells are there"))
    monkeypatch.setattr(prior, "compile_kernels", lambda: None)
    assert cli.main(["reproduce", "prior", "--quick", "--jobs", "1", "--out", str(out)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "Tables: error" in printed
    assert "Synthetic tasks, noise 0.05: gain over ITL, in percent" in printed
    assert sum(line.startswith(prior.ONE_PASS) for line in printed) == 4
    assert "Coverage of the intervals of BayesLTL, one pass" in printed
    assert set(report.prior_notes(results)) <= set(printed)
    assert printed[-1] == f"Report: {out / 'report.html'}"
    assert (out / "prior.png").read_bytes().startswith(b"\x89PNG")
    assert "what people would use instead" in (out / "report.html").read_text(encoding="utf-8")
