import os
import signal
from itertools import groupby

import hypothesis
import numpy as np  # noqa: F401  (loads the BLAS that threadpool_limits controls)
import pytest
from sampling import sampled
from threadpoolctl import threadpool_limits

import fastltl as ltl

# The first call compiles, which exceeds any deadline. CI runs the same examples each time.
hypothesis.settings.register_profile("fastltl", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("fastltl")

# A shell starts background jobs with SIGINT ignored, which tests of Ctrl-C and the processes that
# they start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread():
    """Limit BLAS to one thread: more only slow down small matrices, above all on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


@pytest.fixture
def default_hangup():
    """Let SIGHUP end processes as usual, even if the suite runs under nohup."""
    if not hasattr(signal, "SIGHUP"):
        pytest.skip("Windows has no SIGHUP")
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.hookimpl(trylast=True)  # once the coverage of lines is recorded
def pytest_sessionstart(session):
    """Let two workers of pytest-xdist compile different kernels first, not both the same."""
    worker = getattr(session.config, "workerinput", {}).get("workerid")
    if JIT_IS_OFF:
        return
    if worker == "gw0":
        learners = [ltl.BayesLTL(), ltl.BayesLTL(n_passes=2), ltl.BatchLTL()]
    elif worker == "gw1":
        learners = [
            ltl.OnlineLTLPath([0.1], geometry="euclidean"),
            ltl.OnlineLTL(),
            ltl.OnlineLTL(objective="error", geometry="euclidean", step="theory"),
            ltl.ITL(),
        ]
    else:
        return
    tasks = ltl.datasets.make_environment(3, random_state=0).tasks(4, 5)
    for learner in learners:
        learner.fit(tasks).adapt(*tasks[0])


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the slow tests too")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    """Leave out slow tests, unless `--all`, `-m` or the name of a test asks for them.

    Of a test with the mark sample(n), the cases that `sampled` does not choose are slow. As the
    choice is made first, it depends neither on other files nor on `-k`.
    """
    samples = (item for item in items if item.get_closest_marker("sample"))
    for _, cases in groupby(samples, lambda item: item.nodeid.partition("[")[0]):
        cases = list(cases)
        n = cases[0].get_closest_marker("sample").args[0]
        chosen = sampled([case.callspec.params for case in cases], n)
        for i, case in enumerate(cases):
            if i not in chosen:
                case.add_marker("slow")
    if JIT_IS_OFF:
        skip = pytest.mark.skip(reason="takes too long, or has no meaning, when the JIT is off")
        for item in items:
            if "compiled" in item.keywords:
                item.add_marker(skip)
    if config.option.all or config.option.markexpr or any("::" in name for name in config.args):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]
