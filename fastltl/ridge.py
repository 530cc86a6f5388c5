"""RepresentationRidge: ridge regression on one task, shaped by a representation."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fastltl import _kernels as kernels
from fastltl._threads import steadily
from fastltl._validation import (
    Array,
    check_computed,
    check_flag,
    check_lam,
    check_matrix,
    check_representation,
    check_target,
)
from fastltl.io.storage import Savable


class RepresentationRidge(Savable, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Ridge regression with a representation D: min over w in range(D) of |y - Xw|^2/n + w' D^+ w.

    A scikit-learn regressor for one task. D says which directions of the input are worth
    weight; it may be singular, and then the weights stay in its range.

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
        """Fit the weights to one task.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        """
        owner = type(self).__name__
        check_flag(self.fit_intercept, "fit_intercept")
        data = check_matrix(X, owner=owner)
        target = check_target(y, len(data), owner=owner)
        d = data.shape[1]
        D = np.eye(d) * check_lam(self.lam) if self.D is None else check_representation(self.D, d)
        if self.fit_intercept:
            data, target, x_mean, y_mean = kernels.centre(data, target)
        weights = check_computed(steadily(kernels.ridge_weights, *data.shape, D, data, target))
        with np.errstate(over="ignore", invalid="ignore"):
            intercept = float(y_mean - x_mean @ weights) if self.fit_intercept else 0.0
        check_computed(intercept)
        validate_data(self, X, skip_check_array=True)  # records feature names and their number
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

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")
