"""Bad and odd input at every public entry: a right result, or an error that names the argument.

Tables of values on one side, of entries on the other, and every value goes to every entry. Whatever
comes of it, nothing is NaN, no argument is written to, no warning escapes, and a learner that
refuses is as it was.
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

pytestmark = pytest.mark.slow

X = np.array([[2.0, -1.0, 0.0], [1.0, 3.0, -2.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 2.0]])
y = np.array([1.0, -2.0, 3.0, 1.0])
D = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, -1.0], [0.0, -1.0, 2.0]])
TASKS = ltl.TaskSet([(X, y), (X[::-1] * 2, y + 1), (X[:2], y[2:]), (X + 1, y - 2)])
HALVES = TASKS.split_samples(0.5, random_state=0)


def with_entry(array, value):
    """The array with another value in its midst."""
    changed = np.array(array, dtype=np.result_type(array, np.min_scalar_type(value)))
    changed[(1,) * changed.ndim] = value
    return changed


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


class Subclass(np.ndarray):
    """An array that is none of NumPy's own."""


def odd_versions(array):
    """The same numbers, or as good as, in other clothes."""
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
        "backwards": array[::-1].copy()[::-1],
        "list": array.tolist(),
        "tuple": tuple(array.tolist()),
        "zeros": np.zeros_like(array),
        "minus zeros": -np.zeros_like(array),
        "subclass": array.view(Subclass),
    }


def bad_versions(array):
    """What is no array of real numbers at all."""
    return {
        "NaN": with_entry(array, np.nan),
        "infinity": with_entry(array, np.inf),
        "minus infinity": with_entry(array, -np.inf),
        "float32 NaN": with_entry(array, np.nan).astype(np.float32),
        "list with NaN": with_entry(array, np.nan).tolist(),
        "object with None": with_entry(array.astype(object), None),
        "object with text": with_entry(array.astype(object), "no number"),
        "object with numeric text": with_entry(array.astype(object), "1.5"),
        "text": np.full(array.shape, "no number"),
        "numeric text": array.astype(str),
        "bytes": array.astype("S"),
        "list of text": np.full(array.shape, "no number").tolist(),
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
        "masked, none of it": np.ma.masked_array(array),
        "0-d": np.array(1.5),
        "a number": 1.5,
        "3-d": np.ones((2, 2, 2)),
        "text itself": "no number",
        "a set": {1.0, 2.0},
        "an object": object(),
        "ragged": [[1.0, 2.0], [3.0]],
        "rows of records": np.zeros(array.shape, dtype=[("a", float), ("b", float)]),
    }


#: Taken by every entry, with the result of the float64 array of the same numbers.
GOOD_X = odd_versions(X) | {
    "pandas": pd.DataFrame(X),
    "pandas with names": pd.DataFrame(X, columns=["a", "b", "c"]),
    "pandas of extension type": pd.DataFrame(X).astype("Float64"),
    "polars": pl.DataFrame(X),
    "duplicate rows": X[[0, 0, 0, 0]],
    "one sample": X[:1],
}
#: Taken by the entries that do not know the number of features yet, refused by the others.
WIDE_X = {"one feature": X[:, :1], "wrong width": np.hstack([X, X])}
BAD_X = bad_versions(X) | {
    "1-d": X[0],
    "no rows": X[:0],
    "no columns": X[:, :0],
    "no rows, a list": [],
    "None": None,
}
LARGE = {f"{scale:g}": scale for scale in (1e-300, 1e-150, 1e150, 1e300)}
#: So are these, whose sums overflow or which have but one digit.
EXTREME = LARGE | {"the smallest": 5e-324, "the largest": 5e307}
LARGE_X = {name: X * scale for name, scale in EXTREME.items()}

GOOD_Y = odd_versions(y) | {
    "pandas": pd.Series(y),
    "pandas of extension type": pd.Series(y).astype("Int64"),
    "polars": pl.Series(y),
    "constant": np.full(4, 2.0),
}
COLUMN_Y = {"column": y[:, None], "list of lists": y[:, None].tolist()}
BAD_Y = bad_versions(y) | {
    "None": None,
    "two columns": np.stack([y, y], axis=1),
    "too long": np.append(y, 1.0),
    "too short": y[:3],
    "empty": [],
}
LARGE_Y = {name: y * scale for name, scale in EXTREME.items()}


class Entry(NamedTuple):
    """A call with X and y of one task, of a learner that `make` makes; None for a function."""

    call: Any
    make: Any = lambda: None
    knows_width: bool = True
    takes_y: bool = True


def groups_like(y):
    """One group, of as many rows as there are targets, if those can be counted."""
    return [0] * (len(y) if isinstance(y, np.ndarray) and y.ndim == 1 else 4)


def of_learner(make, knows_width=False):
    """The entries of a learner of representations."""

    def fitted():
        return make().fit(TASKS)

    return {
        "fit again": Entry(lambda it, X, y: it.fit(X, y), fitted, knows_width),
        "fit of pairs": Entry(lambda it, X, y: it.fit([(X, y)]), make, knows_width),
        "fit of groups": Entry(lambda it, X, y: it.fit(X, y, groups_like(y)), make, knows_width),
        "adapt": Entry(lambda it, X, y: it.adapt(X, y), fitted),
        "transform": Entry(lambda it, X, y: it.transform(X), fitted, takes_y=False),
    }


def of_stream(make, knows_width=False):
    """The entries of a learner that takes tasks one by one."""
    return of_learner(make, knows_width) | {
        "partial_fit, first task": Entry(lambda it, X, y: it.partial_fit(X, y), make, knows_width),
        "partial_fit, mid-run": Entry(
            lambda it, X, y: it.partial_fit(X, y), lambda: make().fit(TASKS)
        ),
    }


def of_multitask_model(make):
    """The entries of a learner that has weights for its tasks."""
    return of_learner(make) | {
        "predict": Entry(
            lambda it, X, y: it.predict(X, groups_like(y)),
            lambda: make().fit(TASKS),
            takes_y=False,
        ),
    }


def path():
    return ltl.OnlineLTLPath(lams=[0.1, 1.0, 10.0], validation=HALVES)


LEARNERS = {
    "OnlineLTL": of_stream(ltl.OnlineLTL),
    "OnlineLTL with intercept": of_stream(lambda: ltl.OnlineLTL(fit_intercept=True)),
    "OnlineLTL of the paper": {
        name: entry
        for name, entry in of_stream(lambda: ltl.OnlineLTL(1.0, "euclidean", "theory")).items()
        if "partial_fit" in name
    },
    "OnlineLTLPath": of_stream(path, knows_width=True),
    "BatchLTL": of_learner(ltl.BatchLTL),
    "MTL": of_multitask_model(lambda: ltl.MTL(fit_intercept=True)),
    "ITL": of_multitask_model(ltl.ITL),
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
        lambda it, X, y: ltl.select_lam(it, [(X, y)], HALVES, [1.0]), ltl.OnlineLTL
    ),
    "select_lam BatchLTL": Entry(
        lambda it, X, y: ltl.select_lam(it, [(X, y)], HALVES, [1.0]), ltl.BatchLTL
    ),
    "select_lam ITL": Entry(lambda it, X, y: ltl.select_lam(it, [(X, y)], HALVES, [1.0]), ltl.ITL),
    "TaskSet": Entry(lambda _, X, y: ltl.TaskSet([(X, y)]), knows_width=False),
    "TaskSet, second task": Entry(lambda _, X, y: ltl.TaskSet([TASKS[0], (X, y)])),
    "TaskSet.from_groups": Entry(
        lambda _, X, y: ltl.TaskSet.from_groups(X, y, groups_like(y)), knows_width=False
    ),
    "TaskSet.split": Entry(
        lambda _, X, y: ltl.TaskSet([(X, y)] * 4).split((0.5, 0.25), 0), knows_width=False
    ),
    "ITL.path": Entry(lambda it, X, y: it.path(X, [0.1, 1.0], y), ltl.ITL, False),
    "RepresentationRidge fit": Entry(
        lambda it, X, y: it.fit(X, y), lambda: ltl.RepresentationRidge(fit_intercept=True), False
    ),
    "RepresentationRidge fit again": Entry(
        lambda it, X, y: it.fit(X, y), lambda: ltl.RepresentationRidge().fit(X, y), False
    ),
    "RepresentationRidge with D, fit": Entry(
        lambda it, X, y: it.fit(X, y), lambda: ltl.RepresentationRidge(D)
    ),
    "RepresentationRidge predict": Entry(
        lambda it, X, y: it.predict(X), lambda: ltl.RepresentationRidge(D).fit(X, y), takes_y=False
    ),
    "bounds.input_covariance_norm": Entry(
        lambda _, X, y: ltl.bounds.input_covariance_norm([(X, y)]), knows_width=False
    ),
}

#: What learners and selections show of what they found.
FOUND = (
    *("D_", "iterate_", "representations_", "scores_", "best_lam_", "n_tasks_seen_", "coef_"),
    *("cumulative_loss_", "regret_bound_", "intercept_", "objective_", "gap_", "n_features_in_"),
    *("learner", "scores", "task_scores"),
)


def numbers(result):
    """All the numbers in a result."""
    if isinstance(result, tuple | list | ltl.TaskSet):
        return [array for part in result for array in numbers(part)]
    if isinstance(result, float | int | np.ndarray):
        return [np.asarray(result, dtype=float)]
    return numbers([getattr(result, name) for name in FOUND if hasattr(result, name)])


def floats(array):
    """The same numbers in an array of the plainest kind."""
    return np.array(np.asarray(array), dtype=np.float64, order="C")


def made(make):
    """A new learner, which has been looked at: what it shows is computed once, and kept."""
    learner = make()
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # lam at the edge
        getattr(learner, "D_", None)
    return learner


def contents(arguments):
    """What the arrays among arguments hold, in whatever they are wrapped."""
    arrays = [it for it in arguments if isinstance(it, np.ndarray)]
    others = [repr(it) for it in arguments if isinstance(it, pd.DataFrame | pd.Series | dict)]
    return [array.tobytes() for array in arrays] + others


def outcome(call, learner, *arguments):
    """What a call gives, or the error it raises; checked for all that holds either way."""
    before, given = pickle.dumps(learner), contents(arguments)
    with warnings.catch_warnings():
        # Legitimate: a fit that rounding errors stop, the lam at the edge of the candidates,
        # names of features where there were none, and, with the JIT off, NumPy's of overflow.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", ".*at the edge of the candidates", UserWarning)
        warnings.filterwarnings("ignore", "X has feature names", UserWarning)
        if JIT_IS_OFF:
            warnings.simplefilter("ignore", RuntimeWarning)
        try:
            given_back = call(learner, *arguments)
            result = numbers(given_back)
        except (TypeError, ValueError) as error:
            given_back, result = None, error
    if given_back is not learner:  # which is what learns gives back
        assert pickle.dumps(learner) == before
    assert contents(arguments) == given
    return result


def assert_taken(result, expected):
    """The result is finite, and as expected."""
    if isinstance(result, Exception):
        raise result
    assert len(result) == len(expected) > 0
    for ours, theirs in zip(result, expected, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-300)


def assert_refused(result, argument):
    """The result is an error that names the argument."""
    assert isinstance(result, Exception), result
    assert not isinstance(result, NotFittedError)
    assert "\n" not in str(result)
    assert re.search(rf"(?<!\w)({argument})(?!\w)", str(result)), str(result)


def assert_finite_or_refused(result, argument):
    if isinstance(result, Exception):
        assert_refused(result, argument)
    else:
        assert all(np.isfinite(array).all() for array in result)


def over(*tables):
    """Every name of the tables, to be a parameter."""
    return pytest.mark.parametrize("name", [name for table in tables for name in table])


every_entry = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
every_entry_of_y = pytest.mark.parametrize(
    "entry",
    [entry for entry in ENTRIES.values() if entry.takes_y],
    ids=[name for name, entry in ENTRIES.items() if entry.takes_y],
)


@every_entry
@over(GOOD_X, WIDE_X, BAD_X, LARGE_X)
def test_odd_inputs(entry, name):
    odd = (GOOD_X | WIDE_X | BAD_X | LARGE_X)[name]
    target = y[:1] if name == "one sample" else y
    result = outcome(entry.call, made(entry.make), odd, target)
    if name in BAD_X or (name in WIDE_X and entry.knows_width):
        assert_refused(result, "X|D|validation" if name in WIDE_X else "X")
    elif name in LARGE_X:
        assert_finite_or_refused(result, "X")
    else:
        assert_taken(result, outcome(entry.call, made(entry.make), floats(odd), target))


@every_entry_of_y
@over(GOOD_Y, BAD_Y, LARGE_Y)
def test_odd_targets(entry, name):
    odd = (GOOD_Y | BAD_Y | LARGE_Y)[name]
    result = outcome(entry.call, made(entry.make), X, odd)
    if name in BAD_Y:
        assert_refused(result, "y")
    elif name in LARGE_Y:
        assert_finite_or_refused(result, "y")
    else:
        assert_taken(result, outcome(entry.call, made(entry.make), X, floats(odd)))


@every_entry_of_y
@over(COLUMN_Y)
def test_a_column_of_targets_warns(entry, name):
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        result = outcome(entry.call, made(entry.make), X, COLUMN_Y[name])
    assert_taken(result, outcome(entry.call, made(entry.make), X, y))


#: Learners whose weights for a task have the units of y, whatever those are.
UNITS = {
    "OnlineLTL": ltl.OnlineLTL,
    "OnlineLTL with intercept": lambda: ltl.OnlineLTL(fit_intercept=True),
    "OnlineLTL euclidean": lambda: ltl.OnlineLTL(geometry="euclidean"),
    "BatchLTL": ltl.BatchLTL,
    "MTL": ltl.MTL,
    "ITL": ltl.ITL,
}


@pytest.mark.parametrize("learner", UNITS)
@pytest.mark.parametrize("unit", LARGE)
def test_the_units_of_targets_do_not_matter(learner, unit):
    """What is taken at all, however large or small, is learned from like anything else."""

    def call(_, scale):
        tasks = [(X, y * scale) for X, y in TASKS]
        return UNITS[learner]().fit(tasks).adapt(X, y * scale).coef_ / scale

    result = outcome(call, None, LARGE[unit])
    if isinstance(result, Exception):
        assert_refused(result, "y")
    else:
        assert_taken(result, outcome(call, None, 1.0))


def with_eigenvalue(least):
    """A symmetric matrix with the eigenvalues 1, 2 and this one."""
    Q = np.linalg.qr(D)[0]
    A = Q * [1.0, 2.0, least] @ Q.T
    return (A + A.T) / 2


GOOD_D = odd_versions(D) | {
    "pandas": pd.DataFrame(D),
    "within rounding, symmetric": D + 1e-13 * np.tril(D, -1),
    "within rounding, PSD": with_eigenvalue(-1e-13),
    "singular": with_eigenvalue(0.0),
}
GOOD_D.pop("bool")  # not symmetric
BAD_D = bad_versions(D) | {
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
ENTRIES_OF_D = {
    "ridge_weights": lambda _, D: ltl.ridge_weights(D, X, y),
    "task_loss": lambda _, D: ltl.task_loss(D, X, y),
    "task_gradient": lambda _, D: ltl.task_gradient(D, X, y),
    "evaluate": lambda _, D: ltl.evaluate(D, *HALVES),
    "RepresentationRidge": lambda _, D: ltl.RepresentationRidge(D).fit(X, y),
    "project": lambda _, D: ltl.project(D, 1.0),
}


@pytest.mark.parametrize("entry", ENTRIES_OF_D)
@over(GOOD_D, BAD_D, LARGE_D)
def test_odd_representations(entry, name):
    odd, call = (GOOD_D | BAD_D | LARGE_D)[name], ENTRIES_OF_D[entry]
    result = outcome(call, None, odd)
    if entry == "project" and name in ("negative eigenvalue", "negative", "wrong width"):
        assert_finite_or_refused(result, None)
    elif name in BAD_D:
        assert_refused(result, "Q" if entry == "project" else "D|X")
    elif name in LARGE_D:
        assert_finite_or_refused(result, "Q" if entry == "project" else "D")
    else:
        assert_taken(result, outcome(call, None, floats(odd)))


class Kind(NamedTuple):
    """Numbers that an argument can be, what they are the same as, and what it must not be."""

    same_as: type
    good: dict
    bad: dict


NO_NUMBERS = {
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
    NO_NUMBERS | {"zero": 0.0},
)
FROM_ZERO = Kind(float, POSITIVE.good | {"zero": 0}, NO_NUMBERS | {"False": False})
SHARE = Kind(
    float,
    {"float32": np.float32(0.5), "ratio": Fraction(1, 2)},
    NO_NUMBERS | {"zero": 0.0, "above one": 1.5},
)
COUNT = Kind(
    int, {"int64": np.int64(3), "uint8": np.uint8(3)}, NO_NUMBERS | {"zero": 0, "2.5": 2.5}
)
#: In a list NumPy makes floats of these, which is as well.
LAMS = Kind(
    float,
    POSITIVE.good | {name: NO_NUMBERS[name] for name in ("True", "0-d array")},
    {name: bad for name, bad in POSITIVE.bad.items() if name not in ("True", "0-d array")},
)
#: None is the default.
OPTIONAL, OPTIONAL_COUNT = (
    kind._replace(bad={name: bad for name, bad in kind.bad.items() if name != "None"})
    for kind in (POSITIVE, COUNT)
)

bounds, make_environment = ltl.bounds, ltl.datasets.make_environment
#: Calls with a number, by their name and that of the argument.
ENTRIES_OF_NUMBERS = {
    ("OnlineLTL", "lam"): (POSITIVE, lambda it: ltl.OnlineLTL(it).fit(TASKS)),
    ("partial_fit", "lam"): (POSITIVE, lambda it: ltl.OnlineLTL(it).partial_fit(X, y)),
    ("euclidean", "lam"): (POSITIVE, lambda it: ltl.OnlineLTL(it, "euclidean").fit(TASKS)),
    ("OnlineLTL", "step"): (POSITIVE, lambda it: ltl.OnlineLTL(1.0, "euclidean", it).fit(TASKS)),
    ("OnlineLTL", "step_scale"): (OPTIONAL, lambda it: ltl.OnlineLTL(step_scale=it).fit(TASKS)),
    ("OnlineLTLPath", "lams"): (LAMS, lambda it: ltl.OnlineLTLPath([it], HALVES).fit(TASKS)),
    ("OnlineLTLPath", "score_every"): (
        OPTIONAL_COUNT,
        lambda it: ltl.OnlineLTLPath([1.0], HALVES, score_every=it).fit(TASKS),
    ),
    ("OnlineLTLPath", "n_threads"): (
        OPTIONAL_COUNT,
        lambda it: ltl.OnlineLTLPath([1.0], HALVES, n_threads=it).fit(TASKS),
    ),
    ("BatchLTL", "lam"): (POSITIVE, lambda it: ltl.BatchLTL(it).fit(TASKS)),
    ("BatchLTL", "tol"): (POSITIVE, lambda it: ltl.BatchLTL(tol=it).fit(TASKS)),
    ("BatchLTL", "max_iter"): (COUNT, lambda it: ltl.BatchLTL(max_iter=it).fit(TASKS)),
    ("BatchLTL", "n_threads"): (OPTIONAL_COUNT, lambda it: ltl.BatchLTL(n_threads=it).fit(TASKS)),
    ("MTL", "lam"): (POSITIVE, lambda it: ltl.MTL(it).fit(TASKS)),
    ("ITL", "lam"): (POSITIVE, lambda it: ltl.ITL(it).fit(TASKS)),
    ("ITL.path", "lams"): (LAMS, lambda it: ltl.ITL().path(TASKS, [1.0, it])),
    ("select_lam of OnlineLTL", "lams"): (
        LAMS,
        lambda it: ltl.select_lam(ltl.OnlineLTL(), TASKS, HALVES, [it]),
    ),
    ("select_lam of MTL", "lams"): (
        LAMS,
        lambda it: ltl.select_lam(ltl.MTL(), TASKS, HALVES, [1.0, it]),
    ),
    ("RepresentationRidge", "lam"): (
        POSITIVE,
        lambda it: ltl.RepresentationRidge(lam=it).fit(X, y),
    ),
    ("project", "radius"): (POSITIVE, lambda it: ltl.project(D, it)),
    ("split_samples", "fraction"): (SHARE, lambda it: TASKS.split_samples(it, 0)),
    ("online_regret", "lam"): (POSITIVE, lambda it: bounds.online_regret(it, 3)),
    ("online_regret", "T"): (COUNT, lambda it: bounds.online_regret(1.0, it)),
    ("descent", "radius"): (POSITIVE, lambda it: bounds.gradient_descent_regret(it, 1.0, 1.0, 3)),
    ("descent", "last_step"): (
        POSITIVE,
        lambda it: bounds.gradient_descent_regret(1.0, it, 1.0, 3),
    ),
    ("descent", "step_cost"): (
        FROM_ZERO,
        lambda it: bounds.gradient_descent_regret(1.0, 1.0, it, 3),
    ),
    ("descent", "T"): (COUNT, lambda it: bounds.gradient_descent_regret(1.0, 1.0, 1.0, it)),
    ("entropic", "radius"): (
        POSITIVE,
        lambda it: bounds.entropic_regret(it, 1.0, 1.0, 3, 5, 1.0),
    ),
    ("entropic", "norm"): (FROM_ZERO, lambda it: bounds.entropic_regret(1.0, it, 1.0, 3, 5, 1.0)),
    ("entropic", "largest_norm"): (
        FROM_ZERO,
        lambda it: bounds.entropic_regret(1.0, 1.0, it, 3, 5, 1.0),
    ),
    ("entropic", "T"): (COUNT, lambda it: bounds.entropic_regret(1.0, 1.0, 1.0, it, 5, 1.0)),
    ("entropic", "d"): (COUNT, lambda it: bounds.entropic_regret(1.0, 1.0, 1.0, 3, it, 1.0)),
    ("entropic", "step_scale"): (
        POSITIVE,
        lambda it: bounds.entropic_regret(1.0, 1.0, 1.0, 3, 5, it),
    ),
    ("adaptive", "lam"): (
        POSITIVE,
        lambda it: bounds.adaptive_regret(it, 1.0, 3, "euclidean", 5),
    ),
    ("adaptive", "squared_norms_sum"): (
        FROM_ZERO,
        lambda it: bounds.adaptive_regret(1.0, it, 3, "euclidean", 5),
    ),
    ("adaptive", "step_scale"): (
        OPTIONAL,
        lambda it: bounds.adaptive_regret(1.0, 1.0, 3, "euclidean", 5, it),
    ),
    ("uniform", "lam"): (POSITIVE, lambda it: bounds.uniform_generalization(it, 3, 0.1)),
    ("uniform", "n"): (COUNT, lambda it: bounds.uniform_generalization(1.0, it, 0.1)),
    ("uniform", "input_norm"): (POSITIVE, lambda it: bounds.uniform_generalization(1.0, 3, it)),
    ("multitask", "lam"): (POSITIVE, lambda it: bounds.multitask_generalization(it, 3, 0.1)),
    ("multitask", "T"): (COUNT, lambda it: bounds.multitask_generalization(1.0, it, 0.1)),
    ("multitask", "delta"): (SHARE, lambda it: bounds.multitask_generalization(1.0, 3, it)),
    ("future risk", "lam"): (POSITIVE, lambda it: bounds.online_excess_future_risk(it, 3, 0.1)),
    ("future risk", "T"): (COUNT, lambda it: bounds.online_excess_future_risk(1.0, it, 0.1)),
    ("future risk", "delta"): (SHARE, lambda it: bounds.online_excess_future_risk(1.0, 3, it)),
    ("risk", "lam"): (POSITIVE, lambda it: bounds.online_excess_risk(it, 3, 3, 0.1, 0.1)),
    ("batch risk", "lam"): (POSITIVE, lambda it: bounds.batch_excess_risk(it, 3, 3, 0.1, 0.1)),
    ("batch risk", "delta"): (SHARE, lambda it: bounds.batch_excess_risk(1.0, 3, 3, it, 0.1)),
    ("make_environment", "n_features"): (
        COUNT,
        lambda it: make_environment(it, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "rank"): (
        OPTIONAL_COUNT,
        lambda it: make_environment(4, it, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "noise"): (
        FROM_ZERO,
        lambda it: make_environment(4, noise=it, random_state=0).tasks(2, 3),
    ),
    ("make_environment", "signal"): (
        POSITIVE,
        lambda it: make_environment(4, signal=it, random_state=0).tasks(2, 3),
    ),
    ("tasks", "n_tasks"): (COUNT, lambda it: make_environment(4, random_state=0).tasks(it, 3)),
    ("tasks", "n_samples"): (COUNT, lambda it: make_environment(4, random_state=0).tasks(2, it)),
    ("stream", "n_samples"): (
        COUNT,
        lambda it: next(make_environment(4, random_state=0).stream(it)),
    ),
}


@pytest.mark.parametrize(
    ("entry", "argument"), ENTRIES_OF_NUMBERS, ids=[" ".join(key) for key in ENTRIES_OF_NUMBERS]
)
def test_odd_numbers(entry, argument):
    kind, call = ENTRIES_OF_NUMBERS[entry, argument]
    for bad in kind.bad.values():
        assert_refused(outcome(lambda _, it: call(it), None, bad), argument)
    for good in kind.good.values():
        result = outcome(lambda _, it: call(it), None, good)
        assert_taken(result, outcome(lambda _, it: call(it), None, kind.same_as(good)))
    for large in LARGE.values() if kind in (POSITIVE, FROM_ZERO, OPTIONAL, LAMS) else ():
        result = outcome(lambda _, it: call(it), None, large)
        if entry != "descent" or not np.isinf(result).any():  # a bound may well be infinite
            assert_finite_or_refused(result, f"{argument}|D")


BAD_COLUMNS = bad_versions(y) | {
    "None": None,
    "two columns": np.stack([y, y], axis=1),
    "a column in a column": y[:, None],
    "date objects": [date(2026, 1, 1)] * 4,
    "pandas categories": pd.Series(list("abca")).astype("category"),
}


def rows(**changes):
    """Columns of a table."""
    return {"t": ["a", "b", "a", "b"], "u": X[:, 0], "v": X[:, 1], "z": y} | changes


@pytest.mark.parametrize("column", ["v", "z"])
@over(GOOD_Y, BAD_COLUMNS)
def test_odd_columns(column, name):
    """A column of features, and that of the target."""
    odd = (GOOD_Y | BAD_COLUMNS)[name]
    result = outcome(
        lambda _, df: ltl.TaskSet.from_frame(df, "t", "z"), None, rows(**{column: odd})
    )
    if name in GOOD_Y:
        assert_taken(
            result, numbers(ltl.TaskSet.from_frame(rows(**{column: floats(odd)}), "t", "z"))
        )
    else:
        assert_refused(result, f"column '{column}'")


@over(BAD_COLUMNS)
def test_columns_of_tasks(name):
    """Anything can name a task that is the same as itself, and there once for each row."""
    result = outcome(
        lambda _, t: ltl.TaskSet.from_frame(rows(t=t), "t", "z"), None, BAD_COLUMNS[name]
    )
    assert_finite_or_refused(result, "column 't'")
    again = outcome(lambda _, t: ltl.TaskSet.from_groups(X, y, t), None, BAD_COLUMNS[name])
    assert_finite_or_refused(again, "groups")
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
def test_odd_cells_of_files(tmp_path, column, kind, name):
    odd = (CELLS | ONLY_PARQUET)[name]
    WRITERS[kind](pa.table(rows(**{column: odd})), tmp_path / "table")
    result = outcome(lambda _, path: read_tasks(path, "t", "z"), None, tmp_path / "table")
    if name in GOOD_CELLS or (name, kind) == ("numeric text", "CSV"):
        clean = rows(**{column: [float(cell) for cell in odd.to_pylist()]})
        assert_taken(result, numbers(ltl.TaskSet.from_frame(clean, "t", "z")))
    elif name in TEXT_CELLS and column == "v":  # a category
        assert sum(array.size for array in result) == 4 * (len(odd.unique()) + 2)
    else:
        assert_refused(result, f"column '{column}'|target")


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
    "swapped": ({"task": "z", "target": "t"}, "task and target may be swapped, for 'z' holds"),
}


@pytest.mark.parametrize(("change", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_arguments_of_read_tasks(tmp_path, change, message):
    csv.write_csv(pa.table(rows()), tmp_path / "table")
    arguments = {"path": tmp_path / "table", "task": "t", "target": "z"} | change
    with pytest.raises((TypeError, ValueError), match=message):
        read_tasks(**arguments)


GROUPED = pd.DataFrame(rows()).groupby("t")
HINTS = {
    "swapped": (
        lambda: ltl.TaskSet.from_frame(rows(), "z", "t"),
        "'t' must be numeric, got text such as 'a': task and target may be swapped, for 'z' holds",
    ),
    "swapped in pandas": (
        lambda: ltl.TaskSet.from_frame(pd.DataFrame(rows()), "u", "t", ["v"]),
        "'t' must be numeric, got text such as 'a': task and target may be swapped, for 'u' holds",
    ),
    "text as target, but not swapped": (
        lambda: ltl.TaskSet.from_frame(rows(z=list("abcd")), "t", "z"),
        "column 'z' must be numeric, got text such as 'a': encode it",
    ),
    "numeric text": (
        lambda: ltl.TaskSet.from_frame(rows(v=["1.5", "2", "3", "4"]), "t", "z"),
        r"column 'v' must be numeric, got text such as '1.5': make numbers of it with astype",
    ),
    "dates": (
        lambda: ltl.TaskSet.from_frame(rows(v=np.full(4, "2026-01-02", "M8[D]")), "t", "z"),
        r"column 'v' must be numeric, got datetime64\[D\], dates such as 2026-01-02: make numbers",
    ),
    "durations": (
        lambda: ltl.TaskSet.from_frame(rows(v=y.astype("m8[s]")), "t", "z"),
        r"column 'v' must be numeric, got timedelta64\[s\], durations such as 1 seconds",
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
    "groups of pandas": (
        lambda: ltl.TaskSet(GROUPED),
        "got DataFrameGroupBy; use TaskSet.from_frame for a table",
    ),
    "groups of polars": (
        lambda: ltl.TaskSet(pl.DataFrame(rows()).group_by("t")),
        "got GroupBy; use TaskSet.from_frame for a table",
    ),
    "a learner for D": (
        lambda: ltl.evaluate(ltl.OnlineLTL().fit(TASKS), *HALVES),
        "D must be an array of real numbers, got OnlineLTL: pass its D_",
    ),
    "a class for D": (
        lambda: ltl.RepresentationRidge(ltl.BatchLTL).fit(X, y),
        "D must be an array of real numbers, got BatchLTL: pass its D_",
    ),
    "arrays for TaskSets": (
        lambda: ltl.evaluate(D, X, y),
        "train must be a TaskSet, got ndarray",
    ),
    "labels, a number": (
        lambda: ltl.TaskSet(TASKS, labels=3),
        "labels must be a sequence, got int",
    ),
    "fractions, a number": (lambda: TASKS.split(0.5), "fractions must be a sequence"),
    "fractions, None": (lambda: TASKS.split(None), "fractions must be a sequence"),
    "fractions, NaN": (lambda: TASKS.split([0.5, np.nan]), "fractions must be a sequence"),
    "fractions, text": (lambda: TASKS.split(["0.5"]), "fractions must be an array of real numbers"),
    "fractions, too many": (lambda: TASKS.split([0.5, 0.6]), "fractions must be a sequence"),
    "random_state, text": (lambda: TASKS.split([0.5], "0"), "random_state must be None, an integer"),
    "random_state, negative": (
        lambda: make_environment(random_state=-1),
        "random_state must be None, an integer",
    ),
    "metric": (lambda: ltl.evaluate(D, *HALVES, metric="MSE"), "metric must be one of 'mse'"),
    "fit_intercept": (
        lambda: ltl.evaluate(D, *HALVES, fit_intercept=1),
        "fit_intercept must be True or False, got 1",
    ),
    "samples of one": (
        lambda: ltl.TaskSet([(X[:1], y[:1])]).split_samples(0.5),
        "split_samples needs at least 2 samples in every task, got 1 in task 0",
    ),
    "scores, overflow": (
        lambda: ltl.relative_improvement([1e308, 1e308], [1.0, 1.0]),
        "scores must not be so large that their mean overflows",
    ),
    "scores, next to the baseline": (
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
def test_what_to_do_is_said(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        call()
    assert "\n" not in str(error.value)


@over(GOOD_Y, BAD_Y, LARGE_Y)
@pytest.mark.parametrize("argument", ["scores", "baseline"])
def test_odd_scores(argument, name):
    odd = (GOOD_Y | BAD_Y | LARGE_Y)[name]

    def call(_, it):
        return ltl.relative_improvement(**({"scores": y + 1, "baseline": y} | {argument: it}))

    result = outcome(call, None, odd)
    if name in BAD_Y or (argument == "baseline" and "zeros" in name):
        assert_refused(result, "scores|baseline")
    elif name in LARGE_Y:
        assert_finite_or_refused(result, argument)
    else:
        assert_taken(result, outcome(call, None, floats(odd)))


UNFITTED = {
    "adapt": lambda it: it.adapt(X, y),
    "transform": lambda it: it.transform(X),
    "D_": lambda it: it.D_,
    "predict": lambda it: it.predict(X),
}


@pytest.mark.parametrize(
    "make", [ltl.OnlineLTL, path, ltl.BatchLTL, ltl.MTL, ltl.ITL, ltl.RepresentationRidge]
)
def test_nothing_comes_of_a_learner_before_it_has_learned(make):
    for name, call in UNFITTED.items():
        learner = make()
        if name in dir(type(learner)):
            before = pickle.dumps(learner)
            with pytest.raises(NotFittedError, match=type(learner).__name__):
                call(learner)
            assert pickle.dumps(learner) == before
