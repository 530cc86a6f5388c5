"""One task in its dual form: weights, loss and gradient for a representation D.

For a task (X, y) of n samples in R^d, with M = X D X' + n I, u = M^-1 y and v = M^-1 u, the loss
and its gradient -(a b' + b a') are, for the two objectives::

    error         n |u|^2    a = X'u,   b = n X'v    the training error of the ridge weights
    regularized   y'u        a = X'u,   b = a / 2    min over w of |y - Xw|^2 / n + w' D^+ w

M is factorised once, and M^-1 is never formed.
"""

import numpy as np

from fastltl._kernels.linalg import EPS, cholesky, cholesky_solve, kernel

#: Rows of X count as dependent, and M as ill-conditioned, if a pivot of the Cholesky
#: decomposition of XX', or of M, is below this fraction of the largest entry.
SMALLEST_PIVOT_OF_GRAM = 1e-6
SMALLEST_PIVOT_OF_DUAL = 1e-2

#: Columns that `mirror` copies at a time, so that the rows it writes stay in the cache.
MIRRORED = 32


@kernel
def assign(target, source):
    """target <- source, of the same shape. Modified in place: `target`.

    `target[:] = source` would do the same, but makes Numba compile an error message, too.
    """
    to, entries = target.ravel(), source.ravel()  # views, as both are contiguous
    for i in range(to.size):
        to[i] = entries[i]


@kernel
def mirror(A):
    """Copy the lower triangle of A, d x d, onto the upper one. Modified in place: A."""
    for lo in range(0, A.shape[0], MIRRORED):
        for i in range(lo, A.shape[0]):
            for j in range(lo, min(i, lo + MIRRORED)):
                A[j, i] = A[i, j]


@kernel
def add_rank_two(A, a, b, c):
    """A + c (a b' + b a'), symmetric to the bit. Modified in place: A, d x d."""
    for i in range(a.size):
        for j in range(a.size):
            A[i, j] += (c * a[i]) * b[j] + b[i] * (c * a[j])


@kernel
def all_finite(A):
    """Return whether no entry is NaN or infinite.

    Counting the others, without a branch, vectorises.
    """
    entries, n_bad = A.ravel(), 0
    for i in range(entries.size):
        n_bad += not np.isfinite(entries[i])
    return n_bad == 0


@kernel
def centre(X, y):
    """(X - 1 m', y - mean(y), m, mean(y)) with m the mean of the rows of X."""
    m = np.zeros(X.shape[1])
    for i in range(X.shape[0]):
        m += X[i]
    m /= X.shape[0]
    return X - m, y - y.mean(), m, y.mean()


@kernel
def compress(X, y):
    """X = QR, z = Q'y: replace a task of n > d samples by one of d with the same a and b.

    Returns R, z and the residual |y - Qz|^2, which no weights can reduce. This is cheaper, and
    keeps the digits that the n x n form of M loses. Other tasks are returned as they are; inputs
    that are not finite become NaN.
    """
    n, d = X.shape
    if n <= d:
        return X, y, 0.0
    if not all_finite(X):
        return X[:d] * np.nan, y[:d] * np.nan, np.nan
    Q, R = np.linalg.qr(X)
    Q, R = np.ascontiguousarray(Q), np.ascontiguousarray(R)
    z = np.dot(y, Q)
    residual = y - np.dot(Q, z)
    return R, z, np.dot(residual, residual)


@kernel
def truncate(X, y, residual):
    """X = U diag(s) V', z = U'y: replace a task of dependent rows by one of full rank.

    Returns diag(s) V' and z, over the s that are not zero to rounding, and the residual plus
    |y - Uz|^2. M^-1 y is large along the directions that X' annihilates, so without this a = X'u
    would consist of rounding errors. Tasks of independent rows are returned as they are.
    """
    n, d = X.shape
    gram = np.dot(X, X.T)
    if not (all_finite(gram) and has_small_pivot(gram, SMALLEST_PIVOT_OF_GRAM)):
        return X, y, residual
    U, s, Vt = np.linalg.svd(X, False)
    rank = 1
    while rank < s.size and s[rank] > max(n, d) * EPS * s[0]:
        rank += 1
    U, R = np.ascontiguousarray(U[:, :rank]), np.empty((rank, d))
    for i in range(rank):
        for j in range(d):
            R[i, j] = s[i] * Vt[i, j]
    z = np.dot(y, U)
    rest = y - np.dot(U, z)
    return R, z, residual + np.dot(rest, rest)


@kernel
def has_small_pivot(A, threshold):
    """Replace A = L L' by L; return whether a pivot is below `threshold` times the largest entry.

    L is NaN, and the answer yes, if A is singular to rounding or not finite. In place: A.
    """
    largest = 0.0
    for i in range(A.shape[0]):
        largest = max(largest, A[i, i])  # a PSD matrix has its largest entry on the diagonal
    if not (largest < np.inf and cholesky(A)):
        A[:] = np.nan
    n_small = 0
    for i in range(A.shape[0]):
        n_small += not A[i, i] * A[i, i] >= threshold * largest
    return n_small > 0


@kernel
def factorise_dual(M, n):
    """Replace M = X D X' by L with M + n I = L L'; return whether that is ill-conditioned."""
    for i in range(M.shape[0]):
        M[i, i] += n
    return has_small_pivot(M, SMALLEST_PIVOT_OF_DUAL)


@kernel
def solve(L, y):
    """(L L')^-1 y."""
    x = y.copy()
    cholesky_solve(L, x)
    return x


@kernel
def dual_form(D, X, y):
    """(R, z, residual, L): the task compressed, truncated if need be, and M = L L'."""
    n = y.size
    R, z, residual = compress(X, y)
    L = np.dot(np.dot(R, D), R.T)
    if factorise_dual(L, n):
        R, z, residual = truncate(R, z, residual)
        L = np.dot(np.dot(R, D), R.T)
        factorise_dual(L, n)
    return R, z, residual, L


@kernel
def ridge_weights(D, X, y):
    """w = D X' M^-1 y, the minimiser of |y - Xw|^2 / n + w' D^+ w over the range of D."""
    R, z, _, L = dual_form(D, X, y)
    return np.dot(D, np.dot(solve(L, z), R))


@kernel
def loss_and_factors(D, X, y, regularized):
    """The loss, y'u if `regularized` and else n |u|^2, and the factors a, b of its gradient."""
    R, z, residual, L = dual_form(D, X, y)
    return dual_loss_and_factors(R, z, residual, L, y.size, regularized)


@kernel
def dual_loss_and_factors(R, z, residual, L, n, regularized):
    """`loss_and_factors` of a task of n samples in its dual form."""
    u = solve(L, z)
    a = np.dot(u, R)
    if regularized:
        return np.dot(z, u) + residual / n, a, 0.5 * a
    v = solve(L, u)
    return n * np.dot(u, u) + residual / n, a, np.dot(n * v, R)


@kernel
def task_loss(D, X, y, regularized):
    """The loss of a task at D: y'u if `regularized`, else n |u|^2."""
    _, z, residual, L = dual_form(D, X, y)
    u = solve(L, z)
    return (np.dot(z, u) if regularized else y.size * np.dot(u, u)) + residual / y.size


@kernel
def task_gradient(D, X, y, regularized):
    """The gradient of the loss at D, -(a b' + b a')."""
    _, a, b = loss_and_factors(D, X, y, regularized)
    gradient = np.zeros(D.shape)
    add_rank_two(gradient, a, b, -1.0)
    return gradient


@kernel
def score(y, prediction, metric):
    """Mean squared error (metric 0), explained variance (1) or R2 (2) of one task.

    Where the targets do not vary, the last two are 1 if the error is zero, and else 0.
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
