"""Test the paper's Proposition 1, which holds except for convexity.

It assumes x in the unit ball and y in [0, 1].
"""

import numpy as np
from hypothesis import given, strategies as st
from naive import random_psd, unit_ball_task

from fastltl._kernels import task


@st.composite
def task_and_two_representations(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    scales = draw(st.tuples(*[st.floats(-3, 4)] * 2))
    X, y = unit_ball_task(rng, n, d)
    return X, y, *(random_psd(rng, d, trace=10.0**scale) for scale in scales)


def test_loss_is_not_convex():
    """The paper's proof assumes that A -> A^-2 is matrix convex; it is not."""
    X, y = np.diag([1.0, -1.0]), np.array([1 / 13, 1.0])
    D = np.array([[357.0, -428.0], [-428.0, 515.0]])
    E = np.array([[0.8, -2.09], [-2.09, 5.47]])
    assert np.linalg.eigvalsh(D)[0] > 0
    assert np.linalg.eigvalsh(E)[0] > 0
    ends = task.task_loss(D, X, y), task.task_loss(E, X, y)
    assert task.task_loss((D + E) / 2, X, y) > 1.03 * max(ends)


@given(task_and_two_representations())
def test_loss_is_2_lipschitz(case):
    X, y, D, E = case
    rise = abs(task.task_loss(D, X, y) - task.task_loss(E, X, y))
    assert rise <= 2 * np.linalg.norm(D - E) + 1e-14


@given(task_and_two_representations())
def test_gradient_is_6_lipschitz(case):
    X, y, D, E = case
    change = np.linalg.norm(task.task_gradient(D, X, y) - task.task_gradient(E, X, y))
    assert change <= 6 * np.linalg.norm(D - E) + 1e-14


@given(task_and_two_representations())
def test_loss_lies_in_the_unit_interval(case):
    X, y, D, _ = case
    assert 0 <= task.task_loss(D, X, y) <= 1
