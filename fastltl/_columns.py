"""Columns of tables: labels of tasks, and features and targets as numbers."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._validation import Array, as_floats, check_finite, text_or_dates


def as_objects(labels: Sequence[Hashable]) -> npt.NDArray[np.object_]:
    """A 1-D object array, even of labels that are sequences themselves."""
    array = np.empty(len(labels), dtype=object)
    for i, label in enumerate(labels):
        array[i] = label
    return array


def group_codes(
    groups: Any, n_samples: int, name: str
) -> tuple[npt.NDArray[np.int64], list[Hashable]]:
    """Number the groups in order of first appearance: (number of each row, the groups)."""
    # NumPy would make strings of all the entries of a list with both numbers and strings.
    values = as_objects(groups) if isinstance(groups, list | tuple) else np.asarray(groups)
    if np.ma.is_masked(groups):
        raise ValueError(f"{name} must name a task for every row, got masked entries.")
    if values.shape != (n_samples,):
        raise ValueError(
            f"{name} must have one entry for each of the {n_samples} rows, "
            f"got shape {values.shape}."
        )
    numbers: dict[Hashable, int] = {}
    try:
        codes = [numbers.setdefault(group, len(numbers)) for group in values.tolist()]
    except TypeError as error:
        raise TypeError(f"{name} must hold numbers, strings or the like ({error}).") from error
    for group in numbers:
        if is_missing(group):
            raise ValueError(
                f"{name} must name a task for every row, got {group!r} at row "
                f"{codes.index(numbers[group])}."
            )
    return np.array(codes, dtype=np.int64), list(numbers)


def is_missing(value: Any) -> bool:
    """Whether it is None, or a NaN, NaT or NA, none of which says that it equals itself."""
    try:
        return value is None or not bool(value == value)
    except (TypeError, ValueError):
        return True


def with_columns_by_name(df: Any) -> Any:
    """The data frame, or a pyarrow table of one that has the interchange protocol only."""
    if hasattr(df, "__getitem__") or not hasattr(df, "__dataframe__"):
        return df
    try:
        from pyarrow.interchange import from_dataframe
    except ImportError as error:
        raise TypeError(
            "df must have columns that can be taken by name, or pyarrow must be installed "
            f"(pip install 'fastltl[parquet]'), got {type(df).__name__} without it."
        ) from error
    return from_dataframe(df)


def column_names(df: Any) -> list[Any]:
    """Names of the columns of a table of any library."""
    if hasattr(df, "column_names"):  # pyarrow, whose `columns` are the data
        names = df.column_names
    elif hasattr(df, "columns"):
        names = df.columns
    elif hasattr(df, "keys"):
        names = df.keys()
    else:
        raise TypeError(f"df must be a data frame with named columns, got {type(df).__name__}.")
    return list(names)


def check_names(names: Any, argument: str) -> list[str]:
    """A list of the names of columns."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        got = f"the string {names!r}" if isinstance(names, str) else type(names).__name__
        raise ValueError(f"{argument} must be a sequence of names, got {got}.")
    return list(names)


def choose_features(
    names: list[Any],
    where: str | Path,
    task: str,
    target: str,
    features: Sequence[str] | None,
    drop: Sequence[str] = (),
) -> list[str]:
    """The columns of a table to learn from; all that arguments name must be there, once."""
    drop = check_names(drop, "drop")
    if features is None:
        features = [name for name in names if name not in (task, target, *drop)]
    features = check_names(features, "features")
    chosen = [("task", task), ("target", target), *(("features", name) for name in features)]
    chosen += [("drop", name) for name in drop]
    for argument, name in chosen:
        _check_column(names, argument, name, where)
    used = [name for _, name in chosen]
    if len(set(used)) < len(used):
        twice = next(name for name in used if used.count(name) > 1)
        what = "task, target, features and drop" if drop else "task, target and features"
        raise ValueError(f"{what} must differ, got {twice!r} twice.")
    if not features:
        raise ValueError(
            f"features must name a column of {where} besides task and target, got none."
        )
    return features


def _check_column(names: list[Any], argument: str, name: str, where: str | Path) -> None:
    if names.count(name) == 1:
        return
    if name in names:
        raise ValueError(
            f"{argument} must name one column of {where}, got {name!r}, which several are called."
        )
    texts = [str(one) for one in names]
    close = difflib.get_close_matches(str(name), texts, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    shown = ", ".join(texts[:20]) + (f", and {len(texts) - 20} more" if len(texts) > 20 else "")
    raise ValueError(f"{argument} must name a column of {where} ({shown}), got {name!r}{hint}")


def numeric_column(
    df: Any, name: str, length: int | None = None, swapped_with: str | None = None
) -> Array:
    """A column of finite numbers; an error says what else it holds.

    What a target may have been swapped with is the column of tasks.
    """
    column = df[name]
    if not isinstance(column, np.ma.MaskedArray):
        try:
            column = np.asarray(column)
        except ValueError:  # it is ragged
            column = as_floats(column, f"column {name!r}")
    if text_or_dates(column):
        what, advice = _what_it_holds(column)
        if swapped_with is None:
            advice += ", or leave it out of features"
        elif np.asarray(df[swapped_with]).dtype.kind in "fiu":
            advice = f"task and target may be swapped, for {swapped_with!r} holds numbers"
        raise ValueError(f"column {name!r} must be numeric, got {what}: {advice}.")
    column = as_floats(column, f"column {name!r}")
    if column.ndim != 1 or (length is not None and len(column) != length):
        wanted = "a number in each row" if length is None else f"{length} rows"
        got = len(column) if column.ndim == 1 else f"an array of shape {column.shape}"
        raise ValueError(f"column {name!r} must have {wanted}, got {got}.")
    check_finite(column, f"column {name!r}")
    return column


def _what_it_holds(column: npt.NDArray[Any]) -> tuple[str, str]:
    """What a column holds that is not numbers, and how to make numbers of it."""
    if column.dtype.kind in "mM" and column.size:
        kind = "durations" if column.dtype.kind == "m" else "dates"
        return f"{column.dtype}, {kind} such as {column.flat[0]}", "make numbers of them"
    texts = [str(value) for value in column.flat if isinstance(value, str)]
    if not texts:
        return text_or_dates(column), "make numbers of it"
    try:
        np.array(texts).astype(np.float64)
    except ValueError:
        return f"text such as {texts[0]!r}", "encode it"
    return f"text such as {texts[0]!r}", "make numbers of it with astype(float)"
