"""Results files: cells computed in parallel, kept as they come, with where they come from."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed, effective_n_jobs
from threadpoolctl import threadpool_info
from tqdm import tqdm

from fastltl import __version__
from fastltl._validation import check_threads, reason_of
from fastltl.distributed.cluster import TIMEOUT, Cluster
from fastltl.io.storage import write_whole

#: Of results files; one of another format is not continued.
FORMAT = 1

#: Seconds to wait for a Dask scheduler to answer.
CONNECT = 10

#: Packages that numbers may depend on.
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn")

#: What is kept of a cell.
CELL_KEYS = {"cell", "values", "seconds", "warnings"}

#: What one unit of work is asked for, by name; its results are computed from nothing else.
Cell = Mapping[str, Any]
Results = dict[str, Any]


def machine() -> dict[str, Any]:
    """What results and speed may depend on."""
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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def new_results(experiment: str, parameters: Mapping[str, Any]) -> Results:
    """Results with a manifest and no cells yet."""
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
    compute: Callable[[Cell], Any],
    cells: Iterable[Cell],
    n_jobs: int,
    label: str,
    dask: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Compute cells in processes, as they come: each with its values, seconds and warnings.

    With one job the cells are computed one after another in this process, with all its threads;
    with several, joblib gives each process its share of the threads. With the address of a Dask
    scheduler the processes are those of its cluster.
    """
    wanted = list(cells)
    bar = tqdm(total=len(wanted), desc=label, unit="cell", disable=not wanted)
    work = partial(_compute, compute)
    done = map_here(work, wanted, n_jobs) if dask is None else map_on_cluster(work, wanted, dask)
    with bar:
        for cell in done:
            yield cell
            bar.update()


def map_here(work: Callable[[Cell], Any], cells: list[Cell], n_jobs: int) -> Iterator[Any]:
    """work(cell) of each, as they come, from processes of this machine."""
    n_jobs = max(1, min(effective_n_jobs(n_jobs), len(cells)))
    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", max_nbytes=None)
    yield from parallel(delayed(work)(cell) for cell in cells)


def map_on_cluster(work: Callable[[Cell], Any], cells: list[Cell], address: str) -> Iterator[Any]:
    """work(cell) of each, as they come, from the workers of the scheduler at an address."""
    if not cells:
        return
    with connected(address) as client:
        futures = client.map(work, cells, pure=False)
        yield from Cluster(client, TIMEOUT).results_as_they_come(futures)


def connected(address: str) -> Any:
    """A client of the Dask scheduler at an address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("to use a cluster, pip install 'fastltl[distributed]'.") from error
    try:
        return Client(address, timeout=CONNECT)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"dask must be the address of a scheduler, as tcp://host:8786, got {address!r} "
            f"({reason_of(error)})."
        ) from error


def _compute(compute: Callable[[Cell], Any], cell: Cell) -> dict[str, Any]:
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


def continue_results(path: Path, fresh: Results) -> Results:
    """Fresh results with the cells that a file has, if they come from the same machine."""
    if not path.exists():
        return fresh
    found = read_results(path)
    mine, theirs = (one["manifest"]["machine"] for one in (fresh, found))
    for name in ("fastltl", "cpu", *PACKAGES):
        if mine[name] != theirs[name]:
            raise ValueError(
                f"out must be another folder than {path.parent}: its {path.name} was computed "
                f"with {name} {theirs[name]}, not {mine[name]}."
            )
    return fresh | {"cells": found["cells"]}


def missing_cells(results: Results, cells: Iterable[Cell]) -> list[Cell]:
    """Those of the cells that the results do not have."""
    have = [found["cell"] for found in results["cells"]]
    return [cell for cell in cells if cell not in have]


def finish(results: Results, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Note what these cells took and were warned of; what they ask for and have, in order.

    Results may have more cells, of an earlier and larger run.
    """
    done = [next(one for one in results["cells"] if one["cell"] == cell) for cell in cells]
    results["manifest"]["seconds"] = sum(one["seconds"] for one in done)
    results["warnings"] = dict(Counter(text for one in done for text in one["warnings"]))
    return [one["cell"] | one["values"] for one in done]


def read_results(path: Path) -> Results:
    """The results in a file that `write_results` wrote."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        manifest = results["manifest"]
        is_ours = (
            manifest["format"] == FORMAT
            and manifest["experiment"] == path.stem
            and {"fastltl", "cpu", *PACKAGES} <= set(manifest["machine"])
            and all(set(one) == CELL_KEYS for one in results["cells"])
        )
    except (ValueError, KeyError, TypeError):
        is_ours = False
    if not is_ours:
        raise ValueError(f"{path} is not a results file of this version: move it elsewhere.")
    return dict(results)


def write_results(path: Path, results: Results) -> None:
    """Write results as JSON, whole or not at all."""
    write_whole(path, f"{json.dumps(results, indent=1, allow_nan=False)}\n".encode())
