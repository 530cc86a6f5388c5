"""Tabulate how many times faster fastltl is in each group of a pytest-benchmark file.

``python -m benchmarks.groups FILE`` reads the JSON file and prints a Markdown table.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path


def read_groups(path):
    """Return the median seconds by group and implementation."""
    groups = defaultdict(dict)
    for run in json.loads(Path(path).read_text())["benchmarks"]:
        groups[run["group"]][run["extra_info"]["way"]] = run["stats"]["median"]
    return groups


def table(groups):
    """Format the groups as a Markdown table."""
    lines = ["| work | fastltl | plain | ratio |", "|---|---|---|---|"]
    for group, medians in groups.items():
        fast, plain = 1e3 * medians["fastltl"], 1e3 * medians["plain"]
        lines.append(f"| {group} | {fast:.3g} ms | {plain:.3g} ms | {plain / fast:.1f}× |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read_groups(sys.argv[1])))
