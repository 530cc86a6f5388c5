"""BayesLTL: its plain twin, units, its interface, statistics, and states of checkpoints."""

import copy
import itertools
import pickle
import threading
from unittest import mock

import numpy as np
import pytest
from conftest import JIT_IS_OFF
from naive import EPS
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_limits

import fastltl as ltl
from fastltl import _bayes_run, tasks as task_sets
from fastltl._bayes_run import check_state, new_state
from fastltl._kernels import bayes
from fastltl._kernels.prior import RECORD, BayesState
from fastltl.reference import LearnedPrior

#: With the JIT off, runs are shorter.
FEWER = 10 if JIT_IS_OFF else 1

SETTINGS = [
    {},
    {"fit_mean": False},
    {"fit_intercept": False},
    {"half_life": 20.0},
    {"fit_mean": False, "fit_intercept": False, "half_life": 5.0},
]
SETTING_IDS = ["-".join(f"{name}-{value}" for name, value in one.items()) or "" for one in SETTINGS]
every_setting = pytest.mark.parametrize("settings", SETTINGS, ids=SETTING_IDS)


def normal_tasks(seed, n_tasks, sizes, mean, covariance, noise=0.5):
    """Draw tasks with weights from N(mean, covariance), and rows from N(0, I)."""
    rng = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    tasks = []
    for _ in range(n_tasks):
        X = rng.normal(size=(int(rng.integers(*sizes, endpoint=True)), len(mean)))
        w = mean + root @ rng.normal(size=len(mean))
        tasks.append((X, X @ w + noise * rng.normal(size=len(X))))
    return tasks


def tasks_of_rank(seed, n_tasks, sizes, d, rank=None, noise=0.5):
    """Draw tasks with a random mean and covariance."""
    rng = np.random.default_rng([seed, 1])
    A = rng.normal(size=(d, rank or d))
    return normal_tasks(seed, n_tasks, sizes, rng.normal(size=d), A @ A.T, noise)


def difference(ours, theirs):
    """Return the largest difference, relative to the largest entry."""
    return np.abs(np.asarray(ours) - theirs).max() / (np.abs(theirs).max() or 1.0)


def state_bytes(learner):
    return [array.tobytes() for array in learner._run.state]


def same_state(one, other):
    return state_bytes(one) == state_bytes(other)


def squared_errors(learner, tasks, n_given):
    """Return the mean squared error on the rows of each task after the first n_given."""
    return [
        np.mean((y[n_given:] - learner.adapt(X[:n_given], y[:n_given]).predict(X[n_given:])) ** 2)
        for X, y in tasks
    ]


# ---- the plain twin


def assert_equals_twin(learner, twin, tolerance=1e-8):
    assert difference(learner.mean_, twin.mean) <= tolerance
    assert difference(learner.covariance_, twin.D) <= tolerance
    assert learner.noise_ == pytest.approx(twin.noise, rel=tolerance)
    assert learner.loo_error_ == pytest.approx(twin.error * twin.y_scale**2, rel=tolerance)
    assert difference(learner.weights_, twin.weights) <= tolerance


def run_beside_twin(tasks, settings, every=1):
    learner, twin, largest = ltl.BayesLTL(**settings), LearnedPrior(**settings), 0.0
    for i, (X, y) in enumerate(tasks):
        learner.partial_fit(X, y)
        error = twin.learn(X, y)
        largest = max(largest, error)
        assert abs(learner._run.latest_error - error) <= 1e-8 * largest
        if twin.y_scale > 0 and (i % every == 0 or i == len(tasks) - 1):
            assert_equals_twin(learner, twin)
    assert learner.n_tasks_seen_ == len(tasks)
    return learner, twin


def one_hot_tasks(seed, n_tasks):
    """All categories are columns, so with an intercept the columns depend on each other."""
    rng = np.random.default_rng(seed)
    for _ in range(n_tasks):
        X = np.eye(3)[rng.integers(3, size=int(rng.integers(1, 12)))]
        X = np.column_stack([X, rng.normal(size=len(X))])
        yield X, X @ np.append(1 + rng.normal(size=3), 2.0) + 0.3 * rng.normal(size=len(X))


def twin_cases():
    rng = np.random.default_rng(0)
    mixing = 10.0 ** -np.linspace(0, 5, 6)[:, None] * np.linalg.qr(rng.normal(size=(6, 6)))[0]
    return {
        "ragged": lambda: tasks_of_rank(0, 300, (1, 12), 5),
        "one row": lambda: tasks_of_rank(1, 300, (1, 1), 4),
        "more rows than features": lambda: tasks_of_rank(2, 200, (10, 30), 4),
        "far more rows than features": lambda: tasks_of_rank(3, 40, (600, 600), 3),
        "one feature": lambda: tasks_of_rank(4, 300, (1, 6), 1),
        "low rank": lambda: tasks_of_rank(5, 200, (10, 10), 20, 3),
        "a column twice": lambda: [
            (X[:, [0, 1, 2, 0]], y) for X, y in tasks_of_rank(6, 200, (1, 9), 3)
        ],
        "one-hot": lambda: list(one_hot_tasks(7, 200)),
        "a constant column": lambda: [
            (np.column_stack([X, np.full(len(X), 3.0)]), y)
            for X, y in tasks_of_rank(8, 200, (1, 9), 3)
        ],
        "a column that is zero at first": lambda: [
            (X * [1, i >= 20, 1, 1], y) for i, (X, y) in enumerate(tasks_of_rank(9, 200, (1, 9), 4))
        ],
        "ill-conditioned": lambda: [(X @ mixing, y) for X, y in tasks_of_rank(10, 200, (1, 12), 6)],
        "columns of other sizes": lambda: [
            (X * 10.0 ** np.linspace(-8, 8, 5), y) for X, y in tasks_of_rank(11, 200, (1, 12), 5)
        ],
        "hardly any noise": lambda: tasks_of_rank(12, 200, (1, 12), 5, noise=1e-9),
        "a high level": lambda: [
            (X + 30.0, y + 100.0) for X, y in tasks_of_rank(13, 200, (2, 9), 3)
        ],
        "targets that vary late": lambda: [
            (X, y * (i >= 5)) for i, (X, y) in enumerate(tasks_of_rank(14, 100, (1, 9), 3))
        ],
    }


@pytest.mark.sample(4)
@every_setting
@pytest.mark.parametrize("case", twin_cases())
def test_runs_agree_with_the_twin(case, settings):
    tasks = twin_cases()[case]()
    run_beside_twin(tasks[: len(tasks) // FEWER + 10], settings, every=10)


@pytest.mark.slow
def test_runs_agree_with_the_twin_over_10000_tasks():
    run_beside_twin(tasks_of_rank(0, 10_000, (10, 10), 20), {}, every=1000)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_fit_agrees_with_the_twin_over_10000_ragged_tasks():
    tasks, twin = tasks_of_rank(1, 10_000, (1, 30), 12), LearnedPrior()
    for X, y in tasks:
        twin.learn(X, y)
    assert_equals_twin(ltl.BayesLTL().fit(ltl.TaskSet(tasks)), twin, 1e-9)


@pytest.mark.compiled
def test_runs_agree_with_the_twin_for_many_features():
    run_beside_twin(tasks_of_rank(0, 60, (5, 130), 100, 5), {}, every=10)


def test_second_visits_agree_with_the_twin():
    tasks = tasks_of_rank(0, 30, (1, 12), 5)
    learner, twin = run_beside_twin(tasks, {}, every=10)
    for _ in range(3):
        for X, y in tasks:
            learner._run.learn_again(X, y, 1 - 1 / 30)
            twin.learn_again(X, y, 1 - 1 / 30)
        assert_equals_twin(learner, twin)
        assert difference(learner._run.state.covariance, twin.S) < 1e-8
    record = learner._run.state.records[0]
    assert record["n_tasks"] == 30
    assert record["t"] == pytest.approx(30)
    assert record["n_rows"] == pytest.approx(sum(len(y) for _, y in tasks), rel=0.2)


def twin_of_several_passes(tasks, n_passes, **settings):
    """Return the twin after several passes, its candidates scored by twins of other tasks."""
    main = LearnedPrior(**settings)
    for X, y in tasks:
        main.learn(X, y)
    folds = []
    for k in range(4):
        fold = LearnedPrior(**settings)
        fold.origin, fold.scale = main.origin.copy(), main.scale.copy()
        fold.y_origin, fold.y_scale = main.y_origin, main.y_scale
        others = [task for i, task in enumerate(tasks) if i % 4 != k]
        for X, y in others:
            fold.learn(X, y)
        folds.append((fold, others))
    for n_done in range(n_passes):
        if n_done > 0:
            for twin, others in ((main, tasks), *folds):
                for X, y in others:
                    twin.learn_again(X, y, 1 - 1 / len(others))
        tables = []
        for i, (X, y) in enumerate(tasks):
            fold = folds[i % 4][0]
            X, y = fold._design(X), (y - fold.y_origin) / fold.y_scale
            tables.append(fold._leave_one_out(*fold._reduce(X, y)))
        for twin in (main, *(fold for fold, _ in folds)):
            twin.table = np.mean(tables, axis=0)
            twin._choose()
    return main


@pytest.mark.parametrize("settings", SETTINGS[:3], ids=SETTING_IDS[:3])
def test_several_passes_agree_with_the_twin(settings):
    tasks = tasks_of_rank(0, 30, (1, 12), 5)
    learner = ltl.BayesLTL(n_passes=3, **settings).fit(tasks)
    assert learner.n_tasks_seen_ == 30
    assert_equals_twin(learner, twin_of_several_passes(tasks, 3, **settings))


def test_few_or_constant_tasks_take_several_passes():
    tasks = tasks_of_rank(0, 3, (2, 5), 3)
    X, y = tasks[0]
    for few in (
        tasks[:1],
        tasks[:2],
        tasks,
        [(X, 0 * y)] * 5,
        [(X, 0 * y), *tasks],
        [*tasks, (X, 0 * y)],
    ):
        learner = ltl.BayesLTL(n_passes=3).fit(few)
        assert learner.n_tasks_seen_ == len(few)
        assert np.isfinite(learner.covariance_).all()
    one, other = (ltl.BayesLTL(n_passes=k).fit(tasks[:1]) for k in (1, 3))
    assert np.array_equal(one.covariance_, other.covariance_)


# ---- units


UNIT_TASKS = tasks_of_rank(0, 60, (1, 9), 4)
NEW_TASKS = tasks_of_rank(0, 80, (9, 9), 4)[-20:]


def predictions(tasks, new, **settings):
    """Return predictions and standard deviations for new tasks, of 4 rows each, and of none."""
    learner, found = ltl.BayesLTL(**settings).fit(tasks), []
    for X, y in new:
        found.append(learner.adapt(X[:4], y[:4]).predict(X[4:], return_std=True))
        found.append(learner.predict(X, return_std=True))
    return np.concatenate(found, axis=1)


@every_setting
@pytest.mark.parametrize("y_factor", [2.0**-30, 1.0, 2.0**40])
def test_powers_of_two_change_no_bit(settings, y_factor):
    factors = 2.0 ** np.array([-40, 0, 3, 35])
    scaled, new = (
        [(X * factors, y * y_factor) for X, y in tasks] for tasks in (UNIT_TASKS, NEW_TASKS)
    )
    expected = predictions(UNIT_TASKS, NEW_TASKS, **settings)
    assert np.array_equal(predictions(scaled, new, **settings), y_factor * expected)


@every_setting
@pytest.mark.parametrize("y_factor", [1e-12, 7.0, -3e11])
def test_units_do_not_matter(settings, y_factor):
    factors = np.array([1e-12, 1e12, -0.3, 1e5])
    scaled, new = (
        [(X * factors, y * y_factor) for X, y in tasks] for tasks in (UNIT_TASKS, NEW_TASKS)
    )
    means, deviations = predictions(UNIT_TASKS, NEW_TASKS, **settings)
    found, found_deviations = predictions(scaled, new, **settings)
    assert difference(found / y_factor, means) < 1e-9
    assert difference(found_deviations / abs(y_factor), deviations) < 1e-9


def test_weights_are_in_units_of_the_data():
    factors = np.array([1e-6, 1.0, 5.0, 1e8])
    plain = ltl.BayesLTL().fit(UNIT_TASKS)
    scaled = ltl.BayesLTL().fit([(X * factors, 10 * y) for X, y in UNIT_TASKS])
    T = 10 / np.append(factors, 1.0)
    assert difference(scaled.mean_ / T, plain.mean_) < 1e-9
    assert difference(scaled.covariance_ / np.outer(T, T), plain.covariance_) < 1e-9
    assert scaled.noise_ == pytest.approx(100 * plain.noise_, rel=1e-9)
    assert scaled.loo_error_ == pytest.approx(100 * plain.loo_error_, rel=1e-9)


@pytest.mark.parametrize("shifted", ["y", "X", "both"])
def test_levels_hardly_matter(shifted):
    tasks = tasks_of_rank(3, 160, (12, 12), 4)
    x_shift = 1e3 * np.array([1.0, -1.0, 0.0, 1.0]) * (shifted != "y")
    y_shift = 1e4 * (shifted != "X")
    moved = [(X + x_shift, y + y_shift) for X, y in tasks]
    plain, found = (
        np.mean(squared_errors(ltl.BayesLTL().fit(ts[:60]), ts[60:], 6)) for ts in (tasks, moved)
    )
    assert found < 1.1 * plain


@pytest.mark.parametrize("first", ["y zero", "y constant", "a zero column", "equal rows", "zero"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_first_task_that_says_little_does_little_harm(first, fit_intercept):
    tasks = tasks_of_rank(1, 260, (12, 12), 4)
    X, y = (array.copy() for array in tasks[0])
    if first == "y zero":
        y[:] = 0
    elif first == "y constant":
        y[:] = 5
    elif first == "a zero column":
        X[:, 2] = 0
    elif first == "equal rows":
        X[:] = X[0]
    else:
        X[:], y[:] = 0, 0
    learner = ltl.BayesLTL(fit_intercept=fit_intercept)
    usual, found = (
        np.mean(squared_errors(clone(learner).fit([start, *tasks[1:100]]), tasks[100:], 6))
        for start in (tasks[0], (X, y))
    )
    assert found == pytest.approx(usual, rel=0.1)


def test_targets_that_do_not_vary_leave_the_prior_empty():
    X, y = UNIT_TASKS[3]
    learner = ltl.BayesLTL().fit([(X, 0 * y + 5.0)] * 3)
    assert learner.n_tasks_seen_ == 3
    assert learner.mean_.tolist() == [0.0] * 4 + [5.0 * (len(y) > 1)]
    assert not learner.covariance_.any()
    assert learner.noise_ == learner.loo_error_ == 0.0
    prediction, deviation = learner.adapt(X, y).predict(X, return_std=True)
    assert np.array_equal(prediction, learner.predict(X))
    assert not deviation.any()
    after = learner.fit([(X, 0 * y), *UNIT_TASKS])
    assert difference(after.covariance_, ltl.BayesLTL().fit(UNIT_TASKS).covariance_) < 0.05


def test_the_order_of_columns_hardly_matters():
    """Variances take two sweeps of coordinate descent per task, in the order of the columns."""
    order = [3, 1, 0, 2]
    means, deviations = predictions(UNIT_TASKS, NEW_TASKS)
    found, found_deviations = predictions(
        *([(X[:, order], y) for X, y in tasks] for tasks in (UNIT_TASKS, NEW_TASKS))
    )
    assert difference(found, means) < 0.02
    assert difference(found_deviations, deviations) < 0.05


@pytest.mark.parametrize("outlier", [1e6, 1e10, 1e20, 1e29])
def test_an_enormous_target_keeps_the_state_finite(outlier):
    """The ridge of the mean gets tiny, and with an intercept all categories are dependent."""
    learner = ltl.BayesLTL()
    for i, (X, y) in enumerate(one_hot_tasks(0, 40)):
        if i == 20:
            y[0] = outlier
        learner.partial_fit(X, y)
        assert np.isfinite(learner._run.state.mean).all()
        assert np.isfinite(learner.covariance_).all()


@pytest.mark.parametrize("kind", ["inputs", "targets", "both", "rows"])
def test_tasks_of_wild_sizes_are_refused_or_keep_the_state_valid(kind):
    n_refused, rng = 0, np.random.default_rng(0)
    for run in range(60 // FEWER):
        settings = SETTINGS[run % len(SETTINGS)]
        d = int(rng.integers(1, 6))
        learner = ltl.BayesLTL(**settings)
        for _ in range(12):
            X = rng.normal(size=(int(rng.integers(1, 12)), d))
            y = X @ rng.normal(size=d) + 0.1 * rng.normal(size=len(X))
            if kind in ("inputs", "both"):
                X *= 10.0 ** rng.uniform(-40, 29, size=d) * (rng.random(d) < 0.8)
            if kind in ("targets", "both"):
                y *= 10.0 ** rng.uniform(-40, 29)
            if kind == "rows":
                X[0, 0] *= 10.0 ** rng.uniform(0, 29)
                y[0] *= 10.0 ** rng.uniform(0, 29)
            before = pickle.dumps(learner)
            try:
                learner.partial_fit(X, y)
            except ValueError:
                assert pickle.dumps(learner) == before
                n_refused += 1
                continue
            assert_valid(learner)
    assert n_refused < 600 // FEWER


# ---- the interface


@every_setting
def test_fit_is_bitwise_equal_to_repeated_partial_fit(settings):
    for d, sizes in ((6, (1, 12)), (70, (60, 80))):
        tasks = tasks_of_rank(1, 12, sizes, d)
        one, other = (ltl.BayesLTL(**settings) for _ in range(2))
        for X, y in tasks:
            one.partial_fit(X, y)
        groups = np.repeat(np.arange(len(tasks)), [len(y) for _, y in tasks])
        rows, targets = np.concatenate([X for X, _ in tasks]), np.concatenate([y for _, y in tasks])
        for arguments in [(tasks,), (ltl.TaskSet(tasks),), (iter(tasks),), (rows, targets, groups)]:
            other.fit(*arguments)
            assert same_state(one, other)


@pytest.mark.parametrize("numbers", [1, 40, 10_000])
def test_blocks_of_tasks_do_not_matter(monkeypatch, numbers):
    tasks = tasks_of_rank(2, 300 // FEWER, (1, 9), 4)
    one, other = ltl.BayesLTL(), ltl.BayesLTL()
    for X, y in tasks:
        one.partial_fit(X, y)
    monkeypatch.setattr(task_sets, "BLOCK_NUMBERS", numbers)
    blocks = list(ltl.TaskSet(tasks).blocks())
    assert (len(blocks) > 1) == (numbers < 10_000)
    assert max(X.size for X, _, _ in blocks) <= numbers + 9 * 4
    assert sum(len(offsets) - 1 for _, _, offsets in blocks) == len(tasks)
    other.fit(ltl.TaskSet(tasks))
    assert same_state(one, other)
    assert one._run.latest_error == other._run.latest_error


def test_a_refused_task_of_a_set_is_named(monkeypatch):
    tasks = tasks_of_rank(0, 12, (3, 5), 3)
    tasks[7] = (tasks[7][0] * 1e200, tasks[7][1])
    monkeypatch.setattr(task_sets, "BLOCK_NUMBERS", 60)
    learner = ltl.BayesLTL().fit(tasks[:5])
    before = state_bytes(learner)
    with pytest.raises(ValueError, match="task 7: X and y must not be so large"):
        learner.fit(ltl.TaskSet(tasks))
    assert state_bytes(learner) == before


def test_sets_of_another_width_change_nothing():
    learner = ltl.BayesLTL().fit(tasks_of_rank(0, 5, (3, 5), 3))
    before = state_bytes(learner)
    for width in (2, 4):  # as shards of a cluster may have when they are loaded again
        tasks = ltl.TaskSet(tasks_of_rank(1, 4, (3, 5), width))
        with pytest.raises(ValueError, match=f"must have 3 features, got {width}"):
            learner._learn_tasks(tasks, "task {}".format)
    assert state_bytes(learner) == before


def test_reading_a_prior_changes_no_later_one():
    tasks = tasks_of_rank(0, 200, (2, 6), 3)
    read, unread = ltl.BayesLTL(), ltl.BayesLTL()
    X, y = tasks[0]
    for i, task in enumerate(tasks):
        read.partial_fit(*task)
        unread.partial_fit(*task)
        first = read.adapt(X, y)
        assert np.array_equal(read.adapt(X, y).coef_, first.coef_)
        if i % 10 == 9:  # also where variances and mean are due only later
            assert np.array_equal(first.coef_, pickle.loads(pickle.dumps(unread)).adapt(X, y).coef_)
    assert same_state(read, unread)


def test_several_passes_take_groups_and_refuse_streams(tmp_path):
    tasks = tasks_of_rank(0, 6, (3, 5), 3)
    groups = np.repeat(np.arange(6), [len(y) for _, y in tasks])
    X, y = (np.concatenate(arrays) for arrays in zip(*tasks, strict=True))
    learner = ltl.BayesLTL(n_passes=2).fit(X, y, groups)
    assert same_state(learner, ltl.BayesLTL(n_passes=2).fit(tasks))
    assert same_state(learner, ltl.BayesLTL(n_passes=2).fit(iter(tasks)))
    before = state_bytes(learner)
    with pytest.raises(ValueError, match="task 2"):
        learner.fit([*tasks[:2], (tasks[2][0] * np.nan, tasks[2][1])])
    assert state_bytes(learner) == before
    learner.partial_fit(*tasks[0])  # continues
    assert learner.n_tasks_seen_ == 7


def test_iter_fit_yields_errors_and_learns_as_partial_fit():
    learner, twin = ltl.BayesLTL(), LearnedPrior()
    found = list(learner.iter_fit(UNIT_TASKS))
    assert [t for t, _ in found] == list(range(1, 61))
    expected = [twin.learn(X, y) for X, y in UNIT_TASKS]
    assert [error for _, error in found] == pytest.approx(expected, rel=1e-8)
    assert same_state(learner, ltl.BayesLTL().fit(UNIT_TASKS))
    assert next(learner.iter_fit(UNIT_TASKS))[0] == 61


@pytest.mark.compiled
def test_errors_are_those_of_predicting_each_row_from_the_others():
    """The prior weighs its candidates with the task included, hence the tolerance."""
    learner, expected, found = ltl.BayesLTL(), [], []
    for i, (X, y) in enumerate(tasks_of_rank(2, 300, (6, 6), 3)):
        if i >= 100:
            errors = [
                y[j] - learner.adapt(np.delete(X, j, 0), np.delete(y, j)).predict(X[[j]])[0]
                for j in range(len(y))
            ]
            expected.append(np.mean(np.square(errors)))
        found += [error for _, error in learner.iter_fit([(X, y)])]
    assert np.mean(found[100:]) == pytest.approx(np.mean(expected), rel=0.1)
    assert np.corrcoef(found[100:], expected)[0, 1] > 0.95
    assert learner.loo_error_ == pytest.approx(np.mean(expected), rel=0.4)  # of all tasks


def forms():
    def strided(array):
        wide = np.zeros([2 * size for size in array.shape])
        wide[tuple(slice(None, None, 2) for _ in array.shape)] = array
        return wide[tuple(slice(None, None, 2) for _ in array.shape)]

    def read_only(array):
        array = array.copy()
        array.flags.writeable = False
        return array

    return {
        "float32": lambda a: a.astype(np.float32),
        "big endian": lambda a: a.astype(">f8"),
        "object": lambda a: a.astype(object),
        "Fortran order": np.asfortranarray,
        "reversed": lambda a: a[::-1].copy()[::-1],
        "list": lambda a: a.tolist(),
        "strided": strided,
        "read-only": read_only,
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("n_passes", [1, 2])
def test_fit_does_not_depend_on_dtype_or_memory_layout(form, n_passes):
    rng, change = np.random.default_rng(0), forms()[form]
    tasks = [
        (rng.integers(-8, 9, size=(n, 5)) / 4, rng.integers(-8, 9, size=n) / 2) for n in (3, 8, 5)
    ]
    expected = ltl.BayesLTL(n_passes=n_passes).fit(tasks)
    changed = [(change(X), change(y)) for X, y in tasks]
    learner = ltl.BayesLTL(n_passes=n_passes).fit(changed)
    assert same_state(learner, expected)
    one, other = learner.adapt(*changed[1]), expected.adapt(*tasks[1])
    assert np.array_equal(one.coef_, other.coef_)
    for ours, theirs in zip(
        one.predict(changed[0][0], return_std=True),
        other.predict(tasks[0][0], return_std=True),
        strict=True,
    ):
        assert np.array_equal(ours, theirs)


def test_inputs_are_not_modified():
    X, y = tasks_of_rank(0, 1, (9, 9), 4)[0]
    X_before, y_before = X.copy(), y.copy()
    for settings in SETTINGS:
        learner = ltl.BayesLTL(**settings).partial_fit(X, y).partial_fit(X, y)
        learner.adapt(X, y).predict(X, return_std=True)
        learner.transform(X)
    ltl.BayesLTL(n_passes=3).fit([(X, y)] * 5)
    assert np.array_equal(X, X_before)
    assert np.array_equal(y, y_before)


BAD_TASKS = {
    "NaN in X": ([[np.nan, 1.0]], [1.0], "X must hold finite numbers only, got NaN"),
    "infinite X": ([[1.0, -np.inf]], [1.0], "X must hold finite numbers only, got -inf"),
    "NaN in y": ([[1.0, 1.0], [0.0, 0.0]], [1.0, np.nan], "y must hold finite numbers only"),
    "infinite y": ([[1.0, 1.0]], [np.inf], "y must hold finite numbers only"),
    "wrong width": ([[1.0, 1.0, 1.0]], [1.0], "X has 3 features, but BayesLTL is expecting 2"),
    "no sample": (np.empty((0, 2)), np.empty(0), "X has 0 sample"),
    "too few targets": ([[1.0, 1.0], [0.0, 0.0]], [1.0], "y must have one value for each of the 2"),
    "huge X": ([[1e200, 1.0]], [1.0], r"X and y must not be so large.* up to 1e\+200 in X"),
    "huge y": ([[1.0, 1.0]], [-1e200], r"X and y must not be so large.* 1e\+200 in y"),
}


@pytest.mark.parametrize("as_arrays", [False, True])
@pytest.mark.parametrize("bad", BAD_TASKS)
@every_setting
def test_a_refused_task_changes_nothing(settings, bad, as_arrays):
    X, y, message = BAD_TASKS[bad]
    if as_arrays:  # float arrays take the fast path of validation
        X, y = np.array(X, dtype=float), np.array(y, dtype=float)
    tasks = [([[1.0, 0.0], [2.0, 0.0]], [1.0, -1.0]), *tasks_of_rank(0, 6, (1, 4), 2)]
    learner = ltl.BayesLTL(**settings)
    for task in tasks:
        learner.partial_fit(*task)
        before, whole = state_bytes(learner), pickle.dumps(learner)
        with pytest.raises(ValueError, match=message):
            learner.partial_fit(X, y)
        assert state_bytes(learner) == before
        assert pickle.dumps(learner) == whole
    assert same_state(learner, ltl.BayesLTL(**settings).fit(tasks))


def test_a_refused_first_task_leaves_the_learner_unfitted():
    learner = ltl.BayesLTL()
    with pytest.raises(ValueError, match="X must hold finite numbers"):
        learner.partial_fit(np.array([[np.nan]]), np.array([1.0]))
    assert not hasattr(learner, "n_features_in_")
    with pytest.raises(NotFittedError):
        learner.predict([[1.0]])


@pytest.mark.parametrize(
    "change", [{"fit_mean": False}, {"fit_intercept": False}, {"half_life": 3.0}]
)
def test_parameters_cannot_change_between_tasks(change):
    learner = ltl.BayesLTL().fit(UNIT_TASKS)
    before = state_bytes(learner)
    with pytest.raises(ValueError, match="parameters must stay as they were at the first task"):
        learner.set_params(**change).partial_fit(*UNIT_TASKS[0])
    assert state_bytes(learner) == before
    assert learner.fit(UNIT_TASKS).n_tasks_seen_ == 60


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_passes": 0}, "n_passes must be a positive integer, got 0"),
        ({"n_passes": 2.0}, "n_passes must be a positive integer, got 2.0"),
        ({"n_passes": True}, "n_passes must be a positive integer, got True"),
        ({"n_passes": None}, "n_passes must be a positive integer, got None"),
        ({"n_passes": 2, "half_life": 5.0}, "half_life needs n_passes=1, .* got n_passes=2"),
        ({"half_life": 0}, "half_life must be None or a positive finite number, got 0"),
        ({"half_life": -1.0}, "half_life must be None or a positive finite number"),
        ({"half_life": np.inf}, "half_life must be None or a positive finite number"),
        ({"half_life": "5"}, "half_life must be None or a positive finite number"),
        ({"fit_mean": 1}, "fit_mean must be True or False, got 1"),
        ({"fit_intercept": "no"}, "fit_intercept must be True or False, got 'no'"),
    ],
)
def test_bad_parameter_raises_value_error(parameters, message):
    X, y = np.ones((2, 2)), np.ones(2)
    for call in ("fit", "partial_fit"):
        learner = ltl.BayesLTL(**parameters)
        with pytest.raises(ValueError, match=message) as error:
            getattr(learner, call)(X, y)
        assert "task 0" not in str(error.value)
        assert not hasattr(learner, "n_features_in_")


def test_attributes_raise_not_fitted_error_before_the_first_task():
    learner = ltl.BayesLTL()
    for name in ("mean_", "covariance_", "noise_", "weights_", "loo_error_", "n_tasks_seen_"):
        with pytest.raises(NotFittedError, match="has not seen a task yet"):
            getattr(learner, name)
        assert not hasattr(learner, name)
    for method, arguments in (
        ("adapt", ([[1.0]], [1.0])),
        ("transform", ([[1.0]],)),
        ("predict", ([[1.0]],)),
    ):
        with pytest.raises(NotFittedError):
            getattr(learner, method)(*arguments)


@pytest.mark.parametrize(
    "make_copy", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_copies_continue_with_the_same_bits_and_by_themselves(make_copy):
    learner = ltl.BayesLTL().fit(UNIT_TASKS[:30])
    before = state_bytes(learner)
    other = make_copy(learner)
    for X, y in UNIT_TASKS[30:]:
        other.partial_fit(X, y)
    assert state_bytes(learner) == before
    assert same_state(other, ltl.BayesLTL().fit(UNIT_TASKS))
    model = learner.adapt(*UNIT_TASKS[0])
    again = make_copy(model)
    assert np.array_equal(again.predict(UNIT_TASKS[1][0]), model.predict(UNIT_TASKS[1][0]))


def test_clones_and_refits_forget():
    learner = ltl.BayesLTL(fit_mean=False, half_life=7.0).fit(UNIT_TASKS)
    other = clone(learner)
    assert other.get_params() == learner.get_params()
    assert not hasattr(other, "mean_")
    few = tasks_of_rank(5, 3, (2, 4), 6)
    assert same_state(learner.fit(few), other.fit(few))
    assert learner.n_tasks_seen_ == 3


def test_saved_learners_continue_with_the_same_bits(tmp_path):
    for settings in SETTINGS:
        learner = ltl.BayesLTL(**settings).fit(UNIT_TASKS[:30])
        learner.save(tmp_path / "learner.npz")
        again = ltl.load(tmp_path / "learner.npz")
        assert again.get_params() == learner.get_params()
        assert same_state(again, learner)
        for X, y in UNIT_TASKS[30:]:
            again.partial_fit(X, y)
            learner.partial_fit(X, y)
        assert same_state(again, learner)


def test_attributes_are_copies():
    learner = ltl.BayesLTL().fit(UNIT_TASKS)
    before = state_bytes(learner)
    for name in ("mean_", "covariance_", "weights_"):
        getattr(learner, name)[:] = np.nan
    model = learner.adapt(*UNIT_TASKS[0])
    model.coef_[:], model.coef_covariance_[:] = np.nan, np.nan
    assert state_bytes(learner) == before
    assert np.array_equal(learner.covariance_, learner.covariance_.T)
    assert learner.weights_.shape == (4, 13)
    assert learner.weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_adapt_is_the_posterior_of_the_attributes(fit_intercept):
    learner = ltl.BayesLTL(fit_intercept=fit_intercept).fit(
        [(X * [1, 10, 100, 0.1] + 5, y + 20) for X, y in UNIT_TASKS]
    )
    for X, y in NEW_TASKS[:4]:
        X, y = X * [1, 10, 100, 0.1] + 5, y + 20
        A = np.column_stack([X, np.ones(len(X))]) if fit_intercept else X
        m, C, noise = learner.mean_, learner.covariance_, learner.noise_
        gain = C @ A.T @ np.linalg.inv(A @ C @ A.T + noise * np.eye(len(y)))
        weights, covariance = m + gain @ (y - A @ m), C - gain @ A @ C
        model = learner.adapt(X, y)
        mean, deviation = model.predict(X, return_std=True)
        assert np.array_equal(mean, model.predict(X))
        assert mean == pytest.approx(A @ weights, rel=1e-7)
        before, after = (np.sum(A @ V * A, axis=1) for V in (C, covariance))
        factors = learner._run.prior().inflation ** (after / before)
        assert deviation == pytest.approx(np.sqrt(after * factors + noise), rel=1e-6)
        assert mean == pytest.approx(X @ model.coef_ + model.intercept_, rel=1e-9)
        assert model.noise_ == noise
        assert difference(model.coef_covariance_, covariance) < 1e-6
        assert repr(model) == "TaskRegressor(4 features)"
        prior_mean, prior_deviation = learner.predict(X, return_std=True)
        assert prior_mean == pytest.approx(A @ m, rel=1e-8)
        inflated = before * learner._run.prior().inflation
        assert prior_deviation == pytest.approx(np.sqrt(inflated + noise))
    with pytest.raises(ValueError, match="return_std must be True or False"):
        model.predict(X, return_std=1)
    assert (model.intercept_ != 0) == fit_intercept


def test_tasks_without_known_rows_have_the_prior():
    learner = ltl.BayesLTL().fit(UNIT_TASKS)
    X = NEW_TASKS[0][0]
    adapted = learner.adapt(ltl.TaskSet(NEW_TASKS[:2], labels=["a", "b"]))
    for ours, theirs in zip(
        adapted.predict(X, ["new"] * len(X), return_std=True),
        learner.predict(X, return_std=True),
        strict=True,
    ):
        assert np.array_equal(ours, theirs)
    known = learner.adapt(*NEW_TASKS[0]).predict(X, return_std=True)
    for ours, theirs in zip(
        adapted.predict(X, ["a"] * len(X), return_std=True), known, strict=True
    ):
        assert np.array_equal(ours, theirs)
    assert (known[1] < learner.predict(X, return_std=True)[1]).all()


def test_ridge_on_transformed_inputs_has_the_prior_without_a_mean():
    learner = ltl.BayesLTL(fit_mean=False).fit(UNIT_TASKS)
    X, y = NEW_TASKS[0]
    Z = learner.transform(X)
    assert Z.shape == (len(X), 5) == (len(X), len(learner.get_feature_names_out()))
    w = np.linalg.solve(Z.T @ Z + learner.noise_ * np.eye(5), Z.T @ y)
    assert Z @ w == pytest.approx(learner.adapt(X, y).predict(X), rel=1e-7)


@pytest.mark.compiled
@pytest.mark.parametrize(("d", "sizes"), [(100, (60, 140)), (20, (300, 300))])
def test_bits_do_not_depend_on_the_threads_of_blas(d, sizes):
    tasks, results = tasks_of_rank(0, 8, sizes, d), []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"):
            learner = ltl.BayesLTL()
            for X, y in tasks:
                learner.partial_fit(X, y)
            model = learner.adapt(*tasks[0])
            refined = ltl.BayesLTL(n_passes=2).fit(tasks)
            results.append(
                [
                    *state_bytes(learner),
                    *state_bytes(refined),
                    model.coef_.tobytes(),
                    *(a.tobytes() for a in model.predict(tasks[1][0], return_std=True)),
                    learner.transform(tasks[0][0]).tobytes(),
                ]
            )
    assert results[0] == results[1]


@pytest.mark.compiled
def test_a_learner_is_read_while_it_learns():
    tasks = tasks_of_rank(0, 1500, (5, 12), 15)
    learner, done, failures = ltl.BayesLTL().partial_fit(*tasks[0]), threading.Event(), []
    n_reads = itertools.count()

    def read():
        while not done.is_set():
            C, mean = learner.covariance_, learner.mean_
            good = np.array_equal(C, C.T) and np.isfinite(C).all() and np.isfinite(mean).all()
            values = np.linalg.eigvalsh(C)
            model = learner.adapt(*tasks[3])
            good &= values[0] >= -1e-9 * values[-1] and np.isfinite(model.coef_).all()
            good &= np.isfinite(pickle.loads(pickle.dumps(learner)).noise_)
            if not good:
                failures.append(C)
            next(n_reads)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for X, y in tasks[1:]:
            learner.partial_fit(X, y)
    finally:
        done.set()
        reader.join()
    assert failures == []
    assert next(n_reads) > 0
    assert same_state(learner, ltl.BayesLTL().fit(tasks))


def test_two_threads_teach_one_learner():
    tasks = tasks_of_rank(0, 40, (5, 5), 3)
    learner = ltl.BayesLTL()
    threads = [
        threading.Thread(target=lambda part=part: [learner.partial_fit(X, y) for X, y in part])
        for part in (tasks[::2], tasks[1::2])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert learner.n_tasks_seen_ == 40
    assert_valid(learner)


# ---- statistics


def random_covariance(seed, d, rank=None, rest=0.0):
    A = np.random.default_rng(seed).normal(size=(d, rank or d))
    return A @ A.T + rest * np.eye(d)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_estimates_approach_the_truth(fit_intercept):
    mean, S = np.array([2.0, -1.0, 0.0, 3.0]), random_covariance(1, 4)
    errors = []
    for n_tasks in (100, 20_000):
        tasks = normal_tasks(0, n_tasks, (6, 6), mean, S, noise=0.7)
        learner = ltl.BayesLTL(fit_intercept=fit_intercept).fit(tasks)
        errors.append(
            [
                difference(learner.mean_[:4], mean),
                difference(learner.covariance_[:4, :4], S),
                abs(learner.noise_ / 0.49 - 1),
            ]
        )
    assert (np.array(errors[1]) < [0.05, 0.15, 0.15]).all()
    assert (np.array(errors[1]) < errors[0]).all()
    if fit_intercept:
        assert abs(learner.mean_[4]) < 0.05
        assert learner.covariance_[4, 4] < 0.1


def coverage(d, n, rank, n_given, n_tasks=300, level=0.0):
    """Return how many targets of new tasks lie in their intervals of 95 and 50 percent."""
    mean, S = np.random.default_rng(d).normal(size=d), random_covariance(d, d, rank, 0.01)
    tasks = normal_tasks(0, n_tasks + 300, (n + 5, n + 5), mean, S, noise=0.7)
    learner = ltl.BayesLTL().fit([(X[:n], y[:n] + level) for X, y in tasks[:n_tasks]])
    scores = []
    for X, y in tasks[n_tasks:]:
        model = learner.adapt(X[:n_given], y[:n_given] + level) if n_given else learner
        prediction, deviation = model.predict(X[n_given:], return_std=True)
        scores.extend(np.abs(y[n_given:] + level - prediction) / deviation)
    scores = np.array(scores)
    return np.mean(scores < 1.96), np.mean(scores < 0.6745)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("d", "n", "rank", "n_given"),
    [(4, 6, 3, 0), (4, 6, 3, 2), (4, 6, 3, 6), (10, 30, 3, 30), (3, 8, 3, 8), (20, 10, None, 10)],
)
def test_intervals_cover_as_many_targets_as_they_say(d, n, rank, n_given):
    within_95, within_50 = coverage(d, n, rank, n_given)
    assert 0.90 < within_95 < 0.99
    assert 0.40 < within_50 < 0.60


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("d", "n", "rank", "n_given"), [(10, 30, 3, 0), (10, 30, 3, 2), (20, 10, 3, 0), (20, 10, 3, 2)]
)
def test_intervals_of_tasks_with_fewer_rows_cover_as_many_targets_as_they_say(d, n, rank, n_given):
    within_95, within_50 = coverage(d, n, rank, n_given)
    assert 0.90 < within_95 < 0.99
    assert 0.40 < within_50 < 0.60


def best_error_of_ridge(tasks, n_given):
    """Return the error of ridge regression on each task alone, with the best lam of all."""
    train = ltl.TaskSet([(X[:n_given], y[:n_given]) for X, y in tasks])
    test = ltl.TaskSet([(X[n_given:], y[n_given:]) for X, y in tasks])
    d = tasks[0][0].shape[1]
    return min(
        np.mean(ltl.evaluate(np.eye(d) / lam, train, test)) for lam in np.logspace(-5, 2, 36)
    )


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("mean", "variances", "at_most"),
    [
        ([0.0] * 20, [1.0] * 3 + [0.0] * 17, 0.4),  # few features matter
        ([1.0] * 20, [0.1] * 20, 0.5),  # tasks have much in common
        ([0.0] * 20, [0.05] * 20, 1.01),  # no structure
        ([0.0] * 10, [1.0] * 10, 1.01),
    ],
)
def test_error_against_ridge_with_its_best_lam(mean, variances, at_most):
    d = len(mean)
    n = 15 if max(variances) >= 0.1 else 20
    tasks = normal_tasks(3, 600, (n + 20, n + 20), np.array(mean), np.diag(variances))
    learner = ltl.BayesLTL(fit_intercept=False).fit([(X[:n], y[:n]) for X, y in tasks[:400]])
    error = np.mean(squared_errors(learner, tasks[400:], n))
    assert error < at_most * best_error_of_ridge(tasks[400:], n)
    assert learner.loo_error_ == pytest.approx(error, rel=0.25)
    assert d == learner.n_features_in_


def test_a_weight_that_all_tasks_share_has_no_variance():
    mean, variances = np.array([0.0, 2.0, 0.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    learner = ltl.BayesLTL().fit(normal_tasks(4, 300, (6, 6), mean, np.diag(variances)))
    found = np.diag(learner.covariance_)[:5]
    assert (found[variances == 0] < 0.05).all()
    assert (found[variances == 1] > 0.5).all()
    assert learner.mean_[[1, 3]] == pytest.approx([2.0, 0.0], abs=0.1)


def test_a_prior_that_turns_is_followed():
    def error(half_life):
        rng, learner, errors = np.random.default_rng(0), ltl.BayesLTL(half_life=half_life), []
        for t in range(400):
            angle = 2 * np.pi * t / 300
            w = 3 * np.array([np.cos(angle), np.sin(angle), 0]) + 0.3 * rng.normal(size=3)
            X = rng.normal(size=(5, 3))
            y = X @ w + 0.5 * rng.normal(size=5)
            if t > 100:
                errors.append(np.mean((y - learner.predict(X)) ** 2))
            learner.partial_fit(X, y)
        return np.mean(errors)

    assert error(5.0) < 0.3 * error(None)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", [0, 1])
def test_several_passes_help_where_rows_are_few(seed):
    S = random_covariance(seed, 60, 3) / 3
    tasks = normal_tasks(seed, 300, (28, 28), np.zeros(60), S)
    given = [(X[:8], y[:8]) for X, y in tasks[:150]]
    once, often = (
        np.mean(
            squared_errors(ltl.BayesLTL(n_passes=k, fit_intercept=False).fit(given), tasks[150:], 8)
        )
        for k in (1, 5)
    )
    assert often < 0.6 * once


@pytest.mark.compiled
def test_several_passes_do_no_harm_without_structure():
    tasks = normal_tasks(0, 400, (40, 40), np.zeros(20), np.eye(20) / 20)
    given = [(X[:20], y[:20]) for X, y in tasks[:100]]
    once, often = (
        np.mean(squared_errors(ltl.BayesLTL(n_passes=k).fit(given), tasks[100:], 20))
        for k in (1, 5)
    )
    assert often < 1.02 * once


def test_a_task_without_rows_is_predicted_by_the_population_mean():
    mean = np.array([1.0, -2.0, 0.5])
    tasks = normal_tasks(0, 400, (5, 5), mean, np.diag([0.3, 0.1, 0.0]))
    learner = ltl.BayesLTL().fit([(X, y + 7.0) for X, y in tasks])
    X = np.random.default_rng(1).normal(size=(50, 3))
    assert np.abs(learner.predict(X) - (X @ mean + 7.0)).max() < 0.3
    assert learner.predict(np.zeros((1, 3))) == pytest.approx(7.0, abs=0.1)


# ---- states


def assert_valid(learner):
    """Check the state of a learner as a checkpoint is checked."""
    fit_mean, fit_intercept, half_life = learner._settings()
    start = new_state(learner.n_features_in_, fit_mean, fit_intercept, half_life)
    check_state(learner._run.state, start)


HARD_STREAMS = {
    "ill-conditioned": lambda rng, d: (rng.normal(size=(rng.integers(1, 9), d)) @ HILBERT, 0.1),
    "tiny noise": lambda rng, d: (rng.normal(size=(rng.integers(1, 15), d)), 1e-13),
    "dependent columns": lambda rng, d: (
        rng.normal(size=(rng.integers(1, 9), 1)) * np.ones(d),
        0.1,
    ),
    "categories": lambda rng, d: (np.eye(d)[rng.integers(d, size=rng.integers(1, 9))], 0.1),
    "far from zero": lambda rng, d: (1e9 + rng.normal(size=(rng.integers(1, 9), d)), 0.1),
    "long tails": lambda rng, d: (rng.standard_cauchy(size=(rng.integers(1, 9), d)) ** 3, 1.0),
}
HILBERT = 1.0 / (1.0 + np.add.outer(np.arange(6), np.arange(6)))


@pytest.mark.sample(4)
@every_setting
@pytest.mark.parametrize("stream", HARD_STREAMS)
def test_every_state_of_a_learner_is_accepted(settings, stream):
    rng, learner = np.random.default_rng(0), ltl.BayesLTL(**settings)
    for i in range(150 // FEWER):
        X, noise = HARD_STREAMS[stream](rng, 6)
        y = X @ rng.normal(size=6) + noise * rng.normal(size=len(X))
        if i % 7 == 0:
            y[:] = y[0]
        if i % 11 == 0:
            X[:] = X[0]
        learner.partial_fit(X, y)
        assert_valid(learner)
        values = np.linalg.eigvalsh(learner._run.state.covariance)
        assert values[0] >= -1e3 * EPS * values[-1]
        assert learner.noise_ >= 0
        model = learner.adapt(X, y)
        assert (np.diag(model.coef_covariance_) >= -1e-6 * np.diag(learner.covariance_)).all()


@pytest.fixture(scope="module")
def saved_run():
    """Return the run of a fitted learner; forged checkpoints of it are restored to copies."""
    return ltl.BayesLTL(half_life=30.0).fit(UNIT_TASKS)._run


def restored(run, changes):
    """Return a learner whose state is that of a run but for some arrays or numbers."""
    checkpoint = run.checkpoint()
    for name, value in changes.items():
        (checkpoint if name in checkpoint else checkpoint["record"])[name] = value
    learner = ltl.BayesLTL(half_life=30.0)
    other = learner._new_run(4)
    other.restore(checkpoint)
    learner._run, learner.n_features_in_ = other, 4
    return learner


ARRAYS = [name for name in BayesState._fields if name != "records"]
FLOATS = [name for name in RECORD.names if RECORD[name].kind == "f"]
COUNTS = [name for name in RECORD.names if RECORD[name].kind == "i"]


def test_an_unchanged_state_is_accepted(saved_run):
    learner = restored(saved_run, {})
    fresh = ltl.BayesLTL(half_life=30.0).fit(UNIT_TASKS)
    assert same_state(learner, fresh)
    assert same_state(learner.partial_fit(*UNIT_TASKS[0]), fresh.partial_fit(*UNIT_TASKS[0]))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_in_fortran_order_are_accepted(saved_run, name):
    array = np.asfortranarray(getattr(saved_run.state, name))
    fresh = ltl.BayesLTL(half_life=30.0).fit(UNIT_TASKS)
    learner = restored(saved_run, {name: array})
    assert same_state(learner.partial_fit(*UNIT_TASKS[0]), fresh.partial_fit(*UNIT_TASKS[0]))


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_not_finite_are_refused(saved_run, name):
    for value, place in itertools.product((np.nan, np.inf, -np.inf), (0, -1)):
        array = getattr(saved_run.state, name).copy()
        array.flat[place] = value
        with pytest.raises(ValueError, match=f"{name} must be finite"):
            restored(saved_run, {name: array})


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_another_shape_or_type_are_refused(saved_run, name):
    array = getattr(saved_run.state, name)
    wrong = [
        array.astype(np.float32),
        array.astype(">f8"),
        array.astype(np.int64),
        array[..., :2],
        array[..., None],
        array[:-1],
        np.zeros(0),
        np.zeros(()),
    ]
    for one in wrong:
        with pytest.raises(ValueError, match=f"{name} has shape"):
            restored(saved_run, {name: one})


@pytest.mark.parametrize("name", ["scale", "squares", "variances", "weights"])
def test_negative_arrays_are_refused(saved_run, name):
    array = getattr(saved_run.state, name).copy()
    array.flat[1] = -1e-3
    with pytest.raises(ValueError, match=f"{name} must not be negative"):
        restored(saved_run, {name: array})


@pytest.mark.parametrize("name", FLOATS)
def test_numbers_that_are_not_finite_or_negative_are_refused(saved_run, name):
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=name):
            restored(saved_run, {name: value})
    if name != "y_origin":
        with pytest.raises(ValueError, match=name):
            restored(saved_run, {name: -1.0})


@pytest.mark.parametrize("count", [0, -1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)])
def test_impossible_numbers_of_tasks_are_refused(saved_run, count):
    with pytest.raises(ValueError, match="n_tasks"):
        restored(saved_run, {"n_tasks": count})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [1.5, "1", None, [1], 2**63])
def test_counts_that_are_no_integers_are_refused(saved_run, name, value):
    with pytest.raises((ValueError, OverflowError), match=name):
        restored(saved_run, {name: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intercept": 0}, "its intercept is not that of its parameters"),
        ({"intercept": 2}, "its intercept is not that of its parameters"),
        ({"fit_mean": 0}, "its fit_mean is not that of its parameters"),
        ({"decay": 1.0}, "its decay is not that of its parameters"),
        ({"decay": 0.5 ** (1 / 31)}, "its decay is not that of its parameters"),
        ({"kappa": 0.0}, "kappa"),
        ({"kappa": 100.0}, "kappa"),
        ({"mean_share": 1.1}, "mean_share must be between 0 and 1"),
        ({"noise": 0.0}, "noise must be positive"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"intercept_variance": 0.0}, "intercept_variance must be positive"),
        ({"y_scale": 0.0}, "y_scale must be positive"),
        ({"y_square": 0.0}, "y_square must be positive"),
        ({"n_rows": 0.0}, "n_rows must be positive"),
        ({"t": 1e200}, "t must be finite"),
    ],
)
def test_impossible_numbers_are_refused(saved_run, changes, message):
    with pytest.raises(ValueError, match=message):
        restored(saved_run, changes)


def test_a_decay_is_compared_with_a_tolerance(saved_run):
    """Another CPU may compute another last bit."""
    decay = 0.5 ** (1 / 30)
    assert restored(saved_run, {"decay": decay * (1 + 1e-12)}).n_tasks_seen_ == 60


def test_matrices_that_are_not_symmetric_or_psd_are_refused(saved_run):
    S, A = saved_run.state.covariance, saved_run.state.precision
    skew = S.copy()
    skew[0, 1] += 1e-3 * S.max()
    with pytest.raises(ValueError, match="covariance must be symmetric"):
        restored(saved_run, {"covariance": skew})
    for wrong in (-S, S - 0.5 * np.linalg.eigvalsh(S)[-1] * np.eye(5)):
        with pytest.raises(ValueError, match="covariance must be PSD"):
            restored(saved_run, {"covariance": wrong})
    for wrong in (-A, A - np.diag(np.full(5, np.diag(A).max()))):
        with pytest.raises(ValueError, match="precision must be PSD"):
            restored(saved_run, {"precision": wrong})
    F = saved_run.state.moments.copy()
    F[2, 2] = -1e-3
    with pytest.raises(ValueError, match="moments"):
        restored(saved_run, {"moments": F})


def test_weights_that_do_not_sum_to_one_are_refused(saved_run):
    weights = saved_run.state.weights
    for wrong in (0.5 * weights, 1.001 * weights, 0 * weights):
        with pytest.raises(ValueError, match="weights must have a sum of one"):
            restored(saved_run, {"weights": wrong})


@pytest.mark.parametrize("part", [*ARRAYS, *RECORD.names])
def test_no_forged_number_makes_results_nan(saved_run, part):
    """A state is refused or, with numbers that are possible, learns without NaN."""
    values = (0.0, 1e-300, 1e-9, 1.0, 1e9, 1e149, 1e300)
    if part in COUNTS:
        values = (0, 1, 3, 60, 2**53)
    forged = [{part: value} for value in values]
    if part in ARRAYS:
        forged = [{part: np.full_like(getattr(saved_run.state, part), value)} for value in values]
        for sign, value, place in itertools.product((1, -1), values, (0, 1, -1)):
            array = getattr(saved_run.state, part).copy()
            array.flat[place] = sign * value
            forged.append({part: array})
    n_bad = 0
    for changes in forged:
        try:
            learner = restored(saved_run, changes)
        except ValueError:
            continue
        for task in UNIT_TASKS[:4]:
            before = state_bytes(learner)
            with np.errstate(all="ignore"):  # NumPy warns with the JIT off
                try:
                    learner.partial_fit(*task)
                except ValueError:
                    assert state_bytes(learner) == before
            state = learner._run.state
            n_bad += not all(np.isfinite(array).all() for array in state[:-1])
            n_bad += not all(np.isfinite(state.records[0][name]) for name in FLOATS)
    assert n_bad == 0


def test_states_of_several_passes_are_accepted():
    for n_passes in (2, 6):
        for name, stream in HARD_STREAMS.items():
            rng, tasks = np.random.default_rng(0), []
            for _ in range(20 // min(2, FEWER)):
                X, noise = stream(rng, 6)
                tasks.append((X, X @ rng.normal(size=6) + noise * rng.normal(size=len(X))))
            learner = ltl.BayesLTL(n_passes=n_passes).fit(tasks)
            assert_valid(learner)
            assert np.isfinite(learner.loo_error_), name


def test_tasks_that_are_scored_are_not_those_a_fold_has_seen():
    """Each fold scores exactly the tasks it has not learned from."""
    tasks, seen, scored = tasks_of_rank(0, 9, (3, 5), 2), {}, {}
    learn_tasks, add_scores = bayes.learn_tasks, bayes.add_scores

    def note_learned(state, X, y, offsets):
        of_tasks = seen.setdefault(id(state.table), set())
        of_tasks.update(part.tobytes() for part in np.split(y, offsets[1:-1]))
        return learn_tasks(state, X, y, offsets)

    def note_scored(state, X, y, table):
        scored.setdefault(id(state.table), set()).add(y.tobytes())
        return add_scores(state, X, y, table)

    kernels = mock.Mock(
        learn_tasks=note_learned, add_scores=note_scored, learn_again=bayes.learn_again
    )
    with mock.patch.object(_bayes_run, "kernels", kernels):
        ltl.BayesLTL(n_passes=2).fit(tasks)
    everything = {y.tobytes() for _, y in tasks}
    assert len(scored) == 4
    assert set().union(*scored.values()) == everything
    for fold, targets in scored.items():
        assert seen[fold] == everything - targets
