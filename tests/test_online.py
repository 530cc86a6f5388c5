"""Compare OnlineLTL with the NumPy reference, and test its documented properties."""

import copy
import pickle
from itertools import product

import numpy as np
import pytest
from naive import EPS, ragged_tasks, random_psd, relative, sphere_task
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

import fastltl as ltl
from fastltl import reference
from fastltl._kernels import online

ADAPTIVE_RULES = [
    {"geometry": "entropic"},
    {"geometry": "entropic", "step_scale": 0.5, "objective": "error"},
    {"geometry": "euclidean", "step": "adaptive"},
    {"geometry": "euclidean", "step": "adaptive", "step_scale": 0.3, "objective": "error"},
]
RULES = [
    *ADAPTIVE_RULES,
    {"geometry": "euclidean", "step": "theory"},
    {"geometry": "euclidean", "step": "theory", "objective": "error"},
    {"geometry": "euclidean", "step": 0.7},
]


def rule_id(rule):
    return "-".join(map(str, rule.values()))


def allowed_error(tasks, lam):
    """Return 1e-10 or, if larger, 30 EPS times a bound on the condition of M for feasible D."""
    condition = 1 + max(np.linalg.norm(X, 2) ** 2 / len(X) for X, _ in tasks) / lam
    return max(1e-10, 30 * EPS * condition)


def assert_equals_reference(tasks, lam, rule):
    learner = ltl.OnlineLTL(lam, **rule)
    losses, total = 0.0, 0.0
    d = tasks[0][0].shape[1]
    iterate = np.eye(d) / (lam * (d + 1 if rule["geometry"] == "entropic" else d))
    allowed = allowed_error(tasks, lam)
    run = reference.online_iterates(tasks, lam, **rule)
    for (X, y), (loss, following) in zip(tasks, run, strict=True):
        losses, total, iterate = losses + loss, total + iterate, following
        learner.partial_fit(X, y)
        assert relative(learner.iterate_, iterate) <= allowed
    assert relative(learner.D_, total / len(tasks)) <= allowed
    assert learner.cumulative_loss_ == pytest.approx(losses, rel=max(1e-9, allowed))
    assert learner.n_tasks_seen_ == len(tasks)
    return learner


@pytest.mark.sample(4)
@pytest.mark.parametrize("lam", [1e-6, 1e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize(
    ("d", "n_tasks", "sizes"),
    [(1, 40, (1, 9)), (3, 60, (1, 5)), (12, 60, (1, 30)), (50, 40, (20, 20)), (120, 8, (1, 300))],
)
def test_online_agrees_with_reference_on_tasks_of_different_sizes(d, n_tasks, sizes, rule, lam):
    assert_equals_reference(ragged_tasks(d, n_tasks, d, sizes), lam, rule)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_online_agrees_with_reference_over_4000_tasks(rule, lam):
    assert_equals_reference(ragged_tasks(7, 4000, 10, (1, 15)), lam, rule)


@pytest.mark.sample(3)
@pytest.mark.compiled
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_online_agrees_with_reference_on_tasks_in_a_subspace(rule):
    """The stored eigenvectors never span the space, so adaptive steps keep updating them."""
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(40, 6)))[0]
    tasks = [
        (X @ basis.T, y)
        for X, y in (sphere_task(rng, int(rng.integers(1, 12)), 6) for _ in range(1500))
    ]
    learner = assert_equals_reference(tasks, 1e-2, rule)
    if rule.get("step", "adaptive") == "adaptive":
        assert learner._run.state.records[0]["rank"] <= 8


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize(
    "kind", ["equal eigenvalues", "scales", "repeated rows", "zero targets first", "one column"]
)
def test_online_agrees_with_reference_on_degenerate_inputs(rule, kind):
    rng = np.random.default_rng(0)
    d = 8
    if kind == "equal eigenvalues":  # from orthogonal inputs and equal targets
        tasks = [(np.eye(d)[[i, (i + 1) % d]], np.ones(2)) for i in range(d)] * 4
    elif kind == "scales":
        tasks = [(X * 10.0 ** -np.arange(d), y) for X, y in ragged_tasks(1, 40, d, (1, 12))]
    elif kind == "repeated rows":  # X is rank-deficient
        tasks = [
            (np.repeat(X, 3, axis=0)[:7], np.repeat(y, 3)[:7])
            for X, y in ragged_tasks(2, 40, d, (3, 4))
        ]
    elif kind == "zero targets first":
        tasks = [(X, 0 * y) for X, y in ragged_tasks(3, 3, d, (1, 9))] + ragged_tasks(
            4, 20, d, (1, 9)
        )
    else:
        tasks = [
            (rng.normal(size=(5, 1)) * np.eye(d)[i % d], rng.normal(size=5)) for i in range(40)
        ]
    assert_equals_reference(tasks, 1e-1, rule)


@pytest.mark.parametrize(
    ("rule", "lam", "d", "kinds"),
    [
        ({"geometry": "euclidean", "step": "theory"}, 1e-2, 50, {"form D", "certified step"}),
        (
            {"geometry": "euclidean", "step": "theory"},
            1.0,
            3,
            {"form D", "certified step", "decompose D", "update eigenvectors"},
        ),
        ({"geometry": "euclidean", "step": "adaptive"}, 1.0, 50, {"update eigenvectors"}),
        ({"geometry": "entropic"}, 1e-2, 3, {"update eigenvectors", "reset drift"}),
    ],
)
def test_online_runs_cover_every_kind_of_step(rule, lam, d, kinds):
    """A rank of -1 says that D is stored instead of its eigenvectors."""
    learner = ltl.OnlineLTL(lam, **rule)
    seen, last_rank, last_drift = set(), 0, 0.0
    for X, y in ragged_tasks(d, 4000 if d <= 10 else 60, d, (1, 20)):
        record = learner.partial_fit(X, y)._run.state.records[0]
        rank = record["rank"]
        if rank == -1:
            seen.add("form D" if last_rank >= 0 else "certified step")
        elif last_rank == -1:
            seen.add("decompose D")
        else:
            seen.add("reset drift" if record["drift"] < last_drift else "update eigenvectors")
        last_rank, last_drift = rank, record["drift"]
    assert seen == kinds


@pytest.mark.compiled
@pytest.mark.parametrize("rule", ADAPTIVE_RULES, ids=rule_id)
def test_stored_eigenvectors_stay_orthonormal(rule):
    """Tasks in a subspace make D singular, so no euclidean step is certified."""
    rng, learner = np.random.default_rng(0), ltl.OnlineLTL(1e-2, **rule)
    basis = np.linalg.qr(rng.normal(size=(8, 5)))[0].T
    drifts = []
    for _ in range(3000):
        X, y = sphere_task(rng, 3, 5)
        run = learner.partial_fit(X @ basis, y)._run
        drifts.append(run.state.records[0]["drift"])
    assert 0 < max(drifts) < 1.01 * online.MOST_DRIFT
    assert (np.diff(drifts) < 0).any()
    V = run.state.vectors[0, : run.state.records[0]["rank"]]
    assert np.abs(V @ V.T - np.eye(len(V))).max() < 1e-13


@pytest.mark.parametrize("scale", [1e-130, 1e-60, 1e-3, 1e3, 1e60, 1e130])
@pytest.mark.parametrize("rule", ADAPTIVE_RULES, ids=rule_id)
def test_adaptive_steps_are_invariant_to_the_units_of_y(rule, scale):
    tasks = ragged_tasks(0, 30, 6, (1, 9))
    plain = ltl.OnlineLTL(0.1, **rule).fit(tasks)
    scaled = ltl.OnlineLTL(0.1, **rule).fit([(X, scale * y) for X, y in tasks])
    assert relative(scaled.D_, plain.D_) < 1e-12
    assert scaled.regret_bound_ == pytest.approx(scale**2 * plain.regret_bound_, rel=1e-10)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-155, 1e-150, 1e-140, 1e70])
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize("lam", [1e-6, 1e3])
def test_extreme_targets_give_finite_iterates_or_an_error(rule, lam, scale):
    """Adaptive steps divide by the norm of the gradients, so they refuse one that underflows."""
    learner = ltl.OnlineLTL(lam, **rule)
    for X, y in ragged_tasks(0, 10, 4, (1, 6)):
        with np.errstate(all="ignore"):  # NumPy warns with the JIT off
            try:
                learner.partial_fit(X, scale * y)
                message = ""
            except ValueError as error:
                message = str(error)
        if message:
            assert scale <= 1e-140
            assert not learner.__sklearn_is_fitted__()
            assert learner.step == "adaptive"
            assert "X and y must not be so large, or so small, for this lam and step" in message
            continue
        assert np.isfinite(learner.iterate_).all()
        assert np.trace(learner.iterate_) <= (1 + 1e-13) / lam
        assert np.isfinite(learner.regret_bound_)


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_iterates_and_their_mean_are_feasible(rule):
    for lam in (1e-6, 1.0, 1e3):
        learner = ltl.OnlineLTL(lam, **rule)
        for X, y in ragged_tasks(0, 40, 9, (1, 20)):
            learner.partial_fit(X, y)
            for D in (learner.iterate_, learner.D_):
                assert np.array_equal(D, D.T)
                assert np.trace(D) <= (1 + 1e-13) / lam
                assert np.linalg.eigvalsh(D)[0] >= -1e-13 / lam


def test_euclidean_theory_steps_equal_the_papers_algorithm_1():
    """Run Algorithm 1 with the paper's formula of the gradient, from a feasible D."""
    from naive import literal_gradient

    lam, tasks = 0.05, ragged_tasks(0, 25, 6, (4, 4))
    D, total = np.eye(6) / (lam * 6), np.zeros((6, 6))
    for t, (X, y) in enumerate(tasks, start=1):
        total += D
        D = reference.project(D - literal_gradient(D, X, y) / (lam * np.sqrt(2 * t)), 1 / lam)
    learner = ltl.OnlineLTL(lam, objective="error", geometry="euclidean", step="theory")
    learner.fit(tasks)
    assert relative(learner.D_, total / 25) < 1e-10
    assert relative(learner.iterate_, D) < 1e-10


def test_first_iterate_and_averaging():
    (X, y), *_ = ragged_tasks(0, 1, 4, (5, 5))
    for geometry, share in (("entropic", 5), ("euclidean", 4)):
        learner = ltl.OnlineLTL(0.5, geometry=geometry).partial_fit(X, y)
        assert np.allclose(learner.D_, np.eye(4) * 2 / share, rtol=1e-15)
        assert not np.allclose(learner.iterate_, learner.D_)
        learner.set_params(averaging="last")
        assert np.array_equal(learner.D_, learner.iterate_)


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_fit_is_bitwise_equal_to_repeated_partial_fit(rule, fit_intercept):
    for d, sizes in ((6, (1, 12)), (70, (60, 80))):
        tasks = ragged_tasks(1, 12, d, sizes)
        one, other = (ltl.OnlineLTL(0.1, fit_intercept=fit_intercept, **rule) for _ in range(2))
        for X, y in tasks:
            one.partial_fit(X, y)
        groups = np.repeat(np.arange(len(tasks)), [len(y) for _, y in tasks])
        rows, targets = np.concatenate([X for X, _ in tasks]), np.concatenate([y for _, y in tasks])
        for arguments in [(tasks,), (ltl.TaskSet(tasks),), (iter(tasks),), (rows, targets, groups)]:
            other.fit(*arguments)
            assert np.array_equal(one.D_, other.D_)
            assert np.array_equal(one.iterate_, other.iterate_)
            assert one.regret_bound_ == other.regret_bound_
            assert one.cumulative_loss_ == other.cumulative_loss_


def test_groups_are_tasks_in_order_of_first_appearance():
    tasks = ragged_tasks(0, 3, 4, (3, 3))
    X, y = np.concatenate([X for X, _ in tasks]), np.concatenate([y for _, y in tasks])
    mixed = [0, 3, 6, 1, 4, 7, 2, 5, 8]
    by_groups = ltl.OnlineLTL().fit(X[mixed], y[mixed], groups=["c", "a", "b"] * 3)
    assert np.array_equal(by_groups.D_, ltl.OnlineLTL().fit(tasks).D_)
    assert ltl.OnlineLTL().fit(X, y).n_tasks_seen_ == 1


def test_reading_and_pickling_do_not_change_later_results():
    tasks = ragged_tasks(0, 30, 7, (1, 9))
    for rule in RULES:
        expected = ltl.OnlineLTL(0.1, **rule).fit(tasks)
        learner = ltl.OnlineLTL(0.1, **rule)
        for X, y in tasks:
            learner.partial_fit(X, y)
            snapshot = learner.D_
            kept = snapshot.copy()
            learner.iterate_[:] = 0
            learner.transform(X)
            learner.adapt(X, y)
            learner = pickle.loads(pickle.dumps(learner))
        assert np.array_equal(expected.D_, learner.D_)
        learner.partial_fit(X, y)
        assert np.array_equal(snapshot, kept)


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_fit_does_not_depend_on_dtype_or_memory_layout(rule):
    rng = np.random.default_rng(0)
    tasks = [
        (rng.integers(-8, 9, size=(n, 5)) / 4, rng.integers(-8, 9, size=n) / 2) for n in (3, 8, 5)
    ]
    expected = ltl.OnlineLTL(0.1, **rule).fit(tasks).D_

    def strided(array):
        wide = np.zeros([2 * size for size in array.shape])
        wide[tuple(slice(None, None, 2) for _ in array.shape)] = array
        return wide[tuple(slice(None, None, 2) for _ in array.shape)]

    def read_only(array):
        array = array.copy()
        array.flags.writeable = False
        return array

    forms = [
        lambda a: a.astype(np.float32),
        lambda a: a.astype(np.float16),
        lambda a: a.astype(">f8"),
        lambda a: a.astype(object),
        lambda a: np.asfortranarray(a),
        lambda a: a[::-1][::-1],
        lambda a: a.tolist(),
        strided,
        read_only,
    ]
    for form in forms:
        learner = ltl.OnlineLTL(0.1, **rule).fit([(form(X), form(y)) for X, y in tasks])
        assert np.array_equal(learner.D_, expected)
    whole = [(np.round(4 * X).astype(np.int16), np.round(2 * y).astype(int)) for X, y in tasks]
    as_floats = [(X.astype(float), y.astype(float)) for X, y in whole]
    first, second = (ltl.OnlineLTL(0.1, **rule).fit(ts).D_ for ts in (whole, as_floats))
    assert np.array_equal(first, second)


def test_inputs_are_not_modified():
    X, y = sphere_task(np.random.default_rng(0), 9, 4)
    X_before, y_before = X.copy(), y.copy()
    for rule, fit_intercept in product(RULES, (False, True)):
        learner = ltl.OnlineLTL(fit_intercept=fit_intercept, **rule).partial_fit(X, y)
        learner.partial_fit(X, y).transform(X)
        learner.adapt(X, y).predict(X)
    assert np.array_equal(X, X_before)
    assert np.array_equal(y, y_before)


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_memory_does_not_grow_with_the_number_of_tasks(rule):
    learner = ltl.OnlineLTL(0.1, **rule)
    sizes = set()
    for X, y in ragged_tasks(0, 300, 5, (2, 9)):
        learner.partial_fit(X, y)
        sizes.add(len(pickle.dumps(learner)))
    # Pickled integers and floats grow by a few bytes with their values; a task would add 100.
    assert max(sizes) - min(sizes) < 64


def regret(tasks, learner, comparators):
    best = min(reference.mean_objective(D, tasks, learner.objective)[0] for D in comparators)
    return learner.cumulative_loss_ / len(tasks) - best


@pytest.mark.sample(3)
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_regret_is_below_its_bound(rule, lam):
    rng = np.random.default_rng(0)
    tasks = ragged_tasks(0, 80, 6, (2, 9))
    learner = ltl.OnlineLTL(lam, **rule).fit(tasks)
    comparators = [
        random_psd(rng, 6, rank=rank, trace=1 / lam) for rank in range(1, 7) for _ in range(5)
    ]
    support = np.zeros((6, 6))
    support[:4, :4] = np.eye(4) / (4 * lam)
    bounds = [ltl.OnlineLTL(lam, **rule).fit(tasks[:t]).regret_bound_ for t in (20, 40, 80)]
    assert regret(tasks, learner, [*comparators, support]) <= learner.regret_bound_
    assert learner.regret_bound_ == bounds[-1]
    assert all(bound > 0 for bound in bounds)


@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_regret_bound_equals_its_formula(rule):
    tasks, lam = ragged_tasks(0, 20, 5, (2, 6)), 0.3
    learner = ltl.OnlineLTL(lam, **rule).fit(tasks)
    entropic = rule["geometry"] == "entropic"
    D, norms = np.eye(5) / (lam * (6 if entropic else 5)), []
    iterates = reference.online_iterates(tasks, lam, **rule)
    for (X, y), (_, following) in zip(tasks, iterates, strict=True):
        gradient = reference.task_gradient(D, X, y, learner.objective)
        norms.append(np.linalg.norm(gradient, 2 if entropic else "fro"))
        D = following
    norms, t = np.array(norms), np.arange(1, 21)
    if entropic:
        c = rule.get("step_scale", 2.0)
        spread = (1 / c + 2.75 * c) * np.sqrt(np.log(6) * np.sum(norms**2))
        expected = (spread + 7 * norms.max()) / lam / 20
    else:
        gammas = {
            "adaptive": rule.get("step_scale", 1.0) / lam / np.sqrt(np.cumsum(norms**2)),
            "theory": 1 / (lam * np.sqrt(2 * t)),
            0.7: 0.7 / np.sqrt(t),
        }[rule["step"]]
        expected = (1 / lam**2 / gammas[-1] + np.sum(gammas * norms**2) / 2) / 20
    assert learner.regret_bound_ == pytest.approx(expected)


def test_training_a_copy_does_not_change_the_original():
    tasks = ragged_tasks(0, 6, 4, (2, 5))
    learner = ltl.OnlineLTL().fit(tasks)
    before = learner.iterate_
    assert copy.copy(learner).partial_fit(*tasks[0]).n_tasks_seen_ == 7
    assert learner.n_tasks_seen_ == 6
    assert np.array_equal(learner.iterate_, before)


def test_zero_targets_do_not_change_the_iterate():
    tasks = [(X, 0 * y) for X, y in ragged_tasks(0, 5, 4, (1, 6))]
    for rule in RULES:
        learner = ltl.OnlineLTL(**rule).fit(tasks)
        assert np.array_equal(learner.D_, learner.iterate_)
        assert learner.cumulative_loss_ == 0
        if rule.get("step", "adaptive") == "adaptive":
            assert learner.regret_bound_ == 0


def test_adapt_equals_ridge_on_transformed_inputs():
    tasks = ragged_tasks(0, 30, 6, (3, 9))
    X, y = sphere_task(np.random.default_rng(9), 12, 6)
    for fit_intercept in (False, True):
        learner = ltl.OnlineLTL(0.1, fit_intercept=fit_intercept).fit(tasks)
        ridge = Ridge(alpha=len(y), fit_intercept=fit_intercept).fit(learner.transform(X), y)
        prediction = ridge.predict(learner.transform(X))
        assert learner.adapt(X, y).predict(X) == pytest.approx(prediction, rel=1e-10)
        assert relative(learner.transform(X) @ learner.transform(X).T, X @ learner.D_ @ X.T) < 1e-12


def test_fit_intercept_centres_each_task():
    tasks = ragged_tasks(0, 20, 5, (1, 8))
    moved = [(X + i, y - 3 * i) for i, (X, y) in enumerate(tasks)]
    centred = [(X - X.mean(axis=0), y - y.mean()) for X, y in tasks]
    expected = ltl.OnlineLTL(0.1).fit(centred).D_
    assert relative(ltl.OnlineLTL(0.1, fit_intercept=True).fit(moved).D_, expected) < 1e-10


def test_attributes_raise_not_fitted_error_before_the_first_task():
    learner = ltl.OnlineLTL()
    for name in ("D_", "iterate_", "n_tasks_seen_", "cumulative_loss_", "regret_bound_"):
        with pytest.raises(NotFittedError, match="has not seen a task yet"):
            getattr(learner, name)
        assert not hasattr(learner, name)
    for method, arguments in (("adapt", ([[1.0]], [1.0])), ("transform", ([[1.0]],))):
        with pytest.raises(NotFittedError):
            getattr(learner, method)(*arguments)
    with pytest.raises(NotFittedError):
        learner.get_feature_names_out()


def test_fit_and_clone_discard_earlier_tasks():
    few, many = ragged_tasks(0, 3, 4, (2, 5)), ragged_tasks(1, 9, 6, (2, 5))
    learner = ltl.OnlineLTL(0.3, geometry="euclidean", step_scale=2.0).fit(many)
    cloned = clone(learner)
    assert cloned.get_params() == learner.get_params()
    assert not hasattr(cloned, "D_")
    assert np.array_equal(learner.fit(few).D_, cloned.fit(few).D_)
    assert learner.n_tasks_seen_ == 3


BAD_TASKS = {
    "NaN in X": (
        [[np.nan, 1.0]],
        [1.0],
        r"X must hold finite numbers only, got NaN at index \(0, 0\)",
    ),
    "infinite X": ([[1.0, -np.inf]], [1.0], r"X .* got -inf at index \(0, 1\)"),
    "NaN in y": (
        [[1.0, 1.0], [0, 0]],
        [1.0, np.nan],
        "y must hold finite numbers only, got NaN at index 1",
    ),
    "wrong width": ([[1.0, 1.0, 1.0]], [1.0], "X has 3 features, but OnlineLTL is expecting 2"),
    "no sample": (np.empty((0, 2)), [], "X has 0 sample"),
    "too few targets": (
        [[1.0, 1.0], [0, 0]],
        [1.0],
        "y must have one value for each of the 2 rows of X, got shape",
    ),
    "no target": ([[1.0, 1.0]], None, "requires y"),
    "1-D X": ([1.0, 1.0], [1.0, 2.0], r"X must be a 2-D array .* got an array of shape \(2,\)"),
    "3-D X": (
        np.ones((1, 2, 2)),
        [1.0],
        r"X must be a 2-D array .* got an array of shape \(1, 2, 2\)",
    ),
    "two targets": ([[1.0, 1.0]], [[1.0, 2.0]], "y must have one value for each of the 1 rows"),
    "text": ([["a", "b"]], [1.0], "X must be an array of real numbers"),
    "complex": (np.ones((1, 2)) * 1j, [1.0], "X must be an array of real numbers"),
    "masked": (
        np.ma.masked_equal([[1.0, 2.0]], 2.0),
        [1.0],
        "X must be an array of real numbers, got a masked array",
    ),
    "masked y": (
        [[1.0, 1.0], [0, 0]],
        np.ma.masked_equal([1.0, 2.0], 2.0),
        "y must be .* got a masked",
    ),
    "too large": ([[1e200, 1e200]], [1.0], r"X and y must not be so large, .* up to 1e\+200 in X"),
    "too large y": ([[1.0, 1.0]], [1e200], r"X and y must not be so large, .* 1e\+200 in y"),
}

NOT_FLOAT_ARRAYS = ("text", "complex", "masked", "masked y", "no target")


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of overflow with the JIT off
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
@pytest.mark.parametrize(
    ("bad", "as_arrays"),
    [
        (bad, as_arrays)
        for bad in BAD_TASKS
        for as_arrays in (False, True)[: 1 + (bad not in NOT_FLOAT_ARRAYS)]
    ],
)
def test_partial_fit_rejects_a_bad_task_and_keeps_the_state(rule, bad, as_arrays):
    X, y, message = BAD_TASKS[bad]
    if as_arrays:  # float arrays take the fast path of validation
        X, y = np.array(X, dtype=float), np.array(y, dtype=float)
    tasks = ragged_tasks(0, 12, 2, (1, 4))
    expected = ltl.OnlineLTL(0.1, **rule).fit(tasks)
    learner = ltl.OnlineLTL(0.1, **rule)
    for i, task in enumerate(tasks):
        before = pickle.dumps(learner)
        if i > 0 or bad not in ("wrong width",):
            with pytest.raises((ValueError, TypeError), match=message):
                learner.partial_fit(X, y)
            assert pickle.dumps(learner) == before
        learner.partial_fit(*task)
    assert np.array_equal(learner.iterate_, expected.iterate_)
    assert np.array_equal(learner.D_, expected.D_)
    assert learner.regret_bound_ == expected.regret_bound_


def test_fit_names_the_bad_task_and_keeps_the_earlier_fit():
    tasks = ragged_tasks(0, 5, 2, (2, 4))
    learner = ltl.OnlineLTL().fit(tasks)
    before = learner.D_
    for bad, message in [
        (([[np.nan, 1.0]], [1.0]), "task 3: X must hold finite numbers"),
        (([[1.0]], [1.0]), "task 3: X has 1 features"),
        (([[1.0, 1.0]],), r"task 3 must be a pair \(X, y\)"),
        (7, r"task 3 must be a pair \(X, y\), got int"),
    ]:
        with pytest.raises(ValueError, match=message):
            learner.fit([*tasks[:3], bad, *tasks[3:]])
        assert np.array_equal(learner.D_, before)
    for empty in ([], iter(())):
        with pytest.raises(ValueError, match="at least one task"):
            learner.fit(empty)
    with pytest.raises(ValueError, match="requires y"):
        learner.fit(np.ones((3, 2)))
    assert np.array_equal(learner.D_, before)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lam": 0}, "lam must be a positive finite number, got 0"),
        ({"lam": -1.0}, "lam must be"),
        ({"lam": np.nan}, "lam must be"),
        ({"lam": 1e-320}, "lam must be large enough for 1 / lam to be finite"),
        ({"lam": np.inf}, "lam must be"),
        ({"lam": "1"}, "lam must be a positive finite number, got '1'"),
        (
            {"geometry": "hyperbolic"},
            "geometry must be one of 'euclidean', 'entropic', got 'hyperbolic'",
        ),
        ({"objective": "loss"}, "objective must be one of 'regularized', 'error', got 'loss'"),
        ({"averaging": "none"}, "averaging must be one of 'uniform', 'last', got 'none'"),
        ({"step": "theory"}, "step must be 'adaptive' with geometry='entropic', got 'theory'"),
        ({"step": 0.5}, "step must be 'adaptive'"),
        (
            {"geometry": "euclidean", "step": "fast"},
            "step must be 'adaptive', 'theory' or a positive",
        ),
        (
            {"geometry": "euclidean", "step": np.array([1.0, 2.0])},
            "step must be 'adaptive', 'theory'",
        ),
        ({"geometry": "euclidean", "step": -1}, "step must be 'adaptive', 'theory' or a positive"),
        ({"geometry": "euclidean", "step": "theory", "step_scale": 1.0}, "step_scale goes with"),
        ({"step_scale": 0.0}, "step_scale must be a positive finite number"),
        ({"fit_intercept": "no"}, "fit_intercept must be True or False, got 'no'"),
    ],
)
def test_bad_parameter_raises_value_error(parameters, message):
    X, y = np.ones((2, 2)), np.ones(2)
    for call in ("fit", "partial_fit"):
        learner = ltl.OnlineLTL(**parameters)
        with pytest.raises(ValueError, match=message) as error:
            getattr(learner, call)(X, y)
        assert "task 0" not in str(error.value)
        assert not hasattr(learner, "n_features_in_")
    with pytest.raises(ValueError, match=message) as error:
        learner.fit([(X, y)])
    assert "task 0" not in str(error.value)


def test_partial_fit_rejects_changed_parameters():
    X, y = np.eye(2), np.ones(2)
    learner = ltl.OnlineLTL(0.5).partial_fit(X, y)
    before = learner.iterate_
    learner.set_params(lam=0.1)
    with pytest.raises(
        ValueError,
        match=r"must stay as they were .* got lam=0.1 after lam=0.5; use fit to start over",
    ):
        learner.partial_fit(X, y)
    assert np.array_equal(learner.iterate_, before)
    learner.set_params(lam=0.5, objective="error")
    with pytest.raises(ValueError, match="got objective='error' after objective='regularized'"):
        learner.partial_fit(X, y)
    assert np.trace(learner.set_params(lam=0.1).fit(X, y).iterate_) > 5
    learner.set_params(averaging="last").partial_fit(X, y)
    with pytest.raises(ValueError, match="averaging must be one of"):
        _ = learner.set_params(averaging="best").D_
