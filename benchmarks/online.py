"""Compare OnlineLTL with the plain-NumPy loop of `fastltl.reference`."""

from collections import deque
from functools import partial
from itertools import islice

import fastltl as ltl
from benchmarks.timing import _Comparison

LAM = 1e-2
RULES = {
    "euclidean theory": {"objective": "error", "geometry": "euclidean", "step": "theory"},
    "euclidean adaptive": {"geometry": "euclidean", "step": "adaptive"},
    "entropic": {"geometry": "entropic"},
    "euclidean adaptive error": {"objective": "error", "geometry": "euclidean"},
    "entropic error": {"objective": "error", "geometry": "entropic"},
}
SIZES = [(50, 20), (50, 50), (200, 50), (500, 50)]


def draw_tasks(d, n, n_tasks):
    environment = ltl.datasets.make_environment(d, noise=0.05, random_state=0)
    return list(islice(environment.stream(n), n_tasks))


def fastltl_run(tasks, rule):
    learner = ltl.OnlineLTL(LAM, **RULES[rule])
    for X, y in tasks:
        learner.partial_fit(X, y)
    return learner.iterate_


def numpy_run(tasks, rule):
    iterates = ltl.reference.online_iterates(tasks, LAM, **RULES[rule])
    return deque(iterates, maxlen=1)[0][1]


class Online(_Comparison):
    """Time calls of `partial_fit` on T tasks, from the first."""

    params = (list(RULES), SIZES, [50, 100])
    param_names = ("rule", "(d, n)", "T")

    def setup_cache(self):
        return {size: draw_tasks(*size, 100) for size in SIZES}

    def runs(self, data, rule, size, n_tasks):
        self.repeats = {50: 25, 200: 7, 500: 3}[size[0]]
        tasks = data[size][:n_tasks]
        return partial(fastltl_run, tasks, rule), partial(numpy_run, tasks, rule)


class Growth:
    """Time 100 tasks of 50 samples as d grows."""

    params = (list(RULES), [100, 200, 500, 1000])
    param_names = ("rule", "d")
    version = "1"
    timeout = 600

    def setup_cache(self):
        return {d: draw_tasks(d, 50, 100) for d in self.params[1]}

    def setup(self, data, rule, d):
        fastltl_run(data[d][:3], rule)

    def time_hundred_tasks(self, data, rule, d):
        fastltl_run(data[d], rule)
