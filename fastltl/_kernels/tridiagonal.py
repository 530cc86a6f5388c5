"""Eigenvalues, all or the least, and some eigenvectors, by way of a tridiagonal matrix.

A = Q T Q' with T symmetric and tridiagonal. T is three rows of numbers: its diagonal, what is
beside it, and the factors tau of the reflections I - tau v v' that Q is the product of. Their
vectors v begin with 1, and what follows in the k-th is left in A[k, k + 2 :], as LAPACK has it.
"""

import numpy as np

from fastltl._kernels import linalg as lapack
from fastltl._kernels.compilation import IS_DIRECT, inlined, inner
from fastltl._kernels.linalg import EPS, SMALLEST_TO_SQUARE
from fastltl._kernels.registers import ROWS, reduction_tile

#: Side up to which tiles are faster than LAPACK.
LARGEST_REDUCTION = 128

#: How many numbers the least eigenvalue is compared with at a time.
SECTIONS = 16

#: The squared length below which a row counts as zero: digits are lost, and it is next to nothing
#: beside an entry that comes to SMALLEST_TO_SQUARE.
SMALLEST_TO_REFLECT = 1e-290


@inner
def tridiagonalise(A, T):
    """Replace A by reflections, and T by what they leave, in units of what is returned.

    Both are modified in place. A reflection turns A into A - v w' - w v'. That is left for the pass
    in which A is multiplied by the next v.
    """
    n, unit = A.shape[0], unit_of(A)
    if not IS_DIRECT or n > LARGEST_REDUCTION:
        A /= unit
        lapack.tridiagonalise(A, T)
        return unit
    width = (n + ROWS - 1) // ROWS * ROWS
    B, vectors = np.zeros((width, width)), np.zeros((4, width))
    for i in range(n):
        for j in range(n):
            B[i, j] = A[i, j] * (1.0 / unit)
    v, w, x, y = vectors[0], vectors[1], vectors[2], vectors[3]
    for k in range(n):
        row = B[k]
        for j in range(k, n):
            row[j] -= v[k] * w[j] + w[k] * v[j]
        T[0, k] = row[k]
        if k == n - 1:
            break
        T[1, k], tau = reflection(row, k + 1, n, x)
        T[2, k] = tau
        for j in range(k + 2, n):
            A[k, j] = x[j]
        first = (k + 1) // ROWS * ROWS
        y[first:] = 0.0
        for i in range(first, width, ROWS):
            reduction_tile(B, v, w, x, y, i, first)
        along = 0.5 * tau * np.dot(x[k + 1 : n], y[k + 1 : n])
        v[k] = w[k] = 0.0
        for j in range(k + 1, n):
            v[j], w[j] = x[j], tau * (y[j] - along * x[j])
        x[k + 1] = 0.0
    return unit


@inlined
def unit_of(A):
    """A power of two, in units of which A has entries that can be squared, and none too large."""
    numbers, largest, n_large, n_fit = A.ravel(), 0.0, 0, 0
    for x in numbers:  # which takes far less time than finding the largest
        n_large += not abs(x) < 1.0 / SMALLEST_TO_SQUARE
        n_fit += abs(x) > SMALLEST_TO_SQUARE
    if n_fit > 0 and n_large == 0:
        return 1.0
    for x in numbers:
        largest = max(largest, abs(x))
    return 2.0 ** np.floor(np.log2(largest)) if 0.0 < largest < np.inf else 1.0


@inlined
def reflection(row, first, n, v):
    """The number b and the tau with which I - tau v v' turns row[first:n] into (b, 0, ..., 0).

    v[first:n] <- its vector, which begins with 1.
    """
    square, alpha = np.dot(row[first + 1 : n], row[first + 1 : n]), row[first]
    v[first] = 1.0
    if square < SMALLEST_TO_REFLECT:
        v[first + 1 : n] = 0.0
        return alpha, 0.0
    beta = -np.copysign(np.sqrt(alpha * alpha + square), alpha)
    for j in range(first + 1, n):
        v[j] = row[j] / (alpha - beta)
    return beta, (beta - alpha) / beta


@inner
def eigenvalues(A, T):
    """In ascending order. T, of three rows, and A <- what `lapack.eigenvectors` makes use of."""
    unit = tridiagonalise(A, T)
    values = lapack.tridiagonal_eigenvalues(A, T)
    values *= unit
    T[:2] *= unit
    return values


@inner
def least_eigenvalue(A):
    """Of a symmetric A, which is destroyed; NaN if A is not finite."""
    T = np.zeros((3, A.shape[0]))
    unit = tridiagonalise(A, T)
    least = least_by_sections(T) if IS_DIRECT else lapack.tridiagonal_eigenvalues(A, T)[0]
    return unit * least


@inlined
def least_by_sections(T):
    """The least eigenvalue of T, to rounding next to the largest.

    It is below x just if a pivot of T - x I is negative, q_i = d_i - x - e_i^2 / q_(i-1). That is
    asked for many x at a time, as many as vectors hold while a quotient is on its way.
    """
    n, low, high, norm, total = T.shape[1], np.inf, np.inf, 0.0, 0.0
    for i in range(n):
        beside = (abs(T[1, i]) if i < n - 1 else 0.0) + (abs(T[1, i - 1]) if i > 0 else 0.0)
        low, high = min(low, T[0, i] - beside), min(high, T[0, i])
        norm = max(norm, abs(T[0, i]) + beside)
        total += abs(T[0, i]) + beside
    if not np.isfinite(total):
        return np.nan
    low -= n * EPS * norm
    x, q, n_negative = np.empty(SECTIONS), np.empty(SECTIONS), np.empty(SECTIONS, np.int64)
    while high - low > 2.0 * EPS * norm:
        for s in range(SECTIONS):
            x[s] = low + (high - low) * ((s + 1.0) / (SECTIONS + 1.0))
            q[s], n_negative[s] = np.inf, 0
        for i in range(n):
            square = T[1, i - 1] * T[1, i - 1] if i > 0 else 0.0
            for s in range(SECTIONS):
                pivot = T[0, i] - x[s] - square / q[s]
                q[s] = pivot if abs(pivot) > EPS * EPS * norm else -EPS * EPS * norm
                n_negative[s] += q[s] < 0.0
        first = 0
        while first < SECTIONS and n_negative[first] == 0:
            first += 1
        if first > 0:
            low = x[first - 1]
        if first < SECTIONS:
            high = x[first]
    return 0.5 * (low + high)
