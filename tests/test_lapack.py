"""Every operation of `fastltl._kernels.linalg` against NumPy, as compiled code calls it."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from naive import random_psd, relative

from fastltl import lapack
from fastltl._kernels.compilation import IS_DIRECT, compiled


def matrices(seed=0, n=7, d=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(d, 5)), rng.normal(size=n)


@compiled
def products(A, B, x):
    AB, AA, inner = (
        np.empty((A.shape[0], B.shape[1])),
        np.empty((A.shape[0], A.shape[0])),
        np.empty((A.shape[1], A.shape[1])),
    )
    lapack.multiply(A, B, AB)
    lapack.multiply_transposed(A, 2.0 * A + 1.0, AA)
    lapack.transposed_multiply(A, 2.0 * A + 1.0, inner)
    y, z = np.empty(A.shape[1]), np.empty(A.shape[0])
    lapack.apply_transposed(A, x, y)
    lapack.apply(A, y, z)
    return AB, AA, inner, y, z


@pytest.mark.parametrize("n", [1, 7, 70])
def test_products(n):
    A, B, x = matrices(n=n)
    C = 2 * A + 1
    expected = A @ B, A @ C.T, A.T @ C, A.T @ x, A @ (A.T @ x)
    for ours, theirs in zip(products(A, B, x), expected, strict=True):
        assert relative(ours, theirs) < 1e-14


def test_products_without_rows_are_zero():
    A, B, x = np.zeros((0, 4)), np.ones((4, 5)), np.zeros(0)
    AB, AA, inner, y, z = products(A, B, x)
    assert AB.shape == (0, 5)
    assert AA.shape == (0, 0)
    assert z.size == 0
    assert not inner.any()
    assert not y.any()


@compiled
def lower_products(A, X, x):
    y, C, XL = np.empty(x.size), np.ones(A.shape), X.copy()
    lapack.apply_symmetric(A, x, y)
    lapack.add_gram(X, -0.5, C)
    lapack.multiply_by_triangle(XL, A)
    return y, C, XL


def test_symmetric_matrices_are_read_and_written_in_their_lower_triangle_only():
    X, _, _ = matrices()
    A, x = random_psd(np.random.default_rng(1), 4), X[0]
    y, C, XL = lower_products(np.tril(A) + np.triu(np.full((4, 4), 1e9), 1), X, x)
    assert relative(y, A @ x) < 1e-14
    assert relative(XL, X @ np.tril(A)) < 1e-14
    assert relative(np.tril(C), np.tril(1 - 0.5 * X.T @ X)) < 1e-14
    assert (C[np.triu_indices(4, 1)] == 1).all()


@compiled
def decompositions(A, x):
    L, solution = A.copy(), x.copy()
    found = lapack.cholesky(L)
    if found:
        lapack.cholesky_solve(L, solution)
    vectors, values = A.copy(), np.empty(x.size)
    lapack.eigh(vectors, values)
    return found, solution, vectors, values


@pytest.mark.parametrize("d", [1, 2, 9, 60])
def test_decompositions(d):
    rng = np.random.default_rng(d)
    A, x = random_psd(rng, d) + np.eye(d), rng.normal(size=d)
    found, solution, vectors, values = decompositions(A, x)
    assert found
    assert relative(solution, np.linalg.solve(A, x)) < 1e-12
    assert relative((vectors.T * values) @ vectors, A) < 1e-13
    assert (np.diff(values) >= 0).all()
    assert not decompositions(-A, x)[0]


@compiled
def reductions(X, y):
    R, z = X.copy(), y.copy()
    lapack.triangularise(R, z)
    U, s, Vt = lapack.svd(X.copy())
    descending = y.copy()
    lapack.sort_descending(descending)
    return R, z, U, s, Vt, descending


@pytest.mark.parametrize("n", [4, 7, 300])
def test_reductions(n):
    X, _, y = matrices(n=n)
    R, z, U, s, Vt, descending = reductions(X, y)
    assert relative(R[:4].T @ R[:4], X.T @ X) < 1e-13
    assert relative(R[:4].T @ z[:4], X.T @ y) < 1e-13
    assert np.sum(z**2) == pytest.approx(np.sum(y**2))
    assert not np.tril(R[:4], -1).any()
    assert relative((U * s) @ Vt, X) < 1e-13
    assert np.array_equal(descending, np.sort(y)[::-1])


@compiled
def size(x):
    return lapack.length(x)


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1.0, 1e200])
def test_lengths_do_not_underflow(scale):
    assert size(scale * np.array([3.0, 4.0])) == pytest.approx(5 * scale)


@compiled
def factor(A, pivots):
    return lapack.pivoted_cholesky(A, pivots)


@pytest.mark.skipif(not IS_DIRECT, reason="without LAPACK any matrix counts as regular")
def test_pivoted_cholesky_reveals_the_rank():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(8, 3))
    A, pivots = B @ B.T, np.empty(8, np.int32)
    L = A.copy()
    rank = factor(L, pivots)
    L = np.tril(L)[:, :rank]
    assert rank == 3
    assert sorted(pivots) == list(range(8))
    assert relative(L @ L.T, A[np.ix_(pivots, pivots)]) < 1e-13


@compiled
def roots(poles, z, rho):
    found, distances = np.empty(poles.size), np.empty((poles.size, poles.size))
    for j in range(poles.size):
        found[j] = lapack.secular_root(j, poles, z, rho, distances[j])
    return found, distances


@pytest.mark.skipif(not IS_DIRECT, reason="the secular equation needs LAPACK")
def test_secular_roots_are_eigenvalues():
    rng = np.random.default_rng(0)
    poles, z = np.sort(rng.normal(size=6)), rng.normal(size=6)
    z /= np.linalg.norm(z)
    found, distances = roots(poles, z, 0.7)
    assert found == pytest.approx(np.linalg.eigvalsh(np.diag(poles) + 0.7 * np.outer(z, z)))
    assert distances == pytest.approx(poles - found[:, None], abs=1e-15)


@pytest.mark.slow
def test_everything_works_where_scipy_lacks_a_routine(tmp_path):
    code = (
        "import numba.extending\n"
        "def missing(*names):\n"
        "    raise ValueError\n"
        "numba.extending.get_cython_function_address = missing\n"
        "import numpy as np\n"
        "from fastltl import kernels, reference\n"
        "from fastltl._kernels.compilation import IS_DIRECT\n"
        "rng = np.random.default_rng(0)\n"
        "X, y = rng.normal(size=(3, 4)), rng.normal(size=3)\n"
        "loss, a, b = kernels.loss_and_factors(np.eye(4), X, y)\n"
        "V, values = np.eye(4), np.arange(4.0)\n"
        "kernels.rank_two_update(V, values, 4, a, b, 1.0)\n"
        "A = np.diag(np.arange(4.0)) + np.outer(a, b) + np.outer(b, a)\n"
        "print(IS_DIRECT, np.isclose(loss, reference.task_loss(np.eye(4), X, y)))\n"
        "print(np.allclose((V.T * values) @ V, A, rtol=1e-12))\n"
        "print(np.allclose(kernels.project(A, 2.0), reference.project(A, 2.0), rtol=1e-12))\n"
        "print(np.isclose(kernels.least_eigenvalue(A), values.min(), rtol=1e-12))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.split() == ["False"] + 4 * ["True"]


def test_routines_are_called_directly_unless_the_jit_is_off():
    assert bool(numba.config.DISABLE_JIT) != IS_DIRECT
