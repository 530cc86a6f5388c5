"""Experiments: they compute and return results; nothing here draws or prints."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fastltl import representation
from fastltl.candidates import LAMS, best_candidate
from fastltl.datasets import make_environment
from fastltl.evaluation import HeldOut, evaluate
from fastltl.learners.batch import MTL, BatchLTL
from fastltl.learners.independent import ITL
from fastltl.learners.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.selection import select_lam
from fastltl.tasks import Task, TaskSet
from fastltl.validation import Array


class Outcome(NamedTuple):
    """What a method achieves on test tasks after a number of training tasks."""

    method: str
    n_tasks: int
    lam: float
    test_error: float


def compile_kernels() -> None:
    """Run every kernel once, so that none compiles later."""
    tasks = TaskSet([(np.ones((2, 3)), np.ones(2)), (np.eye(3), np.ones(3))])
    X, y = np.ones((2, 3)), np.ones(2)
    for geometry, step in (("euclidean", "theory"), ("entropic", "adaptive")):
        path = OnlineLTLPath(
            [1.0, 2.0], (tasks, tasks), geometry=geometry, step=step, score_every=1
        )
        D = path.fit(tasks).representations_[0]
        OnlineLTL(geometry=geometry, step=step, fit_intercept=True).fit(tasks).transform(X)
    MTL(fit_intercept=True).fit(tasks)
    ITL().fit(tasks).adapt(X, y)
    for formula in (representation.task_loss, representation.task_gradient):
        formula(D, X, y)
    representation.project(D, 1.0)


def demo(
    n_features: int = 50,
    n_samples: int = 50,
    noise: float = 0.05,
    checkpoints: Sequence[int] = (10, 50, 150, 500),
    seed: int = 0,
    progress: Callable[[Iterable[Task]], Iterable[Task]] = iter,
) -> list[Outcome]:
    """Online LTL against independent ridge regression on the paper's synthetic environment.

    All candidates take each training task as it comes; at every checkpoint lam is chosen by 40
    validation tasks and the error measured on 100 test tasks. `progress` wraps the training
    tasks.
    """
    environment = make_environment(n_features, noise=noise, random_state=seed)
    training = environment.tasks(max(checkpoints), n_samples)
    validation = environment.tasks(40, 2 * n_samples).split_samples(0.5, random_state=seed)
    test = environment.tasks(100, 2 * n_samples).split_samples(0.5, random_state=seed)

    def outcome(method: str, n_tasks: int, lam: float, D: Array) -> Outcome:
        return Outcome(method, n_tasks, float(lam), float(evaluate(D, *test).mean()))

    alone = select_lam(ITL(), training, validation)
    outcomes = [outcome("independent ridge (ITL)", 0, alone.best_lam, alone.learner.D_)]
    default = OnlineLTLPath(validation=validation)
    paper = OnlineLTLPath(validation=validation, geometry="euclidean", step="theory")
    for t, (X, y) in enumerate(progress(training), start=1):
        default.partial_fit(X, y)
        paper.partial_fit(X, y)
        if t in checkpoints:
            outcomes.append(outcome("online LTL", t, default.best_lam_, default.D_))
    outcomes.append(outcome("online LTL, paper's step", t, paper.best_lam_, paper.D_))
    batch = select_lam(BatchLTL(tol=1e-3), training, validation)
    outcomes.append(outcome("batch LTL", t, batch.best_lam, batch.learner.D_))
    subspace = environment.subspace @ environment.subspace.T
    oracles = np.stack([subspace / lam for lam in LAMS])
    scores = HeldOut(*validation).score(oracles).mean(axis=1)
    best = best_candidate(scores, LAMS, "mse")
    return [*outcomes, outcome("true subspace", 0, LAMS[best], oracles[best])]
