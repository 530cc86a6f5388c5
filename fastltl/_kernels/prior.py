"""The prior in use: units of the data, candidates for the prior, and their leave-one-out errors.

A task's weights are w ~ N(m, S) and its targets y = Xw + noise of variance s2. Inputs and targets
are in units that make them about one in size, so that results do not depend on those of the data;
the intercept is a feature of ones. The prior in use, N(f m, D), is a mixture of candidates: S
shrunk a little or much towards an isotropic prior, diag(v), and the isotropic prior itself, each
with its noise divided by a factor kappa. The weights of the mixture come from leave-one-out errors,
computed for each task before it is learned from.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._kernels.linalg import kernel
from fastltl._kernels.spectral import eigh
from fastltl._kernels.task import all_finite, assign

Array = npt.NDArray[np.float64]

#: Factors by which candidates divide the noise.
KAPPAS = 2.0 ** np.arange(-3.0, 3.5, 0.5)
LOG_KAPPAS = np.log(KAPPAS)

#: Candidates: S shrunk by h = nu d / (nu d + t) towards the isotropic prior, for these nu; then
#: diag(v) and the isotropic prior.
SHRINKAGES = np.array([0.06, 1.0])
N_CANDIDATES = SHRINKAGES.size + 2

#: Numbers in the table of errors for each candidate and kappa.
N_SUMS = 13

#: A candidate of leave-one-out error e has weight e^(-TEMPERATURE N / 2) after N rows.
TEMPERATURE = 0.3
#: Relative penalties on e: for kappa = 2^x, x^2 / N times the first; for diag(v), d / N times the
#: second. They decide while there are few rows.
KAPPA_PENALTY, DIAGONAL_PENALTY = 4.0, 0.2

#: Features and targets are measured from zero unless their first mean is so far away that the
#: level would hide the differences: three standard deviations, squared.
DISTANT = 9.0

#: Inputs and targets may be this many times larger than the first ones.
LARGEST = 1e30

#: Largest mean squared z-score of a task that counts: early tasks meet poor estimates of the noise.
LARGEST_Z_SQUARE = 9.0

#: Smallest mean squared z-score, and smallest share of weights in the variance of targets, that are
#: believed.
SMALLEST_INFLATION, SMALLEST_EXPLAINED = 1e-6, 1e-3

#: Smallest share of its own residual in the error of a row; smaller ones are rounding errors.
SMALLEST_SHARE = 1e-10

RECORD = np.dtype(
    [
        ("intercept", np.int64),  # whether the last feature is one of ones
        ("fit_mean", np.int64),  # whether m is learned, or zero
        ("decay", np.float64),  # factor of all sums before each task
        ("n_tasks", np.int64),
        ("t", np.float64),  # tasks since units are known, each decayed
        ("n_rows", np.float64),  # N, their rows
        ("y_origin", np.float64),
        ("y_scale", np.float64),  # 0 until targets vary
        ("y_square", np.float64),  # yy, the mean square of the targets
        ("information", np.float64),  # effective number of tasks in S
        ("tau", np.float64),  # isotropic variance of weights, of features of mean square one
        ("intercept_variance", np.float64),  # of the isotropic prior
        ("noise", np.float64),  # s2
        ("kappa", np.float64),  # the noise in use is noise / kappa
        ("share_learned", np.float64),  # the prior in use: this times S
        ("share_diagonal", np.float64),  # plus this times diag(v)
        ("share_isotropic", np.float64),  # plus this times the isotropic prior
        ("mean_share", np.float64),  # f
        ("inflation", np.float64),  # mean squared leave-one-out z-score: a factor of the noise
        ("weight_inflation", np.float64),  # and of the covariance of the weights
        ("prior_inflation", np.float64),  # and of the latter if a task has no samples
        ("error", np.float64),  # mean squared leave-one-out error
        ("scored", np.float64),  # tasks in the table, decayed
        ("unscored", np.float64),  # tasks since the prior in use was chosen
        ("pending_rows", np.float64),  # rows of tasks that are not in m yet
    ],
    align=True,
)


class BayesState(NamedTuple):
    """Arrays of a learned prior over d features, the intercept included."""

    origin: Array  #: (d,) inputs are measured from here
    scale: Array  #: (d,) in these units, 0 as long as a feature has not varied
    squares: Array  #: (d,) q, mean over tasks of the mean squares of the features
    variances: Array  #: (d,) v
    mean: Array  #: (d,) m
    precision: Array  #: (d, d) A, its lower triangle
    weighted: Array  #: (d,) c
    covariance: Array  #: (d, d) S
    moments: Array  #: (d + 1, d + 1) F, its lower triangle
    sums: Array  #: (d + 1,) b
    table: Array  #: (candidates, kappas, sums) running means, see `leave_one_out`
    weights: Array  #: (candidates, kappas) of the mixture
    records: npt.NDArray[np.void]  #: (1,)


@kernel
def size(values):
    """sqrt(mean x^2), without overflow."""
    largest = np.abs(values).max()
    if largest == 0.0:
        return 0.0
    return largest * np.sqrt(np.mean((values / largest) ** 2))


@kernel
def origin_of(values):
    """Mean of some values, shrunk to zero if it is less than three standard deviations away."""
    n, largest = values.size, np.abs(values).max()
    if values.min() == values.max():
        return values[0]
    x = values / largest
    mean = x.mean()
    variance = np.sum((x - mean) ** 2) / (n - 1)
    if mean * mean <= DISTANT * variance:
        return 0.0
    return largest * (mean - DISTANT * variance / mean)


@kernel
def set_units(state, X, y):
    """Set units that are not known yet; False if X or y is not finite or far too large.

    Until a target differs from the origin, each task sets all units anew. Later it sets those of
    features that had not varied before. Modified in place: `state`, unless the task is refused.
    """
    record, n = state.records[0], y.size
    n_features = X.shape[1]
    is_first = record["y_scale"] == 0.0
    origin, scale = state.origin.copy(), state.scale.copy()
    y_origin, y_scale = record["y_origin"], record["y_scale"]
    if not (all_finite(X) and all_finite(y)):
        return False
    # A single row has no spread: it is the origin of the first task, and leaves it later.
    finds_origin = is_first and record["intercept"] and (n > 1 or record["n_tasks"] == 0)
    if is_first:
        if finds_origin and record["fit_mean"]:
            y_origin = origin_of(y)
        y_scale = size(y - y_origin)
    for j in range(n_features):
        if finds_origin:
            origin[j] = origin_of(X[:, j])
        if is_first or scale[j] == 0.0:
            scale[j] = size(X[:, j] - origin[j])
    for i in range(n):
        for j in range(n_features):
            if scale[j] > 0.0 and not abs(X[i, j] - origin[j]) / scale[j] <= LARGEST:
                return False
        if y_scale > 0.0 and not abs(y[i] - y_origin) / y_scale <= LARGEST:
            return False
    assign(state.origin, origin)
    assign(state.scale, scale)
    record["y_origin"], record["y_scale"] = y_origin, y_scale
    return True


@kernel
def design(origin, scale, X):
    """Inputs in units, n x d, with a last column of ones if d exceeds the number of features.

    Features that have not varied yet are zero: nothing is known of their weights or units.
    """
    n, d = X.shape[0], scale.size
    A = np.ones((n, d))
    for i in range(n):
        for j in range(X.shape[1]):
            A[i, j] = (X[i, j] - origin[j]) / scale[j] if scale[j] > 0.0 else 0.0
    return A


@kernel
def reduce_task(X, y):
    """X = QR, z = Q'y: (R, z, Q, y - Qz), or (X, y, empty, empty) for a task of n <= d rows."""
    n, d = X.shape
    if n <= d:
        return X, y, np.empty((0, d)), np.empty(0)
    Q, R = np.linalg.qr(X)
    Q, R = np.ascontiguousarray(Q), np.ascontiguousarray(R)
    z = np.dot(y, Q)
    return R, z, Q, y - np.dot(Q, z)


@kernel
def scale_and_add(target, a, source, b):
    """a target + b source, of the same shape. Modified in place: `target`."""
    to, entries = target.ravel(), source.ravel()  # views, as both are contiguous
    for i in range(to.size):
        to[i] = a * to[i] + b * entries[i]


@kernel
def known_squares(state):
    """q, with 1 for features that have not varied yet."""
    squares = state.squares.copy()
    for j in range(squares.size):
        if squares[j] == 0.0:
            squares[j] = 1.0
    return squares


@kernel
def isotropic(state):
    """Variances of the isotropic prior: tau / q for features, and the intercept's own."""
    record = state.records[0]
    variances = record["tau"] / known_squares(state)
    if record["intercept"]:
        variances[-1] = record["intercept_variance"]
    return variances


@kernel
def candidate_shares(state):
    """Shares of S, diag(v) and the isotropic prior in each candidate."""
    d, t = state.scale.size, state.records[0]["t"]
    shares = np.zeros((N_CANDIDATES, 3))
    for i in range(SHRINKAGES.size):
        h = SHRINKAGES[i] * d / (SHRINKAGES[i] * d + t)
        shares[i, 0], shares[i, 2] = 1.0 - h, h
    shares[-2, 1] = shares[-1, 2] = 1.0
    return shares


@kernel
def prior_shares(state):
    """Shares of S, diag(v) and the isotropic prior in the prior in use."""
    record = state.records[0]
    return np.array([record["share_learned"], record["share_diagonal"], record["share_isotropic"]])


@kernel
def prior_covariance(state):
    """D of the prior in use."""
    shares = prior_shares(state)
    D = shares[0] * state.covariance
    diagonal = shares[1] * state.variances + shares[2] * isotropic(state)
    for j in range(diagonal.size):
        D[j, j] += diagonal[j]
    return D


@kernel
def leave_one_out(state, R, z, Q, rest, RS):
    """Sums over the rows of a task for each candidate and kappa: the table of a single task.

    M = K + s I with K = X C X' and s = s2 / kappa; one eigen-decomposition of K, k x k, serves all
    kappa. Row i has the error e_i = (M^-1 r)_i / (M^-1)_ii if it is left out, and the squared
    z-score e_i^2 (M^-1)_ii. With r = y - f X m both are quadratic in f. The numbers are

    - 0 to 2, 3 to 5: the means over rows of the products (yy, ym, mm) of the errors e for y and for
      X m, without and with the factor (M^-1)_ii; the latter bounded by LARGEST_Z_SQUARE;
    - 6, 7: s (Xm)'M^-1 y / n and s (Xm)'M^-1 (Xm) / n, whose ratio is the likeliest f;
    - 8: the mean of s (M^-1)_ii, the share of the noise in the variance of e;
    - 9 to 12: the means of y^2, y Xm, (Xm)^2 and x'Cx, for tasks without samples.
    """
    noise, f = state.records[0]["noise"], state.records[0]["mean_share"]
    k, n = z.size, max(z.size, rest.size)
    grams = np.empty((3, k, k))
    np.dot(RS, R.T, grams[0])
    np.dot(R * state.variances, R.T, grams[1])
    np.dot(R * isotropic(state), R.T, grams[2])
    Rm = np.dot(R, state.mean)
    squares = np.dot(z, z) + np.dot(rest, rest), np.dot(z, Rm), np.dot(Rm, Rm)
    shares = candidate_shares(state)
    table = np.empty((N_CANDIDATES, KAPPAS.size, N_SUMS))
    kept, dropped = np.empty((KAPPAS.size, k)), np.empty((KAPPAS.size, k))
    y_parts, m_parts = np.empty((KAPPAS.size, k)), np.empty((KAPPAS.size, k))
    for c in range(N_CANDIDATES):
        gram = np.zeros((k, k))
        for i in range(3):
            if shares[c, i] > 0.0:
                scale_and_add(gram, 1.0, grams[i], shares[c, i] / noise)
        values, vectors = eigh(gram)
        zy, zm = np.dot(vectors, z), np.dot(vectors, Rm)
        for j in range(KAPPAS.size):
            for i in range(k):
                kept[j, i] = 1.0 / (KAPPAS[j] * max(values[i], 0.0) + 1.0)
                dropped[j, i] = KAPPAS[j] * max(values[i], 0.0) * kept[j, i]
                y_parts[j, i], m_parts[j, i] = kept[j, i] * zy[i], kept[j, i] * zm[i]
        if rest.size > 0:
            vectors = np.dot(vectors, Q.T)
            residual_shares = 1.0 - np.dot(dropped, vectors**2)  # leverages, left from one
        else:
            residual_shares = np.dot(kept, vectors**2)
        ey, em = np.dot(y_parts, vectors), np.dot(m_parts, vectors)
        for j in range(KAPPAS.size):
            sums = table[c, j]
            sums.fill(0.0)
            for i in range(k):
                sums[6] += kept[j, i] * zy[i] * zm[i]
                sums[7] += kept[j, i] * zm[i] * zm[i]
            sums[9], sums[10], sums[11] = squares[0], squares[1], squares[2]
            sums[12] = noise * np.trace(gram)
            for i in range(n):
                share = max(residual_shares[j, i], SMALLEST_SHARE)
                sums[8] += share
                a, b = ey[j, i], em[j, i]
                if rest.size > 0:
                    a += rest[i]
                a, b, precision = a / share, b / share, share * KAPPAS[j] / noise
                sums[0] += a * a
                sums[1] += a * b
                sums[2] += b * b
                sums[3] += a * a * precision
                sums[4] += a * b * precision
                sums[5] += b * b * precision
            sums /= n
            z_square = sums[3] - 2.0 * f * sums[4] + f * f * sums[5]
            if z_square > LARGEST_Z_SQUARE:
                for i in range(3, 6):
                    sums[i] *= LARGEST_Z_SQUARE / z_square
    return table


@kernel
def expected_error(state, table):
    """Mean squared error of a table, with the weights and the factor of the mean in use."""
    f, error = state.records[0]["mean_share"], 0.0
    for c in range(N_CANDIDATES):
        for j in range(KAPPAS.size):
            sums = table[c, j]
            error += state.weights[c, j] * (sums[0] - 2.0 * f * sums[1] + f * f * sums[2])
    return error


@kernel
def choose(state):
    """Weigh the candidates by their leave-one-out errors. Modified in place: `state`.

    Each takes its best factor f in [0, 1] of the mean, slightly shrunk: by leave-one-out errors or,
    where tasks have so many samples that the mean does not matter to them, by likelihood. kappa is
    the geometric mean, and D the sum of the candidates in proportion to weight and kappa.

    The mean squared z-score corrects the noise. It corrects D as far as the errors were those of
    weights, not of noise. For tasks without samples, D is scaled to the variance of y - f X m.
    """
    record, table, weights = state.records[0], state.table, state.weights
    n_rows, d = record["n_rows"], state.scale.size
    shares = candidate_shares(state)
    found = np.empty((6, *weights.shape))
    factors, errors, z_squares, noise_shares = found[0], found[1], found[2], found[3]
    residuals, variances = found[4], found[5]
    penalties = np.empty(weights.shape)
    for c in range(weights.shape[0]):
        diagonal = 1.0 + DIAGONAL_PENALTY * d / n_rows * (shares[c, 1] > 0.0)
        for j in range(weights.shape[1]):
            yy, ym, mm = table[c, j, 0], table[c, j, 1], table[c, j, 2]
            f, numerator = 0.0, ym + table[c, j, 6]
            if numerator > 0.0:
                f = min(1.0, numerator / ((mm + table[c, j, 7]) * (1.0 + 1.0 / record["n_tasks"])))
            error = max(yy - 2.0 * f * ym + f * f * mm, 1e-12 * record["y_square"])
            factors[c, j] = f
            noise_shares[c, j] = table[c, j, 8]
            residuals[c, j] = table[c, j, 9] - 2.0 * f * table[c, j, 10] + f * f * table[c, j, 11]
            variances[c, j] = KAPPAS[j] * table[c, j, 12]
            z_squares[c, j] = table[c, j, 3] - 2.0 * f * table[c, j, 4] + f * f * table[c, j, 5]
            octaves = LOG_KAPPAS[j] / np.log(2.0)
            errors[c, j] = error
            penalties[c, j] = (1.0 + KAPPA_PENALTY * octaves * octaves / n_rows) * diagonal
    penalised, total = errors * penalties, 0.0
    least = penalised.min()
    for c in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            weights[c, j] = np.exp(-0.5 * TEMPERATURE * n_rows * np.log(penalised[c, j] / least))
            total += weights[c, j]
    log_kappa, means, mixed = 0.0, np.zeros(6), np.zeros(3)
    for c in range(weights.shape[0]):
        for j in range(weights.shape[1]):
            weights[c, j] /= total
            log_kappa += weights[c, j] * LOG_KAPPAS[j]
            means += weights[c, j] * found[:, c, j]
            mixed += weights[c, j] * KAPPAS[j] * shares[c]
    kappa = np.exp(log_kappa)
    record["kappa"] = kappa
    record["mean_share"], record["error"] = means[0], means[1]
    record["inflation"] = max(means[2], SMALLEST_INFLATION)
    record["weight_inflation"] = record["inflation"] ** (1.0 - means[3])
    noise = record["inflation"] * record["noise"] / kappa
    explained = max(means[4] - noise, SMALLEST_EXPLAINED * means[4])
    inflation = explained * kappa / means[5] if means[5] > 0.0 else 1.0
    record["prior_inflation"] = min(max(inflation, SMALLEST_INFLATION), 1.0 / SMALLEST_INFLATION)
    record["share_learned"], record["share_diagonal"], record["share_isotropic"] = mixed / kappa
