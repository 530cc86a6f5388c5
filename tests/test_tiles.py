"""Small products, factors and solves: right for every shape, and nothing written beside them."""

import numpy as np
import pytest
import scipy.linalg
from naive import random_psd, relative

from fastltl._kernels import tiles
from fastltl._kernels.compilation import compiled

#: Around each multiple of a tile's sides, and of the largest that is done in tiles.
SIDES = [1, 3, 4, 5, 7, 8, 9, 12, 13, 16, 20, 25, 50, 63, 64, 65]
SENTINEL = 12345.678


@compiled
def multiply(A, B, C):
    tiles.multiply(A, B, C)


@compiled
def multiply_to_symmetric(A, B, C):
    tiles.multiply_to_symmetric(A, B, C)


@compiled
def multiply_transposed(A, B, C):
    tiles.multiply_transposed(A, B, C)


@compiled
def multiply_to_gram(A, C):
    tiles.multiply_to_gram(A, C)


@compiled
def transposed(A):
    return tiles.transposed(A)


@compiled
def add_transposed(A):
    tiles.add_transposed(A)


@compiled
def multiply_by_half(X, D, C):
    tiles.multiply_by_half(X, D, C)


@compiled
def add_then_step(total, A, a, b, c):
    tiles.add_then_step(total, A, a, b, c)


@compiled
def apply_transposed_to_both(X, u, v, a, b):
    tiles.apply_transposed_to_both(X, u, v, a, b)


@compiled
def cholesky(A):
    return tiles.cholesky(A)


@compiled
def cholesky_solve(U, x):
    tiles.cholesky_solve(U, x)


def guarded(array):
    """A copy of an array amid sentinels, and what they look like now."""
    around = np.full(array.size + 32, SENTINEL)
    inside = around[16:-16].reshape(array.shape)
    inside[:] = array
    return inside, lambda: np.concatenate([around[:16], around[-16:]])


@pytest.mark.parametrize("m", SIDES)
@pytest.mark.parametrize("k", [1, 2, 50, 64, 65])
def test_products(m, k):
    rng = np.random.default_rng(m)
    A = rng.normal(size=(m, k))
    for n in SIDES:
        B = rng.normal(size=(k, n))
        C, edges = guarded(np.full((m, n), np.nan))
        multiply(A, B, C)
        assert relative(C, A @ B) < 1e-13
        C[:] = np.nan
        multiply_transposed(A, np.ascontiguousarray(B.T), C)
        assert relative(C, A @ B) < 1e-13
        assert (edges() == SENTINEL).all()


@pytest.mark.parametrize("n", SIDES)
@pytest.mark.parametrize("k", [1, 2, 50, 64, 65])
def test_products_that_are_symmetric(n, k):
    A = np.random.default_rng(n).normal(size=(n, k))
    C, edges = guarded(np.full((n, n), np.nan))
    multiply_to_symmetric(A, 2.0 * A, C)
    assert relative(np.triu(C), np.triu(2.0 * A @ A.T)) < 1e-13
    C[:] = np.nan
    multiply_to_gram(np.ascontiguousarray(A.T), C)
    assert relative(np.triu(C), np.triu(A @ A.T)) < 1e-13
    assert (edges() == SENTINEL).all()


@pytest.mark.parametrize("m", SIDES)
def test_transposes(m):
    rng = np.random.default_rng(m)
    for n in SIDES:
        A = rng.normal(size=(m, n))
        assert np.array_equal(transposed(A), A.T)
    A = rng.normal(size=(m, m))
    sums, edges = guarded(A)
    add_transposed(sums)
    assert np.array_equal(np.triu(sums), np.triu(A + A.T))
    assert (edges() == SENTINEL).all()


def kept(D):
    """A symmetric matrix with NaN where it does not count."""
    places = np.arange(len(D)) // tiles.COLUMNS
    return np.where(places[:, None] >= places, D, np.nan)


@pytest.mark.parametrize("m", SIDES)
@pytest.mark.parametrize("d", [*range(1, 26), 50, 64, 65, 100])
def test_products_by_half_of_a_symmetric_matrix(m, d):
    """Half or not, what they are for is X D X' = XH X' + X (XH)'."""
    rng = np.random.default_rng(d)
    X, D = rng.normal(size=(m, d)), random_psd(rng, d)
    XH, edges = guarded(np.full((m, d), np.nan))
    multiply_by_half(X, kept(D), XH)
    assert relative(XH @ X.T + X @ XH.T, X @ D @ X.T) < 1e-13
    assert (edges() == SENTINEL).all()


@pytest.mark.parametrize("d", [*range(1, 30), 50, 53, 64, 65, 100])
def test_steps_of_a_symmetric_matrix_of_which_half_is_kept(d):
    rng = np.random.default_rng(d)
    D, total = random_psd(rng, d), random_psd(rng, d)
    a, b = rng.normal(size=(2, d))
    new, edges = guarded(kept(D))
    new_total, edges_of_total = guarded(kept(total))
    add_then_step(new_total, new, a, b, 0.3)
    expected = D + 0.3 * (np.outer(a, b) + np.outer(b, a))
    counts = np.isfinite(kept(D))
    assert relative(new[counts], expected[counts]) < 1e-15
    assert np.array_equal(new[counts & counts.T], new.T[counts & counts.T])
    assert np.array_equal(np.tril(new_total), np.tril(total + D))
    assert (edges() == SENTINEL).all()
    assert (edges_of_total() == SENTINEL).all()


@pytest.mark.parametrize("n", [1, 2, 19, 50])
@pytest.mark.parametrize("d", [1, 5, 15, 16, 17, 31, 32, 50, 64, 65])
def test_two_products_with_a_transpose_at_once(n, d):
    rng = np.random.default_rng(d)
    X, u, v = rng.normal(size=(n, d)), rng.normal(size=n), rng.normal(size=n)
    (a, edges), (b, edges_of_b) = guarded(np.full(d, np.nan)), guarded(np.full(d, np.nan))
    apply_transposed_to_both(X, u, v, a, b)
    assert relative(a, X.T @ u) < 1e-14
    assert relative(b, X.T @ v) < 1e-14
    assert (edges() == SENTINEL).all()
    assert (edges_of_b() == SENTINEL).all()


@pytest.mark.parametrize("n", [*range(1, 34), 50, 99, 100, 255, 256, 257])
def test_factors_and_solves(n):
    """They read and need the upper triangle only."""
    rng = np.random.default_rng(n)
    A, x = random_psd(rng, n) + np.eye(n), rng.normal(size=n)
    U, edges = guarded(np.triu(A) + np.tril(np.full((n, n), np.nan), -1))
    assert cholesky(U)
    assert (edges() == SENTINEL).all()
    assert relative(np.triu(U).T @ np.triu(U), A) < 1e-14
    solution, edges = guarded(x)
    cholesky_solve(np.triu(U) + np.tril(np.full((n, n), 1e9), -1), solution)
    assert relative(solution, np.linalg.solve(A, x)) < 1e-11
    assert (edges() == SENTINEL).all()


@pytest.mark.parametrize("n", [1, 4, 13, 22, 50])
def test_there_is_no_factor_if_a_pivot_is_not_positive(n):
    rng = np.random.default_rng(n)
    L = np.tril(rng.normal(size=(n, n)), -1) + np.eye(n)
    for k in range(n):
        for bad in (-1e-3, np.nan):
            pivots = np.ones(n)
            pivots[k] = bad
            assert not cholesky((L * pivots) @ L.T)
    assert cholesky(L @ L.T)


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_factors_of_ill_conditioned_matrices_on_any_scale(scale):
    """The error is that of LAPACK: roundings relative to the diagonal."""
    A = scale * (scipy.linalg.hilbert(30) + 1e-12 * np.eye(30))
    U = A.copy()
    assert cholesky(U)
    U = np.triu(U) / np.sqrt(scale)
    assert np.abs(U.T @ U - A / scale).max() < 1e-15
