"""Compare OnlineLTLPath and select_lam with single learners and `evaluate`."""

import pickle
import tracemalloc

import numpy as np
import pytest
from naive import ragged_tasks
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from threadpoolctl import threadpool_limits

import fastltl as ltl
from fastltl.metrics import HeldOut
from fastltl.selection import LAMS, best_candidate

RULES = [
    {"geometry": "entropic"},
    {"geometry": "euclidean", "step": "theory"},
    {"geometry": "euclidean", "step": "adaptive"},
    {"geometry": "euclidean", "step": 0.3, "averaging": "last"},
    {"geometry": "entropic", "step_scale": 0.5, "averaging": "last", "fit_intercept": True},
]


def validation_tasks(d=6, n_tasks=7, seed=9, sizes=(4, 20)):
    tasks = ltl.TaskSet(ragged_tasks(seed, n_tasks, d, sizes))
    return tasks.split_samples(0.5, random_state=0)


def rule_id(rule):
    return "-".join(str(value) for value in rule.values())


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("score_every", [None, 1, 3])
@pytest.mark.parametrize("rule", RULES, ids=rule_id)
def test_path_equals_one_learner_per_lam_after_every_task(rule, score_every):
    validation = validation_tasks()
    path = ltl.OnlineLTLPath(validation=validation, score_every=score_every, **rule)
    learners = [ltl.OnlineLTL(lam, **rule) for lam in LAMS]
    fit_intercept = rule.get("fit_intercept", False)
    for X, y in ragged_tasks(0, 12, 6, (1, 15)):
        path.partial_fit(X, y)
        representations = [learner.partial_fit(X, y).D_ for learner in learners]
        assert np.array_equal(path.representations_, representations)
        scores = [
            ltl.evaluate(D, *validation, fit_intercept=fit_intercept).mean()
            for D in representations
        ]
        assert path.scores_ == pytest.approx(scores, rel=1e-10)
        best = int(np.argmin(scores))
        assert path.best_lam_ == LAMS[best]
        assert np.array_equal(path.D_, representations[best])
    assert path.n_tasks_seen_ == 12
    assert np.array_equal(path.lams_, LAMS)
    assert path.adapt(X, y).coef_.shape == (6,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("metric", ["mse", "explained_variance", "r2"])
def test_scores_agree_with_evaluate_after_300_tasks(metric):
    environment = ltl.datasets.make_environment(20, noise=0.1, random_state=0)
    validation = environment.tasks(8, 30).split_samples(0.5, random_state=0)
    for rule in RULES[:3]:
        path = ltl.OnlineLTLPath(validation=validation, metric=metric, score_every=1, **rule)
        assert path.partial_fit(*next(environment.stream(12)))
        for t, (X, y) in enumerate(environment.tasks(300, 12)):
            path.partial_fit(X, y)
            if t == 150:
                path = pickle.loads(pickle.dumps(path))
        scores = [ltl.evaluate(D, *validation, metric).mean() for D in path.representations_]
        assert path.scores_ == pytest.approx(scores, rel=1e-9, abs=1e-12)


@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("rule", RULES[:3], ids=rule_id)
def test_path_is_bitwise_equal_for_any_number_of_threads(rule):
    environment = ltl.datasets.make_environment(40, random_state=0)
    validation = environment.tasks(10, 60).split_samples(0.5, random_state=0)
    tasks = environment.tasks(6, 30)
    one, two, five = (
        ltl.OnlineLTLPath(validation=validation, n_threads=k, score_every=1, **rule).fit(tasks)
        for k in (1, 2, 5)
    )
    for other in (two, five):
        assert np.array_equal(one.representations_, other.representations_)
        assert np.array_equal(one.scores_, other.scores_)


def test_path_with_several_step_scales_fits_each_pair():
    validation, tasks = validation_tasks(), ragged_tasks(0, 8, 6, (1, 15))
    lams, scales = [0.003, 0.01, 0.03, 0.1], [0.5, 1.0, 2.0]
    path = ltl.OnlineLTLPath(lams, validation, step_scale=scales).fit(tasks)
    expected = np.empty((4, 3))
    for i, lam in enumerate(lams):
        for j, scale in enumerate(scales):
            D = ltl.OnlineLTL(lam, step_scale=scale).fit(tasks).D_
            assert np.array_equal(path.representations_[i, j], D)
            expected[i, j] = ltl.evaluate(D, *validation).mean()
    assert path.scores_ == pytest.approx(expected, rel=1e-12)
    i, j = np.unravel_index(np.argmin(path.scores_), (4, 3))
    with pytest.warns(UserWarning, match="at the edge of the candidates"):
        assert path.best_lam_ == lams[i]
    assert path.best_step_scale_ == scales[j]
    assert np.array_equal(path.D_, path.representations_[i, j])
    single = ltl.OnlineLTLPath([0.1], step_scale=2.0).fit(tasks)
    with pytest.raises(AttributeError, match="needs a step_scale that is a sequence"):
        _ = single.best_step_scale_


def test_equal_scores_select_the_largest_lam():
    lams = np.array([0.1, 10.0, 1.0])
    assert best_candidate(np.array([2.0, 2.0, 2.0]), lams, "mse") == 1
    assert best_candidate(np.array([1.0, 2.0, 1.0]), lams, "mse") == 2
    assert best_candidate(np.array([1.0, 2.0, 1.0]), lams, "r2") == 1
    zero = ltl.TaskSet([(np.eye(2), np.zeros(2))] * 2)
    path = ltl.OnlineLTLPath([0.1, 10.0, 1.0], (zero, zero)).fit(zero)
    with pytest.warns(UserWarning, match="at the edge"):
        assert path.best_lam_ == 10.0


def test_best_lam_at_the_edge_warns_once_per_fit():
    validation, tasks = validation_tasks(), ragged_tasks(0, 8, 6, (4, 15))
    path = ltl.OnlineLTLPath([10.0, 100.0, 1000.0], validation).fit(tasks)
    with pytest.warns(
        UserWarning, match=r"best lam, 10, is at the edge .* \(10 to 1e\+03\)"
    ) as caught:
        _ = path.best_lam_
    assert caught[0].filename == __file__
    _ = path.best_lam_, path.D_, path.partial_fit(*tasks[0]).best_lam_  # no second warning
    path.fit(tasks)
    with pytest.warns(UserWarning, match="at the edge"):
        _ = path.D_


def test_scores_are_computed_when_read_and_cached(monkeypatch):
    validation, tasks = validation_tasks(), ragged_tasks(0, 9, 6, (4, 15))
    scored = []
    score = HeldOut.score
    monkeypatch.setattr(HeldOut, "score", lambda self, D: scored.append(len(D)) or score(self, D))
    path = ltl.OnlineLTLPath([1e-3, 1e-2, 1e-1], validation).fit(tasks)
    assert scored == []
    _ = path.scores_, path.scores_
    assert scored == [3]
    ltl.OnlineLTLPath([1e-3, 1e-2], validation, score_every=4).fit(tasks)
    assert scored == [3, 2, 2]


@pytest.mark.filterwarnings("ignore:the best lam")
def test_progress_bar_is_shown_only_with_progress(capsys):
    validation, tasks = validation_tasks(), ragged_tasks(0, 9, 6, (4, 15))
    ltl.OnlineLTLPath(validation=validation).fit(tasks)
    assert capsys.readouterr().err == ""
    ltl.OnlineLTLPath(validation=validation, progress=True, score_every=3).fit(tasks)
    shown = capsys.readouterr().err
    assert "9/9" in shown
    assert "mse=" in shown
    assert "lam=" in shown


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("rule", RULES[:2], ids=rule_id)
def test_memory_does_not_grow_with_the_number_of_tasks(rule):
    environment = ltl.datasets.make_environment(20, random_state=0)
    validation = environment.tasks(5, 20).split_samples(0.5, random_state=0)

    def peak(n_tasks):
        path = ltl.OnlineLTLPath(validation=validation, score_every=1, **rule)
        stream = environment.stream(10)
        path.partial_fit(*next(stream))
        tracemalloc.start()
        for _ in range(n_tasks):
            path.partial_fit(*next(stream))
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(10)
    task_bytes = 360 * 10 * 21 * 8  # bytes of the 360 additional tasks
    assert peak(400) <= peak(40) + 0.2 * task_bytes


@pytest.mark.filterwarnings("ignore:the best lam")
def test_path_can_be_pickled_continued_and_cloned():
    validation, tasks = validation_tasks(), ragged_tasks(0, 10, 6, (4, 15))
    whole = ltl.OnlineLTLPath(validation=validation).fit(tasks)
    half = ltl.OnlineLTLPath(validation=validation).fit(tasks[:5])
    _ = half.scores_
    half = pickle.loads(pickle.dumps(half))
    for X, y in tasks[5:]:
        half.partial_fit(X, y)
    assert np.array_equal(whole.representations_, half.representations_)
    assert np.array_equal(whole.scores_, half.scores_)
    fresh = clone(whole)
    with pytest.raises(NotFittedError):
        _ = fresh.scores_
    assert np.array_equal(fresh.fit(tasks).scores_, whole.scores_)


def test_path_without_validation_has_no_scores():
    tasks = ragged_tasks(0, 4, 6, (4, 15))
    path = ltl.OnlineLTLPath([0.1, 1.0]).fit(tasks)
    assert path.representations_.shape == (2, 6, 6)
    for name in ("scores_", "best_lam_", "D_"):
        with pytest.raises(ValueError, match=r"validation must be a pair \(train, test\)"):
            getattr(path, name)
    single = ltl.OnlineLTLPath([0.1]).fit(tasks)
    assert single.best_lam_ == 0.1
    assert np.array_equal(single.D_, ltl.OnlineLTL(0.1).fit(tasks).D_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lams": []}, "lams must be a sequence of at least one number"),
        ({"lams": [1.0, 0.0]}, r"lams\[1\] must be a positive finite number, got 0.0"),
        ({"validation": 3}, r"validation must be a pair \(train, test\) of TaskSets"),
        ({"validation": ([], [])}, "validation: train must be a TaskSet, got list"),
        ({"metric": "mae"}, "metric must be one of 'mse', 'explained_variance', 'r2', got 'mae'"),
        ({"objective": "loss"}, "objective must be one of 'regularized', 'error', got 'loss'"),
        ({"geometry": "flat"}, "geometry must be one of"),
        ({"step": "theory"}, "step must be 'adaptive' with geometry='entropic'"),
        ({"step_scale": []}, "step_scale must be a number or a sequence of at least one"),
        ({"step_scale": [1.0, -1.0]}, "step_scale must be a sequence of positive finite numbers"),
        ({"step_scale": "big"}, "step_scale must be a positive finite number, got 'big'"),
        ({"validation": None, "score_every": 1}, "validation must be a pair .* score_every=1"),
        ({"validation": None, "metric": "mae"}, "metric must be one of"),
        ({"score_every": 0}, "score_every must be a positive integer, got 0"),
        ({"progress": "yes"}, "progress must be True or False"),
        ({"n_threads": -1}, "n_threads must be a positive integer, got -1"),
        ({"averaging": "mean"}, "averaging must be one of"),
    ],
)
def test_bad_parameter_of_path_raises(change, message):
    X, y = ragged_tasks(0, 1, 6, (4, 15))[0]
    path = ltl.OnlineLTLPath(**({"validation": validation_tasks()} | change))
    for call in (lambda: path.partial_fit(X, y), lambda: path.fit([(X, y)])):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()
        assert not hasattr(path, "n_features_in_")


def test_validation_with_other_number_of_features_raises():
    X, y = ragged_tasks(0, 1, 5, (4, 15))[0]
    with pytest.raises(ValueError, match="X has 5 features, but the tasks of validation have 6"):
        ltl.OnlineLTLPath(validation=validation_tasks()).partial_fit(X, y)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of overflow with the JIT off
@pytest.mark.filterwarnings("ignore:the best lam")
def test_bad_task_or_changed_parameter_raises_and_keeps_the_state():
    tasks = ragged_tasks(0, 4, 6, (4, 15))
    path = ltl.OnlineLTLPath(validation=validation_tasks()).fit(tasks)
    before = pickle.dumps(path)
    # Inputs of 1e153 overflow for candidates with a small lam only.
    for X, y, message in [
        (np.full((2, 6), np.nan), np.ones(2), "X must hold finite numbers only"),
        (np.ones((2, 5)), np.ones(2), "X has 5 features"),
        (1e153 * tasks[0][0], tasks[0][1], "X and y must not be so large"),
    ]:
        with pytest.raises(ValueError, match=message):
            path.partial_fit(X, y)
        assert pickle.dumps(path) == before
    for change, message in [
        ({"metric": "r2"}, "parameters must stay .* got metric='r2' after"),
        ({"objective": "error"}, "parameters must stay .* got objective='error' after"),
        ({"validation": validation_tasks(seed=1)}, "parameters must stay .* got validation="),
        ({"score_every": 0}, "score_every must be a positive integer, got 0"),
        ({"averaging": "mean"}, "averaging must be one of"),
        ({"n_threads": 0}, "n_threads must be"),
    ]:
        path = pickle.loads(before)
        with pytest.raises(ValueError, match=message):
            path.set_params(**change).partial_fit(*tasks[0])
        assert path.n_tasks_seen_ == 4


@pytest.mark.filterwarnings("ignore:the best lam")
def test_results_do_not_change_with_parameters_or_shared_arrays():
    """Change parameters, the array passed as lams and returned arrays after the fit."""
    tasks, lams = ragged_tasks(0, 8, 6, (4, 15)), np.array([1e-3, 1e-2, 1e-1, 1.0, 10.0])
    path = ltl.OnlineLTLPath(lams, validation_tasks()).fit(tasks)
    expected = path.lams_, path.scores_, path.best_lam_, path.D_
    path.lams_[:] = 7.0
    lams *= 2
    path.set_params(lams=[7.0, 8.0], metric="r2", step_scale=[1.0, 2.0])
    actual = path.lams_, path.scores_, path.best_lam_, path.D_
    for after, before in zip(actual, expected, strict=True):
        assert np.array_equal(after, before)
    assert not hasattr(path, "best_step_scale_")
    default = ltl.select_lam(ltl.ITL(), tasks, validation_tasks())
    default.lams[:] = 1.0
    assert LAMS[0] == 1e-6


def test_fit_discards_earlier_validation_tasks():
    tasks = ragged_tasks(0, 4, 6, (4, 15))
    path = ltl.OnlineLTLPath([0.1, 1.0], validation_tasks(), score_every=1)
    path.set_params(geometry="euclidean", step="theory").fit(tasks)
    path.set_params(validation=None, score_every=None).fit(tasks)
    with pytest.raises(ValueError, match="validation must be a pair"):
        _ = path.scores_
    for name in ("lams_", "scores_", "best_lam_", "best_step_scale_", "D_", "representations_"):
        with pytest.raises(NotFittedError):
            getattr(ltl.OnlineLTLPath(), name)


LEARNERS = [
    ltl.OnlineLTL(),
    ltl.OnlineLTL(geometry="euclidean", fit_intercept=True),
    ltl.BatchLTL(tol=1e-7),
    ltl.MTL(tol=1e-7, fit_intercept=True),
    ltl.ITL(),
    ltl.ITL(fit_intercept=True),
]


@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
@pytest.mark.parametrize("metric", ["mse", "explained_variance"])
def test_select_lam_fits_each_lam_and_returns_the_best(learner, metric):
    validation = validation_tasks(sizes=(10, 20))
    tasks = ltl.TaskSet(ragged_tasks(0, 15, 6, (3, 15)))
    lams = [10.0, 1e-5, 1e-3, 1e-2, 0.1, 1.0, 100.0]
    selection = ltl.select_lam(learner, tasks, validation, lams, metric)
    expected = [
        ltl.evaluate(
            clone(learner).set_params(lam=lam).fit(tasks).D_,
            *validation,
            metric=metric,
            fit_intercept=learner.fit_intercept,
        )
        for lam in lams
    ]
    batch = isinstance(learner, ltl.BatchLTL | ltl.MTL)
    allowed = {"rel": 1e-3, "abs": 1e-3} if batch else {"rel": 1e-10}
    assert selection.task_scores == pytest.approx(np.array(expected), **allowed)
    assert selection.scores == pytest.approx(selection.task_scores.mean(axis=1))
    means = np.mean(expected, axis=1)
    best = lams[int(np.argmin(means) if metric == "mse" else np.argmax(means))]
    assert selection.best_lam == best == selection.learner.lam
    assert type(selection.learner) is type(learner)
    assert selection.learner.n_features_in_ == 6
    assert selection.learner.adapt(*tasks[0]).coef_.shape == (6,)
    if hasattr(selection.learner, "coef_"):
        assert selection.learner.coef_.shape == (15, 6)
    assert not hasattr(learner, "n_features_in_")
    lines = repr(selection).splitlines()
    assert lines[0] == f"Selection of lam for {type(learner).__name__} by 7 validation tasks"
    assert sum("<- best" in line for line in lines) == 1
    assert len(lines) == 9


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:the best lam")
@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_select_lam_is_bitwise_equal_for_any_number_of_threads(learner):
    environment = ltl.datasets.make_environment(100, noise=0.05, random_state=0)
    validation = environment.tasks(4, 60).split_samples(0.5, random_state=0)
    tasks = environment.tasks(20, 30)
    lams = np.logspace(-3, 1, 4)
    selections = []
    for k in (1, 2):
        with threadpool_limits(k, user_api="blas"):
            selections.append(ltl.select_lam(learner, tasks, validation, lams, n_threads=k))
    one, two = selections
    assert np.array_equal(one.task_scores, two.task_scores)
    assert np.array_equal(one.learner.D_, two.learner.D_)


def test_select_lam_warns_of_the_edge_and_of_fits_that_did_not_converge():
    validation, tasks = validation_tasks(), ragged_tasks(0, 8, 6, (4, 15))
    with pytest.warns(UserWarning, match="the best lam, 100, is at the edge") as caught:
        ltl.select_lam(ltl.ITL(), tasks, validation, [100.0, 1000.0])
    assert caught[0].filename == __file__
    message = (
        "of 3 fits of BatchLTL did not reach tol=1e-06; the one with the best lam, .* one of them"
    )
    with (
        pytest.warns(ConvergenceWarning, match=message) as caught,
        pytest.warns(UserWarning, match="at the edge"),
    ):
        ltl.select_lam(ltl.BatchLTL(max_iter=1), tasks, validation, [0.1, 0.01, 1e4])
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"learner": ltl.RepresentationRidge()}, TypeError, "learner must be one that has a lam"),
        ({"learner": ltl.OnlineLTLPath()}, TypeError, "learner must be .* got OnlineLTLPath"),
        ({"learner": ltl.OnlineLTL}, TypeError, "learner must be"),
        ({"learner": ltl.ITL(fit_intercept=1)}, ValueError, "^fit_intercept must be True or False"),
        ({"learner": ltl.MTL(n_threads=-3)}, ValueError, "n_threads must be"),
        ({"tasks": []}, ValueError, "tasks must hold at least one task"),
        ({"tasks": validation_tasks()[0][:0]}, ValueError, "tasks must hold at least one task"),
        ({"validation": (validation_tasks()[0][:0],) * 2}, ValueError, "at least one task"),
        ({"lams": 0.1}, ValueError, r"got the number 0.1"),
        ({"tasks": [(np.ones((2, 3)), np.ones(2))]}, ValueError, "have the 3 features of tasks"),
        ({"validation": None}, ValueError, r"validation must be a pair \(train, test\)"),
        ({"lams": [-1.0]}, ValueError, r"lams\[0\]"),
        ({"metric": "mae"}, ValueError, "metric must be one of"),
        ({"n_threads": 0}, ValueError, "n_threads must be"),
    ],
)
def test_bad_argument_of_select_lam_raises(change, kind, message):
    arguments = {
        "learner": ltl.ITL(),
        "tasks": ragged_tasks(0, 3, 6, (4, 15)),
        "validation": validation_tasks(),
    }
    with pytest.raises(kind, match=message):
        ltl.select_lam(**(arguments | change))
