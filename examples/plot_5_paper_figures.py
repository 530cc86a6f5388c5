"""
The paper's figures, small
==========================

Denevi, Ciliberto, Stamos and Pontil (*Incremental Learning-to-Learn with Statistical Guarantees*)
draw tasks in 50 dimensions whose weights lie in a subspace of dimension 25. Their figures ask how
much online learning-to-learn (LTL) gains over independent ridge regression on each task (ITL). Here
is a version with few trials, written with the public functions of fastltl.
:doc:`/reproduction` has all figures at full size.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import fastltl as ltl

# %%
# The protocol
# ------------
# The training tasks come one after another. Validation tasks choose lambda among 22 values. Test
# tasks, which took part in neither, are solved from one half of their samples and measured on the
# other half. The gain is the part of the error of ITL that is saved; ITL gets the lambda that is
# best for the same validation tasks. The noise is 0.05; with the 0.2 of the paper there is little
# to gain.

# With few samples the least lambda, an exact fit, can be best: no better one lies beyond it.
warnings.filterwarnings("ignore", "the best lam")

EVERY = 25  # tasks between two points of a curve
N_TASKS = 150
LAMS = np.logspace(-7, 0, 22)
METHODS = {
    "default": {},
    "Algorithm 1": {"objective": "error", "geometry": "euclidean", "step": "theory"},
}


def trial(n_samples, seed):
    """Return the gain in percent of each method after 25, 50, ... tasks."""
    environment = ltl.datasets.make_environment(50, noise=0.05, random_state=seed)
    tasks = environment.tasks(N_TASKS, n_samples)
    validation = environment.tasks(40, n_samples).split_samples(0.5, random_state=seed)
    test = environment.tasks(100, n_samples).split_samples(0.5, random_state=seed)
    itl = ltl.select_lam(ltl.ITL(), tasks, validation, lams=LAMS)
    baseline = ltl.evaluate(np.eye(50) / itl.best_lam, *test)
    gains = {name: [] for name in METHODS}
    for name, settings in METHODS.items():
        path = ltl.OnlineLTLPath(LAMS, validation, **settings)
        for start in range(0, N_TASKS, EVERY):
            for X, y in tasks[start : start + EVERY]:
                path.partial_fit(X, y)
            errors = ltl.evaluate(path, *test)
            gains[name].append(ltl.relative_improvement(errors.mean(), baseline.mean()))
    return gains


# %%
# Figure 1: gain by the number of tasks and of samples
# ----------------------------------------------------
# Lines are means over three trials, and bands go from the least to the largest gain.

sizes = (10, 25, 50)
found = {n: [trial(n, seed) for seed in range(3)] for n in sizes}

ticks = np.arange(EVERY, N_TASKS + 1, EVERY)
fig, axes = plt.subplots(1, 3, figsize=(9, 3.4), sharey=True)
for ax, n in zip(axes, sizes, strict=True):
    for name, color in zip(METHODS, ("#1f77d0", "#d9730d"), strict=True):
        gains = np.array([gain[name] for gain in found[n]])
        ax.plot(ticks, gains.mean(axis=0), "o-", color=color, label=name)
        ax.fill_between(ticks, gains.min(axis=0), gains.max(axis=0), color=color, alpha=0.2)
    ax.axhline(0, color="#24292f", linewidth=0.8)
    ax.set_title(f"{n} samples in a task", fontsize=11)
    ax.set_xlabel("training tasks")
axes[0].set_ylabel("gain over ITL in percent")
axes[0].legend()
fig.tight_layout()

# %%
# Two of the paper's observations are seen here: with few samples in each task little is learned,
# however many tasks there are, and with more samples the gain grows with the number of tasks. But
# it is the default of :class:`~fastltl.OnlineLTL` that gains. Algorithm 1 as the paper states it
# takes steps that are far too small for this data, and stays at ITL: :doc:`/learners` says why.
#
# The bound on the regret
# -----------------------
# The learner computes a bound on its regret from the gradients that it has seen. For the default
# objective it is a theorem: the mean loss of the matrices that the learner chose exceeds that of
# the best fixed matrix by no more than that, whatever the tasks. ``BatchLTL`` finds the best fixed
# matrix, so bound and regret can be compared.

environment = ltl.datasets.make_environment(50, noise=0.05, random_state=0)
tasks = environment.tasks(N_TASKS, 25)
learner = ltl.OnlineLTL(lam=1e-2)
counts, regrets, bounds, papers = [], [], [], []
for t, (X, y) in enumerate(tasks, start=1):
    learner.partial_fit(X, y)
    if t % EVERY == 0:
        best = ltl.BatchLTL(lam=1e-2).fit(tasks[:t])
        counts.append(t)
        regrets.append(learner.cumulative_loss_ / t - best.objective_)
        bounds.append(learner.regret_bound_)
        papers.append(ltl.bounds.online_regret(lam=1e-2, T=t))

fig, ax = plt.subplots(figsize=(7, 3.4))
ax.plot(counts, papers, "o-", color="#8c959f", label="the paper's bound, known before")
ax.plot(counts, bounds, "o-", color="#d9730d", label="regret_bound_, from the gradients seen")
ax.plot(counts, regrets, "o-", color="#1f77d0", label="regret")
ax.set(
    yscale="log",
    title="Regret of the default after t tasks",
    xlabel="tasks",
    ylabel="mean loss above the best",
    ylim=(1e-3, 1e4),
)
ax.legend(fontsize=9, loc="upper right")
fig.tight_layout()

# %%
# Both bounds hold, and neither is sharp. The bound by the gradients is far closer than the one that
# has to hold for all tasks.
