"""BatchLTL, MTL, OnlineLTLPath and ITL against plain NumPy and scikit-learn.

``python -m benchmarks.learners`` prints the table of the README.
"""

import warnings
from functools import partial
from itertools import product

import numpy as np
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

import fastltl as ltl
from benchmarks.timing import interleaved_medians, print_row
from fastltl import reference

LAMS = np.logspace(-6, 3, 30)
BATCH = {"BatchLTL": (ltl.BatchLTL, 150, 50), "MTL": (ltl.MTL, 100, 25)}
PATHS = {"default": ("entropic", "adaptive"), "paper": ("euclidean", "theory")}
TOL = 1e-4


def draw(n_tasks, n, seed=0):
    return ltl.datasets.make_environment(50, random_state=seed).tasks(n_tasks, n)


def halves(n_tasks, n):
    return draw(n_tasks, 2 * n, seed=1).split_samples(0.5, random_state=0)


def batch_fit(name, lam, tasks):
    return BATCH[name][0](lam, tol=TOL, n_threads=2).fit(tasks)


def numpy_batch_fit(name, lam, tasks):
    return reference.batch_solution(tasks, lam, penalised=name == "MTL", tol=TOL)


def path_fit(rule, tasks, validation):
    geometry, step = PATHS[rule]
    path = ltl.OnlineLTLPath(
        LAMS, validation, geometry=geometry, step=step, score_every=1, n_threads=2
    )
    return path.fit(tasks).scores_


def numpy_path_fit(rule, tasks, validation):
    """Thirty loops side by side, each mean of iterates scored on the validation tasks."""
    geometry, step = PATHS[rule]
    d = tasks.n_features
    first = np.eye(d) / (d + 1 if geometry == "entropic" else d)
    iterates, totals = [first / lam for lam in LAMS], [np.zeros((d, d)) for _ in LAMS]
    runs = [reference.online_iterates(tasks, lam, geometry, step) for lam in LAMS]
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


class _Suite:
    version = "1"
    timeout = 600

    def setup(self, *params):
        self.limit = threadpool_limits(1, user_api="blas")
        self.fast, self.plain = self.runs(*params)
        self.fast()

    def teardown(self, *params):
        self.limit.restore_original_limits()

    def time_fit(self, *params):
        self.fast()

    def track_time_over_numpy(self, *params):
        """A fraction, so that a regression shows upward."""
        fast, plain = interleaved_medians(self.fast, self.plain, repeats=3)
        return fast / plain

    track_time_over_numpy.version = "1"
    track_time_over_numpy.unit = "compiled / NumPy"


class Batch(_Suite):
    """To a certified relative gap of 1e-4, with two threads."""

    params = (list(BATCH), [1e-4, 1e-2])
    param_names = ("learner", "lam")

    def runs(self, name, lam):
        tasks = draw(*BATCH[name][1:])
        return partial(batch_fit, name, lam, tasks), partial(numpy_batch_fit, name, lam, tasks)


class Path(_Suite):
    """30 lams and 12 validation tasks, scored at each of 50 tasks, with two threads."""

    params = (list(PATHS),)
    param_names = ("rule",)

    def runs(self, rule):
        tasks, validation = draw(50, 20), halves(12, 20)
        return partial(path_fit, rule, tasks, validation), partial(
            numpy_path_fit, rule, tasks, validation
        )

    def track_relative_error(self, rule):
        """Largest distance of a score from plain NumPy's."""
        return float(np.max(np.abs(self.fast() / self.plain() - 1)))

    track_relative_error.version = "1"
    track_relative_error.unit = "relative"


class Independent(_Suite):
    """100 tasks of 50 samples, 30 lams, against a loop over scikit-learn's Ridge."""

    def runs(self):
        tasks = draw(100, 50)
        return partial(ridge_path, tasks), partial(ridge_loop, tasks)


def main():
    print("| work | size | fastltl | plain | ratio |\n|---|---|---|---|---|")
    with threadpool_limits(1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for suite in (Batch(), Path(), Independent()):
            for params in product(*getattr(suite, "params", ())):
                suite.setup(*params)
                row = interleaved_medians(suite.fast, suite.plain, repeats=5)
                print_row(type(suite).__name__, ", ".join(map(str, params)), *row)


if __name__ == "__main__":
    main()
