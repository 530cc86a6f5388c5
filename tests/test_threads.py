"""BLAS at one thread, bits that do not depend on threads, and the pool of threads."""

import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from naive import ragged_tasks
from threadpoolctl import ThreadpoolController, threadpool_limits

import fastltl as ltl
from fastltl import threads


def blas_threads():
    """Of every BLAS that has threads at all; other packages may bring one that has not."""
    return {
        library["num_threads"]
        for library in ThreadpoolController().info()
        if library["user_api"] == "blas" and library.get("threading_layer") != "disabled"
    }


needs_threads = pytest.mark.skipif(
    os.cpu_count() == 1, reason="one core: BLAS has no threads to hold"
)


@needs_threads
def test_a_hold_lasts_until_the_last_holder_leaves():
    with threadpool_limits(2, user_api="blas"):
        entered, leave = threading.Event(), threading.Event()

        def hold():
            with threads.one_blas_thread():
                entered.set()
                leave.wait(10)

        with threads.one_blas_thread():
            other = threading.Thread(target=hold)
            other.start()
            assert entered.wait(10)
        assert blas_threads() == {1}
        leave.set()
        other.join()
        assert blas_threads() == {2}
        with pytest.raises(KeyError), threads.one_blas_thread():
            raise KeyError
        assert blas_threads() == {2}


@needs_threads
def test_a_forked_child_gets_its_threads_back():
    with threadpool_limits(2, user_api="blas"):
        with threads.one_blas_thread():
            child = os.fork()
            if child == 0:
                with threads.one_blas_thread():
                    held = blas_threads() == {1}
                os._exit(0 if held and blas_threads() == {2} else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert blas_threads() == {2}


@pytest.mark.slow
@pytest.mark.parametrize("geometry", ["entropic", "euclidean"])
@pytest.mark.parametrize(
    ("d", "sizes"), [(50, (20, 60)), (64, (64, 64)), (200, (50, 80)), (30, (300, 300))]
)
def test_bits_do_not_depend_on_the_number_of_threads(geometry, d, sizes):
    tasks = ragged_tasks(0, 6, d, sizes)
    results = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads, user_api="blas"):
            learner = ltl.OnlineLTL(1e-2, geometry=geometry)
            for X, y in tasks:
                learner.partial_fit(X, y)
            model = learner.adapt(*tasks[0])
            results.append(
                (learner.D_, learner.iterate_, model.coef_, learner.transform(tasks[0][0]))
            )
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.slow
def test_learners_in_threads_do_not_disturb_each_other():
    tasks = ragged_tasks(0, 40, 30, (10, 90))
    expected = ltl.OnlineLTL(1e-2).fit(tasks).D_
    results = {}

    def learn(i):
        results[i] = ltl.OnlineLTL(1e-2).fit(pickle.loads(pickle.dumps(tasks))).D_

    workers = [threading.Thread(target=learn, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(results[i], expected) for i in range(4))


def test_pieces_cover_every_item_once_and_in_order():
    for n_items in (1, 2, 7, 100):
        for n_threads in (1, 2, 3):
            pieces = threads.in_pieces(lambda *edges: edges, n_items, n_threads, 1e9)
            assert [i for lo, hi in pieces for i in range(lo, hi)] == list(range(n_items))
            assert len(pieces) == (1 if n_threads == 1 else min(n_items, 4 * n_threads))
    assert threads.in_pieces(lambda lo, hi: (lo, hi), 100, 2, 1.0) == [(0, 100)]  # too little work


@pytest.mark.parametrize("n_threads", [2, 3, 8])
@pytest.mark.parametrize("cost", [1e3, 1e4, 1e5, 1e6])
def test_pieces_of_any_cost_cover_every_item_and_the_first_is_the_longest(n_threads, cost):
    """Helpers begin later than the caller, by what it takes to hand over."""
    for n_items in (1, 2, 3, 30, 100, 1000):
        pieces = threads.in_pieces(lambda *edges: edges, n_items, n_threads, cost)
        assert [i for lo, hi in pieces for i in range(lo, hi)] == list(range(n_items))
        lengths = [hi - lo for lo, hi in pieces]
        assert lengths[0] >= max(lengths) - 1
        assert len(pieces) == 1 or n_items * cost > threads.HAND_OVER


def test_pieces_within_a_piece_do_not_wait_for_each_other():
    def outer(lo, hi):
        return sum(threads.in_pieces(lambda lo, hi: hi - lo, 8, 2, 1e9))

    assert threads.in_pieces(outer, 8, 2, 1e9) == [8] * 8


def test_calls_from_several_threads_at_once():
    found = []

    def call():
        found.extend(sum(threads.in_pieces(lambda lo, hi: hi - lo, 9, 2, 1e9)) for _ in range(50))

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [9] * 300


def test_an_error_in_a_piece_is_raised():
    def fail(lo, hi):
        if lo == which:
            raise KeyError(lo)

    for which in range(8):
        with pytest.raises(KeyError, match=str(which)):
            threads.in_pieces(fail, 8, 2, 1e9)


def test_an_error_stops_the_other_pieces():
    done = []

    def fail_at_once(lo, hi):
        if lo == 0:
            raise KeyError(lo)
        time.sleep(0.01)
        done.append(lo)

    with pytest.raises(KeyError):
        threads.in_pieces(fail_at_once, 8, 2, 1e9)
    assert len(done) <= 2


def test_pieces_are_done_while_the_interpreter_shuts_down():
    """In a thread that goes on when the main one has ended, and no helpers are hired."""
    code = """
import threading, time
from fastltl import threads
def work():
    time.sleep(0.5)
    print(sum(threads.in_pieces(lambda lo, hi: hi - lo, 8, 2, 1e9)))
threading.Thread(target=work).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "8\n"
    assert run.stderr == ""


def test_a_finalizer_finds_no_helpers_and_does_the_work_itself():
    """Threads that start while the interpreter is finalised would be waited for without end."""
    code = """
from fastltl import threads
threads.in_pieces(lambda lo, hi: None, 1, 1, 1.0)
class Last:
    def __del__(self):
        print(sum(threads.in_pieces(lambda lo, hi: hi - lo, 8, 2, 1e9)))
last = Last()
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == "8\n"
    assert run.stderr == ""


def test_threads_that_could_not_be_had_are_asked_for_again(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert sum(threads.in_pieces(lambda lo, hi: hi - lo, 8, 17, 1e9)) == 8
        assert threads._crews[17][1] == []
    assert sum(threads.in_pieces(lambda lo, hi: hi - lo, 8, 17, 1e9)) == 8
    assert len(threads._crews[17][1]) == 16


def test_a_forked_child_has_helpers_of_its_own():
    threads.in_pieces(lambda lo, hi: None, 8, 2, 1e9)
    child = os.fork()
    if child == 0:
        pieces = threads.in_pieces(lambda lo, hi: hi - lo, 8, 2, 1e9)
        os._exit(0 if sum(pieces) == 8 else 1)
    assert os.waitpid(child, 0)[1] == 0
