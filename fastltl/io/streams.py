"""Read tasks one at a time from files of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Hashable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fastltl._columns import (
    DROP,
    Column,
    Encoding,
    check_roles,
    choose_encoding,
    choose_features,
    feature_matrix,
    feature_names,
    split_indicators,
    target_numbers,
    warn_of_new_categories,
)
from fastltl._objective import TaskSource
from fastltl._validation import Array, check_choice, check_path, is_missing, read_errors
from fastltl.io.checkpoints import read_npy_header
from fastltl.io.tables import SAMPLE_BLOCKS, arrow_errors, arrow_labels, open_table
from fastltl.tasks import Task, TaskSet


class StreamedTask(NamedTuple):
    """A task as read from a file, unchecked: X and y may contain NaN and infinities.

    `missing` marks the rows without a target; `row` is the number of the first row in the file.
    A target that is NaN but not missing is text that is not a number.
    """

    label: Hashable
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]
    row: int


#: Label, X, y and missing targets of adjacent rows of one task.
Run = tuple[Hashable, Array, Array, npt.NDArray[np.bool_]]


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

    The rows of a task must be adjacent. Memory does not grow with the file: it holds the largest
    task (of a folder, the largest file), about 30 megabytes, and 20 bytes for each task read, to
    detect labels that repeat.

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
        folder = _Folder(path, task, target, features, drop, optional_target)
        return TaskStream(folder, repeats)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or folder", str(path))
    if not path.is_file():
        raise ValueError(f"path must be a file or a folder of .npz files, got {path}.")
    if task is None:
        raise ValueError(f"task must name a column of {path}, got None.")
    table = _Table(path, task, target, features, drop, encoding, optional_target)
    return TaskStream(table, repeats)


def check_encoding(encoding: Any) -> Encoding:
    """Check an encoding that comes from outside."""
    if not isinstance(encoding, dict) or not encoding:
        raise ValueError(f"encoding must be a dict of columns, got {encoding!r:.80}.")
    for name, categories in encoding.items():
        texts = categories if isinstance(categories, list) else []
        are_texts = bool(texts) and all(isinstance(text, str) for text in texts)
        if not isinstance(name, str) or not (categories is None or are_texts):
            raise ValueError(
                "encoding must give None or a list of categories for each column, got "
                f"{categories!r:.80} for {name!r:.80}."
            )
    return dict(encoding)


class TaskStream(TaskSource):
    """The tasks of a file or folder, read one at a time. Created by `open_stream`."""

    def __init__(self, source: _Table | _Folder, repeats: str) -> None:
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
                    f"in row {task.row + i} of {self._source.path}: correct it, {DROP}."
                )
        return task.X, task.y

    def tasks(self, hold_back: bool = False) -> Generator[StreamedTask, None, Hashable]:
        """Yield the tasks with their labels, unchecked.

        The last line of a CSV file may have no newline. With `hold_back` it counts as half
        written: neither it nor the last task before it, which may go on in it, is yielded. The
        label of that task is returned, and else None.
        """
        path, seen, row = self._source.path, _DigestSet(), 1
        cut: list[bytes] | None = [] if hold_back else None
        for label, runs in groupby(self._source.runs(cut), key=itemgetter(0)):
            if is_missing(label) or label == "":
                raise ValueError(
                    f"every row of {path} must name its task, got no label in row {row}."
                )
            if self._repeats == "error" and not seen.add(label):
                raise ValueError(
                    f"the rows of task {label!r} must be adjacent, got the label again in row "
                    f"{row} of {path}: sort the rows by task, or start a new task there with "
                    "repeats='task' (command line: --allow-repeats)."
                )
            _, *pieces = zip(*runs, strict=True)
            if cut:  # the source has ended, so that this task is the last
                return cast(Hashable, label)
            X, y, missing = map(np.concatenate, pieces)
            yield StreamedTask(label, X, y, missing, row)
            row += len(y)
        if row == 1:
            raise ValueError(f"{path} has no rows.")
        return None


def _split_runs(codes: Any, labels: Sequence[Hashable], *columns: Any) -> Iterator[Run]:
    """Split rows into runs of one task each; ``labels[codes[i]]`` is the task of row i."""
    cuts = np.flatnonzero(np.diff(codes)) + 1
    for lo, hi in pairwise([0, *cuts.tolist(), len(codes)]):
        if lo < hi:
            X, y, missing = (column[lo:hi] for column in columns)
            yield labels[codes[lo]], X, y, missing


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


class _Table:
    """A CSV or Parquet file."""

    def __init__(
        self,
        path: Path,
        task: str,
        target: str | None,
        features: Sequence[str] | None,
        drop: Sequence[str],
        encoding: Encoding | None,
        optional_target: bool,
    ) -> None:
        self.path, self.task = path, task
        self._table = open_table(path)
        self._warned: set[str] = set()  # columns with a category that is not in the encoding
        if encoding is not None:
            encoding = check_encoding(encoding)
            features, drop = list(encoding), ()
        names = self._table.names
        features, known = split_indicators(features, names)
        chosen = choose_features(names, path, task, target, features, drop, optional_target)
        self.target = target if target in names else None
        if encoding is None:
            encoding = self._choose_encoding(chosen, features is not None)
        kept = (name for name in chosen if name in encoding or name in known)
        encoding = {name: known.get(name, encoding.get(name)) for name in kept}
        self.encoding: Encoding | None = encoding
        self.feature_names = feature_names(encoding)
        #: The column of each feature.
        self.columns = [
            name
            for name, texts in encoding.items()
            for _ in range(1 if texts is None else len(texts))
        ]

    def _choose_encoding(self, features: list[str], are_named: bool) -> Encoding:
        """Choose the encoding of the features by the first blocks; check task and target."""
        with arrow_errors(self.path, self._table.kind):
            start = self._table.read([self.task, *self._targets, *features], SAMPLE_BLOCKS)
            if start is None:
                return dict.fromkeys(features)
            codes, labels = arrow_labels(start[self.task])
            columns = {name: self._table.column(start[name], name) for name in features}
            targets = {name: self._table.column(start[name], name) for name in self._targets}
        for name, target in targets.items():
            y = target_numbers(target, name, self.task, labels, is_whole=False)
            check_roles(self.task, codes, labels, name, y)
        return choose_encoding(columns, len(labels), are_named, is_whole=False)

    @property
    def _targets(self) -> list[str]:
        """The column of targets, if there is one."""
        return [] if self.target is None else [self.target]

    def runs(self, cut: list[bytes] | None = None) -> Iterator[Run]:
        """Read the runs; a last line without newline is added to `cut`, if given."""
        encoding, n_rows = self.encoding or {}, 0
        numbers = [*self._targets, *(name for name, texts in encoding.items() if texts is None)]
        names = [self.task, *self._targets, *encoding]
        with arrow_errors(self.path, self._table.kind):
            for batch in self._table.batches(names, numbers, cut):
                codes, labels = arrow_labels(batch.column(self.task))
                columns = {
                    name: self._table.column(batch.column(name), name, texts is not None)
                    for name, texts in encoding.items()
                }
                unseen = {k: texts for k, texts in encoding.items() if k not in self._warned}
                self._warned |= warn_of_new_categories(columns, unseen, self.path, n_rows + 1)
                target = Column(np.full(len(codes), np.nan))
                if self.target is not None:
                    target = self._table.column(batch.column(self.target), self.target)
                X, y = feature_matrix(columns, encoding), target.as_numbers()
                yield from _split_runs(codes, labels, X, y, target.missing)
                n_rows += len(y)


class _Folder:
    """A folder of .npz files."""

    def __init__(
        self,
        path: Path,
        task: str | None,
        target: str | None,
        features: Sequence[str] | None,
        drop: Sequence[str],
        optional_target: bool,
    ) -> None:
        self.path, self.task = path, task
        self.encoding: Encoding | None = None
        self.files = sorted(file for file in path.glob("*.npz") if file.is_file())
        if not self.files:
            raise ValueError(f"{path} must hold .npz files, got none.")
        arrays = self._read(self.files[0])
        # Without a task array the file names are the labels; "" stands for that array.
        names = [*arrays, ""] if task is None else [*arrays]
        self.target = target if target in arrays else None
        self.features = choose_features(
            names, self.files[0], task or "", target, features, drop, optional_target
        )
        self.feature_names = []
        for name in self.features:
            is_matrix = arrays[name].ndim == 2
            indices = range(arrays[name].shape[1]) if is_matrix else [""]
            self.feature_names += [f"{name}{j}" for j in indices]
        if len(set(self.feature_names)) < len(self.feature_names):
            shown = ", ".join(self.feature_names)
            raise ValueError(f"{path} must have distinct feature names, got {shown}.")
        self.columns = self.feature_names

    def _read(self, file: Path) -> dict[str, Any]:
        with (
            read_errors(file, ".npz"),
            file.open("rb") as content,
            np.load(content, allow_pickle=False) as archive,
        ):
            for member in archive.zip.infolist():
                with archive.zip.open(member) as start:
                    read_npy_header(start, member.file_size)
            return {name: archive[name] for name in archive.files}

    def runs(self, cut: list[bytes] | None = None) -> Iterator[Run]:
        for file in self.files:
            arrays = self._read(file)
            columns = [self._floats(file, arrays, name) for name in self.features]
            y = np.full(len(columns[0]), np.nan)
            if self.target is not None:
                y = self._floats(file, arrays, self.target)
            if y.ndim != 1 or len(y) == 0 or any(len(column) != len(y) for column in columns):
                shapes = ", ".join(str(array.shape) for array in (y, *columns))
                raise ValueError(
                    f"{file} must hold a vector of targets, and features with a row for each, got "
                    f"the shapes {shapes}."
                )
            X, n_features = np.column_stack(columns), len(self.feature_names)
            if X.shape[1] != n_features:
                wanted = f"the {n_features} features of {self.files[0].name}"
                raise ValueError(f"{file} must hold {wanted}, got {X.shape[1]}.")
            rows = np.full(len(y), file.stem)
            if self.task is not None:
                rows = self._array(file, arrays, self.task)
            if rows.shape != y.shape:
                wanted = f"array {self.task!r} must hold {len(y)} labels"
                raise ValueError(f"{file}: {wanted}, got shape {rows.shape}.")
            labels, codes = np.unique(rows, return_inverse=True)
            yield from _split_runs(codes, labels.tolist(), X, y, np.isnan(y))

    def _array(self, file: Path, arrays: dict[str, Any], name: str) -> Any:
        if name not in arrays:
            raise ValueError(f"{file} must hold an array {name!r}, got {', '.join(arrays)}.")
        return arrays[name]

    def _floats(self, file: Path, arrays: dict[str, Any], name: str) -> Array:
        array = self._array(file, arrays, name)
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
            raise ValueError(
                f"{file}: array {name!r} must hold numbers in one or two dimensions, got "
                f"{array.dtype} of shape {array.shape}."
            )
        return np.asarray(array, dtype=np.float64)
