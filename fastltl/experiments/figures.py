"""Pictures of results: they are drawn as the results say, and nothing is computed."""

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

from fastltl.experiments import compare as comparison
from fastltl.experiments import paper as experiments
from fastltl.experiments.results import Results
from fastltl.io.storage import write_whole

#: Text and axes; the report puts the colours of its page in their place.
INK, FAINT = "#24292f", "#d0d7de"

#: Readable on white and on black.
COLOURS = {
    experiments.ALONE: "#7f7f7f",
    experiments.MULTITASK: "#a05bd6",
    experiments.BATCH: "#2a9d5c",
    experiments.SUBSPACE: "#c4457a",
    experiments.DEFAULT: "#1f77d0",
    experiments.PAPER: "#d9730d",
    comparison.POOLED: "#c4457a",
    comparison.ONLINE: "#1f77d0",
    comparison.MULTITASK: "#a05bd6",
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
    """A figure, the name of its files, and what it shows in words."""

    name: str
    figure: Figure
    caption: str


def draw(results: Results) -> list[Picture]:
    """The pictures that go with some results."""
    pictures: dict[str, Callable[[Results], list[Picture]]] = {
        "compare": _comparison,
        "grid": _grid,
        "stream": _stream,
        "schools": _schools,
        "timing": lambda _: [],  # the paper's Table 1 is a table
    }
    with matplotlib.rc_context(STYLE):
        return pictures[results["manifest"]["experiment"]](results)


def save(picture: Picture, folder: Path) -> None:
    """Write a picture as PNG and as SVG."""
    write_whole(folder / f"{picture.name}.svg", _bytes(picture.figure, "svg"))
    write_whole(folder / f"{picture.name}.png", _bytes(picture.figure, "png"))


def as_svg(picture: Picture) -> str:
    """A picture as the text of an SVG file."""
    return _bytes(picture.figure, "svg").decode()


def _bytes(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    date = {"Date": None} if kind == "svg" else {}  # the same figure has the same bytes
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=200, metadata=date, transparent=kind == "svg")
    return buffer.getvalue()


def _axes(title: str, x: str, y: str, height: float = 3.6) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _comparison(results: Results) -> list[Picture]:
    return [_gains(results), _learning(results), _spectrum(results)]


def _gains(results: Results) -> Picture:
    rows = [row for row in results["methods"] if "gain" in row][::-1]
    figure, axes = _axes(
        "Gain over ridge regression on each task alone",
        "% of the error (higher is better)",
        "",
        2.6,
    )
    for place, row in enumerate(rows):
        low, high = row["interval"]
        colour = COLOURS[row["method"]]
        axes.plot([low, high], [place, place], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot(row["gain"], place, "o", color=colour, markersize=8)
        axes.annotate(
            f"{row['gain']:+z.1f} %",
            (row["gain"], place),
            xytext=(0, 8),
            textcoords="offset points",
            horizontalalignment="center",
            fontsize=9,
        )
    axes.axvline(0, color=INK, linewidth=1)
    axes.margins(x=0.12)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_ylim(-0.5, len(rows) - 0.3)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    said = ", ".join(f"{row['method']} {row['gain']:+z.1f} %" for row in rows[::-1])
    return Picture(
        "gains", figure, f"Change of the error on held-out tasks, with 95 % intervals: {said}."
    )


def _learning(results: Results) -> Picture:
    figure, axes = _axes(
        "Online LTL as tasks arrive", "training tasks seen", "gain over each task alone (%)"
    )
    tasks = [row["n_tasks"] for row in results["curve"]]
    gains = [row["gain"] for row in results["curve"]]
    axes.plot(tasks, gains, "o-", color=COLOURS[comparison.ONLINE], markersize=4)
    final = {row["method"]: row["gain"] for row in results["methods"] if "gain" in row}
    for method in (comparison.BATCH, comparison.MULTITASK):
        axes.axhline(final[method], color=COLOURS[method], linewidth=1.2, linestyle="--")
        axes.annotate(
            method,
            (tasks[0], final[method]),
            xytext=(0, 3),
            textcoords="offset points",
            color=COLOURS[method],
            fontsize=9,
        )
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
        "Batch LTL has all of them at once, MTL learns from the test tasks themselves.",
    )


def _spectrum(results: Results) -> Picture:
    learned = results["representation"]
    shares = [100 * share for share in learned["shares"]]
    figure, axes = _axes("The learned representation", "direction", "share of the trace (%)", 2.8)
    axes.bar(range(1, len(shares) + 1), shares, color=COLOURS[comparison.ONLINE])
    axes.axhline(100 / len(shares), color=INK, linewidth=1, linestyle="--")
    axes.annotate(
        "nothing learned",
        (len(shares) + 0.5, 100 / len(shares)),
        xytext=(0, 4),
        textcoords="offset points",
        horizontalalignment="right",
        fontsize=9,
    )
    axes.set_xlim(0.4, len(shares) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return Picture(
        "spectrum",
        figure,
        "How much of the representation each direction has: the first "
        f"{shares[0]:.0f} %, and an effective rank of {learned['effective_rank']:.1f} of "
        f"{len(shares)}.",
    )


def _plain_ticks(axes: Axes, numbers: Sequence[int]) -> None:
    """Name 1, 2, 5, 10, 20, ... on a logarithmic axis, as far as the numbers go."""
    ticks = [k * 10**power for power in range(6) for k in (1, 2, 5)]
    inside = [tick for tick in ticks if min(numbers) <= tick <= max(numbers)]
    axes.set_xticks(inside, [str(tick) for tick in inside], minor=False)
    axes.set_xticks([], minor=True)


def _grid(results: Results) -> list[Picture]:
    """A map of the gains for each noise and step."""
    pictures = []
    for k, noise in enumerate(experiments.NOISES):
        for method in experiments.ONLINE:
            rows = [
                row
                for row in results["summary"]
                if row["noise"] == noise and row["method"] == method
            ]
            step = "paper" if method == experiments.PAPER else "default"
            pictures.append(
                Picture(
                    f"grid-{'lower' if k else 'paper'}-noise-{step}",
                    _gain_map(rows, f"{method}, noise {noise}"),
                    f"Gain of {method} over ITL in percent of the test error, noise {noise}, by "
                    "the number of training tasks and of samples in each.",
                )
            )
    return pictures


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
    for k, noise in enumerate(experiments.NOISES):
        rows = [row for row in results["summary"] if row["noise"] == noise]
        pictures.append(
            Picture(
                f"stream-{'lower' if k else 'paper'}-noise",
                _curves(rows, f"Synthetic tasks, n = 25, noise {noise}", "test MSE"),
                f"Test error as training tasks arrive, noise {noise}: {_ends(rows, '{:.4f}')}.",
            )
        )
    return pictures


def _schools(results: Results) -> list[Picture]:
    rows = results["summary"]
    figure = _curves(rows, "Schools", "explained variance (%)")
    caption = f"Explained variance as schools arrive: {_ends(rows, '{:.1f} %')}."
    return [Picture("schools", figure, caption)]


def _by_method(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    methods: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    return methods


def _ends(rows: Sequence[dict[str, Any]], form: str) -> str:
    """What each method has come to, in words."""
    last = {method: found[-1]["mean"] for method, found in _by_method(rows).items()}
    return ", ".join(f"{method} {form.format(mean)}" for method, mean in last.items())


def _curves(rows: Sequence[dict[str, Any]], title: str, y: str) -> Figure:
    """A line for each method with its interval; a level one if it learns from no training task."""
    figure, axes = _axes(title, "training tasks seen", y, 4.4)
    most = max(row["n_tasks"] or 1 for row in rows)
    for method, found in _by_method(rows).items():
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
