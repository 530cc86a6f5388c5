"""The results of `adapt`: the regressor of a task under a learned prior, or of several tasks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin

from fastltl._columns import group_positions
from fastltl._frames import names_of
from fastltl._kernels.bayes import predictive_variances
from fastltl._kernels.prior import design
from fastltl._objective import Names
from fastltl._threads import call_kernel, one_blas_thread
from fastltl._validation import Array, check_computed, check_flag, check_matrix


@dataclass(frozen=True, eq=False)
class Prior:
    """The prior in use, N(mean, covariance) for weights in units, and the units."""

    mean: Array
    covariance: Array
    noise: float
    inflation: float  #: factor of the covariance for a task without samples
    origin: Array
    scale: Array
    y_origin: float
    y_scale: float
    has_intercept: bool

    # Weights in the units of the data are T w, plus the origin of the targets for the intercept.
    # T is diagonal but for its last row, the intercept's.

    @cached_property
    def _diagonal(self) -> Array:
        diagonal = np.zeros(len(self.mean))
        np.divide(self.y_scale, self.scale, out=diagonal, where=self.scale > 0)
        return diagonal

    @cached_property
    def _last_row(self) -> Array:
        return np.append(-self.origin[:-1], 1.0) * self._diagonal

    def weights_in_data_units(self, weights: Array) -> Array:
        """Return weights for inputs and targets as the user has them."""
        with np.errstate(over="ignore", invalid="ignore"):
            found: Array = self._diagonal * weights
            if self.has_intercept:
                found[-1] = self._last_row @ weights + self.y_origin
            return check_computed(found)

    def covariance_in_data_units(self, covariance: Array) -> Array:
        """Return the covariance of weights for inputs and targets as the user has them."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self._diagonal[:, None] * covariance * self._diagonal
            if self.has_intercept:
                along = self._last_row @ covariance
                found[-1] = found[:, -1] = along * self._diagonal
                found[-1, -1] = along @ self._last_row
            half = found / 2.0  # not symmetric to the last bit
            return check_computed(half + half.T)

    @property
    def noise_in_data_units(self) -> float:
        """The variance of the noise of a target as the user has it."""
        return check_computed(self.noise * self.y_scale * self.y_scale)


class TaskRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Linear regression for one task, with error bars; `BayesLTL.adapt` returns it.

    The weights have a normal posterior distribution given the task's samples, or the prior
    distribution if there are none.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Posterior mean of the weights.
    intercept_ : float
    coef_covariance_ : ndarray of shape (d, d), or (d + 1, d + 1) with an intercept
        Posterior covariance of the weights; the intercept comes last.
    noise_ : float
        Variance of the noise of a target.
    n_features_in_ : int

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
    >>> learner = ltl.BayesLTL().fit(environment.tasks(50, n_samples=8))
    >>> X, y = environment.tasks(1, n_samples=8)[0]
    >>> model = learner.adapt(X, y)
    >>> prediction, std = model.predict(X, return_std=True)
    >>> model.coef_.shape, std.shape
    ((5,), (8,))
    """

    @classmethod
    def _from_posterior(cls, prior: Prior, weights: Array, K: Array, names: Any) -> Self:
        """Return a regressor for weights of this mean, and covariance D - K'K, in units."""
        model = cls()
        model._prior, model._weights, model._K, model._names = prior, weights, K, names
        mean = prior.weights_in_data_units(weights)
        model.n_features_in_ = len(mean) - prior.has_intercept
        model.coef_ = mean[: model.n_features_in_]
        model.intercept_ = float(mean[-1]) if prior.has_intercept else 0.0
        model.noise_ = prior.noise_in_data_units
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    @property
    def _covariance(self) -> Array:
        """Posterior covariance of the weights, in units."""
        with one_blas_thread:
            covariance: Array = self._prior.covariance - self._K.T @ self._K
            return covariance

    @property
    def coef_covariance_(self) -> Array:
        """Posterior covariance of the weights, the intercept last; a copy."""
        covariance: Array = self._prior.covariance_in_data_units(self._covariance)
        return covariance

    def predict(self, X: npt.ArrayLike, return_std: bool = False) -> Any:
        """Predict the target of each row of X.

        Parameters
        ----------
        X : array-like of shape (n, d)
        return_std : bool
            Whether to return also the standard deviation of each target around its prediction. It
            includes the noise and what is not known about the weights: a target lies within 1.96
            of them with probability 0.95. For tasks with few samples the part of the weights is
            scaled to how far targets were from the prior mean in the tasks seen.

        Returns
        -------
        ndarray of shape (n,), or a pair of them
        """
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        check_names(names_of(X), self._names)
        prior = self._prior
        with np.errstate(over="ignore", invalid="ignore"):
            A = design(prior.origin, prior.scale, data)
            prediction: Array = prior.y_origin + prior.y_scale * (A @ self._weights)
            check_computed(prediction)
            if not check_flag(return_std, "return_std"):
                return prediction
            variances = call_kernel(
                predictive_variances,
                max(A.shape),
                prior.covariance,
                self._K,
                prior.inflation,
                prior.noise,
                A,
            )
            return prediction, check_computed(prior.y_scale * np.sqrt(variances))

    def __repr__(self) -> str:
        return f"TaskRegressor({self.n_features_in_} features)"


class AdaptedTasks(Mapping[Hashable, Any]):
    """Regressors of several tasks by label, in the order of the tasks; ``adapt`` returns it.

    Attributes
    ----------
    prior : regressor
        The one for tasks of any other label. The representation learners assume that weights are
        distributed as N(0, D), so it predicts 0 or, with fit_intercept, the mean of the
        intercepts of the tasks.

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> X, y = np.array([[1.0], [2.0]]), np.array([1.0, 2.0])
    >>> tasks = ltl.TaskSet([(X, y), (X, -y)], labels=["up", "down"])
    >>> adapted = ltl.ITL(lam=1e-9).fit(tasks).adapt(tasks)
    >>> list(adapted), adapted["down"].coef_.round(3)
    (['up', 'down'], array([-1.]))
    >>> adapted.predict([[3.0], [3.0], [3.0]], groups=["down", "up", "new"]).round(3)
    array([-3.,  3.,  0.])
    """

    def __init__(
        self, regressors: Mapping[Hashable, Any], prior: Any, n_features: int, names: Names
    ) -> None:
        self.prior = prior
        self._regressors = dict(regressors)
        self._n_features, self._names = n_features, names

    def __getitem__(self, label: Hashable) -> Any:
        return self._regressors[label]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._regressors)

    def __len__(self) -> int:
        return len(self._regressors)

    def __repr__(self) -> str:
        return f"AdaptedTasks({len(self)} tasks)"

    def predict(self, X: npt.ArrayLike, groups: npt.ArrayLike, **options: Any) -> Any:
        """Predict each row with the regressor of its task, or with `prior` if there is none.

        Parameters
        ----------
        X : array-like of shape (n, d)
        groups : array-like of shape (n,)
            Label of the task of each row, in any order.
        **options
            Passed to `predict` of the regressors.

        Returns
        -------
        ndarray of shape (n,), or a tuple of them
            As the regressors return it for these options.
        """
        data = check_matrix(X, self._n_features, owner="AdaptedTasks")
        check_names(names_of(X), self._names)
        tasks, _ = group_positions(groups, len(data), list(self))
        order = np.argsort(tasks, kind="stable")
        found, starts = np.unique(tasks[order], return_index=True)
        regressors = [*self.values(), self.prior]  # the last one is at -1, for unknown labels
        parts = [
            regressors[task].predict(data[rows], **options)
            for task, rows in zip(found, np.split(order, starts[1:]), strict=True)
        ]
        return _reorder(parts, order)


def _reorder(parts: Sequence[Any], order: npt.NDArray[np.int64]) -> Any:
    """Return arrays, or tuples of arrays, as one whose entry order[i] is the i-th of theirs."""
    if isinstance(parts[0], tuple):
        return tuple(_reorder(arrays, order) for arrays in zip(*parts, strict=True))
    joined = np.concatenate(parts)
    reordered = np.empty_like(joined)
    reordered[order] = joined
    return reordered


def check_labels(labels: Iterable[Hashable]) -> None:
    """Check that tasks can be found by their labels: these are hashable and distinct."""
    known = set[Hashable]()
    for label in labels:
        try:
            is_known = label in known
        except TypeError as error:
            raise TypeError(
                f"labels of tasks must be numbers, strings or the like, got {label!r} ({error})."
            ) from error
        if is_known:
            raise ValueError(f"labels of tasks must be distinct, got {label!r} twice.")
        known.add(label)


def check_names(names: Names, wanted: Names) -> None:
    """Check that names of features, if there are any, are those of `fit`."""
    if names and wanted and names != wanted:
        raise ValueError(
            f"feature names should match those that were passed during fit ({', '.join(wanted)}), "
            f"got {', '.join(names)}."
        )
