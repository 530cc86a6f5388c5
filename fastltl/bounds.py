"""Bounds on the regret and the risk of learning-to-learn, seldom sharp on real data.

The paper's bounds assume inputs in the unit ball, targets in [0, 1], the square loss and D PSD with
tr D <= 1 / lam. Bounds on regret, and on the online learner's risk, hold for convex losses: the
regularized objective is convex, the error objective is not. `input_norm` is the operator norm of
the inputs' covariance, `delta` the probability with which a bound may fail.
"""

from collections.abc import Iterable

import numpy as np

from fastltl._validation import (
    check_choice,
    check_count,
    check_from_zero,
    check_lam,
    check_positive,
)
from fastltl.tasks import Task, TaskSet


def _check_delta(delta: float) -> float:
    if check_positive(delta, "delta", "a number in (0, 1]") > 1:
        raise ValueError(f"delta must be a number in (0, 1], got {delta!r}.")
    return float(delta)


def input_covariance_norm(tasks: Iterable[Task]) -> float:
    """Estimate the input norm: the largest eigenvalue of the mean over tasks of X'X / n.

    Examples
    --------
    >>> import fastltl as ltl
    >>> tasks = ltl.datasets.make_environment(n_features=10, random_state=0).tasks(500, 20)
    >>> round(ltl.bounds.input_covariance_norm(tasks), 2)  # 1 / d on the sphere
    0.11
    """
    tasks = TaskSet(tasks)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sum(X.T @ X / len(X) for X, _ in tasks) / len(tasks)
    if not np.isfinite(mean).all():
        raise ValueError("X must not be so large that X'X overflows; scale it down.")
    return float(np.linalg.norm(mean, 2))


def online_regret(lam: float, T: int) -> float:
    """4 sqrt(2) / (lam sqrt(T)), the regret bound of Algorithm 1 for convex losses.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_regret(lam=1.0, T=32), 12)
    1.0
    """
    return float(4 * np.sqrt(2 / check_count(T, "T")) * check_lam(lam))


def gradient_descent_regret(radius: float, last_step: float, step_cost: float, T: int) -> float:
    """(radius^2 / gamma_T + sum gamma_t ||G_t||_F^2 / 2) / T, for non-increasing steps gamma_t.

    Bounds the regret of projected gradient descent for convex losses. `step_cost` is the sum.

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.bounds.gradient_descent_regret(radius=2.0, last_step=0.5, step_cost=4.0, T=100)
    0.1
    """
    radius, step_cost = check_positive(radius, "radius"), check_from_zero(step_cost, "step_cost")
    distance = radius * (radius / check_positive(last_step, "last_step"))
    return (distance + step_cost / 2) / check_count(T, "T")


def entropic_regret(
    radius: float, norm: float, largest_norm: float, T: int, d: int, step_scale: float
) -> float:
    """radius ((1/c + 2.75 c) sqrt(log(d + 1) sum ||G_t||^2) + 7 max ||G_t||) / T, operator norms.

    Orabona and Pal's bound, for convex losses, on the regret of scale-free FTRL (SOLO FTRL) over
    density matrices of size d + 1: the entropy is 1-strongly convex in trace norm, its range is
    log(d + 1) and the set's diameter is 2. `norm` is the square root of the sum, `step_scale` c.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.entropic_regret(1.0, 2.0, 0.5, T=100, d=50, step_scale=2.0), 4)
    0.2729
    """
    c, radius = check_positive(step_scale, "step_scale"), check_positive(radius, "radius")
    spread = float(np.sqrt(np.log(check_count(d, "d") + 1))) * check_from_zero(norm, "norm")
    largest = check_from_zero(largest_norm, "largest_norm")
    return radius * (spread / c + 2.75 * c * spread + 7 * largest) / check_count(T, "T")


def adaptive_regret(
    lam: float,
    squared_norms_sum: float,
    T: int,
    geometry: str,
    d: int,
    step_scale: float | None = None,
    largest_norm: float | None = None,
) -> float:
    """Bound the regret of adaptive steps by the gradients G_1, ..., G_T, for convex losses.

    "euclidean": (1/c + c) sqrt(sum ||G_t||_F^2) / (lam T). "entropic": see `entropic_regret`.
    `squared_norms_sum` is the sum of the squared norms, Frobenius or operator by geometry;
    `step_scale` is c, by default 1 (euclidean) or 2 (entropic); `largest_norm` is max ||G_t||, by
    default the square root of the sum.

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.bounds.adaptive_regret(1.0, squared_norms_sum=4 * 64, T=64, geometry="euclidean", d=5)
    0.5
    """
    T, d, radius = check_count(T, "T"), check_count(d, "d"), check_lam(lam)
    norm = float(np.sqrt(check_from_zero(squared_norms_sum, "squared_norms_sum")))
    if check_choice(geometry, "geometry", ("euclidean", "entropic")) == "entropic":
        c = 2.0 if step_scale is None else step_scale
        largest = norm if largest_norm is None else largest_norm
        return entropic_regret(radius, norm, largest, T, d, c)
    c = 1.0 if step_scale is None else check_positive(step_scale, "step_scale")
    return (norm / c + c * norm) * radius / T


def uniform_generalization(lam: float, n: int, input_norm: float) -> float:
    """2 sqrt(2 pi input_norm / n) (1 + sqrt(lam)) / lam >= sup_D |E(D) - E_hat(D)|.

    Bounds the mean difference between a task's training error and its error on new samples.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.uniform_generalization(lam=1.0, n=1600, input_norm=0.01), 4)
    0.0251
    """
    radius = check_lam(lam)
    root = np.sqrt(2 * np.pi * check_positive(input_norm, "input_norm") / check_count(n, "n"))
    return float(2 * root * (1 + np.sqrt(float(lam))) * radius)


def multitask_generalization(lam: float, T: int, delta: float) -> float:
    """2 sqrt(2 pi / T) / lam + sqrt(log(1/delta) / (2T)) >= sup_D |E_hat(D) - E_Z(D)|.

    Bounds the difference between the mean training error of T tasks and its expectation.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.multitask_generalization(lam=10.0, T=1000, delta=0.05), 4)
    0.0546
    """
    T = check_count(T, "T")
    confidence = np.sqrt(np.log(1 / _check_delta(delta)) / (2 * T))
    return float(2 * np.sqrt(2 * np.pi / T) * check_lam(lam) + confidence)


def online_excess_future_risk(lam: float, T: int, delta: float) -> float:
    """4 sqrt(2 / T) / lam + sqrt(8 log(2/delta) / T) >= E_hat(mean D) - min E_hat.

    Bounds the excess training error of Algorithm 1 on future tasks, for convex losses.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_excess_future_risk(lam=10.0, T=1000, delta=0.05), 4)
    0.1897
    """
    confidence = np.sqrt(8 * np.log(2 / _check_delta(delta)) / check_count(T, "T"))
    return online_regret(lam, T) + float(confidence)


def online_excess_risk(lam: float, n: int, T: int, delta: float, input_norm: float) -> float:
    """Bound E(mean D) - min E for Algorithm 1 after T tasks of n samples, for convex losses.

    The bound is 2 `uniform_generalization` + `online_excess_future_risk`.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_excess_risk(10.0, n=1600, T=1000, delta=0.05, input_norm=0.01), 4)
    0.2001
    """
    generalization = 2 * uniform_generalization(lam, n, input_norm)
    return generalization + online_excess_future_risk(lam, T, delta)


def batch_excess_risk(lam: float, n: int, T: int, delta: float, input_norm: float) -> float:
    """Bound E(D) - min E for the minimiser D of the mean training error of T tasks.

    For a global minimiser and tasks of n samples the bound is 2 `uniform_generalization`
    + 2 sqrt(2 pi / T) / lam + sqrt(2 log(2/delta) / T).

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.batch_excess_risk(10.0, n=1600, T=1000, delta=0.05, input_norm=0.01), 4)
    0.1122
    """
    # A union bound: uniformly over D, and at the best D by Hoeffding's inequality.
    uniform = multitask_generalization(lam, T, _check_delta(delta) / 2)
    hoeffding = float(np.sqrt(np.log(2 / float(delta)) / (2 * T)))
    return 2 * uniform_generalization(lam, n, input_norm) + uniform + hoeffding
