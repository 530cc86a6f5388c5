"""The `fastltl` command: parses arguments, calls, prints."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"wanted a whole number from 1 up, got {text!r}")
    return int(text)


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
    found = comparison.compare(tasks, options.seed, not options.no_scale, options.jobs)
    _show_comparison(found, f"Does sharing help? {Path(options.file).name}", about, options.out)


def reproduce(options: argparse.Namespace) -> None:
    """Run experiments of the paper, print what they say of its claims, and write the report."""
    from fastltl import claims, experiments, report

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
        )
        computed.append(found)
        print(f"\n{name}: {found['manifest']['seconds']:.0f} s of computing")
        for claim in claims.check_claims(found):
            print(f"  {claim.holds:<7} {claim.claim}\n          {claim.figures}", flush=True)
    print(f"\nReport: {report.write_reproduction(computed, options.out)}")


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
    command.add_argument(
        "--features",
        nargs="+",
        action="extend",
        metavar="COL",
        help="columns to learn from (default: all others)",
    )
    command.add_argument(
        "--drop", nargs="+", action="extend", default=[], metavar="COL", help="columns to leave out"
    )
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
    _add_common(command, "fastltl-reproduce")
    command.set_defaults(run=reproduce)

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
    command.add_argument(
        "--out",
        type=_folder,
        default=folder,
        metavar="FOLDER",
        help=f"where to write results, pictures and report.html (default {folder})",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    options = _parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers too
    try:
        options.run(options)
    except KeyboardInterrupt:
        resume = "; the same command goes on from there" if options.command == "reproduce" else ""
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
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs the package {error.name}: pip install 'fastltl[cli]'"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
