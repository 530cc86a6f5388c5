"""AdaptedTasks: the regressors that a learner has fitted to several tasks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastltl._columns import group_positions
from fastltl._frames import names_of
from fastltl._objective import Names
from fastltl._validation import check_matrix


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
