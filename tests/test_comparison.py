"""Tests of fastltl.experiments.compare and trials: scores, intervals and the verdict."""

import json
import re
import sys
import warnings
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import explained_variance_score, mean_squared_error

import fastltl as ltl
from fastltl.experiments import compare, verdict
from fastltl.experiments.trials import (
    ALGORITHM_1,
    PAPER_EXPERIMENTS,
    Trial,
    fit_batch,
    fit_itl,
    fit_mtl,
    fit_online,
    score_pooled,
    select_pooled_lam,
)
from fastltl.experiments.verdict import ALONE, BATCH, BAYES, INTERCEPTS, ONLINE, POOLED, SLOPES
from fastltl.selection import LAMS


def make_tasks(n_tasks=24, n_samples=10, n_features=5, noise=0.1, seed=0):
    environment = ltl.datasets.make_environment(n_features, 1, noise, random_state=seed)
    return environment.tasks(n_tasks, n_samples)


def small_trial(**settings):
    training, validation, test = make_tasks().split((0.5, 0.25, 0.25), random_state=0)
    halves = [part.split_samples(0.5, random_state=0) for part in (validation, test)]
    return Trial(training, *halves, **settings)


@pytest.fixture(scope="module")
def found():
    return ltl.compare(make_tasks(), seed=1, repeats=2)


def fold_of(tasks, left_out=(), is_first=False, **cell):
    cell = {"repeat": 0, "fold": 0, "left_out": left_out, "is_first": is_first} | cell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lam may be at the edge of the candidates
        return compare._score_fold(cell, tasks, seed=1)


def test_every_task_is_held_out_once_in_each_repeat():
    tasks, orders = make_tasks(), []
    for repeat in range(2):
        folds = [fold_of(tasks, compare.SLOW, repeat=repeat, fold=fold) for fold in range(4)]
        orders.append([task for fold in folds for task in fold["tasks"]])
        assert sorted(orders[-1]) == list(range(24))
        assert all(fold["n_rows"] == [5] * 6 for fold in folds)
    assert orders[0] != orders[1]


def test_method_rows_follow_from_the_errors_on_tasks(found):
    results = found.results
    assert results["data"] == {
        "n_tasks": 24,
        "n_features": 5,
        "n_rows": 240,
        "variance": pytest.approx(np.var(np.concatenate([y for _, y in make_tasks()]))),
        "n_left_out": 0,
    }
    alone = np.mean([task["mse"][ALONE] for task in results["tasks"]])
    for row in results["methods"]:
        mse = np.mean([task["mse"][row["method"]] for task in results["tasks"]])
        assert row["mse"] == pytest.approx(mse)
        assert row["explained"] == pytest.approx(1 - mse / results["data"]["variance"])
        if row["method"] != ALONE:
            assert row["gain"] == pytest.approx(100 * (1 - mse / alone))
            (low, high), (lower, higher) = row["interval"], row["strict_interval"]
            assert lower <= low < row["gain"] < high <= higher
    assert [point["n_tasks"] for point in results["curve"]][-1] == 18
    last, bayes = results["curve"][-1], results["methods"][0]
    assert last["mse"] == pytest.approx(bayes["mse"], rel=1e-9)
    assert last["low"] < last["explained"] < last["high"]


def test_comparison_as_text_and_as_frame(found):
    text = str(found)
    assert text.startswith("24 tasks, 5 features, 240 rows\n\nmethod ")
    assert found.best == BAYES
    assert found.verdict in text
    [marked] = [line for line in text.splitlines() if line.endswith("<- use this")]
    assert marked.startswith(BAYES)
    assert "The 95 % intervals of BayesLTL contain " in text
    assert repr(found) == "<Comparison: use BayesLTL>"
    frame = found.to_frame()
    assert frame.loc[BAYES, "mse"] == found.results["methods"][0]["mse"]
    assert frame.columns.tolist() == ["explained", "mse", "gain", "low", "high", "seconds"]


def test_a_data_frame_gives_the_same_as_its_tasks(found):
    frame = make_tasks().to_frame(task="shop", target="sales")
    again = ltl.compare(frame, "shop", "sales", seed=1, repeats=2)
    assert without_seconds(again) == without_seconds(found)


@pytest.mark.compiled
def test_results_do_not_depend_on_n_jobs(found):
    again = ltl.compare(make_tasks(), seed=1, repeats=2, n_jobs=2)
    assert without_seconds(again) == without_seconds(found)


def without_seconds(comparison):
    results = {name: value for name, value in comparison.results.items() if name != "manifest"}
    return results | {"methods": [row | {"seconds": 0} for row in results["methods"]]}


@pytest.mark.parametrize(
    ("tasks", "options", "error", "message"),
    [
        (make_tasks(3), {}, ValueError, r"at least 4 tasks with 2 rows or more, got 3: of 3 tasks"),
        (make_tasks(8, 1), {}, ValueError, r"got 0: of 8 tasks, 8 have one row"),
        (ltl.TaskSet([(np.eye(3), np.ones(3))] * 5), {}, ValueError, "must vary, got 1 in every"),
        (make_tasks(8), {"task": "a"}, ValueError, "task, target, .* with a data frame"),
        (make_tasks(8), {"repeats": 0}, ValueError, "repeats must be"),
        (make_tasks(8), {"seed": -1}, ValueError, "seed must be an integer >= 0, got -1"),
        (make_tasks(8), {"seed": "x"}, ValueError, "seed must be an integer >= 0, got 'x'"),
        (make_tasks(8), {"n_jobs": 0}, ValueError, "n_jobs must be .* >= 1, or -1 .* got 0"),
        (make_tasks(8), {"dask": "tcp://127.0.0.1:1"}, ValueError, "dask must be the address"),
        ({"a": [1, 2]}, {"task": "a"}, TypeError, "target must name a column of the data frame"),
        ({"a": [1, 2]}, {}, TypeError, "task must name a column of the data frame"),
    ],
)
def test_what_cannot_be_compared_is_an_error(tasks, options, error, message):
    with pytest.raises(error, match=message):
        ltl.compare(tasks, **options)


def test_tasks_of_one_row_are_left_out_and_huge_numbers_are_an_error():
    tasks = ltl.TaskSet([*make_tasks(8, 8), *make_tasks(3, 1, seed=1)])
    assert len(compare.usable_tasks(tasks)) == 8
    found = ltl.compare(tasks, repeats=1)
    assert found.results["data"]["n_left_out"] == 3
    assert "8 tasks (3 of one row left out)" in str(found)
    with pytest.raises(ValueError, match=r"must not exceed 1e\+150, got 1e\+200"):
        compare.usable_tasks(tasks.map_inputs(lambda X: 0 * X + 1e200))


def test_units_of_features_and_targets_do_not_matter():
    tasks, units = make_tasks(12), np.array([1e-4, 1, 1, 1, 1e4])
    ours = ltl.TaskSet([(X * units, 1e6 * y + 3e6) for X, y in tasks])
    pairs = zip(*(fold_of(part)["squares"].items() for part in (ours, tasks)), strict=True)
    for (name, one), (_, other) in pairs:
        assert np.array(one) / 1e12 == pytest.approx(np.array(other), rel=1e-3), name


def test_numpy_integers_labels_twice_and_constant_features(tmp_path):
    """All of it ends in a report, whose results are JSON."""
    constant = make_tasks(8).map_inputs(np.ones_like)
    tasks = ltl.TaskSet([*constant], labels=["a", "b"] * 4)
    found = ltl.compare(tasks, seed=np.int64(3), n_jobs=np.int64(1), repeats=1)
    assert found.results["manifest"]["parameters"]["seed"] == 3
    page = found.write_report(tmp_path).read_text(encoding="utf-8")
    assert "intercept is larger by 1" not in page
    assert json.loads((tmp_path / "results.json").read_text())["learned"]["features"]


def test_order_and_halves_have_random_numbers_of_their_own():
    tasks = make_tasks(8)
    orders = [fold_of(tasks, compare.SLOW, fold=fold)["tasks"] for fold in range(4)]
    order = np.ravel(orders, order="F")
    for fold in range(4):
        drawn = np.random.default_rng([1, 0, fold]).permutation(8)
        assert not np.array_equal(drawn, order)


def test_slow_methods_are_left_out_and_said_to_be(monkeypatch):
    monkeypatch.setattr(compare, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(compare, "SLOWEST", 1e-9)
    found = ltl.compare(make_tasks(), repeats=1)
    assert [row["method"] for row in found.results["methods"]] == [BAYES, ALONE, POOLED, ONLINE]
    assert set(found.results["left_out"]) == set(compare.SLOW)
    assert "batch LTL was left out: it takes more than 0 s a fold" in str(found)


def test_a_short_delay_leaves_no_method_out(monkeypatch):
    """Each measurement takes half a second, as on a busy machine."""
    clock = SimpleNamespace(perf_counter=(0.5 * k for k in count()).__next__)
    monkeypatch.setattr(compare, "time", clock)
    fold = fold_of(make_tasks(), is_first=True)
    assert fold["failed"] == {}
    assert set(fold["squares"]) == set(verdict.METHODS)


def test_batch_fits_stop_at_their_deadline():
    trial = small_trial()
    for fit in (lambda: next(fit_batch(trial, [12], seconds=0.0)), lambda: fit_mtl(trial, 0.0)):
        with pytest.raises(TimeoutError, match="the solver took more than"):
            fit()


def test_mixed_models_that_are_missing_or_fail_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpboost", None)
    found = ltl.compare(make_tasks(8), repeats=1)
    assert found.results["left_out"] == dict.fromkeys(
        (INTERCEPTS, SLOPES), "it needs pip install 'fastltl[peers]'"
    )
    monkeypatch.undo()

    def fail(fitted, new, slopes):
        raise RuntimeError("did not converge.")

    monkeypatch.setattr(compare, "fit_gpboost", fail)
    assert fold_of(make_tasks(8))["failed"] == dict.fromkeys(
        (INTERCEPTS, SLOPES), "it failed (did not converge)"
    )


def test_a_method_that_fails_in_one_fold_is_left_out_of_all(monkeypatch):
    fit = compare.fit_gpboost

    def fail_once(fitted, new, slopes, calls=[]):  # noqa: B006
        calls.append(slopes)
        if slopes and calls.count(True) == 5:  # after two pilots and the first two folds
            raise RuntimeError("did not converge")
        return fit(fitted, new, slopes)

    monkeypatch.setattr(compare, "fit_gpboost", fail_once)
    found = ltl.compare(make_tasks(), repeats=1)
    assert found.results["left_out"] == {SLOPES: "it failed (did not converge)"}
    assert SLOPES not in [row["method"] for row in found.results["methods"]]
    assert INTERCEPTS in [row["method"] for row in found.results["methods"]]


def test_scores_of_mixed_models_match_their_predictions():
    """Random intercepts that vary and slopes that do not are found by both models."""
    random = np.random.default_rng(0)
    tasks = []
    for _ in range(40):
        X = random.normal(size=(10, 2))
        tasks.append((X, X @ [1.0, -2.0] + 3 * random.normal() + 0.1 * random.normal(size=10)))
    squares = fold_of(ltl.TaskSet(tasks))["squares"]
    for name in (INTERCEPTS, SLOPES):
        assert np.mean(squares[name]) / 5 == pytest.approx(0.01, rel=0.5), name
    assert np.mean(squares[POOLED]) / 5 > 4


def test_pooled_ridge_matches_scikit_learn():
    trial = small_trial(fit_intercept=True)
    lam = select_pooled_lam(trial)
    parts = [*trial.training, *trial.test[0]]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    model = Ridge(alpha=lam * len(y)).fit(X, y)
    for metric, score in (
        ("mse", mean_squared_error),
        ("explained_variance", explained_variance_score),
    ):
        expected = [score(y, model.predict(X)) for X, y in trial.test[1]]
        ours = score_pooled(trial, trial.test, np.array([lam]), metric)[0]
        assert ours == pytest.approx(expected, rel=1e-9)


def test_fits_match_the_learners():
    trial = small_trial()
    online = [*fit_online(trial, [3, len(trial.training)])]
    assert [one.n_tasks for one in online] == [3, 12]
    path = ltl.OnlineLTLPath(validation=trial.validation).fit(trial.training)
    assert online[-1].lam == path.best_lam_
    assert np.array_equal(online[-1].D, path.D_)
    paper = next(fit_online(trial, [12], [ALGORITHM_1]))
    settings = {"objective": "error", "geometry": "euclidean", "step": "theory"}
    learner = ltl.OnlineLTL(paper.lam, **settings).fit(trial.training)
    assert np.array_equal(paper.D, learner.D_)
    # Validation tasks choose c and lam.
    tuned = next(fit_online(trial, [12], PAPER_EXPERIMENTS))
    errors = {}
    for chosen in PAPER_EXPERIMENTS:
        path = ltl.OnlineLTLPath(validation=trial.validation, **chosen).fit(trial.training)
        errors[chosen["step"]] = path.scores_.min()
    step = min(errors, key=errors.get)
    settings |= {"step": step, "averaging": "last"}
    learner = ltl.OnlineLTL(tuned.lam, **settings).fit(trial.training)
    assert np.array_equal(tuned.D, learner.D_)
    alone = fit_itl(trial, trial.validation)
    assert np.array_equal(alone.D, np.eye(5) / alone.lam)
    for objective in ("regularized", "error"):
        for batch in fit_batch(trial, [4, 12], objective):
            learner = ltl.BatchLTL(batch.lam, objective=objective)
            expected = learner.fit(trial.training[: batch.n_tasks]).D_
            score, exact = (trial.score(D).mean() for D in (batch.D, expected))
            assert score == pytest.approx(exact, rel=0.05)
        assert batch.n_tasks == 12
    multitask = fit_mtl(trial)
    assert multitask.lam in LAMS
    assert np.trace(multitask.D) <= 1 / multitask.lam * (1 + 1e-9)


def test_validation_share_limits_the_validation_tasks():
    trial = small_trial(validation_share=0.25)
    assert [len(trial.validation_for(t)[0]) for t in (1, 4, 12, 24)] == [1, 1, 3, 6]
    assert len(small_trial().validation_for(1)[0]) == 6


def rows_with(intervals):
    """Rows of methods whose gain over each task alone is in the middle of its interval."""
    rows = [{"method": ALONE, "mse": 1.0, "explained": 0.5}]
    for method, (low, high) in zip((POOLED, BAYES, BATCH), intervals, strict=True):
        gain = (low + high) / 2
        mse = 1 - gain / 100
        row = {"method": method, "mse": mse, "explained": 1 - mse / 2, "gain": gain}
        rows.append(row | {"strict_interval": [low, high]})
    return rows


BAD = (-9, -1)


@pytest.mark.parametrize(
    ("intervals", "n_tasks", "use", "helps", "sentence"),
    [
        ([BAD, (4, 6), (2, 3)], 40, BAYES, "yes", "Use BayesLTL: .* 52.5 % of .* 50.0 % by each"),
        ([BAD, (4, 6), (4, 7)], 40, BAYES, "yes", r"error of batch LTL is 0\.5 % lower, .* too li"),
        ([BAD, (4, 6), (7, 9)], 40, BATCH, "yes", "Sharing helps: the error of batch LTL is 8.0 %"),
        ([(4, 6), (4, 6), (4, 7)], 40, POOLED, "yes", "Use one model for all"),
        ([BAD, (-3, 0.5), BAD], 40, ALONE, "no", "Sharing gains little: .* BayesLTL is 1.2 % hi"),
        ([BAD, (-3, 4), BAD], 40, ALONE, "unclear", "Whether sharing helps is not certain: .* low"),
        ([BAD, (-1, 9), BAD], 40, BAYES, "unclear", r"gain is -1\.0 to 9\.0 %, wider .* 3 methods"),
        ([BAD, (0.1, 0.3), BAD], 40, ALONE, "no", "Use each task alone"),
        ([BAD, (4, 6), (2, 3)], 19, BAYES, "unclear", "not certain with only 19 tasks: "),
    ],
)
def test_verdict_follows_from_the_errors(intervals, n_tasks, use, helps, sentence):
    found = verdict.verdict(rows_with(intervals), n_tasks)
    assert (found["use"], found["helps"]) == (use, helps)
    assert re.search(sentence, found["sentence"])


@pytest.mark.slow
@pytest.mark.parametrize(("n_tasks", "least"), [(20, 0.88), (60, 0.9)])
def test_intervals_cover_the_true_gain_with_heavy_tails(n_tasks, least):
    """Multiply errors of very different sizes by factors of mean 0.8: the true gain is 20 %."""
    random = np.random.default_rng(0)
    covered = []
    for k in range(200):
        baseline = random.gamma(1.0, size=n_tasks)
        factors = 0.8 * np.exp(0.5 * random.standard_normal(n_tasks) - 0.125)
        errors = (factors * baseline)[None], baseline[None]
        [(low, high)] = verdict.gain_intervals(*errors, [0.95], k)
        covered.append(low <= 20 <= high)
    assert least <= np.mean(covered) <= 0.99


def test_intervals_include_the_choice_of_folds():
    random = np.random.default_rng(0)
    baseline = random.gamma(1.0, size=(5, 40))
    errors = 0.8 * baseline
    shifts = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])[:, None]  # of all tasks of a repeat alike
    [(low, high)] = verdict.gain_intervals(errors, baseline, [0.95], 0)
    [(lower, higher)] = verdict.gain_intervals(errors * (1 + shifts), baseline, [0.95], 0)
    assert high - low < 1e-9
    assert lower < 20 < higher
    expected = 80 * np.std(shifts, ddof=1) / np.sqrt(5)
    assert verdict.total_deviation(errors * (1 + shifts), baseline) == pytest.approx(
        expected, rel=0.3
    )


def test_interval_of_equal_errors_and_of_zero_errors():
    errors = np.array([[1.0, 2.0, 3.0]])
    assert verdict.gain_intervals(errors, errors, [0.95], 0) == [[0.0, 0.0]]
    assert verdict.gain_intervals(0 * errors, 0 * errors, [0.95], 0) == [[100.0, 100.0]]


@pytest.mark.slow
def test_verdict_is_rarely_yes_when_there_is_nothing_to_share():
    """Draw targets independent of the features, around a level of each task."""
    helps = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        scales = np.exp(random.normal(size=30))
        tasks = [
            (random.normal(size=(8, 4)), scale * (3 * random.normal() + random.normal(size=8)))
            for scale in scales
        ]
        found = ltl.compare(ltl.TaskSet(tasks), seed=seed, repeats=2)
        helps.append(found.results["verdict"]["helps"])
    assert helps.count("yes") <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "repeats", "most"),
    [
        ("mlmRev/Exam", 5, 1.02),
        ("nlme/bdf", 3, 1.02),
        ("mlmRev/Hsb82", 3, 1.02),
        ("mlmRev/Chem97", 1, 1.02),
        ("nlme/Orthodont", 25, 1.02),
        ("lme4/sleepstudy", 50, 1.06),  # of 18 and 10 tasks
        ("plm/Grunfeld", 50, 1.06),
    ],
)
def test_verdict_holds_on_other_splits(name, repeats, most):
    """The method named by one seed is close to the best as measured with another."""
    tasks = ltl.datasets.load_rdataset(name)
    use = ltl.compare(tasks, repeats=repeats, n_jobs=2).best
    errors = ltl.compare(tasks, repeats=repeats, seed=1, n_jobs=2).to_frame()["mse"]
    assert errors[use] <= most * errors.min()
