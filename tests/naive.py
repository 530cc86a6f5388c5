"""Naive versions of the paper's formulas, and random tasks for the tests."""

import numpy as np

EPS = np.finfo(float).eps


def literal_dual(D, X):
    return X @ D @ X.T + len(X) * np.eye(len(X))


def literal_loss(D, X, y):
    return len(y) * np.sum((np.linalg.inv(literal_dual(D, X)) @ y) ** 2)


def literal_gradient(D, X, y):
    inverse = np.linalg.inv(literal_dual(D, X))
    S = np.outer(y, y) @ inverse + inverse @ np.outer(y, y)
    return -len(y) * X.T @ inverse @ S @ inverse @ X


def literal_weights(D, X, y):
    return D @ X.T @ np.linalg.inv(literal_dual(D, X)) @ y


def literal_objective(D, tasks, objective):
    """Return value and gradient of the mean over tasks of n |M^-1 y|^2 or y' M^-1 y."""
    values, gradients = [], []
    for X, y in tasks:
        if objective == "regularized":
            u = np.linalg.solve(literal_dual(D, X), y)
            values.append(y @ u)
            gradients.append(-np.outer(X.T @ u, X.T @ u))
        else:
            values.append(literal_loss(D, X, y))
            gradients.append(literal_gradient(D, X, y))
    return np.mean(values), np.mean(gradients, axis=0)


def literal_gap(D, tasks, lam, objective):
    """Return F(D) and the gap <grad, D> + max(0, -lambda_min(grad)) / lam."""
    value, gradient = literal_objective(D, tasks, objective)
    return value, np.sum(gradient * D) + max(0.0, -np.linalg.eigvalsh(gradient)[0]) / lam


def condition(D, X):
    """Return the condition number of the matrix that the library solves with: d x d if n > d."""
    n, d = X.shape
    R = np.linalg.qr(X)[1] if n > d else X
    return np.linalg.cond(R @ D @ R.T + n * np.eye(len(R)))


def relative(A, B):
    """Return |A - B| / |B| in Frobenius norm, or |A| if B is zero."""
    return np.linalg.norm(np.asarray(A) - B) / (np.linalg.norm(B) or 1.0)


def unit_ball_task(rng, n, d):
    """Draw a task that satisfies the paper's assumptions: x in the unit ball, y in [0, 1]."""
    X = rng.normal(size=(n, d))
    X *= rng.uniform(size=(n, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    return X, rng.uniform(size=n)


def sphere_task(rng, n, d, noise=0.05):
    """Draw a task like the paper's: x on the unit sphere, y linear in half of the features."""
    X = rng.normal(size=(n, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    w = rng.normal(size=d)
    w[d // 2 + 1 :] = 0
    return X, X @ w / np.linalg.norm(w) + noise * rng.normal(size=n)


def ragged_tasks(seed, n_tasks, d, sizes):
    rng = np.random.default_rng(seed)
    return [sphere_task(rng, int(rng.integers(*sizes, endpoint=True)), d) for _ in range(n_tasks)]


def random_psd(rng, d, rank=None, trace=1.0):
    A = rng.normal(size=(d, d if rank is None else rank))
    D = A @ A.T
    return D * (trace / np.trace(D))
