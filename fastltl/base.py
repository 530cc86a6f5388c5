"""Base classes of the learners: tasks in, a representation D out, and its uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fastltl._columns import group_codes
from fastltl._kernels.spectral import features
from fastltl._objective import TaskCollection, TaskSource
from fastltl._threads import call_kernel
from fastltl._validation import (
    Array,
    check_computed,
    check_matrix,
    check_representation,
    check_target,
)
from fastltl.io.checkpoints import Savable, check_saved_array
from fastltl.tasks import TaskSet, check_iterable

if TYPE_CHECKING:
    from fastltl.ridge import RepresentationRidge


@contextmanager
def restore_on_failure(estimator: Any) -> Iterator[None]:
    """Undo the assignments to an estimator's attributes if the block fails."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        estimator.__dict__ = before
        raise


class RepresentationLearner(
    Savable,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    ABC,
):
    """Learn a representation `D_` from tasks; a scikit-learn transformer."""

    fit_intercept: bool
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    _representation: Array
    _warns_of_arrays = False  #: whether arrays lack the feature names of `fit`

    _KEPT: ClassVar[dict[str, type]] = {
        "_representation": np.ndarray,
        "n_features_in_": int,
        "feature_names_in_": np.ndarray,
        "_warns_of_arrays": bool,
    }

    @property
    def D_(self) -> Array:
        """The learned representation; a copy."""
        check_is_fitted(self)
        return self._representation.copy()

    @abstractmethod
    def fit(
        self, X: Any, y: npt.ArrayLike | None = None, groups: npt.ArrayLike | None = None
    ) -> Self:
        """Learn from tasks, and forget earlier ones unless it is a warm start.

        Parameters
        ----------
        X : TaskSet, iterable of (X, y), or array-like of shape (n, d)
            Tasks, when y is None; else the rows of one or more tasks.
        y : array-like of shape (n,), optional
        groups : array-like of shape (n,), optional
            Task of each row, which need not be adjacent. By default all rows are one task.
        """

    def adapt(self, X: npt.ArrayLike, y: npt.ArrayLike) -> RepresentationRidge:
        """Solve a new task with the learned representation: a ridge regression fitted to (X, y)."""
        from fastltl.ridge import RepresentationRidge  # which imports this module

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
        return check_computed(call_kernel(features, max(data.shape), self.D_, data))

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_

    def _tasks(self, X: Any, y: npt.ArrayLike | None, groups: npt.ArrayLike | None) -> Any:
        """Return the tasks that the arguments of `fit` describe: a TaskSource or an iterable."""
        if isinstance(X, TaskSource) and not (y is None and groups is None):
            raise ValueError(
                f"y and groups must be None when X is a {type(X).__name__}, which has both."
            )
        if isinstance(X, TaskSource):
            return X
        if y is None:
            if groups is not None or hasattr(X, "shape") or not isinstance(X, Iterable):
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y is None; "
                    "without y, X must be a TaskSet or an iterable of (X, y)."
                )
            check_iterable(X, "X")
            return X
        return [(X, y)] if groups is None else TaskSet.from_groups(X, y, groups)

    def _collection(
        self, X: Any, y: npt.ArrayLike | None, groups: npt.ArrayLike | None
    ) -> TaskCollection:
        """Return the tasks that the arguments of `fit` describe, all at once."""
        if y is not None and groups is None and not isinstance(X, TaskSource):
            owner = type(self).__name__
            data = check_matrix(X, owner=owner)
            return TaskSet([(data, check_target(y, len(data), owner=owner))])
        tasks = self._tasks(X, y, groups)
        collection = tasks.collection() if isinstance(tasks, TaskSource) else TaskSet(tasks)
        if len(collection) == 0:
            raise ValueError("X must hold at least one task (X, y), got none.")
        return collection

    def _remember_features(self, X: Any) -> None:
        """Record the number of features and, if they have any, their names."""
        self.__dict__.pop("feature_names_in_", None)
        self._warns_of_arrays = False
        if type(X) is np.ndarray:  # searching for names would take as long as a small task
            self.n_features_in_ = X.shape[1]
        elif isinstance(X, TaskSource):
            self.n_features_in_ = X.n_features
            if X.feature_names is not None:
                self.feature_names_in_ = np.array(X.feature_names, dtype=object)
        else:
            validate_data(self, X, skip_check_array=True)
            self._warns_of_arrays = "feature_names_in_" in self.__dict__

    def _check_feature_names(self, X: Any) -> None:
        """Check that the names of the features, if there are any, agree with those in `fit`.

        scikit-learn warns of arrays after data frames; the tasks of a TaskSet are arrays.
        """
        if type(X) is not np.ndarray or self._warns_of_arrays:
            validate_data(self, X, reset=False, skip_check_array=True)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        if "_representation" in state:
            check_saved_array(state["_representation"], (self.n_features_in_, self.n_features_in_))
            check_representation(state["_representation"])

    def __sklearn_is_fitted__(self) -> bool:
        return "_representation" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


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
        n_tasks = len(state["labels_"])
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
        tasks = np.zeros(len(data), dtype=np.int64)
        if groups is not None:
            places = {label: t for t, label in enumerate(self.labels_)}
            if len(places) < len(self.labels_):
                raise ValueError(
                    f"predict needs distinct labels, but {type(self).__name__} was fitted to tasks "
                    "of the same label."
                )
            codes, asked = group_codes(groups, len(data), "groups")
            for label in asked:
                if label not in places:
                    raise ValueError(
                        f"groups must name tasks that {type(self).__name__} was fitted to, got "
                        f"{label!r}; use adapt for a new task."
                    )
            tasks = np.array([places[label] for label in asked])[codes]
        with np.errstate(over="ignore", invalid="ignore"):
            prediction: Array = np.sum(data * self.coef_[tasks], axis=1) + self.intercept_[tasks]
        return check_computed(prediction)
