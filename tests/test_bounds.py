"""Bounds against values computed by hand, and against runs that satisfy their assumptions."""

from math import comb, log, sqrt

import numpy as np
import pytest
from naive import literal_objective, random_psd, unit_ball_task

import fastltl as ltl
from fastltl import bounds, reference

ROOT_TWO_PI = 2.5066282746
#: log(2 / DELTA) = 2
DELTA = 2 * float(np.exp(-2))


def test_regret_bounds_computed_by_hand():
    assert bounds.online_regret(lam=1.0, T=32) == pytest.approx(1.0)  # 4 sqrt(2) / sqrt(32)
    assert bounds.online_regret(lam=4.0, T=2) == pytest.approx(1.0)  # 4 sqrt(2) / (4 sqrt(2))
    # (4 / 2 + 0.5) / 10 with radius^2 = 4
    assert bounds.gradient_descent_regret(2.0, 2.0, 1.0, 10) == pytest.approx(0.25)
    # (1/2 + 2) * 6 / (0.5 * 10)
    euclidean = bounds.adaptive_regret(0.5, 36.0, 10, "euclidean", d=3, step_scale=2.0)
    assert euclidean == pytest.approx(3.0)
    # ((1/2 + 5.5) * sqrt(log 4) * 6 + 7 * 1) / (0.5 * 10), with sqrt(log 4) = 1.1774100226
    entropic = bounds.adaptive_regret(0.5, 36.0, 10, "entropic", d=3, largest_norm=1.0)
    assert entropic == pytest.approx((36 * 1.1774100226 + 7) / 5)
    # the last term with 3.5 * 0.1 * sqrt(log 4) * sqrt(9), below 3.5 * 2
    entropic = bounds.entropic_regret(2.0, 6.0, 1.0, T=10, d=3, step_scale=0.1)
    assert entropic == pytest.approx(2 * 1.1774100226 * (10.275 * 6 + 3.5 * 0.1 * 3) / 10)
    # T = 1: no last term
    assert bounds.adaptive_regret(1.0, 4.0, 1, "entropic", d=1) == pytest.approx(12 * sqrt(log(2)))


def test_risk_bounds_computed_by_hand():
    # 2 sqrt(2 pi) sqrt(0.04) / sqrt(400) * (1 + 2) / 4
    within = 2 * ROOT_TWO_PI * 0.2 / 20 * 3 / 4
    assert bounds.uniform_generalization(lam=4.0, n=400, input_norm=0.04) == pytest.approx(within)
    # sqrt(2 pi / 400) * 3 * sqrt(0.04 * 0.25)
    general = bounds.general_uniform_generalization(400, 3.0, 0.04, 0.25)
    assert general == pytest.approx(ROOT_TWO_PI / 20 * 3 * 0.1)
    # 2 sqrt(2 pi) / (4 * 10) + sqrt(2 / 200)
    multitask = bounds.multitask_generalization(lam=4.0, T=100, delta=DELTA)
    assert multitask == pytest.approx(ROOT_TWO_PI / 20 + 0.1)
    multitask = bounds.multitask_generalization(4.0, 100, DELTA, objective="regularized")
    assert multitask == pytest.approx(ROOT_TWO_PI / 40 + 0.1)
    general = bounds.general_multitask_generalization(100, DELTA, 3.0, 0.5)
    assert general == pytest.approx(ROOT_TWO_PI * 0.15 + 0.1)
    # 4 sqrt(2) / (4 * 10) + sqrt(8 * 2 / 100)
    future = bounds.online_excess_future_risk(lam=4.0, T=100, delta=DELTA)
    assert future == pytest.approx(0.14142135624 + 0.4)
    assert bounds.excess_future_risk(0.3, 100, DELTA) == pytest.approx(0.7)
    online = bounds.online_excess_risk(lam=4.0, n=400, T=100, delta=DELTA, input_norm=0.04)
    assert online == pytest.approx(2 * within + 0.14142135624 + 0.4)
    excess = bounds.excess_risk(0.3, lam=4.0, n=400, T=100, delta=DELTA, input_norm=0.04)
    assert excess == pytest.approx(2 * within + 0.7)
    # 2 sqrt(2 pi) / (4 * 10) + sqrt(2 * 2 / 100)
    batch = bounds.batch_excess_risk(lam=4.0, n=400, T=100, delta=DELTA, input_norm=0.04)
    assert batch == pytest.approx(2 * within + ROOT_TWO_PI / 20 + 0.2)
    batch = bounds.batch_excess_risk(4.0, 400, 100, DELTA, 0.04, objective="regularized")
    assert batch == pytest.approx(2 * within + ROOT_TWO_PI / 40 + 0.2)


@pytest.mark.parametrize(("objective", "lipschitz"), [("error", 2.0), ("regularized", 1.0)])
def test_sharp_regret_of_each_step(objective, lipschitz):
    lam, T = 0.25, 49
    unit = 1 / (lam * sqrt(T))
    paper = bounds.sharp_online_regret(lam, T, objective)
    assert paper == pytest.approx((3 * sqrt(2) if objective == "error" else 3 / sqrt(2)) * unit)
    best = bounds.sharp_online_regret(lam, T, objective, step=1 / (lam * lipschitz))
    assert best == pytest.approx(2 * lipschitz * unit)
    assert best < paper < bounds.online_regret(lam, T)
    for step in 1 / (lam * lipschitz) * np.array([0.5, 0.9, 1.1, 2]):
        assert bounds.sharp_online_regret(lam, T, objective, step=float(step)) > best
    # the bound from the steps themselves is lower, since the sum of 1 / sqrt(t) is below 2 sqrt(T)
    steps = 1 / (lam * np.sqrt(2 * np.arange(1, T + 1)))
    cost = float(np.sum(steps * lipschitz**2))
    measured = bounds.gradient_descent_regret(1 / lam, float(steps[-1]), cost, T)
    assert 0.9 * paper < measured < paper


def test_adaptive_step_improves_on_the_paper():
    """With Lipschitz constant 2: 4 / (lam sqrt(T)) instead of 4 sqrt(2) / (lam sqrt(T))."""
    adaptive = bounds.adaptive_regret(0.1, 4.0 * 50, 50, "euclidean", d=9)
    assert adaptive == pytest.approx(bounds.online_regret(0.1, 50) / np.sqrt(2))


def test_bounds_decrease_with_tasks_samples_and_lam():
    def all_bounds(lam, n, T, delta):
        both = [{"objective": "error"}, {"objective": "regularized"}]
        regret = [bounds.online_regret(lam, T)]
        regret += [bounds.sharp_online_regret(lam, T, **which) for which in both]
        return np.array(
            [
                *regret,
                bounds.uniform_generalization(lam, n, 0.1),
                *(bounds.multitask_generalization(lam, T, delta, **which) for which in both),
                *(bounds.excess_future_risk(value, T, delta) for value in regret),
                bounds.online_excess_risk(lam, n, T, delta, 0.1),
                *(bounds.batch_excess_risk(lam, n, T, delta, 0.1, **which) for which in both),
            ]
        )

    least = all_bounds(2.0, 40, 30, 0.1)
    assert (least > 0).all()
    changes = {"lam": 1.0, "n": 20, "T": 15, "delta": 0.01}
    larger = [
        all_bounds(**({"lam": 2.0, "n": 40, "T": 30, "delta": 0.1} | {name: value}))
        for name, value in changes.items()
    ]
    assert (np.array(larger) >= least).all()
    assert (np.max(larger, axis=0) > least).all()
    # the risk tends to zero with n and T together, not with one of them
    assert bounds.batch_excess_risk(1.0, 10**16, 10**16, 0.1, 1.0) < 1e-6
    assert bounds.batch_excess_risk(1.0, 10**16, 1, 0.1, 1.0) > 1
    assert bounds.batch_excess_risk(1.0, 1, 10**16, 0.1, 1.0) > 1


def test_tiny_delta():
    """2 / delta would overflow; sqrt((log 2 + 1074 log 2) / 2)."""
    bound = bounds.general_multitask_generalization(1, 5e-324, 0.0, 0.0)
    assert bound == pytest.approx(sqrt(1075 * log(2) / 2))


# --- Constants ------------------------------------------------------------------------------------


def search_tasks(rng, count):
    """Draw tasks with x in the unit ball and y in [-1, 1], many of them extreme, and a D each."""
    for _ in range(count):
        n, d = rng.integers(1, 5, size=2)
        X = rng.normal(size=d) + 10 ** rng.uniform(-3, 1) * rng.normal(size=(n, d))
        X *= rng.choice([1.0, 0.5]) / np.linalg.norm(X, axis=1, keepdims=True)
        y = rng.choice([np.ones(n), rng.choice([-1.0, 1.0], size=n), rng.uniform(-1, 1, size=n)])
        yield random_psd(rng, d, rng.integers(1, d + 1), trace=10 ** rng.uniform(-3, 2)), (X, y)


def test_range_and_lipschitz_constants_of_both_objectives():
    """Values in [0, 1], penalties in [0, 1/4], gradients of norm at most 2 and 1; all attained."""
    rng, values = np.random.default_rng(0), []
    for D, task in search_tasks(rng, 2000):
        error, gradient = literal_objective(D, [task], "error")
        regularized, rank_one = literal_objective(D, [task], "regularized")
        norms = [np.linalg.norm(gradient), np.linalg.norm(rank_one)]
        values.append([error, regularized, regularized - error, *norms])
    least, most = np.min(values, axis=0), np.max(values, axis=0)
    assert (least >= -1e-12).all()
    bound = np.array([1, 1, 0.25, 2, 1])
    assert (most <= bound + 1e-9).all()
    assert (most > 0.95 * bound).all()


def test_kernel_stability_of_both_objectives():
    """|f(X1, y) - f(X2, y)| <= L ||X1 X1' - X2 X2'||_F / n with L = 2 and L = 1, attained."""
    rng, ratios = np.random.default_rng(1), []
    for D, task in search_tasks(rng, 2000):
        X = task[0]
        shift = random_psd(rng, len(D), trace=10 ** rng.uniform(-3, 1))
        # the inputs D^(1/2) x and (D + shift)^(1/2) x
        change = np.linalg.norm(X @ shift @ X.T) / len(X)
        values = [
            [literal_objective(A, [task], objective)[0] for objective in ("error", "regularized")]
            for A in (D, D + shift)
        ]
        ratios.append(np.abs(np.subtract(*values)) / change)
    assert (np.max(ratios, axis=0) <= np.array([2, 1]) * (1 + 1e-6)).all()
    assert (np.max(ratios, axis=0) > 0.95 * np.array([2, 1])).all()


def test_diameter_of_the_representations():
    """sqrt(2) / lam in Frobenius norm, 2 / lam in trace norm; the paper takes 2 / lam for both."""
    rng = np.random.default_rng(2)
    pairs = [
        (random_psd(rng, d, rng.integers(1, d + 1)), random_psd(rng, d, rng.integers(1, d + 1)))
        for d in rng.integers(1, 6, size=1000)
    ]
    assert max(np.linalg.norm(A - B) for A, B in pairs) <= sqrt(2) + 1e-12
    apart = np.diag([1.0, -1.0])
    assert np.linalg.norm(apart) == pytest.approx(sqrt(2))
    assert np.linalg.norm(apart, "nuc") == pytest.approx(2)


# --- Regret ---------------------------------------------------------------------------------------


def play(tasks, T, lam, d, geometry, step_scale, start=None):
    """Run an online learner on the regularized objective; return its regret and gradient norms.

    "adversary": each task lies in the direction in which D is least, with y = 1. "growing": also
    with targets that double up to 1. "random": x in the unit ball, y in [0, 1]. Euclidean steps
    are step_scale / (lam sqrt(t)). The regret is too large by the gap of the best D.
    """
    rng, radius, S = np.random.default_rng(3), 1 / lam, np.zeros((d, d))
    D = np.eye(d) * radius / (d + 1) if start is None else start
    seen, losses, norms = [], [], []
    for t in range(1, T + 1):
        if tasks == "random":
            X, y = unit_ball_task(rng, int(rng.integers(2, 9)), d)
        else:
            X, y = np.eye(d)[[np.argmin(np.diag(D))]], np.ones(1)
            y *= 2.0 ** (t - T) if tasks == "growing" else 1.0
        seen.append((X, y))
        loss, gradient = literal_objective(D, seen[-1:], "regularized")
        losses.append(loss)
        norms.append(np.linalg.norm(gradient, 2))
        S -= gradient
        if geometry == "entropic":
            eta = step_scale * sqrt(log(d + 1) / np.sum(np.square(norms)))
            D = reference.entropic_iterate(S, eta, radius)
        else:
            D = reference.project(D - step_scale * radius / sqrt(t) * gradient, radius)
    best = reference.batch_solution(seen, lam, "regularized")
    value, gradient = literal_objective(best, seen, "regularized")
    return np.mean(losses) - value + reference.gap(best, gradient, radius), np.array(norms)


@pytest.mark.parametrize("T", [1, 2, 20])
@pytest.mark.parametrize("lam", [0.1, 100.0])
@pytest.mark.parametrize("tasks", ["adversary", "growing", "random"])
def test_regret_of_gradient_descent(tasks, lam, T):
    """Play with the paper's step and with the best one, from a corner of the set."""
    start = np.diag([1 / lam, 0, 0])
    for scale in (1 / sqrt(2), 1.0):
        regret, _ = play(tasks, T, lam, 3, "euclidean", scale, start)
        sharp = bounds.sharp_online_regret(lam, T, "regularized", step=scale / lam)
        assert 0 < regret <= sharp < bounds.online_regret(lam, T)


def test_sharp_regret_is_within_a_factor_of_three():
    for T in (1, 2):
        start = np.diag([0.01, 0])
        regret, _ = play("adversary", T, 100.0, 2, "euclidean", 1 / sqrt(2), start)
        assert regret <= bounds.sharp_online_regret(100.0, T, "regularized") <= 3 * regret


@pytest.mark.parametrize("T", [1, 2, 20])
@pytest.mark.parametrize("step_scale", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("tasks", ["adversary", "growing", "random"])
def test_regret_of_the_entropic_geometry(tasks, step_scale, T):
    regret, norms = play(tasks, T, 10.0, 2, "entropic", step_scale)
    norm, largest = np.linalg.norm(norms), norms.max()
    bound = bounds.entropic_regret(0.1, norm, largest, T, d=2, step_scale=step_scale)
    assert 0 < regret <= bound
    assert bound <= 200 * regret
    without_branch = 0.1 * ((1 / step_scale + 2.75 * step_scale) * sqrt(log(3)) * norm) / T
    assert (bound == pytest.approx(without_branch)) == (T == 1)


@pytest.mark.parametrize(
    "rule",
    [
        {"geometry": "euclidean", "step": "theory"},
        {"geometry": "euclidean", "step": "adaptive"},
        {"geometry": "entropic"},
    ],
    ids=lambda rule: rule.get("step", "entropic"),
)
@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_regret_of_the_learner(rule, lam):
    """The regret against the best D in hindsight, with x in the unit ball and y in [0, 1]."""
    rng = np.random.default_rng(0)
    tasks = [unit_ball_task(rng, int(rng.integers(2, 9)), 5) for _ in range(60)]
    learner = ltl.OnlineLTL(lam, objective="regularized", **rule).fit(tasks)
    hindsight = ltl.BatchLTL(lam, objective="regularized").fit(tasks)
    regret = learner.cumulative_loss_ / 60 - (hindsight.objective_ - hindsight.gap_)
    assert 0 < regret <= learner.regret_bound_
    if rule.get("step") == "theory":
        assert learner.regret_bound_ <= bounds.sharp_online_regret(lam, 60, "regularized")
    else:  # gradients of norm at most 1
        worst = bounds.adaptive_regret(lam, 60.0, 60, rule["geometry"], d=5, largest_norm=1.0)
        assert learner.regret_bound_ <= worst


# --- Uniform bounds and excess risk ---------------------------------------------------------------


def coin_probabilities(T):
    """Return the probabilities of 0, ..., T heads."""
    return np.array([comb(T, k) / 2**T for k in range(T + 1)])


def test_both_sides_need_log_of_two_over_delta():
    """Losses 0 or 1 with equal odds: D = 0 and tasks with y = 0 or y = 1.

    The paper's log(1/delta) holds for one side.
    """
    paper_fails = []
    for T in range(1, 31):
        difference, chances = np.arange(T + 1) / T - 0.5, coin_probabilities(T)
        for delta in (0.01, 0.1, 0.3, 0.61, 1.0):
            # with lam = 1e6 the first term of the bound is below 1e-5
            for bound in (
                bounds.general_multitask_generalization(T, delta, 2.0, 0.0),
                bounds.multitask_generalization(1e6, T, delta),
            ):
                assert chances[np.abs(difference) > bound].sum() <= delta
            paper = sqrt(log(1 / delta) / (2 * T)) + 1e-5
            assert chances[difference > paper].sum() <= delta
            paper_fails.append(chances[np.abs(difference) > paper].sum() > delta)
    assert paper_fails[3]  # T = 1, delta = 0.61: the difference is 1/2, the paper's bound 0.497


def test_uniform_bound_of_a_sign_learner():
    """x = 1, y = -1 or 1 with equal odds, absolute loss, A = sign of the mean of y.

    The prediction is sqrt(D) A: its risk is 1, its training error 1 - sqrt(D) |mean of y|.
    """
    for n in (1, 2, 9, 100):
        for D in (0.01, 0.5, 1.0):
            mean = np.abs(2 * np.arange(n + 1) / n - 1)
            difference = sqrt(D) * float(coin_probabilities(n) @ mean)
            bound = bounds.general_uniform_generalization(n, 1.0, 1.0, D)
            assert difference <= bound <= 4 * difference


@pytest.mark.parametrize("T", [5, 50, 500])
def test_uniform_bound_over_tasks(T):
    """Tasks of one sample e_i and f(x) = x'x: f(D^(1/2) x) = D_ii, with ||D||_F <= 1."""
    d, delta, rng = 50, 0.1, np.random.default_rng(4)
    difference = rng.multinomial(T, np.full(d, 1 / d), size=4000) / T - 1 / d
    sides = [np.linalg.norm(np.maximum(side, 0), axis=1) for side in (difference, -difference)]
    bound = bounds.general_multitask_generalization(T, delta, 1.0, 1.0)
    quantile = np.quantile(np.max(sides, axis=0), 1 - delta)
    assert quantile <= bound <= 6 * quantile


@pytest.mark.parametrize("T", [1, 10, 40])
def test_excess_future_risk_of_a_fixed_representation(T):
    """D = diag(r, 0), tasks e_1 or e_2 with equal odds, n = 1 and y = 1: the loss is 1/(1+D_ii)."""
    r, heads = 50.0, np.arange(T + 1) / T

    def least_loss(share):
        a = np.clip((2 + r) * np.sqrt(share) / (np.sqrt(share) + np.sqrt(1 - share)) - 1, 0, r)
        return share / (1 + a) + (1 - share) / (1 + r - a)

    regret = heads / (1 + r) + (1 - heads) - least_loss(heads)
    excess = 0.5 / (1 + r) + 0.5 - least_loss(0.5)
    assert regret.min() >= 0
    assert coin_probabilities(T)[excess > regret].sum() > 0.3  # the regret alone is no bound
    for delta in (0.01, 0.1, 0.5, 1.0):
        bound = np.array([bounds.excess_future_risk(value, T, delta) for value in regret])
        assert coin_probabilities(T)[excess > bound].sum() <= delta


def axis_risks(p, n, lam):
    """Return E, the expected error and regularized loss at D = diag(p, 1/lam - p), exactly.

    Inputs are e_1 or e_2 with equal odds, y = w'x without noise, and a task's w is e_1 or e_2 / 2
    with equal odds. If k of n inputs lie on the axis j of w, then M is n + k D_jj there.
    """
    k = np.arange(n + 1)
    result = np.zeros(3)
    for size, D in ((1.0, p), (0.5, 1 / lam - p)):
        M = n + k * D
        risks = np.array([0.5 * (n / M) ** 2, n * k / M**2, k / M])
        result += 0.5 * size**2 * risks @ coin_probabilities(n)
    return result


@pytest.mark.parametrize("n", [1, 3, 30])
def test_risk_and_training_error(n):
    """|E - error| <= U and E <= regularized + U; the penalty is in [0, 1/4]."""
    for lam in (0.01, 1.0):
        risks = np.array([axis_risks(p, n, lam) for p in np.linspace(0, 1 / lam, 21)])
        risk, error, regularized = risks.T
        U = bounds.uniform_generalization(lam, n, input_norm=0.5)
        assert (np.abs(risk - error) <= U).all()
        assert (risk <= regularized + U).all()
        assert (error <= regularized).all()
        assert (regularized <= error + 0.25).all()


def test_regularized_objective_does_not_minimise_the_risk():
    """For n and T to infinity its minimiser keeps an excess risk, above the bound on E - min E.

    The limits of `axis_risks`: k / n = 1/2, risk and error a^2 / (2 (1 + D/2)^2).
    """
    lam = 0.1
    D = np.stack([np.linspace(0, 10, 10_001), np.linspace(10, 0, 10_001)])
    weights = np.array([[1.0], [0.25]]) / 4
    risk = (weights / (1 + D / 2) ** 2).sum(axis=0)
    regularized = (weights / (1 + D / 2)).sum(axis=0)
    chosen = int(np.argmin(regularized))
    huge = {"lam": lam, "n": 10**18, "T": 10**18, "delta": 0.01, "input_norm": 0.5}
    for bound in (
        bounds.batch_excess_risk(**huge, objective="regularized"),
        bounds.excess_risk(0.0, **huge),
    ):
        assert risk[chosen] - risk.min() > 100 * bound  # no bound on E - min E
        assert risk[chosen] - regularized.min() <= bound  # one on E - min (E + P)
    assert np.allclose(axis_risks(4.0, 500, lam)[1:], [risk[4000], regularized[4000]], rtol=0.01)


# --- Arguments ------------------------------------------------------------------------------------


def test_input_covariance_norm_averages_over_tasks():
    ts = ltl.TaskSet([(np.eye(2), np.ones(2)), (2 * np.eye(2)[:1], np.ones(1))])
    assert bounds.input_covariance_norm(ts) == pytest.approx((0.5 + 4) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 0.0}, "lam must be a positive finite number, got 0.0"),
        ({"T": 0}, "T must be a positive integer, got 0"),
        ({"T": 2.5}, "T must be a positive integer, got 2.5"),
        ({"n": -1}, "n must be a positive integer, got -1"),
        ({"delta": 1.5}, r"delta must be a number in \(0, 1\], got 1.5"),
        ({"delta": 0}, r"delta must be a number in \(0, 1\], got 0"),
        ({"input_norm": -1.0}, "input_norm must be a positive finite number"),
    ],
)
@pytest.mark.parametrize(
    "bound",
    [
        bounds.online_excess_risk,
        bounds.batch_excess_risk,
        lambda **arguments: bounds.excess_risk(0.1, **arguments),
    ],
    ids=["online", "batch", "any regret"],
)
def test_errors_name_the_argument(bound, change, message):
    arguments = {"lam": 1.0, "n": 10, "T": 10, "delta": 0.1, "input_norm": 0.1} | change
    with pytest.raises(ValueError, match=message):
        bound(**arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bounds.excess_future_risk(-0.1, 3, 0.1), "regret must be a non-negative"),
        (lambda: bounds.excess_future_risk(np.nan, 3, 0.1), "regret must be .* got nan"),
        (lambda: bounds.sharp_online_regret(1.0, 3, "loss"), "objective must be .* got 'loss'"),
        (
            lambda: bounds.sharp_online_regret(1.0, 3, step="adaptive"),
            "step must be 'theory' or a positive finite number, got 'adaptive'",
        ),
        (
            lambda: bounds.multitask_generalization(1.0, 3, 0.1, objective=None),
            "objective must be .* got None",
        ),
        (
            lambda: bounds.batch_excess_risk(1.0, 3, 3, 0.1, 0.1, "x"),
            "objective must be .* got 'x'",
        ),
        (
            lambda: bounds.general_uniform_generalization(3, -1.0, 0.1, 1.0),
            "lipschitz must be a non-negative",
        ),
        (
            lambda: bounds.general_multitask_generalization(3, 0.1, -1.0, 1.0),
            "stability must be a non-negative",
        ),
        (
            lambda: bounds.general_multitask_generalization(3, 0.1, 1.0, np.inf),
            "representation_norm must be a non-negative finite number, got inf",
        ),
    ],
)
def test_errors_of_single_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
