"""One task of an online run.

A run has one or more candidates (values of lam, say), stacked along the first axis of its
arrays, which `rooms` describes. A task is met by all of them before any takes its step, so that a
task that is refused has changed nothing. Candidates lo to hi are a thread's share.
"""

import numpy as np

from fastltl._kernels.compilation import compiled, inlined
from fastltl._kernels.linalg import EPS, add_gram, eigh, length
from fastltl._kernels.rooms import RECORD, candidate, parts_of
from fastltl._kernels.spectral import (
    compose,
    keep,
    orthonormalise,
    rank_two_update,
    soft_threshold,
    soften,
)
from fastltl._kernels.task import (
    SMALLEST_PIVOT_OF_DUAL,
    add_rank_two,
    add_to_diagonal,
    all_finite,
    assign,
    compress,
    dual_loss_and_factors,
    dual_matrix,
    factorise_dual,
    has_small_pivot,
    mirror,
    mirror_upper,
    outer_gram,
    product,
    symmetric_product,
    truncate,
)
from fastltl._kernels.tiles import add_then_step

#: A gradient of smaller norm has lost digits to underflow, and counts as zero.
TINY = float(np.finfo(np.float64).tiny)
SMALLEST_NORM = TINY / EPS

#: Where all products of an input and a target are smaller, a gradient of zero may be lost digits.
SMALLEST_PRODUCT = 1e-100

#: Leave eigenvectors for the iterate itself only if this many more steps like the one at hand
#: could be certified.
CERTIFIED_STEPS = 10

#: An update of k kept eigenvectors makes errors of sqrt(k) roundings or less, relative to the
#: matrix; when their sum comes to this, it is time to mend what is kept.
MOST_DRIFT = 1e-12

#: What a run does with a task.
MEET, STEP, MEET_AND_STEP = range(3)


@compiled
def dual_of_factors(matrix, vectors, weights, record, X):
    """The upper triangle of X D X': with P = X V', of P diag(weights - rest) P' + rest XX'."""
    rank, rest = record["rank"], record["rest"]
    P = outer_gram(X, vectors[:rank])
    scaled = np.empty(P.shape)
    for i in range(P.shape[0]):
        for j in range(rank):
            scaled[i, j] = (weights[j] - rest) * P[i, j]
    dual = symmetric_product(scaled, P)
    if rest != 0.0:
        gram = symmetric_product(X, X)
        for i in range(P.shape[0]):
            for j in range(i, P.shape[0]):
                dual[i, j] += rest * gram[i, j]
    return dual


@compiled
def dual_of_iterate(matrix, vectors, weights, record, X):
    """The upper triangle of X D X', of D itself where that is kept."""
    if record["rank"] < 0:
        return dual_matrix(matrix, X)
    return dual_of_factors(matrix, vectors, weights, record, X)


@inlined
def meet_task(state, rows, records, meetings, X, y, lo, hi, dual_of):
    """The loss of the task at each D, the factors a, b of its gradient, and the step to take.

    The step is scale / clock, where the clock is sqrt(sum ||G_s||^2) if adaptive, else sqrt(t).
    Returns False if a number in the task is not finite or becomes so on the way, or if adaptive
    steps lose it to underflow. `meetings` is modified in place. `dual_of` is the function for
    X D X' of an iterate.
    """
    n = y.size
    if not all_finite(X):
        return False
    R, z, misfit = compress(X, y)
    truncated = False
    R_safe, z_safe, misfit_safe = R, z, misfit
    for k in range(lo, hi):
        record, a, b = records[k], meetings[k, 0, : X.shape[1]], meetings[k, 1, : X.shape[1]]
        matrix, V, weights = state[0, k], state[2, k], rows[1, k]
        R_k, z_k, misfit_k = R, z, misfit
        U = dual_of(matrix, V, weights, record, R_k)
        largest = factorise_dual(U, n)
        if has_small_pivot(U, SMALLEST_PIVOT_OF_DUAL * largest):
            if not truncated:
                R_safe, z_safe, misfit_safe = truncate(R, z, misfit)
                truncated = True
            R_k, z_k, misfit_k = R_safe, z_safe, misfit_safe
            U = dual_of(matrix, V, weights, record, R_k)
            factorise_dual(U, n)
        loss = dual_loss_and_factors(R_k, z_k, misfit_k, U, n, a, b)
        inner, outer = np.dot(a, b), length(a) * length(b)
        norm = gradient_norm(inner, outer, record["entropic"])
        norms = np.hypot(record["norm"], norm)
        t = record["n_tasks"] + 1
        clock = norms if record["adaptive"] else np.sqrt(t)
        step = record["scale"] / clock if clock > 0.0 else 0.0
        # No entry of a sum of gradients can exceed sum ||G_s|| <= t * norms.
        total = record["loss"] + loss + t * norms + record["step_cost"] + step * norm * norm
        if not np.isfinite(total):
            return False
        if record["adaptive"] and (step < TINY if norms > 0.0 else has_underflown(R, z)):
            return False
        told = meetings[k, 2]
        told[0], told[1], told[2], told[3], told[4] = loss, norm, step, inner, outer
    return True


@compiled
def has_underflown(X, y):
    """Whether neither X nor y is zero, but all products of their entries are next to nothing."""
    largest_x = largest_y = 0.0
    for i in range(X.shape[0]):
        largest_y = max(largest_y, abs(y[i]))
        for j in range(X.shape[1]):
            largest_x = max(largest_x, abs(X[i, j]))
    return largest_x > 0.0 and largest_y > 0.0 and largest_x * largest_y < SMALLEST_PRODUCT


@inlined
def gradient_norm(inner, outer, operator):
    """||a b' + b a'|| in operator or Frobenius norm, from a.b and |a||b|; 0 where it underflows."""
    norm = abs(inner) + outer if operator else np.sqrt(2.0) * np.hypot(inner, outer)
    return 0.0 if norm < SMALLEST_NORM else norm


@inlined
def enter_task(told, record):
    """Count the task that was met, of which `told` tells. `record` is modified in place."""
    loss, norm, step = told[0], told[1], told[2]
    record["n_tasks"] += 1
    record["loss"] += loss
    record["norm"] = np.hypot(record["norm"], norm)
    record["largest"] = max(record["largest"], norm)
    record["step"], record["shift"] = step, 0.0
    record["step_cost"] += step * norm * norm


@inlined
def add_iterate(matrix, total, vectors, buffer, weights, record):
    """Add D to the sum of iterates, whose lower triangle is `total`.

    Eigenvectors wait, times sqrt |weights_i - rest|, in the buffer until it is full: from its top
    those of positive sign, from its bottom those of negative sign; `rest` waits in the record.
    All but the first, the third and `weights` are modified in place.
    """
    rank, rest, room = record["rank"], record["rest"], buffer.shape[0]
    n_waiting = record["n_added"] + record["n_subtracted"]
    if n_waiting + rank > room:
        clear_waiting(total, buffer, record)
    if rank < 0:
        for i in range(total.shape[0]):
            for j in range(i + 1):
                total[i, j] += matrix[i, j]
        return
    for i in range(rank):
        excess = weights[i] - rest
        if excess > 0.0:
            place = record["n_added"]
            record["n_added"] += 1
        else:
            record["n_subtracted"] += 1
            place = room - record["n_subtracted"]
        for j in range(buffer.shape[1]):
            buffer[place, j] = np.sqrt(abs(excess)) * vectors[i, j]
    record["rest_total"] += rest


@inlined
def add_waiting(total, buffer, record):
    """Add what waits in the buffer and in the record to the lower triangle of `total`.

    Modified in place: `total`.
    """
    if record["n_added"] > 0:
        add_gram(buffer[: record["n_added"]], 1.0, total)
    if record["n_subtracted"] > 0:
        add_gram(buffer[buffer.shape[0] - record["n_subtracted"] :], -1.0, total)
    add_to_diagonal(total, record["rest_total"])


@inlined
def clear_waiting(total, buffer, record):
    """`add_waiting`, and have nothing wait. Modified in place: `total` and `record`."""
    add_waiting(total, buffer, record)
    record["n_added"] = record["n_subtracted"] = 0
    record["rest_total"] = 0.0


@compiled
def sums_of_iterates(state, records, sums, lo, hi):
    """sums[k] <- the sum of the k-th candidate's iterates. Modified in place: `sums`."""
    for k in range(lo, hi):
        assign(sums[k], state[1, k])
        add_waiting(sums[k], state[3, k], records[k])
        mirror(sums[k])


@inlined
def certify_step(matrix, weights, record, inner, outer):
    """Whether proj(D + gamma (a b' + b a')) is certain to clip no eigenvalue.

    With inner = a.b and outer = |a||b|, the update moves no eigenvalue down by more than
    gamma (outer - inner). If a known lower bound on D's eigenvalues leaves them all above the
    shift that the trace asks for, the projection is that shift. Where D is not at hand it is
    worth making only if more such steps may follow. `record` is modified in place.
    """
    d, gamma, rank = weights.size, record["step"], record["rank"]
    trace = 0.0
    for i in range(d):
        trace += matrix[i, i] if rank < 0 else weights[i]
    shift = max(0.0, (trace + 2.0 * gamma * inner - record["radius"]) / d)
    fall = gamma * (outer - inner) + shift + d * EPS * record["radius"]
    if not record["floor"] >= (1.0 if rank < 0 else CERTIFIED_STEPS) * fall:
        record["shift"] = np.nan
        return False
    record["floor"] -= fall
    record["shift"] = shift
    return True


@inlined
def take_certified_step(matrix, total, vectors, buffer, weights, record, a, b):
    """Add D to the sum of iterates, and D <- D + gamma (a b' + b a') - shift I.

    D is made of its eigenvectors if it is not at hand. Modified in place: `matrix`, `total` and
    `record`.
    """
    if record["rank"] >= 0:
        assign(matrix, compose(vectors[: record["rank"]], weights, record["rest"]))
        record["rank"] = -1
        clear_waiting(total, buffer, record)
    add_then_step(total, matrix, a, b, record["step"])
    add_to_diagonal(matrix, -record["shift"])


@inlined
def find_eigenvectors(matrix, vectors, values, record):
    """Those of the matrix, all of them, anew. The others are modified in place."""
    assign(vectors, matrix)
    eigh(vectors, values)
    record["drift"] = 0.0


@inlined
def update_iterate(matrix, vectors, values, record, a, b):
    """Eigenvectors of D + gamma (a b' + b a'), and how many.

    They are found anew where D itself was kept. Where they were, nothing else is: once rounding
    errors may have added up, they are made orthonormal again. All but a and b are modified in
    place.
    """
    if record["rank"] < 0:
        add_rank_two(matrix, a, b, record["step"])
        find_eigenvectors(matrix, vectors, values, record)
        return a.size
    size = rank_two_update(vectors, values, record["rank"], a, b, record["step"])
    if record["drift"] > MOST_DRIFT:
        orthonormalise(vectors[:size])
        record["drift"] = 0.0
    record["drift"] += np.sqrt(size) * EPS
    return size


@inlined
def update_sum(matrix, vectors, values, record, a, b):
    """Eigenvectors of S + a b' + b a', and how many.

    S itself is kept too, and they are found anew once rounding errors may have added up. All but
    a and b are modified in place.
    """
    add_rank_two(matrix, a, b, 1.0)
    if record["drift"] > MOST_DRIFT:
        find_eigenvectors(matrix, vectors, values, record)
        return a.size
    size = rank_two_update(vectors, values, record["rank"], a, b, 1.0)
    record["drift"] += np.sqrt(size) * EPS
    return size


@inlined
def clip(vectors, values, size, weights, record):
    """Project what was updated onto {D PSD, tr D <= radius}. Modified in place: all arrays."""
    d = values.size
    # A rest that is zero stays so.
    last = d if size < d and values[size] > 0.0 else size
    assign(values[:last], soft_threshold(values[:last], record["radius"]))
    rest = values[size] if size < d else 0.0
    record["rank"] = keep(vectors, values, size, rest, d * EPS * record["radius"])
    record["rest"] = rest
    floor = values[d - 1]
    for i in range(record["rank"]):
        floor = min(floor, values[i])
    record["floor"] = floor
    assign(weights, values)


@inlined
def weigh(vectors, values, size, weights, record):
    """D = radius exp(eta S) / (tr exp(eta S) + 1) after S was updated. In place: all arrays."""
    d = values.size
    largest = 0.0
    for i in range(size):
        largest = max(largest, abs(values[i]))
    rank = keep(vectors, values, size, 0.0, d * EPS * largest)
    new, rest = soften(values[:rank], d - rank, record["step"], record["radius"])
    assign(weights[:rank], new)
    weights[rank:] = rest
    record["rank"], record["rest"], record["shift"] = rank, rest, np.nan


@compiled
def learn_euclidean(room, X, y, part, lo, hi):
    """Meet a task and step down its gradient and back into the set, by the cheapest exact path.

    It does both or, so that threads can share the candidates, the part asked for. Returns False,
    with nothing learned, if the task is refused. `room` is modified in place.
    """
    state, rows, numbers, meetings = parts_of(room, X.shape[1])
    records = numbers.view(RECORD)
    if part != STEP and not meet_task(
        state, rows, records, meetings, X, y, lo, hi, dual_of_iterate
    ):
        return False
    for k in range(lo, lo if part == MEET else hi):
        record = records[k]
        matrix, total, vectors, buffer, values, weights, a, b, told = candidate(
            state, rows, meetings, k
        )
        enter_task(told, record)
        moves = told[1] > 0.0
        if moves and certify_step(matrix, weights, record, told[3], told[4]):
            take_certified_step(matrix, total, vectors, buffer, weights, record, a, b)
            continue
        add_iterate(matrix, total, vectors, buffer, weights, record)
        if moves:
            size = update_iterate(matrix, vectors, values, record, a, b)
            clip(vectors, values, size, weights, record)
    return True


@compiled
def learn_entropic(room, X, y, part, lo, hi):
    """Meet a task and step to the leader, regularised by entropy; otherwise `learn_euclidean`."""
    state, rows, numbers, meetings = parts_of(room, X.shape[1])
    records = numbers.view(RECORD)
    if part != STEP and not meet_task(
        state, rows, records, meetings, X, y, lo, hi, dual_of_factors
    ):
        return False
    for k in range(lo, lo if part == MEET else hi):
        record = records[k]
        matrix, total, vectors, buffer, values, weights, a, b, told = candidate(
            state, rows, meetings, k
        )
        enter_task(told, record)
        add_iterate(matrix, total, vectors, buffer, weights, record)
        if told[1] > 0.0:
            size = update_sum(matrix, vectors, values, record, a, b)
            weigh(vectors, values, size, weights, record)
    return True


@compiled
def start_over(state, rows, records):
    """Find all that is kept beside the matrices, D or S, anew. All arrays are modified in place."""
    for k in range(records.size):
        vectors, values, record = state[2, k], rows[0, k], records[k]
        find_eigenvectors(state[0, k], vectors, values, record)
        if record["entropic"]:
            weigh(vectors, values, values.size, rows[1, k], record)
        else:
            clip(vectors, values, values.size, rows[1, k], record)


@compiled
def follow_duals(state, rows, numbers, meetings, R, starts, corners, grams, duals, totals, lo, hi):
    """Update X D X' of every task, and its sum over the run, by the step that D has taken.

    A certified step D + gamma (a b' + b a') - shift I changes it by
    gamma (p q' + q p') - shift XX' with p = Xa and q = Xb; after others it is computed anew.
    `duals` and `totals` are modified in place.
    """
    records = numbers.view(RECORD)
    for k in range(lo, hi):
        totals[k] += duals[k]
        gamma, shift = records[k]["step"], records[k]["shift"]
        for t in range(starts.size - 1):
            X = R[starts[t] : starts[t + 1]]
            dual = duals[k, corners[t] : corners[t + 1]].reshape(X.shape[0], X.shape[0])
            if np.isnan(shift):
                new = dual_of_iterate(state[0, k], state[2, k], rows[1, k], records[k], X)
                mirror_upper(new)
                assign(dual, new)
            elif meetings[k, 2, 1] > 0.0:
                gram = grams[corners[t] : corners[t + 1]].reshape(dual.shape)
                a, b = meetings[k, 0, : X.shape[1]], meetings[k, 1, : X.shape[1]]
                add_rank_two(dual, product(X, a), product(X, b), gamma)
                if shift > 0.0:
                    dual -= shift * gram
