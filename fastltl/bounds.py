"""Bounds on the regret and the risk of learning-to-learn, seldom sharp on real data.

They assume inputs in the unit ball, targets in [-1, 1] (the paper has [0, 1]), and D PSD with
tr D <= 1 / lam. With M = X D X' + nI the loss of a task is y' M^-1 y ("regularized") or the
training error n |M^-1 y|^2 of ridge regression with D ("error", the paper's). Both lie in [0, 1],
the error is the smaller one, and their gradients have Frobenius norm at most 1 and 2. E_hat(D) is
the expected loss of a new task, E_Z(D) the mean loss of T given tasks, and E(D) the risk: the
expected squared error of ridge regression with D on a new sample of a new task. Regret is the mean
of L_t(D^(t)) minus the least mean of L_t(D), where L_t is the loss of task t.

- Bounds on regret, and on E_hat of the online learner, need convex losses. The regularized
  objective is convex, so they are theorems. The error objective is not (the paper's Proposition 1
  says that it is): for it they are conditional on convexity.
- Bounds on |E_hat - E_Z| use range and Lipschitz constant only. They hold for both objectives.
- Bounds on E - min E belong to the error objective, which estimates E. With the regularized one
  they hold for E - min (E + P) instead, where P(D) is the mean over tasks of w' D^+ w, w the ridge
  weights. P is at most 1/4, but E - min E need not vanish as n and T grow.

Bounds that involve E are for learners without intercepts (``fit_intercept=False``): a task centred
by its own means is no longer an independent sample. The others hold for centred tasks, too.

`input_norm` is the operator norm of the inputs' covariance, `delta` the probability with which a
bound may fail.
"""

import math
from collections.abc import Iterable

import numpy as np

from fastltl._validation import (
    check_choice,
    check_count,
    check_from_zero,
    check_lam,
    check_objective,
    check_positive,
)
from fastltl.tasks import Task, TaskSet


def _lipschitz(objective: str) -> float:
    """Return the Lipschitz constant of a task's loss in D, which is its kernel stability too."""
    return 1.0 if check_objective(objective) else 2.0


def _deviation(T: int, delta: float) -> float:
    """sqrt(log(2/delta) / (2T)): one-sided at delta / 2, or two-sided, for means in [0, 1]."""
    share = check_positive(delta, "delta", "a number in (0, 1]")
    if share > 1:
        raise ValueError(f"delta must be a number in (0, 1], got {delta!r}.")
    return math.sqrt((math.log(2) - math.log(share)) / (2 * check_count(T, "T")))


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
    """4 sqrt(2) / (lam sqrt(T)), the paper's bound on the regret of Algorithm 1.

    A theorem for the regularized objective; for the error objective conditional on convexity. It
    takes 2 / lam for the diameter of the set of D, which is sqrt(2) / lam: see
    `sharp_online_regret`.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_regret(lam=1.0, T=32), 12)
    1.0
    """
    return 4 * math.sqrt(2 / check_count(T, "T")) * check_lam(lam)


def sharp_online_regret(
    lam: float, T: int, objective: str = "error", step: str | float = "theory"
) -> float:
    """(1 / (lam^2 c) + c G^2) / sqrt(T), a bound on the regret of steps c / sqrt(t).

    A theorem for the regularized objective; for the error objective conditional on convexity. For
    projected gradient descent on a set of diameter sqrt(2) / lam with gradients of norm at most G.

    Parameters
    ----------
    lam : float
    T : int
        Number of tasks.
    objective : {"error", "regularized"}
        G = 2 or G = 1.
    step : "theory" or float
        c, as in `OnlineLTL`. "theory" is the paper's 1 / (lam sqrt(2)), with which the bound is
        3 sqrt(2) / (lam sqrt(T)), or half of it if regularized. It is least, 2G / (lam sqrt(T)),
        for c = 1 / (lam G).

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.sharp_online_regret(lam=1.0, T=32), 12)
    0.75
    >>> round(ltl.bounds.sharp_online_regret(lam=1.0, T=32, objective="regularized"), 12)
    0.375
    >>> round(ltl.bounds.sharp_online_regret(lam=1.0, T=100, step=0.5), 12)  # 4 / (lam sqrt(T))
    0.4
    """
    radius, G, T = check_lam(lam), _lipschitz(objective), check_count(T, "T")
    if isinstance(step, str) and step == "theory":
        c = radius / math.sqrt(2)
    else:
        c = check_positive(step, "step", "'theory' or a positive finite number")
    return (radius * (radius / c) + c * G * G) / math.sqrt(T)


def gradient_descent_regret(radius: float, last_step: float, step_cost: float, T: int) -> float:
    """(radius^2 / gamma_T + sum gamma_t ||G_t||_F^2 / 2) / T, for non-increasing steps gamma_t.

    Bounds the regret of projected gradient descent on {D PSD, tr D <= radius}, of diameter
    sqrt(2) radius. A theorem for the regularized objective; for the error objective conditional
    on convexity. `step_cost` is the sum.

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
    """radius ((1/c + 2.75 c) s ||G|| + 3.5 min(c s sqrt(T - 1), 2) max ||G_t||) / T.

    With s = sqrt(log(d + 1)), operator norms and ||G||^2 = sum ||G_t||^2. Orabona and Pal's bound
    on the regret of scale-free FTRL (SOLO FTRL) over density matrices of size d + 1: the
    regulariser is log(d + 1) less the entropy, over c s: it is 1 / (c s)-strongly convex in trace
    norm and at most s / c, and the set's diameter is 2. A theorem for the regularized objective;
    for the error objective conditional on convexity. `norm` is ||G||, `step_scale` is c.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.entropic_regret(1.0, 2.0, 0.5, T=100, d=50, step_scale=2.0), 4)
    0.2729
    >>> round(ltl.bounds.entropic_regret(1.0, 0.5, 0.5, T=1, d=50, step_scale=2.0), 4)
    5.9486
    """
    c, radius = check_positive(step_scale, "step_scale"), check_positive(radius, "radius")
    norm, largest = check_from_zero(norm, "norm"), check_from_zero(largest_norm, "largest_norm")
    T, s = check_count(T, "T"), math.sqrt(math.log(check_count(d, "d") + 1))
    spread = s * norm
    overshoot = 3.5 * min(c * s * math.sqrt(T - 1), 2.0) * largest
    return radius * (spread / c + 2.75 * c * spread + overshoot) / T


def adaptive_regret(
    lam: float,
    squared_norms_sum: float,
    T: int,
    geometry: str,
    d: int,
    step_scale: float | None = None,
    largest_norm: float | None = None,
) -> float:
    """Bound the regret of adaptive steps by the gradients G_1, ..., G_T.

    "euclidean": (1/c + c) sqrt(sum ||G_t||_F^2) / (lam T). "entropic": see `entropic_regret`. A
    theorem for the regularized objective; for the error objective conditional on convexity.
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
    norm = math.sqrt(check_from_zero(squared_norms_sum, "squared_norms_sum"))
    if check_choice(geometry, "geometry", ("euclidean", "entropic")) == "entropic":
        c = 2.0 if step_scale is None else step_scale
        largest = norm if largest_norm is None else largest_norm
        return entropic_regret(radius, norm, largest, T, d, c)
    c = 1.0 if step_scale is None else check_positive(step_scale, "step_scale")
    return (norm / c + c * norm) * radius / T


def general_uniform_generalization(
    n: int, lipschitz: float, input_norm: float, representation_norm: float
) -> float:
    """lipschitz sqrt(2 pi input_norm representation_norm / n) >= |E(D) - E_hat(D)|.

    Bounds the mean difference between an algorithm's training error and its error on new samples,
    for linear predictions with weights D^(1/2) A(D^(1/2) Z) such that |A| <= 1; the inputs of
    D^(1/2) Z are D^(1/2) x. A theorem for every D, whichever objective it was learned with.

    Parameters
    ----------
    n : int
        Samples of each task.
    lipschitz : float
        Lipschitz constant of the loss, as a function of the prediction, on [-K, K] where K^2 is
        the operator norm of D.
    input_norm, representation_norm : float
        Schatten norms with conjugate exponents of the inputs' covariance and of D, such as
        operator norm and trace.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.general_uniform_generalization(1600, 4.0, 0.01, 1.0), 4)
    0.0251
    """
    root = math.sqrt(2 * math.pi * check_positive(input_norm, "input_norm") / check_count(n, "n"))
    norm = check_from_zero(representation_norm, "representation_norm")
    return check_from_zero(lipschitz, "lipschitz") * root * math.sqrt(norm)


def uniform_generalization(lam: float, n: int, input_norm: float) -> float:
    """2 sqrt(2 pi input_norm / n) (1 + sqrt(lam)) / lam >= sup_D |E(D) - E_hat(D)|.

    Bounds the mean difference between the training error of ridge regression and its error on new
    samples: a theorem for every D, whichever objective it was learned with. E_hat is that of the
    error objective. For the regularized one only E(D) <= E_hat(D) + bound follows, as its loss is
    the training error plus w' D^+ w.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.uniform_generalization(lam=1.0, n=1600, input_norm=0.01), 4)
    0.0251
    """
    radius = check_lam(lam)
    # A prediction is at most sqrt(radius), a target at most 1.
    return general_uniform_generalization(n, 2 * (1 + math.sqrt(radius)), input_norm, radius)


def general_multitask_generalization(
    T: int, delta: float, stability: float, representation_norm: float
) -> float:
    """stability representation_norm sqrt(2 pi / T) + sqrt(log(2/delta) / (2T)).

    Bounds |E f(D^(1/2) Z) - mean of f(D^(1/2) Z_t)| for T independent tasks Z_t, uniformly over a
    set of PSD matrices D; the inputs of D^(1/2) Z are D^(1/2) x. A theorem for both objectives as
    f, with stability 2 ("error") or 1: convexity is not needed. The paper has log(1/delta), which
    gives each side alone, but not both: see T = 1, D = 0 and losses 0 or 1 with equal odds.

    Parameters
    ----------
    T : int
        Number of tasks.
    delta : float
    stability : float
        The L of |f(X1, y) - f(X2, y)| <= L ||X1 X1' - X2 X2'||_F / n, for any inputs X1, X2 and
        the same targets. The values of f must lie in [0, 1].
    representation_norm : float
        Largest Frobenius norm of the matrices D.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.general_multitask_generalization(1000, 0.05, 2.0, 0.1), 4)
    0.0588
    """
    norm = check_from_zero(representation_norm, "representation_norm")
    complexity = math.sqrt(2 * math.pi / check_count(T, "T")) * norm
    return check_from_zero(stability, "stability") * complexity + _deviation(T, delta)


def multitask_generalization(lam: float, T: int, delta: float, objective: str = "error") -> float:
    """G sqrt(2 pi / T) / lam + sqrt(log(2/delta) / (2T)) >= sup_D |E_hat(D) - E_Z(D)|.

    Bounds the difference between the mean loss of T tasks and its expectation. A theorem for the
    error objective, with G = 2, and for the regularized one, with G = 1. The paper has
    log(1/delta), which gives each side alone, but not both.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.multitask_generalization(lam=10.0, T=1000, delta=0.05), 4)
    0.0588
    """
    return general_multitask_generalization(T, delta, _lipschitz(objective), check_lam(lam))


def excess_future_risk(regret: float, T: int, delta: float) -> float:
    """Regret + sqrt(8 log(2/delta) / T) >= E_hat(mean D) - min E_hat.

    Bounds the excess loss on future tasks of any online learner that has seen T independent tasks
    with losses in [0, 1]. A theorem for the regularized objective. For the error objective it is
    conditional on a convex E_hat, even if the regret is known; without convexity a known regret
    bounds the mean of E_hat(D^(1)), ..., E_hat(D^(T)) instead of E_hat(mean D).

    Parameters
    ----------
    regret : float
        The regret or an upper bound on it, which may depend on the tasks: `regret_bound_` of
        `OnlineLTL` or, regularized, its mean loss less ``objective_ - gap_`` of `BatchLTL` on the
        same tasks, 0 if that is negative.
    T : int
        Number of tasks.
    delta : float

    Notes
    -----
    The 8 is the paper's. Azuma's and Hoeffding's inequalities for losses in [0, 1] give 2.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.excess_future_risk(regret=0.01, T=1000, delta=0.05), 4)
    0.1818
    """
    return check_from_zero(regret, "regret") + 4 * _deviation(T, delta)


def excess_risk(
    regret: float, lam: float, n: int, T: int, delta: float, input_norm: float
) -> float:
    """2 `uniform_generalization` + `excess_future_risk` >= E(mean D) - min E.

    Bounds the excess risk of any online learner after T independent tasks of n samples. For the
    error objective it is conditional, as `excess_future_risk` is. For the regularized objective
    it is a theorem with min (E + P) in place of min E; also E(mean D) - min E_hat is at most
    `uniform_generalization` + `excess_future_risk`.

    Parameters
    ----------
    regret : float
        The regret or an upper bound on it, as in `excess_future_risk`.
    lam : float
    n, T : int
        Samples of each task, and number of tasks.
    delta : float
    input_norm : float

    Examples
    --------
    >>> import fastltl as ltl
    >>> bound = ltl.bounds.excess_risk(0.01, 10.0, n=1600, T=1000, delta=0.05, input_norm=0.01)
    >>> round(bound, 4)
    0.1922
    """
    return 2 * uniform_generalization(lam, n, input_norm) + excess_future_risk(regret, T, delta)


def online_excess_future_risk(lam: float, T: int, delta: float) -> float:
    """4 sqrt(2 / T) / lam + sqrt(8 log(2/delta) / T) >= E_hat(mean D) - min E_hat.

    `excess_future_risk` with the paper's `online_regret`, for Algorithm 1. A theorem for the
    regularized objective; for the error objective conditional on convexity.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_excess_future_risk(lam=10.0, T=1000, delta=0.05), 4)
    0.1897
    """
    return excess_future_risk(online_regret(lam, T), T, delta)


def online_excess_risk(lam: float, n: int, T: int, delta: float, input_norm: float) -> float:
    """2 `uniform_generalization` + `online_excess_future_risk` >= E(mean D) - min E.

    `excess_risk` with the paper's `online_regret`, for Algorithm 1. For the error objective it is
    conditional on convexity; for the regularized objective a theorem with min (E + P) in place of
    min E.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.online_excess_risk(10.0, n=1600, T=1000, delta=0.05, input_norm=0.01), 4)
    0.2001
    """
    return excess_risk(online_regret(lam, T), lam, n, T, delta, input_norm)


def batch_excess_risk(
    lam: float, n: int, T: int, delta: float, input_norm: float, objective: str = "error"
) -> float:
    """2 `uniform_generalization` + G sqrt(2 pi / T) / lam + sqrt(2 log(2/delta) / T).

    Bounds E(D) - min E for a global minimiser D of the mean loss of T independent tasks of n
    samples: a theorem for the error objective, with G = 2, but `BatchLTL` cannot certify such a D.
    For the regularized objective, with G = 1, it bounds E(D) - min (E + P); there `gap_` bounds the
    distance of the mean loss from its minimum, and is to be added.

    Examples
    --------
    >>> import fastltl as ltl
    >>> round(ltl.bounds.batch_excess_risk(10.0, n=1600, T=1000, delta=0.05, input_norm=0.01), 4)
    0.1122
    """
    # A union bound of two sides, each with delta / 2: E_hat - E_Z uniformly over D, and
    # E_Z - E_hat at the best D by Hoeffding's inequality.
    uniform = multitask_generalization(lam, T, delta, objective)
    return 2 * uniform_generalization(lam, n, input_norm) + uniform + _deviation(T, delta)
