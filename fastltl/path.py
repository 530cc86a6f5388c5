"""OnlineLTLPath: learn from tasks with many values of lam at once, and choose by validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from fastltl._kernels import online as kernels
from fastltl._kernels.online import OnlineState
from fastltl._online_run import OnlineRun
from fastltl._threads import delayed_interrupt, run_in_threads
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
from fastltl.selection import LAMS, Halves, best_candidate, check_validation, warn_of_edge


class OnlineLTLPath(OnlineLearner):
    """Learn as `OnlineLTL` does with many values of lam at once; validation tasks choose one.

    Every candidate learns from each task as it comes, in parallel, and none keeps it; the results
    have the bits of separate `OnlineLTL` learners. A candidate is scored by fitting the training
    half of every validation task with its representation and measuring on the test half.

    Parameters
    ----------
    lams : array-like of shape (n_lams,), optional
        Candidates; by default 30 values, log-spaced from 1e-6 to 1e3.
    validation : (TaskSet, TaskSet), optional
        Training and test halves of the same tasks, as `TaskSet.split_samples` makes them. Needed
        to choose among several candidates.
    metric : {"mse", "explained_variance", "r2"}
        What candidates are scored by; errors are minimised, the others maximised. See `evaluate`.
    objective, geometry, step, averaging, fit_intercept
        As in `OnlineLTL`.
    step_scale : float or sequence of float, optional
        As in `OnlineLTL`. With a sequence all pairs of a lam and a step scale are candidates.
    score_every : int, optional
        Score the candidates after every so many tasks. By default they are scored only when
        `scores_`, or an attribute that depends on it, is read.
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
        The lam of the best score; the largest, if several have it. Warns once if it is at the
        edge of the candidates.
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
    ((30,), '1.3e-03')
    """

    _SETTINGS = (
        "lams",
        "validation",
        "metric",
        "objective",
        "geometry",
        "step",
        "step_scale",
        "fit_intercept",
    )
    _RUN_STATE = (*OnlineLearner._RUN_STATE, "_grid", "_candidates", "_held_out", "_has_warned")

    _KEPT: ClassVar[dict[str, type]] = {"_has_warned": bool}

    _grid: tuple[Array, Array | None]
    _candidates: Array
    _held_out: HeldOut | None
    _has_warned: bool

    def __init__(
        self,
        lams: npt.ArrayLike | None = None,
        validation: Halves | None = None,
        metric: str = "mse",
        objective: str = "regularized",
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
        self.objective = objective
        self.geometry = geometry
        self.step = step
        self.step_scale = step_scale
        self.averaging = averaging
        self.fit_intercept = fit_intercept
        self.score_every = score_every
        self.progress = progress
        self.n_threads = n_threads

    def partial_fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Learn from one task with every candidate, and forget it.

        A Ctrl-C waits until all candidates have learned from it.
        """
        with delayed_interrupt():
            super().partial_fit(X, y)
            if self.score_every is not None and self.n_tasks_seen_ % self.score_every == 0:
                self._score()
        return self

    def _new_state(self, d: int) -> OnlineState:
        lams, scales = self._lams(), self._step_scales()
        check_flag(self.progress, "progress")
        check_choice(self.metric, "metric", METRICS)
        self._check_changeable()
        if self.validation is not None:
            check_validation(self.validation)
        elif self.score_every is not None:
            raise ValueError(
                "validation must be a pair (train, test) of TaskSets for candidates to be scored, "
                f"got None and score_every={self.score_every!r}."
            )
        radii = (1.0 / lams).tolist()
        if scales is None:
            return self._state_of(d, radii, None)
        return self._state_of(d, *zip(*product(radii, scales.tolist()), strict=True))

    def _n_candidates(self) -> int:
        scales = self._step_scales()
        return len(self._lams()) * (1 if scales is None else len(scales))

    def _check_changeable(self) -> None:
        """Check the parameters that may change between tasks."""
        check_threads(self.n_threads)
        check_choice(self.averaging, "averaging", AVERAGINGS)
        if self.score_every is not None:
            check_count(self.score_every, "score_every")

    def _new_run(self, d: int) -> OnlineRun:
        run, lams = super()._new_run(d), self._lams()
        held_out = None
        if self.validation is not None:
            train, test = check_validation(self.validation)
            if train.n_features != d:
                raise ValueError(
                    f"X has {d} features, but the tasks of validation have {train.n_features}."
                )
            n_threads = check_threads(self.n_threads)
            held_out = HeldOut(train, test, self.metric, self.fit_intercept, n_threads)
        self._held_out = held_out
        self._grid = lams, self._step_scales() if self._has_step_scales() else None
        self._candidates = np.repeat(lams, run.n_candidates // len(lams))
        self._has_warned = False
        return run

    def _lams(self) -> Array:
        return check_lams(LAMS if self.lams is None else self.lams)

    def _has_step_scales(self) -> bool:
        """Return whether step_scale is a sequence."""
        return self.step_scale is not None and not np.isscalar(self.step_scale)

    def _step_scales(self) -> Array | None:
        """Return the step scales of the candidates; None for the default."""
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
        values = {name: getattr(self, name) for name in self._SETTINGS}
        return tuple((values | {"lams": lams, "step_scale": scale}).values())

    def _take_step(self, run: OnlineRun, X: Array, y: Array) -> bool:
        self._check_changeable()
        n, d, k = len(X), run.n_features, run.n_candidates
        step = kernels.step_entropic if run.is_entropic else kernels.step_euclidean
        n_threads = check_threads(self.n_threads)
        gradients = np.empty((k, 3)), np.empty((k, d)), np.empty((k, d))
        accepted = run_in_threads(
            kernels.evaluate_candidates,
            k,
            n_threads,
            2.0 * k * n * d * (n + d),
            run.state,
            X,
            y,
            *gradients,
        )
        if not all(accepted):
            return False
        # Steps that divide by norms update eigenvectors; the others seldom do.
        work = 20.0 * k * d * d * (d if run.state.records[0]["adaptive"] else 1)
        run_in_threads(step, k, n_threads, work, run.state, *gradients)
        return True

    def _with_progress(self, tasks: Iterable[Any]) -> Iterable[Any]:
        if not self.progress:
            yield from tasks
            return
        with tqdm(tasks, unit="task") as bar:
            for task in bar:
                yield task
                if self.score_every is not None and self._run.scores is not None:
                    bar.set_postfix(self.progress_summary(), refresh=False)

    def progress_summary(self) -> dict[str, str]:
        """Return the best lam and its score as text, without a warning of the edge."""
        best = self._best()
        return {"lam": f"{self._candidates[best]:.1e}", self.metric: f"{self._score()[best]:.3g}"}

    def _restore(self, state: dict[str, Any]) -> None:
        # Format 1 has "duals" where scores were kept up to date from task to task.
        super()._restore({name: value for name, value in state.items() if name != "duals"})

    def _score(self) -> Array:
        """Return the mean score of each candidate after the latest task, computed once."""
        run, held_out = self._fitted_run(), self._held_out
        if held_out is None:
            raise ValueError(
                "validation must be a pair (train, test) of TaskSets from the first task on for "
                "candidates to be scored and the best chosen, got None then."
            )
        averaging = check_choice(self.averaging, "averaging", AVERAGINGS)
        with run.lock:
            now = run.n_tasks, averaging
            if run.scores is None or run.scores[0] != now:
                held_out.n_threads = check_threads(self.n_threads)
                run.scores = now, held_out.score(run.representations(averaging)).mean(axis=1)
            return run.scores[1]

    def _best(self) -> int:
        """Return the index of the best candidate."""
        self._fitted_run()
        if len(self._candidates) == 1:
            return 0
        return best_candidate(self._score(), self._candidates, self._run.settings[2])

    def _best_with_warning(self) -> int:
        best = self._best()
        if not self._has_warned:
            self._has_warned = warn_of_edge(self._candidates[best], self._grid[0], stacklevel=3)
        return best

    def _by_lam(self, values: Array) -> Array:
        """Give values of the candidates an axis for lams and, if several, one for step scales."""
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
            raise AttributeError("best_step_scale_ needs a step_scale that is a sequence.")
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
