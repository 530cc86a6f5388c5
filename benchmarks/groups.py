"""Tabulate how many times faster fastltl is in each group of a pytest-benchmark file.

``python -m benchmarks.groups FILE`` reads the JSON file and prints a Markdown table.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path


def read_groups(path):
    """Return the median seconds by group and code, and with what fastltl is compared."""
    groups = defaultdict(dict)
    for run in json.loads(Path(path).read_text())["benchmarks"]:
        group, found = groups[run["group"]], run["extra_info"]
        group[found["way"]] = run["stats"]["median"]
        group["against"] = found["against"]
    return groups


def milliseconds(seconds):
    """Format seconds as milliseconds with three digits."""
    return f"{float(f'{1e3 * seconds:.3g}'):,g} ms"


def table(groups):
    """Format the groups as a Markdown table."""
    lines = ["| work | fastltl | other code | ratio |", "|---|---|---|---|"]
    for group, found in groups.items():
        fast, plain = found["fastltl"], found["plain"]
        other = f"{found['against']} {milliseconds(plain)}"
        lines.append(f"| {group} | {milliseconds(fast)} | {other} | {plain / fast:.1f}× |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read_groups(sys.argv[1])))
