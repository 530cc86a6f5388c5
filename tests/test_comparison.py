"""Tests of fastltl.experiments.compare and trials: scores, intervals and the verdict."""

import re

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import explained_variance_score, mean_squared_error

import fastltl as ltl
from fastltl.experiments import compare
from fastltl.experiments.trials import (
    ALGORITHM_1,
    PAPER_EXPERIMENTS,
    Trial,
    fit_batch,
    fit_itl,
    fit_mtl,
    fit_online,
    score_pooled,
    select_pooled_lam,
)
from fastltl.selection import LAMS


def make_tasks(n_tasks=24, n_samples=10, n_features=5, noise=0.1, seed=0):
    environment = ltl.datasets.make_environment(n_features, 1, noise, random_state=seed)
    return environment.tasks(n_tasks, n_samples)


def small_trial(**settings):
    training, validation, test = make_tasks().split((0.5, 0.25, 0.25), random_state=0)
    halves = [part.split_samples(0.5, random_state=0) for part in (validation, test)]
    return Trial(training, *halves, **settings)


@pytest.fixture(scope="module")
def found():
    return compare.compare(make_tasks(), seed=1)


def test_every_task_is_held_out_once(found):
    labels = [label for fold in found["cells"] for label in fold["values"]["labels"]]
    assert sorted(labels, key=int) == [str(k) for k in range(24)]
    assert found["data"] == {"n_tasks": 24, "n_left_out": 0, "n_features": 5, "n_samples": 240}


def test_method_rows_are_means_over_tasks(found):
    folds = [fold["values"]["methods"] for fold in found["cells"]]
    alone = np.concatenate([fold[compare.ALONE]["mse"] for fold in folds])
    for row in found["methods"]:
        errors = np.concatenate([fold[row["method"]]["mse"] for fold in folds])
        assert row["mse"] == pytest.approx(errors.mean())
        if row["method"] != compare.ALONE:
            assert row["gain"] == pytest.approx(100 * (1 - errors.mean() / alone.mean()))
            assert row["wins"] == np.mean(errors < alone)
            (low, high), (lower, higher) = row["interval"], row["strict_interval"]
            assert lower <= low < row["gain"] < high <= higher


@pytest.mark.slow
def test_results_do_not_depend_on_n_jobs(found):
    again = compare.compare(make_tasks(), seed=1, n_jobs=2)
    for key in ("data", "curve", "verdict", "representation"):
        assert again[key] == found[key]
    for ours, theirs in zip(again["methods"], found["methods"], strict=True):
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}


def test_small_tasks_are_dropped_and_too_few_are_an_error():
    tasks = ltl.TaskSet([*make_tasks(8, 8), *make_tasks(3, 3, seed=1)])
    assert compare.compare(tasks)["data"]["n_left_out"] == 3
    with pytest.raises(
        ValueError, match=r"at least 4 tasks with 4 samples .* got 1: of 1 tasks, 0"
    ):
        compare.compare(make_tasks(1))


def test_constant_targets_are_dropped_and_huge_features_are_an_error():
    tasks = make_tasks(8)
    constant = ltl.TaskSet([*tasks, *((X, np.ones(len(y))) for X, y in make_tasks(3, seed=1))])
    assert len(compare.usable_tasks(constant)) == 8
    with pytest.raises(ValueError, match=r"target that varies, got 0: .* 3 have a constant target"):
        compare.usable_tasks(constant[8:])
    with pytest.raises(ValueError, match=r"features must not exceed 1e\+150, got 1e\+200"):
        compare.usable_tasks(tasks.map_inputs(lambda X: 0 * X + 1e200))


def test_units_of_features_matter_only_without_scaling():
    tasks, units = make_tasks(12), np.array([1e-4, 1, 1, 1, 1e4])
    ours = compare.compare(tasks.map_inputs(lambda X: X * units))
    theirs = compare.compare(tasks)
    for one, other in zip(ours["methods"], theirs["methods"], strict=True):
        assert one["mse"] == pytest.approx(other["mse"], rel=1e-3)
    unscaled = compare.compare(tasks.map_inputs(lambda X: X * units), scale=False)
    assert unscaled["methods"][0]["mse"] != pytest.approx(theirs["methods"][0]["mse"], rel=1e-3)


def test_pooled_ridge_matches_scikit_learn():
    trial = small_trial(fit_intercept=True)
    lam = select_pooled_lam(trial)
    parts = [*trial.training, *trial.test[0]]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    model = Ridge(alpha=lam * len(y)).fit(X, y)
    for metric, score in (
        ("mse", mean_squared_error),
        ("explained_variance", explained_variance_score),
    ):
        expected = [score(y, model.predict(X)) for X, y in trial.test[1]]
        ours = score_pooled(trial, trial.test, np.array([lam]), metric)[0]
        assert ours == pytest.approx(expected, rel=1e-9)


def test_fits_match_the_learners():
    trial = small_trial()
    online = [*fit_online(trial, [3, len(trial.training)])]
    assert [one.n_tasks for one in online] == [3, 12]
    path = ltl.OnlineLTLPath(validation=trial.validation).fit(trial.training)
    assert online[-1].lam == path.best_lam_
    assert np.array_equal(online[-1].D, path.D_)
    paper = next(fit_online(trial, [12], [ALGORITHM_1]))
    settings = {"objective": "error", "geometry": "euclidean", "step": "theory"}
    learner = ltl.OnlineLTL(paper.lam, **settings).fit(trial.training)
    assert np.array_equal(paper.D, learner.D_)
    # Validation tasks choose c and lam.
    tuned = next(fit_online(trial, [12], PAPER_EXPERIMENTS))
    errors = {}
    for chosen in PAPER_EXPERIMENTS:
        path = ltl.OnlineLTLPath(validation=trial.validation, **chosen).fit(trial.training)
        errors[chosen["step"]] = path.scores_.min()
    step = min(errors, key=errors.get)
    settings |= {"step": step, "averaging": "last"}
    learner = ltl.OnlineLTL(tuned.lam, **settings).fit(trial.training)
    assert np.array_equal(tuned.D, learner.D_)
    alone = fit_itl(trial, trial.validation)
    assert np.array_equal(alone.D, np.eye(5) / alone.lam)
    for objective in ("regularized", "error"):
        for batch in fit_batch(trial, [4, 12], objective):
            learner = ltl.BatchLTL(batch.lam, objective=objective)
            expected = learner.fit(trial.training[: batch.n_tasks]).D_
            score, exact = (trial.score(D).mean() for D in (batch.D, expected))
            assert score == pytest.approx(exact, rel=0.05)
        assert batch.n_tasks == 12
    multitask = fit_mtl(trial)
    assert multitask.lam in LAMS
    assert np.trace(multitask.D) <= 1 / multitask.lam * (1 + 1e-9)


def test_validation_share_limits_the_validation_tasks():
    trial = small_trial(validation_share=0.25)
    assert [len(trial.validation_for(t)[0]) for t in (1, 4, 12, 24)] == [1, 1, 3, 6]
    assert len(small_trial().validation_for(1)[0]) == 6


def rows_with(intervals, wins=0.8):
    return [
        {"method": method, "gain": (low + high) / 2, "strict_interval": [low, high], "wins": wins}
        for method, (low, high) in zip(compare.SHARING, intervals, strict=True)
    ]


BAD = (-9, -1)


@pytest.mark.parametrize(
    ("intervals", "n_tasks", "wins", "helps", "sentence"),
    [
        ([BAD, (1, 3), (2, 9), (-4, 2)], 40, 0.8, "yes", "Sharing helps: batch LTL .* 5.5 %"),
        ([BAD, (-2, 20), (1, 3), (-4, 2)], 40, 0.8, "yes", "Sharing helps: batch LTL .* 2.0 %"),
        ([(9, 12), (1, 3), BAD, BAD], 40, 0.8, "yes", "Sharing helps: all tasks as one"),
        ([BAD, (-3, 0.5), BAD, (-4, 0)], 40, 0.8, "no", "Sharing does not help: online LTL rai"),
        ([BAD, (-3, 4), BAD, (-4, 0)], 40, 0.8, "unclear", "Whether .* from this data: online"),
        ([BAD, (0.1, 0.3), BAD, BAD], 40, 0.8, "no", "Sharing does not help: online LTL lowers"),
        ([BAD, (0.1, 1.3), BAD, BAD], 40, 0.8, "unclear", "Whether .* from this data: online"),
        ([BAD, (1, 3), (2, 9), (-4, 2)], 40, 0.4, "unclear", "Whether .* from this data: batch"),
        ([BAD, (1, 3), (2, 9), (-4, 2)], 19, 0.8, "unclear", "Whether .* with only 19 tasks"),
    ],
)
def test_verdict_follows_from_the_intervals(intervals, n_tasks, wins, helps, sentence):
    found = compare.verdict(rows_with(intervals, wins), n_tasks)
    assert found["helps"] == helps
    assert re.match(sentence, found["sentence"])


@pytest.mark.parametrize(("n_tasks", "least"), [(20, 0.88), (60, 0.9)])
def test_intervals_cover_the_true_gain_with_heavy_tails(n_tasks, least):
    """Multiply errors of very different sizes by factors of mean 0.8: the true gain is 20 %."""
    random = np.random.default_rng(0)
    covered = []
    for k in range(200):
        baseline = random.gamma(1.0, size=n_tasks)
        factors = 0.8 * np.exp(0.5 * random.standard_normal(n_tasks) - 0.125)
        [(low, high)] = compare.gain_intervals(factors * baseline, baseline, [0.95], k)
        covered.append(low <= 20 <= high)
    assert least <= np.mean(covered) <= 0.99


def test_interval_of_equal_errors_and_of_zero_errors():
    errors = np.array([1.0, 2.0, 3.0])
    assert compare.gain_intervals(errors, errors, [0.95], 0) == [[0.0, 0.0]]
    assert compare.gain_intervals(0 * errors, 0 * errors, [0.95], 0) == [[100.0, 100.0]]


@pytest.mark.slow
def test_verdict_is_rarely_yes_when_there_is_nothing_to_share():
    """Draw targets independent of the features, around a level of each task."""
    helps = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        scales = np.exp(random.normal(size=30))
        tasks = [
            (random.normal(size=(8, 4)), scale * (3 * random.normal() + random.normal(size=8)))
            for scale in scales
        ]
        helps.append(compare.compare(ltl.TaskSet(tasks), seed)["verdict"]["helps"])
    assert helps.count("yes") <= 2


def test_describe_a_representation():
    D = np.diag([8.0, 1.0, 1.0, 0.0])
    found = compare.describe(D, ["a", "b", "c", "d"])
    assert found["shares"] == pytest.approx([0.8, 0.1, 0.1, 0.0])
    assert found["effective_rank"] == pytest.approx(np.exp(-0.8 * np.log(0.8) - 0.2 * np.log(0.1)))
    assert found["directions"][0]["features"][0] == {"name": "a", "weight": 1.0}
    assert compare.describe(np.eye(4), list("abcd"))["effective_rank"] == pytest.approx(4)
    rotated = np.array([[0.8, -0.6], [0.6, 0.8]]) @ np.diag([3.0, 1.0])
    D = rotated @ np.array([[0.8, -0.6], [0.6, 0.8]]).T
    leading = compare.describe(D, ["a", "b"])["directions"][0]["features"]
    assert [one["name"] for one in leading] == ["a", "b"]
    assert [one["weight"] for one in leading] == pytest.approx([0.8, 0.6])


def test_directions_do_not_depend_on_rounding():
    """Equal entries keep the order of the features; repeated eigenvalues give no direction."""
    direction = np.array([1.0, -1.0 - 1e-12, 0.0, 0.0]) / np.sqrt(2)
    D = np.eye(4) + 3 * np.outer(direction, direction)
    directions = compare.describe(D, list("abcd"))["directions"]
    assert len(directions) == 1
    assert [one["name"] for one in directions[0]["features"]][:2] == ["a", "b"]
    assert directions[0]["features"][0]["weight"] > 0 > directions[0]["features"][1]["weight"]
