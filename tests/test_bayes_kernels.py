"""Compare the kernels of `BayesLTL` with naive formulas."""

import numpy as np
import pytest
from naive import random_psd, relative
from scipy import optimize

from fastltl._bayes_run import new_state
from fastltl._kernels import bayes, prior

SHAPES = [(1, 1), (1, 4), (3, 4), (4, 4), (9, 4), (40, 3), (6, 1)]


def random_state(rng, d, intercept=False):
    """Return a state in the middle of a run over d features, an intercept included."""
    state = new_state(d - intercept, True, intercept, None)
    record = state.records[0]
    state.scale[:] = 1.0
    state.squares[:] = rng.uniform(0.5, 2.0, size=d)
    state.variances[:] = rng.uniform(0.0, 1.0, size=d)
    state.mean[:] = rng.normal(size=d)
    state.covariance[:] = random_psd(rng, d, trace=d)
    record["t"], record["n_rows"], record["n_tasks"] = 7.0, 50.0, 7
    record["noise"], record["tau"], record["intercept_variance"] = 0.3, 0.4, 0.8
    record["y_scale"], record["y_square"] = 1.0, 1.5
    return state


def random_task(rng, n, d):
    X = rng.normal(size=(n, d))
    return X, X @ rng.normal(size=d) + 0.5 * rng.normal(size=n)


def symmetric(A):
    """Return the symmetric matrix of a lower triangle."""
    return np.tril(A) + np.tril(A, -1).T


def candidate_covariances(state, intercept):
    """Return the covariances of the candidates, as the docstring of the kernels has them."""
    record, d = state.records[0], len(state.mean)
    isotropic = record["tau"] / state.squares
    if intercept:
        isotropic[-1] = record["intercept_variance"]
    for nu in (0.06, 1.0):
        h = nu * d / (nu * d + record["t"])
        yield (1 - h) * state.covariance + h * np.diag(isotropic)
    yield np.diag(state.variances)
    yield np.diag(isotropic)


def refitted_without_each_row(X, y, mean, C, noise):
    """Return the error of each row and its variance, predicted from the other rows."""
    errors, variances = [], []
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        gain = C @ X[rest].T @ np.linalg.inv(X[rest] @ C @ X[rest].T + noise * np.eye(rest.sum()))
        weights = mean + gain @ (y[rest] - X[rest] @ mean)
        covariance = C - gain @ X[rest] @ C
        errors.append(y[i] - X[i] @ weights)
        variances.append(X[i] @ covariance @ X[i] + noise)
    return np.array(errors), np.array(variances)


@pytest.mark.sample(3)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_leave_one_out_equals_refits_without_each_row(n, d, intercept):
    rng = np.random.default_rng(n + d)
    state, (X, y) = random_state(rng, d, intercept), random_task(rng, n, d)
    task = prior.reduce_task(X, y)
    table = prior.leave_one_out(state, *task, np.dot(task[0], state.covariance))
    assert table.shape == (4, 13, 13)
    in_use = state.records[0]["mean_share"]
    bounds = table[:, :, 3:6] @ [1.0, -2 * in_use, in_use**2]
    assert bounds.max() < 9 + 1e-9
    for c, C in enumerate(candidate_covariances(state, intercept)):
        for j, kappa in enumerate(2.0 ** np.arange(-3, 3.5, 0.5)):
            for f in (0.0, 0.4, 1.0):
                errors, variances = refitted_without_each_row(X, y, f * state.mean, C, 0.3 / kappa)
                powers = np.array([1.0, -2 * f, f * f])
                assert table[c, j, :3] @ powers == pytest.approx(np.mean(errors**2), rel=1e-9)
                scores = np.mean(errors**2 / variances)
                if bounds[c, j] < 9:  # larger ones count as 9
                    assert table[c, j, 3:6] @ powers == pytest.approx(scores, rel=1e-9)
            # The likeliest f is that of a regression of y on Xm, with the covariance M.
            Xm, M = X @ state.mean, X @ C @ X.T + 0.3 / kappa * np.eye(n)
            for place, target in ((6, y), (7, Xm)):
                expected = 0.3 / kappa * Xm @ np.linalg.solve(M, target) / n
                assert table[c, j, place] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_held_out_error_equals_refits_without_each_row(n, d):
    rng = np.random.default_rng(n + d)
    (X, y), C, mean = random_task(rng, n, d), random_psd(rng, d, trace=d), rng.normal(size=d)
    R, z, Q, rest = prior.reduce_task(X, y)
    W = bayes.whitener(R @ C @ R.T, 0.2)
    found = bayes.held_out_error(W, W @ (z - R @ mean), 0.2, Q, rest)
    errors, _ = refitted_without_each_row(X, y, mean, C, 0.2)
    assert found == pytest.approx(np.mean(errors**2), rel=1e-9)


@pytest.mark.parametrize("noise", [1e-3, 0.3, 1e3])
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_posterior_equals_the_form_in_precisions(n, d, noise):
    rng = np.random.default_rng(n + d)
    (X, y), D, mean = random_task(rng, n, d), random_psd(rng, d, trace=d), rng.normal(size=d)
    D += 0.1 * np.eye(d)
    weights, K = bayes.posterior(mean, D, noise, X, y)
    covariance = D - K.T @ K
    expected = np.linalg.inv(np.linalg.inv(D) + X.T @ X / noise)
    # It is a difference from D, so errors are relative to D.
    tolerance = 1e-9 + 1e-12 * np.linalg.norm(D) / np.linalg.norm(expected)
    assert relative(covariance, expected) < tolerance
    assert np.array_equal(covariance, covariance.T)
    expected_mean = expected @ (np.linalg.solve(D, mean) + X.T @ y / noise)
    assert relative(weights, expected_mean) < 1e-9


def test_posterior_of_a_singular_prior_stays_in_its_range():
    rng = np.random.default_rng(0)
    X, y = random_task(rng, 5, 6)
    direction = rng.normal(size=6)
    D = np.outer(direction, direction)
    weights, K = bayes.posterior(np.zeros(6), D, 0.1, X, y)
    covariance = D - K.T @ K
    x = X @ direction
    assert relative(weights, direction * (x @ y) / (x @ x + 0.1)) < 1e-10
    assert relative(covariance, D * 0.1 / (x @ x + 0.1)) < 1e-9


def test_variances_of_predictions():
    rng = np.random.default_rng(0)
    D, K, X = random_psd(rng, 3) + np.eye(3), rng.normal(size=(2, 3)) / 4, rng.normal(size=(5, 3))
    C = D - K.T @ K
    assert np.linalg.eigvalsh(C)[0] > 0
    left = [x @ C @ x / (x @ D @ x) for x in X]
    expected = [x @ C @ x * 3.0**h + 0.2 for x, h in zip(X, left, strict=True)]
    found = bayes.predictive_variances(D, K, 3.0, 0.2, X)
    assert found == pytest.approx(expected, rel=1e-12)
    D, K = np.diag([1.0, 0.0, 0.0]), np.array([[1.0 + 1e-15, 0.0, 0.0]])  # a rounding error
    assert bayes.predictive_variances(D, K, 3.0, 0.2, X).tolist() == [0.2] * 5


@pytest.mark.parametrize("k", [1, 2, 7, 30])
def test_inverse_of_a_triangle(k):
    rng = np.random.default_rng(k)
    L = np.linalg.cholesky(random_psd(rng, k, trace=k) + 0.1 * np.eye(k))
    above = L + np.triu(np.full((k, k), 9.0), 1)  # not read
    inverse = bayes.inverse_of_triangle(above)
    assert np.array_equal(inverse, np.tril(inverse))
    assert np.abs(inverse @ L - np.eye(k)).max() < 1e-12


def test_a_whitener_of_singular_matrices_is_finite():
    X = np.ones((6, 2))
    for scale in (1e-30, 1.0, 1e30):
        W = bayes.whitener(scale * (X @ X.T), 0.0)
        assert np.isfinite(W).all()


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_moments_are_unbiased(n, d):
    """E[b] = F (v, s2), with E[rr'] = X diag(v) X' + s2 I as a sum over columns of its root."""
    rng = np.random.default_rng(n + d)
    state, (X, _) = random_state(rng, d), random_task(rng, n, d)
    v, noise = rng.uniform(0, 3, size=d), 0.7
    assert not np.allclose(v, state.variances)  # F and b are weighted by those so far
    root = np.linalg.cholesky((X * v) @ X.T + noise * np.eye(n))
    for column in root.T:
        R, z, _, rest = prior.reduce_task(X, np.ascontiguousarray(column))
        bayes.add_moments(state, R, z, rest)
    assert not np.triu(state.moments, 1).any()
    F = symmetric(state.moments) / n
    assert relative(state.sums, F @ np.append(v, noise)) < 1e-10
    assert np.array_equal(F, F.T)
    assert np.linalg.matrix_rank(F) == min(d + 1, (n * (n + 1)) // 2)


def objective(F, b, x, guess, anchors):
    with np.errstate(divide="ignore"):
        barrier = bayes.BARRIER * np.log(x[-1])
    return x @ F @ x / 2 - b @ x + np.sum(anchors * (x - guess) ** 2) / 2 - barrier


@pytest.mark.parametrize("k", [1, 2, 5, 21])
def test_descent_finds_the_least_non_negative_solution(k):
    rng = np.random.default_rng(k)
    F, b = random_psd(rng, k, trace=k), rng.normal(size=k)
    guess, anchors = rng.uniform(0.1, 1, size=k), rng.uniform(0.1, 1, size=k)
    x, values = np.full(k, 0.5), []
    for _ in range(300):
        bayes.descend(F, b, x, guess, anchors, 1)
        values.append(objective(F, b, x, guess, anchors))
        assert (x[:-1] >= 0).all()
        assert x[-1] > 0
    assert (np.diff(values) <= 1e-12 * np.abs(values[0])).all()
    gradient = F @ x - b + anchors * (x - guess)
    gradient[-1] -= bayes.BARRIER / x[-1]
    assert (np.abs(gradient[x > 0]) < 1e-9).all()
    assert (gradient >= -1e-9).all()
    found = optimize.minimize(
        lambda x: objective(F, b, x, guess, anchors),
        np.full(k, 0.5),
        method="L-BFGS-B",
        bounds=[(0, None)] * (k - 1) + [(1e-9, None)],
        options={"ftol": 1e-15, "gtol": 1e-10, "maxfun": 10**5},
    )
    assert values[-1] <= found.fun + 1e-9
    assert x == pytest.approx(found.x, abs=1e-4)
    if k > 2:
        assert (x == 0).any()  # the bounds matter


def test_variances_solve_the_moments_of_many_tasks():
    """With all tasks from the same prior, F (v, s2) = b has the true variances as solution."""
    rng = np.random.default_rng(0)
    state, v, noise = random_state(rng, 3), np.array([0.5, 0.0, 2.0]), 0.7
    X, _ = random_task(rng, 8, 3)
    root = np.linalg.cholesky((X * v) @ X.T + noise * np.eye(8))
    for column in root.T:
        R, z, _, rest = prior.reduce_task(X, np.ascontiguousarray(column))
        bayes.add_moments(state, R, z, rest)
    state.moments[:] *= 1e8 / 8  # F and b of many tasks, so that guesses do not matter
    state.sums[:] *= 1e8
    for _ in range(200):
        bayes.solve_variances(state)
    assert state.variances == pytest.approx(v, abs=1e-4)
    assert state.records[0]["noise"] == pytest.approx(noise, rel=1e-4)


def test_the_noise_changes_by_at_most_a_factor_of_four():
    rng = np.random.default_rng(0)
    for scale in (0.0, 1e6):
        state = random_state(rng, 2)
        X, y = random_task(rng, 6, 2)
        R, z, _, rest = prior.reduce_task(X, y)
        for _ in range(50):
            bayes.add_moments(state, R, scale * z, scale * rest)
        bayes.solve_variances(state)
        assert state.records[0]["noise"] == pytest.approx(0.3 * (4.0 if scale else 0.25))
        for _ in range(50):
            bayes.solve_variances(state)
        if not scale:
            assert state.records[0]["noise"] >= 1e-6 * 1.5


def test_the_mean_solves_its_normal_equations():
    rng = np.random.default_rng(0)
    state = random_state(rng, 5)
    A, c = random_psd(rng, 5, trace=30.0), rng.normal(size=5)
    state.precision[:] = np.tril(A) + np.triu(np.full((5, 5), 1e3), 1)  # only its lower triangle
    state.weighted[:] = c
    state.squares[2] = 0.0  # a feature that has not varied
    q = np.where(state.squares > 0, state.squares, 1.0)
    record = state.records[0]
    record["pending_rows"] = 8.0
    bayes.solve_mean(state)
    ridge = q * record["noise"] / record["kappa"] / record["y_square"]
    assert relative(state.mean, np.linalg.solve(A + np.diag(ridge), c)) < 1e-9
    assert state.records[0]["pending_rows"] == 0.0


def negative_log_likelihood(X, y, tau, noise):
    M = tau * X @ X.T + noise * np.eye(len(y))
    return y @ np.linalg.solve(M, y) + np.linalg.slogdet(M)[1]


@pytest.mark.parametrize(("n", "d"), [(3, 8), (8, 8), (12, 5), (60, 5), (100, 3)])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_the_start_has_almost_the_largest_likelihood(n, d, noise):
    rng = np.random.default_rng(n + d)
    X, y = random_task(rng, n, d)
    y = y + noise * rng.normal(size=n)
    state = new_state(d, True, False, None)
    R, z, _, rest = prior.reduce_task(X, y)
    bayes.start(state, R, z, rest)
    record = state.records[0]
    found = negative_log_likelihood(X, y, record["tau"], record["noise"])
    unit = np.trace(X @ X.T) / n
    values = []
    for ratio in np.logspace(-3, 4, 200) / unit:
        # Given the ratio, the best noise is the mean square of the whitened targets.
        best = y @ np.linalg.solve(ratio * X @ X.T + np.eye(n), y) / n
        values.append(negative_log_likelihood(X, y, ratio * best, best))
    assert min(values) - 0.01 <= found <= min(values) + 0.3  # a difference of 4 is significant
    assert record["intercept_variance"] == record["tau"]
    assert np.array_equal(state.variances, np.full(d, record["tau"]))
    assert np.array_equal(state.covariance, record["tau"] * np.eye(d))


def test_the_start_of_inputs_that_are_zero_is_finite():
    for y in (np.ones(4), np.array([1.0, -2.0, 0.0, 1.0])):
        state = new_state(2, True, False, None)
        R, z, _, rest = prior.reduce_task(np.zeros((4, 2)), y)
        bayes.start(state, R, z, rest)
        record = state.records[0]
        assert record["noise"] == pytest.approx(np.mean(y**2))
        assert 0 < record["tau"] < np.inf


@pytest.mark.parametrize("kind", ["learned", "diagonal", "isotropic", "mixed"])
def test_the_prior_in_use_is_a_mixture(kind):
    rng = np.random.default_rng(0)
    state = random_state(rng, 4, intercept=True)
    shares = {"learned": (1, 0, 0), "diagonal": (0, 1, 0), "isotropic": (0, 0, 1)}
    record = state.records[0]
    parts = shares.get(kind, (0.5, 0.2, 0.4))
    record["share_learned"], record["share_diagonal"], record["share_isotropic"] = parts
    isotropic = np.append(0.4 / state.squares[:-1], 0.8)
    expected = parts[0] * state.covariance
    expected += np.diag(parts[1] * state.variances + parts[2] * isotropic)
    assert relative(prior.prior_covariance(state), expected) < 1e-14


def test_candidates_are_weighed_by_their_errors():
    rng = np.random.default_rng(0)
    state, kappas = random_state(rng, 4), 2.0 ** np.arange(-3, 3.5, 0.5)
    state.records["n_tasks"] = 7
    state.table[:] = rng.uniform(0.9, 1.1, size=state.table.shape)
    state.table[:, :, 1] *= 0.5
    state.table[0, 0, 1] = -1.2  # a mean that points the wrong way
    prior.choose(state)
    record, weights = state.records[0], np.empty((4, 13))
    yy, ym, mm, *scores = np.moveaxis(state.table, 2, 0)
    f = np.clip((ym + scores[3]) / ((mm + scores[4]) * (1 + 1 / 7)), 0, 1)
    errors = yy - 2 * f * ym + f**2 * mm
    for c in range(4):
        for j in range(13):
            penalty = (1 + 4 * np.log2(kappas[j]) ** 2 / 50) * (1 + 0.2 * 4 / 50 * (c == 2))
            weights[c, j] = (errors[c, j] * penalty) ** (-0.15 * 50)
    weights /= weights.sum()
    assert relative(state.weights, weights) < 1e-12
    assert f[0, 0] == 0.0
    assert record["mean_share"] == pytest.approx(np.sum(weights * f))
    assert record["error"] == pytest.approx(np.sum(weights * errors))
    inflations = scores[0] - 2 * f * scores[1] + f**2 * scores[2]
    assert record["inflation"] == pytest.approx(np.sum(weights * inflations))
    kappa = np.exp(np.sum(weights * np.log(kappas)))
    assert record["kappa"] == pytest.approx(kappa)
    # z-scores scale D as far as errors were those of weights; without samples, residuals do.
    noise_share = np.sum(weights * scores[5])
    assert record["weight_inflation"] == pytest.approx(record["inflation"] ** (1 - noise_share))
    residual = np.sum(weights * (scores[6] - 2 * f * scores[7] + f**2 * scores[8]))
    explained = residual - record["inflation"] * record["noise"] / kappa
    variance = np.sum(weights * kappas * scores[9]) / kappa
    expected = max(explained, 1e-3 * residual) / variance
    assert record["prior_inflation"] == pytest.approx(expected)
    # D / noise in use is the mean of the candidates' C kappa / noise.
    D = sum(
        np.sum(weights[c] * kappas) * C
        for c, C in enumerate(candidate_covariances(state, intercept=False))
    )
    assert relative(prior.prior_covariance(state), D / kappa) < 1e-12


def units_after(tasks, fit_mean=True, fit_intercept=True):
    state = new_state(np.shape(tasks[0][0])[1], fit_mean, fit_intercept, None)
    for X, y in tasks:
        assert prior.set_units(state, np.array(X, dtype=float), np.array(y, dtype=float))
    record = state.records[0]
    return state.origin, state.scale, float(record["y_origin"]), float(record["y_scale"])


def test_units_are_root_mean_squares():
    X, y = [[3.0, 0.0], [-4.0, 2.0]], [1.0, -7.0]
    origin, scale, y_origin, y_scale = units_after([(X, y)])
    assert origin.tolist() == [0.0, 0.0, 0.0]
    assert scale == pytest.approx([np.sqrt(12.5), np.sqrt(2), 1.0])
    assert (y_origin, y_scale) == (0.0, pytest.approx(5.0))
    # Later tasks do not change them.
    again = units_after([(X, y), ([[100.0, 9.0]], [1e6])])
    assert np.array_equal(again[1], scale)
    assert again[2:] == (y_origin, y_scale)


def test_units_have_an_origin_if_the_first_mean_is_three_deviations_away():
    rng = np.random.default_rng(0)
    x = rng.normal(size=25)
    x = (x - x.mean()) / x.std(ddof=1)
    y = np.append(x[1:], x[0])
    for mean, shifts in ((2.97, False), (3.03, True), (-3.03, True)):
        X = (x + mean)[:, None]
        origin, scale, y_origin, y_scale = units_after([(X, y + mean)])
        expected = mean - 9 / mean if shifts else 0.0  # continuous in the mean
        assert (origin[0], y_origin) == pytest.approx((expected, expected))
        assert scale[0] == pytest.approx(np.sqrt(np.mean((X[:, 0] - origin[0]) ** 2)))
        assert y_scale == pytest.approx(np.sqrt(np.mean((y + mean - y_origin) ** 2)))
        without = units_after([(X, y + mean)], fit_intercept=False)
        assert without[0][0] == without[2] == 0.0
        # Without a mean, the level of the targets is one of the weights that are about zero.
        without = units_after([(X, y + mean)], fit_mean=False)
        assert without[0][0] == origin[0]
        assert without[2] == 0.0


def test_a_first_row_is_the_origin_of_the_next_ones():
    row = ([[5.0, -3.0]], [7.0])
    origin, scale, y_origin, y_scale = units_after([row])
    assert origin.tolist() == [5.0, -3.0, 0.0]
    assert scale.tolist() == [0.0, 0.0, 1.0]
    assert (y_origin, y_scale) == (7.0, 0.0)
    state = new_state(2, True, True, None)
    assert bayes.learn(state, *map(np.array, row)) == 0.0
    assert prior.set_units(state, np.array([[6.0, -3.0]]), np.array([4.0]))
    assert state.origin.tolist() == [5.0, -3.0, 0.0]
    assert state.scale.tolist() == [1.0, 0.0, 1.0]
    assert (state.records[0]["y_origin"], state.records[0]["y_scale"]) == (7.0, 3.0)


def test_a_constant_feature_has_a_unit_once_it_varies():
    first = ([[2.0, 1.0], [2.0, -1.0]], [1.0, -1.0])
    origin, scale, *_ = units_after([first])
    assert origin.tolist() == [2.0, 0.0, 0.0]
    assert scale.tolist() == [0.0, 1.0, 1.0]
    assert prior.design(origin, scale, np.array(first[0])).tolist() == [[0, 1, 1], [0, -1, 1]]
    origin, scale, *_ = units_after([first, ([[5.0, 7.0]], [3.0])])
    assert origin.tolist() == [2.0, 0.0, 0.0]
    assert scale.tolist() == [3.0, 1.0, 1.0]
    # Without an intercept it is a feature like any other.
    assert units_after([first], fit_intercept=False)[1].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("y", [[0.0, 0.0], [3.0, 3.0]])
def test_units_are_set_anew_until_targets_vary(y):
    early, later = ([[1.0], [2.0]], y), ([[100.0], [-100.0]], [5.0, -5.0])
    assert units_after([early])[3] == 0.0
    found, expected = units_after([early, later]), units_after([later])
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    assert found[2:] == expected[2:]


@pytest.mark.parametrize(
    ("X", "y"),
    [
        ([[np.nan, 1.0]], [1.0]),
        ([[np.inf, 1.0]], [1.0]),
        ([[1.0, 1.0]], [-np.inf]),
        ([[1.0, 1.0]], [np.nan]),
        ([[1e31, 1.0]], [1.0]),
        ([[1.0, 1.0]], [-1e31]),
    ],
)
def test_refused_tasks_do_not_change_the_units(X, y):
    state = new_state(2, True, True, None)
    assert prior.set_units(state, np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1.0, -2.0]))
    before = [array.tobytes() for array in state]
    assert not prior.set_units(state, np.array(X), np.array(y))
    assert [array.tobytes() for array in state] == before


def test_sizes_neither_overflow_nor_underflow():
    for unit in (1e-300, 1.0, 1e300):
        values = unit * np.array([3.0, -4.0, 0.0, 5.0])
        assert prior.size(values) == pytest.approx(unit * np.sqrt(12.5))
        found = prior.origin_of(unit * np.array([10.0, 11.0, 12.0]))
        assert found == pytest.approx(unit * (11 - 9 / 11))
    assert prior.size(np.zeros(3)) == 0.0


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_reduced_tasks_have_the_same_products(n, d):
    rng = np.random.default_rng(n + d)
    X, y = random_task(rng, n, d)
    R, z, Q, rest = prior.reduce_task(X, y)
    assert R.shape == (min(n, d), d)
    assert relative(R.T @ R, X.T @ X) < 1e-13
    assert relative(R.T @ z, X.T @ y) < 1e-12
    assert z @ z + rest @ rest == pytest.approx(y @ y)
    if n > d:
        assert relative(Q @ R, X) < 1e-13
        assert relative(Q @ z + rest, y) < 1e-13
    else:
        assert rest.size == 0
