"""Online learners over the shards of a Dask cluster."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

import numpy as np

from fastltl._kernels.online import OnlineState
from fastltl._online_run import OnlineRun
from fastltl._run import Run
from fastltl._validation import check_count
from fastltl.bayes import BayesLTL
from fastltl.distributed.shards import Shard, ShardedTaskSet, load_shard
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.tasks import TaskSet

Learner = TypeVar("Learner", OnlineLTL, BayesLTL)


def fit_path(path: OnlineLTLPath, tasks: ShardedTaskSet) -> OnlineLTLPath:
    """Fit a path to the tasks of all shards, with the candidates spread over the workers.

    The result has the same bits as on one machine. Every worker reads all shards, one at a time,
    and only the fitted state comes back.

    Parameters
    ----------
    path : OnlineLTLPath
        Fitted in place, and returned.
    tasks : ShardedTaskSet

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
    fresh = OnlineLTLPath(**path.get_params(deep=False))
    run = fresh._new_run(tasks.n_features)  # checks the parameters
    n_parts = min(len(lams), max(1, len(cluster.client.nthreads())))
    changes = {"validation": None, "score_every": None, "progress": False, "n_threads": 1}
    parts = [
        OnlineLTLPath(**path.get_params(deep=False) | changes | {"lams": part})
        for part in np.array_split(lams, n_parts)
    ]
    futures = [cluster.submit(_learn_all_shards, part, tasks.shards) for part in parts]
    states = [end.state for end in cluster.results(futures)]
    run.state = OnlineState(*(np.concatenate(arrays) for arrays in zip(*states, strict=True)))
    fresh._continue_run(run, tasks)
    path._replace_state(fresh)
    return path


def fit_sharded(learner: Learner, tasks: ShardedTaskSet, every: int = 100) -> Learner:
    """Fit a learner to all shards side by side, and merge their states every so many tasks.

    From a common start, each shard learns from its next tasks. Then the states are merged.

    `OnlineLTL`: tasks seen, losses and sums of iterates add up, so that `D_` is the mean over all
    iterates of all shards; the next start is the mean of the iterates or, entropic, the iterate
    for the gradients of all shards. There is no `regret_bound_`.

    `BayesLTL`: sums over tasks add up; the learned covariance and the leave-one-out errors move as
    far as the tasks of all shards would have moved them one after another.

    The result does not depend on the number of workers. docs/scaling.md measures the cost.

    Parameters
    ----------
    learner : OnlineLTL or BayesLTL
        Fitted in place, and returned.
    tasks : ShardedTaskSet
    every : int
        Tasks that each shard learns from between merges. Shorter shards end earlier.

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
    _check_fit(learner, OnlineLTL | BayesLTL, tasks)
    every, cluster = check_count(every, "every"), tasks.cluster
    fresh = type(learner)(**learner.get_params(deep=False))
    run: Any = fresh._new_run(tasks.n_features)
    if isinstance(fresh, BayesLTL):
        if fresh.n_passes > 1:
            raise ValueError(f"n_passes must be 1 for fit_sharded, got {fresh.n_passes!r}.")
        for part in tasks.parts:
            if not run.has_units:
                run = cluster.result(cluster.submit(_set_units, run, part))
    sizes = [len(facts.labels) for facts in tasks.facts]
    for first in range(0, max(sizes), every):
        start = cluster.send(run)
        futures = [
            cluster.submit(_learn_some_tasks, i, fresh, start, part, first, first + every)
            for i, (part, size) in enumerate(zip(tasks.parts, sizes, strict=True))
            if first < size
        ]
        run.merge(cluster.results(futures))
    fresh._continue_run(run, tasks)
    learner._replace_state(fresh)
    return learner


def _check_fit(learner: Any, wanted: Any, tasks: Any) -> None:
    """Check the types of the arguments."""
    for value, kind in ((learner, wanted), (tasks, ShardedTaskSet)):
        if not isinstance(value, kind):
            names = " or ".join(one.__name__ for one in getattr(kind, "__args__", (kind,)))
            raise TypeError(f"expected {names}, got {type(value).__name__}.")


def _set_units(run: Any, tasks: TaskSet) -> Any:
    """Return a run that measures inputs and targets in units of the first task that varies."""
    run = copy(run)
    run.set_units(tasks)
    return run


def _learn_all_shards(learner: OnlineLTLPath, shards: list[Shard]) -> OnlineRun:
    """Return the run of a learner over the tasks of all shards, one shard after another."""
    for i, shard in enumerate(shards):
        _learn_tasks(learner, i, load_shard(i, shard))
    return learner._fitted_run()


def _learn_some_tasks(
    i: int, settings: Learner, start: Any, tasks: TaskSet, first: int, last: int
) -> Run:
    """Return the run of a learner, from a start, over some tasks of a shard."""
    learner = type(settings)(**settings.get_params(deep=False))
    learner._continue_run(copy(start), tasks)
    _learn_tasks(learner, i, tasks[first:last])
    return learner._fitted_run()


def _learn_tasks(learner: OnlineLTL | OnlineLTLPath | BayesLTL, i: int, tasks: TaskSet) -> None:
    learner._learn_tasks(tasks, lambda k: f"shard {i}: task {tasks.labels[k]!r}")
