"""The arrays of an online run, and where they lie.

All of them are parts of one array, the run's room, which Numba takes over faster from Python.
Of the k-th candidate, state[:, k] are four matrices, called `matrix`, `total`, `vectors` and
`buffer`, and rows[:, k] are the `values` of what it keeps eigenvectors of and the `weights` that
these have in the iterate. What it finds when it meets a task is meetings[k]: the factors a and b
of the gradient, and then the loss, the norm of the gradient, the step to take, a.b and |a||b|.

A candidate's iterate is D = sum_i weights_i v_i v_i' + rest (I - sum_i v_i v_i') with `rank`
rows v_i of `vectors`. Its `matrix` is S in entropic geometry. In euclidean geometry it is D, and
kept only where that is cheaper than eigenvectors: then the rank is -1, and each row counts up to
`tiles.kept_columns` only, the lower triangle being part of that.
"""

import numpy as np
from numba.extending import register_jitable

from fastltl._kernels.compilation import compiled, inlined
from fastltl._kernels.spectral import compose
from fastltl._kernels.task import mirror

#: What an online run keeps beside its matrices: one record for each candidate. All fields have
#: eight bytes, so that there are no gaps, whose bytes nobody would set.
RECORD = np.dtype(
    [
        ("radius", np.float64),  # 1 / lam
        ("scale", np.float64),  # numerator of the steps
        ("adaptive", np.int64),  # whether their denominator is `norm`, else sqrt(t)
        ("entropic", np.int64),  # whether norms are operator norms, else Frobenius
        ("n_tasks", np.int64),
        ("loss", np.float64),  # sum of the losses
        ("norm", np.float64),  # sqrt(sum ||G_s||^2)
        ("largest", np.float64),  # max ||G_s||
        ("step", np.float64),  # the latest gamma_t, or eta_t
        ("step_cost", np.float64),  # sum gamma_t ||G_t||^2
        ("rank", np.int64),  # how many rows of `vectors` are eigenvectors, -1 if not known
        ("rest", np.float64),  # the iterate's eigenvalue where they are zero
        ("drift", np.float64),  # a bound on the rounding errors in what is kept
        ("floor", np.float64),  # a lower bound on the smallest eigenvalue of the iterate
        ("rest_total", np.float64),  # sum of `rest` over the iterates added to a total
        ("n_added", np.int64),  # how many rows wait in the buffer to be added to the total
        ("n_subtracted", np.int64),  # and to be subtracted
        ("shift", np.float64),  # what the latest step took off the diagonal, NaN if it did more
    ],
    align=True,
)
N_FIELDS = RECORD.itemsize // 8


@register_jitable
def room_for(d):
    """How many numbers the arrays of a candidate have."""
    return 4 * d * d + 2 * d + 3 * max(5, d) + N_FIELDS


@register_jitable
def parts_of(room, d):
    """state, rows, the records as bare numbers, and meetings, of all candidates of a room."""
    n = room.size // room_for(d)
    a = n * N_FIELDS
    b = a + 4 * n * d * d
    c = b + 2 * n * d
    return (
        room[a:b].reshape(4, n, d, d),
        room[b:c].reshape(2, n, d),
        room[:a],
        room[c:].reshape(n, 3, max(5, d)),
    )


@compiled
def begin(room, d, radii, scales, adaptive, entropic):
    """Begin a run at D^(1) = radius / d I or, entropic, radius / (d + 1) I, in a room of zeros.

    Modified in place: `room`.
    """
    _, rows, numbers, _ = parts_of(room, d)
    records = numbers.view(RECORD)
    for k in range(radii.size):
        record, first = records[k], radii[k] / (d + entropic)
        record["radius"], record["scale"] = radii[k], scales[k]
        record["adaptive"], record["entropic"] = adaptive, entropic
        record["rest"] = first
        for i in range(d):
            rows[1, k, i] = first
        if not entropic:
            record["floor"] = first
            for i in range(d):
                rows[0, k, i] = first


@inlined
def candidate(state, rows, meetings, k):
    """matrix, total, vectors, buffer, values, weights, a, b and what else the k-th was told."""
    d = rows.shape[2]
    a, b, told = meetings[k, 0, :d], meetings[k, 1, :d], meetings[k, 2]
    return state[0, k], state[1, k], state[2, k], state[3, k], rows[0, k], rows[1, k], a, b, told


@compiled
def iterate(room, d, k):
    """D of the k-th candidate, in an array of its own."""
    state, rows, numbers, _ = parts_of(room, d)
    record = numbers.view(RECORD)[k]
    rank = record["rank"]
    if rank < 0:
        D = state[0, k].copy()
        mirror(D)
    else:
        D = compose(state[2, k][:rank], rows[1, k], record["rest"])
    return D
