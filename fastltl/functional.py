"""The paper's mathematics, one function each: weights, loss, gradient and projection."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastltl._kernels import spectral, task
from fastltl._threads import call_kernel
from fastltl._validation import (
    Array,
    check_computed,
    check_matrix,
    check_objective,
    check_positive,
    check_representation,
    check_symmetric,
    check_target,
)


def _checked(D: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Array, Array, Array]:
    D = check_representation(D)
    X = check_matrix(X, len(D))
    return D, X, check_target(y, len(X))


def ridge_weights(D: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike) -> Array:
    """Weights of ridge regression with a representation: w = D X' (X D X' + n I)^-1 y.

    They minimise |y - Xw|^2 / n + w' D^+ w over the range of D, so D may be singular.

    Parameters
    ----------
    D : array-like of shape (d, d)
        Representation, symmetric positive semidefinite.
    X : array-like of shape (n, d)
        Inputs of the task.
    y : array-like of shape (n,)
        Targets of the task.

    Returns
    -------
    ndarray of shape (d,)

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.ridge_weights([[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 0.0]], [1.0, 3.0])
    array([1., 0.])
    """
    D, X, y = _checked(D, X, y)
    return check_computed(call_kernel(task.ridge_weights, max(X.shape), D, X, y))


def task_loss(
    D: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, objective: str = "error"
) -> float:
    """Loss of a task as a function of its representation, with M = X D X' + n I.

    "error" is n |M^-1 y|^2, the training error of ridge regression with D, which the paper
    minimises. "regularized" is y' M^-1 y, the minimum over w of |y - Xw|^2 / n + w' D^+ w. It is
    convex in D and at least as large as the error, which is not convex.

    Parameters
    ----------
    D, X, y
        As in `ridge_weights`.
    objective : {"error", "regularized"}

    Returns
    -------
    float

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.task_loss([[1.0]], [[1.0], [1.0]], [1.0, 1.0]), 12)
    0.25
    >>> round(ltl.task_loss([[1.0]], [[1.0], [1.0]], [1.0, 1.0], objective="regularized"), 12)
    0.5
    """
    D, X, y = _checked(D, X, y)
    regularized = check_objective(objective)
    return float(check_computed(call_kernel(task.task_loss, max(X.shape), D, X, y, regularized)))


def task_gradient(
    D: npt.ArrayLike, X: npt.ArrayLike, y: npt.ArrayLike, objective: str = "error"
) -> Array:
    """Gradient of `task_loss` at D, a symmetric matrix.

    "error": -n X' M^-1 (y y' M^-1 + M^-1 y y') M^-1 X, of rank two. "regularized": -a a' with
    a = X' M^-1 y.

    Parameters
    ----------
    D, X, y
        As in `ridge_weights`.
    objective : {"error", "regularized"}

    Returns
    -------
    ndarray of shape (d, d)

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.task_gradient([[1.0]], [[1.0], [1.0]], [1.0, 1.0]).round(12)
    array([[-0.25]])
    """
    D, X, y = _checked(D, X, y)
    regularized = check_objective(objective)
    return check_computed(call_kernel(task.task_gradient, max(X.shape), D, X, y, regularized))


def project(Q: npt.ArrayLike, radius: float) -> Array:
    """Project a symmetric matrix onto {D PSD, tr D <= radius} in Frobenius norm.

    Eigenvectors are kept; eigenvalues below zero become zero and, where their sum would exceed
    the radius, all are shifted down by the same amount first.

    Parameters
    ----------
    Q : array-like of shape (d, d)
        Symmetric matrix.
    radius : float
        Trace budget, positive.

    Returns
    -------
    ndarray of shape (d, d)

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> np.diag(ltl.project(np.diag([3.0, 2.5, -1.0]), radius=1.5))
    array([1. , 0.5, 0. ])
    """
    Q = check_symmetric(Q, "Q")
    radius = check_positive(radius, "radius")
    projected: Array = call_kernel(spectral.project, len(Q), Q, radius)
    if not np.isfinite(projected).all():
        raise ValueError("Q must not be so large that its eigenvalues overflow; scale it down.")
    return projected
