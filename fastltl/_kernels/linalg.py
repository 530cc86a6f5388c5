"""BLAS and LAPACK for compiled code, on matrices as C lays them out, without allocation.

Numba's own `np.dot` and `np.linalg` allocate every result and take seconds to compile. Here
compiled code calls SciPy's routines. Fortran reads a row-major matrix as its transpose, and a lower
triangle as an upper one.

With the JIT off such a call would silently do nothing. There, and where SciPy lacks a routine, the
same operations are NumPy's.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastltl._kernels.compilation import IS_DIRECT, ROUTINES, inlined, inner

#: OpenBLAS, the library of NumPy's and SciPy's wheels, starts threads for a product from 64^3
#: multiplications on, and for one by a triangle from far fewer.
LARGEST_UNTHREADED_SIDE = 64

EPS = float(np.finfo(np.float64).eps)

#: The norm of a matrix, or its inverse, below which squares of its entries may lose digits.
SMALLEST_TO_SQUARE = 1e-100

if IS_DIRECT:
    _dgemm, _dgemv, _dnrm2 = ROUTINES["dgemm"], ROUTINES["dgemv"], ROUTINES["dnrm2"]
    _dsymv = ROUTINES["dsymv"]
    _dsyrk, _dtrmm, _dtrsv = ROUTINES["dsyrk"], ROUTINES["dtrmm"], ROUTINES["dtrsv"]
    _dpotrf, _dpstrf, _dsyevd = ROUTINES["dpotrf"], ROUTINES["dpstrf"], ROUTINES["dsyevd"]
    _dsytrd, _dsterf = ROUTINES["dsytrd"], ROUTINES["dsterf"]
    _dstein, _dormtr = ROUTINES["dstein"], ROUTINES["dormtr"]
    _dgelqf, _dormlq = ROUTINES["dgelqf"], ROUTINES["dormlq"]
    _dgesdd, _dlaed4, _dlasrt = ROUTINES["dgesdd"], ROUTINES["dlaed4"], ROUTINES["dlasrt"]
    _N, _T, _U, _L, _V, _S, _D = (np.uint8(ord(letter)) for letter in "NTULVSD")

    def _reference(typingctx: Any, value: Any) -> Any:
        """A pointer to a copy of a scalar on the stack, as Fortran wants its arguments."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return cgutils.alloca_once_value(builder, args[0])

        return types.CPointer(value)(value), codegen

    def _integer_reference(typingctx: Any, value: Any) -> Any:
        """`_reference` to a whole number, as a Fortran integer."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            as_int32 = context.cast(builder, args[0], signature.args[0], types.int32)
            return cgutils.alloca_once_value(builder, as_int32)

        return types.CPointer(types.int32)(value), codegen

    _ref: Any = intrinsic(_reference)
    _int: Any = intrinsic(_integer_reference)

    @inlined
    def _gemm(B_form, A_form, n, m, k, B, B_width, A, A_width, C):
        """C <- A B, A or B transposed where Fortran is told the opposite."""
        _dgemm(
            _ref(B_form), _ref(A_form), _int(n), _int(m), _int(k), _ref(1.0),
            B.ctypes, _int(max(1, B_width)), A.ctypes, _int(max(1, A_width)),
            _ref(0.0), C.ctypes, _int(max(1, n)),
        )  # fmt: skip

    @inner
    def multiply(A, B, C):
        """C <- A B. Modified in place: C."""
        (m, k), n = A.shape, B.shape[1]
        _gemm(_N, _N, n, m, k, B, n, A, k, C)

    @inner
    def multiply_transposed(A, B, C):
        """C <- A B'. Modified in place: C."""
        (m, k), n = A.shape, B.shape[0]
        _gemm(_T, _N, n, m, k, B, k, A, k, C)

    @inner
    def transposed_multiply(A, B, C):
        """C <- A'B. Modified in place: C."""
        (k, m), n = A.shape, B.shape[1]
        _gemm(_N, _T, n, m, k, B, n, A, m, C)

    @inlined
    def _gemv(form, A, x, y):
        """y <- A x, or A'x where Fortran is told the opposite."""
        m, n = A.shape
        y[:] = 0.0  # where A has no rows BLAS leaves y as it was
        _dgemv(
            _ref(form), _int(n), _int(m), _ref(1.0), A.ctypes, _int(n), x.ctypes, _int(1),
            _ref(0.0), y.ctypes, _int(1),
        )  # fmt: skip

    @inner
    def apply(A, x, y):
        """y <- A x. Modified in place: y."""
        _gemv(_T, A, x, y)

    @inner
    def apply_transposed(A, x, y):
        """y <- A'x. Modified in place: y."""
        _gemv(_N, A, x, y)

    @inner
    def apply_symmetric(A, x, y):
        """y <- A x, reading A's lower triangle only. Modified in place: y."""
        n = x.size
        _dsymv(
            _ref(_U), _int(n), _ref(1.0), A.ctypes, _int(n), x.ctypes, _int(1), _ref(0.0),
            y.ctypes, _int(1),
        )  # fmt: skip

    @inner
    def length(x):
        """|x|, which neither overflows nor underflows on the way."""
        return _dnrm2(_int(x.size), x.ctypes, _int(1))

    @inner
    def add_gram(A, c, C):
        """C <- C + c A'A, its lower triangle only. Modified in place: C."""
        k, n = A.shape
        _dsyrk(
            _ref(_U), _ref(_N), _int(n), _int(k), _ref(c), A.ctypes, _int(n), _ref(1.0),
            C.ctypes, _int(n),
        )  # fmt: skip

    @inner
    def multiply_by_triangle(X, A):
        """X <- X L with L the lower triangle of A. Modified in place: X."""
        m, n = X.shape
        _dtrmm(
            _ref(_L), _ref(_U), _ref(_N), _ref(_N), _int(n), _int(m), _ref(1.0), A.ctypes,
            _int(n), X.ctypes, _int(n),
        )  # fmt: skip

    @inner
    def cholesky(A):
        """Replace the upper triangle of A = U'U by U; False if there is no U. In place: A."""
        n, info = A.shape[0], np.zeros(1, np.int32)
        _dpotrf(_ref(_L), _int(n), A.ctypes, _int(n), info.ctypes)
        return info[0] == 0

    @inner
    def pivoted_cholesky(A, pivots):
        """The numerical rank r of A, PSD, and r columns of L with L L' = A in the order of pivots.

        L is left in the lower triangle of A. Modified in place: both.
        """
        n, work = A.shape[0], np.empty(2 * A.shape[0])
        rank, info = np.zeros(1, np.int32), np.zeros(1, np.int32)
        _dpstrf(
            _ref(_U), _int(n), A.ctypes, _int(n), pivots.ctypes, rank.ctypes, _ref(-1.0),
            work.ctypes, info.ctypes,
        )  # fmt: skip
        for i in range(n):
            pivots[i] -= 1
        return rank[0]

    @inner
    def cholesky_solve(U, x):
        """x <- (U'U)^-1 x. Modified in place: x."""
        n = x.size
        for form in (_N, _T):
            _dtrsv(_ref(_L), _ref(form), _ref(_N), _int(n), U.ctypes, _int(n), x.ctypes, _int(1))

    @inner
    def eigh(A, values):
        """Replace A by its eigenvectors, as rows; values ascend. Modified in place: both."""
        n = values.size
        work, iwork = np.empty(1 + 6 * n + 2 * n * n), np.empty(3 + 5 * n, np.int32)
        info = np.zeros(1, np.int32)
        _dsyevd(
            _ref(_V), _ref(_U), _int(n), A.ctypes, _int(n), values.ctypes, work.ctypes,
            _int(work.size), iwork.ctypes, _int(iwork.size), info.ctypes,
        )  # fmt: skip
        if info[0] != 0:
            A[:], values[:] = np.nan, np.nan

    @inner
    def tridiagonalise(A, T):
        """Reduce A to the tridiagonal T. Modified in place: both."""
        n, work, info = A.shape[0], np.empty(32 * A.shape[0]), np.zeros(1, np.int32)
        _dsytrd(
            _ref(_L), _int(n), A.ctypes, _int(n), T[0].ctypes, T[1].ctypes, T[2].ctypes,
            work.ctypes, _int(work.size), info.ctypes,
        )  # fmt: skip

    @inner
    def tridiagonal_eigenvalues(A, T):
        """Of A, which was reduced to T, in ascending order; NaN if they are not found."""
        values, beside, info = T[0].copy(), T[1].copy(), np.zeros(1, np.int32)
        _dsterf(_int(values.size), values.ctypes, beside.ctypes, info.ctypes)
        if info[0] != 0:
            values[:] = np.nan
        return values

    @inner
    def eigenvectors(A, T, values, lo, hi):
        """Those of eigenvalues lo to hi, as rows; NaN if they are not found.

        They are found by inverse iteration, if the matrix has no blocks on its diagonal to which
        an eigenvalue belongs, and numbers that can be squared.
        """
        n, k = values.size, hi - lo
        vectors = np.empty((k, n))
        blocks, ends = np.ones(n, np.int32), np.full(n, n, np.int32)
        # With this much room dormtr works in blocks, which pays for large matrices only.
        room_for_blocks = 32 * k + 4160 if n > LARGEST_UNTHREADED_SIDE else k
        work, iwork = np.empty(5 * n + room_for_blocks), np.empty(n, np.int32)
        failed, info = np.empty(n, np.int32), np.zeros(1, np.int32)
        largest = max(abs(values[0]), abs(values[-1]))
        is_whole = SMALLEST_TO_SQUARE < largest < 1.0 / SMALLEST_TO_SQUARE
        for i in range(n - 1):
            is_whole = is_whole and abs(T[1, i]) > EPS * (abs(T[0, i]) + abs(T[0, i + 1]))
        if is_whole:
            _dstein(
                _int(n), T[0].ctypes, T[1].ctypes, _int(k), values[lo:hi].ctypes, blocks.ctypes,
                ends.ctypes, vectors.ctypes, _int(n), work.ctypes, iwork.ctypes, failed.ctypes,
                info.ctypes,
            )  # fmt: skip
        if not is_whole or info[0] != 0:
            vectors[:] = np.nan
            return vectors
        _dormtr(
            _ref(_L), _ref(_L), _ref(_N), _int(n), _int(k), A.ctypes, _int(n), T[2].ctypes,
            vectors.ctypes, _int(n), work.ctypes, _int(work.size), info.ctypes,
        )  # fmt: skip
        return vectors

    @inner
    def triangularise(X, y):
        """With X = Q R of n >= d rows: X's first d rows <- R, y <- Q'y. Modified in place: both."""
        n, d = X.shape
        tau, work, info = np.empty(d), np.empty(64 * n), np.zeros(1, np.int32)
        _dgelqf(
            _int(d), _int(n), X.ctypes, _int(d), tau.ctypes, work.ctypes, _int(work.size),
            info.ctypes,
        )  # fmt: skip
        _dormlq(
            _ref(_L), _ref(_N), _int(n), _int(1), _int(d), X.ctypes, _int(d), tau.ctypes,
            y.ctypes, _int(n), work.ctypes, _int(work.size), info.ctypes,
        )  # fmt: skip
        for i in range(d):
            X[i, :i] = 0.0

    @inner
    def svd(X):
        """U, s and V' of X = U diag(s) V', with min(n, d) singular values. X is destroyed."""
        n, d = X.shape
        k = min(n, d)
        U, s, Vt = np.empty((n, k)), np.empty(k), np.empty((k, d))
        work, iwork = np.empty(5 * k * k + 64 * (n + d)), np.empty(8 * k, np.int32)
        info = np.zeros(1, np.int32)
        _dgesdd(
            _ref(_S), _int(d), _int(n), X.ctypes, _int(d), s.ctypes, Vt.ctypes, _int(d),
            U.ctypes, _int(k), work.ctypes, _int(work.size), iwork.ctypes, info.ctypes,
        )  # fmt: skip
        if info[0] != 0:
            U[:], s[:], Vt[:] = np.nan, np.nan, np.nan
        return U, s, Vt

    @inner
    def sort_descending(x):
        """Sort x. Modified in place."""
        info = np.zeros(1, np.int32)
        _dlasrt(_ref(_D), _int(x.size), x.ctypes, info.ctypes)

    @inner
    def secular_root(j, poles, z, rho, distances):
        """The j-th root r of 1 + rho sum_i z_i^2 / (poles_i - r) = 0; NaN if it is not found.

        The poles ascend, rho > 0 and |z| = 1, neither large nor small. `distances` <- poles - r,
        each to full precision; of one or two poles, the eigenvector instead.
        """
        root, info = np.empty(1), np.zeros(1, np.int32)
        _dlaed4(
            _int(poles.size), _int(j + 1), poles.ctypes, z.ctypes, distances.ctypes, _ref(rho),
            root.ctypes, info.ctypes,
        )  # fmt: skip
        return root[0] if info[0] == 0 else np.nan

else:

    @inner
    def multiply(A, B, C):
        C[:] = np.dot(A, B)

    @inner
    def multiply_transposed(A, B, C):
        C[:] = np.dot(A, B.T)

    @inner
    def transposed_multiply(A, B, C):
        C[:] = np.dot(A.T, B)

    @inner
    def apply(A, x, y):
        y[:] = np.dot(A, x)

    @inner
    def apply_transposed(A, x, y):
        y[:] = np.dot(x, A)

    @inner
    def apply_symmetric(A, x, y):
        y[:] = np.dot(np.tril(A) + np.tril(A, -1).T, x)

    @inner
    def length(x):
        largest = np.max(np.abs(x)) if x.size else 0.0
        if not 0.0 < largest < np.inf:
            return largest
        return largest * np.sqrt(np.sum((x / largest) ** 2))

    @inner
    def add_gram(A, c, C):
        C += c * np.tril(np.dot(A.T, A))

    @inner
    def multiply_by_triangle(X, A):
        X[:] = np.dot(X, np.tril(A))

    @inner
    def cholesky(A):
        try:
            A[:] = np.linalg.cholesky(A.T).T
        except Exception:  # a LinAlgError, which Numba can catch under no narrower name
            return False
        return np.all(np.diag(A) > 0.0)  # which NaN is not

    @inner
    def pivoted_cholesky(A, pivots):
        for i in range(pivots.size):
            pivots[i] = i
        return A.shape[0]  # as if A had full rank, which serves any A

    @inner
    def cholesky_solve(U, x):
        U = np.triu(U)
        x[:] = np.linalg.solve(U, np.linalg.solve(U.T, x))

    @inner
    def eigh(A, values):
        w, V = np.linalg.eigh(A)
        values[:] = w
        A[:] = V.T

    @inner
    def tridiagonalise(A, T):
        pass  # the others make no use of it

    @inner
    def tridiagonal_eigenvalues(A, T):
        return np.linalg.eigvalsh(A)

    @inner
    def eigenvectors(A, T, values, lo, hi):
        return np.ascontiguousarray(np.linalg.eigh(A)[1].T[lo:hi])

    @inner
    def triangularise(X, y):
        d = X.shape[1]
        Q, R = np.linalg.qr(X)
        z = np.dot(np.ascontiguousarray(Q.T), y)
        misfit = y - np.dot(np.ascontiguousarray(Q), z)
        X[:d] = R
        y[:d] = z
        y[d:] = np.sqrt(np.dot(misfit, misfit) / max(1, y.size - d))

    @inner
    def svd(X):
        return np.linalg.svd(X, False)

    @inner
    def sort_descending(x):
        x[:] = np.sort(x)[::-1]

    @inner
    def secular_root(j, poles, z, rho, distances):
        return np.nan
