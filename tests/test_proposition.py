"""Test the paper's Proposition 1, which holds except for convexity: see docs/proposition.md.

It assumes x in the unit ball and y in [0, 1].
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from naive import literal_dual, literal_gap, literal_objective, random_psd, unit_ball_task

import fastltl as ltl
from fastltl._kernels import task

#: Rounding errors of losses and gradients, which are at most 2.
ROUNDING = 1e-12

#: Whether the objective is regularized, and the constants of loss and gradient.
LIPSCHITZ = [(False, 2.0, 6.0), (True, 1.0, 2.0)]

seeds = st.integers(0, 2**32)


def as_tasks(*tasks):
    return [(np.array(X), np.array(y)) for X, y in tasks]


@st.composite
def task_and_two_representations(draw):
    """Draw a task and two D, far from each other or near, so that constants are tested, too."""
    rng = np.random.default_rng(draw(seeds))
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    D, E = (random_psd(rng, d, trace=10.0 ** draw(st.floats(-3, 4))) for _ in range(2))
    X, y = unit_ball_task(rng, n, d)
    return X, y, D, D + 1e-3 * E if draw(st.booleans()) else E


@pytest.mark.parametrize(("regularized", "of_loss", "of_gradient"), LIPSCHITZ)
@given(case=task_and_two_representations())
def test_loss_and_gradient_are_lipschitz(regularized, of_loss, of_gradient, case):
    X, y, D, E = case
    distance = np.linalg.norm(D - E)
    losses = [task.task_loss(A, X, y, regularized) for A in (D, E)]
    gradients = [task.task_gradient(A, X, y, regularized) for A in (D, E)]
    assert abs(losses[0] - losses[1]) <= of_loss * distance + ROUNDING
    assert np.linalg.norm(gradients[0] - gradients[1]) <= of_gradient * distance + ROUNDING
    assert np.linalg.norm(gradients[0]) <= of_loss + ROUNDING


@pytest.mark.parametrize(("regularized", "of_loss", "of_gradient"), LIPSCHITZ)
def test_constants_are_attained(regularized, of_loss, of_gradient):
    X, y, h = np.ones((1, 1)), np.ones(1), 1e-4
    D, E = np.zeros((1, 1)), np.full((1, 1), h)
    gradients = [task.task_gradient(A, X, y, regularized)[0, 0] for A in (D, E)]
    assert task.task_loss(D, X, y, regularized) == pytest.approx(1.0)
    assert gradients[0] == pytest.approx(-of_loss)
    assert (gradients[1] - gradients[0]) / h == pytest.approx(of_gradient, rel=1e-3)


@given(task_and_two_representations())
def test_losses_are_ordered_in_the_unit_interval(case):
    X, y, D, _ = case
    error, regularized = (task.task_loss(D, X, y, flag) for flag in (False, True))
    assert 0 <= error <= regularized + ROUNDING <= 1 + 2 * ROUNDING


def second_derivative(M, y, H):
    """2n (|g|^2 + 2 (Hv)'g), g = M^-1 H u, of n |M^-1 y|^2 along H, where M is n x n."""
    u = np.linalg.solve(M, y)
    g = np.linalg.solve(M, H @ u)
    return 2 * len(y) * (g @ g + 2 * (H @ np.linalg.solve(M, u)) @ g)


def direction_of_the_lemma(M, y, c):
    """Return a symmetric H with Hu = Mw, Hv = -cw, and w, a unit vector orthogonal to u."""
    u = np.linalg.solve(M, y)
    v = np.linalg.solve(M, u)
    w = v - u * (u @ v) / (u @ u)
    w /= np.linalg.norm(w)
    P, Q = np.column_stack((u, v)), np.column_stack((M @ w, -c * w))
    inverse = np.linalg.pinv(P)
    H = Q @ inverse
    return H + H.T - inverse.T @ P.T @ Q @ inverse, w


def well_conditioned_dual(rng, n):
    """Draw M with eigenvalues from n to 10 n, and y with equal shares in its eigenvectors."""
    basis = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (basis * np.linspace(n, 10 * n, n)) @ basis.T, basis @ rng.choice([-1.0, 1.0], n)


def curvature(function, h):
    """Return the second difference of a function at 0."""
    return (function(h) - 2 * function(0.0) + function(-h)) / h**2


@pytest.mark.parametrize("c", [0.0, 0.4, 0.6, 2.0])
@given(seed=seeds, n=st.integers(2, 8))
def test_second_derivative_of_the_lemma(c, seed, n):
    M, y = well_conditioned_dual(np.random.default_rng(seed), n)
    H, w = direction_of_the_lemma(M, y, c)
    u = np.linalg.solve(M, y)
    np.testing.assert_allclose(H, H.T, atol=1e-9 * np.linalg.norm(H))
    np.testing.assert_allclose(H @ u, M @ w, atol=1e-9 * np.linalg.norm(M))
    value = 2 * n * (1 - 2 * c)
    assert second_derivative(M, y, H) == pytest.approx(value, rel=1e-6)

    def loss(t):
        return n * np.sum(np.linalg.solve(M + t * H, y) ** 2)

    assert curvature(loss, 1e-3 * n / np.linalg.norm(H, 2)) == pytest.approx(value, rel=1e-2)


@given(seed=seeds, n=st.integers(2, 8))
def test_the_hessian_is_psd_where_y_is_an_eigenvector(seed, n):
    rng = np.random.default_rng(seed)
    M, _ = well_conditioned_dual(rng, n)
    y, H = np.linalg.eigh(M)[1][:, 0], rng.normal(size=(n, n))
    assert second_derivative(M, y, H + H.T) > 0


@st.composite
def bent_task(draw):
    """Draw a task of n <= d, D, and E such that X E X' is the lemma's H, with D +- E PSD."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(2, 6))
    d = draw(st.integers(n, 8))
    M, y = well_conditioned_dual(rng, n)
    U, _, Vt = np.linalg.svd(rng.normal(size=(n, d)), full_matrices=False)
    X = U * rng.uniform(0.5, 1.0, n) @ Vt  # rows in the unit ball
    inverse = np.linalg.pinv(X)
    D = inverse @ (M - n * np.eye(n)) @ inverse.T + np.eye(d)
    H, _ = direction_of_the_lemma(literal_dual(D, X), y, 2.0)
    E = inverse @ H @ inverse.T
    return X, y / np.abs(y).max(), D, E / np.linalg.norm(E, 2)


@given(bent_task())
def test_only_the_error_has_negative_curvature(case):
    X, y, D, E = case
    H = X @ E @ X.T
    exact = second_derivative(literal_dual(D, X), y, H)
    h = 1e-2  # in units of the least eigenvalue of D, 1

    def along(regularized):
        return lambda t: task.task_loss(D + t * E, X, y, regularized)

    assert exact < 0
    assert curvature(along(False), h) == pytest.approx(exact, rel=1e-2)
    u = np.linalg.solve(literal_dual(D, X), y)
    convex = 2 * (H @ u) @ np.linalg.solve(literal_dual(D, X), H @ u)
    assert curvature(along(True), h) == pytest.approx(convex, rel=1e-2)
    assert convex > 0


@given(task_and_two_representations())
def test_regularized_objective_is_convex(case):
    X, y, D, E = case
    ends = task.task_loss(D, X, y, True), task.task_loss(E, X, y, True)
    for t in (0.01, 0.5, 0.99):
        between = task.task_loss((1 - t) * D + t * E, X, y, True)
        assert between <= (1 - t) * ends[0] + t * ends[1] + ROUNDING


def test_a_chord_of_the_error_lies_below_its_midpoint():
    X, y = np.diag([1.0, -1.0]), np.array([1 / 13, 1.0])
    D = np.array([[357.0, -428.0], [-428.0, 515.0]])
    E = np.array([[0.8, -2.09], [-2.09, 5.47]])
    assert np.linalg.eigvalsh(D)[0] > 0
    assert np.linalg.eigvalsh(E)[0] > 0

    def losses(regularized):
        return [task.task_loss(A, X, y, regularized) for A in (D, (D + E) / 2, E)]

    first, middle, last = losses(False)
    assert middle > 1.03 * max(first, last)
    first, middle, last = losses(True)
    assert middle < (first + last) / 2


def test_a_stationary_point_of_the_error_is_not_its_minimum():
    lam = 5e-6
    tasks = as_tasks(
        ([[-0.24, 0.37], [0.0069, 0.0088]], [0.068, 0.0029]),
        ([[-0.016, 0.0048], [0.042, -0.036]], [0.015, 0.071]),
        ([[0.18, 0.25], [-0.012, -0.00021]], [0.35, 0.12]),
    )
    stationary = np.array([[115306.7587, -98803.2458], [-98803.2458, 84693.2413]])
    better = np.array([[104818.0, -37749.0], [-37749.0, 95182.0]])
    for D in stationary, better:
        assert np.linalg.eigvalsh(D)[0] > 0
        assert D.trace() <= (1 + 1e-12) / lam
        value, gap = literal_gap(D, tasks, lam, "error")
        assert gap < 1e-4 * value
    worse_value = literal_objective(stationary, tasks, "error")[0]
    assert worse_value > 2 * literal_objective(better, tasks, "error")[0]

    best = ltl.BatchLTL(lam=lam).fit(tasks)
    for D in stationary, better:
        value, gap = literal_gap(D, tasks, lam, "regularized")
        assert value > best.objective_ - best.gap_
        assert value - best.objective_ <= gap


@pytest.mark.parametrize(
    ("geometry", "rounds"),
    [pytest.param("entropic", 40_000, marks=pytest.mark.slow), ("euclidean", 5_000)],
)
def test_the_regret_exceeds_its_bound_with_the_error_only(geometry, rounds):
    lam = 8e-6
    tasks = as_tasks(
        ([[0.11, -0.16], [0.008, -0.082]], [0.0009, 0.0079]),
        ([[0.22, 0.053], [0.37, 0.099]], [0.042, 0.013]),
    )
    better = np.outer([94.08, -340.8], [94.08, -340.8])
    assert better.trace() <= 1 / lam
    best = ltl.BatchLTL(lam=lam).fit(tasks)
    stream = ltl.TaskSet(tasks)[[0, 1] * rounds]

    def mean_loss_and_bound(objective):
        learner = ltl.OnlineLTL(lam=lam, objective=objective, geometry=geometry).fit(stream)
        return learner.cumulative_loss_ / len(stream), learner.regret_bound_

    loss, bound = mean_loss_and_bound("error")
    assert loss - literal_objective(better, tasks, "error")[0] > 1.3 * bound
    loss, bound = mean_loss_and_bound("regularized")
    assert loss - (best.objective_ - best.gap_) < bound
