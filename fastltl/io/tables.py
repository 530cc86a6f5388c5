"""Read the columns of a CSV or Parquet file, and tasks from them."""

from __future__ import annotations

import codecs
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fastltl._columns import Column, check_whole, choose_features, refuse_type, split_indicators
from fastltl._validation import Array, as_objects, check_path, reason_of
from fastltl.tasks import TaskSet

#: Approximate size in bytes of the blocks that a table is read in.
BLOCK_BYTES = 2**20

#: Blocks that are looked at when a stream is opened: files up to 8 megabytes are seen whole.
SAMPLE_BLOCKS = 8

#: Parquet files up to this size are read whole. From larger ones pyarrow reads page by page, and
#: reserves the size that a page claims to have, up to 2 GB if the file is damaged.
SMALL_BYTES = 2**23

#: Memory that must be free before pyarrow reads: when it runs out within, pyarrow may wait for ever
#: or abort the process, where NumPy raises MemoryError.
SPARE_BYTES = 2**27

#: Texts that stand for a missing value in a CSV file.
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "#N/A"]


def read_tasks(
    path: str | PathLike[str],
    task: str,
    target: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> TaskSet:
    """Read tasks from a CSV or Parquet file, by the rules of `TaskSet.from_frame`.

    In a CSV file cells that spell numbers are numbers, true and false are 1 and 0, and task labels
    are text. Empty cells, and cells such as NA, are missing values, which are an error.

    Parameters
    ----------
    path : str or path
        The file. A CSV file has a header and is separated by commas, semicolons or tabs.
    task, target : str
        Columns with the task label and the target of each row.
    features : sequence of str, optional
        Columns to learn from; by default all others but row numbers and identifiers.
    drop : sequence of str
        Columns to ignore.
    """
    path = check_path(path)
    table = open_table(path, path.read_bytes())  # once: a pipe cannot be read twice
    columns_of, _ = split_indicators(features, table.names)
    chosen = choose_features(table.names, path, task, target, columns_of, drop)
    with arrow_errors(path, table.kind):
        whole = table.read([task, target, *chosen])
        if whole is None:
            raise ValueError(f"{path} has a header but no rows.")
        codes, labels = arrow_labels(whole[task])
        columns = {name: table.column(whole[name], name) for name in (target, *chosen)}
    unnamed = [i for i, label in enumerate(labels) if label is None or label == ""]
    check_whole(Column(None, np.where(np.isin(codes, unnamed), -1, codes)), task)
    return TaskSet.from_frame({task: as_objects(labels)[codes], **columns}, task, target, features)


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
        if "UTF8" in reason:
            reason += ": save the file as UTF-8"
        raise ValueError(f"{path} cannot be read as a {kind} table: {reason}.") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} must have a name in UTF-8 to be opened: rename it.") from error
    except OverflowError as error:
        raise ValueError(
            f"{path} must hold dates and durations that Python has, up to the year 9999, got one "
            f"beyond ({reason_of(error)}): convert them to numbers or text."
        ) from error


def open_table(path: Path, content: bytes | None = None) -> Table:
    """Open a CSV or Parquet file, or one whose content was read already."""
    start = content
    if start is None:
        with path.open("rb") as file:
            start = file.read(2**20)
    if not start.strip():
        raise ValueError(f"{path} is empty, expected a CSV or Parquet table.")
    for mark, packed in ((b"PK\x03\x04", "an Excel workbook or zip file"), (b"\x1f\x8b", "gzip")):
        if start.startswith(mark):
            raise ValueError(f"{path} must be CSV or Parquet, got {packed}: save it as CSV.")
    return Parquet(path, content) if start.startswith(b"PAR1") else CSV(path, content)


class Table(ABC):
    """A file that pyarrow reads."""

    kind: str

    def __init__(self, path: Path, content: bytes | None) -> None:
        self.path, self.content = path, content
        check_memory()
        with arrow_errors(path, self.kind), self._open([], (), None) as (names, _):
            self.names = names

    def batches(
        self, columns: list[str], numbers: Sequence[str] = (), cut: list[bytes] | None = None
    ) -> Iterator[Any]:
        """Read record batches.

        Columns of CSV are text, but those in `numbers` are floats where their cells allow it. A
        last line of CSV without newline is added to `cut`, if given.
        """
        check_memory()
        with self._open(columns, numbers, cut) as (_, batches):
            for batch in batches:
                batch.validate(full=True)  # finds text that is not valid UTF-8
                yield batch
                check_memory()

    def read(self, columns: list[str], n_blocks: int | None = None) -> Any:
        """Read the first blocks, or all, into a pyarrow table; return None if there are no rows.

        Of the first blocks, those that cannot be parsed are left out, unless it is the first.
        """
        import pyarrow

        found: list[Any] = []
        try:
            for batch in islice(self.batches(columns), n_blocks):
                found.append(batch)  # noqa: PERF402
        except pyarrow.ArrowInvalid:
            if n_blocks is None or not found:
                raise
        return pyarrow.Table.from_batches(found) if sum(map(len, found)) else None

    @abstractmethod
    def column(self, column: Any, name: str, as_text: bool = False) -> Column:
        """Convert a pyarrow column; in CSV to text only, or else to numbers if it spells them."""

    @abstractmethod
    def _open(
        self, columns: list[str], numbers: Sequence[str], cut: list[bytes] | None
    ) -> AbstractContextManager[tuple[list[str], Iterable[Any]]]:
        """Open the file; yield the names of all its columns, and record batches of `columns`."""


def check_memory() -> None:
    """Raise MemoryError if there is too little memory for pyarrow."""
    try:
        np.empty(SPARE_BYTES, np.uint8)
    except MemoryError as error:
        needed = f"reading needs {SPARE_BYTES // 2**20} MB of free memory"
        raise MemoryError(f"out of memory: {needed}") from error


class Parquet(Table):
    kind = "Parquet"

    @contextmanager
    def _open(
        self, columns: list[str], numbers: Sequence[str], cut: list[bytes] | None
    ) -> Iterator[tuple[list[str], Iterable[Any]]]:
        import pyarrow
        from pyarrow import parquet

        source, buffer_size = self.path, 2**20
        content = self.content
        if content is None and self.path.stat().st_size <= SMALL_BYTES:
            content = self.path.read_bytes()
        if content is not None:
            source, buffer_size = pyarrow.BufferReader(content), 0
        n_rows = max(1, BLOCK_BYTES // (8 * max(1, len(columns))))
        # pre_buffer=True would load a whole row group ahead.
        with parquet.ParquetFile(source, pre_buffer=False, buffer_size=buffer_size) as file:
            batches = file.iter_batches(n_rows, columns=columns, use_threads=False)
            yield file.schema_arrow.names, batches

    def column(self, column: Any, name: str, as_text: bool = False) -> Column:
        from pyarrow import types

        is_category = types.is_dictionary(column.type)
        if is_category:
            column = column.cast(column.type.value_type)  # not all its values may be in use
        kind = column.type
        if types.is_temporal(kind):
            refuse_type(name, str(kind), is_time=True)
        if not is_category and (values := arrow_floats(column)) is not None:
            return Column(values)
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        if not (is_text or is_category or types.is_null(kind)):
            refuse_type(name, str(kind), is_time=False)
        codes, texts = _distinct(column.cast("large_string"))
        return Column(None, codes, texts.to_pylist(), is_category)


class CSV(Table):
    kind = "CSV"

    @contextmanager
    def _open(
        self, columns: list[str], numbers: Sequence[str], cut: list[bytes] | None
    ) -> Iterator[tuple[list[str], Iterable[Any]]]:
        import pyarrow
        from pyarrow import csv

        with self.path.open("rb") if self.content is None else io.BytesIO(self.content) as file:
            start = file.read(2**20)
            parse = _csv_options(start)
            header = re.split(rb"[\r\n]", start.lstrip(), maxsplit=1)[0]
            size = max(BLOCK_BYTES, 64 * len(header))
            file.seek(0)
            rows = CSVRows(file, size, parse.delimiter)
            whole = csv.ReadOptions(block_size=len(rows.header) + 1)
            with csv.open_csv(pyarrow.BufferReader(rows.header), whole, parse) as reader:
                names = reader.schema.names
            # Types are given, since pyarrow would infer them from each block alone.
            types = dict.fromkeys(columns, pyarrow.string())
            types |= dict.fromkeys(numbers, pyarrow.float64())
            yield names, self._batches(rows.blocks(cut), parse, names, types)

    def _batches(
        self, blocks: Iterable[bytes], parse: Any, names: list[str], types: dict[str, Any]
    ) -> Iterator[Any]:
        """Parse blocks of rows one by one."""
        import pyarrow
        from pyarrow import csv

        def parsed(block: bytes) -> list[Any]:
            read = csv.ReadOptions(column_names=names, use_threads=False, block_size=len(block) + 1)
            convert = csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=MISSING
            )
            with csv.open_csv(pyarrow.BufferReader(block), read, parse, convert) as reader:
                return list(reader)

        n_rows = 0
        for block in blocks:
            try:
                try:
                    batches = parsed(block)
                except pyarrow.ArrowInvalid:  # a cell is no number; others may follow
                    types = dict.fromkeys(types, pyarrow.string())
                    batches = parsed(block)
            except pyarrow.ArrowInvalid as error:
                # pyarrow counts rows from the start of the block.
                found = re.match(r"(.*?Row #)(\d+)(.*)", str(error))
                if found is None:
                    raise
                message = f"{found[1]}{n_rows + int(found[2])}{found[3]}"
                raise pyarrow.ArrowInvalid(message) from error
            yield from batches
            n_rows += sum(map(len, batches))

    def column(self, column: Any, name: str, as_text: bool = False) -> Column:
        import pyarrow
        from pyarrow import compute, types

        if types.is_floating(column.type):
            return Column(arrow_floats(column))
        trimmed = compute.utf8_trim_whitespace(column)
        is_missing = compute.is_in(trimmed, value_set=pyarrow.array(MISSING))
        if not as_text:
            try:
                numbers = compute.if_else(is_missing, None, trimmed).cast("float64")
                return Column(arrow_floats(numbers))
            except pyarrow.ArrowInvalid:
                pass  # some cell is no number
        codes, texts = _distinct(compute.if_else(is_missing, None, column))
        return Column(None, codes, texts.to_pylist(), is_csv=True)


def _csv_options(content: bytes) -> Any:
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


def _distinct(column: Any, nulls: str = "mask") -> tuple[npt.NDArray[np.int64], Any]:
    """Return the distinct values of a column in order of appearance, and the index of each row's.

    The index of a null is -1, or that of None with ``nulls="encode"``.
    """
    encoded = column.dictionary_encode(nulls)
    chunks = encoded.unify_dictionaries().chunks if hasattr(encoded, "chunks") else [encoded]
    codes = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(codes).astype(np.int64), chunks[0].dictionary


def arrow_labels(column: Any) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Return the index of each row's task label, and the labels; null is None."""
    if hasattr(column.type, "index_type"):
        column = column.cast(column.type.value_type)
    codes, labels = _distinct(column, "encode")
    return codes, labels.to_pylist()


def arrow_floats(column: Any) -> Array | None:
    """Convert a pyarrow column to floats, null to NaN; return None if it holds no numbers."""
    from pyarrow import types

    kind = column.type
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return None
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
