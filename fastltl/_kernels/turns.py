"""Work that threads share in turns, told from compiled code to compiled code.

In each turn the same is done with the same arrays, whose contents are new. A board of whole numbers
says which turn it is, how many pieces are taken and how many are done. Who watches the board
notices a turn within a fraction of a microsecond, where a thread that sleeps takes fifty to wake
up, and more to come by the GIL; but it keeps a core busy, and so does not watch for long.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

from fastltl._kernels.compilation import compiled, inlined

#: What is where on a board: the number of the turn; that times TURN_UNIT, plus the number of pieces
#: taken from the front, plus END_UNIT times that of those taken from the end, so that there must be
#: fewer than END_UNIT; the number of pieces done; and a number to go with the turn.
TURN, TAKEN, DONE, NOTE = range(4)
BOARD_SIZE = 4
TURN_UNIT = 2**32
END_UNIT = 2**16

#: The note of a turn in which there is nothing to do but to leave.
LEAVE = -1

#: How often to look at a board before giving up: two milliseconds, about.
MOST_LOOKS = 8_000_000


def _place(context: Any, builder: Any, kind: Any, board: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, board).data, [index])


def _look(typingctx: Any, board: Any, index: Any) -> Any:
    """board[index], read anew; what its writer wrote before is seen from now on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return types.int64(board, types.intp), codegen


def _put(typingctx: Any, board: Any, index: Any, number: Any) -> Any:
    """board[index] <- number, after all that was written before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], place, ordering="release", align=8)
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), codegen


def _add(typingctx: Any, board: Any, index: Any, amount: Any) -> Any:
    """board[index] += amount, whoever else adds to it, after all that was written before."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        builder.atomic_rmw("add", place, arguments[2], "acq_rel")
        return context.get_dummy_value()

    return types.void(board, types.intp, types.int64), codegen


def _replace(typingctx: Any, board: Any, index: Any, old: Any, new: Any) -> Any:
    """board[index] <- new if it is still old; whether it was."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature.args[0], *arguments[:2])
        outcome = builder.cmpxchg(place, arguments[2], arguments[3], "acq_rel", "acquire")
        return builder.extract_value(outcome, 1)

    return types.boolean(board, types.intp, types.int64, types.int64), codegen


look: Any = intrinsic(_look)
put: Any = intrinsic(_put)
add: Any = intrinsic(_add)
_replace_if: Any = intrinsic(_replace)


@compiled
def begin_turn(board, note):
    """Announce a turn, once everything for it is in place and the one before is done."""
    turn = board[TURN] + 1
    put(board, DONE, 0)
    put(board, NOTE, note)
    put(board, TAKEN, turn * TURN_UNIT + (TURN_UNIT - 1 if note == LEAVE else 0))
    put(board, TURN, turn)


@inlined
def take(board, turn, n_pieces, from_end):
    """The next piece from the front, or from the end, now the caller's; -1 if there is none left.

    Who takes from the same side in every turn finds most of what it needs in its own cache.
    """
    piece = -1
    while piece < 0:
        taken = look(board, TAKEN)
        at_end, at_front = taken // END_UNIT % END_UNIT, taken % END_UNIT
        if taken // TURN_UNIT != turn or at_front + at_end >= n_pieces:
            break
        if _replace_if(board, TAKEN, taken, taken + (END_UNIT if from_end else 1)):
            piece = n_pieces - 1 - at_end if from_end else at_front
    return piece


@compiled
def watch(board, index, least):
    """Wait, though not for long, until board[index] is at least so much; whether it is."""
    looks = 0
    while look(board, index) < least:
        looks += 1
        if looks == MOST_LOOKS:
            return False
    return True
