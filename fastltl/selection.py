"""Choosing lam by validation tasks: OnlineLTLPath for a stream, select_lam for any learner."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tqdm import tqdm

from fastltl.evaluation import HeldOut, is_error
from fastltl.learners.base import RepresentationLearner
from fastltl.learners.batch import BatchLearner
from fastltl.learners.independent import ITL
from fastltl.learners.online import OnlineLearner
from fastltl.learners.runs import FollowedDuals, Run
from fastltl.tasks import TaskSet
from fastltl.threads import SMALLEST_PIECE, in_pieces
from fastltl.validation import (
    Array,
    as_floats,
    check_count,
    check_flag,
    check_lams,
    check_positive,
    check_threads,
)

#: The candidates of the paper: 30 values of lam, log-spaced on [1e-6, 1e3].
LAMS = np.logspace(-6, 3, 30)

Halves = tuple[TaskSet, TaskSet]


def best_candidate(scores: Array, lams: Array, metric: str) -> int:
    """The place of the best score; of equal ones, that of the largest lam."""
    losses = scores if is_error(metric) else -scores
    ties = np.flatnonzero(losses == losses.min())
    return int(ties[np.argmax(lams[ties])])


def warn_of_edge(best_lam: float, lams: Array, stacklevel: int) -> bool:
    """Warn if the best of several lams is the smallest or the largest of them."""
    edge = len(lams) > 1 and best_lam in (lams.min(), lams.max())
    if edge:
        warnings.warn(
            f"the best lam, {best_lam:.3g}, is at the edge of the candidates ({lams.min():.3g} to "
            f"{lams.max():.3g}): a better one may lie beyond it.",
            UserWarning,
            stacklevel=stacklevel + 1,
        )
    return edge


def check_validation(validation: Any, metric: str, fit_intercept: bool, n_threads: int) -> HeldOut:
    """The validation tasks, prepared for scoring."""
    try:
        train, test = validation
    except (TypeError, ValueError):
        raise ValueError(
            "validation must be a pair (train, test) of TaskSets, as split_samples makes them, "
            f"got {type(validation).__name__}."
        ) from None
    try:
        return HeldOut(train, test, metric, fit_intercept, n_threads)
    except (TypeError, ValueError) as error:
        if str(error).startswith("metric"):
            raise
        raise type(error)(f"validation: {error}") from error


class OnlineLTLPath(OnlineLearner):
    """`OnlineLTL` for many values of lam at once; validation tasks say which is best.

    Every candidate learns from each task as it comes, in parallel, and none keeps it; the
    candidates have the bits of as many separate `OnlineLTL`. A candidate is scored by fitting the
    training half of every validation task with its representation and measuring on the test
    half.

    Parameters
    ----------
    lams : array-like of shape (n_lams,), optional
        Candidates; by default 30 values, log-spaced from 1e-6 to 1e3.
    validation : (TaskSet, TaskSet), optional
        Training and test halves of the same tasks, as `TaskSet.split_samples` makes them. Needed
        to choose among several candidates.
    metric : {"mse", "explained_variance", "r2"}
        What candidates are scored by; errors are minimised, the others maximised. See `evaluate`.
    geometry, step, averaging, fit_intercept
        As in `OnlineLTL`.
    step_scale : float or sequence of float, optional
        As in `OnlineLTL`. With a sequence all pairs of a lam and a step scale are candidates.
    score_every : int, optional
        Score the candidates after every so many tasks. By default they are scored when
        `scores_`, or something that depends on it, is read; until then it costs nothing.
    progress : bool
        Whether `fit` shows a progress bar.
    n_threads : int, optional
        Threads that share the candidates; by default Numba's number, one for each core. Results
        have the same bits for any number.

    Attributes
    ----------
    lams_ : ndarray of shape (n_lams,)
    scores_ : ndarray of shape (n_lams,) or (n_lams, n_step_scales)
        Mean over the validation tasks, after the latest task.
    best_lam_ : float
        That of the best score, the largest of them if several are best. One at the edge of the
        candidates warns, once.
    best_step_scale_ : float
        With a sequence of step scales only.
    D_ : ndarray of shape (d, d)
        Representation of the best candidate; a copy.
    representations_ : ndarray of shape (n_lams, d, d) or (n_lams, n_step_scales, d, d)
        Representation of every candidate; a copy.
    n_tasks_seen_ : int
    n_features_in_ : int

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> validation = environment.tasks(20, n_samples=16).split_samples(0.5, random_state=0)
    >>> path = ltl.OnlineLTLPath(validation=validation).fit(environment.tasks(100, n_samples=8))
    >>> path.scores_.shape, f"{path.best_lam_:.1e}"
    ((30,), '2.6e-03')
    """

    _SETTINGS = ("lams", "geometry", "step", "step_scale", "metric", "fit_intercept")
    _RUN_STATE = (
        *OnlineLearner._RUN_STATE,
        "_candidates",
        "_duals",
        "_held_out",
        "_has_warned",
        "_scores",
        "_scored_at",
    )

    def __init__(
        self,
        lams: npt.ArrayLike | None = None,
        validation: Halves | None = None,
        metric: str = "mse",
        geometry: str = "entropic",
        step: str | float = "adaptive",
        step_scale: float | Sequence[float] | None = None,
        averaging: str = "uniform",
        fit_intercept: bool = False,
        score_every: int | None = None,
        progress: bool = False,
        n_threads: int | None = None,
    ) -> None:
        self.lams = lams
        self.validation = validation
        self.metric = metric
        self.geometry = geometry
        self.step = step
        self.step_scale = step_scale
        self.averaging = averaging
        self.fit_intercept = fit_intercept
        self.score_every = score_every
        self.progress = progress
        self.n_threads = n_threads

    def _new_run(self, d: int) -> Run:
        lams, scales = self._lams(), self._step_scales()
        check_threads(self.n_threads)
        check_flag(self.progress, "progress")
        if self.score_every is not None:
            check_count(self.score_every, "score_every")
        if scales is None:
            return self._new_run_of(d, 1.0 / lams, None)
        pairs = np.array(list(product(1.0 / lams, scales)))
        return self._new_run_of(d, pairs[:, 0], pairs[:, 1])

    def _begin(self, d: int) -> Run:
        run = self._new_run(d)
        self._candidates = np.repeat(self._lams(), len(run.records) // len(self._lams()))
        self._has_warned = False
        if self.validation is None:
            return run
        held_out = check_validation(
            self.validation, self.metric, self.fit_intercept, check_threads(self.n_threads)
        )
        if held_out.n_features != d:
            raise ValueError(
                f"X has {d} features, but the tasks of validation have {held_out.n_features}."
            )
        self._held_out = held_out
        # Keeping X D X' must not take more memory than the candidates themselves do.
        if (
            self.score_every == 1
            and run.steps_by_rank_two
            and (held_out.tasks.corners[-1] <= 2 * d * d)
        ):
            self._duals = FollowedDuals(run, held_out.tasks, held_out.n_threads)
        return run

    def _lams(self) -> Array:
        return check_lams(LAMS if self.lams is None else self.lams)

    def _has_step_scales(self) -> bool:
        """Whether step_scale is a sequence."""
        return np.ndim(self.step_scale) > 0  # type: ignore[arg-type]

    def _step_scales(self) -> Array | None:
        """The step scales of the candidates, None for the default one."""
        if self.step_scale is None:
            return None
        if not self._has_step_scales():
            return np.array([check_positive(self.step_scale, "step_scale")])
        scales = as_floats(self.step_scale, "step_scale")
        if scales.ndim != 1 or scales.size == 0:
            raise ValueError(
                "step_scale must be a number or a sequence of at least one, got an array of "
                f"shape {scales.shape}."
            )
        for scale in scales.tolist():
            check_positive(scale, "step_scale", "a sequence of positive finite numbers")
        return scales

    def _settings(self) -> tuple[Any, ...]:
        lams = None if self.lams is None else tuple(np.ravel(self.lams).tolist())
        scale: Any = self.step_scale
        if self._has_step_scales():
            scale = tuple(np.ravel(scale).tolist())
        return lams, self.geometry, self.step, scale, self.metric, self.fit_intercept

    def _take(self, run: Run, X: Array, y: Array) -> bool:
        is_taken = run.learn_in_threads(X, y, check_threads(self.n_threads))
        if is_taken and "_duals" in self.__dict__:
            self._duals.follow(run)
        return is_taken

    def _after_task(self) -> None:
        if self.score_every is not None and self.n_tasks_seen_ % self.score_every == 0:
            self._score()

    def _watched(self, tasks: Iterable[Any]) -> Iterable[Any]:
        if not self.progress:
            yield from tasks
            return
        with tqdm(tasks, unit="task") as bar:
            for task in bar:
                yield task
                if self._is_scored():
                    best = self._best()
                    lam, score = self._candidates[best], self._score()[best]
                    bar.set_postfix({"lam": f"{lam:.1e}", self.metric: f"{score:.3g}"})

    def _is_scored(self) -> bool:
        """Whether scores are known for what the candidates are now."""
        return self.__dict__.get("_scored_at") == (self.n_tasks_seen_, self.averaging)

    def _score(self) -> Array:
        """Mean score of each candidate after the latest task, computed once."""
        self._fitted_run()
        if "_held_out" not in self.__dict__:
            raise ValueError(
                "validation must be a pair (train, test) of TaskSets for candidates to be scored "
                "and the best chosen, got None."
            )
        if not self._is_scored():
            duals = None
            if "_duals" in self.__dict__:
                duals = self._duals.of_representations(self._run, self.averaging)
            scores = self._held_out.score(self._representations(), duals)
            self._scores: Array = scores.mean(axis=1)
            self._scored_at = self.n_tasks_seen_, self.averaging
        return self._scores

    def _best(self) -> int:
        """The place of the best candidate."""
        self._fitted_run()
        if len(self._candidates) == 1:
            return 0
        return best_candidate(self._score(), self._candidates, self.metric)

    def _best_with_warning(self) -> int:
        best = self._best()
        if not self._has_warned:
            self._has_warned = warn_of_edge(self._candidates[best], self.lams_, stacklevel=3)
        return best

    def _by_lam(self, values: Array) -> Array:
        """Values of the candidates with an axis for lams and, if there are several, step scales."""
        if not self._has_step_scales():
            return values
        return values.reshape(len(self.lams_), -1, *values.shape[1:])

    @property
    def lams_(self) -> Array:
        """The values of lam, in the order given."""
        self._fitted_run()
        return self._lams()

    @property
    def scores_(self) -> Array:
        """Mean score over the validation tasks, after the latest task; a copy."""
        return self._by_lam(self._score()).copy()

    @property
    def best_lam_(self) -> float:
        """The lam of the best score."""
        return float(self._candidates[self._best_with_warning()])

    @property
    def best_step_scale_(self) -> float:
        """The step scale of the best score, if there are several."""
        best, scales = self._best_with_warning(), self._step_scales()
        if scales is None or not self._has_step_scales():
            raise AttributeError("there is a best_step_scale_ only if step_scale is a sequence.")
        return float(scales[best % len(scales)])

    @property
    def D_(self) -> Array:
        """Representation of the best candidate; a copy."""
        best: Array = self._representations()[self._best_with_warning()]
        return best

    @property
    def representations_(self) -> Array:
        """Representation of every candidate; a copy."""
        return self._by_lam(self._representations())


@dataclass(frozen=True, repr=False)
class Selection:
    """What `select_lam` found.

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
        for lam, score in zip(self.lams, self.scores, strict=True):
            mark = "  <- best" if lam == self.best_lam else ""
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
        By default Numba's number, one for each core. Results have the same bits for any number.

    Returns
    -------
    Selection
        With the attributes `learner` (fitted with the best lam), `lams`, `scores`, `best_lam`.

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=10, noise=0.1, random_state=0)
    >>> validation = environment.tasks(20, n_samples=16).split_samples(0.5, random_state=0)
    >>> tasks = environment.tasks(50, n_samples=8)
    >>> ltl.select_lam(ltl.BatchLTL(), tasks, validation, lams=[1e-4, 1e-3, 1e-2, 1e-1])
    Selection of lam for BatchLTL by 20 validation tasks
          lam  mse
     1.00e-04  0.0648...
     1.00e-03  0.0373...  <- best
     1.00e-02  0.0404...
     1.00e-01  0.0892...
    """
    if not isinstance(learner, RepresentationLearner) or "lam" not in learner.get_params():
        raise TypeError(
            "learner must be one that has a lam: OnlineLTL, BatchLTL, MTL or ITL, got "
            f"{type(learner).__name__}."
        )
    values = check_lams(LAMS if lams is None else lams)
    threads = check_threads(n_threads)
    held_out = check_validation(validation, metric, learner.fit_intercept, threads)
    if not hasattr(tasks, "mean_objective"):
        tasks = TaskSet(tasks)
    if tasks.n_features != held_out.n_features:
        raise ValueError(
            f"validation must have the {tasks.n_features} features of tasks, got "
            f"{held_out.n_features}."
        )
    candidates = [clone(learner).set_params(lam=lam) for lam in values.tolist()]
    if isinstance(learner, ITL):
        task_scores = held_out.score_ridge(values)
    else:
        if isinstance(learner, BatchLearner):
            _fit_along_path(candidates, tasks, threads)
        else:
            _fit_in_threads(candidates, tasks, threads)
        task_scores = held_out.score(np.stack([candidate.D_ for candidate in candidates]))
    scores = task_scores.mean(axis=1)
    best = best_candidate(scores, values, metric)
    warn_of_edge(values[best], values, stacklevel=2)
    chosen = candidates[best].fit(tasks) if isinstance(learner, ITL) else candidates[best]
    return Selection(chosen, values, scores, float(values[best]), metric, task_scores)


def _fit_along_path(candidates: list[Any], tasks: Any, n_threads: int) -> None:
    """Fit batch learners from the largest lam to the smallest, each from where the last ended."""
    objective, start = candidates[0]._objective(tasks, n_threads), None
    descending = sorted(candidates, key=lambda candidate: -candidate.lam)
    for candidate in descending:
        candidate._remember_features(tasks)
        candidate._solve(tasks, objective, start)
        start = candidate._representation
    short = [candidate for candidate in descending if not candidate._has_converged]
    if short:
        warnings.warn(
            f"{len(short)} of {len(candidates)} fits of {type(short[0]).__name__} did not reach "
            f"tol={short[0].tol!r}, the first with lam={short[0].lam:.3g}: raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _fit_in_threads(candidates: list[Any], tasks: Any, n_threads: int) -> None:
    def fit(lo: int, hi: int) -> None:
        for candidate in candidates[lo:hi]:
            candidate.fit(tasks)

    in_pieces(fit, len(candidates), n_threads, SMALLEST_PIECE)
