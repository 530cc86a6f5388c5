"""Draw what a learner has learned; each function draws on one Axes of matplotlib and returns it.

matplotlib is imported when the first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fastltl._text import printable
from fastltl._validation import Array, as_floats, check_finite
from fastltl.base import solve_each
from fastltl.bayes import BayesLTL
from fastltl.effects import INTERCEPT, Effects, interval_factor, ridge_prior
from fastltl.metrics import check_aligned
from fastltl.tasks import TaskSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours of text and grid lines, of the main data, and of what it is compared with.
INK, FAINT, MAIN, OTHER = "#24292f", "#d0d7de", "#1f77d0", "#d9730d"

#: Size of a new figure in inches, and how a caterpillar grows with its tasks up to a height.
SIZE, PER_TASK, TALLEST = (5.6, 4.2), 0.16, 9.0

#: Points on a page that a task needs for its label, and for a line of its own.
LABELLED, SEPARATE = 7.0, 2.0

#: Options of a title: the legend stands between it and the Axes.
TITLE: dict[str, Any] = {"loc": "left", "pad": 22, "fontsize": 11}

#: Levels of the intervals in a coverage plot.
LEVELS = np.linspace(0.01, 0.99, 99)


def effects(
    learner: BayesLTL, tasks: TaskSet, feature: str, level: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Draw the weight of a feature in each task with its interval, from the lowest to the highest.

    Parameters
    ----------
    learner : BayesLTL
    tasks : TaskSet
        The tasks that were learned from, or others.
    feature : str
        Name of a feature (x0, x1, ... if they have none), or "intercept".
    level : float
        Probability of the intervals; those of `BayesLTL.effects`.
    ax : matplotlib Axes, optional
        By default that of a new figure, here and below.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import fastltl as ltl
    >>> from matplotlib.figure import Figure
    >>> environment = ltl.datasets.make_environment(n_features=2, noise=0.1, random_state=0)
    >>> tasks = environment.tasks(30, n_samples=8)
    >>> learner = ltl.BayesLTL().fit(tasks)
    >>> ax = ltl.plots.effects(learner, tasks, "x1", ax=Figure().add_subplot())
    >>> ax.get_xlabel()
    'weight of x1, with 95 % intervals'
    """
    found, learner = _effects(learner, tasks)
    j = found.position(feature)
    half = interval_factor(level) * found.standard_errors[:, j]
    estimates = found.estimates[:, j]
    if ax is None:
        height = max(2.6, min(TALLEST, 1.4 + PER_TASK * len(tasks)))
        can_be_labelled = 72 * (height - 1.2) / len(tasks) > LABELLED
        ax = _new_axes((SIZE[0], height) if can_be_labelled else SIZE)
    _draw_effects(ax, estimates, estimates - half, estimates + half, found.labels, learner.mean_[j])
    ax.set_title(f"{_short(feature)} in each of {len(tasks):,} tasks", **TITLE)
    ax.set_xlabel(f"{_weight(feature)}, with {100 * level:g} % intervals")
    return ax


def _draw_effects(
    ax: Axes,
    estimates: Array,
    lower: Array,
    upper: Array,
    labels: Sequence[Any] | npt.NDArray[np.object_],
    mean: float,
) -> None:
    """Draw estimates with intervals, sorted, each task on a line; and a line at the mean.

    Labels are written if the Axes is high enough.
    """
    order = np.argsort(estimates, kind="stable")
    rows = np.arange(len(order))
    points = ax.get_window_extent().height * 72 / ax.figure.dpi / len(order)  # for each task
    ax.axvline(mean, color=OTHER, linewidth=1.5, label=f"prior mean {mean:.3g}")
    if points >= SEPARATE:
        thickness = float(np.clip(0.3 * points, 0.5, 2.0))
        ax.hlines(rows, lower[order], upper[order], color=MAIN, linewidth=thickness, alpha=0.55)
    else:  # lines thinner than pixels would look uneven
        ax.fill_betweenx(
            rows, lower[order], upper[order], step="mid", color=MAIN, alpha=0.3, linewidth=0
        )
    size = float(np.clip(0.5 * points, 1.5, 5.0))
    ax.plot(estimates[order], rows, "o", color=MAIN, markersize=size, markeredgewidth=0)
    ax.set_ylim(-1, len(order))
    if points >= LABELLED:
        names = [_short(labels[i]) for i in order]
        ax.set_yticks(rows, names, fontsize=min(9.0, 0.85 * points))
        ax.tick_params(axis="y", length=0)
    else:
        ax.set_yticks([])
        ax.set_ylabel("tasks, by their estimate")
    _finish(ax, "x")


def learning_curve(curve: Iterable[Any], ax: Axes | None = None) -> Axes:
    """Draw the error on each task before it was learned from, as tasks arrive.

    The line is the root of the mean squared error over the latest half of the tasks so far, with a
    95 % interval by the variance between tasks; points are single tasks. The first task is left
    out, as it is predicted with a prior guessed from itself.

    Parameters
    ----------
    curve : iterable
        Pairs (number of tasks, mean squared error), such as ``learner.iter_fit(tasks)``, or the
        errors alone.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import fastltl as ltl
    >>> from matplotlib.figure import Figure
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> progress = ltl.BayesLTL().iter_fit(environment.tasks(50, n_samples=8))
    >>> ax = ltl.plots.learning_curve(progress, ax=Figure().add_subplot())
    >>> ax.get_title(loc="left")
    'Error on the next task'
    """
    data = as_floats(list(curve), "curve")
    if data.ndim == 1:
        data = np.column_stack([np.arange(1, len(data) + 1), data])
    if data.ndim != 2 or data.shape[1] != 2 or len(data) < 2:
        raise ValueError(
            "curve must hold two or more errors or pairs (number of tasks, error), as iter_fit "
            f"yields them, got an array of shape {data.shape}."
        )
    check_finite(data, "curve")
    n_tasks, errors = data[1:].T
    if (errors < 0).any():
        raise ValueError(f"curve must hold squared errors, got {errors.min():g}.")
    means, half = _running_means(errors)
    ax = _new_axes() if ax is None else ax
    _draw_learning_curve(
        ax,
        n_tasks,
        np.sqrt(means),
        np.sqrt(np.maximum(means - half, 0.0)),
        np.sqrt(means + half),
        np.sqrt(errors),
    )
    ax.set_title("Error on the next task", **TITLE)
    ax.set(xlabel="number of the task", ylabel="root mean squared error")
    return ax


def _running_means(errors: Array) -> tuple[Array, Array]:
    """Return means over the latest half of the errors so far, and half of 95 % intervals."""
    means, half = np.empty(len(errors)), np.full(len(errors), np.nan)
    for t in range(len(errors)):
        window = errors[(t + 1) // 2 : t + 1]
        means[t] = window.mean()
        if len(window) > 2:
            half[t] = 1.96 * window.std(ddof=1) / np.sqrt(len(window))
    return means, half


def _draw_learning_curve(
    ax: Axes, n_tasks: Array, means: Array, lower: Array, upper: Array, errors: Array
) -> None:
    """Draw a line with a band over a logarithmic number of tasks, and a point for each error."""
    alpha = float(np.clip(10.0 / np.sqrt(len(errors)), 0.25, 0.6))
    points: dict[str, Any] = {"markersize": 3, "alpha": alpha, "markeredgewidth": 0}
    ax.plot(n_tasks, errors, "o", color=MAIN, label="task", **points)
    ax.fill_between(
        n_tasks, lower, upper, color=MAIN, alpha=0.2, linewidth=0, label="95 % interval"
    )
    ax.plot(n_tasks, means, color=MAIN, linewidth=2, label="running mean")
    ax.set_xscale("log")
    ticks = [k * 10**power for power in range(9) for k in (1, 2, 5)]  # 1, 2, 5, 10, 20, ...
    ticks = [tick for tick in ticks if n_tasks[0] <= tick <= n_tasks[-1]]
    step = -(-len(ticks) // 6)  # at most six
    ax.set_xticks(ticks[::step], [f"{tick:,}" for tick in ticks[::step]])
    ax.set_xticks([], minor=True)
    highest = [np.quantile(errors, 0.98), means.max()]  # a few large errors would flatten the line
    if np.isfinite(upper).any():
        highest.append(np.nanquantile(upper, 0.98))
    ax.set_ylim(top=1.05 * max(highest))
    _finish(ax, "y")


def shrinkage(
    learner: BayesLTL, tasks: TaskSet, features: tuple[str, str], ax: Axes | None = None
) -> Axes:
    """Draw how two weights of each task move from ridge regression to the adapted ones.

    An arrow begins at the weights that ridge regression gives to the task alone, with the penalty
    that the learner finds best for all tasks, and ends at those of `adapt`. The less a task says
    about its weights, the further they move to the prior mean, and along the correlation of the
    weights.

    Parameters
    ----------
    learner : BayesLTL
    tasks : TaskSet
        The tasks that were learned from, or others.
    features : pair of str
        Names of the weights on the two axes, as in `effects`.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import fastltl as ltl
    >>> from matplotlib.figure import Figure
    >>> environment = ltl.datasets.make_environment(n_features=2, noise=0.1, random_state=0)
    >>> tasks = environment.tasks(30, n_samples=8)
    >>> learner = ltl.BayesLTL().fit(tasks)
    >>> ax = ltl.plots.shrinkage(learner, tasks, ("x0", "intercept"), ax=Figure().add_subplot())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('weight of x0', 'intercept')
    """
    is_pair = isinstance(features, Sequence) and not isinstance(features, str)
    if not is_pair or len(features) != 2 or features[0] == features[1]:
        raise ValueError(f"features must be the names of two weights, got {features!r}.")
    found, learner = _effects(learner, tasks)
    pair = [found.position(feature) for feature in features]
    alone = ridge_prior(learner._fitted_run())
    models = solve_each(lambda X, y: learner._solve(alone, X, y), tasks)
    own = np.array([alone.weights_in_data_units(model._weights) for model in models])
    ax = _new_axes() if ax is None else ax
    _draw_shrinkage(ax, own[:, pair], found.estimates[:, pair], learner.mean_[pair])
    ax.set_title(f"Weights of {len(tasks):,} tasks", **TITLE)
    ax.set(xlabel=_weight(features[0]), ylabel=_weight(features[1]))
    return ax


def _draw_shrinkage(ax: Axes, own: Array, adapted: Array, mean: Array) -> None:
    """Draw arrows from the rows of one array of shape (tasks, 2) to those of another."""
    many = len(own) > 100
    size, alpha = (3.0, 0.6) if many else (4.5, 0.9)
    ax.quiver(
        *own.T, *(adapted - own).T, angles="xy", scale_units="xy", scale=1, color=INK,
        width=0.0015 if many else 0.0025, headwidth=5, alpha=0.15 if many else 0.35,
    )  # fmt: skip
    points: dict[str, Any] = {"markersize": size, "alpha": alpha, "markeredgewidth": 0}
    ax.plot(*own.T, "o", color="#8a8f98", label="alone (ridge)", **points)
    ax.plot(*adapted.T, "o", color=MAIN, label="adapted", **points)
    ax.plot(*mean, "D", color=OTHER, markersize=8, markeredgecolor="white", label="prior mean")
    ends = np.concatenate([own, adapted, mean[None]])
    rare = 0.005 if many else 0.0  # so that a few outliers do not squeeze many others
    low, high = np.quantile(ends, [rare, 1.0 - rare], axis=0)
    low, high = np.minimum(low, mean), np.maximum(high, mean)
    margin = 0.08 * (high - low) + 1e-12 * np.abs(mean)
    ax.set_xlim(low[0] - margin[0], high[0] + margin[0])
    ax.set_ylim(low[1] - margin[1], high[1] + margin[1])
    _finish(ax, "both")


def coverage(learner: BayesLTL, known: TaskSet, hidden: TaskSet, ax: Axes | None = None) -> Axes:
    """Draw how many targets the prediction intervals cover, against how many they should.

    Parameters
    ----------
    learner : BayesLTL
    known, hidden : TaskSet
        Two parts of the samples of the same tasks, as `TaskSet.split_samples` makes them: those
        that the learner adapts to, and those to predict. The learner should not have seen the
        latter.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import fastltl as ltl
    >>> from matplotlib.figure import Figure
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> learner = ltl.BayesLTL().fit(environment.tasks(50, n_samples=8))
    >>> known, hidden = environment.tasks(20, n_samples=16).split_samples(0.5, random_state=0)
    >>> ax = ltl.plots.coverage(learner, known, hidden, ax=Figure().add_subplot())
    >>> ax.get_xlabel()
    'nominal coverage (%)'
    """
    _check_learner(learner)
    check_aligned(known, hidden)
    covered, sizes, adapted = [], hidden.sizes, learner.adapt(known)
    for model, (X, y) in zip(adapted.values(), hidden, strict=True):
        prediction, std = model.predict(X, return_std=True)
        needed = 2.0 * ndtr(np.abs(y - prediction) / std) - 1.0  # level that just covers y
        covered.append((needed[:, None] <= LEVELS).mean(axis=0))
    shares = np.array(covered)
    actual = np.average(shares, axis=0, weights=sizes)
    # Targets of one task are covered or not together, so tasks are what is counted.
    variances = np.sum(sizes[:, None] ** 2 * (shares - actual) ** 2, axis=0) / sizes.sum() ** 2
    half = 1.96 * np.sqrt(variances)
    ax = _new_axes((4.6, 4.6)) if ax is None else ax
    _draw_coverage(
        ax, LEVELS, actual, np.maximum(actual - half, 0.0), np.minimum(actual + half, 1.0)
    )
    at_95 = 100 * np.interp(0.95, LEVELS, actual)
    ax.set_title(f"95 % intervals cover {at_95:.0f} %", **TITLE)
    ax.set_ylabel(f"actual, of {sizes.sum():,} targets (%)")
    return ax


def _draw_coverage(ax: Axes, nominal: Array, actual: Array, lower: Array, upper: Array) -> None:
    """Draw actual against nominal coverage with a band, all as fractions."""
    ax.plot([0, 100], [0, 100], "--", color=INK, linewidth=1, label="ideal")
    ax.fill_between(
        100 * nominal,
        100 * lower,
        100 * upper,
        color=MAIN,
        alpha=0.2,
        linewidth=0,
        label="95 % interval",
    )
    ax.plot(100 * nominal, 100 * actual, color=MAIN, linewidth=2, label="actual")
    ax.set(xlabel="nominal coverage (%)", ylabel="actual coverage (%)")
    ax.set(xlim=(0, 100), ylim=(0, 100))
    ax.set_xticks(range(0, 101, 20))
    ax.set_yticks(range(0, 101, 20))
    _finish(ax, "both")


def _check_learner(learner: Any) -> None:
    if not isinstance(learner, BayesLTL):
        raise TypeError(f"learner must be a BayesLTL, got {type(learner).__name__}.")


def _effects(learner: BayesLTL, tasks: TaskSet) -> tuple[Effects, BayesLTL]:
    """Return the weights of tasks, and a copy of the learner that no other thread changes."""
    _check_learner(learner)
    fixed = copy(learner)
    return fixed._effects(tasks), fixed


def _weight(feature: str) -> str:
    return feature if feature.strip("()") == INTERCEPT else f"weight of {_short(feature)}"


def _short(label: Any) -> str:
    text = printable(label)
    return text if len(text) <= 24 else f"{text[:11]}…{text[-12:]}"  # names often end in a number


def _new_axes(size: tuple[float, float] = SIZE) -> Axes:
    """Return the Axes of a new figure of pyplot, which notebooks and windows show."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install 'fastltl[report]'."
        ) from error
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _finish(ax: Axes, grid: Any) -> None:
    """Leave out what carries no data, and add a legend above the Axes, where it hides nothing."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=grid, color=FAINT, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, frameon=False, fontsize=8.5,
        handlelength=1.2, columnspacing=1.2, handletextpad=0.5, borderaxespad=0.2, borderpad=0.2,
    )  # fmt: skip
