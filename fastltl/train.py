"""Train on a stream, with checkpoints to resume from."""

from __future__ import annotations

import hashlib
import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from tqdm import tqdm

from fastltl._online_run import MOST_TASKS
from fastltl._text import printable
from fastltl._validation import Array, read_errors
from fastltl.bayes import BayesLTL
from fastltl.io.checkpoints import (
    Checkpoint,
    check_saved_array,
    check_type,
    read_checkpoint,
    restored,
    write_checkpoint,
)
from fastltl.io.files import discard_unfinished
from fastltl.io.streams import Block, errors_naming, open_stream
from fastltl.metrics import evaluate
from fastltl.path import OnlineLTLPath
from fastltl.tasks import TaskSet

#: Classes of the learners by their names on the command line.
LEARNERS = {"bayes": "BayesLTL", "online": "OnlineLTLPath"}

#: Largest share of the time spent on evaluating progress.
PROGRESS_SHARE = 0.1

#: Seconds between two checkpoints, and largest share of the time spent on writing them.
SAVE_SECONDS, SAVE_SHARE = 60.0, 0.01


@dataclass(frozen=True)
class Settings:
    """Options of a training run that must not change when it resumes.

    `learner` is None for that of the checkpoint, or bayes if there is none yet.
    """

    learner: str | None
    task: str | None
    target: str
    features: tuple[str, ...] | None
    drop: tuple[str, ...]
    fit_intercept: bool
    lam: float | None = None
    validation: int | None = None
    half_life: float | None = None

    #: Options that belong to one learner.
    OWN: ClassVar = {"bayes": ("half_life",), "online": ("lam", "validation")}

    #: Values of the options that checkpoints did not have from the start.
    EARLIER: ClassVar = {"learner": "online", "drop": (), "half_life": None}

    def completed(self, recorded: dict[str, Any] | None) -> Self:
        """Return the settings with a learner, after checking that the options belong to it."""
        learner = self.learner or ("bayes" if recorded is None else recorded["learner"])
        for owner, names in self.OWN.items():
            for name in names:
                if owner != learner and (value := getattr(self, name)) is not None:
                    option = f"--{name.replace('_', '-')}"
                    raise ValueError(
                        f"{option} goes with --learner {owner} only, got {option} {value} with "
                        f"--learner {learner}: leave it out."
                    )
        validation = self.validation or (20 if learner == "online" else None)
        return replace(self, learner=learner, validation=validation)


class Training:
    """Learn from a stream of tasks in order, resuming from a checkpoint if there is one.

    The learner is a `BayesLTL`, which takes the tasks in blocks, or an `OnlineLTLPath`, for which
    the first tasks of the stream are kept for validation. A task that cannot be learned is skipped
    if `skip_bad`, and else ends the training. It also ends after the tasks within which
    `should_stop()` becomes true.

    The checkpoint is read and the stream opened at once, but tasks are read from `prepare` on.
    """

    learner: BayesLTL | OnlineLTLPath

    def __init__(
        self,
        source: Path,
        path: Path,
        settings: Settings,
        repeats: str,
        skip_bad: bool,
        should_stop: Callable[[], bool],
    ) -> None:
        self.path, self.skip_bad, self.should_stop = path, skip_bad, should_stop
        self.n_read = self.n_skipped = self.n_learned = self.n_saved = 0
        self.is_reading = True  #: whether it waits for a task, so that the learner is unchanged
        self.held_back: Hashable = None  #: label of a last task that may still be written
        self._digest = hashlib.blake2b(digest_size=16)  # of all tasks counted
        discard_unfinished(path)
        self._saved = saved = _read_training(path) if path.exists() else None
        recorded = None if saved is None else Settings.EARLIER | saved.position["settings"]
        self.settings = settings = settings.completed(recorded)
        for name, value in asdict(settings).items():
            if recorded is not None and value != (before := recorded.get(name)):
                wanted = f"{name} must be {before!r}, as in {path}, got {value!r}"
                raise ValueError(f"{wanted}: give the same options, or another checkpoint.")
        with read_errors(path, "a checkpoint of fastltl train"):
            encoding = None if saved is None else encoding_of(saved, source)
        columns, drop = (settings.task, settings.target, settings.features), settings.drop
        self.stream = open_stream(source, *columns, repeats, drop=drop, encoding=encoding)
        self._blocks, self._block = self._read(), Block.empty(self.stream.n_features)
        self._n_taken = 0  # tasks of the block that `_next` has returned
        if path.suffix == ".npz" and self.stream.path == path.resolve().parent:
            raise ValueError(f"checkpoint must be outside the folder of the stream, got {path}.")

    def prepare(self) -> None:
        """Load or create the learner, and read the stream up to the first task to learn."""
        self.learner = self._start() if self._saved is None else self._resume(self._saved)

    def _read(self) -> Iterator[Block]:
        """Read the tasks that are complete."""
        self.held_back = yield from self.stream.blocks(hold_back=True)

    def _next(self, n_most: int) -> Block:
        """Return the next tasks of a block, at most `n_most`; none at the end of the stream."""
        self.is_reading = True
        try:
            if self._n_taken == len(self._block):
                self._block, self._n_taken = next(self._blocks, self._block.part(0, 0)), 0
        finally:
            self.is_reading = False
        start = self._n_taken
        self._n_taken = min(start + n_most, len(self._block))
        return self._block.part(start, self._n_taken)

    def _start(self) -> BayesLTL | OnlineLTLPath:
        """Create the learner; one that needs it keeps the first tasks for validation."""
        fit_intercept = self.settings.fit_intercept
        self._scale = np.ones(self.stream.n_features)
        if self.settings.learner == "bayes":
            return BayesLTL(fit_intercept=fit_intercept, half_life=self.settings.half_life)
        n_kept, kept = self.settings.validation or 0, []
        while self.n_read < n_kept and len(block := self._next(1)):
            try:
                kept.append(self.stream.check(block.task(0)))
            except ValueError as error:
                self._skip(block, error)
            else:
                self._count(block)
        usable = [task for task in kept if len(task[1]) >= 2]
        source = f"the first {n_kept} tasks, kept for validation"
        if not usable:
            raise ValueError(f"{source}, need one with two samples, got none in {self.n_read}.")
        self._scale = _feature_scales(np.concatenate([X for X, _ in kept]))
        validation = TaskSet([(scaled(X, self._scale), y) for X, y in usable])
        halves = validation.split_samples(0.5, random_state=0)
        try:
            evaluate(np.eye(self.stream.n_features), *halves, "mse", fit_intercept)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from error
        lams = None if self.settings.lam is None else [self.settings.lam]
        return OnlineLTLPath(lams=lams, validation=halves, fit_intercept=fit_intercept)

    def _resume(self, saved: Checkpoint) -> BayesLTL | OnlineLTLPath:
        """Restore the learner, after checking that its stream is the same."""
        learner: BayesLTL | OnlineLTLPath = restored(saved, self.path)
        position = saved.position
        with read_errors(self.path, "a checkpoint of fastltl train"):
            known_names = tuple(learner.feature_names_in_)
            self._scale = scale_of(saved, learner.n_features_in_)
        names = self.stream.feature_names
        if names != known_names:
            wanted, found = ", ".join(map(str, known_names)), ", ".join(names)
            raise ValueError(f"features must be {wanted}, as in {self.path}, got {found}.")
        n_read = position["n_tasks_read"]
        while self.n_read < n_read and len(block := self._next(n_read - self.n_read)):
            if self.should_stop():
                raise KeyboardInterrupt
            self._count(block)
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

    def run(self, every: int | None) -> bool:
        """Learn until the stream ends or `should_stop()`; return whether it ended.

        A checkpoint is written after each `every` tasks, or each minute, at the end, and before any
        error is raised; an interrupt leaves the last checkpoint as it is.
        """
        has_ended, next_report = False, 0.0
        next_save = time.perf_counter() + SAVE_SECONDS
        is_online = self.settings.learner == "online"
        with tqdm(unit="task", initial=self.n_read, desc="learning") as bar:
            while not self.should_stop():
                try:
                    n_most = every + self.n_saved - self.n_read if every else sys.maxsize
                    if len(block := self._next(1 if is_online else max(1, n_most))) == 0:
                        has_ended = True
                        break
                    self._learn(block)
                    if (start := time.perf_counter()) >= next_report and self.n_learned:
                        bar.set_postfix(self.progress(), refresh=False)
                        end = time.perf_counter()
                        next_report = end + max(0.5, (end - start) / PROGRESS_SHARE)
                    bar.update(len(block))
                except Exception as error:
                    self._save_after(error)
                    raise
                start, n_unsaved = time.perf_counter(), self.n_read - self.n_saved
                is_due = (n_unsaved >= every) if every else (start >= next_save)
                if is_due:
                    self.save()
                    end = time.perf_counter()
                    next_save = end + max(SAVE_SECONDS, (end - start) / SAVE_SHARE)
            self.save()  # before the bar is closed, which waits if the terminal does
            if self.n_learned:
                bar.set_postfix(self.progress(), refresh=False)
        return has_ended

    def progress(self) -> dict[str, str]:
        """Return how well tasks are solved, as text."""
        if isinstance(self.learner, BayesLTL):  # by leave-one-out, before each is learned from
            return {"error": f"{self.learner.loo_error_:.3g}"}
        return self.learner.progress_summary()

    def summary(self) -> str:
        """Say how well tasks are solved; warn if the best lam is at the edge of the candidates."""
        found, row = self.progress(), "a row of a new task, given its other rows"
        if isinstance(self.learner, BayesLTL):
            if self.n_learned == 1:
                warnings.warn("one task shows nothing that tasks share: add others.", stacklevel=2)
            return f"squared error to expect on {row}: {found['error']}"
        _ = self.learner.best_lam_  # which warns
        return f"validation: {', '.join(f'{name} {value}' for name, value in found.items())}"

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

    def _learn(self, block: Block) -> None:
        """Learn from tasks; a block of them at once, up to one that is refused."""
        start = 0
        while start < len(block):
            if self.n_learned and isinstance(self.learner, BayesLTL):
                offsets = block.offsets[start:]
                n_tasks = self.learner._run.learn_tasks(block.X, block.y, offsets)
                self._count(block.part(start, start + n_tasks))
                self.n_learned += n_tasks  # last, so that tasks that are not counted are not saved
                start += n_tasks
            if start < len(block):
                self._learn_one(block.part(start, start + 1))
                start += 1

    def _learn_one(self, block: Block) -> None:
        """Learn from the only task of a block, which may be refused."""
        task = block.task(0)
        try:
            X, y = self.stream.check(task)
            if self.settings.learner == "online":  # the other needs no scaling
                X = scaled(X, self._scale)
            with errors_naming(task):
                self.learner.partial_fit(X, y)
        except ValueError as error:
            self._skip(block, error)
        else:
            if self.n_learned == 0:
                self.learner._remember_features(self.stream)
            self._count(block)
            self.n_learned += 1  # last, as in _learn

    def _skip(self, block: Block, error: ValueError) -> None:
        """Skip the only task of a block, and print why; raise the error unless `skip_bad`."""
        if not self.skip_bad:
            raise error
        tqdm.write(f"skipped: {printable(error)}", file=sys.stderr)
        self._count(block)
        self.n_skipped += 1

    def _count(self, block: Block) -> None:
        """Count tasks as read, and add them to the digest of the stream."""
        X, y, d = block.X.ravel().data, block.y.data, block.X.shape[1]
        digest = self._digest.copy()  # so that a failure adds none of them
        for label, (lo, hi) in zip(block.labels, pairwise(block.offsets.tolist()), strict=True):
            digest.update(repr(label).encode())
            digest.update(X[d * lo : d * hi])
            digest.update(y[lo:hi])
        self._digest = digest
        self.n_read += len(block)

    def save(self) -> None:
        """Write the checkpoint if tasks were read since the last one."""
        if self.n_learned == 0 or self.n_saved == self.n_read:
            return
        encoding = self.stream.encoding
        position = {
            "n_tasks_read": self.n_read,
            "n_left_out": self.n_skipped,
            "digest": self._digest.hexdigest(),
            "settings": asdict(self.settings),
            "encoding": None if encoding is None else list(map(list, encoding.items())),
            "scale": None if (self._scale == 1.0).all() else self._scale,
        }
        write_checkpoint(self.path, self.learner._checkpoint(position))
        self.n_saved = self.n_read


def _read_training(path: Path) -> Checkpoint:
    """Read a checkpoint of a training, and check where it says that the training is."""
    saved = read_checkpoint(path)
    with read_errors(path, "a checkpoint of fastltl train"):
        position, settings = saved.position, saved.position.get("settings", {"learner": ""})
        check_type(settings, dict, "settings")
        learner = (Settings.EARLIER | settings)["learner"]
        check_type(learner, str, "learner")
        is_training = LEARNERS.get(learner) == saved.learner
        if is_training:
            for name, kind in {"n_tasks_read": int, "n_left_out": int, "digest": str}.items():
                check_type(position[name], kind, name)
            if not 0 <= position["n_left_out"] < position["n_tasks_read"] < MOST_TASKS:
                raise ValueError("its numbers of tasks do not fit together")
    if not is_training:
        raise ValueError(f"{path} must be a checkpoint of fastltl train, got another.")
    return saved


def encoding_of(saved: Checkpoint, source: Path) -> dict[str, list[str] | None] | None:
    """Return how a checkpoint says that the columns of a table are to be read.

    If it says nothing, the named features of its learner are columns of numbers. A folder has
    arrays, which need no encoding.
    """
    # It is kept in pairs, since a name may be any text and some keys of a checkpoint are not.
    pairs, state = saved.position.get("encoding"), saved.state or {}
    if pairs is None and "feature_names_in_" in state:
        pairs = [[name, None] for name in state["feature_names_in_"]]
    if pairs is None or source.is_dir():
        return None
    check_type(pairs, list, "encoding")
    for name, categories in pairs:
        check_type(name, str, "encoding")
        if categories is not None:
            check_type(categories, list, name)
            for category in categories:
                check_type(category, str, name)
    if len(dict(pairs)) < len(pairs):
        raise ValueError("its encoding names a column twice")
    return dict(pairs)


def scale_of(saved: Checkpoint, n_features: int) -> Array:
    """Return what features are divided by before a learner takes them."""
    scale: Any = saved.position.get("scale")
    if scale is None:
        return np.ones(n_features)
    check_type(scale, np.ndarray, "scale")
    check_saved_array(scale, (n_features,))
    if not (scale > 0).all():
        raise ValueError("its scale is not positive")
    return np.asarray(scale)


@np.errstate(over="ignore", invalid="ignore")
def _feature_scales(X: Array) -> Array:
    """Return the standard deviation of each column, 1 for a constant column."""
    Z = X - X[0]  # exactly zero where constant
    largest = np.abs(Z).max(axis=0)  # squares of smaller numbers do not overflow
    deviations: Array = largest * np.std(Z / np.where(largest > 0, largest, 1.0), axis=0)
    return np.where(np.isfinite(deviations) & (deviations > 0), deviations, 1.0)


@np.errstate(over="ignore")
def scaled(X: Array, scale: Array) -> Array:
    """Divide the features by their scales; learners refuse what overflows."""
    return X / scale


def compile_kernels(learner: str | None) -> None:
    """Compile the kernels of a training before its first task."""
    tasks = TaskSet([(np.eye(2), np.arange(2.0))] * 2)
    if learner == "bayes":
        BayesLTL().fit(tasks)
        return
    validation = tasks.split_samples(0.5, random_state=0)
    OnlineLTLPath(validation=validation, fit_intercept=True).fit(tasks).progress_summary()
