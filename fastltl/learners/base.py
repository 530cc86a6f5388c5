"""What every learner of a representation shares: tasks in, D out, and what D is good for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fastltl import kernels
from fastltl.learners.ridge import RepresentationRidge
from fastltl.tasks import TaskSet
from fastltl.threads import steadily
from fastltl.validation import Array, check_computed, check_matrix


class RepresentationLearner(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    ABC,
):
    """Base of the learners: a representation `D_` from tasks, as a scikit-learn transformer."""

    fit_intercept: bool
    n_features_in_: int

    @property
    @abstractmethod
    def D_(self) -> Array:
        """The learned representation, a matrix that later tasks do not change."""

    @abstractmethod
    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        """Learn from tasks."""

    def adapt(self, X: npt.ArrayLike, y: npt.ArrayLike) -> RepresentationRidge:
        """Solve a new task with the learned representation.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)

        Returns
        -------
        RepresentationRidge
            Fitted to the task.
        """
        D = self.D_
        check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        return RepresentationRidge(D, fit_intercept=self.fit_intercept).fit(X, y)

    def transform(self, X: npt.ArrayLike) -> Array:
        """Map inputs to the learned features: X D^(1/2).

        scikit-learn's ``Ridge(alpha=n, fit_intercept=...)`` on n transformed samples is `adapt`,
        and any other model can use the features as well.
        """
        check_is_fitted(self)
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        return check_computed(steadily(kernels.features, *data.shape, self.D_, data))

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_

    def _tasks(
        self, X: Any, y: npt.ArrayLike | None, groups: npt.ArrayLike | None
    ) -> Iterable[Any]:
        """The tasks that arguments of `fit` stand for."""
        if y is None:
            if groups is not None or hasattr(X, "shape") or not isinstance(X, Iterable):
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y is None; "
                    "without y, X must be a TaskSet or an iterable of (X, y)."
                )
            return X
        return [(X, y)] if groups is None else TaskSet.from_groups(X, y, groups)

    def _remember_features(self, X: Any) -> None:
        """Record the number of the features and, of a data frame, their names."""
        if type(X) is np.ndarray:  # spares the search for names, which takes as long as a task
            self.n_features_in_ = X.shape[1]
        else:
            validate_data(self, X, skip_check_array=True)

    def _check_feature_names(self, X: Any) -> None:
        """If X or an earlier task names its features, the names must agree."""
        if type(X) is not np.ndarray or "feature_names_in_" in self.__dict__:
            validate_data(self, X, reset=False, skip_check_array=True)

    @contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        """Undo the assignments of a call that fails."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
