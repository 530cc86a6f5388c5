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

from fastltl.evaluation import METRICS, HeldOut, check_aligned, is_error
from fastltl.learners.base import RepresentationLearner
from fastltl.learners.batch import BatchLearner
from fastltl.learners.independent import ITL
from fastltl.learners.online import AVERAGINGS, OnlineLearner
from fastltl.learners.runs import FollowedDuals, Run
from fastltl.tasks import TaskSet
from fastltl.threads import SMALLEST_PIECE, in_pieces, one_blas_thread
from fastltl.validation import (
    Array,
    as_floats,
    check_choice,
    check_count,
    check_flag,
    check_lams,
    check_positive,
    check_threads,
)

#: The candidates of the paper: 30 values of lam, log-spaced on [1e-6, 1e3].
LAMS = np.logspace(-6, 3, 30)
LAMS.flags.writeable = False

#: Bytes that a path may take to follow X D X' of its validation tasks.
MOST_FOLLOWED = 2**27

Halves = tuple[TaskSet, TaskSet]


def best_candidate(scores: Array, lams: Array, metric: str) -> int:
    """The place of the best score; of equal ones, that of the largest lam."""
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
    """A pair of TaskSets of the same tasks."""
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

    _SETTINGS = (
        "lams",
        "validation",
        "metric",
        "geometry",
        "step",
        "step_scale",
        "fit_intercept",
    )
    _RUN_STATE = (
        *OnlineLearner._RUN_STATE,
        "_grid",
        "_candidates",
        "_duals",
        "_held_out",
        "_has_warned",
        "_scores",
        "_scored_at",
    )

    _grid: tuple[Array, Array | None]
    _candidates: Array
    _duals: FollowedDuals
    _held_out: HeldOut
    _has_warned: bool
    _scores: Array
    _scored_at: tuple[int, str]

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
        check_flag(self.progress, "progress")
        check_choice(self.metric, "metric", METRICS)
        self._check_now()
        if self.validation is not None:
            check_validation(self.validation)
        elif self.score_every is not None:
            raise ValueError(
                "validation must be a pair (train, test) of TaskSets for candidates to be scored, "
                f"got None and score_every={self.score_every!r}."
            )
        if scales is None:
            return self._new_run_of(d, 1.0 / lams, None)
        pairs = np.array(list(product(1.0 / lams, scales)))
        return self._new_run_of(d, pairs[:, 0], pairs[:, 1])

    def _check_now(self) -> None:
        """Check the parameters that may change from task to task."""
        check_threads(self.n_threads)
        check_choice(self.averaging, "averaging", AVERAGINGS)
        if self.score_every is not None:
            check_count(self.score_every, "score_every")

    def _begin(self, d: int) -> Run:
        run, lams = self._new_run(d), self._lams()
        self._grid = lams, self._step_scales() if self._has_step_scales() else None
        self._candidates = np.repeat(lams, len(run.records) // len(lams))
        self._has_warned = False
        if self.validation is None:
            return run
        train, test = check_validation(self.validation)
        if train.n_features != d:
            raise ValueError(
                f"X has {d} features, but the tasks of validation have {train.n_features}."
            )
        n_threads = check_threads(self.n_threads)
        self._held_out = HeldOut(train, test, self.metric, self.fit_intercept, n_threads)
        tasks = self._held_out.tasks
        bytes_followed = 16 * len(run.records) * tasks.corners[-1]
        if self.score_every == 1 and run.steps_by_rank_two and bytes_followed <= MOST_FOLLOWED:
            self._duals = FollowedDuals(run, tasks, n_threads)
        return run

    def _lams(self) -> Array:
        return check_lams(LAMS if self.lams is None else self.lams)

    def _has_step_scales(self) -> bool:
        """Whether step_scale is a sequence."""
        return self.step_scale is not None and not np.isscalar(self.step_scale)

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
        return (
            lams,
            self.validation,
            self.metric,
            self.geometry,
            self.step,
            scale,
            self.fit_intercept,
        )

    def _take(self, run: Run, X: Array, y: Array) -> bool:
        self._check_now()
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
                    bar.set_postfix(
                        {"lam": f"{lam:.1e}", self.metric: f"{score:.3g}"}, refresh=False
                    )

    def _is_scored(self) -> bool:
        """Whether scores are known for what the candidates are now."""
        return self.__dict__.get("_scored_at") == (self.n_tasks_seen_, self.averaging)

    def _score(self) -> Array:
        """Mean score of each candidate after the latest task, computed once."""
        self._fitted_run()
        if "_held_out" not in self.__dict__:
            raise ValueError(
                "validation must be a pair (train, test) of TaskSets from the first task on for "
                "candidates to be scored and the best chosen, got None then."
            )
        if not self._is_scored():
            self._held_out.n_threads = check_threads(self.n_threads)
            if "_duals" in self.__dict__:
                scores = self._duals.score(self._run, self.averaging, self._held_out)
            else:
                scores = self._held_out.score(self._representations())
            self._scores = scores.mean(axis=1)
            self._scored_at = self.n_tasks_seen_, self.averaging
        return self._scores

    def _best(self) -> int:
        """The place of the best candidate."""
        self._fitted_run()
        if len(self._candidates) == 1:
            return 0
        return best_candidate(self._score(), self._candidates, self._held_out.metric)

    def _best_with_warning(self) -> int:
        best = self._best()
        if not self._has_warned:
            self._has_warned = warn_of_edge(self._candidates[best], self._grid[0], stacklevel=3)
        return best

    def _by_lam(self, values: Array) -> Array:
        """Values of the candidates with an axis for lams and, if there are several, step scales."""
        lams, scales = self._grid
        if scales is None:
            return values
        return values.reshape(len(lams), len(scales), *values.shape[1:])

    @property
    def lams_(self) -> Array:
        """The values of lam, in the order given; a copy."""
        self._fitted_run()
        return self._grid[0].copy()

    @property
    def scores_(self) -> Array:
        """Mean score over the validation tasks, after the latest task; a copy."""
        return self._by_lam(self._score()).copy()

    @property
    def best_lam_(self) -> float:
        """The lam of the best score."""
        best = self._best_with_warning()
        return float(self._candidates[best])

    @property
    def best_step_scale_(self) -> float:
        """The step scale of the best score, if there are several."""
        self._fitted_run()
        scales = self._grid[1]
        if scales is None:
            raise AttributeError("there is a best_step_scale_ only if step_scale is a sequence.")
        return float(scales[self._best_with_warning() % len(scales)])

    @property
    def D_(self) -> Array:
        """Representation of the best candidate; a copy."""
        best: Array = self._representations()[self._best_with_warning()]
        return best.copy()

    @property
    def representations_(self) -> Array:
        """Representation of every candidate; a copy."""
        return self._by_lam(self._representations())


@dataclass(frozen=True, repr=False, eq=False)
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

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> task = (np.eye(2), np.ones(2))
    >>> halves = ltl.TaskSet([task]), ltl.TaskSet([task])
    >>> ltl.select_lam(ltl.ITL(), [task], halves, lams=[0.5])
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
        With the attributes `learner` (fitted with the best lam), `lams`, `scores`, `best_lam`,
        and `task_scores`, of which `scores` are the means.

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
    if not hasattr(tasks, "mean_objective"):
        tasks = TaskSet(tasks)
    if len(tasks) == 0:
        raise ValueError("tasks must hold at least one task (X, y), got none.")
    if tasks.n_features != train.n_features:
        raise ValueError(
            f"validation must have the {tasks.n_features} features of tasks, got "
            f"{train.n_features}."
        )
    held_out = HeldOut(train, test, metric, fit_intercept, threads)
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
    if isinstance(learner, ITL):
        candidates[best].fit(tasks)
    if isinstance(learner, BatchLearner):
        _warn_of_short_fits(candidates, candidates[best])
    warn_of_edge(values[best], values, stacklevel=2)
    return Selection(candidates[best], values, scores, float(values[best]), metric, task_scores)


def _fit_along_path(candidates: list[Any], tasks: Any, n_threads: int) -> None:
    """Fit batch learners from the largest lam to the smallest, each from where the last ended.

    One that did not converge is no good start, and the next goes without.
    """
    with one_blas_thread():
        objective, start = candidates[0]._objective(tasks, n_threads), None
        for candidate in sorted(candidates, key=lambda candidate: -candidate.lam):
            candidate._remember_features(tasks)
            candidate._solve(tasks, objective, start)
            start = candidate._representation if candidate._has_converged else None


def _warn_of_short_fits(candidates: list[Any], best: Any) -> None:
    short = [candidate for candidate in candidates if not candidate._has_converged]
    if short:
        among = "one of them" if best in short else "not one of them"
        warnings.warn(
            f"{len(short)} of {len(candidates)} fits of {type(best).__name__} did not reach "
            f"tol={best.tol!r}; that with the best lam, {best.lam:.3g}, is {among}. Scale the "
            "features alike, or raise max_iter or tol.",
            ConvergenceWarning,
            stacklevel=3,
        )


def _fit_in_threads(candidates: list[Any], tasks: Any, n_threads: int) -> None:
    def fit(lo: int, hi: int) -> None:
        for candidate in candidates[lo:hi]:
            candidate.fit(tasks)

    in_pieces(fit, len(candidates), n_threads, SMALLEST_PIECE)
