"""Threads: one for BLAS, whose own could change the bits or fight ours, and a pool of ours."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads the BLAS that compiled kernels call, so that it is found)
from joblib import cpu_count
from threadpoolctl import OpenBLASController, ThreadpoolController

from fastltl._kernels.linalg import LARGEST_UNTHREADED_SIDE

#: Nanoseconds until another thread has begun with what it is handed.
HAND_OVER = 150_000

#: Nanoseconds below which a piece is not worth handing over, and above which the next one is worth
#: coming back for; and the most pieces for each thread.
SMALLEST_PIECE = 75_000
LONG_PIECE = 500_000
PIECES_PER_THREAD = 4

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


def held_at_fork(locks: Callable[[], Iterable[Any]]) -> None:
    """While the process forks let nobody else hold any of the locks.

    So a child has what they guard whole, and no lock whose holder stayed with the parent.
    """
    mine = threading.local()  # several threads may fork at a time

    def acquire() -> None:
        mine.held = []
        for lock in locks():
            lock.acquire()
            mine.held.append(lock)

    def release() -> None:
        while mine.held:
            mine.held.pop().release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)


_hold = _Hold()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_hold.before_fork,
        after_in_parent=_hold.after_fork_in_parent,
        after_in_child=_hold.after_fork_in_child,
    )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a Ctrl-C wait until what is begun is complete."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # interruptions come to the main thread only, from a handler
        return
    asked: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: asked.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if asked:
            before(*asked[-1])


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


class _Help:
    """Work that a helper may take up until it is called off.

    Futures would do, but take as long as a small piece of work to hand over and to wait for.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._claim, self._end = threading.Lock(), threading.Lock()
        self._end.acquire()

    def give(self) -> None:
        """Do the work, unless it was called off."""
        if self._work is None or not self._claim.acquire(blocking=False):
            return
        work, self._work = self._work, None
        try:
            work()
        finally:
            self._end.release()

    @property
    def is_over(self) -> bool:
        return not self._end.locked()

    def call_off(self) -> bool:
        """Keep nothing of the work, unless it has begun; whether it was called off in time."""
        in_time = self._claim.acquire(blocking=False)
        if in_time:
            self._work = None
            self._end.release()
        return in_time

    def finish(self) -> None:
        """Call the work off, or wait for its end if it has begun."""
        if not self.call_off():
            with self._end:
                pass


#: Helpers of those who share their work between so many threads, and where they look for it.
_crews: dict[int, tuple[SimpleQueue[_Help], list[threading.Thread]]] = {}
_hiring = threading.Lock()
held_at_fork(lambda: [_hiring])
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crews.clear)  # the helpers stayed with the parent


def _give_help(queue: SimpleQueue[_Help]) -> None:
    """What a helper does, as long as the process lives."""
    _, own = _libraries()
    if own:
        _set_threads(own, [1] * len(own))
    while True:
        queue.get().give()


def _helped(work: Callable[[], None], n_helpers: int, n_threads: int) -> list[_Help]:
    """Work that helpers may take up. None are hired while the interpreter shuts down."""
    with _hiring:
        queue, helpers = _crews.setdefault(n_threads, (SimpleQueue(), []))
        with suppress(RuntimeError):  # there may be no more threads
            while len(helpers) < n_threads - 1 and threading.main_thread().is_alive():
                helper = threading.Thread(target=_give_help, args=(queue,), daemon=True)
                helper.start()
                helpers.append(helper)
    helps = [_Help(work) for _ in range(min(n_helpers, len(helpers)))]
    for help in helps:
        queue.put(help)
    return helps


@cache
def _n_cores() -> int:
    """How many cores this process may use, by affinity and quota."""
    return int(cpu_count())


class Watchers:
    """Helpers that stay for work which comes in turns, one on each core but the caller's.

    They keep their cores busy while they watch for a turn, so more of them would be in the way.
    `failures` are what they have failed with.
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._process = os.getpid()
        self._helps: list[_Help] = []
        self.failures: list[BaseException] = []

    def call(self, work: Callable[[], Any]) -> None:
        """Have the work done by those that are not at it already.

        It is a function that returns when it is not worth watching for a turn any longer.
        """

        def attempt() -> None:
            try:
                work()
            except BaseException as error:
                self.failures.append(error)

        if self._process != os.getpid():
            self._process, self._helps = os.getpid(), []  # the helpers stayed with the parent
        self._helps = [help for help in self._helps if not help.is_over]
        n_missing = min(self._n_threads, _n_cores()) - 1 - len(self._helps)
        if n_missing > 0:
            self._helps += _helped(attempt, n_missing, self._n_threads)

    def call_off(self) -> None:
        """Ask those that have not begun not to."""
        for help in self._helps:
            help.call_off()

    def finish(self) -> None:
        """Wait until those that have begun return."""
        for help in self._helps:
            help.finish()


def are_worth_sharing(n_items: int, n_threads: int, cost: float) -> bool:
    """Whether `in_pieces` would have threads share items that take so many nanoseconds each."""
    return len(_edges(n_items, n_threads, cost)) > 2


def _edges(n_items: int, n_threads: int, cost: float) -> list[int]:
    """Where pieces of work begin and end.

    There is one for each thread or, if they are long, there are more, so that one that is held up
    does not hold up the rest. The first is longer, since who takes it need not wait for it.
    """
    share = (n_items * cost - HAND_OVER) / n_threads
    if min(n_items, n_threads) == 1 or share < SMALLEST_PIECE:
        return [0, n_items]
    pieces_per_thread = min(PIECES_PER_THREAD, max(1, int(share / LONG_PIECE)))
    n_pieces = min(n_items, n_threads * pieces_per_thread)
    ahead = HAND_OVER / cost
    length = (n_items - ahead) / n_pieces
    return sorted({0, *(round(ahead + i * length) for i in range(1, n_pieces + 1))})


def in_pieces(
    kernel: Callable[..., Result], n_items: int, n_threads: int, cost: float, *arguments: Any
) -> list[Result]:
    """[kernel(*arguments, lo, hi)] for ranges lo to hi that cover n_items items, in threads.

    The kernel works without the GIL, and on each item by itself, so that the number of pieces
    does not change the bits. `cost` is a rough number of nanoseconds that an item takes. The
    calling thread works too, and waits for no piece that nobody has begun: so calls may be
    nested, and come from any number of threads.
    """
    edges = _edges(n_items, n_threads, cost)
    n_pieces = len(edges) - 1
    if n_pieces == 1:
        with one_blas_thread():
            return [kernel(*arguments, 0, n_items)]
    results: list[Any] = [None] * n_pieces
    turns, failures = count(), list[BaseException]()

    def take_turns() -> None:
        try:
            for i in turns:
                if i >= n_pieces or failures:
                    return
                results[i] = kernel(*arguments, edges[i], edges[i + 1])
        except BaseException as error:
            failures.append(error)

    with one_blas_thread():
        helps = _helped(take_turns, min(n_threads, n_pieces) - 1, n_threads)
        try:
            take_turns()
        finally:
            for help in helps:
                help.finish()
    if failures:
        raise failures[0]
    return results
