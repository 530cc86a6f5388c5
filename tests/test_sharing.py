"""One learner in several threads and processes: none finds it in the middle of a task."""

import contextlib
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from operator import methodcaller

import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone

import fastltl as ltl
from fastltl import _threads

pytestmark = pytest.mark.compiled

environment = ltl.datasets.make_environment(n_features=12, noise=0.1, random_state=0)
TASKS = list(environment.tasks(200, n_samples=8))
VALIDATION = environment.tasks(4, n_samples=8).split_samples(0.5, random_state=0)
X, y = environment.tasks(1, n_samples=8)[0]

LEARNERS = {
    "entropic": ltl.OnlineLTL(1e-2),
    "euclidean": ltl.OnlineLTL(1e-2, geometry="euclidean"),
    "theory": ltl.OnlineLTL(1e-2, geometry="euclidean", step="theory", averaging="last"),
    "path": ltl.OnlineLTLPath([1e-3, 1e-2, 1e-1], VALIDATION),
    "path-scored": ltl.OnlineLTLPath(
        [1e-3, 1e-2, 1e-1], VALIDATION, geometry="euclidean", step="theory", score_every=1
    ),
}

READERS = {
    "D_": lambda learner: learner.D_,
    "adapt": lambda learner: learner.adapt(X, y).coef_,
    "transform": lambda learner: learner.transform(X),
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)).D_,
}


@pytest.fixture(params=LEARNERS)
def learner(request):
    """Return a learner before its first task, without warnings of a best lam at the edge."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best lam", UserWarning)
        yield clone(LEARNERS[request.param], safe=False)


def readings(learner):
    """Return the bytes that each reader may see: those after each of the tasks."""
    seen = {name: set() for name in READERS}
    for task in TASKS:
        learner.partial_fit(*task)
        for name, read in READERS.items():
            seen[name].add(read(learner).tobytes())
    return seen


def test_readers_see_the_state_between_two_tasks(learner):
    allowed = readings(clone(learner))
    learner.partial_fit(*TASKS[0])
    ended, counts = threading.Event(), []

    def read(name):
        n = 0
        while not ended.is_set():
            assert READERS[name](learner).tobytes() in allowed[name]
            n += 1
        counts.append(n)

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, name) for name in (*READERS, *READERS)]
        try:
            for task in TASKS[1:]:
                learner.partial_fit(*task)
        finally:
            ended.set()
        for reader in readers:
            reader.result()
    assert sum(counts) > 20
    assert learner.n_tasks_seen_ == 200


def test_threads_that_fit_one_learner_lose_no_task(learner):
    barrier = threading.Barrier(4)

    def learn(tasks):
        barrier.wait()  # so that all threads start with the first task
        for task in tasks:
            learner.partial_fit(*task)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(learn, [TASKS[k::4] for k in range(4)]))
    assert learner.n_tasks_seen_ == 200


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_forked_child_learns_with_the_bits_of_its_parent(learner, n_threads, monkeypatch):
    """Fork from the main thread, while no other thread learns."""
    monkeypatch.setattr(_threads, "SMALLEST_SHARED_WORK", 0.0)  # or one thread would do it all
    if "n_threads" in learner.get_params():
        learner.set_params(n_threads=n_threads)

    def learn():
        for task in TASKS[20:30]:
            learner.partial_fit(*task)
        return learner.D_.tobytes()

    for task in TASKS[:20]:
        learner.partial_fit(*task)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork beside threads
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            signal.alarm(60)
            sender.send_bytes(learn())
        os._exit(0)
    sender.close()
    expected = learn()
    assert receiver.recv_bytes() == expected  # EOFError if the child failed
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.slow
def test_spawned_processes_continue_with_the_same_bits(learner):
    learner.partial_fit(*TASKS[0])
    learn = methodcaller("partial_fit", *TASKS[1])
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        found = pool.submit(learn, learner).result()
    assert found.D_.tobytes() == learn(learner).D_.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_joblib(learner, backend):
    fit = methodcaller("fit", TASKS[:30])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork beside threads
        found = Parallel(n_jobs=2, backend=backend)(delayed(fit)(clone(learner)) for _ in range(2))
    assert {one.D_.tobytes() for one in found} == {fit(learner).D_.tobytes()}


class Interrupted(BaseException):
    """Replaces KeyboardInterrupt, which would end the tests if it came too late."""


@pytest.mark.slow
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("options", [{}, {"geometry": "euclidean", "step": "theory"}], ids=str)
def test_an_interrupted_path_has_taken_a_task_with_all_candidates_or_none(n_threads, options):
    """Interrupt calls at random times, and compare with a run without interrupts."""
    environment = ltl.datasets.make_environment(40, random_state=0)
    validation = environment.tasks(3, n_samples=20).split_samples(0.5, random_state=0)
    tasks = list(environment.tasks(20, n_samples=30))
    options = {"lams": np.logspace(-4, 2, 40), "validation": validation, **options}
    path = ltl.OnlineLTLPath(n_threads=n_threads, score_every=1, **options)
    replay = ltl.OnlineLTLPath(score_every=1, **options)
    for one in (path, replay):
        one.partial_fit(*tasks[0])
    chance, n_interrupted = random.Random(0), 0

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for i in itertools.count():
            if n_interrupted > 100 and path.n_tasks_seen_ > 100:
                break
            try:  # some times are too short and some long enough for a call on any machine
                signal.setitimer(signal.ITIMER_REAL, 10 ** chance.uniform(-5, -1))
                path.partial_fit(*tasks[i % 20])
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                n_interrupted += 1
            if path.n_tasks_seen_ > replay.n_tasks_seen_:
                replay.partial_fit(*tasks[i % 20])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, before)
    assert _threads.one_blas_thread._n_users == 0
    assert path.n_tasks_seen_ == replay.n_tasks_seen_
    assert np.array_equal(path._run.state.records["n_tasks"], replay._run.state.records["n_tasks"])
    assert np.array_equal(path.representations_, replay.representations_)
    assert np.array_equal(path.scores_, replay.scores_)


def test_a_learner_stays_readable_while_it_is_fitted_again(learner, tmp_path):
    """Other threads read and save the earlier fit until the new one is complete."""
    learner.fit(TASKS[:30])
    ended = threading.Event()

    def read():
        while not ended.is_set():
            assert learner.D_.shape == (12, 12)
            learner.save(tmp_path / f"{threading.get_ident()}.npz")
            assert pickle.loads(pickle.dumps(learner)).n_tasks_seen_ == 30

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for _ in range(10):
            learner.fit(TASKS[:30])
        ended.set()
        for reader in readers:
            reader.result()
    for path in tmp_path.iterdir():
        assert ltl.load(path).n_tasks_seen_ == 30


COUNT = """
import os, threading, time
import fastltl as ltl
environment = ltl.datasets.make_environment(150, noise=0.1, random_state=0)
tasks = environment.tasks(60, n_samples=80)
validation = tasks.split_samples(0.5, random_state=0)
fits = [
    lambda: ltl.OnlineLTLPath(validation=validation).fit(tasks[:20]).scores_,
    lambda: ltl.OnlineLTL(lam=1e-2).fit(tasks),
    lambda: ltl.BatchLTL(lam=1e-2, tol=1e-3).fit(tasks),
    lambda: ltl.ITL().fit(tasks),
]
for fit in fits:
    fit()
me, ended, most = threading.get_native_id, threading.Event(), [0]
def count():
    own = str(me())
    while not ended.is_set():
        running = 0
        for thread in os.listdir("/proc/self/task"):
            try:
                with open(f"/proc/self/task/{thread}/stat") as file:
                    running += thread != own and file.read().rpartition(")")[2].split()[0] == "R"
            except OSError:
                pass
        most[0] = max(most[0], running)
        time.sleep(0.0005)
watch = threading.Thread(target=count)
watch.start()
for fit in fits:
    fit()
ended.set()
watch.join()
print(most[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_never_more_runnable_threads_than_cores():
    """Threads of BLAS must not multiply with ours."""
    free = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    command = [sys.executable, "-c", COUNT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=free)
    assert 1 <= int(done.stdout) <= len(os.sched_getaffinity(0))
