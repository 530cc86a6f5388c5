"""One task in its dual form: weights, loss and gradient for a representation D.

Notation, for a task (X, y) of n samples in R^d::

    M = X D X' + n I,   u = M^-1 y,   v = M^-1 u,   a = X'u,   b = n X'v
    loss L(D) = n |u|^2,   gradient = -(a b' + b a')

The gradient has rank two, so M is factorised once and neither M^-1 nor S is ever formed.
"""

import numpy as np

from fastltl._kernels.compilation import compiled, inlined
from fastltl._kernels.linalg import EPS, apply, apply_transposed, svd, triangularise
from fastltl._kernels.tiles import (
    add_transposed,
    apply_transposed_to_both,
    cholesky,
    cholesky_solve,
    multiply_by_half,
    multiply_to_symmetric,
    multiply_transposed,
)

#: Rows of X are taken for dependent, or the dual matrix M for ill-conditioned, if a pivot of the
#: Cholesky decomposition of XX', or of M, falls below this fraction of the largest entry.
SMALLEST_PIVOT_OF_GRAM = 1e-6
SMALLEST_PIVOT_OF_DUAL = 1e-2


@compiled
def mirror(A):
    """Copy the lower triangle of A onto the upper one. Modified in place."""
    for i in range(A.shape[0]):
        for j in range(i):
            A[j, i] = A[i, j]


@compiled
def mirror_upper(A):
    """Copy the upper triangle of A onto the lower one. Modified in place."""
    for i in range(A.shape[0]):
        for j in range(i):
            A[i, j] = A[j, i]


@compiled
def assign(target, source):
    """target <- source, of the same shape. Modified in place: `target`.

    Like target[:] = source, with which Numba compiles an error message too.
    """
    to, of = target.ravel(), source.ravel()
    for i in range(to.size):
        to[i] = of[i]


@compiled
def add_rank_two(A, a, b, c):
    """A <- A + c (a b' + b a'), symmetric to the bit. Modified in place."""
    scaled = c * a
    for i in range(a.size):
        for j in range(a.size):
            A[i, j] += scaled[i] * b[j] + b[i] * scaled[j]


@inlined
def solve(U, y):
    """(U'U)^-1 y."""
    x = y.copy()
    cholesky_solve(U, x)
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


@inlined
def outer_gram(A, B):
    """A B'."""
    C = np.empty((A.shape[0], B.shape[0]))
    multiply_transposed(A, B, C)
    return C


@inlined
def symmetric_product(A, B):
    """A B', if that is symmetric: its upper triangle, at least."""
    C = np.zeros((A.shape[0], A.shape[0]))
    multiply_to_symmetric(A, B, C)
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
    numbers, bad = A.ravel(), 0
    for i in range(numbers.size):
        bad += not np.isfinite(numbers[i])
    return bad == 0


@compiled
def add_to_diagonal(A, c):
    """A <- A + c I. Modified in place."""
    for i in range(A.shape[0]):
        A[i, i] += c


@inlined
def factorise(A):
    """Replace the upper triangle of A = U'U by U; returns the largest entry of A.

    U is NaN if A is singular to rounding or not finite. Modified in place: A.
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
    """The upper triangle, at least, of X D X'.

    If D = H + H' that is XH X' + X (XH)', and H has half the work of D.
    """
    XH = np.empty(X.shape)
    multiply_by_half(X, D, XH)
    dual = outer_gram(XH, X)
    add_transposed(dual)
    return dual


@inlined
def factorise_dual(M, n):
    """`factorise` M = X D X' + n I, given X D X'. Modified in place: M."""
    add_to_diagonal(M, 1.0 * n)
    return factorise(M)


@inlined
def has_small_pivot(U, threshold):
    """Whether a pivot of U'U is below the threshold, or not a number."""
    small = 0
    for i in range(U.shape[0]):
        small += not U[i, i] * U[i, i] >= threshold
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
    gram = symmetric_product(X, X)
    largest = factorise(gram)
    if not (all_finite(X) and has_small_pivot(gram, SMALLEST_PIVOT_OF_GRAM * largest)):
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
    """(R, z, misfit, U): the task compressed, truncated if need be, and the factor of its M."""
    n = y.size
    R, z, misfit = compress(X, y)
    U = dual_matrix(D, R)
    largest = factorise_dual(U, n)
    if has_small_pivot(U, SMALLEST_PIVOT_OF_DUAL * largest):
        R, z, misfit = truncate(R, z, misfit)
        U = dual_matrix(D, R)
        factorise_dual(U, n)
    return R, z, misfit, U


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
    R, z, _, U = dual_form(D, X, y)
    return product(D, transposed_product(R, solve(U, z)))


@inlined
def dual_loss_and_factors(R, z, misfit, U, n, a, b):
    """`loss_and_factors` of a task in its dual form. Modified in place: a and b."""
    u = solve(U, z)
    v = solve(U, u)
    v *= n
    apply_transposed_to_both(R, u, v, a, b)
    return n * np.dot(u, u) + misfit / n


@compiled
def loss_and_factors(D, X, y):
    """The loss n |u|^2 and the factors a, b of its gradient -(a b' + b a')."""
    R, z, misfit, U = dual_form(D, X, y)
    a, b = np.empty(X.shape[1]), np.empty(X.shape[1])
    loss = dual_loss_and_factors(R, z, misfit, U, y.size, a, b)
    return loss, a, b


@compiled
def task_loss(D, X, y):
    """L(D) = n |M^-1 y|^2, the mean squared training error of the ridge weights."""
    n = y.size
    _, z, misfit, U = dual_form(D, X, y)
    u = solve(U, z)
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
