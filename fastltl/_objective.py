"""Packed tasks as kernels want them, and the mean of an objective over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl import _kernels as kernels
from fastltl._kernels.compilation import HAS_JIT
from fastltl._threads import Watchers, are_worth_sharing, in_pieces, one_blas_thread
from fastltl._validation import Array, check_computed

Indices = npt.NDArray[np.int64]

#: A representation of a rank below this fraction of the features has its rank made use of. Above
#: it there is little to spare.
LOW_RANK = 0.9

#: The square of the largest feature, or its inverse, below which squares may have lost digits.
SMALLEST_SQUARE = 1e-200


#: Nanoseconds from which on an evaluation is worth sharing with threads that watch for it.
SMALLEST_TURN = 150_000


class ReducedTasks(NamedTuple):
    """Tasks with the same ridge regression as others, but no more rows than their inputs' rank.

    Task t has the rows starts[t] to starts[t + 1] of R and z. It stands for sizes[t] samples,
    of whose targets misfits[t] = |y - Xw|^2 can be reached by no weights. The means are zero if
    the tasks were not centred. Square matrices of a row per row of each task, laid out one after
    another, start at the corners.
    """

    R: Array
    z: Array
    starts: Indices
    corners: Indices
    sizes: Indices
    misfits: Array
    x_means: Array
    y_means: Array

    @property
    def n_features(self) -> int:
        return int(self.R.shape[1])

    @property
    def cost_of_factor(self) -> float:
        """Nanoseconds, roughly, for the Cholesky factor of M of a task, and what it is for."""
        rows = len(self.R) / len(self.sizes)
        return float(1000.0 + 0.03 * rows**3)

    def cost_of_dual(self, rank: int) -> float:
        """`cost_of_factor`, and that of M itself at a D of this rank."""
        rows = len(self.R) / len(self.sizes)
        return float(self.cost_of_factor + 0.04 * rows * rank * (2 * self.n_features + rows))


def reduce_tasks(
    X: Array, y: Array, offsets: Indices, centred: bool, n_threads: int
) -> ReducedTasks:
    """Reduce packed tasks, whose arrays may be read-only."""
    d, n_tasks, sizes = X.shape[1], len(offsets) - 1, np.diff(offsets)
    rooms = np.concatenate([[0], np.cumsum(np.minimum(sizes, d))])
    R, z = np.empty((rooms[-1], d)), np.empty(rooms[-1])
    ranks, misfits = np.zeros(n_tasks, dtype=np.int64), np.empty(n_tasks)
    x_means, y_means = np.zeros((n_tasks, d)), np.zeros(n_tasks)
    in_pieces(
        kernels.reduce_tasks,
        n_tasks,
        n_threads,
        10.0 * X.size / n_tasks,
        X,
        y,
        offsets,
        centred,
        rooms,
        R,
        z,
        ranks,
        misfits,
        x_means,
        y_means,
    )
    starts = np.concatenate([[0], np.cumsum(ranks)])
    if starts[-1] < rooms[-1]:
        kept = np.repeat(rooms[:-1] - starts[:-1], ranks) + np.arange(starts[-1])
        R, z = R[kept], z[kept]
    corners = np.concatenate([[0], np.cumsum(ranks**2)])
    return ReducedTasks(R, z, starts, corners, sizes, misfits, x_means, y_means)


def ridge_paths(tasks: ReducedTasks, lams: Array, n_threads: int) -> Array:
    """Weights of ordinary ridge regression, D = I / lam, of shape (lams, tasks, d)."""
    weights = np.empty((len(lams), len(tasks.sizes), tasks.n_features))
    in_pieces(
        kernels.ridge_paths,
        len(tasks.sizes),
        n_threads,
        20.0 * tasks.R.size / len(tasks.sizes),
        lams,
        tasks.R,
        tasks.z,
        tasks.starts,
        tasks.sizes,
        weights,
    )
    return check_computed(weights)


def relative_scales(squares: Sequence[tuple[float, Array]]) -> Array:
    """Root mean square of each feature, relative to the largest; 1 if it is 0 to rounding.

    A feature that is constant in each task is so once the tasks are centred. `squares` are the
    `MeanObjective.feature_squares` of parts of the tasks.
    """
    unit = max(own for own, _ in squares)
    scales = np.sqrt(np.sum([part * (own / unit) ** 2 for own, part in squares], axis=0))
    scales[scales <= len(scales) * kernels.EPS * scales.max()] = scales.max() or 1.0
    relative: Array = scales / scales.max()
    return relative


class MeanObjective:
    """F(D) = mean over tasks of L(D) or, `penalised`, of min over w of |y - Xw|^2/n + w' D^+ w.

    The tasks come with their targets in units of `target_unit`, the largest of them, and values
    and gradients are in units of its square: no choice of units for y makes them overflow.
    """

    def __init__(
        self, tasks: ReducedTasks, target_unit: float, penalised: bool, n_threads: int
    ) -> None:
        self.tasks = tasks
        self.target_unit = target_unit
        self.penalised = penalised
        self.n_threads = n_threads
        n_tasks, d = len(tasks.sizes), tasks.n_features
        self._values = np.empty(n_tasks)
        self._A, self._B, self._dA, self._dB = (np.empty((n_tasks, d)) for _ in range(4))
        self._factors = np.empty(tasks.corners[-1])
        self._D, self._F = np.zeros((d, d)), np.empty(d * d)
        self._is_factorised = False
        self._arrays = (
            tasks.R,
            tasks.z,
            tasks.starts,
            tasks.sizes,
            tasks.misfits,
            penalised,
            self._values,
            self._A,
            self._B,
            self._factors,
            tasks.corners,
        )
        self._board = np.zeros(kernels.BOARD_SIZE, np.int64)
        self._watchers = Watchers(n_threads)

    @property
    def n_features(self) -> int:
        return self.tasks.n_features

    @property
    def n_tasks(self) -> int:
        return len(self.tasks.sizes)

    @property
    def feature_squares(self) -> tuple[float, Array]:
        """A unit, and the sum of the squares of each feature in units of it.

        It is 1, or the largest input where squares of inputs might overflow or underflow.
        """
        R = self.tasks.R
        squares = np.einsum("ij,ij->j", R, R)
        if SMALLEST_SQUARE < squares.max() < 1.0 / SMALLEST_SQUARE:
            return 1.0, squares
        largest = check_computed(max(float(R.max()), -float(R.min()))) or 1.0
        return largest, np.einsum("ij,ij->j", R / largest, R / largest)

    @cached_property
    def feature_scales(self) -> Array:
        """How large each feature is, relative to the largest; see `relative_scales`."""
        return relative_scales([self.feature_squares])

    @property
    def value_at_zero(self) -> float:
        """F(0), the mean of |y|^2 / n: what there is to learn."""
        tasks = self.tasks
        squares = np.add.reduceat(tasks.z**2, tasks.starts[:-1]) + tasks.misfits
        return check_computed(float(np.mean(squares / tasks.sizes)))

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        """F(D) and its gradient."""
        F = kernels.low_rank_factor(D, self.feature_scales)
        self._evaluate(D, F if F.shape[1] <= LOW_RANK * len(D) else F[:, :0])
        value = check_computed(float(self._values.mean()))
        return value, check_computed(kernels.mean_gradient(self._A, self._B))

    def _evaluate(self, D: Array, F: Array) -> None:
        """Values and gradients of all tasks at D, which is FF' unless F has no columns."""
        cost = self.tasks.cost_of_dual(F.shape[1] or len(D))
        np.copyto(self._D, D)
        with one_blas_thread():
            if HAS_JIT and self.n_threads > 1 and self.n_tasks * cost > SMALLEST_TURN:
                self._evaluate_in_turns(F)
            else:
                kernels.objectives(self._D, F, *self._arrays, 0, self.n_tasks)
        self._is_factorised = F.size == 0

    def _evaluate_in_turns(self, F: Array) -> None:
        """Have other threads share in an evaluation and, for a while, watch for the next one."""
        board, watchers = self._board, self._watchers
        arguments = self._D, self._F, *self._arrays, board
        self._F[: F.size] = F.ravel()
        watchers.failures.clear()
        try:
            kernels.begin_turn(board, F.shape[1])
            watchers.call(lambda: kernels.objectives_in_turns(*arguments, True))
            while not kernels.objectives_in_turns(*arguments, False):
                if watchers.failures:
                    raise watchers.failures[0]
        except BaseException:
            self.rest()
            watchers.finish()
            self._D.fill(np.nan)  # so that nobody takes what there is for an evaluation
            raise

    def rest(self) -> None:
        """Let threads that watch for the next evaluation turn to something else."""
        if HAS_JIT and self.n_threads > 1:
            kernels.begin_turn(self._board, kernels.LEAVE)
            self._watchers.call_off()

    def curvature(self, E: Array) -> Array:
        """Derivative of the gradient along E, a symmetric matrix, at the latest D."""
        tasks = self.tasks
        if not self._is_factorised:
            self._evaluate(self._D, self._D[:, :0])
        cost = (tasks.R.size + self._factors.size) / self.n_tasks
        if are_worth_sharing(self.n_tasks, self.n_threads, cost):
            self.rest()
        in_pieces(
            kernels.factor_changes,
            self.n_tasks,
            self.n_threads,
            cost,
            self._A @ E,
            self._B @ E,
            tasks.R,
            tasks.starts,
            tasks.sizes,
            self.penalised,
            self._factors,
            tasks.corners,
            self._dA,
            self._dB,
        )
        change: Array = kernels.mean_gradient(self._dA, self._B)
        change += kernels.mean_gradient(self._A, self._dB)
        return change

    def stand_at(self, D: Array) -> None:
        """Have D for the latest D."""
        if not np.array_equal(D, self._D):
            self.value_and_gradient(D)

    def weights(self, D: Array) -> Array:
        """Ridge weights D a of each task with D, by rows, in the units of y."""
        self.stand_at(D)
        return self._A @ D * self.target_unit

    def intercepts(self, weights: Array) -> Array:
        """The intercept that goes with the weights of each task, in the units of y."""
        along_means = np.sum(weights * self.tasks.x_means, axis=1)
        levels: Array = self.tasks.y_means * self.target_unit - along_means
        return levels
