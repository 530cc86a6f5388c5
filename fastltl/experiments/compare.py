"""Compare methods on held-out tasks of a table, and say which one to use."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fastltl._frames import import_pandas
from fastltl._validation import Array, check_count, check_flag, reason_of
from fastltl.bayes import BayesLTL
from fastltl.datasets import load_rdataset, make_environment
from fastltl.experiments import trials
from fastltl.experiments.peers import fit_gpboost, missing_gpboost, rows_of, score_peer
from fastltl.experiments.results import (
    Cell,
    Results,
    Row,
    Table,
    compute_cells,
    connected,
    finish,
    format_table,
    new_results,
)
from fastltl.experiments.trials import Split
from fastltl.experiments.verdict import (
    ALONE,
    BATCH,
    BAYES,
    INTERCEPTS,
    MULTITASK,
    ONLINE,
    POOLED,
    SLOPES,
    summarise,
)
from fastltl.metrics import evaluate
from fastltl.tasks import TaskSet

#: Folds of the cross-validation over tasks.
FOLDS = 4
#: The cross-validation is repeated until about so many tasks have been held out, fewer if there
#: are more than so many features; the fewest and most repetitions.
HELD_OUT, MANY_FEATURES, FEWEST_REPEATS, MOST_REPEATS = 1500, 20, 2, 50
#: A held-out task has rows to fit and rows to predict.
FEWEST_ROWS = 2
#: A method may take so many times as long as the slowest of the quick ones, and so many seconds.
SLOWEST, LEAST_SECONDS = 10.0, 2.0
#: Shares of the tasks to which a mixed model is fitted first, to foresee its time; and the seconds
#: below which such a fit foretells nothing, since a busy machine may have delayed it.
PILOTS, SHORT_PILOT = (1 / 16, 1 / 4), 1.0
#: If 95 % intervals contain fewer targets than this share, they are said to be too narrow.
LEAST_COVERED = 0.9
#: Squares of larger numbers overflow when they are scaled.
LARGEST = 1e150


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: errors of methods on held-out tasks, and which one to use.

    Printed, it is the table and the verdict of ``fastltl compare``.

    Attributes
    ----------
    best, verdict : str
        The recommended method, and a sentence that says which method to use and why.
    results : dict
        All numbers, ready for JSON. ``methods`` has a row for each method, ``curve`` the error of
        BayesLTL by the number of tasks seen, ``coverage`` of its intervals, ``left_out`` the
        methods that were not compared and why, and ``tasks`` the error on each task.
    """

    results: Results

    @property
    def best(self) -> str:
        """The recommended method."""
        return str(self.results["verdict"]["use"])

    @property
    def verdict(self) -> str:
        """The verdict in words: which method to use, and why."""
        return str(self.results["verdict"]["sentence"])

    def to_frame(self) -> Any:
        """Return a pandas data frame with a row for each method.

        Columns are explained, mse, gain (in percent of the error of each task alone), the ends low
        and high of its 95 % interval, and seconds.
        """
        rows = [
            {name: row[name] for name in ("method", "explained", "mse")}
            | {"gain": row.get("gain", 0.0)}
            | dict(zip(("low", "high"), row.get("interval", (0.0, 0.0)), strict=True))
            | {"seconds": row["seconds"]}
            for row in self.results["methods"]
        ]
        return import_pandas().DataFrame(rows).set_index("method")

    def write_report(self, folder: str | PathLike[str]) -> Path:
        """Write a page, report.html, with pictures and results.json; return its path.

        It needs matplotlib and jinja2: ``pip install 'fastltl[report]'``.
        """
        try:
            from fastltl.experiments import report
        except ModuleNotFoundError as error:
            message = f"a report needs the package {error.name}: pip install 'fastltl[report]'."
            raise ImportError(message) from error
        report.check_outputs(Path(folder), ["compare"])
        about = f"{size_sentence(self.results)}."
        return report.write_comparison(self.results, "Which method to use", about, Path(folder))

    def __str__(self) -> str:
        table = format_table(method_table(self.results))
        notes = [f"{name} was left out: {why}." for name, why in self.results["left_out"].items()]
        parts = [size_sentence(self.results), table, self.verdict, coverage_sentence(self.results)]
        return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])

    def __repr__(self) -> str:
        return f"<Comparison: use {self.best}>"


def compare(
    tasks: Any,
    task: str | None = None,
    target: str | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    *,
    repeats: int | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    dask: str | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare methods on held-out tasks, and say which one to use.

    Ridge regression on each task alone and one for all tasks, mixed models, online LTL, batch LTL,
    MTL and `BayesLTL`. Each of four folds holds out a quarter of the tasks. The methods learn from
    the other tasks, are given half of the rows of each held-out task, and predict the other half.
    This is repeated with other folds and halves; `seed` determines all of them.

    Parameters
    ----------
    tasks : TaskSet or data frame
        For a data frame, `task` and `target` name columns, as in `TaskSet.from_frame`.
    task, target, features, drop
        Columns of the data frame.
    repeats : int, optional
        How often all tasks are held out; by default 2 to 50 times, more often if tasks are few.
    seed : int
    n_jobs : int
        Number of processes; -1 is one for each core.
    dask : str, optional
        Address of a Dask scheduler whose workers compute the folds instead.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Comparison

    Notes
    -----
    Mixed models, with random intercepts and with independent random slopes, are fitted by GPBoost
    if it is installed (``pip install 'fastltl[peers]'``). Mixed models, batch LTL and MTL are left
    out if they take more than ten times as long as the others, or fail. Tasks of one row are not
    compared.

    Examples
    --------
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(5, 1, noise=0.1, random_state=0).tasks(24, 10)
    >>> comparison = ltl.compare(tasks, repeats=1)
    >>> comparison.best in comparison.verdict
    True
    """
    if not isinstance(tasks, TaskSet):
        if task is None or target is None:
            missing = "task" if task is None else "target"
            raise TypeError(
                f"{missing} must name a column of the data frame, got None; or pass a TaskSet."
            )
        tasks = TaskSet.from_frame(tasks, task, target, features, drop=drop)
    elif not (task is None and target is None and features is None and not drop):
        raise ValueError("task, target, features and drop go with a data frame, got a TaskSet.")
    for name, number, least in (("seed", seed, 0), ("n_jobs", n_jobs, 1)):
        is_whole = isinstance(number, int | np.integer)
        if not is_whole or not (number >= least or (name == "n_jobs" and number == -1)):
            also = ", or -1 for one for each core" if name == "n_jobs" else ""
            raise ValueError(f"{name} must be an integer >= {least}{also}, got {number!r}.")
    seed, n_jobs = int(seed), int(n_jobs)
    if dask is not None:
        connected(dask).close()  # before the work begins
    usable = usable_tasks(tasks)
    if repeats is None:
        wanted = math.ceil(HELD_OUT / len(usable) / max(1.0, usable.n_features / MANY_FEATURES))
        repeats = min(max(wanted, FEWEST_REPEATS), MOST_REPEATS)
    repeats = check_count(repeats, "repeats")
    results = new_results("compare", {"seed": seed, "repeats": repeats, "jobs": n_jobs})
    left_out: dict[str, str] = {}
    if needed := missing_gpboost():
        left_out = dict.fromkeys((INTERCEPTS, SLOPES), f"it needs {needed}")
    compile_comparison()
    score = partial(_score_fold, tasks=usable, seed=seed)
    # The first fold shows which methods are too slow.
    first: Cell = {"repeat": 0, "fold": 0, "left_out": list(left_out), "is_first": True}
    done = list(compute_cells(score, [first], n_jobs=1))
    left_out |= done[0]["values"]["failed"]
    others: list[Cell] = [
        {"repeat": repeat, "fold": fold, "left_out": list(left_out), "is_first": False}
        for repeat, fold in product(range(repeats), range(FOLDS))
        if (repeat, fold) != (0, 0)
    ]
    label = "comparing" if check_flag(progress, "progress") else None
    done += compute_cells(score, others, n_jobs, label, dask)
    results["cells"] = done
    folds = finish(results, [first, *others])
    del results["cells"]  # they have a number for each task, repeat and method
    for fold in folds:
        left_out |= fold["failed"]
    results |= {"left_out": left_out, **summarise(folds, usable, repeats, seed)}
    results["data"]["n_left_out"] = len(tasks) - len(usable)
    results["learned"] = _describe_prior(usable)
    return Comparison(results)


#: The demonstration's environment, with little noise so that there is something to gain.
DEMO: Row = {"n_features": 30, "n_tasks": 200, "n_samples": 40, "noise": 0.05}


def demo_tasks(data: str, seed: int = 0) -> TaskSet:
    """Return the tasks of the demonstration: "synthetic" ones, or "exam" scores in schools."""
    if data == "exam":
        return load_rdataset("mlmRev/Exam")
    environment = make_environment(DEMO["n_features"], noise=DEMO["noise"], random_state=seed)
    return environment.tasks(DEMO["n_tasks"], DEMO["n_samples"])


def usable_tasks(tasks: TaskSet) -> TaskSet:
    """Drop tasks of one row; raise if few remain, or if numbers are too large."""
    usable: TaskSet = tasks[tasks.sizes >= FEWEST_ROWS]
    if len(usable) < FOLDS:
        raise ValueError(
            f"a comparison needs at least {FOLDS} tasks with {FEWEST_ROWS} rows or more, got "
            f"{len(usable)}: of {len(tasks)} tasks, {len(tasks) - len(usable)} have one row."
        )
    targets = np.concatenate([y for _, y in usable])
    if targets.min() == targets.max():
        raise ValueError(f"the target must vary, got {targets[0]:g} in every row.")
    largest = max(max(float(np.abs(X).max()), float(np.abs(y).max())) for X, y in usable)
    if largest > LARGEST:
        raise ValueError(
            f"features and target must not exceed {LARGEST:g}, got {largest:g}: change their units."
        )
    return usable


def compile_comparison() -> None:
    """Compile the kernels that `compare` needs, so that no worker process has to."""
    tasks = TaskSet([(np.eye(4)[:, :2], np.arange(4.0)), (np.ones((4, 2)), np.ones(4))] * FOLDS)
    cell = {"repeat": 0, "fold": 0, "left_out": [INTERCEPTS, SLOPES], "is_first": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lam is at the edge of the candidates
        _score_fold(cell, tasks, seed=0)
    objective = tasks.mean_objective(True, False, 1)
    objective.value_and_gradient(np.eye(2))
    objective.curvature(np.eye(2), np.eye(2))  # the fits above are too small to need it


# Scores


def _score_fold(cell: Cell, tasks: TaskSet, seed: int) -> Row:
    """Score each method on the held-out tasks of a fold, and BayesLTL also as it learns.

    Scores are sums of squared errors over the held-out rows of each task.
    """
    # A seed of another length would be padded with zeros: no fold has this number.
    order = np.random.default_rng([seed, cell["repeat"], FOLDS]).permutation(len(tasks))
    is_held_out = np.arange(len(order)) % FOLDS == cell["fold"]
    generator = np.random.default_rng([seed, cell["repeat"], cell["fold"]])
    split = trials.make_split(tasks[order[~is_held_out]], tasks[order[is_held_out]], generator)
    errors: dict[str, Array] = {}
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - start

    for name, score in QUICK.items():
        with timed(name):
            errors[name] = score(split)
    with timed(BAYES):
        learner = BayesLTL().fit(split.training)
        errors[BAYES] = evaluate(learner, *split.trial.test)
    limit = max(LEAST_SECONDS, SLOWEST * max(seconds.values())) if cell["is_first"] else np.inf
    for name, limited in SLOW.items():
        if name in cell["left_out"]:
            continue
        try:
            with timed(name):
                errors[name] = limited(split, limit)
        except TimeoutError:
            times = ", ten times the others" if limit > LEAST_SECONDS else ""
            failed[name] = f"it takes more than {limit:.0f} s a fold{times}"
        except MIXED_ERRORS.get(name, ()) as error:
            failed[name] = f"it failed ({reason_of(error).rstrip('.')})"
    n_rows = split.trial.test[1].sizes
    to_squares = split.target_unit**2 * n_rows
    curve = _learning_curve(split, _checkpoints(len(tasks)))
    return {
        "tasks": order[is_held_out].tolist(),
        "n_rows": n_rows.tolist(),
        "squares": {name: (error * to_squares).tolist() for name, error in errors.items()},
        "curve": {n_tasks: (error * to_squares).tolist() for n_tasks, error in curve.items()},
        "covered": trials.coverage(learner, *split.trial.test),
        "seconds": seconds,
        "failed": failed,
    }


def _learning_curve(split: Split, checkpoints: Sequence[int]) -> dict[int, Array]:
    """Return the errors of BayesLTL on the new tasks after some numbers of training tasks."""
    learner, errors = BayesLTL(), {}
    for n_tasks, (X, y) in enumerate(split.training[: checkpoints[-1]], start=1):
        learner.partial_fit(X, y)
        if n_tasks in checkpoints:
            errors[n_tasks] = evaluate(learner, *split.trial.test)
    return errors


def _checkpoints(n_tasks: int) -> list[int]:
    """Return geometrically spaced numbers of training tasks that every fold reaches."""
    fewest = n_tasks - math.ceil(n_tasks / FOLDS)
    return sorted(set(np.geomspace(1, fewest, 12).round().astype(int).tolist()))


def _score_mixed(split: Split, limit: float, slopes: bool) -> Array:
    """Score a mixed model on each new task; it is fitted to the given rows, too.

    TimeoutError is raised if it takes more than so many seconds, or if fits to some of the tasks
    show that it would.
    """
    import gpboost  # not within the time that is measured

    fit = partial(fit_gpboost, slopes=slopes)
    for share in PILOTS if limit < np.inf else ():
        pilot = rows_of(split.training[: max(2, math.ceil(share * len(split.training)))])
        start = time.perf_counter()
        # So few tasks may not be enough for a fit.
        with suppress(gpboost.basic.GPBoostError, RuntimeError, ValueError):
            fit(pilot, pilot)
        if time.perf_counter() - start > max(SHORT_PILOT, limit * share):
            raise TimeoutError("the fit would take too long")
    start = time.perf_counter()
    errors = score_peer(fit, split)
    if time.perf_counter() - start > limit:
        raise TimeoutError("the fit takes too long")
    return errors


QUICK: Mapping[str, Callable[[Split], Array]] = {
    ALONE: trials.score_alone,
    POOLED: trials.score_one_model,
    ONLINE: trials.score_online,
}
SLOW: Mapping[str, Callable[[Split, float], Array]] = {
    INTERCEPTS: partial(_score_mixed, slopes=False),
    SLOPES: partial(_score_mixed, slopes=True),
    BATCH: trials.score_batch,
    MULTITASK: trials.score_mtl,
}
#: Errors of a mixed model must not lose the results of the other methods.
MIXED_ERRORS = dict.fromkeys((INTERCEPTS, SLOPES), Exception)


def _describe_prior(tasks: TaskSet) -> Row:
    """Describe what BayesLTL learns from all tasks."""
    found = BayesLTL().fit(tasks).summary()
    scales = [*np.concatenate([X for X, _ in tasks]).std(axis=0), 1.0]
    columns = found.names, found.means, found.standard_errors, found.deviations, scales
    rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    return {
        # The scale is the deviation of the feature itself, the others are of its weight.
        "features": [
            {"name": name, "mean": mean, "se": se, "deviation": deviation, "scale": scale}
            for name, mean, se, deviation, scale in rows
            if np.isfinite([mean, se, deviation]).all()  # features that never vary have none
        ],
        "noise": found.noise_std,
        "expected_error": found.expected_rmse,
        "effective_rank": found.effective_rank,
    }


# Text


def method_table(results: Results) -> Table:
    """Tabulate the errors of the methods, and mark the recommended one."""
    header = ("method", "explained %", "MSE", "gain %", "95 % interval", "seconds", "")
    rows = []
    for row in results["methods"]:
        gain = interval = ""
        if "gain" in row:
            low, high = row["interval"]
            gain, interval = f"{row['gain']:+z.1f}", f"{low:+z.1f} to {high:+z.1f}"
        mark = "<- use this" if row["method"] == results["verdict"]["use"] else ""
        numbers = f"{100 * row['explained']:.1f}", f"{row['mse']:.4g}", gain, interval
        rows.append((row["method"], *numbers, f"{row['seconds']:.1f}", mark))
    return Table(header, rows, words=(0, 6))


def size_sentence(results: Results) -> str:
    """Say how large the data are."""
    data = results["data"]
    left_out = f" ({data['n_left_out']} of one row left out)" if data["n_left_out"] else ""
    n_features = data["n_features"]
    sizes = f"{n_features} feature{'s' if n_features > 1 else ''}, {data['n_rows']} rows"
    return f"{data['n_tasks']} tasks{left_out}, {sizes}"


def coverage_sentence(results: Results) -> str:
    """Say how many targets the intervals of BayesLTL contained."""
    shares = {row["level"]: f"{100 * row['covered']:.1f} %" for row in results["coverage"]}
    sentence = (
        f"The 95 % intervals of {BAYES} contain {shares[95]} of the held-out targets, and its 80 % "
        f"intervals {shares[80]}."
    )
    covered = {row["level"]: row["covered"] for row in results["coverage"]}[95]
    return f"{sentence} They are too narrow here." if covered < LEAST_COVERED else sentence
