"""The functions of one task: values against the paper's formulas, and errors."""

import numpy as np
import pytest
from naive import literal_gradient, literal_loss, literal_weights, random_psd, sphere_task

import fastltl as ltl

FUNCTIONS = {
    ltl.ridge_weights: literal_weights,
    ltl.task_loss: literal_loss,
    ltl.task_gradient: literal_gradient,
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("n", "d"), [(3, 5), (5, 3), (70, 80)])
def test_values_match_the_paper(function, n, d):
    rng = np.random.default_rng(0)
    X, y = sphere_task(rng, n, d)
    D = random_psd(rng, d, trace=4.0)
    X_before, y_before, D_before = X.copy(), y.copy(), D.copy()
    assert function(D, X, y) == pytest.approx(FUNCTIONS[function](D, X, y), rel=1e-9, abs=1e-12)
    integers = (np.eye(3, dtype=int), [[1, 0, 2], [0, 1, 1]], [1, 2])
    floats = tuple(np.array(a, dtype=float) for a in integers)
    assert np.array_equal(function(*integers), function(*floats))
    assert np.array_equal(X, X_before)
    assert np.array_equal(y, y_before)
    assert np.array_equal(D, D_before)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"D": np.diag([1.0, -1.0])}, "D must be positive semidefinite"),
        ({"D": np.triu(np.ones((2, 2)))}, "D must be symmetric"),
        ({"D": np.eye(3)}, "X has 2 features, but this representation is expecting 3"),
        ({"X": [[1.0, np.nan]]}, "X must hold finite numbers only"),
        ({"X": [1.0, 2.0]}, "X must be a 2-D array"),
        ({"X": np.empty((0, 2)), "y": []}, "X has 0 sample"),
        ({"y": [np.inf]}, "y must hold finite numbers only, got inf at index 0"),
        ({"y": [1.0, 2.0]}, "y must have one value for each of the 1 rows of X, got shape"),
        ({"y": None}, "requires y"),
        (
            {"X": ltl.TaskSet([([[1.0, 2.0]], [1.0])])},
            "X must be an array of real numbers, got TaskSet",
        ),
        ({"X": np.array([["1", "2"]])}, "X must be an array of real numbers, got dtype <U1"),
        ({"X": [[1.0, 1e200]]}, "D, X and y must not be so large"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow in NumPy, with the JIT off
def test_errors_name_the_argument(function, change, message):
    arguments = {"D": np.eye(2), "X": [[1.0, 2.0]], "y": [1.0]} | change
    with pytest.raises(ValueError, match=message) as error:
        function(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_learner_is_not_accepted_as_D(function):
    with pytest.raises(TypeError, match="D must be an array of real numbers, got OnlineLTL"):
        function(ltl.OnlineLTL(), [[1.0, 2.0]], [1.0])


@pytest.mark.parametrize(
    ("Q", "radius", "message"),
    [
        ([[0.0, 1.0], [2.0, 0.0]], 1.0, "Q must be symmetric, got an asymmetry of 1"),
        (np.ones((2, 3)), 1.0, "Q must be a square matrix"),
        ([[np.nan]], 1.0, "Q must hold finite numbers only"),
        (np.eye(2), 0.0, "radius must be a positive finite number, got 0.0"),
        (np.eye(2), np.inf, "radius must be a positive finite number, got inf"),
        (np.eye(2), None, "radius must be a positive finite number, got None"),
        (np.eye(2), True, "radius must be a positive finite number, got True"),
    ],
)
def test_project_checks_its_arguments(Q, radius, message):
    with pytest.raises(ValueError, match=message):
        ltl.project(Q, radius)
