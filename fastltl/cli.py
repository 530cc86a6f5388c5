"""The `fastltl` command: calls and prints."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastltl._arguments import EXPERIMENTS, parser

if TYPE_CHECKING:
    from fastltl.experiments.report import Table
    from fastltl.experiments.results import Results


def demo(options: argparse.Namespace) -> None:
    """Compare methods on synthetic tasks and write the report."""
    from fastltl.experiments import compare as comparison
    from fastltl.experiments import paper as experiments
    from fastltl.experiments import report  # noqa: F401  (a missing package is reported now)

    tasks = experiments.DEMO
    about = (
        f"Tasks y = w'x + noise of deviation {tasks['noise']} in {tasks['n_features']} dimensions, "
        f"{tasks['n_samples']} samples each; all w lie in one unknown subspace of dimension "
        f"{tasks['n_features'] // 2}."
    )
    print(about, flush=True)
    _compile(comparison.compile_comparison)
    found = experiments.demo(options.seed, options.jobs)
    _show_comparison(found, "Does sharing help?", about, options.out)


def compare(options: argparse.Namespace) -> None:
    """Compare methods on a table, say whether sharing helps, and write the report."""
    from fastltl.experiments import compare as comparison
    from fastltl.experiments import report  # noqa: F401
    from fastltl.io import tables

    _check_cluster(options.dask)
    tasks = tables.read_tasks(
        options.file, options.task, options.target, options.features, options.drop
    )
    comparison.usable_tasks(tasks)
    names = tasks.feature_names or ()
    features = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    about = (
        f"{Path(options.file).name}: tasks by {options.task}, target {options.target}, features "
        f"{features}."
    )
    print(about, flush=True)
    _compile(comparison.compile_comparison)
    found = comparison.compare(
        tasks, options.seed, not options.no_scale, options.jobs, options.dask
    )
    _show_comparison(found, f"Does sharing help? {Path(options.file).name}", about, options.out)


def reproduce(options: argparse.Namespace) -> None:
    """Run experiments of the paper, print what they say of its claims, and write the report."""
    from fastltl.experiments import claims, report
    from fastltl.experiments import paper as experiments

    _check_cluster(options.dask)
    names = list(EXPERIMENTS) if options.what == "all" else [options.what]
    if options.what == "all" and options.schools is None:
        names.remove("schools")
        print("Without schools: neither --schools nor FASTLTL_SCHOOLS names schoolData.mat.")
    if "schools" in names:
        experiments.schools_tasks(options.schools)  # a file that will not do is named now
    _compile(experiments.compile_kernels)
    computed = []
    for name in names:
        found = experiments.reproduce(
            name,
            options.out,
            options.seed,
            options.trials,
            options.quick,
            options.jobs,
            options.schools,
            options.dask,
        )
        computed.append(found)
        print(f"\n{name}: {found['manifest']['seconds']:.0f} s of computing")
        for claim in claims.check_claims(found):
            print(f"  {claim.holds:<7} {claim.claim}\n          {claim.figures}", flush=True)
    print(f"\nReport: {report.write_reproduction(computed, options.out)}")


def train(options: argparse.Namespace) -> int:
    """Learn from a stream, from where its checkpoint stands if there is one."""
    from fastltl import train as training
    from fastltl.io import streams

    repeats = "task" if options.allow_repeats else "error"
    stream = streams.open_stream(
        options.stream, options.task, options.target, options.features, repeats
    )
    settings = training.Settings(
        options.task,
        options.target,
        tuple(options.features) if options.features else None,
        options.lam,
        options.validation,
        not options.no_intercept,
    )
    with _stop_signals() as signals:
        _compile(training.compile_kernels)
        learning = training.Training(stream, options.checkpoint, settings, options.skip_bad)
        if learning.n_read and options.checkpoint.exists():
            print(f"Going on after {learning.n_read} tasks, with {options.checkpoint}.", flush=True)
        has_ended = learning.run(options.every, lambda: bool(signals))
    if learning.n_learned == 0:
        if has_ended:
            raise ValueError(
                f"{options.stream} must have tasks to learn from besides the {options.validation} "
                f"kept to validate on, got {learning.n_read} in all."
            )
        print("Stopped before the first task: there is nothing to save.", file=sys.stderr)
        return 128 + signals[0]
    left_out = f", {learning.n_left_out} left out" if learning.n_left_out else ""
    standing = ", ".join(f"{name} {value}" for name, value in learning.learner.standing().items())
    print(f"Learned from {learning.n_learned} tasks{left_out}; validation: {standing}.")
    print(f"Saved: {options.checkpoint}")
    if has_ended:
        return 0
    print("Stopped before the end: the same command goes on from there.", file=sys.stderr)
    return 128 + signals[0]


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals that asked to stop, kept until there is time for it; a second one insists."""
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def adapt(options: argparse.Namespace) -> None:
    """Fit new tasks with what was learned, and write their weights and predictions."""
    from fastltl import train as training

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = training.adapt(
            options.checkpoint,
            options.file,
            options.task,
            options.target,
            options.out,
            "task" if options.allow_repeats else "error",
        )
    for warning in caught:
        print(f"Note: {warning.message}", file=sys.stderr)
    print(f"{found.n_tasks} tasks, {found.n_fitted} rows with target, {found.n_predicted} without")
    print(f"Weights: {found.weights}\nPredictions: {found.predictions}")


def _check_cluster(address: str | None) -> None:
    """A scheduler answers, if there is to be one."""
    from fastltl.experiments import results

    if address is not None:
        results.connected(address).close()


def _compile(kernels: Callable[[], None]) -> None:
    print("Compiling, which takes about a minute the first time ...", file=sys.stderr, flush=True)
    kernels()


def _show_comparison(found: Results, title: str, about: str, out: Path) -> None:
    """Write the results and the report, and only then print: who reads may leave."""
    from fastltl.experiments import report, results

    results.write_results(out / "results.json", found)
    page = report.write_comparison(found, title, about, out)
    data = found["data"]
    left_out = f" ({data['n_left_out']} left out)" if data["n_left_out"] else ""
    print(
        f"{data['n_tasks']} tasks{left_out}, {data['n_features']} features, "
        f"{data['n_samples']} samples\n"
    )
    _print_table(report.method_table(found))
    print(f"\n{found['verdict']['sentence']}\n\n{report.rank_sentence(found['representation'])}")
    _print_table(report.direction_table(found["representation"]))
    print(f"\nReport: {page}")


def _print_table(table: Table) -> None:
    lines = [table.header, *table.rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(table.header))]
    for line in lines:
        cells = [
            f"{cell:<{width}}" if k in table.words else f"{cell:>{width}}"
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def info(options: argparse.Namespace) -> None:
    """Print what results and speed may depend on."""
    import numba

    from fastltl import _kernels as kernels
    from fastltl.experiments.results import PACKAGES, machine

    found = machine()
    print(f"fastltl {found['fastltl']}, Python {found['python']}, {found['platform']}")
    print(", ".join(f"{name} {found[name]}" for name in PACKAGES))
    print(f"CPU: {found['cpu']}, {found['cores']} cores")
    print(f"threads: {found['threads']} (set NUMBA_NUM_THREADS to change it)")
    for library in found["blas"]:
        print(f"BLAS: {library}")
    stats = getattr(kernels.learn_entropic, "stats", None)
    where = getattr(stats, "cache_path", None) or "none, compiled anew in every process"
    off = " (the JIT is off)" if numba.config.DISABLE_JIT else ""  # type: ignore[attr-defined]
    print(f"compiled kernels: {where}{off}")


def warmup(options: argparse.Namespace) -> None:
    """Compile every kernel, so that no later call has to."""
    from fastltl.experiments import paper as experiments

    start = time.perf_counter()
    experiments.compile_kernels()
    print(f"compiled, or found compiled, in {time.perf_counter() - start:.1f} s")


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "demo": demo,
    "compare": compare,
    "reproduce": reproduce,
    "train": train,
    "adapt": adapt,
    "info": info,
    "warmup": warmup,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    options = parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers too
    try:
        return COMMANDS[options.command](options) or 0
    except KeyboardInterrupt:
        resumes = options.command in ("reproduce", "train")
        resume = "; the same command goes on from there" if resumes else ""
        print(f"\nfastltl {options.command}: interrupted{resume}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"fastltl {options.command}: {_one_line(error)}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs the package {error.name}: pip install 'fastltl[cli]'"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
