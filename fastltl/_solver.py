"""Minimise F(D) over {D PSD, tr D <= radius}, to a gap that bounds the distance from optimal.

The bound holds for a convex F. `Objective` gives F, its gradient and its curvature.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from fastltl._kernels.spectral import project
from fastltl._objective import Objective
from fastltl._validation import Array, check_computed

#: The most projected gradient steps before Newton's.
FIRST_ORDER_STEPS = 30

#: A projected gradient step may raise F, but not above the highest of this many latest values.
N_LATEST = 5

#: Least eigenvalue of V, relative to that of the identity, that Newton's steps start with. On a
#: singular V the gradient stays in V's range, and only curvature leads out of it.
LEAST_ROOT = 1e-2

#: Relative gap at which to leave the smaller radii that lead up to the one asked for.
EARLY_TOL = 1e-2


def inner(A: Array, B: Array) -> float:
    """<A, B> = tr A'B."""
    return float(np.vdot(A, B))


class Point:
    """A representation, and the objective and its gradient there."""

    def __init__(self, objective: Objective, D: Array) -> None:
        self.D = D
        self.F, self.G = objective.value_and_gradient(D)

    @cached_property
    def _parts_of_gap(self) -> tuple[float, float]:
        least = check_computed(float(np.linalg.eigvalsh(self.G)[0]))
        return inner(self.G, self.D), max(0.0, -least)

    def gap(self, radius: float) -> float:
        """min(F, <G, D> + radius max(0, -lambda_min(G))): for a convex F, at least F(D) - min F.

        The minimum is over a set of any radius that contains D.
        """
        along, steepest = self._parts_of_gap
        return min(self.F, max(0.0, along + radius * steepest))


class Iteration(NamedTuple):
    """Objective, gap and seconds since the start, after an iteration."""

    objective: float
    gap: float
    seconds: float


class Solution(NamedTuple):
    """A representation, its objective and gap, and the history of the iterations."""

    D: Array
    objective: float
    gap: float
    history: list[Iteration]


class Progress:
    """The iterations so far, and how many are left.

    After more than so many seconds the next iteration raises TimeoutError.
    """

    def __init__(self, radius: float, max_iter: int, seconds: float = np.inf) -> None:
        self.radius = radius
        self.max_iter = max_iter
        self.seconds = seconds
        self.start = time.perf_counter()
        self.history: list[Iteration] = []
        self.latest: Array | None = None

    @property
    def left(self) -> int:
        return self.max_iter - len(self.history)

    def add(self, point: Point) -> None:
        """Record an iteration."""
        seconds = time.perf_counter() - self.start
        self.latest = point.D
        self.history.append(Iteration(point.F, point.gap(self.radius), seconds))
        if seconds > self.seconds:
            raise TimeoutError(f"the solver took more than {self.seconds:.3g} s")


def minimise(objective: Objective, start: Array | None, tol: float, progress: Progress) -> Solution:
    """Minimise F over {D PSD, tr D <= radius} to gap <= tol F.

    A few projected gradient steps solve the easy problems and bring others near; Newton's steps
    follow. The start is a representation or, by default, the identity. Where that nearly
    interpolates the tasks, log F is steep and curved, so Newton's steps solve for smaller radii
    first.
    """
    radius = progress.radius
    D = np.eye(objective.n_features) if start is None else start
    point, radii = Point(objective, D * (radius / np.trace(D))), [radius]
    while start is None and 0.05 * objective.value_at_zero > point.F:  # it nearly interpolates
        radii.insert(0, radii[0] / 10.0)
        point = Point(objective, point.D / 10.0)
    if len(radii) == 1:
        point = project_gradient(objective, radius, point, tol, progress)
    for i, stage in enumerate(radii):
        if progress.left == 0:
            break
        if i > 0:
            point = Point(objective, point.D * (stage / radii[i - 1]))
        enough = tol if stage == radius else EARLY_TOL
        if point.gap(stage) > enough * point.F:
            end = newton(objective, stage, point.D, enough, progress)
            point = min(point, end, key=lambda point: point.gap(stage))
    return Solution(point.D, point.F, point.gap(radius), progress.history)


def project_gradient(
    objective: Objective, radius: float, point: Point, tol: float, progress: Progress
) -> Point:
    """D + t (proj(D - step G) - D): spectral projected gradient steps towards gap <= tol F.

    The step is Barzilai and Borwein's <S, S> / <S, Y>, for the latest changes S of D and Y of G;
    t = 1 or, if F does not fall enough below the highest of its latest values, smaller. The first
    step is the one for the curvature along the gradient less its trace. Returns the point whose
    gap is small enough, or else the one of least F.
    """
    largest = float(np.abs(point.G).max()) or 1.0
    steepest = (point.G - np.trace(point.G) / len(point.G) * np.eye(len(point.G))) / largest
    curved = objective.curvature(radius * steepest) / radius
    step = _spectral_step(steepest, curved, radius / largest)
    best, values = point, [point.F]
    for _ in range(min(FIRST_ORDER_STEPS, progress.max_iter)):
        if point.gap(radius) <= tol * point.F:
            break
        move = project(point.D - step * point.G, radius) - point.D
        slope, t = inner(point.G, move), 1.0
        if slope >= 0.0:  # rounding errors allow no further progress
            break
        while True:
            new = Point(objective, point.D + t * move)
            allowed = max(values[-N_LATEST:]) + 1e-4 * t * slope
            if allowed >= new.F or t < 1e-10:
                break
            # The minimiser of the parabola through F, its slope and the new value, within bounds.
            t *= min(0.5, max(0.1, -0.5 * t * slope / (new.F - point.F - t * slope)))
        if t < 1e-10:
            break
        step = _spectral_step(new.D - point.D, new.G - point.G, 10.0 * step)
        point = new
        values.append(point.F)
        progress.add(point)
        best = min(best, point, key=lambda point: point.F)
    return point if point.gap(radius) <= tol * point.F else best


def _spectral_step(S: Array, Y: Array, otherwise: float) -> float:
    """<S, S> / <S, Y>, or `otherwise` if that is not a positive number."""
    unit = float(np.abs(S).max()) or 1.0
    S, Y = S / unit, Y / unit
    curvature = inner(S, Y)
    step = inner(S, S) / curvature if curvature > 0.0 else 0.0
    return step if 0.0 < step < np.inf else otherwise


def newton(objective: Objective, radius: float, D: Array, tol: float, progress: Progress) -> Point:
    """Minimise `FactoredProblem` from D to gap <= tol F by SciPy's trust-region Newton-CG.

    Curvature along a direction costs a fraction of a gradient, since no M is factorised anew;
    first-order methods stall where lam is small.
    """
    problem = FactoredProblem(objective, radius)

    def after_iteration(intermediate_result: OptimizeResult) -> None:
        problem.move_to(intermediate_result.x)
        progress.add(problem.point)
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
        options={"maxiter": progress.left, "gtol": 0.0},
    )
    problem.move_to(found.x)
    return problem.point


class FactoredProblem:
    """min of log F(D) over V, where D = radius V V' / |V|^2 is always feasible.

    Since <grad F, D> <= 0 the trace bound is active at the optimum and the normalisation loses
    nothing; the logarithm makes the problem free of scales. With c = <grad F, VV'> / |V|^2 ::

        gradient = 2 radius / (|V|^2 F) (grad F V - c V)

    The variable x is V with each row times the root of its feature's scale, which takes fewer
    iterations on features of different scales than V or V times the scale. SciPy asks for value,
    gradient and curvature in separate calls, all at the latest x.
    """

    def __init__(self, objective: Objective, radius: float) -> None:
        self.objective = objective
        self.radius = radius
        self.units = np.sqrt(objective.feature_scales)[:, None]
        self._x = np.empty(0)

    def move_to(self, x: Array) -> None:
        """Evaluate F at x, unless it is the latest x."""
        if np.array_equal(x, self._x):
            return
        d = self.objective.n_features
        self.V = x.reshape(d, d) / self.units
        self.square = inner(self.V, self.V)
        self.P = self.V @ self.V.T / self.square
        D = self.radius * self.P
        self.point = Point(self.objective, D)
        self.c = inner(self.point.G, self.P)
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
        growth = 2.0 * inner(V, W) / self.square  # of |V|^2, relative
        half = V @ W.T / self.square
        dP = half + half.T - growth * self.P
        dG = self.objective.curvature(self.radius * dP)
        dF = self.radius * inner(G, dP)
        dc = inner(dG, self.P) + inner(G, dP)
        change = dG @ V + G @ W - dc * V - self.c * W - (growth + dF / F) * self.slope
        return (2.0 * self.radius / (self.square * F) * change / self.units).ravel()
