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
from markupsafe import Markup, escape

from fastltl._text import printable
from fastltl.experiments.claims import check_claims
from fastltl.experiments.compare import FEWEST_SAMPLES, FOLDS
from fastltl.experiments.figures import FAINT, INK, PICTURES, Picture, draw, render
from fastltl.experiments.paper import TIMED_LAM, TIMED_TOL
from fastltl.experiments.prior import (
    GPBOOST,
    LEVELS,
    LME4,
    METHODS,
    N_VALIDATION_TASKS,
    ONE_PASS,
    SCHOOLS,
)
from fastltl.experiments.results import Results, Row, select
from fastltl.io.checkpoints import check_writable, write_whole

#: Formats of the files of a picture.
PICTURE_KINDS = ("svg", "png")

#: Words written from right to left. Numbers beside them would be reordered.
RIGHT_TO_LEFT = re.compile(
    "[{0}](?:[{0} ]*[{0}])?".format(
        "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
    )
)


class Table(NamedTuple):
    """Column names, rows of text, and the indices of columns that hold words, not numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: tuple[int, ...] = (0,)


class Section(NamedTuple):
    """A section of the page: paragraphs, a table and pictures."""

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[Picture] = ()


def check_outputs(out: Path, experiments: Sequence[str]) -> None:
    """Check that the results, page and pictures of experiments can be written to a folder."""
    names = ["report.html"]
    for name in experiments:
        names.append("results.json" if name == "compare" else f"{name}.json")
        names += [f"{picture}.{kind}" for picture in PICTURES[name] for kind in PICTURE_KINDS]
    for file in names:
        check_writable(out / file)


def write_comparison(results: Results, title: str, about: str, out: Path) -> Path:
    """Write the page and pictures of a comparison to a folder; return the path of the page."""
    gains, learning, spectrum = draw(results)
    learned = results["representation"]
    sections = [
        Section("Methods", [about], method_table(results), [gains, learning]),
        Section("What was learned", [rank_sentence(learned)], direction_table(learned), [spectrum]),
        Section("How it was measured", _protocol(results)),
    ]
    return _write(title, results["verdict"]["sentence"], sections, [results], out)


def write_reproduction(all_results: Sequence[Results], out: Path) -> Path:
    """Write the page and pictures of the paper's experiments; return the path of the page."""
    intervals = "Brackets, and shaded areas in the figures, are 95 % intervals over the trials."
    claims = [tuple(claim) for results in all_results for claim in check_claims(results)]
    table = Table(("the paper says", "here", "figures"), claims, words=(0, 1, 2))
    sections = [Section("The paper's claims and our results", [intervals], table)]
    for results in all_results:
        name, parameters = (results["manifest"][key] for key in ("experiment", "parameters"))
        title, text = _EXPERIMENTS[name]
        if name != "bounds":  # which draws nothing
            text += " This is a quick run, smaller than the paper's." if parameters["quick"] else ""
            trials = parameters["trials"]
            text += f" Means of {trials} trials." if trials > 1 else " One trial."
        pictures = draw(results)
        sections.append(Section(title, [text, *_warnings(results)], pictures=pictures))
        if name == "timing":
            sections[-1] = sections[-1]._replace(table=timing_table(results["summary"], "seconds"))
            iterations = timing_table(results["summary"], "iterations")
            sections.append(Section("Iterations of a fit of batch LTL, mean", (), iterations))
    title = "Incremental Learning-to-Learn with Statistical Guarantees: the experiments"
    return _write(title, "", sections, all_results, out)


_EXPERIMENTS = {
    "grid": (
        "Figure 1: gain by number of tasks and samples",
        "Synthetic tasks in 50 dimensions, with weights in a subspace of dimension 25; a quarter "
        "as many validation tasks as training tasks, and 100 test tasks.",
    ),
    "stream": (
        "Figure 2: test error as tasks arrive",
        "25 samples per task. With each lam, batch LTL starts from its solution for fewer tasks. "
        "MTL is trained on the training halves of the test tasks; its lam is the one whose "
        "representation is best for the validation tasks. The true subspace is an oracle: no "
        "method knows it.",
    ),
    "timing": (
        "Table 1: seconds",
        f"One lam, {TIMED_LAM:g}, and one thread. Batch LTL is fitted again after each task, from "
        f"its last solution (a warm start), to a relative gap of {TIMED_TOL:g}. The paper does not "
        "say how many values of lam and which machine its seconds are for.",
    ),
    "schools": (
        "Figure 3: the Schools data",
        "A quarter of the 139 schools for training, half for validation and a quarter for testing. "
        "Every method fits an intercept for each school.",
    ),
    "bounds": (
        "Section 5.2: the bounds",
        "The paper's bounds on the excess risk with probability 95 %, for inputs on the unit "
        "sphere in 50 dimensions. That for online LTL is conditional: the proof takes the training "
        "error to be convex, which it is not.",
    ),
}


def write_prior(results: Results, out: Path) -> Path:
    """Write the page and picture of BayesLTL against other methods; return the path of the page."""
    parameters = results["manifest"]["parameters"]
    text = (
        "Half of the tasks of a table are training tasks. Half of the rows of each other task are "
        "given, and the others predicted. The error is the mean squared error over the variance of "
        "the targets. Mixed models, with random intercepts and independent random slopes, and "
        "BayesLTL where it is joint or has 5 passes, learn from the given rows too. Methods that "
        "need lam select it among 30 values by a third of the training tasks and learn again from "
        f"all; on synthetic tasks {N_VALIDATION_TASKS} more tasks select it. BayesLTL has nothing "
        f"to select. Means of {parameters['trials']} splits, with 95 % intervals."
    )
    tables = prior_tables(results)
    sections = [Section("How it was measured", [text, *prior_notes(results)], None, draw(results))]
    sections += [Section(title, (), table) for title, table in tables.items()]
    sections.append(Section("Warnings", _warnings(results) or ["None."]))
    return _write("BayesLTL and what people would use instead", "", sections, [results], out)


def prior_tables(results: Results) -> dict[str, Table]:
    """Tabulate the errors of methods, their gains over ITL and the coverage of intervals."""
    summary = results["summary"]
    tables = {}
    for noise in dict.fromkeys(row["noise"] for row in summary):
        rows = select(summary, noise=noise)
        place = "Tables" if noise is None else f"Synthetic tasks, noise {noise:g}"
        gains = [row | row["gain"] for row in rows]
        tables[f"{place}: error"] = _problem_table(rows, "{:.3f}", "{:.3f}")
        tables[f"{place}: gain over ITL, in percent"] = _problem_table(gains, "{:+z.1f}", "{:.1f}")
    covered = [
        (row["problem"], *(_with_margin(share, "{:.1%}", "{:.1%}") for share in row["coverage"]))
        for row in select(summary, method=ONE_PASS)
    ]
    header = ("problem", *(f"{level} %" for level in LEVELS))
    return tables | {f"Coverage of the intervals of {ONE_PASS}": Table(header, covered)}


def _problem_table(rows: Sequence[Row], form: str, margin: str) -> Table:
    """Tabulate means by method and problem."""
    columns: dict[str, dict[str, str]] = {}
    for row in rows:
        name = row["problem"].partition(", noise")[0]
        columns.setdefault(name, {})[row["method"]] = _with_margin(row, form, margin)
    methods = [method for method in METHODS if any(method in column for column in columns.values())]
    lines = [(name, *(column.get(name, "-") for column in columns.values())) for name in methods]
    return Table(("method", *columns), lines)


def _with_margin(row: Row, form: str, margin: str) -> str:
    """Format a mean with half the width of its interval, if it has one."""
    if row["mean"] is None:
        return "-"
    mean = form.format(row["mean"])
    return mean if row["low"] is None else f"{mean} ±{margin.format(row['high'] - row['mean'])}"


def prior_notes(results: Results) -> list[str]:
    """Say what was left out."""
    summary, notes = results["summary"], []
    if not results["manifest"]["parameters"]["quick"] and not select(summary, problem=SCHOOLS):
        notes.append(f"{SCHOOLS} is left out: no path of schoolData.mat was given.")
    missing = {
        GPBOOST: "GPBoost is not installed (pip install 'fastltl[peers]')",
        LME4: "Rscript with the package lme4 was not found",
    }
    for peer, reason in missing.items():
        rows = select(summary, method=peer)
        if not rows:
            notes.append(f"The {peer} is left out: {reason}.")
        notes += [
            f"The {peer} was not fitted on {row['left_out']} of {row['left_out'] + row['trials']} "
            f"splits of {row['problem']}."
            for row in rows
            if row["left_out"]
        ]
    if select(summary, method=LME4):
        notes.append(f"The {LME4} is not fitted to synthetic tasks: 50 random slopes take long.")
    return notes


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


def timing_table(summary: Sequence[dict[str, Any]], measure: str) -> Table:
    """Tabulate seconds or iterations by method, number of tasks and number of samples."""
    columns: dict[str, dict[str, str]] = {}
    rows_of_measure = select(summary, measure=measure)
    for row in rows_of_measure:
        text = f"{row['mean']:.3g}" if row["mean"] < 100 else f"{row['mean']:.0f}"
        columns.setdefault(f"T={row['n_tasks']}, n={row['n_samples']}", {})[row["method"]] = text
    methods = sorted({row["method"] for row in rows_of_measure})
    rows = [(method, *(column[method] for column in columns.values())) for method in methods]
    return Table((measure, *columns), rows)


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


def isolated(text: Any) -> Markup:
    """Return text for the page: escaped, and no name in it reorders the numbers beside it."""
    if isinstance(text, Markup):
        return text
    escaped = html.escape(printable(text))
    return Markup(RIGHT_TO_LEFT.sub(r"<bdi>\g<0></bdi>", escaped))


def inline_svg(picture: Picture) -> Markup:
    """Return a picture as SVG for the page, with the colours of the page and unique ids."""
    svg = render(picture, "svg").decode()
    label = html.escape(picture.caption)
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{picture.name}-", svg)
    return Markup(svg.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)"))


def _write(
    title: str, answer: str, sections: Sequence[Section], all_results: Sequence[Results], out: Path
) -> Path:
    """Write the page, and its pictures as PNG and as SVG; return the path of the page."""
    manifest = "\n".join(json.dumps(results["manifest"], indent=2) for results in all_results)
    page = {"answer": answer, "sections": sections, "manifest": escape(manifest)}
    page |= {"title": title, "tab": escape(printable(title))}  # a tab shows no tags
    template = files("fastltl.experiments").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, finalize=isolated, trim_blocks=True, lstrip_blocks=True
    )
    content = environment.from_string(template).render(page=page, inline_svg=inline_svg)
    for picture in [picture for section in sections for picture in section.pictures]:
        for kind in PICTURE_KINDS:
            write_whole(out / f"{picture.name}.{kind}", render(picture, kind))
    path = out / "report.html"
    write_whole(path, content.encode())
    return path
