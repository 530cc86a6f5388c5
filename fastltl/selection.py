"""select_lam: fit a learner for many values of lam, and choose one by validation tasks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from decimal import Context
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fastltl._objective import TaskCollection, TaskSource
from fastltl._threads import run_in_threads
from fastltl._validation import Array, check_choice, check_flag, check_lams, check_threads
from fastltl.base import RepresentationLearner, largest_size
from fastltl.batch import BatchLTL, fit_path
from fastltl.metrics import METRICS, HeldOut, check_aligned, is_error
from fastltl.ridge import ITL
from fastltl.tasks import TaskSet

#: The candidates of the paper: 30 values of lam, log-spaced on [1e-6, 1e3].
#: They come from decimal arithmetic, which rounds the same on every CPU, unlike powers of floats.
_EXACT = Context(prec=30)
LAMS = np.array([float(_EXACT.power(10, _EXACT.divide(9 * i - 6 * 29, 29))) for i in range(30)])
LAMS.flags.writeable = False

Halves = tuple[TaskSet, TaskSet]


@dataclass(frozen=True, repr=False, eq=False)
class Selection:
    """The result of `select_lam`.

    Attributes
    ----------
    learner : estimator
        Fitted with the best lam.
    lams : ndarray of shape (n_lams,)
        The candidates, in the order given.
    scores : ndarray of shape (n_lams,)
        Mean score of each over the validation tasks.
    best_lam : float
    metric : str
        What the scores are.
    task_scores : ndarray of shape (n_lams, n_tasks)
        Score of each on each validation task.

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> task = (np.eye(2), np.ones(2))
    >>> halves = ltl.TaskSet([task]), ltl.TaskSet([task])
    >>> ltl.select_lam(ltl.ITL(), [task, task], halves, lams=[0.5])
    Selection of lam for ITL by 1 validation tasks
          lam  mse
     5.00e-01  0.25  <- best
    """

    learner: RepresentationLearner
    lams: Array
    scores: Array
    best_lam: float
    metric: str
    task_scores: Array

    def __repr__(self) -> str:
        name, n_tasks = type(self.learner).__name__, self.task_scores.shape[1]
        lines = [f"Selection of lam for {name} by {n_tasks} validation tasks"]
        lines.append(f"{'lam':>9}  {self.metric}")
        best = int(np.argmax(self.lams == self.best_lam))
        for k, (lam, score) in enumerate(zip(self.lams, self.scores, strict=True)):
            mark = "  <- best" if k == best else ""
            lines.append(f"{lam:9.2e}  {score:.6g}{mark}")
        return "\n".join(lines)


def select_lam(
    learner: RepresentationLearner,
    tasks: Any,
    validation: Halves,
    lams: npt.ArrayLike | None = None,
    metric: str = "mse",
    n_threads: int | None = None,
) -> Selection:
    """Fit a learner with many values of lam, and choose by the error on validation tasks.

    Each lam is scored by fitting the training half of every validation task with the learned
    representation and measuring on the test half. Batch learners go from the largest lam to the
    smallest, each fit starting from the one before; `ITL` needs one decomposition per task.

    Parameters
    ----------
    learner : OnlineLTL, BatchLTL, MTL or ITL
        Its parameters other than lam are kept; it is not changed itself.
    tasks : TaskSet or iterable of (X, y)
        Tasks to learn from.
    validation : (TaskSet, TaskSet)
        Training and test halves of the same tasks, as `TaskSet.split_samples` makes them.
    lams : array-like of shape (n_lams,), optional
        Candidates; by default 30 values, log-spaced from 1e-6 to 1e3.
    metric : {"mse", "explained_variance", "r2"}
        Errors are minimised, the others maximised; of equal scores the largest lam is best.
    n_threads : int, optional
        By default the learner's own number, if it has one, or else Numba's, one for each core.
        Results have the same bits for any number.

    Returns
    -------
    Selection

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> validation = environment.tasks(20, n_samples=16).split_samples(0.5, random_state=0)
    >>> tasks = environment.tasks(50, n_samples=8)
    >>> ltl.select_lam(ltl.BatchLTL(), tasks, validation, lams=[1e-4, 1e-3, 1e-2, 1e-1])
    Selection of lam for BatchLTL by 20 validation tasks
          lam  mse
     1.00e-04  0.0546...
     1.00e-03  0.0315...  <- best
     1.00e-02  0.0376...
     1.00e-01  0.0927...
    """
    if not isinstance(learner, RepresentationLearner) or "lam" not in learner.get_params():
        got = (
            f"the class {learner.__name__}" if isinstance(learner, type) else type(learner).__name__
        )
        raise TypeError(
            "learner must be one that has a lam: OnlineLTL(), BatchLTL(), MTL() or ITL(), got "
            f"{got}."
        )
    values = check_lams(LAMS if lams is None else lams)
    if n_threads is None:
        n_threads = getattr(learner, "n_threads", None)
    threads = check_threads(n_threads)
    check_choice(metric, "metric", METRICS)
    fit_intercept = check_flag(learner.fit_intercept, "fit_intercept")
    train, test = check_validation(validation)
    tasks = tasks.collection() if isinstance(tasks, TaskSource) else TaskSet(tasks)
    if len(tasks) == 0:
        raise ValueError("tasks must hold at least one task (X, y), got none.")
    if tasks.n_features != train.n_features:
        raise ValueError(
            f"validation must have the {tasks.n_features} features of tasks, got "
            f"{train.n_features}."
        )
    held_out = HeldOut(train, test, metric, fit_intercept, threads)
    if isinstance(learner, ITL):
        task_scores = held_out.score_ridge(values)
    else:
        fit = fit_path if isinstance(learner, BatchLTL) else _fit_in_threads
        candidates = fit(learner, tasks, values.tolist(), threads)
        task_scores = held_out.score(np.stack([candidate.D_ for candidate in candidates]))
    scores = task_scores.mean(axis=1)
    best = best_candidate(scores, values, metric)
    if isinstance(learner, ITL):
        chosen: Any = clone(learner).set_params(lam=float(values[best])).fit(tasks)
    else:
        chosen = candidates[best]
    if isinstance(learner, BatchLTL):
        warn_of_short_fits(candidates, chosen)
        chosen._warn_of_nothing_shared(len(tasks), largest_size(tasks))  # as the others' fit does
    warn_of_edge(values[best], values, stacklevel=2)
    return Selection(chosen, values, scores, float(values[best]), metric, task_scores)


def best_candidate(scores: Array, lams: Array, metric: str) -> int:
    """Return the index of the best score; among equal scores, that of the largest lam."""
    losses = scores if is_error(metric) else -scores
    ties = np.flatnonzero(losses == losses.min())
    return int(ties[np.argmax(lams[ties])])


def warn_of_edge(best_lam: float, lams: Array, stacklevel: int) -> bool:
    """Warn if the best of several lams is the smallest or the largest of them."""
    edge = bool(lams.min() < lams.max() and best_lam in (lams.min(), lams.max()))
    if edge:
        warnings.warn(
            f"the best lam, {best_lam:.3g}, is at the edge of the candidates ({lams.min():.3g} to "
            f"{lams.max():.3g}): a better one may lie beyond it.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return edge


def check_validation(validation: Any) -> Halves:
    """Check that validation is a pair of TaskSets of the same tasks."""
    try:
        train, test = validation
    except (TypeError, ValueError):
        raise ValueError(
            "validation must be a pair (train, test) of TaskSets, as split_samples makes them, "
            f"got {type(validation).__name__}."
        ) from None
    try:
        check_aligned(train, test)
    except (TypeError, ValueError) as error:
        raise type(error)(f"validation: {error}") from error
    return train, test


def warn_of_short_fits(candidates: list[Any], best: Any) -> None:
    """Warn if fits did not converge."""
    short = [candidate for candidate in candidates if not candidate._has_converged]
    if short:
        among = "one of them" if best in short else "not one of them"
        warnings.warn(
            f"{len(short)} of {len(candidates)} fits of {type(best).__name__} did not reach "
            f"tol={best.tol!r}; the one with the best lam, {best.lam:.3g}, is {among}. Scale the "
            "features alike, or raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _fit_in_threads(
    learner: RepresentationLearner, tasks: TaskCollection, lams: list[float], n_threads: int
) -> list[Any]:
    """Fit a copy of the learner for each lam."""
    candidates = [clone(learner).set_params(lam=lam) for lam in lams]

    def fit(lo: int, hi: int) -> None:
        for candidate in candidates[lo:hi]:
            candidate.fit(tasks)

    run_in_threads(fit, len(candidates), n_threads, np.inf)
    return candidates
