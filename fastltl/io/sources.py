"""Read the rows of tables, and of folders of .npz files, in batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._columns import (
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
from fastltl._validation import Array, is_missing, read_errors
from fastltl.io.checkpoints import read_npy_header
from fastltl.io.tables import SAMPLE_BLOCKS, SMALL_BYTES, arrow_errors, arrow_labels, open_table
from fastltl.tasks import BLOCK_NUMBERS


class Batch(NamedTuple):
    """Rows of a table with their numbers in it; the task of row i is ``labels[codes[i]]``."""

    codes: npt.NDArray[np.int64]
    labels: Sequence[Hashable]
    X: Array
    y: Array
    missing: npt.NDArray[np.bool_]  #: rows without a target
    rows: npt.NDArray[np.int64]


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


def _sort_batches(batches: list[Batch], last: Hashable) -> Iterator[Batch]:
    """Sort the rows of batches by task, in order of appearance, but the task `last` at the end."""
    numbers: dict[Hashable, int] = {}
    codes = [
        np.array([numbers.setdefault(label, len(numbers)) for label in batch.labels])[batch.codes]
        for batch in batches
    ]
    ranks = np.arange(len(numbers))
    if last in numbers:
        ranks[numbers[last]] = len(numbers)
    joined = np.concatenate(codes)
    order = np.argsort(ranks[joined], kind="stable")
    _, _, *columns = zip(*batches, strict=True)
    arrays = [joined, *map(np.concatenate, columns)]
    size = max(map(len, codes))
    for lo in range(0, len(order), size):
        part = order[lo : lo + size]
        first, *others = (array[part] for array in arrays)
        yield Batch(first, list(numbers), *others)


def repeat_error(label: Hashable, row: int, path: Path) -> ValueError:
    """Return the error about a task whose rows are not adjacent; it begins again in a row."""
    return ValueError(
        f"the rows of task {label!r} must be adjacent, got the label again in row {row} of {path}: "
        "sort the rows by task, or start a new task there with repeats='task' (command line: "
        "--allow-repeats)."
    )


def _first_repeat(codes: npt.NDArray[np.int64]) -> int | None:
    """Return the first row whose task has rows before it that are not adjacent."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    _, first = np.unique(codes[starts], return_index=True)
    repeats = np.delete(starts, first)
    return int(repeats[0]) if repeats.size else None


class Table:
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
        repeats: str,
    ) -> None:
        self.path, self.task, self._repeats = path, task, repeats
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
            encoding = self._choose_encoding(chosen, known, features is not None)
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

    def _choose_encoding(self, features: list[str], known: Encoding, are_named: bool) -> Encoding:
        """Choose the encoding of the features by the first blocks; check task and target.

        Tasks whose rows are not adjacent in these blocks are an error, unless the file is small.
        """
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
        # An error in the midst of a training would leave a checkpoint that the sorted file, which
        # begins with other tasks, does not fit.
        row = None if self._repeats == "task" or self._is_small() else _first_repeat(codes)
        if row is not None and not is_missing(label := labels[codes[row]]) and label != "":
            raise repeat_error(label, row + 1, self.path)
        return choose_encoding(columns, known, len(labels), are_named, is_whole=False)

    @property
    def _targets(self) -> list[str]:
        """The column of targets, if there is one."""
        return [] if self.target is None else [self.target]

    def batches(self, cut: list[bytes] | None, is_sorted: bool) -> Iterator[Batch]:
        """Read the rows in batches; a last line without newline is added to `cut`, if given.

        If `is_sorted`, the rows of a task follow each other, as far as the file is small.
        """
        if not (is_sorted and self._is_scattered()):
            yield from self._read_batches(cut)
            return
        batches = list(self._read_batches(cut))
        final = batches[-1]
        # The task before a half written line, which may go on in it, comes last.
        yield from _sort_batches(batches, final.labels[final.codes[-1]] if cut else None)

    def _is_small(self) -> bool:
        """Return whether the file is so small that its rows may be sorted."""
        return self.path.stat().st_size <= SMALL_BYTES

    def _check_labels(self, codes: Any, labels: Sequence[Any], first_row: int) -> None:
        """Check that each row names its task.

        Rows of one batch are checked together, so that no task ends where a label is missing.
        """
        missing = np.array([is_missing(label) or label == "" for label in labels], bool)[codes]
        if missing.any():
            row = first_row + int(np.argmax(missing))
            raise ValueError(
                f"every row of {self.path} must name its task, got no label in row {row}: fill it "
                "in, or remove the row."
            )

    def _is_scattered(self) -> bool:
        """Return whether a small file has tasks whose rows are not adjacent."""
        if not self._is_small():
            return False
        with arrow_errors(self.path, self._table.kind):
            table = self._table.read([self.task], SAMPLE_BLOCKS)
            if table is None:
                return False
            codes, _ = arrow_labels(table[self.task])
        return _first_repeat(codes) is not None

    def _read_batches(self, cut: list[bytes] | None) -> Iterator[Batch]:
        """Read the rows in the order of the file."""
        encoding, n_rows = self.encoding or {}, 0
        numbers = [*self._targets, *(name for name, texts in encoding.items() if texts is None)]
        names = [self.task, *self._targets, *encoding]
        with arrow_errors(self.path, self._table.kind):
            for batch in self._table.batches(names, numbers, cut):
                codes, labels = arrow_labels(batch.column(self.task))
                self._check_labels(codes, labels, n_rows + 1)
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
                rows = np.arange(n_rows + 1, n_rows + 1 + len(y))
                yield Batch(codes, labels, X, y, target.missing, rows)
                n_rows += len(y)


class Folder:
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
        # By name, since Windows sorts paths without regard to case.
        self.files = sorted(filter(Path.is_file, path.glob("*.npz")), key=attrgetter("name"))
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

    def batches(self, cut: list[bytes] | None, is_sorted: bool) -> Iterator[Batch]:
        """Read the rows in batches, none of which holds rows of two files."""
        n_rows = 0
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
            # A single matrix would keep its Fortran order, for which kernels are not compiled.
            X = np.ascontiguousarray(np.column_stack(columns))
            n_features = len(self.feature_names)
            if X.shape[1] != n_features:
                wanted = f"the {n_features} features of {self.files[0].name}"
                raise ValueError(f"{file} must hold {wanted}, got {X.shape[1]}.")
            names = np.full(len(y), file.stem)
            if self.task is not None:
                names = self._array(file, arrays, self.task)
            if names.shape != y.shape:
                wanted = f"array {self.task!r} must hold {len(y)} labels"
                raise ValueError(f"{file}: {wanted}, got shape {names.shape}.")
            labels, codes = np.unique(names, return_inverse=True)
            texts, rows = labels.tolist(), np.arange(n_rows + 1, n_rows + 1 + len(y))
            size = max(1, BLOCK_NUMBERS // (n_features + 1))
            for lo in range(0, len(y), size):
                part = slice(lo, lo + size)
                missing = np.isnan(y[part])
                yield Batch(codes[part], texts, X[part], y[part], missing, rows[part])
            n_rows += len(y)

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
