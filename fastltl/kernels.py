"""The compiled core: every njit function, arrays and scalars in and out.

All kernels live in this one file because Numba's cache watches a function's own file only.
Arrays are float64 and C-contiguous, and matrices D, Q and S are symmetric; `fastltl.validation`
sees to that at the boundary. `fastltl.reference` has a plain-NumPy twin, of the same name and
signature, of each kernel that is a formula of its own.

Notation, for a task (X, y) of n samples in R^d and a representation D::

    M = X D X' + n I,   u = M^-1 y,   v = M^-1 u,   a = X'u,   b = n X'v
    loss L(D) = n |u|^2,   gradient = -(a b' + b a')

The gradient has rank two, so M is factorised once and neither M^-1 nor S is ever formed.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

EPS = float(np.finfo(np.float64).eps)

#: A gradient of smaller norm has lost digits to underflow, and counts as zero.
SMALLEST_NORM = float(np.finfo(np.float64).tiny) / EPS

#: A rank-two update in the span of known eigenvectors costs less than a full
#: eigen-decomposition while that span stays below this fraction of the whole space.
LOW_RANK_FRACTION = 0.8

#: Eigenvectors updated in place lose a few rounding errors of orthogonality a task: start over
#: from the matrix itself this often.
REFRESH_EVERY = 256

#: Rows of X are taken for dependent, or the dual matrix M for ill-conditioned, if a pivot of the
#: Cholesky decomposition of XX', or of M, falls below this fraction of the largest entry.
SMALLEST_PIVOT_OF_GRAM = 1e-6
SMALLEST_PIVOT_OF_DUAL = 1e-2

#: What an online run keeps beside its matrices: one record for each candidate.
RECORD = np.dtype(
    [
        ("radius", np.float64),  # 1 / lam
        ("scale", np.float64),  # numerator of the steps
        ("adaptive", np.bool_),  # whether their denominator is `norm`, else sqrt(t)
        ("entropic", np.bool_),  # whether norms are operator norms, else Frobenius
        ("n_tasks", np.int64),
        ("loss", np.float64),  # sum of the losses
        ("norm", np.float64),  # sqrt(sum ||G_s||^2)
        ("largest", np.float64),  # max ||G_s||
        ("step", np.float64),  # the latest gamma_t, or eta_t
        ("step_cost", np.float64),  # sum gamma_t ||G_t||^2
        ("rank", np.int64),  # how many rows of `vectors` are eigenvectors, -1 if not known
        ("floor", np.float64),  # a lower bound on the smallest eigenvalue of the iterate
    ],
    align=True,
)

#: What a candidate finds when it meets a task, before it learns from it.
MEETING = np.dtype(
    [
        ("loss", np.float64),  # of the task, at the candidate's iterate
        ("norm", np.float64),  # of its gradient
        ("step", np.float64),  # to take along it
        ("shift", np.float64),  # subtracted from the diagonal after it, NaN if more was done
    ]
)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile without the GIL, and keep the machine code on disk where a folder can be written."""
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # Numba found no writable place for its cache
        return numba.njit(nogil=True, error_model="numpy")(function)


# Small linear algebra -----------------------------------------------------------------------


@compiled
def mirror(A):
    """Copy the lower triangle of A onto the upper one. Modified in place."""
    for i in range(A.shape[0]):
        for j in range(i):
            A[j, i] = A[i, j]


@compiled
def add_rank_two(A, a, b, c):
    """A <- A + c (a b' + b a'), symmetric to the bit. Modified in place."""
    for i in range(a.size):
        for j in range(a.size):
            A[i, j] += c * (a[i] * b[j] + b[i] * a[j])


@compiled
def cholesky_solve(L, y):
    """Solve L L' x = y, reading L by rows only."""
    x = np.empty_like(y)
    for i in range(x.size):
        rest = y[i]
        for j in range(i):
            rest -= L[i, j] * x[j]
        x[i] = rest / L[i, i]
    for i in range(x.size - 1, -1, -1):
        x[i] /= L[i, i]
        for j in range(i):
            x[j] -= L[i, j] * x[i]
    return x


@compiled
def compress(X, y):
    """Replace a task of n > d samples by one of d that has the same M^-1, a and b.

    With X = QR and z = Q'y, returns R, z and |y - Qz|^2, the part of y no weights can reach.
    It is cheaper, and keeps the digits that the n x n form of M loses. Other tasks stay
    as they are; values that are not finite give NaN.
    """
    if X.shape[0] <= X.shape[1]:
        return X, y, 0.0
    if not all_finite(X):
        d = X.shape[1]
        return np.full((d, d), np.nan), np.full(d, np.nan), np.nan
    Q, R = np.linalg.qr(X)
    z = np.dot(np.ascontiguousarray(Q.T), y)
    misfit = y - np.dot(np.ascontiguousarray(Q), z)
    return np.ascontiguousarray(R), z, np.dot(misfit, misfit)


@compiled
def all_finite(A):
    """Whether no entry is NaN or infinite: a count, since one without branches vectorises."""
    bad = 0
    for x in A.ravel():
        bad += not np.isfinite(x)
    return bad == 0


@compiled
def add_to_diagonal(A, c):
    """A <- A + c I. Modified in place."""
    for i in range(A.shape[0]):
        A[i, i] += c


@compiled
def factorise(A):
    """The Cholesky factor of A and its largest entry, which is on the diagonal.

    The factor is NaN if A is not finite, or singular to rounding.
    """
    if not all_finite(A):
        return np.full(A.shape, np.nan), np.nan
    largest = 0.0
    for i in range(A.shape[0]):
        largest = max(largest, A[i, i])
    try:
        return np.linalg.cholesky(A), largest
    except Exception:  # a LinAlgError, which Numba can catch under no narrower name
        return np.full(A.shape, np.nan), largest


@compiled
def dual_matrix(D, X):
    """X D X'."""
    return np.dot(X, np.dot(D, X.T))


@compiled
def dual_factor(D, X, n):
    """The Cholesky factor of M = X D X' + n I, NaN if there is none, and M's largest entry.

    M is finite if and only if X is and the products do not overflow, so that one look at M
    spares another at X.
    """
    M = dual_matrix(D, X)
    add_to_diagonal(M, n)
    return factorise(M)


@compiled
def has_small_pivot(L, threshold):
    """Whether a pivot of L L' is below the threshold, or not a number."""
    small = 0
    for i in range(L.shape[0]):
        small += not L[i, i] * L[i, i] >= threshold
    return small > 0


@compiled
def truncate(X, y, misfit):
    """Replace a task whose rows are linearly dependent, or nearly so, by one of full rank.

    With X = U diag(s) V' and z = U'y, over the s that are not zero to rounding, returns
    diag(s) V', z and the misfit with |y - Uz|^2 added. M^-1 y is large along the directions that
    X' annihilates, and there a = X'u would keep nothing but rounding errors. Other tasks, and
    those with values that are not finite, stay as they are.
    """
    n, d = X.shape
    L, largest = factorise(np.dot(X, X.T))
    if not (all_finite(X) and has_small_pivot(L, SMALLEST_PIVOT_OF_GRAM * largest)):
        return X, y, misfit
    U, s, Vt = np.linalg.svd(X, False)
    rank = max(1, np.sum(s > max(n, d) * EPS * s[0]))
    R = np.empty((rank, d))
    for i in range(rank):
        R[i] = s[i] * Vt[i]
    U = np.ascontiguousarray(U[:, :rank])
    z = np.dot(y, U)
    rest = y - np.dot(U, z)
    return R, z, misfit + np.dot(rest, rest)


@compiled
def dual_form(D, X, y):
    """(R, z, misfit, L): the task compressed, truncated if need be, and the factor of its M."""
    n = y.size
    R, z, misfit = compress(X, y)
    L, largest = dual_factor(D, R, n)
    if has_small_pivot(L, SMALLEST_PIVOT_OF_DUAL * largest):
        R, z, misfit = truncate(R, z, misfit)
        L, _ = dual_factor(D, R, n)
    return R, z, misfit, L


# Mathematics: one task ----------------------------------------------------------------------


@compiled
def centre(X, y):
    """Subtract from a task its means: (X - 1 m', y - mean(y), m, mean(y))."""
    m = np.zeros(X.shape[1])
    for i in range(X.shape[0]):
        m += X[i]
    m /= X.shape[0]
    return X - m, y - y.mean(), m, y.mean()


@compiled
def ridge_weights(D, X, y):
    """w = D X' M^-1 y, the minimiser of |y - Xw|^2 / n + w' D^+ w over the range of D."""
    R, z, _, L = dual_form(D, X, y)
    return np.dot(D, np.dot(cholesky_solve(L, z), R))


@compiled
def features(D, X):
    """X D^(1/2), with the symmetric root of D."""
    values, vectors = np.linalg.eigh(D)
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.dot(X, compose(np.ascontiguousarray(vectors.T), roots, 0.0))


@compiled
def dual_loss_and_factors(R, z, misfit, L, n):
    """`loss_and_factors` of a task in its dual form."""
    u = cholesky_solve(L, z)
    v = cholesky_solve(L, u)
    return n * np.dot(u, u) + misfit / n, np.dot(u, R), n * np.dot(v, R)


@compiled
def loss_and_factors(D, X, y):
    """The loss n |u|^2 and the factors a, b of its gradient -(a b' + b a')."""
    R, z, misfit, L = dual_form(D, X, y)
    return dual_loss_and_factors(R, z, misfit, L, y.size)


@compiled
def task_loss(D, X, y):
    """L(D) = n |M^-1 y|^2, the mean squared training error of the ridge weights."""
    n = y.size
    _, z, misfit, L = dual_form(D, X, y)
    u = cholesky_solve(L, z)
    return n * np.dot(u, u) + misfit / n


@compiled
def task_loss_and_gradient(D, X, y):
    """L(D) and its gradient -(a b' + b a') in one pass."""
    loss, a, b = loss_and_factors(D, X, y)
    gradient = np.zeros(D.shape)
    add_rank_two(gradient, a, b, -1.0)
    return loss, gradient


@compiled
def task_gradient(D, X, y):
    """The gradient of L at D."""
    return task_loss_and_gradient(D, X, y)[1]


# Mathematics: the two geometries --------------------------------------------------------------


@compiled
def soft_threshold(values, radius):
    """max(0, g_i - a) with the least a >= 0 that brings their sum to the radius, by sorting.

    Where the positive parts of g sum to less than the radius already, a is 0: a root search
    without that case would answer with a negative one. Otherwise all is computed relative to
    the largest g, so that a radius far below it is not lost to rounding.
    """
    if np.maximum(values, 0.0).sum() <= radius:
        return np.maximum(values, 0.0)
    below_top = values - values.max()
    descending = np.sort(below_top)[::-1]
    excess, shift = -radius, -radius
    for k in range(1, descending.size):
        excess += descending[k]
        if excess >= (k + 1) * descending[k]:
            break
        shift = excess / (k + 1)
    return np.maximum(below_top - shift, 0.0)


@compiled
def compose(vectors, values, rest):
    """sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i'), the v_i being the rows of `vectors`."""
    scaled = np.empty(vectors.shape)
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            scaled[i, j] = (values[i] - rest) * vectors[i, j]
    A = np.dot(scaled.T, vectors)
    mirror(A)
    add_to_diagonal(A, rest)
    return A


@compiled
def project(Q, radius):
    """The nearest D to Q, in Frobenius norm, with D PSD and tr D <= radius."""
    values, vectors = np.linalg.eigh(Q)
    kept = soft_threshold(values, radius)
    if np.array_equal(kept, values):
        return Q.copy()
    return compose(np.ascontiguousarray(vectors.T), kept, 0.0)


@compiled
def soften(values, n_rest, eta, radius):
    """Exponential weights: radius exp(eta s_i) / (sum_j exp(eta s_j) + n_rest + 1).

    Returns the weights of the s_i and the weight of a zero, which `n_rest` more coordinates and
    the slack coordinate have. The largest exponent is subtracted everywhere first.
    """
    top = max(0.0, eta * values.max()) if values.size else 0.0
    weights = np.exp(eta * values - top)
    rest = np.exp(-top)
    total = weights.sum() + (n_rest + 1) * rest
    return radius * weights / total, radius * rest / total


@compiled
def entropic_iterate(S, eta, radius):
    """D = radius exp(eta S) / (tr exp(eta S) + 1)."""
    values, vectors = np.linalg.eigh(S)
    weights, _ = soften(values, 0, eta, radius)
    return compose(np.ascontiguousarray(vectors.T), weights, 0.0)


# Kept eigen-decompositions ------------------------------------------------------------------


@compiled
def decompose(A, vectors, values):
    """Store A = sum_i values_i v_i v_i' with the v_i as rows, and return the rank d.

    `vectors` and `values` are modified in place.
    """
    w, V = np.linalg.eigh(A)
    values[:] = w
    vectors[:] = V.T
    return w.size


@compiled
def extend_basis(vectors, rank, a):
    """Coordinates of a in the orthonormal rows vectors[:rank], grown by one row if a needs it.

    Returns the new rank and the rank + 1 coordinates, of which the last is zero if no row was
    added. Two passes of Gram-Schmidt keep the rows orthonormal to rounding. `vectors` is
    modified in place.
    """
    basis = vectors[:rank]
    coordinates = np.zeros(rank + 1)
    rest = a.copy()
    for _ in range(2):
        along = np.dot(basis, rest)
        rest -= np.dot(along, basis)
        coordinates[:rank] += along
    length = np.sqrt(np.dot(rest, rest))
    if rank == a.size or length <= a.size * EPS * np.sqrt(np.dot(a, a)):
        return rank, coordinates
    vectors[rank] = rest / length
    coordinates[rank] = length
    return rank + 1, coordinates


@compiled
def rank_two_update(vectors, values, rank, a, b, c):
    """Eigen-decomposition of A + c (a b' + b a') from that of A = sum_i values_i v_i v_i'.

    The sum lives in the span of the v_i, a and b, so a problem of size rank + 2 has all its
    nonzero eigenvalues. Returns the new rank. `vectors` and `values` are modified in place.
    """
    grown, alpha = extend_basis(vectors, rank, a)
    size, beta = extend_basis(vectors, grown, b)
    small = np.zeros((size, size))
    for i in range(rank):
        small[i, i] = values[i]
    for i in range(size):
        for j in range(size):
            alpha_i = alpha[i] if i < grown else 0.0
            alpha_j = alpha[j] if j < grown else 0.0
            small[i, j] += c * (alpha_i * beta[j] + beta[i] * alpha_j)
    w, V = np.linalg.eigh(small)
    values[:size] = w
    vectors[:size] = np.dot(V.T, vectors[:size])
    return size


@compiled
def keep(vectors, values, rank, cut):
    """Move the eigenpairs larger than `cut` in size to the front, and count them.

    `vectors` and `values` are modified in place.
    """
    kept = 0
    for i in range(rank):
        if abs(values[i]) > cut:
            values[kept] = values[i]
            vectors[kept] = vectors[i]
            kept += 1
    return kept


# Many tasks at once -----------------------------------------------------------------------------
#
# Task t has the rows starts[t] to starts[t + 1] of R and z. Tasks lo to hi are a thread's share;
# what is computed of a task does not depend on the others.


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
        R[starts[t] : starts[t] + c.size] = A
        z[starts[t] : starts[t] + c.size] = c


@compiled
def objectives(D, R, z, starts, sizes, misfits, penalised, values, A, B, L, corners, lo, hi):
    """Value of each task's objective at D and factors of its gradient -(a b' + b a').

    The objective is the loss n |u|^2 or, `penalised`, the minimum over w of
    |y - Xw|^2 / n + w' D^+ w, which is y'u: its gradient -a a' has b = a / 2. The Cholesky factor
    of task t is left in L from corners[t] on. `values`, A, B and L are modified in place.
    """
    for t in range(lo, hi):
        n, X, y = sizes[t], R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        factor, _ = dual_factor(D, X, n)
        L[corners[t] : corners[t + 1]] = factor.ravel()
        if penalised:
            u = cholesky_solve(factor, y)
            values[t] = np.dot(y, u) + misfits[t] / n
            A[t] = np.dot(u, X)
            B[t] = 0.5 * A[t]
        else:
            values[t], A[t], B[t] = dual_loss_and_factors(X, y, misfits[t], factor, n)


@compiled
def factor_changes(EA, EB, R, starts, sizes, penalised, L, corners, dA, dB, lo, hi):
    """Derivatives of the factors a and b of each task's gradient as D moves along E.

    With dM = X E X': du = -M^-1 X E a, dv = M^-1 (du - X E b / n), da = X'du, db = n X'dv; for
    the penalised objective b = a / 2. EA and EB hold E a and E b by rows, L what `objectives`
    left there. dA and dB are modified in place.
    """
    for t in range(lo, hi):
        n, X = sizes[t], R[starts[t] : starts[t + 1]]
        factor = L[corners[t] : corners[t + 1]].reshape(X.shape[0], X.shape[0])
        du = cholesky_solve(factor, -np.dot(X, EA[t]))
        dA[t] = np.dot(du, X)
        if penalised:
            dB[t] = 0.5 * dA[t]
        else:
            dv = cholesky_solve(factor, du - np.dot(X, EB[t]) / n)
            dB[t] = n * np.dot(dv, X)


@compiled
def weights_of_tasks(Ds, R, z, starts, sizes, W, lo, hi):
    """W[k, t] = D_k X' M^-1 y, the ridge weights of task t with the k-th representation.

    Items lo to hi are pairs (k, t) in order. W is modified in place.
    """
    n_tasks = sizes.size
    for item in range(lo, hi):
        k, t = item // n_tasks, item % n_tasks
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        L, _ = dual_factor(Ds[k], X, sizes[t])
        W[k, t] = np.dot(Ds[k], np.dot(cholesky_solve(L, y), X))


@compiled
def weights_from_duals(c, Ds, duals, corners, R, z, starts, sizes, W, lo, hi):
    """`weights_of_tasks` with c D_k, where X D_k X' is known: duals[k] from corners[t] on."""
    n_tasks = sizes.size
    for item in range(lo, hi):
        k, t = item // n_tasks, item % n_tasks
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        M = (c * duals[k, corners[t] : corners[t + 1]]).reshape(y.size, y.size)
        add_to_diagonal(M, sizes[t])
        L, _ = factorise(M)
        W[k, t] = c * np.dot(Ds[k], np.dot(cholesky_solve(L, y), X))


@compiled
def compute_duals(Ds, R, starts, corners, duals, lo, hi):
    """duals[k] = X D_k X' of every task, one after another. `duals` is modified in place."""
    for k in range(lo, hi):
        for t in range(starts.size - 1):
            M = dual_matrix(Ds[k], R[starts[t] : starts[t + 1]])
            duals[k, corners[t] : corners[t + 1]] = M.ravel()


@compiled
def follow_duals(iterates, factors, meetings, R, starts, corners, grams, duals, totals, lo, hi):
    """Update X D X' of every task, and its sum over the run, by the step that D has taken.

    A certified step D + gamma (a b' + b a') - shift I changes it by
    gamma (p q' + q p') - shift XX' with p = Xa and q = Xb; after others it is computed anew.
    `duals` and `totals` are modified in place.
    """
    for k in range(lo, hi):
        totals[k] += duals[k]
        gamma, shift = meetings[k]["step"], meetings[k]["shift"]
        for t in range(starts.size - 1):
            X = R[starts[t] : starts[t + 1]]
            dual = duals[k, corners[t] : corners[t + 1]].reshape(X.shape[0], X.shape[0])
            if np.isnan(shift):
                dual[:] = dual_matrix(iterates[k], X)
            elif meetings[k]["norm"] > 0.0:
                gram = grams[corners[t] : corners[t + 1]].reshape(dual.shape)
                add_rank_two(dual, np.dot(X, factors[k, 0]), np.dot(X, factors[k, 1]), gamma)
                if shift > 0.0:
                    dual -= shift * gram


@compiled
def ridge_paths(lams, R, z, starts, sizes, W, lo, hi):
    """W[k, t] = X' (XX' + n lam_k I)^-1 y for all lam, from one eigen-decomposition of XX'.

    W is modified in place.
    """
    for t in range(lo, hi):
        X, y = R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        gram = np.dot(X, X.T)
        if not all_finite(gram):
            W[:, t] = np.nan
            continue
        values, V = np.linalg.eigh(gram)
        V = np.ascontiguousarray(V)
        along = np.dot(y, V)
        u = np.empty((lams.size, y.size))
        for k in range(lams.size):
            u[k] = along / (values + sizes[t] * lams[k])
        W[:, t] = np.dot(np.dot(u, V.T), X)


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
        scores[k, t] = score(y[rows], np.dot(X[rows], W[k, t]), metric)


# One task of an online run --------------------------------------------------------------------
#
# A run has one or more candidates (values of lam, say), stacked along the first axis of its
# arrays. A task is met by all of them before any takes its step, so that a task that is refused
# has changed nothing. Candidates lo to hi are a thread's share.


@compiled
def meet_task(iterates, factors, meetings, records, X, y, lo, hi):
    """The loss of the task at each D, the factors a, b of its gradient, and the step to take.

    The step is scale / clock, where the clock is sqrt(sum ||G_s||^2) if adaptive, else sqrt(t).
    Returns False if a number in the task is not finite or becomes so on the way. `factors` and
    `meetings` are modified in place.
    """
    n = y.size
    R, z, misfit = compress(X, y)
    truncated = False
    R_safe, z_safe, misfit_safe = R, z, misfit
    for k in range(lo, hi):
        R_k, z_k, misfit_k = R, z, misfit
        L, largest = dual_factor(iterates[k], R_k, n)
        if has_small_pivot(L, SMALLEST_PIVOT_OF_DUAL * largest):
            if not truncated:
                R_safe, z_safe, misfit_safe = truncate(R, z, misfit)
                truncated = True
            R_k, z_k, misfit_k = R_safe, z_safe, misfit_safe
            L, _ = dual_factor(iterates[k], R_k, n)
        loss, a, b = dual_loss_and_factors(R_k, z_k, misfit_k, L, n)
        factors[k, 0], factors[k, 1] = a, b
        record = records[k]
        norm = gradient_norm(np.dot(a, b), lengths(a, b), record["entropic"])
        norms = np.hypot(record["norm"], norm)
        t = record["n_tasks"] + 1
        clock = norms if record["adaptive"] else np.sqrt(t)
        step = record["scale"] / clock if clock > 0.0 else 0.0
        # No entry of a sum of gradients can exceed sum ||G_s|| <= t * norms.
        total = record["loss"] + loss + t * norms + record["step_cost"] + step * norm * norm
        if not np.isfinite(total):
            return False
        met = meetings[k]
        met["loss"], met["norm"], met["step"], met["shift"] = loss, norm, step, 0.0
    return True


@compiled
def lengths(a, b):
    """|a| |b|, of which neither square may overflow alone."""
    return np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(b, b))


@compiled
def gradient_norm(inner, outer, operator):
    """||a b' + b a'|| in operator or Frobenius norm, from a.b and |a||b|; 0 where it underflows."""
    norm = abs(inner) + outer if operator else np.sqrt(2.0) * np.hypot(inner, outer)
    return 0.0 if norm < SMALLEST_NORM else norm


@compiled
def enter_task(iterate, total, met, record):
    """Count the task that was met with `iterate`. `total` and `record` are modified in place."""
    total += iterate
    norm, step = met["norm"], met["step"]
    record["n_tasks"] += 1
    record["loss"] += met["loss"]
    record["norm"] = np.hypot(record["norm"], norm)
    record["largest"] = max(record["largest"], norm)
    record["step"] = step
    record["step_cost"] += step * norm * norm


@compiled
def euclidean_step(iterate, vectors, values, met, record, a, b):
    """D <- proj(D + gamma (a b' + b a')), by the cheapest path that is exact.

    Certified: the update moves no eigenvalue down by more than gamma (|a||b| - a.b). If a known
    lower bound on D's eigenvalues leaves them all above the shift that the trace asks for,
    nothing is clipped and the projection is that shift. Low rank: the update is an
    eigenproblem in the span of D's eigenvectors, a and b. Otherwise: a full decomposition.
    All but a and b are modified in place.
    """
    d, radius, gamma = a.size, record["radius"], record["step"]
    rounding = d * EPS * radius
    inner = np.dot(a, b)
    shift = max(0.0, (np.trace(iterate) + 2.0 * gamma * inner - radius) / d)
    floor = record["floor"] - gamma * (lengths(a, b) - inner) - shift - rounding
    if floor >= 0.0:
        add_rank_two(iterate, a, b, gamma)
        add_to_diagonal(iterate, -shift)
        record["floor"] = floor
        record["rank"] = -1
        met["shift"] = shift
        return
    met["shift"] = np.nan
    rank = record["rank"]
    if 0 <= rank <= LOW_RANK_FRACTION * d - 2 and record["n_tasks"] % REFRESH_EVERY != 0:
        rank = rank_two_update(vectors, values, rank, a, b, gamma)
    else:
        add_rank_two(iterate, a, b, gamma)
        rank = decompose(iterate, vectors, values)
    values[:rank] = soft_threshold(values[:rank], radius)
    rank = keep(vectors, values, rank, rounding)
    iterate[:] = compose(vectors[:rank], values[:rank], 0.0)
    record["rank"] = rank
    record["floor"] = values[:rank].min() if rank == d else 0.0


@compiled
def entropic_step(iterate, dual, vectors, values, record, a, b):
    """S <- S + a b' + b a', then D = radius exp(eta S) / (tr exp(eta S) + 1).

    While S has low rank its eigenvectors are updated in their span; otherwise S, which is kept
    as `dual`, is decomposed anew. All but a and b are modified in place.
    """
    d = a.size
    add_rank_two(dual, a, b, 1.0)
    rank = record["rank"]
    if rank <= LOW_RANK_FRACTION * d - 2 and record["n_tasks"] % REFRESH_EVERY != 0:
        rank = rank_two_update(vectors, values, rank, a, b, 1.0)
    else:
        rank = decompose(dual, vectors, values)
    rank = keep(vectors, values, rank, d * EPS * np.abs(values[:rank]).max())
    weights, rest = soften(values[:rank], d - rank, record["step"], record["radius"])
    iterate[:] = compose(vectors[:rank], weights, rest)
    record["rank"] = rank


@compiled
def step_euclidean(iterates, totals, vectors, values, factors, meetings, records, lo, hi):
    """Projected gradient descent on the task that was met. Modified in place: all arrays."""
    for k in range(lo, hi):
        enter_task(iterates[k], totals[k], meetings[k], records[k])
        if meetings[k]["norm"] > 0.0:
            a, b = factors[k, 0], factors[k, 1]
            euclidean_step(iterates[k], vectors[k], values[k], meetings[k], records[k], a, b)


@compiled
def step_entropic(duals, iterates, totals, vectors, values, factors, meetings, records, lo, hi):
    """Follow the regularised leader on the task that was met. Modified in place: all arrays."""
    for k in range(lo, hi):
        enter_task(iterates[k], totals[k], meetings[k], records[k])
        if meetings[k]["norm"] > 0.0:
            a, b = factors[k, 0], factors[k, 1]
            entropic_step(iterates[k], duals[k], vectors[k], values[k], records[k], a, b)


@compiled
def learn_euclidean(iterates, totals, vectors, values, factors, meetings, records, X, y):
    """Meet a task and step, all candidates; False, with nothing changed, if it is refused."""
    if not meet_task(iterates, factors, meetings, records, X, y, 0, records.size):
        return False
    step_euclidean(iterates, totals, vectors, values, factors, meetings, records, 0, records.size)
    return True


@compiled
def learn_entropic(duals, iterates, totals, vectors, values, factors, meetings, records, X, y):
    """Meet a task and step, all candidates; False, with nothing changed, if it is refused."""
    if not meet_task(iterates, factors, meetings, records, X, y, 0, records.size):
        return False
    step_entropic(
        duals, iterates, totals, vectors, values, factors, meetings, records, 0, records.size
    )
    return True
