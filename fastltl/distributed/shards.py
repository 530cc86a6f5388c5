"""Calls on the workers of a Dask cluster, the tasks there and the batch learners' objective.

A shard is a function without arguments that returns a `TaskSet`, so that another worker can load
it again if a worker is lost. Results are combined in the order of the shards, not of arrival.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._objective import MeanObjective, Names, TaskCollection, relative_scales
from fastltl._validation import Array, as_objects, check_computed, check_positive, reason_of
from fastltl.io.streams import open_stream
from fastltl.tasks import TaskSet

#: Number of partial sums that one task of the cluster adds up.
FAN_IN = 16

#: Seconds without a scheduler, or without workers, after which a computation fails.
TIMEOUT = 60.0

Shard = Callable[[], TaskSet]


class Cluster:
    """Call functions on a client's workers; raise ConnectionError if the cluster fails."""

    def __init__(self, client: Any, timeout: float) -> None:
        if not hasattr(client, "submit"):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}.")
        self.client = client
        self.timeout = check_positive(timeout, "timeout")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the future of a call, which other calls accept as an argument."""
        try:
            return self.client.submit(function, *arguments, pure=False)
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._connection_lost() from error

    def result(self, future: Any) -> Any:
        """Wait for a future and return its result or raise its error."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        self._wait_for_any([future])
        try:
            return future.result()
        except (CancelledError, CommClosedError) as error:
            time.sleep(0.5)  # the client notices a lost connection with a delay
            if self.client.status == "running":
                raise ConnectionError(f"the call was cancelled: {reason_of(error)}.") from error
            raise self._connection_lost() from error
        except KilledWorker as error:
            raise ConnectionError(
                "several workers died on the same shard: give them more memory or use more shards."
            ) from error
        except RuntimeError as error:
            if "deserialization" not in str(error):
                raise
            raise ConnectionError(
                f"the scheduler cannot read a shard; is fastltl installed there? {reason_of(error)}"
            ) from error

    def results(self, futures: Iterable[Any]) -> list[Any]:
        """Return the results of futures, in the order given."""
        return [self.result(future) for future in futures]

    def results_as_they_come(self, futures: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of futures, in the order of completion."""
        waiting = list(futures)
        while waiting:
            self._wait_for_any(waiting)
            done = [future for future in waiting if future.done()]
            waiting = [future for future in waiting if future not in done]
            yield from self.results(done)

    def _wait_for_any(self, futures: list[Any]) -> None:
        """Wait until a future is done; raise if the scheduler or all workers are lost."""
        from distributed import TimeoutError, wait

        last_check = time.monotonic()
        while not any(future.done() for future in futures):
            try:
                wait(futures, timeout=1.0, return_when="FIRST_COMPLETED")
            except TimeoutError:
                if time.monotonic() - last_check < self.timeout:
                    continue
                if self.client.status != "running":
                    raise self._connection_lost() from None
                if not self.client.nthreads():
                    raise ConnectionError(
                        f"no workers for {self.timeout:g} s: start some with fastltl installed."
                    ) from None
                last_check = time.monotonic()
            except Exception:  # the future's own error, which `result` raises
                return

    def send(self, value: Any) -> Any:
        """Copy a value to a worker, from which other workers fetch it; return its future."""
        # A call, unlike scattered data, is repeated if its worker is lost.
        return self.submit(_identity, value)

    def submit_all(self, function: Callable[..., Any], parts: list[Any], value: Any) -> list[Any]:
        """Return the futures of function(part, value) for each part; the value is sent once."""
        sent = self.send(value)
        return [self.submit(function, part, sent) for part in parts]

    def total(self, function: Callable[..., Any], parts: list[Any], value: Any) -> Any:
        """Sum function(part, value), tuples of numbers and arrays, in the order of the parts."""
        futures = self.submit_all(function, parts, value)
        while len(futures) > 1:
            futures = [
                self.submit(_add, *futures[i : i + FAN_IN]) for i in range(0, len(futures), FAN_IN)
            ]
        return self.result(futures[0])

    def _connection_lost(self) -> ConnectionError:
        address = getattr(self.client.scheduler, "address", "unknown")
        return ConnectionError(
            f"client is not connected: no answer from the scheduler at {address}."
        )


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

        The paths are valid on every worker; task, target and features are as in `open_stream`.
        """
        if isinstance(paths, str | PathLike):
            raise TypeError(f"paths must be an iterable of paths, got the path {paths!r}.")
        shards = [partial(_read, path, task, target, features) for path in paths]
        return cls(shards, client, timeout)

    def __len__(self) -> int:
        return sum(len(facts.labels) for facts in self.facts)

    def __repr__(self) -> str:
        sizes = f"{len(self)} tasks, {self.n_features} features, {len(self.shards)} shards"
        return f"ShardedTaskSet({sizes})"

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
        # Dask computes several shards at a time, so each has one thread.
        settings = regularized, fit_intercept, 1, unit
        submit = self.cluster.submit
        parts = [submit(TaskSet.mean_objective, part, *settings) for part in self.parts]
        return ShardedObjective(self.cluster, parts, len(self), unit)


class ShardedObjective:
    """The mean of an `Objective` over the tasks of all shards."""

    def __init__(self, cluster: Cluster, parts: list[Any], n_tasks: int, unit: float) -> None:
        self.cluster, self.parts, self.n_tasks, self.target_unit = cluster, parts, n_tasks, unit
        futures = [cluster.submit(_scales_and_value_at_zero, part) for part in parts]
        squares, values = zip(*cluster.results(futures), strict=True)
        self.feature_scales = relative_scales(squares)
        self.value_at_zero = check_computed(float(sum(values) / self.n_tasks))
        self.n_features = len(self.feature_scales)

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        value, gradient = self.cluster.total(_value_and_gradient, self.parts, D)
        return check_computed(float(value / self.n_tasks)), check_computed(gradient / self.n_tasks)

    def curvature(self, V: Array, W: Array) -> Array:
        (change,) = self.cluster.total(_curvature, self.parts, (V, W))
        mean: Array = change / self.n_tasks
        return mean

    def weights_and_intercepts(self, D: Array) -> tuple[Array, Array]:
        futures = self.cluster.submit_all(MeanObjective.weights_and_intercepts, self.parts, D)
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
    except (OSError, TypeError) as error:
        kept = OSError if isinstance(error, OSError) else TypeError
        raise kept(f"shard {i}: {error}") from error
    except Exception as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(f"shard {i}: {kind}{error}") from error
    return tasks


def _identity(value: Any) -> Any:
    return value


def _facts(tasks: TaskSet) -> Facts:
    return Facts(tasks.labels, tasks.n_features, tasks.feature_names, tasks.largest_target)


def _scales_and_value_at_zero(objective: MeanObjective) -> tuple[tuple[float, Array], float]:
    return objective.feature_squares, objective.value_at_zero * objective.n_tasks


def _value_and_gradient(objective: MeanObjective, D: Array) -> tuple[float, Array]:
    value, gradient = objective.value_and_gradient(D)
    return value * objective.n_tasks, gradient * objective.n_tasks


def _curvature(objective: MeanObjective, V_and_W: tuple[Array, Array]) -> tuple[Array]:
    return (objective.curvature(*V_and_W) * objective.n_tasks,)


def _add(*terms: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add tuples elementwise, from the first to the last."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*terms, strict=True))
