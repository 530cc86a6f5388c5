"""Threads: a pool that shares work among cores, and one thread for BLAS.

The threads of BLAS could change the last bits of a result, and would compete with ours.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads the BLAS that compiled kernels call, so that it is found)
from threadpoolctl import OpenBLASController, ThreadpoolController

from fastltl._kernels.linalg import LARGEST_UNTHREADED_SIDE

#: Floating-point operations that take about as long as handing work to another thread.
SMALLEST_SHARED_WORK = 5e6

Result = TypeVar("Result")


@cache
def _blas() -> ThreadpoolController:
    """Return the loaded BLAS libraries; finding them takes milliseconds."""
    return ThreadpoolController().select(user_api="blas")


class _OneBlasThread:
    """A limit on the threads of BLAS that overlapping users share.

    The number of threads belongs to the process. If each user set and restored it on its own, the
    first to leave would restore it while another still computes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_users == 0:
                # threadpoolctl ignores all threads but the one that set a limit first.
                OpenBLASController.clear_controlling_thread(force=True)
                self._limit = _blas().limit(limits=1)
            self._n_users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._n_users -= 1
            if self._n_users == 0:
                OpenBLASController.clear_controlling_thread(force=True)
                self._limit.restore_original_limits()
                OpenBLASController.clear_controlling_thread(force=True)


#: A context in which BLAS uses one thread. It may be nested, and overlap between threads.
one_blas_thread = _OneBlasThread()


def call_kernel(kernel: Callable[..., Result], side: int, *arguments: Any) -> Result:
    """Call a kernel, with one BLAS thread if its longest side is large enough for several.

    Setting the limit takes longer than a small task, for which BLAS uses one thread anyway.
    """
    if side <= LARGEST_UNTHREADED_SIDE:
        return kernel(*arguments)
    with one_blas_thread:
        return kernel(*arguments)


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "fastltl", initializer=_limit_openmp_blas)


def _limit_openmp_blas() -> None:
    """Use one BLAS thread in this worker: a BLAS built on OpenMP has a number for each thread."""
    for library in _blas().lib_controllers:
        if getattr(library, "threading_layer", "") == "openmp":
            library.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads


def run_in_threads(
    kernel: Callable[..., Result], n_items: int, n_threads: int, work: float, *arguments: Any
) -> list[Result]:
    """Return [kernel(*arguments, lo, hi)] for ranges lo to hi that cover n_items items.

    The kernel releases the GIL and treats each item by itself, so that the number of threads does
    not change the bits. `work` is a rough number of floating-point operations for all items. The
    calling thread works too, and waits for no range that another thread has not begun.
    """
    n_ranges = min(n_items, n_threads)
    if n_ranges < 2 or work < SMALLEST_SHARED_WORK:
        with one_blas_thread:
            return [kernel(*arguments, 0, n_items)]
    edges = [n_items * i // n_ranges for i in range(n_ranges + 1)]
    waiting, results = deque(pairwise(edges)), dict[int, Result]()

    def take() -> tuple[int, int] | None:
        try:
            return waiting.popleft()
        except IndexError:
            return None

    def compute(future: Future[None]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            while (taken := take()) is not None:
                results[taken[0]] = kernel(*arguments, *taken)
            future.set_result(None)
        except BaseException as error:
            waiting.clear()
            future.set_exception(error)

    own, *others = [Future[None]() for _ in range(n_ranges)]
    with one_blas_thread:
        try:
            with suppress(RuntimeError):  # no more threads, or the interpreter shuts down
                for future in others:
                    _pool(n_threads - 1).submit(compute, future)
            compute(own)
        finally:
            waiting.clear()
            with delayed_interrupt():  # no thread may go on writing after this call
                begun = [future for future in others if not future.cancel()]
                wait(begun)
    for future in (own, *begun):
        future.result()
    return [results[lo] for lo in edges[:-1]]


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Hold a Ctrl-C back until the block is complete."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread is interrupted, and only through a handler
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            before(*received[-1])
