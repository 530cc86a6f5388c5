"""BLAS at one thread, wherever its own threads could change the bits or fight ours."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads the BLAS that compiled kernels call, so that it is found)
from threadpoolctl import ThreadpoolController

#: OpenBLAS, the library of NumPy's and SciPy's wheels, starts threads for a product from 64^3
#: multiplications on.
LARGEST_UNTHREADED_SIDE = 64

Result = TypeVar("Result")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


class _Hold:
    """One limit shared by all who hold it, since BLAS counts its threads for the whole process.

    If each holder set and restored the number on its own, the first to leave would give the
    threads back while another still computes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._limit = _controller().limit(limits=1, user_api="blas")
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._limit.restore_original_limits()

    def forget_parent(self) -> None:
        """In a forked child the holders' threads are gone, and so is whoever had the lock."""
        self._lock = threading.Lock()
        if self._holders:
            self._limit.restore_original_limits()
        self._holders = 0


_hold = _Hold()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hold.forget_parent)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread. Holds may be nested and may overlap between threads."""
    _hold.enter()
    try:
        yield
    finally:
        _hold.leave()


def steadily(kernel: Callable[..., Result], n: int, d: int, *arguments: Any) -> Result:
    """kernel(*arguments) for an n x d task, with the same bits whatever threads BLAS has.

    A hold takes tens of microseconds, more than a small task does, so small ones go without.
    """
    if n <= LARGEST_UNTHREADED_SIDE and d <= LARGEST_UNTHREADED_SIDE:
        return kernel(*arguments)
    with one_blas_thread():
        return kernel(*arguments)
