"""Ridge regression on one task shaped by a representation, and on each task alone."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fastltl._columns import group_codes, group_positions
from fastltl._kernels.task import centre, ridge_weights
from fastltl._objective import ridge_paths
from fastltl._threads import call_kernel, one_blas_thread
from fastltl._validation import (
    Array,
    check_computed,
    check_flag,
    check_lam,
    check_lams,
    check_matrix,
    check_representation,
    check_target,
)
from fastltl.base import RepresentationLearner, largest_size, restore_on_failure
from fastltl.io.checkpoints import Savable, check_saved_array
from fastltl.tasks import TaskSet


class RepresentationRidge(Savable, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Solve a task by ridge regression with a representation D.

    This scikit-learn regressor finds the weights of one task: those with the least
    |y - Xw|^2 / n + w' D^+ w, over w in the range of D. D says which directions of the input are
    worth weight; it may be singular.

    Parameters
    ----------
    D : array-like of shape (d, d), optional
        Representation, symmetric positive semidefinite. By default I / lam, which is ordinary
        ridge regression with scikit-learn's alpha = n lam.
    lam : float
        Used when D is None only.
    fit_intercept : bool
        Whether to centre X and y and fit an intercept.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
    intercept_ : float
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 2.0, 3.0])
    >>> ltl.RepresentationRidge(lam=1e-9).fit(X, y).coef_.round(3)
    array([1., 2.])
    >>> ltl.RepresentationRidge(D=np.diag([1e9, 0.0])).fit(X, y).coef_.round(3)
    array([2., 0.])
    """

    coef_: Array
    intercept_: float
    n_features_in_: int

    _KEPT: ClassVar[dict[str, type]] = {
        "coef_": np.ndarray,
        "intercept_": float,
        "n_features_in_": int,
        "feature_names_in_": np.ndarray,
    }

    def __init__(
        self, D: npt.ArrayLike | None = None, lam: float = 1.0, fit_intercept: bool = False
    ) -> None:
        self.D = D
        self.lam = lam
        self.fit_intercept = fit_intercept

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Fit the weights to one task: X of shape (n, d), y of shape (n,)."""
        owner = type(self).__name__
        check_flag(self.fit_intercept, "fit_intercept")
        data = check_matrix(X, owner=owner)
        target = check_target(y, len(data), owner=owner)
        d = data.shape[1]
        D = np.eye(d) * check_lam(self.lam) if self.D is None else check_representation(self.D, d)
        if self.fit_intercept:
            data, target, x_mean, y_mean = centre(data, target)
        weights = check_computed(call_kernel(ridge_weights, max(data.shape), D, data, target))
        with np.errstate(over="ignore", invalid="ignore"):
            intercept = float(y_mean - x_mean @ weights) if self.fit_intercept else 0.0
        check_computed(intercept)
        validate_data(self, X, skip_check_array=True)  # records the number and names of features
        self.coef_, self.intercept_ = weights, intercept
        return self

    def predict(self, X: npt.ArrayLike) -> Array:
        """Predict w'x + intercept for each row x of X."""
        check_is_fitted(self)
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        validate_data(self, X, reset=False, skip_check_array=True)
        with np.errstate(over="ignore", invalid="ignore"):
            prediction: Array = data @ self.coef_ + self.intercept_
        return check_computed(prediction)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        check_saved_array(state["coef_"], (self.n_features_in_,))
        check_saved_array(np.array(state["intercept_"]), ())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")


class MultitaskModel(RepresentationLearner):
    """A learner that also has weights for the tasks it was fitted to."""

    coef_: Array
    intercept_: Array
    labels_: npt.NDArray[np.object_]

    _KEPT: ClassVar[dict[str, type]] = {
        "coef_": np.ndarray,
        "intercept_": np.ndarray,
        "labels_": np.ndarray,
    }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        n_tasks = len([hash(label) for label in state["labels_"]])  # each can be looked up
        check_saved_array(state["coef_"], (n_tasks, self.n_features_in_))
        check_saved_array(state["intercept_"], (n_tasks,))

    def predict(self, X: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Array:
        """Predict with the weights of the task that each row belongs to.

        `groups` has the label of each row's task, as in `labels_`; one task needs none.
        """
        check_is_fitted(self)
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        if groups is None and len(self.labels_) > 1:
            raise ValueError(
                f"groups must name the task of each row, got None; {type(self).__name__} was "
                f"fitted to {len(self.labels_)} tasks."
            )
        tasks, unknown = self._positions(groups, len(data))
        if unknown:
            raise ValueError(
                f"groups must name tasks that {type(self).__name__} was fitted to, got "
                f"{unknown[0]!r}; use adapt for a new task."
            )
        return check_computed(self._predict_tasks(data, tasks))

    def _positions(self, groups: Any, n: int) -> tuple[npt.NDArray[np.int64], list[Hashable]]:
        """Return the position of each row's task in `labels_`, -1 if unknown; and the unknown."""
        if groups is None:
            return np.zeros(n, dtype=np.int64), []
        if len(set(self.labels_)) < len(self.labels_):
            raise ValueError(
                f"groups must tell tasks apart, but {type(self).__name__} was fitted to tasks of "
                "the same label."
            )
        return group_positions(groups, n, self.labels_)

    def _predict_tasks(self, X: Array, tasks: npt.NDArray[np.int64]) -> Array:
        """Predict each row by the weights of the task at its position in `labels_`."""
        with np.errstate(over="ignore", invalid="ignore"):
            prediction: Array = np.sum(X * self.coef_[tasks], axis=1) + self.intercept_[tasks]
        return prediction

    def _predict_unseen(self, X: Array, y: Array, groups: Any) -> Array:
        if groups is None and len(self.labels_) > 1:
            return super()._predict_unseen(X, y, groups)
        tasks, _ = self._positions(groups, len(X))
        predictions, is_new = self._predict_tasks(X, tasks), tasks == -1
        if is_new.any():
            codes, _ = group_codes(groups, len(X), "groups")
            levels = np.full(is_new.sum(), self.intercept_.mean())
            predictions[is_new] = self._predict_left_out(
                X[is_new], y[is_new], codes[is_new], levels
            )
        return predictions


class ITL(MultitaskModel):
    """Solve each task by ridge regression on its own (independent task learning).

    The baseline of the other learners: its representation is D = I / lam whatever the tasks, so
    each task has the weights of scikit-learn's ``Ridge(alpha=n * lam)``.

    Parameters
    ----------
    lam : float
        Regularisation.
    fit_intercept : bool
        Whether to centre X and y inside each task and fit an intercept.

    Attributes
    ----------
    coef_ : ndarray of shape (n_tasks, d)
        Weights of each task.
    intercept_ : ndarray of shape (n_tasks,)
    labels_ : ndarray of shape (n_tasks,)
        Names of the tasks, for `predict`.
    D_ : ndarray of shape (d, d)
        I / lam.
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> X, y = np.array([[1.0], [2.0]]), np.array([2.0, 4.0])
    >>> ltl.ITL(lam=1e-9).fit([(X, y), (X, -y)]).coef_.round(3)
    array([[ 2.],
           [-2.]])
    """

    def __init__(self, lam: float = 1.0, fit_intercept: bool = False) -> None:
        self.lam = lam
        self.fit_intercept = fit_intercept

    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        radius = check_lam(self.lam)
        tasks = self._collection(X, y, groups)
        with restore_on_failure(self):
            self._remember_features(tasks if y is None else X)
            weights, intercepts = self.path(tasks, [self.lam])
            self._representation = np.eye(tasks.n_features) * radius
            self.labels_, self.coef_, self.intercept_ = tasks.labels, weights[0], intercepts[0]
        self._warn_of_nothing_shared(len(tasks), largest_size(tasks))
        return self

    def path(
        self,
        X: Any,
        lams: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Weights and intercepts for many values of lam, from one decomposition of each task.

        X, y and groups are as in `fit`. Returns weights of shape (n_lams, n_tasks, d) and
        intercepts of shape (n_lams, n_tasks).

        Examples
        --------
        >>> import numpy as np
        >>> import fastltl as ltl
        >>> X, y = np.array([[1.0], [1.0]]), np.array([1.0, 1.0])
        >>> weights, _ = ltl.ITL().path([(X, y)], lams=[1.0, 3.0])
        >>> weights.ravel().round(6)
        array([0.5 , 0.25])
        """
        values = check_lams(lams)
        fit_intercept = check_flag(self.fit_intercept, "fit_intercept")
        tasks = self._collection(X, y, groups)
        if not isinstance(tasks, TaskSet):
            raise TypeError(
                f"X must be a TaskSet, or tasks that make one, got {type(tasks).__name__}: ITL "
                "shares nothing between tasks, so each worker can fit its own."
            )
        with one_blas_thread:
            reduced = tasks.reduced(fit_intercept, n_threads=1)
            weights = ridge_paths(reduced, values, n_threads=1).swapaxes(0, 1)
        return weights, reduced.y_means - np.sum(weights * reduced.x_means, axis=2)
