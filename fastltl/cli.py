"""Run the `fastltl` command."""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fastltl._arguments import EXPERIMENTS, build_parser
from fastltl._text import printable, warnings_as_notes

#: Options of `fastltl compare` that say what to read.
SOURCE = ("file", "task", "target", "features", "drop")

#: Seconds after which reading that does not stop on a signal is taken to hang.
PATIENCE = 10

if TYPE_CHECKING:
    from fastltl.tasks import TaskSet


def run_demo(options: argparse.Namespace) -> None:
    """Compare methods on synthetic tasks, or on exam scores, and write the report."""
    from fastltl.experiments import compare

    made = compare.DEMO
    about = (
        f"Tasks y = w'x + noise of deviation {made['noise']} in {made['n_features']} dimensions, "
        f"{made['n_samples']} samples each; all w lie in one unknown subspace of dimension "
        f"{made['n_features'] // 2}."
    )
    if options.data == "exam":
        about = "Exam scores of pupils in 65 London schools: each school is a task."
    tasks = compare.demo_tasks(options.data, options.seed)
    settings = {"seed": options.seed, "n_jobs": options.jobs, "repeats": compare.FEWEST_REPEATS}
    _run_comparison(tasks, settings, "Which method to use", about, options.out)


def run_compare(options: argparse.Namespace) -> None:
    """Compare methods on a table and write the report."""
    from fastltl.experiments import compare
    from fastltl.io.tables import read_tasks

    _check_cluster(options.dask)
    source = {name: getattr(options, name) for name in SOURCE}
    tasks = read_tasks(*source.values())
    compare.usable_tasks(tasks)
    names, file = tasks.feature_names or (), Path(options.file).name
    features = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    about = f"{file}: tasks by {options.task}, target {options.target}, features {features}."
    settings = {name: getattr(options, name) for name in ("seed", "repeats", "dask")}
    settings["n_jobs"] = options.jobs
    title = f"Which method to use: {file}"
    _run_comparison(tasks, settings, title, printable(about), options.out, source)


def run_reproduce(options: argparse.Namespace) -> None:
    """Run experiments of the paper, check its claims, and write the report."""
    from fastltl.experiments import claims, paper, report

    _check_cluster(options.dask)
    if options.what == "prior":
        _run_prior(options)
        return
    names = list(EXPERIMENTS) if options.what == "all" else [options.what]
    if options.what == "all" and options.schools is None:
        names.remove("schools")
        print("Skipping schools: neither --schools nor FASTLTL_SCHOOLS names schoolData.mat.")
    if "schools" in names:
        paper.schools_tasks(options.schools)  # reports an unreadable file before the long runs
    report.check_outputs(options.out, names)
    _compile(paper.compile_kernels)
    computed = []
    for name in names:
        results = paper.reproduce(
            name,
            options.out,
            options.seed,
            options.trials,
            options.quick,
            options.jobs,
            options.schools,
            options.dask,
        )
        computed.append(results)
        print(f"\n{name}: {results['manifest']['seconds']:.0f} s of computing")
        for claim in claims.check_claims(results):
            print(f"  {claim.holds:<7} {claim.claim}\n          {claim.figures}", flush=True)
    print(f"\nReport: {printable(report.write_reproduction(computed, options.out))}")


def _run_prior(options: argparse.Namespace) -> None:
    """Measure BayesLTL against other methods and write the report."""
    from fastltl.experiments import paper, prior, report
    from fastltl.experiments.results import format_table

    if options.schools is not None:
        paper.schools_tasks(options.schools)  # reports an unreadable file before the long run
    report.check_outputs(options.out, ["prior"])
    _compile(prior.compile_kernels)
    results = prior.reproduce(
        options.out,
        options.seed,
        options.trials,
        options.quick,
        options.jobs,
        options.schools,
        options.dask,
    )
    page = report.write_prior(results, options.out)
    print(f"prior: {results['manifest']['seconds']:.0f} s of computing")
    for title, table in report.prior_tables(results).items():
        print(f"\n{title}\n{format_table(table)}")
    print("", *report.prior_notes(results), "", f"Report: {printable(page)}", sep="\n")


def run_train(options: argparse.Namespace) -> int:
    """Learn from a stream, resuming from the checkpoint if it exists.

    The exit status is about the training alone: it does not matter whether anyone reads the output.
    """
    output = _Output(sys.stdout)
    with redirect_stdout(output):
        status = _train(options)
    output.end()
    return status


def _train(options: argparse.Namespace) -> int:
    from fastltl import train
    from fastltl.io.files import locked

    names = "learner", "task", "target", "fit_intercept", "lam", "validation", "half_life"
    settings = train.Settings(
        features=tuple(options.features) if options.features else None,
        drop=tuple(options.drop),
        **{name: getattr(options, name) for name in names},
    )
    checkpoint = printable(options.checkpoint)
    training: train.Training | None = None

    def is_reading() -> bool:
        return training is None or training.is_reading

    with _stop_signals(is_reading) as signals, locked(options.checkpoint) as is_locked:
        if not is_locked:
            wanted = f"make sure that no other process trains {checkpoint}"
            print(f"Note: its file system has no locks: {wanted}.", file=sys.stderr)
        files, skip_bad = (options.stream, options.checkpoint), options.skip_bad
        training = train.Training(
            *files, settings, options.repeats, skip_bad, should_stop=lambda: bool(signals)
        )
        training.is_reading = False
        _compile(partial(train.compile_kernels, training.settings.learner))
        training.is_reading = True
        training.prepare()
        if training.n_read and options.checkpoint.exists():
            print(f"Resuming after {training.n_read} tasks from {checkpoint}.", flush=True)
        has_ended = training.run(options.every)
    if has_ended and training.held_back is not None:
        print(
            f"Note: the last line of {printable(options.stream)} has no newline: it and the last "
            f"task before it, {printable(repr(training.held_back))}, wait until it has one. If the "
            "file is complete, add one.",
            file=sys.stderr,
        )
    if training.n_learned:
        skipped = f", skipped {training.n_skipped}" if training.n_skipped else ""
        print(f"Learned from {training.n_learned} tasks{skipped}; {training.summary()}.")
        print(f"Saved: {checkpoint}")
        stopped = "Stopped before the end: run the same command to resume."
    elif has_ended:
        n_kept, n_read = training.settings.validation, training.n_read
        wanted = f"a task that can be learned, got none in {n_read}"
        if n_kept is not None:
            wanted = f"more than the {n_kept} tasks kept for validation, got {n_read}"
        raise ValueError(f"{options.stream} must have {wanted}.")
    else:
        stopped = "Stopped before the first task: nothing was saved."
    if has_ended:
        return 0
    print(stopped, file=sys.stderr)
    return 128 + signals[0]


@contextmanager
def _stop_signals(is_reading: Callable[[], bool]) -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM, SIGHUP and SIGBREAK; a second one raises KeyboardInterrupt.

    A terminal that closes may send SIGHUP twice, and one that nohup ignores stays ignored. Python
    handles no signal while a library waits for ever within a call. If that is a call to read a
    file, a thread ends the process.
    """
    received: list[int] = []
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    numbers = {signal.SIGINT, signal.SIGTERM}
    if hasattr(signal, "SIGBREAK"):  # Windows sends it for Ctrl-Break, and when a window closes
        numbers.add(signal.SIGBREAK)
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        numbers.add(hangup)

    def record(number: int, frame: object) -> None:
        if received and number != hangup:
            raise KeyboardInterrupt
        received.append(number)

    done = threading.Event()
    arrivals, notices = socket.socketpair()
    notices.setblocking(False)
    wakeup = signal.set_wakeup_fd(notices.fileno())
    previous = {number: signal.signal(number, record) for number in numbers}
    watch = threading.Thread(target=_end_if_stuck, args=(arrivals, done, is_reading), daemon=True)
    try:
        with suppress(RuntimeError):  # no more threads: signals are handled by Python alone
            watch.start()
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        done.set()
        notices.close()


def _end_if_stuck(
    arrivals: socket.socket, done: threading.Event, is_reading: Callable[[], bool]
) -> None:
    """End the process if it goes on reading, and nothing else, after a signal."""
    with arrivals:  # open until no more signals arrive
        arrived = arrivals.recv(1)
        n_seconds = 0
        while arrived and not done.wait(1):
            n_seconds = n_seconds + 1 if is_reading() else 0
            if n_seconds == PATIENCE:
                message = "fastltl train: ended without a save, since reading does not end"
                print(message, file=sys.stderr, flush=True)
                os._exit(128 + arrived[0])


def run_adapt(options: argparse.Namespace) -> None:
    """Fit the tasks of a file with a trained learner, and write weights and predictions."""
    from fastltl import adapt

    names = options.task, options.target
    found = adapt.adapt(
        options.checkpoint, options.file, *names, options.out, options.repeats, options.level
    )
    print(f"{found.n_tasks} tasks, {found.n_fitted} rows with target, {found.n_predicted} without")
    print(f"Weights: {printable(found.weights)}\nPredictions: {printable(found.predictions)}")


def _check_cluster(address: str | None) -> None:
    """Check that the Dask scheduler, if any, answers."""
    from fastltl.experiments import results

    if address is not None:
        results.connected(address).close()


def _compile(kernels: Callable[[], None]) -> None:
    """Compile kernels; say so if the cache lacks one."""
    from numba.core.event import Event, Listener, install_listener

    class Notice(Listener):
        is_printed = False

        def on_start(self, event: Event) -> None:
            if not self.is_printed:
                self.is_printed = True
                print("Compiling, once, for about 40 s ...", file=sys.stderr, flush=True)

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", Notice()):
        kernels()


def _run_comparison(
    tasks: TaskSet,
    settings: dict[str, Any],
    title: str,
    about: str,
    out: Path,
    source: dict[str, Any] | None = None,
) -> None:
    """Compare, write the results and the report, then print: the reader may close the pipe."""
    from fastltl.experiments import advice, compare, report

    report.check_outputs(out, ["compare"])
    print(about, flush=True)
    _compile(compare.compile_comparison)
    found = compare.compare(tasks, **settings, progress=True)
    page = report.write_comparison(found.results, title, about, out, source)
    step = advice.next_steps(found.results, source)[0].code
    if "\n" in step:
        step = f"the report has the code for {found.best}"
    print(f"{found}\n\nNext: {step}\nReport: {printable(page)}")


def run_info(options: argparse.Namespace) -> None:
    """Print versions, threads, BLAS and the cache of compiled kernels."""
    import numba

    from fastltl._kernels.online import learn_entropic
    from fastltl.experiments.results import PACKAGES, machine

    found = machine()
    print(f"fastltl {found['fastltl']}, Python {found['python']}, {found['platform']}")
    print(", ".join(f"{name} {found[name]}" for name in PACKAGES))
    print(f"CPU: {found['cpu']}, {found['cores']} cores")
    print(f"threads: {found['threads']} (set NUMBA_NUM_THREADS to change it)")
    for library in found["blas"] or ["unknown"]:  # as Accelerate on macOS
        print(f"BLAS: {library}")
    stats = getattr(learn_entropic, "stats", None)
    cache = getattr(stats, "cache_path", None) or "no cache, compiled in every process"
    off = " (the JIT is off)" if numba.config.DISABLE_JIT else ""  # type: ignore[attr-defined]
    print(f"compiled kernels: {cache}{off}")


def run_warmup(options: argparse.Namespace) -> None:
    """Compile every kernel."""
    from fastltl.experiments import paper

    start = time.perf_counter()
    paper.compile_kernels()
    print(f"compiled, or loaded from the cache, in {time.perf_counter() - start:.1f} s")


class _Output:
    """A text stream that never fails and never waits.

    Text is dropped while a terminal is paused, or a pipe full. Once writing fails, or text is left
    that would have to wait at the end, the stream goes to the null device.
    """

    def __init__(self, stream: TextIO | None) -> None:
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            if self._can_write():
                self._stream.write(text)
        except OSError:
            self._discard()
        return len(text)

    def flush(self) -> None:
        try:
            if self._can_write():
                self._stream.flush()
        except OSError:
            self._discard()

    def end(self) -> None:
        """Flush the text, or discard what would have to wait, as Python flushes at its exit."""
        if not self._can_write():
            self._discard()
        self.flush()

    def _can_write(self) -> bool:
        """Return whether a line can be written at once."""
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, TypeError, ValueError):  # not a file of the system, or on Windows
            return True

    def _discard(self) -> None:
        with suppress(OSError):  # it is not a file of the system
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def _lasting_stderr() -> Iterator[None]:
    """Let no command fail because its messages cannot be written."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed, so that the next file to be opened would receive messages
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    output = _Output(sys.stderr)
    try:
        with redirect_stderr(output):
            yield
    finally:
        output.end()


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "demo": run_demo,
    "compare": run_compare,
    "reproduce": run_reproduce,
    "train": run_train,
    "adapt": run_adapt,
    "info": run_info,
    "warmup": run_warmup,
}


@_lasting_stderr()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # it may be None, or what a caller put there
            stream.reconfigure(errors="backslashreplace")
    options = build_parser().parse_args(arguments)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends workers too
    try:
        with warnings_as_notes():
            status = COMMANDS[options.command](options) or 0
            print(end="", flush=True)  # a closed pipe shows here, and not when Python ends
            return status
    except KeyboardInterrupt:
        resumes = options.command in ("reproduce", "train")
        hint = "; run the same command to resume" if resumes else ""
        print(f"\nfastltl {options.command}: interrupted{hint}", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError, MemoryError, OverflowError) as error:
        # Windows calls a pipe that the reader has closed, as `head` does, an invalid argument.
        is_nameless = sys.platform == "win32" and getattr(error, "filename", "") is None
        if isinstance(error, BrokenPipeError) or (is_nameless and errno.EINVAL in error.args):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        message = " ".join(str(error).split()) or "not enough memory"  # of a bare MemoryError
        if isinstance(error, ModuleNotFoundError) and error.name:
            message = f"this needs the package {error.name}: pip install 'fastltl[cli]'"
        elif isinstance(error, OSError) and error.filename and error.strerror:
            message = f"{error.filename}: {error.strerror}"
        print(f"fastltl {options.command}: {printable(message)}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, previous)
