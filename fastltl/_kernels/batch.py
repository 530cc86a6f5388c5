"""Reduce, evaluate and score many tasks at once.

Task t has the rows starts[t] to starts[t + 1] of R and z, as `ReducedTasks` describes them. Tasks
lo to hi are a thread's share; what is computed for a task does not depend on the others.
"""

import numpy as np

from fastltl._kernels.linalg import kernel
from fastltl._kernels.spectral import eigh, pivoted_cholesky
from fastltl._kernels.task import (
    all_finite,
    assign,
    centre,
    compress,
    factorise_dual,
    score,
    solve,
    truncate,
)

#: Tasks whose inputs are multiplied by D at once. A fixed number, as one that depended on the
#: number of threads could change the last bits.
BLOCK = 16


@kernel
def reduce_tasks(X, y, offsets, centred, starts, reduced, lo, hi):
    """Compress and truncate tasks, after centring them if `centred`.

    `reduced` holds R, z, ranks, residuals, x_means and y_means, all modified in place: task t
    becomes the first ranks[t] rows from starts[t] on.
    """
    R, z, ranks, residuals, x_means, y_means = reduced
    for t in range(lo, hi):
        A, c = X[offsets[t] : offsets[t + 1]].copy(), y[offsets[t] : offsets[t + 1]].copy()
        if centred:
            A, c, mean, y_means[t] = centre(A, c)
            assign(x_means[t], mean)
        A, c, residual = compress(A, c)
        A, c, residuals[t] = truncate(A, c, residual)
        ranks[t] = c.size
        assign(R[starts[t] : starts[t] + c.size], A)
        assign(z[starts[t] : starts[t] + c.size], c)


@kernel
def low_rank_factor(D, scales):
    """F of r rows with D = F'F to rounding, r being the rank of D in units of the `scales`.

    An entry that is small in D may matter where a feature is large.
    """
    scaled = D * scales
    for i in range(scales.size):
        scaled[i] *= scales[i]
    return pivoted_cholesky(scaled) / scales


@kernel
def mean_gradient(A, B):
    """The mean of -(a b' + b a') over the rows a of A and b of B."""
    half = np.dot(A.T, B)
    return (half + half.T) / -A.shape[0]


@kernel
def objectives(D, F, tasks, regularized, values, A, B, duals, lo, hi):
    """Value of each task's objective at D, and factors of its gradient -(a b' + b a').

    The objective is the loss n |u|^2 or, `regularized`, the minimum over w of
    |y - Xw|^2 / n + w' D^+ w, which is y'u: its gradient -a a' has b = a / 2. If F has rows,
    D = F'F and X D X' = P P' with P = XF'; with fewer of them than rows of X,
    M^-1 x = (x - P (P'P + n I)^-1 P'x) / n. Otherwise, and always if `duals` is not empty, M itself
    is factorised; its factor is kept there. lo and hi count blocks of tasks, for each of which one
    product gives all P, or XD. Modified in place: `values`, A, B and `duals`.
    """
    rank, n_tasks, first = F.shape[0], tasks.sizes.size, 0
    right = F.T if rank > 0 else D.T  # D is symmetric
    products = np.empty((BLOCK * np.diff(tasks.starts).max(), right.shape[1]))
    for t in range(lo * BLOCK, min(hi * BLOCK, n_tasks)):
        if t % BLOCK == 0:
            first, last = tasks.starts[t], tasks.starts[min(t + BLOCK, n_tasks)]
            np.dot(tasks.R[first:last], right, products[: last - first])
        n, rows = tasks.sizes[t], slice(tasks.starts[t], tasks.starts[t + 1])
        X, y = tasks.R[rows], tasks.z[rows]
        P = products[tasks.starts[t] - first : tasks.starts[t + 1] - first]
        is_low = 0 < rank < y.size and duals.size == 0
        L = np.dot(P.T, P) if is_low else np.dot(P, P.T if rank > 0 else X.T)
        factorise_dual(L, n)
        u = low_rank_solve(P, L, n, y) if is_low else solve(L, y)
        np.dot(u, X, A[t])
        if regularized:
            values[t] = np.dot(y, u) + tasks.residuals[t] / n
            assign(B[t], 0.5 * A[t])
        else:
            values[t] = n * np.dot(u, u) + tasks.residuals[t] / n
            v = low_rank_solve(P, L, n, u) if is_low else solve(L, u)
            np.dot(n * v, X, B[t])
        if duals.size > 0:
            assign(duals[tasks.dual_starts[t] : tasks.dual_starts[t + 1]], L)


@kernel
def low_rank_solve(P, L, n, y):
    """(P P' + n I)^-1 y, given the Cholesky factor L of P'P + n I."""
    return (y - np.dot(P, solve(L, np.dot(y, P)))) / n


@kernel
def factor_changes(EA, EB, tasks, regularized, duals, dA, dB, lo, hi):
    """Derivatives of the factors a and b of each task's gradient as D moves along E.

    With dM = X E X': du = -M^-1 X E a, dv = M^-1 (du - X E b / n), da = X'du, db = n X'dv; for
    the regularized objective b = a / 2. EA and EB hold E a and E b by rows, `duals` the factors
    of M from `objectives`. Modified in place: dA and dB.
    """
    for t in range(lo, hi):
        n, X = tasks.sizes[t], tasks.R[tasks.starts[t] : tasks.starts[t + 1]]
        L = duals[tasks.dual_starts[t] : tasks.dual_starts[t + 1]].reshape(len(X), len(X))
        du = solve(L, -np.dot(X, EA[t]))
        assign(dA[t], np.dot(du, X))
        if regularized:
            assign(dB[t], 0.5 * dA[t])
        else:
            assign(dB[t], np.dot(solve(L, n * du - np.dot(X, EB[t])), X))


@kernel
def score_representations(Ds, tasks, test, metric, scores, lo, hi):
    """scores[t, k] on the test half of task t of the ridge weights w = D_k X' M^-1 y, for all k.

    `test` holds X, y and starts of the test halves. One product [D_1 ... D_K] X' serves all k.
    Modified in place: `scores`.
    """
    n_representations, d = Ds.shape[0], Ds.shape[1]
    stacked, W = Ds.reshape(n_representations * d, d), np.empty((n_representations, d))
    products = np.empty(stacked.shape[0] * np.diff(tasks.starts).max())
    for t in range(lo, hi):
        rows = slice(tasks.starts[t], tasks.starts[t + 1])
        X, y = tasks.R[rows], tasks.z[rows]
        DX = products[: stacked.shape[0] * y.size].reshape(stacked.shape[0], y.size)
        np.dot(stacked, X.T, DX)
        for k in range(n_representations):
            DX_k = DX[k * d : (k + 1) * d]
            L = np.dot(X, DX_k)
            factorise_dual(L, tasks.sizes[t])
            np.dot(DX_k, solve(L, y), W[k])
        score_task(W, test, t, metric, scores[t])


@kernel
def ridge_paths(lams, tasks, W, lo, hi):
    """W[t, k] = X' (XX' + n lam_k I)^-1 y for all lam, from one eigen-decomposition of XX'.

    Modified in place: W.
    """
    for t in range(lo, hi):
        rows = slice(tasks.starts[t], tasks.starts[t + 1])
        X, y = tasks.R[rows], tasks.z[rows]
        gram = np.dot(X, X.T)
        if not all_finite(gram):
            W[t] = np.nan
            continue
        values, vectors = eigh(gram)
        along, coordinates = np.dot(vectors, y), np.empty((lams.size, y.size))
        for k in range(lams.size):
            for i in range(y.size):
                coordinates[k, i] = along[i] / (values[i] + tasks.sizes[t] * lams[k])
        assign(W[t], np.dot(coordinates, np.dot(vectors, X)))


@kernel
def score_weights(W, test, metric, scores, lo, hi):
    """scores[t, k] of the weights W[t, k] on task t, for all k. Modified in place: `scores`."""
    for t in range(lo, hi):
        score_task(W[t], test, t, metric, scores[t])


@kernel
def score_task(W, test, t, metric, scores):
    """scores[k] of the weights W[k] on task t, for all k. Modified in place: `scores`."""
    X, y, starts = test
    rows = slice(starts[t], starts[t + 1])
    predictions = np.dot(W, X[rows].T)
    for k in range(W.shape[0]):
        scores[k] = score(y[rows], predictions[k], metric)
