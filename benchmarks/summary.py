"""Summarise the latest asv results: how many times faster fastltl is than plain NumPy.

``python -m benchmarks.summary`` reads the results of ``asv run``, prints a Markdown table and draws
docs/speed.png. Unlike asv's own dashboard, it needs no network.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from asv.results import iter_results

RATIO, SECONDS, ERROR = "track_time_over_numpy", "time_fastltl", "track_relative_error"


class Row(NamedTuple):
    """Seconds of fastltl, plain NumPy's time over fastltl's, and the relative error."""

    suite: str
    size: str
    seconds: float
    ratio: float
    error: float


def latest(folder):
    """Return the latest results that asv stored."""
    results = max(iter_results(str(folder)), key=lambda found: found.date, default=None)
    if results is None:
        raise SystemExit(
            f"no asv results in {folder}: first run asv run --python=same "
            "--set-commit-hash=$(git rev-parse HEAD)."
        )
    return results


def describe(names, values):
    """Format parameters as name = value; a text stands without its name."""
    return ", ".join(
        value.strip("'") if value.startswith("'") else f"{name} = {value}"
        for name, value in zip(names, values, strict=True)
    )


def read_rows(results, names):
    """Return a row for each suite and set of parameters whose ratio was measured.

    `names` maps each benchmark to the names of its parameters.
    """
    rows = []
    for key in sorted(results.get_all_result_keys()):
        suite, name = key.rsplit(".", 1)
        if name != RATIO:
            continue
        params = results.get_result_params(key)
        columns = [
            results.get_result_value(f"{suite}.{column}", params)
            for column in (SECONDS, RATIO, ERROR)
        ]
        rows += [
            Row(suite.split(".")[-1], describe(names[key], values), seconds, 1 / ratio, error)
            for values, seconds, ratio, error in zip(product(*params), *columns, strict=True)
            if ratio
        ]
    return rows


def markdown(rows):
    """Format the rows as a Markdown table."""
    lines = ["| suite | parameters | fastltl | ratio | error |", "|---|---|---|---|---|"]
    for suite, size, seconds, ratio, error in rows:
        lines.append(f"| {suite} | {size} | {1e3 * seconds:.3g} ms | {ratio:.1f}× | {error:.0e} |")
    return "\n".join(lines)


def draw(rows, title, path):
    """Draw the ratios as bars on a logarithmic axis, with a colour for each suite."""
    rows = rows[::-1]
    suites = list(dict.fromkeys(row.suite for row in rows))
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.21 * len(rows)), layout="constrained")
    colours = [f"C{suites.index(row.suite)}" for row in rows]
    bars = axes.barh([f"{row.suite}  {row.size}" for row in rows], [row.ratio for row in rows])
    for bar, colour in zip(bars, colours, strict=True):
        bar.set_color(colour)
    axes.bar_label(bars, [f"{row.ratio:.3g}×" for row in rows], padding=3, fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="times faster than plain NumPy", title=title)
    axes.tick_params(axis="y", labelsize=7)
    axes.margins(x=0.12, y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.summary", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path(".asv/results"))
    parser.add_argument("--picture", type=Path, default=Path("docs/speed.png"))
    options = parser.parse_args(arguments)
    results = latest(options.results)
    benchmarks = json.loads((options.results / "benchmarks.json").read_text())
    names = {key: found["param_names"] for key, found in benchmarks.items() if key != "version"}
    rows = read_rows(results, names)
    machine = f"{results.params.get('cpu') or results.params['machine']}, one BLAS thread"
    print(f"{machine}, commit {results.commit_hash[:8]}\n\n{markdown(rows)}")
    draw(rows, machine, options.picture)
    print(f"\nwrote {options.picture}")


if __name__ == "__main__":
    main()
