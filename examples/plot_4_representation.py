"""
Read a representation: what do tasks share?
===========================================

A learner does more than predict: its matrix says in which directions the weights of tasks differ,
and in which they do not. Here we know the truth, and read it from ``covariance_`` of
:class:`~fastltl.BayesLTL` and from ``D_`` of the paper's learners.
"""

import matplotlib.pyplot as plt
import numpy as np

import fastltl as ltl

# %%
# Tasks with a hidden structure
# -----------------------------
# There are ten features, and each task has weights for all of them. But the weights of all tasks
# lie in a plane: they are combinations of two patterns. The first pattern says that features 0 to
# 4 act together. The second says that features 5 to 9 act together, with half of the strength.

rng = np.random.default_rng(0)
patterns = np.zeros((10, 2))
patterns[:5, 0] = 1 / np.sqrt(5)
patterns[5:, 1] = 1 / np.sqrt(5)


def draw_task():
    X = rng.normal(size=(12, 10))
    weights = patterns @ (rng.normal(size=2) * [2.0, 1.0])
    return X, X @ weights + rng.normal(size=12)


old = ltl.TaskSet([draw_task() for _ in range(300)])
new = ltl.TaskSet([draw_task() for _ in range(200)])

# %%
# Learn
# -----
# ``BayesLTL`` needs no more. ``OnlineLTL`` needs a ``lam``, which validation tasks choose.

bayes = ltl.BayesLTL(fit_intercept=False).fit(old)
seen = old[200:].split_samples(0.5, random_state=0)
online = ltl.select_lam(ltl.OnlineLTL(), old[:200], seen).learner
matrices = {
    "truth": patterns @ np.diag([4.0, 1.0]) @ patterns.T,
    "covariance_ of BayesLTL": bayes.covariance_,
    "D_ of OnlineLTL": online.D_,
}

fig, axes = plt.subplots(1, 3, figsize=(9, 3.4))
for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
    largest = np.abs(matrix).max()
    ax.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.set_title(name, fontsize=11)
    ax.set_xticks(range(0, 10, 2))
    ax.set_yticks(range(0, 10, 2))
fig.tight_layout()

# %%
# Red entries far from the diagonal mean that two features have large weights in the same tasks, of
# the same sign. Both learners see the two blocks.
#
# Eigenvalues: how many patterns?
# -------------------------------
# Each eigenvalue is the variance of the weights along one direction. Two large ones mean that two
# numbers say almost all about a task. The matrices are scaled to a trace of one, as the size of
# ``D_`` depends on ``lam``.

fig, ax = plt.subplots(figsize=(7, 3.2))
colors = ("#24292f", "#1f77d0", "#d9730d")
for i, (name, matrix) in enumerate(matrices.items()):
    values = np.linalg.eigvalsh(matrix)[::-1] / np.trace(matrix)
    ax.bar(np.arange(10) + 0.27 * (i - 1), values, width=0.25, color=colors[i], label=name)
ax.set(xlabel="eigenvalue", ylabel="share of the trace", xticks=range(10))
ax.legend()
fig.tight_layout()

# %%
# Eigenvectors: which patterns?
# -----------------------------
# The first two eigenvectors are the patterns, up to their sign.

fig, axes = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True, sharey=True)
for k, ax in enumerate(axes):
    for i, (name, matrix) in enumerate(matrices.items()):
        vector = np.linalg.eigh(matrix)[1][:, -1 - k]
        vector = vector * np.sign(vector @ patterns[:, k])
        ax.bar(np.arange(10) + 0.27 * (i - 1), vector, width=0.25, color=colors[i], label=name)
    ax.axhline(0, color="#24292f", linewidth=0.8)
    ax.set_title(f"eigenvector {k + 1}", loc="left", fontsize=11)
axes[0].legend(fontsize=8)
axes[1].set(xlabel="feature", xticks=range(10))
fig.tight_layout()

# %%
# The cosines of the angles between the plane of the truth and the plane of the first two
# eigenvectors say how close they are; 1 and 1 would be the same plane.

for name in list(matrices)[1:]:
    plane = np.linalg.eigh(matrices[name])[1][:, -2:]
    cosines = np.linalg.svd(patterns.T @ plane, compute_uv=False)
    print(f"{name:24} {cosines.round(2)}")

# %%
# Gain on new tasks
# -----------------
# A representation is useful if it helps with tasks that it was not learned from. Each of 200 new
# tasks is solved from half of its 12 rows, which is fewer rows than features. Ridge regression on
# each task alone gets the penalty that is best for these very tasks.

known, hidden = new.split_samples(0.5, random_state=0)
alone = min(ltl.evaluate(np.eye(10) / lam, known, hidden).mean() for lam in np.logspace(-4, 2, 30))
print(f"each task alone {alone:.2f}")
print(f"OnlineLTL       {ltl.evaluate(online, known, hidden).mean():.2f}")
print(f"BayesLTL        {ltl.evaluate(bayes, known, hidden).mean():.2f}")

# %%
# The noise alone has a mean square of 1. ``transform`` maps inputs to features in which the weights
# of all directions are equally likely, for use with any other model: here the 10 features of a task
# come down to two that matter.

Z = bayes.transform(new[0][0])
values = np.linalg.svd(Z, compute_uv=False)
print("singular values of the transformed inputs:", values.round(1))
