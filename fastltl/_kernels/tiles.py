"""Products, Cholesky factors and solves of small matrices, in tiles that stay in registers.

BLAS copies blocks of its operands before it multiplies them, which pays for large matrices only:
a product of 20 x 50 by 50 x 50 runs at half the rate of one ten times the size. Here a tile of
the result is held in vector registers while the operands pass by.
"""

import numpy as np

from fastltl._kernels import linalg as lapack
from fastltl._kernels.compilation import HAS_JIT, inlined, inner
from fastltl._kernels.linalg import LARGEST_UNTHREADED_SIDE
from fastltl._kernels.registers import (
    COLUMNS,
    LANES,
    PAIR_COLUMNS,
    PRODUCT_ROWS,
    ROWS,
    add_transposed_tile,
    diagonal_tile,
    narrow_product,
    narrow_tile,
    pair_tile,
    step_tile,
    sweep_back,
    sweep_on,
    transpose_tile,
    wide_product,
    wide_tile,
)

#: Sides up to which a product or a factor is faster in tiles than from BLAS and LAPACK.
LARGEST_PRODUCT = 64
LARGEST_FACTOR = 256


@inlined
def _fits(m, k, n):
    """Whether the product of an m x k and a k x n matrix is for tiles."""
    small = m <= LARGEST_PRODUCT and k <= LARGEST_PRODUCT and n <= LARGEST_PRODUCT
    return HAS_JIT and small and m >= PRODUCT_ROWS and n >= COLUMNS


@inlined
def _multiply_rows(A, B, C, i, first):
    """C[i : i + PRODUCT_ROWS, first:] <- A B there. The last tile overlaps the one before."""
    n = B.shape[1]
    for j in range(first, n, COLUMNS):
        if n - j > LANES:
            wide_product(A, B, C, i, min(j, n - COLUMNS), 0, 0)
        else:
            narrow_product(A, B, C, i, n - LANES, 0, 0)


@inner
def multiply(A, B, C):
    """C <- A B. Modified in place: C."""
    m = A.shape[0]
    if not _fits(m, A.shape[1], B.shape[1]):
        lapack.multiply(A, B, C)
        return
    for i in range(0, m, PRODUCT_ROWS):
        _multiply_rows(A, B, C, min(i, m - PRODUCT_ROWS), 0)


@inner
def transposed(A):
    """A copy of A'."""
    m, n = A.shape
    At = np.empty((n, m))
    if HAS_JIT and m >= LANES and n >= LANES:
        for i in range(0, m, LANES):
            for j in range(0, n, LANES):
                transpose_tile(A, At, min(i, m - LANES), min(j, n - LANES))
    else:
        for i in range(m):
            for j in range(n):
                At[j, i] = A[i, j]
    return At


@inner
def add_transposed(A):
    """The upper triangle, at least, of A <- A + A'. Modified in place."""
    n = A.shape[0]
    first = n % LANES if HAS_JIT else n
    for i in range(first):
        for j in range(i, n):
            A[i, j] += A[j, i]
    for i in range(first, n, LANES):
        for j in range(i, n, LANES):
            add_transposed_tile(A, A, j, i)


@inlined
def multiply_transposed(A, B, C):
    """C <- A B'. Modified in place: C."""
    if _fits(A.shape[0], A.shape[1], B.shape[0]):
        multiply(A, transposed(B), C)
    else:
        lapack.multiply_transposed(A, B, C)


@inlined
def _multiply_to_upper(A, B, C):
    """The tiles of C <- A B, a square matrix, that touch its upper triangle."""
    n = A.shape[0]
    for i in range(0, n, PRODUCT_ROWS):
        row = min(i, n - PRODUCT_ROWS)
        _multiply_rows(A, B, C, row, row // COLUMNS * COLUMNS)


@inner
def multiply_to_symmetric(A, B, C):
    """The upper triangle, at least, of C <- A B', which is symmetric. Modified in place: C."""
    n, k = A.shape
    if _fits(n, k, n):
        _multiply_to_upper(A, transposed(B), C)
    else:
        lapack.multiply_transposed(A, B, C)


@inner
def multiply_to_gram(A, C):
    """The upper triangle, at least, of C <- A'A. Modified in place: C."""
    k, n = A.shape
    if _fits(n, k, n):
        _multiply_to_upper(transposed(A), A, C)
    else:
        lapack.transposed_multiply(A, A, C)


@inlined
def kept_columns(i, d):
    """Where row i of a symmetric matrix ends, of which no more is kept than is made use of.

    That is the lower triangle, and square blocks on the diagonal.
    """
    return min(d, (i // COLUMNS + 1) * COLUMNS)


@inner
def multiply_by_half(X, D, C):
    """C <- X H, with some H for which D = H + H'. Modified in place: C.

    In tiles H is what D has below square blocks on the diagonal, and half of these: half the work
    of X D. Otherwise it is the lower triangle less half the diagonal, by which BLAS multiplies if D
    is large (in threads of its own, so that a small D is not for it).
    """
    m, d = X.shape
    if d > LARGEST_UNTHREADED_SIDE or not HAS_JIT:
        half = np.empty(d)
        for j in range(d):
            half[j] = 0.5 * D[j, j]
        for i in range(m):
            for j in range(d):
                C[i, j] = X[i, j]
        lapack.multiply_by_triangle(C, D)
        for i in range(m):
            for j in range(d):
                C[i, j] -= half[j] * X[i, j]
    elif _fits(m, d, d):
        # Where the last tile overlaps the one before, it is that one which has the last word.
        for j in range((d - 1) // COLUMNS * COLUMNS, -1, -COLUMNS):
            for i in range(0, m, PRODUCT_ROWS):
                row = min(i, m - PRODUCT_ROWS)
                if d - j > LANES:
                    wide_product(X, D, C, row, min(j, d - COLUMNS), j, min(j + COLUMNS, d))
                else:
                    narrow_product(X, D, C, row, d - LANES, j, d)
    else:
        for i in range(m):
            for k in range(d):
                for j in range(k):
                    C[i, j] += X[i, k] * D[k, j]
                C[i, k] = 0.5 * X[i, k] * D[k, k]


@inner
def add_then_step(total, A, a, b, c):
    """total <- total + A, and then A <- A + c (a b' + b a'), symmetric matrices.

    Each row counts up to `kept_columns` only. In one pass: together they are larger than
    the fastest cache. Modified in place: `total`, A.
    """
    d = a.size
    whole = d - d % ROWS if HAS_JIT else 0
    for i in range(0, whole, ROWS):
        step_tile(total, A, a, b, c, i, min(kept_columns(i, d), whole))
    for i in range(whole, d):
        for j in range(i + 1):
            total[i, j] += A[i, j]
            A[i, j] += (c * a[i]) * b[j] + b[i] * (c * a[j])
        for j in range(i // COLUMNS * COLUMNS, i):
            A[j, i] = A[i, j]


@inner
def apply_transposed_to_both(X, u, v, a, b):
    """a <- X'u and b <- X'v, reading X once if it is small. Modified in place: a and b."""
    d = X.shape[1]
    if HAS_JIT and PAIR_COLUMNS <= d <= LARGEST_PRODUCT:
        for j in range(0, d, PAIR_COLUMNS):
            pair_tile(X, u, v, a, b, min(j, d - PAIR_COLUMNS))
    else:
        lapack.apply_transposed(X, u, a)
        lapack.apply_transposed(X, v, b)


@inner
def cholesky(A):
    """Replace the upper triangle of A = U'U by U; False if there is no U. In place: A."""
    n = A.shape[0]
    if not HAS_JIT or n > LARGEST_FACTOR:
        return lapack.cholesky(A)
    first = n % ROWS
    for k in range(first):
        for q in range(k):
            for j in range(k, n):
                A[k, j] -= A[q, k] * A[q, j]
        if not A[k, k] > 0.0:
            return False
        root = np.sqrt(A[k, k])
        for j in range(k, n):
            A[k, j] /= root
    for i in range(first, n, ROWS):
        if not diagonal_tile(A, i, i):
            return False
        j = i + ROWS
        if (n - j) % COLUMNS > 0:
            narrow_tile(A, i, j)
            j += LANES
        for k in range(j, n, COLUMNS):
            wide_tile(A, i, k)
    return True


@inner
def cholesky_solve(U, x):
    """x <- (U'U)^-1 x, four unknowns at a time. Modified in place: x.

    Inverses of pivots, unlike quotients by them, need not wait for the unknowns before.
    """
    n = x.size
    if not HAS_JIT or n > LARGEST_FACTOR:
        lapack.cholesky_solve(U, x)
        return
    first = n % ROWS
    for k in range(first):
        x[k] /= U[k, k]
        for j in range(k + 1, n):
            x[j] -= U[k, j] * x[k]
    for k in range(first, n, ROWS):
        p, q, r, s = U[k], U[k + 1], U[k + 2], U[k + 3]
        a = x[k] * (1.0 / p[k])
        b = (x[k + 1] - p[k + 1] * a) * (1.0 / q[k + 1])
        c = (x[k + 2] - p[k + 2] * a - q[k + 2] * b) * (1.0 / r[k + 2])
        d = (x[k + 3] - p[k + 3] * a - q[k + 3] * b - r[k + 3] * c) * (1.0 / s[k + 3])
        x[k], x[k + 1], x[k + 2], x[k + 3] = a, b, c, d
        sweep_on(U, x, k)
    for k in range(n - ROWS, first - 1, -ROWS):
        sweep_back(U, x, k)
        p, q, r, s = U[k], U[k + 1], U[k + 2], U[k + 3]
        d = x[k + 3] * (1.0 / s[k + 3])
        c = (x[k + 2] - r[k + 3] * d) * (1.0 / r[k + 2])
        b = (x[k + 1] - q[k + 2] * c - q[k + 3] * d) * (1.0 / q[k + 1])
        a = (x[k] - p[k + 1] * b - p[k + 2] * c - p[k + 3] * d) * (1.0 / p[k])
        x[k], x[k + 1], x[k + 2], x[k + 3] = a, b, c, d
    for k in range(first - 1, -1, -1):
        for j in range(k + 1, n):
            x[k] -= U[k, j] * x[j]
        x[k] /= U[k, k]
