"""Run the paper's experiments.

An experiment is a list of cells, computed independently of each other, and a summary of them:
means over trials with 95 % intervals.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from os import PathLike
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Any

import numpy as np
from scipy import stats

from fastltl import bounds, functional, reference
from fastltl._threads import one_blas_thread
from fastltl._validation import Array
from fastltl.batch import BatchLTL
from fastltl.bayes import BayesLTL
from fastltl.datasets import load_schools, make_environment
from fastltl.experiments.compare import compile_comparison
from fastltl.experiments.results import Cell, Results, Row, new_results, run_cells, write_results
from fastltl.experiments.trials import (
    ALGORITHM_1,
    PAPER_EXPERIMENTS,
    Settings,
    Trial,
    fit_batch,
    fit_itl,
    fit_mtl,
    fit_online,
)
from fastltl.metrics import evaluate, relative_improvement
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.ridge import ITL
from fastltl.selection import LAMS
from fastltl.tasks import TaskSet

#: Names of the methods in results files and figures.
ALONE, MULTITASK, SUBSPACE = "ITL", "MTL", "true subspace"
BATCH, PAPER_BATCH = "batch LTL", "batch LTL (paper's objective)"
DEFAULT, PAPER = "online LTL (default)", "online LTL (paper's Algorithm 1)"
PAPER_TUNED = "online LTL (paper's experiments)"

#: The objective of each batch method, and the settings among which validation tasks choose for
#: each online method.
BATCHES = {BATCH: "regularized", PAPER_BATCH: "error"}
ONLINE: dict[str, list[Settings]] = {
    DEFAULT: [{}],
    PAPER: [ALGORITHM_1],
    PAPER_TUNED: PAPER_EXPERIMENTS,
}

#: Names of the bounds on the excess risk, and of the term that they share.
ONLINE_BOUND, BATCH_BOUND, WITHIN_TASKS = "online LTL", "batch LTL", "both, without the T terms"
#: The lam that the bounds are for, and the number of tasks or samples that is fixed.
BOUNDS_LAM, BOUNDS_SIZE = 1.0, 10**6

#: Standard deviations of the noise: the paper's, and a lower one with more to gain.
NOISES = (0.2, 0.05)
N_FEATURES, N_TEST_TASKS, STREAM_SAMPLES, STREAM_TASKS = 50, 100, 25, 50

#: Timings are for one lam; the paper does not say how many its seconds cover.
TIMED_LAM, TIMED_TOL = 1e-2, 1e-4
#: The paper's Table 1: seconds of batch and online LTL by (T, n).
PAPER_SECONDS = {
    (50, 20): (85, 36),
    (50, 50): (227, 86),
    (100, 20): (246, 108),
    (100, 50): (617, 273),
    (150, 20): (428, 227),
    (150, 50): (2003, 776),
}


def compile_kernels() -> None:
    """Run every kernel once, so that none is compiled later."""
    tasks = TaskSet([(np.ones((2, 3)), np.ones(2)), (np.eye(3), np.ones(3))])
    X, y = np.ones((2, 3)), np.ones(2)
    for settings, *_ in ONLINE.values():
        path = OnlineLTLPath([1.0, 2.0], (tasks, tasks), score_every=1, **settings)
        D = path.fit(tasks).representations_[0]
        OnlineLTL(fit_intercept=True, **settings).fit(tasks).transform(X)
    compile_comparison()
    BatchLTL(n_threads=2).fit(TaskSet([(X, y)] * 300))  # enough tasks to use threads
    ITL().fit(tasks).adapt(X, y)
    varied = TaskSet([(X, y), (np.eye(3), np.arange(3.0)), (np.eye(4, 3), np.arange(4.0))])
    prior = BayesLTL(n_passes=2).fit(varied)
    prior.adapt(X, y).predict(X, return_std=True)
    evaluate(prior, varied, varied)
    prior.transform(X)
    functional.task_loss(D, X, y)
    functional.task_gradient(D, X, y)
    functional.project(D, 1.0)


@dataclass(frozen=True)
class Experiment:
    """Define the cells of a figure or table, and how to compute and summarise them."""

    cells: Callable[[int, int, bool], list[Cell]]  # arguments: seed, trials, quick
    compute: Callable[..., Any]
    summarise: Callable[[Sequence[Row]], list[Row]]
    trials: int
    quick_trials: int


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
    """Run an experiment and keep its results in out/name.json; a later call continues from there.

    "grid", "stream", "timing" and "schools" are Figure 1, Figure 2, Table 1 and Figure 3 of the
    paper, with 10, 10, 3 and 20 trials by default; "bounds" evaluates the bounds that its Section
    5.2 compares. The seed determines all numbers but the seconds. A quick run is smaller and takes
    a few minutes. `schools` is the path of schoolData.mat, needed by "schools". Cells are shared by
    n_jobs processes or, if `dask` is the address of a scheduler, by its workers; those of "timing"
    are computed one at a time here. The results have ``manifest``, ``cells`` and ``summary``.
    """
    experiment = EXPERIMENTS[name]
    if name == "schools":
        compute = partial(experiment.compute, tasks=schools_tasks(schools))
        experiment = replace(experiment, compute=compute)
    if name == "timing":  # other cells must not slow down the one that is timed
        n_jobs, dask = 1, None
    return run(name, experiment, out, seed, trials, quick, n_jobs, dask)


def run(
    name: str,
    experiment: Experiment,
    out: Path,
    seed: int,
    trials: int | None,
    quick: bool,
    n_jobs: int,
    dask: str | None,
) -> Results:
    """Compute the cells of an experiment that out/name.json lacks, and summarise all of them."""
    if trials is None:
        trials = experiment.quick_trials if quick else experiment.trials
    path = out / f"{name}.json"
    fresh = new_results(name, {"seed": seed, "trials": trials, "quick": quick})
    cells = experiment.cells(seed, trials, quick)
    results, rows = run_cells(path, fresh, cells, experiment.compute, n_jobs, dask)
    results["summary"] = experiment.summarise(rows)
    write_results(path, results)
    return results


def schools_tasks(path: str | PathLike[str] | None) -> TaskSet:
    """Load the Schools data; raise if no path is given."""
    if path is None:
        raise ValueError("schools must say where schoolData.mat is: pass the path of the file.")
    return load_schools(path)


def mean_with_interval(values: Sequence[float]) -> Row:
    """Return the mean over trials and, if there are several, its 95 % interval."""
    mean, low, high = float(np.mean(values)), None, None
    if len(values) > 1:
        half_width = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        low, high = mean - half_width, mean + half_width
    return {"mean": mean, "low": low, "high": high, "trials": len(values)}


def _summarise(points: Iterable[tuple[Row, float]]) -> list[Row]:
    """Return a row for each distinct key, with the mean of its values, in order of appearance."""
    values: dict[str, tuple[Row, list[float]]] = {}
    for key, value in points:
        values.setdefault(repr(key), (key, []))[1].append(value)
    return [key | mean_with_interval(numbers) for key, numbers in values.values()]


def _synthetic_trial(
    cell: Cell, n_tasks: int, validation_share: float | None = None
) -> tuple[Trial, Array]:
    """Draw the paper's tasks and their subspace, which the seed makes the same for every noise."""
    n_samples = cell["n_samples"]
    generator = np.random.default_rng([cell["seed"], cell["trial"], n_samples])
    environment = make_environment(N_FEATURES, noise=cell["noise"], random_state=generator)
    training = environment.tasks(n_tasks, n_samples)
    n_held_out = max(1, round(n_tasks / 4)), N_TEST_TASKS
    held_out = [environment.tasks(n, 2 * n_samples) for n in n_held_out]
    validation, test = (part.split_samples(0.5, generator) for part in held_out)
    trial = Trial(training, validation, test, validation_share=validation_share)
    return trial, environment.subspace


# Figure 1: gain of online LTL over ITL, by number of tasks and samples


def _grid_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    sizes = (10, 30, 50, 100, 150) if quick else tuple(range(10, 151, 10))
    return [
        {"seed": seed, "noise": noise, "n_samples": n, "trial": trial, "n_tasks": list(sizes)}
        for trial, n, noise in product(range(trials), sizes, NOISES)
    ]


def _grid_cell(cell: Cell) -> dict[str, list[float]]:
    """Return test errors after each number of tasks, with a quarter as many validation tasks."""
    trial, _ = _synthetic_trial(cell, max(cell["n_tasks"]), validation_share=0.25)
    fits = {ALONE: [fit_itl(trial, trial.validation_for(t)) for t in cell["n_tasks"]]}
    for method, choices in ONLINE.items():
        fits[method] = list(fit_online(trial, cell["n_tasks"], choices))
    return {method: [_mean_score(trial, fit.D) for fit in found] for method, found in fits.items()}


def _mean_score(trial: Trial, D: Array) -> float:
    return float(trial.score(D).mean())


def _summarise_grid(rows: Sequence[Row]) -> list[Row]:
    return _summarise(
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
    fixed = {"n_samples": STREAM_SAMPLES, "batch_after": batch_after}
    return [
        {"seed": seed, "noise": noise, "trial": trial, **fixed}
        for trial, noise in product(range(trials), NOISES)
    ]


def _stream_cell(cell: Cell) -> Row:
    trial, subspace = _synthetic_trial(cell, STREAM_TASKS)
    oracles = np.stack([subspace @ subspace.T / lam for lam in LAMS])
    best = trial.select(oracles, STREAM_TASKS)
    return _curves(trial, cell["batch_after"]) | {SUBSPACE: _mean_score(trial, oracles[best])}


def _schools_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    batch_after = [35] if quick else [1, 2, 3, 5, 7, *range(10, 36, 5)]
    return [{"seed": seed, "trial": trial, "batch_after": batch_after} for trial in range(trials)]


def _schools_cell(cell: Cell, tasks: TaskSet) -> Row:
    """Return the explained variance, in percent, on a random quarter of the schools."""
    generator = np.random.default_rng([cell["seed"], cell["trial"]])
    training, *held_out = tasks.split((0.25, 0.5, 0.25), generator)
    validation, test = (part.split_samples(0.5, generator) for part in held_out)
    trial = Trial(training, validation, test, "explained_variance", fit_intercept=True)
    scores = _curves(trial, cell["batch_after"])
    return {method: (100 * np.array(values)).tolist() for method, values in scores.items()}


def _curves(trial: Trial, batch_after: Sequence[int]) -> Row:
    """Return the mean test score of each method: a number, or one per number of training tasks."""
    after_each = range(1, len(trial.training) + 1)
    fits = {name: fit_batch(trial, batch_after, objective) for name, objective in BATCHES.items()}
    fits |= {name: fit_online(trial, after_each, choices) for name, choices in ONLINE.items()}
    return {
        ALONE: _mean_score(trial, fit_itl(trial, trial.validation).D),
        MULTITASK: _mean_score(trial, fit_mtl(trial).D),
        **{name: [_mean_score(trial, fit.D) for fit in found] for name, found in fits.items()},
    }


def _summarise_curves(rows: Sequence[Row]) -> list[Row]:
    """Return the mean score of each method, and its gain over ITL in the same trials.

    Gains are in percent of ITL's error or, on the schools, in points of explained variance. The
    number of tasks is None for methods that do not use the training tasks.
    """
    scores, gains = [], []
    for row in rows:
        setting = {"noise": row["noise"]} if "noise" in row else {}
        after: Row = {method: [None] for method in (ALONE, MULTITASK, SUBSPACE) if method in row}
        after |= dict.fromkeys(BATCHES, row["batch_after"])
        after |= {method: range(1, len(row[method]) + 1) for method in ONLINE}
        for method, numbers in after.items():
            for t, score in zip(numbers, np.atleast_1d(row[method]), strict=True):
                key, alone = setting | {"method": method, "n_tasks": t}, row[ALONE]
                gain = relative_improvement([score], [alone]) if setting else score - alone
                scores.append((key, score))
                gains.append((key, gain))
    pairs = zip(_summarise(scores), _summarise(gains), strict=True)
    return [score | {"gain": gain} for score, gain in pairs]


# Table 1: running times


def _timing_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    return [
        {"seed": seed, "trial": trial, "n_tasks": n_tasks, "n_samples": n_samples}
        for trial, (n_tasks, n_samples) in product(range(trials), PAPER_SECONDS)
        if n_tasks == 50 or not quick
    ]


def _timing_cell(cell: Cell) -> Row:
    """Time methods that update after every task, for one lam on one thread."""
    generator = np.random.default_rng([cell["seed"], cell["trial"], cell["n_samples"]])
    environment = make_environment(N_FEATURES, random_state=generator)
    tasks = environment.tasks(cell["n_tasks"], cell["n_samples"])
    compile_kernels()
    with one_blas_thread:
        seconds = {
            # A single short run is too noisy.
            method: median(repeat(run, number=1, repeat=1 if method.startswith(BATCH) else 9))
            for method, run in _timed_runs(tasks).items()
        }
    iterations = {
        f"{method}, {'warm' if warm else 'cold'} start": _fit_after_each(tasks, objective, warm)
        for (method, objective), warm in product(BATCHES.items(), (False, True))
    }
    return {"seconds": seconds, "iterations": iterations}


def _fit_after_each(tasks: TaskSet, objective: str, warm_start: bool) -> float:
    """Fit batch LTL again after every task; return the mean number of iterations of a fit.

    A warm start is from the solution for the tasks before.
    """
    learner = BatchLTL(
        TIMED_LAM, objective=objective, tol=TIMED_TOL, warm_start=warm_start, n_threads=1
    )
    sizes = range(1, len(tasks) + 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "BatchLTL was fitted to one task", UserWarning)
        return float(np.mean([learner.fit(tasks[:t]).n_iter_ for t in sizes]))


def _timed_runs(tasks: TaskSet) -> dict[str, Callable[[], Any]]:
    """Return the functions to time: each updates a learner after every task."""

    def online(settings: Settings) -> None:
        learner = OnlineLTL(TIMED_LAM, **settings)
        for X, y in tasks:
            learner.partial_fit(X, y)

    def plain_online(settings: Settings) -> None:
        for _ in reference.online_iterates(tasks, TIMED_LAM, **settings):
            pass

    def plain_batch(objective: str) -> None:
        D = None
        for t in range(1, len(tasks) + 1):
            D = reference.batch_solution(tasks[:t], TIMED_LAM, objective, tol=TIMED_TOL, start=D)

    runs: dict[str, Callable[[], Any]] = {}
    for method, objective in BATCHES.items():
        runs[method] = partial(_fit_after_each, tasks, objective, True)
        runs[f"{method}, plain NumPy"] = partial(plain_batch, objective)
    for method in (DEFAULT, PAPER):
        (settings,) = ONLINE[method]
        runs[method] = partial(online, settings)
        runs[f"{method}, plain NumPy"] = partial(plain_online, settings)
    return runs


def _summarise_timing(rows: Sequence[Row]) -> list[Row]:
    sizes = ("n_tasks", "n_samples")
    measured = _summarise(
        ({key: row[key] for key in sizes} | {"method": name, "measure": measure}, value)
        for row in rows
        for measure in ("seconds", "iterations")
        for name, value in row[measure].items()
    )
    names = "batch LTL, in the paper", "online LTL, in the paper"
    return measured + [
        {"n_tasks": t, "n_samples": n, "method": name, "measure": "seconds", "mean": seconds}
        for t, n in dict.fromkeys((row["n_tasks"], row["n_samples"]) for row in rows)
        for name, seconds in zip(names, PAPER_SECONDS[t, n], strict=True)
    ]


# Section 5.2: the bounds on the excess risk


def _bounds_cells(seed: int, trials: int, quick: bool) -> list[Cell]:
    """Return the numbers of tasks and of samples that the bounds are for: one fixed, one varied.

    Inputs are uniform on the unit sphere, so that the norm of their covariance is 1 / d.
    """
    fixed = {"lam": BOUNDS_LAM, "delta": 0.05, "input_norm": 1 / N_FEATURES}
    varied = [10 ** (k / 2) for k in range(2, 17)]
    sizes = [(round(T), BOUNDS_SIZE) for T in varied] + [(BOUNDS_SIZE, round(n)) for n in varied]
    return [{"T": T, "n": n, **fixed} for T, n in sizes]


def _bounds_cell(cell: Cell) -> Row:
    return {
        ONLINE_BOUND: bounds.online_excess_risk(**cell),
        BATCH_BOUND: bounds.batch_excess_risk(**cell),
        WITHIN_TASKS: 2 * bounds.uniform_generalization(cell["lam"], cell["n"], cell["input_norm"]),
    }


def _summarise_bounds(rows: Sequence[Row]) -> list[Row]:
    return [
        {"n_tasks": row["T"], "n_samples": row["n"], "method": name, "mean": row[name]}
        for row in rows
        for name in (ONLINE_BOUND, BATCH_BOUND, WITHIN_TASKS)
    ]


EXPERIMENTS = {
    "grid": Experiment(_grid_cells, _grid_cell, _summarise_grid, 10, 2),
    "stream": Experiment(_stream_cells, _stream_cell, _summarise_curves, 10, 3),
    "timing": Experiment(_timing_cells, _timing_cell, _summarise_timing, 3, 1),
    "schools": Experiment(_schools_cells, _schools_cell, _summarise_curves, 20, 20),
    "bounds": Experiment(_bounds_cells, _bounds_cell, _summarise_bounds, 1, 1),
}
