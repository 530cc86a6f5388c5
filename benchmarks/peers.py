"""Compare BayesLTL with a mixed model with random slopes, fitted by GPBoost."""

from functools import partial
from importlib.util import find_spec

import numpy as np

import fastltl as ltl
from benchmarks.timing import _Comparison
from fastltl.experiments.peers import fit_gpboost, rows_of

N_FEATURES, N_SAMPLES, NOISE = 10, 20, 0.5


def draw_task(rng, mean, deviation):
    """Draw twice N_SAMPLES rows of a task with a random intercept and random slopes."""
    X = rng.standard_normal((2 * N_SAMPLES, N_FEATURES))
    intercept, *slopes = mean + deviation * rng.standard_normal(N_FEATURES + 1)
    return X, intercept + X @ slopes + NOISE * rng.standard_normal(2 * N_SAMPLES)


def draw_tasks(n_tasks):
    """Draw tasks whose slopes vary by 0.1 to 1; return rows to learn from and held-out rows."""
    rng = np.random.default_rng(0)
    mean, deviation = rng.standard_normal(N_FEATURES + 1), np.linspace(0.1, 1, N_FEATURES + 1)
    tasks = ltl.TaskSet([draw_task(rng, mean, deviation) for _ in range(n_tasks)])
    return tasks.split_samples(0.5, random_state=0)


def bayes_error(given, held_out):
    return ltl.evaluate(ltl.BayesLTL().fit(given), given, held_out).mean()


def gpboost_error(fitted, new):
    return np.mean((new.y - fit_gpboost(fitted, new)) ** 2)


class RandomSlopes(_Comparison):
    """Time learning from T tasks and predicting further rows of each; d = 10, n = 20.

    The result is the mean squared error of the predictions.
    """

    unit = "BayesLTL / GPBoost"
    tolerance = 0.05
    params = ([100, 1000],)
    param_names = ("T",)

    def setup_cache(self):
        return {n_tasks: draw_tasks(n_tasks) for n_tasks in self.params[0]}

    def runs(self, data, n_tasks):
        if find_spec("gpboost") is None:
            raise NotImplementedError("gpboost is not installed")  # asv then skips the suite
        self.repeats = {100: 15, 1000: 3}[n_tasks]
        given, held_out = data[n_tasks]
        return (
            partial(bayes_error, given, held_out),
            partial(gpboost_error, rows_of(given), rows_of(held_out)),
        )

    def track_mse_fastltl(self, data, n_tasks):
        """Return the mean squared error of BayesLTL on held-out rows."""
        return self.fast()

    def track_mse_gpboost(self, data, n_tasks):
        """Return the mean squared error of the mixed model on held-out rows."""
        return self.plain()

    track_mse_fastltl.unit = track_mse_gpboost.unit = "mean squared error"
