"""Adapt a trained learner to the tasks of a file: write weights and predictions."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fastltl._text import spreadsheet_cell
from fastltl._validation import Array, check_computed, read_errors
from fastltl.adapted import Prior
from fastltl.base import RepresentationLearner
from fastltl.bayes import BayesLTL
from fastltl.effects import estimates_of, weight_names
from fastltl.io.checkpoints import check_type, read_checkpoint, restored
from fastltl.io.files import whole_file
from fastltl.io.streams import TaskStream, errors_naming, open_stream
from fastltl.ridge import RepresentationRidge
from fastltl.train import encoding_of, scale_of, scaled


class Adapted(NamedTuple):
    """The files that `adapt` wrote, and the numbers of tasks and rows in them."""

    weights: Path
    predictions: Path
    n_tasks: int
    n_fitted: int
    n_predicted: int


class Solution(NamedTuple):
    """The weights of a task, the intercept first, and the columns of predictions of its rows.

    Under a prior each weight comes with its standard error.
    """

    weights: list[float]
    columns: list[Array]


#: Solves a task, given X, y and the rows that have a target.
Solver = Callable[[Array, Array, npt.NDArray[np.bool_]], Solution]


def adapt(
    checkpoint: Path,
    file: Path,
    task: str | None,
    target: str | None,
    out: Path,
    repeats: str = "error",
    level: float | None = None,
) -> Adapted:
    """Fit the tasks of a file with the learner of a checkpoint; write weights and predictions.

    Each task is fitted to its rows with a target, and all its rows are predicted. `task` and
    `target` default to the columns that `fastltl train` recorded in the checkpoint. A `BayesLTL`
    also gives standard errors, those of its method `effects`, and intervals that a target lies in
    with a probability of `level` percent, by default 95; tasks without any target are predicted
    from the prior. Labels and names that a spreadsheet would take for formulas are written with an
    apostrophe before them; names that the files have for other columns, in parentheses.
    """
    saved = read_checkpoint(checkpoint)
    learner = restored(saved, checkpoint)
    has_prior = isinstance(learner, BayesLTL)
    is_learner = has_prior or isinstance(learner, RepresentationLearner)
    if not is_learner or not learner.__sklearn_is_fitted__():
        raise ValueError(f"{checkpoint} must hold a fitted learner, got {learner}.")
    if level is not None and not has_prior:
        kind = type(learner).__name__
        raise ValueError(f"--level needs a BayesLTL, got {kind} in {checkpoint}: leave it out.")
    with read_errors(checkpoint, "a checkpoint"):
        settings = saved.position.get("settings", {})
        check_type(settings, dict, "settings")
        encoding = encoding_of(saved, file)
        scale = scale_of(saved, learner.n_features_in_)
    # A file of rows to predict need not have the column of train, but one that is asked for.
    is_optional = has_prior and target is None
    target = settings.get("target") if target is None else target
    if target is None and not has_prior:
        raise ValueError(f"target must name a column of {file}, got none: use --target.")
    stream = open_stream(
        file,
        settings.get("task") if task is None else task,
        target,
        settings.get("features") if file.is_dir() else None,  # of arrays, not of their columns
        repeats,
        encoding=encoding,
        optional_target=is_optional,
    )
    names = learner.__dict__.get("feature_names_in_")
    agree = names is None or stream.feature_names == tuple(names)
    if stream.n_features != learner.n_features_in_ or not agree:
        wanted, found = learner.n_features_in_, ", ".join(stream.feature_names)
        raise ValueError(f"{file} must have the {wanted} features of {checkpoint}, got {found}.")
    paths = out / "weights.csv", out / "predictions.csv"
    if file.resolve() in (path.resolve() for path in paths):
        raise ValueError(f"out must not be {out}: adapt would overwrite its input {file} there.")
    if not stream.has_target:
        reason = "no target is named" if target is None else f"{file} has no column {target!r}"
        warnings.warn(f"{reason}: all rows are predicted from the prior.", stacklevel=2)
    solve = _solver(learner, scale, 95.0 if level is None else level)
    with _folder(out), _csv_writer(paths[0]) as weights, _csv_writer(paths[1]) as predictions:
        *features, intercept = weight_names(stream.feature_names, stream.n_features, True)
        columns = [intercept, *features]
        errors = [f"{name}_se" for name in columns] if has_prior else []
        columns = _distinct(columns, ["task", "n_labelled", *errors])
        if has_prior:
            columns = [part for pair in zip(columns, errors, strict=True) for part in pair]
        weights.writerow(["task", "n_labelled", *map(spreadsheet_cell, columns)])
        columns = ["task", "row", "prediction", *(["lower", "upper"] if has_prior else [])]
        if target is not None:
            columns[2:2] = _distinct([target], columns)
        predictions.writerow(map(spreadsheet_cell, columns))
        counts = _write_tasks(stream, solve, target is not None, weights, predictions)
    return Adapted(*paths, *counts)


def _distinct(names: list[str], others: list[str]) -> list[str]:
    """Put names of the data in parentheses that a file has for other columns."""
    return [f"({name})" if name in others else name for name in names]


def _write_tasks(
    stream: TaskStream, solve: Solver, has_targets: bool, weights: Any, predictions: Any
) -> tuple[int, int, int]:
    """Solve the tasks one by one; return the numbers of tasks, and of rows with and without target.

    A row of weights is written for each task, and one of predictions for each of its rows, with the
    targets in it if it `has_targets`.
    """
    n_tasks = n_fitted = n_predicted = 0
    for task in stream.tasks():
        known = ~task.missing
        stream.check(task._replace(y=np.where(known, task.y, 0.0)))
        with errors_naming(task):
            solution = solve(task.X, task.y, known)
        n_known, label = int(known.sum()), spreadsheet_cell(task.label)
        weights.writerow([label, n_known, *_cells(solution.weights)])
        columns: list[list[Any]] = [column.tolist() for column in solution.columns]
        if has_targets:
            columns.insert(0, _cells(task.y.tolist()))
        predictions.writerows(zip(repeat(label), task.rows.tolist(), *columns, strict=False))
        n_tasks += 1
        n_fitted += n_known
        n_predicted += len(known) - n_known
    return n_tasks, n_fitted, n_predicted


def _cells(numbers: list[float]) -> list[Any]:
    """Return the cells of numbers: those that are not known, which are NaN, are empty."""
    return ["" if np.isnan(number) else number for number in numbers]


def _solver(learner: BayesLTL | RepresentationLearner, scale: Array, level: float) -> Solver:
    """Return the function that solves tasks; `level` is the percentage of the intervals."""
    if isinstance(learner, BayesLTL):
        n_deviations = -float(ndtri((100.0 - level) / 200.0))
        run = learner._fitted_run()
        prior, of_mean = run.prior(), run.mean_covariance()
        return partial(_solve_with_prior, learner, prior, of_mean, n_deviations)
    model = RepresentationRidge(learner.D_, fit_intercept=learner.fit_intercept)
    return partial(_solve_with_representation, model, scale)


def _solve_with_prior(
    learner: BayesLTL,
    prior: Prior,
    mean_covariance: Array,
    n_deviations: float,
    X: Array,
    y: Array,
    known: npt.NDArray[np.bool_],
) -> Solution:
    """Solve a task under a prior; intervals reach so many standard deviations to each side."""
    model = learner._regressor(prior)
    if known.any():
        model = learner._solve(prior, X[known], y[known])
    prediction, deviations = model.predict(X, return_std=True)
    with np.errstate(over="ignore"):
        reach = n_deviations * deviations
        bounds = check_computed(np.array([prediction - reach, prediction + reach]))
    pairs = np.column_stack(estimates_of(prior, mean_covariance, model, X[known]))
    first = pairs[-1:] if prior.has_intercept else np.zeros((1, 2))
    weights = np.concatenate([first, pairs[: X.shape[1]]]).ravel().tolist()
    return Solution(weights, [prediction, *bounds])


def _solve_with_representation(
    model: RepresentationRidge, scale: Array, X: Array, y: Array, known: npt.NDArray[np.bool_]
) -> Solution:
    """Solve a task by ridge regression, with features that are divided by a scale."""
    if not known.any():
        raise ValueError(
            "there must be a row with a target, got none: leave the task out, or train with "
            "--learner bayes, which predicts such tasks too."
        )
    X = scaled(X, scale)
    model.fit(X[known], y[known])
    with np.errstate(over="ignore"):
        weights = check_computed(model.coef_ / scale)
    return Solution([model.intercept_, *weights.tolist()], [model.predict(X)])


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Create a folder, and remove it again if the block fails and leaves it empty."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty
            path.rmdir()
        raise


@contextmanager
def _csv_writer(path: Path) -> Iterator[Any]:
    """Open a CSV writer; the file appears when it is complete."""
    with whole_file(path) as file:
        # Labels may be file names that are not UTF-8.
        text = io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="")
        yield csv.writer(text)
        text.detach()
