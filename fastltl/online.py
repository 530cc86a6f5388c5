"""OnlineLTL: learn a representation from tasks that arrive one after another and are not kept."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from fastltl import bounds
from fastltl._incremental import IncrementalLearner, refusal_of
from fastltl._kernels import online as kernels
from fastltl._kernels.online import OnlineState
from fastltl._kernels.task import centre
from fastltl._online_run import OnlineRun, new_state
from fastltl._threads import call_kernel
from fastltl._validation import (
    Array,
    check_choice,
    check_flag,
    check_lam,
    check_objective,
    check_positive,
)
from fastltl.base import RepresentationLearner

AVERAGINGS = ("uniform", "last")
GEOMETRIES = ("euclidean", "entropic")


class OnlineLearner(IncrementalLearner[OnlineRun], RepresentationLearner):
    """Learn representations from tasks one by one, for one value of lam or several."""

    objective: str
    geometry: str
    step: str | float
    averaging: str

    @property
    def _refuses_non_finite(self) -> bool:
        return not self.fit_intercept  # with the JIT off, centring infinite numbers would warn

    def _learn(self, run: OnlineRun, X: Array, y: Array) -> bool:
        data, target = centre(X, y)[:2] if self.fit_intercept else (X, y)
        return self._take_step(run, data, target)

    def _take_step(self, run: OnlineRun, X: Array, y: Array) -> bool:
        """Take one step with a task as it is to be learned; False if it is refused."""
        kernel = kernels.learn_entropic if run.is_entropic else kernels.learn_euclidean
        return bool(call_kernel(kernel, max(X.shape), run.state, X, y))

    def _refusal(self, X: Array, y: Array) -> ValueError:
        return refusal_of(X, y, " for this lam and step")

    def _check_parameters(self) -> None:
        self._new_state(1)

    def _new_run(self, d: int) -> OnlineRun:
        return OnlineRun(self._new_state(d), self._settings())

    @abstractmethod
    def _new_state(self, d: int) -> OnlineState:
        """Return the state before the first task, after checking the parameters."""

    def _state_of(
        self, d: int, radii: Sequence[float], step_scales: Sequence[float] | None
    ) -> OnlineState:
        """Return the state before the first task for these radii and step scales."""
        check_flag(self.fit_intercept, "fit_intercept")
        check_choice(self.averaging, "averaging", AVERAGINGS)
        regularized = check_objective(self.objective)
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
        return new_state(d, radii, scales, adaptive, entropic, regularized)

    def _representations(self) -> Array:
        averaging = check_choice(self.averaging, "averaging", AVERAGINGS)
        return self._fitted_run().representations(averaging)


class OnlineLTL(OnlineLearner):
    """Learn a representation task by task: each task improves D and is forgotten.

    With L_t(D) the loss of task t, see `objective`, the learner chooses D^(t) before it sees
    task t, among the PSD matrices of trace at most 1 / lam, so that the mean of L_t(D^(t)) comes
    close to that of the best fixed D. Memory does not grow with the number of tasks.

    ``OnlineLTL(objective="error", geometry="euclidean", step="theory")`` is Algorithm 1 of
    Denevi, Ciliberto, Stamos and Pontil, from a feasible start (the paper's example I / lam is
    not: its trace is d / lam). That step assumes gradients of norm 2. Where they are orders of
    magnitude smaller, as on the paper's own data, D hardly moves and the result is that of
    independent ridge regression, which is why it is not the default.

    Parameters
    ----------
    lam : float
        Regularisation: the trace of D is at most 1 / lam. It has to be chosen, by the error on
        validation tasks. (A trace of 1 / lam spread over d features is the ridge regression of
        scikit-learn with alpha = n d lam.)
    objective : {"regularized", "error"}
        The loss of a task: the minimum over w of |y - Xw|^2 / n + w' D^+ w, which is convex in D,
        or the paper's, the training error of that w, which is not. See `task_loss`.
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
        What `D_` is: the mean of D^(1), ..., D^(T), or D^(T+1). `bounds.excess_future_risk` is
        about the mean.
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
        gradients seen. It holds for the regularized objective, whatever the tasks. For the error
        objective it holds if every L_t is convex between D^(t) and the best D, and may be too
        small otherwise: see docs/proposition.md.
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

    _SETTINGS = ("lam", "objective", "geometry", "step", "step_scale", "fit_intercept")

    def __init__(
        self,
        lam: float = 1.0,
        objective: str = "regularized",
        geometry: str = "entropic",
        step: str | float = "adaptive",
        step_scale: float | None = None,
        averaging: str = "uniform",
        fit_intercept: bool = False,
    ) -> None:
        self.lam = lam
        self.objective = objective
        self.geometry = geometry
        self.step = step
        self.step_scale = step_scale
        self.averaging = averaging
        self.fit_intercept = fit_intercept

    def _settings(self) -> tuple[Any, ...]:
        return (
            self.lam,
            self.objective,
            self.geometry,
            self.step,
            self.step_scale,
            self.fit_intercept,
        )

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
        """Sum over tasks of L_t(D^(t)), the loss with D chosen before the task."""
        return float(self._fitted_run().state.records[0]["loss"])

    @property
    def regret_bound_(self) -> float:
        """Upper bound on ``cumulative_loss_`` / T minus the mean loss of the best fixed D."""
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
            record["scale"] / math.sqrt(math.log(run.n_features + 1)),
        )
