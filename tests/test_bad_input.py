"""Unusual and invalid input at every public entry: a correct result, or an error that names it.

Values of one table are passed to the entries of another. In all cases results are finite,
arguments are unchanged, no warning is raised, and a learner that raises keeps its state.
"""

import pickle
import re
import warnings
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import JIT_IS_OFF
from pyarrow import csv, parquet
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError

import fastltl as ltl
from fastltl.io.tables import read_tasks

pytestmark = pytest.mark.compiled

X = np.array([[2.0, -1.0, 0.0], [1.0, 3.0, -2.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 2.0]])
y = np.array([1.0, -2.0, 3.0, 1.0])
D = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, -1.0], [0.0, -1.0, 2.0]])
TASKS = ltl.TaskSet([(X, y), (X[::-1] * 2, y + 1), (X[:2], y[2:]), (X + 1, y - 2)])
ALGORITHM_1 = {"objective": "error", "geometry": "euclidean", "step": "theory"}
HALVES = TASKS.split_samples(0.5, random_state=0)


def with_entry(array, value):
    """Return a copy of the array with one entry replaced."""
    changed = np.array(array, dtype=np.result_type(array, np.min_scalar_type(value)))
    changed[(1,) * changed.ndim] = value
    return changed


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


class Subclass(np.ndarray):
    """A subclass of NumPy's arrays."""


def unusual_versions(array):
    """Return valid arrays of unusual types, layouts and values, by name."""
    return {
        "float32": array.astype(np.float32),
        "float16": array.astype(np.float16),
        "long double": array.astype(np.longdouble),
        "big endian": array.astype(">f8"),
        "int": array.astype(int),
        "int8": array.astype(np.int8),
        "bool": array > 0,
        "object of numbers": array.astype(object),
        "Fortran order": np.asfortranarray(array),
        "read-only": read_only(array),
        "non-contiguous": np.repeat(array, 2, axis=0)[::2],
        "negative strides": array[::-1].copy()[::-1],
        "list": array.tolist(),
        "tuple": tuple(array.tolist()),
        "zeros": np.zeros_like(array),
        "minus zeros": -np.zeros_like(array),
        "subclass": array.view(Subclass),
    }


def invalid_versions(array):
    """Return values that are not finite arrays of real numbers of the right shape, by name."""
    return {
        "NaN": with_entry(array, np.nan),
        "infinity": with_entry(array, np.inf),
        "minus infinity": with_entry(array, -np.inf),
        "float32 NaN": with_entry(array, np.nan).astype(np.float32),
        "list with NaN": with_entry(array, np.nan).tolist(),
        "object with None": with_entry(array.astype(object), None),
        "object with text": with_entry(array.astype(object), "text"),
        "object with numeric text": with_entry(array.astype(object), "1.5"),
        "text": np.full(array.shape, "text"),
        "numeric text": array.astype(str),
        "bytes": array.astype("S"),
        "list of text": np.full(array.shape, "text").tolist(),
        "list of numeric text": array.astype(str).tolist(),
        "pandas numeric text": pd.DataFrame(array).astype(str).squeeze(),
        "pandas dates": pd.DataFrame(array).astype("datetime64[s]").squeeze(),
        "dates": array.astype("datetime64[s]"),
        "durations": array.astype("timedelta64[s]"),
        "complex": array.astype(complex),
        "object with complex": with_entry(array.astype(object), 1j),
        "sparse": sparse.csr_matrix(np.atleast_2d(array)),
        "sparse array": sparse.coo_array(np.atleast_2d(array)),
        "masked": np.ma.masked_equal(array, 1.0),
        "masked, no entry masked": np.ma.masked_array(array),
        "0-d": np.array(1.5),
        "a number": 1.5,
        "3-d": np.ones((2, 2, 2)),
        "a string": "text",
        "a set": {1.0, 2.0},
        "an object": object(),
        "ragged": [[1.0, 2.0], [3.0]],
        "structured": np.zeros(array.shape, dtype=[("a", float), ("b", float)]),
    }


#: Accepted by every entry, with the result of the float64 array of the same numbers.
GOOD_X = unusual_versions(X) | {
    "pandas": pd.DataFrame(X),
    "pandas with names": pd.DataFrame(X, columns=["a", "b", "c"]),
    "pandas extension type": pd.DataFrame(X).astype("Float64"),
    "polars": pl.DataFrame(X),
    "duplicate rows": X[[0, 0, 0, 0]],
    "one sample": X[:1],
}
#: Accepted by entries that do not know the number of features yet, rejected by the others.
WIDE_X = {"one feature": X[:, :1], "wrong width": np.hstack([X, X])}
BAD_X = invalid_versions(X) | {
    "1-d": X[0],
    "no rows": X[:0],
    "no columns": X[:, :0],
    "no rows, a list": [],
    "None": None,
}
LARGE = {f"{scale:g}": scale for scale in (1e-300, 1e-150, 1e150, 1e300)}
#: With numbers whose sums overflow, and subnormal numbers of low precision.
EXTREME = LARGE | {"the smallest": 5e-324, "the largest": 5e307}
LARGE_X = {name: X * scale for name, scale in EXTREME.items()}

GOOD_Y = unusual_versions(y) | {
    "pandas": pd.Series(y),
    "pandas extension type": pd.Series(y).astype("Int64"),
    "polars": pl.Series(y),
    "constant": np.full(4, 2.0),
}
COLUMN_Y = {"column": y[:, None], "list of lists": y[:, None].tolist()}
BAD_Y = invalid_versions(y) | {
    "None": None,
    "two columns": np.stack([y, y], axis=1),
    "too long": np.append(y, 1.0),
    "too short": y[:3],
    "empty": [],
}
LARGE_Y = {name: y * scale for name, scale in EXTREME.items()}


class Entry(NamedTuple):
    """A call with X and y of one task, on a learner that `make` creates (None for a function)."""

    call: Any
    make: Any = lambda: None
    knows_width: bool = True
    takes_y: bool = True


def groups_like(y):
    """Return a single group for all targets, or for 4 if they cannot be counted."""
    return [0] * (len(y) if isinstance(y, np.ndarray) and y.ndim == 1 else 4)


def learner_entries(make, knows_width=False):
    """Return the entries of a learner of representations."""

    def fitted():
        return make().fit(TASKS)

    return {
        "fit again": Entry(lambda learner, X, y: learner.fit(X, y), fitted, knows_width),
        "fit of pairs": Entry(lambda learner, X, y: learner.fit([(X, y)]), make, knows_width),
        "fit of groups": Entry(
            lambda learner, X, y: learner.fit(X, y, groups_like(y)), make, knows_width
        ),
        "adapt": Entry(lambda learner, X, y: learner.adapt(X, y), fitted),
        "adapt to a TaskSet": Entry(
            lambda learner, X, y: learner.adapt(ltl.TaskSet([(X, y)]))[0], fitted
        ),
        "transform": Entry(lambda learner, X, y: learner.transform(X), fitted, takes_y=False),
    }


def online_entries(make, knows_width=False):
    """Return the entries of a learner with `partial_fit`."""
    return learner_entries(make, knows_width) | {
        "partial_fit, first task": Entry(
            lambda learner, X, y: learner.partial_fit(X, y), make, knows_width
        ),
        "partial_fit, mid-run": Entry(
            lambda learner, X, y: learner.partial_fit(X, y), lambda: make().fit(TASKS)
        ),
    }


def multitask_entries(make):
    """Return the entries of a learner that predicts for its own tasks."""
    return learner_entries(make) | {
        "predict": Entry(
            lambda learner, X, y: learner.predict(X, groups_like(y)),
            lambda: make().fit(TASKS),
            takes_y=False,
        )
    }


def path():
    return ltl.OnlineLTLPath(lams=[0.1, 1.0, 10.0], validation=HALVES)


LEARNERS = {
    "BayesLTL": online_entries(ltl.BayesLTL)
    | {
        "predict": Entry(
            lambda learner, X, y: learner.predict(X, return_std=True),
            lambda: ltl.BayesLTL().fit(TASKS),
            takes_y=False,
        ),
        "adapt, then predict": Entry(
            lambda learner, X, y: learner.adapt(*TASKS[0]).predict(X, return_std=True),
            lambda: ltl.BayesLTL().fit(TASKS),
            takes_y=False,
        ),
    },
    "BayesLTL without intercept": online_entries(lambda: ltl.BayesLTL(fit_intercept=False)),
    "BayesLTL of two passes": {
        name: entry
        for name, entry in learner_entries(lambda: ltl.BayesLTL(n_passes=2)).items()
        if "fit" in name
    },
    "OnlineLTL": online_entries(ltl.OnlineLTL),
    "OnlineLTL with intercept": online_entries(lambda: ltl.OnlineLTL(fit_intercept=True)),
    "OnlineLTL as in the paper": {
        name: entry
        for name, entry in online_entries(lambda: ltl.OnlineLTL(**ALGORITHM_1)).items()
        if "partial_fit" in name
    },
    "OnlineLTLPath": online_entries(path, knows_width=True),
    "BatchLTL": learner_entries(ltl.BatchLTL),
    "MTL": multitask_entries(lambda: ltl.MTL(fit_intercept=True)),
    "ITL": multitask_entries(ltl.ITL),
}
ENTRIES = {
    f"{learner} {name}": entry
    for learner, entries in LEARNERS.items()
    for name, entry in entries.items()
} | {
    "ridge_weights": Entry(lambda _, X, y: ltl.ridge_weights(D, X, y)),
    "task_loss": Entry(lambda _, X, y: ltl.task_loss(D, X, y)),
    "task_gradient": Entry(lambda _, X, y: ltl.task_gradient(D, X, y)),
    "evaluate": Entry(lambda _, X, y: ltl.evaluate(D, *[ltl.TaskSet([(X, y)])] * 2)),
    "select_lam OnlineLTL": Entry(
        lambda learner, X, y: ltl.select_lam(learner, [(X, y)], HALVES, [1.0]), ltl.OnlineLTL
    ),
    "select_lam BatchLTL": Entry(
        lambda learner, X, y: ltl.select_lam(learner, [(X, y)], HALVES, [1.0]), ltl.BatchLTL
    ),
    "select_lam ITL": Entry(
        lambda learner, X, y: ltl.select_lam(learner, [(X, y)], HALVES, [1.0]), ltl.ITL
    ),
    "TaskSet": Entry(lambda _, X, y: ltl.TaskSet([(X, y)]), knows_width=False),
    "TaskSet, second task": Entry(lambda _, X, y: ltl.TaskSet([TASKS[0], (X, y)])),
    "TaskSet.from_groups": Entry(
        lambda _, X, y: ltl.TaskSet.from_groups(X, y, groups_like(y)), knows_width=False
    ),
    "TaskSet.split": Entry(
        lambda _, X, y: ltl.TaskSet([(X, y)] * 4).split((0.5, 0.25), 0), knows_width=False
    ),
    "ITL.path": Entry(lambda learner, X, y: learner.path(X, [0.1, 1.0], y), ltl.ITL, False),
    "RepresentationRidge fit": Entry(
        lambda learner, X, y: learner.fit(X, y),
        lambda: ltl.RepresentationRidge(fit_intercept=True),
        False,
    ),
    "RepresentationRidge fit again": Entry(
        lambda learner, X, y: learner.fit(X, y), lambda: ltl.RepresentationRidge().fit(X, y), False
    ),
    "RepresentationRidge with D, fit": Entry(
        lambda learner, X, y: learner.fit(X, y), lambda: ltl.RepresentationRidge(D)
    ),
    "RepresentationRidge predict": Entry(
        lambda learner, X, y: learner.predict(X),
        lambda: ltl.RepresentationRidge(D).fit(X, y),
        takes_y=False,
    ),
    "bounds.input_covariance_norm": Entry(
        lambda _, X, y: ltl.bounds.input_covariance_norm([(X, y)]), knows_width=False
    ),
}

#: Attributes of fitted learners and of selections.
FITTED = (
    *("D_", "iterate_", "representations_", "scores_", "best_lam_", "n_tasks_seen_", "coef_"),
    *("cumulative_loss_", "regret_bound_", "intercept_", "objective_", "gap_", "n_features_in_"),
    *("learner", "scores", "task_scores"),
    *("mean_", "covariance_", "noise_", "loo_error_", "weights_", "coef_covariance_"),
)


def numbers(result):
    """Return all numbers in a result, as a list of arrays."""
    if isinstance(result, tuple | list | ltl.TaskSet):
        return [array for part in result for array in numbers(part)]
    if isinstance(result, float | int | np.ndarray):
        return [np.asarray(result, dtype=float)]
    return numbers([getattr(result, name) for name in FITTED if hasattr(result, name)])


def floats(array):
    """Return the same numbers in a C-contiguous float64 array."""
    return np.array(np.asarray(array), dtype=np.float64, order="C")


def create(make):
    """Create a learner and compute its cached attributes, so that later reads do not change it."""
    learner = make()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # lam at the edge
        getattr(learner, "D_", None)
    return learner


def contents(arguments):
    """Return the contents of the arrays and tables among the arguments."""
    arrays = [value for value in arguments if isinstance(value, np.ndarray)]
    tables = [value for value in arguments if isinstance(value, pd.DataFrame | pd.Series | dict)]
    return [array.tobytes() for array in arrays] + [repr(table) for table in tables]


def outcome(call, learner, *arguments):
    """Return the numbers that a call returns or its error; check that nothing else changed."""
    before, given = pickle.dumps(learner), contents(arguments)
    with warnings.catch_warnings():
        # Legitimate warnings: no convergence because of rounding errors, a lam at the edge of the
        # candidates, new feature names and, with the JIT off, overflow in NumPy.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", ".*at the edge of the candidates", UserWarning)
        warnings.filterwarnings("ignore", "X has feature names", UserWarning)
        if JIT_IS_OFF:
            warnings.simplefilter("ignore", RuntimeWarning)
        returned = None
        try:
            returned = call(learner, *arguments)
            result = numbers(returned)  # raises if results are too large in units of the data
        except (TypeError, ValueError) as error:
            result = error
    if returned is not learner:  # `fit` and `partial_fit` return the learner
        assert pickle.dumps(learner) == before
    assert contents(arguments) == given
    return result


def assert_accepted(result, expected):
    """Check that the result is finite and as expected."""
    if isinstance(result, Exception):
        raise result
    assert len(result) == len(expected) > 0
    for ours, theirs in zip(result, expected, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-300)


def assert_rejected(result, argument):
    """Check that the result is an error of one line that names the argument."""
    assert isinstance(result, Exception), result
    assert not isinstance(result, NotFittedError)
    assert "\n" not in str(result)
    assert re.search(rf"(?<!\w)({argument})(?!\w)", str(result)), str(result)


def assert_finite_or_rejected(result, argument):
    if isinstance(result, Exception):
        assert_rejected(result, argument)
    else:
        assert all(np.isfinite(array).all() for array in result)


def for_each_name(*tables):
    """Parametrize a test by the names in the tables."""
    return pytest.mark.parametrize("name", [name for table in tables for name in table])


#: Values that each run gives to every entry; the slow tests give them all.
FEW_X = (
    "float32",
    "pandas with names",
    "read-only",
    "one feature",
    "wrong width",
    "NaN",
    "1-d",
    "1e+300",
)
FEW_Y = "float32", "pandas", "read-only", "NaN", "two columns", "too short", "None", "1e+300"
#: Entries to which each run gives all values.
FEW_ENTRIES = "task_loss", "TaskSet", "OnlineLTL partial_fit, mid-run", "BayesLTL adapt"
ENTRIES_WITH_Y = [name for name, entry in ENTRIES.items() if entry.takes_y]


def few(entries, some, *tables):
    """Return pairs of an entry and a value: some values for all entries, all for some entries."""
    names = [name for table in tables for name in table]
    return [
        (entry, name) for entry in entries for name in (names if entry in FEW_ENTRIES else some)
    ]


def check_input(entry, name):
    entry, value = ENTRIES[entry], (GOOD_X | WIDE_X | BAD_X | LARGE_X)[name]
    target = y[:1] if name == "one sample" else y
    result = outcome(entry.call, create(entry.make), value, target)
    if name in BAD_X or (name in WIDE_X and entry.knows_width):
        assert_rejected(result, "X|D|validation" if name in WIDE_X else "X")
    elif name in LARGE_X:
        assert_finite_or_rejected(result, "X")
    else:
        assert_accepted(result, outcome(entry.call, create(entry.make), floats(value), target))


def check_target(entry, name):
    entry, value = ENTRIES[entry], (GOOD_Y | BAD_Y | LARGE_Y)[name]
    result = outcome(entry.call, create(entry.make), X, value)
    if name in BAD_Y:
        assert_rejected(result, "y")
    elif name in LARGE_Y:
        assert_finite_or_rejected(result, "y")
    else:
        assert_accepted(result, outcome(entry.call, create(entry.make), X, floats(value)))


@pytest.mark.parametrize(("entry", "name"), few(ENTRIES, FEW_X, GOOD_X, WIDE_X, BAD_X, LARGE_X))
def test_inputs(entry, name):
    check_input(entry, name)


@pytest.mark.parametrize(("entry", "name"), few(ENTRIES_WITH_Y, FEW_Y, GOOD_Y, BAD_Y, LARGE_Y))
def test_targets(entry, name):
    check_target(entry, name)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_all_inputs_and_targets(entry):
    for name in GOOD_X | WIDE_X | BAD_X | LARGE_X:
        check_input(entry, name)
    for name in GOOD_Y | BAD_Y | LARGE_Y if ENTRIES[entry].takes_y else ():
        check_target(entry, name)


@pytest.mark.parametrize("entry", ENTRIES_WITH_Y)
@for_each_name(COLUMN_Y)
def test_a_column_of_targets_warns(entry, name):
    call, make = ENTRIES[entry].call, ENTRIES[entry].make
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        result = outcome(call, create(make), X, COLUMN_Y[name])
    assert_accepted(result, outcome(call, create(make), X, y))


#: Learners whose weights for a task scale with y.
UNITS = {
    "BayesLTL": ltl.BayesLTL,
    "BayesLTL of two passes": lambda: ltl.BayesLTL(n_passes=2),
    "OnlineLTL": ltl.OnlineLTL,
    "OnlineLTL with intercept": lambda: ltl.OnlineLTL(fit_intercept=True),
    "OnlineLTL euclidean": lambda: ltl.OnlineLTL(geometry="euclidean"),
    "BatchLTL": ltl.BatchLTL,
    "MTL": ltl.MTL,
    "ITL": ltl.ITL,
}


@pytest.mark.parametrize("learner", UNITS)
@pytest.mark.parametrize("unit", LARGE)
def test_weights_scale_with_the_targets(learner, unit):

    def call(_, scale):
        tasks = [(X, y * scale) for X, y in TASKS]
        return UNITS[learner]().fit(tasks).adapt(X, y * scale).coef_ / scale

    result = outcome(call, None, LARGE[unit])
    if isinstance(result, Exception):
        assert_rejected(result, "y")
    else:
        assert_accepted(result, outcome(call, None, 1.0))


def with_eigenvalue(least):
    """Return a symmetric matrix with the eigenvalues 1, 2 and `least`."""
    Q = np.linalg.qr(D)[0]
    A = Q * [1.0, 2.0, least] @ Q.T
    return (A + A.T) / 2


GOOD_D = unusual_versions(D) | {
    "pandas": pd.DataFrame(D),
    "within rounding, symmetric": D + 1e-13 * np.tril(D, -1),
    "within rounding, PSD": with_eigenvalue(-1e-13),
    "singular": with_eigenvalue(0.0),
}
GOOD_D.pop("bool")  # not symmetric
BAD_D = invalid_versions(D) | {
    "not symmetric": D + 1e-3 * np.tril(D, -1),
    "negative eigenvalue": with_eigenvalue(-1e-3),
    "negative": -D,
    "wrong width": np.eye(2),
    "rectangular": X,
    "1-d": D[0],
    "no rows": D[:0, :0],
    "a learner": ltl.OnlineLTL().fit(TASKS),
    "a learner, not fitted": ltl.BatchLTL(),
    "tasks": TASKS,
}
LARGE_D = {name: D * scale for name, scale in EXTREME.items()}
D_ENTRIES = {
    "ridge_weights": lambda _, D: ltl.ridge_weights(D, X, y),
    "task_loss": lambda _, D: ltl.task_loss(D, X, y),
    "task_gradient": lambda _, D: ltl.task_gradient(D, X, y),
    "evaluate": lambda _, D: ltl.evaluate(D, *HALVES),
    "RepresentationRidge": lambda _, D: ltl.RepresentationRidge(D).fit(X, y),
    "project": lambda _, D: ltl.project(D, 1.0),
}


@pytest.mark.parametrize("entry", D_ENTRIES)
@for_each_name(GOOD_D, BAD_D, LARGE_D)
def test_representations(entry, name):
    value, call = (GOOD_D | BAD_D | LARGE_D)[name], D_ENTRIES[entry]
    result = outcome(call, None, value)
    if entry == "evaluate" and "learner" in name:  # it takes fitted ones
        assert isinstance(result, NotFittedError) == ("not fitted" in name)
    elif entry == "project" and name in ("negative eigenvalue", "negative", "wrong width"):
        assert_finite_or_rejected(result, None)
    elif name in BAD_D:
        assert_rejected(result, "Q" if entry == "project" else "D|X")
    elif name in LARGE_D:
        assert_finite_or_rejected(result, "Q" if entry == "project" else "D")
    else:
        assert_accepted(result, outcome(call, None, floats(value)))


class Kind(NamedTuple):
    """Valid numbers for an argument, the type they convert to, and invalid values."""

    convert: type
    good: dict
    bad: dict


INVALID_NUMBERS = {
    "NaN": np.nan,
    "infinity": np.inf,
    "negative": -1,
    "text": "1",
    "None": None,
    "True": True,
    "complex": 1 + 0j,
    "array": np.array([1, 2]),
    "0-d array": np.array(1),
    "list": [1],
    "beyond floats": 10**400,
    "duration": np.timedelta64(1, "s"),
}
POSITIVE = Kind(
    float,
    {"int": 2, "float32": np.float32(0.5), "int64": np.int64(2), "ratio": Fraction(1, 2)},
    INVALID_NUMBERS | {"zero": 0.0},
)
FROM_ZERO = Kind(float, POSITIVE.good | {"zero": 0}, INVALID_NUMBERS | {"False": False})
SHARE = Kind(
    float,
    {"float32": np.float32(0.5), "ratio": Fraction(1, 2)},
    INVALID_NUMBERS | {"zero": 0.0, "above one": 1.5},
)
COUNT = Kind(
    int, {"int64": np.int64(3), "uint8": np.uint8(3)}, INVALID_NUMBERS | {"zero": 0, "2.5": 2.5}
)
#: In a list NumPy converts True and 0-d arrays to floats.
LAMS = Kind(
    float,
    POSITIVE.good | {name: INVALID_NUMBERS[name] for name in ("True", "0-d array")},
    {name: bad for name, bad in POSITIVE.bad.items() if name not in ("True", "0-d array")},
)
#: None is the default.
OPTIONAL, OPTIONAL_COUNT = (
    kind._replace(bad={name: bad for name, bad in kind.bad.items() if name != "None"})
    for kind in (POSITIVE, COUNT)
)

bounds, make_environment = ltl.bounds, ltl.datasets.make_environment
#: Calls with a number, by the name of the call and of the argument.
NUMBER_ENTRIES = {
    ("BayesLTL", "half_life"): (OPTIONAL, lambda v: ltl.BayesLTL(half_life=v).fit(TASKS)),
    ("BayesLTL", "n_passes"): (COUNT, lambda v: ltl.BayesLTL(n_passes=v).fit(TASKS)),
    ("OnlineLTL", "lam"): (POSITIVE, lambda v: ltl.OnlineLTL(v).fit(TASKS)),
    ("partial_fit", "lam"): (POSITIVE, lambda v: ltl.OnlineLTL(v).partial_fit(X, y)),
    ("euclidean", "lam"): (POSITIVE, lambda v: ltl.OnlineLTL(v, geometry="euclidean").fit(TASKS)),
    ("OnlineLTL", "step"): (
        POSITIVE,
        lambda v: ltl.OnlineLTL(geometry="euclidean", step=v).fit(TASKS),
    ),
    ("OnlineLTL", "step_scale"): (OPTIONAL, lambda v: ltl.OnlineLTL(step_scale=v).fit(TASKS)),
    ("OnlineLTLPath", "lams"): (LAMS, lambda v: ltl.OnlineLTLPath([v], HALVES).fit(TASKS)),
    ("OnlineLTLPath", "score_every"): (
        OPTIONAL_COUNT,
        lambda v: ltl.OnlineLTLPath([1.0], HALVES, score_every=v).fit(TASKS),
    ),
    ("OnlineLTLPath", "n_threads"): (
        OPTIONAL_COUNT,
        lambda v: ltl.OnlineLTLPath([1.0], HALVES, n_threads=v).fit(TASKS),
    ),
    ("BatchLTL", "lam"): (POSITIVE, lambda v: ltl.BatchLTL(v).fit(TASKS)),
    ("BatchLTL", "tol"): (POSITIVE, lambda v: ltl.BatchLTL(tol=v).fit(TASKS)),
    ("BatchLTL", "max_iter"): (COUNT, lambda v: ltl.BatchLTL(max_iter=v).fit(TASKS)),
    ("BatchLTL", "n_threads"): (OPTIONAL_COUNT, lambda v: ltl.BatchLTL(n_threads=v).fit(TASKS)),
    ("MTL", "lam"): (POSITIVE, lambda v: ltl.MTL(v).fit(TASKS)),
    ("ITL", "lam"): (POSITIVE, lambda v: ltl.ITL(v).fit(TASKS)),
    ("ITL.path", "lams"): (LAMS, lambda v: ltl.ITL().path(TASKS, [1.0, v])),
    ("select_lam of OnlineLTL", "lams"): (
        LAMS,
        lambda v: ltl.select_lam(ltl.OnlineLTL(), TASKS, HALVES, [v]),
    ),
    ("select_lam of MTL", "lams"): (
        LAMS,
        lambda v: ltl.select_lam(ltl.MTL(), TASKS, HALVES, [1.0, v]),
    ),
    ("RepresentationRidge", "lam"): (POSITIVE, lambda v: ltl.RepresentationRidge(lam=v).fit(X, y)),
    ("project", "radius"): (POSITIVE, lambda v: ltl.project(D, v)),
    ("split_samples", "fraction"): (SHARE, lambda v: TASKS.split_samples(v, 0)),
    ("make_environment", "n_features"): (
        COUNT,
        lambda v: make_environment(v, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "rank"): (
        OPTIONAL_COUNT,
        lambda v: make_environment(4, v, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "noise"): (
        FROM_ZERO,
        lambda v: make_environment(4, noise=v, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "signal"): (
        POSITIVE,
        lambda v: make_environment(4, signal=v, random_state=0).tasks(2, 3),
    ),
    ("tasks", "n_tasks"): (COUNT, lambda v: make_environment(4, random_state=0).tasks(v, 3)),
    ("tasks", "n_samples"): (COUNT, lambda v: make_environment(4, random_state=0).tasks(2, v)),
    ("stream", "n_samples"): (COUNT, lambda v: next(make_environment(4, random_state=0).stream(v))),
}
#: Valid arguments of each bound, which are replaced one at a time.
BOUNDS = {
    bounds.online_regret: {"lam": 1.0, "T": 3},
    bounds.sharp_online_regret: {"lam": 1.0, "T": 3},
    bounds.gradient_descent_regret: {"radius": 1.0, "last_step": 1.0, "step_cost": 1.0, "T": 3},
    bounds.entropic_regret: {
        "radius": 1.0,
        "norm": 1.0,
        "largest_norm": 1.0,
        "T": 3,
        "d": 5,
        "step_scale": 1.0,
    },
    bounds.adaptive_regret: {
        "lam": 1.0,
        "squared_norms_sum": 1.0,
        "T": 3,
        "geometry": "euclidean",
        "d": 5,
        "step_scale": None,
    },
    bounds.uniform_generalization: {"lam": 1.0, "n": 3, "input_norm": 0.1},
    bounds.multitask_generalization: {"lam": 1.0, "T": 3, "delta": 0.1},
    bounds.general_uniform_generalization: {
        "n": 3,
        "lipschitz": 1.0,
        "input_norm": 0.1,
        "representation_norm": 1.0,
    },
    bounds.general_multitask_generalization: {
        "T": 3,
        "delta": 0.1,
        "stability": 1.0,
        "representation_norm": 1.0,
    },
    bounds.excess_future_risk: {"regret": 1.0, "T": 3, "delta": 0.1},
    bounds.excess_risk: {
        "regret": 1.0,
        "lam": 1.0,
        "n": 3,
        "T": 3,
        "delta": 0.1,
        "input_norm": 0.1,
    },
    bounds.online_excess_future_risk: {"lam": 1.0, "T": 3, "delta": 0.1},
    bounds.online_excess_risk: {"lam": 1.0, "n": 3, "T": 3, "delta": 0.1, "input_norm": 0.1},
    bounds.batch_excess_risk: {"lam": 1.0, "n": 3, "T": 3, "delta": 0.1, "input_norm": 0.1},
}
BOUND_KINDS = {"T": COUNT, "d": COUNT, "n": COUNT, "delta": SHARE} | dict.fromkeys(
    (
        "norm",
        "largest_norm",
        "squared_norms_sum",
        "step_cost",
        "regret",
        "lipschitz",
        "stability",
        "representation_norm",
    ),
    FROM_ZERO,
)


def bound_entry(bound, arguments, name):
    """Return the kind of an argument of a bound, and a call with one value for it."""
    kind = BOUND_KINDS.get(name, POSITIVE if arguments[name] is not None else OPTIONAL)
    return kind, lambda value: bound(**(arguments | {name: value}))


NUMBER_ENTRIES |= {
    (bound.__name__, name): bound_entry(bound, arguments, name)
    for bound, arguments in BOUNDS.items()
    for name in arguments
    if name != "geometry"
}


@pytest.mark.parametrize(
    ("entry", "argument"), NUMBER_ENTRIES, ids=[" ".join(key) for key in NUMBER_ENTRIES]
)
def test_numbers(entry, argument):
    kind, call = NUMBER_ENTRIES[entry, argument]
    for bad in kind.bad.values():
        assert_rejected(outcome(lambda _, value: call(value), None, bad), argument)
    for good in kind.good.values():
        result = outcome(lambda _, value: call(value), None, good)
        assert_accepted(result, outcome(lambda _, value: call(value), None, kind.convert(good)))
    for large in LARGE.values() if kind in (POSITIVE, FROM_ZERO, OPTIONAL, LAMS) else ():
        result = outcome(lambda _, value: call(value), None, large)
        if (
            entry != "gradient_descent_regret" or not np.isinf(result).any()
        ):  # a bound may be infinite
            assert_finite_or_rejected(result, f"{argument}|D")


BAD_COLUMNS = invalid_versions(y) | {
    "None": None,
    "two columns": np.stack([y, y], axis=1),
    "a column in a column": y[:, None],
    "date objects": [date(2026, 1, 1)] * 4,
    "pandas categories": pd.Series(list("abca")).astype("category"),
}

#: Categories if they are a feature, but not a target.
TEXT_COLUMNS = ("text", "list of text", "pandas categories")


def rows(**changes):
    """Return the columns of a table, some of them replaced."""
    return {"t": ["a", "b", "a", "b"], "u": X[:, 0], "v": X[:, 1], "z": y} | changes


@pytest.mark.parametrize("column", ["v", "z"])
@for_each_name(GOOD_Y, BAD_COLUMNS)
def test_feature_and_target_columns(column, name):
    value = (GOOD_Y | BAD_COLUMNS)[name]
    result = outcome(
        lambda _, df: ltl.TaskSet.from_frame(df, "t", "z"), None, rows(**{column: value})
    )
    if name in GOOD_Y:
        assert_accepted(
            result, numbers(ltl.TaskSet.from_frame(rows(**{column: floats(value)}), "t", "z"))
        )
    elif name in TEXT_COLUMNS and column == "v":
        assert sum(array.size for array in result) == 4 * (len(set(value)) + 2)
    else:
        assert_rejected(result, f"column '{column}'|target")


@for_each_name(BAD_COLUMNS)
def test_task_columns(name):
    """A task label is any value that equals itself; there is one for each row."""
    result = outcome(
        lambda _, t: ltl.TaskSet.from_frame(rows(t=t), "t", "z"), None, BAD_COLUMNS[name]
    )
    assert_finite_or_rejected(result, "column 't'")
    again = outcome(lambda _, t: ltl.TaskSet.from_groups(X, y, t), None, BAD_COLUMNS[name])
    assert_finite_or_rejected(again, "groups")
    assert isinstance(again, Exception) == isinstance(result, Exception)


WRITERS = {"CSV": csv.write_csv, "Parquet": parquet.write_table}
BAD_CELLS = {
    "NaN": pa.array([1.0, np.nan, 2.0, 3.0]),
    "infinity": pa.array([1.0, np.inf, 2.0, 3.0]),
    "null": pa.array([1.0, None, 2.0, 3.0]),
    "nulls": pa.nulls(4),
    "dates": pa.array([date(2026, 1, k) for k in range(1, 5)]),
    "times": pa.array([datetime(2026, 1, k) for k in range(1, 5)]),
}
ONLY_PARQUET = {
    "durations": pa.array([timedelta(k) for k in range(4)]),
    "bytes": pa.array([b"a", b"b", b"c", b"d"]),
    "lists": pa.array([[1.0], [2.0], [3.0], [4.0]]),
    "structs": pa.array([{"a": 1.0}] * 4),
}
GOOD_CELLS = {
    "int": pa.array([1, 2, 3, 4]),
    "float32": pa.array(y.astype(np.float32)),
    "bool": pa.array([True, False, True, True]),
    "decimal": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal(3), Decimal(4)]),
}


TEXT_CELLS = {"text": pa.array(list("abca")), "numeric text": pa.array(["1.5", "2", "3", "4"])}
CELLS = GOOD_CELLS | BAD_CELLS | TEXT_CELLS


@pytest.mark.parametrize("column", ["v", "z"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("CSV", name) for name in CELLS), *(("Parquet", name) for name in CELLS | ONLY_PARQUET)],
)
def test_cells_of_files(tmp_path, column, kind, name):
    value = (CELLS | ONLY_PARQUET)[name]
    WRITERS[kind](pa.table(rows(**{column: value})), tmp_path / "table")
    result = outcome(lambda _, path: read_tasks(path, "t", "z"), None, tmp_path / "table")
    if name in GOOD_CELLS or (name, kind) == ("numeric text", "CSV"):
        clean = rows(**{column: [float(cell) for cell in value.to_pylist()]})
        assert_accepted(result, numbers(ltl.TaskSet.from_frame(clean, "t", "z")))
    elif name == "text" and column == "v":  # a category
        assert sum(array.size for array in result) == 4 * (len(value.unique()) + 2)
    else:
        assert_rejected(result, f"column '{column}'|target")


BAD_ARGUMENTS = {
    "path, None": ({"path": None}, "path must name a file, got None"),
    "path, a number": ({"path": 3}, "path must name a file, got 3"),
    "features, a number": ({"features": 3}, "features must be a sequence of names, got int"),
    "features, a string": ({"features": "v"}, "features must be a sequence of names, got the str"),
    "features, none": (
        {"features": []},
        "features must name a column of .* besides task and target",
    ),
    "features, not there": ({"features": ["w"]}, "features must name a column"),
    "drop, a string": ({"drop": "v"}, "drop must be a sequence of names, got the string 'v'"),
    "drop, a number": ({"drop": 3}, "drop must be a sequence of names, got int"),
    "task, None": ({"task": None}, "task must name a column"),
    "task, a number": ({"task": 3}, "task must name a column"),
    "target, None": ({"target": None}, "target must name a column"),
    "swapped": ({"task": "z", "target": "t"}, "task and target may be swapped, since 'z' holds"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_read_tasks_checks_its_arguments(tmp_path, change, message):
    csv.write_csv(pa.table(rows()), tmp_path / "table")
    arguments = {"path": tmp_path / "table", "task": "t", "target": "z"} | change
    with pytest.raises((TypeError, ValueError), match=message):
        read_tasks(**arguments)


GROUPED = pd.DataFrame(rows()).groupby("t")
HINTS = {
    "swapped": (
        lambda: ltl.TaskSet.from_frame(rows(), "z", "t"),
        "'t', which holds text such as 'a': task and target may be swapped, since 'z'",
    ),
    "swapped in pandas": (
        lambda: ltl.TaskSet.from_frame(pd.DataFrame(rows()), "u", "t", ["v"]),
        "'t', which holds text such as 'a': task and target may be swapped, since 'u'",
    ),
    "text as target, but not swapped": (
        lambda: ltl.TaskSet.from_frame(rows(z=list("abcd")), "t", "z"),
        r"target must name a column of numbers, got 'z', which holds text such as 'a'\.$",
    ),
    "numeric text": (
        lambda: ltl.TaskSet.from_frame(rows(v=["1.5", "2", "3", "4"]), "t", "z"),
        r"column 'v' must hold numbers, got text such as '1.5': convert it .* astype",
    ),
    "dates": (
        lambda: ltl.TaskSet.from_frame(rows(v=np.full(4, "2026-01-02", "M8[D]")), "t", "z"),
        r"column 'v' must hold .* got dates, times or durations \(datetime64\[D\]\): convert",
    ),
    "durations": (
        lambda: ltl.TaskSet.from_frame(rows(v=y.astype("m8[s]")), "t", "z"),
        r"column 'v' must hold .* got dates, times or durations \(timedelta64\[s\]\): convert",
    ),
    "a data frame": (
        lambda: ltl.TaskSet(pd.DataFrame(rows())),
        "tasks must be .* got DataFrame; use TaskSet.from_frame for a table, TaskSet.from_groups",
    ),
    "a polars frame": (
        lambda: ltl.TaskSet(pl.DataFrame(rows())),
        "got DataFrame; use TaskSet.from_frame for a table",
    ),
    "an arrow table": (
        lambda: ltl.TaskSet(pa.table(rows())),
        "got Table; use TaskSet.from_frame for a table",
    ),
    "a dict": (lambda: ltl.TaskSet(rows()), "got dict; use TaskSet.from_frame for a table"),
    "a pandas GroupBy": (
        lambda: ltl.TaskSet(GROUPED),
        "got DataFrameGroupBy; use TaskSet.from_frame for a table",
    ),
    "a polars GroupBy": (
        lambda: ltl.TaskSet(pl.DataFrame(rows()).group_by("t")),
        "got GroupBy; use TaskSet.from_frame for a table",
    ),
    "a learner for D": (
        lambda: ltl.RepresentationRidge(ltl.OnlineLTL().fit(TASKS)).fit(X, y),
        "D must be an array of real numbers, got OnlineLTL: pass its D_",
    ),
    "a class for D": (
        lambda: ltl.RepresentationRidge(ltl.BatchLTL).fit(X, y),
        "D must be an array of real numbers, got BatchLTL: pass its D_",
    ),
    "arrays for TaskSets": (lambda: ltl.evaluate(D, X, y), "train must be a TaskSet, got ndarray"),
    "labels, a number": (
        lambda: ltl.TaskSet(TASKS, labels=3),
        "labels must be a sequence, got int",
    ),
    "fractions, a number": (lambda: TASKS.split(0.5), "fractions must be a sequence"),
    "fractions, None": (lambda: TASKS.split(None), "fractions must be a sequence"),
    "fractions, NaN": (lambda: TASKS.split([0.5, np.nan]), "fractions must be a sequence"),
    "fractions, text": (lambda: TASKS.split(["0.5"]), "fractions must be an array of real numbers"),
    "fractions, too many": (lambda: TASKS.split([0.5, 0.6]), "fractions must be a sequence"),
    "random_state, text": (lambda: TASKS.split([0.5], "0"), "random_state must be None, an int"),
    "random_state, negative": (
        lambda: make_environment(random_state=-1),
        "random_state must be None, an integer",
    ),
    "metric": (lambda: ltl.evaluate(D, *HALVES, metric="MSE"), "metric must be one of 'mse'"),
    "fit_intercept": (
        lambda: ltl.evaluate(D, *HALVES, fit_intercept=1),
        "fit_intercept must be True or False, got 1",
    ),
    "one sample": (
        lambda: ltl.TaskSet([(X[:1], y[:1])]).split_samples(0.5),
        "split_samples needs at least 2 samples in every task, got 1 in task 0",
    ),
    "scores, overflow": (
        lambda: ltl.relative_improvement([1e308, 1e308], [1.0, 1.0]),
        "scores must not be so large that their mean overflows",
    ),
    "scores, far above the baseline": (
        lambda: ltl.relative_improvement([1e300], [1e-300]),
        r"scores must not be so much larger than baseline .* means of 1e\+300 and 1e-300",
    ),
    "learner": (lambda: ltl.select_lam(D, TASKS, HALVES), "learner must be one that has a lam"),
    "validation": (
        lambda: ltl.select_lam(ltl.ITL(), TASKS, TASKS),
        r"validation must be a pair \(train, test\) of TaskSets",
    ),
    "schools, None": (lambda: ltl.datasets.load_schools(None), "path must name a file, got None"),
    "schools, a number": (lambda: ltl.datasets.load_schools(3), "path must name a file, got 3"),
    "schools, another file": (
        lambda: ltl.datasets.load_schools(__file__),
        "path must name schoolData.mat with the SHA-256",
    ),
}


@pytest.mark.parametrize(("call", "message"), HINTS.values(), ids=HINTS)
def test_errors_say_what_to_do(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


@for_each_name(GOOD_Y, BAD_Y, LARGE_Y)
@pytest.mark.parametrize("argument", ["scores", "baseline"])
def test_scores(argument, name):
    value = (GOOD_Y | BAD_Y | LARGE_Y)[name]

    def call(_, value):
        return ltl.relative_improvement(**({"scores": y + 1, "baseline": y} | {argument: value}))

    result = outcome(call, None, value)
    if name in BAD_Y or (argument == "baseline" and "zeros" in name):
        assert_rejected(result, "scores|baseline")
    elif name in LARGE_Y:
        assert_finite_or_rejected(result, argument)
    else:
        assert_accepted(result, outcome(call, None, floats(value)))


UNFITTED = {
    "adapt": lambda learner: learner.adapt(X, y),
    "transform": lambda learner: learner.transform(X),
    "D_": lambda learner: learner.D_,
    "predict": lambda learner: learner.predict(X),
}


@pytest.mark.parametrize(
    "make",
    [ltl.BayesLTL, ltl.OnlineLTL, path, ltl.BatchLTL, ltl.MTL, ltl.ITL, ltl.RepresentationRidge],
)
def test_unfitted_learners_raise(make):
    for name, call in UNFITTED.items():
        learner = make()
        if name in dir(type(learner)):
            before = pickle.dumps(learner)
            with pytest.raises(NotFittedError, match=type(learner).__name__):
                call(learner)
            assert pickle.dumps(learner) == before
