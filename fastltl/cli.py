"""The `fastltl` command: parses arguments, calls, prints."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastltl import __version__

if TYPE_CHECKING:
    from fastltl.report import Table
    from fastltl.results import Results

EXPERIMENTS = ("grid", "stream", "timing", "schools")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit status 2."""
        self.exit(2, f"{self.prog}: {message} (see '{self.prog} --help')\n")


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"wanted a whole number from 0 up, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"wanted a whole number from 1 up, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"wanted a positive number, got {text!r}")
    return value


def _folder(text: str) -> Path:
    """A folder that is there or can be made."""
    if not text:
        raise argparse.ArgumentTypeError("wanted a folder, got ''")
    wanted = Path(text)
    try:
        nearest = next(path for path in (wanted, *wanted.absolute().parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=nearest):
            return wanted
    except OSError as error:
        reason = f"{text!r} cannot be written to: {error.strerror}"
        raise argparse.ArgumentTypeError(reason) from error


def _checkpoint(text: str) -> Path:
    """A file that is there, or can be made in a folder that is."""
    path = Path(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"wanted a file, got the folder {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from error
    _folder(str(path.parent))
    return path


def demo(options: argparse.Namespace) -> None:
    """Compare methods on synthetic tasks and write the report."""
    from fastltl import comparison, experiments, report  # noqa: F401  (missing packages are missed now)

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
    from fastltl import comparison, report, tables  # noqa: F401

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
    from fastltl import claims, experiments, report

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
    from fastltl import streams, training

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
    from fastltl import training

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
    from fastltl import results

    if address is not None:
        results.connected(address).close()


def _compile(kernels: Callable[[], None]) -> None:
    print("Compiling, which takes about a minute the first time ...", file=sys.stderr, flush=True)
    kernels()


def _show_comparison(found: Results, title: str, about: str, out: Path) -> None:
    """Write the results and the report, and only then print: who reads may leave."""
    from fastltl import report, results

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


def info() -> None:
    """Print what results and speed may depend on."""
    import numba

    from fastltl import kernels
    from fastltl.results import PACKAGES, machine

    found = machine()
    print(f"fastltl {found['fastltl']}, Python {found['python']}, {found['platform']}")
    print(", ".join(f"{name} {found[name]}" for name in PACKAGES))
    print(f"CPU: {found['cpu']}, {found['cores']} cores")
    print(f"threads: {found['threads']} (set NUMBA_NUM_THREADS to change it)")
    for library in found["blas"]:
        print(f"BLAS: {library}")
    stats = getattr(kernels.learn, "stats", None)
    where = getattr(stats, "cache_path", None) or "none, compiled anew in every process"
    off = " (the JIT is off)" if numba.config.DISABLE_JIT else ""  # type: ignore[attr-defined]
    print(f"compiled kernels: {where}{off}")


def warmup() -> None:
    """Compile every kernel, so that no later call has to."""
    from fastltl import experiments

    start = time.perf_counter()
    experiments.compile_kernels()
    print(f"compiled, or found compiled, in {time.perf_counter() - start:.1f} s")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fastltl", description="Online learning-to-learn for ridge regression.")
    parser.add_argument("--version", action="version", version=f"fastltl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("demo", help="methods compared on synthetic tasks")
    _add_common(command, "fastltl-demo")
    command.set_defaults(run=demo)

    command = commands.add_parser(
        "compare",
        help="does sharing help on the tasks of a table?",
        description="Compares ridge regression on each task of a table with methods that share "
        "among tasks, on tasks held out.",
    )
    command.add_argument("file", metavar="FILE", help="a table, CSV with a header or Parquet")
    command.add_argument("--task", required=True, metavar="COL", help="column of the tasks")
    command.add_argument("--target", required=True, metavar="COL", help="column to predict")
    _add_features(command)
    command.add_argument(
        "--drop", nargs="+", action="extend", default=[], metavar="COL", help="columns to leave out"
    )
    _add_dask(command)
    command.add_argument(
        "--no-scale", action="store_true", help="leave the features on the scales they have"
    )
    _add_common(command, "fastltl-compare")
    command.set_defaults(run=compare)

    command = commands.add_parser(
        "reproduce",
        help="the paper's experiments",
        description="Runs the paper's experiments: Figure 1 (grid), Figure 2 (stream), Table 1 "
        "(timing), Figure 3 (schools). Interrupted, the same command goes on where it was.",
    )
    choices = (*EXPERIMENTS, "all")
    command.add_argument("what", choices=choices, metavar="|".join(choices), help="which of them")
    command.add_argument("--quick", action="store_true", help="less of each, in a few minutes")
    command.add_argument(
        "--trials", type=_count, metavar="N", help="trials (default: 10, of schools 20, timing 3)"
    )
    command.add_argument(
        "--schools",
        metavar="FILE",
        default=os.environ.get("FASTLTL_SCHOOLS") or None,
        help="schoolData.mat (default: what the variable FASTLTL_SCHOOLS names)",
    )
    _add_dask(command)
    _add_common(command, "fastltl-reproduce")
    command.set_defaults(run=reproduce)

    command = commands.add_parser(
        "train",
        help="learn from a stream of tasks, with checkpoints",
        description="Learns from the tasks of a file, one after another, for 30 values of lam at "
        "once. Interrupted, killed or run again when there are more tasks, the same command goes "
        "on from its checkpoint.",
    )
    command.add_argument(
        "stream", type=Path, metavar="STREAM", help="CSV or Parquet file, or folder of .npz files"
    )
    command.add_argument(
        "--task", metavar="COL", help="column of the tasks, whose rows are adjacent"
    )
    command.add_argument("--target", required=True, metavar="COL", help="column to predict")
    command.add_argument(
        "--checkpoint",
        required=True,
        type=_checkpoint,
        metavar="FILE",
        help="where to keep what is learned",
    )
    command.add_argument(
        "--every", type=_count, default=1000, metavar="N", help="tasks between saves (default 1000)"
    )
    _add_features(command)
    command.add_argument(
        "--lam", type=_positive, metavar="LAM", help="one value of lam (default: 30, 1e-6 to 1e3)"
    )
    command.add_argument(
        "--validation",
        type=_count,
        default=20,
        metavar="N",
        help="tasks, the first of the stream, to measure the error on (default 20)",
    )
    command.add_argument("--no-intercept", action="store_true", help="fit no intercepts")
    command.add_argument(
        "--skip-bad", action="store_true", help="leave out tasks that cannot be learned from"
    )
    _add_repeats(command)
    command.set_defaults(run=train)

    command = commands.add_parser(
        "adapt",
        help="fit new tasks with what was learned",
        description="Fits each task of a file, by its rows that have a target, with what a "
        "checkpoint has learned, and predicts all its rows.",
    )
    command.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="what train or save wrote"
    )
    command.add_argument(
        "file", type=Path, metavar="FILE", help="CSV or Parquet file, or folder of .npz files"
    )
    command.add_argument(
        "--task", metavar="COL", help="column of the tasks (default: that of train)"
    )
    command.add_argument(
        "--target", metavar="COL", help="column to predict (default: that of train)"
    )
    _add_repeats(command)
    _add_out(command, "fastltl-adapt", "weights.csv and predictions.csv")
    command.set_defaults(run=adapt)

    command = commands.add_parser("info", help="versions, threads, BLAS and compiled kernels")
    command.set_defaults(run=lambda _: info())
    command = commands.add_parser("warmup", help="compile everything now, not at the first call")
    command.set_defaults(run=lambda _: warmup())
    return parser


def _add_common(command: argparse.ArgumentParser, folder: str) -> None:
    command.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed (default 0)")
    command.add_argument(
        "--jobs",
        type=_count,
        default=-1,
        metavar="N",
        help="processes (default: one for each core)",
    )
    _add_out(command, folder, "results, pictures and report.html")


def _add_repeats(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--allow-repeats", action="store_true", help="a task that comes back is another task"
    )


def _add_dask(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dask", metavar="ADDRESS", help="a Dask scheduler whose cluster has the processes"
    )


def _add_out(command: argparse.ArgumentParser, folder: str, what: str) -> None:
    command.add_argument(
        "--out",
        type=_folder,
        default=folder,
        metavar="FOLDER",
        help=f"where to write {what} (default {folder})",
    )


def _add_features(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--features",
        nargs="+",
        action="extend",
        metavar="COL",
        help="columns to learn from (default: all others)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    options = _parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers too
    try:
        return options.run(options) or 0
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
