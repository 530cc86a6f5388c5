"""Many tasks at once.

Task t has the rows starts[t] to starts[t + 1] of R and z. Tasks lo to hi are a thread's share;
what is computed of a task does not depend on the others.
"""

import numpy as np

from fastltl._kernels.compilation import compiled
from fastltl._kernels.linalg import (
    apply_symmetric,
    apply_transposed,
    eigh,
    pivoted_cholesky,
    transposed_multiply,
)
from fastltl._kernels.task import (
    all_finite,
    assign,
    centre,
    compress,
    dual_matrix,
    factorise_dual,
    mirror_upper,
    outer_gram,
    product,
    solve,
    symmetric_product,
    transposed_product,
    truncate,
)
from fastltl._kernels.tiles import cholesky_solve, multiply, multiply_to_gram
from fastltl._kernels.turns import DONE, LEAVE, NOTE, TURN, add, look, take, watch

#: Pieces in which the tasks of a turn are taken: many, so that threads end at the same time.
PIECES = 24


@compiled
def reduce_tasks(X, y, offsets, centred, starts, R, z, ranks, misfits, x_means, y_means, lo, hi):
    """Compress and truncate tasks, centred first if so wished, once for all that follows.

    Task t is left in the first ranks[t] rows from starts[t] on. All but the first four are
    modified in place.
    """
    for t in range(lo, hi):
        A, c = X[offsets[t] : offsets[t + 1]].copy(), y[offsets[t] : offsets[t + 1]].copy()
        if centred:
            A, c, x_means[t], y_means[t] = centre(A, c)
        A, c, misfit = compress(A, c)
        A, c, misfits[t] = truncate(A, c, misfit)
        ranks[t] = c.size
        assign(R[starts[t] : starts[t] + c.size], A)
        assign(z[starts[t] : starts[t] + c.size], c)


@compiled
def low_rank_factor(D, scales):
    """F of r columns with D = FF' to rounding, r being the rank of D where features have scales.

    What is small in D may matter where a feature is large.
    """
    d = D.shape[0]
    L, pivots = np.empty((d, d)), np.empty(d, np.int32)
    for i in range(d):
        for j in range(d):
            L[i, j] = D[i, j] * scales[i] * scales[j]
    F = np.zeros((d, pivoted_cholesky(L, pivots)))
    for j in range(d):
        for i in range(min(j + 1, F.shape[1])):
            F[pivots[j], i] = L[j, i] / scales[pivots[j]]
    return F


@compiled
def mean_gradient(A, B):
    """The mean of -(a b' + b a') over the rows a of A and b of B."""
    n_tasks, d = A.shape
    half, gradient = np.empty((d, d)), np.empty((d, d))
    transposed_multiply(A, B, half)
    for i in range(d):
        for j in range(d):
            gradient[i, j] = (half[i, j] + half[j, i]) / -n_tasks
    return gradient


@compiled
def objectives(D, F, R, z, starts, sizes, misfits, penalised, values, A, B, U, corners, lo, hi):
    """Value of each task's objective at D and factors of its gradient -(a b' + b a').

    The objective is the loss n |u|^2 or, `penalised`, the minimum over w of
    |y - Xw|^2 / n + w' D^+ w, which is y'u: its gradient -a a' has b = a / 2. If F has columns
    D = FF', and X D X' = P P' with P = XF; where they are fewer than rows of X,
    M^-1 x = (x - P (P'P + n I)^-1 P'x) / n. Otherwise M itself is factorised and, if F has no
    columns, left in U from corners[t] on. `values`, A, B and U are modified in place.
    """
    rank = F.shape[1]
    for t in range(lo, hi):
        n, X, y = sizes[t], R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        low = 0 < rank < y.size
        P = np.empty((y.size, rank))
        if rank > 0:
            multiply(X, F, P)
        if low:
            factor = np.empty((rank, rank))
            multiply_to_gram(P, factor)
        else:
            factor = symmetric_product(P, P) if rank > 0 else dual_matrix(D, X)
        factorise_dual(factor, n)
        u = low_rank_solve(P, factor, n, y) if low else solve(factor, y)
        apply_transposed(X, u, A[t])
        if penalised:
            values[t] = np.dot(y, u) + misfits[t] / n
            for j in range(A.shape[1]):
                B[t, j] = 0.5 * A[t, j]
        else:
            values[t] = n * np.dot(u, u) + misfits[t] / n
            v = low_rank_solve(P, factor, n, u) if low else solve(factor, u)
            v *= n
            apply_transposed(X, v, B[t])
        if rank == 0:
            assign(U[corners[t] : corners[t + 1]], factor)


@compiled
def objectives_in_turns(
    D, F, R, z, starts, sizes, misfits, penalised, values, A, B, U, corners, board, stays
):
    """`objectives` of those tasks of a turn that nobody else has taken.

    F is at the beginning of an array that has room for any; the note of the turn says how many
    columns it has. Who `stays` watches for further turns. Who does not waits for the others, and
    learns whether all is done.
    """
    n_tasks, d = A.shape
    length = max(1, n_tasks // PIECES)
    n_pieces = (n_tasks + length - 1) // length
    while True:
        turn, rank = look(board, TURN), look(board, NOTE)
        if rank == LEAVE:
            return False
        columns = F[: d * rank].reshape(d, rank)
        piece = take(board, turn, n_pieces, stays)
        while piece >= 0:
            lo, hi = piece * length, min((piece + 1) * length, n_tasks)
            objectives(
                D, columns, R, z, starts, sizes, misfits, penalised, values, A, B, U, corners,
                lo, hi,
            )  # fmt: skip
            add(board, DONE, 1)
            piece = take(board, turn, n_pieces, stays)
        if not stays:
            return watch(board, DONE, n_pieces)
        if not watch(board, TURN, turn + 1):
            return False


@compiled
def low_rank_solve(P, U, n, y):
    """(P P' + n I)^-1 y, given the Cholesky factor U of P'P + n I."""
    w = transposed_product(P, y)
    cholesky_solve(U, w)
    return (y - product(P, w)) / n


@compiled
def factor_changes(EA, EB, R, starts, sizes, penalised, U, corners, dA, dB, lo, hi):
    """Derivatives of the factors a and b of each task's gradient as D moves along E.

    With dM = X E X': du = -M^-1 X E a, dv = M^-1 (du - X E b / n), da = X'du, db = n X'dv; for
    the penalised objective b = a / 2. EA and EB hold E a and E b by rows, U what `objectives`
    left there. dA and dB are modified in place.
    """
    for t in range(lo, hi):
        n, X = sizes[t], R[starts[t] : starts[t + 1]]
        factor = U[corners[t] : corners[t + 1]].reshape(X.shape[0], X.shape[0])
        du = solve(factor, -product(X, EA[t]))
        dA[t] = transposed_product(X, du)
        if penalised:
            dB[t] = 0.5 * dA[t]
        else:
            dv = solve(factor, n * du - product(X, EB[t]))
            dB[t] = transposed_product(X, dv)


@compiled
def weights_of_tasks(Ds, R, z, starts, sizes, W, lo, hi):
    """W[k, t] = D_k X' M^-1 y, the ridge weights of task t with the k-th representation.

    Items lo to hi are pairs (k, t) in order. W is modified in place.
    """
    n_tasks = sizes.size
    for item in range(lo, hi):
        k, t = item // n_tasks, item % n_tasks
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        U = dual_matrix(Ds[k], X)
        factorise_dual(U, sizes[t])
        apply_symmetric(Ds[k], transposed_product(X, solve(U, y)), W[k, t])


@compiled
def weights_from_duals(c, Ds, duals, corners, R, z, starts, sizes, W, lo, hi):
    """`weights_of_tasks` with c D_k, where X D_k X' is known: duals[k] from corners[t] on."""
    n_tasks = sizes.size
    for item in range(lo, hi):
        k, t = item // n_tasks, item % n_tasks
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        M = (c * duals[k, corners[t] : corners[t + 1]]).reshape(y.size, y.size)
        factorise_dual(M, sizes[t])
        apply_symmetric(Ds[k], transposed_product(X, solve(M, c * y)), W[k, t])


@compiled
def compute_duals(Ds, R, starts, corners, duals, lo, hi):
    """duals[k] = X D_k X' of every task, one after another. `duals` is modified in place."""
    for k in range(lo, hi):
        for t in range(starts.size - 1):
            M = dual_matrix(Ds[k], R[starts[t] : starts[t + 1]])
            mirror_upper(M)
            duals[k, corners[t] : corners[t + 1]] = M.ravel()


@compiled
def ridge_paths(lams, R, z, starts, sizes, W, lo, hi):
    """W[k, t] = X' (XX' + n lam_k I)^-1 y for all lam, from one eigen-decomposition of XX'.

    W is modified in place.
    """
    for t in range(lo, hi):
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        vectors, values = outer_gram(X, X), np.empty(y.size)
        if not all_finite(vectors):
            W[:, t] = np.nan
            continue
        eigh(vectors, values)
        along = product(vectors, y)
        coordinates, u = np.empty((lams.size, y.size)), np.empty((lams.size, y.size))
        for k in range(lams.size):
            coordinates[k] = along / (values + sizes[t] * lams[k])
        multiply(coordinates, vectors, u)
        w = np.empty((lams.size, X.shape[1]))
        multiply(u, X, w)
        W[:, t] = w


@compiled
def score(y, prediction, metric):
    """Mean squared error (metric 0), explained variance (1) or R2 (2) of one task.

    1 - error / variance of targets that do not vary is 1 if the error is zero, and else 0.
    """
    residual = y - prediction
    error = np.mean(residual * residual)
    if metric == 0:
        return error
    if metric == 1:
        error = np.var(residual)
    if y.min() == y.max():
        return 1.0 if error == 0.0 else 0.0
    return 1.0 - error / np.var(y)


@compiled
def score_weights(W, X, y, starts, metric, scores, lo, hi):
    """scores[k, t] of the weights W[k, t] on task t. `scores` is modified in place.

    Items lo to hi are pairs (k, t) in order.
    """
    n_tasks = W.shape[1]
    for item in range(lo, hi):
        k, t = item // n_tasks, item % n_tasks
        rows = slice(starts[t], starts[t + 1])
        scores[k, t] = score(y[rows], product(X[rows], W[k, t]), metric)
