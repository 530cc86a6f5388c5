"""Take task labels, features and targets from the columns of a table."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._validation import Array, as_floats, check_finite, text_or_dates


def as_objects(labels: Sequence[Hashable]) -> npt.NDArray[np.object_]:
    """Return the labels as a 1-D object array, even if they are sequences."""
    array = np.empty(len(labels), dtype=object)
    for i, label in enumerate(labels):
        array[i] = label
    return array


def group_codes(
    groups: Any, n_samples: int, name: str
) -> tuple[npt.NDArray[np.int64], list[Hashable]]:
    """Number the groups in order of first appearance; return (code of each row, groups)."""
    # NumPy would turn a list of numbers and strings into strings.
    values = as_objects(groups) if isinstance(groups, list | tuple) else np.asarray(groups)
    if np.ma.is_masked(groups):
        raise ValueError(f"{name} must name a task for every row, got masked entries.")
    if values.shape != (n_samples,):
        wanted = f"one entry for each of the {n_samples} rows"
        raise ValueError(f"{name} must have {wanted}, got shape {values.shape}.")
    numbers: dict[Hashable, int] = {}
    try:
        codes = [numbers.setdefault(group, len(numbers)) for group in values.tolist()]
    except TypeError as error:
        raise TypeError(f"{name} must hold numbers, strings or the like ({error}).") from error
    for group in numbers:
        if is_missing(group):
            row = codes.index(numbers[group])
            raise ValueError(f"{name} must name a task for every row, got {group!r} at row {row}.")
    return np.array(codes, dtype=np.int64), list(numbers)


def group_positions(
    groups: Any, n_samples: int, labels: Iterable[Hashable]
) -> tuple[npt.NDArray[np.int64], list[Hashable]]:
    """Find the group of each row among distinct labels.

    Returns the position of each row's label, -1 if it is unknown, and the unknown labels.
    """
    codes, asked = group_codes(groups, n_samples, "groups")
    positions = {label: i for i, label in enumerate(labels)}
    found = np.array([positions.get(label, -1) for label in asked], dtype=np.int64)
    return found[codes], [label for label in asked if label not in positions]


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or NA; the last three do not equal themselves."""
    try:
        return value is None or not bool(value == value)
    except (TypeError, ValueError):
        return True


def named_columns(df: Any) -> tuple[Any, list[Any]]:
    """Return a data frame, pyarrow table or mapping with its column names.

    A data frame that has only the interchange protocol is converted to a pyarrow table.
    """
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


def check_names(names: Any, argument: str) -> list[str]:
    """Return `names` as a list; refuse a single string."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        got = f"the string {names!r}" if isinstance(names, str) else type(names).__name__
        raise ValueError(f"{argument} must be a sequence of names, got {got}.")
    return list(names)


def choose_features(
    names: list[Any],
    where: str | Path,
    task: str,
    target: str | None,
    features: Sequence[str] | None,
    drop: Sequence[str] = (),
    optional_target: bool = False,
) -> list[str]:
    """Return the feature columns; check that all named columns exist and are distinct."""
    drop = check_names(drop, "drop")
    if features is None:
        left_out = [name for name in (task, target, *drop) if isinstance(name, Hashable)]
        features = list(filterfalse(frozenset(left_out).__contains__, names))
    features = check_names(features, "features")
    chosen = [("task", task), ("target", target), *(("features", name) for name in features)]
    chosen += [("drop", name) for name in drop]
    counts = Counter(names)
    for argument, name in chosen:
        count = counts[name] if isinstance(name, Hashable) else 0
        if count > 1:
            raise ValueError(f"{argument} {name!r} names several columns of {where}: rename one.")
        if count == 0 and not (optional_target and argument == "target"):
            found = f"{name!r}{_close_name(name, names)}"
            raise ValueError(
                f"{argument} must name a column of {where} ({_some_of(names)}), got {found}"
            )
    twice = [name for name, n in Counter(name for _, name in chosen).items() if n > 1]
    if twice:
        what = "task, target, features and drop" if drop else "task, target and features"
        raise ValueError(f"{what} must differ, got {twice[0]!r} twice.")
    if not features:
        raise ValueError(
            f"features must name a column of {where} besides task and target, got none."
        )
    return features


def _some_of(names: list[Any]) -> str:
    """List the first 20 names."""
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(str, names[:20])) + more


def _close_name(name: Any, names: list[Any]) -> str:
    """Suggest the name, among the first thousand, that is spelled most alike."""
    close = difflib.get_close_matches(str(name), map(str, names[:1000]), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def numeric_column(
    df: Any, name: str, length: int | None = None, swapped_with: str | None = None
) -> Array:
    """Return a column as finite floats.

    For a target, `swapped_with` is the task column, which may be the numeric one of the two.
    """
    column = df[name]
    if not isinstance(column, np.ma.MaskedArray):
        try:
            column = np.asarray(column)
        except ValueError:  # ragged
            column = as_floats(column, f"column {name!r}")
    if text_or_dates(column):
        what, advice = _describe_non_numeric(column)
        if swapped_with is None:
            advice += ", or leave it out of features"
        elif np.asarray(df[swapped_with]).dtype.kind in "fiu":
            advice = f"task and target may be swapped, since {swapped_with!r} holds numbers"
        raise ValueError(f"column {name!r} must be numeric, got {what}: {advice}.")
    column = as_floats(column, f"column {name!r}")
    if column.ndim != 1 or (length is not None and len(column) != length):
        wanted = "a number in each row" if length is None else f"{length} rows"
        got = len(column) if column.ndim == 1 else f"an array of shape {column.shape}"
        raise ValueError(f"column {name!r} must have {wanted}, got {got}.")
    check_finite(column, f"column {name!r}")
    return column


def _describe_non_numeric(column: npt.NDArray[Any]) -> tuple[str, str]:
    """Describe the contents of a non-numeric column, and how to convert it to numbers."""
    if column.dtype.kind in "mM" and column.size:
        kind = "durations" if column.dtype.kind == "m" else "dates"
        return f"{column.dtype}, {kind} such as {column.flat[0]}", "convert them to numbers"
    texts = [str(value) for value in column.flat if isinstance(value, str)]
    if not texts:
        return text_or_dates(column), "convert it to numbers"
    try:
        np.array(texts).astype(np.float64)
    except ValueError:
        return f"text such as {texts[0]!r}", "encode it"
    return f"text such as {texts[0]!r}", "convert it with astype(float)"
