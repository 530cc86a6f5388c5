"""Tiles of matrices in vector registers: the instructions of LLVM that `tiles` is made of.

They are for any processor. Compilers do not find them in loops over numbers.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

#: Numbers in a vector.
LANES = 4

#: Rows and columns of a tile: of five by two vectors in a product, four by two in a factor, so
#: that registers are left for the operands; and two by four for a pair of vectors times a matrix.
PRODUCT_ROWS = 5
ROWS = 4
COLUMNS = 8
PAIR_COLUMNS = 16

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


def _pair_tile(typingctx: Any, X: Any, u: Any, v: Any, a: Any, b: Any, j: Any) -> Any:
    """a[j : j + PAIR_COLUMNS] <- X'u there, and b likewise <- X'v."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        X, u, v, a, b = (
            _Matrix(context, builder, kind, value)
            for kind, value in zip(signature.args[:5], arguments[:5], strict=True)
        )
        first, j, n_vectors = _index(0), arguments[5], PAIR_COLUMNS // LANES

        def term(k: Any) -> tuple[list[Any], list[Any]]:
            return [u.number(first, k), v.number(first, k)], X.vectors(k, j, n_vectors)

        tile = [[ir.Constant(_vector, [0.0] * LANES)] * n_vectors] * 2
        for row, x in zip(
            (a, b), _accumulate(builder, tile, first, u.n_columns, term), strict=True
        ):
            row.put(first, j, x)
        return context.get_dummy_value()

    return types.void(X, u, v, a, b, types.intp), codegen


def _step_tile(
    typingctx: Any, total: Any, A: Any, a: Any, b: Any, c: Any, i: Any, stop: Any
) -> Any:
    """ROWS rows from i on, up to a column: total <- total + A, then A <- A + (c a b' + b c a').

    All products are rounded, so that what is added is symmetric to the bit.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, A, a, b = (
            _Matrix(context, builder, kind, value)
            for kind, value in zip(signature.args[:4], arguments[:4], strict=True)
        )
        first, (c, i, stop) = _index(0), arguments[4:]
        c, rows = _spread(builder, c), [builder.add(i, _index(r)) for r in range(ROWS)]
        a_rows, b_rows = ([_spread(builder, x.number(first, row)) for row in rows] for x in (a, b))
        a_rows = [builder.fmul(c, x) for x in a_rows]
        steps = cgutils.for_range_slice(builder, first, stop, _index(LANES), _index, inc=True)
        with steps as (j, _):
            a_j, b_j = (x.vectors(first, j, 1)[0] for x in (a, b))
            a_j = builder.fmul(c, a_j)
            for row, a_i, b_i in zip(rows, a_rows, b_rows, strict=True):
                x, sum_of_x = (matrix.vectors(row, j, 1)[0] for matrix in (A, total))
                change = builder.fadd(builder.fmul(a_i, b_j), builder.fmul(b_i, a_j))
                total.put(row, j, [builder.fadd(sum_of_x, x)])
                A.put(row, j, [builder.fadd(x, change)])
        return context.get_dummy_value()

    return types.void(total, A, a, b, types.float64, types.intp, types.intp), codegen


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
            one = ir.DoubleType()(1.0)
            for r in range(ROWS):
                if is_diagonal:
                    pivot, *numbers = (
                        builder.extract_element(tile[r][0], ir.IntType(32)(q))
                        for q in range(r, ROWS)
                    )
                    positive = builder.fcmp_ordered(">", pivot, ir.DoubleType()(0.0))
                    are_positive = builder.and_(are_positive, positive)
                    root = _square_root(builder, pivot)
                    # Multiples of the row as it is, so that those below wait for no root.
                    numbers = [builder.fdiv(number, pivot) for number in numbers]
                else:
                    root = U.number(rows[r], rows[r])
                    numbers = [U.number(rows[r], rows[q]) for q in range(r + 1, ROWS)]
                scale = _spread(builder, builder.fdiv(one, root))
                unscaled, tile[r] = tile[r], [builder.fmul(scale, x) for x in tile[r]]
                by = unscaled if is_diagonal else tile[r]
                for q, number in enumerate(numbers, start=r + 1):
                    tile[q] = _add_multiple(builder, tile[q], builder.fneg(number), by)
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


def _reduction_tile(
    typingctx: Any, A: Any, v: Any, w: Any, x: Any, y: Any, i: Any, first: Any
) -> Any:
    """ROWS rows of A from i on, columns from `first` on: A <- A - v w' - w v', y <- y + A'x.

    In one pass, for sides that are multiples of the tile's.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        A, v, w, x, y = (
            _Matrix(context, builder, kind, value)
            for kind, value in zip(signature.args[:5], arguments[:5], strict=True)
        )
        zero, (i, first) = _index(0), arguments[5:]
        rows = [builder.add(i, _index(r)) for r in range(ROWS)]
        v_rows, w_rows = (
            [_spread(builder, builder.fneg(vector.number(zero, row))) for row in rows]
            for vector in (v, w)
        )
        x_rows = [_spread(builder, x.number(zero, row)) for row in rows]
        steps = cgutils.for_range_slice(
            builder, first, A.n_columns, _index(LANES), _index, inc=True
        )
        with steps as (j, _):
            v_j, w_j, y_j = (vector.vectors(zero, j, 1)[0] for vector in (v, w, y))
            for row, v_i, w_i, x_i in zip(rows, v_rows, w_rows, x_rows, strict=True):
                entries = A.vectors(row, j, 1)[0]
                entries = _fused(builder, w_i, v_j, _fused(builder, v_i, w_j, entries))
                A.put(row, j, [entries])
                y_j = _fused(builder, x_i, entries, y_j)
            y.put(zero, j, [y_j])
        return context.get_dummy_value()

    return types.void(A, v, w, x, y, types.intp, types.intp), codegen


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


transpose_tile, add_transposed_tile = _transposing_tile(False), _transposing_tile(True)
narrow_product, wide_product = _product_tile(LANES), _product_tile(COLUMNS)
diagonal_tile = _factor_tile(ROWS, is_diagonal=True)
narrow_tile = _factor_tile(LANES, is_diagonal=False)
wide_tile = _factor_tile(COLUMNS, is_diagonal=False)
sweep_on, sweep_back = _sweep(is_back=False), _sweep(is_back=True)
pair_tile: Any = intrinsic(_pair_tile)
step_tile: Any = intrinsic(_step_tile)
reduction_tile: Any = intrinsic(_reduction_tile)
