"""TaskSet: construction, indexing, splits and errors."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fastltl as ltl


@pytest.fixture
def ts():
    rng = np.random.default_rng(0)
    return ltl.TaskSet([(rng.normal(size=(n, 3)), rng.normal(size=n)) for n in (4, 1, 7, 2, 5)])


def same(one, other):
    return len(one) == len(other) and all(
        np.array_equal(X, Z) and np.array_equal(y, z)
        for (X, y), (Z, z) in zip(one, other, strict=True)
    )


def test_sequence_of_tasks(ts):
    assert len(ts) == 5
    assert ts.n_features == 3
    assert ts.sizes.tolist() == [4, 1, 7, 2, 5]
    assert ts.labels.tolist() == [0, 1, 2, 3, 4]
    assert repr(ts) == "TaskSet(5 tasks, 3 features, 19 samples)"
    X, y = ts[2]
    assert X.shape == (7, 3)
    assert y.shape == (7,)
    assert [len(y) for _, y in ts] == [4, 1, 7, 2, 5]
    assert same([ts[-1]], [ts[4]])
    assert same([ts[np.int64(1)]], [ts[1]])
    assert same([ts[np.array(1)]], [ts[1]])
    for invalid in (None, np.array([[0, 1]]), 1.5, "0"):
        with pytest.raises(IndexError):
            ts[invalid]
    for outside in (5, -6):
        with pytest.raises(IndexError):
            ts[outside]


def test_tasks_are_float64_copies_of_the_input():
    X, y = np.arange(6, dtype=np.int8).reshape(3, 2, order="F"), [1, 2, 3]
    ts = ltl.TaskSet([(X, y)])
    X_before = X.copy()
    X[:] = 9
    assert np.array_equal(ts[0][0], X_before)
    assert ts[0][0].dtype == ts[0][1].dtype == np.float64


def test_subsets(ts):
    for which, indices in [
        (slice(2, 5), [2, 3, 4]),
        (slice(None), [0, 1, 2, 3, 4]),
        (slice(3, 1), []),
        (slice(9, 12), []),
        (slice(-2, None), [3, 4]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(None, None, -1), [4, 3, 2, 1, 0]),
        ([3, 1], [3, 1]),
        ([1, 1], [1, 1]),
        (np.array([True, False, True, False, False]), [0, 2]),
        (np.array([-1]), [4]),
    ]:
        part = ts[which]
        assert isinstance(part, ltl.TaskSet)
        assert part.labels.tolist() == indices
        assert part.sizes.tolist() == [len(ts[i][1]) for i in indices]
        assert same(part, [ts[i] for i in indices])
        assert part.n_features == 3


def test_tasks_and_slices_are_views(ts):
    assert np.shares_memory(ts[2][0], ts[2][0])
    assert np.shares_memory(ts[1:4][1][0], ts[2][0])
    assert np.shares_memory(ts[1:4][1:][0][1], ts[2][1])
    assert not np.shares_memory(ts[[2]][0][0], ts[2][0])


def test_arrays_and_attributes_are_read_only(ts):
    X, y = ts[0]
    for array in (X, y, ts.labels, ts[1:][0][0], ts[[2, 0]][0][1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for name in ("n_features", "sizes", "labels", "anything"):
        with pytest.raises(AttributeError):
            setattr(ts, name, 1)
    again = pickle.loads(pickle.dumps(ts))
    assert same(ts, again)
    with pytest.raises(ValueError, match="read-only"):
        again[0][0][0] = 1


def test_labels():
    tasks = [(np.ones((1, 1)), np.ones(1))] * 3
    assert ltl.TaskSet(tasks, labels=["x", ("y", 1), None]).labels.tolist() == ["x", ("y", 1), None]
    assert ltl.TaskSet(tasks, labels=[(1, 2), (3, 4), (5, 6)]).labels.tolist() == [
        (1, 2),
        (3, 4),
        (5, 6),
    ]
    with pytest.raises(
        ValueError, match="labels must have one entry for each of the 3 tasks, got 2"
    ):
        ltl.TaskSet(tasks, labels=["x", "y"])


def test_from_groups_accepts_rows_in_any_order():
    X = np.arange(10.0).reshape(5, 2)
    ts = ltl.TaskSet.from_groups(X, np.arange(5), ["b", "a", "b", "c", "a"])
    assert ts.labels.tolist() == ["b", "a", "c"]
    assert np.array_equal(ts[0][0], X[[0, 2]])
    assert np.array_equal(ts[1][1], [1, 4])
    assert ltl.TaskSet.from_groups(X, np.arange(5), np.array([3, 3, 1, 1, 2])).labels.tolist() == [
        3,
        1,
        2,
    ]
    assert ltl.TaskSet.from_groups(X, np.arange(5), [1, "1", 1, "b", 2]).labels.tolist() == [
        1,
        "1",
        "b",
        2,
    ]
    numbers = np.array([np.int64(7), "a", np.int64(7), np.float64(2), "a"], dtype=object)
    assert ltl.TaskSet.from_groups(X, np.arange(5), numbers).labels.tolist() == [7, "a", 2.0]
    mixed = np.array(["a", 1, "a", (2, 3), 1], dtype=object)
    assert ltl.TaskSet.from_groups(X, np.arange(5), mixed).labels.tolist() == ["a", 1, (2, 3)]


def test_from_groups_keeps_the_order_of_the_rows():
    groups = np.random.default_rng(0).integers(3, size=500)
    for X, y in ltl.TaskSet.from_groups(np.arange(500.0)[:, None], np.arange(500), groups):
        assert (np.diff(y) > 0).all()
        assert np.array_equal(X[:, 0], y)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1, 2], r"groups must have one entry for each of the 3 rows, got shape \(2,\)"),
        ([1.0, np.nan, 2.0], "groups must name a task for every row, got nan at row 1"),
        (np.array(["a", "b", None], dtype=object), "got None at row 2"),
        (np.array([[1], [2], [3]]), "groups must have one entry"),
        (np.ma.masked_equal([1, 2, 3], 2), "groups must name a task for every row, got masked"),
    ],
)
def test_errors_name_the_groups(groups, message):
    with pytest.raises(ValueError, match=message):
        ltl.TaskSet.from_groups(np.ones((3, 1)), np.ones(3), groups)


TABLE = {
    "school": ["A", "B", "A", "B"],
    "score": [1.0, 2.0, 3.0, 4.0],
    "age": [7, 8, 9, 10],
    "boy": [True, False, False, True],
}


class InterchangeOnly:
    """A table that supports only the `__dataframe__` protocol."""

    def __init__(self, table):
        self._table = pa.table(table)

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self._table.__dataframe__(nan_as_null, allow_copy)


@pytest.mark.parametrize("frame", [dict, pd.DataFrame, pl.DataFrame, pa.table, InterchangeOnly])
def test_from_frame(frame):
    df = frame(TABLE)
    ts = ltl.TaskSet.from_frame(df, task="school", target="score")
    assert ts.labels.tolist() == ["A", "B"]
    assert np.array_equal(ts[0][0], [[7, 1], [9, 0]])
    assert np.array_equal(ts[1][1], [2, 4])
    assert ltl.TaskSet.from_frame(df, "school", "score", features=["boy"]).n_features == 1


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            {},
            {"task": "college"},
            r"task must name a column of df \(school, score, age, boy\), got 'college'",
        ),
        ({}, {"target": "mark"}, "target must name a column"),
        ({}, {"features": ["age", "iq"]}, "features must name a column of df .* got 'iq'"),
        (
            {},
            {"features": []},
            "features must name a column of df besides task and target, got none",
        ),
        ({"age": ["7", "x", "9", "10"]}, {}, "'age' must hold numbers, got 'x' in row 2 .row 1"),
        (
            {"age": [7, np.nan, 9, 10]},
            {},
            "column 'age' must have no missing values, got 1 in row 2 .row 1 follows the header",
        ),
        (
            {"score": [1, 2, np.inf, 4]},
            {},
            "column 'score' must hold finite numbers only, got inf at index 2",
        ),
        ({"school": ["A", None, "A", "B"]}, {}, "column 'school' must name a task for every row"),
        (
            {"school": pd.array(["A", pd.NA, "A", "B"], dtype="string")},
            {},
            "column 'school' must name",
        ),
        (
            {"age": pd.to_datetime(["2020-01-01"] * 4)},
            {},
            "column 'age' must hold numbers or text, got dates, times or durations .datetime64",
        ),
        ({"age": ["7", "8", "9", "10"]}, {}, "column 'age' must hold numbers, got text such as"),
        ({}, {"features": "age"}, "features must be a sequence of names, got the string 'age'"),
        ({}, {"target": "school"}, "task, target and features must differ, got 'school' twice"),
        (
            {},
            {"features": ["age", "score"]},
            "task, target and features must differ, got 'score' twice",
        ),
    ],
)
def test_errors_name_the_column(change, arguments, message):
    df = pd.DataFrame(TABLE | change)
    with pytest.raises(ValueError, match=message):
        ltl.TaskSet.from_frame(df, **({"task": "school", "target": "score"} | arguments))


def test_repeated_and_short_columns_raise():
    df = pd.DataFrame(TABLE).set_axis(["school", "score", "age", "age"], axis=1)
    with pytest.raises(ValueError, match="features 'age' names several columns"):
        ltl.TaskSet.from_frame(df, task="school", target="score")
    with pytest.raises(ValueError, match="column 'age' must have 4 rows, got 1"):
        ltl.TaskSet.from_frame(TABLE | {"age": [1]}, task="school", target="score")


def test_from_frame_requires_named_columns():
    with pytest.raises(TypeError, match="df must be a data frame with named columns, got list"):
        ltl.TaskSet.from_frame([1, 2], task="a", target="b")


def test_split(ts):
    for seed in range(20):
        parts = ts.split((0.2, 0.4, 0.4), random_state=seed)
        assert [len(part) for part in parts] == [1, 2, 2]
        labels = [label for part in parts for label in part.labels]
        assert sorted(labels) == [0, 1, 2, 3, 4]
        for part in parts:
            assert same(part, [ts[i] for i in part.labels])
    assert [p.labels.tolist() for p in ts.split((0.4, 0.6), 3)] == [
        p.labels.tolist() for p in ts.split((0.4, 0.6), 3)
    ]
    assert len({tuple(ts.split((0.4, 0.6), seed)[0].labels) for seed in range(20)}) > 5
    assert [len(part) for part in ts.split((0.2, 0.2))] == [1, 1]
    ten = ltl.TaskSet([ts[0]] * 10)
    assert [len(part) for part in ten.split((0.1, 0.2, 0.7))] == [1, 2, 7]
    assert [len(part) for part in ten.split([1 / 3, 1 / 3, 1 / 3])] == [3, 4, 3]


def test_split_samples():
    rng = np.random.default_rng(0)
    ts = ltl.TaskSet([(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (2, 3, 10, 7)], "abcd")
    train, test = ts.split_samples(0.5, random_state=0)
    assert train.labels.tolist() == test.labels.tolist() == ["a", "b", "c", "d"]
    assert train.sizes.tolist() == [1, 2, 5, 4]
    assert test.sizes.tolist() == [1, 1, 5, 3]
    for (X, _), (X_train, _), (X_test, _) in zip(ts, train, test, strict=True):
        rows = np.vstack([X_train, X_test])
        assert np.array_equal(np.sort(rows, axis=0), np.sort(X, axis=0))
    assert same(train, ts.split_samples(0.5, random_state=0)[0])
    assert not same(train, ts.split_samples(0.5, random_state=1)[0])
    train, test = ts.split_samples(0.99, random_state=0)
    assert test.sizes.tolist() == [1, 1, 1, 1]
    train, test = ts.split_samples(0.01, random_state=0)
    assert train.sizes.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.6), (0.5, -0.1), (0.0, 1.0), (np.nan,), (0.01, 0.99), 0.5, ()]
)
def test_split_checks_the_fractions(ts, fractions):
    with pytest.raises(ValueError, match="fractions must"):
        ts.split(fractions)


def test_split_samples_checks_its_arguments(ts):
    with pytest.raises(ValueError, match="at least 2 samples in every task, got 1 in task 1"):
        ts.split_samples(0.5)
    for fraction in (0, 1, -0.5, np.nan, "half"):
        with pytest.raises(ValueError, match="fraction must be"):
            ts[[0, 2]].split_samples(fraction)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "tasks must hold at least one task"),
        (
            [(np.ones((2, 2)), np.ones(2)), (np.ones((2, 3)), np.ones(2))],
            "task 1: X has 3 features, but the first task is expecting 2",
        ),
        ([(np.ones((2, 2)), np.ones(3))], "task 0: y must have one value for each of the 2 rows"),
        (
            [(np.full((2, 2), np.nan), np.ones(2))],
            "task 0: X must hold finite numbers only, got NaN",
        ),
        ([(np.empty((0, 2)), np.empty(0))], "task 0: X has 0 sample"),
        ([(np.empty((2, 0)), np.ones(2))], "task 0: X has 0 feature"),
        ([np.ones(3)], r"task 0 must be a pair \(X, y\), got ndarray"),
        ([5], r"task 0 must be a pair \(X, y\), got int"),
    ],
)
def test_errors_name_the_task(tasks, message):
    with pytest.raises(ValueError, match=message):
        ltl.TaskSet(tasks)
