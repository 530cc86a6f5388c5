"""Measure the start of a process and the memory of a run."""

import os
import resource
import subprocess
import sys
import tempfile

import fastltl as ltl
from benchmarks.online import LAM, RULES, draw_tasks

FIRST_TASK = """
import time, numba, numpy as np, sklearn.base, sklearn.utils
start = time.perf_counter()
import fastltl
fastltl.OnlineLTL().partial_fit(np.ones((5, 3)), np.ones(5))
print(time.perf_counter() - start)
"""


def seconds_to_first_task(cache):
    """Time the first task of a new process after the imports of Numba and scikit-learn."""
    run = subprocess.run(
        [sys.executable, "-c", FIRST_TASK],
        env=os.environ | {"NUMBA_CACHE_DIR": cache},
        capture_output=True,
        check=True,
        text=True,
    )
    return float(run.stdout)


class Start:
    """Time imports, and the first `partial_fit` with and without compiled kernels on disk."""

    version = "2"
    timeout = 600

    def timeraw_import_fastltl(self):
        return "import fastltl"

    def timeraw_import_numpy(self):
        return "import numpy"

    def track_first_task_cold(self):
        with tempfile.TemporaryDirectory() as cache:
            return seconds_to_first_task(cache)

    def track_first_task_from_cache(self):
        with tempfile.TemporaryDirectory() as cache:
            seconds_to_first_task(cache)
            return seconds_to_first_task(cache)

    track_first_task_cold.version = track_first_task_from_cache.version = "2"
    track_first_task_cold.unit = track_first_task_from_cache.unit = "seconds"


class Memory:
    """Measure the memory of a run over tasks of 20 samples."""

    params = (list(RULES), [50, 500])
    param_names = ("rule", "d")
    version = "1"
    timeout = 600

    def setup_cache(self):
        return {d: draw_tasks(d, 20, 50) for d in self.params[1]}

    def run(self, tasks, rule, n_tasks):
        learner = ltl.OnlineLTL(LAM, **RULES[rule])
        for i in range(n_tasks):
            learner.partial_fit(*tasks[i % len(tasks)])
        return learner

    def peakmem_run(self, data, rule, d):
        self.run(data[d], rule, 100)

    def track_growth(self, data, rule, d):
        """Return the kilobytes by which many further tasks raise peak resident memory."""
        learner = self.run(data[d], rule, 300)  # until all eigenvectors are stored
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(20_000 if d == 50 else 500):
            learner.partial_fit(*data[d][i % 50])
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    track_growth.version = "1"
    track_growth.unit = "kilobytes"
