"""
A stream that drifts: forget old tasks
======================================

Tasks that arrive over months or years may change slowly: what raised sales last year need not do
so today. A learner that weighs all tasks alike averages over times that are gone. With
``half_life`` the weight of a task halves after so many tasks.
"""

import matplotlib.pyplot as plt
import numpy as np

import fastltl as ltl

# %%
# Tasks whose weights turn
# ------------------------
# Each task is a store with 8 rows and two features. Stores that come close after one another have
# similar weights. Over 800 stores, the direction of the weights turns by a full circle.

rng = np.random.default_rng(0)
angles = 2 * np.pi * np.arange(800) / 800


def store(angle):
    X = rng.normal(size=(8, 2))
    weights = np.array([np.cos(angle), np.sin(angle)]) + 0.2 * rng.normal(size=2)
    return X, X @ weights + 0.5 * rng.normal(size=8)


tasks = [store(angle) for angle in angles]

# %%
# Follow the stream
# -----------------
# ``partial_fit`` learns from a store and forgets its data. After each store we write down the
# prior mean of the first weight: what the learner expects of the next store.

learners = {"no forgetting": ltl.BayesLTL(), "half_life=20": ltl.BayesLTL(half_life=20)}
means = {name: [] for name in learners}
for X, y in tasks:
    for name, learner in learners.items():
        means[name].append(learner.partial_fit(X, y).mean_[0])

fig, ax = plt.subplots(figsize=(7, 3.4))
ax.plot(np.cos(angles), color="#24292f", linestyle="--", label="truth")
ax.plot(means["no forgetting"], color="#8c959f", label="no forgetting")
ax.plot(means["half_life=20"], color="#1f77d0", label="half_life=20")
ax.set(title="Prior mean of the first weight", xlabel="stores seen", ylabel="weight")
ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, -0.42), frameon=False)
fig.tight_layout()

# %%
# The learner that forgets follows the truth with a delay. The prior mean of the other one
# approaches the average over all directions.
#
# Choose the half-life
# --------------------
# ``iter_fit`` yields the error on each store before the store is learned from: every row of it is
# predicted from the other rows. So errors of the past are honest, and no data has to be set apart.
# We choose the half-life by stores 100 to 400, and look at the error on the stores after them,
# which took no part in the choice.

half_lives = [None, 100, 50, 20, 10, 5, 2]
errors = {
    half_life: np.array([error for _, error in ltl.BayesLTL(half_life=half_life).iter_fit(tasks)])
    for half_life in half_lives
}
chosen = min(half_lives, key=lambda half_life: errors[half_life][100:400].mean())

print("half-life   stores 100 to 400   stores 400 to 800")
for half_life in half_lives:
    early, late = errors[half_life][100:400].mean(), errors[half_life][400:].mean()
    mark = "  <- chosen" if half_life == chosen else ""
    print(f"{half_life!s:>9}   {early:17.3f}   {late:17.3f}{mark}")

# %%
# The variance of the noise, 0.25, is the least error that any method can have. A half-life that is
# too short costs accuracy as well, because the prior is learned from few stores.

fig, ax = plt.subplots(figsize=(7, 3.4))
window = np.ones(50) / 50
for half_life, color in ((None, "#8c959f"), (chosen, "#1f77d0")):
    name = "no forgetting" if half_life is None else f"half_life={half_life}"
    running = np.convolve(errors[half_life], window, mode="valid")
    ax.plot(np.arange(50, len(tasks) + 1), running, color=color, label=name)
ax.axhline(0.25, color="#24292f", linestyle="--", label="variance of the noise")
ax.set(
    title="Error on the next store, mean of the latest 50",
    xlabel="number of the store",
    ylabel="mean squared error",
    ylim=(0.2, None),
)
ax.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, -0.42), frameon=False)
fig.tight_layout()

# %%
# On the command line, ``fastltl train --half-life 20`` does the same for a file;
# :doc:`/streams` is about learning from streams.
