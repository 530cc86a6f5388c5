"""OnlineLTL: learn a representation from tasks that come one after another and are not kept."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError

from fastltl import _kernels as kernels
from fastltl._threads import held_at_fork, may_thread, one_blas_thread, steadily
from fastltl._validation import (
    Array,
    check_choice,
    check_finite,
    check_flag,
    check_lam,
    check_matrix,
    check_positive,
    check_target,
    is_ready_task,
    writable,
)
from fastltl.base import RepresentationLearner, unchanged_on_failure
from fastltl.io.storage import Checkpoint
from fastltl.runs import RUNS, Run
from fastltl.tasks import check_task

AVERAGINGS = ("uniform", "last")

#: Held while a learner takes its first task, so that of two threads one is first.
_beginning = threading.RLock()
held_at_fork(lambda: [_beginning])


class OnlineLearner(RepresentationLearner):
    """What learners that take tasks one by one share: `fit`, and a `partial_fit` that is whole
    or not at all.
    """

    #: Parameters that a run cannot change on the way.
    _SETTINGS: ClassVar[tuple[str, ...]]

    #: What belongs to a run, and goes with it.
    _RUN_STATE: ClassVar[tuple[str, ...]] = (
        "_run",
        "_run_settings",
        "n_features_in_",
        "feature_names_in_",
        "_warns_of_arrays",
    )

    geometry: str
    step: str | float
    averaging: str
    _run: Run
    _run_settings: tuple[Any, ...]

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        tasks = self._tasks(X, y, groups)
        self._new_run(1)  # so that a bad parameter is not taken for a bad first task
        fresh = type(self)(**self.get_params(deep=False))
        with one_blas_thread():
            for i, task in enumerate(fresh._watched(tasks)):
                try:
                    fresh.partial_fit(*task)
                except (TypeError, ValueError) as error:
                    if y is not None and groups is None:
                        raise
                    check_task(task, f"task {i}", fresh.__dict__.get("n_features_in_"))
                    raise type(error)(f"task {i}: {error}") from error
        if "_run" not in fresh.__dict__:
            raise ValueError("X must hold at least one task (X, y), got none.")
        if y is not None or self._names_features(X):
            fresh._remember_features(X)
        self._take_over(fresh)
        return self

    def _take_over(self, other: Self) -> None:
        """Forget what was learned, and know what another knows, whose parameters are the same."""
        learned = {name: other.__dict__[name] for name in self._RUN_STATE if name in other.__dict__}
        self.__dict__.update(learned)
        for name in self.__dict__.keys() & set(self._RUN_STATE) - learned.keys():
            del self.__dict__[name]

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from one task, and forget it.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)

        Returns
        -------
        self
        """
        if self._learn_at_once(X, y):
            return self
        if not self._learn_first(X, y):
            self._check_settings()
            data, target = self._checked_task(X, y, self._run.n_features)
            self._check_feature_names(X)
            self._learn(self._run, data, target)
        self._after_task()
        return self

    def _learn_first(self, X: npt.ArrayLike, y: npt.ArrayLike) -> bool:
        """Begin a run with a task, unless there is one."""
        if "_run" in self.__dict__:
            return False
        with _beginning:
            if "_run" in self.__dict__:
                return False
            with unchanged_on_failure(self):
                data, target = self._checked_task(X, y)
                run = self._begin(data.shape[1])
                self._learn(run, data, target)
                self._remember_features(X)
                self._run_settings = self._settings()
                self._run = run
        return True

    def _check_settings(self) -> None:
        """The parameters are those that the run began with."""
        if not _differ(self._settings(), self._run_settings):
            return
        changed = [
            f"{name}={now!r} after {name}={then!r}"
            for name, then, now in zip(
                self._SETTINGS, self._run_settings, self._settings(), strict=True
            )
            if _differ(now, then)
        ]
        raise ValueError(
            "parameters must stay as they were at the first task, got "
            f"{', '.join(changed)}; fit starts over."
        )

    def _learn_at_once(self, X: Any, y: Any) -> bool:
        """Learn from a task that needs no preparation, if there is a short way to."""
        return False

    def _checked_task(self, X: Any, y: Any, n_features: int | None = None) -> tuple[Array, Array]:
        """A task as kernels take it, or an error that says what is wrong with it.

        In one that is taken as it is there may be values that are not finite, which `_learn` finds,
        unless it would have to centre them.
        """
        is_matrix = isinstance(X, np.ndarray) and X.ndim == 2 and self.fit_intercept is False
        if is_matrix and is_ready_task(X, y, n_features or X.shape[1]):
            return X, y
        owner = type(self).__name__
        data = check_matrix(X, n_features, owner=owner)
        return data, check_target(y, len(data), owner=owner)

    def _learn(self, run: Run, X: Array, y: Array) -> None:
        """Learn from one task, which may still be too large to."""
        task = kernels.centre(X, y)[:2] if self.fit_intercept else (X, y)
        if not self._take(run, *task):
            check_finite(X, "X")
            check_finite(y, "y")
            raise ValueError(
                "X and y must not be so large, or so small, for this lam and step that results "
                f"overflow or lose all their digits, got values up to {np.abs(X).max():.3g} in X "
                f"and {np.abs(y).max():.3g} in y."
            )

    def _take(self, run: Run, X: Array, y: Array) -> bool:
        """Give a checked task to the run, which may refuse it."""
        return steadily(run.learn, *X.shape, X, y)

    def _after_task(self) -> None:
        """What is to be done when a task has been learned from."""

    def _watched(self, tasks: Iterable[Any]) -> Iterable[Any]:
        """The tasks of `fit`, while somebody may be looking on."""
        return tasks

    @abstractmethod
    def _new_run(self, d: int) -> Run:
        """A run at D^(1), with the parameters as they are now."""

    def _begin(self, d: int) -> Run:
        """Make ready for a first task of d features."""
        return self._new_run(d)

    def _new_run_of(
        self, d: int, radii: Sequence[float], step_scales: Sequence[float] | None
    ) -> Run:
        """A run of candidates with these radii and step scales, and the other parameters."""
        check_flag(self.fit_intercept, "fit_intercept")
        check_choice(self.averaging, "averaging", AVERAGINGS)
        geometry = check_choice(self.geometry, "geometry", tuple(RUNS))
        return RUNS[geometry](d, radii, self.step, step_scales)

    @abstractmethod
    def _settings(self) -> tuple[Any, ...]:
        """Values of the parameters in `_SETTINGS`."""

    def __copy__(self) -> Self:
        """A copy learns on its own: the arrays of the run are updated in place."""
        return deepcopy(self)

    def __getstate__(self) -> Any:
        """All attributes, with copies of those that another thread may be about to change."""
        run = self.__dict__.get("_run")
        if run is None:
            return super().__getstate__()
        with run.lock:
            changing = [name for name in ("_run", "_duals") if name in self.__dict__]
            return super().__getstate__() | {name: copy(self.__dict__[name]) for name in changing}

    def _checkpoint(self, position: dict[str, Any]) -> Checkpoint:
        run = self.__dict__.get("_run")
        if run is None:
            return super()._checkpoint(position)
        with run.lock:
            return super()._checkpoint({"n_tasks_read": run.n_tasks} | position)

    def _state(self) -> dict[str, Any] | None:
        run = self.__dict__.get("_run")
        if run is None:
            return None
        self._check_settings()
        with run.lock:
            return {**(super()._state() or {}), "run": run.checkpoint()}

    def _restore(self, state: dict[str, Any]) -> None:
        saved = state.pop("run")
        run = self._begin(saved["rows"].shape[2])
        run.restore(saved)
        super()._restore(state)
        if self.n_features_in_ != run.n_features:
            raise ValueError(f"it has {self.n_features_in_} features, not {run.n_features}")
        self._run_settings = self._settings()
        self._run = run

    def __sklearn_is_fitted__(self) -> bool:
        return "_run" in self.__dict__

    def _fitted_run(self) -> Run:
        run: Run | None = self.__dict__.get("_run")
        if run is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance has not seen a task yet: call fit or "
                "partial_fit first."
            )
        return run

    def _representations(self) -> Array:
        """What each candidate has learned, in an array of its own."""
        averaging = check_choice(self.averaging, "averaging", AVERAGINGS)
        return self._fitted_run().representations(averaging)

    @property
    def n_tasks_seen_(self) -> int:
        """T, the number of tasks learned from."""
        return self._fitted_run().n_tasks


def _differ(now: Any, then: Any) -> bool:
    """Whether parameters have changed, or cannot be told from changed ones."""
    try:
        return now is not then and bool(now != then)
    except (TypeError, ValueError):  # of an array, say, which equals no number
        return True


class OnlineLTL(OnlineLearner):
    """Learn a representation task by task: each task improves D and is forgotten.

    With L_t(D) the training error of ridge regression with D on task t, the learner chooses
    D^(t) before it sees task t, among the PSD matrices of trace at most 1 / lam, so that the
    mean of L_t(D^(t)) comes close to that of the best fixed D. Memory does not grow with the
    number of tasks.

    ``OnlineLTL(geometry="euclidean", step="theory")`` is Algorithm 1 of Denevi, Ciliberto,
    Stamos and Pontil, from a feasible start (the paper's example I / lam is not: its trace is
    d / lam). That step assumes gradients of norm 2. Where they are orders of magnitude smaller,
    as on the paper's own data, D hardly moves and the result is that of independent ridge
    regression, which is why it is not the default.

    Parameters
    ----------
    lam : float
        Regularisation: the trace of D is at most 1 / lam. It has to be chosen, by the error on
        validation tasks. (A trace of 1 / lam spread over d features is the ridge regression of
        scikit-learn with alpha = n d lam.)
    geometry : {"entropic", "euclidean"}
        "entropic": follow the leader regularised by von Neumann entropy (matrix exponentiated
        gradient), D^(t+1) = exp(eta_t S_t) / (tr exp(eta_t S_t) + 1) / lam with S_t minus the
        sum of the gradients. "euclidean": projected gradient descent.
    step : {"adaptive", "theory"} or float
        Size of the steps. "adaptive" divides by the norms of the gradients seen, so that the
        units of y do not matter; "theory" is the paper's 1 / (lam sqrt(2t)); a number c is
        c / sqrt(t). Entropic geometry takes "adaptive" only.
    step_scale : float, optional
        The c of the adaptive step: eta_t = c sqrt(log(d + 1) / sum ||G_s||_op^2), entropic, or
        gamma_t = c / (lam sqrt(sum ||G_s||_F^2)), euclidean. By default 2 and 1.
    averaging : {"uniform", "last"}
        What `D_` is: the mean of D^(1), ..., D^(T), for which the guarantees hold, or D^(T+1).
    fit_intercept : bool
        Whether to centre X and y inside each task.

    Attributes
    ----------
    D_ : ndarray of shape (d, d)
        The learned representation; a copy, which later tasks do not change.
    iterate_ : ndarray of shape (d, d)
        D^(T+1), chosen for the next task; a copy.
    n_tasks_seen_ : int
    cumulative_loss_ : float
        Sum of L_t(D^(t)).
    regret_bound_ : float
        What the mean of L_t(D^(t)) exceeds that of the best fixed D by, at the most. Computed
        from the gradients seen, with no assumption on the data but that the L_t are convex there,
        which the paper proves of all, though it is so of nearly all: see docs/reproduction.md.
    n_features_in_ : int

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> learner = ltl.OnlineLTL(lam=0.1)
    >>> for X, y in environment.tasks(100, n_samples=8):
    ...     _ = learner.partial_fit(X, y)
    >>> X, y = environment.tasks(1, n_samples=8)[0]
    >>> learner.adapt(X, y).coef_.shape
    (10,)
    """

    _SETTINGS = ("lam", "geometry", "step", "step_scale", "fit_intercept")

    def __init__(
        self,
        lam: float = 1.0,
        geometry: str = "entropic",
        step: str | float = "adaptive",
        step_scale: float | None = None,
        averaging: str = "uniform",
        fit_intercept: bool = False,
    ) -> None:
        self.lam = lam
        self.geometry = geometry
        self.step = step
        self.step_scale = step_scale
        self.averaging = averaging
        self.fit_intercept = fit_intercept

    def _learn_at_once(self, X: Any, y: Any) -> bool:
        """The express lane: a task as kernels want it, in the midst of a run.

        A task that the kernel refuses has changed nothing, and meets its error in the other lane.
        """
        run: Run | None = self.__dict__.get("_run")
        if run is None or _differ(self._settings(), self._run_settings):
            return False
        if self.fit_intercept or self._warns_of_arrays:
            return False
        d = run.n_features
        if not is_ready_task(X, y, d):
            X, y = writable(X), writable(y)
            if not is_ready_task(X, y, d):
                return False
        if may_thread(y.size, d):
            with one_blas_thread():
                return run.learn(X, y)
        return run.learn(X, y)

    def _new_run(self, d: int) -> Run:
        radius, scale = check_lam(self.lam), self.step_scale
        return self._new_run_of(
            d, [radius], None if scale is None else [check_positive(scale, "step_scale")]
        )

    def _settings(self) -> tuple[Any, ...]:
        return self.lam, self.geometry, self.step, self.step_scale, self.fit_intercept

    @property
    def D_(self) -> Array:
        """The learned representation; a copy, which later tasks do not change."""
        D: Array = self._representations()[0]
        return D

    @property
    def iterate_(self) -> Array:
        """D^(T+1), chosen for the next task; a copy."""
        return self._fitted_run().iterate(0)

    @property
    def cumulative_loss_(self) -> float:
        """Sum over tasks of L_t(D^(t)), the training error with what was known before the task."""
        return float(self._fitted_run().records[0]["loss"])

    @property
    def regret_bound_(self) -> float:
        """What cumulative_loss_ / T exceeds the loss of the best fixed D by, at the most."""
        run = self._fitted_run()
        if run.is_merged:
            raise AttributeError(
                "there is a regret_bound_ only if tasks came one after another, not side by side."
            )
        with run.lock:
            return run.regret_bound(0)
