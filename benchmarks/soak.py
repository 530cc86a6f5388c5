"""A soak of the online learner: very many tasks, and three promises that have to last.

``python -m benchmarks.soak`` streams a million tasks through `OnlineLTL`, by each rule, beside the
plain loop of `fastltl.reference`, which starts every decomposition over at every step. Memory
stays flat, iterates stay feasible, and results stay those of the plain loop. It prints a table in
Markdown, and its exit status is 1 if a promise is broken.
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
#: Tasks drawn at once.
BLOCK = 100
#: Tasks between two looks at a run, of which a short run has ten.
BETWEEN = 10_000
#: Kilobytes that memory may grow by, which are two bytes a task in the million.
GROWTH = 2048
#: How far a matrix may be from feasible, as a share of the radius.
INFEASIBILITY = 1e-9
#: How far a result may be from the plain loop's.
DIFFERENCE = 1e-7

HEADER = """\
| rule | tasks | µs a task, fastltl | plain | RSS after a tenth | at the end \
| excess of trace | smallest eigenvalue | difference of D_ | of iterate_ |
|---|---|---|---|---|---|---|---|---|---|"""


class PlainRun:
    """The plain loop as a learner, for which nothing is kept but the sum of its iterates."""

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


class Look(NamedTuple):
    """What is seen of a run on the way, at its iterate and at the mean of all before it."""

    n_tasks: int
    kilobytes: int
    #: The larger trace less the radius, and the smallest eigenvalue, as shares of the radius.
    excess: float
    eigenvalue: float
    is_symmetric: bool
    #: How far D_ and iterate_ are from those of the plain loop.
    D_difference: float
    iterate_difference: float


class Soak(NamedTuple):
    """A run: what a task took in either way, and the looks at it."""

    rule: str
    seconds: float
    plain_seconds: float
    looks: list[Look]

    @property
    def memory(self) -> list[int]:
        """Kilobytes from the first tenth on."""
        tenth = self.looks[-1].n_tasks / 10
        return [look.kilobytes for look in self.looks if look.n_tasks >= tenth]

    @property
    def growth(self) -> int:
        """Kilobytes that memory has grown by since the first tenth, at the most."""
        return max(self.memory) - self.memory[0]

    @property
    def excess(self) -> float:
        return float(np.max([look.excess for look in self.looks]))

    @property
    def eigenvalue(self) -> float:
        return float(np.min([look.eigenvalue for look in self.looks]))


def resident() -> int:
    """Kilobytes of memory that the process has now."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


def blocks(n_tasks: int, seed: int = 0) -> Iterator[list[Task]]:
    """Tasks y = Xw + noise whose weights share a subspace, a block at a time."""
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


def feed(run: ltl.OnlineLTL | PlainRun, tasks: Iterable[Task]) -> float:
    """Give tasks to a run, one by one; the seconds that it took."""
    start = time.perf_counter()
    for X, y in tasks:
        run.partial_fit(X, y)
    return time.perf_counter() - start


def look_at(learner: ltl.OnlineLTL, plain: PlainRun) -> Look:
    kilobytes = resident()
    D, iterate = learner.D_, learner.iterate_
    return Look(
        n_tasks=learner.n_tasks_seen_,
        kilobytes=kilobytes,
        excess=float(np.max([LAM * np.trace(A) - 1 for A in (D, iterate)])),
        eigenvalue=float(np.min([LAM * np.linalg.eigvalsh(A)[0] for A in (D, iterate)])),
        is_symmetric=all(np.array_equal(A, A.T) for A in (D, iterate)),
        D_difference=relative(D, plain.D_),
        iterate_difference=relative(iterate, plain.iterate_),
    )


def soak(rule: str, n_tasks: int) -> Soak:
    """Stream so many tasks through a learner and through the plain loop."""
    learner, plain = ltl.OnlineLTL(LAM, **RULES[rule]), PlainRun(rule)
    between = max(1, min(BETWEEN, n_tasks // 10))
    looks, seconds, plain_seconds, done = [], 0.0, 0.0, 0
    feed(ltl.OnlineLTL(LAM, **RULES[rule]), next(blocks(BLOCK, seed=1)))  # compiles
    bar = tqdm(total=n_tasks, desc=rule, unit="task", disable=None)
    with threadpool_limits(1, user_api="blas"), bar:
        for tasks in blocks(n_tasks):
            seconds += feed(learner, tasks)
            plain_seconds += feed(plain, tasks)
            before, done = done, done + len(tasks)
            if before // between < done // between or done == n_tasks:
                looks.append(look_at(learner, plain))
            bar.update(len(tasks))
    return Soak(rule, seconds / n_tasks, plain_seconds / n_tasks, looks)


def broken_promises(run: Soak) -> list[str]:
    """What is wrong with a run, in words; a NaN breaks a promise too."""
    last = run.looks[-1]
    kept = {
        f"memory grew by {run.growth} kB": run.growth <= GROWTH,
        f"a trace exceeds the radius by {run.excess:.1e} of it": run.excess <= INFEASIBILITY,
        f"an eigenvalue is {run.eigenvalue:.1e} radii": run.eigenvalue >= -INFEASIBILITY,
        "a matrix is not symmetric": all(look.is_symmetric for look in run.looks),
        f"D_ is off by {last.D_difference:.1e}": last.D_difference <= DIFFERENCE,
        f"iterate_ is off by {last.iterate_difference:.1e}": last.iterate_difference <= DIFFERENCE,
    }
    return [f"{run.rule}: {wrong}" for wrong, is_kept in kept.items() if not is_kept]


def row(run: Soak) -> str:
    """A run as a row of the table."""
    last = run.looks[-1]
    cells = [
        run.rule,
        f"{last.n_tasks:,}",
        f"{1e6 * run.seconds:.1f}",
        f"{1e6 * run.plain_seconds:.0f}",
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
    parser.add_argument("--tasks", type=int, default=1_000_000, help="by default a million")
    options = parser.parse_args(arguments)
    if options.tasks < 1:
        parser.error(f"--tasks must be a number from 1 up, got {options.tasks}")
    broken = []
    print(HEADER, flush=True)
    for rule in RULES:
        run = soak(rule, options.tasks)
        print(row(run), flush=True)
        broken += broken_promises(run)
    for wrong in broken:
        print(f"\nbroken: {wrong}")
    return int(bool(broken))


if __name__ == "__main__":
    raise SystemExit(main())
