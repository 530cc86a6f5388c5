"""Soak test of the online learner on a million tasks.

``python -m benchmarks.soak`` streams the tasks through `OnlineLTL`, by each rule, and through the
loop of `fastltl.reference`, which computes every decomposition from scratch. It checks that memory
stays constant, iterates stay feasible, and results agree with the reference. It prints a Markdown
table; the exit status is 1 if a check fails.
"""

import argparse
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import fastltl as ltl
from benchmarks.online import LAM, RULES
from benchmarks.timing import relative
from fastltl import reference
from fastltl._validation import Array
from fastltl.tasks import Task

FEATURES, SAMPLES, RANK = 20, 10, 5
#: Tasks generated at once.
BLOCK = 100
#: Tasks between two snapshots; a short run has ten snapshots.
INTERVAL = 10_000
#: Kilobytes that memory may grow by: two bytes per task for a million tasks.
MAX_GROWTH = 2048
#: Largest violation of feasibility, relative to the radius.
MAX_INFEASIBILITY = 1e-9
#: Largest relative difference from the reference.
MAX_DIFFERENCE = 1e-7

HEADER = """\
| rule | tasks | µs a task, fastltl | plain | RSS after a tenth | at the end \
| excess of trace | smallest eigenvalue | difference of D_ | of iterate_ |
|---|---|---|---|---|---|---|---|---|---|"""


class ReferenceLearner:
    """The loop of `fastltl.reference` as a learner that keeps only the sum of its iterates."""

    def __init__(self, rule: str) -> None:
        self._next_task: deque[Task] = deque()
        tasks = iter(self._next_task.popleft, None)
        self._steps = reference.online_iterates(tasks, LAM, **RULES[rule])
        share = FEATURES + (RULES[rule]["geometry"] == "entropic")
        self.iterate_: Array = np.eye(FEATURES) / (LAM * share)
        self._total, self._n_tasks = np.zeros((FEATURES, FEATURES)), 0

    def partial_fit(self, X: Array, y: Array) -> None:
        self._total += self.iterate_
        self._n_tasks += 1
        self._next_task.append((X, y))
        _, self.iterate_ = next(self._steps)

    @property
    def D_(self) -> Array:
        return self._total / self._n_tasks


class Snapshot(NamedTuple):
    """Memory, feasibility and accuracy of a run after `n_tasks`, for D_ and iterate_."""

    n_tasks: int
    kilobytes: int
    #: Largest trace minus the radius, and smallest eigenvalue, both relative to the radius.
    excess: float
    eigenvalue: float
    is_symmetric: bool
    #: Relative differences of D_ and iterate_ from the reference.
    D_difference: float
    iterate_difference: float


class Soak(NamedTuple):
    """A run: seconds per task of the learner and of the reference, and the snapshots."""

    rule: str
    seconds: float
    reference_seconds: float
    snapshots: list[Snapshot]

    @property
    def memory(self) -> list[int]:
        """Kilobytes at each snapshot after the first tenth."""
        tenth = self.snapshots[-1].n_tasks / 10
        return [snapshot.kilobytes for snapshot in self.snapshots if snapshot.n_tasks >= tenth]

    @property
    def growth(self) -> int:
        """Largest growth of memory since the first tenth, in kilobytes."""
        return max(self.memory) - self.memory[0]

    @property
    def excess(self) -> float:
        return float(np.max([snapshot.excess for snapshot in self.snapshots]))

    @property
    def eigenvalue(self) -> float:
        return float(np.min([snapshot.eigenvalue for snapshot in self.snapshots]))


def resident_memory() -> int:
    """Return the resident memory of the process in kilobytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def blocks(n_tasks: int, seed: int = 0) -> Iterator[list[Task]]:
    """Generate tasks y = Xw + noise whose weights share a subspace, a block at a time."""
    rng = np.random.default_rng(seed)
    environment = ltl.datasets.make_environment(FEATURES, RANK, random_state=rng)
    for start in range(0, n_tasks, BLOCK):
        size = min(BLOCK, n_tasks - start)
        w = rng.standard_normal((size, RANK, 1))
        w /= np.linalg.norm(w, axis=1, keepdims=True)
        X = rng.standard_normal((size, SAMPLES, FEATURES))
        X /= np.linalg.norm(X, axis=2, keepdims=True)
        noise = environment.noise * rng.standard_normal((size, SAMPLES))
        y = (X @ (environment.subspace @ w))[:, :, 0] + noise
        yield list(zip(X, y, strict=True))


def feed(run: ltl.OnlineLTL | ReferenceLearner, tasks: Iterable[Task]) -> float:
    """Call `partial_fit` for each task; return the seconds it took."""
    start = time.perf_counter()
    for X, y in tasks:
        run.partial_fit(X, y)
    return time.perf_counter() - start


def take_snapshot(learner: ltl.OnlineLTL, reference_learner: ReferenceLearner) -> Snapshot:
    kilobytes = resident_memory()
    D, iterate = learner.D_, learner.iterate_
    return Snapshot(
        n_tasks=learner.n_tasks_seen_,
        kilobytes=kilobytes,
        excess=float(np.max([LAM * np.trace(A) - 1 for A in (D, iterate)])),
        eigenvalue=float(np.min([LAM * np.linalg.eigvalsh(A)[0] for A in (D, iterate)])),
        is_symmetric=all(np.array_equal(A, A.T) for A in (D, iterate)),
        D_difference=relative(D, reference_learner.D_),
        iterate_difference=relative(iterate, reference_learner.iterate_),
    )


def soak(rule: str, n_tasks: int) -> Soak:
    """Stream `n_tasks` through a learner and through the reference."""
    learner, reference_learner = ltl.OnlineLTL(LAM, **RULES[rule]), ReferenceLearner(rule)
    interval = max(1, min(INTERVAL, n_tasks // 10))
    snapshots, seconds, reference_seconds, done = [], 0.0, 0.0, 0
    feed(ltl.OnlineLTL(LAM, **RULES[rule]), next(blocks(BLOCK, seed=1)))  # compiles
    bar = tqdm(total=n_tasks, desc=rule, unit="task", disable=None)
    with threadpool_limits(1, user_api="blas"), bar:
        for tasks in blocks(n_tasks):
            seconds += feed(learner, tasks)
            reference_seconds += feed(reference_learner, tasks)
            before, done = done, done + len(tasks)
            if before // interval < done // interval or done == n_tasks:
                snapshots.append(take_snapshot(learner, reference_learner))
            bar.update(len(tasks))
    return Soak(rule, seconds / n_tasks, reference_seconds / n_tasks, snapshots)


def failed_checks(run: Soak) -> list[str]:
    """Describe the failed checks of a run; NaN fails a check too."""
    D_error, iterate_error = run.snapshots[-1].D_difference, run.snapshots[-1].iterate_difference
    checks = {
        f"memory grew by {run.growth} kB": run.growth <= MAX_GROWTH,
        f"a trace exceeds the radius by {run.excess:.1e} of it": run.excess <= MAX_INFEASIBILITY,
        f"an eigenvalue is {run.eigenvalue:.1e} radii": run.eigenvalue >= -MAX_INFEASIBILITY,
        "a matrix is not symmetric": all(snapshot.is_symmetric for snapshot in run.snapshots),
        f"D_ is off by {D_error:.1e}": D_error <= MAX_DIFFERENCE,
        f"iterate_ is off by {iterate_error:.1e}": iterate_error <= MAX_DIFFERENCE,
    }
    return [f"{run.rule}: {failure}" for failure, passed in checks.items() if not passed]


def row(run: Soak) -> str:
    """Format a run as a row of the table."""
    last = run.snapshots[-1]
    cells = [
        run.rule,
        f"{last.n_tasks:,}",
        f"{1e6 * run.seconds:.1f}",
        f"{1e6 * run.reference_seconds:.0f}",
        f"{run.memory[0] / 1024:.1f} MB",
        f"{run.memory[-1] / 1024:.1f} MB",
        f"{run.excess:.1e}",
        f"{run.eigenvalue:.1e}",
        f"{last.D_difference:.1e}",
        f"{last.iterate_difference:.1e}",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument(
        "--tasks", type=int, default=1_000_000, help="number of tasks (default: a million)"
    )
    options = parser.parse_args(arguments)
    if options.tasks < 1:
        parser.error(f"--tasks must be a number from 1 up, got {options.tasks}")
    failures = []
    print(HEADER, flush=True)
    for rule in RULES:
        run = soak(rule, options.tasks)
        print(row(run), flush=True)
        failures += failed_checks(run)
    for failure in failures:
        print(f"\nfailed: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
