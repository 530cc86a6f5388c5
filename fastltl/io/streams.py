"""Read tasks one at a time from files of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fastltl._columns import DROP, Encoding
from fastltl._objective import Indices, TaskSource
from fastltl._validation import Array, check_choice, check_path, is_missing
from fastltl.io.sources import Folder, Table, repeat_error
from fastltl.tasks import Task, TaskSet


class StreamedTask(NamedTuple):
    """A task as read from a file, unchecked: X and y may contain NaN and infinities.

    `missing` marks the rows without a target; `rows` are the numbers of the rows in the file.
    A target that is NaN but not missing is text that is not a number.
    """

    label: Hashable
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """Tasks that were read together, unchecked: task i has rows offsets[i] to offsets[i + 1]."""

    labels: list[Hashable]
    offsets: Indices
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]
    rows: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, n_features: int) -> Self:
        """Return no tasks."""
        X, y, rows = np.empty((0, n_features)), np.empty(0), np.empty(0, np.int64)
        return cls([], np.zeros(1, np.int64), X, y, rows < 0, rows)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> Block:
        """Return the tasks from `start` to `stop`; arrays are views."""
        offsets = self.offsets[start : stop + 1]
        rows = slice(offsets[0], offsets[-1])
        X, y, missing, numbers = self.X[rows], self.y[rows], self.missing[rows], self.rows[rows]
        return Block(self.labels[start:stop], offsets - offsets[0], X, y, missing, numbers)

    def task(self, i: int) -> StreamedTask:
        """Return a copy of task i, which does not keep the block in memory."""
        one = self.part(i, i + 1)
        X, y, missing, rows = one.X.copy(), one.y.copy(), one.missing.copy(), one.rows.copy()
        return StreamedTask(self.labels[i], X, y, missing, rows)


@contextmanager
def errors_naming(task: StreamedTask) -> Iterator[None]:
    """Prefix the message of a ValueError with the label of the task."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"task {task.label!r}: {error}") from error


def open_stream(
    path: str | PathLike[str],
    task: str | None = None,
    target: str | None = "y",
    features: Sequence[str] | None = None,
    repeats: str = "error",
    *,
    drop: Sequence[str] = (),
    encoding: Encoding | None = None,
    optional_target: bool = False,
) -> TaskStream:
    """Open a file or folder as a stream of tasks, for `fit` or a loop of `partial_fit`.

    The rows of a task must be adjacent, unless the file is a table of at most 8 megabytes. Memory
    does not grow with the file: it holds the largest task (of a folder, the largest file), about 80
    megabytes, and 30 bytes for each task read, to detect labels that repeat.

    Columns become features by the rules of `TaskSet.from_frame`, as the first 8 megabytes of the
    file suggest, in a Parquet file at 8 bytes a value: files up to that size are seen whole. A
    category that comes up later has zeros in all indicator columns of its column; the first one is
    named in a warning. Tasks with missing values, or words in a column of numbers, raise an error
    when they are read. In a CSV file task labels are text.

    Parameters
    ----------
    path : str or path
        A Parquet file; a CSV file with a header, separated by commas, semicolons or tabs; or a
        folder of ``.npz`` files, read in alphabetical order, whose arrays have a row per sample.
    task : str, optional
        The column, or array, with the task label of each row. For a folder it may be None: then
        each file is one task, labelled by the name of the file.
    target : str
        The column, or array, with the targets.
    features : sequence of str, optional
        The columns, or arrays of one or two dimensions, to learn from; by default all others but
        row numbers and identifiers.
    repeats : {"error", "task"}
        Whether a label that appears again after another task is an error or starts a new task.
    drop : sequence of str
        Columns, or arrays, to ignore.
    encoding : dict, optional
        `encoding` of another stream, in place of `features` and `drop`: the columns that it names,
        in any order, become the same features.
    optional_target : bool
        Whether there may be no target column, or `target` be None: then all targets are missing.

    Returns
    -------
    TaskStream
        An iterable of tasks (X, y). Each iteration opens the files again.

    Examples
    --------
    >>> import os, tempfile
    >>> import fastltl as ltl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "sales.csv")
    ...     with open(path, "w") as file:
    ...         _ = file.write("store,size,sales\\nA,1,2\\nA,2,4\\nB,1,3\\n")
    ...     stream = ltl.open_stream(path, task="store", target="sales")
    ...     sizes = [len(y) for X, y in stream]
    ...     learner = ltl.OnlineLTL().fit(stream)
    >>> sizes, learner.n_tasks_seen_, list(learner.get_feature_names_out())
    ([2, 1], 2, ['onlineltl0'])
    """
    path = check_path(path)
    check_choice(repeats, "repeats", ("error", "task"))
    if path.is_dir():
        if encoding is not None:
            raise ValueError(f"encoding must be None for the folder {path}, got {encoding!r:.80}.")
        folder = Folder(path, task, target, features, drop, optional_target)
        return TaskStream(folder, repeats)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or folder", str(path))
    if not path.is_file():
        raise ValueError(f"path must be a file or a folder of .npz files, got {path}.")
    if task is None:
        raise ValueError(
            f"task must name a column of {path}, got None: name one (command line: use --task)."
        )
    table = Table(path, task, target, features, drop, encoding, optional_target, repeats)
    return TaskStream(table, repeats)


class TaskStream(TaskSource):
    """The tasks of a file or folder, read one at a time. Created by `open_stream`.

    Attributes
    ----------
    path : Path
        Absolute path of the file or folder.
    n_features : int
    feature_names : tuple of str
    has_target : bool
        Whether there is a column of targets; without one all targets are missing.
    encoding : dict or None
        How columns become features: None for numbers, and else the list of its categories. It is
        ready for JSON; None for a folder.
    """

    def __init__(self, source: Table | Folder, repeats: str) -> None:
        self._source, self._repeats = source, repeats

    @property
    def path(self) -> Path:
        """Absolute path of the file or folder."""
        return self._source.path.resolve()

    def __repr__(self) -> str:
        return f"TaskStream({str(self._source.path)!r}, {self.n_features} features)"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(self._source.feature_names)

    @property
    def has_target(self) -> bool:
        """Whether there is a column of targets; without one all targets are missing."""
        return self._source.target is not None

    @property
    def encoding(self) -> Encoding | None:
        """How columns become features: None for numbers, and else the list of its categories.

        It is a dict of lists of text, ready for JSON; None for a folder.
        """
        return self._source.encoding

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self._source.feature_names)

    def __iter__(self) -> Iterator[Task]:
        return (self.check(task) for task in self.tasks())

    def collection(self) -> TaskSet:
        """Read all tasks into memory."""
        streamed = list(self.tasks())
        tasks = TaskSet([self.check(task) for task in streamed], [task.label for task in streamed])
        return tasks.with_names(self.feature_names)

    def check(self, task: StreamedTask) -> Task:
        """Return the task as (X, y); raise ValueError if a number is missing or not finite."""
        targets = task.y[:, None], [self._source.target]
        for array, columns in ((task.X, self._source.columns), targets):
            if not np.isfinite(array).all():
                i, j = np.argwhere(~np.isfinite(array))[0]
                is_text = (self.encoding or {}).get(columns[j]) is not None
                wanted, none = ("text", "none") if is_text else ("finite numbers", "no number")
                value = none if np.isnan(array[i, j]) else array[i, j]
                raise ValueError(
                    f"task {task.label!r}: column {columns[j]!r} must hold {wanted}, got {value} "
                    f"in row {task.rows[i]} of {self._source.path}: correct it, {DROP}."
                )
        return task.X, task.y

    def tasks(self) -> Iterator[StreamedTask]:
        """Yield the tasks one by one, with their labels, unchecked."""
        for block in self.blocks():
            for i in range(len(block)):
                yield block.task(i)

    def blocks(self, hold_back: bool = False) -> Generator[Block, None, Hashable]:
        """Yield the tasks in blocks of about a megabyte, unchecked.

        The last line of a CSV file may have no newline. With `hold_back` it counts as half
        written: neither it nor the last task before it, which may go on in it, is yielded. The
        label of that task is returned, and else None.
        """
        cut: list[bytes] | None = [] if hold_back else None
        seen = _DigestSet() if self._repeats == "error" else None
        label: Hashable = None
        unfinished: list[Sequence[Any]] = []  # parts of the columns of the last task
        for codes, names, *columns in self._source.batches(cut, self._repeats == "error"):
            if len(codes) == 0:
                continue
            starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
            labels = [names[code] for code in codes[starts].tolist()]
            offsets = starts + sum(len(rows) for *_, rows in unfinished)
            if unfinished and labels[0] == label:
                offsets[0] = 0
            elif unfinished:
                offsets, labels = np.concatenate([[0], offsets]), [label, *labels]
            if len(labels) == 1:
                unfinished.append(columns)
            else:
                parts = [*unfinished, [column[: starts[-1]] for column in columns]]
                block = Block(labels[:-1], offsets, *_join_parts(parts))
                yield from self._check_labels(block, seen)
                unfinished = [[column[starts[-1] :] for column in columns]]
            label = labels[-1]
        if not unfinished:
            raise ValueError(f"{self._source.path} has no rows.")
        arrays = _join_parts(unfinished)
        offsets = np.array([0, len(arrays[-1])])
        for block in self._check_labels(Block([label], offsets, *arrays), seen):
            if cut:
                return label
            yield block
        return None

    def _check_labels(self, block: Block, seen: _DigestSet | None) -> Iterator[Block]:
        """Yield the tasks before one without a label, or with a label seen before, which raises."""
        n_tasks, path = len(block), self._source.path
        n_named = next((i for i, x in enumerate(block.labels) if is_missing(x) or x == ""), n_tasks)
        n_good = n_named if seen is None else seen.add(block.labels[:n_named])
        if n_good > 0:
            yield block.part(0, n_good)
        if n_good < n_tasks:
            row = block.rows[block.offsets[n_good]]
            if n_good < n_named:
                raise repeat_error(block.labels[n_good], row, path)
            raise ValueError(f"every row of {path} must name its task, got no label in row {row}.")


def _join_parts(parts: list[Sequence[Any]]) -> list[Any]:
    """Concatenate the parts of each column."""
    return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


class _DigestSet:
    """A set of labels that stores 16 bytes for each: recent digests in a set, others sorted."""

    def __init__(self) -> None:
        self._sorted = np.array([b""], dtype="S16")  # it begins with what is below any digest
        self._recent: set[bytes] = set()

    def add(self, labels: Sequence[Hashable]) -> int:
        """Add labels up to one that was in the set already; return their number."""
        # NumPy drops trailing zero bytes.
        digests = [
            hashlib.blake2b(repr(label).encode(), digest_size=16).digest().replace(b"\0", b"1")
            for label in labels
        ]
        found = np.array(digests, "S16")
        is_old = self._sorted[self._sorted.searchsorted(found, side="right") - 1] == found
        for i, digest in enumerate(digests):
            if is_old[i] or digest in self._recent:
                return i
            self._recent.add(digest)
        if len(self._recent) > 4096 + len(self._sorted) // 16:
            both = np.concatenate([self._sorted, list(self._recent)])
            self._sorted = np.sort(both, kind="stable")  # merges what is sorted already
            self._recent = set()
        return len(digests)
