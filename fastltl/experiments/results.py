"""Compute the cells of an experiment in parallel and keep them in a results file.

A cell is one unit of work: a mapping of parameters from which its values are computed. A results
file is JSON with the cells and a manifest of the parameters, the machine and the versions.
"""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed, effective_n_jobs
from threadpoolctl import threadpool_info
from tqdm import tqdm

from fastltl import __version__
from fastltl._text import printable
from fastltl._validation import check_threads, reason_of
from fastltl.distributed.shards import TIMEOUT, Cluster
from fastltl.io.files import write_whole

#: Format of results files; a file of another format is refused.
FORMAT = 2
#: Seconds to wait for a Dask scheduler to answer.
CONNECT = 10
#: Packages whose versions may change the numbers.
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn")
#: Keys of a computed cell.
CELL_KEYS = {"cell", "values", "seconds", "warnings"}
Cell = Mapping[str, Any]
Results = dict[str, Any]
Row = dict[str, Any]
Compute = Callable[[Cell], Any]


class Table(NamedTuple):
    """Column names, rows of text, and the indices of columns that hold words, not numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: tuple[int, ...] = (0,)


def format_table(table: Table) -> str:
    """Return a table as lines of text in columns of equal width."""
    lines = [[printable(cell) for cell in line] for line in (table.header, *table.rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(table.header))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if k in table.words else f"{cell:>{width}}"
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def machine() -> dict[str, Any]:
    """Describe the software and hardware that numbers and speed may depend on."""
    return {
        "fastltl": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": check_threads(None),
        "blas": [
            " ".join(str(library[key]) for key in ("internal_api", "version", "architecture"))
            for library in threadpool_info()
            if library["user_api"] == "blas" and "architecture" in library
        ],
    }


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def new_results(experiment: str, parameters: Mapping[str, Any]) -> Results:
    """Return results with a manifest and no cells."""
    manifest = {
        "format": FORMAT,
        "experiment": experiment,
        "parameters": dict(parameters),
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
    }
    return {"manifest": manifest, "cells": []}


def compute_cells(
    compute: Compute,
    cells: Sequence[Cell],
    n_jobs: int,
    label: str | None = None,
    dask: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Compute cells in parallel; yield each with its values, seconds and warnings when done.

    With one job, cells are computed one after another in this process, with all its threads. With
    several, joblib gives each process its share of the threads. If `dask` is the address of a
    scheduler, its workers compute the cells instead. A bar with the label shows the progress.
    """
    if dask is None:
        n_jobs = max(1, min(effective_n_jobs(n_jobs), len(cells)))
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", max_nbytes=None)
        done = parallel(delayed(_compute)(compute, cell) for cell in cells)
    else:
        done = map_on_cluster(partial(_compute, compute), cells, dask)
    try:
        yield from tqdm(done, total=len(cells), desc=label, unit="cell", disable=label is None)
    except BrokenExecutor as error:
        raise MemoryError(
            "a worker process was killed, most likely for lack of memory: use fewer jobs, or fewer "
            "features."
        ) from error


def map_on_cluster(work: Compute, cells: Sequence[Cell], address: str) -> Iterator[Any]:
    """Yield work(cell) for each cell, in the order of completion, from Dask workers."""
    if not cells:
        return
    with connected(address) as client:
        futures = client.map(work, cells, pure=False)
        yield from Cluster(client, TIMEOUT).results_as_they_come(futures)


def connected(address: str) -> Any:
    """Return a client of the Dask scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("a cluster needs dask: pip install 'fastltl[distributed]'.") from error
    try:
        return Client(address, timeout=CONNECT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"dask must be the address of a scheduler, as tcp://host:8786, got {address!r} "
            f"({reason_of(error)})."
        ) from error


def _compute(compute: Compute, cell: Cell) -> dict[str, Any]:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = compute(cell)
    return {
        "cell": dict(cell),
        "values": values,
        "seconds": time.perf_counter() - start,
        "warnings": sorted({str(warning.message) for warning in caught}),
    }


def run_cells(
    path: Path, fresh: Results, cells: list[Cell], compute: Compute, n_jobs: int, dask: str | None
) -> tuple[Results, list[Row]]:
    """Compute the cells that the file at path lacks; write the file after each of them."""
    results, label = continue_results(path, fresh), fresh["manifest"]["experiment"]
    missing = missing_cells(results, cells)
    for done in compute_cells(compute, missing, n_jobs, label if missing else None, dask):
        results["cells"].append(done)
        write_results(path, results)
    return results, finish(results, cells)


def continue_results(path: Path, fresh: Results) -> Results:
    """Return fresh results with the cells of an earlier run, if the file at path has some."""
    if not path.exists():
        return fresh
    found = read_results(path)
    ours, theirs = fresh["manifest"]["machine"], found["manifest"]["machine"]
    for name in ("fastltl", "cpu", *PACKAGES):
        if ours[name] != theirs[name]:
            raise ValueError(
                f"{path} was computed with {name} {theirs[name]}, not {ours[name]}: choose another "
                "output folder."
            )
    return fresh | {"cells": found["cells"]}


def missing_cells(results: Results, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells that are not in the results yet."""
    computed = [one["cell"] for one in results["cells"]]
    return [cell for cell in cells if cell not in computed]


def finish(results: Results, cells: Iterable[Cell]) -> list[Row]:
    """Record the seconds and warnings of these cells only; return their parameters and values."""
    done = [next(one for one in results["cells"] if one["cell"] == cell) for cell in cells]
    results["manifest"]["seconds"] = sum(one["seconds"] for one in done)
    results["warnings"] = dict(Counter(text for one in done for text in one["warnings"]))
    return [one["cell"] | one["values"] for one in done]


def select(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def read_results(path: Path) -> Results:
    """Read a file written by `write_results`."""
    with suppress(ValueError, KeyError, TypeError):
        results: Results = json.loads(path.read_text(encoding="utf-8"))
        manifest = results["manifest"]
        if (
            manifest["format"] == FORMAT
            and manifest["experiment"] == path.stem
            and {"fastltl", "cpu", *PACKAGES} <= set(manifest["machine"])
            and all(set(one) == CELL_KEYS for one in results["cells"])
        ):
            return results
    raise ValueError(f"{path} is not a results file of this version: move it elsewhere.")


def write_results(path: Path, results: Results) -> None:
    """Write results as JSON, atomically."""
    write_whole(path, f"{json.dumps(results, indent=1, allow_nan=False)}\n".encode())
