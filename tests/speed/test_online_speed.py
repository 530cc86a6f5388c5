"""Seconds for 100 tasks, plain NumPy beside the compiled kernels. Nothing is asserted of them.

``pytest tests/speed --benchmark-group-by=group`` prints the groups with their ratios.
"""

from collections import deque

import numpy as np
import pytest
from naive import literal_gradient, ragged_tasks, relative
from threadpoolctl import threadpool_limits

import fastltl as ltl
from fastltl import reference

LAM = 1e-2
CASES = [
    ("euclidean", "theory", 50, 20),
    ("euclidean", "adaptive", 50, 20),
    ("entropic", "adaptive", 50, 20),
]


def literal_numpy(tasks, geometry, step):
    """Algorithm 1 of the paper with its own formula of the gradient."""
    d = tasks[0][0].shape[1]
    D, total = np.eye(d) / (LAM * d), np.zeros((d, d))
    for t, (X, y) in enumerate(tasks, start=1):
        total += D
        D = reference.project(D - literal_gradient(D, X, y) / (LAM * np.sqrt(2 * t)), 1 / LAM)
    return D


def plain_numpy(tasks, geometry, step):
    return deque(reference.online_iterates(tasks, LAM, geometry, step), maxlen=1)[0][1]


def compiled(tasks, geometry, step):
    learner = ltl.OnlineLTL(LAM, geometry=geometry, step=step)
    for X, y in tasks:
        learner.partial_fit(X, y)
    return learner.iterate_


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "geometry", "step", "d", "n"),
    [(run, *case) for case in CASES for run in (compiled, plain_numpy)]
    + [(literal_numpy, *CASES[0])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_online(benchmark, run, geometry, step, d, n):
    tasks = ragged_tasks(0, 100, d, (n, n))
    benchmark.group = f"100 tasks, {geometry} {step}, d={d}, n={n}"
    with threadpool_limits(1, user_api="blas"):
        D = benchmark.pedantic(run, (tasks, geometry, step), rounds=7, warmup_rounds=1)
    assert relative(D, plain_numpy(tasks, geometry, step)) < 1e-10
