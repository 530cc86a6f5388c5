"""Learn a prior from tasks, and the weights of a task from the prior.

`_kernels/prior.py` explains the notation. With M = X D X' + s I the covariance of a task's targets
under the prior in use, the state keeps three statistics of the tasks seen::

    A = sum s X'M^-1 X,  c = sum s X'M^-1 y     m = (A + diag(q) s / yy)^-1 c
    F, b: E[b] = F (v, s2)                      variances v of a diagonal prior, and the noise
    S <- (1 - rho) S + rho E[ww' | task]        covariances, by online EM
"""

import numpy as np

from fastltl._kernels.linalg import add_gram, cholesky, cholesky_solve, kernel
from fastltl._kernels.prior import (
    LARGEST,
    SMALLEST_SHARE,
    choose,
    design,
    expected_error,
    isotropic,
    known_squares,
    leave_one_out,
    prior_shares,
    reduce_task,
    scale_and_add,
    set_units,
)
from fastltl._kernels.spectral import eigh
from fastltl._kernels.task import assign, mirror

#: The prior in use is chosen anew after every task up to this many, and then after sqrt(t) / 4
#: tasks, since a task among t changes it by about 1 / t.
FIRST_CHOICES, CHOICES_PER_ROOT = 128, 4.0

#: Weights of the guesses that keep variances apart from zero and infinity while tasks are few: for
#: the diagonal prior, and for the isotropic one and the noise. The last is that of log(noise).
DIAGONAL_ANCHOR, ISOTROPIC_ANCHOR, BARRIER = 1.0, 2.0, 2.0

#: The noise is at least this fraction of the mean square of the targets.
SMALLEST_NOISE = 1e-6

#: The mean is solved for only if d / 12 rows have come since the last time. It costs d^3 / 3
#: operations, as many as updating an inverse by d / 12 rows would.
ROWS_PER_FEATURE = 1.0 / 12.0

#: Smallest ridge of the mean, relative to the diagonal of A: dependent features make A singular.
SMALLEST_RIDGE = 1e-12

#: Returned in place of an error for a task that is not finite or far too large.
REFUSED = -1.0


@kernel
def learn_tasks(state, X, y, offsets):
    """Learn from tasks one by one: task i has the rows offsets[i] to offsets[i + 1] of X and y.

    Returns the number of tasks before one that is refused, and the mean squared leave-one-out error
    of the last of them, before it was learned from. Modified in place: `state`.
    """
    error = 0.0
    for i in range(offsets.size - 1):
        rows = slice(offsets[i], offsets[i + 1])
        found = learn(state, X[rows], y[rows])
        if found == REFUSED:
            return i, error
        error = found
    return offsets.size - 1, error


@kernel
def learn(state, X, y):
    """Learn from a task; return its mean squared leave-one-out error before, or REFUSED.

    Modified in place: `state`, unless the task is refused.
    """
    record = state.records[0]
    if not set_units(state, X, y):
        return REFUSED
    inputs, outputs = in_units(state, X, y)
    record["n_tasks"] += 1
    if record["t"] == 0.0 and np.dot(outputs, outputs) == 0.0:
        return 0.0  # there is nothing to measure weights or noise by
    R, z, Q, rest = reduce_task(inputs, outputs)
    if record["t"] == 0.0:
        start(state, R, z, rest)
    count(state, inputs, outputs, record["decay"])
    RS, error = np.dot(R, state.covariance), 0.0
    record["unscored"] += 1.0
    is_due = record["t"] <= FIRST_CHOICES
    is_due = is_due or record["unscored"] >= np.sqrt(record["t"]) / CHOICES_PER_ROOT
    if is_due:
        fresh = leave_one_out(state, R, z, Q, rest, RS)
        error = expected_error(state, fresh)  # with the weights of before
        add_to_table(state, fresh)
        choose(state)
    shares, noise = prior_shares(state), record["noise"] / record["kappa"]
    in_use = update(state, R, z, Q, rest, RS, shares, noise)
    if is_due:
        solve(state)
    if not is_due or record["t"] == 1.0:  # the weights do not depend on the task, or only on it
        error = in_use
    return error * record["y_scale"] * record["y_scale"]


@kernel
def add_to_table(state, fresh):
    """Add the leave-one-out sums of a task to the running means. Modified in place: `state`."""
    record = state.records[0]
    record["scored"] = record["scored"] * record["decay"] ** record["unscored"] + 1.0
    rate = 3.0 / (record["scored"] + 2.0)  # weights grow like t^2, as early priors are poor
    scale_and_add(state.table, 1.0 - rate, fresh, rate)
    # x'Cx varies little from task to task, and should be that of the latest candidates.
    catch_up = min(1.0, 5.0 * rate) - rate
    for c in range(fresh.shape[0]):
        for j in range(fresh.shape[1]):
            change = fresh[c, j, -1] - state.table[c, j, -1]
            state.table[c, j, -1] += catch_up / (1.0 - rate) * change if rate < 1.0 else 0.0
    record["unscored"] = 0.0


@kernel
def solve(state):
    """Solve for the variances and the mean that the sums of all tasks say. In place: `state`."""
    record = state.records[0]
    if record["t"] > 1.0:
        solve_variances(state)
    enough = min(state.scale.size * ROWS_PER_FEATURE, 0.5 * record["n_rows"])
    if record["fit_mean"] and record["pending_rows"] >= enough:
        solve_mean(state)


@kernel
def learn_again(state, X, y, decay):
    """Learn once more from a task; False if it is refused.

    `decay` makes its second visit replace the first in all sums. The prior is S itself, which lets
    EM converge; scores are not updated, as the state has seen the task.
    Modified in place: `state`, unless the task is refused.
    """
    record = state.records[0]
    if not set_units(state, X, y):
        return False
    if record["t"] > 0.0:
        inputs, outputs = in_units(state, X, y)
        R, z, Q, rest = reduce_task(inputs, outputs)
        count(state, inputs, outputs, decay)
        shares = np.array([1.0, 0.0, 0.0])
        RS = np.dot(R, state.covariance)
        update(state, R, z, Q, rest, RS, shares, record["noise"])
        solve(state)
    return True


@kernel
def add_scores(state, X, y, table):
    """Add the leave-one-out sums of a task that the state has not seen. In place: `table`."""
    R, z, Q, rest = reduce_task(*in_units(state, X, y))
    fresh = leave_one_out(state, R, z, Q, rest, np.dot(R, state.covariance))
    scale_and_add(table, 1.0, fresh, 1.0)


@kernel
def in_units(state, X, y):
    """Inputs, with a column of ones for an intercept, and targets in units."""
    record = state.records[0]
    unit = record["y_scale"] if record["y_scale"] > 0.0 else 1.0
    return design(state.origin, state.scale, X), (y - record["y_origin"]) / unit


@kernel
def start(state, R, z, rest):
    """Guess tau and the noise from a first task, by the likelihood of y ~ N(0, tau XX' + s2 I).

    The ratio tau / s2 is the best of a grid. Modified in place: `state`.
    """
    record, k = state.records[0], z.size
    n = max(k, rest.size)
    values, vectors = eigh(np.dot(R, R.T))
    squares = np.dot(vectors, z) ** 2
    values = np.maximum(values, 0.0)
    unit = values.sum() / n if values.sum() > 0.0 else 1.0
    best, residual = np.inf, np.dot(rest, rest)
    tau, noise = 1.0, 1.0
    for i in range(29):
        ratio = 10.0 ** (-3.0 + 0.25 * i) / unit
        guess = (np.sum(squares / (ratio * values + 1.0)) + residual) / n
        value = n * np.log(guess) + np.sum(np.log(ratio * values + 1.0))
        if value < best:
            best, tau, noise = value, ratio * guess, guess
    record["tau"], record["intercept_variance"], record["noise"] = (
        tau,
        tau,
        max(noise, SMALLEST_NOISE),
    )
    for j in range(state.variances.size):
        state.variances[j] = state.covariance[j, j] = tau


@kernel
def count(state, X, y, decay):
    """Add a task in units to the counts and mean squares, after `decay`. In place: `state`."""
    record, n = state.records[0], y.size
    if decay < 1.0:
        record["t"] *= decay
        record["n_rows"] *= decay
        record["information"] *= decay
        scale_and_add(state.precision, decay, state.precision, 0.0)
        scale_and_add(state.weighted, decay, state.weighted, 0.0)
        scale_and_add(state.moments, decay, state.moments, 0.0)
        scale_and_add(state.sums, decay, state.sums, 0.0)
    record["t"] += 1.0
    record["n_rows"] += n
    record["y_square"] += (np.dot(y, y) / n - record["y_square"]) * n / record["n_rows"]
    record["y_square"] = max(record["y_square"], 1.0 / (LARGEST * LARGEST))
    squares = np.zeros(X.shape[1])
    for i in range(n):
        for j in range(squares.size):
            squares[j] += X[i, j] * X[i, j]
    for j in range(squares.size):
        state.squares[j] += (squares[j] / n - state.squares[j]) / record["t"]


@kernel
def update(state, R, z, Q, rest, RS, shares, noise):
    """Learn mean, variances and covariances from a task, with the prior of these shares.

    Returns the task's mean squared leave-one-out error. Modified in place: `state`.
    """
    record, S, (k, d) = state.records[0], state.covariance, R.shape
    diagonal = shares[1] * state.variances + shares[2] * isotropic(state)
    RD = shares[0] * RS + R * diagonal
    W = whitener(np.dot(RD, R.T), noise)
    WR, WD = np.dot(W, R), np.dot(W, RD)
    residual = z - record["mean_share"] * np.dot(R, state.mean)
    white = np.dot(W, residual)
    error = held_out_error(W, white, noise, Q, rest)

    a = np.dot(white, WD)
    information = 0.0
    for i in range(k):
        information += np.dot(WR[i], WD[i])
    record["information"] += information / d
    # While tasks are few, S is their plain mean, which has the least variance. Then early tasks,
    # learned from with a poor prior, get less weight.
    gain = 0.7 + 1.3 * record["information"] / (record["information"] + 1.5 * d)
    rho = min(0.5, gain / (record["information"] + gain))
    kept = 1.0 - rho + rho * shares[0]
    for i in range(d):
        for j in range(i + 1):
            S[i, j] = kept * S[i, j] + rho * a[i] * a[j]
        S[i, i] += rho * diagonal[i]
    add_gram(WD, -rho, S)
    mirror(S)

    if record["t"] > 1.0:
        add_moments(state, R, residual, rest)
    if record["fit_mean"]:
        add_gram(WR, noise, state.precision)
        scale_and_add(state.weighted, 1.0, np.dot(np.dot(W, z), WR), noise)
        record["pending_rows"] += max(k, rest.size)
    return error


@kernel
def held_out_error(W, white, noise, Q, rest):
    """Mean squared leave-one-out error e_i = (M^-1 r)_i / (M^-1)_ii, with M^-1 = W'W."""
    k, total = white.size, 0.0
    solved = np.dot(white, W)
    if rest.size == 0:
        for i in range(k):
            precision = 0.0
            for j in range(i, k):
                precision += W[j, i] * W[j, i]
            total += (solved[i] / precision) ** 2
        return total / k
    # M^-1 = (I - QQ') / noise + Q W'W Q'
    WQ, fitted = np.dot(W, Q.T), np.dot(Q, solved)
    for i in range(rest.size):
        share = 1.0
        for j in range(k):
            share += noise * WQ[j, i] * WQ[j, i] - Q[i, j] * Q[i, j]
        total += ((noise * fitted[i] + rest[i]) / max(share, SMALLEST_SHARE)) ** 2
    return total / rest.size


@kernel
def add_moments(state, R, residual, rest):
    """Add a task to F and b, with E[b] = F (v, s2) if the prior is N(m, diag(v)).

    With any M, u = X'M^-1 r, H = X'M^-1 X and e = M^-1 r: E[u_j^2] = sum_k H_jk^2 v_k +
    s2 (X'M^-2 X)_jj, and likewise for E|e|^2. M uses the variances so far, with more noise while
    rows are few. Modified in place: `state`.
    """
    record, F, b, (k, d) = state.records[0], state.moments, state.sums, R.shape
    n = max(k, rest.size)
    noise = max(record["noise"], record["y_square"] * d / (d + record["n_rows"]))
    W = whitener(np.dot(R * state.variances, R.T), noise)
    WR = np.dot(W, R)
    H = np.zeros((d, d))
    add_gram(WR, 1.0, H)
    inverse = np.dot(W.T, W)
    solved = np.dot(inverse, residual)
    u, inverse_R = np.dot(solved, R), np.dot(inverse, R)
    for i in range(d):
        for j in range(i):
            F[i, j] += H[i, j] * H[i, j]
        F[i, i] += H[i, i] * H[i, i]
        squares = 0.0
        for j in range(k):
            squares += inverse_R[j, i] * inverse_R[j, i]
        F[d, i] += squares
        b[i] += u[i] * u[i]
    F[d, d] += np.sum(inverse * inverse) + (n - k) / (noise * noise)
    b[d] += np.dot(solved, solved) + np.dot(rest, rest) / (noise * noise)


@kernel
def solve_variances(state):
    """Solve F (v, s2) = b for non-negative v, and for the isotropic prior. In place: `state`.

    Weak guesses keep the solutions finite: the isotropic prior for v, and for the isotropic prior
    multiples of the mean square of the targets. Two sweeps of coordinate descent from the last
    solution are enough, as F and b change little with each task.
    """
    record, F, b = state.records[0], state.moments.copy(), state.sums
    mirror(F)
    d, q, yy = state.scale.size, known_squares(state), record["y_square"]
    n_features = d - record["intercept"]
    E = np.zeros((3, d + 1))  # (v, s2) = E'(tau, variance of the intercept, s2)
    for j in range(d):
        if j < n_features:
            E[0, j] = 1.0 / q[j]
        else:
            E[1, j] = 1.0
    E[2, d] = 1.0
    guess = np.array([yy / d, yy, yy])
    x = np.array([record["tau"], record["intercept_variance"], record["noise"]])
    reduced = np.dot(np.dot(E, F), E.T)
    descend(reduced, np.dot(E, b), x, guess, ISOTROPIC_ANCHOR / guess**2, 30)
    record["tau"], record["intercept_variance"] = max(x[0], 1e-6 * yy / d), max(x[1], 1e-9 * yy)

    guess, x, variances = np.empty(d + 1), np.empty(d + 1), isotropic(state)
    for j in range(d):
        guess[j] = max(variances[j], 1e-4 * yy / (d * q[j]))
        x[j] = state.variances[j]
    guess[d], x[d] = yy, record["noise"]
    anchors = DIAGONAL_ANCHOR / guess**2
    anchors[d] = ISOTROPIC_ANCHOR / (yy * yy)
    descend(F, b, x, guess, anchors, 2)
    assign(state.variances, x[:d])
    least = max(record["noise"] / 4.0, SMALLEST_NOISE * yy)
    record["noise"] = min(max(x[d], least), 4.0 * record["noise"])


@kernel
def descend(F, b, x, guess, anchors, n_sweeps):
    """min x'Fx / 2 - b'x + sum_j anchors_j (x_j - guess_j)^2 / 2 - BARRIER log(x_last), x >= 0.

    Coordinate descent, with F symmetric. Modified in place: x.
    """
    k = x.size
    gradient = np.dot(F, x) - b
    for _ in range(n_sweeps):
        for j in range(k):
            h = F[j, j] + anchors[j]
            c = F[j, j] * x[j] - gradient[j] + anchors[j] * guess[j]
            if j < k - 1:
                new = max(0.0, c / h)
            else:
                new = (c + np.sqrt(c * c + 4.0 * BARRIER * h)) / (2.0 * h)
            move = new - x[j]
            if move != 0.0:
                for i in range(k):
                    gradient[i] += move * F[j, i]
                x[j] = new


@kernel
def solve_mean(state):
    """m = (A + diag(q) s / yy)^-1 c, unless A is singular to rounding. In place: `state`."""
    record, A, q = state.records[0], state.precision.copy(), known_squares(state)
    noise = record["noise"] / record["kappa"]
    for j in range(q.size):
        A[j, j] += SMALLEST_RIDGE * A[j, j] + q[j] * noise / record["y_square"]
    if cholesky(A):
        assign(state.mean, state.weighted)
        cholesky_solve(A, state.mean)
    record["pending_rows"] = 0.0


@kernel
def whitener(M, noise):
    """L^-1 with M + noise I = L L'. Modified in place: M.

    The noise is raised to a rounding error of M, if it is smaller.
    """
    noise += 1e-14 * np.trace(M)
    for i in range(M.shape[0]):
        M[i, i] += noise
    cholesky(M)
    return inverse_of_triangle(M)


@kernel
def inverse_of_triangle(L):
    """L^-1 of a lower triangle, row by row."""
    k = L.shape[0]
    inverse = np.zeros((k, k))
    for i in range(k):
        for j in range(i):
            for m in range(j + 1):
                inverse[i, m] -= L[i, j] * inverse[j, m]
        inverse[i, i] = 1.0
        for j in range(i + 1):
            inverse[i, j] /= L[i, i]
    return inverse


@kernel
def posterior(mean, D, noise, X, y):
    """Mean of a task's weights, and K of their covariance D - K'K, given its rows in units."""
    R, z = reduce_task(X, y)[:2]
    RD = np.dot(R, D)
    W = whitener(np.dot(RD, R.T), noise)
    K = np.dot(W, RD)
    weights = mean + np.dot(np.dot(W, z - np.dot(R, mean)), K)
    return weights, K


@kernel
def predictive_variances(D, K, inflation, noise, X):
    """x'Cx inflation^h + noise for each row x of X, with C = D - K'K and h = x'Cx / x'Dx.

    D is the prior covariance and C the posterior one: h is what the samples have left open. The
    inflation holds for tasks without samples, h = 1.
    """
    XD, XK = np.dot(X, D), np.dot(X, K.T)
    variances = np.empty(X.shape[0])
    for i in range(X.shape[0]):
        before = np.dot(XD[i], X[i])
        after = max(0.0, before - np.dot(XK[i], XK[i]))
        left = min(1.0, after / before) if before > 0.0 else 0.0
        variances[i] = after * inflation**left + noise
    return variances
