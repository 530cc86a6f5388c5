"""Compare the LAPACK routines that kernels call directly with NumPy."""

import numpy as np
import pytest
from naive import random_psd, relative

from fastltl._kernels.linalg import (
    HAS_JIT,
    add_gram,
    cholesky,
    cholesky_solve,
    kernel,
    secular_root,
    tridiagonal_eigenvalues,
    tridiagonal_eigenvectors,
    tridiagonal_form,
)
from fastltl._kernels.spectral import pivoted_cholesky
from fastltl._kernels.task import all_finite, assign, mirror


@pytest.mark.parametrize("d", [1, 2, 9, 60])
def test_cholesky_solve_agrees_with_numpy(d):
    rng = np.random.default_rng(d)
    A, b = random_psd(rng, d) + np.eye(d), rng.normal(size=d)
    L, x = A.copy(), b.copy()
    assert cholesky(L)
    assert relative(np.tril(L) @ np.tril(L).T, A) < 1e-14
    cholesky_solve(L, x)
    assert relative(x, np.linalg.solve(A, b)) < 1e-12


@pytest.mark.parametrize("A", [-np.eye(3), np.zeros((2, 2))], ids=str)
def test_cholesky_returns_false_unless_positive_definite(A):
    assert not cholesky(A.copy())


def test_add_gram_changes_the_lower_triangle_only():
    A, C = np.random.default_rng(0).normal(size=(3, 4)), np.ones((4, 4))
    add_gram(A, -0.5, C)
    assert relative(np.tril(C), np.tril(1 - 0.5 * A.T @ A)) < 1e-14
    assert (C[np.triu_indices(4, 1)] == 1).all()


@pytest.mark.parametrize("d", [1, 2, 9, 60, 130])
def test_tridiagonal_eigenvectors_of_a_range_of_eigenvalues(d):
    rng = np.random.default_rng(d)
    A = rng.normal(size=(d, d))
    A = A + A.T
    reduced = A.copy()
    T = tridiagonal_form(reduced)
    values = tridiagonal_eigenvalues(reduced, T)
    assert values == pytest.approx(np.linalg.eigvalsh(A), abs=1e-13 * d)
    for lo, hi in ((0, d), (0, (d + 1) // 2), (d // 2, d)):
        V = tridiagonal_eigenvectors(reduced, T, values, lo, hi)
        assert np.abs(V @ V.T - np.eye(hi - lo)).max() < 1e-12
        assert np.abs(V @ A - values[lo:hi, None] * V).max() < 1e-12 * d


@pytest.mark.skipif(not HAS_JIT, reason="without the JIT, NumPy computes the eigenvectors")
@pytest.mark.parametrize("A", [np.diag([1.0, 2.0, 3.0]), 1e-150 * np.ones((3, 3))], ids=str)
def test_tridiagonal_eigenvectors_are_nan_if_inverse_iteration_may_fail(A):
    reduced = A.copy()
    T = tridiagonal_form(reduced)
    values = tridiagonal_eigenvalues(reduced, T)
    assert np.isnan(tridiagonal_eigenvectors(reduced, T, values, 0, 2)).all()


@pytest.mark.skipif(not HAS_JIT, reason="the secular equation needs LAPACK")
def test_secular_roots_equal_eigenvalues():
    rng = np.random.default_rng(0)
    poles, z = np.sort(rng.normal(size=6)), rng.normal(size=6)
    z /= np.linalg.norm(z)
    distances = np.empty((6, 6))
    roots = np.array([secular_root(j, poles, z, 0.7, distances[j]) for j in range(6)])
    assert roots == pytest.approx(np.linalg.eigvalsh(np.diag(poles) + 0.7 * np.outer(z, z)))
    assert distances == pytest.approx(poles - roots[:, None], abs=1e-15)


def test_number_of_rows_of_pivoted_cholesky_equals_rank():
    rng = np.random.default_rng(0)
    for rank in (0, 1, 3, 8):
        B = rng.normal(size=(rank, 8))
        F = pivoted_cholesky(B.T @ B)
        assert F.shape == (rank, 8)
        assert np.linalg.norm(F.T @ F - B.T @ B) <= 1e-13 * np.linalg.norm(B) ** 2


def test_mirror_assign_and_all_finite():
    A = np.arange(9.0).reshape(3, 3)
    mirror(A)
    assert np.array_equal(A, A.T)
    target = np.zeros((2, 3))
    assign(target, np.ones((2, 3)))
    assert (target == 1).all()
    assert all_finite(A)
    assert not all_finite(np.array([1.0, np.inf]))
    assert not all_finite(np.array([[np.nan]]))


@kernel
def empty_products(A, x):
    return np.dot(x, A), np.dot(A.T, A)


def test_products_of_empty_matrices_are_zero():
    y, gram = empty_products(np.zeros((0, 4)), np.zeros(0))
    assert not y.any()
    assert not gram.any()
