"""The paper's experiments: cells to compute, and their summary.

An experiment is a list of cells, each computed from nothing but what it says; their summary is
means over trials with 95 % intervals. Nothing here draws or prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fastltl import functional, reference
from fastltl._threads import one_blas_thread
from fastltl.batch import BatchLTL
from fastltl.datasets import load_schools, make_environment
from fastltl.experiments.compare import compare, compile_comparison
from fastltl.experiments.results import (
    Cell,
    Results,
    compute_cells,
    continue_results,
    finish,
    missing_cells,
    new_results,
    write_results,
)
from fastltl.experiments.trials import (
    PAPER_STEP,
    Trial,
    learn_alone,
    learn_batch,
    learn_multitask,
    learn_online,
)
from fastltl.independent import ITL
from fastltl.metrics import relative_improvement
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.selection import LAMS
from fastltl.tasks import TaskSet

#: Names of the methods, as results files and figures have them.
ALONE, MULTITASK, BATCH, SUBSPACE = "ITL", "MTL", "batch LTL", "true subspace"
DEFAULT, PAPER = "online LTL (default)", "online LTL (paper's step)"
ONLINE: dict[str, dict[str, Any]] = {DEFAULT: {}, PAPER: PAPER_STEP}

#: The paper's noise and a lower one, at which there is more to gain.
NOISES = (0.2, 0.05)
N_FEATURES, N_TEST_TASKS, STREAM_SAMPLES, STREAM_TASKS = 50, 100, 25, 50

#: Of the timings: one candidate, since the paper does not say how many its seconds are for.
TIMED_LAM, TIMED_TOL = 1e-2, 1e-4
#: The paper's Table 1, seconds of batch and online LTL by (T, n).
PAPER_SECONDS = {
    (50, 20): (85, 36),
    (50, 50): (227, 86),
    (100, 20): (246, 108),
    (100, 50): (617, 273),
    (150, 20): (428, 227),
    (150, 50): (2003, 776),
}

Row = dict[str, Any]


#: So many tasks that threads share in evaluations, however small they are.
MANY = 300


def compile_kernels() -> None:
    """Run every kernel once, so that none compiles later."""
    tasks = TaskSet([(np.ones((2, 3)), np.ones(2)), (np.eye(3), np.ones(3))])
    X, y = np.ones((2, 3)), np.ones(2)
    for geometry, step in (("euclidean", "theory"), ("entropic", "adaptive")):
        path = OnlineLTLPath(
            [1.0, 2.0], (tasks, tasks), geometry=geometry, step=step, score_every=1
        )
        D = path.fit(tasks).representations_[0]
        OnlineLTL(geometry=geometry, step=step, fit_intercept=True).fit(tasks).transform(X)
    compile_comparison()
    BatchLTL(n_threads=2).fit(TaskSet([(X, y)] * MANY))
    ITL().fit(tasks).adapt(X, y)
    for formula in (functional.task_loss, functional.task_gradient):
        formula(D, X, y)
    functional.project(D, 1.0)


#: The tasks of the demonstration: a low noise, at which there is something to gain.
DEMO: dict[str, Any] = {"n_features": 30, "n_tasks": 200, "n_samples": 40, "noise": 0.05}


def demo(seed: int = 0, n_jobs: int = 1) -> Results:
    """Compare methods on the paper's synthetic environment."""
    environment = make_environment(DEMO["n_features"], noise=DEMO["noise"], random_state=seed)
    return compare(environment.tasks(DEMO["n_tasks"], DEMO["n_samples"]), seed, n_jobs=n_jobs)


@dataclass(frozen=True)
class Experiment:
    """What to compute for a figure or table of the paper, and what to make of it."""

    cells: Callable[[int, int, bool], list[Cell]]  # of a seed, a number of trials, and quick
    compute: Callable[..., Any]
    summarise: Callable[[Sequence[Row]], list[Row]]
    trials: int
    quick_trials: int
    runs_alone: bool = False  # one cell at a time, as it measures seconds


def reproduce(
    name: str,
    out: Path,
    seed: int = 0,
    trials: int | None = None,
    quick: bool = False,
    n_jobs: int = 1,
    schools: str | PathLike[str] | None = None,
    dask: str | None = None,
) -> Results:
    """Compute an experiment and keep it in out/name.json, from which a later call goes on.

    Parameters
    ----------
    name : {"grid", "stream", "timing", "schools"}
        Figure 1, Figure 2, Table 1 or Figure 3 of the paper.
    out : Path
        Folder of the results file.
    seed : int
        All numbers but seconds follow from it.
    trials : int, optional
        How often it is repeated; by default 10, 10, 3 and 20 times.
    quick : bool
        Whether to compute less, in a few minutes.
    n_jobs : int
        Processes that share the cells.
    schools : str or path, optional
        Where schoolData.mat is; "schools" needs it.
    dask : str, optional
        Address of a Dask scheduler whose cluster has the processes. "timing" runs here.

    Returns
    -------
    dict
        ``manifest``, ``cells`` and ``summary``.
    """
    experiment = EXPERIMENTS[name]
    if trials is None:
        trials = experiment.quick_trials if quick else experiment.trials
    compute = experiment.compute
    if name == "schools":
        compute = partial(compute, tasks=schools_tasks(schools))
    path = out / f"{name}.json"
    parameters = {"seed": seed, "trials": trials, "quick": quick}
    results = continue_results(path, new_results(name, parameters))
    cells = experiment.cells(seed, trials, quick)
    missing = missing_cells(results, cells)
    where = (1, name, None) if experiment.runs_alone else (n_jobs, name, dask)
    for done in compute_cells(compute, missing, *where):
        results["cells"].append(done)
        write_results(path, results)
    results["summary"] = experiment.summarise(finish(results, cells))
    write_results(path, results)
    return results


def schools_tasks(path: str | PathLike[str] | None) -> TaskSet:
    """The Schools data, if it is said where."""
    if path is None:
        raise ValueError("schools must say where schoolData.mat is, got nothing.")
    return load_schools(path)


def mean_with_interval(values: Sequence[float]) -> Row:
    """Mean over trials, and where it lies with 95 % confidence if there are several."""
    mean, low, high = float(np.mean(values)), None, None
    if len(values) > 1:
        reach = stats.t.ppf(0.975, len(values) - 1) * float(stats.sem(values))
        low, high = mean - float(reach), mean + float(reach)
    return {"mean": mean, "low": low, "high": high, "trials": len(values)}


def _summary(values_by_key: Iterable[tuple[Row, float]]) -> list[Row]:
    """A row for each key, with the mean of its values; keys come as they first appear."""
    values: dict[str, tuple[Row, list[float]]] = {}
    for key, value in values_by_key:
        values.setdefault(repr(key), (key, []))[1].append(value)
    return [key | mean_with_interval(numbers) for key, numbers in values.values()]


def _synthetic_trial(
    cell: Cell, n_tasks: int, validation_share: float | None = None
) -> tuple[Trial, np.ndarray]:
    """The paper's tasks, and the subspace; with the same seed, the same for every noise."""
    n_samples = cell["n_samples"]
    generator = np.random.default_rng([cell["seed"], cell["trial"], n_samples])
    environment = make_environment(N_FEATURES, noise=cell["noise"], random_state=generator)
    training = environment.tasks(n_tasks, n_samples)
    validation = environment.tasks(max(1, round(n_tasks / 4)), 2 * n_samples)
    test = environment.tasks(N_TEST_TASKS, 2 * n_samples)
    trial = Trial(
        training,
        validation.split_samples(0.5, generator),
        test.split_samples(0.5, generator),
        validation_share=validation_share,
    )
    return trial, environment.subspace


# Figure 1: gain of online LTL over ITL, by the number of tasks and of samples


def _grid_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    sizes = (10, 30, 50, 100, 150) if quick else tuple(range(10, 151, 10))
    return [
        {"seed": seed, "noise": noise, "n_samples": n, "trial": trial, "n_tasks": list(sizes)}
        for trial, n, noise in product(range(trials), sizes, NOISES)
    ]


def _grid_cell(cell: Cell) -> dict[str, list[float]]:
    """Test errors after each number of tasks, with a quarter as many validation tasks."""
    trial, _ = _synthetic_trial(cell, max(cell["n_tasks"]), validation_share=0.25)
    alone = [learn_alone(trial, trial.validation_after(t)) for t in cell["n_tasks"]]
    errors = {ALONE: [float(trial.judge(one.D).mean()) for one in alone]}
    for method, settings in ONLINE.items():
        learned = learn_online(trial, cell["n_tasks"], **settings)
        errors[method] = [float(trial.judge(one.D).mean()) for one in learned]
    return errors


def _summarise_grid(rows: Sequence[Row]) -> list[Row]:
    return _summary(
        (
            {"noise": row["noise"], "method": method, "n_samples": row["n_samples"], "n_tasks": t},
            relative_improvement([row[method][k]], [row[ALONE][k]]),
        )
        for row in rows
        for method in ONLINE
        for k, t in enumerate(row["n_tasks"])
    )


# Figures 2 and 3: methods as training tasks arrive, on synthetic tasks and on the schools


def _stream_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    batch_after = [1, 5, 10, 20, 50] if quick else [1, 2, 3, 5, 7, *range(10, 51, 5)]
    return [
        {
            "seed": seed,
            "noise": noise,
            "n_samples": STREAM_SAMPLES,
            "trial": trial,
            "batch_after": batch_after,
        }
        for trial, noise in product(range(trials), NOISES)
    ]


def _stream_cell(cell: Cell) -> Row:
    trial, subspace = _synthetic_trial(cell, STREAM_TASKS)
    curves = _curves(trial, cell["batch_after"])
    oracles = np.stack([subspace @ subspace.T / lam for lam in LAMS])
    best = trial.choose(oracles, STREAM_TASKS)
    return curves | {SUBSPACE: float(trial.judge(oracles[best]).mean())}


def _schools_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    batch_after = [35] if quick else [1, 2, 3, 5, 7, *range(10, 36, 5)]
    return [{"seed": seed, "trial": trial, "batch_after": batch_after} for trial in range(trials)]


def _schools_cell(cell: Cell, tasks: TaskSet) -> Row:
    """Explained variance in percent, on a random quarter of the schools.

    Every method fits the level of each school, which this metric does not see.
    """
    generator = np.random.default_rng([cell["seed"], cell["trial"]])
    training, validation, test = tasks.split((0.25, 0.5, 0.25), generator)
    trial = Trial(
        training,
        validation.split_samples(0.5, generator),
        test.split_samples(0.5, generator),
        metric="explained_variance",
        fit_intercept=True,
    )
    scores = _curves(trial, cell["batch_after"])
    return {method: (100 * np.array(values)).tolist() for method, values in scores.items()}


def _curves(trial: Trial, batch_after: Sequence[int]) -> Row:
    """Mean test score of each method: one number, or one for each number of training tasks."""

    def score(D: Any) -> float:
        return float(trial.judge(D).mean())

    every = range(1, len(trial.training) + 1)
    return {
        ALONE: score(learn_alone(trial, trial.validation).D),
        MULTITASK: score(learn_multitask(trial).D),
        BATCH: [score(learn_batch(trial, t).D) for t in batch_after],
        **{
            method: [score(learned.D) for learned in learn_online(trial, every, **settings)]
            for method, settings in ONLINE.items()
        },
    }


def _summarise_curves(rows: Sequence[Row]) -> list[Row]:
    """Mean score of each method, and its gain over ITL in the same trials.

    Gains are in percent of the error of ITL or, on the schools, in points. Methods that do not
    learn from the training tasks have no number of tasks.
    """

    def points(row: Row) -> Iterable[tuple[Row, float]]:
        setting = {"noise": row["noise"]} if "noise" in row else {}
        for method in (ALONE, MULTITASK, SUBSPACE):
            if method in row:
                yield setting | {"method": method, "n_tasks": None}, row[method]
        for method in (BATCH, *ONLINE):
            after = row["batch_after"] if method == BATCH else range(1, len(row[method]) + 1)
            for t, value in zip(after, row[method], strict=True):
                yield setting | {"method": method, "n_tasks": t}, value

    def gain(row: Row, value: float) -> float:
        if "noise" in row:
            return relative_improvement([value], [row[ALONE]])
        return value - float(row[ALONE])

    found = [(row, *point) for row in rows for point in points(row)]
    scores = _summary((key, value) for _, key, value in found)
    gains = _summary((key, gain(row, value)) for row, key, value in found)
    return [row | {"gain": gained} for row, gained in zip(scores, gains, strict=True)]


# Table 1: seconds


def _timing_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    return [
        {"seed": seed, "trial": trial, "n_tasks": n_tasks, "n_samples": n_samples}
        for trial, (n_tasks, n_samples) in product(range(trials), PAPER_SECONDS)
        if n_tasks == 50 or not quick
    ]


def _timing_cell(cell: Cell) -> Row:
    """Seconds to have an answer after every task, one lam and one thread: ours and plain NumPy."""
    generator = np.random.default_rng([cell["seed"], cell["trial"], cell["n_samples"]])
    environment = make_environment(N_FEATURES, random_state=generator)
    tasks = environment.tasks(cell["n_tasks"], cell["n_samples"])
    compile_kernels()
    with one_blas_thread():
        return {
            method: _seconds(run, repeats=1 if method.startswith(BATCH) else 9)
            for method, run in _timed_runs(tasks).items()
        }


def _seconds(run: Callable[[], None], repeats: int) -> float:
    """Median over repeats, which short runs need."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _timed_runs(tasks: TaskSet) -> dict[str, Callable[[], None]]:
    """Online learners meet each task once; batch learners start over from where they ended."""

    def online(**settings: Any) -> None:
        learner = OnlineLTL(TIMED_LAM, **settings)
        for X, y in tasks:
            learner.partial_fit(X, y)

    def batch() -> None:
        learner = BatchLTL(TIMED_LAM, tol=TIMED_TOL, warm_start=True, n_threads=1)
        for t in range(1, len(tasks) + 1):
            learner.fit(tasks[:t])

    def plain_online(**settings: Any) -> None:
        for _ in reference.online_iterates(tasks, TIMED_LAM, **settings):
            pass

    def plain_batch() -> None:
        D = None
        for t in range(1, len(tasks) + 1):
            D = reference.batch_solution(tasks[:t], TIMED_LAM, tol=TIMED_TOL, start=D)

    runs: dict[str, Callable[[], None]] = {BATCH: batch, f"{BATCH}, plain NumPy": plain_batch}
    for method, settings in ONLINE.items():
        runs[method] = partial(online, **settings)
        runs[f"{method}, plain NumPy"] = partial(plain_online, **settings)
    return runs


def _summarise_timing(rows: Sequence[Row]) -> list[Row]:
    methods = [name for name in rows[0] if name.startswith((BATCH, *ONLINE))]
    measured = _summary(
        ({"n_tasks": row["n_tasks"], "n_samples": row["n_samples"], "method": name}, row[name])
        for row in rows
        for name in methods
    )
    settings = {(row["n_tasks"], row["n_samples"]): None for row in rows}
    return measured + [
        {"n_tasks": t, "n_samples": n, "method": f"{name}, the paper", "mean": seconds}
        for t, n in settings
        for name, seconds in zip((BATCH, "online LTL"), PAPER_SECONDS[t, n], strict=True)
    ]


EXPERIMENTS = {
    "grid": Experiment(_grid_cells, _grid_cell, _summarise_grid, 10, 2),
    "stream": Experiment(_stream_cells, _stream_cell, _summarise_curves, 10, 3),
    "timing": Experiment(_timing_cells, _timing_cell, _summarise_timing, 3, 1, runs_alone=True),
    "schools": Experiment(_schools_cells, _schools_cell, _summarise_curves, 20, 20),
}
