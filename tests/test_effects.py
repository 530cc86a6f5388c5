"""Summaries of a learned prior, the weights of tasks with intervals, and data frames of tasks."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import fastltl as ltl
from fastltl.effects import weight_names

SAMPLES = Path(__file__).parent / "checkpoints"

MEAN, STD = np.array([1.0, 0.2, 0.0, 3.0]), np.array([0.5, 0.5, 0.2, 1.0])


def slopes(n_tasks, rng, std=STD, n_rows=10, **labels):
    """Return tasks with three random slopes and a random intercept, and their weights."""
    weights = MEAN + std * rng.normal(size=(n_tasks, 4))
    tasks = []
    for w in weights:
        X = rng.normal(size=(rng.integers(n_rows // 2, 3 * n_rows // 2), 3))
        tasks.append((X, X @ w[:3] + w[3] + rng.normal(size=len(X))))
    return ltl.TaskSet(tasks, **labels), weights


@pytest.fixture(scope="module")
def tasks():
    return slopes(60, np.random.default_rng(0))[0].with_names(["age", "dose", "rank"])


@pytest.fixture(scope="module")
def learner(tasks):
    return ltl.BayesLTL().fit(tasks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_tasks", "n_trials", "n_passes"), [(30, 150, 1), (100, 150, 1), (500, 80, 1), (30, 150, 2)]
)
def test_means_are_covered_by_their_standard_errors(n_tasks, n_trials, n_passes):
    """95 % intervals cover about 95 % of the true means, and are not much wider than they need."""
    rng, errors, claimed = np.random.default_rng(n_tasks + 1), [], []
    for _ in range(n_trials):
        summary = ltl.BayesLTL(n_passes=n_passes).fit(slopes(n_tasks, rng)[0]).summary()
        errors.append(summary.means - MEAN)
        claimed.append(summary.standard_errors)
    errors, claimed = np.array(errors), np.array(claimed)
    assert 0.92 <= np.mean(np.abs(errors) <= 1.96 * claimed) <= 0.995
    assert np.sqrt(np.mean(claimed**2)) < 1.5 * np.sqrt(np.mean(errors**2))


@pytest.mark.slow
@pytest.mark.compiled
def test_standard_errors_with_a_half_life():
    """The mean of the latest tasks has the variance that the standard errors say."""
    rng, errors, claimed = np.random.default_rng(3), [], []
    for _ in range(100):
        summary = ltl.BayesLTL(half_life=20).fit(slopes(150, rng)[0]).summary()
        errors.append(summary.means - MEAN)
        claimed.append(summary.standard_errors)
    ratio = np.sqrt(np.mean(np.square(claimed))) / np.sqrt(np.mean(np.square(errors)))
    assert 0.8 < ratio < 1.2


@pytest.mark.compiled
@pytest.mark.parametrize("std", [STD, [0.0, 0.0, 0.0, 1.0]], ids=["slopes", "intercept only"])
@pytest.mark.parametrize("is_new", [False, True], ids=["seen", "new"])
def test_weights_of_tasks_are_covered_by_their_intervals(std, is_new):
    rng, covered = np.random.default_rng(5), []
    for _ in range(20):
        seen, truth = slopes(40, rng, np.array(std))
        learner = ltl.BayesLTL().fit(seen)
        if is_new:
            seen, truth = slopes(40, rng, np.array(std))
        effects = learner.effects(seen)
        covered.append((effects.lower <= truth.ravel()) & (truth.ravel() <= effects.upper))
    assert 0.92 <= np.mean(covered) <= 0.995


def test_a_summary_has_what_the_learner_has(learner, tasks):
    summary = learner.summary()
    covariance = learner.covariance_
    std = np.sqrt(np.diag(covariance))
    assert summary.names == ("age", "dose", "rank", "intercept")
    assert summary.n_tasks == 60
    assert summary.n_rows == pytest.approx(tasks.sizes.mean())
    np.testing.assert_allclose(summary.deviations, std)
    np.testing.assert_allclose(summary.correlations, covariance / np.outer(std, std))
    assert summary.noise_std**2 == pytest.approx(learner.noise_)
    assert summary.expected_mse == pytest.approx(learner.loo_error_)
    assert summary.expected_rmse**2 == pytest.approx(learner.loo_error_)
    assert 1 <= summary.effective_rank <= 4
    assert 0.8 < summary.mean_share <= 1
    np.testing.assert_allclose(summary.means * summary.mean_share, learner.mean_, rtol=1e-9)
    frame = summary.to_frame()
    np.testing.assert_allclose(frame["upper"] - frame["mean"], 1.959964 * frame["se"], rtol=1e-6)
    assert list(frame.columns) == ["mean", "se", "lower", "upper", "sd"]
    assert list(frame.index) == list(summary.names)
    assert summary.correlation_frame().loc["dose", "intercept"] == summary.correlations[1, 3]


def test_standard_errors_are_those_of_generalised_least_squares(learner):
    """s (A + R)^-1 by the statistics, in units of the data."""
    state = learner._run.state
    record, prior = state.records[0], learner._run.prior()
    A = np.tril(state.precision) + np.tril(state.precision, -1).T
    noise = record["noise"] / record["kappa"]
    V = np.linalg.inv(A + np.diag(state.squares) * noise / record["y_square"])
    T = np.diag(prior.y_scale / prior.scale)
    T[-1, :-1] = -prior.origin[:-1] * np.diag(T)[:-1]
    expected = np.sqrt(record["inflation"] * noise * np.diag(T @ V @ T.T))
    np.testing.assert_allclose(learner.summary().standard_errors, expected, rtol=1e-8)


def test_units_do_not_matter(tasks):
    """Rescaled features and targets rescale the summary; moved ones leave the slopes."""
    factors = np.array([1e3, 1e-2, 5.0])
    scaled = ltl.TaskSet([(X * factors, 7.0 * y) for X, y in tasks])
    ours, theirs = (ltl.BayesLTL().fit(part).summary() for part in (tasks, scaled))
    expected = 7.0 / np.append(factors, 1.0)
    for name in ("means", "standard_errors", "deviations"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name) * expected, rtol=1e-6)
    assert theirs.effective_rank == pytest.approx(ours.effective_rank)
    assert theirs.expected_rmse == pytest.approx(7.0 * ours.expected_rmse)


def test_the_text_of_a_summary(learner):
    text = str(learner.summary())
    lines = text.splitlines()
    assert text == repr(learner.summary())
    assert lines[2].split() == ["weight", "mean", "se", "2.5%", "97.5%", "sd", "over", "tasks"]
    assert [line.split()[0] for line in lines[3:7]] == ["age", "dose", "rank", "intercept"]
    assert "Correlations over tasks" in lines
    assert max(map(len, lines)) < 90


def test_a_long_summary_is_cut(capsys):
    tasks = ltl.datasets.make_environment(n_features=40, random_state=0).tasks(30, 10)
    text = str(ltl.BayesLTL().fit(tasks.with_names([f"\x1b[31m{j}" for j in range(40)])).summary())
    assert "(21 more: to_frame() has all)" in text
    assert "intercept" in text
    assert "Correlations over tasks, of the 10 weights that vary most" in text
    assert "\x1b" not in text
    assert "\\x1b[31m0 " in text


@pytest.mark.parametrize(
    ("options", "tasks", "nan_errors"),
    [
        ({}, [(np.ones((3, 1)), np.ones(3))], [True, True]),  # targets have not varied
        ({}, [(np.zeros((3, 1)), np.arange(3.0))] * 4, [True, False]),  # a feature has not
        ({}, [([[1.0]], [2.0])], [True, True]),
        ({"fit_intercept": False}, [([[1.0]], [2.0])], [False]),
    ],
)
def test_what_is_not_known_is_nan(options, tasks, nan_errors):
    learner = ltl.BayesLTL(**options).fit(tasks)
    summary = learner.summary()
    assert np.isnan(summary.standard_errors).tolist() == nan_errors
    assert np.isnan(summary.means).tolist() == nan_errors
    assert str(summary)
    assert np.isnan(learner.effects(ltl.TaskSet(tasks[:1]))["se"]).tolist() == nan_errors


def test_a_mean_that_is_not_learned_has_no_error(tasks):
    summary = ltl.BayesLTL(fit_mean=False).fit(tasks).summary()
    np.testing.assert_array_equal(summary.means, np.zeros(4))
    np.testing.assert_array_equal(summary.standard_errors, np.zeros(4))


def test_effects_are_those_of_adapt(learner, tasks):
    effects = learner.effects(tasks, level=0.5)
    assert list(effects.columns) == ["task", "feature", "estimate", "se", "lower", "upper"]
    assert effects["task"].tolist() == np.repeat(tasks.labels, 4).tolist()
    assert effects["feature"].tolist() == ["age", "dose", "rank", "intercept"] * 60
    adapted = learner.adapt(tasks)
    weights = [[*model.coef_, model.intercept_] for model in adapted.values()]
    np.testing.assert_allclose(effects["estimate"], np.ravel(weights), rtol=1e-12)
    np.testing.assert_allclose(
        effects["upper"] - effects["estimate"], 0.67449 * effects["se"], 1e-5
    )
    np.testing.assert_allclose(
        effects["estimate"] - effects["lower"], 0.67449 * effects["se"], 1e-5
    )
    of_posterior = [np.sqrt(np.diag(model.coef_covariance_)) for model in adapted.values()]
    assert (effects["se"] > np.ravel(of_posterior)).all()  # the prior mean is not known either
    assert (effects["se"] < 1.2 * np.ravel(of_posterior)).all()


def test_standard_errors_of_a_task_by_the_formula(learner, tasks):
    """C + (I - K X) V (I - K X)', all in the units of the data."""
    X, y = tasks[7]
    model, V = learner.adapt(X, y), learner._run.mean_covariance()
    V = learner._run.prior().covariance_in_data_units(V)
    A = np.column_stack([X, np.ones(len(X))])
    D = learner.covariance_
    G = np.eye(4) - D @ A.T @ np.linalg.solve(A @ D @ A.T + learner.noise_ * np.eye(len(X)), A)
    expected = np.sqrt(np.diag(model.coef_covariance_ + G @ V @ G.T))
    np.testing.assert_allclose(learner.effects(tasks[7:8])["se"], expected, rtol=1e-7)


def test_labels_of_effects_keep_their_type(learner, tasks):
    for labels in ([3, 1], ["a", "b"], [("a", 1), ("b", 2)]):
        some = ltl.TaskSet(list(tasks[:2]), labels=labels)
        assert learner.effects(some)["task"].tolist() == [labels[0]] * 4 + [labels[1]] * 4
    assert learner.effects(tasks)["task"].dtype == np.int64


def test_names_of_weights():
    assert weight_names(None, 2, True) == ("x0", "x1", "intercept")
    assert weight_names(("a", "b"), 2, False) == ("a", "b")
    assert weight_names(("intercept",), 1, True) == ("intercept", "(intercept)")


def test_a_loaded_learner_has_the_same_summary_and_effects(learner, tasks, tmp_path):
    learner.save(tmp_path / "prior.npz")
    loaded = ltl.load(tmp_path / "prior.npz")
    assert str(loaded.summary()) == str(learner.summary())
    pd.testing.assert_frame_equal(loaded.effects(tasks), learner.effects(tasks))


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("format-*-bayes*.npz")), ids=lambda p: p.stem)
def test_old_checkpoints_have_a_summary(path):
    learner = ltl.load(path)
    summary = learner.summary()
    assert summary.n_tasks == learner.n_tasks_seen_
    assert np.isfinite(summary.standard_errors).all()
    assert (summary.standard_errors >= 0).all()


def test_the_summary_of_a_learner_does_not_follow_it(learner, tasks):
    other = ltl.BayesLTL().fit(tasks)
    summary = other.summary()
    text = str(summary)
    other.partial_fit(*tasks[0])
    assert str(summary) == text
    assert other.summary().n_tasks == 61


ERRORS = {
    "summary before fit": (lambda _, ts: ltl.BayesLTL().summary(), NotFittedError, "not seen a"),
    "effects before fit": (lambda _, ts: ltl.BayesLTL().effects(ts), NotFittedError, "not seen a"),
    "no TaskSet": (lambda learner, ts: learner.effects(list(ts)), TypeError, "TaskSet, got list"),
    "no tasks": (lambda learner, ts: learner.effects(ts[:0]), ValueError, "at least one task"),
    "other features": (
        lambda learner, ts: learner.effects(ts.map_inputs(lambda X: X[:, :2])),
        ValueError,
        "X has 2 features, but BayesLTL is expecting 3",
    ),
    "other names": (
        lambda learner, ts: learner.effects(ts.with_names(["age", "dose", "size"])),
        ValueError,
        r"feature names should match .*\(age, dose, rank\), got age, dose, size",
    ),
    "labels twice": (
        lambda learner, ts: learner.effects(ltl.TaskSet(list(ts[:2]), labels=["a", "a"])),
        ValueError,
        "labels of tasks must be distinct, got 'a' twice",
    ),
    "level 0": (lambda learner, ts: learner.effects(ts, 0), ValueError, "between 0 and 1, got 0"),
    "level 95": (
        lambda learner, ts: learner.effects(ts, 95),
        ValueError,
        "between 0 and 1, got 95",
    ),
    "level of a summary": (
        lambda learner, ts: learner.summary().to_frame(level="high"),
        (TypeError, ValueError),
        "level must be a number between 0 and 1",
    ),
    "task is a feature": (
        lambda _, ts: ts.to_frame(task="age"),
        ValueError,
        "task must be a string that names no other column, got 'age'",
    ),
    "target is a feature": (lambda _, ts: ts.to_frame(target="rank"), ValueError, "target must be"),
    "task is target": (lambda _, ts: ts.to_frame("a", "a"), ValueError, "task must be a string"),
    "a number for a name": (lambda _, ts: ts.to_frame(1), ValueError, "task must be .*, got 1"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case, learner, tasks):
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call(learner, tasks)


@pytest.mark.parametrize(
    "call",
    [
        lambda learner, ts: learner.effects(ts),
        lambda learner, ts: learner.summary().to_frame(),
        lambda learner, ts: learner.summary().correlation_frame(),
        lambda learner, ts: ts.to_frame(),
    ],
)
def test_data_frames_without_pandas(call, learner, tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'fastltl\[pandas\]'"):
        call(learner, tasks)
    assert str(learner.summary())  # needs none


LABELS = {
    "default": None,
    "numbers": [3, 1, 2],
    "text": ["c", "a", "b"],
    "floats": [0.5, 0.25, 8.0],
    "pairs": [("a", 1), ("a", 2), ("b", 1)],
    "mixed": ["1", 1, 2.5],
    "large": [2**70, 1, 2],
    "surrogates": ["\ud800", "a", "b"],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=list(LABELS))
def test_a_frame_makes_the_same_tasks(labels):
    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (3, 1, 4)]
    ts = ltl.TaskSet(tasks, labels=labels)
    df = ts.to_frame(task="school", target="score")
    assert list(df.columns) == ["school", "score", "x0", "x1"]
    again = ltl.TaskSet.from_frame(df, task="school", target="score")
    assert list(again.labels) == list(ts.labels)
    assert list(map(type, again.labels)) == list(map(type, ts.labels))
    for (X, y), (X_again, y_again) in zip(ts, again, strict=True):
        np.testing.assert_array_equal(X_again, X)
        np.testing.assert_array_equal(y_again, y)
    df.loc[:, "x0"] = 0.0  # a copy
    np.testing.assert_array_equal(ts[0][0], tasks[0][0])


def test_frames_keep_names_and_may_be_empty(tasks):
    assert list(tasks.to_frame().columns) == ["task", "target", "age", "dose", "rank"]
    again = ltl.TaskSet.from_frame(tasks.to_frame(), task="task", target="target")
    assert again.feature_names == tasks.feature_names
    assert len(tasks[:0].to_frame()) == 0
