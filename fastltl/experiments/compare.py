"""Compare methods that share information among tasks with ridge regression on each task alone."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.preprocessing import StandardScaler

from fastltl._validation import Array, check_generator
from fastltl.experiments import trials
from fastltl.experiments.results import Cell, Results, Row, compute_cells, finish, new_results
from fastltl.experiments.trials import Trial
from fastltl.metrics import relative_improvement
from fastltl.selection import Halves
from fastltl.tasks import TaskSet

ALONE, POOLED = "each task alone (ITL)", "all tasks as one (pooled)"
ONLINE, BATCH, MULTITASK = "online LTL", "batch LTL", "multitask (MTL)"
SHARING = (POOLED, ONLINE, BATCH, MULTITASK)
METRICS = ("mse", "explained_variance")

#: Folds of the cross-validation over tasks.
FOLDS = 4
#: With fewer samples a half could have only one, and so no variance.
FEWEST_SAMPLES = 4
#: With fewer tasks a bootstrap interval over tasks is not reliable.
FEWEST_TASKS_FOR_A_VERDICT = 20
#: A smaller gain, in percent of the error, is not worth a more complex method.
NEGLIGIBLE_GAIN = 1.0
#: Bootstrap resamples, and the largest number of errors drawn at once, which bounds the memory.
RESAMPLES, LARGEST_DRAW = 9999, 2**20
#: Directions of a representation to describe, and features to name for each.
N_DIRECTIONS, N_NAMED = 5, 4
#: Eigenvalues that differ by less than this share of the largest count as equal.
TIED = 1e-6
#: Squares of larger features overflow when they are scaled.
LARGEST_FEATURE = 1e150


def compare(
    tasks: TaskSet, seed: int = 0, scale: bool = True, n_jobs: int = 1, dask: str | None = None
) -> Results:
    """Compare ridge regression on each task alone with methods that share, on held-out tasks.

    Each of four folds holds out a quarter of the tasks. Two thirds of the others are training
    tasks; one third are validation tasks, which select lam. Held-out and validation tasks are
    split into halves: methods are fitted on one half and scored on the other. Every task is
    held out once, and intervals of the gains come from resampling the tasks. Ridge regression on
    each task alone uses no training tasks, so all tasks that are not held out select its lam.

    Tasks that `usable_tasks` drops are not compared. The seed determines the folds, the halves
    and the resampling. `scale` scales every feature to unit variance over the training tasks. The
    folds are shared by n_jobs processes (-1: one per core) or, if `dask` is the address of a
    scheduler, by its workers. The results have ``data``, ``methods``, ``curve``,
    ``representation`` and ``verdict``, and are ready for JSON.
    """
    usable = usable_tasks(tasks)
    results = new_results("compare", {"seed": seed, "scale": scale, "jobs": n_jobs})
    cells: list[Cell] = [{"fold": fold} for fold in range(FOLDS)]
    compute = partial(_score_fold, tasks=usable, seed=seed, scale=scale)
    results["cells"] = list(compute_cells(compute, cells, n_jobs, "comparing", dask))
    results["data"] = {
        "n_tasks": len(usable),
        "n_left_out": len(tasks) - len(usable),
        "n_features": usable.n_features,
        "n_samples": int(usable.sizes.sum()),
    }
    folds = finish(results, cells)
    results["methods"], results["curve"] = _summarise(folds, seed)
    results["verdict"] = verdict(results["methods"], len(usable))
    results["representation"] = _learn_representation(usable, seed, scale)
    return results


def usable_tasks(tasks: TaskSet) -> TaskSet:
    """Drop tasks with fewer than four samples or a constant target; raise if few remain."""
    enough = tasks.sizes >= FEWEST_SAMPLES
    varied = np.array([y.min() < y.max() for _, y in tasks])
    usable: TaskSet = tasks[enough & varied]
    if len(usable) < FOLDS:
        raise ValueError(
            f"a comparison needs at least {FOLDS} tasks with {FEWEST_SAMPLES} samples or more and "
            f"a target that varies, got {len(usable)}: of {len(tasks)} tasks, {(~enough).sum()} "
            f"have fewer samples and {(~varied).sum()} have a constant target."
        )
    largest = max(float(np.abs(X).max()) for X, _ in tasks)
    if largest > LARGEST_FEATURE:
        raise ValueError(
            f"features must not exceed {LARGEST_FEATURE:g}, got {largest:g}: change their units."
        )
    return usable


def compile_comparison() -> None:
    """Compile the kernels that `compare` needs, so that no worker process has to."""
    tasks = TaskSet([(np.eye(4)[:, :2], np.arange(4.0)), (np.ones((4, 2)), np.ones(4))] * FOLDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lam is at the edge of the candidates
        _score_fold({"fold": 0}, tasks, seed=0, scale=True)
    objective = tasks.mean_objective(True, False, 1)
    objective.value_and_gradient(np.eye(2))
    objective.curvature(np.eye(2))  # the fits above are too small to need it


def _score_fold(cell: Cell, tasks: TaskSet, seed: int, scale: bool) -> Row:
    """Score each method on the held-out tasks of a fold, and online LTL as it learns."""
    order = check_generator(seed).permutation(len(tasks))
    is_held_out = np.arange(len(order)) % FOLDS == cell["fold"]
    held_out, others = tasks[order[is_held_out]], tasks[order[~is_held_out]]
    trial, halves_of_others = _make_trial(others, held_out, seed, scale)
    n_training, checkpoints = len(trial.training), _checkpoints(len(tasks))
    curve = list(trials.fit_online(trial, {*checkpoints, n_training}))
    fits = {
        ALONE: trials.fit_itl(trial, halves_of_others),
        ONLINE: curve[-1],
        BATCH: next(trials.fit_batch(trial, [n_training])),
        MULTITASK: trials.fit_mtl(trial),
    }
    methods: dict[str, Row] = {
        name: {"lam": fit.lam, "seconds": fit.seconds}
        | {metric: trial.score(fit.D, metric).tolist() for metric in METRICS}
        for name, fit in fits.items()
    }
    start = time.perf_counter()
    lam = trials.select_pooled_lam(trial)
    methods[POOLED] = {
        metric: trials.score_pooled(trial, trial.test, np.array([lam]), metric)[0].tolist()
        for metric in METRICS
    }
    methods[POOLED] |= {"lam": lam, "seconds": time.perf_counter() - start}
    errors = {f.n_tasks: trial.score(f.D).tolist() for f in curve if f.n_tasks in checkpoints}
    return {"labels": list(map(str, held_out.labels)), "methods": methods, "curve": errors}


def _make_trial(others: TaskSet, test: TaskSet, seed: int, scale: bool) -> tuple[Trial, Halves]:
    """Split the tasks that are not held out; return the trial and the halves of all of them."""
    n_training = _n_training(len(others))
    if scale:
        scaler = StandardScaler().fit(np.concatenate([X for X, _ in others[:n_training]]))
        others, test = (part.map_inputs(scaler.transform) for part in (others, test))
    train_halves, test_halves = others.split_samples(0.5, seed)
    validation = train_halves[n_training:], test_halves[n_training:]
    halves = test.split_samples(0.5, seed)
    trial = Trial(others[:n_training], validation, halves, fit_intercept=True)
    return trial, (train_halves, test_halves)


def _n_training(n_tasks: int) -> int:
    """Return how many of the tasks that are not held out are training tasks."""
    return round(2 * n_tasks / 3)


def _checkpoints(n_tasks: int) -> list[int]:
    """Return geometrically spaced numbers of training tasks that every fold reaches."""
    fewest = _n_training(n_tasks - math.ceil(n_tasks / FOLDS))
    return sorted(set(np.geomspace(1, fewest, 15).round().astype(int).tolist()))


def _summarise(folds: list[Row], seed: int) -> tuple[list[Row], list[Row]]:
    """Return a row for each method, and one for each point of online LTL's learning curve.

    Rows of methods have mean scores over tasks, the gain over each task alone, and wins.
    """

    def all_tasks(method: str, metric: str) -> Array:
        return np.concatenate([fold["methods"][method][metric] for fold in folds])

    baseline = all_tasks(ALONE, "mse")
    rows = []
    for method in (ALONE, *SHARING):
        errors = all_tasks(method, "mse")
        row: Row = {
            "method": method,
            **{metric: float(all_tasks(method, metric).mean()) for metric in METRICS},
            "seconds": sum(fold["methods"][method]["seconds"] for fold in folds),
            "lams": [fold["methods"][method]["lam"] for fold in folds],
        }
        if method != ALONE:
            row["gain"] = relative_improvement(errors, baseline)
            # The strict level is Bonferroni's: all intervals hold together with 95 % confidence.
            levels = (0.95, 1 - 0.05 / len(SHARING))
            row["interval"], row["strict_interval"] = gain_intervals(errors, baseline, levels, seed)
            same = np.isclose(errors, baseline, rtol=1e-9, atol=0.0)
            row["wins"] = float(np.where(same, 0.5, errors < baseline).mean())
        rows.append(row)
    curve = []
    for n_tasks in folds[0]["curve"]:
        errors = np.concatenate([fold["curve"][n_tasks] for fold in folds])
        curve.append({"n_tasks": n_tasks, "gain": relative_improvement(errors, baseline)})
    return rows, curve


def gain_intervals(
    errors: Array, baseline: Array, levels: Sequence[float], seed: int
) -> list[list[float]]:
    """Return bootstrap-t intervals of the relative improvement, in percent, at each level.

    The tasks are resampled, and an interval is gain - q * deviation for quantiles q of
    (gain* - gain) / deviation* over the resamples. With few tasks and heavy-tailed errors it
    covers the true gain more often than quantiles of gain* do.
    """
    random, n = np.random.default_rng(seed), len(errors)
    gain, deviation = _gain_and_deviation(errors, baseline)
    n_drawn = max(1, LARGEST_DRAW // n)
    t_values = [np.zeros(1)]
    for start in range(0, RESAMPLES, n_drawn):
        drawn = random.integers(n, size=(min(n_drawn, RESAMPLES - start), n))
        gains, deviations = _gain_and_deviation(errors[drawn], baseline[drawn])
        varied = deviations > 0
        t_values.append((gains[varied] - gain) / deviations[varied])
    intervals = []
    for level in levels:
        low, high = np.quantile(np.concatenate(t_values), [(1 - level) / 2, (1 + level) / 2])
        end = min(100.0, float(gain - low * deviation))  # an error can fall by at most 100 %
        intervals.append([float(gain - high * deviation), end])
    return intervals


def _gain_and_deviation(errors: Array, baseline: Array) -> tuple[Array, Array]:
    """100 (1 - mean(errors) / mean(baseline)) over the last axis, and its standard deviation."""
    base = baseline.mean(axis=-1, keepdims=True)
    base = np.where(base > 0.0, base, 1.0)
    ratio = errors.mean(axis=-1, keepdims=True) / base
    deviation = np.std((errors - ratio * baseline) / base, axis=-1) / np.sqrt(errors.shape[-1])
    return 100.0 * (1.0 - ratio[..., 0]), 100.0 * deviation


def verdict(methods: Sequence[Row], n_tasks: int) -> dict[str, str]:
    """Decide whether sharing helps: "yes", "no" or "unclear", with a sentence for the report.

    Sharing helps if some method has a gain that is not negligible, wins on most tasks, and has a
    strict interval above zero. It does not help if every strict interval ends below a gain that
    is not negligible.
    """
    sharing = [row for row in methods if row["method"] in SHARING]
    better = [
        row
        for row in sharing
        if row["gain"] >= NEGLIGIBLE_GAIN and row["wins"] > 0.5 and row["strict_interval"][0] > 0
    ]
    if n_tasks < FEWEST_TASKS_FOR_A_VERDICT:
        helps, opening = "unclear", f"Whether sharing helps is unclear with only {n_tasks} tasks"
    elif better:
        helps, opening = "yes", "Sharing helps"
    elif all(row["strict_interval"][1] < NEGLIGIBLE_GAIN for row in sharing):
        helps, opening = "no", "Sharing does not help"
    else:
        helps, opening = "unclear", "Whether sharing helps is unclear from this data"
    best = max(better or sharing, key=lambda row: float(row["gain"]))
    low, high = best["strict_interval"]
    sentence = (
        f"{opening}: {best['method']} {'lowers' if best['gain'] >= 0 else 'raises'} the error on "
        f"held-out tasks by {abs(best['gain']):.1f} % against ridge regression on each alone (95 % "
        f"interval of the gain, widened for {len(sharing)} methods: {low:.1f} to {high:.1f} %)."
    )
    return {"helps": helps, "sentence": sentence}


def _learn_representation(tasks: TaskSet, seed: int, scale: bool) -> Row:
    """Describe what online LTL learns from two thirds of all tasks; the others select lam."""
    shuffled = tasks[check_generator(seed).permutation(len(tasks))]
    trial, _ = _make_trial(shuffled, shuffled, seed, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the folds have warned if lam is at the edge
        fit = next(trials.fit_online(trial, [len(trial.training)]))
    names = tasks.feature_names or [f"x{j}" for j in range(tasks.n_features)]
    return {"n_tasks": fit.n_tasks, "lam": fit.lam, **describe(fit.D, names)}


def describe(D: Array, names: Sequence[str]) -> Row:
    """Describe a representation by its effective rank and the features of its main directions.

    With p the eigenvalues of D divided by their sum, the effective rank is exp(entropy of p): d
    for D = I, 1 for a single direction. A direction lists the features of its largest entries,
    and its sign makes the first positive. Directions whose eigenvalue is repeated are not unique,
    and are omitted.
    """
    values, vectors = np.linalg.eigh(D)
    shares = np.clip(values[::-1], 0.0, None) / np.clip(values, 0.0, None).sum()
    positive = shares[shares > 0]
    distances = np.abs(np.diff(shares, prepend=np.inf, append=-np.inf))
    is_simple = np.minimum(distances[:-1], distances[1:]) > TIED * shares[0]
    directions = []
    for k in np.flatnonzero(is_simple & (shares > TIED))[:N_DIRECTIONS]:
        direction = np.round(vectors[:, -1 - k], 6)  # rounding errors reorder no features
        largest = np.argsort(-np.abs(direction), kind="stable")[:N_NAMED]
        signed = direction * np.sign(direction[largest[0]])
        features = [{"name": names[j], "weight": float(signed[j])} for j in largest]
        directions.append({"share": float(shares[k]), "features": features})
    return {
        "effective_rank": float(np.exp(-np.sum(positive * np.log(positive)))),
        "shares": shares.tolist(),
        "directions": directions,
    }
