"""Does sharing help? Every task is held out once, and methods are compared on all of them."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from fastltl._validation import Array, check_generator
from fastltl.experiments.results import Cell, Results, compute_cells, finish, new_results
from fastltl.experiments.trials import (
    Trial,
    choose_pooled_lam,
    learn_alone,
    learn_batch,
    learn_multitask,
    learn_online,
    score_pooled,
)
from fastltl.metrics import relative_improvement
from fastltl.selection import Halves
from fastltl.tasks import TaskSet

ALONE, POOLED = "each task alone (ITL)", "all tasks as one (pooled)"
ONLINE, BATCH, MULTITASK = "online LTL", "batch LTL", "multitask (MTL)"
SHARING = (POOLED, ONLINE, BATCH, MULTITASK)
JUDGED_BY = ("mse", "explained_variance")

#: Folds of the cross-validation over tasks.
FOLDS = 4
#: Half of a task's samples must be enough to have a variance.
FEWEST_SAMPLES = 4
#: With fewer tasks an interval from resampling them means nothing.
FEWEST_TASKS_FOR_A_VERDICT = 20
#: A gain, in percent of the error, that is not worth the trouble.
NEGLIGIBLE_GAIN = 1.0
#: How often tasks are resampled, and how many numbers of theirs are held at once.
RESAMPLES, RESAMPLED_AT_ONCE = 9999, 2**20
#: Directions of a representation that are put into words, and features that name each.
N_DIRECTIONS, N_NAMED = 5, 4
#: Shares of the trace that differ by less, relative to the largest, are equal.
TIED = 1e-6
#: Features may not be larger than this, or their squares overflow as they are scaled.
LARGEST_FEATURE = 1e150


def compare(
    tasks: TaskSet,
    seed: int = 0,
    scale: bool = True,
    n_jobs: int = 1,
    dask: str | None = None,
) -> Results:
    """Ridge regression on each task alone against methods that share, on tasks held out.

    In each of four folds a quarter of the tasks is held out for the test; of the others two
    thirds are training tasks, one third validation tasks that choose lam. Held-out and
    validation tasks are halved: methods fit the one half and are measured on the other. So each
    task is tested once, and gains have intervals from resampling the tasks. Ridge regression on
    each task alone needs no training tasks, so all that are not held out choose its lam.

    Parameters
    ----------
    tasks : TaskSet
        What `usable_tasks` leaves out is left out.
    seed : int
        Of the division into folds, into halves, and of the resampling.
    scale : bool
        Whether to give every feature a variance of one over the training tasks.
    n_jobs : int
        Processes that share the folds; -1 for one on each core.
    dask : str, optional
        Address of a Dask scheduler whose cluster has the processes.

    Returns
    -------
    dict
        ``data``, ``methods``, ``curve``, ``representation`` and ``verdict``, ready for JSON.
    """
    usable = usable_tasks(tasks)
    results = new_results("compare", {"seed": seed, "scale": scale, "jobs": n_jobs})
    cells: list[Cell] = [{"fold": fold} for fold in range(FOLDS)]
    folds_of = _Folds(usable, seed, scale)
    results["cells"] = list(compute_cells(folds_of, cells, n_jobs, "comparing", dask))
    results["data"] = {
        "n_tasks": len(usable),
        "n_left_out": len(tasks) - len(usable),
        "n_features": usable.n_features,
        "n_samples": int(usable.sizes.sum()),
    }
    folds = finish(results, cells)
    results["methods"] = _methods(folds, seed)
    results["curve"] = _curve(folds)
    results["verdict"] = verdict(results["methods"], len(usable))
    results["representation"] = _representation(usable, seed, scale)
    return results


def usable_tasks(tasks: TaskSet) -> TaskSet:
    """Tasks of at least four samples and a target that varies; an error if they are too few."""
    enough = tasks.sizes >= FEWEST_SAMPLES
    varied = np.array([y.min() < y.max() for _, y in tasks])
    if (enough & varied).sum() < FOLDS:
        raise ValueError(
            f"there must be at least {FOLDS} tasks with {FEWEST_SAMPLES} samples or more and a "
            f"target that varies, got {(enough & varied).sum()}: of {len(tasks)} tasks "
            f"{(~enough).sum()} have fewer samples, and {(~varied).sum()} the same target in all."
        )
    largest = max(float(np.abs(X).max()) for X, _ in tasks)
    if largest > LARGEST_FEATURE:
        raise ValueError(
            f"features must not be larger than {LARGEST_FEATURE:g}, got {largest:g}: change their "
            "units."
        )
    usable: TaskSet = tasks[enough & varied]
    return usable


def compile_comparison() -> None:
    """Run what `compare` runs once on next to nothing, so that no process compiles it later."""
    tasks = TaskSet([(np.eye(4)[:, :2], np.arange(4.0)), (np.ones((4, 2)), np.ones(4))] * FOLDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a lam at the edge
        _Folds(tasks, seed=0, scale=True)({"fold": 0})
    objective = tasks.mean_objective(True, False, 1)
    objective.value_and_gradient(np.eye(2))
    objective.curvature(np.eye(2))  # of which so small a fit has no need


@dataclass(frozen=True)
class _Folds:
    """The division of tasks into folds; called, the scores of all methods on one of them."""

    tasks: TaskSet
    seed: int
    scale: bool

    def __call__(self, cell: Cell) -> dict[str, Any]:
        order = check_generator(self.seed).permutation(len(self.tasks))
        is_held_out = np.arange(len(order)) % FOLDS == cell["fold"]
        held_out, others = self.tasks[order[is_held_out]], self.tasks[order[~is_held_out]]
        trial, halves_of_others = _trial(others, held_out, self.seed, self.scale)
        judged = _judge(trial, halves_of_others, self.checkpoints())
        return {"labels": list(map(str, held_out.labels)), **judged}

    def checkpoints(self) -> list[int]:
        """Numbers of training tasks that every fold has, ever farther apart."""
        fewest = _n_training(len(self.tasks) - math.ceil(len(self.tasks) / FOLDS))
        return sorted(set(np.geomspace(1, fewest, 15).round().astype(int).tolist()))


def _n_training(n_tasks: int) -> int:
    """How many of the tasks not held out are training tasks; the others choose lam."""
    return round(2 * n_tasks / 3)


def _trial(others: TaskSet, test: TaskSet, seed: int, scale: bool) -> tuple[Trial, Halves]:
    """Training and validation tasks, and test tasks, in halves; and the halves of all others.

    All are scaled by the training tasks.
    """
    n_training = _n_training(len(others))
    if scale:
        scaler = StandardScaler().fit(np.concatenate([X for X, _ in others[:n_training]]))
        others, test = (part.map_inputs(scaler.transform) for part in (others, test))
    fit, measure = others.split_samples(0.5, seed)
    trial = Trial(
        others[:n_training],
        (fit[n_training:], measure[n_training:]),
        test.split_samples(0.5, seed),
        fit_intercept=True,
    )
    return trial, (fit, measure)


def _judge(trial: Trial, halves_of_others: Halves, checkpoints: list[int]) -> dict[str, Any]:
    """Scores of each method on each test task, and of online LTL as it learns."""
    n_tasks = len(trial.training)
    *curve, online = learn_online(trial, {*checkpoints, n_tasks})
    methods = {
        ALONE: learn_alone(trial, halves_of_others),
        ONLINE: online,
        BATCH: learn_batch(trial, n_tasks),
        MULTITASK: learn_multitask(trial),
    }
    judged: dict[str, dict[str, Any]] = {
        name: {"lam": learned.lam, "seconds": learned.seconds}
        | {metric: trial.judge(learned.D, metric).tolist() for metric in JUDGED_BY}
        for name, learned in methods.items()
    }
    start = time.perf_counter()
    lam = choose_pooled_lam(trial)
    judged[POOLED] = {
        metric: score_pooled(trial, trial.test, np.array([lam]), metric)[0].tolist()
        for metric in JUDGED_BY
    }
    judged[POOLED] |= {"lam": lam, "seconds": time.perf_counter() - start}
    learning = {
        learned.n_tasks: trial.judge(learned.D).tolist()
        for learned in (*curve, online)
        if learned.n_tasks in checkpoints
    }
    return {"methods": judged, "curve": learning}


def _methods(folds: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """A row for each method: mean scores over all tasks, gain over each task alone, wins."""

    def over_tasks(method: str, metric: str) -> Array:
        return np.concatenate([fold["methods"][method][metric] for fold in folds])

    baseline = over_tasks(ALONE, "mse")
    rows = []
    for method in (ALONE, *SHARING):
        errors = over_tasks(method, "mse")
        row: dict[str, Any] = {
            "method": method,
            "mse": float(errors.mean()),
            "explained_variance": float(over_tasks(method, "explained_variance").mean()),
            "seconds": sum(fold["methods"][method]["seconds"] for fold in folds),
            "lams": [fold["methods"][method]["lam"] for fold in folds],
        }
        if method != ALONE:
            row["gain"] = relative_improvement(errors, baseline)
            # Strict: that one of the intervals of all who share misses the truth by chance is to
            # be as unlikely as it is for one.
            levels = (0.95, 1 - 0.05 / len(SHARING))
            row["interval"], row["strict_interval"] = gain_intervals(errors, baseline, levels, seed)
            same = np.isclose(errors, baseline, rtol=1e-9, atol=0.0)
            row["wins"] = float(np.where(same, 0.5, errors < baseline).mean())
        rows.append(row)
    return rows


def gain_intervals(
    errors: Array, baseline: Array, levels: Sequence[float], seed: int
) -> list[list[float]]:
    """Intervals of the relative improvement, in percent, by resampling the tasks.

    Bootstrap-t: quantiles of (gain* - gain) / deviation* over the resamples, times the deviation.
    Where tasks are few and some errors large, it holds the truth more often than quantiles of
    gain* do.
    """
    random, n = np.random.default_rng(seed), len(errors)
    gain, deviation = _gain_and_deviation(errors, baseline)
    at_once = max(1, RESAMPLED_AT_ONCE // n)
    deviates = [np.zeros(1)]
    for start in range(0, RESAMPLES, at_once):
        drawn = random.integers(n, size=(min(at_once, RESAMPLES - start), n))
        gains, deviations = _gain_and_deviation(errors[drawn], baseline[drawn])
        moved = deviations > 0
        deviates.append((gains[moved] - gain) / deviations[moved])
    intervals = []
    for level in levels:
        low, high = np.quantile(np.concatenate(deviates), [(1 - level) / 2, (1 + level) / 2])
        # An error falls by 100 % at the most.
        ends = float(gain - high * deviation), min(100.0, float(gain - low * deviation))
        intervals.append(list(ends))
    return intervals


def _gain_and_deviation(errors: Array, baseline: Array) -> tuple[Array, Array]:
    """100 (1 - mean(errors) / mean(baseline)) over the last axis, and its standard deviation."""
    base = baseline.mean(axis=-1, keepdims=True)
    base = np.where(base > 0.0, base, 1.0)
    ratio = errors.mean(axis=-1, keepdims=True) / base
    deviation = np.std((errors - ratio * baseline) / base, axis=-1) / np.sqrt(errors.shape[-1])
    return 100.0 * (1.0 - ratio[..., 0]), 100.0 * deviation


def _curve(folds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gain of online LTL over each task alone after 1, 2, ... training tasks."""
    baseline = np.concatenate([fold["methods"][ALONE]["mse"] for fold in folds])
    rows = []
    for n_tasks in folds[0]["curve"]:
        errors = np.concatenate([fold["curve"][n_tasks] for fold in folds])
        rows.append({"n_tasks": n_tasks, "gain": relative_improvement(errors, baseline)})
    return rows


def verdict(methods: Sequence[dict[str, Any]], n_tasks: int) -> dict[str, str]:
    """Whether sharing helps: "yes", "no" or "unclear", and a sentence that says so.

    It helps if a method has a gain worth having, wins on most tasks, and has an interval above
    zero, widened for there being several methods; it does not if all such intervals end below a
    gain worth having.
    """
    sharing = [row for row in methods if row["method"] in SHARING]
    sure = [
        row
        for row in sharing
        if row["gain"] >= NEGLIGIBLE_GAIN and row["wins"] > 0.5 and row["strict_interval"][0] > 0
    ]
    if n_tasks < FEWEST_TASKS_FOR_A_VERDICT:
        helps, opening = "unclear", f"Whether sharing helps cannot be told from {n_tasks} tasks"
    elif sure:
        helps, opening = "yes", "Sharing helps"
    elif all(row["strict_interval"][1] < NEGLIGIBLE_GAIN for row in sharing):
        helps, opening = "no", "Sharing does not help"
    else:
        helps, opening = "unclear", "Whether sharing helps cannot be told from this data"
    best = max(sure or sharing, key=lambda row: float(row["gain"]))
    low, high = best["strict_interval"]
    sentence = (
        f"{opening}: {best['method']} {_verb(best['gain'])} the error on held-out tasks by "
        f"{abs(best['gain']):.1f} % against ridge regression on each alone (95 % interval of the "
        f"gain, widened for {len(sharing)} methods: {low:.1f} to {high:.1f} %)."
    )
    return {"helps": helps, "sentence": sentence}


def _verb(gain: float) -> str:
    return "lowers" if gain >= 0 else "raises"


def _representation(tasks: TaskSet, seed: int, scale: bool) -> dict[str, Any]:
    """What online LTL learns from two thirds of the tasks, the others choosing lam."""
    shuffled = tasks[check_generator(seed).permutation(len(tasks))]
    trial, _ = _trial(shuffled, shuffled, seed, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a lam at the edge, as the folds have warned
        learned = next(learn_online(trial, [len(trial.training)]))
    names = tasks.feature_names or [f"x{j}" for j in range(tasks.n_features)]
    return {"n_tasks": learned.n_tasks, "lam": learned.lam, **describe(learned.D, names)}


def describe(D: Array, names: Sequence[str]) -> dict[str, Any]:
    """A representation in words: its effective rank, and its leading directions by features.

    With p the eigenvalues of D divided by their sum, the effective rank is the exponential of
    their entropy: d for D = I, 1 for one direction. A direction is named by the features of its
    largest entries, the first of which is positive; one whose eigenvalue another has too is any
    of many, and is left out.
    """
    values, vectors = np.linalg.eigh(D)
    shares = np.clip(values[::-1], 0.0, None) / np.clip(values, 0.0, None).sum()
    positive = shares[shares > 0]
    distances = np.abs(np.diff(shares, prepend=np.inf, append=-np.inf))
    stands_alone = np.minimum(distances[:-1], distances[1:]) > TIED * shares[0]
    directions = []
    for k in np.flatnonzero(stands_alone & (shares > TIED))[:N_DIRECTIONS]:
        direction = np.round(vectors[:, -1 - k], 6)  # entries that differ by less are equal
        largest = np.argsort(-np.abs(direction), kind="stable")[:N_NAMED]
        signed = direction * np.sign(direction[largest[0]])
        directions.append(
            {
                "share": float(shares[k]),
                "features": [{"name": names[j], "weight": float(signed[j])} for j in largest],
            }
        )
    return {
        "effective_rank": float(np.exp(-np.sum(positive * np.log(positive)))),
        "shares": shares.tolist(),
        "directions": directions,
    }
