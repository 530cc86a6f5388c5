"""Products, Cholesky factors and solves of small matrices, in tiles that stay in registers.

BLAS copies blocks of its operands before it multiplies them, which pays for large matrices only:
a product of 20 x 50 by 50 x 50 runs at half the rate of one ten times the size. Here a tile of
the result is held in vector registers while the operands pass by. It is written in the vector
instructions of LLVM, of any processor, since compilers do not find it in loops over numbers.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fastltl import lapack
from fastltl.lapack import HAS_JIT, LARGEST_UNTHREADED_SIDE, inlined, inner

#: Numbers in a vector.
LANES = 4

#: Rows and columns of a tile: of five by two vectors in a product, four by two in a factor, so
#: that registers are left for the operands.
PRODUCT_ROWS = 5
ROWS = 4
COLUMNS = 8

#: Sides up to which a product or a factor is faster in tiles than from BLAS and LAPACK.
LARGEST_PRODUCT = 64
LARGEST_FACTOR = 256

_vector = ir.VectorType(ir.DoubleType(), LANES)
_index = ir.IntType(64)


class _Matrix:
    """A C-contiguous matrix of compiled code, or a vector as row 0, to be loaded and stored."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self.builder, self.data = builder, array.data
        self.n_columns = cgutils.unpack_tuple(builder, array.shape)[-1]

    def _at(self, i: Any, j: Any) -> Any:
        builder = self.builder
        return builder.gep(self.data, [builder.add(builder.mul(i, self.n_columns), j)])

    def number(self, i: Any, j: Any) -> Any:
        return self.builder.load(self._at(i, j))

    def _vectors_at(self, i: Any, j: Any, n_vectors: int) -> list[Any]:
        first = self._at(i, j)
        places = [self.builder.gep(first, [_index(LANES * v)]) for v in range(n_vectors)]
        return [self.builder.bitcast(place, _vector.as_pointer()) for place in places]

    def put_number(self, i: Any, j: Any, number: Any) -> None:
        self.builder.store(number, self._at(i, j))

    def vectors(self, i: Any, j: Any, n_vectors: int) -> list[Any]:
        return [self.builder.load(at, align=8) for at in self._vectors_at(i, j, n_vectors)]

    def put(self, i: Any, j: Any, vectors: list[Any]) -> None:
        for vector, at in zip(vectors, self._vectors_at(i, j, len(vectors)), strict=True):
            self.builder.store(vector, at, align=8)


def _spread(builder: Any, number: Any) -> Any:
    """A vector of the same number."""
    nothing, first = ir.Constant(_vector, ir.Undefined), ir.IntType(32)(0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    alone = builder.insert_element(nothing, number, first)
    return builder.shuffle_vector(alone, nothing, everywhere)


def _call(builder: Any, name: str, kind: Any, arguments: list[Any], **flags: Any) -> Any:
    """What a function of LLVM's own returns, a value of this kind."""
    signature = ir.FunctionType(kind, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, arguments, **flags)


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, with one rounding where the processor can."""
    return _call(builder, f"llvm.fmuladd.v{LANES}f64", _vector, [x, y, z])


def _add_multiple(builder: Any, row: list[Any], number: Any, other: list[Any]) -> list[Any]:
    """row + number * other."""
    factor = _spread(builder, number)
    return [_fused(builder, factor, y, x) for x, y in zip(row, other, strict=True)]


def _accumulate(
    builder: Any, rows: list[list[Any]], start: Any, stop: Any, term: Any
) -> list[list[Any]]:
    """Rows of a tile after multiples of others were added: term(k) is (numbers, row)."""
    kept = [[cgutils.alloca_once_value(builder, x) for x in row] for row in rows]

    def held() -> list[list[Any]]:
        return [[builder.load(x) for x in row] for row in kept]

    with cgutils.for_range_slice(builder, start, stop, _index(1), _index, inc=True) as (k, _):
        numbers, other = term(k)
        for row, number, places in zip(held(), numbers, kept, strict=True):
            for x, place in zip(_add_multiple(builder, row, number, other), places, strict=True):
                builder.store(x, place)
    return held()


def _product_tile(n_columns: int) -> Any:
    """An intrinsic for C[i : i + PRODUCT_ROWS, j : j + n_columns] <- A B there.

    Of the sum over k, terms before `first` are left out and those before `full` are halved.
    """

    def tile(typingctx: Any, A: Any, B: Any, C: Any, i: Any, j: Any, first: Any, full: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            A, B, C = (
                _Matrix(context, builder, kind, value)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            )
            i, j, first, full = arguments[3:]
            rows = [builder.add(i, _index(r)) for r in range(PRODUCT_ROWS)]
            n_vectors = n_columns // LANES

            def term(k: Any) -> tuple[list[Any], list[Any]]:
                return [A.number(row, k) for row in rows], B.vectors(k, j, n_vectors)

            half = ir.Constant(_vector, [0.5] * LANES)
            tile = [[ir.Constant(_vector, [0.0] * LANES)] * n_vectors] * PRODUCT_ROWS
            tile = _accumulate(builder, tile, first, full, term)
            tile = [[builder.fmul(half, x) for x in row] for row in tile]
            tile = _accumulate(builder, tile, full, A.n_columns, term)
            for row, vectors in zip(rows, tile, strict=True):
                C.put(row, j, vectors)
            return context.get_dummy_value()

        return types.void(A, B, C, *[types.intp] * 4), codegen

    return intrinsic(tile)


def _factor_tile(n_columns: int, is_diagonal: bool) -> Any:
    """An intrinsic that brings a tile U[i : i + ROWS, j : j + n_columns] of A into that of U.

    What the rows above contribute is subtracted, and then U' inverted within the tile's rows,
    whose own triangle is the tile on the diagonal. Returns whether its pivots are positive.
    """

    def tile(typingctx: Any, U: Any, i: Any, j: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            U = _Matrix(context, builder, signature.args[0], arguments[0])
            i, j = arguments[1:]
            rows = [builder.add(i, _index(r)) for r in range(ROWS)]
            n_vectors = n_columns // LANES

            def term(k: Any) -> tuple[list[Any], list[Any]]:
                numbers = [builder.fneg(U.number(k, row)) for row in rows]
                return numbers, U.vectors(k, j, n_vectors)

            first = [U.vectors(row, j, n_vectors) for row in rows]
            tile = _accumulate(builder, first, _index(0), i, term)
            are_positive = ir.IntType(1)(1)
            for r in range(ROWS):
                if is_diagonal:
                    pivot = builder.extract_element(tile[r][0], ir.IntType(32)(r))
                    positive = builder.fcmp_ordered(">", pivot, ir.DoubleType()(0.0))
                    are_positive = builder.and_(are_positive, positive)
                    root = _square_root(builder, pivot)
                else:
                    root = U.number(rows[r], rows[r])
                inverse = _spread(builder, builder.fdiv(ir.DoubleType()(1.0), root))
                tile[r] = [builder.fmul(inverse, x) for x in tile[r]]
                for q in range(r + 1, ROWS):
                    if is_diagonal:
                        number = builder.extract_element(tile[r][0], ir.IntType(32)(q))
                    else:
                        number = U.number(rows[r], rows[q])
                    tile[q] = _add_multiple(builder, tile[q], builder.fneg(number), tile[r])
            for row, vectors in zip(rows, tile, strict=True):
                U.put(row, j, vectors)
            return are_positive

        return types.boolean(U, types.intp, types.intp), codegen

    return intrinsic(tile)


def _sweep(is_back: bool) -> Any:
    """An intrinsic for the unknowns x[k : k + ROWS] and those that follow, in U'U.

    It subtracts from those that follow what is due to them or, on the way back, the other way
    round.
    """

    def sweep(typingctx: Any, U: Any, x: Any, k: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            U, x = (
                _Matrix(context, builder, kind, value)
                for kind, value in zip(signature.args[:2], arguments[:2], strict=True)
            )
            first, follows = _index(0), builder.add(arguments[2], _index(ROWS))
            rows = [builder.add(arguments[2], _index(r)) for r in range(ROWS)]
            numbers = [builder.fneg(x.number(first, row)) for row in rows]
            zero = ir.Constant(_vector, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in rows if is_back]
            steps = cgutils.for_range_slice(
                builder, follows, x.n_columns, _index(LANES), _index, inc=True
            )
            with steps as (j, _):
                others = x.vectors(first, j, 1)
                for r, row in enumerate(rows):
                    entries = U.vectors(row, j, 1)
                    if is_back:
                        new = _fused(builder, entries[0], others[0], builder.load(sums[r]))
                        builder.store(new, sums[r])
                    else:
                        others = _add_multiple(builder, others, numbers[r], entries)
                if not is_back:
                    x.put(first, j, others)
            for r, total in enumerate(sums):
                total = _sum(builder, builder.load(total))
                x.put_number(first, rows[r], builder.fneg(builder.fadd(numbers[r], total)))
            return context.get_dummy_value()

        return types.void(U, x, types.intp), codegen

    return intrinsic(sweep)


def _square_root(builder: Any, number: Any) -> Any:
    return _call(builder, "llvm.sqrt.f64", ir.DoubleType(), [number])


def _sum(builder: Any, vector: Any) -> Any:
    """The sum of the numbers of a vector, in pairs."""
    name, double = f"llvm.vector.reduce.fadd.v{LANES}f64", ir.DoubleType()
    return _call(builder, name, double, [double(0.0), vector], fastmath=("reassoc",))


def _columns(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square tile: its rows, two and two, interleaved twice."""

    def interleaved(x: Any, y: Any) -> list[Any]:
        orders = [[0, 4, 1, 5], [2, 6, 3, 7]]
        kind = ir.VectorType(ir.IntType(32), LANES)
        return [builder.shuffle_vector(x, y, ir.Constant(kind, order)) for order in orders]

    p, q, r, s = rows
    pairs = zip(interleaved(p, r), interleaved(q, s), strict=True)
    return [column for x, y in pairs for column in interleaved(x, y)]


def _transposing_tile(adds: bool) -> Any:
    """An intrinsic for B[j : j + LANES, i : i + LANES] <- A[i : i + LANES, j : j + LANES]'.

    Or else the tile is added to what is there.
    """

    def tile(typingctx: Any, A: Any, B: Any, i: Any, j: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            A, B = (
                _Matrix(context, builder, kind, value)
                for kind, value in zip(signature.args[:2], arguments[:2], strict=True)
            )
            i, j = arguments[2:]
            rows = [A.vectors(builder.add(i, _index(r)), j, 1)[0] for r in range(LANES)]
            for c, column in enumerate(_columns(builder, rows)):
                row = builder.add(j, _index(c))
                if adds:
                    column = builder.fadd(B.vectors(row, i, 1)[0], column)
                B.put(row, i, [column])
            return context.get_dummy_value()

        return types.void(A, B, types.intp, types.intp), codegen

    return intrinsic(tile)


_transpose_tile, _add_transposed_tile = _transposing_tile(False), _transposing_tile(True)
_narrow_product, _wide_product = _product_tile(LANES), _product_tile(COLUMNS)
_diagonal_tile = _factor_tile(ROWS, is_diagonal=True)
_narrow_tile = _factor_tile(LANES, is_diagonal=False)
_wide_tile = _factor_tile(COLUMNS, is_diagonal=False)
_sweep_on, _sweep_back = _sweep(is_back=False), _sweep(is_back=True)


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
            _wide_product(A, B, C, i, min(j, n - COLUMNS), 0, 0)
        else:
            _narrow_product(A, B, C, i, n - LANES, 0, 0)


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
                _transpose_tile(A, At, min(i, m - LANES), min(j, n - LANES))
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
            _add_transposed_tile(A, A, j, i)


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


@inner
def multiply_by_half(X, D, C):
    """C <- X H, with some H for which D = H + H'. Modified in place: C.

    In tiles H is what D has below square blocks on the diagonal, and half of these: half the work
    of X D. For a large D it is the lower triangle less half the diagonal, by which BLAS multiplies
    (in threads of its own, so that a small D is not for it), and for few rows D / 2.
    """
    m, d = X.shape
    if d > LARGEST_UNTHREADED_SIDE:
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
        for i in range(0, m, PRODUCT_ROWS):
            row = min(i, m - PRODUCT_ROWS)
            # Where the last tile overlaps the one before, it is that one which has the last word.
            for j in range((d - 1) // COLUMNS * COLUMNS, -1, -COLUMNS):
                if d - j > LANES:
                    _wide_product(X, D, C, row, min(j, d - COLUMNS), j, min(j + COLUMNS, d))
                else:
                    _narrow_product(X, D, C, row, d - LANES, j, d)
    else:
        lapack.multiply(X, D, C)
        for i in range(m):
            for j in range(d):
                C[i, j] *= 0.5


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
        if not _diagonal_tile(A, i, i):
            return False
        j = i + ROWS
        if (n - j) % COLUMNS > 0:
            _narrow_tile(A, i, j)
            j += LANES
        for k in range(j, n, COLUMNS):
            _wide_tile(A, i, k)
    return True


@inner
def cholesky_solve(U, x):
    """x <- (U'U)^-1 x, four unknowns at a time. Modified in place: x."""
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
        a = x[k] / p[k]
        b = (x[k + 1] - p[k + 1] * a) / q[k + 1]
        c = (x[k + 2] - p[k + 2] * a - q[k + 2] * b) / r[k + 2]
        d = (x[k + 3] - p[k + 3] * a - q[k + 3] * b - r[k + 3] * c) / s[k + 3]
        x[k], x[k + 1], x[k + 2], x[k + 3] = a, b, c, d
        _sweep_on(U, x, k)
    for k in range(n - ROWS, first - 1, -ROWS):
        _sweep_back(U, x, k)
        p, q, r, s = U[k], U[k + 1], U[k + 2], U[k + 3]
        d = x[k + 3] / s[k + 3]
        c = (x[k + 2] - r[k + 3] * d) / r[k + 2]
        b = (x[k + 1] - q[k + 2] * c - q[k + 3] * d) / q[k + 1]
        a = (x[k] - p[k + 1] * b - p[k + 2] * c - p[k + 3] * d) / p[k]
        x[k], x[k + 1], x[k + 2], x[k + 3] = a, b, c, d
    for k in range(first - 1, -1, -1):
        for j in range(k + 1, n):
            x[k] -= U[k, j] * x[j]
        x[k] /= U[k, k]
