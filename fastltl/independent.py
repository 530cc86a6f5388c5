"""ITL: every task on its own, by ordinary ridge regression."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fastltl._objective import ridge_paths
from fastltl._threads import one_blas_thread
from fastltl._validation import Array, check_flag, check_lam, check_lams
from fastltl.base import MultitaskModel, RepresentationLearner, unchanged_on_failure


class ITL(MultitaskModel, RepresentationLearner):
    """Independent task learning: ridge regression on each task, with nothing shared.

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
        Names of the tasks, as `predict` knows them.
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
        tasks = self._task_set(X, y, groups)
        with unchanged_on_failure(self):
            self._remember_features(tasks if y is None else X)
            weights, intercepts = self.path(tasks, [self.lam])
            self._representation = np.eye(tasks.n_features) * radius
            self._keep_weights(tasks.labels, weights[0], intercepts[0])
        return self

    def path(
        self,
        X: Any,
        lams: npt.ArrayLike,
        y: npt.ArrayLike | None = None,
        groups: npt.ArrayLike | None = None,
    ) -> tuple[Array, Array]:
        """Weights and intercepts for many values of lam, from one decomposition of each task.

        Parameters
        ----------
        X : TaskSet, iterable of (X, y), or array-like of shape (n, d)
            As in `fit`, and so are y and groups.
        lams : array-like of shape (n_lams,)

        Returns
        -------
        weights : ndarray of shape (n_lams, n_tasks, d)
        intercepts : ndarray of shape (n_lams, n_tasks)

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
        tasks = self._task_set(X, y, groups)
        if not hasattr(tasks, "reduced"):
            raise TypeError(
                f"X must be a TaskSet, or tasks that make one, got {type(tasks).__name__}: nothing "
                "is shared, so there is nothing to spread."
            )
        with one_blas_thread():
            tasks = tasks.reduced(fit_intercept, 1)
            weights = ridge_paths(tasks, values, 1)
        return weights, tasks.y_means - np.sum(weights * tasks.x_means, axis=2)
