"""Fit every method on the same training tasks and score it on the same test tasks.

Each method selects lam among 30 candidates by its score on validation tasks.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from fastltl._validation import Array, check_threads
from fastltl.batch import MTL, BatchLTL, fit_path
from fastltl.bayes import BayesLTL
from fastltl.metrics import HeldOut, evaluate
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.ridge import ITL
from fastltl.selection import (
    LAMS,
    Halves,
    best_candidate,
    select_lam,
    warn_of_edge,
    warn_of_short_fits,
)
from fastltl.tasks import TaskSet

Settings = dict[str, Any]

#: Settings of `OnlineLTL` that give the paper's Algorithm 1.
ALGORITHM_1: Settings = {"objective": "error", "geometry": "euclidean", "step": "theory"}

#: Settings as in the paper's experiments: steps c / sqrt(t) with a c to choose, and the last
#: iterate instead of the mean.
PAPER_EXPERIMENTS: list[Settings] = [
    ALGORITHM_1 | {"step": 10.0**power, "averaging": "last"} for power in range(-2, 13, 2)
]

#: Nominal coverage of the prediction intervals, in percent.
LEVELS = (50, 80, 95)

#: Relative gap at which batch learners stop; a smaller one hardly changes test errors.
TOL = 1e-3


class Fit(NamedTuple):
    """A representation, the number of tasks it was fitted on, its lam and the seconds it took."""

    D: Array
    n_tasks: int
    lam: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """Training tasks, and the training and test halves of the validation and test tasks.

    If `validation_share` is given, a method fitted on t training tasks selects lam with the first
    `validation_share` * t validation tasks only.
    """

    training: TaskSet
    validation: Halves
    test: Halves
    metric: str = "mse"
    fit_intercept: bool = False
    validation_share: float | None = None

    def validation_for(self, n_tasks: int) -> Halves:
        """Return the validation tasks to use with the first n_tasks training tasks."""
        if self.validation_share is None:
            return self.validation
        train, test = self.validation
        n_used = max(1, round(self.validation_share * n_tasks))
        return train[:n_used], test[:n_used]

    def select(self, representations: Array, n_tasks: int) -> int:
        """Return the index of the best representation, given one or more for each of LAMS."""
        halves = self.validation_for(n_tasks)
        held_out = HeldOut(*halves, self.metric, self.fit_intercept, check_threads(None))
        return _best_index(held_out.score(representations), self.metric)

    def score(self, D: Array, metric: str | None = None) -> Array:
        """Score a representation on each test task."""
        return evaluate(D, *self.test, metric or self.metric, self.fit_intercept)


def _best_index(scores: Array, metric: str) -> int:
    """Return the index of the best mean score; warn if its lam is the first or last.

    The scores are those of LAMS, one or more times over.
    """
    lams = np.tile(LAMS, len(scores) // len(LAMS))
    best = best_candidate(scores.mean(axis=1), lams, metric)
    warn_of_edge(lams[best], LAMS, stacklevel=2)
    return best


def fit_itl(trial: Trial, validation: Halves) -> Fit:
    """Select lam of ridge regression on each task alone; the training tasks do not matter."""
    start = time.perf_counter()
    learner = ITL(fit_intercept=trial.fit_intercept)
    selection = select_lam(learner, trial.training, validation, metric=trial.metric)
    seconds = time.perf_counter() - start
    return Fit(selection.learner.D_, len(trial.training), selection.best_lam, seconds)


def fit_batch(
    trial: Trial, n_tasks: Collection[int], objective: str = "regularized", seconds: float = np.inf
) -> Iterator[Fit]:
    """Fit batch LTL on the first training tasks; yield a fit for each number in n_tasks.

    With each lam a fit starts from the one on fewer tasks; the first ones go from the largest lam
    to the smallest. Seconds add up over the fits. TimeoutError is raised if the candidates for a
    number of tasks take more than so many `seconds`.
    """
    learner = BatchLTL(objective=objective, tol=TOL, fit_intercept=trial.fit_intercept)
    candidates, total = None, 0.0
    for t in sorted(n_tasks):
        fit, candidates = _fit_lams(learner, trial, trial.training[:t], candidates, seconds)
        total += fit.seconds
        yield fit._replace(seconds=total)


def fit_mtl(trial: Trial, seconds: float = np.inf) -> Fit:
    """Fit MTL on the training halves of the test tasks themselves.

    Its lam is the one whose representation is best for the validation tasks. TimeoutError is raised
    if the candidates take more than so many `seconds`.
    """
    learner = MTL(tol=TOL, fit_intercept=trial.fit_intercept)
    return _fit_lams(learner, trial, trial.test[0], None, seconds)[0]


def _fit_lams(
    learner: BatchLTL,
    trial: Trial,
    tasks: TaskSet,
    earlier: Sequence[BatchLTL] | None,
    seconds: float,
) -> tuple[Fit, list[BatchLTL]]:
    """Fit a batch learner for each lam; return the best fit for the validation tasks, and all."""
    start, lams = time.perf_counter(), LAMS.tolist()
    candidates = fit_path(learner, tasks, lams, check_threads(None), earlier, seconds)
    best = trial.select(np.stack([candidate.D_ for candidate in candidates]), len(tasks))
    warn_of_short_fits(candidates, candidates[best])
    taken = time.perf_counter() - start
    return Fit(candidates[best].D_, len(tasks), lams[best], taken), candidates


def fit_online(
    trial: Trial, n_tasks: Collection[int], choices: Sequence[Settings] = ({},)
) -> Iterator[Fit]:
    """Run online LTL once over the training tasks; yield a fit after each number in n_tasks.

    The validation tasks select lam and one of the `choices` of other settings.
    """
    paths = [OnlineLTLPath(fit_intercept=trial.fit_intercept, **settings) for settings in choices]
    seconds = 0.0
    for t, (X, y) in enumerate(trial.training[: max(n_tasks)], start=1):
        start = time.perf_counter()
        for path in paths:
            path.partial_fit(X, y)
        seconds += time.perf_counter() - start
        if t in n_tasks:
            start = time.perf_counter()
            representations = np.concatenate([path.representations_ for path in paths])
            best = trial.select(representations, t)
            D = representations[best].copy()  # a view would keep all candidates in memory
            lam = float(LAMS[best % len(LAMS)])
            yield Fit(D, t, lam, seconds + time.perf_counter() - start)


def select_pooled_lam(trial: Trial) -> float:
    """Select lam of `score_pooled` by the validation tasks."""
    scores = score_pooled(trial, trial.validation, LAMS, trial.metric)
    return float(LAMS[_best_index(scores, trial.metric)])


def score_pooled(trial: Trial, halves: Halves, lams: Array, metric: str) -> Array:
    """Score one ridge regression for all tasks: an array of shape (lams, tasks).

    It is fitted on the training tasks together with the training halves.
    """
    parts = [*trial.training, *halves[0]]
    rows = np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    weights, intercepts = ITL(fit_intercept=trial.fit_intercept).path([rows], lams)
    # A constant feature carries the intercept, which HeldOut would otherwise fit to each task.
    weights = np.concatenate([weights, intercepts[:, :, None]], axis=2)
    train, test = (
        half.map_inputs(lambda X: np.column_stack([X, np.ones(len(X))])) for half in halves
    )
    weights_by_task = np.repeat(weights.swapaxes(0, 1), len(train), axis=0)
    return HeldOut(train, test, metric).score_weights(weights_by_task)


class Split(NamedTuple):
    """Training tasks, and a trial whose test halves are the given and held-out rows of new tasks.

    The trial selects lam, with fewer training tasks if it needs some of them for validation.
    `halves` select lam of methods that do not learn from the training tasks. Targets are in units
    of `target_unit`.
    """

    training: TaskSet
    trial: Trial
    halves: Halves
    target_unit: float = 1.0


def make_split(training: TaskSet, new: TaskSet, generator: np.random.Generator) -> Split:
    """Split the rows of new tasks into halves, one given and one held out.

    Features and targets are standardised by the rows that may be fitted: those of the training
    tasks and the given halves. Methods that need lam learn from two thirds of the training tasks,
    select it by the other third, in halves, and learn again from all training tasks.
    """
    given, held_out = new.split_samples(0.5, generator)
    parts = [*training, *given]
    X, y = np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    x_mean, scale, y_mean, unit = X.mean(axis=0), X.std(axis=0), y.mean(), float(y.std()) or 1.0
    scale[scale == 0.0] = 1.0

    def standardise(part: TaskSet) -> TaskSet:
        changed = (((X - x_mean) / scale, (y - y_mean) / unit) for X, y in part)
        return TaskSet(changed, list(part.labels))

    training, given, held_out = map(standardise, (training, given, held_out))
    halves = training.split_samples(0.5, generator)
    n_learned = round(2 * len(training) / 3)
    validation = halves[0][n_learned:], halves[1][n_learned:]
    trial = Trial(training[:n_learned], validation, (given, held_out), fit_intercept=True)
    return Split(training, trial, halves, unit)


def score_alone(split: Split) -> Array:
    """Score ridge regression on each new task alone."""
    return split.trial.score(fit_itl(split.trial, split.halves).D)


def score_one_model(split: Split) -> Array:
    """Score one ridge regression for all tasks on each new task."""
    lams = np.array([select_pooled_lam(split.trial)])
    trial = replace(split.trial, training=split.training)
    scores: Array = score_pooled(trial, trial.test, lams, trial.metric)[0]
    return scores


def score_online(split: Split) -> Array:
    """Score online LTL on each new task."""
    trial = split.trial
    lam = next(fit_online(trial, [len(trial.training)])).lam
    learner = OnlineLTL(lam, fit_intercept=trial.fit_intercept).fit(split.training)
    return trial.score(learner.D_)


def score_batch(split: Split, seconds: float = np.inf) -> Array:
    """Score batch LTL on each new task."""
    trial = split.trial
    lam = next(fit_batch(trial, [len(trial.training)], seconds=seconds)).lam
    learner = BatchLTL(lam, tol=TOL, fit_intercept=trial.fit_intercept).fit(split.training)
    return trial.score(learner.D_)


def score_mtl(split: Split, seconds: float = np.inf) -> Array:
    """Score MTL, which learns from the given rows of the new tasks, on each of them."""
    trial = replace(split.trial, validation=split.halves)
    return trial.score(fit_mtl(trial, seconds).D)


def coverage(learner: BayesLTL, given: TaskSet, held_out: TaskSet) -> list[float]:
    """Return the share of held-out targets within the interval of each of LEVELS."""
    X, y = (np.concatenate(arrays) for arrays in zip(*held_out, strict=True))
    groups = np.repeat(np.arange(len(held_out)), held_out.sizes)  # labels may not be distinct
    prediction, std = learner.adapt(TaskSet(given)).predict(X, groups, return_std=True)
    distances = np.abs(y - prediction) / std
    return [float(np.mean(distances <= stats.norm.ppf(0.5 + level / 200))) for level in LEVELS]
