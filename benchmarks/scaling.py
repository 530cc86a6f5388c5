"""Measure the overhead and the speed-up of a cluster: ``python -m benchmarks.scaling``.

It prints four Markdown tables: the time to evaluate the batch objective with one thread and on
worker processes; the overhead per shard; the error of online learning on parallel shards, relative
to one pass over all tasks; and the time to learn a prior from many tasks, by how often shards are
merged. ``--merges`` prints only the last one. docs/scaling.md extrapolates to larger sizes.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fastltl as ltl

try:
    import dask
    from distributed import Client, LocalCluster

    from fastltl.distributed import ShardedTaskSet, fit_sharded
except ImportError:  # asv imports every file of the folder, with or without Dask
    if __name__ == "__main__":
        raise

TRIALS = 5
N_TASKS, N_FEATURES, N_SAMPLES, NOISE = 800, 50, 50, 0.05


def environment(seed: int, d: int = N_FEATURES) -> ltl.datasets.Environment:
    return ltl.datasets.make_environment(d, noise=NOISE, random_state=seed)


def part(seed: int, i: int, n_parts: int) -> ltl.TaskSet:
    """Return part i of the tasks that a seed determines."""
    size = N_TASKS // n_parts
    return environment(seed).tasks(N_TASKS, N_SAMPLES)[i * size : (i + 1) * size]


#: Learners whose shards are merged.
LEARNERS = {
    "entropic": ltl.OnlineLTL(1e-4),
    "euclidean adaptive": ltl.OnlineLTL(1e-4, geometry="euclidean"),
    "BayesLTL": ltl.BayesLTL(),
}


def relative_errors(client: Client, learner: Any) -> dict[tuple[int, int], list[float]]:
    """Return test errors relative to a single pass, by number of shards and tasks per merge."""
    found: dict[tuple[int, int], list[float]] = {}
    for seed in range(TRIALS):
        draw = environment(seed)
        tasks = draw.tasks(N_TASKS, N_SAMPLES)
        test = draw.tasks(200, 2 * N_SAMPLES).split_samples(0.5, random_state=0)
        reference = ltl.evaluate(learner.fit(tasks), *test).mean()
        for n_shards in (1, 2, 4, 8):
            shards = [partial(part, seed, i, n_shards) for i in range(n_shards)]
            sharded = ShardedTaskSet(shards, client)
            for every in (1, 10, N_TASKS):
                error = ltl.evaluate(fit_sharded(learner, sharded, every), *test).mean()
                found.setdefault((n_shards, every), []).append(error / reference - 1)
    return found


def print_errors(client: Client) -> None:
    """Print a Markdown table of the errors of all learners."""
    print(f"| shards | merged after every | {' | '.join(LEARNERS)} |\n|---|---{'|---' * 3}|")
    by_learner = [relative_errors(client, learner) for learner in LEARNERS.values()]
    for n_shards, every in by_learner[0]:
        cells = []
        for found in by_learner:
            percent = 100 * np.array(found[n_shards, every])
            cells.append(f"{percent.mean():+.1f} % ({percent.min():+.1f} to {percent.max():+.1f})")
        when = "end only" if every == N_TASKS else "task" if every == 1 else f"{every} tasks"
        print(f"| {n_shards} | {when} | {' | '.join(cells)} |", flush=True)


def shard(seed: int, n_tasks: int, d: int) -> ltl.TaskSet:
    return environment(seed, d).tasks(n_tasks, N_SAMPLES)


def seconds(evaluate: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, after one call to warm up."""
    evaluate()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        evaluate()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def print_evaluations(sizes: list[tuple[int, int]], n_workers: int) -> None:
    """Print the time of value and gradient, with one thread and on workers."""
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster) as client:
        for d, n_tasks in sizes:
            random = np.random.default_rng(0)
            D = np.eye(d) + 0.1 * np.diag(random.random(d))
            repeats = 3 if d * n_tasks > 10**6 else 15
            alone = shard(0, n_tasks // n_workers, d).mean_objective(False, False, 1)
            one = seconds(partial(alone.value_and_gradient, D), repeats)
            shards = [partial(shard, i, n_tasks // n_workers, d) for i in range(n_workers)]
            objective = ShardedTaskSet(shards, client).mean_objective(False, False, 1)
            many = seconds(partial(objective.value_and_gradient, D), repeats)
            print(
                f"| {d} | {n_tasks:,} | {n_workers} | {1e3 * one:.1f} | {1e3 * many:.1f} "
                f"| {1e3 * (many - one):.1f} | {1e6 * one / (n_tasks // n_workers):.0f} |",
                flush=True,
            )


def print_overheads() -> None:
    """Print the time of an evaluation over shards of one task each, by number of shards."""
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        for d in (50, 500):
            for n_shards in (2, 20, 100):
                tasks = ShardedTaskSet([partial(shard, i, 1, d) for i in range(n_shards)], client)
                objective = tasks.mean_objective(False, False, 1)
                taken = seconds(partial(objective.value_and_gradient, np.eye(d)), 9)
                print(f"| {d} | {n_shards} | {1e3 * taken:.0f} |", flush=True)


def prior_shard(seed: int, n_tasks: int) -> ltl.TaskSet:
    """Draw tasks of 10 samples with 20 features, whose weights differ in five directions."""
    d, n, shared = 20, 10, np.random.default_rng(0)
    mean, directions = shared.standard_normal(d), shared.standard_normal((5, d)) / 3
    rng = np.random.default_rng([1, seed])
    weights = mean + rng.standard_normal((n_tasks, 5)) @ directions
    X = rng.standard_normal((n_tasks, n, d))
    y = (X @ weights[:, :, None])[:, :, 0] + rng.standard_normal((n_tasks, n))
    groups = np.repeat(np.arange(n_tasks), n)
    return ltl.TaskSet.from_groups(X.reshape(-1, d), y.ravel(), groups)


def print_merges(n_tasks: int, n_workers: int = 2) -> None:
    """Print the time to learn a prior from the tasks of all shards, by how often they merge."""
    print("| tasks | shards | merged after every | merges | seconds | ms a merge | error |")
    print("|---|---|---|---|---|---|---|")
    half = prior_shard(0, n_tasks // n_workers)
    one = seconds(partial(ltl.BayesLTL().fit, half), 1)
    print(f"| {len(half):,} | one process, `fit` | | | {one:.1f} | | |", flush=True)
    # Else Dask copies shards between workers during the rounds, which are short.
    dask.config.set({"distributed.scheduler.work-stealing": False})
    test = prior_shard(2**32, 1000).split_samples(0.5, random_state=0)
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster) as client:
        for n_shards in (n_workers, 4 * n_workers):
            size = n_tasks // n_shards
            shards = [partial(prior_shard, i, size) for i in range(n_shards)]
            tasks, alone = ShardedTaskSet(shards, client), 0.0
            fit_sharded(ltl.BayesLTL(), ShardedTaskSet(shards[:n_workers], client), size)
            for every in (size, 1000, 100):
                if (n_merges := -(-size // every)) > 1000:
                    continue
                start = time.perf_counter()
                learner = fit_sharded(ltl.BayesLTL(), tasks, every)
                taken = time.perf_counter() - start
                alone = alone or taken
                each = f"{1e3 * (taken - alone) / (n_merges - 1):.0f}" if n_merges > 1 else ""
                error = ltl.evaluate(learner, *test).mean()
                print(
                    f"| {n_tasks:,} | {n_shards} | {every:,} tasks | {n_merges:,} | {taken:.1f} "
                    f"| {each} | {error:.4f} |",
                    flush=True,
                )
    print(f"\nbytes of a state: {len(pickle.dumps(learner._run)):,}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--merges", action="store_true", help="only learn a prior on shards")
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks of that (default 10^5)")
    options = parser.parse_args()
    if not options.merges:
        print_objectives()
    print_merges(options.tasks)


def print_objectives() -> None:
    print("| d | tasks | workers | one worker's share, ms | cluster, ms | overhead, ms | µs/task |")
    print("|---|---|---|---|---|---|---|")
    for n_workers in (1, 2):
        print_evaluations([(50, 200), (50, 2000), (50, 20000), (200, 400), (1000, 40)], n_workers)
    print("\n| d | shards | ms |\n|---|---|---|")
    print_overheads()
    print()
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as client:
        print_errors(client)


if __name__ == "__main__":
    main()
