"""OnlineLTL: learn a representation from tasks that arrive one after another and are not kept."""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError

from fastltl import bounds
from fastltl._kernels import online as kernels
from fastltl._kernels.online import OnlineState
from fastltl._kernels.task import centre
from fastltl._objective import TaskSource
from fastltl._online_run import OnlineRun, new_state
from fastltl._threads import call_kernel, one_blas_thread
from fastltl._validation import (
    Array,
    check_choice,
    check_finite,
    check_flag,
    check_lam,
    check_matrix,
    check_positive,
    check_target,
)
from fastltl.base import RepresentationLearner, restore_on_failure
from fastltl.io.checkpoints import Checkpoint
from fastltl.tasks import check_task

AVERAGINGS = ("uniform", "last")
GEOMETRIES = ("euclidean", "entropic")

#: Held while a learner takes its first task, so that only one thread creates its run.
_first_task = threading.RLock()


class OnlineLearner(RepresentationLearner):
    """Learn from tasks one by one: `fit` resets, then calls `partial_fit` for each task."""

    #: Parameters that cannot change between tasks.
    _SETTINGS: ClassVar[tuple[str, ...]]

    #: Attributes of the fitted state.
    _RUN_STATE: ClassVar[tuple[str, ...]] = (
        "_run",
        "n_features_in_",
        "feature_names_in_",
        "_warns_of_arrays",
    )

    geometry: str
    step: str | float
    averaging: str
    _run: OnlineRun

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        tasks = self._tasks(X, y, groups)
        self._new_state(1)  # a bad parameter is reported as such, not as a bad first task
        fresh = type(self)(**self.get_params(deep=False))
        with one_blas_thread:
            for i, task in enumerate(fresh._with_progress(tasks)):
                try:
                    fresh.partial_fit(*task)
                except (TypeError, ValueError) as error:
                    if y is not None and groups is None:
                        raise
                    check_task(task, f"task {i}", fresh.__dict__.get("n_features_in_"))
                    raise type(error)(f"task {i}: {error}") from error
        if "_run" not in fresh.__dict__:
            raise ValueError("X must hold at least one task (X, y), got none.")
        if y is not None or isinstance(X, TaskSource):
            fresh._remember_features(X)
        self._replace_state(fresh)
        return self

    def _replace_state(self, other: Self) -> None:
        """Replace the fitted state with `other`'s."""
        fitted = {name: other.__dict__[name] for name in self._RUN_STATE if name in other.__dict__}
        self.__dict__.update(fitted)
        for name in self.__dict__.keys() & set(self._RUN_STATE) - fitted.keys():
            del self.__dict__[name]

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from one task, X of shape (n, d) and y of shape (n,), and forget it.

        A task that is refused changes nothing.
        """
        data, target = self._check_task(X, y)
        run = self.__dict__.get("_run")
        if run is not None:
            self._step(run, data, target)
            return self
        with _first_task, restore_on_failure(self):
            if "_run" not in self.__dict__:
                run = self._new_run(data.shape[1])
                self._step(run, data, target)
                self._continue_run(run, X)
                return self
        return self.partial_fit(X, y)  # another thread took the first task

    def _step(self, run: OnlineRun, X: Array, y: Array) -> None:
        """Take one step of a run, or raise an error that names what is wrong with the task."""
        data, target = centre(X, y)[:2] if self.fit_intercept else (X, y)
        with run.lock:
            if not self._learn(run, data, target):
                raise _refusal(X, y)

    def _continue_run(self, run: OnlineRun, X: Any) -> None:
        self._remember_features(X)
        self._run = run

    def _check_task(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Return the task as arrays that kernels take, or raise an error that names the fault.

        The kernel refuses numbers that are not finite; only a task to be centred is checked here.
        """
        run, n_features = self.__dict__.get("_run"), None
        if run is not None:
            self._check_settings(run)
            n_features = run.n_features
        is_plain = not (self.fit_intercept or self._warns_of_arrays) and _is_task(X, y)
        if is_plain and n_features in (None, X.shape[1]):
            # Kernels are compiled for writable arrays, which those of a TaskSet are not.
            return X if X.flags.carray else X.copy(), y if y.flags.carray else y.copy()
        owner = type(self).__name__
        data = check_matrix(X, n_features, owner=owner)
        if run is not None:
            self._check_feature_names(X)
        return data, check_target(y, len(data), owner=owner)

    def _check_settings(self, run: OnlineRun) -> None:
        """Check that no parameter has changed since the first task."""
        settings = self._settings()
        if not _differ(settings, run.settings):
            return
        changed = [
            f"{name}={now!r} after {name}={then!r}"
            for name, then, now in zip(self._SETTINGS, run.settings, settings, strict=True)
            if _differ(now, then)
        ]
        raise ValueError(
            "parameters must stay as they were at the first task, got "
            f"{', '.join(changed)}; use fit to start over."
        )

    def _learn(self, run: OnlineRun, X: Array, y: Array) -> bool:
        """Take one step with the task; False if it is refused."""
        kernel = kernels.learn_entropic if run.is_entropic else kernels.learn_euclidean
        return bool(call_kernel(kernel, max(X.shape), run.state, X, y))

    def _with_progress(self, tasks: Iterable[Any]) -> Iterable[Any]:
        """Iterate over the tasks of `fit`."""
        return tasks

    @abstractmethod
    def _new_state(self, d: int) -> OnlineState:
        """Return the state before the first task, after checking the parameters."""

    def _new_run(self, d: int) -> OnlineRun:
        """Return a run before its first task, of d features."""
        return OnlineRun(self._new_state(d), self._settings())

    def _state_of(
        self, d: int, radii: Sequence[float], step_scales: Sequence[float] | None
    ) -> OnlineState:
        """Return the state before the first task for these radii and step scales."""
        check_flag(self.fit_intercept, "fit_intercept")
        check_choice(self.averaging, "averaging", AVERAGINGS)
        entropic = check_choice(self.geometry, "geometry", GEOMETRIES) == "entropic"
        adaptive = isinstance(self.step, str) and self.step == "adaptive"
        if entropic and not adaptive:
            raise ValueError(
                f"step must be 'adaptive' with geometry='entropic', got {self.step!r}."
            )
        if step_scales is not None and not adaptive:
            raise ValueError(
                f"step_scale goes with step='adaptive' only, got step={self.step!r} and "
                f"step_scale={step_scales[0]}."
            )
        if adaptive:
            scales = step_scales or [2.0 if entropic else 1.0] * len(radii)
            units = [math.sqrt(math.log(d + 1))] * len(radii) if entropic else radii
            scales = [scale * unit for scale, unit in zip(scales, units, strict=True)]
        elif isinstance(self.step, str) and self.step == "theory":
            scales = [radius / math.sqrt(2.0) for radius in radii]
        else:
            wanted = "'adaptive', 'theory' or a positive finite number"
            scales = [check_positive(self.step, "step", wanted)] * len(radii)
        return new_state(d, radii, scales, adaptive, entropic)

    @abstractmethod
    def _settings(self) -> tuple[Any, ...]:
        """Return the values of the parameters in `_SETTINGS`."""

    def __copy__(self) -> Self:
        return deepcopy(self)  # kernels update the arrays of the run in place

    def __getstate__(self) -> Any:
        run = self.__dict__.get("_run")
        if run is None:
            return super().__getstate__()
        with run.lock:
            return super().__getstate__() | {"_run": copy(run)}

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
        self._check_settings(run)
        with run.lock:
            return {**(super()._state() or {}), "run": run.checkpoint()}

    def _restore(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved = state.pop("run")
        run = self._new_run(state["n_features_in_"])
        run.restore(saved)
        super()._restore(state)
        self._run = run

    def __sklearn_is_fitted__(self) -> bool:
        return "_run" in self.__dict__

    def _fitted_run(self) -> OnlineRun:
        run: OnlineRun | None = self.__dict__.get("_run")
        if run is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance has not seen a task yet: call fit or "
                "partial_fit first."
            )
        return run

    def _representations(self) -> Array:
        averaging = check_choice(self.averaging, "averaging", AVERAGINGS)
        return self._fitted_run().representations(averaging)

    @property
    def n_tasks_seen_(self) -> int:
        """T, the number of tasks learned from."""
        return self._fitted_run().n_tasks


def _is_task(X: Any, y: Any) -> bool:
    """Return whether X and y are float64 arrays of fitting shapes; values may not be finite."""
    return (
        type(X) is type(y) is np.ndarray
        and X.dtype == y.dtype == np.float64
        and X.ndim == 2
        and y.shape == X.shape[:1]
        and X.size > 0
    )


def _refusal(X: Array, y: Array) -> ValueError:
    """Return the error for a task that a kernel refused."""
    try:
        check_finite(X, "X")
        check_finite(y, "y")
    except ValueError as error:
        return error
    return ValueError(
        "X and y must not be so large, or so small, for this lam and step that results overflow "
        f"or lose all their digits, got values up to {np.abs(X).max():.3g} in X and "
        f"{np.abs(y).max():.3g} in y."
    )


def _differ(now: Any, then: Any) -> bool:
    """Return whether a parameter has changed, or cannot be compared."""
    try:
        return now is not then and bool(now != then)
    except (TypeError, ValueError):  # an array, say, compared with a number
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
        Upper bound on the mean of L_t(D^(t)) minus that of the best fixed D, computed from the
        gradients seen. It holds where the L_t are convex. The paper claims that they always are,
        but they are not: see docs/reproduction.md.
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

    def _settings(self) -> tuple[Any, ...]:
        return self.lam, self.geometry, self.step, self.step_scale, self.fit_intercept

    def _new_state(self, d: int) -> OnlineState:
        scale = self.step_scale
        scales = None if scale is None else [check_positive(scale, "step_scale")]
        return self._state_of(d, [check_lam(self.lam)], scales)

    @property
    def D_(self) -> Array:
        """The learned representation; a copy, which later tasks do not change."""
        D: Array = self._representations()[0]
        return D

    @property
    def iterate_(self) -> Array:
        """D^(T+1), chosen for the next task; a copy."""
        iterate: Array = self._fitted_run().representations("last")[0]
        return iterate

    @property
    def cumulative_loss_(self) -> float:
        """Sum over tasks of L_t(D^(t)), the training error with D chosen before the task."""
        return float(self._fitted_run().state.records[0]["loss"])

    @property
    def regret_bound_(self) -> float:
        """Upper bound on cumulative_loss_ / T minus the mean loss of the best fixed D."""
        run = self._fitted_run()
        if run.is_merged:
            raise AttributeError(
                "regret_bound_ needs tasks that came one after another, not side by side."
            )
        with run.lock:
            record = run.state.records[0].copy()
        if record["step"] == 0.0:  # every gradient was zero, so every iterate was optimal
            return 0.0
        if not record["entropic"]:
            return bounds.gradient_descent_regret(
                record["radius"], record["step"], record["step_cost"], record["n_tasks"]
            )
        return bounds.entropic_regret(
            record["radius"],
            record["norm"],
            record["largest"],
            record["n_tasks"],
            run.n_features,
            2.0 if run.settings[3] is None else run.settings[3],
        )
