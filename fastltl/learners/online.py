"""OnlineLTL: learn a representation from tasks that come one after another and are not kept."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError

from fastltl import bounds, kernels
from fastltl.learners.base import RepresentationLearner
from fastltl.tasks import check_task
from fastltl.threads import may_thread, one_blas_thread, steadily
from fastltl.validation import (
    Array,
    check_choice,
    check_flag,
    check_lam,
    check_matrix,
    check_positive,
    check_target,
    is_ready_task,
)

AVERAGINGS = ("uniform", "last")


class _Run:
    """One pass over tasks: the arrays that its kernel updates in place."""

    def __init__(self, d: int, radius: float, scale: float, first: float) -> None:
        self.iterate = np.zeros((d, d))
        np.fill_diagonal(self.iterate, first)
        self.total = np.zeros((d, d))
        self.vectors = np.zeros((d, d))
        self.values = np.zeros(d)
        self.record = np.zeros(1, kernels.RECORD)
        self.record["radius"], self.record["scale"] = radius, scale


class _EuclideanRun(_Run):
    """Projected gradient descent from D^(1) = radius / d I."""

    def __init__(self, d: int, radius: float, step: str | float, step_scale: float | None) -> None:
        adaptive = isinstance(step, str) and step == "adaptive"
        if adaptive:
            c = 1.0 if step_scale is None else check_positive(step_scale, "step_scale")
            scale = c * radius
        elif step_scale is not None:
            raise ValueError(
                f"step_scale goes with step='adaptive' only, got step={step!r} and "
                f"step_scale={step_scale!r}."
            )
        elif isinstance(step, str) and step == "theory":
            scale = radius / np.sqrt(2)
        else:
            scale = check_positive(step, "step", "'adaptive', 'theory' or a positive finite number")
        super().__init__(d, radius, scale, radius / d)
        self.record["adaptive"] = adaptive
        self.record["rank"], self.record["floor"] = -1, radius / d

    def learn(self, X: Array, y: Array) -> bool:
        return kernels.learn_euclidean(  # type: ignore[no-any-return]
            self.iterate, self.total, self.vectors, self.values, self.record, X, y
        )

    def regret_bound(self) -> float:
        run = self.record[0]
        if run["step"] == 0.0:  # every gradient was zero, so every iterate was optimal
            return 0.0
        return bounds.gradient_descent_regret(
            run["radius"], run["step"], run["step_cost"], run["n_tasks"]
        )


class _EntropicRun(_Run):
    """The leader regularised by von Neumann entropy, from D^(1) = radius / (d + 1) I."""

    def __init__(self, d: int, radius: float, step: str | float, step_scale: float | None) -> None:
        if not isinstance(step, str) or step != "adaptive":
            raise ValueError(f"step must be 'adaptive' with geometry='entropic', got {step!r}.")
        self.c = 2.0 if step_scale is None else check_positive(step_scale, "step_scale")
        super().__init__(d, radius, self.c * np.sqrt(np.log(d + 1)), radius / (d + 1))
        self.dual = np.zeros((d, d))

    def learn(self, X: Array, y: Array) -> bool:
        return kernels.learn_entropic(  # type: ignore[no-any-return]
            self.iterate, self.total, self.dual, self.vectors, self.values, self.record, X, y
        )

    def regret_bound(self) -> float:
        run, d = self.record[0], len(self.iterate)
        return bounds.entropic_regret(
            run["radius"], run["norm"], run["largest"], run["n_tasks"], d, self.c
        )


_RUNS: dict[str, type[_EuclideanRun] | type[_EntropicRun]] = {
    "euclidean": _EuclideanRun,
    "entropic": _EntropicRun,
}


class OnlineLTL(RepresentationLearner):
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
        from the gradients seen, with no assumption on the data.
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

    _run: _EuclideanRun | _EntropicRun
    _run_settings: tuple[Any, ...]

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

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        """Forget everything, then learn from tasks in one pass.

        Parameters
        ----------
        X : TaskSet, iterable of (X, y), or array-like of shape (n, d)
            Tasks, taken one at a time, when y is None; else the rows of one or more tasks.
        y : array-like of shape (n,), optional
        groups : array-like of shape (n,), optional
            Task of each row, which need not be adjacent. By default all rows are one task.

        Returns
        -------
        self
        """
        tasks = self._tasks(X, y, groups)
        self._new_run(1)  # so that a bad parameter is not taken for a bad first task
        with self._unchanged_on_failure(), one_blas_thread():
            for name in ("_run", "_run_settings", "n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
            for i, task in enumerate(tasks):
                try:
                    self.partial_fit(*task)
                except (TypeError, ValueError) as error:
                    if y is not None and groups is None:
                        raise
                    check_task(task, f"task {i}", self.__dict__.get("n_features_in_"))
                    raise type(error)(f"task {i}: {error}") from error
            if "_run" not in self.__dict__:
                raise ValueError("X must hold at least one task (X, y), got none.")
            if y is not None:
                self._remember_features(X)
        return self

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
        # The express lane: a small task as kernels want it, in the midst of a run. A task that
        # the kernel refuses has changed nothing, and meets its error below.
        if (
            "_run" in self.__dict__
            and self._settings() == self._run_settings
            and is_ready_task(X, y, self.n_features_in_)
            and not (self.fit_intercept or "feature_names_in_" in self.__dict__)
            and not may_thread(*X.shape)  # type: ignore[union-attr]
            and self._run.learn(X, y)  # type: ignore[arg-type]
        ):
            return self
        if "_run" not in self.__dict__:
            run = self._new_run(check_matrix(X).shape[1])
            self._learn(run, X, y)
            self._remember_features(X)
            self._run, self._run_settings = run, self._settings()
        elif self._settings() == self._run_settings:
            self._learn(self._run, X, y)
        else:
            names = ("lam", "geometry", "step", "step_scale", "fit_intercept")
            changed = [
                f"{name}={now!r} after {name}={then!r}"
                for name, then, now in zip(names, self._run_settings, self._settings(), strict=True)
                if now != then
            ]
            raise ValueError(
                "parameters must stay as they were at the first task, got "
                f"{', '.join(changed)}; fit starts over."
            )
        return self

    def _learn(self, run: _EuclideanRun | _EntropicRun, X: npt.ArrayLike, y: npt.ArrayLike) -> None:
        """Learn from one task, checked in full, or say what is wrong with it."""
        owner = type(self).__name__
        data = check_matrix(X, len(run.iterate), owner=owner)
        target = check_target(y, len(data), owner=owner)
        if "_run" in self.__dict__:
            self._check_feature_names(X)
        if self.fit_intercept:
            data, target, _, _ = kernels.centre(data, target)
        if not steadily(run.learn, *data.shape, data, target):
            raise ValueError(
                "X and y must not be so large that results overflow or lose all their digits, got "
                f"values up to {np.abs(data).max():.3g} in X and {np.abs(target).max():.3g} in y."
            )

    def _new_run(self, d: int) -> _EuclideanRun | _EntropicRun:
        """A run at D^(1), with the parameters as they are now."""
        radius = check_lam(self.lam)
        check_flag(self.fit_intercept, "fit_intercept")
        check_choice(self.averaging, "averaging", AVERAGINGS)
        geometry = check_choice(self.geometry, "geometry", tuple(_RUNS))
        return _RUNS[geometry](d, radius, self.step, self.step_scale)

    def _settings(self) -> tuple[Any, ...]:
        """The parameters that a run cannot change on the way."""
        return self.lam, self.geometry, self.step, self.step_scale, self.fit_intercept

    def __copy__(self) -> OnlineLTL:
        """A copy learns on its own: the arrays of the run are updated in place."""
        return deepcopy(self)

    def __sklearn_is_fitted__(self) -> bool:
        return "_run" in self.__dict__

    def _fitted_run(self) -> _EuclideanRun | _EntropicRun:
        if "_run" not in self.__dict__:
            raise NotFittedError(
                f"This {type(self).__name__} instance has not seen a task yet: call fit or "
                "partial_fit first."
            )
        return self._run

    @property
    def D_(self) -> Array:
        """The learned representation; a copy, which later tasks do not change."""
        run = self._fitted_run()
        if check_choice(self.averaging, "averaging", AVERAGINGS) == "last":
            return run.iterate.copy()
        mean: Array = run.total / run.record[0]["n_tasks"]
        return mean

    @property
    def iterate_(self) -> Array:
        """D^(T+1), chosen for the next task; a copy."""
        return self._fitted_run().iterate.copy()

    @property
    def n_tasks_seen_(self) -> int:
        """T, the number of tasks learned from."""
        return int(self._fitted_run().record[0]["n_tasks"])

    @property
    def cumulative_loss_(self) -> float:
        """Sum over tasks of L_t(D^(t)), the training error with what was known before the task."""
        return float(self._fitted_run().record[0]["loss"])

    @property
    def regret_bound_(self) -> float:
        """What cumulative_loss_ / T exceeds the loss of the best fixed D by, at the most."""
        return self._fitted_run().regret_bound()
