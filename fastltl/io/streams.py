"""Read tasks one at a time from files of any size."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, pairwise
from operator import itemgetter
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fastltl._columns import choose_features, is_missing
from fastltl._objective import TaskSource
from fastltl._validation import Array, check_choice, check_path, read_errors
from fastltl.io.checkpoints import read_npy_header
from fastltl.io.tables import CSVRows, arrow_errors, arrow_floats, csv_options, table_format
from fastltl.tasks import Task, TaskSet

#: Approximate size in bytes of the blocks that a table is read in.
BLOCK_BYTES = 2**20

#: Parquet files up to this size are read whole. From larger ones pyarrow reads page by page, and
#: reserves the size that a page claims to have, up to 2 GB if the file is damaged.
SMALL_BYTES = 2**23

#: Memory that must be free before pyarrow reads: when it runs out within, pyarrow may wait for ever
#: or abort the process, where NumPy raises MemoryError.
SPARE_BYTES = 2**27

#: Texts that stand for a missing value in a CSV file.
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A"]


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
    encoding: Mapping[str, list[str] | None] | None = None,
    optional_target: bool = False,
) -> TaskStream:
    """Open a file or folder as a stream of tasks, for `fit` or a loop of `partial_fit`.

    The rows of a task must be adjacent. Memory does not grow with the file: it holds the largest
    task (of a folder, the largest file), about 20 megabytes, and 20 bytes for each task read, to
    detect labels that repeat.

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
        The columns, or arrays of one or two dimensions, to learn from; by default all others.
    repeats : {"error", "task"}
        Whether a label that appears again after another task is an error or starts a new task.
    drop : sequence of str
        Columns to leave out.
    encoding : mapping, optional
        `encoding` of another stream, to read the same columns in the same way.
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
        return TaskStream(_Folder(path, task, target, features, optional_target), repeats)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or folder", str(path))
    if not path.is_file():
        raise ValueError(f"path must be a file or a folder of .npz files, got {path}.")
    if task is None:
        raise ValueError(f"task must name a column of {path}, got None.")
    with path.open("rb") as file:
        start = file.read(2**20)
    table = _Parquet if table_format(start, path) == "Parquet" else _CSV
    if encoding is not None:
        features, drop = list(encoding), ()
    return TaskStream(table(path, task, target, features, drop, optional_target), repeats)


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
    def encoding(self) -> dict[str, list[str] | None] | None:
        """The categories of each feature column, None for numbers; None for a folder."""
        return None if isinstance(self._source, _Folder) else dict.fromkeys(self.feature_names)

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
        for array, columns in ((task.X, self.feature_names), targets):
            if not np.isfinite(array).all():
                i, j = np.argwhere(~np.isfinite(array))[0]
                value = "no number" if np.isnan(array[i, j]) else array[i, j]
                raise ValueError(
                    f"task {task.label!r}: column {columns[j]!r} must hold finite numbers, got "
                    f"{value} in row {task.row + i} of {self._source.path}; correct it, or leave "
                    "the column out of features."
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
        place = int(np.searchsorted(self._sorted, digest))
        if digest in self._recent or digest in self._sorted[place : place + 1]:
            return False
        self._recent.add(digest)
        if len(self._recent) > 4096 + len(self._sorted) // 4:
            self._sorted = np.union1d(self._sorted, np.array(list(self._recent), dtype="S16"))
            self._recent = set()
        return True


class _Table(ABC):
    """A table that pyarrow reads."""

    kind: str

    def __init__(
        self,
        path: Path,
        task: str,
        target: str | None,
        features: Sequence[str] | None,
        drop: Sequence[str],
        optional_target: bool,
    ) -> None:
        self.path, self.task = path, task
        _check_memory()
        with arrow_errors(path, self.kind), self._open([]) as (names, _):
            self.target = target if target in names else None
            self.feature_names = choose_features(
                names, path, task, target, features, drop, optional_target
            )
        self.columns = [task, *self.feature_names]
        if self.target is not None:
            self.columns.append(self.target)

    def runs(self, cut: list[bytes] | None = None) -> Iterator[Run]:
        """Read the runs; a last line without newline is added to `cut`, if given."""
        _check_memory()
        with arrow_errors(self.path, self.kind), self._open(self.columns, cut) as (_, batches):
            for batch in batches:
                batch.validate(full=True)  # finds text that is not valid UTF-8
                labels = batch.column(self.task)
                if hasattr(labels, "dictionary_decode"):
                    labels = labels.dictionary_decode()
                labels = labels.dictionary_encode("encode")
                codes = labels.indices.to_numpy(zero_copy_only=False)
                X = [self._numbers(batch.column(name), name)[0] for name in self.feature_names]
                y, missing = np.full(len(codes), np.nan), np.ones(len(codes), dtype=bool)
                if self.target is not None:
                    y, missing = self._numbers(batch.column(self.target), self.target)
                names = labels.dictionary.to_pylist()
                yield from _split_runs(codes, names, np.stack(X, axis=1), y, missing)
                _check_memory()

    @abstractmethod
    def _open(
        self, columns: list[str], cut: list[bytes] | None = None
    ) -> AbstractContextManager[tuple[list[str], Iterable[Any]]]:
        """Open the file; yield the names of all its columns, and record batches of `columns`."""

    @abstractmethod
    def _numbers(self, column: Any, name: str) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Convert a column to floats, NaN where it has no number; also mark missing values."""


def _check_memory() -> None:
    """Raise MemoryError if there is too little memory for pyarrow."""
    try:
        np.empty(SPARE_BYTES, np.uint8)
    except MemoryError as error:
        needed = f"reading needs {SPARE_BYTES // 2**20} MB of free memory"
        raise MemoryError(f"out of memory: {needed}") from error


class _Parquet(_Table):
    kind = "Parquet"

    @contextmanager
    def _open(
        self, columns: list[str], cut: list[bytes] | None = None
    ) -> Iterator[tuple[list[str], Iterable[Any]]]:
        import pyarrow
        from pyarrow import parquet

        source, buffer_size = self.path, 2**20
        if self.path.stat().st_size <= SMALL_BYTES:
            source, buffer_size = pyarrow.BufferReader(self.path.read_bytes()), 0
        n_rows = max(1, BLOCK_BYTES // (8 * max(1, len(columns))))
        # pre_buffer=True would load a whole row group ahead.
        with parquet.ParquetFile(source, pre_buffer=False, buffer_size=buffer_size) as file:
            batches = file.iter_batches(n_rows, columns=columns, use_threads=False)
            yield file.schema_arrow.names, batches

    def _numbers(self, column: Any, name: str) -> tuple[Array, npt.NDArray[np.bool_]]:
        values = arrow_floats(column)
        if values is None:
            wanted = f"column {name!r} of {self.path} must hold numbers"
            raise ValueError(f"{wanted}, got {column.type}: leave it out of features.")
        return values, np.isnan(values)


class _CSV(_Table):
    kind = "CSV"

    @contextmanager
    def _open(
        self, columns: list[str], cut: list[bytes] | None = None
    ) -> Iterator[tuple[list[str], Iterable[Any]]]:
        import pyarrow
        from pyarrow import csv

        with self.path.open("rb") as file:
            start = file.read(2**20)
            parse = csv_options(start)
            header = re.split(rb"[\r\n]", start.lstrip(), maxsplit=1)[0]
            size = max(BLOCK_BYTES, 64 * len(header))
            file.seek(0)
            rows = CSVRows(file, size, parse.delimiter)
            whole = csv.ReadOptions(block_size=len(rows.header) + 1)
            with csv.open_csv(pyarrow.BufferReader(rows.header), whole, parse) as reader:
                names = reader.schema.names
            yield names, self._batches(rows.blocks(cut), parse, names, columns)

    def _batches(
        self, blocks: Iterable[bytes], parse: Any, names: list[str], columns: list[str]
    ) -> Iterator[Any]:
        """Parse blocks of rows one by one."""
        import pyarrow
        from pyarrow import csv

        # Columns are read as text, since pyarrow would infer types from the first block alone.
        types = dict.fromkeys(columns, pyarrow.string())
        convert = csv.ConvertOptions(column_types=types, include_columns=columns)
        n_rows = 0
        for block in blocks:
            one_block: dict[str, Any] = {"use_threads": False, "block_size": len(block) + 1}
            read = csv.ReadOptions(column_names=names, **one_block)
            try:
                with csv.open_csv(pyarrow.BufferReader(block), read, parse, convert) as reader:
                    batches = list(reader)
            except pyarrow.ArrowInvalid as error:
                # pyarrow counts rows from the start of the block.
                found = re.match(r"(.*?Row #)(\d+)(.*)", str(error))
                if found is None:
                    raise
                message = f"{found[1]}{n_rows + int(found[2])}{found[3]}"
                raise pyarrow.ArrowInvalid(message) from error
            yield from batches
            n_rows += sum(map(len, batches))

    def _numbers(self, column: Any, name: str) -> tuple[Array, npt.NDArray[np.bool_]]:
        import pyarrow
        from pyarrow import compute

        text = compute.utf8_trim_whitespace(column)
        try:
            values: Array = text.cast("float64").to_numpy(zero_copy_only=False)
        except pyarrow.ArrowInvalid:
            values = np.array([_parse_float(cell) for cell in text.to_pylist()])
        missing = np.isnan(values)
        if missing.any():
            missing = np.asarray(compute.is_in(text, value_set=pyarrow.array(MISSING)))
        return values, missing


def _parse_float(text: str) -> float:
    """Return the number that a text spells, or NaN."""
    try:
        return np.nan if "_" in text else float(text)  # float() accepts 1_000
    except ValueError:
        return np.nan


class _Folder:
    """A folder of .npz files."""

    def __init__(
        self,
        path: Path,
        task: str | None,
        target: str | None,
        features: Sequence[str] | None,
        optional_target: bool,
    ) -> None:
        self.path, self.task = path, task
        self.files = sorted(file for file in path.glob("*.npz") if file.is_file())
        if not self.files:
            raise ValueError(f"{path} must hold .npz files, got none.")
        arrays = self._read(self.files[0])
        self.target = target if target in arrays else None
        # Without a task array the file names are the labels; "" stands for that array.
        names = [*arrays, ""] if task is None else [*arrays]
        self.features = choose_features(
            names, self.files[0], task or "", target, features, (), optional_target
        )
        self.feature_names = []
        for name in self.features:
            is_matrix = arrays[name].ndim == 2
            indices = range(arrays[name].shape[1]) if is_matrix else [""]
            self.feature_names += [f"{name}{j}" for j in indices]
        if len(set(self.feature_names)) < len(self.feature_names):
            shown = ", ".join(self.feature_names)
            raise ValueError(f"{path} must have distinct feature names, got {shown}.")

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
