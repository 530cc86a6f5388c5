"""
Cold start: predictions for a new store
=======================================

A new store opens. There are no sales of it yet, and a week later there are a few. How well can
its sales be predicted, and how sure can we be? A prior that was learned from other stores gives an
answer from the first day on, with error bars that shrink as rows come in.
"""

import matplotlib.pyplot as plt
import numpy as np

import fastltl as ltl

# %%
# Stores
# ------
# Sales fall with the price. Stores differ in their level and in how much the price matters, and the
# two go together: where sales are high, customers care less for the price. Each store has 60 rows.

rng = np.random.default_rng(0)
covariance = [[4.0, 0.6], [0.6, 0.25]]  # of level and slope over stores


def draw_store():
    level, slope = rng.multivariate_normal([20.0, -3.0], covariance)
    price = rng.uniform(1, 4, size=60)
    return price[:, None], level + slope * price + rng.normal(size=60)


old = ltl.TaskSet([draw_store() for _ in range(200)]).with_names(["price"])
new = ltl.TaskSet([draw_store() for _ in range(200)]).with_names(["price"])
learner = ltl.BayesLTL().fit(old)
print(learner.summary())

# %%
# One new store
# -------------
# With no rows, ``learner.predict`` predicts by the prior. With some, ``learner.adapt`` does.
# The band is where 95 % of the sales are expected; it includes the noise.

X, y = new[0]
grid = np.linspace(1, 4, 50)[:, None]
fig, axes = plt.subplots(2, 2, figsize=(7.5, 6), sharex=True, sharey=True)
for ax, n in zip(axes.ravel(), (0, 1, 5, 20), strict=True):
    model = learner.adapt(X[:n], y[:n]) if n else learner
    prediction, std = model.predict(grid, return_std=True)
    ax.fill_between(
        grid[:, 0],
        prediction - 1.96 * std,
        prediction + 1.96 * std,
        color="#1f77d0",
        alpha=0.2,
        linewidth=0,
        label="95 % interval",
    )
    ax.plot(grid[:, 0], prediction, color="#1f77d0", label="prediction")
    ax.plot(X[20:, 0], y[20:], "o", color="#8c959f", markersize=3, label="sales to come")
    ax.plot(X[:n, 0], y[:n], "o", color="#d9730d", label="sales known")
    ax.set_title(f"{n} rows known" if n != 1 else "1 row known", loc="left")
axes[0, 0].legend(fontsize=8)
for ax in axes[1]:
    ax.set_xlabel("price")
for ax in axes[:, 0]:
    ax.set_ylabel("sales")
fig.tight_layout()

# %%
# One row tells much of the level, and through the correlation something of the slope. The band
# keeps the width of the noise, however many rows there are.
#
# All new stores
# --------------
# The same for 200 new stores, none of which was learned from: the error on the last 40 rows of each
# when the first n are known. Two other methods are compared: least squares on each store alone,
# which needs at least two rows, and one regression for all old stores.


def with_ones(X):
    return np.column_stack([X, np.ones(len(X))])


rows = np.concatenate([with_ones(X) for X, _ in old])
pooled = np.linalg.lstsq(rows, np.concatenate([y for _, y in old]), rcond=None)[0]

sizes = [0, 1, 2, 3, 5, 10, 20]
errors = {"each store alone": [], "one model for all": [], "BayesLTL": []}
inside = []
for n in sizes:
    squares = {name: [] for name in errors}
    hits = []
    for X, y in new:
        hidden, sales = X[20:], y[20:]
        model = learner.adapt(X[:n], y[:n]) if n else learner
        prediction, std = model.predict(hidden, return_std=True)
        squares["BayesLTL"].append((sales - prediction) ** 2)
        squares["one model for all"].append((sales - with_ones(hidden) @ pooled) ** 2)
        if n > 1:
            weights = np.linalg.lstsq(with_ones(X[:n]), y[:n], rcond=None)[0]
            squares["each store alone"].append((sales - with_ones(hidden) @ weights) ** 2)
        hits.append(np.abs(sales - prediction) < 1.96 * std)
    for name, found in squares.items():
        errors[name].append(np.sqrt(np.median(np.mean(found, axis=1))) if found else np.nan)
    inside.append(np.mean(hits))

fig, ax = plt.subplots(figsize=(7, 3.6))
for (name, values), color in zip(errors.items(), ("#d9730d", "#8c959f", "#1f77d0"), strict=True):
    ax.plot(range(len(sizes)), values, "o-", color=color, label=name)
ax.axhline(1.0, color="#24292f", linestyle="--", linewidth=1, label="noise")
ax.set_xticks(range(len(sizes)), sizes)
ax.set(
    title="Error on rows to come, of the median new store",
    xlabel="rows known of a new store",
    ylabel="root mean squared error",
    ylim=(0.8, 4),
)
ax.legend()
fig.tight_layout()

# %%
# The picture shows the median store, because least squares on two or three rows is sometimes so far
# off that a mean would show nothing else. With many rows, least squares and the learned prior come
# together: then a store speaks for itself.
#
# Are the error bars right?
# -------------------------
# About 95 % of the sales to come should lie inside of their 95 % intervals, whatever n:

for n, share in zip(sizes, inside, strict=True):
    print(f"{n:2} rows known: {share:.1%} of the sales to come lie in their interval")
