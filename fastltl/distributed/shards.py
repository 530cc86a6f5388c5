"""Tasks on the workers of a Dask cluster, and the batch learners' objective over them.

A shard is a function without arguments that returns a `TaskSet`, so that another worker can load
it again if a worker is lost. Results are combined in the order of the shards, not of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._columns import as_objects
from fastltl._objective import MeanObjective, Names, Objective, TaskCollection, relative_scales
from fastltl._validation import Array, check_computed
from fastltl.distributed.cluster import TIMEOUT, Cluster
from fastltl.io.streams import open_stream
from fastltl.tasks import TaskSet

Shard = Callable[[], TaskSet]


class Facts(NamedTuple):
    """Summary of a shard, sent to the client in place of its data."""

    labels: npt.NDArray[np.object_]
    n_features: int
    feature_names: Names
    largest_target: float


class ShardedTaskSet(TaskCollection):
    """Tasks spread over the workers of a Dask cluster, for `BatchLTL` and `MTL`.

    The learners accept it in place of a `TaskSet`, with the same result. Each evaluation sends a
    d x d matrix to the workers and returns a d x d matrix and a number.

    Parameters
    ----------
    shards : sequence of callables
        Functions without arguments, each of which returns a TaskSet on any worker.
    client : distributed.Client
    timeout : float
        Seconds without a scheduler or workers after which a fit raises a ConnectionError.

    Examples
    --------
    >>> from functools import partial
    >>> from distributed import Client
    >>> import fastltl as ltl
    >>> from fastltl.distributed import ShardedTaskSet
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> parts = [environment.tasks(20, n_samples=8) for _ in range(3)]
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     tasks = ShardedTaskSet([partial(ltl.TaskSet, list(part)) for part in parts], client)
    ...     learner = ltl.BatchLTL(lam=0.1).fit(tasks)
    >>> tasks
    ShardedTaskSet(60 tasks, 5 features, 3 shards)
    >>> learner.D_.trace().round(6)
    np.float64(10.0)
    """

    def __init__(self, shards: Iterable[Shard], client: Any, timeout: float = TIMEOUT) -> None:
        self.cluster = Cluster(client, timeout)
        self.shards = list(shards)
        for i, shard in enumerate(self.shards):
            if not callable(shard):
                raise TypeError(f"shard {i} must be a function, got {type(shard).__name__}.")
        if not self.shards:
            raise ValueError("shards must hold at least one function, got none.")
        # Each shard is loaded once, and again if its worker is lost.
        submit = self.cluster.submit
        self.parts = [submit(load_shard, i, shard) for i, shard in enumerate(self.shards)]
        self.facts: list[Facts] = self.cluster.results([submit(_facts, p) for p in self.parts])
        for i, facts in enumerate(self.facts):
            if (facts.n_features, facts.feature_names) != (self.n_features, self.feature_names):
                got = facts.feature_names or facts.n_features
                raise ValueError(
                    f"shard {i} must have the {self.n_features} features of shard 0, got {got}."
                )

    @classmethod
    def from_files(
        cls,
        paths: Iterable[str | PathLike[str]],
        client: Any,
        task: str | None = None,
        target: str = "y",
        features: Sequence[str] | None = None,
        timeout: float = TIMEOUT,
    ) -> ShardedTaskSet:
        """Create one shard per file, read by `fastltl.open_stream` on a worker.

        Parameters
        ----------
        paths : iterable of str or path
            Paths that are valid on every worker.
        client, timeout
            As for the class.
        task, target, features
            As in `fastltl.open_stream`.
        """
        if isinstance(paths, str | PathLike):
            raise TypeError(f"paths must be an iterable of paths, got the path {paths!r}.")
        shards = [partial(_read, path, task, target, features) for path in paths]
        return cls(shards, client, timeout)

    def __len__(self) -> int:
        return sum(len(facts.labels) for facts in self.facts)

    def __repr__(self) -> str:
        return (
            f"ShardedTaskSet({len(self)} tasks, {self.n_features} features, "
            f"{len(self.shards)} shards)"
        )

    @property
    def n_features(self) -> int:
        """Number of features, the same in every task."""
        return self.facts[0].n_features

    @property
    def feature_names(self) -> Names:
        """Names of the features, or None if the shards have none."""
        return self.facts[0].feature_names

    @property
    def labels(self) -> npt.NDArray[np.object_]:
        """Label of each task, or a pair (index of its shard, label) if labels repeat."""
        labels = [label for facts in self.facts for label in facts.labels]
        if len(set(labels)) < len(labels):
            labels = [(i, label) for i, facts in enumerate(self.facts) for label in facts.labels]
        return as_objects(labels)

    def mean_objective(
        self, regularized: bool, fit_intercept: bool, n_threads: int
    ) -> ShardedObjective:
        """Create the objective of the batch learners; Dask sets the threads of each worker."""
        unit = max(facts.largest_target for facts in self.facts)
        parts = [
            self.cluster.submit(_objective, part, regularized, fit_intercept, unit)
            for part in self.parts
        ]
        return ShardedObjective(self.cluster, parts, [len(f.labels) for f in self.facts], unit)


class ShardedObjective(Objective):
    """The mean of an objective over the tasks of all shards."""

    def __init__(
        self, cluster: Cluster, parts: list[Any], sizes: list[int], target_unit: float
    ) -> None:
        self.cluster, self.parts, self.target_unit = cluster, parts, target_unit
        self.n_tasks = sum(sizes)
        futures = [cluster.submit(_scales_and_value_at_zero, part) for part in parts]
        squares, values = zip(*cluster.results(futures), strict=True)
        self._feature_scales = relative_scales(squares)
        self._value_at_zero = check_computed(float(sum(values) / self.n_tasks))
        self.n_features = len(self._feature_scales)
        self._D = np.zeros((self.n_features, self.n_features))

    @property
    def value_at_zero(self) -> float:
        return self._value_at_zero

    @property
    def feature_scales(self) -> Array:
        return self._feature_scales

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        self._D = D
        futures = self.cluster.ask_all(self.parts, _value_and_gradient, D)
        value, gradient = self.cluster.total(futures)
        return check_computed(float(value / self.n_tasks)), check_computed(gradient / self.n_tasks)

    def curvature(self, E: Array) -> Array:
        futures = self.cluster.ask_all(self.parts, _curvature, (self._D, E))
        (change,) = self.cluster.total(futures)
        mean: Array = change / self.n_tasks
        return mean

    def weights_and_intercepts(self, D: Array) -> tuple[Array, Array]:
        futures = self.cluster.ask_all(self.parts, _weights_and_intercepts, D)
        weights, intercepts = zip(*self.cluster.results(futures), strict=True)
        return np.concatenate(weights), np.concatenate(intercepts)


def _read(
    path: str | PathLike[str], task: str | None, target: str, features: Sequence[str] | None
) -> TaskSet:
    return open_stream(path, task, target, features).collection()


def load_shard(i: int, shard: Shard) -> TaskSet:
    """Return the tasks of shard i; errors begin with the shard's index."""
    try:
        tasks = shard()
        if not isinstance(tasks, TaskSet):
            raise TypeError(f"its function must return a TaskSet, got {type(tasks).__name__}.")
        if len(tasks) == 0:
            raise ValueError("it must hold at least one task, got none.")
    except OSError as error:
        raise OSError(f"shard {i}: {error}") from error
    except TypeError as error:
        raise TypeError(f"shard {i}: {error}") from error
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"shard {i}: {kind}{error}") from error
    return tasks


def _facts(tasks: TaskSet) -> Facts:
    return Facts(tasks.labels, tasks.n_features, tasks.feature_names, tasks.largest_target)


def _objective(
    tasks: TaskSet, regularized: bool, fit_intercept: bool, target_unit: float
) -> MeanObjective:
    # Dask computes several shards at a time, so each has one thread.
    return tasks.mean_objective(regularized, fit_intercept, 1, target_unit)


def _scales_and_value_at_zero(objective: MeanObjective) -> tuple[tuple[float, Array], float]:
    return objective.feature_squares, objective.value_at_zero * objective.n_tasks


def _value_and_gradient(objective: MeanObjective, D: Array) -> tuple[float, Array]:
    value, gradient = objective.value_and_gradient(D)
    return value * objective.n_tasks, gradient * objective.n_tasks


def _curvature(objective: MeanObjective, D_and_E: tuple[Array, Array]) -> tuple[Array]:
    D, E = D_and_E
    objective.evaluate_at(D)  # a shard that was loaded again has not been evaluated yet
    return (objective.curvature(E) * objective.n_tasks,)


def _weights_and_intercepts(objective: MeanObjective, D: Array) -> tuple[Array, Array]:
    return objective.weights_and_intercepts(D)
