"""The compiled core: kernels, which take arrays and scalars and give back the same.

All kernels live in this one file because Numba's cache watches a function's own file only: who
changes `fastltl.lapack`, which they call, clears the cache by hand.
Arrays are float64 and C-contiguous, and matrices D, Q and S are symmetric; `fastltl.validation`
sees to that at the boundary. `fastltl.reference` has a plain-NumPy twin, of the same name and
signature, of each kernel that is a formula of its own.

Notation, for a task (X, y) of n samples in R^d and a representation D::

    M = X D X' + n I,   u = M^-1 y,   v = M^-1 u,   a = X'u,   b = n X'v
    loss L(D) = n |u|^2,   gradient = -(a b' + b a')

The gradient has rank two, so M is factorised once and neither M^-1 nor S is ever formed.
"""

import numpy as np

from fastltl.lapack import (
    IS_DIRECT,
    add_gram,
    apply,
    apply_symmetric,
    apply_transposed,
    cholesky,
    cholesky_solve,
    compiled,
    eigh,
    inlined,
    length,
    multiply,
    multiply_by_triangle,
    multiply_transposed,
    pivoted_cholesky,
    secular_root,
    sort_descending,
    svd,
    transposed_multiply,
    triangularise,
)
from fastltl.threads import LARGEST_UNTHREADED_SIDE

EPS = float(np.finfo(np.float64).eps)

#: A gradient of smaller norm has lost digits to underflow, and counts as zero.
SMALLEST_NORM = float(np.finfo(np.float64).tiny) / EPS

#: Leave eigenvectors for the iterate itself only if this many more steps like the one at hand
#: could be certified.
CERTIFIED_STEPS = 10

#: An update of k kept eigenvectors makes errors of sqrt(k) roundings or less, relative to the
#: matrix; when their sum comes to this, it is time to mend what is kept.
MOST_DRIFT = 1e-12

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


# Small linear algebra -----------------------------------------------------------------------


@compiled
def mirror(A):
    """Copy the lower triangle of A onto the upper one. Modified in place."""
    for i in range(A.shape[0]):
        for j in range(i):
            A[j, i] = A[i, j]


@compiled
def assign(target, source):
    """target <- source, of the same shape. Modified in place: `target`.

    Like target[:] = source, with which Numba compiles an error message, for a second each time.
    """
    to, of = target.ravel(), source.ravel()
    for i in range(to.size):
        to[i] = of[i]


@compiled
def add_rank_two(A, a, b, c):
    """A <- A + c (a b' + b a'), symmetric to the bit. Modified in place."""
    for i in range(a.size):
        for j in range(a.size):
            A[i, j] += c * (a[i] * b[j] + b[i] * a[j])


@compiled
def solve(L, y):
    """(L L')^-1 y."""
    x = y.copy()
    cholesky_solve(L, x)
    return x


@compiled
def product(A, x):
    """A x."""
    y = np.empty(A.shape[0])
    apply(A, x, y)
    return y


@compiled
def transposed_product(A, x):
    """A'x."""
    y = np.empty(A.shape[1])
    apply_transposed(A, x, y)
    return y


@compiled
def outer_gram(A, B):
    """A B'."""
    C = np.empty((A.shape[0], B.shape[0]))
    multiply_transposed(A, B, C)
    return C


@inlined
def compress(X, y):
    """Replace a task of n > d samples by one of d that has the same M^-1, a and b.

    With X = QR and z = Q'y, returns R, z and |y - Qz|^2, the part of y no weights can reach.
    It is cheaper, and keeps the digits that the n x n form of M loses. Other tasks stay
    as they are; values that are not finite give NaN.
    """
    n, d = X.shape
    if n <= d:
        return X, y, 0.0
    R, z = X.copy(), y.copy()
    if all_finite(X):
        triangularise(R, z)
    else:
        R[:], z[:] = np.nan, np.nan
    return R[:d], z[:d], np.dot(z[d:], z[d:])


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


@inlined
def factorise(A):
    """Replace the lower triangle of A by its Cholesky factor; returns the largest entry of A.

    The factor is NaN if A is singular to rounding or not finite. Modified in place: A.
    """
    largest, trace = 0.0, 0.0
    for i in range(A.shape[0]):
        largest = max(largest, A[i, i])  # which is on the diagonal
        trace += A[i, i]
    # What is not finite off the diagonal makes a pivot NaN.
    if not (trace < np.inf and cholesky(A)):
        A[:] = np.nan
    return largest


@compiled
def dual_matrix(D, X):
    """The lower triangle, at least, of X D X'.

    With H the lower triangle of D less half the diagonal D = H + H', and X D X' = XH X' + X (XH)'
    takes half the time of X D, which is the better part. BLAS would multiply by a triangle in
    threads where it multiplies by a small square in one.
    """
    n, d = X.shape
    if d <= LARGEST_UNTHREADED_SIDE:
        XD = np.empty((n, d))
        multiply(X, D, XD)
        return outer_gram(XD, X)
    XH, half = X.copy(), np.empty(d)
    multiply_by_triangle(XH, D)
    for j in range(d):
        half[j] = 0.5 * D[j, j]
    for i in range(n):
        for j in range(d):
            XH[i, j] -= half[j] * X[i, j]
    dual = outer_gram(XH, X)
    for i in range(n):
        for j in range(i + 1):
            dual[i, j] += dual[j, i]
    return dual


@inlined
def factorise_dual(M, n):
    """`factorise` M = X D X' + n I, given X D X'. Modified in place: M."""
    add_to_diagonal(M, 1.0 * n)
    return factorise(M)


@inlined
def has_small_pivot(L, threshold):
    """Whether a pivot of L L' is below the threshold, or not a number."""
    small = 0
    for i in range(L.shape[0]):
        small += not L[i, i] * L[i, i] >= threshold
    return small > 0


@inlined
def truncate(X, y, misfit):
    """Replace a task whose rows are linearly dependent, or nearly so, by one of full rank.

    With X = U diag(s) V' and z = U'y, over the s that are not zero to rounding, returns
    diag(s) V', z and the misfit with |y - Uz|^2 added. M^-1 y is large along the directions that
    X' annihilates, and there a = X'u would keep nothing but rounding errors. Other tasks, and
    those with values that are not finite, stay as they are.
    """
    n, d = X.shape
    L = outer_gram(X, X)
    largest = factorise(L)
    if not (all_finite(X) and has_small_pivot(L, SMALLEST_PIVOT_OF_GRAM * largest)):
        return X, y, misfit
    U, s, Vt = svd(X.copy())
    rank = 1
    while rank < s.size and s[rank] > max(n, d) * EPS * s[0]:
        rank += 1
    z = transposed_product(U, y)
    for i in range(s.size):
        for j in range(d):
            Vt[i, j] *= s[i]
        if i >= rank:
            z[i] = 0.0
    rest = y - product(U, z)
    return Vt[:rank], z[:rank], misfit + np.dot(rest, rest)


@compiled
def dual_form(D, X, y):
    """(R, z, misfit, L): the task compressed, truncated if need be, and the factor of its M."""
    n = y.size
    R, z, misfit = compress(X, y)
    L = dual_matrix(D, R)
    largest = factorise_dual(L, n)
    if has_small_pivot(L, SMALLEST_PIVOT_OF_DUAL * largest):
        R, z, misfit = truncate(R, z, misfit)
        L = dual_matrix(D, R)
        factorise_dual(L, n)
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
    return product(D, transposed_product(R, solve(L, z)))


@compiled
def features(D, X):
    """X D^(1/2), with the symmetric root of D."""
    vectors, values = D.copy(), np.empty(D.shape[0])
    eigh(vectors, values)
    XR = np.empty(X.shape)
    multiply(X, compose(vectors, np.sqrt(np.maximum(values, 0.0)), 0.0), XR)
    return XR


@inlined
def dual_loss_and_factors(R, z, misfit, L, n, a, b):
    """`loss_and_factors` of a task in its dual form. Modified in place: a and b."""
    u = solve(L, z)
    apply_transposed(R, u, a)
    loss = n * np.dot(u, u) + misfit / n
    cholesky_solve(L, u)
    u *= n
    apply_transposed(R, u, b)
    return loss


@compiled
def loss_and_factors(D, X, y):
    """The loss n |u|^2 and the factors a, b of its gradient -(a b' + b a')."""
    R, z, misfit, L = dual_form(D, X, y)
    a, b = np.empty(X.shape[1]), np.empty(X.shape[1])
    loss = dual_loss_and_factors(R, z, misfit, L, y.size, a, b)
    return loss, a, b


@compiled
def task_loss(D, X, y):
    """L(D) = n |M^-1 y|^2, the mean squared training error of the ridge weights."""
    n = y.size
    _, z, misfit, L = dual_form(D, X, y)
    u = solve(L, z)
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


@inlined
def soft_threshold(values, radius):
    """max(0, g_i - a) with the least a >= 0 that brings their sum to the radius, by sorting.

    Where the positive parts of g sum to less than the radius already, a is 0: a root search
    without that case would answer with a negative one. Otherwise all is computed relative to
    the largest g, so that a radius far below it is not lost to rounding.
    """
    if np.maximum(values, 0.0).sum() <= radius:
        return np.maximum(values, 0.0)
    below_top = values - values.max()
    descending = below_top.copy()
    sort_descending(descending)
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
    A = np.empty((vectors.shape[1], vectors.shape[1]))
    transposed_multiply(scaled, vectors, A)
    mirror(A)
    add_to_diagonal(A, rest)
    return A


@compiled
def project(Q, radius):
    """The nearest D to Q, in Frobenius norm, with D PSD and tr D <= radius."""
    vectors, values = Q.copy(), np.empty(Q.shape[0])
    eigh(vectors, values)
    kept = soft_threshold(values, radius)
    if np.array_equal(kept, values):
        return Q.copy()
    return compose(vectors, kept, 0.0)


@inlined
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
    vectors, values = S.copy(), np.empty(S.shape[0])
    eigh(vectors, values)
    weights, _ = soften(values, 0, eta, radius)
    return compose(vectors, weights, 0.0)


# Kept eigen-decompositions ------------------------------------------------------------------
#
# A = sum_i values_i v_i v_i' + rest (I - sum_i v_i v_i') is kept as its first `rank` eigenvectors,
# which are rows of `vectors`, and its eigenvalues: those from values[rank] on are all `rest`.


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
    p, q = alpha / a_length + beta / b_length, alpha / a_length - beta / b_length
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
def low_rank_factor(D):
    """F of r rows with D = F'F to rounding, r being the rank of D."""
    d = D.shape[0]
    L, pivots = D.copy(), np.empty(d, np.int32)
    F = np.zeros((pivoted_cholesky(L, pivots), d))
    for i in range(F.shape[0]):
        for j in range(i, d):
            F[i, pivots[j]] = L[j, i]
    return F


@compiled
def objectives(D, F, R, z, starts, sizes, misfits, penalised, values, A, B, L, corners, lo, hi):
    """Value of each task's objective at D and factors of its gradient -(a b' + b a').

    The objective is the loss n |u|^2 or, `penalised`, the minimum over w of
    |y - Xw|^2 / n + w' D^+ w, which is y'u: its gradient -a a' has b = a / 2. Where D = F'F has a
    rank below that of X, M^-1 x = (x - P (P'P + n I)^-1 P'x) / n with P = XF'. If F has no rows
    every M itself is factorised, and left in L from corners[t] on. `values`, A, B and L are
    modified in place.
    """
    rank = F.shape[0]
    for t in range(lo, hi):
        n, X, y = sizes[t], R[starts[t] : starts[t + 1]], z[starts[t] : starts[t + 1]]
        low = 0 < rank < y.size
        P = outer_gram(X, F) if low else F
        factor = np.empty((rank, rank)) if low else dual_matrix(D, X)
        if low:
            transposed_multiply(P, P, factor)
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
            assign(L[corners[t] : corners[t + 1]], factor)


@compiled
def low_rank_solve(P, L, n, y):
    """(P P' + n I)^-1 y, given the Cholesky factor L of P'P + n I."""
    w = transposed_product(P, y)
    cholesky_solve(L, w)
    return (y - product(P, w)) / n


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
        L = dual_matrix(Ds[k], X)
        factorise_dual(L, sizes[t])
        apply_symmetric(Ds[k], transposed_product(X, solve(L, y)), W[k, t])


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


# One task of an online run --------------------------------------------------------------------
#
# A run has one or more candidates (values of lam, say), stacked along the first axis of its
# arrays. A task is met by all of them before any takes its step, so that a task that is refused
# has changed nothing. Candidates lo to hi are a thread's share.
#
# Of the k-th candidate, state[:, k] are four matrices, called `matrix`, `total`, `vectors` and
# `buffer`, and rows[:, k] are the `values` of what it keeps eigenvectors of and the `weights` that
# these have in the iterate. What it finds when it meets a task is meetings[k]: the factors a and b
# of the gradient, and then the loss, the norm of the gradient and the step to take.
#
# A candidate's iterate is D = sum_i weights_i v_i v_i' + rest (I - sum_i v_i v_i') with `rank`
# rows v_i of `vectors`. Its `matrix` is S in entropic geometry. In euclidean geometry it is D, and
# kept only where that is cheaper than eigenvectors: then the rank is -1.


@compiled
def dual_of_iterate(matrix, vectors, weights, record, X):
    """The lower triangle of X D X': with P = X V', of P diag(weights - rest) P' + rest XX'."""
    rank, rest = record["rank"], record["rest"]
    if rank < 0:
        return dual_matrix(matrix, X)
    P = outer_gram(X, vectors[:rank])
    scaled = np.empty(P.shape)
    for i in range(P.shape[0]):
        for j in range(rank):
            scaled[i, j] = (weights[j] - rest) * P[i, j]
    dual = outer_gram(scaled, P)
    if rest != 0.0:
        gram = outer_gram(X, X)
        for i in range(P.shape[0]):
            for j in range(i + 1):
                dual[i, j] += rest * gram[i, j]
    return dual


@inlined
def meet_task(state, rows, records, meetings, X, y, lo, hi):
    """The loss of the task at each D, the factors a, b of its gradient, and the step to take.

    The step is scale / clock, where the clock is sqrt(sum ||G_s||^2) if adaptive, else sqrt(t).
    Returns False if a number in the task is not finite or becomes so on the way. `meetings` is
    modified in place.
    """
    n = y.size
    R, z, misfit = compress(X, y)
    truncated = False
    R_safe, z_safe, misfit_safe = R, z, misfit
    for k in range(lo, hi):
        record, a, b = records[k], meetings[k, 0, : X.shape[1]], meetings[k, 1, : X.shape[1]]
        matrix, V, weights = state[0, k], state[2, k], rows[1, k]
        R_k, z_k, misfit_k = R, z, misfit
        L = dual_of_iterate(matrix, V, weights, record, R_k)
        largest = factorise_dual(L, n)
        if has_small_pivot(L, SMALLEST_PIVOT_OF_DUAL * largest):
            if not truncated:
                R_safe, z_safe, misfit_safe = truncate(R, z, misfit)
                truncated = True
            R_k, z_k, misfit_k = R_safe, z_safe, misfit_safe
            L = dual_of_iterate(matrix, V, weights, record, R_k)
            factorise_dual(L, n)
        loss = dual_loss_and_factors(R_k, z_k, misfit_k, L, n, a, b)
        norm = gradient_norm(np.dot(a, b), lengths(a, b), record["entropic"])
        norms = np.hypot(record["norm"], norm)
        t = record["n_tasks"] + 1
        clock = norms if record["adaptive"] else np.sqrt(t)
        step = record["scale"] / clock if clock > 0.0 else 0.0
        # No entry of a sum of gradients can exceed sum ||G_s|| <= t * norms.
        total = record["loss"] + loss + t * norms + record["step_cost"] + step * norm * norm
        if not np.isfinite(total):
            return False
        meetings[k, 2, 0], meetings[k, 2, 1], meetings[k, 2, 2] = loss, norm, step
    return True


@inlined
def lengths(a, b):
    """|a| |b|, of which neither square may overflow alone."""
    return length(a) * length(b)


@inlined
def gradient_norm(inner, outer, operator):
    """||a b' + b a'|| in operator or Frobenius norm, from a.b and |a||b|; 0 where it underflows."""
    norm = abs(inner) + outer if operator else np.sqrt(2.0) * np.hypot(inner, outer)
    return 0.0 if norm < SMALLEST_NORM else norm


@inlined
def enter_task(loss, norm, step, record):
    """Count the task that was met. `record` is modified in place."""
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
    if n_waiting + rank > room or (rank < 0 and (n_waiting > 0 or record["rest_total"] != 0.0)):
        add_waiting(total, buffer, record)
        record["n_added"] = record["n_subtracted"] = 0
        record["rest_total"] = 0.0
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


@compiled
def sums_of_iterates(state, records, sums, lo, hi):
    """sums[k] <- the sum of the k-th candidate's iterates. Modified in place: `sums`."""
    for k in range(lo, hi):
        assign(sums[k], state[1, k])
        add_waiting(sums[k], state[3, k], records[k])
        mirror(sums[k])


@inlined
def take_certified_step(matrix, vectors, weights, record, a, b):
    """D <- proj(D + gamma (a b' + b a')) without eigenvectors, if that is certain to be exact.

    The update moves no eigenvalue down by more than gamma (|a||b| - a.b). If a known lower bound
    on D's eigenvalues leaves them all above the shift that the trace asks for, nothing is clipped
    and the projection is that shift. D is made out of its eigenvectors only if more such steps may
    follow. Returns whether the step was taken. `matrix` and `record` are modified in place.
    """
    d, gamma, rank = a.size, record["step"], record["rank"]
    inner = np.dot(a, b)
    trace = 0.0
    for i in range(d):
        trace += matrix[i, i] if rank < 0 else weights[i]
    shift = max(0.0, (trace + 2.0 * gamma * inner - record["radius"]) / d)
    fall = gamma * (lengths(a, b) - inner) + shift + d * EPS * record["radius"]
    if not record["floor"] >= (1.0 if rank < 0 else CERTIFIED_STEPS) * fall:
        record["shift"] = np.nan
        return False
    if rank >= 0:
        assign(matrix, compose(vectors[:rank], weights[:rank], record["rest"]))
        record["rank"] = -1
    add_rank_two(matrix, a, b, gamma)
    add_to_diagonal(matrix, -shift)
    record["floor"] -= fall
    record["shift"] = shift
    return True


@inlined
def update_kept(matrix, vectors, values, record, a, b, c):
    """Eigenvectors after c (a b' + b a') was added to what they belong to, and how many.

    They are found anew where they are not known, and where S can mend what rounding errors may
    have added up to; of D nothing else is kept, and they are made orthonormal again. `vectors`,
    `values` and `record` are modified in place, and so is `matrix` if it is D.
    """
    rank, drifted = record["rank"], record["drift"] > MOST_DRIFT
    if rank < 0:
        add_rank_two(matrix, a, b, c)
    if rank < 0 or (drifted and record["entropic"]):
        assign(vectors, matrix)
        eigh(vectors, values)
        record["drift"] = 0.0
        return a.size
    size = rank_two_update(vectors, values, rank, a, b, c)
    if drifted:
        orthonormalise(vectors[:size])
        record["drift"] = 0.0
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
def learn(state, rows, records, meetings, X, y, meets, steps, lo, hi):
    """Meet a task and step on from it: down the gradient and back into the set, by the cheapest
    path that is exact, or to the regularised leader.

    It does both or, so that threads can share the candidates, one at a time. Returns False, with
    nothing learned, if the task is refused. Modified in place: all arrays but X and y.
    """
    if meets and not meet_task(state, rows, records, meetings, X, y, lo, hi):
        return False
    for k in range(lo, hi if steps else lo):
        matrix, total, vectors, buffer = state[0, k], state[1, k], state[2, k], state[3, k]
        values, weights, record = rows[0, k], rows[1, k], records[k]
        a, b = meetings[k, 0, : values.size], meetings[k, 1, : values.size]
        loss, norm, step = meetings[k, 2, 0], meetings[k, 2, 1], meetings[k, 2, 2]
        add_iterate(matrix, total, vectors, buffer, weights, record)
        enter_task(loss, norm, step, record)
        if norm == 0.0:
            continue
        if record["entropic"]:
            add_rank_two(matrix, a, b, 1.0)
        elif take_certified_step(matrix, vectors, weights, record, a, b):
            continue
        c = 1.0 if record["entropic"] else step
        size = update_kept(matrix, vectors, values, record, a, b, c)
        if record["entropic"]:
            weigh(vectors, values, size, weights, record)
        else:
            clip(vectors, values, size, weights, record)
    return True


@compiled
def follow_duals(state, rows, records, meetings, R, starts, corners, grams, duals, totals, lo, hi):
    """Update X D X' of every task, and its sum over the run, by the step that D has taken.

    A certified step D + gamma (a b' + b a') - shift I changes it by
    gamma (p q' + q p') - shift XX' with p = Xa and q = Xb; after others it is computed anew.
    `duals` and `totals` are modified in place.
    """
    for k in range(lo, hi):
        totals[k] += duals[k]
        gamma, shift = records[k]["step"], records[k]["shift"]
        for t in range(starts.size - 1):
            X = R[starts[t] : starts[t + 1]]
            dual = duals[k, corners[t] : corners[t + 1]].reshape(X.shape[0], X.shape[0])
            if np.isnan(shift):
                new = dual_of_iterate(state[0, k], state[2, k], rows[1, k], records[k], X)
                assign(dual, new)
            elif meetings[k, 2, 1] > 0.0:
                gram = grams[corners[t] : corners[t + 1]].reshape(dual.shape)
                a, b = meetings[k, 0, : X.shape[1]], meetings[k, 1, : X.shape[1]]
                add_rank_two(dual, product(X, a), product(X, b), gamma)
                if shift > 0.0:
                    dual -= shift * gram
