"""Does sharing help? Every task is held out once, and methods are compared on all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap
from sklearn.preprocessing import StandardScaler

from fastltl.evaluation import relative_improvement
from fastltl.results import Cell, Results, compute_cells, new_results
from fastltl.tasks import TaskSet
from fastltl.trials import (
    Trial,
    choose_pooled_lam,
    learn_alone,
    learn_batch,
    learn_multitask,
    learn_online,
    score_pooled,
)
from fastltl.validation import Array, check_generator

ALONE, POOLED = "each task alone (ITL)", "all tasks as one (pooled)"
ONLINE, BATCH, MULTITASK = "online LTL", "batch LTL", "multitask (MTL)"
METRICS = ("mse", "explained_variance")
SHARING = (ONLINE, BATCH, MULTITASK)

#: Folds of the cross-validation over tasks.
FOLDS = 4
#: Half of a task's samples must be enough to have a variance.
FEWEST_SAMPLES = 4
#: With fewer tasks an interval from resampling them means nothing.
FEWEST_TASKS_FOR_A_VERDICT = 10
#: A gain, in percent of the error, that is not worth the trouble.
NEGLIGIBLE_GAIN = 1.0
#: Directions of a representation that are put into words, and features that name each.
N_DIRECTIONS, N_FEATURES = 5, 4


def compare(tasks: TaskSet, seed: int = 0, scale: bool = True, n_jobs: int = 1) -> Results:
    """Ridge regression on each task alone against methods that share, on tasks held out.

    In each of four folds a quarter of the tasks is held out for the test; of the others two
    thirds are training tasks, one third validation tasks that choose lam. Held-out and
    validation tasks are halved: methods fit the one half and are measured on the other. So each
    task is tested once, and gains have intervals from resampling the tasks.

    Parameters
    ----------
    tasks : TaskSet
        Those of fewer than four samples are left out.
    seed : int
        Of the division into folds, into halves, and of the resampling.
    scale : bool
        Whether to give every feature a variance of one over the training tasks.
    n_jobs : int
        Processes that share the folds.

    Returns
    -------
    dict
        ``data``, ``methods``, ``curve``, ``representation`` and ``verdict``, ready for JSON.
    """
    enough = tasks.sizes >= FEWEST_SAMPLES
    if enough.sum() < FOLDS:
        raise ValueError(
            f"there must be at least {FOLDS} tasks of {FEWEST_SAMPLES} samples or more to compare "
            f"methods on, got {enough.sum()} (and {(~enough).sum()} of fewer samples)."
        )
    usable = tasks[enough]
    results = new_results("compare", {"seed": seed, "scale": scale, "folds": FOLDS})
    cells = [{"fold": fold} for fold in range(FOLDS)]
    folds = compute_cells(_Folds(usable, seed, scale), cells, n_jobs, "comparing")
    results["cells"] = sorted(folds, key=lambda fold: int(fold["cell"]["fold"]))
    results["data"] = {
        "n_tasks": len(usable),
        "n_left_out": len(tasks) - len(usable),
        "n_features": usable.n_features,
        "n_samples": int(usable.sizes.sum()),
    }
    values = [fold["values"] for fold in results["cells"]]
    results["methods"] = _methods(values, seed)
    results["curve"] = _curve(values)
    results["verdict"] = verdict(results["methods"], len(usable))
    results["representation"] = _representation(usable, seed, scale)
    return results


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
        n_training = _n_training(len(others))
        trial = _trial(others[:n_training], others[n_training:], held_out, self.seed, self.scale)
        return {"labels": list(map(str, held_out.labels)), **_judge(trial, self.checkpoints())}

    def checkpoints(self) -> list[int]:
        """Numbers of training tasks that every fold has, ever farther apart."""
        fewest = _n_training(len(self.tasks) - math.ceil(len(self.tasks) / FOLDS))
        return sorted(set(np.geomspace(1, fewest, 15).round().astype(int).tolist()))


def _n_training(n_tasks: int) -> int:
    """How many of the tasks not held out are training tasks; the others choose lam."""
    return round(2 * n_tasks / 3)


def _trial(training: TaskSet, validation: TaskSet, test: TaskSet, seed: int, scale: bool) -> Trial:
    """Halve the validation and test tasks; scale all by the training tasks."""
    parts = [training, *validation.split_samples(0.5, seed), *test.split_samples(0.5, seed)]
    if scale:
        scaler = StandardScaler().fit(np.concatenate([X for X, _ in training]))
        parts = [part.map_inputs(scaler.transform) for part in parts]
    training, *halves = parts
    return Trial(training, (halves[0], halves[1]), (halves[2], halves[3]), fit_intercept=True)


def _judge(trial: Trial, checkpoints: list[int]) -> dict[str, Any]:
    """Scores of each method on each test task, and of online LTL as it learns."""
    n_tasks = len(trial.training)
    *curve, online = learn_online(trial, {*checkpoints, n_tasks})
    methods = {
        ALONE: learn_alone(trial),
        ONLINE: online,
        BATCH: learn_batch(trial, n_tasks),
        MULTITASK: learn_multitask(trial),
    }
    judged: dict[str, dict[str, Any]] = {
        name: {"lam": learned.lam, "seconds": learned.seconds}
        | {metric: trial.judge(learned.D, metric).tolist() for metric in METRICS}
        for name, learned in methods.items()
    }
    start = time.perf_counter()
    lam = choose_pooled_lam(trial)
    judged[POOLED] = {
        metric: score_pooled(trial, trial.test, np.array([lam]), metric)[0].tolist()
        for metric in METRICS
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
    for method in (ALONE, POOLED, *SHARING):
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
            row["interval"] = gain_interval(errors, baseline, 0.95, seed)
            # Three methods share: that one of their intervals misses the truth by chance is to be
            # as unlikely as for one.
            row["strict_interval"] = gain_interval(errors, baseline, 1 - 0.05 / len(SHARING), seed)
            wins = np.where(errors == baseline, 0.5, errors < baseline)
            row["wins"] = float(wins.mean())
        rows.append(row)
    return rows


def gain_interval(errors: Array, baseline: Array, level: float, seed: int) -> list[float]:
    """Interval of the relative improvement, in percent, by resampling the tasks."""

    def gain(ours: Array, theirs: Array, axis: int = -1) -> Array:
        gains: Array = 100.0 * (1.0 - ours.mean(axis) / theirs.mean(axis))
        return gains

    found = bootstrap(
        (errors, baseline),
        gain,
        paired=True,
        vectorized=True,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return [float(found.low), float(found.high)]


def _curve(folds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gain of online LTL over each task alone after 1, 2, ... training tasks."""
    baseline = np.concatenate([fold["methods"][ALONE]["mse"] for fold in folds])
    rows = []
    for n_tasks in folds[0]["curve"]:
        errors = np.concatenate([fold["curve"][n_tasks] for fold in folds])
        rows.append({"n_tasks": n_tasks, "gain": relative_improvement(errors, baseline)})
    return rows


def verdict(methods: Sequence[dict[str, Any]], n_tasks: int) -> dict[str, str]:
    """Whether sharing helps: "yes", "no" or "unclear", and a sentence that says so."""
    rows = {row["method"]: row for row in methods}
    sharing = [rows[name] for name in SHARING]
    sure = [row for row in sharing if row["strict_interval"][0] > 0]
    if n_tasks < FEWEST_TASKS_FOR_A_VERDICT:
        helps, opening = "unclear", f"Whether sharing helps cannot be told from {n_tasks} tasks"
    elif sure:
        helps, opening = "yes", "Sharing helps"
    elif all(row["strict_interval"][1] < NEGLIGIBLE_GAIN for row in sharing):
        helps, opening = "no", "Sharing does not help"
    else:
        helps, opening = "unclear", "Whether sharing helps cannot be told from this data"
    best = max(sure or sharing, key=lambda row: float(row["gain"]))
    low, high = best["interval"]
    sentence = (
        f"{opening}: {best['method']} {_verb(best['gain'])} the error on unseen tasks by "
        f"{abs(best['gain']):.1f} % against ridge regression on each alone (95 % interval of the "
        f"gain: {low:.1f} to {high:.1f} %)"
    )
    pooled = rows[POOLED]["gain"]
    if pooled > max(0.0, best["gain"]):
        sentence += f"; one model for all tasks lowers it by {pooled:.1f} %"
    return {"helps": helps, "sentence": f"{sentence}."}


def _verb(gain: float) -> str:
    return "lowers" if gain >= 0 else "raises"


def _representation(tasks: TaskSet, seed: int, scale: bool) -> dict[str, Any]:
    """What online LTL learns from three quarters of the tasks, the others choosing lam."""
    training, validation = tasks.split((0.75, 0.25), seed)
    trial = _trial(training, validation, validation, seed, scale)
    learned = next(learn_online(trial, [len(training)]))
    names = tasks.feature_names or [f"x{j}" for j in range(tasks.n_features)]
    return {"n_tasks": learned.n_tasks, "lam": learned.lam, **describe(learned.D, names)}


def describe(D: Array, names: Sequence[str]) -> dict[str, Any]:
    """A representation in words: its effective rank, and its leading directions by features.

    With p the eigenvalues of D divided by their sum, the effective rank is the exponential of
    their entropy: d for D = I, 1 for one direction. A direction is named by the features of its
    largest entries, the first of which is positive.
    """
    values, vectors = np.linalg.eigh(D)
    shares = np.clip(values[::-1], 0.0, None) / np.clip(values, 0.0, None).sum()
    positive = shares[shares > 0]
    directions = []
    for share, direction in zip(shares[:N_DIRECTIONS], vectors.T[::-1], strict=False):
        largest = np.argsort(-np.abs(direction), kind="stable")[:N_FEATURES]
        signed = direction * np.sign(direction[largest[0]])
        directions.append(
            {
                "share": float(share),
                "features": [{"name": names[j], "weight": float(signed[j])} for j in largest],
            }
        )
    return {
        "effective_rank": float(np.exp(-np.sum(positive * np.log(positive)))),
        "shares": shares.tolist(),
        "directions": directions,
    }
