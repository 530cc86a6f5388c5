"""Draw the pictures of a comparison."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from fastltl._validation import Array
from fastltl.experiments.results import Results, select
from fastltl.experiments.verdict import (
    ALONE,
    BATCH,
    BAYES,
    INTERCEPTS,
    MULTITASK,
    ONLINE,
    POOLED,
    SLOPES,
)

#: Colours of text, of grid lines, of what matters and of what it is compared with; the report
#: replaces them by those of its page.
INK, FAINT, MARK, MUTED = "#24292f", "#d0d7de", "#1f77d0", "#848d97"

#: Names of the methods in pictures.
SHORT = {
    ALONE: "each alone",
    POOLED: "pooled",
    INTERCEPTS: "mixed, intercepts",
    SLOPES: "mixed, slopes",
    ONLINE: "online LTL",
    BATCH: "batch LTL",
    MULTITASK: "MTL",
    BAYES: "BayesLTL",
}
#: Width in inches at which text can be read on a phone.
NARROW = 5.0
#: Titles begin at the left edge of the figure.
TITLE: Any = {"x": 0.01, "horizontalalignment": "left", "fontsize": 11.5, "fontweight": "bold"}
#: More points than this are drawn as an image.
MANY_POINTS = 500

STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 10,
    "grid.color": FAINT,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastltl",
    **dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK
    ),
}


class Picture(NamedTuple):
    """A figure, the name of its files, and its caption."""

    name: str
    figure: Figure
    caption: str


def render(picture: Picture, kind: str) -> bytes:
    """Return the content of a picture's "svg" or "png" file."""
    buffer, is_svg = io.BytesIO(), kind == "svg"
    date = {"Date": None} if is_svg else {}  # no date, so that bytes are reproducible
    with matplotlib.rc_context(STYLE):
        picture.figure.savefig(buffer, format=kind, dpi=200, metadata=date, transparent=is_svg)
    return buffer.getvalue()


def new_axes(title: str, x: str, y: str, height: float, width: float = 5.6) -> tuple[Figure, Axes]:
    """Return a figure and its axes, with labels."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def draw_comparison(results: Results) -> list[Picture]:
    """Draw the methods, how BayesLTL learns, the tasks, and the coverage of intervals."""
    return [_methods(results), _learning(results), _tasks(results), _coverage(results)]


def _methods(results: Results) -> Picture:
    """Draw the variance that each method explains, with the interval of its gain."""
    rows, use = results["methods"][::-1], results["verdict"]["use"]
    [alone] = select(results["methods"], method=ALONE)
    variance = results["data"]["variance"]
    figure, axes = new_axes("", "variance explained in held-out tasks (%)", "", 3.6, NARROW)
    figure.suptitle("What each method explains", **TITLE)
    lowest = _lowest([row["explained"] for row in rows])
    for y, row in enumerate(rows):
        is_used = row["method"] == use
        style: Any = {"color": MARK if is_used else MUTED}
        explained = 100 * row["explained"]
        if "interval" in row:  # of the gain, on the scale of what is explained
            ends = [100 - (100 - gain) * alone["mse"] / variance for gain in row["interval"]]
            axes.plot(ends, [y, y], linewidth=3, alpha=0.5, solid_capstyle="round", **style)
        size = 9 if is_used else 6
        axes.plot(max(explained, lowest), y, "o" if explained >= lowest else "<", ms=size, **style)
        weight = "bold" if is_used else "normal"
        axes.annotate(
            f"{explained:.1f}", (1.02, y), xycoords=axes.get_yaxis_transform(), weight=weight,
            verticalalignment="center",
        )  # fmt: skip
    axes.axvline(100 * alone["explained"], color=INK, linewidth=1, linestyle=":", zorder=0)
    highest = max(100 * row["explained"] for row in rows)
    margin = 0.08 * (highest - lowest) or 1.0
    axes.set_xlim(lowest - margin, highest + 2 * margin)  # a long interval may end outside
    axes.set_yticks(range(len(rows)), [SHORT[row["method"]] for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row["method"] == use else "normal")
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    caption = (
        "Variance of the target that each method explains in held-out tasks; further right is "
        "better. Bars are 95 % intervals of the difference from each task alone (dotted line)."
    )
    return Picture("methods", figure, caption)


def _tasks(results: Results) -> Picture:
    """Draw the error on each task, with the recommended method against the task alone."""
    name, tasks = shown_method(results), results["tasks"]
    errors = np.sqrt([[task["mse"][method] for method in (ALONE, name)] for task in tasks])
    n_better = int((errors[:, 1] < errors[:, 0]).sum())
    figure, axes = new_axes("", "error of each task alone", f"error of {SHORT[name]}", 4.2, NARROW)
    figure.suptitle(f"Better with {SHORT[name]} in {n_better:,} of {len(tasks):,} tasks", **TITLE)
    floor = max(np.median(errors) / 30, 1e-9 * errors.max()) or 1.0
    errors = np.maximum(errors, floor)
    low, high = errors.min() / 1.15, errors.max() * 1.15
    size, alpha = (5, 0.75) if len(tasks) <= MANY_POINTS else (3, 0.35)
    axes.plot([low, high], [low, high], color=INK, linewidth=1)
    axes.plot(
        *errors.T, "o", color=MARK, ms=size, alpha=alpha, mew=0,
        rasterized=len(tasks) > MANY_POINTS,  # else the page grows with the tasks
    )  # fmt: skip
    for text, x, y, align in (
        ("better alone", 0.02, 0.98, "left"), (f"better with {SHORT[name]}", 0.98, 0.03, "right")
    ):  # fmt: skip
        axes.text(
            x, y, text, transform=axes.transAxes, horizontalalignment=align, color=MUTED,
            verticalalignment="top" if align == "left" else "bottom",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        _round_ticks(axis, low, high, (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 7))
    axes.grid()
    axes.set_axisbelow(True)
    caption = (
        f"Error on the held-out rows of each task (root mean square, in units of the target) with "
        f"{name}, against ridge regression on that task alone. Below the line, which {n_better:,} "
        f"of {len(tasks):,} tasks are, {SHORT[name]} is better. Both axes are logarithmic"
    )
    is_cut = bool((errors == floor).any())
    caption += f"; errors below {floor:.2g} are drawn at the edge." if is_cut else "."
    return Picture("tasks", figure, caption)


def _learning(results: Results) -> Picture:
    """Draw what BayesLTL explains as tasks arrive, beside the levels of the other methods."""
    curve, use = results["curve"], results["verdict"]["use"]
    tasks, means, lows, highs = (
        np.array([row[key] for row in curve]) for key in ("n_tasks", "explained", "low", "high")
    )
    figure, axes = new_axes("", "tasks that BayesLTL has learned from", "", 3.6, NARROW)
    figure.suptitle("Variance explained (%) as BayesLTL learns", **TITLE)
    levels = {row["method"]: row["explained"] for row in results["methods"]}
    lowest = _lowest([*levels.values(), *means[1:]])  # a single task may say anything
    highest = 100 * max(*levels.values(), *means, min(1.0, highs[-1]))
    margin = 0.1 * (highest - lowest) or 1.0
    axes.fill_between(tasks, 100 * lows, 100 * highs, color=MARK, alpha=0.2, linewidth=0)
    axes.plot(tasks, 100 * means, "o-", color=MARK, ms=4, linewidth=2)
    axes.set_ylim(lowest - margin, highest + margin)
    axes.set(xscale="log", xlim=(tasks[0], max(tasks[-1], 1.1)))
    _round_ticks(axes.xaxis, tasks[0], tasks[-1])
    names = sorted(levels, key=lambda name: levels[name])
    heights = np.array([100 * levels[name] for name in names])
    heights = np.clip((heights - lowest + margin) / (highest - lowest + 2 * margin), 0.0, 1.0)
    for name, height, place in zip(names, heights, spread(heights, 0.075), strict=True):
        line: Any = {"color": MUTED, "linewidth": 1, "zorder": 1}
        if name != BAYES:
            style = "--" if name in (ALONE, POOLED) else "-"
            axes.axhline(100 * levels[name], linestyle=style, **line)
        outside: Any = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([1.0, 1.04], [height, place], **line, **outside)
        colour, weight = MARK if name == BAYES else INK, "bold" if name == use else "normal"
        axes.text(1.05, place, SHORT[name], color=colour, weight=weight, va="center", **outside)
    caption = (
        "Variance that BayesLTL explains in held-out tasks, with 95 % intervals of the difference "
        f"from each task alone: {100 * means[0]:.1f} % after the first task, "
        f"{100 * means[-1]:.1f} % after {tasks[-1]}. "
        "The other lines are what the other methods explain in the end."
    )
    return Picture("learning", figure, caption)


def spread(heights: Array, gap: float) -> Array:
    """Move heights, which are sorted, as little as needed to be `gap` apart, and within 0 and 1."""
    offsets = gap * np.arange(len(heights))
    places: Array = isotonic_regression(heights - offsets).x
    return np.clip(places, 0.0, 1.0 - offsets[-1]) + offsets


def _coverage(results: Results) -> Picture:
    """Draw the share of targets in the intervals of BayesLTL, and the share that should be."""
    rows = results["coverage"][::-1]
    figure, axes = new_axes("", "held-out targets within their interval (%)", "", 2.6, NARROW)
    figure.suptitle("Intervals of BayesLTL", **TITLE)
    for y, row in enumerate(rows):
        covered, level = 100 * row["covered"], row["level"]
        axes.barh(y, covered, 0.5, color=MARK, alpha=0.75)
        axes.plot([level, level], [y - 0.4, y + 0.4], color=INK, linewidth=2)
        axes.annotate(
            f"{covered:.1f} %", (1.02, y), xycoords=axes.get_yaxis_transform(),
            verticalalignment="center",
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [f"{row['level']} % interval" for row in rows])
    axes.set_xlim(0, 100)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    caption = (
        "Coverage: how many of the held-out targets lie within their prediction intervals. A bar "
        "that ends at its line is right; a shorter one means intervals that are too narrow."
    )
    return Picture("coverage", figure, caption)


def shown_method(results: Results) -> str:
    """Return the recommended method or, if that is each task alone, the best other one."""
    use = str(results["verdict"]["use"])
    others = [row for row in results["methods"] if row["method"] != ALONE]
    return use if use != ALONE else str(min(others, key=lambda row: float(row["mse"]))["method"])


def _lowest(explained: Sequence[float]) -> float:
    """Return where an axis begins, in percent: a method far worse than others is cut off."""
    return 100 * max(min(explained), max(explained) - 1.0)


def _round_ticks(axis: Any, low: float, high: float, digits: Sequence[float] = (1, 2, 5)) -> None:
    """Put at most six ticks at the digits times powers of ten on a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [k * 10.0**power for power in powers for k in digits]
    ticks = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
    ticks = ticks[:: -(-len(ticks) // 6) or 1]
    axis.set_ticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.set_ticks([], minor=True)
