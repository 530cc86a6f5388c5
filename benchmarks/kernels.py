"""Compare the kernels of one task with the NumPy reference."""

from functools import partial

import numpy as np

from benchmarks.timing import _Comparison
from fastltl import reference
from fastltl._kernels import spectral, task

SIZES = [(50, 20), (50, 50), (200, 50), (500, 50)]
RADIUS = 100.0


def draw_problem(d, n):
    """Draw a representation of trace RADIUS and a task with inputs on the unit sphere."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    A = rng.normal(size=(d, d))
    D = A @ A.T
    return D * RADIUS / np.trace(D), X, X @ rng.normal(size=d)


class Kernels(_Comparison):
    """Time loss, gradient and weights of a task, and a projection that clips eigenvalues."""

    params = (
        [
            "task_loss, regularized",
            "task_loss, error",
            "task_gradient, regularized",
            "task_gradient, error",
            "ridge_weights",
            "project",
        ],
        SIZES,
    )
    param_names = ("kernel", "(d, n)")
    repeats = 25

    def setup_cache(self):
        return {size: draw_problem(*size) for size in SIZES}

    def runs(self, data, name, size):
        D, X, y = data[size]
        if name == "project":
            Q = D - RADIUS / len(D) * np.eye(len(D))
            return (partial(module.project, Q, RADIUS / 4) for module in (spectral, reference))
        if name == "ridge_weights":
            return (partial(module.ridge_weights, D, X, y) for module in (task, reference))
        function, objective = name.split(", ")
        return (
            partial(getattr(task, function), D, X, y, objective == "regularized"),
            partial(getattr(reference, function), D, X, y, objective),
        )


class RankTwoUpdate(_Comparison):
    """Time an update of an eigen-decomposition by two secular equations against a new one."""

    params = ([50, 200, 500], ["a tenth", "all"])
    param_names = ("d", "rank")
    repeats = 9

    def setup_cache(self):
        rng = np.random.default_rng(0)
        return {
            d: (draw_problem(d, 1)[0], rng.normal(size=d), rng.normal(size=d))
            for d in (50, 200, 500)
        }

    def runs(self, data, d, rank):
        D, a, b = data[d]
        n_known = d if rank == "all" else d // 10
        values, V = np.linalg.eigh(D)
        values[: d - n_known] = 0.0
        A = (V * values) @ V.T

        def fast():
            vectors, new = np.zeros((d, d)), np.zeros(d)
            vectors[:n_known], new[:n_known] = V.T[d - n_known :], values[d - n_known :]
            size = spectral.rank_two_update(vectors, new, n_known, a, b, 0.1)
            return spectral.compose(vectors[:size], new[:size], 0.0)

        def plain():
            new, W = np.linalg.eigh(A + 0.1 * (np.outer(a, b) + np.outer(b, a)))
            return (W * new) @ W.T

        return fast, plain
