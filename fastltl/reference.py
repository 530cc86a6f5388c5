"""Plain NumPy: a twin of each kernel, of the online loop and of the batch solver.

Tests compare with it, and benchmarks measure against it. So it states the mathematics as directly
as NumPy allows: a dense gradient, a full eigen-decomposition at every step, no state but the
matrices of the algorithm. `fastltl/_kernels/task.py` explains the notation.

>>> import numpy as np
>>> from fastltl import reference
>>> np.trace(reference.project(np.diag([1.0, 2.0, 3.0]), radius=1.0))
np.float64(1.0)
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from fastltl._plain_prior import LearnedPrior as LearnedPrior
from fastltl._validation import check_objective

Array = npt.NDArray[np.float64]


def centre(X: Array, y: Array) -> tuple[Array, Array, Array, float]:
    """Subtract from a task its means: (X - 1 m', y - mean(y), m, mean(y)).

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.centre(np.array([[1.0], [3.0]]), np.array([2.0, 6.0]))
    (array([[-1.],
           [ 1.]]), array([-2.,  2.]), array([2.]), 4.0)
    """
    return X - X.mean(axis=0), y - y.mean(), X.mean(axis=0), float(y.mean())


def compress(X: Array, y: Array) -> tuple[Array, Array, float]:
    """Reduce a task of n > d rows to d, by X = QR: return R, z = Q'y and |y - Qz|^2.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> R, z, residual = reference.compress(np.ones((4, 1)), np.array([1.0, 1.0, 3.0, 3.0]))
    >>> np.abs(R), np.abs(z), round(residual, 12)
    (array([[2.]]), array([4.]), 4.0)
    """
    n, d = X.shape
    if n <= d:
        return X, y, 0.0
    Q, R = np.linalg.qr(X)
    z = Q.T @ y
    return R, z, float(np.sum((y - Q @ z) ** 2))


def truncate(X: Array, y: Array, residual: float) -> tuple[Array, Array, float]:
    """Reduce a task of dependent rows to its rank, by X = U diag(s) V'.

    Return diag(s) V', z = U'y and residual + |y - Uz|^2, or the task if its rows are independent.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> X, z, residual = reference.truncate(np.ones((2, 2)), np.array([1.0, 3.0]), 0.0)
    >>> X.shape, round(residual, 12)
    ((1, 2), 2.0)
    """
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    if s[-1] > 1e-3 * s[0]:
        return X, y, residual
    rank = max(1, int(np.sum(s > max(X.shape) * np.finfo(float).eps * s[0])))
    U, s, Vt = U[:, :rank], s[:rank], Vt[:rank]
    z = U.T @ y
    return s[:, None] * Vt, z, residual + float(np.sum((y - U @ z) ** 2))


def _dual(D: Array, X: Array, y: Array) -> tuple[Array, Array, float, Array]:
    """The task compressed, truncated if need be, and its M = X D X' + n I."""
    n = len(y)
    X, y, residual = compress(X, y)
    M = X @ D @ X.T + n * np.eye(len(y))
    if M.diagonal().max() > 1e2 * n:  # else M is too well conditioned for it to matter
        X, y, residual = truncate(X, y, residual)
        M = X @ D @ X.T + n * np.eye(len(y))
    return X, y, residual, M


def ridge_weights(D: Array, X: Array, y: Array) -> Array:
    """Solve a task by ridge regression with D: w = D X' M^-1 y with M = X D X' + n I.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.ridge_weights(np.eye(1), np.ones((2, 1)), np.array([1.0, 3.0]))
    array([1.])
    """
    X, y, _, M = _dual(D, X, y)
    w: Array = D @ X.T @ np.linalg.solve(M, y)
    return w


def task_loss_and_gradient(
    D: Array, X: Array, y: Array, objective: str = "error"
) -> tuple[float, Array]:
    """Compute the loss of a task and its gradient at D, with u = M^-1 y and v = M^-1 u.

    "error": n |u|^2 and -n X' (u v' + v u') X. "regularized": y'u and -X' u u' X.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> task = np.ones((2, 1)), np.array([2.0, 2.0])
    >>> loss, gradient = reference.task_loss_and_gradient(np.eye(1), *task, "regularized")
    >>> round(loss, 12), gradient
    (2.0, array([[-1.]]))
    """
    n = len(y)
    X, y, residual, M = _dual(D, X, y)
    u = np.linalg.solve(M, y)
    a = X.T @ u
    if check_objective(objective):
        return float(y @ u) + residual / n, -np.outer(a, a)
    b = n * (X.T @ np.linalg.solve(M, u))
    return n * float(u @ u) + residual / n, -(np.outer(a, b) + np.outer(b, a))


def task_loss(D: Array, X: Array, y: Array, objective: str = "error") -> float:
    """Compute the loss of a task: n |M^-1 y|^2 or, regularized, y' M^-1 y.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> round(reference.task_loss(np.eye(1), np.ones((2, 1)), np.array([2.0, 2.0])), 12)
    1.0
    """
    return task_loss_and_gradient(D, X, y, objective)[0]


def task_gradient(D: Array, X: Array, y: Array, objective: str = "error") -> Array:
    """Compute the gradient of `task_loss` at D.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.task_gradient(np.eye(1), np.ones((2, 1)), np.array([2.0, 2.0]))
    array([[-1.]])
    """
    return task_loss_and_gradient(D, X, y, objective)[1]


def score(y: Array, prediction: Array, metric: int) -> float:
    """Compute the mean squared error (metric 0), explained variance (1) or R2 (2) of one task.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> y, prediction = np.array([1.0, 3.0]), np.array([2.0, 4.0])
    >>> [reference.score(y, prediction, metric) for metric in range(3)]
    [1.0, 1.0, 0.0]
    """
    residual = y - prediction
    if metric == 0:
        return float(np.mean(residual**2))
    error = np.var(residual) if metric == 1 else np.mean(residual**2)
    if np.ptp(y) == 0:
        return float(error == 0)
    return float(1 - error / np.var(y))


def soft_threshold(values: Array, radius: float) -> Array:
    """Compute max(0, g_i - a) with the least a >= 0 that brings their sum to at most the radius.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.soft_threshold(np.array([-1.0, 2.0, 3.0]), radius=3.0)
    array([0., 1., 2.])
    """
    if np.maximum(values, 0).sum() <= radius:
        return np.maximum(values, 0)
    below_top = values - values.max()
    descending = np.sort(below_top)[::-1]
    shifts = (np.cumsum(descending) - radius) / np.arange(1, len(values) + 1)
    kept: Array = np.maximum(below_top - shifts[descending > shifts][-1], 0)
    return kept


def project(Q: Array, radius: float) -> Array:
    """Find the nearest D to Q, in Frobenius norm, with D PSD and tr D <= radius.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.project(np.diag([-1.0, 2.0, 3.0]), radius=3.0).diagonal()
    array([0., 1., 2.])
    """
    values, V = np.linalg.eigh(Q)
    kept = soft_threshold(values, radius)
    if np.array_equal(kept, values):
        return Q.copy()
    D: Array = (V * kept) @ V.T
    return D


def entropic_iterate(S: Array, eta: float, radius: float) -> Array:
    """Compute the entropic iterate D = radius exp(eta S) / (tr exp(eta S) + 1).

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.entropic_iterate(np.zeros((2, 2)), eta=1.0, radius=3.0)
    array([[1., 0.],
           [0., 1.]])
    """
    values, V = np.linalg.eigh(S)
    top = max(0.0, eta * values[-1])
    weights = np.exp(eta * values - top)
    D: Array = (V * (radius * weights / (weights.sum() + np.exp(-top)))) @ V.T
    return D


def euclidean_iterates(
    tasks: Iterable[tuple[Array, Array]],
    lam: float,
    objective: str,
    step: str | float,
    step_scale: float = 1.0,
) -> Iterator[tuple[float, Array]]:
    """Run projected gradient descent from I / (lam d): yield the loss of D^(t), and D^(t+1).

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> tasks = [(np.ones((2, 1)), np.array([2.0, 2.0]))] * 3
    >>> run = reference.euclidean_iterates(tasks, lam=1.0, objective="error", step="theory")
    >>> [round(loss, 12) for loss, D in run]
    [1.0, 1.0, 1.0]
    """
    D, squared_norms, radius = np.empty(0), 0.0, 1 / lam
    for t, (X, y) in enumerate(tasks, start=1):
        if t == 1:
            d = X.shape[1]
            D = np.eye(d) * radius / d
        loss, gradient = task_loss_and_gradient(D, X, y, objective)
        squared_norms += float(np.sum(gradient**2))
        if step == "theory":
            gamma = radius / np.sqrt(2 * t)
        elif step == "adaptive":
            gamma = step_scale * radius / np.sqrt(squared_norms) if squared_norms else 0.0
        else:
            gamma = step / np.sqrt(t)
        D = project(D - gamma * gradient, radius)
        yield loss, D


def entropic_iterates(
    tasks: Iterable[tuple[Array, Array]], lam: float, objective: str, step_scale: float = 2.0
) -> Iterator[tuple[float, Array]]:
    """Follow the regularised leader from radius / (d + 1) I: yield the loss of D^(t), and D^(t+1).

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> tasks = [(np.ones((2, 1)), np.array([2.0, 2.0]))] * 3
    >>> run = reference.entropic_iterates(tasks, lam=1.0, objective="regularized")
    >>> [round(loss, 2) for loss, D in run]
    [2.67, 2.17, 2.09]
    """
    D, S, squared_norms, radius = np.empty(0), np.empty(0), 0.0, 1 / lam
    for t, (X, y) in enumerate(tasks, start=1):
        d = X.shape[1]
        if t == 1:
            D, S = np.eye(d) * radius / (d + 1), np.zeros((d, d))
        loss, gradient = task_loss_and_gradient(D, X, y, objective)
        S = S - gradient
        squared_norms += float(np.linalg.norm(gradient, 2) ** 2)
        if squared_norms:
            eta = step_scale * np.sqrt(np.log(d + 1) / squared_norms)
            D = entropic_iterate(S, eta, radius)
        yield loss, D


def online_iterates(
    tasks: Iterable[tuple[Array, Array]],
    lam: float,
    objective: str = "regularized",
    geometry: str = "entropic",
    step: str | float = "adaptive",
    step_scale: float | None = None,
) -> Iterator[tuple[float, Array]]:
    """Run `OnlineLTL`: yield, task by task, the loss of D^(t), and D^(t+1).

    Examples
    --------
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(5, noise=0.1, random_state=0).tasks(20, 8)
    >>> *_, (loss, D) = ltl.reference.online_iterates(tasks, lam=0.1)
    >>> D.shape
    (5, 5)
    """
    if geometry == "entropic":
        return entropic_iterates(tasks, lam, objective, 2.0 if step_scale is None else step_scale)
    scale = 1.0 if step_scale is None else step_scale
    return euclidean_iterates(tasks, lam, objective, step, scale)


def mean_objective(
    D: Array, tasks: Iterable[tuple[Array, Array]], objective: str = "regularized"
) -> tuple[float, Array]:
    """Compute the value and the gradient at D of the mean loss of tasks.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> tasks = [(np.ones((2, 1)), np.array([2.0, 2.0])), (np.ones((1, 1)), np.zeros(1))]
    >>> value, gradient = reference.mean_objective(np.eye(1), tasks)
    >>> round(value, 12), gradient
    (1.0, array([[-0.5]]))
    """
    pairs = [task_loss_and_gradient(D, X, y, objective) for X, y in tasks]
    values, gradients = zip(*pairs, strict=True)
    return float(np.mean(values)), np.mean(gradients, axis=0)


def gap(D: Array, gradient: Array, radius: float) -> float:
    """Bound F(D) - min F for a convex F by <grad, D> + radius max(0, -lambda_min(grad)).

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl import reference
    >>> reference.gap(np.zeros((1, 1)), np.array([[-2.0]]), radius=1.0)
    2.0
    """
    return float(np.sum(gradient * D) + radius * max(0.0, -np.linalg.eigvalsh(gradient)[0]))


def batch_solution(
    tasks: Iterable[tuple[Array, Array]],
    lam: float,
    objective: str = "regularized",
    tol: float = 1e-6,
    max_iter: int = 10_000,
    start: Array | None = None,
) -> Array:
    """Minimise `mean_objective` over {D PSD, tr D <= 1 / lam} until gap <= tol F(D).

    From a feasible start, or from I / (lam d). Accelerated projected gradient (FISTA) with
    backtracking, restarted when it goes uphill.

    Examples
    --------
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(5, noise=0.1, random_state=0).tasks(20, 8)
    >>> D = ltl.reference.batch_solution(tasks, lam=0.1)
    >>> learner = ltl.BatchLTL(lam=0.1).fit(tasks)
    >>> value, gradient = ltl.reference.mean_objective(D, tasks)
    >>> bool(abs(value / learner.objective_ - 1) < 1e-5)
    True
    """
    tasks, radius = list(tasks), 1 / lam
    d = tasks[0][0].shape[1]
    D: Array = np.eye(d) * radius / d if start is None else start
    ahead = D
    value, gradient = mean_objective(D, tasks, objective)
    step, momentum = radius / max(float(np.linalg.norm(gradient)), np.finfo(float).tiny), 1.0
    for _ in range(max_iter):
        if gap(D, gradient, radius) <= tol * value:
            break
        ahead_value, ahead_gradient = mean_objective(ahead, tasks, objective)
        while True:
            new = project(ahead - step * ahead_gradient, radius)
            move = new - ahead
            new_value, new_gradient = mean_objective(new, tasks, objective)
            model = np.sum(ahead_gradient * move) + np.sum(move**2) / (2 * step)
            if new_value <= ahead_value + model + 1e-15 * ahead_value:
                break
            step /= 2
        if new_value > value and momentum > 1:
            ahead, momentum = D, 1.0
            continue
        momentum, before = (1 + np.sqrt(1 + 4 * momentum**2)) / 2, momentum
        ahead = new + (before - 1) / momentum * (new - D)
        D, value, gradient = new, new_value, new_gradient
        step *= 1.2
    return D
