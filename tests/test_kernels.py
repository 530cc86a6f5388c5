"""Compare each kernel with the NumPy reference, and the reference with the paper's formulas."""

import inspect

import numpy as np
import pytest
from naive import (
    EPS,
    condition,
    literal_dual,
    literal_gradient,
    literal_loss,
    literal_weights,
    random_psd,
    relative,
    sphere_task,
)

import fastltl as ltl
from fastltl import reference
from fastltl._kernels import spectral, task
from fastltl._kernels.linalg import HAS_JIT

SHAPES = [(1, 1), (1, 5), (5, 1), (7, 7), (20, 50), (50, 20), (300, 6), (30, 120)]
LAMS = [1e-6, 1e-3, 1.0, 1e3]
OBJECTIVES = ["error", "regularized"]
KERNELS = [
    "centre",
    "compress",
    "project",
    "ridge_weights",
    "score",
    "soft_threshold",
    "task_gradient",
    "task_loss",
    "truncate",
]


def representations(d, lam):
    rng = np.random.default_rng(d)
    yield np.eye(d) / lam
    yield random_psd(rng, d, trace=1 / lam)
    yield random_psd(rng, d, rank=max(1, d // 3), trace=1 / lam)
    yield np.zeros((d, d))


def task_cases():
    for n, d in SHAPES:
        rng = np.random.default_rng(n + d)
        X, y = sphere_task(rng, n, d)
        yield pytest.param(X, y, id=f"n{n}-d{d}")
        yield pytest.param(X * 10.0 ** -np.linspace(0, 6, d), y, id=f"n{n}-d{d}-ill-conditioned")
        yield pytest.param(np.repeat(X[:, :1], d, axis=1), y, id=f"n{n}-d{d}-rank-one")
    yield pytest.param(np.zeros((4, 3)), np.ones(4), id="zero-inputs")
    yield pytest.param(np.ones((4, 3)), np.zeros(4), id="zero-targets")


@pytest.mark.parametrize("name", KERNELS)
def test_reference_functions_have_the_signatures_of_the_kernels(name):
    kernel = getattr(task, name, None) or getattr(spectral, name)
    plain = list(inspect.signature(getattr(reference, name)).parameters)
    fast = list(inspect.signature(getattr(kernel, "py_func", kernel)).parameters)
    # Kernels take a flag, the functions for people its name.
    assert fast == ["regularized" if one == "objective" else one for one in plain]


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize(("X", "y"), list(task_cases()))
def test_task_kernels_agree_with_reference(X, y, lam):
    for D in representations(X.shape[1], lam):
        allowed = 1e-12 + 20 * EPS * condition(D, X)
        weights = task.ridge_weights(D, X, y)
        assert relative(weights, reference.ridge_weights(D, X, y)) <= allowed
        for objective in OBJECTIVES:
            flag = objective == "regularized"
            loss, gradient = reference.task_loss_and_gradient(D, X, y, objective)
            assert relative(task.task_loss(D, X, y, flag), loss) <= allowed
            found = task.task_gradient(D, X, y, flag)
            assert relative(found, gradient) <= allowed
            assert np.array_equal(found, found.T)
            assert task.loss_and_factors(D, X, y, flag)[0] == task.task_loss(D, X, y, flag)


@pytest.mark.sample(3)
@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize(("X", "y"), list(task_cases()))
def test_reference_agrees_with_paper_up_to_conditioning(X, y, lam):
    for D in representations(X.shape[1], lam):
        # Inverting the n x n matrix M amplifies rounding errors by cond(M), and its cube in the
        # gradient by three times as much. Errors are relative to the largest term, not the result.
        tolerance = 1e-12 + 200 * EPS * np.linalg.cond(literal_dual(D, X))
        scale = np.linalg.norm(y) ** 2 / len(y)
        assert abs(reference.task_loss(D, X, y) - literal_loss(D, X, y)) <= tolerance * scale
        bound = 2 * (np.linalg.norm(X, 2) * np.linalg.norm(y) / len(y)) ** 2
        difference = reference.task_gradient(D, X, y) - literal_gradient(D, X, y)
        assert np.linalg.norm(difference) <= tolerance * bound
        bound = np.linalg.norm(D, 2) * np.linalg.norm(X, 2) * np.linalg.norm(y) / len(y)
        difference = reference.ridge_weights(D, X, y) - literal_weights(D, X, y)
        assert np.linalg.norm(difference) <= tolerance * bound


def test_kernels_are_more_accurate_than_the_literal_formula_for_n_above_d():
    X, y = sphere_task(np.random.default_rng(0), 100, 6)
    D = np.eye(6) / 1e-6
    # Ridge regression as least squares with six additional rows is the most stable form.
    rows, targets = np.vstack([X, np.sqrt(100 * 1e-6) * np.eye(6)]), np.append(y, np.zeros(6))
    w = np.linalg.lstsq(rows, targets, rcond=None)[0]
    error = np.mean((y - X @ w) ** 2)
    assert task.task_loss(D, X, y, False) == pytest.approx(error, rel=1e-13)
    penalty = 1e-6 * w @ w
    assert task.task_loss(D, X, y, True) == pytest.approx(error + penalty, rel=1e-13)
    assert task.ridge_weights(D, X, y) == pytest.approx(w, rel=1e-12)
    gradient = reference.task_gradient(D, X, y)
    assert relative(task.task_gradient(D, X, y, False), gradient) < 1e-13
    assert relative(literal_gradient(D, X, y), gradient) > 1e-9


def ill_conditioned_tasks():
    """Yield tasks with repeated rows, low rank, or columns whose scales differ by 5e4 or 1.7e9."""
    rng = np.random.default_rng(0)
    X, y = sphere_task(rng, 4, 6)
    yield pytest.param(np.vstack([X, X[:2]]), np.append(y, y[:2] + 0.5), id="repeated rows, n = d")
    yield pytest.param(np.repeat(X, 5, axis=0), rng.normal(size=20), id="repeated rows, n > d")
    yield pytest.param(np.outer(rng.normal(size=5), X[0]), rng.normal(size=5), id="rank one")
    yield pytest.param(X * [1, 5e4, 1, 1, 1, 1], y, id="a column of 5e4")
    yield pytest.param(X * [1, 1.7e9, 1, 1, 1, 1], y, id="a column of 1.7e9")
    yield pytest.param(np.round(rng.uniform(size=(30, 6))), rng.normal(size=30), id="binary")


@pytest.mark.parametrize("lam", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize(("X", "y"), list(ill_conditioned_tasks()))
def test_task_kernels_are_accurate_for_rank_deficient_or_badly_scaled_inputs(X, y, lam):
    """Compare with formulas in the singular values, which avoid cancellation."""
    n, d = X.shape
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    kept = s > max(n, d) * EPS * s[0]
    U, s, Vt = U[:, kept], s[kept], Vt[kept]
    z, dual = U.T @ y, s**2 / lam + n
    w = Vt.T @ (s * z / dual) / lam
    a, b = Vt.T @ (s * z / dual), n * Vt.T @ (s * z / dual**2)
    # The error of the smallest singular value is a rounding error of the largest.
    tolerance = 1e-11 + 50 * EPS * s[0] / s[-1]
    rest = np.sum((y - U @ z) ** 2) / n
    for module, objectives in ((task, (False, True)), (reference, OBJECTIVES)):
        D = np.eye(d) / lam
        assert relative(module.ridge_weights(D, X, y), w) < tolerance
        expected = [
            (n * np.sum((z / dual) ** 2) + rest, -np.outer(a, b) - np.outer(b, a)),
            (np.sum(z**2 / dual) + rest, -np.outer(a, a)),
        ]
        for objective, (loss, gradient) in zip(objectives, expected, strict=True):
            assert relative(module.task_gradient(D, X, y, objective), gradient) < tolerance
            assert module.task_loss(D, X, y, objective) == pytest.approx(loss, rel=tolerance)


@pytest.mark.parametrize("regularized", [False, True])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (4, 6), (9, 3)])
def test_gradient_agrees_with_finite_differences(n, d, regularized):
    rng = np.random.default_rng(n)
    X, y = sphere_task(rng, n, d)
    D = random_psd(rng, d, trace=3.0)
    gradient = task.task_gradient(D, X, y, regularized)
    for _ in range(10):
        E = rng.normal(size=(d, d))
        E = (E + E.T) / np.linalg.norm(E + E.T)
        h = 1e-5
        above, below = (task.task_loss(D + s * E, X, y, regularized) for s in (h, -h))
        assert (above - below) / (2 * h) == pytest.approx(np.sum(gradient * E), rel=1e-6, abs=1e-9)


def test_task_loss_equals_training_error_or_ridge_objective_of_ridge_weights():
    X, y = sphere_task(np.random.default_rng(0), 8, 5)
    D = random_psd(np.random.default_rng(1), 5, trace=10.0)
    w = task.ridge_weights(D, X, y)
    error = np.mean((y - X @ w) ** 2)
    assert task.task_loss(D, X, y, False) == pytest.approx(error, rel=1e-12)
    penalty = w @ np.linalg.solve(D, w)
    assert task.task_loss(D, X, y, True) == pytest.approx(error + penalty, rel=1e-12)


def test_ridge_weights_lie_in_the_range_of_a_singular_representation():
    rng = np.random.default_rng(0)
    X, y = sphere_task(rng, 10, 6)
    D = random_psd(rng, 6, rank=2, trace=5.0)
    w = task.ridge_weights(D, X, y)
    assert np.linalg.norm(w - D @ np.linalg.pinv(D) @ w) < 1e-12 * np.linalg.norm(w)
    # They minimise the ridge objective over that range.
    V = np.linalg.svd(D)[0][:, :2]
    normal = V.T @ (X.T @ X / 10 + np.linalg.pinv(D)) @ V
    assert w == pytest.approx(V @ np.linalg.solve(normal, V.T @ X.T @ y / 10), rel=1e-10)


def test_centre_subtracts_the_means():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(7, 3)) + 5, rng.normal(size=7) - 3
    for fast, plain in zip(task.centre(X, y), reference.centre(X, y), strict=True):
        assert relative(fast, plain) < 1e-14


def test_features_equal_inputs_times_symmetric_square_root():
    rng = np.random.default_rng(0)
    D, X = random_psd(rng, 6, rank=3), rng.normal(size=(4, 6))
    assert relative(spectral.features(D, X) @ spectral.features(D, X).T, X @ D @ X.T) < 1e-13
    root = spectral.features(D, np.eye(6))
    assert np.array_equal(root, root.T)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize(("n", "d"), [(3, 5), (5, 3)])
def test_loss_is_not_finite_for_non_finite_or_overflowing_inputs(bad, n, d):
    X, y = sphere_task(np.random.default_rng(0), n, d)
    X[1, 1] = bad
    with np.errstate(over="ignore", invalid="ignore"):
        for regularized in (False, True):
            assert not np.isfinite(task.loss_and_factors(np.eye(d), X, y, regularized)[0])


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
@pytest.mark.parametrize("eta", [0.0, 1.0, 1e3])
def test_soften_agrees_with_reference_and_does_not_overflow(scale, eta):
    rng = np.random.default_rng(0)
    S = rng.normal(size=(8, 8))
    S = (S + S.T) * scale
    values, vectors = spectral.eigh(S)
    weights, rest = spectral.soften(values, 0, eta / scale, 2.0)
    fast = spectral.compose(vectors, weights, 0.0)
    assert relative(fast, reference.entropic_iterate(S, eta / scale, 2.0)) < 1e-12
    assert weights.sum() + rest == pytest.approx(2.0)


def test_low_rank_updates_equal_eigen_decomposition_of_the_sum():
    rng = np.random.default_rng(0)
    d, rank = 9, 4
    vectors = np.zeros((d, d))
    vectors[:rank] = np.linalg.qr(rng.normal(size=(d, rank)))[0].T
    values = np.zeros(d)
    values[:rank] = rng.normal(size=rank)
    A = spectral.compose(vectors[:rank], values[:rank], 0.0)
    inside = vectors[0] - 2 * vectors[3]
    outside = rng.normal(size=d)

    def check(update, factors, new, change):
        V, w = vectors.copy(), values.copy()
        size = update(V, w, rank, *factors, 0.7)
        assert size == rank + new
        assert np.abs(V[:size] @ V[:size].T - np.eye(size)).max() < 1e-14
        assert relative(spectral.compose(V[:size], w[:size], 0.0), A + 0.7 * change) < 1e-14

    for a, b, new in ((outside, rng.normal(size=d), 2), (inside, outside, 1), (inside, inside, 0)):
        check(spectral.rank_two_update, (a, b), new, np.outer(a, b) + np.outer(b, a))
    for a, new in ((outside, 1), (inside, 0)):
        check(spectral.rank_one_update, (a,), new, np.outer(a, a))


@pytest.mark.parametrize("scale", [1e-250, 1e-8, 1.0, 1e250])
@pytest.mark.parametrize("kind", ["distinct", "equal", "nearly equal", "zero", "one", "two"])
def test_secular_update_equals_eigen_decomposition_of_the_sum(kind, scale):
    if not HAS_JIT:
        pytest.skip("the secular equation needs LAPACK")
    rng = np.random.default_rng(0)
    poles = {
        "distinct": rng.normal(size=7),
        "equal": np.array([1.0, 1, 2, 2, 2, 3, -1]),
        "nearly equal": 1 + 1e-15 * rng.normal(size=7),
        "zero": np.zeros(7),
        "one": np.array([0.5]),
        "two": np.array([0.5, -0.5]),
    }[kind]
    z = rng.normal(size=len(poles)) * (rng.random(len(poles)) < 0.8)
    for rho in (0.7, -0.7, 1e-20):
        values, V = poles * scale, np.eye(len(poles))
        assert spectral.secular_update(values, V, z, rho * scale)
        expected = np.diag(poles) + rho * np.outer(z, z)
        assert np.abs(V @ V.T - np.eye(len(V))).max() < 1e-14
        error = np.linalg.norm((V.T * (values / scale)) @ V - expected)
        assert error <= 1e-14 * (1 + np.linalg.norm(expected))


@pytest.mark.compiled
def test_gradient_whose_square_underflows_changes_the_iterate():
    """D is large for a small lam, which makes the factor b of the gradient far smaller than a."""
    rng = np.random.default_rng(0)
    learner = ltl.OnlineLTL(1e-90, objective="error")
    for _ in range(6):
        learner.partial_fit(rng.normal(size=(3, 4)), rng.normal(size=3))
    assert learner._run.state.records[0]["rank"] > 0
