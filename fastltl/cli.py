"""The `fastltl` command: parses arguments, calls, prints."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fastltl import __version__


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line and exit status 2."""
        self.exit(2, f"{self.prog}: {message} (see '{self.prog} --help')\n")


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"wanted a whole number from 0 up, got {text!r}")
    return int(text)


def demo(seed: int) -> None:
    """Run the demonstration and print its table."""
    from tqdm import tqdm

    from fastltl import experiments

    print(
        "Tasks y = w'x + noise of deviation 0.05 in 50 dimensions, 50 samples each; all w lie\n"
        "in one unknown subspace of dimension 25. Errors are on 100 test tasks; each method\n"
        "chose its lam among 30 by 40 validation tasks.",
        flush=True,
    )
    print(
        "Compiling, which takes three quarters of a minute the first time ...",
        file=sys.stderr,
        flush=True,
    )
    experiments.compile_kernels()
    outcomes = experiments.demo(
        seed=seed,
        progress=lambda tasks: tqdm(tasks, desc="learning", unit="task"),
    )
    baseline = outcomes[0].test_error
    print(f"\n{'method':<26}{'tasks seen':>11}{'lam':>10}{'test MSE':>11}{'against ITL':>13}")
    for row in outcomes:
        seen = row.n_tasks or "-"
        change = f"{100 * (row.test_error / baseline - 1):+.1f}%" if row is not outcomes[0] else ""
        print(
            f"{row.method:<26}{seen:>11}{row.lam:>10.1e}{row.test_error:>11.5f}{change:>13}".rstrip()
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    parser = _Parser(prog="fastltl", description="Online learning-to-learn for ridge regression.")
    parser.add_argument("--version", action="version", version=f"fastltl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("demo", help="online LTL against independent ridge regression")
    command.add_argument("--seed", type=_seed, default=0, help="seed of the tasks (default 0)")
    options = parser.parse_args(arguments)
    try:
        demo(options.seed)
    except KeyboardInterrupt:
        print("fastltl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
