"""Two ways to do the same work, timed in turns: the machine's moods fall on both."""

import time

import numpy as np


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved_medians(fast, plain, repeats=9):
    """Median seconds of each."""
    return np.median([(seconds(fast), seconds(plain)) for _ in range(repeats)], axis=0)


def print_row(name, size, fast, plain):
    """A row of a table in Markdown, times in milliseconds."""
    print(f"| {name} | {size} | {1e3 * fast:.3g} ms | {1e3 * plain:.3g} ms | {plain / fast:.1f} |")
