"""Shards for the workers of a cluster, which import this module."""

import time

import numpy as np

import fastltl as ltl


def environment_tasks(n_tasks, n_samples=12):
    return ltl.datasets.make_environment(8, noise=0.1, random_state=0).tasks(n_tasks, n_samples)


def shard(i, n_shards, n_tasks, seconds=0.0):
    """Return part i of the tasks after a delay."""
    time.sleep(seconds)
    return environment_tasks(n_tasks)[i * n_tasks // n_shards : (i + 1) * n_tasks // n_shards]


def with_nan():
    tasks = [(X.copy(), y) for X, y in environment_tasks(4)]
    tasks[2][0][1, 1] = np.nan
    return ltl.TaskSet(tasks)


def wide():
    return ltl.TaskSet([(np.ones((2, 9)), np.ones(2))])


def two_widths():
    return ltl.TaskSet([*environment_tasks(2), (np.ones((2, 9)), np.ones(2))])


def too_large():
    return ltl.TaskSet([*environment_tasks(2), (np.full((2, 8), 1e200), np.ones(2))])


def timed_out():
    raise TimeoutError("the network is slow")


def badly_encoded():
    b"\xff".decode()


def incomplete():
    return {}["store"]


def not_tasks():
    return [1, 2]


def wait_and_return(seconds, value):
    time.sleep(seconds)
    return value
