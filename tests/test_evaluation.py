"""Metrics against scikit-learn's, one number per task."""

import numpy as np
import pytest
from naive import random_psd
from sklearn import metrics
from sklearn.linear_model import Ridge

import fastltl as ltl

SKLEARN_METRICS = {
    "mse": metrics.mean_squared_error,
    "explained_variance": metrics.explained_variance_score,
    "r2": metrics.r2_score,
}


@pytest.fixture
def halves():
    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(n, 3)) + 1, rng.normal(size=n) + 4) for n in (6, 9, 30)]
    tasks.append((rng.normal(size=(8, 3)), np.full(8, 2.0)))  # a constant target
    tasks.append((np.zeros((8, 3)), np.full(8, 2.0)))  # predicted exactly by an intercept
    return ltl.TaskSet(tasks).split_samples(0.5, random_state=0)


@pytest.mark.parametrize("metric", SKLEARN_METRICS)
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_evaluate_matches_scikit_learn(halves, metric, fit_intercept):
    train, test = halves
    scores = ltl.evaluate(np.eye(3) / 0.1, train, test, metric, fit_intercept)
    expected = []
    for (X, y), (X_test, y_test) in zip(train, test, strict=True):
        model = Ridge(alpha=0.1 * len(y), fit_intercept=fit_intercept).fit(X, y)
        expected.append(SKLEARN_METRICS[metric](y_test, model.predict(X_test)))
    assert scores == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_evaluate_matches_fit_and_predict(halves):
    train, test = halves
    D = random_psd(np.random.default_rng(0), 3, rank=2)
    for (X, y), (X_test, y_test), error in zip(*halves, ltl.evaluate(D, train, test), strict=True):
        prediction = ltl.RepresentationRidge(D).fit(X, y).predict(X_test)
        assert error == pytest.approx(np.mean((y_test - prediction) ** 2), rel=1e-12)


def test_errors_name_the_argument(halves):
    train, test = halves
    with pytest.raises(ValueError, match="metric must be one of 'mse', 'explained_variance', 'r2'"):
        ltl.evaluate(np.eye(3), train, test, metric="mae")
    with pytest.raises(ValueError, match=r"D must have a row per feature \(3\)"):
        ltl.evaluate(np.eye(2), train, test)
    with pytest.raises(ValueError, match="in order, got 4 where train has 0"):
        ltl.evaluate(np.eye(3), train, test[::-1])
    with pytest.raises(ValueError, match="test must hold the 5 tasks of train, got 4"):
        ltl.evaluate(np.eye(3), train, test[:4])
    with pytest.raises(TypeError, match="train must be a TaskSet, got list"):
        ltl.evaluate(np.eye(3), list(train), test)


def test_relative_improvement_in_percent_of_the_baseline():
    assert ltl.relative_improvement([0.5, 1.0], [1.0, 1.0]) == 25.0
    assert ltl.relative_improvement([2.0], [1.0]) == -100.0
    assert ltl.relative_improvement([0.6], [0.5], metric="r2") == pytest.approx(20.0)
    assert ltl.relative_improvement([-0.1], [-0.2], metric="r2") == pytest.approx(50.0)
    with pytest.raises(ValueError, match="baseline must have a mean other than zero"):
        ltl.relative_improvement([1.0], [0.0])
    with pytest.raises(ValueError, match="scores must hold at least one number"):
        ltl.relative_improvement([], [])
    with pytest.raises(ValueError, match="baseline must hold finite numbers only, got NaN"):
        ltl.relative_improvement([1.0], [np.nan])
    with pytest.raises(ValueError, match="metric must be one of"):
        ltl.relative_improvement([1.0], [1.0], metric="mae")
    with pytest.raises(
        ValueError, match=r"baseline must have the shape of scores, \(1,\), got \(2,"
    ):
        ltl.relative_improvement([1.0], [1.0, 2.0])
