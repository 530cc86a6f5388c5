"""Train on a stream with checkpoints, and adapt the trained learner to the tasks of a file."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import platform
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fastltl._online_run import MOST_TASKS
from fastltl._text import printable, spreadsheet_cell
from fastltl._validation import read_errors
from fastltl.base import RepresentationLearner
from fastltl.bayes import BayesLTL
from fastltl.io.checkpoints import (
    check_type,
    discard_unfinished,
    read_checkpoint,
    restored,
    whole_file,
    write_checkpoint,
)
from fastltl.io.streams import StreamedTask, TaskStream, open_stream
from fastltl.metrics import evaluate
from fastltl.path import OnlineLTLPath
from fastltl.ridge import RepresentationRidge
from fastltl.tasks import TaskSet

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, 2**30, os.SEEK_SET)  # other processes cannot read the bytes locked
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


#: Errors of file systems that have no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

#: Largest share of the time spent on evaluating progress.
PROGRESS_SHARE = 0.1


@dataclass(frozen=True)
class Settings:
    """Options of a training run that must not change when it resumes."""

    task: str | None
    target: str
    features: tuple[str, ...] | None
    lam: float | None
    validation: int
    fit_intercept: bool


class Training:
    """Fit an `OnlineLTLPath` to a stream, resuming from its checkpoint if there is one.

    The first tasks of the stream are kept for validation, the others are learned one by one. A
    task that cannot be learned is skipped if `skip_bad`, and else ends the training. It also ends
    after the task within which `should_stop()` becomes true.
    """

    def __init__(
        self,
        stream: TaskStream,
        path: Path,
        settings: Settings,
        skip_bad: bool,
        should_stop: Callable[[], bool],
    ) -> None:
        self.stream, self.path, self.settings, self.skip_bad = stream, path, settings, skip_bad
        self.should_stop = should_stop
        self.n_read = self.n_skipped = self.n_learned = self.n_saved = 0
        self.is_reading = True  #: whether it waits for a task, so that the learner is unchanged
        self.held_back: Hashable = None  #: label of a last task that may still be written
        self._digest = hashlib.blake2b(digest_size=16)  # of all tasks read
        self._tasks = self._read()
        if path.suffix == ".npz" and stream.path == path.resolve().parent:
            raise ValueError(f"checkpoint must be outside the folder of the stream, got {path}.")
        discard_unfinished(path)
        self.learner = self._resume() if path.exists() else self._start()

    def _read(self) -> Iterator[StreamedTask]:
        """Read the tasks that are complete."""
        self.held_back = yield from self.stream.tasks(hold_back=True)

    def _start(self) -> OnlineLTLPath:
        """Keep the first tasks for validation and create the learner."""
        n_kept, kept = self.settings.validation, []
        for task in islice(self._tasks, n_kept):
            try:
                kept.append(self.stream.check(task))
            except ValueError:
                if not self.skip_bad:
                    raise
                self.n_skipped += 1
            self._count(task)
        usable = [task for task in kept if len(task[1]) >= 2]
        source = f"the first {n_kept} tasks, kept for validation"
        if not usable:
            raise ValueError(f"{source}, need one with two samples, got none in {self.n_read}.")
        validation = TaskSet(usable).split_samples(0.5, random_state=0)
        fit_intercept = self.settings.fit_intercept
        try:
            evaluate(np.eye(self.stream.n_features), *validation, "mse", fit_intercept)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        lams = None if self.settings.lam is None else [self.settings.lam]
        return OnlineLTLPath(lams=lams, validation=validation, fit_intercept=fit_intercept)

    def _resume(self) -> OnlineLTLPath:
        """Load the checkpoint, after checking that its settings and stream are the same."""
        checkpoint = read_checkpoint(self.path)
        learner, position = restored(checkpoint, self.path), checkpoint.position
        if not isinstance(learner, OnlineLTLPath) or "settings" not in position:
            raise ValueError(f"{self.path} must be a checkpoint of fastltl train, got another.")
        with read_errors(self.path, "a checkpoint of fastltl train"):
            _check_position(position)
            known_names = tuple(learner.feature_names_in_)
        for name, value in asdict(self.settings).items():
            saved = position["settings"].get(name)
            if value != saved:
                raise ValueError(f"{name} must be {saved!r}, as in {self.path}, got {value!r}.")
        names = self.stream.feature_names
        if names != known_names:
            wanted, found = ", ".join(map(str, known_names)), ", ".join(names)
            raise ValueError(f"features must be {wanted}, as in {self.path}, got {found}.")
        n_read = position["n_tasks_read"]
        for task in islice(self._tasks, n_read):
            if self.should_stop():
                raise KeyboardInterrupt
            self._count(task)
        if self._digest.hexdigest() != position["digest"]:
            found = "got others: restore the file, or train with a new checkpoint"
            if self.held_back is not None:
                found = "got a last line without newline: add one if the file is complete"
            raise ValueError(
                f"{self.stream.path} must begin with the {n_read} tasks that {self.path} was "
                f"trained on, {found}."
            )
        self.n_skipped, self.n_saved = position["n_left_out"], self.n_read
        self.n_learned = learner.n_tasks_seen_
        return learner

    def run(self, every: int) -> bool:
        """Learn until the stream ends or `should_stop()`; return whether it ended.

        A checkpoint is written after each `every` tasks, at the end, and before any error is
        raised; an interrupt leaves the last checkpoint as it is.
        """
        has_ended, next_report = False, 0.0
        with tqdm(unit="task", initial=self.n_read, desc="learning") as bar:
            while not self.should_stop():
                try:
                    if (task := self._next_task()) is None:
                        has_ended = True
                        break
                    self._learn(task, bar)
                    if (start := time.perf_counter()) >= next_report and self.n_learned:
                        bar.set_postfix(self.learner.progress_summary(), refresh=False)
                        end = time.perf_counter()
                        next_report = end + max(0.5, (end - start) / PROGRESS_SHARE)
                    bar.update()
                except Exception as error:
                    self._save_after(error)
                    raise
                if self.n_read - self.n_saved >= every:
                    self.save()
            self.save()  # before the bar is closed, which waits if the terminal does
        return has_ended

    def _next_task(self) -> StreamedTask | None:
        self.is_reading = True
        try:
            return next(self._tasks, None)
        finally:
            self.is_reading = False

    def _save_after(self, error: Exception) -> None:
        """Save what was learned before an error, and add to its message what that is."""
        # A failure within a step, for want of memory, leaves some candidates ahead of others.
        if self.n_learned and (self.learner._run.state.records["n_tasks"] == self.n_learned).all():
            with suppress(MemoryError):  # then the last checkpoint stays
                self.save()
        saved = "Nothing was saved."
        if self.n_saved:
            n_tasks = "all tasks" if self.n_saved == self.n_read else f"{self.n_saved} tasks"
            saved = f"{self.path} holds {n_tasks} before it."
        if isinstance(error, MemoryError):
            reason = str(error).rstrip(".") or "out of memory"
            raise MemoryError(f"{reason}. {saved}") from error
        if isinstance(error, ValueError):
            raise ValueError(f"{error} {saved}") from error

    def _learn(self, task: StreamedTask, bar: tqdm[Any]) -> None:
        try:
            X, y = self.stream.check(task)
            with _errors_naming(task):
                self.learner.partial_fit(X, y)
        except ValueError as error:
            if not self.skip_bad:
                raise
            bar.write(f"skipped: {printable(error)}", file=sys.stderr)
            self._count(task)
            self.n_skipped += 1
        else:
            if self.n_learned == 0:
                self.learner._remember_features(self.stream)
            self._count(task)
            self.n_learned += 1

    def _count(self, task: StreamedTask) -> None:
        """Count a task as read, and add it to the digest of the stream."""
        parts = repr(task.label).encode(), task.X.data, task.y.data
        for part in parts:
            self._digest.update(part)
        self.n_read += 1

    def save(self) -> None:
        """Write the checkpoint if tasks were read since the last one."""
        if self.n_learned == 0 or self.n_saved == self.n_read:
            return
        position = {
            "n_tasks_read": self.n_read,
            "n_left_out": self.n_skipped,
            "digest": self._digest.hexdigest(),
            "settings": asdict(self.settings),
        }
        write_checkpoint(self.path, self.learner._checkpoint(position))
        self.n_saved = self.n_read


def _check_position(position: dict[str, Any]) -> None:
    """Check where a checkpoint says that its training is."""
    kinds = {"settings": dict, "n_tasks_read": int, "n_left_out": int, "digest": str}
    for name, kind in kinds.items():
        check_type(position[name], kind, name)
    if not 0 <= position["n_left_out"] < position["n_tasks_read"] < MOST_TASKS:
        raise ValueError("its numbers of tasks do not fit together")


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a checkpoint against other trainings; yield False where files cannot be locked.

    The lock is on a file beside the checkpoint. The system releases it when the process ends, even
    if it is killed; the file itself may stay then, which does no harm.
    """
    path = Path(os.path.realpath(path))  # two names of one file share a lock
    name, is_locked = path.with_name(f".{path.name}.lock"), True
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        with open(os.open(name, flags, 0o666), "r+", encoding="utf-8", errors="replace") as file:
            try:
                _lock(file.fileno())
            except (BlockingIOError, PermissionError) as error:
                file.seek(0)
                text = file.read(200).strip()
                holder = text if text and text.isprintable() else "another process"
                message = f"{holder} trains it: wait until that ends, or use another checkpoint"
                raise OSError(error.errno, message, str(path)) from error
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                is_locked = False
            if not _is_at(name, file.fileno()):
                continue  # its holder has removed it, and another process may lock a new one
            try:
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}\n")
                file.flush()
                yield is_locked
            finally:
                with suppress(PermissionError):  # Windows removes no file that is open
                    if _is_at(name, file.fileno()):
                        name.unlink()
            return


def _is_at(path: Path, file: int) -> bool:
    """Return whether the open file is the one that has the path now."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def compile_kernels() -> None:
    """Compile the kernels of a training before its first task."""
    tasks = TaskSet([(np.ones((2, 2)), np.ones(2))] * 2)
    validation = tasks.split_samples(0.5, random_state=0)
    OnlineLTLPath(validation=validation, fit_intercept=True).fit(tasks).progress_summary()


class Adapted(NamedTuple):
    """The files that `adapt` wrote, and the numbers of tasks and rows in them."""

    weights: Path
    predictions: Path
    n_tasks: int
    n_fitted: int
    n_predicted: int


def adapt(
    checkpoint: Path,
    file: Path,
    task: str | None,
    target: str | None,
    out: Path,
    repeats: str = "error",
) -> Adapted:
    """Fit the tasks of a file with the representation of a checkpoint.

    Each task is fitted to its rows with a target; all rows are predicted. `task` and `target`
    default to the columns that `fastltl train` recorded in the checkpoint. Labels and names that
    a spreadsheet would take for formulas are written with an apostrophe before them.
    """
    saved = read_checkpoint(checkpoint)
    learner, settings = restored(saved, checkpoint), saved.position.get("settings", {})
    with read_errors(checkpoint, "a checkpoint"):
        check_type(settings, dict, "settings")
    if not isinstance(learner, RepresentationLearner) or not learner.__sklearn_is_fitted__():
        hint = "; in Python, its adapt takes any task" if isinstance(learner, BayesLTL) else ""
        raise ValueError(
            f"{checkpoint} must hold a fitted learner of a representation, got {learner}{hint}."
        )
    task = settings.get("task") if task is None else task
    target = settings.get("target") if target is None else target
    if target is None:
        raise ValueError(f"target must name a column of {file}, got none.")
    # Table columns are found by name in any order; arrays of a folder hold several features each.
    names = learner.__dict__.get("feature_names_in_")
    features = settings.get("features") if file.is_dir() else names
    stream = open_stream(file, task, target, features, repeats)
    agree = names is None or stream.feature_names == tuple(names)
    if stream.n_features != learner.n_features_in_ or not agree:
        wanted, found = learner.n_features_in_, ", ".join(stream.feature_names)
        raise ValueError(f"{file} must have the {wanted} features of {checkpoint}, got {found}.")
    model = RepresentationRidge(learner.D_, fit_intercept=learner.fit_intercept)
    paths = out / "weights.csv", out / "predictions.csv"
    if file.resolve() in (path.resolve() for path in paths):
        raise ValueError(f"out must not be {out}: adapt would overwrite its input {file} there.")
    out.mkdir(parents=True, exist_ok=True)
    n_tasks = n_fitted = n_predicted = 0
    with _csv_writer(paths[0]) as weights, _csv_writer(paths[1]) as predictions:
        weights.writerow(["task", "intercept", *map(spreadsheet_cell, stream.feature_names)])
        predictions.writerow(["task", "row", spreadsheet_cell(target), "prediction"])
        for streamed in stream.tasks():
            known = ~streamed.missing
            stream.check(streamed._replace(y=np.where(known, streamed.y, 0.0)))
            if not known.any():
                raise ValueError(
                    f"task {streamed.label!r} must have a row with a target, got none."
                )
            with _errors_naming(streamed):
                model.fit(streamed.X[known], streamed.y[known])
                predicted = model.predict(streamed.X).tolist()
            label = spreadsheet_cell(streamed.label)
            weights.writerow([label, model.intercept_, *model.coef_.tolist()])
            targets = ["" if np.isnan(y) else y for y in streamed.y.tolist()]
            pairs = enumerate(zip(targets, predicted, strict=True), streamed.row)
            predictions.writerows([label, row, *pair] for row, pair in pairs)
            n_tasks += 1
            n_fitted += int(known.sum())
            n_predicted += int(streamed.missing.sum())
    return Adapted(*paths, n_tasks, n_fitted, n_predicted)


@contextmanager
def _errors_naming(task: StreamedTask) -> Iterator[None]:
    """Prefix the message of a ValueError with the label of the task."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"task {task.label!r}: {error}") from error


@contextmanager
def _csv_writer(path: Path) -> Iterator[Any]:
    """Open a CSV writer; the file appears when it is complete."""
    with whole_file(path) as file:
        # Labels may be file names that are not UTF-8.
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        yield csv.writer(text)
        text.detach()
