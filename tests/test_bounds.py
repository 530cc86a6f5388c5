"""Bounds against values computed by hand, and against runs that satisfy their assumptions."""

from itertools import islice

import numpy as np
import pytest
from naive import unit_ball_task

import fastltl as ltl
from fastltl import bounds, reference


def test_values_computed_by_hand():
    assert bounds.online_regret(lam=1.0, T=32) == pytest.approx(1.0)  # 4 sqrt(2) / sqrt(32)
    assert bounds.online_regret(lam=4.0, T=2) == pytest.approx(1.0)  # 4 sqrt(2) / (4 sqrt(2))
    # 2 sqrt(2 pi) sqrt(0.04) / sqrt(400) * (1 + 2) / 4, with sqrt(2 pi) = 2.5066282746
    expected = 2 * 2.5066282746 * 0.2 / 20 * 3 / 4
    assert bounds.uniform_generalization(lam=4.0, n=400, input_norm=0.04) == pytest.approx(expected)
    # 2 sqrt(2 pi) / (4 * 10) + sqrt(log(e^2) / 200)
    delta = float(np.exp(-2))
    expected = 2.5066282746 / 20 + 0.1
    assert bounds.multitask_generalization(lam=4.0, T=100, delta=delta) == pytest.approx(expected)
    # 4 sqrt(2) / (4 * 10) + sqrt(8 * 2 / 100), as log(2 / delta) = 2
    expected_future = 0.14142135624 + 0.4
    future = bounds.online_excess_future_risk(lam=4.0, T=100, delta=2 * delta)
    assert future == pytest.approx(expected_future)
    # twice the uniform bound above, plus the future risk
    within = 4 * 2.5066282746 * 0.2 / 20 * 3 / 4
    online = bounds.online_excess_risk(lam=4.0, n=400, T=100, delta=2 * delta, input_norm=0.04)
    assert online == pytest.approx(within + expected_future)
    # 2 sqrt(2 pi) / (4 * 10) + sqrt(2 * 2 / 100)
    batch = bounds.batch_excess_risk(lam=4.0, n=400, T=100, delta=2 * delta, input_norm=0.04)
    assert batch == pytest.approx(within + 2.5066282746 / 20 + 0.2)
    # (1/2 + 2) * 6 / (0.5 * 10)
    euclidean = bounds.adaptive_regret(0.5, 36.0, 10, "euclidean", d=3, step_scale=2.0)
    assert euclidean == pytest.approx(3.0)
    # ((1/2 + 5.5) * sqrt(log 4) * 6 + 7 * 1) / (0.5 * 10), with sqrt(log 4) = 1.1774100226
    entropic = bounds.adaptive_regret(0.5, 36.0, 10, "entropic", d=3, largest_norm=1.0)
    assert entropic == pytest.approx((36 * 1.1774100226 + 7) / 5)
    assert bounds.adaptive_regret(1.0, 4.0, 1, "entropic", d=1) == pytest.approx(
        12 * np.sqrt(np.log(2)) + 14
    )


def test_adaptive_step_improves_on_the_paper():
    """With Lipschitz constant 2: 4 / (lam sqrt(T)) instead of 4 sqrt(2) / (lam sqrt(T))."""
    adaptive = bounds.adaptive_regret(0.1, 4.0 * 50, 50, "euclidean", d=9)
    assert adaptive == pytest.approx(bounds.online_regret(0.1, 50) / np.sqrt(2))


@pytest.mark.parametrize(
    "rule",
    [
        {"geometry": "euclidean", "step": "theory"},
        {"geometry": "euclidean", "step": "adaptive"},
        {"geometry": "entropic"},
    ],
    ids=lambda rule: rule.get("step", "entropic"),
)
@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_measured_regret_is_below_every_bound(rule, lam):
    """The regret against the best D in hindsight, with x in the unit ball and y in [0, 1]."""
    rng = np.random.default_rng(0)
    tasks = [unit_ball_task(rng, int(rng.integers(2, 9)), 5) for _ in range(60)]
    learner = ltl.OnlineLTL(lam, **rule).fit(tasks)
    hindsight = ltl.BatchLTL(lam).fit(tasks)
    regret = learner.cumulative_loss_ / 60 - (hindsight.objective_ - hindsight.gap_)
    assert 0 < regret <= learner.regret_bound_
    if rule.get("step") == "theory":
        assert regret <= bounds.online_regret(lam, 60)
        assert learner.regret_bound_ <= bounds.online_regret(lam, 60)
    else:
        gradients = [
            reference.task_gradient(D, *task)
            for D, task in zip(iterates(tasks, lam, rule), tasks, strict=True)
        ]
        order = 2 if rule["geometry"] == "entropic" else "fro"
        norms = [float(np.linalg.norm(G, order)) for G in gradients]
        squares = sum(norm**2 for norm in norms)
        assert regret <= bounds.adaptive_regret(
            lam, squares, 60, rule["geometry"], d=5, largest_norm=max(norms)
        )


def iterates(tasks, lam, rule):
    """Yield D^(1), ..., D^(T)."""
    yield np.eye(5) / lam / (6 if rule["geometry"] == "entropic" else 5)
    for _, D in islice(reference.online_iterates(tasks, lam, **rule), len(tasks) - 1):
        yield D


def test_input_covariance_norm_averages_over_tasks():
    ts = ltl.TaskSet([(np.eye(2), np.ones(2)), (2 * np.eye(2)[:1], np.ones(1))])
    assert bounds.input_covariance_norm(ts) == pytest.approx((0.5 + 4) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 0.0}, "lam must be a positive finite number, got 0.0"),
        ({"T": 0}, "T must be a positive integer, got 0"),
        ({"T": 2.5}, "T must be a positive integer, got 2.5"),
        ({"n": -1}, "n must be a positive integer, got -1"),
        ({"delta": 1.5}, r"delta must be a number in \(0, 1\], got 1.5"),
        ({"delta": 0}, r"delta must be a number in \(0, 1\], got 0"),
        ({"input_norm": -1.0}, "input_norm must be a positive finite number"),
    ],
)
@pytest.mark.parametrize("bound", [bounds.online_excess_risk, bounds.batch_excess_risk])
def test_errors_name_the_argument(bound, change, message):
    arguments = {"lam": 1.0, "n": 10, "T": 10, "delta": 0.1, "input_norm": 0.1} | change
    with pytest.raises(ValueError, match=message):
        bound(**arguments)
