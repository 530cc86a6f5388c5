"""Measure BayesLTL against the machine: ``python -m benchmarks.rates``.

It prints Markdown tables: time, operations and bytes of a task in the long run, and the share of
the rate of a large matrix product with one thread; and the time of a task after few and many tasks.
"""

import sys
import time
from copy import deepcopy

import numpy as np
from threadpoolctl import threadpool_limits

import fastltl as ltl

SIZES = [(d, n) for n in (20, 50) for d in (10, 50, 200, 500)]
REPEATS, LARGE = 7, 1000
#: Tasks seen before and tasks timed at once; and for the cost of a task as more come.
N_TIMED, MANY_SEEN = 1000, 50_000
#: In the long run hardly any task changes the prior in use: after these, one in 250.
LONG_RUN = 1e6


def operations(d, n):
    """Return the floating-point operations of a task that changes the statistics only.

    `_kernels/bayes.py: update` and `add_moments`; d counts the intercept, k = min(n, d).
    """
    k = min(n, d)
    products = 2 * k * d**2  # R S
    products += 3 * k * d**2  # the triangles of WD'WD, WR'WR and H
    products += 12 * k**2 * d  # (R D) R', W R, W R D, and with the variances once more; M^-1 R
    products += 4 * k**3 / 3 + 2 * k**3  # two Cholesky factors and their inverses; W'W
    loops = 2 * d**2 + 1.5 * d**2  # triangles of S and F
    reduction = 0.0
    if n > d:
        reduction = 4 * n * d**2 - 4 * d**3 / 3 + 2 * n * d**2  # QR with Q, and W Q'
    return products + loops + reduction


def traffic(d, n):
    """Return the bytes of d x d matrices that a task reads and writes; there are four of them.

    S is read for R S and, its lower triangle, read and written twice, and mirrored; A once; H is
    cleared, summed and read; F is read and written.
    """
    return 8 * d**2 * (1 + 2 + 1 + 1 + 2 + 0.5 + 1)


def seconds(run):
    start = time.process_time()
    run()
    return time.process_time() - start


def gemm_rate():
    """Return the operations per second of a product of large matrices."""
    A = np.ones((LARGE, LARGE))
    return 2 * LARGE**3 / seconds(lambda: A @ A)


def copy_rate():
    """Return the bytes per second that copies of a large matrix read and write."""
    A, B = np.ones((2, 2 * LARGE, 2 * LARGE))
    return 2 * A.nbytes / seconds(lambda: np.copyto(B, A))


class Timed:
    """A state after some tasks, whose further tasks are timed."""

    def __init__(self, d, n, n_seen=N_TIMED):
        tasks = ltl.datasets.make_environment(d, noise=0.05, random_state=0).tasks(N_TIMED, n)
        self.blocks = list(tasks.blocks())
        self.learner = ltl.BayesLTL().fit(tasks)
        for _ in range(n_seen // N_TIMED - 1):
            self.learn(self.learner._run)

    def learn(self, run):
        for block in self.blocks:
            run.learn_tasks(*block)

    def seconds(self):
        """Return the CPU seconds of one of the next tasks, from the same state each time."""
        run = deepcopy(self.learner)._run
        return seconds(lambda: self.learn(run)) / N_TIMED


def print_rates(sizes=SIZES, repeats=REPEATS):
    header = "µs a task", "Mflop", "MB", "Gflop/s", "of a large product", "GB/s"
    print(f"| d, n | {' | '.join(header)} |\n|---|---|---|---|---|---|---|")
    for d, n in sizes:
        timed = Timed(d, n)
        timed.learner._run.state.records["t"] = LONG_RUN
        found = [(timed.seconds(), gemm_rate(), copy_rate()) for _ in range(repeats)]
        taken, gemm, copy = np.median(found, axis=0)
        flops, moved = operations(d + 1, n), traffic(d + 1, n)
        print(
            f"| {d}, {n} | {1e6 * taken:.3g} | {1e-6 * flops:.3g} | {1e-6 * moved:.2g} "
            f"| {1e-9 * flops / taken:.2g} | {100 * flops / taken / gemm:.0f} % "
            f"| {1e-9 * moved / taken:.2g} |",
            flush=True,
        )
        print(
            f"{d}, {n}: {1e-9 * gemm:.3g} Gflop/s, copies {1e-9 * copy:.3g} GB/s", file=sys.stderr
        )


def print_growth(sizes=((10, 20), (50, 20), (200, 20)), repeats=REPEATS, n_seen=MANY_SEEN):
    print(f"| d, n | µs a task after {N_TIMED:,} tasks | after {n_seen:,} |\n|---|---|---|")
    for d, n in sizes:
        few, many = Timed(d, n), Timed(d, n, n_seen)
        taken = np.median([(few.seconds(), many.seconds()) for _ in range(repeats)], axis=0)
        print(f"| {d}, {n} | {1e6 * taken[0]:.3g} | {1e6 * taken[1]:.3g} |", flush=True)


def main():
    with threadpool_limits(1, user_api="blas"):
        print_rates()
        print()
        print_growth()


if __name__ == "__main__":
    main()
