"""The ratios in a JSON file of pytest-benchmark: in each group, plain NumPy over fastltl.

``python -m benchmarks.groups FILE`` prints them as a table in Markdown.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path


def read_groups(path):
    """Median seconds by group and by the way that the work was done."""
    groups = defaultdict(dict)
    for run in json.loads(Path(path).read_text())["benchmarks"]:
        groups[run["group"]][run["extra_info"]["way"]] = run["stats"]["median"]
    return groups


def table(groups):
    """A row for each group."""
    lines = ["| work | fastltl | plain | ratio |", "|---|---|---|---|"]
    for group, medians in groups.items():
        fast, plain = 1e3 * medians["fastltl"], 1e3 * medians["plain"]
        lines.append(f"| {group} | {fast:.3g} ms | {plain:.3g} ms | {plain / fast:.1f}× |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read_groups(sys.argv[1])))
