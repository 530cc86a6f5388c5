"""The arguments of the `fastltl` command."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastltl import __version__

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["_Parser"]

EXPERIMENTS = ("grid", "stream", "timing", "schools")


def parser() -> argparse.ArgumentParser:
    """The parser of the command's arguments; what was typed first is `command`."""
    top = _Parser(prog="fastltl", description="Online learning-to-learn for ridge regression.")
    top.add_argument("--version", action="version", version=f"fastltl {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_common(
        commands.add_parser("demo", help="methods compared on synthetic tasks"), "fastltl-demo"
    )
    _add_compare(commands)
    _add_reproduce(commands)
    _add_train(commands)
    _add_adapt(commands)
    commands.add_parser("info", help="versions, threads, BLAS and compiled kernels")
    commands.add_parser("warmup", help="compile everything now, not at the first call")
    return top


def _add_compare(commands: Commands) -> None:
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


def _add_reproduce(commands: Commands) -> None:
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


def _add_train(commands: Commands) -> None:
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


def _add_adapt(commands: Commands) -> None:
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
