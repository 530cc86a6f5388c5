"""A trial: methods learn from the same training tasks and are judged on the same test tasks.

Every method chooses its lam among 30 by validation tasks. Nothing here depends on which data the
tasks come from.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastltl._validation import Array, check_threads
from fastltl.base import RepresentationLearner
from fastltl.batch import MTL, BatchLTL
from fastltl.independent import ITL
from fastltl.metrics import HeldOut, evaluate
from fastltl.path import OnlineLTLPath
from fastltl.selection import LAMS, Halves, best_candidate, select_lam, warn_of_edge
from fastltl.tasks import TaskSet

#: The paper's Algorithm 1; the default is the library's.
PAPER_STEP = {"geometry": "euclidean", "step": "theory"}

#: Certified gap of batch learners, relative to the objective: far below what test errors show.
TOL = 1e-3


class Learned(NamedTuple):
    """A representation, how many training tasks taught it, its lam, and the seconds it took."""

    D: Array
    n_tasks: int
    lam: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """Training tasks, and validation and test tasks in two halves each.

    With `validation_share`, only that many validation tasks are used for each training task.
    """

    training: TaskSet
    validation: Halves
    test: Halves
    metric: str = "mse"
    fit_intercept: bool = False
    validation_share: float | None = None

    def validation_after(self, n_tasks: int) -> Halves:
        """The validation tasks that go with so many training tasks."""
        if self.validation_share is None:
            return self.validation
        train, test = self.validation
        n_used = max(1, round(self.validation_share * n_tasks))
        return train[:n_used], test[:n_used]

    def choose(self, representations: Array, n_tasks: int) -> int:
        """The best of one representation for each of LAMS, by the validation tasks."""
        halves = self.validation_after(n_tasks)
        held_out = HeldOut(*halves, self.metric, self.fit_intercept, check_threads(None))
        return _best(held_out.score(representations), self.metric)

    def judge(self, D: Array, metric: str | None = None) -> Array:
        """The score of a representation on each test task."""
        return evaluate(D, *self.test, metric or self.metric, self.fit_intercept)


def _best(scores: Array, metric: str) -> int:
    """The place in LAMS of the best mean score; one at the edge warns."""
    best = best_candidate(scores.mean(axis=1), LAMS, metric)
    warn_of_edge(LAMS[best], LAMS, stacklevel=2)
    return best


def learn_alone(trial: Trial, validation: Halves) -> Learned:
    """Ridge regression on each task alone; it learns nothing, but its lam is chosen."""
    return _selected(ITL(fit_intercept=trial.fit_intercept), trial, trial.training, validation)


def learn_batch(trial: Trial, n_tasks: int) -> Learned:
    """Batch LTL on the first n_tasks training tasks."""
    learner = BatchLTL(tol=TOL, fit_intercept=trial.fit_intercept)
    validation = trial.validation_after(n_tasks)
    return _selected(learner, trial, trial.training[:n_tasks], validation)


def learn_online(trial: Trial, n_tasks: Collection[int], **settings: Any) -> Iterator[Learned]:
    """One pass of online LTL over the training tasks, seen after these numbers of them."""
    path = OnlineLTLPath(fit_intercept=trial.fit_intercept, **settings)
    seconds = 0.0
    for t, (X, y) in enumerate(trial.training[: max(n_tasks)], start=1):
        start = time.perf_counter()
        path.partial_fit(X, y)
        seconds += time.perf_counter() - start
        if t in n_tasks:
            start = time.perf_counter()
            representations = path.representations_
            best = trial.choose(representations, t)
            to_choose = time.perf_counter() - start
            yield Learned(representations[best], t, float(LAMS[best]), seconds + to_choose)


def learn_multitask(trial: Trial) -> Learned:
    """MTL on the training halves of the test tasks themselves."""
    learner = MTL(tol=TOL, fit_intercept=trial.fit_intercept)
    return _selected(learner, trial, trial.test[0], trial.validation)


def choose_pooled_lam(trial: Trial) -> float:
    """The lam of `score_pooled` that serves validation tasks."""
    scores = score_pooled(trial, trial.validation, LAMS, trial.metric)
    return float(LAMS[_best(scores, trial.metric)])


def score_pooled(trial: Trial, halves: Halves, lams: Array, metric: str) -> Array:
    """Scores of shape (lams, tasks) of one ridge regression for all tasks.

    It learns from the training tasks and the training halves together.
    """
    parts = [*trial.training, *halves[0]]
    rows = np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    weights, intercepts = ITL(fit_intercept=trial.fit_intercept).path([rows], lams)
    with_intercepts = np.concatenate([weights, intercepts[:, :, None]], axis=2)
    train, test = map(_with_constant, halves)
    return HeldOut(train, test, metric).score_weights(
        np.repeat(with_intercepts, len(train), axis=1)
    )


def _with_constant(tasks: TaskSet) -> TaskSet:
    """The tasks with one more feature, which is always 1."""
    return tasks.map_inputs(lambda X: np.column_stack([X, np.ones(len(X))]))


def _selected(
    learner: RepresentationLearner, trial: Trial, tasks: TaskSet, validation: Halves
) -> Learned:
    start = time.perf_counter()
    chosen = select_lam(learner, tasks, validation, metric=trial.metric)
    seconds = time.perf_counter() - start
    return Learned(chosen.learner.D_, len(tasks), chosen.best_lam, seconds)
