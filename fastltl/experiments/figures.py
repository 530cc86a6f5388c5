"""Draw the pictures of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fastltl.experiments import paper, prior, verdict
from fastltl.experiments.charts import FAINT, INK, STYLE, Picture, draw_comparison, new_axes
from fastltl.experiments.results import Results, Row, select

#: Colours of the methods, readable on white and on black.
COLOURS = {
    paper.ALONE: "#7f7f7f",
    paper.MULTITASK: "#a05bd6",
    paper.BATCH: "#2a9d5c",
    paper.PAPER_BATCH: "#8fbf3f",
    paper.SUBSPACE: "#c4457a",
    paper.DEFAULT: "#1f77d0",
    paper.PAPER: "#d9730d",
    paper.PAPER_TUNED: "#b59a2b",
    verdict.ONLINE: "#1f77d0",
    verdict.ALONE: "#7f7f7f",
    prior.POOLED: "#c4457a",
    prior.GPBOOST: "#8c5a3c",
    prior.LME4: "#b59a2b",
    prior.ONE_PASS: "#e0483e",
    prior.JOINT: "#d9730d",
    prior.PASSES: "#f0a33f",
}
#: Markers of the methods that are compared with a mixed model; a dot for the others.
MARKERS = {
    prior.GPBOOST: "s",
    prior.LME4: "s",
    prior.ONE_PASS: "D",
    prior.JOINT: "^",
    prior.PASSES: "v",
}

#: Ticks of axes that show ratios.
RATIOS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 6)

#: Names of the noises in the names of files.
NOISE_LEVELS = dict(zip(paper.NOISES, ("paper", "lower"), strict=True))

#: Names of online LTL's steps in the names of files.
STEPS = {paper.DEFAULT: "default", paper.PAPER: "paper", paper.PAPER_TUNED: "tuned"}

#: Names of the pictures of each experiment.
PICTURES = {
    "compare": ["methods", "learning", "tasks", "coverage"],
    "grid": [f"grid-{x}-noise-{y}" for x, y in product(NOISE_LEVELS.values(), STEPS.values())],
    "stream": [f"stream-{level}-noise" for level in NOISE_LEVELS.values()],
    "timing": [],
    "schools": ["schools"],
    "bounds": ["bounds"],
    "prior": ["prior"],
}


def draw(results: Results) -> list[Picture]:
    """Draw the pictures of an experiment."""
    pictures: dict[str, Callable[[Results], list[Picture]]] = {
        "compare": draw_comparison,
        "grid": _grid,
        "stream": _stream,
        "schools": _schools,
        "timing": lambda _: [],  # the paper's Table 1 is a table
        "bounds": lambda results: [_bounds(results["summary"])],
        "prior": lambda results: [_ratios(results["summary"])],
    }
    with matplotlib.rc_context(STYLE):
        return pictures[results["manifest"]["experiment"]](results)


def _annotate(axes: Axes, text: str, x: float, y: float, above: int, **style: Any) -> None:
    """Write a note some points above (x, y)."""
    axes.annotate(text, (x, y), xytext=(0, above), textcoords="offset points", fontsize=9, **style)


def _grid(results: Results) -> list[Picture]:
    """Draw a map of the gains for each noise and step."""
    pictures = []
    for (noise, level), (method, step) in product(NOISE_LEVELS.items(), STEPS.items()):
        rows = select(results["summary"], noise=noise, method=method)
        caption = (
            f"Gain of {method} over ITL, in percent of ITL's test error, by the number of "
            f"training tasks and of samples per task. Noise {noise}."
        )
        figure = _gain_map(rows, f"{method}, noise {noise}")
        pictures.append(Picture(f"grid-{level}-noise-{step}", figure, caption))
    return pictures


def _gain_map(rows: Sequence[Row], title: str) -> Figure:
    gains = {(row["n_samples"], row["n_tasks"]): row["mean"] for row in rows}
    samples, tasks = (sorted(set(numbers)) for numbers in zip(*gains, strict=True))
    figure, axes = new_axes(title, "training tasks T", "samples per task n", 4.4)
    levels = [-20, -15, -10, -5, -2, -1, 1, 2, 5, 10, 15, 20]
    mesh = axes.pcolormesh(
        [[gains[n, t] for t in tasks] for n in samples],
        cmap=matplotlib.colormaps["RdBu"],
        norm=BoundaryNorm(levels, 256, extend="both"),
        edgecolor="white",
        linewidth=0.5,
    )
    centred: Any = {"horizontalalignment": "center", "verticalalignment": "center"}
    size = 9 if len(tasks) <= 8 else 6
    for (y, n), (x, t) in product(enumerate(samples), enumerate(tasks)):
        gain = gains[n, t]
        label = f"{gain:+z.0f}" if abs(gain) >= 0.5 else "0"
        colour = "white" if abs(gain) > 10 else "black"
        axes.text(x + 0.5, y + 0.5, label, color=colour, fontsize=size, **centred)
    axes.set_xticks([k + 0.5 for k in range(len(tasks))], list(map(str, tasks)), fontsize=8)
    axes.set_yticks([k + 0.5 for k in range(len(samples))], list(map(str, samples)), fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, label="gain over ITL (%)", ticks=levels)
    bar.outline.set_visible(False)
    return figure


def _stream(results: Results) -> list[Picture]:
    return [
        _curves(
            f"stream-{level}-noise",
            select(results["summary"], noise=noise),
            f"Synthetic tasks, n = 25, noise {noise}",
            "test MSE",
            f"Test error as training tasks arrive, noise {noise}. After the last task:",
            "{:.4f}",
        )
        for noise, level in NOISE_LEVELS.items()
    ]


def _schools(results: Results) -> list[Picture]:
    caption = "Explained variance as training schools arrive. After the last school:"
    rows, y = results["summary"], "explained variance (%)"
    return [_curves("schools", rows, "Schools", y, caption, "{:.1f} %")]


def _curves(name: str, rows: Sequence[Row], title: str, y: str, caption: str, form: str) -> Picture:
    """Draw a line for each method with its interval; a level one if it uses no training tasks.

    The caption ends with the mean of each method after the last task, formatted by `form`.
    """
    figure, axes = new_axes(title, "training tasks seen", y, 4.4)
    most = max(row["n_tasks"] or 1 for row in rows)
    final = {row["method"]: form.format(row["mean"]) for row in rows}
    for method in final:
        found = select(rows, method=method)
        tasks, means, lows, highs = (
            [row[key] for row in found] for key in ("n_tasks", "mean", "low", "high")
        )
        colour = COLOURS[method]
        if tasks == [None]:
            axes.plot([1, most], means * 2, "--", color=colour, label=method)
            continue
        marker = "o" if len(tasks) == 1 else ""
        axes.plot(tasks, means, "-", marker=marker, color=colour, label=method)
        if lows[0] is not None:
            axes.fill_between(tasks, lows, highs, color=colour, alpha=0.15, linewidth=0)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    listed = ", ".join(f"{method} {mean}" for method, mean in final.items())
    return Picture(name, figure, f"{caption} {listed}.")


def _bounds(summary: Sequence[Row]) -> Picture:
    """Draw the bounds against T at a fixed n, and against n at a fixed T."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    styles = {
        paper.ONLINE_BOUND: (COLOURS[paper.DEFAULT], "-"),
        paper.BATCH_BOUND: (COLOURS[paper.BATCH], "-"),
        paper.WITHIN_TASKS: (COLOURS[paper.ALONE], "--"),
    }
    size = paper.BOUNDS_SIZE
    for axes, varied, fixed, label in zip(
        panels,
        ("n_tasks", "n_samples"),
        ("n_samples", "n_tasks"),
        ("tasks T, with $n = 10^6$ samples each", "samples n of each of $T = 10^6$ tasks"),
        strict=True,
    ):
        rows = [row for row in summary if row[fixed] == size]
        for name, (colour, line) in styles.items():
            found = sorted(select(rows, method=name), key=lambda row: int(row[varied]))
            numbers = [row[varied] for row in found]
            means = [row["mean"] for row in found]
            axes.plot(numbers, means, line, color=colour, label=name)
        axes.axhline(1, color=INK, linewidth=1)
        axes.set(xlabel=label, xscale="log", yscale="log")
        axes.grid(axis="y")
    panels[0].set(title="Bounds on the excess risk", ylabel=f"bound, lam = {paper.BOUNDS_LAM:g}")
    _annotate(panels[0], "losses are at most 1", 1e8, 1.0, 4, horizontalalignment="right")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    caption = (
        "Bounds on the excess risk of online and batch LTL, by the number of tasks and of samples "
        f"per task, for lam = {paper.BOUNDS_LAM:g}, inputs on the unit sphere and confidence 95 %. "
        "A bound above 1 says nothing. The third line is the part that does not depend on T."
    )
    return Picture("bounds", figure, caption)


def _ratios(summary: Sequence[Row]) -> Picture:
    """Draw the error of each method over that of a reference, with a band for each problem."""
    panels: dict[str, list[Row]] = {"Tables": [], "Synthetic tasks": []}
    for row in summary:
        if row["ratio"]["mean"] is not None:
            panels["Tables" if row["noise"] is None else "Synthetic tasks"].append(row)
    panels = {title: rows for title, rows in panels.items() if rows}
    problems = [list(dict.fromkeys(row["problem"] for row in rows)) for rows in panels.values()]
    n_bands = [len(names) for names in problems]
    figure = Figure(figsize=(7.2, 1.6 + 0.52 * sum(n_bands)), layout="constrained")
    grid = figure.subplots(len(panels), height_ratios=n_bands, squeeze=False)
    found = {row["method"] for row in summary}
    methods = [name for name in prior.METHODS if name in found]
    for axes, (title, rows), names in zip(grid[:, 0], panels.items(), problems, strict=True):
        for row in rows:
            height = methods.index(row["method"]) / (len(methods) - 1) - 0.5
            _mark_ratio(axes, row, names.index(row["problem"]) + 0.76 * height)
        reference = " or ".join(dict.fromkeys(row["reference"] for row in rows))
        axes.set(title=f"{title}: error over that of {reference}", xscale="log")
        axes.axvline(1, color=INK, linewidth=1, zorder=1)
        for band in range(1, len(names)):
            axes.axhline(band - 0.5, color=FAINT, linewidth=0.8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0)
        means = [row["ratio"]["mean"] for row in rows]
        low, high = 0.93 * min(means), 1.07 * max(means)  # a long interval may end outside
        axes.set_xlim(low, high)
        ticks = [tick for tick in RATIOS if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
    handles = [
        Line2D([], [], color=COLOURS[name], marker=MARKERS.get(name, "o"), label=name)
        for name in methods
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    best = select(summary, method=prior.ONE_PASS)
    listed = ", ".join(f"{row['problem']} {row['ratio']['mean']:.2f}" for row in best)
    caption = (
        "Error on held-out rows of new tasks, over that of a reference, with 95 % intervals over "
        f"the splits; less is better. {prior.ONE_PASS}: {listed}."
    )
    return Picture("prior", figure, caption)


def _mark_ratio(axes: Axes, row: Row, y: float) -> None:
    """Draw a ratio and its interval, if it has one."""
    ratio, colour = row["ratio"], COLOURS[row["method"]]
    if ratio["low"] is not None:
        axes.plot([ratio["low"], ratio["high"]], [y, y], color=colour, linewidth=1.5)
    marker = MARKERS.get(row["method"], "o")
    axes.plot(ratio["mean"], y, marker, color=colour, markersize=4)
