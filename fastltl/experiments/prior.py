"""Measure BayesLTL against what people would use instead, on grouped tables and synthetic tasks.

Methods learn from whole training tasks and are given half of the rows of each new task; their
error is the mean squared error on the other half, over the variance of its targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from os import PathLike
from pathlib import Path

import numpy as np

from fastltl._validation import Array, reason_of
from fastltl.bayes import BayesLTL
from fastltl.datasets import load_rdataset, make_environment
from fastltl.experiments import paper, trials
from fastltl.experiments.paper import MULTITASK, Experiment, mean_with_interval
from fastltl.experiments.peers import (
    drop_dependent,
    fit_gpboost,
    fit_lme4,
    missing_gpboost,
    missing_lme4,
    rows_of,
    score_peer,
)
from fastltl.experiments.results import Cell, Results, Row, select
from fastltl.experiments.trials import Split, Trial, make_split
from fastltl.experiments.verdict import ALONE, BATCH, ONLINE
from fastltl.metrics import evaluate, relative_improvement
from fastltl.tasks import TaskSet

POOLED, GPBOOST, LME4 = "pooled", "mixed model (GPBoost)", "mixed model (lme4)"
ONE_PASS, JOINT, PASSES = "BayesLTL, one pass", "BayesLTL, joint", "BayesLTL, 5 passes"
#: The project's other methods.
OURS: dict[str, Callable[[Split], Array]] = {
    ALONE: trials.score_alone,
    POOLED: trials.score_one_model,
    ONLINE: trials.score_online,
    BATCH: trials.score_batch,
    MULTITASK: trials.score_mtl,
}
METHODS = (ALONE, POOLED, ONLINE, BATCH, MULTITASK, GPBOOST, LME4, ONE_PASS, JOINT, PASSES)

#: Grouped tables and their names in R's packages; the task, target and features are those of
#: `load_rdataset`.
TABLES = {
    "sleepstudy": "lme4/sleepstudy",
    "Exam": "mlmRev/Exam",
    "bdf": "nlme/bdf",
    "Hsb82": "mlmRev/Hsb82",
    "Chem97": "mlmRev/Chem97",
}
SCHOOLS, UNSTRUCTURED = "Schools", "no structure"
QUICK_TABLES = ("sleepstudy", "Exam", "bdf")
#: With fewer rows a half could have only one.
FEWEST_ROWS = 4

#: Numbers of training tasks T and of samples n in the paper's environment.
SIZES = ((10, 20), (50, 25), (50, 50), (150, 50))
NOISES = (0.05, 0.2)
#: Tasks whose weights have nothing in common: features, training tasks, samples and noise.
N_UNSTRUCTURED, UNSTRUCTURED_SIZE, UNSTRUCTURED_NOISE = 20, (100, 20), 0.3
N_VALIDATION_TASKS = 38


def reproduce(
    out: Path,
    seed: int = 0,
    trials: int | None = None,
    quick: bool = False,
    n_jobs: int = 1,
    schools: str | PathLike[str] | None = None,
    dask: str | None = None,
) -> Results:
    """Run the experiment and keep its results in out/prior.json; a later call continues from there.

    There are 20 trials by default. A quick run has 2, and small problems only. `schools` is the
    path of schoolData.mat; without it the Schools data are left out. The other arguments are those
    of `paper.reproduce`.
    """
    tasks = None if quick or schools is None else paper.schools_tasks(schools)
    tables = QUICK_TABLES if quick else (*TABLES, *([] if tasks is None else [SCHOOLS]))
    experiment = Experiment(
        partial(list_cells, tables=tables, peers=available_peers()),
        partial(compute_cell, schools=tasks),
        summarise,
        trials=20,
        quick_trials=2,
    )
    return paper.run("prior", experiment, out, seed, trials, quick, n_jobs, dask)


def compile_kernels() -> None:
    """Compile the kernels of all methods, so that no worker process has to."""
    cell: Row = {"seed": 0, "trial": 0, "problem": UNSTRUCTURED, "peers": [], "noise": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lam is at the edge of the candidates
        compute_cell(cell | {"n_tasks": 4, "n_samples": 8})


def available_peers() -> list[str]:
    """Return the names of the mixed models that can be fitted here."""
    missing = {GPBOOST: missing_gpboost(), LME4: missing_lme4()}
    return [name for name, needed in missing.items() if needed is None]


def list_cells(
    seed: int, trials: int, quick: bool, tables: Sequence[str], peers: Sequence[str]
) -> list[Cell]:
    """Return a cell for each problem and trial.

    A cell holds the mixed models to fit, so that it is computed again when another one can be
    fitted. On synthetic tasks lme4 is not among them: its optimizer uses no derivatives, which
    takes long for 50 random slopes.
    """
    problems: list[Row] = [{"problem": name, "peers": list(peers)} for name in tables]
    fast = [name for name in peers if name != LME4]
    for noise, (n_tasks, n_samples) in product(NOISES, SIZES[:1] if quick else SIZES):
        name = f"T = {n_tasks}, n = {n_samples}, noise {noise:g}"
        size = {"n_tasks": n_tasks, "n_samples": n_samples}
        problems.append({"problem": name, "peers": fast, "noise": noise, **size})
    if not quick:
        size = dict(zip(("n_tasks", "n_samples"), UNSTRUCTURED_SIZE, strict=True))
        noise = UNSTRUCTURED_NOISE
        problems.append({"problem": UNSTRUCTURED, "peers": fast, "noise": noise, **size})
    return [
        {"seed": seed, "trial": trial, **problem}
        for trial, problem in product(range(trials), problems)
    ]


def compute_cell(cell: Cell, schools: TaskSet | None = None) -> Row:
    """Return the error of each method on a split, and the coverage of the intervals of BayesLTL.

    The error of a mixed model that is not fitted is None.
    """
    generator = np.random.default_rng([cell["seed"], cell["trial"]])
    if "noise" in cell:
        split = _draw_synthetic(cell, generator)
    else:
        split = split_table(load_table(cell["problem"], schools), generator)
    given, held_out = split.trial.test
    errors: dict[str, float | None]
    errors = {name: float(score(split).mean()) for name, score in OURS.items()}
    for name in PEERS:
        errors[name] = _score_peer(name, split) if name in cell["peers"] else None
    one_pass = BayesLTL().fit(split.training)
    together = TaskSet([*split.training, *given])
    learners = {
        ONE_PASS: one_pass,
        JOINT: BayesLTL().fit(together),
        PASSES: BayesLTL(n_passes=5).fit(together),
    }
    for name, learner in learners.items():
        errors[name] = evaluate(learner, given, held_out).mean()
    variance = np.var(rows_of(held_out).y)
    shares = {name: None if e is None else float(e / variance) for name, e in errors.items()}
    return {"errors": shares, "coverage": trials.coverage(one_pass, given, held_out)}


# Problems


def load_table(name: str, schools: TaskSet | None = None) -> TaskSet:
    """Load the tasks of a table that have enough rows, without constant or dependent columns."""
    if name == SCHOOLS:
        tasks = schools
        if tasks is None:
            raise ValueError("schools must hold the tasks of the Schools data, got None.")
        drop = drop_dependent
    else:
        tasks = load_rdataset(TABLES[name])
        # From the last column on, the first value of a text column is dropped, as in R.
        drop = partial(drop_dependent, backwards=True)
    usable: TaskSet = tasks[tasks.sizes >= FEWEST_ROWS]
    return usable.map_inputs(drop)


def split_table(tasks: TaskSet, generator: np.random.Generator) -> Split:
    """Split tasks into as many training tasks as new tasks."""
    training, new = tasks.split((0.5, 0.5), generator)
    return make_split(training, new, generator)


def _draw_synthetic(cell: Cell, generator: np.random.Generator) -> Split:
    """Draw training tasks, validation tasks and new tasks of the same size, the latter in halves.

    There is no intercept, and the methods that learn a representation know it; BayesLTL does not.
    """
    n_tasks, n_samples, noise = (cell[key] for key in ("n_tasks", "n_samples", "noise"))
    n_held_out = N_VALIDATION_TASKS + paper.N_TEST_TASKS
    if cell["problem"] == UNSTRUCTURED:
        tasks = TaskSet(_draw_unstructured(n_tasks + n_held_out, n_samples, noise, generator))
    else:
        environment = make_environment(paper.N_FEATURES, noise=noise, random_state=generator)
        tasks = environment.tasks(n_tasks + n_held_out, n_samples)
    training, others = tasks[:n_tasks], tasks[n_tasks:]
    given, held_out = others.split_samples(0.5, generator)
    k = N_VALIDATION_TASKS
    validation = given[:k], held_out[:k]
    return Split(training, Trial(training, validation, (given[k:], held_out[k:])), validation)


def _draw_unstructured(
    n_tasks: int, n_samples: int, noise: float, generator: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Yield tasks with standard normal weights."""
    d = N_UNSTRUCTURED
    for _ in range(n_tasks):
        X = generator.standard_normal((n_samples, d)) / np.sqrt(d)
        y = X @ generator.standard_normal(d) + noise * generator.standard_normal(n_samples)
        yield X, y


# Methods


def _score_peer(name: str, split: Split) -> float | None:
    """Return the mean error of a mixed model on the new tasks, or None with a warning."""
    try:
        return float(score_peer(PEERS[name], split).mean())
    except Exception as error:  # the results of the other methods must not be lost
        warnings.warn(f"{name} failed: {reason_of(error)}.", RuntimeWarning, stacklevel=2)
        return None


PEERS = {GPBOOST: fit_gpboost, LME4: fit_lme4}


# Summary


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each problem and method: its mean error over the splits, with an interval.

    ``noise`` is None for tables. ``gain`` is over ITL, in percent; ``ratio`` is to the error of
    ``reference``: ITL or, on tables, a mixed model if there is one; a geometric mean over splits.
    ``left_out`` is the number of splits on which a mixed model was tried but not fitted.
    """
    summary = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        found = select(rows, problem=problem)
        errors = [row["errors"] for row in found]
        known = {
            method: [split for split in errors if split.get(method) is not None]
            for method in METHODS
        }
        noise = found[0].get("noise")
        reference = next((name for name in PEERS if known[name] and noise is None), ALONE)
        for method, splits in known.items():
            if not splits and method not in found[0]["peers"]:
                continue
            pairs = [(e[method], e[reference]) for e in splits if e.get(reference) is not None]
            gains = [relative_improvement([e[method]], [e[ALONE]]) for e in splits]
            row: Row = {
                "problem": problem,
                "noise": noise,
                "method": method,
                **_mean([split[method] for split in splits]),
                "left_out": len(errors) - len(splits),
                "gain": _mean(gains),
                "reference": reference,
                "ratio": _geometric_mean([ours / theirs for ours, theirs in pairs]),
            }
            if method == ONE_PASS:
                by_level = zip(*(one["coverage"] for one in found), strict=True)
                row["coverage"] = [_mean(shares) for shares in by_level]
            summary.append(row)
    return summary


def _mean(values: Sequence[float]) -> Row:
    """Return the mean and its interval; None if there are no values."""
    if not values:
        return {"mean": None, "low": None, "high": None, "trials": 0}
    return mean_with_interval(values)


def _geometric_mean(values: Sequence[float]) -> Row:
    row = _mean(np.log(values).tolist())
    ends = {key: row[key] for key in ("mean", "low", "high")}
    return row | {key: None if end is None else float(np.exp(end)) for key, end in ends.items()}
