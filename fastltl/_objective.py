"""The mean of an objective over tasks: its value, gradient and curvature.

Batch learners minimise it through one protocol, `Objective`, whether the tasks are in this
process (`MeanObjective`) or on a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastltl._kernels import batch as kernels
from fastltl._kernels.linalg import EPS
from fastltl._threads import one_blas_thread, run_in_threads
from fastltl._validation import Array, check_computed

Indices = npt.NDArray[np.int64]
Names = tuple[str, ...] | None

#: The rank of D is exploited if it is below this fraction of the number of features.
LOW_RANK = 0.9

#: The square of the largest feature, or its inverse, below which squares may have lost digits.
SMALLEST_SQUARE = 1e-200


class Objective(Protocol):
    """A smooth F(D), with targets in units of `target_unit` and values in units of its square."""

    n_features: int
    target_unit: float

    @property
    def value_at_zero(self) -> float:
        """F(0)."""

    @property
    def feature_scales(self) -> Array:
        """Return the size of each feature, relative to the largest."""

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        """Return F(D) and its gradient, a symmetric matrix."""

    def curvature(self, V: Array, W: Array) -> Array:
        """G'V, d x r, for the derivative G' of the gradient at D = VV' along VW' + WV'."""

    def weights_and_intercepts(self, D: Array) -> tuple[Array, Array]:
        """Return ridge weights of each task with D, by rows, and intercepts, in the units of y."""


class TaskSource(ABC):
    """A source of tasks with the same features: a `TaskSet`, a stream, or shards on a cluster."""

    __slots__ = ()

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of features, the same in every task."""

    @property
    @abstractmethod
    def feature_names(self) -> Names:
        """Names of the features, or None."""

    @abstractmethod
    def collection(self) -> TaskCollection:
        """Return all the tasks at once."""


class TaskCollection(TaskSource):
    """Tasks that are all in memory or on a cluster, with a mean objective."""

    __slots__ = ()

    @property
    @abstractmethod
    def labels(self) -> npt.NDArray[np.object_]:
        """Name of each task."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def mean_objective(self, regularized: bool, fit_intercept: bool, n_threads: int) -> Objective:
        """Return the mean over tasks of the error objective, or of the regularized one."""

    def collection(self) -> TaskCollection:
        """Return the tasks themselves."""
        return self


class ReducedTasks(NamedTuple):
    """Tasks with the same ridge regression as others, and no more rows than their inputs' rank.

    Task t has the rows starts[t] to starts[t + 1] of R and z, and stands for sizes[t] samples;
    residuals[t] = |y - Xw|^2 is what no weights can reduce. The means are zero if the tasks were
    not centred. A square matrix per task, laid out one after another, starts at dual_starts[t].
    """

    R: Array
    z: Array
    starts: Indices
    dual_starts: Indices
    sizes: Indices
    residuals: Array
    x_means: Array
    y_means: Array

    @property
    def n_features(self) -> int:
        return int(self.R.shape[1])


def reduce_tasks(
    X: Array, y: Array, offsets: Indices, centred: bool, n_threads: int
) -> ReducedTasks:
    """Reduce the tasks whose rows are offsets[t] to offsets[t + 1] of X and y."""
    d, n_tasks, sizes = X.shape[1], len(offsets) - 1, np.diff(offsets)
    most = np.concatenate([[0], np.cumsum(np.minimum(sizes, d))])
    R, z = np.empty((most[-1], d)), np.empty(most[-1])
    ranks, residuals = np.zeros(n_tasks, dtype=np.int64), np.empty(n_tasks)
    x_means, y_means = np.zeros((n_tasks, d)), np.zeros(n_tasks)
    reduced = R, z, ranks, residuals, x_means, y_means
    work = 2.0 * X.size * min(d, X.shape[0] / n_tasks)
    run_in_threads(
        kernels.reduce_tasks, n_tasks, n_threads, work, X, y, offsets, centred, most, reduced
    )
    starts = np.concatenate([[0], np.cumsum(ranks)])
    if starts[-1] < most[-1]:
        kept = np.repeat(most[:-1] - starts[:-1], ranks) + np.arange(starts[-1])
        R, z = R[kept], z[kept]
    dual_starts = np.concatenate([[0], np.cumsum(ranks**2)])
    return ReducedTasks(R, z, starts, dual_starts, sizes, residuals, x_means, y_means)


def left_out_ridge(A: Array, y: Array, fit_intercept: bool) -> Array:
    """Predict each target from the other m rows: min over v of |y - Av|^2 / m + |v|^2.

    With U s V' the singular value decomposition of A, orthogonal to a constant if there is an
    intercept, the residual of row i of the fit to all rows is 1 - h_i times that of the fit to the
    other rows, h_i the leverage of the row.
    """
    n, n_constant = len(y), int(fit_intercept)
    centred = y - y.mean() if fit_intercept else y
    Q, R = np.linalg.qr(np.hstack([np.ones((n, n_constant)), A]))
    V, s, _ = np.linalg.svd(R[n_constant:, n_constant:], full_matrices=False)
    U: Array = Q[:, n_constant:] @ V
    along, shrinkage = U.T @ centred, (n - 1) / (s * s + (n - 1))
    residuals: Array = U @ (shrinkage * along)
    remaining: Array = U**2 @ shrinkage  # 1 - h
    if U.shape[1] < n - n_constant:  # else U leaves nothing but rounding errors
        residuals += centred - U @ along
        remaining += 1.0 - n_constant / n - np.sum(U**2, axis=1)
        np.maximum(remaining, np.finfo(float).eps, out=remaining)
    return y - residuals / remaining


def ridge_paths(tasks: ReducedTasks, lams: Array, n_threads: int) -> Array:
    """Return the weights of ordinary ridge regression, D = I / lam, of shape (tasks, lams, d)."""
    n_tasks, d = len(tasks.sizes), tasks.n_features
    weights = np.empty((n_tasks, len(lams), d))
    work = 2.0 * tasks.R.size * (len(lams) + d)
    run_in_threads(kernels.ridge_paths, n_tasks, n_threads, work, lams, tasks, weights)
    return check_computed(weights)


def relative_scales(squares: Sequence[tuple[float, Array]]) -> Array:
    """Return the root mean squares of features over the largest; 1 for one that is 0 to rounding.

    A feature that is constant in each task is 0 once the tasks are centred. `squares` are the
    `MeanObjective.feature_squares` of parts of the tasks.
    """
    unit = max(own for own, _ in squares)
    scales = np.sqrt(np.sum([part * (own / unit) ** 2 for own, part in squares], axis=0))
    scales[scales <= len(scales) * EPS * scales.max()] = scales.max() or 1.0
    relative: Array = scales / scales.max()
    return relative


class MeanObjective:
    """F(D) = mean over tasks of L(D) or, `regularized`, of min over w of |y - Xw|^2/n + w' D^+ w.

    Targets are in units of `target_unit`, the largest of them, so that no choice of units for y
    makes values or gradients overflow.
    """

    def __init__(
        self, tasks: ReducedTasks, target_unit: float, regularized: bool, n_threads: int
    ) -> None:
        self.tasks = tasks
        self.target_unit = target_unit
        self.regularized = regularized
        self.n_threads = n_threads
        self.n_tasks, self.n_features = len(tasks.sizes), tasks.n_features
        shape = self.n_tasks, self.n_features
        self._values, self._A, self._B = np.empty(shape[0]), np.empty(shape), np.empty(shape)
        # The D, or the V with D = VV', of the latest evaluation; at a V the duals are kept.
        self._D = self._V = self._AV = self._BV = np.empty((0, 0))
        self._duals = np.empty(tasks.dual_starts[-1])

    @property
    def feature_squares(self) -> tuple[float, Array]:
        """Return a unit, and the sum of the squares of each feature in units of it.

        The unit is 1, or the largest input where squares might overflow or underflow.
        """
        R = self.tasks.R
        squares = np.einsum("ij,ij->j", R, R)
        if SMALLEST_SQUARE < squares.max() < 1.0 / SMALLEST_SQUARE:
            return 1.0, squares
        largest = check_computed(max(float(R.max()), -float(R.min()))) or 1.0
        return largest, np.einsum("ij,ij->j", R / largest, R / largest)

    @cached_property
    def feature_scales(self) -> Array:
        """Return the size of each feature, relative to the largest; see `relative_scales`."""
        return relative_scales([self.feature_squares])

    @property
    def value_at_zero(self) -> float:
        """F(0), the mean of |y|^2 / n."""
        tasks = self.tasks
        squares = np.add.reduceat(tasks.z**2, tasks.starts[:-1]) + tasks.residuals
        return check_computed(float(np.mean(squares / tasks.sizes)))

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        """Return F(D) and its gradient."""
        with one_blas_thread:
            F = kernels.low_rank_factor(D, self.feature_scales)
            self._evaluate(D, F if len(F) <= LOW_RANK * len(D) else F[:0], self._duals[:0])
            gradient: Array = kernels.mean_gradient(self._A, self._B)
        self._D = D.copy()
        return check_computed(float(self._values.mean())), check_computed(gradient)

    def _evaluate(self, D: Array, F: Array, duals: Array) -> None:
        """Evaluate every task at F'F, or at D if F has no rows, and keep the duals if asked to."""
        work = 2.0 * self.tasks.R.size * (len(F) or len(D))
        self._D = self._V = np.empty((0, 0))  # until the evaluation is complete
        run_in_threads(
            kernels.objectives,
            -(-self.n_tasks // kernels.BLOCK),
            self.n_threads,
            work,
            D,
            F,
            self.tasks,
            self.regularized,
            self._values,
            self._A,
            self._B,
            duals,
        )

    def curvature(self, V: Array, W: Array) -> Array:
        """G'V, d x r, for the derivative G' of the gradient at D = VV' along VW' + WV'."""
        with one_blas_thread:
            if not np.array_equal(V, self._V):
                F = np.ascontiguousarray(V.T)
                self._evaluate(F, F, self._duals)
                self._V, self._AV, self._BV = V.copy(), self._A @ V, self._B @ V
            A, B, AV, BV = self._A, self._B, self._AV, self._BV
            EA = (A @ W) @ V.T + AV @ W.T
            EB = EA if self.regularized else (B @ W) @ V.T + BV @ W.T
            dA, dB = np.empty_like(A), np.empty_like(B)
            run_in_threads(
                kernels.factor_changes,
                self.n_tasks,
                self.n_threads,
                8.0 * self.tasks.R.size + 8.0 * self._duals.size,
                EA,
                EB,
                self.tasks,
                self.regularized,
                self._duals,
                dA,
                dB,
            )
            change: Array = dA.T @ BV + B.T @ (dA @ V)
            # The derivative of -(a b' + b a') has the same two terms again where b = a / 2.
            change += change if self.regularized else A.T @ (dB @ V) + dB.T @ AV
        return change / -self.n_tasks

    def weights_and_intercepts(self, D: Array) -> tuple[Array, Array]:
        """Return ridge weights D a of each task, by rows, and intercepts, in the units of y."""
        if not np.array_equal(D, self._D):
            self.value_and_gradient(D)
        weights = check_computed(self._A @ D * self.target_unit)
        along_means = np.sum(weights * self.tasks.x_means, axis=1)
        return weights, check_computed(self.tasks.y_means * self.target_unit - along_means)
