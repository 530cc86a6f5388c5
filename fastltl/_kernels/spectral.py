"""Eigenvalues and eigenvectors: the two geometries, and updates of kept decompositions.

A symmetric matrix A = sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i') is kept as its first
`rank` eigenvectors, which are rows of `vectors`, and its d eigenvalues: from values[rank] on all
equal `rest`.
"""

import numpy as np

from fastltl._kernels.linalg import (
    EPS,
    cholesky,
    kernel,
    secular_root,
    tridiagonal_eigenvalues,
    tridiagonal_eigenvectors,
    tridiagonal_form,
)
from fastltl._kernels.task import add_rank_two, assign, mirror


@kernel
def soft_threshold(values, radius):
    """max(0, g_i - shift) with the least shift >= 0 that brings their sum to the radius.

    The shift is found by sorting, O(d log d). It is 0 where the positive parts of g sum to less
    than the radius; a root search without that case would answer with a negative one. Otherwise
    all is relative to the largest g, so that a radius far below it is not lost to rounding.
    """
    kept = np.maximum(values, 0.0)
    if kept.sum() <= radius:
        return kept
    below_top = values - values.max()
    descending = np.sort(below_top)[::-1]
    excess, shift = -radius, -radius
    for k in range(1, descending.size):
        excess += descending[k]
        if excess >= (k + 1) * descending[k]:
            break
        shift = excess / (k + 1)
    return np.maximum(below_top - shift, 0.0)


@kernel
def eigh(A):
    """Eigenvalues, ascending, and eigenvectors, as rows, of a symmetric A."""
    values, vectors = np.linalg.eigh(A)
    return values, np.ascontiguousarray(vectors.T)


@kernel
def compose(vectors, values, rest):
    """sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i'), the v_i being the rows of `vectors`."""
    rank, d = vectors.shape
    A, scaled = np.zeros((d, d)), np.empty((rank, d))
    if rank > 0:
        for i in range(rank):
            for j in range(d):
                scaled[i, j] = (values[i] - rest) * vectors[i, j]
        np.dot(scaled.T, vectors, A)
        mirror(A)
    for i in range(d):
        A[i, i] += rest
    return A


@kernel
def project(Q, radius):
    """The nearest D to Q, d x d, in Frobenius norm with D PSD and tr D <= radius.

    First subtract the shift that the trace bound asks for. If a Cholesky decomposition shows that
    the result is PSD, it is the projection; this is skipped where the radius is so far below the
    trace that digits would be lost. Otherwise the eigenvalues v_i give the shift. Only the
    eigenvectors above the shift, or those below it if they are fewer, are computed: D is the sum
    of (v_i - shift) v_i v_i' over the former, or Q - shift I less that sum over the latter.
    """
    d, trace = Q.shape[0], np.trace(Q)
    if trace <= 10.0 * radius:
        shifted = Q.copy()
        for i in range(d):
            shifted[i, i] -= max(0.0, (trace - radius) / d)
        if cholesky(shifted.copy()):
            return shifted
    A = Q.copy()
    T = tridiagonal_form(A)
    values = tridiagonal_eigenvalues(A, T)
    kept = soft_threshold(values, radius)
    if np.array_equal(kept, values):
        return Q.copy()
    shift, n_clipped = values[-1] - kept[-1], np.sum(kept == 0.0)
    keeps_digits = max(values[-1], -values[0]) <= 10.0 * kept[-1]
    if n_clipped < d - n_clipped and keeps_digits:
        clipped = tridiagonal_eigenvectors(A, T, values, 0, n_clipped)
        D = compose(clipped, shift - values[:n_clipped], 0.0) + Q
        for i in range(d):
            D[i, i] -= shift
    else:
        D = compose(tridiagonal_eigenvectors(A, T, values, n_clipped, d), kept[n_clipped:], 0.0)
    if np.isnan(D[0, 0]):  # some eigenvectors were not found on their own
        values, vectors = eigh(Q)
        D = compose(vectors, soft_threshold(values, radius), 0.0)
    return D


@kernel
def features(D, X):
    """X D^(1/2), n x d, with the symmetric root of D."""
    values, vectors = eigh(D)
    return np.dot(X, compose(vectors, np.sqrt(np.maximum(values, 0.0)), 0.0))


@kernel
def soften(values, n_rest, eta, radius):
    """radius exp(eta s_i) / (sum_j exp(eta s_j) + n_rest + 1): exponential weights.

    Returns the weights of the s_i, and the weight of a zero, which `n_rest` more coordinates and
    the slack coordinate have. The largest exponent is subtracted everywhere first.
    """
    top = 0.0
    for value in values:
        top = max(top, eta * value)
    weights, rest = np.exp(eta * values - top), np.exp(-top)
    total = weights.sum() + (n_rest + 1) * rest
    return weights * (radius / total), radius * rest / total


@kernel
def pivoted_cholesky(A):
    """A = F'F to rounding, for a PSD A, with as many rows in F as A has rank."""
    d, remaining = A.shape[0], np.diag(A).copy()
    F, threshold = np.zeros((d, d)), d * EPS * remaining.max()
    for rank in range(d):
        pivot = np.argmax(remaining)
        if not remaining[pivot] > threshold:
            return F[:rank]
        row = A[pivot].copy()
        row -= np.dot(F[:rank, pivot].copy(), F[:rank])
        row /= np.sqrt(remaining[pivot])
        assign(F[rank], row)
        remaining -= row * row
        remaining[pivot] = 0.0
    return F


@kernel
def extend_basis(vectors, rank, a, coordinates):
    """Coordinates of a in the orthonormal rows vectors[:rank], and one row more if a needs it.

    Returns the new rank. Two passes of Gram-Schmidt keep the rows orthonormal to rounding.
    Modified in place: `vectors`, d x d, and `coordinates`, of size rank + 1 or more.
    """
    basis, rest = vectors[:rank], a.copy()
    for _ in range(2):
        along = np.dot(basis, rest)
        for i in range(rank):
            coordinates[i] += along[i]
        if rank == a.size:
            return rank
        rest = rest - np.dot(along, basis)
    distance = np.linalg.norm(rest)
    if distance <= a.size * EPS * np.linalg.norm(a):
        return rank
    coordinates[rank] = distance
    assign(vectors[rank], rest / distance)
    return rank + 1


@kernel
def rank_two_update(vectors, values, rank, a, b, c):
    """Update the eigen-decomposition of A to that of A + c (a b' + b a'); return its rank.

    The sum differs from `rest` times the identity in the span of the v_i, a and b alone. With a
    and b of unit length there, a b' + b a' = (p p' - q q') / 2 for p = a + b and q = a - b: two
    updates of rank one. Modified in place: `vectors`, d x d, and `values`.
    """
    alpha, beta = np.zeros(rank + 2), np.zeros(rank + 2)
    size = extend_basis(vectors, extend_basis(vectors, rank, a, alpha), b, beta)
    alpha, beta, new = alpha[:size], beta[:size], values[:size].copy()
    a_norm, b_norm = np.linalg.norm(alpha), np.linalg.norm(beta)
    p, q = alpha / a_norm + beta / b_norm, alpha / a_norm - beta / b_norm
    half = 0.5 * c * a_norm * b_norm
    rows = np.empty((size, a.size + 1))  # the eigenvectors, and q beside them, which turns too
    for i in range(size):
        for j in range(a.size):
            rows[i, j] = vectors[i, j]
        rows[i, a.size] = q[i]
    found = secular_update(new, rows, p, half)
    if found:
        found = secular_update(new, rows, rows[:, a.size].copy(), -half)
    if not found:
        in_basis = np.diag(values[:size])
        add_rank_two(in_basis, alpha, beta, c)
        new, rotation = eigh(in_basis)
        rows = np.dot(rotation, vectors[:size])
    assign(values[:size], new)
    for i in range(size):
        for j in range(a.size):
            vectors[i, j] = rows[i, j]
    return size


@kernel
def rank_one_update(vectors, values, rank, a, c):
    """Update the eigen-decomposition of A to that of A + c a a'; return its rank.

    Modified in place: `vectors`, d x d, and `values`.
    """
    alpha = np.zeros(rank + 1)
    size = extend_basis(vectors, rank, a, alpha)
    alpha, new, rows = alpha[:size], values[:size].copy(), vectors[:size].copy()
    if not secular_update(new, rows, alpha, c):
        in_basis = np.diag(values[:size])
        add_rank_two(in_basis, alpha, 0.5 * alpha, c)
        new, rotation = eigh(in_basis)
        rows = np.dot(rotation, vectors[:size])
    assign(values[:size], new)
    assign(vectors[:size], rows)
    return size


@kernel
def secular_update(values, vectors, z, rho):
    """Eigen-decomposition of diag(values) + rho z z', applied to the rows of `vectors`.

    The new eigenvalues are the roots r_j of the secular equation 1 + rho sum z_i^2 / (d_i - r) = 0
    in the old ones, d. With the z for which the computed roots are exact (Gu and Eisenstat),

        z_i^2 = (r_i - d_i) prod_{j != i} (r_j - d_i) / (d_j - d_i) / rho,

    the eigenvectors z_i / (d_i - r_j) are orthogonal to rounding, however close the roots.
    Returns False if a root was not found. Modified in place: `values` and `vectors`.
    """
    norm = np.linalg.norm(z)
    if norm == 0.0 or rho == 0.0:
        return True
    # A negative rho is a positive one for the negative matrix. LAPACK squares its arguments: with
    # a power of two as the unit no digit changes, and numbers are around 1.
    sign = 1.0 if rho > 0.0 else -1.0
    z, rho = z / norm, abs(rho) * norm * norm
    unit = 2.0 ** np.floor(np.log2(max(rho, np.abs(values).max())))
    rho, poles = rho / unit, sign * values / unit
    active = deflate(poles, vectors, z, rho)
    k = active.size
    if k == 0:
        return True
    d, weights, rows = poles[active], z[active], vectors[active]
    distances, squares = np.empty((k, k)), np.ones(k)
    for j in range(k):
        root = secular_root(j, d, weights, rho, distances[j])
        if np.isnan(root):
            return False
        poles[active[j]] = root
        for i in range(j):
            squares[i] *= distances[j, i] / (d[i] - d[j])
        squares[j] *= -distances[j, j]
        for i in range(j + 1, k):
            squares[i] *= distances[j, i] / (d[i] - d[j])
    if k > 2:  # else LAPACK has given the eigenvectors
        z_exact = np.copysign(np.sqrt(np.maximum(0.0, squares)), weights)
        for j in range(k):
            square = 0.0
            for i in range(k):
                distances[j, i] = z_exact[i] / distances[j, i]
                square += distances[j, i] * distances[j, i]
            distances[j] /= np.sqrt(square)
    rotated = np.dot(distances, rows)
    for i in range(k):
        assign(vectors[active[i]], rotated[i])
    assign(values, sign * unit * poles)
    return True


@kernel
def deflate(poles, vectors, z, rho):
    """Return the indices that a rank-one update changes, in ascending order of their poles.

    Where z_i is zero to rounding nothing changes. Where two poles are equal to rounding, their
    eigenvectors are rotated until one of the two z is zero. Modified in place: `poles`, z and the
    rows of `vectors`.
    """
    # Insertion sort: kept eigenvalues are nearly in order, or nearly in the opposite one.
    size, is_falling = poles.size, poles[0] > poles[-1]
    order = np.empty(size, np.int64)
    for i in range(size):
        index, j = size - 1 - i if is_falling else i, i
        while j > 0 and poles[order[j - 1]] > poles[index]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = index
    tolerance = 8.0 * EPS * max(abs(poles[order[0]]), abs(poles[order[-1]]), rho)
    active, k = np.empty(size, np.int64), 0
    for i in order:
        if rho * abs(z[i]) <= tolerance:
            continue
        if k > 0:
            last = active[k - 1]
            tau = np.hypot(z[last], z[i])
            cosine, sine = z[i] / tau, z[last] / tau
            if abs((poles[i] - poles[last]) * cosine * sine) <= tolerance:
                z[i], z[last] = tau, 0.0
                for j in range(vectors.shape[1]):
                    x, y = vectors[last, j], vectors[i, j]
                    vectors[last, j] = cosine * x - sine * y
                    vectors[i, j] = sine * x + cosine * y
                low, high = poles[last], poles[i]
                poles[last] = low * cosine * cosine + high * sine * sine
                poles[i] = low * sine * sine + high * cosine * cosine
                k -= 1
        active[k] = i
        k += 1
    return active[:k]


@kernel
def orthonormalise(vectors):
    """V <- (3 V - V V' V) / 2: Newton's step for V V' = I, which squares the error of nearly
    orthonormal rows. Modified in place.
    """
    step = np.dot(np.dot(vectors, vectors.T), vectors)
    assign(vectors, 1.5 * vectors - 0.5 * step)


@kernel
def drop_rest(vectors, values, rank, rest, tolerance):
    """Move the eigenpairs that differ from `rest` to the front, and return their number.

    Differences up to `tolerance` count as none. Modified in place: `vectors` and `values`.
    """
    kept = 0
    for i in range(rank):
        if abs(values[i] - rest) > tolerance:
            values[kept] = values[i]
            if kept < i:
                assign(vectors[kept], vectors[i])
            kept += 1
    values[kept:] = rest
    return kept
