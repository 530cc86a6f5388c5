"""Names of tasks: anything that can be told apart, and the numbers that stand for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


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
