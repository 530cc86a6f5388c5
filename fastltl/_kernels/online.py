"""Online learning: the loss and gradient of a task at each iterate, and the step that follows.

A run has one or more candidates (values of lam), stacked along the first axis of its arrays. All
of them evaluate a task before any takes its step, so a task that one refuses changes nothing.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._kernels.linalg import (
    EPS,
    LARGEST_UNTHREADED_SIDE,
    add_gram,
    inline_kernel,
    kernel,
    multiply_by_triangle,
)
from fastltl._kernels.spectral import (
    compose,
    drop_rest,
    eigh,
    orthonormalise,
    rank_one_update,
    rank_two_update,
    soft_threshold,
    soften,
)
from fastltl._kernels.task import (
    add_rank_two,
    assign,
    compress,
    dual_loss_and_factors,
    factorise_dual,
    mirror,
    truncate,
)

Array = npt.NDArray[np.float64]

#: A gradient of smaller norm has lost digits to underflow, and counts as zero.
TINY = float(np.finfo(np.float64).tiny)
SMALLEST_NORM = TINY / EPS

#: A gradient of zero is an underflow if all products of an input and a target are this small.
SMALLEST_PRODUCT = 1e-100

#: Form D from its eigenvectors only if this many more steps like this one could be certified.
CERTIFIED_STEPS = 10

#: An update of k kept eigenvectors has a relative error of about sqrt(k) roundings. Once their
#: sum reaches this, the eigenvectors are computed anew or made orthonormal again.
MOST_DRIFT = 1e-12

#: Numbers of a candidate, each of eight bytes, so that records have no padding.
RECORD = np.dtype(
    [
        ("radius", np.float64),  # 1 / lam
        ("scale", np.float64),  # numerator of the steps
        ("adaptive", np.int64),  # whether their denominator is `norm`, else sqrt(t)
        ("entropic", np.int64),  # the geometry; norms are operator norms, else Frobenius
        ("regularized", np.int64),  # the objective; gradients are of rank one, else two
        ("n_tasks", np.int64),
        ("loss", np.float64),  # sum of the losses
        ("norm", np.float64),  # sqrt(sum ||G_s||^2)
        ("largest", np.float64),  # max ||G_s||
        ("step", np.float64),  # the latest gamma_t, or eta_t
        ("step_cost", np.float64),  # sum gamma_t ||G_t||^2
        ("rank", np.int64),  # number of eigenvectors in `vectors`, -1 if D is kept instead
        ("rest", np.float64),  # the eigenvalue of D orthogonal to them
        ("floor", np.float64),  # a lower bound on the eigenvalues of D
        ("drift", np.float64),  # a bound on the relative error of the eigenvectors
    ],
    align=True,
)


class OnlineState(NamedTuple):
    """Arrays of an online run of k candidates in d dimensions.

    A candidate's iterate is D = sum_i weights_i v_i v_i' + rest (I - sum_i v_i v_i') with `rank`
    rows v_i of `vectors` or, where that is cheaper, the matrix D itself.
    """

    matrices: Array  #: (k, d, d) minus the sum of the gradients (entropic), or D where kept
    totals: Array  #: (k, d, d) the sum of the iterates, lower triangles
    vectors: Array  #: (k, d, d) eigenvectors, as rows
    values: Array  #: (k, d) eigenvalues of the matrices
    weights: Array  #: (k, d) eigenvalues of D
    records: npt.NDArray[np.void]  #: (k,)


@kernel
def learn_euclidean(state, X, y):
    """Take one projected gradient step with every candidate; False if the task is refused.

    Modified in place: `state`, unless the task is refused.
    """
    k, d = state.values.shape
    facts, A, B = np.empty((k, 3)), np.empty((k, d)), np.empty((k, d))
    if not evaluate_candidates(state, X, y, facts, A, B, 0, k):
        return False
    step_euclidean(state, facts, A, B, 0, k)
    return True


@kernel
def learn_entropic(state, X, y):
    """Take one step of the regularised leader with every candidate; False if refused.

    Modified in place: `state`, unless the task is refused.
    """
    k, d = state.values.shape
    facts, A, B = np.empty((k, 3)), np.empty((k, d)), np.empty((k, d))
    if not evaluate_candidates(state, X, y, facts, A, B, 0, k):
        return False
    step_entropic(state, facts, A, B, 0, k)
    return True


@inline_kernel
def evaluate_candidates(state, X, y, facts, A, B, lo, hi):
    """Evaluate a task at the iterates lo to hi: L(D), a.b and |a||b|, and the factors a, b.

    Returns False if a number is not finite, or would overflow in the next step, or if adaptive
    steps would lose the task to underflow. Modified in place: rows of `facts`, A and B.
    """
    n = y.size
    task = compress(X, y)
    full_rank_task, is_truncated = task, False
    for k in range(lo, hi):
        R, z, residual = task
        L = iterate_dual(state, k, R)
        if factorise_dual(L, n):
            if not is_truncated:
                full_rank_task, is_truncated = truncate(R, z, residual), True
            R, z, residual = full_rank_task
            L = iterate_dual(state, k, R)
            factorise_dual(L, n)
        record = state.records[k]
        loss, a, b = dual_loss_and_factors(R, z, residual, L, n, record["regularized"])
        assign(A[k], a)
        assign(B[k], b)
        inner, outer = np.dot(a, b), np.linalg.norm(a) * np.linalg.norm(b)
        facts[k, 0], facts[k, 1], facts[k, 2] = loss, inner, outer
        norm, norms, step = norm_and_step(record, inner, outer)
        # No entry of a sum of gradients can exceed sum ||G_s|| <= t * norms.
        sums = record["loss"] + loss + (record["n_tasks"] + 1) * norms
        if not np.isfinite(sums + record["step_cost"] + step * norm * norm):
            return False
        if record["adaptive"] and (step < TINY if norms > 0.0 else has_underflown(R, z)):
            return False
    return True


@kernel
def iterate_dual(state, k, X):
    """X D X', n x n, of the k-th candidate: with P = XV', P diag(weights - rest) P' + rest XX'.

    Where D itself is kept and large, XL X' + (XL X')' with D = L + L' takes half the work.
    """
    rank, rest = state.records[k]["rank"], state.records[k]["rest"]
    if rank < 0 and X.shape[1] <= LARGEST_UNTHREADED_SIDE:
        return np.dot(np.dot(X, state.matrices[k]), X.T)
    if rank < 0:
        XL = X.copy()
        multiply_by_triangle(XL, state.matrices[k])
        XL -= 0.5 * np.diag(state.matrices[k]) * X
        half = np.dot(XL, X.T)
        return half + half.T
    if rank == 0:
        return rest * np.dot(X, X.T)
    P = np.dot(X, state.vectors[k, :rank].T)
    dual = np.dot(P * (state.weights[k, :rank] - rest), P.T)
    if rest != 0.0:
        dual += rest * np.dot(X, X.T)
    return dual


@inline_kernel
def norm_and_step(record, inner, outer):
    """||G||, sqrt(sum ||G_s||^2) with it, and the step: scale over the latter, or over sqrt(t).

    With inner = a.b and outer = |a||b|, G = -(a b' + b a') has the operator norm |inner| + outer,
    and the Frobenius norm sqrt(2 inner^2 + 2 outer^2).
    """
    norm = abs(inner) + outer if record["entropic"] else np.sqrt(2.0) * np.hypot(inner, outer)
    norm = 0.0 if norm < SMALLEST_NORM else norm
    norms = np.hypot(record["norm"], norm)
    clock = norms if record["adaptive"] else np.sqrt(record["n_tasks"] + 1)
    return norm, norms, record["scale"] / clock if clock > 0.0 else 0.0


@inline_kernel
def has_underflown(X, y):
    """Return whether X and y are not zero, but so small that their products lose all digits."""
    largest_x, largest_y = np.abs(X).max(), np.abs(y).max()
    return largest_x > 0.0 and largest_y > 0.0 and largest_x * largest_y < SMALLEST_PRODUCT


@inline_kernel
def record_task(record, facts):
    """Add a task to the sums of a candidate, and return the norm of its gradient.

    Modified in place: `record`.
    """
    norm, norms, step = norm_and_step(record, facts[1], facts[2])
    record["n_tasks"] += 1
    record["loss"] += facts[0]
    record["norm"], record["step"] = norms, step
    record["largest"] = max(record["largest"], norm)
    record["step_cost"] += step * norm * norm
    return norm


@inline_kernel
def step_euclidean(state, facts, A, B, lo, hi):
    """D <- proj(D + gamma (a b' + b a')) for the candidates lo to hi. In place: `state`."""
    for k in range(lo, hi):
        norm = record_task(state.records[k], facts[k])
        if norm > 0.0 and take_certified_step(state, k, A[k], B[k], facts[k]):
            continue
        add_iterate(state, k)
        if norm > 0.0:
            rank = update_iterate(state, k, A[k], B[k])
            clip(state, k, rank)


@inline_kernel
def step_entropic(state, facts, A, B, lo, hi):
    """S <- S + a b' + b a', D <- radius exp(eta S) / (tr exp(eta S) + 1). In place: `state`."""
    for k in range(lo, hi):
        norm = record_task(state.records[k], facts[k])
        add_iterate(state, k)
        if norm > 0.0:
            rank = update_sum(state, k, A[k], B[k])
            weigh(state, k, rank)


@inline_kernel
def add_iterate(state, k):
    """Add D to the sum of the iterates. Modified in place: the lower triangle of totals[k]."""
    total, record = state.totals[k], state.records[k]
    rank, rest = record["rank"], record["rest"]
    if rank < 0:
        total += state.matrices[k]
        return
    # V' diag(weights - rest) V is a Gram matrix of the v_i with a positive weight, less one of
    # those with a negative weight.
    rows, n_positive, n_negative = np.empty((rank, total.shape[0])), 0, 0
    for i in range(rank):
        excess = state.weights[k, i] - rest
        if excess > 0.0:
            place = n_positive
            n_positive += 1
        else:
            n_negative += 1
            place = rank - n_negative
        root = np.sqrt(abs(excess))
        for j in range(rows.shape[1]):
            rows[place, j] = root * state.vectors[k, i, j]
    if n_positive > 0:
        add_gram(rows[:n_positive], 1.0, total)
    if n_negative > 0:
        add_gram(rows[n_positive:], -1.0, total)
    for i in range(total.shape[0]):
        total[i, i] += rest


@inline_kernel
def take_certified_step(state, k, a, b, facts):
    """D + gamma (a b' + b a') - shift I, if that is certainly PSD; return whether it was taken.

    The update lowers no eigenvalue by more than gamma (|a||b| - a.b). If a known lower bound on
    D's eigenvalues leaves them above the shift that the trace asks for, the projection is that
    shift and needs no eigenvectors. If D is not at hand, it is formed from its eigenvectors, which
    pays only if more such steps may follow. Adds D to the sum of the iterates first. Modified in
    place: `state`.
    """
    D, record, d = state.matrices[k], state.records[k], a.size
    gamma, rank, inner, outer = record["step"], record["rank"], facts[1], facts[2]
    trace = np.trace(D) if rank < 0 else state.weights[k].sum()
    shift = max(0.0, (trace + 2.0 * gamma * inner - record["radius"]) / d)
    fall = gamma * (outer - inner) + shift + d * EPS * record["radius"]
    if not record["floor"] >= (1.0 if rank < 0 else CERTIFIED_STEPS) * fall:
        return False
    if rank >= 0:
        assign(D, compose(state.vectors[k, :rank], state.weights[k], record["rest"]))
        record["rank"] = -1
    state.totals[k] += D
    add_rank_two(D, a, b, gamma)
    for i in range(d):
        D[i, i] -= shift
    record["floor"] -= fall
    return True


@inline_kernel
def decompose(state, k):
    """Eigenvalues and eigenvectors of the matrix, D or S. Modified in place: `state`."""
    values, vectors = eigh(state.matrices[k])
    assign(state.values[k], values)
    assign(state.vectors[k], vectors)
    state.records[k]["drift"] = 0.0


@inline_kernel
def update_eigenvectors(state, k, a, b, c):
    """Add c (a b' + b a') to the kept decomposition; return its rank. In place: `state`.

    For the regularized objective b = a / 2, and this is c a a'.
    """
    vectors, values, record = state.vectors[k], state.values[k], state.records[k]
    if record["regularized"]:
        return rank_one_update(vectors, values, record["rank"], a, c)
    return rank_two_update(vectors, values, record["rank"], a, b, c)


@inline_kernel
def update_iterate(state, k, a, b):
    """Eigenvectors of D + gamma (a b' + b a'); return how many. Modified in place: `state`.

    Where D itself was kept, they are computed anew. Where they were kept, nothing else is, and
    they are made orthonormal again once rounding errors may have added up.
    """
    record = state.records[k]
    if record["rank"] < 0:
        add_rank_two(state.matrices[k], a, b, record["step"])
        decompose(state, k)
        return a.size
    rank = update_eigenvectors(state, k, a, b, record["step"])
    if record["drift"] > MOST_DRIFT:
        orthonormalise(state.vectors[k, :rank])
        record["drift"] = 0.0
    record["drift"] += np.sqrt(rank) * EPS
    return rank


@inline_kernel
def clip(state, k, rank):
    """Project a D of `rank` known eigenvectors onto {D PSD, tr D <= radius}. In place: `state`."""
    record, values = state.records[k], state.values[k]
    d, radius = values.size, record["radius"]
    # The rest, if it is zero, stays zero.
    last = d if rank < d and values[rank] > 0.0 else rank
    assign(values[:last], soft_threshold(values[:last], radius))
    rest = values[rank] if rank < d else 0.0
    record["rank"] = drop_rest(state.vectors[k], values, rank, rest, d * EPS * radius)
    record["rest"], record["floor"] = rest, values.min()
    assign(state.weights[k], values)


@inline_kernel
def update_sum(state, k, a, b):
    """S + a b' + b a' and its eigenvectors; return how many. Modified in place: `state`.

    The eigenvectors are computed anew once rounding errors may have added up.
    """
    record = state.records[k]
    add_rank_two(state.matrices[k], a, b, 1.0)
    if record["drift"] > MOST_DRIFT:
        decompose(state, k)
        return a.size
    record["drift"] += np.sqrt(record["rank"] + 2) * EPS
    return update_eigenvectors(state, k, a, b, 1.0)


@inline_kernel
def weigh(state, k, rank):
    """D = radius exp(eta S) / (tr exp(eta S) + 1), by `rank` known eigenvectors of S.

    Modified in place: `state`.
    """
    record, values = state.records[k], state.values[k]
    d, largest = values.size, np.abs(values[:rank]).max()
    rank = drop_rest(state.vectors[k], values, rank, 0.0, d * EPS * largest)
    weights, rest = soften(values[:rank], d - rank, record["step"], record["radius"])
    assign(state.weights[k, :rank], weights)
    state.weights[k, rank:] = rest
    record["rank"], record["rest"] = rank, rest


@kernel
def iterates(state):
    """D of each candidate, k x d x d."""
    Ds = state.matrices.copy()
    for k in range(Ds.shape[0]):
        rank, rest = state.records[k]["rank"], state.records[k]["rest"]
        if rank >= 0:
            assign(Ds[k], compose(state.vectors[k, :rank], state.weights[k], rest))
    return Ds


@kernel
def mean_iterates(state):
    """The mean of the iterates of each candidate, k x d x d."""
    means = state.totals / state.records[0]["n_tasks"]
    for k in range(means.shape[0]):
        mirror(means[k])
    return means


@kernel
def restart(state):
    """Derive everything else anew from the matrices, D or S. Modified in place: `state`."""
    for k in range(state.records.size):
        decompose(state, k)
        if state.records[k]["entropic"]:
            weigh(state, k, state.values.shape[1])
        else:
            clip(state, k, state.values.shape[1])
