"""IncrementalLearner: learn from tasks one by one, and keep none of them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from copy import copy, deepcopy
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError

from fastltl._objective import TaskSource
from fastltl._run import Run
from fastltl._threads import one_blas_thread
from fastltl._validation import Array, check_count, check_finite, check_matrix, check_target
from fastltl.base import Learner, restore_on_failure
from fastltl.io.checkpoints import Checkpoint
from fastltl.tasks import check_task

RunType = TypeVar("RunType", bound=Run)

#: Held while a learner takes its first task, so that only one thread creates its run.
_first_task = threading.RLock()


class IncrementalLearner(Learner, Generic[RunType]):
    """Learn from tasks one by one: `fit` resets, then calls `partial_fit` for each task.

    A subclass defines `_SETTINGS`, `_settings`, `_new_run` and `_learn`.
    """

    #: Parameters that cannot change between tasks.
    _SETTINGS: ClassVar[tuple[str, ...]]

    #: Attributes of the fitted state.
    _RUN_STATE: ClassVar[tuple[str, ...]] = (
        "_run",
        "n_features_in_",
        "feature_names_in_",
        "_warns_of_arrays",
    )

    _run: RunType

    @abstractmethod
    def _settings(self) -> tuple[Any, ...]:
        """Return the values of the parameters in `_SETTINGS`."""

    @abstractmethod
    def _new_run(self, d: int) -> RunType:
        """Return a run before its first task, of d features, after checking the parameters."""

    @abstractmethod
    def _learn(self, run: RunType, X: Array, y: Array) -> bool:
        """Take one step with the task; False if it is refused, which leaves the run as it was.

        The arrays are writable, C-contiguous and float64. Their numbers are finite, unless
        `_refuses_non_finite`. The caller holds the lock of the run.
        """

    def _n_candidates(self) -> int:
        """Return the number of candidates that the parameters describe."""
        return 1

    @property
    def _refuses_non_finite(self) -> bool:
        """Whether `_learn` refuses numbers that are not finite, so that nothing else has to."""
        return False

    def _refusal(self, X: Array, y: Array) -> ValueError:
        """Return the error for a task that `_learn` refused."""
        return refusal_of(X, y)

    def _check_parameters(self) -> None:
        """Check the parameters before any task is read."""
        self._new_run(1)

    def _with_progress(self, tasks: Iterable[Any]) -> Iterable[Any]:
        """Iterate over the tasks of `fit`."""
        return tasks

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        self._check_parameters()  # a bad parameter is reported as such, not as a bad first task
        tasks = self._tasks_of_fit(X, y, groups)
        fresh = type(self)(**self.get_params(deep=False))
        with one_blas_thread:
            is_one_task = y is not None and groups is None
            largest = fresh._learn_tasks(tasks, None if is_one_task else "task {}".format)
            if "_run" not in fresh.__dict__:
                raise ValueError("X must hold at least one task (X, y), got none.")
            fresh._finish(tasks)
        if y is not None:
            fresh._remember_features(X)
        elif isinstance(tasks, TaskSource):
            fresh._remember_features(tasks)
        self._replace_state(fresh)
        self._warn_of_nothing_shared(self.n_tasks_seen_, largest)
        return self

    def _learn_tasks(self, tasks: Any, name_of: Callable[[int], str] | None) -> int:
        """Learn from tasks one by one; return the largest number of rows, as far as it matters.

        `name_of` gives the name of a task, by its number, for the message of an error.
        """
        largest = 0
        for i, task in enumerate(self._with_progress(tasks)):
            try:
                self.partial_fit(*task)
            except (TypeError, ValueError) as error:
                if name_of is None:
                    raise
                check_task(task, name_of(i), self.__dict__.get("n_features_in_"))
                raise type(error)(f"{name_of(i)}: {error}") from error
            if largest < 2:
                largest = max(largest, np.asarray(task[1]).size)
        return largest

    def _tasks_of_fit(self, X: Any, y: npt.ArrayLike | None, groups: npt.ArrayLike | None) -> Any:
        """Return what `fit` iterates over: a TaskSource or an iterable."""
        return self._tasks(X, y, groups)

    def _finish(self, tasks: Any) -> None:
        """Do what `fit` does with the tasks after the first pass over them."""

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

    def _step(self, run: RunType, X: Array, y: Array) -> None:
        """Take one step of a run, or raise an error that names what is wrong with the task."""
        with run.lock:
            if not self._learn(run, X, y):
                raise self._refusal(X, y)

    def _continue_run(self, run: RunType, X: Any) -> None:
        self._remember_features(X)
        self._run = run

    def _check_task(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Return the task as arrays that kernels take, or raise an error that names the fault."""
        run, n_features = self.__dict__.get("_run"), None
        if run is not None:
            self._check_settings(run)
            n_features = run.n_features
        is_plain = self._refuses_non_finite and not self._warns_of_arrays and _is_task(X, y)
        if is_plain and n_features in (None, X.shape[1]):
            # Kernels are compiled for writable arrays, which those of a TaskSet are not.
            return X if X.flags.carray else X.copy(), y if y.flags.carray else y.copy()
        owner = type(self).__name__
        data = check_matrix(X, n_features, owner=owner)
        if run is not None:
            self._check_feature_names(X)
        return data, check_target(y, len(data), owner=owner)

    def _check_settings(self, run: RunType) -> None:
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
        n_features = check_count(state["n_features_in_"], "n_features_in_")
        n_saved = sum(value.size for value in saved.values() if isinstance(value, np.ndarray))
        if self._n_candidates() * n_features**2 > n_saved:  # a new run would take more memory
            raise ValueError("its arrays are too small for its parameters and features")
        run = self._new_run(n_features)
        run.restore(saved)
        super()._restore(state)
        self._run = run

    def __sklearn_is_fitted__(self) -> bool:
        return "_run" in self.__dict__

    def _check_is_fitted(self) -> None:
        self._fitted_run()

    def _fitted_run(self) -> RunType:
        run: RunType | None = self.__dict__.get("_run")
        if run is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance has not seen a task yet: call fit or "
                "partial_fit first."
            )
        return run

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


def refusal_of(X: Array, y: Array, limits: str = "") -> ValueError:
    """Return the error for a task that a kernel refused.

    `limits` names the parameters that decide which numbers are too large or too small.
    """
    try:
        check_finite(X, "X")
        check_finite(y, "y")
    except ValueError as error:
        return error
    return ValueError(
        f"X and y must not be so large, or so small,{limits} that results overflow or lose all "
        f"their digits, got values up to {np.abs(X).max():.3g} in X and {np.abs(y).max():.3g} in y."
    )


def _differ(now: Any, then: Any) -> bool:
    """Return whether a parameter has changed, or cannot be compared."""
    try:
        return now is not then and bool(now != then)
    except (TypeError, ValueError):  # an array, say, compared with a number
        return True
