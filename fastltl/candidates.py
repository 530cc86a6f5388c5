"""Candidate values of lam: which there are, and which is best by validation tasks."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fastltl.evaluation import check_aligned, is_error
from fastltl.tasks import TaskSet
from fastltl.validation import Array

#: The candidates of the paper: 30 values of lam, log-spaced on [1e-6, 1e3].
LAMS = np.logspace(-6, 3, 30)
LAMS.flags.writeable = False

Halves = tuple[TaskSet, TaskSet]


def best_candidate(scores: Array, lams: Array, metric: str) -> int:
    """The place of the best score; of equal ones, that of the largest lam."""
    losses = scores if is_error(metric) else -scores
    ties = np.flatnonzero(losses == losses.min())
    return int(ties[np.argmax(lams[ties])])


def warn_of_edge(best_lam: float, lams: Array, stacklevel: int) -> bool:
    """Warn if the best of several lams is the smallest or the largest of them."""
    edge = bool(lams.min() < lams.max() and best_lam in (lams.min(), lams.max()))
    if edge:
        warnings.warn(
            f"the best lam, {best_lam:.3g}, is at the edge of the candidates ({lams.min():.3g} to "
            f"{lams.max():.3g}): a better one may lie beyond it.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return edge


def check_validation(validation: Any) -> Halves:
    """A pair of TaskSets of the same tasks."""
    try:
        train, test = validation
    except (TypeError, ValueError):
        raise ValueError(
            "validation must be a pair (train, test) of TaskSets, as split_samples makes them, "
            f"got {type(validation).__name__}."
        ) from None
    try:
        check_aligned(train, test)
    except (TypeError, ValueError) as error:
        raise type(error)(f"validation: {error}") from error
    return train, test
