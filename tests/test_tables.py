"""`read_tasks` reads CSV and Parquet tables, or reports what is wrong with them."""

import decimal
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from fastltl._columns import MAX_CATEGORIES
from fastltl.io.tables import read_tasks

ROWS = "school,hours,sex,score\nA,1,F,2.5\nB,2,M,4\nA,3,F,6\n"


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def check_tasks(tasks):
    assert list(tasks.labels) == ["A", "B"]
    assert tasks.feature_names == ("hours", "sex=F", "sex=M")
    X, y = tasks[0]
    assert np.array_equal(X, [[1, 1, 0], [3, 1, 0]])
    assert np.array_equal(y, [2.5, 6])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_delimiters(table, separator):
    check_tasks(read_tasks(table(ROWS.replace(",", separator)), "school", "score"))


def test_csv_with_windows_newlines_and_byte_order_mark(table):
    content = b"\xef\xbb\xbf" + ROWS.replace("\n", "\r\n").encode()
    check_tasks(read_tasks(table(content), "school", "score"))


@pytest.mark.parametrize("text", [pyarrow.string(), pyarrow.dictionary("int32", "string")])
def test_parquet_is_recognised_by_content(tmp_path, text):
    columns = {
        "school": pyarrow.array(["A", "B", "A"]).cast(text),
        "hours": pyarrow.array([1, 2, 3], "int8"),
        "sex": pyarrow.array(["F", "M", "F"]).cast(text),
        "score": pyarrow.array([decimal.Decimal(x) for x in ("2.5", "4", "6")]),
    }
    path = tmp_path / "table.csv"
    parquet.write_table(pyarrow.table(columns), path)
    check_tasks(read_tasks(path, "school", "score"))


def test_features_and_drop(table):
    path = table(ROWS)
    assert read_tasks(path, "school", "score", features=["hours"]).feature_names == ("hours",)
    assert read_tasks(path, "school", "score", drop=["sex"]).feature_names == ("hours",)


def test_booleans_are_numbers(table):
    tasks = read_tasks(table("t,x,y\n1,true,1\n1,false,2\n"), "t", "y")
    assert np.array_equal(tasks[0][0], [[1], [0]])


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (ROWS, ("scool", "score"), "task must name a column .*, got 'scool'; did you mean 'sch"),
        (ROWS, ("school", "grade"), r"target must name a column .*\(school, hours, sex, score\)"),
        (ROWS, ("school", "sex"), "target must name a column of numbers, got 'sex', .* 'F'"),
        (ROWS, ("score", "score"), "must differ, got 'score' twice"),
        ("a,a,b\n1,2,3\n", ("a", "b"), "task 'a' names several columns of .*: rename"),
        ("t,a,a,y\n1,2,3,4\n", ("t", "y"), "features 'a' names several columns of"),
        ("t,s=F,s,y\n1,2,F,4\n", ("t", "y"), "got 's=F' as a column and as a value of another"),
        (",".join(f"c{k}" for k in range(99)) + "\n", ("t", "y"), r"c19, and 79 more\)"),
        (
            "t,x,y\n1,\u00e9,2\n".encode("latin-1"),
            ("t", "y"),
            "CSV column #1: .*invalid UTF8 data: save the file as UTF-8",
        ),
        ("", ("a", "b"), "is empty, expected a CSV or Parquet table"),
        ("\n \n", ("a", "b"), "is empty, expected a CSV or Parquet table"),
        ("a,b,c\n", ("a", "b"), "has a header but no rows"),
        ("a,b\n1,2\n", ("a", "b"), "features must name a column of .* besides task and target"),
        ("a,b,c\n1,2\n1,2,3\n", ("a", "b"), "cannot be read as a CSV table: .*Expected 3 columns"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", ("a", "b"), "cannot be read as a CSV table: 'utf-8'"),
        (b"PAR1 is not all", ("a", "b"), "cannot be read as a Parquet table"),
        ("t,x,y\n1,,1\n1,2,2\n1,NA,3\n", ("t", "y"), "'x' must have no missing .* 2 in rows 1, 3"),
        ("t,x,y\n1,nan,1\n1,2,2\n", ("t", "y"), "column 'x' must have no missing values, got 1"),
        ("t,x,y\n1,a,1\n1,,2\n", ("t", "y"), "column 'x' must have no missing values, got 1"),
        ("t,x,y\n,1,1\n1,2,2\n", ("t", "y"), "column 't' must have no missing values, got 1"),
        ("t,x,y\n1,inf,1\n1,2,2\n", ("t", "y"), "column 'x' must hold finite numbers only, got"),
        ("t,x,y\n1,2026-01-01,1\n1,2026-01-02,2\n", ("t", "y"), "'x' must hold numbers or text"),
    ],
)
def test_errors_are_one_line(table, content, columns, message):
    with pytest.raises(ValueError, match=message) as error:
        read_tasks(table(content), *columns)
    assert "\n" not in str(error.value)


def test_columns_must_be_distinct(table):
    for choice in ({"features": ["hours", "hours"]}, {"features": ["sex"], "drop": ["sex"]}):
        with pytest.raises(ValueError, match=r"must differ, got '\w+' twice"):
            read_tasks(table(ROWS), "school", "score", **choice)


def test_delimiters_inside_quotes_are_ignored(table):
    content = '\n"the, task";"a, b, c, d";"y"\n1;2;3\n'
    assert read_tasks(table(content), "the, task", "y").feature_names == ("a, b, c, d",)


def test_too_many_categories(table):
    rows = 2 * "".join(f"1,name{k},{k}\n" for k in range(MAX_CATEGORIES + 1))
    with pytest.raises(ValueError, match=r"'who' must hold at most 50 distinct texts .* got 51"):
        read_tasks(table(f"t,who,y\n{rows}"), "t", "y")


def test_error_without_pyarrow_says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'fastltl\[parquet\]'"):
        read_tasks(table(ROWS), "school", "score")
