"""OnlineLTLPath: all candidates learn from a stream of tasks at once, and the best is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from fastltl._threads import uninterrupted
from fastltl._validation import (
    Array,
    as_floats,
    check_choice,
    check_count,
    check_flag,
    check_lams,
    check_positive,
    check_threads,
)
from fastltl.metrics import METRICS, HeldOut
from fastltl.online import AVERAGINGS, OnlineLearner
from fastltl.runs import FollowedDuals, Run
from fastltl.selection import LAMS, Halves, best_candidate, check_validation, warn_of_edge

#: Bytes that a path may take to follow X D X' of its validation tasks.
MOST_FOLLOWED = 2**27


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

    _KEPT: ClassVar[dict[str, type]] = {"_has_warned": bool}

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

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """As that of `OnlineLTL`, with every candidate; a Ctrl-C waits until all have learned."""
        with uninterrupted():
            return super().partial_fit(X, y)

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
        radii = (1.0 / lams).tolist()
        if scales is None:
            return self._new_run_of(d, radii, None)
        return self._new_run_of(d, *zip(*product(radii, scales.tolist()), strict=True))

    def _check_now(self) -> None:
        """Check the parameters that may change from task to task."""
        check_threads(self.n_threads)
        check_choice(self.averaging, "averaging", AVERAGINGS)
        if self.score_every is not None:
            check_count(self.score_every, "score_every")

    def _begin(self, d: int) -> Run:
        run, lams = self._new_run(d), self._lams()
        self._grid = lams, self._step_scales() if self._has_step_scales() else None
        self._candidates = np.repeat(lams, run.n_candidates // len(lams))
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
        bytes_followed = 16 * run.n_candidates * tasks.corners[-1]
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
        with run.lock:
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
                    bar.set_postfix(self.standing(), refresh=False)

    def standing(self) -> dict[str, str]:
        """The lam of the best score, and the score, to be shown; no edge is warned of."""
        best = self._best()
        return {"lam": f"{self._candidates[best]:.1e}", self.metric: f"{self._score()[best]:.3g}"}

    def _state(self) -> dict[str, Any] | None:
        if "_duals" not in self.__dict__:
            return super()._state()
        with self._run.lock:
            return {**(super()._state() or {}), "duals": self._duals.checkpoint()}

    def _restore(self, state: dict[str, Any]) -> None:
        duals = state.pop("duals", None)
        super()._restore(state)
        self.__dict__.pop("_duals", None)
        if duals is not None:
            self._duals = FollowedDuals(self._run, self._held_out.tasks, self._held_out.n_threads)
            self._duals.restore(duals)

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
        with self._run.lock:
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
        with self._fitted_run().lock:
            best: Array = self._representations()[self._best_with_warning()]
        return best.copy()

    @property
    def representations_(self) -> Array:
        """Representation of every candidate; a copy."""
        return self._by_lam(self._representations())
