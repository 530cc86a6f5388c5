"""Minimise F(D) over {D PSD, tr D <= radius}, to a gap that bounds the distance from optimal.

The bound holds for a convex F. `Objective` gives F, its gradient and its curvature.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from fastltl._kernels.batch import low_rank_factor
from fastltl._kernels.spectral import project
from fastltl._objective import Objective
from fastltl._validation import Array, check_computed

#: The most projected gradient steps before Newton's, at first. Fewer do later, or if D has so few
#: directions that Newton's steps have few variables: tr(D)^2 / |D|^2 is at most this share of d.
FIRST_ORDER_STEPS = 30
FEW_STEPS = 10
FEW_DIRECTIONS = 0.1

#: Largest entry of the change of D, relative to the radius, over which curvature is measured first.
NEARBY = 1e-2

#: A projected gradient step may raise F, but not above the highest of this many latest values.
N_LATEST = 5

#: Newton's steps stop if they can close only this share of the gap without further directions.
SHARE_AT_RANK = 0.1

#: F over F(0) below which to solve for smaller radii first.
INTERPOLATION = 0.1

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

    The start is a representation or, by default, the identity. Where that fits the tasks closely,
    log F is steep and curved, and D has many directions that the solution lacks. So smaller radii
    come first.
    """
    radius = progress.radius
    D = np.eye(objective.n_features) if start is None else start
    point, radii = Point(objective, D * (radius / np.trace(D))), [radius]
    while start is None and INTERPOLATION * objective.value_at_zero > point.F:
        radii.insert(0, radii[0] / 10.0)
        point = Point(objective, point.D / 10.0)
    for stage in radii:
        if stage > radii[0] and progress.left > 0:
            point = Point(objective, point.D * 10.0)
        enough = tol if stage == radius else EARLY_TOL
        point = minimise_at(objective, stage, point, enough, progress)
    return Solution(point.D, point.F, point.gap(radius), progress.history)


def minimise_at(
    objective: Objective, radius: float, point: Point, tol: float, progress: Progress
) -> Point:
    """Minimise F from a point to gap <= tol F, or until rounding errors allow no further progress.

    Projected gradient steps solve the easy problems, and find the rank of the solution of others.
    Newton's steps with that rank follow, since first-order methods stall where lam is small. If it
    was too low, the next round's projected gradient steps add what was missing.
    """
    best, new = point, point

    def is_done() -> bool:
        return best.gap(radius) <= tol * best.F or progress.left == 0

    while not is_done():
        for steps in (project_gradient, newton):
            if not is_done():
                new = steps(objective, radius, new, tol, progress)
                best = min(best, new, key=lambda point: point.gap(radius))
        if new.F >= point.F and new.gap(radius) >= point.gap(radius):
            break
        point = new
    return best


def project_gradient(
    objective: Objective, radius: float, point: Point, tol: float, progress: Progress
) -> Point:
    """D + t (proj(D - step G) - D): spectral projected gradient steps towards gap <= tol F.

    The step is Barzilai and Borwein's <S, S> / <S, Y>, for the latest changes S of D and Y of G;
    t = 1 or, if F does not fall enough below the highest of its latest values, smaller. The changes
    before the first step are those to a point nearby. Returns the point whose gap is small enough,
    or else the one of least F.
    """
    step = NEARBY * radius / (float(np.abs(point.G).max()) or 1.0)
    nearby = Point(objective, project(point.D - step * point.G, radius))
    step = _spectral_step(nearby.D - point.D, nearby.G - point.G, step / NEARBY)
    best, values = point, [point.F]
    most = FEW_STEPS if progress.history else FIRST_ORDER_STEPS
    for _ in range(min(most, progress.left)):
        has_few_directions = radius**2 <= FEW_DIRECTIONS * len(point.D) * inner(point.D, point.D)
        if point.gap(radius) <= tol * point.F or (len(values) > FEW_STEPS and has_few_directions):
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
    with np.errstate(over="ignore", invalid="ignore"):  # as inputs may be 1e150 or larger
        S, Y = S / unit, Y / unit
        curvature = inner(S, Y)
        step = inner(S, S) / curvature if curvature > 0.0 else 0.0
    return step if 0.0 < step < np.inf else otherwise


def newton(
    objective: Objective, radius: float, point: Point, tol: float, progress: Progress
) -> Point:
    """Minimise `FactoredProblem` from D to gap <= tol F by SciPy's trust-region Newton-CG.

    V has as many columns as D has rank. Newton's steps stop early once further progress needs other
    directions, which projected gradient steps add.
    """
    V = low_rank_factor(point.D, objective.feature_scales).T / np.sqrt(radius)
    problem = FactoredProblem(objective, radius, V.shape)

    def after_iteration(intermediate_result: OptimizeResult) -> None:
        problem.move_to(intermediate_result.x)
        progress.add(problem.point)
        gap = problem.point.gap(radius)
        if gap <= tol * problem.point.F or problem.gap_at_this_rank() <= SHARE_AT_RANK * gap:
            raise StopIteration

    found = minimize(
        problem.value,
        (problem.units * V).ravel(),
        jac=problem.gradient,
        hessp=problem.curvature,
        method="trust-ncg",
        callback=after_iteration,
        options={"maxiter": progress.left, "gtol": 0.0},
    )
    problem.move_to(found.x)
    return problem.point


class FactoredProblem:
    """min of log F(D) over U, d x r, where D = radius U U' / |U|^2 is always feasible.

    Since <grad F, D> <= 0 the trace bound is active at the optimum and the normalisation loses
    nothing; the logarithm makes the problem free of scales. With V = s U, s = radius^(1/2) / |U|,
    D is V V' and, with c = <grad F, D> / radius ::

        gradient = 2 s / F (grad F V - c V)

    The variable x is U with each row times the root of its feature's scale, which takes fewer
    iterations on features of different scales than U or U times the scale. SciPy asks for value,
    gradient and curvature in separate calls, all at the latest x. Curvature along a direction
    costs a fraction of a gradient, since no M is factorised anew.
    """

    def __init__(self, objective: Objective, radius: float, shape: tuple[int, ...]) -> None:
        self.objective = objective
        self.radius = radius
        self.shape = shape
        self.units = np.sqrt(objective.feature_scales)[:, None]
        self._x = np.empty(0)

    def move_to(self, x: Array) -> None:
        """Evaluate F at x, unless it is the latest x."""
        if np.array_equal(x, self._x):
            return
        U = x.reshape(self.shape) / self.units
        self.scale = np.sqrt(self.radius) / np.linalg.norm(U)
        self.V = self.scale * U
        self.point = Point(self.objective, self.V @ self.V.T)
        self.c = inner(self.point.G, self.point.D) / self.radius
        self.slope = self.point.G @ self.V - self.c * self.V
        self._x = x.copy()

    def value(self, x: Array) -> float:
        self.move_to(x)
        return float(np.log(self.point.F))

    def gradient(self, x: Array) -> Array:
        self.move_to(x)
        gradient: Array = 2.0 * self.scale / self.point.F * self.slope / self.units
        return gradient.ravel()

    def curvature(self, x: Array, direction: Array) -> Array:
        """Derivative of the gradient along a direction."""
        self.move_to(x)
        F, G, V = self.point.F, self.point.G, self.V
        W = self.scale * direction.reshape(self.shape) / self.units
        growth = inner(V, W) / self.radius  # of |U|, relative
        W -= growth * V
        dG_V = self.objective.curvature(V, W)
        dF = 2.0 * inner(self.slope, W)
        dc = (inner(dG_V, V) + dF) / self.radius
        change = dG_V + G @ W - dc * V - self.c * W - (growth + dF / F) * self.slope
        return np.ravel(2.0 * self.scale / F * change / self.units)

    def gap_at_this_rank(self) -> float:
        """The part of the gap that V can close: within its range, or by a rotation of it."""
        Q, _ = np.linalg.qr(self.V)
        least = float(np.linalg.eigvalsh(Q.T @ self.point.G @ Q)[0])
        rotation = float(np.sqrt(self.radius) * np.linalg.norm(self.slope))
        return max(self.radius * (self.c - least), rotation)
