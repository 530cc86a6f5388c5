"""
Scaling out: a cluster with two workers
=======================================

When tasks do not fit into one machine, or one pass over them takes too long, Dask can spread them
over many. Each worker holds some *shards* of the tasks. This example starts a small cluster inside
of its own process. For a cluster elsewhere only the address of ``Client`` changes.
"""

import time
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from distributed import Client

import fastltl as ltl
from fastltl.distributed import ShardedTaskSet, fit_sharded

# %%
# Shards
# ------
# A shard is a function without arguments that returns tasks. A worker calls it when it needs the
# tasks, so they never pass through the client. Here each shard draws its tasks from a seed. With
# files, ``ShardedTaskSet.from_files`` makes a shard of each.


def draw(seed, n_tasks):
    """Return tasks of an environment that is the same for all seeds."""
    rng = np.random.default_rng(seed)
    pattern = np.sqrt(np.arange(20, 0, -1) / 10)  # how much tasks differ in each weight
    tasks = []
    for _ in range(n_tasks):
        X = rng.normal(size=(10, 20))
        weights = 1 + pattern * rng.normal(size=20)
        tasks.append((X, X @ weights + rng.normal(size=10)))
    return ltl.TaskSet(tasks)


shards = [partial(draw, seed, 200) for seed in range(4)]
client = Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
tasks = ShardedTaskSet(shards, client)
print(tasks, "on", len(client.scheduler_info()["workers"]), "workers")

# %%
# Learn from all shards side by side
# ----------------------------------
# ``fit_sharded`` lets every shard learn from some tasks, merges what was learned, and goes on from
# there. ``every`` is the number of tasks between two merges: often merged, the shards learn nearly
# as if they were one; seldom merged, less has to be sent.
#
# New tasks say what this costs. They are solved from half of their rows.

known, hidden = draw(100, 200).split_samples(0.5, random_state=0)
everything = ltl.TaskSet([task for shard in shards for task in shard()])
reference = ltl.evaluate(ltl.BayesLTL().fit(everything), known, hidden).mean()

schedule = [2, 5, 20, 50, 200]
costs = []
for every in schedule:
    start = time.perf_counter()
    learner = fit_sharded(ltl.BayesLTL(), tasks, every=every)
    seconds = time.perf_counter() - start
    costs.append(100 * (ltl.evaluate(learner, known, hidden).mean() / reference - 1))
    print(f"merged every {every:3} tasks: {learner.n_tasks_seen_} tasks in {seconds:.1f} s")

fig, ax = plt.subplots(figsize=(7, 3.2))
ax.plot(range(len(schedule)), costs, "o-", color="#1f77d0")
ax.axhline(0, color="#24292f", linewidth=0.8)
ax.set_xticks(range(len(schedule)), [*schedule[:-1], "200 (end)"])
ax.set(
    title="Error on new tasks, above that of one pass over all tasks",
    xlabel="tasks of each shard between two merges",
    ylabel="percent",
)
fig.tight_layout()

# %%
# Batch learners lose nothing
# ---------------------------
# :class:`~fastltl.BatchLTL` adds up the gradients of all shards. So it finds the same matrix as on
# one machine, up to rounding.

learner = ltl.BatchLTL(lam=0.01, fit_intercept=True)
on_cluster = learner.fit(tasks).D_
on_one_machine = learner.fit(everything).D_
difference = np.linalg.norm(on_cluster - on_one_machine) / np.linalg.norm(on_one_machine)
print("the matrices agree up to rounding:", difference < 1e-9)

# %%
# The diagonal of the matrix says how much the tasks differ in each weight. They were drawn so that
# they differ most in the first weight, and least in the last.

fig, ax = plt.subplots(figsize=(7, 2.6))
ax.bar(range(20), np.diag(on_cluster), color="#1f77d0")
ax.set(title="Diagonal of D", xlabel="feature", xticks=range(0, 20, 5))
fig.tight_layout()

client.close()

# %%
# The two workers here are threads of one process, which is enough to try a program. Leave out
# ``processes=False`` to start processes instead; a script then needs ``if __name__ == "__main__":``
# around all that it does, because each process imports the script. :doc:`/scaling` shows how to
# start a cluster on several machines, and has measurements.
