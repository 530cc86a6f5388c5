"""Streams read tasks one at a time from CSV, Parquet and .npz files."""

import datetime
import decimal
import io
import json
import os
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from naive import ragged_tasks
from pyarrow import csv, parquet

import fastltl as ltl
from fastltl.io import sources, streams, tables
from fastltl.io.tables import CSVRows

TASKS = ragged_tasks(0, 30, 3, (1, 40))
NAMES = ("a", "b", "c")


def table_of(tasks, labels=None):
    labels = labels or [f"task {i}" for i in range(len(tasks))]
    X, y = (np.concatenate(arrays) for arrays in zip(*tasks, strict=True))
    columns = {name: X[:, j] for j, name in enumerate(NAMES)}
    names = np.repeat(labels, [len(target) for _, target in tasks])
    return pyarrow.table({"task": names, **columns, "target": y})


def write_csv(table, path):
    csv.write_csv(table, path)


def write_parquet(table, path):
    parquet.write_table(table, path, row_group_size=7)


def write_folder(table, path):
    """Write files of five rows each, so that tasks span several files."""
    path.mkdir()
    for i in range(0, len(table), 5):
        part = table.slice(i, 5)
        arrays = {name: part[name].to_numpy() for name in part.column_names}
        np.savez(path / f"{i:05}.npz", **arrays | {"task": arrays["task"].astype(str)})


WRITERS = {"csv": write_csv, "parquet": write_parquet, "folder": write_folder}


@pytest.fixture(params=WRITERS)
def written(request, tmp_path):
    """Return a function that writes a table and opens it as a stream."""

    def write(table, **options):
        path = tmp_path / "stream"
        WRITERS[request.param](table, path)
        return ltl.open_stream(path, **{"task": "task", "target": "target"} | options)

    return write


@pytest.mark.parametrize("block", [1, 300, tables.BLOCK_BYTES])
def test_tasks_are_read_whole_and_in_order(written, monkeypatch, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    stream = written(table_of(TASKS))
    assert stream.feature_names == NAMES
    assert stream.n_features == 3
    for _ in range(2):  # a stream can be read again
        found = list(stream.tasks())
        assert [task.label for task in found] == [f"task {i}" for i in range(30)]
        assert [task.rows[0] for task in found] == [
            1,
            *np.cumsum([len(y) for _, y in TASKS])[:-1] + 1,
        ]
        for (X, y), task in zip(TASKS, found, strict=True):
            assert np.array_equal(task.X, X)
            assert np.array_equal(task.y, y)
            assert task.X.flags.carray
            assert task.X.base is None


def test_learners_fit_streams(written):
    stream = written(table_of(TASKS), features=["c", "a"])
    learner = ltl.OnlineLTL(lam=0.1).fit(stream)
    tasks = [(X[:, [2, 0]].copy(), y) for X, y in TASKS]
    assert np.array_equal(learner.D_, ltl.OnlineLTL(lam=0.1).fit(tasks).D_)
    assert list(learner.feature_names_in_) == ["c", "a"]
    learner.partial_fit(*tasks[0])  # arrays have no names to compare
    assert np.array_equal(ltl.ITL().fit(stream).coef_, ltl.ITL().fit(tasks).coef_)


def test_no_task_ends_where_a_label_is_missing(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("task,a,y\ns,1,2\nt,3,4\n,5,6\nt,7,8\n")
    tasks = ltl.open_stream(path, "task", "y").tasks()
    with pytest.raises(ValueError, match=r"no label in row 3: fill it in, or remove the row\.$"):
        next(tasks)


@pytest.mark.parametrize("written", ["csv", "parquet"], indirect=True)
def test_rows_of_a_task_may_be_apart_in_a_small_table(written):
    tasks = TASKS[:4]
    adjacent = table_of(tasks, [*"abcd"])
    order = np.random.default_rng(0).permutation(adjacent.num_rows)
    order = np.concatenate([[0], order[order > 0]])  # so that the first task stays the first
    expected = ltl.TaskSet.from_frame(adjacent.take(order), "task", "target")
    stream = written(adjacent.take(order))
    found = list(stream.tasks())
    assert [task.label for task in found] == list(expected.labels)
    for task, (X, y) in zip(found, expected, strict=True):
        assert np.array_equal(task.X, X)
        assert np.array_equal(task.y, y)
        assert np.array_equal(adjacent.take(order)["target"].to_numpy()[task.rows - 1], y)


def whole_tasks(stream):
    """Return the labels of the tasks before a half written line, and of the one held back."""
    returned = []

    def read():
        returned.append((yield from stream.blocks(hold_back=True)))

    labels = [label for block in read() for label in block.labels]
    return labels, *returned


def test_half_written_line_of_a_table_whose_rows_are_apart(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("task,a,y\nu,1,2\nv,3,4\nu,5,6\nw,7,8\nv,9,1")
    stream = ltl.open_stream(path, "task", "y")
    assert [(task.label, task.y.tolist()) for task in stream.tasks()] == [
        ("u", [2, 6]),
        ("v", [4, 1]),
        ("w", [8]),
    ]
    assert whole_tasks(stream) == (["u", "v"], "w")  # w is the last before the cut line


REPEATED = r"task 'a' must be adjacent, got the label again in row {} of .*repeats='task'"


@pytest.mark.parametrize("written", ["csv", "parquet"], indirect=True)
def test_repeated_label_at_the_start_of_a_large_file_is_an_error_on_opening(written, monkeypatch):
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    row = 1 + sum(len(y) for _, y in TASKS[:3])
    with pytest.raises(ValueError, match=REPEATED.format(row)):
        written(table_of(TASKS[:4], [*"abca"]))
    assert [task.label for task in written(table_of(TASKS[:4], [*"abcd"])).tasks()] == [*"abcd"]


def test_repeated_label_is_an_error_when_it_is_read(written, monkeypatch):
    """It comes after the blocks that are looked at on opening."""
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    monkeypatch.setattr(sources, "SAMPLE_BLOCKS", 1)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 300)
    tasks = written(table_of(TASKS[:4], [*"abca"])).tasks()
    assert [next(tasks).label for _ in "abc"] == [*"abc"]
    with pytest.raises(ValueError, match=REPEATED.format(r"\d+")):
        next(tasks)


@pytest.mark.parametrize("kind", WRITERS)
def test_repeated_label_can_start_a_new_task(tmp_path, kind):
    WRITERS[kind](table_of(TASKS[:4], [*"abca"]), tmp_path / "stream")
    stream = ltl.open_stream(tmp_path / "stream", "task", "target", repeats="task")
    assert [task.label for task in stream.tasks()] == [*"abca"]


def test_digest_set_uses_few_bytes_per_label():
    labels = streams._DigestSet()
    names = [f"task {i}" for i in range(20000)]
    assert [labels.add(names[i : i + 700]) for i in range(0, 20000, 700)] == [*[700] * 28, 400]
    assert [labels.add([name, "new"]) for name in names] == [0] * 20000
    assert labels._sorted.nbytes + 100 * len(labels._recent) < 50 * 20000
    assert labels.add([20000, "20000", "new", "task 7", "newer"]) == 3
    assert labels.add(["newer", "newer"]) == 1


def test_digest_set_agrees_with_a_set():
    """Labels repeat within a block, soon after, and once thousands have come since."""
    rng = np.random.default_rng(0)
    labels, seen = streams._DigestSet(), set()
    assert labels.add([]) == 0
    for _ in range(2000):
        block = rng.integers(100_000, size=rng.integers(1, 30)).tolist()
        n_new = 0
        for label in block:
            if label in seen:
                break
            seen.add(label)
            n_new += 1
        assert labels.add(block) == n_new
    assert len(seen) > 12_000
    assert all(labels.add([label]) == 0 for label in seen)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_number_is_reported_when_its_task_is_read(written, value):
    tasks = [(X.copy(), y.copy()) for X, y in TASKS]
    tasks[20][0][-1, 1] = value
    row = sum(len(y) for _, y in tasks[:21])
    stream = written(table_of(tasks))
    found = iter(stream)
    for _ in range(20):
        next(found)
    got = "no number" if np.isnan(value) else "inf"
    message = f"task 'task 20': column 'b' must hold finite numbers, got {got} in row {row} of "
    with pytest.raises(ValueError, match=message):
        next(found)


def test_csv_types_do_not_depend_on_the_first_rows(tmp_path, monkeypatch):
    """Neither the numbers nor the labels of a CSV file change type between blocks."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 64)
    path = tmp_path / "table.csv"
    lines = [f"{i // 10},{i * i},1" for i in range(1000)]
    path.write_text("\n".join(["task,a,y", *lines, "x, 1.5 ,2", "y,,3", "z,oops,4", ""]))
    *whole, x, y, z = ltl.open_stream(path, task="task", target="y").tasks()
    assert len(whole) == 100
    assert whole[7].label == "7"
    assert x.X[0, 0] == 1.5
    assert np.isnan([y.X[0, 0], z.X[0, 0]]).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pyarrow.array([1, 2, None], "int8"), [1, 2, np.nan]),
        (pyarrow.array([True, False, None]), [1, 0, np.nan]),
        (pyarrow.array([decimal.Decimal("1.5"), None, None]), [1.5, np.nan, np.nan]),
        (pyarrow.array([2**63, 1, 0], "uint64"), [2.0**63, 1, 0]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_numbers_of_any_type(tmp_path, values, expected):
    path = tmp_path / "table.parquet"
    table = {"task": ["t"] * 3, "a": values, "y": [1.0] * 3}
    parquet.write_table(pyarrow.table(table), path)
    (task,) = ltl.open_stream(path, task="task", target="y").tasks()
    assert np.array_equal(task.X[:, 0], expected, equal_nan=True)


@pytest.mark.parametrize(
    "labels",
    [
        pyarrow.array([1, 1, 2]),
        pyarrow.array(["x", "x", "y"]).dictionary_encode(),
        pyarrow.array([datetime.date(2020, 1, 1)] * 2 + [datetime.date(2020, 1, 2)]),
    ],
    ids=lambda labels: str(labels.type),
)
def test_labels_of_any_type(tmp_path, labels):
    path = tmp_path / "table.parquet"
    table = {"task": labels, "a": [1.0] * 3, "y": [1.0] * 3}
    parquet.write_table(pyarrow.table(table), path)
    found = [task.label for task in ltl.open_stream(path, task="task", target="y").tasks()]
    assert found == [labels[0].as_py(), labels[2].as_py()]


def test_folder_with_one_task_per_file(tmp_path):
    for name, (X, y) in zip("ba", TASKS[:2], strict=True):
        np.savez(tmp_path / f"{name}.npz", X=X, y=y, age=np.arange(len(y)))
    stream = ltl.open_stream(tmp_path)
    assert stream.feature_names == ("X0", "X1", "X2", "age")
    assert [task.label for task in stream.tasks()] == ["a", "b"]
    X, y = next(iter(stream))
    assert np.array_equal(X[:, :3], TASKS[1][0])
    assert np.array_equal(X[:, 3], np.arange(len(y)))


@pytest.mark.parametrize("n_rows", [1, 3, 7, 1000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_file_of_a_folder_is_read_in_blocks(tmp_path, monkeypatch, n_rows, order):
    """Tasks whose rows are in several batches are whole; their rows go on from file to file."""
    monkeypatch.setattr(sources, "BLOCK_NUMBERS", 4 * n_rows)
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    labels = np.repeat(np.arange(30), [len(y) for _, y in TASKS])
    for name, part in (("a", slice(0, 300)), ("b", slice(300, None))):
        arrays = {"X": np.asarray(X[part], order=order), "y": y[part], "task": labels[part]}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    blocks = list(ltl.open_stream(tmp_path, "task").blocks())
    assert [label for block in blocks for label in block.labels] == [*range(30)]
    assert np.concatenate([block.rows for block in blocks]).tolist() == [*range(1, len(y) + 1)]
    assert (len(blocks) > 3) == (n_rows < 1000)
    longest = max(len(y) for _, y in TASKS)
    assert max(len(block.y) for block in blocks) <= longest + n_rows
    found = [block.part(i, i + 1) for block in blocks for i in range(len(block))]
    for one, (X, y) in zip(found, TASKS, strict=True):
        assert one.X.flags.c_contiguous
        assert np.array_equal(one.X, X)
        assert np.array_equal(one.y, y)


CSV = "task,a,y\nt,1,2\n"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (CSV, {"task": None}, "task must name a column of .*, got None"),
        (CSV, {"task": "tsk"}, "task must name a column of .*, got 'tsk'; did you mean 'task'"),
        (CSV, {"target": "z"}, "target must name a column of .*, got 'z'"),
        (CSV, {"features": ["b"]}, "features must name a column of .*, got 'b'"),
        (CSV, {"features": "a"}, "features must be a sequence of names, got the string 'a'"),
        (CSV, {"features": ["y"]}, "must differ, got 'y' twice"),
        (CSV, {"repeats": "ignore"}, "repeats must be one of 'error', 'task', got 'ignore'"),
        ("task,y\nt,2\n", {}, "features must name a column of .* besides task and target"),
        ("task,a,a,y\nt,1,1,2\n", {}, "features 'a' names several columns of"),
        ("", {}, "is empty, expected a CSV or Parquet table"),
        (b"\x1f\x8b123", {}, "must be CSV or Parquet, got gzip"),
        (b"PAR1 and no more", {}, "cannot be read as a Parquet table"),
    ],
)
def test_errors_raised_on_opening(tmp_path, content, options, message):
    path = tmp_path / "table"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        ltl.open_stream(path, **{"task": "task", "target": "y"} | options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("task,a,y\n", "has no rows"),
        ("task,a,y\nt,1,2\n,1,2\n", "every row of .* must name its task, got no label in row 2"),
        ("task,a,y\nt,1,2\nt,1\n", "cannot be read as a CSV table: .*Expected 3 columns, got 2"),
        (b"task,a,y\nt,1,2\n\xff,1,2\n", "cannot be read as a CSV table: .*UTF8"),
    ],
)
def test_errors_raised_while_reading(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        list(ltl.open_stream(path, task="task", target="y"))


def test_non_numeric_columns_are_reported(tmp_path):
    path = tmp_path / "table.parquet"
    table = {"task": ["t"], "a": [datetime.date(2020, 1, 1)], "y": [1.0], "l": [[1]]}
    parquet.write_table(pyarrow.table(table), path)
    with pytest.raises(ValueError, match=r"column 'a' must hold numbers or text, got dates, times"):
        list(ltl.open_stream(path, task="task", target="y", features=["a"]))
    with pytest.raises(ValueError, match=r"column 'l' must hold numbers or text, got list"):
        list(ltl.open_stream(path, task="task", target="y", features=["l"]))
    with pytest.raises(ValueError, match="cannot be read as a Parquet table"):
        list(ltl.open_stream(path, task="l", target="y", features=["a"]))


GOOD = {"X": np.ones((2, 2)), "y": np.ones(2), "t": np.array(["a", "a"])}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"X": np.ones((2, 3))}, r"2.npz must hold the 2 features of 1.npz, got 3"),
        (
            {"X": np.ones((3, 2))},
            r"2.npz must hold a vector of targets, .* the shapes \(2,\), \(3, 2\)",
        ),
        (
            {"y": np.ones((2, 1))},
            r"2.npz must hold a vector of targets, .* the shapes \(2, 1\), \(2, 2\)",
        ),
        (
            {"X": np.ones((0, 2)), "y": np.ones(0)},
            r"2.npz must hold a vector of targets, and features with a row",
        ),
        ({"y": np.array(["a", "b"])}, "2.npz: array 'y' must hold numbers in .*, got <U1"),
        ({"X": np.ones((1, 2, 2))}, r"array 'X' must hold numbers in .*of shape \(1, 2, 2\)"),
        ({"X": np.array([[1], [None]])}, "2.npz cannot be read as .npz .*never unpickled"),
        ({"t": np.array("a")}, r"array 't' must hold 2 labels, got shape \(\)"),
    ],
)
def test_inconsistent_file_in_a_folder_is_reported(tmp_path, second, message):
    np.savez(tmp_path / "1.npz", **GOOD)
    np.savez(tmp_path / "2.npz", **GOOD | second)
    with pytest.raises(ValueError, match=message):
        list(ltl.open_stream(tmp_path, task="t"))


def test_csv_with_quoted_newlines_and_the_label_NA(tmp_path, monkeypatch):
    """NA is a label (Namibia), not a missing value."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 256)
    path = tmp_path / "table.csv"
    rows = [f'"NA",{i},"two\nlines",{i}' for i in range(200)]
    path.write_text("\n".join(["task,a,note,y", *rows, "NA ,1_000,x,1"]))
    stream = ltl.open_stream(path, task="task", target="y", features=["a"])
    first, second = stream.tasks()
    assert (first.label, len(first.y)) == ("NA", 200)
    assert np.isnan(second.X).all()


@pytest.mark.parametrize(
    ("content", "rows", "held_back"),
    [
        ("t,1,2\nu,3,4\n", ["t", "u"], None),
        ("t,1,2\nu,3,4", ["t", "u"], "t"),
        ("t,1,2\nu,3,4\nu,5,6", ["t", "u"], "u"),
        ("t,1,2\r\nu,3,4\r", ["t", "u"], None),
        ('t,1,2\nu,3,4\n"v\n",5,6', ["t", "u", "v\n"], "u"),
        ('t,1,2\nu,3,4\nv,5,"6\n', ["t", "u", "v"], "u"),  # ends within quotes
        ("t,1,2\nu,3,4\nt", None, "u"),  # neither repeats t nor lacks columns
    ],
)
@pytest.mark.parametrize("block", [1, tables.BLOCK_BYTES])
def test_last_line_without_newline(tmp_path, monkeypatch, block, content, rows, held_back):
    """It is a row, unless the caller holds it back with the task that it may belong to."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    path = tmp_path / "table.csv"
    path.write_bytes(b"task,a,y\n" + content.encode())
    stream = ltl.open_stream(path, task="task", target="y")
    if rows is not None:
        assert [task.label for task in stream.tasks()] == rows
    assert whole_tasks(stream) == (["t", "u"][: ["t", "u", None].index(held_back)], held_back)


def naive_ends(content):
    """Return the ends of the rows, as pyarrow finds them: quotes count at the start of a field."""
    ends, state, i = [], "start", 0
    while i < len(content):
        byte = content[i : i + 1]
        if state == "quoted":
            if byte == b'"' and content[i + 1 : i + 2] == b'"':
                i += 1
            elif byte == b'"':
                state = "field"
        elif state == "start" and byte == b'"':
            state = "quoted"
        else:
            state = "start" if byte in b",\r\n" else "field"
            if byte in b"\r\n":
                ends.append(i + 1)
        i += 1
    return ends


@given(st.text('ab,""\r\n', max_size=60), st.integers(2, 30))
@settings(max_examples=1000)
def test_blocks_of_a_csv_file_end_where_rows_do(text, size):
    content = b"x,y\n" + text.encode()
    ends, cut = naive_ends(content), []
    longest = max(np.diff([0, *ends, len(content)]))
    rows = CSVRows(io.BytesIO(content), max(size, int(longest)), ",")
    blocks = list(rows.blocks(cut))
    assert rows.header == b"x,y\n"
    assert b"x,y" + b"".join([*blocks, *cut]) == content
    assert set(3 + np.cumsum([len(block) for block in blocks])) <= set(ends)
    assert sum(map(len, cut)) == len(content) - ends[-1]


@pytest.mark.parametrize("block", [1, 300, tables.BLOCK_BYTES])
def test_row_of_a_parse_error_is_that_of_the_file(tmp_path, monkeypatch, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    path = tmp_path / "table.csv"
    path.write_text("task,a,y\n" + "t,1,2\n" * 999 + "t,1\nt,1,2\n")
    message = r"cannot be read as a CSV table: .*Row #1000: Expected 3 columns, got 2: t,1\."
    with pytest.raises(ValueError, match=message):
        list(ltl.open_stream(path, task="task", target="y").tasks())


@pytest.mark.parametrize("block", [1, 50, tables.BLOCK_BYTES])
def test_quotes_within_fields_and_a_byte_order_mark(tmp_path, monkeypatch, block):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block)
    path = tmp_path / "table.csv"
    rows = "".join(f'{i // 2},5" pipe,"a ""b"" \n,c",{i},1\r\n' for i in range(200))
    path.write_bytes(b"\xef\xbb\xbf" + ('"task,",note,"more\n",y,a\r\n' + rows).encode())
    stream = ltl.open_stream(path, task="task,", target="y", features=["a"])
    assert [task.label for task in stream.tasks()] == [str(i) for i in range(100)]


def test_open_quote_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text('task,a,y\nt,1,2\nt,"1,2\n' + "t,1,2\n" * 1000)
    with pytest.raises(ValueError, match="a row has over 1024 bytes: is a quote"):
        list(ltl.open_stream(path, task="task", target="y").tasks())


def test_lack_of_memory_is_not_blamed_on_the_file(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    stream = ltl.open_stream(path, task="task", target="y")
    monkeypatch.setattr(tables, "SPARE_BYTES", 2**60)
    with pytest.raises(MemoryError, match="out of memory: reading needs"):
        list(stream)
    with pytest.raises(MemoryError, match="out of memory: reading needs"):
        ltl.open_stream(path, task="task", target="y")


def test_missing_targets_differ_from_malformed_ones(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("task,a,y\nt,1,\nt,1,NA\nt,1,oops\nt,1,3\n")
    (task,) = ltl.open_stream(path, task="task", target="y").tasks()
    assert task.missing.tolist() == [True, True, False, False]
    assert np.isnan(task.y).tolist() == [True, True, True, False]


def test_streams_can_be_pickled_and_read_into_a_task_set(written):
    stream = pickle.loads(pickle.dumps(written(table_of(TASKS))))
    tasks = stream.collection()
    assert tasks.feature_names == NAMES
    assert list(tasks.labels) == [f"task {i}" for i in range(30)]
    assert all(np.array_equal(X, W) for (X, _), (W, _) in zip(tasks, TASKS, strict=True))
    model = ltl.MTL().fit(stream)
    assert list(model.feature_names_in_) == [*NAMES]
    assert model.predict(TASKS[3][0], ["task 3"] * len(TASKS[3][1])).shape == TASKS[3][1].shape


def test_duplicate_feature_names_are_an_error(tmp_path):
    np.savez(tmp_path / "1.npz", X=np.ones((2, 2)), X0=np.ones(2), y=np.ones(2))
    with pytest.raises(ValueError, match="must have distinct feature names, got X0, X1, X0"):
        ltl.open_stream(tmp_path)


@pytest.mark.parametrize("path", [None, 5, b"table.csv"])
def test_invalid_paths(path):
    for call in (partial(ltl.open_stream, task="t"), ltl.load, ltl.OnlineLTL().save):
        with pytest.raises(TypeError, match="path must name a file, got"):
            call(path)
        with pytest.raises(ValueError, match="path must name a file, got ''"):
            call("")


def test_invalid_folders(tmp_path):
    with pytest.raises(ValueError, match=r"must hold .npz files, got none"):
        ltl.open_stream(tmp_path, task="task")
    (tmp_path / "1.npz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"1.npz cannot be read as .npz"):
        ltl.open_stream(tmp_path, task="task")
    np.savez(tmp_path / "1.npz", **GOOD)
    np.savez(tmp_path / "2.npz", X=GOOD["X"], y=GOOD["y"])
    with pytest.raises(ValueError, match=r"2.npz must hold an array 't', got X, y"):
        list(ltl.open_stream(tmp_path, task="t"))
    with pytest.raises(FileNotFoundError, match="No such file or folder"):
        ltl.open_stream(tmp_path / "none", task="t")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe with a name")
def test_a_stream_is_not_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"path must be a file or a folder of .npz files, got"):
        ltl.open_stream(tmp_path / "pipe", task="t")


def test_error_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    with pytest.raises(ImportError, match=r"pip install 'fastltl\[parquet\]'"):
        ltl.open_stream(path, task="task", target="y")


#: Prints kilobytes from /proc, since getrusage also counts the process that started this one.
MEMORY = """
import re, sys
import fastltl as ltl
def peak():
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s*(\\d+)", file.read())[1])
stream = ltl.open_stream(sys.argv[1], task="task", target="y")
tasks = iter(stream)
next(tasks)
before = peak()
n = 1 + sum(1 for _ in tasks)
print(n, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    """Read a file of about 50 MB, in one row group, within 25 MB."""
    random, path = np.random.default_rng(0), tmp_path / "table"
    numbers = {f"x{j}": random.standard_normal(500_000).astype(np.float32) for j in range(12)}
    table = pyarrow.table({"task": np.arange(500_000) // 100, **numbers, "y": np.ones(500_000)})
    if kind == "csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path, row_group_size=500_000)
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    n, kilobytes = map(int, done.stdout.split())
    assert n == 5000
    assert kilobytes < 25_000


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 12))
def test_tasks_are_runs_of_equal_labels(tmp_path_factory, labels, rows):
    """Block boundaries do not matter."""
    path = tmp_path_factory.mktemp("streams") / "table.parquet"
    numbers = np.arange(len(labels)) / 2
    table = pyarrow.table({"task": labels, "a": numbers, "y": -numbers})
    parquet.write_table(table, path, row_group_size=rows)
    edges = [0, *(i for i in range(1, len(labels)) if labels[i] != labels[i - 1]), len(labels)]
    stream = ltl.open_stream(path, task="task", target="y", repeats="task")
    found = list(stream.tasks())
    assert [task.label for task in found] == [labels[i] for i in edges[:-1]]
    for task, lo, hi in zip(found, edges, edges[1:], strict=False):
        assert np.array_equal(task.X[:, 0], numbers[lo:hi])
        assert np.array_equal(task.y, -numbers[lo:hi])


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_blocks_do_not_depend_on_the_kind_of_line_ends(tmp_path, monkeypatch, end):
    sizes = []

    class Rows(CSVRows):
        def __init__(self, file, size, delimiter):
            sizes.append(size)
            super().__init__(file, size, delimiter)

    monkeypatch.setattr(tables, "CSVRows", Rows)
    path = tmp_path / "t.csv"
    path.write_text(end.join(["t,x,y", *("a,1,2" for _ in range(300_000)), ""]), newline="")
    assert [len(y) for _, y in ltl.open_stream(path, task="t", target="y")] == [300_000]
    assert set(sizes) == {tables.BLOCK_BYTES}


def text_table(n_rows=4000, **later):
    """Return rows of tasks of 10 rows; `later` replaces the text of some rows."""
    text = ["F" if i % 3 else "M" for i in range(n_rows)]
    for row, value in later.items():
        text[int(row.removeprefix("row")) - 1] = value
    numbers = np.sin(np.arange(n_rows))
    labels = [f"t{i // 10}" for i in range(n_rows)]
    return pyarrow.table({"task": labels, "sex": text, "a": numbers, "target": numbers[::-1]})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_category_that_comes_late_is_zeros_and_named_once(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2**12)  # a stream sees 32 kB when it is opened
    WRITERS[kind](text_table(row3501="new", row3503="M", row3801="newer"), tmp_path / "stream")
    stream = ltl.open_stream(tmp_path / "stream", "task", "target")
    assert stream.encoding == {"sex": ["F", "M"], "a": None}
    message = r"column 'sex' has the new category 'new' in row 3501 of .*: its indicators are all 0"
    with pytest.warns(UserWarning, match=message) as caught:
        found = stream.collection()
    assert len(caught) == 1
    assert found.feature_names == ("sex=F", "sex=M", "a")
    X = np.concatenate([X for X, _ in found])
    zeros = np.flatnonzero(X[:, :2].sum(axis=1) == 0) + 1
    assert zeros.tolist() == [3501, 3801]
    stream.collection()  # says it no more


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_file_of_some_megabytes_is_seen_whole(tmp_path, kind):
    table = text_table(90_000, row89999="new")
    WRITERS[kind](table, tmp_path / "stream")
    assert kind == "parquet" or (tmp_path / "stream").stat().st_size > 4 * 10**6
    stream = ltl.open_stream(tmp_path / "stream", "task", "target")
    assert stream.encoding == {"sex": ["F", "M", "new"], "a": None}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("first", ["csv", "parquet"])
def test_encoding_of_one_file_reads_another(tmp_path, first, kind):
    """Columns may come in another order, with others; neither roles nor identifiers matter."""
    WRITERS[first](text_table(), tmp_path / "first")
    stream = ltl.open_stream(tmp_path / "first", "task", "target")
    encoding = json.loads(json.dumps(stream.encoding))
    assert list(encoding) == ["sex", "a"]
    other = pyarrow.table(
        {
            "when": [datetime.date(2020, 1, 1)] * 3,
            "a": [0, 1, 2],
            "target": [None, None, 1.0],
            "sex": ["M", "x", "M"],
            "task": [1.5, 2.5, 3.5],
        }
    )
    WRITERS[kind](other, tmp_path / "other")
    again = ltl.open_stream(tmp_path / "other", "task", "target", encoding=encoding)
    assert again.encoding == encoding
    assert again.feature_names == stream.feature_names == ("sex=F", "sex=M", "a")
    with pytest.warns(UserWarning, match="'sex' has the new category 'x' in row 2 of"):
        found = list(again.tasks())
    X = np.concatenate([task.X for task in found])
    assert np.array_equal(X, [[0, 1, 0], [0, 0, 1], [0, 1, 2]])
    assert [task.missing.item() for task in found] == [True, True, False]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ([], r"encoding must be a dict of columns, got \[\]"),
        ({}, r"encoding must be a dict of columns, got \{\}"),
        ({"a": "F"}, "must give None or a list of categories for each column, got 'F' for 'a'"),
        ({"a": []}, r"None or a list of categories for each column, got \[\] for 'a'"),
        ({"a": [1]}, r"None or a list of categories for each column, got \[1\] for 'a'"),
        ({1: None}, "None or a list of categories for each column, got None for 1"),
        ({"b": None}, "features must name a column of .*, got 'b'"),
        ({"a": None, "y": None}, "must differ, got 'y' twice"),
        ({"a=x": None, "a": ["x"]}, "got 'a=x' as a column and as a value of another"),
    ],
)
def test_encoding_is_checked(tmp_path, encoding, message):
    path = tmp_path / "table.csv"
    path.write_text("task,a,a=x,y\nt,1,2,3\n")
    with pytest.raises(ValueError, match=message):
        ltl.open_stream(path, "task", "y", encoding=encoding)


def test_types_must_be_those_of_the_encoding(tmp_path):
    path = tmp_path / "table.parquet"
    table = {"task": ["t"] * 2, "text": ["u", "v"], "number": [1, 2], "y": [1.0, 2.0]}
    parquet.write_table(pyarrow.table(table), path)
    with pytest.raises(ValueError, match="column 'text' must hold numbers, got text such as 'u'"):
        list(ltl.open_stream(path, "task", "y", encoding={"text": None}))
    with pytest.raises(ValueError, match="column 'number' must hold text such as 'u', got numbers"):
        list(ltl.open_stream(path, "task", "y", encoding={"number": ["u"]}))


def test_folder_has_no_encoding_and_drops_arrays(tmp_path):
    np.savez(tmp_path / "1.npz", **GOOD)
    stream = ltl.open_stream(tmp_path, drop=["t"])
    assert (stream.encoding, stream.feature_names) == (None, ("X0", "X1"))
    with pytest.raises(ValueError, match="encoding must be None for the folder"):
        ltl.open_stream(tmp_path, drop=["t"], encoding={"X": None})


@pytest.mark.parametrize("end", ["t", "t,F", 't,"F', "t,F,1,2,3"])
def test_half_a_line_at_the_end_is_no_error_on_opening(tmp_path, end):
    path = tmp_path / "table.csv"
    path.write_text(f"task,sex,y\nt,F,1\nt,M,2\nu,F,3\n{end}")
    stream = ltl.open_stream(path, "task", "y")
    assert stream.feature_names == ("sex=F", "sex=M")
    assert whole_tasks(stream) == (["t"], "u")


def test_line_that_cannot_be_parsed_is_found_after_the_tasks_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2**12)
    WRITERS["csv"](text_table(1000), tmp_path / "stream")
    with (tmp_path / "stream").open("a") as file:
        file.write("t100,F\n")
    stream = ltl.open_stream(tmp_path / "stream", "task", "target")
    tasks = stream.tasks()
    assert [next(tasks).label for _ in range(80)] == [f"t{i}" for i in range(80)]
    with pytest.raises(ValueError, match=r"Row #1001: Expected 4 columns, got 2"):
        list(tasks)


@pytest.mark.parametrize("cell", ["", "NA", " "])
def test_text_that_is_missing_is_reported_when_its_task_is_read(tmp_path, cell):
    path = tmp_path / "table.csv"
    path.write_text(f"task,sex,y\nt,F,1\nt,M,2\nu,{cell},3\n")
    tasks = iter(ltl.open_stream(path, "task", "y"))
    assert np.array_equal(next(tasks)[0], [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="'u': column 'sex' must hold text, got none in row 3"):
        next(tasks)


def test_columns_that_are_words_in_one_block_are_numbers_in_others(tmp_path, monkeypatch):
    """A word, a blank or a boolean changes neither other columns nor the blocks after it."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2**10)
    numbers = np.sin(np.arange(600))
    cells, flags = [f" {x!r}" for x in numbers.tolist()], ["TRUE", "false"] * 300
    cells[400], cells[500] = "oops", ""
    rows = [f"{i // 2},{cells[i]},{flags[i]},{i % 7}" for i in range(600)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["task,a,b,y", *rows, ""]))
    tasks = list(ltl.open_stream(path, "task", "y").tasks())
    X = np.concatenate([task.X for task in tasks])
    assert np.flatnonzero(np.isnan(X[:, 0])).tolist() == [400, 500]
    assert np.array_equal(np.delete(X[:, 0], [400, 500]), np.delete(numbers, [400, 500]))
    assert np.array_equal(X[:, 1], [1, 0] * 300)
    assert np.array_equal(np.concatenate([task.y for task in tasks]), np.arange(600) % 7)
