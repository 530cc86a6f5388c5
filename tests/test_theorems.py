"""Search for problems on which the bounds of the regularized objective fail: there must be none.

The problems are small and wild: inputs and targets whose scales differ by four powers of ten, few
samples, dependent rows, lam from 1e-6 to 1. On such problems the bounds of the error objective do
fail; see test_proposition.py.
"""

import warnings

import numpy as np
import pytest
from naive import random_psd
from sklearn.exceptions import ConvergenceWarning

import fastltl as ltl
from fastltl import reference
from fastltl._kernels.linalg import HAS_JIT
from fastltl._solver import Progress, minimise

#: Problems in all, in parts of this many, and rounds over the tasks of a problem.
N_PROBLEMS = 2000 if HAS_JIT else 100
PART = 100
ROUNDS = 20

RULES = [
    {"geometry": "entropic"},
    {"geometry": "euclidean", "step": "adaptive"},
    {"geometry": "euclidean", "step": "theory"},
]


#: The first hundred problems are tried in every run.
every_part = pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.slow if part > 0 else ())
        for part in range(N_PROBLEMS // PART)
    ],
)


def wild_problem(seed):
    """Draw tasks and lam."""
    rng = np.random.default_rng([18, seed])
    d, n_tasks = rng.integers(1, 5, size=2)
    tasks = []
    for _ in range(n_tasks):
        n = rng.integers(1, 5)
        X = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-3, 1, size=(n, 1))
        X *= 10.0 ** (rng.uniform(-2, 0, size=d) * rng.integers(2))
        if n > 1 and rng.random() < 0.2:
            X[1] = X[0]
        tasks.append((X, rng.normal(size=n) * 10.0 ** rng.uniform(-3, 1)))
    return tasks, 10.0 ** rng.uniform(-6, 0), rng


def fit(tasks, lam):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a larger gap has to hold, too
        return ltl.BatchLTL(lam).fit(tasks)


def search(tasks, lam, rng):
    """Return the least objective among random feasible D, and where descent from some ends."""
    d = tasks[0][0].shape[1]
    ranks = [1 + i % d for i in range(12)]
    starts = [random_psd(rng, d, rank, trace=1 / lam) for rank in ranks]
    objective = ltl.TaskSet(tasks).mean_objective(True, False, 1)
    ends = [minimise(objective, D, 1e-9, Progress(1 / lam, 30)).D for D in starts[:2]]
    return min(reference.mean_objective(D, tasks)[0] for D in [*starts, *ends])


@every_part
def test_no_feasible_D_is_below_the_objective_less_the_gap(part):
    for seed in range(part * PART, (part + 1) * PART):
        tasks, lam, rng = wild_problem(seed)
        learner = fit(tasks, lam)
        found = search(tasks, lam, rng)
        rounding = 1e-12 * np.mean([y @ y / len(y) for _, y in tasks])
        assert found >= learner.objective_ - learner.gap_ - rounding, seed


@every_part
def test_no_regret_is_above_its_bound(part):
    for seed in range(part * PART, (part + 1) * PART):
        tasks, lam, rng = wild_problem(seed)
        # Neither the fit nor the search can be below the best fixed D by more than rounding.
        best = min(fit(tasks, lam).objective_, search(tasks, lam, rng))
        rounding = 1e-12 * np.mean([y @ y / len(y) for _, y in tasks])
        for rule in RULES:
            learner = ltl.OnlineLTL(lam, **rule).fit(tasks * ROUNDS)
            regret = learner.cumulative_loss_ / learner.n_tasks_seen_ - best
            assert regret <= learner.regret_bound_ + rounding, (seed, rule)
