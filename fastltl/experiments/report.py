"""Results as words, tables, and one HTML page that needs nothing else."""

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

from fastltl.experiments import paper as experiments
from fastltl.experiments.claims import check_claims
from fastltl.experiments.compare import FEWEST_SAMPLES, FOLDS
from fastltl.experiments.figures import FAINT, INK, Picture, as_svg, draw, save
from fastltl.experiments.results import Results
from fastltl.io.storage import write_whole


class Table(NamedTuple):
    """Names of columns, rows of text, and which columns are words, not numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: tuple[int, ...] = (0,)


class Section(NamedTuple):
    """A part of a page."""

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[tuple[str, Markup, str]] = ()


class Page(NamedTuple):
    """What the template shows."""

    title: str
    answer: str
    sections: Sequence[Section]
    manifest: str


def write_comparison(results: Results, title: str, about: str, out: Path) -> Path:
    """Write pictures and the page of a comparison to a folder; the path of the page."""
    pictures = draw(results)
    learned = results["representation"]
    sections = [
        Section("Methods", [about], method_table(results), _inline(pictures[:2])),
        Section(
            "What was learned",
            [rank_sentence(learned)],
            direction_table(learned),
            _inline(pictures[2:]),
        ),
        Section("How it was measured", _protocol(results)),
    ]
    page = Page(title, results["verdict"]["sentence"], sections, _manifest([results]))
    return _write(page, pictures, out)


def write_reproduction(all_results: Sequence[Results], out: Path) -> Path:
    """Write pictures and the page of the paper's experiments to a folder; the path of the page."""
    pictures, sections = [], []
    for results in all_results:
        own = draw(results)
        pictures += own
        title, text = _EXPERIMENTS[results["manifest"]["experiment"]]
        trials = results["manifest"]["parameters"]["trials"]
        text += " A quick run, of less than the whole." * results["manifest"]["parameters"]["quick"]
        text += f" Means of {trials} trials." if trials > 1 else " One trial."
        sections.append(
            Section(
                title,
                [text, *_warnings(results)],
                timing_table(results) if title.startswith("Table") else None,
                _inline(own),
            )
        )
    claims = Section(
        "What the paper says, and what is found here",
        ["In brackets, and shaded in the figures: 95 % intervals over the trials."],
        claim_table(all_results),
    )
    page = Page(
        "Incremental Learning-to-Learn with Statistical Guarantees: the experiments",
        "",
        [claims, *sections],
        _manifest(all_results),
    )
    return _write(page, pictures, out)


_EXPERIMENTS = {
    "grid": (
        "Figure 1: by the number of tasks and of samples",
        "Synthetic tasks in 50 dimensions, weights in a subspace of 25; a quarter as many "
        "validation tasks as training tasks, 100 test tasks.",
    ),
    "stream": (
        "Figure 2: as tasks arrive",
        "25 samples a task. MTL is trained on the training halves of the test tasks; the true "
        "subspace is what an oracle would use.",
    ),
    "timing": (
        "Table 1: seconds",
        f"For one lam = {experiments.TIMED_LAM:g} and one thread; batch LTL is solved again after "
        f"each task, from where it was, to a relative gap of {experiments.TIMED_TOL:g}. The paper "
        "does not say for how many lam and on which machine its seconds are.",
    ),
    "schools": (
        "Figure 3: the Schools data",
        "A quarter of the 139 schools for training, half for validation, a quarter for the test; "
        "every method fits an intercept for each school.",
    ),
}


def method_table(results: Results) -> Table:
    """Methods by their scores on unseen tasks."""
    header = ("method", "MSE", "gain %", "95 % interval", "tasks won %", "expl. var.", "seconds")
    rows = []
    for row in results["methods"]:
        gains = ("", "", "")
        if "gain" in row:
            low, high = row["interval"]
            gains = (
                f"{row['gain']:+z.1f}",
                f"{low:+z.1f} to {high:+z.1f}",
                f"{100 * row['wins']:.0f}",
            )
        others = (f"{row['explained_variance']:.3f}", f"{row['seconds']:.1f}")
        rows.append((row["method"], f"{row['mse']:.4g}", *gains, *others))
    return Table(header, rows)


def rank_sentence(learned: dict[str, Any]) -> str:
    """How concentrated a representation is, in words."""
    return (
        f"From {learned['n_tasks']} tasks online LTL learned a representation of effective rank "
        f"{learned['effective_rank']:.1f} of {len(learned['shares'])}; its leading directions:"
    )


def direction_table(learned: dict[str, Any]) -> Table:
    """Leading directions of a representation, by their features."""
    rows = [
        (
            f"{100 * direction['share']:.0f}",
            ", ".join(f"{one['weight']:+z.2f} {one['name']}" for one in direction["features"]),
        )
        for direction in learned["directions"]
    ]
    return Table(("share %", "features and their weights"), rows, words=(1,))


def claim_table(all_results: Sequence[Results]) -> Table:
    """Claims of the paper and whether they hold."""
    rows = [tuple(claim) for results in all_results for claim in check_claims(results)]
    return Table(("the paper says", "here", "figures"), rows, words=(0, 1, 2))


def timing_table(results: Results) -> Table:
    """Seconds by method, number of tasks and number of samples."""
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
    data, parameters = results["data"], results["manifest"]["parameters"]
    left_out = (
        f"; left out, having fewer than {FEWEST_SAMPLES} samples or the same target in all: "
        f"{data['n_left_out']}"
    )
    scaled = "were scaled by the training tasks" if parameters["scale"] else "were left as they are"
    return [
        f"{data['n_tasks']} tasks, {data['n_features']} features, {data['n_samples']} samples"
        f"{left_out if data['n_left_out'] else ''}.",
        f"In each of {FOLDS} folds one of {FOLDS} tasks was held out; of the others two thirds "
        "were training tasks and one third chose lam among 30. The held-out tasks were halved: "
        "every method fits the one half, with an intercept, and is measured on the other. Features "
        f"{scaled}. MTL learns from the held-out tasks' own training halves, the pooled ridge "
        "regression from these and the training tasks; ridge regression on each task alone has its "
        "lam chosen by all tasks not held out.",
        "Gains are in percent of the mean squared error of ridge regression on each task alone, "
        "with intervals from resampling the tasks; a task is won if its error is lower. Seconds "
        "are those of all folds, with the choice of lam.",
        *_warnings(results),
    ]


def _warnings(results: Results) -> list[str]:
    """What was warned of, and in how many cells."""
    counts = results["warnings"].items()
    return [f"Warned of in {n} of the computations: {text}" for text, n in sorted(counts)]


def _manifest(all_results: Sequence[Results]) -> str:
    return "\n".join(json.dumps(results["manifest"], indent=2) for results in all_results)


def _inline(pictures: Sequence[Picture]) -> list[tuple[str, Markup, str]]:
    return [(picture.name, inline_svg(picture), picture.caption) for picture in pictures]


def inline_svg(picture: Picture) -> Markup:
    """A picture for the inside of a page: its colours follow the page, its ids are its own."""
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
