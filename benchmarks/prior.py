"""Compare BayesLTL with its plain-NumPy twin, and with a path of 30 values of lam."""

from functools import partial

import fastltl as ltl
from benchmarks.timing import _Comparison, _Ratio
from fastltl import reference

N_TASKS = 1000


def draw_tasks(d, n, n_tasks=N_TASKS):
    return ltl.datasets.make_environment(d, noise=0.05, random_state=0).tasks(n_tasks, n)


def learn(tasks):
    learner = ltl.BayesLTL()
    for X, y in tasks:
        learner.partial_fit(X, y)
    return learner.covariance_


def numpy_learn(tasks):
    prior = reference.LearnedPrior()
    for X, y in tasks:
        prior.learn(X, y)
    return prior.D


def path_learn(tasks):
    path = ltl.OnlineLTLPath(n_threads=2)
    for X, y in tasks:
        path.partial_fit(X, y)


class Prior(_Comparison):
    """Time 1,000 tasks, one by one, with the choice of the prior at its usual intervals."""

    params = ([(10, 20), (10, 200), (50, 20), (200, 20)],)
    param_names = ("d, n",)
    repeats = 3
    tolerance = 1e-8

    def setup_cache(self):
        return {size: list(draw_tasks(*size)) for size in self.params[0]}

    def runs(self, data, size):
        return partial(learn, data[size]), partial(numpy_learn, data[size])


class PriorAndPath(_Ratio):
    """Compare with `OnlineLTLPath`: 30 lams, two threads, no validation; d = 50, n = 20."""

    unit = "BayesLTL / OnlineLTLPath"
    repeats = 3

    def setup_cache(self):
        return list(draw_tasks(50, 20))

    def runs(self, tasks):
        return partial(learn, tasks), partial(path_learn, tasks)
