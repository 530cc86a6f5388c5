"""Read tasks one at a time from files of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fastltl._columns import DROP, Encoding
from fastltl._objective import TaskSource
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
    megabytes, and 20 bytes for each task read, to detect labels that repeat.

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

    def tasks(self, hold_back: bool = False) -> Generator[StreamedTask, None, Hashable]:
        """Yield the tasks with their labels, unchecked.

        The last line of a CSV file may have no newline. With `hold_back` it counts as half
        written: neither it nor the last task before it, which may go on in it, is yielded. The
        label of that task is returned, and else None.
        """
        path, seen, n_rows = self._source.path, _DigestSet(), 0
        cut: list[bytes] | None = [] if hold_back else None
        is_sorted = self._repeats == "error"
        for label, runs in groupby(self._source.runs(cut, is_sorted), key=itemgetter(0)):
            _, *pieces = zip(*runs, strict=True)
            X, y, missing, rows = map(np.concatenate, pieces)
            if is_missing(label) or label == "":
                raise ValueError(
                    f"every row of {path} must name its task, got no label in row {rows[0]}."
                )
            if self._repeats == "error" and not seen.add(label):
                raise repeat_error(label, rows[0], path)
            if cut:  # the source has ended, so that this task is the last
                return cast(Hashable, label)
            yield StreamedTask(label, X, y, missing, rows)
            n_rows += len(y)
        if n_rows == 0:
            raise ValueError(f"{path} has no rows.")
        return None


class _DigestSet:
    """A set of labels that stores 16 bytes for each: recent digests in a set, others sorted."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype="S16")
        self._recent: set[bytes] = set()

    def add(self, label: Hashable) -> bool:
        """Add a label; return False if it was in the set already."""
        digest = hashlib.blake2b(repr(label).encode(), digest_size=16).digest()
        digest = digest.replace(b"\0", b"1")  # NumPy drops trailing zero bytes
        if digest in self._recent:
            return False
        place = self._sorted.searchsorted(digest) if len(self._sorted) else 0
        if place < len(self._sorted) and self._sorted[place] == digest:
            return False
        self._recent.add(digest)
        if len(self._recent) > 4096 + len(self._sorted) // 4:
            self._sorted = np.union1d(self._sorted, np.array(list(self._recent), dtype="S16"))
            self._recent = set()
        return True
