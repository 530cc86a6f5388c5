"""Compare BatchLTL, MTL, OnlineLTLPath and ITL with plain NumPy and scikit-learn."""

import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge

import fastltl as ltl
from benchmarks.timing import _Comparison
from fastltl import reference

LAMS = np.logspace(-6, 3, 30)
PATHS = {
    "default": {"geometry": "entropic"},
    "paper": {"objective": "error", "geometry": "euclidean", "step": "theory"},
}
TOL = 1e-4


def draw_tasks(n_tasks, n, seed=0, d=50):
    return ltl.datasets.make_environment(d, random_state=seed).tasks(n_tasks, n)


def draw_validation(n_tasks, n):
    return draw_tasks(n_tasks, 2 * n, seed=1).split_samples(0.5, random_state=0)


def batch_fit(learner, lam, tasks):
    return learner(lam, tol=TOL, n_threads=2).fit(tasks).D_


def numpy_batch_fit(objective, lam, tasks):
    return reference.batch_solution(tasks, lam, objective, tol=TOL)


def path_fit(rule, tasks, validation):
    path = ltl.OnlineLTLPath(LAMS, validation, score_every=1, n_threads=2, **PATHS[rule])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best lam is at the edge
        return path.fit(tasks).scores_


def numpy_path_fit(rule, tasks, validation):
    """Run 30 loops task by task and score each mean of iterates on the validation tasks."""
    d = tasks.n_features
    first = np.eye(d) / (d + 1 if PATHS[rule]["geometry"] == "entropic" else d)
    iterates, totals = [first / lam for lam in LAMS], [np.zeros((d, d)) for _ in LAMS]
    runs = [reference.online_iterates(tasks, lam, **PATHS[rule]) for lam in LAMS]
    for t in range(1, len(tasks) + 1):
        scores = []
        for k, run in enumerate(runs):
            totals[k] += iterates[k]
            _, iterates[k] = next(run)
            weights = [reference.ridge_weights(totals[k] / t, X, y) for X, y in validation[0]]
            scores.append(
                np.mean(
                    [
                        reference.score(y, X @ w, 0)
                        for (X, y), w in zip(validation[1], weights, strict=True)
                    ]
                )
            )
    return np.array(scores)


def ridge_path(tasks):
    return ltl.ITL().path(tasks, LAMS)[0]


def ridge_loop(tasks):
    def weights(X, y, lam):
        return Ridge(alpha=len(y) * lam, fit_intercept=False).fit(X, y).coef_

    return np.array([[weights(X, y, lam) for X, y in tasks] for lam in LAMS])


class _Batch(_Comparison):
    """Time fits to a relative gap of at most 1e-4 with two threads."""

    learner: Any
    objective = "regularized"
    n_features = 50
    n_tasks: int
    n_samples: int
    tolerance = 1.01 * TOL
    params = ([1e-4, 1e-2],)
    param_names = ("lam",)

    def setup_cache(self):
        return draw_tasks(self.n_tasks, self.n_samples, d=self.n_features)

    def runs(self, tasks, lam):
        return (
            partial(batch_fit, self.learner, lam, tasks),
            partial(numpy_batch_fit, self.objective, lam, tasks),
        )

    def track_relative_error(self, tasks, lam):
        """Return how far the objective exceeds plain NumPy's, or 0."""
        objective, numpy_objective = (
            reference.mean_objective(fit(), tasks, self.objective)[0]
            for fit in (self.fast, self.plain)
        )
        return max(0.0, objective / numpy_objective - 1)

    track_relative_error.version = "3"
    track_relative_error.unit = "relative"


class Batch(_Batch):
    learner = ltl.BatchLTL
    n_tasks, n_samples = 150, 50


class BatchError(Batch):
    learner = partial(ltl.BatchLTL, objective="error")
    objective = "error"


class Multitask(_Batch):
    learner = ltl.MTL
    n_tasks, n_samples = 100, 25


class Wide(_Batch):
    """Time fits to tasks of far fewer rows than features."""

    learner = ltl.BatchLTL
    n_features, n_tasks, n_samples = 300, 30, 10
    params = ([1e-3, 1e-2],)
    repeats = 3


class Path(_Comparison):
    """Time a path of 30 lams over 50 tasks, scored after each on 12 validation tasks."""

    params = (list(PATHS),)
    param_names = ("rule",)
    repeats = 3

    def setup_cache(self):
        return draw_tasks(50, 20), draw_validation(12, 20)

    def runs(self, data, rule):
        return partial(path_fit, rule, *data), partial(numpy_path_fit, rule, *data)


class Independent(_Comparison):
    """Time ITL with 30 lams on T tasks of 50 samples against a loop over scikit-learn's Ridge."""

    unit = "fastltl / scikit-learn"
    tolerance = 1e-8
    params = ([10, 100],)
    param_names = ("T",)

    def setup_cache(self):
        return draw_tasks(100, 50)

    def runs(self, tasks, n_tasks):
        return partial(ridge_path, tasks[:n_tasks]), partial(ridge_loop, tasks[:n_tasks])
