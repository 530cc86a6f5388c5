"""Seconds for batch fits, a path and independent ridge, beside plain ways to do the same.

``pytest tests/speed --benchmark-group-by=group`` prints the groups with their ratios.
"""

import numpy as np
import pytest
from naive import relative
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

import fastltl as ltl
from fastltl import reference

LAMS = np.logspace(-6, 3, 30)


@pytest.fixture
def tasks():
    return ltl.datasets.make_environment(50, random_state=0).tasks(50, 20)


def compiled_fit(learner, tasks):
    return learner(1e-2, tol=1e-4, n_threads=1).fit(tasks).D_


def numpy_fit(learner, tasks):
    return reference.batch_solution(tasks, 1e-2, penalised=learner is ltl.MTL, tol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("learner", [ltl.BatchLTL, ltl.MTL])
@pytest.mark.parametrize("fit", [compiled_fit, numpy_fit])
def test_batch(benchmark, tasks, learner, fit):
    benchmark.group = f"{learner.__name__} to a gap of 1e-4, 50 tasks, d=50, n=20"
    with threadpool_limits(1, user_api="blas"):
        D = benchmark.pedantic(fit, (learner, tasks), rounds=5, warmup_rounds=1)
    value, gradient = reference.mean_objective(D, tasks, penalised=learner is ltl.MTL)
    assert reference.gap(D, gradient, 1e2) <= 1.01e-4 * value


def ridge_path(tasks):
    return ltl.ITL().path(tasks, LAMS)[0]


def ridge_loop(tasks):
    def weights(X, y, lam):
        return Ridge(alpha=len(y) * lam, fit_intercept=False).fit(X, y).coef_

    return np.array([[weights(X, y, lam) for X, y in tasks] for lam in LAMS])


@pytest.mark.slow
@pytest.mark.parametrize("path", [ridge_path, ridge_loop])
def test_independent_ridge(benchmark, tasks, path):
    benchmark.group = "30 lams, 50 tasks, d=50, n=20"
    with threadpool_limits(1, user_api="blas"):
        weights = benchmark.pedantic(path, (tasks,), rounds=3, warmup_rounds=1)
    assert relative(weights, ridge_path(tasks)) < 1e-8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("geometry", ["entropic", "euclidean"])
def test_path(benchmark, tasks, geometry):
    validation = ltl.datasets.make_environment(50, random_state=1).tasks(12, 40)
    validation = validation.split_samples(0.5, random_state=0)
    step = "adaptive" if geometry == "entropic" else "theory"
    path = ltl.OnlineLTLPath(validation=validation, geometry=geometry, step=step, score_every=1)
    benchmark.group = "path of 30 lams, 12 validation tasks, scored at each of 50 tasks"
    benchmark.pedantic(path.fit, (tasks,), rounds=3, warmup_rounds=1)
    assert path.scores_.shape == (30,)
