"""BLAS limited to one thread, work shared among threads, and bits that do not depend on either."""

import os
import pickle
import signal
import threading
import time
import warnings

import numpy as np
import pytest
from naive import ragged_tasks
from sklearn.base import clone
from threadpoolctl import OpenBLASController, ThreadpoolController, threadpool_limits

import fastltl as ltl
from fastltl import _threads
from fastltl._threads import call_kernel, delayed_interrupt, one_blas_thread, run_in_threads

#: Work that is always shared.
MUCH = 1e9


def blas_threads():
    """Return the numbers of threads of every BLAS that has threads; other packages may bring one.

    A BLAS without threads is left out.
    """
    return {
        library["num_threads"]
        for library in ThreadpoolController().info()
        if library["user_api"] == "blas" and library.get("threading_layer") != "disabled"
    }


needs_cores = pytest.mark.skipif(
    os.cpu_count() == 1 or not blas_threads(),
    reason="BLAS has one thread anyway, or is one whose threads cannot be counted",
)


@pytest.fixture
def two_blas_threads():
    """Set BLAS to two threads, and let any thread change their number, as in a new process."""
    with threadpool_limits(2, user_api="blas"):
        OpenBLASController.clear_controlling_thread(force=True)
        yield


def exit_status_of_child(function):
    """Return the exit status of a forked child: 0 if the function returns True there."""
    if not hasattr(os, "fork"):
        pytest.skip("needs a fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            status = 0 if function() else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@needs_cores
def test_blas_has_one_thread_until_the_last_user_leaves(two_blas_threads):
    entered, leave = threading.Event(), threading.Event()

    def use():
        with one_blas_thread:
            entered.set()
            leave.wait()

    with one_blas_thread:
        other = threading.Thread(target=use)
        other.start()
        entered.wait()
        assert blas_threads() == {1}
    assert blas_threads() == {1}  # the first to enter has left, the other has not
    leave.set()
    other.join()
    assert blas_threads() == {2}


@needs_cores
def test_nested_limits_end_with_the_outermost(two_blas_threads):
    with one_blas_thread:
        with one_blas_thread, one_blas_thread:
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}


@needs_cores
def test_the_limit_ends_when_the_block_raises(two_blas_threads):
    with pytest.raises(KeyError), one_blas_thread:
        raise KeyError
    assert blas_threads() == {2}
    assert one_blas_thread._n_users == 0


@needs_cores
def test_many_threads_enter_and_leave_the_limit_in_any_order(two_blas_threads):
    random, counts = np.random.default_rng(0), []

    def use(pauses):
        for pause in pauses:
            with one_blas_thread:
                time.sleep(pause)
                counts.append(blas_threads())

    pauses = random.uniform(0, 2e-3, size=(6, 20))
    users = [threading.Thread(target=use, args=(row,)) for row in pauses]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert counts == [{1}] * 120
    assert blas_threads() == {2}


@needs_cores
def test_the_limit_holds_in_another_thread_than_that_of_a_limit_around_it():
    found = []

    def use():
        with one_blas_thread:
            found.append(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        user = threading.Thread(target=use)
        user.start()
        user.join()
        assert found == [{1}]
        assert blas_threads() == {2}


@needs_cores
def test_only_kernels_of_large_matrices_limit_blas(two_blas_threads):
    side = _threads.LARGEST_UNTHREADED_SIDE
    assert call_kernel(blas_threads, side) == {2}
    assert call_kernel(blas_threads, side + 1) == {1}
    assert call_kernel(lambda *arguments: arguments, side + 1, 3, "a") == (3, "a")
    assert blas_threads() == {2}


@needs_cores
def test_shared_work_limits_blas(two_blas_threads):
    found = run_in_threads(lambda lo, hi: blas_threads(), 4, 2, MUCH)
    assert found == [{1}] * 2
    assert blas_threads() == {2}


@pytest.mark.compiled
@pytest.mark.parametrize("geometry", ["entropic", "euclidean"])
@pytest.mark.parametrize(
    ("d", "sizes"), [(50, (20, 60)), (64, (64, 64)), (200, (50, 80)), (30, (300, 300))]
)
def test_bits_do_not_depend_on_the_threads_of_blas(geometry, d, sizes):
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


TASKS = ltl.TaskSet(ragged_tasks(0, 9, 20, (5, 30)))
VALIDATION = ltl.TaskSet(ragged_tasks(1, 5, 20, (6, 12))).split_samples(0.5, random_state=0)
LAMS = np.logspace(-4, 1, 7)


def path_results(n_threads, **options):
    path = ltl.OnlineLTLPath(LAMS, VALIDATION, n_threads=n_threads, **options).fit(TASKS)
    return path.representations_, path.scores_


def selection_results(learner, n_threads):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best lam", UserWarning)
        found = ltl.select_lam(learner, TASKS, VALIDATION, LAMS, n_threads=n_threads)
    return found.learner.D_, found.scores, found.task_scores


def multitask_results(n_threads):
    model = ltl.MTL(1e-2, tol=1e-4, n_threads=n_threads).fit(TASKS)
    return model.D_, model.coef_


RESULTS = {
    "BatchLTL": lambda n: [ltl.BatchLTL(1e-2, tol=1e-4, n_threads=n).fit(TASKS).D_],
    "MTL": multitask_results,
    "path-entropic": path_results,
    "path-euclidean": lambda n: path_results(n, geometry="euclidean"),
    "path-theory": lambda n: path_results(n, geometry="euclidean", step="theory"),
    "path-intercept": lambda n: path_results(n, fit_intercept=True),
    "select-online": lambda n: selection_results(ltl.OnlineLTL(), n),
    "select-batch": lambda n: selection_results(ltl.BatchLTL(tol=1e-3), n),
    "select-multitask": lambda n: selection_results(ltl.MTL(tol=1e-3), n),
    "select-independent": lambda n: selection_results(ltl.ITL(), n),
}


@pytest.mark.compiled
@pytest.mark.parametrize("name", RESULTS)
def test_bits_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    monkeypatch.setattr(_threads, "SMALLEST_SHARED_WORK", 0.0)  # or one thread would do it all
    expected = RESULTS[name](1)
    for n_threads in (2, 3, 8):
        for one, several in zip(expected, RESULTS[name](n_threads), strict=True):
            assert np.array_equal(one, several)


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("learner", "attribute"), [(ltl.OnlineLTL(1e-2), "D_"), (ltl.BayesLTL(), "covariance_")]
)
def test_learners_in_threads_do_not_disturb_each_other(learner, attribute):
    tasks = ragged_tasks(0, 40, 30, (10, 90))
    expected = getattr(clone(learner).fit(tasks), attribute)
    results = {}

    def learn(i):
        copy = pickle.loads(pickle.dumps(tasks))
        results[i] = getattr(clone(learner).fit(copy), attribute)

    workers = [threading.Thread(target=learn, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(results[i], expected) for i in range(4))


@pytest.mark.parametrize("n_items", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 8, 33])
def test_ranges_cover_every_item_once_and_in_order(n_items, n_threads):
    ranges = run_in_threads(lambda *edges: edges, n_items, n_threads, MUCH)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(n_items))
    assert len(ranges) == max(1, min(n_items, n_threads))
    lengths = [hi - lo for lo, hi in ranges]
    assert max(lengths) - min(lengths) <= 1


def test_arguments_come_before_the_range():
    found = run_in_threads(lambda *arguments: arguments, 2, 2, MUCH, "a", 7)
    assert found == [("a", 7, 0, 1), ("a", 7, 1, 2)]


def test_calls_within_a_call_do_not_wait_for_each_other():
    """The caller takes the ranges that no other thread has begun."""

    def outer(lo, hi):
        return sum(run_in_threads(lambda lo, hi: hi - lo, 8, 2, MUCH)) * (hi - lo)

    assert sum(run_in_threads(outer, 8, 2, MUCH)) == 64


def test_ranges_are_computed_where_no_thread_can_be_started(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    _threads._pool.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    run_in_threads(lambda lo, hi: done.append((lo, hi)), 8, 3, MUCH)
    assert sorted(done) == [(0, 2), (2, 5), (5, 8)]
    _threads._pool.cache_clear()


def test_threads_compute_at_the_same_time():
    barrier = threading.Barrier(3, timeout=600)  # passed only by three threads at the same time

    def thread_of_range(lo, hi):
        barrier.wait()
        return threading.get_ident()

    threads = run_in_threads(thread_of_range, 3, 3, MUCH)
    assert threading.get_ident() in threads
    assert len(set(threads)) == 3


def test_small_work_is_not_shared():
    def thread_of_range(lo, hi):
        return lo, hi, threading.get_ident()

    caller = threading.get_ident()
    small = 0.99 * _threads.SMALLEST_SHARED_WORK
    assert run_in_threads(thread_of_range, 100, 2, small) == [(0, 100, caller)]
    assert len(run_in_threads(thread_of_range, 100, 2, 1.1 * small)) > 1


def test_several_threads_share_their_work_at_the_same_time():
    found = []

    def call():
        found.extend(sum(run_in_threads(lambda lo, hi: hi - lo, 9, 2, MUCH)) for _ in range(50))

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert found == [9] * 300
    assert one_blas_thread._n_users == 0


@pytest.mark.parametrize("failing", range(4))
def test_an_error_is_raised_once_no_thread_writes_any_more(failing):
    done = []

    def fail_or_write(lo, hi):
        if lo == failing:
            raise KeyError(lo)
        time.sleep(0.05)
        done.append(lo)

    with pytest.raises(KeyError, match=str(failing)):
        run_in_threads(fail_or_write, 4, 4, MUCH)
    n_done = len(done)
    time.sleep(0.1)
    assert len(done) == n_done
    assert failing not in done
    assert one_blas_thread._n_users == 0
    assert sum(run_in_threads(lambda lo, hi: hi - lo, 4, 4, MUCH)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_forked_child_has_threads_of_its_own(n_threads):
    def share():
        return sum(run_in_threads(lambda lo, hi: hi - lo, 8, n_threads, MUCH)) == 8

    assert share()  # the parent has threads, which the child has not
    assert exit_status_of_child(share) == 0
    assert exit_status_of_child(lambda: exit_status_of_child(share) == 0) == 0
    assert share()


@needs_cores
def test_a_forked_child_limits_blas(two_blas_threads):
    def limits():
        with one_blas_thread:
            within = blas_threads()
        return within == {1} and blas_threads() == {2}

    assert limits()
    assert exit_status_of_child(limits) == 0


def test_an_interrupt_waits_for_the_end_of_the_block():
    steps, handler = [], signal.getsignal(signal.SIGINT)

    def block():
        with delayed_interrupt():
            for step in range(3):
                signal.raise_signal(signal.SIGINT)
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_waits_for_the_outermost_block():
    steps = []

    def block():
        with delayed_interrupt():
            with delayed_interrupt():
                signal.raise_signal(signal.SIGINT)
            steps.append("between")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["between"]


def test_a_block_without_an_interrupt_is_left_as_usual():
    handler = signal.getsignal(signal.SIGINT)
    with delayed_interrupt():
        pass
    with pytest.raises(KeyError), delayed_interrupt():
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is handler


def test_ignored_interrupts_stay_ignored():
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delayed_interrupt():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_other_threads_need_not_delay_interrupts():
    entered = []

    def enter():
        with delayed_interrupt():
            entered.append(signal.getsignal(signal.SIGINT))

    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [handler]
