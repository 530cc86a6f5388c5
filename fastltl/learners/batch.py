"""BatchLTL and MTL: the best representation for a set of tasks, with a certificate."""

from __future__ import annotations

import time
import warnings
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dsyevr
from scipy.optimize import OptimizeResult, minimize
from sklearn.exceptions import ConvergenceWarning

from fastltl import kernels
from fastltl.learners.base import MultitaskModel, RepresentationLearner
from fastltl.threads import one_blas_thread
from fastltl.validation import (
    Array,
    check_computed,
    check_count,
    check_flag,
    check_lam,
    check_positive,
    check_threads,
)

#: The most projected gradient steps before Newton's.
FIRST_ORDER_STEPS = 30

#: A projected gradient step may raise F, but not above the highest of this many latest values.
VALUES_WATCHED = 5

#: Least eigenvalue of V, next to that of the identity, that Newton's steps start with. On a
#: singular V the gradient cannot point out of its range, and curvature alone would find the way.
LEAST_ROOT = 1e-2

#: Share of tol to aim for, so that whoever computes the gap anew finds it below tol too.
SAFETY = 0.9

#: How far to go at the radii that lead up to the one asked for.
EARLY_TOL = 1e-2


class Objective(Protocol):
    """What the solver asks of tasks: a smooth F, taken for convex, that falls as D grows."""

    n_features: int

    @property
    def value_at_zero(self) -> float:
        """F(0)."""

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        """F(D) and its gradient, a symmetric matrix."""

    def curvature(self, E: Array) -> Array:
        """Derivative of the gradient along E at the latest D."""

    @property
    def feature_scales(self) -> Array:
        """How large each feature is, relative to the largest."""


class Point:
    """A representation, and the objective and its gradient there."""

    def __init__(self, objective: Objective, D: Array) -> None:
        self.D = D
        self.F, self.G = objective.value_and_gradient(D)

    @cached_property
    def _parts_of_gap(self) -> tuple[float, float]:
        # The least eigenvalue alone, in little more than half the time of all.
        eigenvalues, *_ = dsyevr(self.G, compute_v=0, range="I", il=1, iu=1)
        least = float(eigenvalues[0])
        return float(np.sum(self.G * self.D)), max(0.0, -least)

    def gap(self, radius: float) -> float:
        """<G, D> + radius max(0, -lambda_min(G)), of which F(D) - min F is no more; nor than F.

        That is so where F is convex, over the set of any radius that D lies in.
        """
        along, steepest = self._parts_of_gap
        return min(self.F, max(0.0, along + radius * steepest))


class Iteration(NamedTuple):
    """Where the solver stood after an iteration."""

    objective: float
    gap: float
    seconds: float


class Solution(NamedTuple):
    """A representation, the objective there, and how far from optimal it is at the most."""

    D: Array
    objective: float
    gap: float
    history: list[Iteration]


class Journal:
    """What happened, and how many more iterations there may be."""

    def __init__(self, radius: float, max_iter: int) -> None:
        self.radius = radius
        self.max_iter = max_iter
        self.began = time.perf_counter()
        self.history: list[Iteration] = []
        self.latest: Array | None = None

    @property
    def left(self) -> int:
        return self.max_iter - len(self.history)

    def enter(self, point: Point) -> None:
        seconds = time.perf_counter() - self.began
        self.latest = point.D
        self.history.append(Iteration(point.F, point.gap(self.radius), seconds))


def minimise(objective: Objective, start: Array | None, tol: float, journal: Journal) -> Solution:
    """Minimise F over {D PSD, tr D <= radius} to gap <= tol F.

    A few projected gradient steps settle the easy problems and bring others near; then come
    Newton's. The start is a representation, or else the identity. Where that comes close to
    interpolating the tasks log F is steep and curved: there Newton's steps, for smaller radii
    first, lead up to this one.
    """
    radius = journal.radius
    D = np.eye(objective.n_features) if start is None else start
    point, radii = Point(objective, D * (radius / np.trace(D))), [radius]
    if start is None:
        point, radii = _back_from_interpolation(objective, point, radius)
    if len(radii) == 1:
        point = project_gradient(objective, radius, point, tol, journal)
    for i, stage in enumerate(radii):
        if journal.left == 0:
            break
        if i > 0:
            point = Point(objective, point.D * (stage / radii[i - 1]))
        enough = tol if stage == radius else EARLY_TOL
        if point.gap(stage) > enough * point.F:
            end = newton(objective, stage, point.D, enough, journal)
            point = min(point, end, key=lambda point: point.gap(stage))
    return Solution(point.D, point.F, point.gap(radius), journal.history)


def _back_from_interpolation(
    objective: Objective, point: Point, radius: float
) -> tuple[Point, list[float]]:
    """A multiple of the identity that does not nearly interpolate, and the radii from there on.

    The radii are ten times apart; the multiple is the point given, if that will do.
    """
    radii = [radius]
    while 0.05 * objective.value_at_zero > point.F:
        radii.insert(0, radii[0] / 10.0)
        point = Point(objective, point.D / 10.0)
    return point, radii


def project_gradient(
    objective: Objective, radius: float, point: Point, tol: float, journal: Journal
) -> Point:
    """Go from a point towards gap <= tol F by spectral projected gradient steps.

    D + t (proj(D - step G) - D), with the step of Barzilai and Borwein, <S, S> / <S, Y> for the
    latest changes S of D and Y of G, and t = 1 or, if F does not fall enough below the highest of
    its latest values, smaller. The first step is the one for the curvature along the gradient
    less its trace. Returned is where the gap is small enough, or else where F was least.
    """
    largest = float(np.abs(point.G).max()) or 1.0
    steepest = (point.G - np.trace(point.G) / len(point.G) * np.eye(len(point.G))) / largest
    curved = objective.curvature(radius * steepest) / radius
    step = _spectral_step(steepest, curved, radius / largest)
    best, values = point, [point.F]
    for _ in range(min(FIRST_ORDER_STEPS, journal.max_iter)):
        if point.gap(radius) <= tol * point.F:
            break
        move = kernels.project(point.D - step * point.G, radius) - point.D
        slope, t = float(np.sum(point.G * move)), 1.0
        if slope >= 0.0:  # rounding errors allow no further progress
            break
        while True:
            new = Point(objective, point.D + t * move)
            allowed = max(values[-VALUES_WATCHED:]) + 1e-4 * t * slope
            if allowed >= new.F or t < 1e-10:
                break
            # The minimiser of the parabola through what is known, kept within bounds.
            t *= min(0.5, max(0.1, -0.5 * t * slope / (new.F - point.F - t * slope)))
        if t < 1e-10:
            break
        step = _spectral_step(new.D - point.D, new.G - point.G, 10.0 * step)
        point = new
        values.append(point.F)
        journal.enter(point)
        best = min(best, point, key=lambda point: point.F)
    return point if point.gap(radius) <= tol * point.F else best


def _spectral_step(S: Array, Y: Array, otherwise: float) -> float:
    """<S, S> / <S, Y>, if F curves upward along S and the numbers allow it."""
    unit = float(np.abs(S).max()) or 1.0
    curvature = float(np.sum(S / unit * (Y / unit)))
    step = float(np.sum((S / unit) ** 2)) / curvature if curvature > 0.0 else 0.0
    return step if 0.0 < step < np.inf else otherwise


def newton(objective: Objective, radius: float, D: Array, tol: float, journal: Journal) -> Point:
    """Go from D to where gap <= tol F, by SciPy's trust-region Newton-CG on `FactoredProblem`.

    Curvature along a direction costs a fraction of a gradient, since no M is factorised anew, and
    first-order methods stall where lam is small.
    """
    problem = FactoredProblem(objective, radius)

    def after_iteration(intermediate_result: OptimizeResult) -> None:
        problem.move_to(intermediate_result.x)
        journal.enter(problem.point)
        if problem.point.gap(radius) <= tol * problem.point.F:
            raise StopIteration

    values, vectors = np.linalg.eigh(D)
    values = np.maximum(values / values.sum(), LEAST_ROOT**2 / len(values))
    found = minimize(
        problem.value,
        (problem.units * ((vectors * np.sqrt(values)) @ vectors.T)).ravel(),
        jac=problem.gradient,
        hessp=problem.curvature,
        method="trust-ncg",
        callback=after_iteration,
        options={"maxiter": journal.left, "gtol": 0.0},
    )
    problem.move_to(found.x)
    return problem.point


class FactoredProblem:
    """min of log F(D) over V, where D = radius V V' / |V|^2 is always feasible.

    Since <grad F, D> <= 0 the trace bound is active at the optimum and the normalisation loses
    nothing; the logarithm makes the problem free of scales. With c = <grad F, VV'> / |V|^2 ::

        gradient = 2 radius / (|V|^2 F) (grad F V - c V)

    The solver's variable x is V with each row times the root of its feature's scale. (Between V,
    which suits D, and V times the scale, which suits XV, this took the fewest iterations on
    features of different scales.) SciPy asks for value, gradient and curvature in separate
    calls; all are of the latest x.
    """

    def __init__(self, objective: Objective, radius: float) -> None:
        self.objective = objective
        self.radius = radius
        self.units = np.sqrt(objective.feature_scales)[:, None]
        self._x = np.empty(0)

    def move_to(self, x: Array) -> None:
        """Evaluate F at x, unless that is where it was evaluated last."""
        if np.array_equal(x, self._x):
            return
        d = self.objective.n_features
        self.V = x.reshape(d, d) / self.units
        self.square = float(np.sum(self.V**2))
        self.P = self.V @ self.V.T / self.square
        D = self.radius * self.P
        self.point = Point(self.objective, D)
        self.c = float(np.sum(self.point.G * self.P))
        self.slope = self.point.G @ self.V - self.c * self.V
        self._x = x.copy()

    def value(self, x: Array) -> float:
        self.move_to(x)
        return float(np.log(self.point.F))

    def gradient(self, x: Array) -> Array:
        self.move_to(x)
        factor = 2.0 * self.radius / (self.square * self.point.F)
        return (factor * self.slope / self.units).ravel()

    def curvature(self, x: Array, direction: Array) -> Array:
        """Derivative of the gradient along a direction."""
        self.move_to(x)
        F, G = self.point.F, self.point.G
        V, W = self.V, direction.reshape(self.V.shape) / self.units
        growth = 2.0 * float(np.sum(V * W)) / self.square  # of |V|^2, relative
        half = V @ W.T / self.square
        dP = half + half.T - growth * self.P
        dG = self.objective.curvature(self.radius * dP)
        dF = self.radius * float(np.sum(G * dP))
        dc = float(np.sum(dG * self.P) + np.sum(G * dP))
        change = dG @ V + G @ W - dc * V - self.c * W - (growth + dF / F) * self.slope
        return (2.0 * self.radius / (self.square * F) * change / self.units).ravel()


class BatchLearner(RepresentationLearner):
    """Learners that minimise a mean objective over tasks which they have all at once."""

    #: Whether the objective is that of multitask learning.
    _penalised: ClassVar[bool]

    objective_: float
    gap_: float
    n_iter_: int
    history_: list[Iteration]
    _has_converged: bool
    _broken_off_at: Array

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
        tol: float = 1e-6,
        max_iter: int = 500,
        warm_start: bool = False,
        fit_intercept: bool = False,
        n_threads: int | None = None,
    ) -> None:
        self.lam = lam
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.fit_intercept = fit_intercept
        self.n_threads = n_threads

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        tasks = self._task_set(X, y, groups)
        journal = self._journal()
        try:
            with self._unchanged_on_failure(), one_blas_thread():
                objective = self._objective(tasks, check_threads(self.n_threads))
                start = self._start(tasks.n_features) if self.warm_start else None
                self._remember_features(tasks if y is None else X)
                self._solve(tasks, objective, start, journal)
        except BaseException:
            if self.warm_start and journal.latest is not None:
                self._broken_off_at = journal.latest
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
        return self

    def _journal(self) -> Journal:
        return Journal(check_lam(self.lam), check_count(self.max_iter, "max_iter"))

    def _start(self, d: int) -> Array | None:
        """Where a warm start begins: where a fit was broken off, or where the latest ended."""
        start: Array | None = self.__dict__.pop(
            "_broken_off_at", self.__dict__.get("_representation")
        )
        if start is not None and len(start) != d:
            raise ValueError(
                f"X must have the {len(start)} features of the earlier fit that warm_start goes "
                f"on from, got {d}."
            )
        return start

    def _objective(self, tasks: Any, n_threads: int) -> Any:
        """The objective over tasks, which serves any lam; all parameters are checked first."""
        check_lam(self.lam)
        check_positive(self.tol, "tol")
        check_count(self.max_iter, "max_iter")
        check_flag(self.warm_start, "warm_start")
        fit_intercept = check_flag(self.fit_intercept, "fit_intercept")
        return tasks.mean_objective(self._penalised, fit_intercept, n_threads)

    def _solve(self, tasks: Any, objective: Any, start: Array | None, journal: Journal) -> None:
        """Minimise the objective from a start, and keep what comes of it."""
        solution = minimise(objective, start, SAFETY * self.tol, journal)
        self._has_converged = solution.gap <= self.tol * solution.objective
        self._keep(solution, objective.target_unit)
        self._fit_tasks(tasks, objective)

    def _keep(self, solution: Solution, unit: float) -> None:
        """Keep what was found with targets in this unit."""
        self.__dict__.pop("_broken_off_at", None)
        self._representation = solution.D
        self.objective_ = check_computed(solution.objective * unit * unit)
        self.gap_ = solution.gap * unit * unit
        self.n_iter_ = len(solution.history)
        self.history_ = [
            Iteration(objective * unit * unit, gap * unit * unit, seconds)
            for objective, gap, seconds in solution.history
        ]

    def _fit_tasks(self, tasks: Any, objective: Any) -> None:
        """What there is to fit beside D."""

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.history_ = [Iteration(*one) for one in self.history_]


class BatchLTL(BatchLearner):
    """Learn the representation with the least mean training error over a set of tasks.

    min over D PSD with tr D <= 1 / lam of the mean of L(D) = n |(X D X' + n I)^-1 y|^2, the
    training error of ridge regression with D on each task. This is what `OnlineLTL` approximates
    without keeping the tasks.

    Parameters
    ----------
    lam : float
        Regularisation: the trace of D is at most 1 / lam. It has to be chosen, by the error on
        validation tasks; see `select_lam`.
    tol : float
        The solver stops when the gap, by which the objective exceeds the optimum at the most, is
        tol times the objective. Below about 1e-8 rounding errors stop it first.
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
        Mean of L over the tasks, at `D_`.
    gap_ : float
        What `objective_` exceeds the optimum by, at the most.
    n_iter_ : int
    history_ : list of (objective, gap, seconds)
        After each iteration, as named tuples; seconds since the start. Empty if the start was
        good enough.
    n_features_in_ : int

    Notes
    -----
    The gap takes the mean of L for convex, as the paper does. L is not convex everywhere, though
    it takes a search to find where: see docs/reproduction.md. So the certificate is one among the D
    around the one found, if not among all. (The objective of `MTL` is convex.)

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

    _penalised = False


class MTL(MultitaskModel, BatchLearner):
    """Multitask learning: the weights of all tasks at once, with trace-norm regularisation.

    min over D PSD with tr D <= 1 / lam of the mean over tasks of
    min over w of |y - Xw|^2 / n + w' D^+ w, which equals
    min over W of the mean of |y - Xw|^2 / n, plus lam / T times the squared trace norm of W.

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
        Names of the tasks, as `predict` knows them.
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

    _penalised = True

    def _fit_tasks(self, tasks: Any, objective: Any) -> None:
        weights = objective.weights(self._representation)
        self._keep_weights(tasks.labels, weights, objective.intercepts(weights))
