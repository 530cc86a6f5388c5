"""Run: the state of a learner that takes its tasks one by one, and the lock that guards it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Self


class Run(ABC):
    """The state of one pass over tasks, and the lock that guards it.

    A thread that holds the lock finds the arrays between two tasks, never within one.
    """

    state: Any  #: a named tuple of arrays, which kernels update in place

    def __init__(self, state: Any, settings: tuple[Any, ...], n_features: int) -> None:
        self.state = state
        self.settings = settings  #: values of the parameters that cannot change on the way
        self.n_features = n_features
        self.lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            state = deepcopy(self.state)
        return {**self.__dict__, "state": state, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())

    @property
    @abstractmethod
    def n_tasks(self) -> int:
        """Number of tasks learned from."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """Copy everything that the bits of later steps depend on."""

    @abstractmethod
    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Replace the state by that of a checkpoint, after checking it."""

    @abstractmethod
    def merge(self, ends: Sequence[Self]) -> None:
        """Merge runs that started as copies of this one and learned from different tasks."""
