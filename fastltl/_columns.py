"""Take task labels, features and targets from the columns of a table.

The rules of this module hold for data frames, for files and for streams:

- Numbers are features as they are, and booleans are 0 and 1.
- Text becomes one indicator column for each of its values, named ``column=value``.
- Text that spells numbers in more than half of its rows, or of its distinct values, is taken for
  numbers with words in between, and is an error. In a CSV file text that spells numbers only, or
  true and false only, is numbers. Elsewhere a column of both numbers and text is an error.
- Dates, times, durations and other types are errors, and so are missing values.
- Columns that look like row numbers or identifiers are left out, with a warning, unless they are
  named as features.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from itertools import filterfalse
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from fastltl._text import DATE
from fastltl._validation import Array, as_objects, check_finite, is_missing

#: A column of text with more distinct values is taken for names, not for categories.
MAX_CATEGORIES = 50

#: Share of distinct values from which texts are identifiers, and numbers no task labels.
NEARLY_ALL = 0.9

#: Below so many rows nothing is concluded from values that are all distinct, or consecutive.
MIN_ROWS = 20

#: Names of columns that are left out if they hold integers or texts that are all distinct.
IDENTIFIERS = re.compile(
    r"(?i:|unnamed: ?\d+|index|idx|level_0|row([ _.]?(names?|num|numbers?|nr|no))?"
    r"|(.*[ _.-]|row)?(ids?|identifier|uuid|guid|nr))|.*[a-z](ID|Id|NR|Nr)"
)

#: Types of Python that are dates, times and durations.
TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)

#: What to do about a column that cannot be used.
DROP = "or leave the column out with drop (command line: --drop)"

#: The columns that features come from: None for numbers, and else the categories of a text.
Encoding = dict[str, list[str] | None]


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


def split_indicators(
    features: Sequence[str] | None, names: Sequence[Any]
) -> tuple[list[str] | None, Encoding]:
    """Replace features named ``column=value`` by their columns; return the categories of those.

    So the names of a learner's features say how to encode other tables. A column of that very name
    is a feature itself.
    """
    if features is None:
        return None, {}
    known = frozenset(name for name in names if isinstance(name, str))
    columns: list[str] = []
    encoding: dict[str, list[str]] = {}
    for feature in check_names(features, "features"):
        is_column = not isinstance(feature, str) or feature in known
        parts = [] if is_column else feature.split("=")
        splits = ["=".join(parts[:k]) for k in range(1, len(parts))]
        column = next((part for part in splits if part in known), None)
        if column is None:
            columns.append(feature)
        else:
            if column not in encoding:
                columns.append(column)
            elif columns[-1] != column:
                raise ValueError(
                    f"features must name the values of {column!r} one after another, got "
                    f"{feature!r} after {columns[-1]!r}: move it up."
                )
            encoding.setdefault(column, []).append(feature[len(column) + 1 :])
    return columns, dict(encoding)


def warn_of_new_categories(
    columns: Mapping[str, Column], encoding: Encoding, where: str | Path, first_row: int = 1
) -> set[str]:
    """Warn of text that is not among the categories of its column; return these columns."""
    found = set()
    for name, texts in encoding.items():
        new = [] if texts is None else [text not in texts for text in columns[name].texts]
        if any(new):
            found.add(name)
            code = new.index(True)
            row = first_row + int(np.argmax(columns[name].codes == code))
            warnings.warn(
                f"column {name!r} has the new category {columns[name].texts[code]!r} in row {row} "
                f"of {where}: its indicators are all 0 there, and for any other new one.",
                stacklevel=3,
            )
    return found


def _some_of(names: list[Any]) -> str:
    """List the first 20 names."""
    more = f", and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(str, names[:20])) + more


def _close_name(name: Any, names: list[Any]) -> str:
    """Suggest the name, among the first thousand, that is spelled most alike."""
    close = difflib.get_close_matches(str(name), map(str, names[:1000]), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


class Column(NamedTuple):
    """The values of a column: numbers, or else texts.

    `numbers` are NaN where a value is missing. The text of row i is ``texts[codes[i]]``, and the
    code is -1 where it is missing.
    """

    numbers: Array | None
    codes: npt.NDArray[np.int64] = np.empty(0, np.int64)
    texts: Sequence[str] = ()
    is_category: bool = False  #: declared so: its texts may spell numbers
    is_csv: bool = False

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Mark the missing values."""
        return self.codes < 0 if self.numbers is None else np.isnan(self.numbers)

    def spelled(self) -> Array:
        """Return the number that each text spells, or NaN; true and false are 1 and 0 in CSV."""
        numbers = np.array([_parse_float(text) for text in self.texts])
        if self.is_csv and np.isin(numbers[~np.isnan(numbers)], (0, 1)).all():
            flags = {"true": 1.0, "false": 0.0}
            for i in np.flatnonzero(np.isnan(numbers)).tolist():
                numbers[i] = flags.get(self.texts[i].strip().lower(), np.nan)
        return numbers

    def as_numbers(self) -> Array:
        """Return the numbers, NaN where a value is missing or spells none."""
        if self.numbers is not None:
            return self.numbers
        return np.append(self.spelled(), np.nan)[self.codes]


def _parse_float(text: str) -> float:
    """Return the number that a text spells, or NaN."""
    try:
        return np.nan if "_" in text else float(text)  # float() accepts 1_000
    except ValueError:
        return np.nan


def refuse_type(name: str, found: str, is_time: bool) -> NoReturn:
    """Raise an error about a column that holds neither numbers nor text."""
    what = f"dates, times or durations ({found})" if is_time else found
    advice = "convert them to numbers, such as days since a date" if is_time else "convert it"
    raise ValueError(f"column {name!r} must hold numbers or text, got {what}: {advice}, {DROP}.")


def check_whole(column: Column, name: str) -> None:
    """Check that no value of a column is missing, and that numbers are finite."""
    if (missing := column.missing).any():
        raise ValueError(
            f"column {name!r} must have no missing values, got {missing.sum()} in "
            f"{rows_of(missing)}: fill them in, remove the rows, {DROP}."
        )
    if column.numbers is not None:
        check_finite(column.numbers, f"column {name!r}")


def rows_of(which: npt.NDArray[np.bool_]) -> str:
    """List the first rows that are marked, counted from 1."""
    rows = np.flatnonzero(which) + 1
    shown = ", ".join(map(str, rows[:5])) + (", ..." if rows.size > 5 else "")
    return f"row{'s' if rows.size > 1 else ''} {shown} (row 1 follows the header)"


def choose_encoding(
    columns: Mapping[str, Column], known: Encoding, n_tasks: int, are_named: bool, is_whole: bool
) -> Encoding:
    """Choose how to make features of columns, but those whose encoding is known.

    Identifiers are left out unless the columns `are_named` as features. If the columns are not the
    whole table, words in a numeric column of a CSV file are no error yet.
    """
    encoding: Encoding = {}
    for name, column in columns.items():
        categories = known[name] if name in known else _categories(column, name, is_whole)
        if not are_named and (what := _identifier_kind(column, name, categories, n_tasks)):
            warnings.warn(
                f"column {name!r} is left out, since it looks like {what}; to keep it, name it in "
                "features (command line: --features).",
                stacklevel=3,
            )
            continue
        if is_whole:
            check_whole(column, name)
        if categories is not None and len(categories) > MAX_CATEGORIES:
            raise ValueError(
                f"column {name!r} must hold at most {MAX_CATEGORIES} distinct texts to be a "
                f"category, got {len(categories)}, such as {categories[0]!r}: merge some, {DROP}."
            )
        encoding[name] = categories
    if not encoding:
        shown = ", ".join(map(repr, columns))
        raise ValueError(f"features must name a column, got only identifiers: {shown}.")
    return encoding


def _categories(column: Column, name: str, is_whole: bool) -> list[str] | None:
    """Return the categories of a text, or None if a column holds numbers."""
    if column.numbers is not None or not column.texts:
        return None
    if not column.is_category:
        is_word = np.isnan(column.spelled())
        row_is_word = is_word[column.codes[column.codes >= 0]]
        if min(is_word.mean(), row_is_word.mean()) < 0.5:  # those words are mistakes
            if not column.is_csv or (is_word.any() and is_whole):
                _refuse_words(column, name, is_word)
            return None
        some = column.texts[:100]
        if 2 * sum(DATE.fullmatch(text) is not None for text in some) > len(some):
            refuse_type(name, f"text such as {some[0]!r}", is_time=True)
    return sorted(column.texts)


def _refuse_words(column: Column, name: str, is_word: npt.NDArray[np.bool_]) -> NoReturn:
    """Raise an error about words among numbers, or about numbers that are stored as text."""
    found = f"text such as {column.texts[0]!r}"
    advice = "convert it to numbers, as astype(float) does, or to categories"
    if is_word.any():
        words = [repr(text) for text, is_one in zip(column.texts, is_word, strict=True) if is_one]
        shown = ", ".join(words[:5]) + (", ..." if len(words) > 5 else "")
        found = f"{shown} in {rows_of(np.append(is_word, False)[column.codes])}"
        advice = "replace each word by a number, or each number by a word, remove the rows"
    raise ValueError(f"column {name!r} must hold numbers, got {found}: {advice}, {DROP}.")


def _identifier_kind(column: Column, name: str, categories: list[str] | None, n_tasks: int) -> str:
    """Return "row numbers" or "identifiers" if a column looks like them, and else ""."""
    is_named = IDENTIFIERS.fullmatch(str(name)) is not None
    if categories is not None:
        needed = NEARLY_ALL if len(column.codes) >= MIN_ROWS else 1.0 if is_named else np.inf
        return "identifiers" if len(categories) >= needed * len(column.codes) else ""
    numbers = column.as_numbers()
    if len(numbers) < 2 or not (numbers == np.floor(numbers)).all():
        return ""
    if n_tasks > 1 and len(numbers) >= MIN_ROWS and (np.diff(numbers) == 1).all():
        return "row numbers"  # within a single task they may be the time
    return "identifiers" if is_named and len(np.unique(numbers)) == len(numbers) else ""


def feature_names(encoding: Encoding) -> list[str]:
    """Return the names of the features; check that they are distinct."""
    names = [
        name
        for column, texts in encoding.items()
        for name in ([str(column)] if texts is None else [f"{column}={text}" for text in texts])
    ]
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        found = f"{twice[0]!r} as a column and as a value of another"
        raise ValueError(f"features must have distinct names, got {found}: rename the column.")
    return names


def feature_matrix(columns: Mapping[str, Column], encoding: Encoding) -> Array:
    """Encode columns: NaN where a value is missing, zeros where a category is not known."""
    blocks = []
    for name, categories in encoding.items():
        column = columns[name]
        if categories is None:
            if column.texts and not column.is_csv:
                _refuse_words(column, name, np.zeros(len(column.texts), bool))
            blocks.append(column.as_numbers()[:, None])
            continue
        if column.numbers is not None:
            wanted = f"text such as {categories[0]!r}"
            raise ValueError(f"column {name!r} must hold {wanted}, got numbers.")
        known = {text: j for j, text in enumerate(categories)}
        places = np.array([*(known.get(text, -1) for text in column.texts), -1])
        ones = np.eye(len(categories) + 1)[:, :-1]  # and a row of zeros
        block = ones[places[column.codes]]
        block[column.missing] = np.nan
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


def target_numbers(
    column: Column, target: str, task: str, labels: Iterable[Any], is_whole: bool
) -> Array:
    """Return the targets, which are NaN where they are missing or words."""
    is_word = np.isnan(column.spelled())
    if column.texts and (column.is_category or is_word.all()):
        found = f"{target!r}, which holds text such as {column.texts[0]!r}"
        if re.fullmatch(r"\s*[+-]?\d+,\d+\s*", column.texts[0]):
            found += ": write numbers with a decimal point"
        elif _label_numbers(labels) is not None:
            found += f": task and target may be swapped, since {task!r} holds numbers"
        raise ValueError(f"target must name a column of numbers, got {found}.")
    if column.texts and (not column.is_csv or (is_whole and is_word.any())):
        _refuse_words(column, target, is_word)
    if is_whole:
        check_whole(column, target)
    return column.as_numbers()


def _label_numbers(labels: Iterable[Any]) -> Array | None:
    """Return the numbers that the labels are, or spell; None if some label is not one."""
    numbers = [_parse_float(label) if isinstance(label, str) else label for label in labels]
    are_numbers = all(isinstance(x, int | float) and abs(x) < 2**53 for x in numbers)
    return np.array(numbers, dtype=np.float64) if are_numbers else None


def check_roles(
    task: str, codes: npt.NDArray[Any], labels: Sequence[Any], target: str, y: Array
) -> None:
    """Raise an error if task and target seem to be swapped, or the target belongs to the task.

    ``labels[codes[i]]`` is the task of row i. Targets may be missing, as NaN.
    """
    n_rows, n_labels, numbers = len(codes), len(labels), _label_numbers(labels)
    if numbers is not None and n_rows >= MIN_ROWS:
        is_measured = n_labels > MIN_ROWS and (numbers != np.floor(numbers)).any()
        if is_measured or n_labels > NEARLY_ALL * n_rows:
            looks = "looks like a measurement" if is_measured else "has hardly two rows of a label"
            raise ValueError(
                f"task must name a column of labels, got {task!r}, which {looks}: {n_labels} "
                f"distinct numbers in {n_rows} rows. Task and target ({target!r}) may be swapped. "
                f"If they are not, turn the labels into text, such as 'a{labels[0]}'."
            )
    codes, y = codes[~np.isnan(y)], y[~np.isnan(y)]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    if len(y) - len(starts) < MIN_ROWS // 2:
        return
    low, high = (ufunc.reduceat(y[order], starts) for ufunc in (np.minimum, np.maximum))
    if (low == high).all() and low.min() < high.max():
        raise ValueError(
            f"target must name a column that varies within tasks, got {target!r}, which has one "
            f"value in each task of {task!r}: it belongs to the task, or is another code for it."
        )
    n_values = len(np.unique(y))
    are_scattered = np.count_nonzero(np.diff(codes)) >= n_labels
    in_runs = np.count_nonzero(np.diff(y)) < n_values and 2 * n_values <= len(y)
    if n_values > MIN_ROWS and in_runs and are_scattered and (y == np.floor(y)).all():
        raise ValueError(
            f"target must name a column to predict, got {target!r}, which looks like a task "
            f"column: each of its {n_values} values fills adjacent rows, and those of {task!r} do "
            "not. Task and target may be swapped. If they are not, sort the rows by task."
        )
