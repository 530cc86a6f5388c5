"""BatchLTL and MTL: the best representation for a set of tasks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fastltl._objective import Objective, TaskCollection
from fastltl._solver import Iteration, Progress, minimise
from fastltl._threads import one_blas_thread
from fastltl._validation import (
    Array,
    check_computed,
    check_count,
    check_flag,
    check_lam,
    check_objective,
    check_positive,
    check_threads,
    memory_errors,
)
from fastltl.base import RepresentationLearner, largest_size, restore_on_failure
from fastltl.io.checkpoints import check_type
from fastltl.ridge import MultitaskModel

#: Share of tol to aim for, so that a gap computed anew is below tol, too.
SAFETY = 0.9

#: Matrices of the size of D that the solver holds at a time, about.
SOLVER_MATRICES = 12


class BatchLTL(RepresentationLearner):
    """Learn the representation with the least mean loss over a set of tasks.

    min over D PSD with tr D <= 1 / lam of the mean of the losses of the tasks, see `objective`.
    This is what `OnlineLTL` approximates without keeping the tasks.

    Parameters
    ----------
    lam : float
        Regularisation: the trace of D is at most 1 / lam. It has to be chosen, by the error on
        validation tasks; see `select_lam`.
    objective : {"regularized", "error"}
        The loss of a task: the minimum over w of |y - Xw|^2 / n + w' D^+ w, which is convex in D,
        or the paper's, the training error of that w, which is not. See `task_loss`.
    tol : float
        The solver stops when `gap_` is at most tol times the objective. Below about 1e-8 rounding
        errors stop it first.
    max_iter : int
        The most iterations.
    warm_start : bool
        Whether `fit` starts from the representation that an earlier `fit` has found, with any
        lam and for any tasks of the same features.
    fit_intercept : bool
        Whether to centre X and y inside each task.
    n_threads : int, optional
        Threads that share the tasks; by default Numba's number, one for each core. Results have
        the same bits for any number.

    Attributes
    ----------
    D_ : ndarray of shape (d, d)
        The learned representation; a copy.
    objective_ : float
        Mean loss of the tasks at `D_`.
    gap_ : float
        <G, D> + max(0, -lambda_min(G)) / lam, or `objective_` if that is less, with G the gradient
        at D. For the regularized objective the optimum is at least `objective_` - `gap_`. For the
        error objective a small gap says that D is nearly stationary; a much better D may exist,
        unless no task has inputs of rank two or more. See docs/proposition.md.
    n_iter_ : int
    history_ : list of (objective, gap, seconds)
        After each iteration, as named tuples; seconds since the start. Empty if the start was
        good enough.
    n_features_in_ : int

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> learner = ltl.BatchLTL(lam=0.1).fit(environment.tasks(50, n_samples=8))
    >>> bool(learner.gap_ <= 1e-6 * learner.objective_)
    True
    >>> learner.D_.trace().round(6)
    np.float64(10.0)
    """

    objective_: float
    gap_: float
    n_iter_: int
    history_: list[Iteration]
    _has_converged: bool
    _interrupted_at: Array

    _KEPT: ClassVar[dict[str, type]] = {
        "objective_": float,
        "gap_": float,
        "n_iter_": int,
        "history_": list,
        "_has_converged": bool,
    }

    def __init__(
        self,
        lam: float = 1.0,
        objective: str = "regularized",
        tol: float = 1e-6,
        max_iter: int = 500,
        warm_start: bool = False,
        fit_intercept: bool = False,
        n_threads: int | None = None,
    ) -> None:
        self.lam = lam
        self.objective = objective
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.fit_intercept = fit_intercept
        self.n_threads = n_threads

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        tasks = self._collection(X, y, groups)
        progress = self._progress()
        try:
            memory = memory_errors(SOLVER_MATRICES, tasks.n_features)
            with restore_on_failure(self), one_blas_thread, memory:
                objective = self._objective(tasks, check_threads(self.n_threads))
                start = self._warm_start(tasks.n_features) if self.warm_start else None
                self._remember_features(tasks if y is None else X)
                self._solve(tasks, objective, start, progress)
        except BaseException:
            if self.warm_start and progress.latest is not None:
                self._interrupted_at = progress.latest
            raise
        if not self._has_converged:
            advice = "scale the features alike, or raise max_iter"
            if self.n_iter_ < self.max_iter:
                advice = "rounding errors allow no more, scale the features alike or raise tol"
            warnings.warn(
                f"{type(self).__name__} stopped after {self.n_iter_} iterations with a gap of "
                f"{self.gap_:.3g}, above tol={self.tol!r} times the objective of "
                f"{self.objective_:.3g}: {advice}.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._warn_of_nothing_shared(len(tasks), largest_size(tasks))
        return self

    def _progress(self, seconds: float = np.inf) -> Progress:
        return Progress(check_lam(self.lam), check_count(self.max_iter, "max_iter"), seconds)

    def _warm_start(self, d: int) -> Array | None:
        """Return where an earlier fit was interrupted, or ended; None if there was none."""
        start: Array | None = self.__dict__.pop(
            "_interrupted_at", self.__dict__.get("_representation")
        )
        if start is not None and len(start) != d:
            raise ValueError(
                f"X must have the {len(start)} features of the earlier fit that warm_start "
                f"continues, got {d}."
            )
        return start

    def _objective(self, tasks: TaskCollection, n_threads: int) -> Objective:
        """Return the mean objective over tasks, for any lam, after checking all parameters."""
        check_lam(self.lam)
        regularized = check_objective(self.objective)
        check_positive(self.tol, "tol")
        check_count(self.max_iter, "max_iter")
        check_flag(self.warm_start, "warm_start")
        fit_intercept = check_flag(self.fit_intercept, "fit_intercept")
        return tasks.mean_objective(regularized, fit_intercept, n_threads)

    def _solve(
        self, tasks: TaskCollection, objective: Objective, start: Array | None, progress: Progress
    ) -> None:
        """Minimise the objective from a start, and keep the solution."""
        D, value, gap, history = minimise(objective, start, SAFETY * self.tol, progress)
        self._has_converged = gap <= self.tol * value
        self.__dict__.pop("_interrupted_at", None)
        unit, self._representation = objective.target_unit, D
        self.objective_, self.gap_ = check_computed(value * unit * unit), gap * unit * unit
        self.n_iter_ = len(history)
        self.history_ = [
            Iteration(value * unit * unit, gap * unit * unit, seconds)
            for value, gap, seconds in history
        ]
        self._fit_tasks(tasks, objective)

    def _fit_tasks(self, tasks: TaskCollection, objective: Objective) -> None:
        """Fit the tasks themselves, where that is more than D."""

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        if missing := BatchLTL._KEPT.keys() - state.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        self.history_ = [Iteration(*one) for one in self.history_]
        for number in chain.from_iterable(self.history_):
            check_type(number, float, "history_")


def fit_path(
    learner: BatchLTL,
    tasks: TaskCollection,
    lams: Sequence[float],
    n_threads: int,
    earlier: Sequence[BatchLTL] | None = None,
    seconds: float = np.inf,
) -> list[BatchLTL]:
    """Fit a copy of the learner for each lam, and return them in the order of `lams`.

    Fits start from the `earlier` ones to other tasks, if given. Otherwise they go from the largest
    lam to the smallest, and each starts from the one before, unless that did not converge. If all
    together take more than so many `seconds`, TimeoutError is raised.
    """
    deadline = time.perf_counter() + seconds
    learners = [clone(learner).set_params(lam=lam) for lam in lams]
    with one_blas_thread, memory_errors(SOLVER_MATRICES, tasks.n_features):
        objective, start = learners[0]._objective(tasks, n_threads), None
        for k in sorted(range(len(lams)), key=lambda k: -lams[k]):
            one = learners[k]
            if earlier is not None:
                start = earlier[k]._representation
            one._remember_features(tasks)
            left = deadline - time.perf_counter()
            one._solve(tasks, objective, start, one._progress(left))
            start = one._representation if one._has_converged else None
    return learners


class MTL(MultitaskModel, BatchLTL):
    """Learn the weights of all tasks at once, with trace-norm regularisation (multitask learning).

    min over W of the mean over tasks of |y - Xw|^2 / n, plus lam / T times the squared trace norm
    of W. `BatchLTL` with the regularized objective finds D; the weights are the w that it implies.

    Parameters
    ----------
    lam : float
        Regularisation: the trace of D is at most 1 / lam. It has to be chosen; see `select_lam`.
    tol, max_iter, warm_start, n_threads
        As in `BatchLTL`.
    fit_intercept : bool
        Whether to centre X and y inside each task and fit an intercept.

    Attributes
    ----------
    coef_ : ndarray of shape (n_tasks, d)
        Weights of each task.
    intercept_ : ndarray of shape (n_tasks,)
    labels_ : ndarray of shape (n_tasks,)
        Names of the tasks, for `predict`.
    D_ : ndarray of shape (d, d)
        The learned representation, with which a new task can be solved; a copy.
    objective_, gap_, n_iter_, history_
        As in `BatchLTL`.
    n_features_in_ : int

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> tasks = environment.tasks(20, n_samples=8)
    >>> model = ltl.MTL(lam=0.1).fit(tasks)
    >>> X, y = tasks[3]
    >>> model.predict(X, groups=[3] * 8).shape
    (8,)
    """

    def __init__(
        self,
        lam: float = 1.0,
        tol: float = 1e-6,
        max_iter: int = 500,
        warm_start: bool = False,
        fit_intercept: bool = False,
        n_threads: int | None = None,
    ) -> None:
        super().__init__(
            lam,
            tol=tol,
            max_iter=max_iter,
            warm_start=warm_start,
            fit_intercept=fit_intercept,
            n_threads=n_threads,
        )

    def _fit_tasks(self, tasks: TaskCollection, objective: Objective) -> None:
        self.labels_ = tasks.labels
        self.coef_, self.intercept_ = objective.weights_and_intercepts(self._representation)
