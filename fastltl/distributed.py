"""The same learners on a Dask cluster: tasks in shards that stay on the workers.

A shard is a recipe, a function without arguments that returns a `TaskSet`, and so what a lost
worker had is made anew on another. Results are put together in the order of the shards, whoever
answers first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl.learners.online import OnlineLTL
from fastltl.objectives import MeanObjective, relative_scales
from fastltl.path import OnlineLTLPath
from fastltl.streams import open_stream
from fastltl.tasks import Names, TaskSet, as_objects
from fastltl.validation import Array, check_computed, check_count, check_positive, reason_of

#: How many matrices one worker adds up before the sum goes on to another.
FAN_IN = 16

#: Seconds without a scheduler after which a computation is given up.
TIMEOUT = 60.0

Shard = Callable[[], TaskSet]


class Facts(NamedTuple):
    """What there is to know of a shard without its numbers."""

    labels: npt.NDArray[np.object_]
    n_features: int
    feature_names: Names
    largest_target: float


class Cluster:
    """Calls on the workers of a Dask client, whose results come or else a clear error."""

    def __init__(self, client: Any, timeout: float) -> None:
        if not hasattr(client, "submit"):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}.")
        self.client = client
        self.timeout = check_positive(timeout, "timeout")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The future of a call, which other calls can take for an argument."""
        try:
            return self.client.submit(function, *arguments, pure=False)
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._is_gone() from error

    def result(self, future: Any) -> Any:
        """The result of a future, or its error; a ConnectionError if the cluster fails."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        self._wait_for(future)
        try:
            return future.result()
        except (CancelledError, CommClosedError) as error:
            time.sleep(0.5)  # until the client, too, knows
            if self.client.status == "running":
                raise ConnectionError(f"the cluster gave up: {reason_of(error)}.") from error
            raise self._is_gone() from error
        except KilledWorker as error:
            raise ConnectionError(
                "workers must have the memory for their shards, but several died while they "
                "computed one."
            ) from error
        except RuntimeError as error:
            if "deserialization" not in str(error):
                raise
            raise ConnectionError(
                "fastltl, and what shards are made of, must be installed where the scheduler runs, "
                f"which cannot read them ({reason_of(error)})."
            ) from error

    def _wait_for(self, future: Any) -> None:
        """Wait until a future is done, as long as there is somebody to compute it."""
        from distributed import TimeoutError, wait

        seen = time.monotonic()
        while not future.done():
            try:
                wait(future, timeout=1.0)
            except TimeoutError:
                if time.monotonic() - seen < self.timeout:
                    continue
                if self.client.status != "running":
                    raise self._is_gone() from None
                if not self.client.nthreads():
                    raise ConnectionError(
                        f"client must have workers that stay, got none for {self.timeout:g} s; is "
                        "fastltl installed where they run?"
                    ) from None
                seen = time.monotonic()
            except Exception:  # that of the future, which `result` raises
                return

    def total(self, futures: Sequence[Any]) -> Any:
        """The sum of tuples of numbers and arrays, in the order of the futures."""
        futures = list(futures)
        while len(futures) > 1:
            futures = [
                self.submit(_added, *futures[i : i + FAN_IN])
                for i in range(0, len(futures), FAN_IN)
            ]
        return self.result(futures[0])

    def _is_gone(self) -> ConnectionError:
        address = getattr(self.client.scheduler, "address", "unknown")
        return ConnectionError(
            f"client must be connected, but its scheduler at {address} does not answer."
        )


class ShardedTaskSet:
    """Tasks that are spread over the workers of a Dask cluster, for `BatchLTL` and `MTL`.

    The learners take it in the place of a `TaskSet` and find the same. A d x d matrix goes out to
    the workers, a d x d matrix and a number come back.

    Parameters
    ----------
    shards : sequence of callables
        Each returns a TaskSet when it is called without arguments, on whatever worker.
    client : distributed.Client
    timeout : float
        Seconds without a scheduler after which a fit ends with a ConnectionError.

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
                raise TypeError(
                    f"shards must be functions that return a TaskSet, got {type(shard).__name__} "
                    f"as shard {i}."
                )
        if not self.shards:
            raise ValueError("shards must hold at least one function, got none.")
        # A task set is made once, and made anew if the worker that has it is lost.
        self.parts = [self.cluster.submit(_made, i, shard) for i, shard in enumerate(self.shards)]
        asked = [self.cluster.submit(_facts, part) for part in self.parts]
        self.facts: list[Facts] = [self.cluster.result(one) for one in asked]
        for i, facts in enumerate(self.facts):
            if (facts.n_features, facts.feature_names) != (self.n_features, self.feature_names):
                names = "" if facts.feature_names is None else f" ({facts.feature_names})"
                raise ValueError(
                    f"shard {i} must have the {self.n_features} features of the first, got "
                    f"{facts.n_features}{names}."
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
        """A shard for each file, read by `fastltl.open_stream` on the worker that has the shard.

        Parameters
        ----------
        paths : iterable of str or path
            As workers find them.
        client : distributed.Client
        task, target, features
            As in `fastltl.open_stream`.
        timeout : float
            As above.
        """
        if isinstance(paths, str | PathLike):
            raise TypeError(f"paths must be an iterable of paths, got {paths!r} alone.")
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
        """Names of the features if the shards have them, else None."""
        return self.facts[0].feature_names

    @property
    def labels(self) -> npt.NDArray[np.object_]:
        """Name of each task, in the order of the shards.

        Where shards have tasks of the same name, it is a pair of the shard's number and the name.
        """
        labels = [label for facts in self.facts for label in facts.labels]
        if len(set(labels)) < len(labels):
            labels = [(i, label) for i, facts in enumerate(self.facts) for label in facts.labels]
        return as_objects(labels)

    def mean_objective(
        self, penalised: bool, fit_intercept: bool, n_threads: int
    ) -> ShardedObjective:
        """What batch learners minimise. Each worker has as many threads as Dask gives it."""
        unit = max(facts.largest_target for facts in self.facts)
        parts = [
            self.cluster.submit(_objective, part, penalised, fit_intercept, unit)
            for part in self.parts
        ]
        return ShardedObjective(self.cluster, parts, [len(f.labels) for f in self.facts], unit)


class ShardedObjective:
    """A mean objective over shards: the sum of theirs, each weighted by its number of tasks."""

    def __init__(
        self, cluster: Cluster, parts: list[Any], sizes: list[int], target_unit: float
    ) -> None:
        self.cluster, self.parts, self.target_unit = cluster, parts, target_unit
        self.n_tasks = sum(sizes)
        asked = [cluster.submit(_scales_and_value_at_zero, part) for part in parts]
        answers = [cluster.result(one) for one in asked]
        self.feature_scales = relative_scales([squares for squares, _ in answers])
        self.value_at_zero = check_computed(
            float(sum(value for _, value in answers) / self.n_tasks)
        )
        self.n_features = len(self.feature_scales)
        self._D = np.zeros((self.n_features, self.n_features))

    def value_and_gradient(self, D: Array) -> tuple[float, Array]:
        """F(D) and its gradient."""
        self._D = D
        sent = self.cluster.submit(_same, D)
        answers = [self.cluster.submit(_value_and_gradient, part, sent) for part in self.parts]
        value, gradient = self.cluster.total(answers)
        return check_computed(float(value / self.n_tasks)), check_computed(gradient / self.n_tasks)

    def curvature(self, E: Array) -> Array:
        """Derivative of the gradient along E, a symmetric matrix, at the latest D."""
        sent = self.cluster.submit(_same, (self._D, E))
        answers = [self.cluster.submit(_curvature, part, sent) for part in self.parts]
        (change,) = self.cluster.total(answers)
        mean: Array = change / self.n_tasks
        return mean

    def weights(self, D: Array) -> Array:
        """Ridge weights of each task with D, by rows, in the units of y."""
        sent = self.cluster.submit(_same, D)
        asked = [self.cluster.submit(_weights, part, sent) for part in self.parts]
        answers = [self.cluster.result(one) for one in asked]
        self._intercepts = np.concatenate([intercepts for _, intercepts in answers])
        return np.concatenate([weights for weights, _ in answers])

    def intercepts(self, weights: Array) -> Array:
        """The intercepts that came with the weights."""
        return self._intercepts


def fit_path(path: OnlineLTLPath, tasks: ShardedTaskSet) -> OnlineLTLPath:
    """`path.fit` over the tasks of all shards, with the candidates spread over the workers.

    The path has the bits that it would have had on one machine. Every worker reads all shards, one
    at a time; only what was learned comes back.

    Parameters
    ----------
    path : OnlineLTLPath
        Fitted in place.
    tasks : ShardedTaskSet

    Returns
    -------
    OnlineLTLPath
        The path.

    Examples
    --------
    >>> from functools import partial
    >>> from distributed import Client
    >>> import fastltl as ltl
    >>> from fastltl.distributed import ShardedTaskSet, fit_path
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> shards = [partial(ltl.TaskSet, list(environment.tasks(20, 8))) for _ in range(3)]
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     path = fit_path(ltl.OnlineLTLPath(), ShardedTaskSet(shards, client))
    >>> path.n_tasks_seen_, path.representations_.shape
    (60, (30, 5, 5))
    """
    _check_fit(path, OnlineLTLPath, tasks)
    cluster, lams = tasks.cluster, path._lams()
    OnlineLTLPath(**path.get_params(deep=False))._begin(tasks.n_features)  # names what is bad now
    n_parts = min(len(lams), max(1, len(cluster.client.scheduler_info()["workers"])))
    changes = {"validation": None, "score_every": None, "progress": False, "n_threads": 1}
    parts = [
        OnlineLTLPath(**path.get_params(deep=False) | changes | {"lams": part})
        for part in np.array_split(lams, n_parts)
    ]
    asked = [cluster.submit(_learned_from_all, part, tasks.shards) for part in parts]
    runs = [cluster.result(one) for one in asked]
    records = {
        name: [value for run in runs for value in run["records"][name]]
        for name in runs[0]["records"]
    }
    state, rows = (np.concatenate([run[name] for run in runs], 1) for name in ("state", "rows"))
    run = {"state": state, "rows": rows, "records": records, "is_merged": False}
    fresh = OnlineLTLPath(**path.get_params(deep=False))
    fresh._restore({"run": run} | _features(tasks))
    path._take_over(fresh)
    return path


def fit_sharded(learner: OnlineLTL, tasks: ShardedTaskSet, every: int = 100) -> OnlineLTL:
    """Fit a learner to shards side by side: each to tasks of its own, merged every so many.

    From a common start each shard takes the learner through its next tasks. Then the ways are
    merged: tasks seen, losses and the sums of iterates add up, so that `D_` is the mean over all
    iterates of all shards; the next start is the mean of the iterates or, entropic, the iterate for
    the gradients of all shards. What that costs is measured in docs/scaling.md; there is no
    `regret_bound_`.

    Parameters
    ----------
    learner : OnlineLTL
        Fitted in place.
    tasks : ShardedTaskSet
    every : int
        Tasks that a shard takes between merges. At the end of a shard the others go on.

    Returns
    -------
    OnlineLTL
        The learner.

    Examples
    --------
    >>> from functools import partial
    >>> from distributed import Client
    >>> import fastltl as ltl
    >>> from fastltl.distributed import ShardedTaskSet, fit_sharded
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> shards = [partial(ltl.TaskSet, list(environment.tasks(20, 8))) for _ in range(3)]
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     learner = fit_sharded(ltl.OnlineLTL(0.1), ShardedTaskSet(shards, client), every=5)
    >>> learner.n_tasks_seen_
    60
    """
    _check_fit(learner, OnlineLTL, tasks)
    every, cluster = check_count(every, "every"), tasks.cluster
    settings = OnlineLTL(**learner.get_params(deep=False))
    run = settings._new_run(tasks.n_features)
    sizes = [len(facts.labels) for facts in tasks.facts]
    for first in range(0, max(sizes), every):
        start = cluster.submit(_same, run.checkpoint())
        asked = [
            cluster.submit(_learned_from_some, i, settings, start, part, first, first + every)
            for i, (part, size) in enumerate(zip(tasks.parts, sizes, strict=True))
            if first < size
        ]
        ends = []
        for one in asked:
            ends.append(settings._new_run(tasks.n_features))
            ends[-1].restore(cluster.result(one))
        run.merge(ends)
    settings._restore({"run": run.checkpoint()} | _features(tasks))
    learner._take_over(settings)
    return learner


def _check_fit(learner: Any, wanted: type, tasks: Any) -> None:
    """The learner is of the class, the tasks are on a cluster."""
    for value, kind in ((learner, wanted), (tasks, ShardedTaskSet)):
        if not isinstance(value, kind):
            raise TypeError(f"wanted {kind.__name__}, got {type(value).__name__}.")


def _features(tasks: ShardedTaskSet) -> dict[str, Any]:
    """What a learner keeps of the features of its tasks."""
    kept: dict[str, Any] = {"n_features_in_": tasks.n_features, "_warns_of_arrays": False}
    if tasks.feature_names is not None:
        kept["feature_names_in_"] = np.array(tasks.feature_names, dtype=object)
    return kept


def _learned_from_all(learner: OnlineLTLPath, shards: list[Shard]) -> dict[str, Any]:
    """The run of a learner over the tasks of all shards, one shard after another."""
    for i, shard in enumerate(shards):
        _teach(learner, i, _made(i, shard))
    return learner._run.checkpoint()


def _learned_from_some(
    i: int, settings: OnlineLTL, start: dict[str, Any], tasks: TaskSet, first: int, last: int
) -> dict[str, Any]:
    """The run of a learner, from a start, over some tasks of a shard."""
    learner = OnlineLTL(**settings.get_params(deep=False))
    learner._restore({"run": start, "n_features_in_": tasks.n_features, "_warns_of_arrays": False})
    _teach(learner, i, tasks[first:last])
    return learner._run.checkpoint()


def _teach(learner: OnlineLTL | OnlineLTLPath, i: int, tasks: TaskSet) -> None:
    for label, task in zip(tasks.labels, tasks, strict=True):
        try:
            learner.partial_fit(*task)
        except ValueError as error:
            raise ValueError(f"shard {i}: task {label!r}: {error}") from error


def _same(value: Any) -> Any:
    """A value on a worker, from which others fetch it; the scheduler can send it anew."""
    return value


def _read(
    path: str | PathLike[str], task: str | None, target: str, features: Sequence[str] | None
) -> TaskSet:
    return open_stream(path, task, target, features).task_set()


def _made(i: int, shard: Shard) -> TaskSet:
    """The tasks of a shard; an error says which shard it is about."""
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
    tasks: TaskSet, penalised: bool, fit_intercept: bool, target_unit: float
) -> MeanObjective:
    # Dask computes several shards at a time, so each has one thread.
    return tasks.mean_objective(penalised, fit_intercept, 1, target_unit)


def _scales_and_value_at_zero(objective: MeanObjective) -> tuple[tuple[float, Array], float]:
    return objective.feature_squares, objective.value_at_zero * objective.n_tasks


def _value_and_gradient(objective: MeanObjective, D: Array) -> tuple[float, Array]:
    value, gradient = objective.value_and_gradient(D)
    return value * objective.n_tasks, gradient * objective.n_tasks


def _curvature(objective: MeanObjective, D_and_E: tuple[Array, Array]) -> tuple[Array]:
    """At a D that is said: a shard made anew on another worker was at none."""
    D, E = D_and_E
    objective.stand_at(D)
    return (objective.curvature(E) * objective.n_tasks,)


def _weights(objective: MeanObjective, D: Array) -> tuple[Array, Array]:
    weights = objective.weights(D)
    return weights, objective.intercepts(weights)


def _added(*terms: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sums of what has the same place in each of the terms, from the first on."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*terms, strict=True))
