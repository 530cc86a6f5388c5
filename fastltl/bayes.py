"""BayesLTL: learn a prior over the weights of a task from tasks that come one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._bayes_run import BayesRun, new_state, refine
from fastltl._incremental import IncrementalLearner, refusal_of
from fastltl._kernels.bayes import posterior
from fastltl._kernels.prior import LARGEST, design
from fastltl._kernels.spectral import features
from fastltl._threads import call_kernel
from fastltl._validation import (
    Array,
    check_computed,
    check_count,
    check_flag,
    check_matrix,
    check_positive,
    check_target,
)
from fastltl.adapted import Prior, TaskRegressor
from fastltl.base import largest_size, solve_each
from fastltl.effects import Effects, Summary, summarize, task_effects
from fastltl.tasks import TaskSet


class BayesLTL(IncrementalLearner[BayesRun]):
    """Learn a prior for the weights of a task, one task at a time, with nothing to tune.

    The weights of a task are taken to be drawn from a normal distribution N(mean, covariance), the
    same for all tasks, and its targets are y = Xw + noise. Each task improves the estimates of
    mean, covariance and noise, and is forgotten. A new task is solved by the posterior mean of
    its weights, given its samples: with none it is the prior mean, with many it is least squares.
    So this is a mixed model (random coefficients) that learns from a stream.

    How far to trust the learned covariance, and how much noise to assume, is decided by
    leave-one-out errors inside each task, computed before the task is learned from. So there is no
    regularisation to choose, and no tasks need to be set apart. The units of features and targets
    do not matter; there is no need to standardise. docs/prior.md derives the method and compares it
    with others.

    Parameters
    ----------
    fit_mean : bool
        Whether to learn the mean; otherwise it is zero.
    fit_intercept : bool
        Whether to add an intercept, as a feature of ones with a prior of its own.
    n_passes : int
        How often `fit` goes over the tasks. More than one needs the tasks in memory and takes about
        four times as long per pass. It helps where tasks are few, or have far fewer samples than
        features. `partial_fit` takes each task once.
    half_life : float, optional
        Number of tasks after which the weight of a task has halved, for tasks that drift. By
        default tasks are not forgotten.

    Attributes
    ----------
    mean_ : ndarray of shape (d,), or (d + 1,) with an intercept
        Prior mean of the weights; the intercept comes last.
    covariance_ : ndarray of shape (d, d), or (d + 1, d + 1)
        Prior covariance of the weights.
    noise_ : float
        Variance of the noise of a target.
    loo_error_ : float
        Expected squared error on a sample of a new task of the size of those seen, when the other
        samples of the task are known; by leave-one-out.
    weights_ : ndarray of shape (4, 13)
        Weights of the candidates for the prior: the learned covariance shrunk slightly or strongly,
        a diagonal and an isotropic one, each with 13 levels of noise.
    n_tasks_seen_ : int
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> rng = np.random.default_rng(0)
    >>> learner = ltl.BayesLTL()
    >>> for _ in range(100):  # lines of slope 2 +- 0.1 and level 5 +- 1
    ...     X = rng.normal(size=(6, 1))
    ...     y = (2 + 0.1 * rng.normal()) * X[:, 0] + 5 + rng.normal() + 0.1 * rng.normal(size=6)
    ...     _ = learner.partial_fit(X, y)
    >>> learner.mean_.round(1)
    array([2., 5.])
    >>> prediction, std = learner.predict([[0.0]], return_std=True)  # a task without samples
    >>> prediction.round(), std.round()
    (array([5.]), array([1.]))
    >>> model = learner.adapt([[1.0]], [6.0])  # one sample tells the level
    >>> prediction, std = model.predict([[0.0]], return_std=True)
    >>> prediction.round(1), std.round(1)
    (array([4.]), array([0.2]))
    """

    _SETTINGS = ("fit_mean", "fit_intercept", "half_life")
    _SINGLE_ROWS = "cannot tell how the levels of tasks differ from noise"

    def __init__(
        self,
        fit_mean: bool = True,
        fit_intercept: bool = True,
        n_passes: int = 1,
        half_life: float | None = None,
    ) -> None:
        self.fit_mean = fit_mean
        self.fit_intercept = fit_intercept
        self.n_passes = n_passes
        self.half_life = half_life

    def _settings(self) -> tuple[Any, ...]:
        return self.fit_mean, self.fit_intercept, self.half_life

    def _new_run(self, d: int) -> BayesRun:
        fit_mean = check_flag(self.fit_mean, "fit_mean")
        fit_intercept = check_flag(self.fit_intercept, "fit_intercept")
        half_life = self.half_life
        if half_life is not None:
            half_life = check_positive(half_life, "half_life", "None or a positive finite number")
        if check_count(self.n_passes, "n_passes") > 1 and half_life is not None:
            raise ValueError(
                f"half_life needs n_passes=1, as tasks have an order, got n_passes={self.n_passes}."
            )
        return BayesRun(new_state(d, fit_mean, fit_intercept, half_life), self._settings())

    @property
    def _refuses_non_finite(self) -> bool:
        return True

    def _learn(self, run: BayesRun, X: Array, y: Array) -> bool:
        return run.learn(X, y)

    def _learn_tasks(self, tasks: Any, name_of: Callable[[int], str] | None) -> int:
        if not isinstance(tasks, TaskSet):
            return super()._learn_tasks(tasks, name_of)
        run = self.__dict__.get("_run") or self._new_run(tasks.n_features)
        if tasks.n_features != run.n_features:  # a kernel would write beyond its arrays
            raise ValueError(f"tasks must have {run.n_features} features, got {tasks.n_features}.")
        n_learned = 0
        for X, y, offsets in tasks.blocks():
            n_of_block = run.learn_tasks(X, y, offsets)
            n_learned += n_of_block
            if n_of_block < len(offsets) - 1:
                error = self._refusal(*tasks[n_learned])
                if name_of is None:
                    raise error
                raise ValueError(f"{name_of(n_learned)}: {error}") from error
        self._continue_run(run, tasks)
        return largest_size(tasks)

    def _tasks_of_fit(self, X: Any, y: npt.ArrayLike | None, groups: npt.ArrayLike | None) -> Any:
        if self.n_passes == 1:
            return self._tasks(X, y, groups)
        tasks = self._collection(X, y, groups)
        if not isinstance(tasks, TaskSet):
            raise TypeError(
                f"X must be a TaskSet, or tasks that make one, got {type(tasks).__name__}; use "
                "distributed.fit_sharded for a cluster."
            )
        return tasks

    def _finish(self, tasks: Any) -> None:
        if self.n_passes > 1:
            refine(self._run, tasks, self.n_passes)

    def iter_fit(self, tasks: Iterable[Any]) -> Iterator[tuple[int, float]]:
        """Learn from tasks one by one, as `partial_fit` does; yield each task's error before that.

        Yields
        ------
        n_tasks : int
            Number of tasks learned from so far, this one included.
        error : float
            Mean squared error of predicting each sample of the task from its other samples with
            the prior chosen by earlier tasks. The first task has no prior but a guess from the
            task itself.

        Examples
        --------
        >>> import fastltl as ltl
        >>> tasks = ltl.datasets.make_environment(n_features=5, random_state=0).tasks(3, 8)
        >>> [t for t, error in ltl.BayesLTL().iter_fit(tasks)]
        [1, 2, 3]
        """
        for X, y in tasks:
            self.partial_fit(X, y)
            yield self.n_tasks_seen_, self._run.latest_error

    def predict(self, X: npt.ArrayLike, groups: Any = None, *, return_std: bool = False) -> Any:
        """Predict targets of a task without samples, by the prior mean of the weights.

        Parameters
        ----------
        X : array-like of shape (n, d)
        groups : ignored
            The tasks are forgotten; ``adapt(tasks).predict(X, groups)`` predicts with theirs.
        return_std : bool
            Whether to return also the standard deviation of each target around its prediction.

        Returns
        -------
        ndarray of shape (n,), or a pair of them
        """
        run = self._fitted_run()
        check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        return self._regressor(run.prior()).predict(X, return_std=return_std)

    def _predict_unseen(self, X: Array, y: Array, groups: Any) -> Array:
        predictions: Array = self._regressor(self._fitted_run().prior()).predict(X)
        return predictions

    def transform(self, X: npt.ArrayLike) -> Array:
        """Map inputs to X covariance^(1/2), with a last column of ones in X for an intercept.

        scikit-learn's ``Ridge(alpha=noise_, fit_intercept=False)`` on these features has the prior
        N(0, covariance): that of `adapt` without the mean.
        """
        covariance = self.covariance_
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        ones = np.ones((len(data), len(covariance) - data.shape[1]))
        data = np.hstack([data, ones])
        return check_computed(call_kernel(features, max(data.shape), covariance, data))

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_ + bool(self.fit_intercept)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # one task, as in scikit-learn's checks, is no prior
        return tags

    def _adapt(self, X: Any, y: Any) -> TaskRegressor:
        return self._solve(self._fitted_run().prior(), X, y)

    def _adapt_tasks(self, tasks: TaskSet) -> list[TaskRegressor]:
        prior = self._fitted_run().prior()  # even if another thread fits this learner
        return solve_each(lambda X, y: self._solve(prior, X, y), tasks)

    def _solve(self, prior: Prior, X: Any, y: Any) -> TaskRegressor:
        """Return the posterior of a task's weights under a prior."""
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        target = check_target(y, len(data), owner=type(self).__name__)
        if prior.y_scale == 0.0:  # targets have not varied, so there is nothing to learn from them
            return self._regressor(prior)
        with np.errstate(over="ignore", invalid="ignore"):
            A = design(prior.origin, prior.scale, data)
            z = (target - prior.y_origin) / prior.y_scale
        if not max(np.abs(A).max(), np.abs(z).max()) <= LARGEST:
            raise refusal_of(data, target)
        weights, K = call_kernel(
            posterior, max(A.shape), prior.mean, prior.covariance, prior.noise, A, z
        )
        return TaskRegressor._from_posterior(
            prior, check_computed(weights), check_computed(K), self._names()
        )

    def _regressor(self, prior: Prior) -> TaskRegressor:
        """Return the regressor of a task without samples."""
        K = np.empty((0, len(prior.mean)))
        return TaskRegressor._from_posterior(prior, prior.mean, K, self._names())

    def _prior_regressor(self, regressors: Sequence[TaskRegressor]) -> TaskRegressor:
        return self._regressor(regressors[0]._prior)

    def summary(self) -> Summary:
        """Describe the prior as mixed-model software does; print it to see a table.

        Returns
        -------
        Summary
            Means with standard errors, standard deviations and correlations of the weights over
            tasks, noise, expected error and effective rank, as attributes and data frames.

        Examples
        --------
        >>> import fastltl as ltl
        >>> environment = ltl.datasets.make_environment(n_features=2, noise=0.1, random_state=0)
        >>> summary = ltl.BayesLTL().fit(environment.tasks(50, n_samples=8)).summary()
        >>> summary.names, summary.means.shape
        (('x0', 'x1', 'intercept'), (3,))
        """
        return summarize(copy(self._fitted_run()), self._names())

    def effects(self, tasks: TaskSet, level: float = 0.95) -> Any:
        """Return a data frame of the weights of tasks, with intervals.

        Parameters
        ----------
        tasks : TaskSet
            The tasks that were learned from, or others.
        level : float
            Probability with which a weight lies between `lower` and `upper`.

        Returns
        -------
        pandas.DataFrame
            A row for each task and weight, in order, the intercept last, with the columns task,
            feature, estimate, se, lower and upper. ``pivot(index="task", columns="feature",
            values="estimate")`` makes a row for each task of it.

            Estimates are those of `adapt`. Standard errors include what is not known of the prior
            mean, which `coef_covariance_` takes for known; it matters where tasks are few, or
            hardly differ in a weight.

        Examples
        --------
        >>> import fastltl as ltl
        >>> environment = ltl.datasets.make_environment(n_features=2, noise=0.1, random_state=0)
        >>> tasks = environment.tasks(50, n_samples=8)
        >>> effects = ltl.BayesLTL().fit(tasks).effects(tasks)
        >>> effects.columns.tolist(), len(effects)
        (['task', 'feature', 'estimate', 'se', 'lower', 'upper'], 150)
        """
        return self._effects(tasks).to_frame(level)

    def _effects(self, tasks: TaskSet) -> Effects:
        """Return the weights of tasks and their standard errors."""
        learner = copy(self)  # as another thread may fit this one
        run = learner._fitted_run()
        if not isinstance(tasks, TaskSet):
            raise TypeError(f"tasks must be a TaskSet, got {type(tasks).__name__}.")
        return task_effects(run, self._names(), tasks, list(learner.adapt(tasks).values()))

    @property
    def mean_(self) -> Array:
        """Prior mean of the weights, the intercept last; a copy."""
        prior = self._fitted_run().prior()
        return prior.weights_in_data_units(prior.mean)

    @property
    def covariance_(self) -> Array:
        """Prior covariance of the weights, the intercept last; a copy."""
        prior = self._fitted_run().prior()
        return prior.covariance_in_data_units(prior.covariance)

    @property
    def noise_(self) -> float:
        """Variance of the noise of a target."""
        return self._fitted_run().prior().noise_in_data_units

    @property
    def weights_(self) -> Array:
        """Weights of the candidates for the prior, of shape (candidates, noise levels); a copy."""
        run = self._fitted_run()
        with run.lock:
            return run.state.weights.copy()

    @property
    def loo_error_(self) -> float:
        """Expected squared error on a sample of a new task, given its other samples."""
        run = self._fitted_run()
        with run.lock:
            record = run.state.records[0]
            error, unit = float(record["error"]), float(record["y_scale"])
        return check_computed(error * unit * unit)
