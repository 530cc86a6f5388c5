"""Tridiagonal matrices: the same eigenvalues, and reflections that lead back."""

import numpy as np
import pytest
from naive import random_psd, relative

from fastltl import kernels, lapack
from fastltl._kernels import tridiagonal
from fastltl._kernels.compilation import IS_DIRECT, compiled

pytestmark = pytest.mark.skipif(not IS_DIRECT, reason="without LAPACK there are none")

#: Around multiples of a tile's side, and the largest that is done in tiles.
SIDES = [*range(1, 20), 50, 63, 64, 65, 127, 128, 129]


@compiled
def tridiagonalise(A, T):
    return tridiagonal.tridiagonalise(A, T)


@compiled
def eigenpairs(A, T):
    values = tridiagonal.eigenvalues(A, T)
    return values, lapack.eigenvectors(A, T, values, 0, values.size)


def reduced(A):
    """T as a matrix, and Q from the reflections: A = Q T Q'."""
    n = len(A)
    reflections, T = A.copy(), np.zeros((3, n))
    unit = tridiagonalise(reflections, T)
    Q = np.eye(n)
    for k in range(n - 1):
        v = np.concatenate([np.zeros(k + 1), [1.0], reflections[k, k + 2 :]])
        Q -= T[2, k] * np.outer(Q @ v, v)
    beside = np.diag(T[1, :-1], 1)
    return unit * (np.diag(T[0]) + beside + beside.T), Q


def symmetric(n, seed=0):
    A = np.random.default_rng(seed).normal(size=(n, n))
    return A + A.T


@pytest.mark.parametrize("n", SIDES)
def test_reflections_lead_back(n):
    A = symmetric(n)
    T, Q = reduced(A)
    assert np.abs(Q.T @ Q - np.eye(n)).max() < 1e-14 * max(10, n)
    assert relative(Q @ T @ Q.T, A) < 1e-14


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-120, 1.0, 1e120, 1e160, 1e300])
def test_on_any_scale(size):
    A = symmetric(21)
    T, Q = reduced(size * A)
    assert relative(Q @ (T / size) @ Q.T, A) < 1e-14


@pytest.mark.parametrize(
    "A",
    [
        np.zeros((9, 9)),
        np.diag(np.arange(9.0)),
        np.ones((9, 9)),
        np.kron(np.eye(3), np.ones((3, 3))),
        np.diag(np.ones(8), 1) + np.diag(np.ones(8), -1),
        random_psd(np.random.default_rng(0), 30, 3),
        symmetric(30) * np.logspace(-100, 0, 30) * np.logspace(-100, 0, 30)[:, None],
    ],
    ids=["zero", "diagonal", "ones", "blocks", "tridiagonal", "low rank", "graded"],
)
def test_where_there_is_little_to_reflect(A):
    T, Q = reduced(A)
    assert np.abs(Q @ T @ Q.T - A).max() <= 1e-14 * np.abs(A).max()
    assert np.abs(Q.T @ Q - np.eye(len(A))).max() < 1e-14


@pytest.mark.parametrize("exponent", range(-170, -80, 3))
def test_a_feature_of_next_to_no_size(exponent):
    """Squares of its entries lose digits, which must cost the others none."""
    A = symmetric(10)
    A[0, 1:] *= 10.0**exponent
    A[1:, 0] *= 10.0**exponent
    T, Q = reduced(A)
    assert np.abs(Q.T @ Q - np.eye(10)).max() < 1e-14
    assert np.abs(Q @ T @ Q.T - A).max() < 1e-14 * np.abs(A).max()


@pytest.mark.parametrize("n", [2, 5, 50, 129])
def test_eigenpairs(n):
    A = symmetric(n)
    values, vectors = eigenpairs(A.copy(), np.zeros((3, n)))
    assert relative(values, np.linalg.eigvalsh(A)) < 1e-14
    assert relative((vectors.T * values) @ vectors, A) < 1e-13


@pytest.mark.parametrize("n", SIDES)
def test_the_least_eigenvalue_alone_or_among_equals(n):
    rng = np.random.default_rng(n)
    V = np.linalg.qr(rng.normal(size=(n, n)))[0]
    for values in (
        rng.normal(size=n),
        np.where(np.arange(n) < 0.7 * n, -1.0, rng.random(n)),
        np.full(n, 3.0),
        -np.logspace(-20, 0, n),
        np.logspace(-20, 0, n),
        np.zeros(n),
    ):
        A = (V * values) @ V.T
        least = kernels.least_eigenvalue((A + A.T) / 2)
        assert abs(least - values.min()) <= 1e-15 * max(10, n) * np.abs(values).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad):
    for i, j in [(0, 0), (3, 4), (9, 9), (0, 9)]:
        A = symmetric(10)
        A[i, j] = A[j, i] = bad
        assert not np.isfinite(reduced(A)[0]).all()
        assert np.isnan(kernels.least_eigenvalue(A))
