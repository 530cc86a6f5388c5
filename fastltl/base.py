"""Base classes of the learners: tasks in, regressors for others out."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import r2_score
from sklearn.utils import RegressorTags
from sklearn.utils.validation import check_is_fitted, validate_data

from fastltl._columns import group_codes
from fastltl._kernels.spectral import features
from fastltl._objective import Names, TaskCollection, TaskSource, left_out_ridge
from fastltl._threads import call_kernel, one_blas_thread
from fastltl._validation import (
    Array,
    check_computed,
    check_matrix,
    check_representation,
    check_target,
)
from fastltl.adapted import AdaptedTasks, check_labels, check_names
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


class Learner(
    Savable,
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
    ABC,
):
    """Learn from tasks how to solve others; a scikit-learn transformer."""

    fit_intercept: bool
    n_features_in_: int
    feature_names_in_: npt.NDArray[np.object_]
    _warns_of_arrays = False  #: whether arrays lack the feature names of `fit`

    # With metadata routing enabled, scikit-learn passes `groups` on by default.
    __metadata_request__fit: ClassVar = {"groups": True}
    __metadata_request__predict: ClassVar = {"groups": True}
    __metadata_request__score: ClassVar = {"groups": True}

    #: Effect on a learner with an intercept if all tasks have a single row.
    _SINGLE_ROWS: ClassVar[str]

    _KEPT: ClassVar[dict[str, type]] = {
        "n_features_in_": int,
        "feature_names_in_": np.ndarray,
        "_warns_of_arrays": bool,
    }

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
            Task of each row, which need not be adjacent. By default all rows are one task, which
            warns, as nothing can be shared then.
        """

    @overload
    def adapt(self, X: TaskSet, y: None = None) -> AdaptedTasks: ...
    @overload
    def adapt(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Any: ...

    def adapt(self, X: Any, y: npt.ArrayLike | None = None) -> Any:
        """Solve one task, or each task of a TaskSet, with the help of what was learned.

        Parameters
        ----------
        X : array-like of shape (n, d), or TaskSet
            Inputs of one task, or tasks of distinct labels. They may be new.
        y : array-like of shape (n,), optional
            Targets of the one task.

        Returns
        -------
        regressor or AdaptedTasks
            A regressor fitted to the task or, for a TaskSet, a mapping from the label of each
            task to its regressor.

        Examples
        --------
        >>> import fastltl as ltl
        >>> environment = ltl.datasets.make_environment(n_features=5, noise=0.1, random_state=0)
        >>> learner = ltl.OnlineLTL(lam=0.1).fit(environment.tasks(20, n_samples=8))
        >>> X, y = environment.tasks(1, n_samples=8)[0]
        >>> learner.adapt(X, y).predict(X).shape
        (8,)
        >>> learner.adapt(ltl.TaskSet([(X, y), (X, -y)], labels=["a", "b"]))
        AdaptedTasks(2 tasks)
        """
        self._check_is_fitted()
        owner = type(self).__name__
        if isinstance(X, TaskSet):
            if y is not None:
                raise ValueError(
                    "y must be None when X is a TaskSet, which has the targets, got "
                    f"{type(y).__name__}."
                )
            return self._adapted(X)
        if y is None:
            raise ValueError(
                f"{owner} requires y to be passed, but the target y is None; without y, X must be "
                f"a TaskSet, got {type(X).__name__}."
            )
        check_matrix(X, self.n_features_in_, owner=owner)
        self._check_feature_names(X)
        return self._adapt(X, y)

    @abstractmethod
    def _adapt(self, X: Any, y: Any) -> Any:
        """Return a regressor fitted to one task: X is checked but as the user gave it, y is not."""

    @abstractmethod
    def _prior_regressor(self, regressors: Sequence[Any]) -> Any:
        """Return the regressor for tasks without data, given those of other tasks."""

    def score(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> float:
        """Return R^2, the share of the variance of y that predictions explain, over all rows.

        `BayesLTL` predicts by the prior mean, as its `predict` does. `MTL` and `ITL` predict rows
        of the tasks that they were fitted to by the weights of these tasks. Any other row is
        predicted by `adapt` to the other rows of its group, because a representation predicts
        nothing without them. So the scores of `BayesLTL` and of the others answer different
        questions; `evaluate` compares learners fairly.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : array-like of shape (n,)
        groups : array-like of shape (n,), optional
            Task of each row. By default all rows are one task. `BayesLTL` does without.
        sample_weight : array-like of shape (n,), optional
            Weight of each row in R^2.

        Examples
        --------
        Cross-validation on tasks left out needs `groups` for the folds and for `fit`:

        >>> import numpy as np
        >>> import fastltl as ltl
        >>> from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
        >>> rng = np.random.default_rng(0)
        >>> X, g = rng.normal(size=(120, 3)), np.repeat(np.arange(20), 6)
        >>> y = X @ [1.0, 2.0, 3.0] + rng.normal(size=20)[g] + 0.1 * rng.normal(size=120)
        >>> scores = cross_val_score(
        ...     ltl.BayesLTL(), X, y, groups=g, params={"groups": g}, cv=GroupKFold()
        ... )
        >>> scores.mean().round(1)
        np.float64(0.9)

        With metadata routing they go where they are needed, `score` and searches included:

        >>> import sklearn
        >>> with sklearn.config_context(enable_metadata_routing=True):
        ...     scores = cross_val_score(
        ...         ltl.BayesLTL(), X, y, params={"groups": g}, cv=GroupKFold()
        ...     )
        ...     search = GridSearchCV(
        ...         ltl.MTL(fit_intercept=True), {"lam": [0.01, 1.0, 100.0]}, cv=GroupKFold()
        ...     ).fit(X, y, groups=g)
        >>> scores.mean().round(1), search.best_params_
        (np.float64(0.9), {'lam': 0.01})
        """
        self._check_is_fitted()
        owner = type(self).__name__
        data = check_matrix(X, self.n_features_in_, owner=owner)
        self._check_feature_names(X)
        target = check_target(y, len(data), owner=owner)
        with np.errstate(over="ignore", invalid="ignore"):
            predictions = check_computed(self._predict_unseen(data, target, groups))
            share = float(r2_score(target, predictions, sample_weight=sample_weight))
        return share if len(target) == 1 else check_computed(share)  # NaN for a single row

    @abstractmethod
    def _predict_unseen(self, X: Array, y: Array, groups: Any) -> Array:
        """Predict each row for `score`, without its own target; X and y are checked."""

    def _warn_of_nothing_shared(self, n_tasks: int, largest: int) -> None:
        """Warn, after `fit`, if one task, or tasks of a single row, tell nothing of what is shared.

        `largest` is the number of rows of the largest task.
        """
        owner = type(self).__name__
        if n_tasks == 1:
            problem = (
                f"{owner} was fitted to one task, so nothing is shared between tasks: pass groups, "
                "the task of each row, or several tasks. (scikit-learn's searches pass groups on "
                "with sklearn.set_config(enable_metadata_routing=True).)"
            )
        elif largest == 1 and self.fit_intercept:
            problem = (
                f"each of the {n_tasks} tasks has a single row, so {owner} with an intercept "
                f"{self._SINGLE_ROWS}: check that groups has the task of each row, not its number."
            )
        else:
            return
        warnings.warn(problem, UserWarning, stacklevel=3)

    def _adapt_tasks(self, tasks: TaskSet) -> list[Any]:
        """Return a regressor for each task; labels need not be distinct."""
        return solve_each(self._adapt, tasks)

    def _adapted(self, tasks: TaskSet) -> AdaptedTasks:
        """Return the regressors of tasks, after checking the tasks."""
        if len(tasks) == 0:
            raise ValueError("X must hold at least one task (X, y), got none.")
        self._check_tasks(tasks)
        check_labels(tasks.labels)
        regressors = self._adapt_tasks(tasks)
        prior = self._prior_regressor(regressors)
        by_label = dict(zip(tasks.labels, regressors, strict=True))
        return AdaptedTasks(by_label, prior, self.n_features_in_, self._names())

    def _names(self) -> Names:
        """Return the names of the features, if there are any."""
        names = self.__dict__.get("feature_names_in_")
        return None if names is None else tuple(names)

    def _check_tasks(self, tasks: TaskSet) -> None:
        """Check that tasks have the features of `fit`."""
        if tasks.n_features != self.n_features_in_:
            raise ValueError(
                f"X has {tasks.n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        check_names(tasks.feature_names, self._names())

    def _check_is_fitted(self) -> None:
        """Raise a NotFittedError before the first fit."""
        check_is_fitted(self)

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if hasattr(self, "predict"):
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags


def solve_each(solve: Callable[[Array, Array], Any], tasks: TaskSet) -> list[Any]:
    """Solve tasks by a function; errors begin with the label of the task."""
    solutions = []
    for label, (X, y) in zip(tasks.labels, tasks, strict=True):
        try:
            solutions.append(solve(X, y))
        except ValueError as error:
            raise ValueError(f"task {label!r}: {error}") from error
    return solutions


def largest_size(tasks: TaskCollection) -> int:
    """Return the number of rows of the largest task; 2 if the tasks are on a cluster."""
    return int(tasks.sizes.max()) if isinstance(tasks, TaskSet) else 2


class RepresentationLearner(Learner):
    """Learn a representation `D_` from tasks."""

    _representation: Array

    _KEPT: ClassVar[dict[str, type]] = {"_representation": np.ndarray}
    _SINGLE_ROWS = "learns nothing about weights"

    @property
    def D_(self) -> Array:
        """The learned representation; a copy."""
        check_is_fitted(self)
        return self._representation.copy()

    def transform(self, X: npt.ArrayLike) -> Array:
        """Map inputs to the learned features: X D^(1/2).

        scikit-learn's ``Ridge(alpha=n, fit_intercept=...)`` on n transformed samples is `adapt`,
        and any other model can use the features as well.
        """
        check_is_fitted(self)
        data = check_matrix(X, self.n_features_in_, owner=type(self).__name__)
        self._check_feature_names(X)
        return self._features(data)

    def _features(self, X: Array) -> Array:
        """Return X D^(1/2)."""
        return check_computed(call_kernel(features, max(X.shape), self.D_, X))

    @property
    def _n_features_out(self) -> int:
        return self.n_features_in_

    def _ridge(self, D: npt.ArrayLike | None) -> RepresentationRidge:
        from fastltl.ridge import RepresentationRidge  # which imports this module

        return RepresentationRidge(D, fit_intercept=self.fit_intercept)

    def _adapt(self, X: Any, y: Any) -> RepresentationRidge:
        return self._ridge(self.D_).fit(X, y)

    def _adapt_tasks(self, tasks: TaskSet) -> list[RepresentationRidge]:
        D = self.D_  # the same for all tasks, even if another thread fits this learner
        return solve_each(lambda X, y: self._ridge(D).fit(X, y), tasks)

    def _prior_regressor(self, regressors: Sequence[RepresentationRidge]) -> RepresentationRidge:
        prior = self._ridge(regressors[0].D)
        prior.n_features_in_ = self.n_features_in_
        prior.coef_ = np.zeros(self.n_features_in_)
        with np.errstate(over="ignore"):
            mean = float(np.mean([regressor.intercept_ for regressor in regressors]))
        prior.intercept_ = check_computed(mean)
        return prior

    def _predict_unseen(self, X: Array, y: Array, groups: Any) -> Array:
        codes = np.zeros(len(X), dtype=np.int64)
        if groups is None:
            warnings.warn(
                f"score of {type(self).__name__} got no groups, so all rows are one task: pass "
                "groups, the task of each row. (scikit-learn's cross-validation passes them on "
                "with sklearn.set_config(enable_metadata_routing=True).)",
                UserWarning,
                stacklevel=3,
            )
        else:
            codes, _ = group_codes(groups, len(X), "groups")
        # A single row has no others in its task. Its prediction is 0 or, with an intercept, the
        # mean target of the other tasks.
        predictions = np.zeros(len(y))
        if self.fit_intercept:
            predictions = (y.sum() - y) / max(len(y) - 1, 1)
        return self._predict_left_out(X, y, codes, predictions)

    def _predict_left_out(
        self, X: Array, y: Array, codes: npt.NDArray[np.int64], levels: Array
    ) -> Array:
        """Predict each row by `adapt` to the other rows of its task, or by its level if none."""
        A, predictions = self._features(X), levels.copy()
        order = np.argsort(codes, kind="stable")
        starts = np.unique(codes[order], return_index=True)[1]
        with one_blas_thread:
            for rows in np.split(order, starts[1:]):
                if len(rows) > 1:
                    predictions[rows] = left_out_ridge(A[rows], y[rows], self.fit_intercept)
        return predictions

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        if "_representation" in state:
            check_saved_array(state["_representation"], (self.n_features_in_, self.n_features_in_))
            check_representation(state["_representation"])

    def __sklearn_is_fitted__(self) -> bool:
        return "_representation" in self.__dict__
