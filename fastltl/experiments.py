"""Experiments: they compute and return results; nothing here draws or prints."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fastltl.datasets import make_environment
from fastltl.evaluation import evaluate
from fastltl.learners.online import OnlineLTL
from fastltl.tasks import Task, TaskSet
from fastltl.validation import Array

#: The candidates of the paper: 30 values of lam, log-spaced on [1e-6, 1e3].
LAMS = np.logspace(-6, 3, 30)

Halves = tuple[TaskSet, TaskSet]


class Outcome(NamedTuple):
    """What a method achieves on test tasks after a number of training tasks."""

    method: str
    n_tasks: int
    lam: float
    test_error: float


def best_on_validation(
    representations: Sequence[Array], validation: Halves, test: Halves
) -> tuple[float, float]:
    """Choose among one representation per lam by validation tasks: (its lam, its test error)."""
    errors = [evaluate(D, *validation).mean() for D in representations]
    best = int(np.argmin(errors))
    return float(LAMS[best]), float(evaluate(representations[best], *test).mean())


def compile_kernels() -> None:
    """Run every kernel of the online learners once, so that none compiles within an experiment."""
    X, y = np.ones((2, 3)), np.ones(2)
    for geometry in ("euclidean", "entropic"):
        OnlineLTL(geometry=geometry).partial_fit(X, y).adapt(X, y)


def demo(
    n_features: int = 50,
    n_samples: int = 50,
    noise: float = 0.05,
    checkpoints: Sequence[int] = (10, 50, 150, 500),
    seed: int = 0,
    progress: Callable[[Iterable[Task]], Iterable[Task]] = iter,
) -> list[Outcome]:
    """Online LTL against independent ridge regression on the paper's synthetic environment.

    All candidate learners take each training task as it comes; at every checkpoint lam is chosen
    by 40 validation tasks and the error measured on 100 test tasks. `progress` wraps the
    training tasks.
    """
    environment = make_environment(n_features, noise=noise, random_state=seed)
    training = environment.tasks(max(checkpoints), n_samples)
    validation = environment.tasks(40, 2 * n_samples).split_samples(0.5, random_state=seed)
    test = environment.tasks(100, 2 * n_samples).split_samples(0.5, random_state=seed)

    def outcome(method: str, n_tasks: int, representations: Sequence[Array]) -> Outcome:
        return Outcome(method, n_tasks, *best_on_validation(representations, validation, test))

    identity, subspace = np.eye(n_features), environment.subspace
    paper = [OnlineLTL(lam, geometry="euclidean", step="theory") for lam in LAMS]
    default = [OnlineLTL(lam) for lam in LAMS]
    outcomes = [outcome("independent ridge (ITL)", 0, [identity / lam for lam in LAMS])]
    for t, (X, y) in enumerate(progress(training), start=1):
        X, y = X.copy(), y.copy()  # once for all learners, which would each copy what is read-only
        for learner in paper + default:
            learner.partial_fit(X, y)
        if t in checkpoints:
            outcomes.append(outcome("online LTL", t, [learner.D_ for learner in default]))
    outcomes.append(outcome("online LTL, paper's step", t, [learner.D_ for learner in paper]))
    oracle = [subspace @ subspace.T / lam for lam in LAMS]
    return [*outcomes, outcome("true subspace", 0, oracle)]
