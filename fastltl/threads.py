"""BLAS at one thread, wherever its own threads could change the bits or fight ours."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads the BLAS that compiled kernels call, so that it is found)
from threadpoolctl import OpenBLASController, ThreadpoolController

#: OpenBLAS, the library of NumPy's and SciPy's wheels, starts threads for a product from 64^3
#: multiplications on.
LARGEST_UNTHREADED_SIDE = 64

Result = TypeVar("Result")


@cache
def _libraries() -> tuple[list[Any], list[Any]]:
    """BLAS libraries with one number of threads for the process, and with one for each thread."""
    blas = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in blas if getattr(library, "threading_layer", "") == "openmp"]
    return [library for library in blas if library not in own], own


def _set_threads(libraries: list[Any], numbers: list[int]) -> list[int]:
    """Set each library's number of threads, and return what it was."""
    before = [library.num_threads for library in libraries]
    # threadpoolctl lets the first thread that sets a number keep that right, and ignores others.
    OpenBLASController.clear_controlling_thread(force=True)
    for library, number in zip(libraries, numbers, strict=True):
        library.set_num_threads(number)
    OpenBLASController.clear_controlling_thread(force=True)
    return before


class _Hold:
    """One limit shared by all who hold it, for libraries that count threads for the process.

    If each holder set and restored the number on its own, the first to leave would give the
    threads back while another still computes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before: list[int] = []

    def enter(self) -> None:
        with self._lock:
            if self._holders == 0:
                shared, _ = _libraries()
                self._before = _set_threads(shared, [1] * len(shared))
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders = max(0, self._holders - 1)  # a child may leave what its parent entered
            if self._holders == 0:
                _set_threads(_libraries()[0], self._before)

    def before_fork(self) -> None:
        """Let nobody be halfway in or out while the process forks."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The holders' threads are gone: give back what they held."""
        self._lock.release()
        if self._holders:
            self._holders = 0
            _set_threads(_libraries()[0], self._before)


_hold = _Hold()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold.before_fork,
        after_in_parent=_hold.after_fork_in_parent,
        after_in_child=_hold.after_fork_in_child,
    )


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread. Holds may be nested and may overlap between threads."""
    _, own = _libraries()
    _hold.enter()
    before = _set_threads(own, [1] * len(own)) if own else []
    try:
        yield
    finally:
        if own:
            _set_threads(own, before)
        _hold.leave()


def may_thread(n: int, d: int) -> bool:
    """Whether an n x d task is large enough for BLAS to compute it in threads."""
    return n > LARGEST_UNTHREADED_SIDE or d > LARGEST_UNTHREADED_SIDE


def steadily(kernel: Callable[..., Result], n: int, d: int, *arguments: Any) -> Result:
    """kernel(*arguments) for an n x d task, with the same bits whatever threads BLAS has.

    A hold takes tens of microseconds, more than a small task does, so small ones go without.
    """
    if not may_thread(n, d):
        return kernel(*arguments)
    with one_blas_thread():
        return kernel(*arguments)
