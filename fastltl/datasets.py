"""Environments that tasks are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from fastltl.tasks import Task, TaskSet
from fastltl.validation import Array, check_count, check_generator, check_positive


class Environment:
    """An endless supply of linear tasks whose weights share a subspace; see `make_environment`.

    Attributes
    ----------
    subspace : ndarray of shape (n_features, rank)
        Orthonormal basis of the subspace.
    """

    def __init__(
        self, subspace: Array, noise: float, signal: float, generator: np.random.Generator
    ) -> None:
        self.subspace = subspace
        self.noise = noise
        self.signal = signal
        self._generator = generator

    def stream(self, n_samples: int) -> Iterator[Task]:
        """Draw tasks (X, y) of n_samples each, without end."""
        d, rank = self.subspace.shape
        check_count(n_samples, "n_samples")
        while True:
            w = self.subspace @ _on_sphere(self._generator, 1, rank)[0]
            X = _on_sphere(self._generator, n_samples, d)
            noise = self.noise * self._generator.standard_normal(n_samples)
            yield X, self.signal * (X @ w) + noise

    def tasks(self, n_tasks: int, n_samples: int) -> TaskSet:
        """Draw n_tasks tasks of n_samples each."""
        return TaskSet(islice(self.stream(n_samples), check_count(n_tasks, "n_tasks")))


def make_environment(
    n_features: int = 50,
    rank: int | None = None,
    noise: float = 0.2,
    signal: float = 1.0,
    random_state: int | np.random.Generator | None = None,
) -> Environment:
    """The paper's synthetic environment: y = signal w'x + noise e, with w in a shared subspace.

    Inputs x are uniform on the unit sphere of R^d, weights w on the unit sphere of a random
    subspace, e is standard normal.

    Parameters
    ----------
    n_features : int
        d, in the paper 50.
    rank : int, optional
        Dimension of the subspace, by default half of n_features.
    noise : float
        Standard deviation of the noise. The paper writes N(0, 0.2) and does not say whether
        0.2 is the deviation or the variance; here it is the deviation.
    signal : float
        Norm of the weights.
    random_state : int, Generator or None
        Seed. The subspace and then all tasks, in the order in which they are asked for, follow
        from it.

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(random_state=0)
    >>> environment.tasks(10, n_samples=25)
    TaskSet(10 tasks, 50 features, 250 samples)
    """
    generator = check_generator(random_state)
    n_features = check_count(n_features, "n_features")
    rank = max(1, n_features // 2) if rank is None else check_count(rank, "rank")
    if rank > n_features:
        raise ValueError(f"rank must be at most n_features={n_features}, got {rank}.")
    if noise != 0:
        check_positive(noise, "noise", "a finite number from 0 up")
    check_positive(signal, "signal")
    subspace = np.linalg.qr(generator.standard_normal((n_features, rank)))[0]
    return Environment(subspace, noise, signal, generator)


def _on_sphere(generator: np.random.Generator, n: int, d: int) -> Array:
    """n points uniform on the unit sphere of R^d, as rows."""
    points = generator.standard_normal((n, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points
