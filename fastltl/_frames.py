"""Take columns from data frames of any library, and make data frames of pandas."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._columns import (
    DROP,
    TIMES,
    Column,
    check_roles,
    choose_encoding,
    choose_features,
    feature_matrix,
    feature_names,
    group_codes,
    refuse_type,
    rows_of,
    split_indicators,
    target_numbers,
    warn_of_new_categories,
)
from fastltl._validation import Array, as_floats, as_objects, is_missing


def encoded_rows(
    df: Any, task: str, target: str, features: Sequence[str] | None, drop: Sequence[str]
) -> tuple[Array, Array, npt.NDArray[np.int64], list[Hashable], tuple[str, ...]]:
    """Encode the rows of a data frame by the rules of `_columns`.

    Returns X, y, the number of each row's task, the labels of the tasks and the feature names.
    """
    df, names = named_columns(df)
    features, known = split_indicators(features, names)
    chosen = choose_features(names, "df", task, target, features, drop)
    targets = frame_column(df, target)
    n_rows = len(targets.missing)
    codes, labels = group_codes(plain_column(df, task), n_rows, f"column {task!r}")
    y = target_numbers(targets, target, task, labels, is_whole=True)
    check_roles(task, codes, labels, target, y)
    columns = {name: frame_column(df, name, n_rows) for name in chosen}
    encoding = choose_encoding(columns, known, len(labels), features is not None, is_whole=True)
    warn_of_new_categories(columns, known, "df")
    return feature_matrix(columns, encoding), y, codes, labels, tuple(feature_names(encoding))


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
        if (values.dtype.kind, values.ndim) == ("U", 1) and isinstance(column, list | tuple):
            values = as_objects(column)  # NumPy has turned numbers among strings into strings
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
    are_text = {issubclass(kind, str) for kind in kinds}
    if not is_category and are_text == {True, False}:
        is_text = np.array([isinstance(cell, str) for cell in cells.tolist()])
        odd = np.array(present)[is_text == (2 * is_text.sum() <= len(cells))]
        raise ValueError(
            f"column {name!r} must hold either numbers or text, got both, such as "
            f"{values[odd[0]]!r} in {rows_of(np.isin(np.arange(len(values)), odd))}: convert them, "
            f"remove the rows, {DROP}."
        )
    if not is_category and True not in are_text:
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


def names_of(X: Any) -> tuple[str, ...] | None:
    """Return the column names of a data frame, or None if X has no names."""
    names = list(X.columns) if hasattr(X, "columns") else []
    return tuple(names) if names and all(isinstance(name, str) for name in names) else None
