"""How well a representation serves tasks: train on one half of a task, measure on the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fastltl import kernels
from fastltl.tasks import TaskSet
from fastltl.threads import one_blas_thread
from fastltl.validation import Array, check_choice, check_computed, check_representation


def mean_squared_error(y: Array, prediction: Array) -> float:
    """mean((y - prediction)^2)."""
    return float(np.mean((y - prediction) ** 2))


def explained_variance(y: Array, prediction: Array) -> float:
    """1 - var(y - prediction) / var(y)."""
    return _one_minus(np.var(y - prediction), np.var(y))


def r2(y: Array, prediction: Array) -> float:
    """1 - mean((y - prediction)^2) / var(y)."""
    return _one_minus(np.mean((y - prediction) ** 2), np.var(y))


def _one_minus(error: np.floating, variance: np.floating) -> float:
    """1 - error / variance; of constant targets, 1 if the prediction is perfect and 0 if not."""
    if variance == 0.0:
        return 1.0 if error == 0.0 else 0.0
    return float(1.0 - error / variance)


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "mse": mean_squared_error,
    "explained_variance": explained_variance,
    "r2": r2,
}


def evaluate(
    D: npt.ArrayLike,
    train: TaskSet,
    test: TaskSet,
    metric: str = "mse",
    fit_intercept: bool = False,
) -> Array:
    """Fit each task of `train` with the representation D and measure on the same task of `test`.

    Parameters
    ----------
    D : array-like of shape (d, d)
        Representation, symmetric positive semidefinite.
    train, test : TaskSet
        The same tasks in the same order, as `TaskSet.split_samples` makes them.
    metric : {"mse", "explained_variance", "r2"}
        As scikit-learn defines them, of each task on its own, as fractions. Targets that do not
        vary, as those of a single sample, give 1 if they are predicted exactly and else 0.
    fit_intercept : bool
        Whether to centre the training half of each task and fit an intercept.

    Returns
    -------
    ndarray of shape (n_tasks,)

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(n_features=5, noise=0.0, random_state=0).tasks(3, 20)
    >>> ltl.evaluate(1e6 * np.eye(5), *tasks.split_samples(0.5, random_state=0)).round(6)
    array([0., 0., 0.])
    """
    score = METRICS[check_choice(metric, "metric", tuple(METRICS))]
    for name, tasks in (("train", train), ("test", test)):
        if not isinstance(tasks, TaskSet):
            raise TypeError(f"{name} must be a TaskSet, got {type(tasks).__name__}.")
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
    D = check_representation(D, train.n_features)
    scores = np.empty(len(train))
    with one_blas_thread():
        for i, ((X, y), (X_test, y_test)) in enumerate(zip(train, test, strict=True)):
            X, y = X.copy(), y.copy()  # kernels are compiled for arrays that may be written
            x_mean, y_mean = np.zeros(X.shape[1]), 0.0
            if fit_intercept:
                X, y, x_mean, y_mean = kernels.centre(X, y)
            prediction = (X_test - x_mean) @ kernels.ridge_weights(D, X, y) + y_mean
            scores[i] = score(y_test, prediction)
    return check_computed(scores)
