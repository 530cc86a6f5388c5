"""Metrics against scikit-learn's, one number per task."""

import numpy as np
import pytest
from naive import random_psd
from sklearn import metrics
from sklearn.base import clone
from sklearn.dummy import DummyRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

import fastltl as ltl
from fastltl.base import Learner

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


LEARNERS = [
    ltl.OnlineLTL(0.1),
    ltl.OnlineLTL(0.1, fit_intercept=True),
    ltl.OnlineLTLPath([0.1], fit_intercept=True),
    ltl.BatchLTL(0.1),
    ltl.MTL(0.1, fit_intercept=True),
    ltl.ITL(0.1, fit_intercept=True),
]


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
@pytest.mark.parametrize("metric", SKLEARN_METRICS)
def test_evaluate_takes_a_fitted_learner(halves, learner, metric):
    learner = clone(learner).fit(halves[0])
    scores = ltl.evaluate(learner, *halves, metric)
    expected = ltl.evaluate(learner.D_, *halves, metric, fit_intercept=learner.fit_intercept)
    assert scores.tobytes() == expected.tobytes()


class Constant(Learner):
    """Predict the first target of a task; a learner without a representation."""

    fit_intercept = True

    def fit(self, X, y=None, groups=None):
        self._remember_features(self._collection(X, y, groups))
        return self

    def _adapt(self, X, y):
        return DummyRegressor(strategy="constant", constant=y[0]).fit(X, y)

    def _predict_unseen(self, X, y, groups):
        return np.zeros(len(y))

    def _prior_regressor(self, regressors):
        return DummyRegressor(strategy="constant", constant=0.0).fit([[0.0]], [0.0])


@pytest.mark.parametrize("metric", SKLEARN_METRICS)
def test_evaluate_adapts_a_learner_without_a_representation(halves, metric):
    train, test = halves
    scores = ltl.evaluate(Constant().fit(train), train, test, metric)
    expected = [
        SKLEARN_METRICS[metric](y_test, np.full(len(y_test), y[0]))
        for (_, y), (_, y_test) in zip(train, test, strict=True)
    ]
    assert scores == pytest.approx(expected, rel=1e-12, abs=1e-12)
    again = ltl.TaskSet(train, labels=[0] * len(train)), ltl.TaskSet(test, labels=[0] * len(test))
    assert np.array_equal(ltl.evaluate(Constant().fit(train), *again, metric), scores)


@pytest.mark.parametrize("learner", [ltl.OnlineLTL(), Constant()], ids=repr)
def test_errors_of_evaluating_a_learner_name_the_argument(halves, learner):
    train, test = halves
    with pytest.raises(NotFittedError, match=type(learner).__name__):
        ltl.evaluate(learner, train, test)
    learner = clone(learner).fit(train)
    with pytest.raises(ValueError, match="fit_intercept goes with a matrix only, got True with"):
        ltl.evaluate(learner, train, test, fit_intercept=True)
    with pytest.raises(ValueError, match="metric must be one of"):
        ltl.evaluate(learner, train, test, metric="mae")
    with pytest.raises(ValueError, match="in order, got 4 where train has 0"):
        ltl.evaluate(learner, train, test[::-1])
    with pytest.raises(TypeError, match="train must be a TaskSet, got list"):
        ltl.evaluate(learner, list(train), test)
    narrow = [half.map_inputs(lambda X: X[:, :2]) for half in halves]
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 3 features"):
        ltl.evaluate(learner, *narrow)


def test_evaluate_takes_no_class_and_no_other_estimator(halves):
    with pytest.raises(TypeError, match="fitted learner or a matrix D, got the class BatchLTL"):
        ltl.evaluate(ltl.BatchLTL, *halves)
    with pytest.raises(TypeError, match="a fitted learner or a matrix D, got RepresentationRidge"):
        ltl.evaluate(ltl.RepresentationRidge(), *halves)


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
