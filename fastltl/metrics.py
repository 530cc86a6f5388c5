"""evaluate: solve one half of each task with what was learned, and measure on the other half."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._kernels import batch as kernels
from fastltl._kernels.task import score
from fastltl._objective import ridge_paths
from fastltl._threads import run_in_threads
from fastltl._validation import (
    Array,
    as_floats,
    check_choice,
    check_computed,
    check_finite,
    check_flag,
    check_representation,
)
from fastltl.base import Learner, RepresentationLearner
from fastltl.tasks import TaskSet

#: Metrics in the order of their numbers in the kernel. The first is an error.
METRICS = ("mse", "explained_variance", "r2")


def is_error(metric: str) -> bool:
    """Return whether a metric is better when smaller."""
    return metric == "mse"


class HeldOut:
    """Tasks in two halves, prepared once to score any number of representations."""

    def __init__(
        self,
        train: TaskSet,
        test: TaskSet,
        metric: str = "mse",
        fit_intercept: bool = False,
        n_threads: int = 1,
    ) -> None:
        self.metric = check_choice(metric, "metric", METRICS)
        check_aligned(train, test)
        self.n_threads = n_threads
        self.tasks = train.reduced(check_flag(fit_intercept, "fit_intercept"), n_threads)
        # With an intercept the prediction is mean(y) + w . (x - mean(x)): the test half, shifted
        # by the means of the training half, needs none.
        means = zip(test, self.tasks.x_means, self.tasks.y_means, strict=True)
        shifted = [(X - x_mean, y - y_mean) for (X, y), x_mean, y_mean in means]
        self._test = (
            np.concatenate([X for X, _ in shifted]),
            np.concatenate([y for _, y in shifted]),
            np.concatenate([[0], np.cumsum(test.sizes)]),
        )

    def __len__(self) -> int:
        return len(self.tasks.sizes)

    @property
    def n_features(self) -> int:
        return self.tasks.n_features

    def score(self, representations: Array) -> Array:
        """Scores of shape (representations, tasks)."""
        k, d = len(representations), self.n_features
        return self._score(kernels.score_representations, k, 2.0 * d, representations, self.tasks)

    def score_ridge(self, lams: Array) -> Array:
        """Scores of ordinary ridge regression, D = I / lam, of shape (lams, tasks)."""
        return self.score_weights(ridge_paths(self.tasks, lams, self.n_threads))

    def score_weights(self, weights: Array) -> Array:
        """Scores of shape (k, tasks) of weights of shape (tasks, k, d)."""
        return self._score(kernels.score_weights, weights.shape[1], 2.0, weights)

    def _score(self, kernel: Any, k: int, flops_per_entry: float, *arguments: Any) -> Array:
        """Score k weights per task by a kernel, with so many operations per entry of X and k."""
        scores = np.empty((len(self), k))
        work = flops_per_entry * k * (self._test[0].size + self.tasks.R.size)
        metric = METRICS.index(self.metric)
        run_in_threads(
            kernel, len(self), self.n_threads, work, *arguments, self._test, metric, scores
        )
        return check_computed(scores.T)


def check_aligned(train: Any, test: Any) -> None:
    """Check that both are TaskSets of the same tasks in the same order."""
    for name, tasks in (("train", train), ("test", test)):
        if not isinstance(tasks, TaskSet):
            raise TypeError(f"{name} must be a TaskSet, got {type(tasks).__name__}.")
        if len(tasks) == 0:
            raise ValueError(f"{name} must hold at least one task, got none.")
    if len(train) != len(test):
        raise ValueError(f"test must hold the {len(train)} tasks of train, got {len(test)}.")
    for ours, theirs in zip(train.labels, test.labels, strict=True):
        if ours is not theirs and ours != theirs:
            raise ValueError(
                f"test must hold the tasks of train in order, got {theirs!r} where train has "
                f"{ours!r}."
            )
    if train.n_features != test.n_features:
        raise ValueError(
            f"test must have the {train.n_features} features of train, got {test.n_features}."
        )


def evaluate(
    learner: Learner | npt.ArrayLike,
    train: TaskSet,
    test: TaskSet,
    metric: str = "mse",
    fit_intercept: bool = False,
) -> Array:
    """Solve each task of ``train`` and measure the solution on the same task of ``test``.

    Parameters
    ----------
    learner : fitted learner, or array-like of shape (d, d)
        The learner adapts to each task. A matrix is a representation D, symmetric positive
        semidefinite, with which each task is solved by ridge regression.
    train, test : TaskSet
        The same tasks in the same order, as `TaskSet.split_samples` makes them.
    metric : {"mse", "explained_variance", "r2"}
        As scikit-learn defines them, of each task on its own, as fractions. Targets that do not
        vary, as those of a single sample, give 1 if they are predicted exactly and else 0.
    fit_intercept : bool
        For a matrix, whether to centre the training half of each task and fit an intercept; use
        the value with which D was learned. A learner uses its own parameter.

    Returns
    -------
    ndarray of shape (n_tasks,)

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(n_features=5, noise=0.0, random_state=0).tasks(3, 20)
    >>> train, test = tasks.split_samples(0.5, random_state=0)
    >>> ltl.evaluate(1e6 * np.eye(5), train, test).round(6)
    array([0., 0., 0.])
    >>> ltl.evaluate(ltl.OnlineLTL(lam=1e-6).fit(train), train, test).round(6)
    array([0., 0., 0.])
    """
    check_flag(fit_intercept, "fit_intercept")
    if not isinstance(learner, Learner):
        if hasattr(learner, "get_params"):  # another estimator, or a class
            name = type(learner).__name__
            if isinstance(learner, type):
                name = f"the class {learner.__name__}"
            raise TypeError(f"learner must be a fitted learner or a matrix D, got {name}.")
        return _score_representation(learner, train, test, metric, fit_intercept)
    if fit_intercept:
        raise ValueError(
            f"fit_intercept goes with a matrix only, got True with {type(learner).__name__}, which "
            f"has fit_intercept={learner.fit_intercept!r} itself: leave it out."
        )
    learner._check_is_fitted()
    check_aligned(train, test)
    learner._check_tasks(train)
    if isinstance(learner, RepresentationLearner):
        return _score_representation(learner.D_, train, test, metric, learner.fit_intercept)
    number = METRICS.index(check_choice(metric, "metric", METRICS))
    models = learner._adapt_tasks(train)
    # The kernel is compiled for writable arrays, which those of a TaskSet are not.
    scores = [
        score(y.copy(), model.predict(X), number)
        for model, (X, y) in zip(models, test, strict=True)
    ]
    return check_computed(np.array(scores))


def _score_representation(
    D: npt.ArrayLike, train: TaskSet, test: TaskSet, metric: str, fit_intercept: bool
) -> Array:
    """Score ridge regression with D on each task."""
    held_out = HeldOut(train, test, metric, fit_intercept)
    D = check_representation(D, train.n_features)
    scores: Array = held_out.score(D[None])[0]
    return scores


def relative_improvement(
    scores: npt.ArrayLike, baseline: npt.ArrayLike, metric: str = "mse"
) -> float:
    """Compute by how many percent the mean of scores is better (+) or worse (-) than a baseline's.

    100 (mean(baseline) - mean(scores)) / |mean(baseline)| for an error, and its negative for a
    metric that is better when larger.

    Both are scores of the same tasks, as `evaluate` returns them for this metric.

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.relative_improvement([0.5, 1.0], baseline=[1.0, 1.0])
    25.0
    """
    check_choice(metric, "metric", METRICS)
    scores, baseline = as_floats(scores, "scores"), as_floats(baseline, "baseline")
    if scores.shape != baseline.shape:
        raise ValueError(
            f"baseline must have the shape of scores, {scores.shape}, got {baseline.shape}."
        )
    ours, theirs = _mean(scores, "scores"), _mean(baseline, "baseline")
    if theirs == 0.0:
        raise ValueError("baseline must have a mean other than zero, got 0.")
    gain = theirs - ours if is_error(metric) else ours - theirs
    percent = 100.0 * gain / abs(theirs)
    if not np.isfinite(percent):
        raise ValueError(
            "scores must not be so much larger than baseline that their ratio overflows, got means "
            f"of {ours:.3g} and {theirs:.3g}."
        )
    return percent


def _mean(array: Array, name: str) -> float:
    if array.size == 0:
        raise ValueError(f"{name} must hold at least one number, got none.")
    check_finite(array, name)
    with np.errstate(over="ignore"):
        mean = float(array.mean())
    if not np.isfinite(mean):
        raise ValueError(f"{name} must not be so large that their mean overflows; scale them down.")
    return mean
