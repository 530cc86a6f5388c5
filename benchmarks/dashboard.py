"""Show what asv measured: a page with the history of each ratio, a table and a picture.

``python -m benchmarks.dashboard`` reads the results of ``asv run`` in the current folder, prints
the ratios of the last commit as a Markdown table, and writes a page that needs no network.
``--picture FILE`` draws the rows that matter most.
"""

import argparse
import math
from collections import defaultdict
from datetime import UTC, datetime
from itertools import groupby, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.repo import get_repo
from asv.results import iter_results
from asv.util import UserError
from jinja2 import Environment
from matplotlib.patches import Patch

RATIO, SECONDS = "track_time_ratio", "time_fastltl"
#: A ratio has regressed if fastltl takes this many times longer than in the median before.
REGRESSION = 1.25

#: Suites in the order of the page, with their titles.
TITLES = {
    "Prior": "BayesLTL",
    "RandomSlopes": "BayesLTL and mixed models",
    "PriorAndPath": "BayesLTL and OnlineLTLPath",
    "Stream": "fastltl train",
    "Online": "OnlineLTL",
    "Batch": "BatchLTL",
    "BatchError": 'BatchLTL, objective="error"',
    "Wide": "BatchLTL, d = 300, n = 10",
    "Multitask": "MTL",
    "Path": "OnlineLTLPath",
    "Independent": "ITL",
    "Kernels": "Kernels of one task",
    "RankTwoUpdate": "Update of an eigen-decomposition by rank two",
    "Growth": "OnlineLTL as d grows",
    "Start": "Start of a process",
    "Memory": "Memory of OnlineLTL",
}

#: Bars of the picture: label, suite and parameters.
PICTURE = [
    ("BayesLTL, d = 10", "Prior", "d, n = (10, 20)"),
    ("BayesLTL, d = 50", "Prior", "d, n = (50, 20)"),
    ("BayesLTL, d = 200", "Prior", "d, n = (200, 20)"),
    ("OnlineLTL (default), d = 50", "Online", "entropic, (d, n) = (50, 20), T = 100"),
    ("Algorithm 1, d = 50", "Online", "euclidean theory, (d, n) = (50, 20), T = 100"),
    ("BatchLTL, d = 50", "Batch", "lam = 0.01"),
    ("MTL, d = 50", "Multitask", "lam = 0.01"),
    ("OnlineLTLPath, 30 λ, d = 50", "Path", "default"),
    ("ITL, 30 λ, d = 50", "Independent", "T = 100"),
    ("BayesLTL, d = 10, 1,000 tasks", "RandomSlopes", "T = 1000"),
]
COLOURS = {"NumPy": "#1f77d0", "scikit-learn": "#2a9d8f", "GPBoost": "#e07a1f"}

#: Width and height of a chart, and the margin around its points.
WIDTH, HEIGHT, MARGIN = 240, 44, 6


class Commit(NamedTuple):
    hash: str
    date: str


class Series(NamedTuple):
    """The values of a benchmark with certain parameters, by the number of the commit.

    Beside a ratio are the seconds of fastltl, and as text what else was measured at the last of
    these commits.
    """

    suite: str
    benchmark: str
    parameters: str
    unit: str
    values: dict[int, float]
    seconds: dict[int, float]
    details: str

    @property
    def is_ratio(self):
        return self.benchmark == RATIO

    @property
    def last(self):
        """Return the number of the last commit with a value."""
        return max(self.values)

    @property
    def now(self):
        return self.values[self.last]

    @property
    def before(self):
        """Return the median of the commits before the last, or None if there are none."""
        return self.median_before(self.values)

    def median_before(self, values):
        earlier = [value for commit, value in values.items() if commit < self.last]
        return median(earlier) if earlier else None

    @property
    def has_regressed(self):
        return self.is_ratio and self.before is not None and self.now > REGRESSION * self.before

    @property
    def change(self):
        """Describe by how much the last value differs from the median before."""
        if not self.before:
            return "–"
        return f"{100 * (self.now / self.before - 1):+z.0f} %".replace("-", "\N{MINUS SIGN}")

    def format(self, value):
        """Format a value; a ratio becomes the number of times that fastltl is faster."""
        if value is None:
            return "–"
        if self.is_ratio:
            return f"{1 / value:.3g}×"
        if self.unit == "seconds":
            return format_seconds(value)
        if self.unit == "bytes":
            return f"{value / 2**20:,.0f} MB"
        return f"{value:,.0f} kB" if self.unit == "kilobytes" else f"{value:.4g} {self.unit}"


class Machine(NamedTuple):
    """The commits that a machine has measured, oldest first, and the series over them."""

    name: str
    commits: list[Commit]
    series: list[Series]

    @property
    def sections(self):
        """Return (suite, series) of each suite."""
        return [(suite, list(rows)) for suite, rows in groupby(self.series, lambda row: row.suite)]


def format_seconds(value):
    if value is None:
        return "–"
    unit, size = next(
        (unit for unit in (("s", 1.0), ("ms", 1e-3)) if value >= unit[1]), ("µs", 1e-6)
    )
    return f"{value / size:.3g} {unit}"


def format_number(value):
    return f"{value:.0e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


def describe(names, values):
    """Format parameters as name = value; a text stands without its name."""
    return ", ".join(
        value.strip("'") if value.startswith("'") else f"{name} = {value}"
        for name, value in zip(names, values, strict=True)
    )


def read(conf):
    """Return the machines that have results, and the names of suites without any.

    A value counts if it was measured with the present version of its benchmark, at a commit of
    this repository. If a commit was measured repeatedly, the last value counts.
    """
    found = list(iter_results(conf.results_dir))
    if not found:
        raise SystemExit(
            f"no asv results in {conf.results_dir}: first run asv run --python=same "
            "--set-commit-hash=$(git rev-parse HEAD)."
        )
    benchmarks = Benchmarks.load(conf)
    order = get_repo(conf).get_revisions({results.commit_hash for results in found})
    by_machine = defaultdict(list)
    for results in found:
        if results.commit_hash in order:
            by_machine[results.params["machine"]].append(results)
    machines = []
    for all_results in by_machine.values():
        hashes = sorted({results.commit_hash for results in all_results}, key=order.get)
        dates = {results.commit_hash: results.date for results in all_results}
        commits = [
            Commit(h[:8], f"{datetime.fromtimestamp(dates[h] / 1000, UTC):%Y-%m-%d}")
            for h in hashes
        ]
        params = all_results[-1].params
        name = (params.get("cpu") or params["machine"]).replace("(R)", "")
        machines.append(Machine(name, commits, read_series(all_results, hashes, benchmarks)))
    measured = {series.suite for machine in machines for series in machine.series}
    suites = {key.split(".")[-2] for key in benchmarks}
    return machines, sorted(suites - measured)


def read_series(all_results, hashes, benchmarks):
    """Return the series of a machine, in the order of the page."""
    started: dict[Any, float] = {}
    values: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for results in all_results:
        commit = hashes.index(results.commit_hash)
        for key in results.get_result_keys(benchmarks):
            params = results.get_result_params(key)
            names = benchmarks[key]["param_names"]
            row = results.get_result_value(key, params)
            start = results.started_at.get(key) or 0
            for combination, value in zip(product(*params), row, strict=True):
                place = key, describe(names, combination)
                # A failure is None, and what was skipped is not a number.
                if value is None or math.isnan(value) or start < started.get((place, commit), 0):
                    continue
                started[place, commit] = start
                values[place][commit] = value
    suites_with_ratio = {key.rsplit(".", 1)[0] for key, _ in values if key.endswith(f".{RATIO}")}
    series = []
    for (key, parameters), row in values.items():
        suite, benchmark = key.rsplit(".", 1)
        if suite in suites_with_ratio and benchmark != RATIO:
            continue  # a detail of the ratio
        others = {
            other.rsplit(".", 1)[1]: found[max(row)]
            for (other, its_parameters), found in values.items()
            if other.startswith(f"{suite}.track_") and its_parameters == parameters
            if other != key and max(row) in found
        }
        details = [
            f"{name[6:].replace('_', ' ')} {format_number(value)}" for name, value in others.items()
        ]
        seconds = values.get((f"{suite}.{SECONDS}", parameters), {})
        series.append(
            Series(
                suite.split(".")[-1],
                benchmark,
                parameters,
                benchmarks[key]["unit"],
                row,
                seconds,
                ", ".join(sorted(details)) if benchmark == RATIO else "",
            )
        )
    titles = list(TITLES)
    return sorted(
        series,
        key=lambda row: (
            titles.index(row.suite) if row.suite in titles else len(titles),
            row.suite,
            row.benchmark,
        ),
    )


def markdown(machine):
    """Format the ratios of a machine as a Markdown table."""
    lines = [
        "| suite | parameters | fastltl | ratio | against | results |",
        "|---|---|---|---|---|---|",
    ]
    for row in machine.series:
        if row.is_ratio:
            seconds = format_seconds(row.seconds.get(row.last))
            against = row.unit.split(" / ")[-1]
            ratio = row.format(row.now) + " (regression)" * row.has_regressed
            lines.append(
                f"| {row.suite} | {row.parameters} | {seconds} | {ratio} | {against} "
                f"| {row.details} |"
            )
    return "\n".join(lines)


def chart(series, n_commits):
    """Return the points of a series in its chart, as (x, y, commit), and y of the median before.

    The height spans at least 30 % on both sides of the median, so that noise looks small. A ratio
    is drawn as times faster, so that up is better.
    """
    shown = {i: 1 / v if series.is_ratio else v for i, v in sorted(series.values.items())}
    middle = median(shown.values())
    low, high = min(*shown.values(), 0.7 * middle), max(*shown.values(), 1.3 * middle)

    def x(commit):
        return MARGIN + (WIDTH - 2 * MARGIN) * (commit / (n_commits - 1) if n_commits > 1 else 0.5)

    def y(value):
        share = (value - low) / (high - low) if high > low else 0.5
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share

    before = series.before
    if before is not None:
        before = y(1 / before if series.is_ratio else before)
    return [(x(i), y(value), i) for i, value in shown.items()], before


def write_page(machines, missing, path):
    template = Path(__file__).with_name("dashboard.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(template).render(
        machines=machines,
        missing=missing,
        titles=TITLES,
        chart=chart,
        format_seconds=format_seconds,
        percent=round(100 * (REGRESSION - 1)),
        width=WIDTH,
        height=HEIGHT,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def draw(machine, path):
    """Draw the ratios that matter most as bars on a logarithmic axis."""
    measured = {(row.suite, row.parameters): row for row in machine.series if row.is_ratio}
    bars = [
        (label, measured[suite, parameters])
        for label, suite, parameters in PICTURE
        if (suite, parameters) in measured
    ]
    if not bars:
        raise SystemExit("no results of the suites that the picture shows.")
    labels, rows = zip(*bars[::-1], strict=True)
    ratios = [1 / row.now for row in rows]
    peers = [row.unit.split(" / ")[-1] for row in rows]
    with plt.rc_context({"font.size": 11, "axes.edgecolor": "#667079"}):
        figure, axes = plt.subplots(figsize=(8, 1.3 + 0.31 * len(rows)), layout="constrained")
        drawn = axes.barh(labels, ratios, color=[COLOURS[peer] for peer in peers], height=0.72)
        axes.bar_label(drawn, [f"{ratio:.2g}×" for ratio in ratios], padding=4)
        handles = [
            Patch(color=colour, label=f"than {name}")
            for name, colour in COLOURS.items()
            if name in peers
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
        axes.set(xscale="log", xlim=(1, 1.5 * max(ratios)))
        axes.set_xlabel(f"times faster, on {machine.name}")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.1)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path(".asv/dashboard.html"))
    parser.add_argument("--picture", type=Path, help="a file such as docs/speed.png")
    options = parser.parse_args(arguments)
    try:
        machines, missing = read(Config.load())
    except UserError as error:
        raise SystemExit(str(error)) from None
    for machine in machines:
        commit = machine.commits[-1]
        print(f"{machine.name}, one BLAS thread, commit {commit.hash}\n\n{markdown(machine)}\n")
    write_page(machines, missing, options.page)
    print(f"wrote {options.page}")
    if options.picture:
        draw(max(machines, key=lambda machine: machine.commits[-1].date), options.picture)
        print(f"wrote {options.picture}")


if __name__ == "__main__":
    main()
