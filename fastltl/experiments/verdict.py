"""Summarise the errors of methods on held-out tasks: intervals, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastltl._validation import Array
from fastltl.experiments.results import Results, Row
from fastltl.experiments.trials import LEVELS
from fastltl.tasks import TaskSet

ALONE, POOLED = "each task alone (ITL)", "one model for all (pooled)"
INTERCEPTS, SLOPES = "mixed model, random intercepts", "mixed model, random slopes"
ONLINE, BATCH, MULTITASK, BAYES = "online LTL", "batch LTL", "multitask (MTL)", "BayesLTL"
METHODS = (BAYES, ALONE, POOLED, INTERCEPTS, SLOPES, ONLINE, BATCH, MULTITASK)
#: The first of these whose error is close to the lowest is recommended: one model before several,
#: and what learns in one pass before what is fitted to all data again.
PREFERRED = (POOLED, ALONE, BAYES, INTERCEPTS, SLOPES, ONLINE, BATCH, MULTITASK)

#: With fewer tasks a bootstrap interval over tasks is not reliable.
FEWEST_TASKS_FOR_A_VERDICT = 20
#: A smaller gain, in percent of the error, is not worth a more complex method.
NEGLIGIBLE_GAIN = 1.0
#: Bootstrap resamples: the most, the fewest, and the number of errors to draw in all if it lies
#: between them. LARGEST_DRAW errors are drawn at once, which bounds the memory.
RESAMPLES, FEWEST_RESAMPLES, DRAWN, LARGEST_DRAW = 9999, 1999, 2**21, 2**20

OPENINGS = {
    "yes": "Sharing helps",
    "no": "Sharing gains little",
    "unclear": "Whether sharing helps is not certain",
}


def summarise(folds: Sequence[Row], tasks: TaskSet, repeats: int, seed: int) -> Results:
    """Return the error of each method, its gain over each task alone, and the verdict."""
    n_rows = np.zeros(len(tasks))
    for fold in folds:
        n_rows[fold["tasks"]] = fold["n_rows"]
    targets = np.concatenate([y for _, y in tasks])
    variance = float(targets.var())

    def squares(kind: str, name: Any) -> Array:
        """Return the squared errors of a method, or of a point of the curve, by repeat and task."""
        found = np.empty((repeats, len(tasks)))
        for fold in folds:
            found[fold["repeat"], fold["tasks"]] = fold[kind][name]
        return found

    by_method = {
        name: squares("squares", name)
        for name in METHODS
        if all(name in fold["squares"] for fold in folds)
    }
    baseline = by_method[ALONE]

    def measure(errors: Array) -> Row:
        mse = float(errors.mean(axis=0).sum() / n_rows.sum())
        return {"mse": mse, "explained": 1.0 - mse / variance}

    # The strict level is Bonferroni's: all intervals hold together with 95 % confidence.
    levels = (0.95, 1 - 0.05 / (len(by_method) - 1))
    methods = []
    for name, errors in by_method.items():
        seconds = sum(fold["seconds"][name] for fold in folds)
        row: Row = {"method": name, **measure(errors), "seconds": seconds}
        if name != ALONE:
            row["gain"] = float(_gain_and_deviation(errors.mean(axis=0), baseline.mean(axis=0))[0])
            row["interval"], row["strict_interval"] = gain_intervals(errors, baseline, levels, seed)
        methods.append(row)
    curve, alone = [], measure(baseline)["mse"]
    for n_tasks in folds[0]["curve"]:
        errors = squares("curve", n_tasks)
        margin = 1.96 * total_deviation(errors, baseline) / 100 * alone / variance
        row = measure(errors)
        row |= {"low": row["explained"] - margin, "high": row["explained"] + margin}
        curve.append({"n_tasks": n_tasks, **row})
    weights = np.array([np.sum(fold["n_rows"]) for fold in folds])
    covered = np.average([fold["covered"] for fold in folds], axis=0, weights=weights)
    by_task = [
        {
            "label": str(label),
            "n_rows": int(n),
            "mse": {name: float(by_method[name][:, i].mean() / n) for name in by_method},
        }
        for i, (label, n) in enumerate(zip(tasks.labels, n_rows, strict=True))
    ]
    return {
        "data": {
            "n_tasks": len(tasks),
            "n_features": tasks.n_features,
            "n_rows": len(targets),
            "variance": variance,
        },
        "methods": methods,
        "curve": curve,
        "coverage": [
            {"level": level, "covered": float(share)}
            for level, share in zip(LEVELS, covered, strict=True)
        ],
        "tasks": by_task,
        "verdict": verdict(methods, len(tasks)),
    }


def gain_intervals(
    errors: Array, baseline: Array, levels: Sequence[float], seed: int
) -> list[list[float]]:
    """Return intervals of the gain over a baseline, in percent of its error, at each level.

    Errors have the shape (repeats, tasks). An interval is gain - q * deviation for quantiles q of
    (gain* - gain) / deviation* over resamples of the tasks, a bootstrap-t interval. With few tasks
    and heavy-tailed errors it covers the true gain more often than quantiles of gain* do. The
    deviation has a part for the choice of tasks and one for the choice of folds and halves.
    """
    random, n = np.random.default_rng(seed), errors.shape[1]
    ours, theirs = errors.mean(axis=0), baseline.mean(axis=0)
    gain = _gain_and_deviation(ours, theirs)[0]
    resamples = min(RESAMPLES, max(FEWEST_RESAMPLES, DRAWN // n))
    n_drawn = max(1, LARGEST_DRAW // n)
    t_values = [np.zeros(1)]
    for start in range(0, resamples, n_drawn):
        drawn = random.integers(n, size=(min(n_drawn, resamples - start), n))
        gains, deviations = _gain_and_deviation(ours[drawn], theirs[drawn])
        varied = deviations > 0
        t_values.append((gains[varied] - gain) / deviations[varied])
    total = total_deviation(errors, baseline)
    intervals = []
    for level in levels:
        low, high = np.quantile(np.concatenate(t_values), [(1 - level) / 2, (1 + level) / 2])
        end = min(100.0, float(gain - low * total))  # an error can fall by at most 100 %
        intervals.append([float(gain - high * total), end])
    return intervals


def total_deviation(errors: Array, baseline: Array) -> float:
    """Return the standard deviation of the gain over tasks, folds and halves."""
    _, over_tasks = _gain_and_deviation(errors.mean(axis=0), baseline.mean(axis=0))
    over_splits = 0.0
    if (repeats := len(errors)) > 1:
        over_splits = np.std(_gain_and_deviation(errors, baseline)[0], ddof=1) / np.sqrt(repeats)
    return float(np.hypot(over_tasks, over_splits))


def _gain_and_deviation(errors: Array, baseline: Array) -> tuple[Array, Array]:
    """100 (1 - mean(errors) / mean(baseline)) over the last axis, and its standard deviation."""
    base = baseline.mean(axis=-1, keepdims=True)
    base = np.where(base > 0.0, base, 1.0)
    ratio = errors.mean(axis=-1, keepdims=True) / base
    deviation = np.std((errors - ratio * baseline) / base, axis=-1) / np.sqrt(errors.shape[-1])
    return 100.0 * (1.0 - ratio[..., 0]), 100.0 * deviation


def verdict(methods: Sequence[Row], n_tasks: int) -> dict[str, str]:
    """Choose the method to use, and say why.

    It is the first of PREFERRED whose error is at most 1 % above the lowest. Sharing helps, "yes",
    if it shares and the strict interval of its gain over each task alone is above zero; "no" if
    every strict interval ends below a gain worth having; and else this is "unclear".
    """
    rows = {row["method"]: row for row in methods}
    best = min(methods, key=lambda row: float(row["mse"]))
    enough = (1 + NEGLIGIBLE_GAIN / 100) * best["mse"]
    use = next(name for name in PREFERRED if name in rows and rows[name]["mse"] <= enough)
    sharing = [row for row in methods if row["method"] != ALONE]
    helps = "unclear"
    if n_tasks >= FEWEST_TASKS_FOR_A_VERDICT:
        if use != ALONE and rows[use]["strict_interval"][0] > 0:
            helps = "yes"
        elif all(row["strict_interval"][1] < NEGLIGIBLE_GAIN for row in sharing):
            helps = "no"
    others = " and ".join(
        f"{100 * rows[name]['explained']:.1f} % by {name}"
        for name in (ALONE, POOLED)
        if name != use
    )
    sentences = [
        f"Use {use}: in held-out tasks, given half of their rows, it explains "
        f"{100 * rows[use]['explained']:.1f} % of the variance in the other half, against {others}."
    ]
    if use != best["method"]:
        excess = 100 * (1 - best["mse"] / rows[use]["mse"])
        sentences.append(
            f"The error of {best['method']} is {excess:.1f} % lower, which is too little to matter."
        )
    shown = rows[use] if use != ALONE else min(sharing, key=lambda row: float(row["mse"]))
    low, high = shown["strict_interval"]
    opening = OPENINGS[helps]
    if n_tasks < FEWEST_TASKS_FOR_A_VERDICT:
        opening += f" with only {n_tasks} tasks"
    change = "lower" if shown["gain"] >= 0 else "higher"
    sentences.append(
        f"{opening}: the error of {shown['method']} is {abs(shown['gain']):.1f} % {change} than "
        f"that of ridge regression on each task alone. The 95 % interval of this gain is {low:.1f} "
        f"to {high:.1f} %, wider than in the table because {len(sharing)} methods are compared."
    )
    return {"use": use, "best": best["method"], "helps": helps, "sentence": " ".join(sentences)}
