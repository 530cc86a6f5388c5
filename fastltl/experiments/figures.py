"""Draw pictures of results."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastltl.experiments import compare, paper
from fastltl.experiments.results import Results
from fastltl.io.checkpoints import write_whole

#: Colours of text and grid lines; the report replaces them by those of its page.
INK, FAINT = "#24292f", "#d0d7de"

#: Colours of the methods, readable on white and on black.
COLOURS = {
    paper.ALONE: "#7f7f7f",
    paper.MULTITASK: "#a05bd6",
    paper.BATCH: "#2a9d5c",
    paper.SUBSPACE: "#c4457a",
    paper.DEFAULT: "#1f77d0",
    paper.PAPER: "#d9730d",
    compare.POOLED: "#c4457a",
    compare.ONLINE: "#1f77d0",
    compare.MULTITASK: "#a05bd6",
}

STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "font.size": 10,
    "grid.color": FAINT,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastltl",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Picture(NamedTuple):
    """A figure, the name of its files, and its caption."""

    name: str
    figure: Figure
    caption: str


def draw(results: Results) -> list[Picture]:
    """Draw the pictures of an experiment."""
    pictures: dict[str, Callable[[Results], list[Picture]]] = {
        "compare": lambda results: [_gains(results), _learning(results), _spectrum(results)],
        "grid": _grid,
        "stream": _stream,
        "schools": _schools,
        "timing": lambda _: [],  # the paper's Table 1 is a table
    }
    with matplotlib.rc_context(STYLE):
        return pictures[results["manifest"]["experiment"]](results)


def save(picture: Picture, folder: Path) -> None:
    """Write a picture as PNG and as SVG."""
    for kind in ("svg", "png"):
        write_whole(folder / f"{picture.name}.{kind}", _bytes(picture.figure, kind))


def as_svg(picture: Picture) -> str:
    """Return a picture as the text of an SVG file."""
    return _bytes(picture.figure, "svg").decode()


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    date = {"Date": None} if kind == "svg" else {}  # no date, so that bytes are reproducible
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=200, metadata=date, transparent=kind == "svg")
    return buffer.getvalue()


def _axes(title: str, x: str, y: str, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _annotate(axes: Axes, text: str, x: float, y: float, above: int, **style: Any) -> None:
    """Write a note some points above (x, y)."""
    axes.annotate(text, (x, y), xytext=(0, above), textcoords="offset points", fontsize=9, **style)


def _gains(results: Results) -> Picture:
    rows = [row for row in results["methods"] if "gain" in row][::-1]
    title = "Gain over ridge regression on each task alone"
    figure, axes = _axes(title, "% of the error (higher is better)", "", 2.6)
    for y, row in enumerate(rows):
        colour = COLOURS[row["method"]]
        axes.plot(row["interval"], [y, y], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(row["gain"], y, "o", color=colour, markersize=8)
        label = f"{row['gain']:+z.1f} %"
        _annotate(axes, label, row["gain"], y, 8, horizontalalignment="center")
    axes.axvline(0, color=INK, linewidth=1)
    axes.margins(x=0.12)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_ylim(-0.5, len(rows) - 0.3)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    gains = ", ".join(f"{row['method']} {row['gain']:+z.1f} %" for row in rows[::-1])
    return Picture(
        "gains",
        figure,
        "Gain over ridge regression on each task alone, in percent of its error on held-out tasks, "
        f"with 95 % intervals: {gains}.",
    )


def _learning(results: Results) -> Picture:
    figure, axes = _axes(
        "Online LTL as tasks arrive", "training tasks seen", "gain over each task alone (%)"
    )
    tasks = [row["n_tasks"] for row in results["curve"]]
    gains = [row["gain"] for row in results["curve"]]
    axes.plot(tasks, gains, "o-", color=COLOURS[compare.ONLINE], markersize=4)
    final = {row["method"]: row["gain"] for row in results["methods"] if "gain" in row}
    for method in (compare.BATCH, compare.MULTITASK):
        axes.axhline(final[method], color=COLOURS[method], linewidth=1.2, linestyle="--")
        _annotate(axes, method, tasks[0], final[method], 3, color=COLOURS[method])
    axes.axhline(0, color=INK, linewidth=1)
    axes.margins(y=0.15)
    axes.set_xscale("log")
    _plain_ticks(axes, tasks)
    axes.grid(axis="y")
    return Picture(
        "learning",
        figure,
        "Gain of online LTL over ridge regression on each task alone, by the number of training "
        f"tasks seen: {gains[0]:+z.1f} % after {tasks[0]}, {gains[-1]:+z.1f} % after {tasks[-1]}. "
        "Batch LTL uses all training tasks at once; MTL learns from the test tasks themselves.",
    )


def _spectrum(results: Results) -> Picture:
    learned = results["representation"]
    shares = [100 * share for share in learned["shares"]]
    n, equal_share = len(shares), 100 / len(shares)
    figure, axes = _axes("The learned representation", "direction", "share of the trace (%)", 2.8)
    axes.bar(range(1, n + 1), shares, color=COLOURS[compare.ONLINE])
    axes.axhline(equal_share, color=INK, linewidth=1, linestyle="--")
    _annotate(axes, "nothing learned", n + 0.5, equal_share, 4, horizontalalignment="right")
    axes.set_xlim(0.4, n + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return Picture(
        "spectrum",
        figure,
        "Share of the trace of the representation in each direction: the first has "
        f"{shares[0]:.0f} %. The effective rank is {learned['effective_rank']:.1f} of {n}.",
    )


def _plain_ticks(axes: Axes, numbers: Sequence[int]) -> None:
    """Label 1, 2, 5, 10, 20, ... on a logarithmic axis, within the range of the numbers."""
    ticks = [k * 10**power for power in range(6) for k in (1, 2, 5)]
    inside = [tick for tick in ticks if min(numbers) <= tick <= max(numbers)]
    axes.set_xticks(inside, [str(tick) for tick in inside], minor=False)
    axes.set_xticks([], minor=True)


def _grid(results: Results) -> list[Picture]:
    """Draw a map of the gains for each noise and step."""
    pictures = []
    for noise, level in zip(paper.NOISES, ("paper", "lower"), strict=True):
        for method, step in ((paper.DEFAULT, "default"), (paper.PAPER, "paper")):
            rows = [row for row in _at(results, noise) if row["method"] == method]
            pictures.append(
                Picture(
                    f"grid-{level}-noise-{step}",
                    _gain_map(rows, f"{method}, noise {noise}"),
                    f"Gain of {method} over ITL, in percent of ITL's test error, by the number of "
                    f"training tasks and of samples per task. Noise {noise}.",
                )
            )
    return pictures


def _at(results: Results, noise: float) -> list[dict[str, Any]]:
    return [row for row in results["summary"] if row["noise"] == noise]


def _gain_map(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    tasks = sorted({row["n_tasks"] for row in rows})
    samples = sorted({row["n_samples"] for row in rows})
    gains = {(row["n_samples"], row["n_tasks"]): row["mean"] for row in rows}
    figure, axes = _axes(title, "training tasks T", "samples per task n", 4.4)
    levels = [-20, -15, -10, -5, -2, -1, 1, 2, 5, 10, 15, 20]
    mesh = axes.pcolormesh(
        [[gains[n, t] for t in tasks] for n in samples],
        cmap=matplotlib.colormaps["RdBu"],
        norm=BoundaryNorm(levels, 256, extend="both"),
        edgecolor="white",
        linewidth=0.5,
    )
    for y, n in enumerate(samples):
        for x, t in enumerate(tasks):
            gain = gains[n, t]
            axes.text(
                x + 0.5,
                y + 0.5,
                f"{gain:+z.0f}" if abs(gain) >= 0.5 else "0",
                color="white" if abs(gain) > 10 else "black",
                fontsize=9 if len(tasks) <= 8 else 6,
                horizontalalignment="center",
                verticalalignment="center",
            )
    axes.set_xticks([k + 0.5 for k in range(len(tasks))], [str(t) for t in tasks], fontsize=8)
    axes.set_yticks([k + 0.5 for k in range(len(samples))], [str(n) for n in samples], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, label="gain over ITL (%)", ticks=levels)
    bar.outline.set_visible(False)
    return figure


def _stream(results: Results) -> list[Picture]:
    pictures = []
    for noise, level in zip(paper.NOISES, ("paper", "lower"), strict=True):
        rows = _at(results, noise)
        figure = _curves(rows, f"Synthetic tasks, n = 25, noise {noise}", "test MSE")
        caption = (
            f"Test error as training tasks arrive, noise {noise}. After the last task: "
            f"{_final_means(rows, '{:.4f}')}."
        )
        pictures.append(Picture(f"stream-{level}-noise", figure, caption))
    return pictures


def _schools(results: Results) -> list[Picture]:
    rows = results["summary"]
    figure = _curves(rows, "Schools", "explained variance (%)")
    caption = (
        "Explained variance as training schools arrive. After the last school: "
        f"{_final_means(rows, '{:.1f} %')}."
    )
    return [Picture("schools", figure, caption)]


def _final_means(rows: Sequence[dict[str, Any]], form: str) -> str:
    """List each method with its mean after the last task."""
    final = {row["method"]: form.format(row["mean"]) for row in rows}
    return ", ".join(f"{method} {mean}" for method, mean in final.items())


def _curves(rows: Sequence[dict[str, Any]], title: str, y: str) -> Figure:
    """Draw a line for each method with its interval; a level one if it uses no training tasks."""
    figure, axes = _axes(title, "training tasks seen", y, 4.4)
    most = max(row["n_tasks"] or 1 for row in rows)
    for method in dict.fromkeys(row["method"] for row in rows):
        found = [row for row in rows if row["method"] == method]
        is_level = found[0]["n_tasks"] is None
        tasks = [1, most] if is_level else [row["n_tasks"] for row in found]
        points = found * 2 if is_level else found
        axes.plot(
            tasks,
            [row["mean"] for row in points],
            linestyle="--" if is_level else "-",
            marker="o" if len(found) == 1 and not is_level else "",
            color=COLOURS[method],
            label=method,
        )
        if points[0]["low"] is not None and not is_level:
            axes.fill_between(
                tasks,
                [row["low"] for row in points],
                [row["high"] for row in points],
                color=COLOURS[method],
                alpha=0.15,
                linewidth=0,
            )
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure
