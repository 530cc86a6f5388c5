"""OnlineLTL task by task, against the plain-NumPy loop of `fastltl.reference`."""

import time
from collections import deque

import numpy as np
from threadpoolctl import threadpool_limits

import fastltl as ltl

LAM = 1e-2
N_TASKS = 100
RULES = {
    "euclidean theory": {"geometry": "euclidean", "step": "theory"},
    "euclidean adaptive": {"geometry": "euclidean", "step": "adaptive"},
    "entropic": {"geometry": "entropic"},
}


def draw_tasks(d, n):
    environment = ltl.datasets.make_environment(d, noise=0.05, random_state=0)
    return [(X.copy(), y.copy()) for X, y in environment.tasks(N_TASKS, n)]


def compiled_run(tasks, rule):
    learner = ltl.OnlineLTL(LAM, **RULES[rule])
    for X, y in tasks:
        learner.partial_fit(X, y)
    return learner.iterate_


def numpy_run(tasks, rule):
    iterates = ltl.reference.online_iterates(tasks, LAM, **RULES[rule])
    return deque(iterates, maxlen=1)[0][1]


def seconds(run, *arguments):
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


class Online:
    """Runs of 100 tasks with BLAS at one thread, compiled beforehand."""

    params = (list(RULES), [(50, 20), (50, 50), (200, 50)])
    param_names = ("rule", "(d, n)")
    version = "1"
    timeout = 600

    def setup(self, rule, size):
        self.limit = threadpool_limits(1, user_api="blas")
        self.tasks = draw_tasks(*size)
        compiled_run(self.tasks[:3], rule)

    def teardown(self, rule, size):
        self.limit.restore_original_limits()

    def time_run(self, rule, size):
        compiled_run(self.tasks, rule)

    def track_time_over_numpy(self, rule, size):
        """Median of interleaved repeats: a fraction, so that a regression shows upward."""
        pairs = [
            (seconds(compiled_run, self.tasks, rule), seconds(numpy_run, self.tasks, rule))
            for _ in range(15 if size[0] <= 50 else 3)
        ]
        fast, plain = np.median(pairs, axis=0)
        return fast / plain

    def track_relative_error(self, rule, size):
        """Distance of the last iterate from plain NumPy's, in Frobenius norm."""
        expected = numpy_run(self.tasks, rule)
        return np.linalg.norm(compiled_run(self.tasks, rule) - expected) / np.linalg.norm(expected)

    track_time_over_numpy.version = track_relative_error.version = "1"
    track_time_over_numpy.unit = "compiled / NumPy"
    track_relative_error.unit = "relative"


class Start:
    """What a process pays before its first task."""

    version = "1"

    def timeraw_import(self):
        return "import fastltl"

    def timeraw_import_numpy(self):
        return "import numpy"
