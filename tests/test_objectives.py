"""Test the mean objective over tasks, in particular for representations of low rank."""

import numpy as np
import pytest
from naive import ragged_tasks, random_psd, relative

import fastltl as ltl
from fastltl import reference
from fastltl._kernels import batch


@pytest.mark.parametrize("name", ["error", "regularized"])
@pytest.mark.parametrize("rank", [0, 1, 3, 5, 8])
@pytest.mark.parametrize("trace", [1e-3, 1.0, 1e4])
def test_mean_objective_agrees_with_reference_at_any_rank(name, rank, trace):
    """Tasks have fewer samples than the rank of D, as many, more, and more than features."""
    tasks = ragged_tasks(0, 12, 8, (1, 20))
    D = random_psd(np.random.default_rng(1), 8, max(rank, 1), trace) * (rank > 0)
    objective = ltl.TaskSet(tasks).mean_objective(name == "regularized", False, 1)
    value, gradient = objective.value_and_gradient(D)
    expected_value, expected_gradient = reference.mean_objective(D, tasks, name)
    unit = objective.target_unit**2
    assert value * unit == pytest.approx(expected_value, rel=1e-11)
    assert relative(gradient * unit, expected_gradient) < 1e-11


def test_value_at_zero_equals_an_evaluation_at_zero():
    for regularized in (False, True):
        objective = ltl.TaskSet(ragged_tasks(0, 12, 8, (1, 20))).mean_objective(
            regularized, False, 1
        )
        value, _ = objective.value_and_gradient(np.zeros((8, 8)))
        assert objective.value_at_zero == pytest.approx(value, rel=1e-13)


@pytest.mark.parametrize("regularized", [False, True])
def test_curvature_agrees_with_finite_differences_at_any_V(regularized):
    rng = np.random.default_rng(0)
    objective = ltl.TaskSet(ragged_tasks(0, 12, 8, (1, 20))).mean_objective(regularized, False, 1)
    h = 1e-5
    for rank in (2, 8):
        V, W = 2.0 * rng.normal(size=(2, 8, rank))
        D, E = V @ V.T, V @ W.T + W @ V.T
        above, below = (objective.value_and_gradient(D + t * E)[1] for t in (h, -h))
        change = objective.curvature(V, W)
        assert relative(change, (above - below) @ V / (2 * h)) < 1e-6
        objective.value_and_gradient(D)
        assert np.array_equal(objective.curvature(V, W), change)


def test_mean_gradient_is_symmetric_and_agrees_with_its_formula():
    A, B = np.random.default_rng(0).normal(size=(2, 7, 4))
    expected = -np.mean(
        [np.outer(a, b) + np.outer(b, a) for a, b in zip(A, B, strict=True)], axis=0
    )
    gradient = batch.mean_gradient(A, B)
    assert relative(gradient, expected) < 1e-14
    assert (gradient == gradient.T).all()


def test_number_of_rows_of_low_rank_factor_equals_rank():
    rng = np.random.default_rng(0)
    for rank in (1, 4, 9):
        D = random_psd(rng, 9, rank, 1e3)
        F = batch.low_rank_factor(D, np.array([1.0, 1e-3, 1e3] * 3))
        assert relative(F.T @ F, D) < 1e-13
        assert F.shape == (rank, 9)


def test_mean_objective_keeps_small_entries_of_D_for_large_features():
    rng, D = np.random.default_rng(0), np.diag([1.0, 1e-18, 0.0])
    tasks = [(rng.normal(size=(8, 3)) * [1.0, 1e9, 1.0], rng.normal(size=8)) for _ in range(3)]
    objective = ltl.TaskSet(tasks).mean_objective(False, False, 1)
    value, _ = objective.value_and_gradient(D)
    expected, _ = reference.mean_objective(D, tasks, "error")
    assert value * objective.target_unit**2 == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["loss", "Regularized", True, None])
def test_unknown_objectives_are_refused(name):
    X, y, D = np.eye(2), np.ones(2), np.eye(2)
    message = "objective must be one of 'regularized', 'error', got"
    for call in (
        lambda: ltl.task_loss(D, X, y, objective=name),
        lambda: ltl.task_gradient(D, X, y, objective=name),
        lambda: reference.task_loss(D, X, y, name),
        lambda: reference.mean_objective(D, [(X, y)], name),
        lambda: ltl.BatchLTL(objective=name).fit([(X, y)]),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_mtl_has_no_choice_of_objective():
    assert "objective" not in ltl.MTL().get_params()
    with pytest.raises(TypeError, match="objective"):
        ltl.MTL(objective="error")
