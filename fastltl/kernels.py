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

#: What an online run keeps beside its matrices, as an array of length one.
RECORD = np.dtype(
    [
        ("radius", np.float64),  # 1 / lam
        ("scale", np.float64),  # numerator of the steps
        ("adaptive", np.bool_),  # whether their denominator is `norm`, else sqrt(t)
        ("n_tasks", np.int64),
        ("loss", np.float64),  # sum of the losses
        ("norm", np.float64),  # sqrt(sum ||G_s||^2), Frobenius or operator norm by geometry
        ("largest", np.float64),  # max ||G_s||
        ("step", np.float64),  # the latest gamma_t
        ("step_cost", np.float64),  # sum gamma_t ||G_t||^2
        ("rank", np.int64),  # how many rows of `vectors` are eigenvectors, -1 if not known
        ("floor", np.float64),  # a lower bound on the smallest eigenvalue of the iterate
    ],
    align=True,
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
def dual_factor(D, X, n):
    """The Cholesky factor of M = X D X' + n I; NaN if M is not finite, or singular to rounding.

    M is finite if and only if X is and the products do not overflow, so this one look spares
    another at X.
    """
    M = np.dot(X, np.dot(D, X.T))
    if not all_finite(M):
        return np.full(M.shape, np.nan)
    for i in range(M.shape[0]):
        M[i, i] += n
    try:
        return np.linalg.cholesky(M)
    except Exception:  # a LinAlgError, which Numba can catch under no narrower name
        return np.full(M.shape, np.nan)


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
    n = y.size
    X, y, _ = compress(X, y)
    u = cholesky_solve(dual_factor(D, X, n), y)
    return np.dot(D, np.dot(u, X))


@compiled
def features(D, X):
    """X D^(1/2), with the symmetric root of D."""
    values, vectors = np.linalg.eigh(D)
    roots = np.sqrt(np.maximum(values, 0.0))
    return np.dot(X, compose(np.ascontiguousarray(vectors.T), roots, 0.0))


@compiled
def loss_and_factors(D, X, y):
    """The loss n |u|^2 and the factors a, b of its gradient -(a b' + b a')."""
    n = y.size
    X, y, misfit = compress(X, y)
    L = dual_factor(D, X, n)
    u = cholesky_solve(L, y)
    v = cholesky_solve(L, u)
    return n * np.dot(u, u) + misfit / n, np.dot(u, X), n * np.dot(v, X)


@compiled
def task_loss(D, X, y):
    """L(D) = n |M^-1 y|^2, the mean squared training error of the ridge weights."""
    n = y.size
    X, y, misfit = compress(X, y)
    u = cholesky_solve(dual_factor(D, X, n), y)
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
    for i in range(A.shape[0]):
        A[i, i] += rest
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


# One task of an online run --------------------------------------------------------------------


@compiled
def euclidean_step(iterate, vectors, values, record, a, b, inner, outer, gamma):
    """D <- proj(D + gamma (a b' + b a')), by the cheapest path that is exact.

    Certified: the update moves no eigenvalue down by more than gamma (|a||b| - a.b). If a known
    lower bound on D's eigenvalues leaves them all above the shift that the trace asks for,
    nothing is clipped and the projection is that shift. Low rank: the update is an
    eigenproblem in the span of D's eigenvectors, a and b. Otherwise: a full decomposition.
    `inner` is a.b and `outer` is |a||b|. `iterate`, `vectors`, `values` and `record` are
    modified in place.
    """
    d, radius = a.size, record[0]["radius"]
    rounding = d * EPS * radius
    shift = max(0.0, (np.trace(iterate) + 2.0 * gamma * inner - radius) / d)
    floor = record[0]["floor"] - gamma * (outer - inner) - shift - rounding
    if floor >= 0.0:
        add_rank_two(iterate, a, b, gamma)
        for i in range(d):
            iterate[i, i] -= shift
        record[0]["floor"] = floor
        record[0]["rank"] = -1
        return
    rank = record[0]["rank"]
    if 0 <= rank <= LOW_RANK_FRACTION * d - 2 and record[0]["n_tasks"] % REFRESH_EVERY != 0:
        rank = rank_two_update(vectors, values, rank, a, b, gamma)
    else:
        add_rank_two(iterate, a, b, gamma)
        rank = decompose(iterate, vectors, values)
    values[:rank] = soft_threshold(values[:rank], radius)
    rank = keep(vectors, values, rank, rounding)
    iterate[:] = compose(vectors[:rank], values[:rank], 0.0)
    record[0]["rank"] = rank
    record[0]["floor"] = values[:rank].min() if rank == d else 0.0


@compiled
def entropic_step(iterate, dual, vectors, values, record, a, b, eta):
    """S <- S + a b' + b a', then D = radius exp(eta S) / (tr exp(eta S) + 1).

    While S has low rank its eigenvectors are updated in their span; otherwise S, which is kept,
    is decomposed anew. `iterate`, `dual` (S), `vectors`, `values` and `record` are modified in
    place.
    """
    d = a.size
    add_rank_two(dual, a, b, 1.0)
    rank = record[0]["rank"]
    if rank <= LOW_RANK_FRACTION * d - 2 and record[0]["n_tasks"] % REFRESH_EVERY != 0:
        rank = rank_two_update(vectors, values, rank, a, b, 1.0)
    else:
        rank = decompose(dual, vectors, values)
    rank = keep(vectors, values, rank, d * EPS * np.abs(values[:rank]).max())
    weights, rest = soften(values[:rank], d - rank, eta, record[0]["radius"])
    iterate[:] = compose(vectors[:rank], weights, rest)
    record[0]["rank"] = rank


@compiled
def enter_task(iterate, total, record, loss, norm, norms):
    """Count a task that was met with `iterate`. `total` and `record` are modified in place."""
    total += iterate
    record[0]["n_tasks"] += 1
    record[0]["loss"] += loss
    record[0]["norm"] = norms
    record[0]["largest"] = max(record[0]["largest"], norm)


@compiled
def learn_euclidean(iterate, total, vectors, values, record, X, y):
    """Take one task: pay its loss at D, then step with gamma = scale / clock.

    The clock is sqrt(sum ||G_s||_F^2) if adaptive, else sqrt(t). Returns False, with nothing
    changed, if a number in the task is not finite or becomes so on the way. All but X and y are
    modified in place.
    """
    loss, a, b = loss_and_factors(iterate, X, y)
    inner, outer = np.dot(a, b), np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(b, b))
    norm = np.sqrt(2.0) * np.hypot(inner, outer)
    if norm < SMALLEST_NORM:
        norm = 0.0
    t = record[0]["n_tasks"] + 1
    norms = np.hypot(record[0]["norm"], norm)
    clock = norms if record[0]["adaptive"] else np.sqrt(t)
    gamma = record[0]["scale"] / clock if clock > 0.0 else 0.0
    step_cost = record[0]["step_cost"] + gamma * norm * norm
    if not np.isfinite(record[0]["loss"] + loss + norms + step_cost):
        return False
    enter_task(iterate, total, record, loss, norm, norms)
    record[0]["step"] = gamma
    record[0]["step_cost"] = step_cost
    if norm > 0.0:
        euclidean_step(iterate, vectors, values, record, a, b, inner, outer, gamma)
    return True


@compiled
def learn_entropic(iterate, total, dual, vectors, values, record, X, y):
    """Take one task: pay its loss at D, then lead with eta = scale / sqrt(sum ||G_s||_op^2).

    Returns False, with nothing changed, if a number in the task is not finite or becomes so on
    the way. All but X and y are modified in place.
    """
    loss, a, b = loss_and_factors(iterate, X, y)
    norm = abs(np.dot(a, b)) + np.sqrt(np.dot(a, a)) * np.sqrt(np.dot(b, b))
    if norm < SMALLEST_NORM:
        norm = 0.0
    t = record[0]["n_tasks"] + 1
    norms = np.hypot(record[0]["norm"], norm)
    # No entry of S can exceed sum ||G_s|| <= t * norms.
    if not np.isfinite(record[0]["loss"] + loss + t * norms):
        return False
    enter_task(iterate, total, record, loss, norm, norms)
    if norm > 0.0:
        eta = record[0]["scale"] / norms
        entropic_step(iterate, dual, vectors, values, record, a, b, eta)
    return True
