"""Tables in files, CSV or Parquet, and the tasks in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fastltl._columns import choose_features
from fastltl._validation import Array, check_path, reason_of
from fastltl.tasks import TaskSet

#: A column of text with more values than this is a name, not a category.
MOST_CATEGORIES = 50


def read_tasks(
    path: str | PathLike[str],
    task: str,
    target: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> TaskSet:
    """Tasks from a CSV or Parquet file: one column names the task, one is the target.

    Columns of numbers are features as they are; a column of text becomes one of zeros and ones
    for each of its values, named ``column=value``.

    Parameters
    ----------
    path : str or path
        The file; a CSV file has a header and commas, semicolons or tabs.
    task, target : str
        Columns that hold the task of each row and its target.
    features : sequence of str, optional
        Columns to learn from; by default all the others.
    drop : sequence of str
        Columns to leave out.
    """
    path = check_path(path)
    table = _read(path)
    features = choose_features(table.column_names, path, task, target, features, drop)
    if table.num_rows == 0:
        raise ValueError(f"{path} must have rows, got a header only.")
    for name in (task, target, *features):
        _check_complete(table[name], name)
    columns: dict[str, Any] = {
        task: table[task].to_numpy(zero_copy_only=False),
        target: _target(table, task, target),
    }
    for name in features:
        values = _numbers(table[name], name)
        encoded = {name: values} if values is not None else _categories(table[name], name)
        for key in encoded:
            if key in columns:
                raise ValueError(f"column {key!r} must not be named as a value of {name!r} is.")
        columns |= encoded
    return TaskSet.from_frame(columns, task, target)


def _read(path: Path) -> Any:
    """A pyarrow table of a file, which is Parquet if it begins like that and else CSV."""
    pyarrow, csv, parquet = import_arrow()
    content = path.read_bytes()  # once, as a pipe can be read only once
    kind = kind_of_table(content, path)
    try:
        if kind == "Parquet":
            table = parquet.read_table(pyarrow.BufferReader(content))
            table.validate(full=True)  # text may be no UTF-8
            return table
        return csv.read_csv(
            pyarrow.BufferReader(content),
            parse_options=csv.ParseOptions(delimiter=separator(content), newlines_in_values=True),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise unreadable(path, kind, error) from error


def import_arrow() -> tuple[Any, Any, Any]:
    """pyarrow, and its modules for CSV and Parquet."""
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError as error:
        raise ImportError("to read tables, pip install 'fastltl[parquet]'.") from error
    return pyarrow, csv, parquet


def kind_of_table(start: bytes, path: Path) -> str:
    """What a file that starts like this is, Parquet or CSV."""
    if not start.strip():
        raise ValueError(f"{path} is empty; wanted a table.")
    for mark, packed in ((b"PK\x03\x04", "an Excel workbook or zip file"), (b"\x1f\x8b", "gzip")):
        if start.startswith(mark):
            raise ValueError(f"{path} must be CSV or Parquet, got {packed}: save it as CSV.")
    return "Parquet" if start.startswith(b"PAR1") else "CSV"


def unreadable(path: Path, kind: str, error: Exception) -> ValueError:
    """An error that says in a line why a table cannot be read."""
    reason = reason_of(error).rstrip(".")
    return ValueError(f"{path} cannot be read as a {kind} table: {reason}.")


def separator(content: bytes) -> str:
    """What a header has most of, outside of quotes: commas, semicolons or tabs."""
    header = content[: 2**20].lstrip().splitlines()[0].decode()
    return max(",;\t", key=re.sub(r'"[^"]*"', "", header).count)


def _check_complete(column: Any, name: str) -> None:
    """No value is missing; an error says where some are."""
    values = column.to_numpy(zero_copy_only=False)
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        missing = missing | np.isnan(values)
    rows = np.flatnonzero(missing) + 1
    if rows.size:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if rows.size > 5 else "")
        raise ValueError(
            f"column {name!r} must have no missing values, got {rows.size}, in rows {shown} "
            "(the first after the header is row 1); fill them, leave out the rows or the column."
        )


def _target(table: Any, task: str, target: str) -> Array:
    column = table[target]
    values = _numbers(column, target)
    if values is None:
        hint = ""
        if table[task].to_numpy(zero_copy_only=False).dtype.kind in "fiu":
            hint = f": task and target may be swapped, for {task!r} holds numbers"
        raise ValueError(
            f"target must name a column of numbers, got {target!r}, which holds {column.type} such "
            f"as {column[0].as_py()!r}{hint}."
        )
    return values


def _numbers(column: Any, name: str) -> Array | None:
    """A column as floats, or None if it holds something else."""
    from pyarrow import types

    kind = column.type
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values))) + 1
        raise ValueError(
            f"column {name!r} must hold finite numbers, got {values[row - 1]} in row {row}."
        )
    return np.asarray(values)


def _categories(column: Any, name: str) -> dict[str, Array]:
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(kind):
        raise ValueError(f"column {name!r} must hold UTF-8 text, got other bytes.")
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ValueError(
            f"column {name!r} must hold numbers or text to be a feature, got {column.type}: drop "
            "it."
        )
    values = np.array(column.to_pylist(), dtype=str)
    distinct = len(np.unique(values))
    if distinct > MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r} must hold at most {MOST_CATEGORIES} different texts to be a "
            f"category, got {distinct}, such as {str(values[0])!r}: drop it."
        )
    return indicators(values, name)


def indicators(values: Iterable[Any], name: str) -> dict[str, Array]:
    """A column of zeros and ones for each value of a column of text, in alphabetical order."""
    text = np.asarray(values).astype(str)
    return {f"{name}={value}": (text == value).astype(np.float64) for value in np.unique(text)}
