"""Eigenvalues and eigenvectors: the two geometries, and decompositions that are kept.

A = sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i') is kept as its first `rank` eigenvectors,
which are rows of `vectors`, and its eigenvalues: those from values[rank] on are all `rest`.
"""

import numpy as np

from fastltl._kernels import tridiagonal
from fastltl._kernels.compilation import IS_DIRECT, compiled, inlined
from fastltl._kernels.linalg import (
    EPS,
    apply,
    eigenvectors,
    eigh,
    length,
    secular_root,
    sort_descending,
    transposed_multiply,
)
from fastltl._kernels.task import (
    add_rank_two,
    add_to_diagonal,
    assign,
    mirror,
    outer_gram,
    product,
    transposed_product,
)
from fastltl._kernels.tiles import cholesky, multiply
from fastltl._kernels.tridiagonal import eigenvalues


@inlined
def soft_threshold(values, radius):
    """max(0, g_i - a) with the least a >= 0 that brings their sum to the radius, by sorting.

    Where the positive parts of g sum to less than the radius already, a is 0: a root search
    without that case would answer with a negative one. Otherwise all is computed relative to
    the largest g, so that a radius far below it is not lost to rounding.
    """
    kept, total, top = np.empty(values.size), 0.0, values[0]
    for i in range(values.size):
        kept[i] = max(values[i], 0.0)
        total += kept[i]
        top = max(top, values[i])
    if total <= radius:
        return kept
    for i in range(values.size):
        kept[i] = values[i] - top
    descending = kept.copy()
    sort_descending(descending)
    excess, shift = -radius, -radius
    for k in range(1, descending.size):
        excess += descending[k]
        if excess >= (k + 1) * descending[k]:
            break
        shift = excess / (k + 1)
    for i in range(values.size):
        kept[i] = max(kept[i] - shift, 0.0)
    return kept


@compiled
def compose(vectors, values, rest):
    """sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i'), the v_i being the rows of `vectors`."""
    scaled = np.empty(vectors.shape)
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            scaled[i, j] = (values[i] - rest) * vectors[i, j]
    A = np.zeros((vectors.shape[1], vectors.shape[1]))
    if vectors.shape[0] > 0:
        transposed_multiply(scaled, vectors, A)
        mirror(A)
    add_to_diagonal(A, rest)
    return A


@compiled
def project(Q, radius):
    """The nearest D to Q, in Frobenius norm, with D PSD and tr D <= radius.

    If Q less the shift that the trace asks for is PSD, which its Cholesky factor shows in a small
    part of the time of its eigenvectors, that is it, unless the radius is so far below the trace
    that it would lose digits. Otherwise all eigenvalues v_i tell the shift, and eigenvectors are
    found of those above it or, if these are fewer, of those below: D is the sum of (v_i - shift)
    times these, or Q - shift I without it.
    """
    d, trace = Q.shape[0], 0.0
    for i in range(d):
        trace += Q[i, i]
    if trace <= 10.0 * radius:
        shifted = Q.copy()
        add_to_diagonal(shifted, -max(0.0, (trace - radius) / d))
        if cholesky(shifted.copy()):
            return shifted
    A, T = Q.copy(), np.zeros((3, d))
    values = eigenvalues(A, T)
    kept = soft_threshold(values, radius)
    if np.array_equal(kept, values):
        return Q.copy()
    shift, n_clipped = values[-1] - kept[-1], 0
    for i in range(d):
        n_clipped += kept[i] == 0.0
    keeps_digits = max(values[-1], -values[0]) <= 10.0 * kept[-1]
    if n_clipped < d - n_clipped and keeps_digits:
        D = compose(eigenvectors(A, T, values, 0, n_clipped), shift - values[:n_clipped], 0.0)
        add_to_diagonal(D, -shift)
        D += Q
    else:
        D = compose(eigenvectors(A, T, values, n_clipped, d), kept[n_clipped:], 0.0)
    if np.isnan(D[0, 0]):
        vectors = Q.copy()
        eigh(vectors, values)
        D = compose(vectors, soft_threshold(values, radius), 0.0)
    return D


@compiled
def least_eigenvalue(A):
    """The least eigenvalue of a symmetric A, in half the time of all of them."""
    least = tridiagonal.least_eigenvalue(A.copy())
    if np.isnan(least):
        vectors, values = A.copy(), np.empty(A.shape[0])
        eigh(vectors, values)
        least = values[0]
    return least


@compiled
def features(D, X):
    """X D^(1/2), with the symmetric root of D."""
    vectors, values = D.copy(), np.empty(D.shape[0])
    eigh(vectors, values)
    XR = np.empty(X.shape)
    multiply(X, compose(vectors, np.sqrt(np.maximum(values, 0.0)), 0.0), XR)
    return XR


@inlined
def soften(values, n_rest, eta, radius):
    """Exponential weights: radius exp(eta s_i) / (sum_j exp(eta s_j) + n_rest + 1).

    Returns the weights of the s_i and the weight of a zero, which `n_rest` more coordinates and
    the slack coordinate have. The largest exponent is subtracted everywhere first.
    """
    top = 0.0
    for value in values:
        top = max(top, eta * value)
    rest = np.exp(-top)
    weights, total = np.empty(values.size), (n_rest + 1) * rest
    for i in range(values.size):
        weights[i] = np.exp(eta * values[i] - top)
        total += weights[i]
    for i in range(values.size):
        weights[i] *= radius / total
    return weights, radius * rest / total


@compiled
def entropic_iterate(S, eta, radius):
    """D = radius exp(eta S) / (tr exp(eta S) + 1)."""
    vectors, values = S.copy(), np.empty(S.shape[0])
    eigh(vectors, values)
    weights, _ = soften(values, 0, eta, radius)
    return compose(vectors, weights, 0.0)


@compiled
def extend_basis(vectors, rank, a, coordinates):
    """Coordinates of a in the orthonormal rows vectors[:rank], grown by one row if a needs it.

    Returns the new rank. Two passes of Gram-Schmidt keep the rows orthonormal to rounding.
    `vectors` and `coordinates`, which has room for rank + 1, are modified in place.
    """
    basis = vectors[:rank]
    apply(basis, a, coordinates[:rank])
    if rank == a.size:
        return rank
    rest = a - transposed_product(basis, coordinates[:rank])
    again = product(basis, rest)
    rest -= transposed_product(basis, again)
    distance = length(rest)
    for i in range(rank):
        coordinates[i] += again[i]
    if distance <= a.size * EPS * length(a):
        return rank
    coordinates[rank] = distance
    for j in range(a.size):
        vectors[rank, j] = rest[j] / distance
    return rank + 1


@inlined
def rank_two_update(vectors, values, rank, a, b, c):
    """Eigen-decomposition of A + c (a b' + b a') from that of A.

    The sum differs from `rest` times the identity in the span of the v_i, a and b alone. With a
    and b of unit length there, a b' + b a' = (p p' - q q') / 2 for p = a + b and q = a - b: two
    updates of rank one. Returns the new rank. `vectors` and `values` are modified in place.
    """
    alpha, beta = np.zeros(rank + 2), np.zeros(rank + 2)
    grown = extend_basis(vectors, rank, a, alpha)
    size = extend_basis(vectors, grown, b, beta)
    alpha, beta, new = alpha[:size], beta[:size], values[:size].copy()
    rotation = np.zeros((size, size))
    add_to_diagonal(rotation, 1.0)
    a_length, b_length = length(alpha), length(beta)
    half = 0.5 * c * a_length * b_length
    p, q = np.empty(size), np.empty(size)
    for i in range(size):
        p[i] = alpha[i] / a_length + beta[i] / b_length
        q[i] = alpha[i] / a_length - beta[i] / b_length
    found = IS_DIRECT
    if found:
        found = rank_one_update(new, rotation, p, half) and rank_one_update(
            new, rotation, product(rotation, q), -half
        )
    if not found:
        rotation[:] = 0.0
        for i in range(size):
            rotation[i, i] = values[i]
        add_rank_two(rotation, alpha, beta, c)
        eigh(rotation, new)
    rotated = np.empty((size, a.size))
    multiply(rotation, vectors[:size], rotated)
    assign(vectors[:size], rotated)
    assign(values[:size], new)
    return size


@compiled
def rank_one_update(values, vectors, z, rho):
    """Eigen-decomposition of diag(values) + rho z z', applied to the rows of `vectors`.

    The new eigenvalues are the roots r_j of the secular equation 1 + rho sum z_i^2 / (d_i - r) = 0
    in the old ones, d. With the z for which the computed roots are exact (Gu and Eisenstat),

        z_i^2 = (r_i - d_i) prod_{j != i} (r_j - d_i) / (d_j - d_i) / rho,

    the eigenvectors z_i / (d_i - r_j) are orthogonal to rounding, however close the roots.
    Returns False if a root was not found. `values` and `vectors` are modified in place.
    """
    size = length(z)
    if size == 0.0 or rho == 0.0:
        return True
    # A fall is the rise of the negative. LAPACK squares what it is given: a power of two for the
    # unit changes no digit, and leaves numbers around 1.
    sign = 1.0 if rho > 0.0 else -1.0
    z, rho, largest = z / size, abs(rho) * size * size, 0.0
    for value in values:
        largest = max(largest, abs(value))
    unit = 2.0 ** np.floor(np.log2(max(rho, largest)))
    rho, poles = rho / unit, sign * values / unit
    active = deflate(poles, vectors, z, rho)
    k, width = active.size, vectors.shape[1]
    if k == 0:
        return True
    d, weights, rows = np.empty(k), np.empty(k), np.empty((k, width))
    for i in range(k):
        d[i], weights[i] = poles[active[i]], z[active[i]]
        for j in range(width):
            rows[i, j] = vectors[active[i], j]
    distances, squares = np.empty((k, k)), np.ones(k)
    for j in range(k):
        root = secular_root(j, d, weights, rho, distances[j])
        if np.isnan(root):
            return False
        poles[active[j]] = root
        for i in range(k):
            squares[i] *= distances[j, i] / (d[i] - d[j] if i != j else -1.0)
    for j in range(k if k > 2 else 0):
        norm = 0.0
        for i in range(k):
            z_i = np.copysign(np.sqrt(max(0.0, squares[i])), weights[i])
            distances[j, i] = z_i / distances[j, i]
            norm += distances[j, i] * distances[j, i]
        norm = np.sqrt(norm)
        for i in range(k):
            distances[j, i] /= norm
    rotated = np.empty((k, width))
    multiply(distances, rows, rotated)
    for i in range(k):
        for j in range(width):
            vectors[active[i], j] = rotated[i, j]
    for i in range(values.size):
        values[i] = sign * poles[i] * unit
    return True


@inlined
def deflate(poles, vectors, z, rho):
    """Indices, in ascending order of their poles, of what a rank-one update changes.

    Where z_i is zero to rounding nothing changes; where two poles are equal to rounding, their
    eigenvectors are turned until one of the two z is zero. `poles`, z and the rows of `vectors`
    are modified in place.
    """
    # By insertion: kept eigenvalues are nearly in order, or nearly in the opposite one.
    size = poles.size
    falls = poles[0] > poles[-1]
    order = np.empty(size, np.int64)
    for i in range(size):
        index, j = size - 1 - i if falls else i, i
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


@inlined
def orthonormalise(vectors):
    """V <- (3 V - V V' V) / 2: Newton's step for V V' = I, which squares the error of rows that
    are orthonormal nearly. Modified in place.
    """
    rotated = np.empty(vectors.shape)
    multiply(outer_gram(vectors, vectors), vectors, rotated)
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            vectors[i, j] = 1.5 * vectors[i, j] - 0.5 * rotated[i, j]


@inlined
def keep(vectors, values, rank, rest, cut):
    """Move the eigenpairs that differ from `rest` by more than `cut` to the front, and count them.

    `vectors` and `values` are modified in place.
    """
    kept = 0
    for i in range(rank):
        if abs(values[i] - rest) > cut:
            values[kept] = values[i]
            if kept < i:
                assign(vectors[kept], vectors[i])
            kept += 1
    values[kept:] = rest
    return kept
