"""OnlineLTL task by task, against the plain-NumPy loop of `fastltl.reference`.

``python -m benchmarks.online`` prints the table of the README.
"""

from collections import deque
from functools import partial
from itertools import islice, product

import numpy as np
from threadpoolctl import threadpool_limits

import fastltl as ltl
from benchmarks.timing import interleaved_medians, print_row

LAM = 1e-2
SIZES = {"d=50 n=20": (1000, 50, 20), "d=50 n=50": (1000, 50, 50), "d=200 n=50": (100, 200, 50)}
RULES = {
    "euclidean theory": {"geometry": "euclidean", "step": "theory"},
    "euclidean adaptive": {"geometry": "euclidean", "step": "adaptive"},
    "entropic": {"geometry": "entropic"},
}


def draw_tasks(size):
    n_tasks, d, n = SIZES[size]
    environment = ltl.datasets.make_environment(d, noise=0.05, random_state=0)
    return list(islice(environment.stream(n), n_tasks))


def compiled_run(tasks, rule):
    learner = ltl.OnlineLTL(LAM, **RULES[rule])
    for X, y in tasks:
        learner.partial_fit(X, y)
    return learner.iterate_


def numpy_run(tasks, rule):
    iterates = ltl.reference.online_iterates(tasks, LAM, **RULES[rule])
    return deque(iterates, maxlen=1)[0][1]


def timed(tasks, rule):
    """Median seconds of a compiled and of a plain-NumPy run."""
    return interleaved_medians(partial(compiled_run, tasks, rule), partial(numpy_run, tasks, rule))


class Online:
    """Whole runs with BLAS at one thread, compiled beforehand."""

    params = (list(RULES), list(SIZES))
    param_names = ("rule", "size")
    version = "1"
    timeout = 600

    def setup_cache(self):
        return {size: draw_tasks(size) for size in SIZES}

    def setup(self, cache, rule, size):
        self.limit = threadpool_limits(1, user_api="blas")
        self.tasks = cache[size]
        compiled_run(self.tasks[:3], rule)

    def teardown(self, cache, rule, size):
        self.limit.restore_original_limits()

    def time_run(self, cache, rule, size):
        compiled_run(self.tasks, rule)

    def track_time_over_numpy(self, cache, rule, size):
        """A fraction, so that a regression shows upward."""
        fast, plain = timed(self.tasks, rule)
        return fast / plain

    def track_relative_error(self, cache, rule, size):
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


def main():
    print("| rule | size | fastltl | NumPy | ratio |\n|---|---|---|---|---|")
    with threadpool_limits(1, user_api="blas"):
        for rule, size in product(RULES, SIZES):
            tasks = draw_tasks(size)
            compiled_run(tasks[:3], rule)
            print_row(rule, f"{size}, a task", *timed(tasks, rule) / len(tasks))


if __name__ == "__main__":
    main()
