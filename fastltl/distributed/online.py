"""Online learners over the shards of a Dask cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastltl._validation import check_count
from fastltl.distributed.shards import Shard, ShardedTaskSet, load_shard
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.tasks import TaskSet


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
    n_parts = min(len(lams), max(1, len(cluster.client.nthreads())))
    changes = {"validation": None, "score_every": None, "progress": False, "n_threads": 1}
    parts = [
        OnlineLTLPath(**path.get_params(deep=False) | changes | {"lams": part})
        for part in np.array_split(lams, n_parts)
    ]
    asked = [cluster.submit(_learned_from_all, part, tasks.shards) for part in parts]
    runs = cluster.results(asked)
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
        start = cluster.send(run.checkpoint())
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
        _teach(learner, i, load_shard(i, shard))
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
