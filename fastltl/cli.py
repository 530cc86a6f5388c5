"""The `fastltl` command: parses arguments, calls, prints."""

import argparse
import os
import sys
import time
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


def info() -> None:
    """Print what results and speed may depend on."""
    import platform
    from importlib.metadata import version

    import numba
    from threadpoolctl import threadpool_info

    from fastltl import kernels
    from fastltl.validation import check_threads

    print(f"fastltl {__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(
        ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "scikit-learn"))
    )
    print(f"threads: {check_threads(None)} (set NUMBA_NUM_THREADS to change it)")
    for library in threadpool_info():
        if library["user_api"] == "blas":
            parts = (library["internal_api"], library["version"], library.get("architecture"))
            print(f"BLAS: {' '.join(str(part) for part in parts if part)}, {library['filepath']}")
    stats = getattr(kernels.meet_task, "stats", None)
    where = getattr(stats, "cache_path", None) or "none, compiled anew in every process"
    off = " (the JIT is off)" if numba.config.DISABLE_JIT else ""  # type: ignore[attr-defined]
    print(f"compiled kernels: {where}{off}")


def warmup() -> None:
    """Compile every kernel, so that no later call has to."""
    from fastltl import experiments

    start = time.perf_counter()
    experiments.compile_kernels()
    print(f"compiled, or found compiled, in {time.perf_counter() - start:.1f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command."""
    parser = _Parser(prog="fastltl", description="Online learning-to-learn for ridge regression.")
    parser.add_argument("--version", action="version", version=f"fastltl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("demo", help="online LTL against independent ridge regression")
    command.add_argument("--seed", type=_seed, default=0, help="seed of the tasks (default 0)")
    command.set_defaults(run=lambda options: demo(options.seed))
    command = commands.add_parser("info", help="versions, threads, BLAS and compiled kernels")
    command.set_defaults(run=lambda _: info())
    command = commands.add_parser("warmup", help="compile everything now, not at the first call")
    command.set_defaults(run=lambda _: warmup())
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print("fastltl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
