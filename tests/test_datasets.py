"""The paper's environment."""

import numpy as np
import pytest

import fastltl as ltl


def test_tasks_are_the_paper_model():
    environment = ltl.datasets.make_environment(12, rank=3, noise=0.0, signal=2.0, random_state=0)
    assert environment.subspace.T @ environment.subspace == pytest.approx(np.eye(3), abs=1e-14)
    weights = []
    for X, y in environment.tasks(20, n_samples=40):
        assert np.linalg.norm(X, axis=1) == pytest.approx(np.ones(40))
        weights.append(np.linalg.lstsq(X, y, rcond=None)[0])
    assert np.linalg.norm(weights, axis=1) == pytest.approx(np.full(20, 2.0))
    assert np.linalg.matrix_rank(weights, tol=1e-9) == 3
    inside = np.array(weights) @ environment.subspace @ environment.subspace.T
    assert inside == pytest.approx(np.array(weights), abs=1e-12)


def test_noise_is_a_standard_deviation():
    environment = ltl.datasets.make_environment(4, noise=0.3, signal=1e-9, random_state=0)
    assert np.std(environment.tasks(1, 50_000)[0][1]) == pytest.approx(0.3, rel=0.02)


def test_one_seed_gives_everything():
    one, other = (ltl.datasets.make_environment(6, random_state=3) for _ in range(2))
    drawn = one.tasks(3, 5)
    stream = other.stream(5)
    for X, y in drawn:
        Z, z = next(stream)
        assert np.array_equal(X, Z)
        assert np.array_equal(y, z)
    assert not np.array_equal(one.tasks(1, 5)[0][0], drawn[0][0])
    default = ltl.datasets.make_environment(random_state=0)
    assert default.subspace.shape == (50, 25)
    assert ltl.datasets.make_environment(1).subspace.shape == (1, 1)


@pytest.mark.parametrize("rank", [0, 7, -1])
def test_a_bad_rank_is_named(rank):
    with pytest.raises(ValueError, match="rank must lie between 1 and n_features=6"):
        ltl.datasets.make_environment(6, rank=rank)
