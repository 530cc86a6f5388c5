"""Write results as tables, pictures and a self-contained HTML page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

from fastltl.experiments.claims import check_claims
from fastltl.experiments.compare import FEWEST_SAMPLES, FOLDS
from fastltl.experiments.figures import FAINT, INK, Picture, as_svg, draw, save
from fastltl.experiments.paper import TIMED_LAM, TIMED_TOL
from fastltl.experiments.results import Results
from fastltl.io.checkpoints import write_whole


class Table(NamedTuple):
    """Column names, rows of text, and the indices of columns that hold words, not numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: tuple[int, ...] = (0,)


class Section(NamedTuple):
    """A section of the page: paragraphs, a table, and pictures as (name, svg, caption)."""

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[tuple[str, Markup, str]] = ()


class Page(NamedTuple):
    """The content of the HTML template."""

    title: str
    answer: str
    sections: Sequence[Section]
    manifest: str


def write_comparison(results: Results, title: str, about: str, out: Path) -> Path:
    """Write the page and pictures of a comparison to a folder; return the path of the page."""
    pictures = draw(results)
    gains_and_learning, spectrum = _inline(pictures[:2]), _inline(pictures[2:])
    learned = results["representation"]
    sections = [
        Section("Methods", [about], method_table(results), gains_and_learning),
        Section("What was learned", [rank_sentence(learned)], direction_table(learned), spectrum),
        Section("How it was measured", _protocol(results)),
    ]
    page = Page(title, results["verdict"]["sentence"], sections, _manifest([results]))
    return _write(page, pictures, out)


def write_reproduction(all_results: Sequence[Results], out: Path) -> Path:
    """Write the page and pictures of the paper's experiments; return the path of the page."""
    intervals = "Brackets, and shaded areas in the figures, are 95 % intervals over the trials."
    sections = [
        Section("The paper's claims and our results", [intervals], claim_table(all_results))
    ]
    pictures = []
    for results in all_results:
        drawn = draw(results)
        pictures += drawn
        name, parameters = (results["manifest"][key] for key in ("experiment", "parameters"))
        title, text = _EXPERIMENTS[name]
        text += " This is a quick run, smaller than the paper's." if parameters["quick"] else ""
        trials = parameters["trials"]
        text += f" Means of {trials} trials." if trials > 1 else " One trial."
        table = timing_table(results) if name == "timing" else None
        sections.append(Section(title, [text, *_warnings(results)], table, _inline(drawn)))
    title = "Incremental Learning-to-Learn with Statistical Guarantees: the experiments"
    return _write(Page(title, "", sections, _manifest(all_results)), pictures, out)


_EXPERIMENTS = {
    "grid": (
        "Figure 1: gain by number of tasks and samples",
        "Synthetic tasks in 50 dimensions, with weights in a subspace of dimension 25; a quarter "
        "as many validation tasks as training tasks, and 100 test tasks.",
    ),
    "stream": (
        "Figure 2: test error as tasks arrive",
        "25 samples per task. MTL is trained on the training halves of the test tasks. The true "
        "subspace is an oracle: no method knows it.",
    ),
    "timing": (
        "Table 1: seconds",
        f"One lam, {TIMED_LAM:g}, and one thread. Batch LTL is fitted again after each task, from "
        f"its last solution, to a relative gap of {TIMED_TOL:g}. The paper does not say how many "
        "values of lam and which machine its seconds are for.",
    ),
    "schools": (
        "Figure 3: the Schools data",
        "A quarter of the 139 schools for training, half for validation and a quarter for testing. "
        "Every method fits an intercept for each school.",
    ),
}


def method_table(results: Results) -> Table:
    """Tabulate the scores of the methods on held-out tasks."""
    header = ("method", "MSE", "gain %", "95 % interval", "tasks won %", "expl. var.", "seconds")
    rows = []
    for row in results["methods"]:
        gain = interval = wins = ""
        if "gain" in row:
            low, high = row["interval"]
            gain, interval = f"{row['gain']:+z.1f}", f"{low:+z.1f} to {high:+z.1f}"
            wins = f"{100 * row['wins']:.0f}"
        variance, seconds = f"{row['explained_variance']:.3f}", f"{row['seconds']:.1f}"
        rows.append((row["method"], f"{row['mse']:.4g}", gain, interval, wins, variance, seconds))
    return Table(header, rows)


def rank_sentence(learned: dict[str, Any]) -> str:
    """Say how concentrated a representation is."""
    return (
        f"From {learned['n_tasks']} tasks online LTL learned a representation of effective rank "
        f"{learned['effective_rank']:.1f} of {len(learned['shares'])}; its leading directions:"
    )


def direction_table(learned: dict[str, Any]) -> Table:
    """Tabulate the leading directions of a representation by their features."""
    rows = [
        (
            f"{100 * direction['share']:.0f}",
            ", ".join(f"{one['weight']:+z.2f} {one['name']}" for one in direction["features"]),
        )
        for direction in learned["directions"]
    ]
    return Table(("share %", "features and their weights"), rows, words=(1,))


def claim_table(all_results: Sequence[Results]) -> Table:
    """Tabulate the claims of the paper and whether they hold."""
    rows = [tuple(claim) for results in all_results for claim in check_claims(results)]
    return Table(("the paper says", "here", "figures"), rows, words=(0, 1, 2))


def timing_table(results: Results) -> Table:
    """Tabulate seconds by method, number of tasks and number of samples."""
    rows = results["summary"]
    settings = list(dict.fromkeys((row["n_tasks"], row["n_samples"]) for row in rows))
    seconds = {(row["method"], row["n_tasks"], row["n_samples"]): row["mean"] for row in rows}
    methods = sorted({row["method"] for row in rows})
    return Table(
        ("seconds", *(f"T={t}, n={n}" for t, n in settings)),
        [(method, *(_seconds(seconds[method, t, n]) for t, n in settings)) for method in methods],
    )


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _protocol(results: Results) -> list[str]:
    """Describe how methods were compared."""
    data, parameters = results["data"], results["manifest"]["parameters"]
    size = f"{data['n_tasks']} tasks, {data['n_features']} features, {data['n_samples']} samples."
    if data["n_left_out"]:
        size += (
            f" {data['n_left_out']} tasks with fewer than {FEWEST_SAMPLES} samples or a constant "
            "target were left out."
        )
    scaled = "scaled to unit variance on training tasks" if parameters["scale"] else "not scaled"
    return [
        size,
        f"Each of {FOLDS} folds held out one task in {FOLDS}. Two thirds of the other tasks were "
        "training tasks; one third selected lam among 30 values. Every method was fitted, with an "
        "intercept, on one half of each held-out task and scored on the other half. Features were "
        f"{scaled}. MTL learned from the training halves of the held-out tasks, and pooled ridge "
        "regression from these halves and the training tasks together. All tasks that were not "
        "held out selected lam for ridge regression on each task alone.",
        "Gains are in percent of the mean squared error of ridge regression on each task alone; "
        "their intervals come from resampling the tasks. A method wins a task if its error is "
        "lower. Seconds are totals over the folds and include the selection of lam.",
        *_warnings(results),
    ]


def _warnings(results: Results) -> list[str]:
    """List each warning with the number of computations that raised it."""
    counts = sorted(results["warnings"].items())
    return [f"Warning in {n} of the computations: {text}" for text, n in counts]


def _manifest(all_results: Sequence[Results]) -> str:
    return "\n".join(json.dumps(results["manifest"], indent=2) for results in all_results)


def _inline(pictures: Sequence[Picture]) -> list[tuple[str, Markup, str]]:
    return [(picture.name, inline_svg(picture), picture.caption) for picture in pictures]


def inline_svg(picture: Picture) -> Markup:
    """Return a picture as SVG for the page, with the colours of the page and unique ids."""
    svg = as_svg(picture)
    label = html.escape(picture.caption)
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{picture.name}-", svg)
    return Markup(svg.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)"))


def _write(page: Page, pictures: Sequence[Picture], out: Path) -> Path:
    template = files("fastltl.experiments").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    content = environment.from_string(template).render(page=page)
    for picture in pictures:
        save(picture, out)
    path = out / "report.html"
    write_whole(path, content.encode())
    return path
