"""Compare ITL and its path over lams with scikit-learn's Ridge on each task."""

import pickle

import numpy as np
import pytest
from naive import ragged_tasks, relative, sphere_task
from schools import needs_schools, schools_tasks
from sklearn.linear_model import Ridge

import fastltl as ltl

LAMS = np.logspace(-6, 3, 30)


def ridge(X, y, lam, fit_intercept):
    return Ridge(alpha=len(y) * lam, fit_intercept=fit_intercept, solver="svd").fit(X, y)


def hard_tasks():
    """Return tasks with n < d and n > d, repeated rows, and badly scaled or constant columns."""
    rng = np.random.default_rng(0)
    tasks = ragged_tasks(0, 6, 5, (1, 12))
    X, y = sphere_task(rng, 8, 5)
    tasks.append((np.vstack([X, X]), np.concatenate([y, y + 1])))
    tasks.append((X * [1e3, 1.0, 1e-3, 1.0, 1.0], y))
    tasks.append((np.hstack([X[:, :3], np.ones((8, 2))]), y + 5))
    return tasks


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-6, 1e-2, 1.0, 1e3])
def test_itl_agrees_with_ridge_on_each_task(lam, fit_intercept):
    tasks = hard_tasks()
    model = ltl.ITL(lam, fit_intercept=fit_intercept).fit(tasks)
    for (X, y), w, intercept in zip(tasks, model.coef_, model.intercept_, strict=True):
        expected = ridge(X, y, lam, fit_intercept)
        assert relative(w, expected.coef_) < 1e-8
        assert intercept == pytest.approx(expected.intercept_, rel=1e-8, abs=1e-10)
    assert np.array_equal(model.D_, np.eye(5) / lam)
    X, y = tasks[0]
    assert model.adapt(X, y).coef_ == pytest.approx(model.coef_[0], rel=1e-8)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_path_equals_one_fit_per_lam(fit_intercept):
    tasks = hard_tasks()
    weights, intercepts = ltl.ITL(fit_intercept=fit_intercept).path(tasks, LAMS)
    assert weights.shape == (30, 9, 5)
    for k, lam in enumerate(LAMS):
        model = ltl.ITL(lam, fit_intercept=fit_intercept).fit(tasks)
        assert relative(weights[k], model.coef_) < 1e-14
        assert relative(intercepts[k], model.intercept_) < 1e-14


@needs_schools
def test_path_agrees_with_ridge_on_schools():
    tasks = schools_tasks()
    weights, _ = ltl.ITL().path(tasks, LAMS[::5])
    for t, (X, y) in enumerate(tasks):
        for k, lam in enumerate(LAMS[::5]):
            assert relative(weights[k, t], ridge(X, y, lam, False).coef_) < 1e-8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of overflow with the JIT off
def test_bad_argument_raises_and_keeps_the_earlier_fit():
    tasks = hard_tasks()
    model = ltl.ITL(0.1).fit(tasks)
    before = pickle.dumps(model)
    for lams, message in [
        ([], r"lams must be a sequence of at least one number, got shape \(0,\)"),
        (0.1, r"lams must be a sequence of at least one number, got the number 0.1"),
        ([0.1, -1.0], r"lams\[1\] must be a positive finite number, got -1.0"),
        ([1e-310], r"lams\[0\] must be large enough for 1 / lam to be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.path(tasks, lams)
    with pytest.raises(ValueError, match="task 1: X must hold finite numbers only"):
        model.fit([tasks[0], (np.full((2, 5), np.inf), np.ones(2))])
    with pytest.raises(ValueError, match="D, X and y must not be so large"):
        model.fit([(1e160 * np.ones((2, 3)), np.ones(2))])
    with pytest.raises(ValueError, match="X must hold at least one task"):
        model.fit(ltl.TaskSet(tasks)[:0])
    assert pickle.dumps(model) == before
