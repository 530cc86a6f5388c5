"""Read tasks from a table in a CSV or Parquet file."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastltl._columns import choose_features
from fastltl._validation import Array, check_path, reason_of
from fastltl.tasks import TaskSet

#: A column of text with more distinct values is taken for names, not for categories.
MAX_CATEGORIES = 50


def read_tasks(
    path: str | PathLike[str],
    task: str,
    target: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> TaskSet:
    """Read tasks from a CSV or Parquet file.

    Numeric columns become features unchanged. A column of text becomes one indicator column of
    zeros and ones for each of its values, named ``column=value``.

    Parameters
    ----------
    path : str or path
        The file. A CSV file has a header and is separated by commas, semicolons or tabs.
    task, target : str
        Columns with the task label and the target of each row.
    features : sequence of str, optional
        Columns to learn from; by default all the others.
    drop : sequence of str
        Columns to ignore.
    """
    path = check_path(path)
    table = _read_table(path)
    features = choose_features(table.column_names, path, task, target, features, drop)
    if table.num_rows == 0:
        raise ValueError(f"{path} has a header but no rows.")
    for name in (task, target, *features):
        _check_no_missing(table[name], name)
    labels, targets = table[task].to_numpy(zero_copy_only=False), arrow_floats(table[target])
    if targets is None:
        first = table[target].to_numpy(zero_copy_only=False)[0]  # as_py has no dates after 9999
        found = f"{target!r}, which holds {table[target].type} such as {first!r}"
        if labels.dtype.kind in "fiu":
            found += f": task and target may be swapped, since {task!r} holds numbers"
        raise ValueError(f"target must name a column of numbers, got {found}.")
    columns: dict[str, Any] = {task: labels, target: targets}
    for name in features:
        values = arrow_floats(table[name])
        encoded = {name: values} if values is not None else _encode_text(table[name], name)
        if clash := encoded.keys() & columns.keys():
            raise ValueError(f"{min(clash)!r} is both a column and a value of {name!r}: rename it.")
        columns |= encoded
    return TaskSet.from_frame(columns, task, target)


def _read_table(path: Path) -> Any:
    """Read a whole file into a pyarrow table."""
    content = path.read_bytes()  # once: a pipe cannot be read twice
    kind = table_format(content, path)
    with arrow_errors(path, kind):
        import pyarrow
        from pyarrow import csv, parquet

        if kind == "Parquet":
            table = parquet.read_table(pyarrow.BufferReader(content))
            table.validate(full=True)  # finds text that is not valid UTF-8
            return table
        # A block holds the header and some rows, however many columns there are.
        block_size = min(max(2**20, 64 * len(content.partition(b"\n")[0])), 2**30)
        return csv.read_csv(
            pyarrow.BufferReader(content),
            read_options=csv.ReadOptions(block_size=block_size),
            parse_options=csv_options(content),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )


@contextmanager
def arrow_errors(path: Path, kind: str) -> Iterator[None]:
    """Replace the errors of pyarrow by a one-line ValueError that names the file."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("tables need pyarrow: pip install 'fastltl[parquet]'.") from error
    try:
        yield
    except MemoryError:  # which ArrowMemoryError is, too: nothing is wrong with the file
        raise
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = reason_of(error).rstrip(".")
        raise ValueError(f"{path} cannot be read as a {kind} table: {reason}.") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} must have a name in UTF-8 to be opened: rename it.") from error
    except OverflowError as error:
        raise ValueError(
            f"{path} must hold dates and durations that Python has, up to the year 9999, got one "
            f"beyond ({reason_of(error)}): convert them to numbers or text."
        ) from error


def table_format(start: bytes, path: Path) -> str:
    """Return "Parquet" or "CSV", judging by the first bytes of a file."""
    if not start.strip():
        raise ValueError(f"{path} is empty, expected a CSV or Parquet table.")
    for mark, packed in ((b"PK\x03\x04", "an Excel workbook or zip file"), (b"\x1f\x8b", "gzip")):
        if start.startswith(mark):
            raise ValueError(f"{path} must be CSV or Parquet, got {packed}: save it as CSV.")
    return "Parquet" if start.startswith(b"PAR1") else "CSV"


def csv_options(content: bytes) -> Any:
    """Parse CSV by the comma, semicolon or tab, whichever is most frequent in the header."""
    from pyarrow import csv

    header = content[: 2**20].lstrip().splitlines()[0]
    text = codecs.getincrementaldecoder("utf-8")().decode(header)  # it may end within a character
    delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", text).count)
    return csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)


class CSVRows:
    """The header of a CSV file, and its rows in blocks of about `size` bytes.

    pyarrow could find the blocks itself, but it reads ahead in threads, which may deadlock when
    memory runs out.
    """

    def __init__(self, file: BinaryIO, size: int, delimiter: str) -> None:
        self._file, self._size = file, size
        # As in pyarrow, a quote is a mark at the start of a field, and a character elsewhere.
        quoted = rb'"[^"]*+(?:""[^"]*+)*+"'
        row = rb'(?:[^"\r\n]++|(?<=[^\r\n%b])"|%b)*+' % (delimiter.encode(), quoted)
        self._rows = re.compile(rb"(?:%b[\r\n]++)*+" % row)
        self._before_quotes = [*delimiter.encode(), *b'\r\n"']  # a doubled quote stands for one
        start = file.read(size).removeprefix(codecs.BOM_UTF8)
        _, header, self._rest = re.split(rb"\A([\r\n]*+%b)" % row, start, maxsplit=1)
        self.header = header + b"\n"

    def blocks(self, cut: list[bytes] | None) -> Iterator[bytes]:
        """Yield blocks of whole rows; a last row without newline is added to `cut`, if given."""
        from pyarrow import ArrowInvalid

        while True:
            end = self._end_of_rows()
            if end:
                yield self._rest[:end]
                self._rest = self._rest[end:]
            if len(self._rest) > 2 * self._size:
                raise ArrowInvalid(f"a row has over {2 * self._size} bytes: is a quote left open?")
            if not (chunk := self._file.read(self._size)):
                break
            self._rest += chunk
        if self._rest and cut is None:
            yield self._rest
        elif self._rest and cut is not None:
            cut.append(self._rest)

    def _end_of_rows(self) -> int:
        """Return the length of the whole rows in the bytes read."""
        data = np.frombuffer(self._rest, np.uint8)
        quotes = np.flatnonzero(data == ord('"'))
        opening = quotes[::2]
        if not np.isin(data[opening[opening > 0] - 1], self._before_quotes).all():
            # Some quote is a character of a field, so that they do not come in pairs.
            found = self._rows.match(self._rest)
            return found.end() if found else 0
        end = len(data)
        while True:
            end = max(self._rest.rfind(b"\n", 0, end), self._rest.rfind(b"\r", 0, end))
            n_before = int(np.searchsorted(quotes, end))
            if n_before % 2 == 0:
                return end + 1
            end = int(quotes[n_before - 1])


def _check_no_missing(column: Any, name: str) -> None:
    values = column.to_numpy(zero_copy_only=False)
    is_float = values.dtype.kind == "f"  # null has become NaN
    rows = np.flatnonzero(np.isnan(values) if is_float else column.is_null()) + 1
    if rows.size:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if rows.size > 5 else "")
        raise ValueError(
            f"column {name!r} must have no missing values, got {rows.size} in rows {shown} "
            "(row 1 follows the header): fill them in, or drop the rows or the column."
        )


def arrow_floats(column: Any) -> Array | None:
    """Convert a pyarrow column to floats, null to NaN; return None if it holds no numbers."""
    from pyarrow import types

    kind = column.type
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _encode_text(column: Any, name: str) -> dict[str, Array]:
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(kind):
        raise ValueError(f"column {name!r} must hold UTF-8 text, got other bytes.")
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise ValueError(f"column {name!r} must hold numbers or text, got {column.type}: drop it.")
    values = np.array(column.to_pylist(), dtype=str)
    distinct = len(np.unique(values))
    if distinct > MAX_CATEGORIES:
        raise ValueError(
            f"column {name!r} must hold at most {MAX_CATEGORIES} distinct texts to be a category, "
            f"got {distinct}, such as {str(values[0])!r}: drop it."
        )
    return indicators(values, name)


def indicators(values: Iterable[Any], name: str) -> dict[str, Array]:
    """Encode a column of text as one column of zeros and ones for each value, sorted by value."""
    text = np.asarray(values).astype(str)
    return {f"{name}={value}": (text == value).astype(np.float64) for value in np.unique(text)}
