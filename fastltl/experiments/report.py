"""Write results as tables, pictures and a self-contained HTML page."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup, escape

from fastltl._text import printable
from fastltl.experiments.advice import Source, Step, next_steps
from fastltl.experiments.charts import FAINT, INK, MARK, MUTED, Picture, render
from fastltl.experiments.claims import check_claims
from fastltl.experiments.compare import FOLDS, method_table, size_sentence
from fastltl.experiments.figures import PICTURES, draw
from fastltl.experiments.paper import TIMED_LAM, TIMED_TOL
from fastltl.experiments.prior import GPBOOST, LME4, METHODS, N_VALIDATION_TASKS, ONE_PASS, SCHOOLS
from fastltl.experiments.results import Results, Row, Table, select, write_results
from fastltl.experiments.trials import LEVELS
from fastltl.experiments.verdict import PREFERRED
from fastltl.io.files import check_writable, write_whole

#: Formats of the files of a picture.
PICTURE_KINDS = ("svg", "png")

#: Words written from right to left. Numbers beside them would be reordered.
RIGHT_TO_LEFT = re.compile(
    "[{0}](?:[{0} ]*[{0}])?".format(
        "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
    )
)


class Section(NamedTuple):
    """A section of the page: paragraphs, steps, a table with explanations, and pictures.

    The table's row whose first cell is `marked` stands out. If it is `stacked`, its rows take two
    lines on a phone: the first cell, and below it the others.
    """

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[Picture] = ()
    steps: Sequence[Step] = ()
    terms: Mapping[str, str] = MappingProxyType({})
    marked: str = ""
    stacked: bool = False


def check_outputs(out: Path, experiments: Sequence[str]) -> None:
    """Check that the results, page and pictures of experiments can be written to a folder."""
    names = ["report.html"]
    for name in experiments:
        names.append(results_file(name))
        names += [f"{picture}.{kind}" for picture in PICTURES[name] for kind in PICTURE_KINDS]
    for file in names:
        check_writable(out / file)


def results_file(experiment: str) -> str:
    """Return the name of the file of an experiment's results."""
    return "results.json" if experiment == "compare" else f"{experiment}.json"


def write_comparison(
    results: Results, title: str, about: str, out: Path, source: Source | None = None
) -> Path:
    """Write results.json, the page and the pictures of a comparison; return the path of the page.

    `source` says which file and columns were compared, for the commands of `next_steps`.
    """
    use = results["verdict"]["use"]
    header, rows, _ = method_table(results)  # whose last column is the mark
    methods = Table(header[:-1], [row[:-1] for row in rows])
    left_out = {name: f"left out, since {why}." for name, why in results["left_out"].items()}
    sections = [
        Section("Methods", (), methods, terms=METHOD_TERMS | left_out, marked=use, stacked=True),
        Section("What to do next", steps=next_steps(results, source)),
        Section("A closer look", pictures=draw(results)),
        _learned_section(results["learned"]),
        Section("How it was measured", [*_protocol(results), *_warnings(results)]),
    ]
    write_results(out / "results.json", results)
    answer = f"Use {use}:", results["verdict"]["sentence"].removeprefix(f"Use {use}:")
    return _write(title, sections, [results], out, about, answer)


#: Meanings of the columns of the table of methods.
METHOD_TERMS = {
    "explained %": "the share of the target's variance that predictions explain in tasks not "
    "learned from, 100 (1 - MSE / variance). 100 is perfect; 0 is as good as predicting the mean "
    "of all rows.",
    "MSE": "the mean squared error on held-out rows, in squared units of the target.",
    "gain %": "by how much the MSE is lower than that of ridge regression on each task alone.",
    "95 % interval": "of the gain. If all of it is above 0, other tasks of the same kind would "
    "very likely show a gain, too.",
    "seconds": "for all folds together, with the selection of lam where a method needs it.",
}

#: Most features in the table of what was learned.
MOST_FEATURES = 15


#: Meanings of the columns of the table of what was learned.
LEARNED_TERMS = {
    "mean": "the weight of the feature, on average over tasks: the change of the prediction where "
    "the feature is larger by 1.",
    "deviation": "the standard deviation of the weight over tasks. 0 means that all tasks have the "
    "same weight.",
    "95 % of tasks": "the range of the weight, mean ± 1.96 deviations.",
    "intercept": "the level of a task, where all features are 0.",
}


def _learned_section(learned: Row) -> Section:
    """Describe in words and a table what BayesLTL learned about the weights of tasks."""
    *features, intercept = learned["features"]

    def size(feature: Row) -> float:
        """Return how much a feature typically adds to a prediction."""
        return float(feature["scale"] * math.hypot(feature["mean"], feature["deviation"]))

    shown = sorted(features, key=size, reverse=True)[:MOST_FEATURES]
    rows = [_weight_row(feature) for feature in (*shown, intercept)]
    # Indicators of the values of a text column are named column=value.
    example = ""
    if numbers := [row for row in rows[:-1] if "=" not in row[0]] or rows[:-1]:
        name, mean, _, ends = numbers[0]
        example = (
            f" For example, where {name} is larger by 1, the prediction changes by {mean} on "
            f"average over tasks, and by {ends} in 95 % of them."
        )
    text = [
        "BayesLTL learns how the weights of tasks are distributed: their mean, and how much tasks "
        "differ from it. A new task starts from this distribution, and its own rows correct it."
        f"{example}",
        f"Within a task, targets scatter around the best prediction by {learned['noise']:.3g} "
        "(the standard deviation of the noise). The error to expect on rows of a new task is "
        f"{learned['expected_error']:.3g} (root mean square).",
    ]
    if len(shown) < len(features):
        text.append(
            f"The {len(shown)} of {len(features)} features that change predictions most are shown; "
            "results.json has all."
        )
    table = Table(("feature", "mean", "deviation", "95 % of tasks"), rows)
    return Section("What BayesLTL learned", text, table, terms=LEARNED_TERMS, stacked=True)


def _weight_row(feature: Row) -> tuple[str, str, str, str]:
    """Return the name, mean, deviation and range of a weight, to three digits of the largest."""
    mean, deviation = feature["mean"], feature["deviation"]
    unit = max(abs(mean), deviation)
    low, high = (_rounded(mean + k * deviation, unit) for k in (-1.96, 1.96))
    return feature["name"], _rounded(mean, unit), _rounded(deviation, unit), f"{low} to {high}"


def _rounded(number: float, unit: float) -> str:
    """Format a number to three digits of a unit."""
    if unit == 0.0:
        return "0"
    decimals = 2 - math.floor(math.log10(unit))
    form = f"z.{max(decimals, 0)}f" if -4 <= decimals <= 6 else "z.3g"
    return format(round(number, decimals), form)


def _protocol(results: Results) -> list[str]:
    """Describe how methods were compared."""
    repeats = results["manifest"]["parameters"]["repeats"]
    again = f" All of this was done {repeats} times, with other folds and halves." * (repeats > 1)
    return [
        f"{size_sentence(results)}.",
        f"Each of {FOLDS} folds held out one task in {FOLDS}. The methods learned from the other "
        "tasks, were given half of the rows of each held-out task, and predicted the other half."
        f"{again}",
        "The mixed models, fitted by GPBoost, and pooled ridge regression learned from the given "
        "rows, too, and MTL from nothing else. BayesLTL learned from the other tasks in one pass.",
        "Ridge regression, online LTL, batch LTL and MTL have a parameter, lam, selected among 30 "
        "values: by a third of the other tasks, after which the method learned again from all of "
        "them, or (each task alone and MTL) by halves of all other tasks. BayesLTL and mixed "
        "models have nothing to select. Features and targets were standardised, which methods "
        "with lam need. Every method fits intercepts.",
        "Intervals come from resampling the tasks, and from the differences between repetitions. "
        "The verdict names the first method whose error is at most 1 % above the lowest, in this "
        f"order: {', '.join(PREFERRED)}.",
    ]


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
    return _write(title, sections, all_results, out)


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
    return _write("BayesLTL and what people would use instead", sections, [results], out)


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
    for name, colour in (("ink", INK), ("faint", FAINT), ("mark", MARK), ("muted", MUTED)):
        svg = svg.replace(colour, f"var(--{name})")
    return Markup(svg)


def _write(
    title: str,
    sections: Sequence[Section],
    all_results: Sequence[Results],
    out: Path,
    about: str = "",
    answer: tuple[str, str] | None = None,
) -> Path:
    """Write the page, and its pictures as PNG and as SVG; return the path of the page."""
    manifests = [results["manifest"] for results in all_results]
    page = {
        "title": title,
        "tab": escape(printable(title)),  # a tab shows no tags
        "about": about,
        "answer": answer,
        "sections": sections,
        "files": [results_file(manifest["experiment"]) for manifest in manifests],
        "manifest": escape("\n".join(json.dumps(manifest, indent=2) for manifest in manifests)),
    }
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
