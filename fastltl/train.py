"""Training on a stream with checkpoints to go on from, and what was learned applied to a file."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fastltl.base import RepresentationLearner
from fastltl.io.checkpoints import restored
from fastltl.io.storage import discard_unfinished, read_checkpoint, whole_file, write_checkpoint
from fastltl.io.streams import StreamedTask, TaskStream, open_stream
from fastltl.metrics import evaluate
from fastltl.path import OnlineLTLPath
from fastltl.ridge import RepresentationRidge
from fastltl.tasks import TaskSet

#: Share of the time that may go into looking how well things stand.
LOOKING = 0.1


@dataclass(frozen=True)
class Settings:
    """What a training was asked for, and cannot change on the way."""

    task: str | None
    target: str
    features: tuple[str, ...] | None
    lam: float | None
    validation: int
    fit_intercept: bool


class Training:
    """A path of learners on its way through a stream, and the file it can go on from.

    The first tasks of the stream are kept to validate on; the others are learned from, one by one.
    A task that cannot be learned from is left out, if so wished, or ends the training.
    """

    def __init__(
        self, stream: TaskStream, path: Path, settings: Settings, leave_out_bad: bool = False
    ) -> None:
        self.stream, self.path, self.settings = stream, path, settings
        self.leave_out_bad = leave_out_bad
        self.n_read = self.n_left_out = self.n_saved = 0
        self._digest = hashlib.blake2b(digest_size=16)  # of all that was read
        self._tasks = stream.tasks()
        if path.suffix == ".npz" and stream.path == path.resolve().parent:
            raise ValueError(f"checkpoint must not be a file of the stream's folder, got {path}.")
        discard_unfinished(path)
        self.learner = self._resumed() if path.exists() else self._new_learner()

    @property
    def n_learned(self) -> int:
        """How many tasks have been learned from."""
        return self.learner.n_tasks_seen_ if self.learner.__sklearn_is_fitted__() else 0

    def _new_learner(self) -> OnlineLTLPath:
        """All candidates before the first task, with tasks to choose among them by."""
        wanted, kept = self.settings.validation, []
        for task in islice(self._tasks, wanted):
            try:
                kept.append(self.stream.check(task))
            except ValueError:
                if not self.leave_out_bad:
                    raise
                self.n_left_out += 1
            self._pass(task)
        usable = [task for task in kept if len(task[1]) >= 2]
        if not usable:
            raise ValueError(
                f"the first {wanted} tasks, kept to validate on, must have two samples or more, "
                f"got none that has among {self.n_read}."
            )
        validation = TaskSet(usable).split_samples(0.5, random_state=0)
        try:
            evaluate(
                np.eye(self.stream.n_features), *validation, "mse", self.settings.fit_intercept
            )
        except ValueError as error:
            raise ValueError(f"the first {wanted} tasks, kept to validate on: {error}") from error
        return OnlineLTLPath(
            lams=None if self.settings.lam is None else [self.settings.lam],
            validation=validation,
            fit_intercept=self.settings.fit_intercept,
        )

    def _resumed(self) -> OnlineLTLPath:
        """The learner of the checkpoint, which must be of this stream and these settings."""
        checkpoint = read_checkpoint(self.path)
        learner, position = restored(checkpoint, self.path), checkpoint.position
        if not isinstance(learner, OnlineLTLPath) or "settings" not in position:
            raise ValueError(f"{self.path} must be a checkpoint of fastltl train, got another.")
        for name, now in asdict(self.settings).items():
            then = position["settings"].get(name)
            if now != then:
                raise ValueError(
                    f"{name} must be {then!r}, which {self.path} was begun with, got {now!r}."
                )
        if self.stream.feature_names != tuple(learner.feature_names_in_):
            raise ValueError(
                f"features must be those of {self.path} ({', '.join(learner.feature_names_in_)}), "
                f"got {', '.join(self.stream.feature_names)}."
            )
        for task in islice(self._tasks, position["n_tasks_read"]):
            self._pass(task)
        if self._digest.hexdigest() != position["digest"]:
            raise ValueError(
                f"the stream must be the one that {self.path} comes from, with more tasks at its "
                f"end: the {position['n_tasks_read']} tasks that were read then are others now."
            )
        self.n_left_out, self.n_saved = position["n_left_out"], self.n_read
        return learner

    def run(self, every: int, is_asked_to_stop: Callable[[], bool]) -> bool:
        """Learn to the end of the stream, or until asked to stop; whether the end was reached.

        A checkpoint is written after every so many tasks, at the end, and before an error in the
        stream is raised.
        """
        has_ended = False
        with tqdm(unit="task", initial=self.n_read, desc="learning") as bar:
            watch = _Watch(self.learner, bar)
            try:
                while not (has_ended or is_asked_to_stop()):
                    task = next(self._tasks, None)
                    has_ended = task is None
                    if task is not None:
                        self._learn(task, bar)
                        watch.look()
                    if self.n_read - self.n_saved >= every:
                        self.save()
            except ValueError as error:
                self.save()
                kept = f" {self.path} has what was learned before it." if self.n_saved else ""
                raise ValueError(f"{error}{kept}") from error
        self.save()
        return has_ended

    def _learn(self, task: StreamedTask, bar: tqdm[Any]) -> None:
        try:
            X, y = self.stream.check(task)
            with naming(task):
                self.learner.partial_fit(X, y)
        except ValueError as error:
            if not self.leave_out_bad:
                raise
            bar.write(f"left out: {error}", file=sys.stderr)
            self.n_left_out += 1
        else:
            if self.n_learned == 1:
                self.learner._remember_features(self.stream)
        self._pass(task)
        bar.update()

    def _pass(self, task: StreamedTask) -> None:
        """Stand behind a task."""
        self.n_read += 1
        for part in (repr(task.label).encode(), task.X.data, task.y.data):
            self._digest.update(part)

    def save(self) -> None:
        """Write the checkpoint, if there is anything new to keep."""
        if self.n_learned == 0 or self.n_saved == self.n_read:
            return
        position = {
            "n_tasks_read": self.n_read,
            "n_left_out": self.n_left_out,
            "digest": self._digest.hexdigest(),
            "settings": asdict(self.settings),
        }
        write_checkpoint(self.path, self.learner._checkpoint(position))
        self.n_saved = self.n_read


def compile_kernels() -> None:
    """Compile what a training calls, so that its first task takes no longer than others."""
    tasks = TaskSet([(np.ones((2, 2)), np.ones(2))] * 2)
    validation = tasks.split_samples(0.5, random_state=0)
    OnlineLTLPath(validation=validation, fit_intercept=True).fit(tasks).standing()


class _Watch:
    """Shows how well the best candidate does, in a small share of the time."""

    def __init__(self, learner: OnlineLTLPath, bar: tqdm[Any]) -> None:
        self.learner, self.bar = learner, bar
        self._due = 0.0

    def look(self) -> None:
        began = time.perf_counter()
        if began < self._due or not self.learner.__sklearn_is_fitted__():
            return
        self.bar.set_postfix(self.learner.standing(), refresh=False)
        ended = time.perf_counter()
        self._due = ended + max(0.5, (ended - began) / LOOKING)


class Adapted(NamedTuple):
    """Files that `adapt` wrote, and how much there is in them."""

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
    """Fit the tasks of a file with what a checkpoint has learned.

    A task is fitted to its rows that have a target; all its rows are predicted. The checkpoint
    knows the columns if `fastltl train` wrote it.
    """
    saved = read_checkpoint(checkpoint)
    learner, settings = restored(saved, checkpoint), saved.position.get("settings", {})
    if not isinstance(learner, RepresentationLearner) or not learner.__sklearn_is_fitted__():
        raise ValueError(f"{checkpoint} must hold a learner that has learned, got {learner}.")
    task = settings.get("task") if task is None else task
    target = settings.get("target") if target is None else target
    if target is None:
        raise ValueError(f"target must name a column of {file}, got none.")
    # The columns of a table may stand in another order, arrays have features without names.
    names = learner.__dict__.get("feature_names_in_")
    features = settings.get("features") if file.is_dir() else names
    stream = open_stream(file, task, target, features, repeats)
    agree = names is None or stream.feature_names == tuple(names)
    if stream.n_features != learner.n_features_in_ or not agree:
        raise ValueError(
            f"{file} must have the {learner.n_features_in_} features of {checkpoint}, got "
            f"{', '.join(stream.feature_names)}."
        )
    model = RepresentationRidge(learner.D_, fit_intercept=learner.fit_intercept)
    adapted = Adapted(out / "weights.csv", out / "predictions.csv", 0, 0, 0)
    if file.resolve() in (path.resolve() for path in adapted[:2]):
        raise ValueError(f"out must be another folder than that of {file}, got {out}.")
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        weights, predictions = (files.enter_context(_table(path)) for path in adapted[:2])
        weights.writerow(["task", "intercept", *stream.feature_names])
        predictions.writerow(["task", "row", target, "prediction"])
        for streamed in stream.tasks():
            n_fitted, found = _fit_and_predict(model, stream, streamed)
            weights.writerow([streamed.label, model.intercept_, *model.coef_.tolist()])
            given = ["" if np.isnan(y) else y for y in streamed.y.tolist()]
            rows = range(streamed.row, streamed.row + len(found))
            for line in zip(rows, given, found, strict=True):
                predictions.writerow([streamed.label, *line])
            adapted = adapted._replace(
                n_tasks=adapted.n_tasks + 1,
                n_fitted=adapted.n_fitted + n_fitted,
                n_predicted=adapted.n_predicted + len(found) - n_fitted,
            )
    return adapted


def _fit_and_predict(
    model: RepresentationRidge, stream: TaskStream, task: StreamedTask
) -> tuple[int, list[float]]:
    """Fit the rows of a task that have a target; how many they are, and predictions for all."""
    known = ~task.missing
    stream.check(task._replace(y=np.where(known, task.y, 0.0)))
    if not known.any():
        raise ValueError(f"task {task.label!r} must have a row with a target, got none.")
    with naming(task):
        predictions = model.fit(task.X[known], task.y[known]).predict(task.X)
    return int(known.sum()), predictions.tolist()


@contextmanager
def naming(task: StreamedTask) -> Iterator[None]:
    """Have an error say which task it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"task {task.label!r}: {error}") from error


@contextmanager
def _table(path: Path) -> Iterator[Any]:
    """A CSV file to write rows to, which is there whole or not at all."""
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield csv.writer(text)
        text.detach()
