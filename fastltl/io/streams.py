"""Task streams: one task at a time from files of any size."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._columns import choose_features, is_missing
from fastltl._validation import Array, check_choice, check_path, reason_of
from fastltl.io.tables import import_arrow, kind_of_table, separator, unreadable
from fastltl.tasks import Task, TaskSet

#: Bytes of a table, roughly, that are held at a time beside the task being read.
BLOCK = 2**20

REPEATS = ("error", "task")

#: What a CSV file has where it has nothing.
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A"]


class StreamedTask(NamedTuple):
    """A task as it stands in a file: its label, its numbers, which may be NaN, its first row.

    Where a target is missing nothing stands in its place; one that is NaN else is no number.
    """

    label: Hashable
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]
    row: int


class Block(NamedTuple):
    """Some rows of a stream; labels[codes[i]] is the task of row i."""

    codes: npt.NDArray[np.int64]
    labels: list[Hashable]
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]


def open_stream(
    path: str | PathLike[str],
    task: str | None = None,
    target: str = "y",
    features: Sequence[str] | None = None,
    repeats: str = "error",
) -> TaskStream:
    """A stream of the tasks in a file or folder, for `fit`, or `partial_fit` in a loop.

    Rows of a task follow one another. However large the file, memory is bounded by the largest
    task (in a folder by the largest file), a few megabytes, and some 20 bytes for each task that
    came, by which one that comes back is known.

    Parameters
    ----------
    path : str or path
        A Parquet file; a CSV file with a header and commas, semicolons or tabs; or a folder of
        ``.npz`` files, in alphabetical order, whose arrays have a row for each sample.
    task : str, optional
        The column, or array, that names the task of each row. In a folder it may be None: then
        each file is a task, named after the file.
    target : str
        The column, or array, of the targets.
    features : sequence of str, optional
        The columns, or arrays of one or two dimensions, to learn from; by default all others.
    repeats : {"error", "task"}
        What a task is that comes back after another has begun: an error, or one more task.

    Returns
    -------
    TaskStream
        Iterated over, it opens the files anew and gives tasks (X, y).

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
    check_choice(repeats, "repeats", REPEATS)
    if path.is_dir():
        return TaskStream(_Folder(path, task, target, features), repeats)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or folder", str(path))
    if not path.is_file():
        raise ValueError(f"path must be a file or a folder of .npz files, got {path}.")
    if task is None:
        raise ValueError(f"task must name a column of {path}, got None.")
    with path.open("rb") as file:
        start = file.read(2**20)
    table = _Parquet if kind_of_table(start, path) == "Parquet" else _CSV
    return TaskStream(table(path, task, target, features), repeats)


class TaskStream:
    """The tasks of a file or folder, one at a time; made by `open_stream`."""

    def __init__(self, source: _Source, repeats: str) -> None:
        self._source = source
        self._repeats = repeats

    @property
    def path(self) -> Path:
        """Where the file or folder is."""
        return self._source.path.resolve()

    def __repr__(self) -> str:
        return f"TaskStream({str(self._source.path)!r}, {self.n_features} features)"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(self._source.feature_names)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self._source.n_features

    def __iter__(self) -> Iterator[Task]:
        return (self.check(task) for task in self.tasks())

    def task_set(self) -> TaskSet:
        """All the tasks at once, for who has the memory."""
        streamed = list(self.tasks())
        tasks = TaskSet([self.check(task) for task in streamed], [task.label for task in streamed])
        return tasks.with_names(self.feature_names)

    def check(self, task: StreamedTask) -> Task:
        """The task as (X, y), if all its numbers are there and finite."""
        names = (*self.feature_names, self._source.target)
        for array, columns in ((task.X, names[:-1]), (task.y[:, None], names[-1:])):
            if not np.isfinite(array).all():
                i, j = np.argwhere(~np.isfinite(array))[0]
                what = "no number" if np.isnan(array[i, j]) else str(array[i, j])
                raise ValueError(
                    f"task {task.label!r}: column {columns[j]!r} must hold finite numbers, got "
                    f"{what} in row {task.row + i} of {self._source.path}; mend it, or leave the "
                    "column out of features."
                )
        return task.X, task.y

    def tasks(self) -> Iterator[StreamedTask]:
        """The tasks with their labels, as they stand in the file: a number may be missing."""
        seen, row = _Labels(), 1
        label: Hashable = None
        begun: list[tuple[Any, ...]] = []
        for block in self._source.blocks():
            edges = [0, *(np.flatnonzero(np.diff(block.codes)) + 1).tolist(), len(block.codes)]
            for lo, hi in pairwise(edges):
                if lo == hi:
                    continue
                latest = block.labels[block.codes[lo]]
                if not begun or latest != label:
                    if begun:
                        yield self._joined(label, begun, row + lo)
                    self._check_label(latest, seen, row + lo)
                    label, begun = latest, []
                begun.append((block.X[lo:hi], block.y[lo:hi], block.missing[lo:hi]))
            row += len(block.codes)
        if row == 1:
            raise ValueError(f"{self._source.path} must have rows, got none.")
        yield self._joined(label, begun, row)

    def _joined(self, label: Hashable, pieces: list[tuple[Any, ...]], end: int) -> StreamedTask:
        """A task of rows that end before a row of the file, in arrays of its own."""
        X, y, missing = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
        return StreamedTask(label, X, y, missing, end - len(y))

    def _check_label(self, label: Hashable, seen: _Labels, row: int) -> None:
        path = self._source.path
        if is_missing(label) or label == "":
            raise ValueError(f"task must be named in every row of {path}, got none in row {row}.")
        if self._repeats == "error" and not seen.add(label):
            raise ValueError(
                f"task {label!r} must stay in one piece, got it again in row {row} of {path}: sort "
                "the rows by task, or take it for a second task with repeats='task' (in commands "
                "--allow-repeats)."
            )


class _Labels:
    """Labels that have come, in 16 bytes each."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype="S16")
        self._latest: set[bytes] = set()

    def add(self, label: Hashable) -> bool:
        """Add a label, unless it is there."""
        # NumPy drops zero bytes at the end.
        key = hashlib.blake2b(repr(label).encode(), digest_size=16).digest().replace(b"\0", b"1")
        place = int(np.searchsorted(self._sorted, key))
        if key in self._latest or (place < len(self._sorted) and self._sorted[place] == key):
            return False
        self._latest.add(key)
        if len(self._latest) > 4096 + len(self._sorted) // 4:
            self._sorted = np.union1d(self._sorted, np.array(list(self._latest), dtype="S16"))
            self._latest = set()
        return True


class _Source(ABC):
    """Where the rows of a stream come from."""

    path: Path
    target: str
    feature_names: list[str]

    @property
    def n_features(self) -> int:
        return len(self.feature_names)

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """All rows, from the first on, some at a time."""


class _Table(_Source):
    """A table that pyarrow reads."""

    kind: str

    def __init__(self, path: Path, task: str, target: str, features: Sequence[str] | None) -> None:
        self.path, self.task, self.target = path, task, target
        pyarrow, _, _ = import_arrow()
        try:
            names = self._column_names()
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(path, self.kind, error) from error
        self.feature_names = choose_features(names, path, task, target, features)
        self.columns = [task, target, *self.feature_names]

    @property
    def n_rows(self) -> int:
        """How many rows are read at a time."""
        return max(1, BLOCK // (8 * len(self.columns)))

    def blocks(self) -> Iterator[Block]:
        pyarrow, _, _ = import_arrow()
        try:
            for batch in self._batches():
                yield self._block(batch)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise unreadable(self.path, self.kind, error) from error

    def _block(self, batch: Any) -> Block:
        batch.validate(full=True)  # text may be no UTF-8
        labels = batch.column(self.task)
        if hasattr(labels, "dictionary_decode"):
            labels = labels.dictionary_decode()
        labels = labels.dictionary_encode("encode")
        columns = [self._floats(batch.column(name), name) for name in self.feature_names]
        target = batch.column(self.target)
        return Block(
            labels.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            labels.dictionary.to_pylist(),
            np.stack(columns, axis=1),
            self._floats(target, self.target),
            self._is_missing(target).to_numpy(zero_copy_only=False),
        )

    @abstractmethod
    def _column_names(self) -> list[str]:
        """Names of all columns."""

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Record batches with the columns that are wanted."""

    @abstractmethod
    def _floats(self, column: Any, name: str) -> Array:
        """A column of numbers, NaN where there is none."""

    @abstractmethod
    def _is_missing(self, column: Any) -> Any:
        """Where a column has nothing at all."""


class _Parquet(_Table):
    kind = "Parquet"

    def _file(self) -> Any:
        # Read as a stream, not a whole row group ahead.
        _, _, parquet = import_arrow()
        return parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20)

    def _column_names(self) -> list[str]:
        with self._file() as file:
            names: list[str] = file.schema_arrow.names
        return names

    def _batches(self) -> Iterator[Any]:
        with self._file() as file:
            yield from file.iter_batches(self.n_rows, columns=self.columns, use_threads=False)

    def _is_missing(self, column: Any) -> Any:
        return column.is_null(nan_is_null=True)

    def _floats(self, column: Any, name: str) -> Array:
        from pyarrow import types

        kind = column.type
        if not (types.is_decimal(kind) or types.is_integer(kind) or types.is_floating(kind)):
            if not types.is_boolean(kind):
                raise ValueError(
                    f"column {name!r} of {self.path} must hold numbers, got {kind}: leave it out "
                    "of features."
                )
            column = column.cast("uint8")
        values: Array = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return values


class _CSV(_Table):
    kind = "CSV"

    def _reader(self, columns: list[str] | None) -> Any:
        """Columns as text: what a number is must not depend on the rows that come first."""
        pyarrow, csv, _ = import_arrow()
        with self.path.open("rb") as file:
            header = file.read(2**20)
        return csv.open_csv(
            self.path,
            read_options=csv.ReadOptions(
                use_threads=False, block_size=max(BLOCK, 64 * len(header.partition(b"\n")[0]))
            ),
            parse_options=csv.ParseOptions(delimiter=separator(header), newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(columns or [], pyarrow.string()),
                include_columns=columns,
            ),
        )

    def _column_names(self) -> list[str]:
        with self._reader(None) as reader:
            names: list[str] = reader.schema.names
        return names

    def _batches(self) -> Iterator[Any]:
        with self._reader(self.columns) as reader:
            yield from reader

    def _is_missing(self, column: Any) -> Any:
        import pyarrow
        from pyarrow import compute

        return compute.is_in(compute.utf8_trim_whitespace(column), value_set=pyarrow.array(MISSING))

    def _floats(self, column: Any, name: str) -> Array:
        import pyarrow
        from pyarrow import compute

        text = compute.utf8_trim_whitespace(column)
        try:
            values: Array = text.cast("float64").to_numpy(zero_copy_only=False)
        except pyarrow.ArrowInvalid:
            values = np.array([_number(one) for one in text.to_pylist()])
        return values


def _number(text: str) -> float:
    """The number that a text is, or NaN."""
    try:
        return np.nan if "_" in text else float(text)
    except ValueError:
        return np.nan


class _Folder(_Source):
    """A folder of .npz files."""

    def __init__(
        self, path: Path, task: str | None, target: str, features: Sequence[str] | None
    ) -> None:
        self.path, self.task, self.target = path, task, target
        self.files = sorted(path.glob("*.npz"))
        if not self.files:
            raise ValueError(f"{path} must hold .npz files, got none.")
        arrays = self._read(self.files[0])
        # Without an array of labels the name of the file, an array named "" so to say, is one.
        names = [*arrays, ""] if task is None else [*arrays]
        self.features = choose_features(names, self.files[0], task or "", target, features)
        self.feature_names = []
        for name in self.features:
            shape = arrays[name].shape
            wide = [f"{name}{j}" for j in range(shape[1])] if len(shape) == 2 else [name]
            self.feature_names += wide
        if len(set(self.feature_names)) < self.n_features:
            shown = ", ".join(self.feature_names)
            raise ValueError(f"{path} must name features apart, got {shown}.")

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            with file.open("rb") as content, np.load(content, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except Exception as error:  # NumPy and zipfile raise all kinds
            raise ValueError(f"{file} cannot be read as .npz ({reason_of(error)}).") from error

    def blocks(self) -> Iterator[Block]:
        for file in self.files:
            arrays = self._read(file)
            for name in (self.target, *self.features, *([] if self.task is None else [self.task])):
                if name not in arrays:
                    raise ValueError(f"{file} must hold an array {name!r}, got none.")
            y = self._floats(file, arrays, self.target)
            columns = [self._floats(file, arrays, name) for name in self.features]
            shapes = ", ".join(str(arrays[name].shape) for name in (self.target, *self.features))
            if y.ndim != 1 or len(y) == 0 or any(len(column) != len(y) for column in columns):
                raise ValueError(
                    f"{file} must hold targets, and arrays with a row for each, got the shapes "
                    f"{shapes}."
                )
            X = np.column_stack(columns)
            if X.shape[1] != self.n_features:
                raise ValueError(
                    f"{file} must hold the {self.n_features} features of {self.files[0].name}, "
                    f"got {X.shape[1]}."
                )
            yield Block(*self._labels(file, arrays, len(y)), X, y, np.isnan(y))

    def _floats(self, file: Path, arrays: dict[str, Any], name: str) -> Array:
        array = arrays[name]
        if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
            raise ValueError(
                f"{file}: array {name!r} must hold numbers in one or two dimensions, got "
                f"{array.dtype} of shape {array.shape}."
            )
        return np.asarray(array, dtype=np.float64)

    def _labels(
        self, file: Path, arrays: dict[str, Any], n_rows: int
    ) -> tuple[npt.NDArray[np.int64], list[Hashable]]:
        if self.task is None:
            return np.zeros(n_rows, dtype=np.int64), [file.stem]
        values = arrays[self.task]
        if values.shape != (n_rows,):
            raise ValueError(
                f"{file}: array {self.task!r} must name the task of {n_rows} rows, got shape "
                f"{values.shape}."
            )
        labels, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), labels.tolist()
