"""Take columns from data frames of any library, and make data frames of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._columns import TIMES, Column, refuse_type
from fastltl._validation import as_floats, is_missing


def named_columns(df: Any) -> tuple[Any, list[Any]]:
    """Return a table with its column names; an interchange protocol becomes a pyarrow table."""
    if hasattr(df, "__dataframe__") and not hasattr(df, "__getitem__"):
        try:
            from pyarrow.interchange import from_dataframe
        except ImportError as error:
            raise TypeError(
                f"df must support df[name], got {type(df).__name__}; to convert it, install "
                "pyarrow: pip install 'fastltl[parquet]'."
            ) from error
        df = from_dataframe(df)
    for attribute in ("column_names", "columns", "keys"):  # pyarrow's `columns` are the data
        if hasattr(df, attribute):
            names = getattr(df, attribute)
            return df, list(names() if callable(names) else names)
    raise TypeError(f"df must be a data frame with named columns, got {type(df).__name__}.")


def frame_column(df: Any, name: str, length: int | None = None) -> Column:
    """Return a column of a data frame or mapping."""
    column = plain_column(df, name)
    if isinstance(column, Column):
        return column
    is_category = hasattr(getattr(df[name], "dtype", None), "categories")
    is_category |= hasattr(getattr(df[name], "type", None), "index_type")
    try:
        is_masked = isinstance(column, np.ma.MaskedArray)
        values = as_floats(column, f"column {name!r}") if is_masked else np.asarray(column)
    except ValueError:  # ragged
        values = as_floats(column, f"column {name!r}")
    if values.ndim != 1 or (length is not None and len(values) != length):
        wanted = "a value in each row" if length is None else f"{length} rows"
        got = len(values) if values.ndim == 1 else f"an array of shape {values.shape}"
        raise ValueError(f"column {name!r} must have {wanted}, got {got}.")
    if values.dtype.kind in "mM":
        refuse_type(name, str(values.dtype), is_time=True)
    if values.dtype.kind not in "OSTU" and not is_category:
        return Column(as_floats(values, f"column {name!r}"))
    present = [i for i, cell in enumerate(values.tolist()) if not is_missing(cell)]
    cells = values[present]
    kinds = {type(cell) for cell in cells.tolist()}
    for kind in kinds:
        if issubclass(kind, (*TIMES, bytes)):
            refuse_type(name, kind.__name__, is_time=kind is not bytes)
    if not is_category and not any(issubclass(kind, str) for kind in kinds):
        numbers = np.full(len(values), np.nan)
        numbers[present] = as_floats(cells, f"column {name!r}")
        return Column(numbers)
    codes, texts = np.full(len(values), -1), dict[str, int]()
    codes[present] = [texts.setdefault(str(cell), len(texts)) for cell in cells]
    return Column(None, codes, list(texts), is_category)


def plain_column(df: Any, name: str) -> Any:
    """Return ``df[name]``; a dictionary column of pyarrow, which NumPy reads wrongly, as a list."""
    column = df[name]
    return column.to_pylist() if hasattr(getattr(column, "type", None), "index_type") else column


def import_pandas() -> Any:
    """Import pandas, which is needed for data frames only."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "data frames need pandas, which is not installed: pip install 'fastltl[pandas]'."
        ) from error
    return pandas


def label_column(labels: npt.NDArray[np.object_]) -> Any:
    """Return labels as a column of a data frame: numbers of one type as such, else objects."""
    pandas = import_pandas()
    column = pandas.Series(labels, dtype=object)
    kind = pandas.api.types.infer_dtype(column, skipna=False)
    return column.infer_objects() if kind in ("integer", "floating", "boolean") else column
