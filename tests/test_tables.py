"""Files, streams and data frames are read by the same rules, or what is wrong is reported."""

import decimal
import re
import sys
import warnings
from datetime import date, datetime, time, timedelta
from functools import partial

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

import fastltl as ltl
from fastltl import cli
from fastltl._columns import MAX_CATEGORIES
from fastltl._text import DATE
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


def tasks_of(n_tasks, size):
    """Return the labels of adjacent rows, and targets that vary within tasks."""
    n_rows = n_tasks * size
    return {"t": [f"s{i // size}" for i in range(n_rows)], "y": np.sin(np.arange(n_rows)).tolist()}


def rows(**columns):
    """Return 30 rows of 6 tasks with these columns, between task and target."""
    base = tasks_of(6, 5)
    return {"t": base["t"], **columns, "y": base["y"]}


def every(*values):
    """Repeat values in 30 rows."""
    return [values[i % len(values)] for i in range(30)]


SQUARES = [i * i for i in range(30)]
SHUFFLED = np.random.default_rng(0).permutation(30).tolist()

#: Tables, the names of their features, and the columns that are left out.
TABLES = {
    "integers": (rows(a=SQUARES, b=every(3, 1, 2)), ["a", "b"], []),
    "floats": (rows(a=np.cos(np.arange(30)).tolist(), b=every(0.5, -1e-3)), ["a", "b"], []),
    "booleans": (rows(a=every(True, False, True)), ["a"], []),
    "text": (rows(a=every("F", "M"), b=SQUARES), ["a=F", "a=M", "b"], []),
    "one text": (rows(a=every("F")), ["a=F"], []),
    "text in order of its values": (rows(a=every("z", "a", "M")), ["a=M", "a=a", "a=z"], []),
    "strange text": (
        rows(a=every(" x ", 'say "a, b"', "two\nlines", "\u00e9;\t")),
        ["a= x ", 'a=say "a, b"', "a=two\nlines", "a=\u00e9;\t"],
        [],
    ),
    "half of the values are words": (rows(a=every("1", "x")), ["a=1", "a=x"], []),
    "ranges": (rows(a=every("0-9", "10-19", "20")), ["a=0-9", "a=10-19", "a=20"], []),
    "versions": (rows(a=every("1.2.10", "1.10.2")), ["a=1.10.2", "a=1.2.10"], []),
    "seasons": (rows(a=every("2010-11", "2011-12")), ["a=2010-11", "a=2011-12"], []),
    "months": (rows(a=every("May", "June")), ["a=June", "a=May"], []),
    "column with a dot": (rows(**{"IQ.verb": SQUARES, "IQ": every(1, 2)}), ["IQ.verb", "IQ"], []),
    "row numbers from 0": (rows(**{"": list(range(30)), "a": SQUARES}), ["a"], [""]),
    "row numbers from 7": (rows(z=list(range(7, 37)), a=SQUARES), ["a"], ["z"]),
    "shuffled row numbers": (rows(**{"Unnamed: 0": SHUFFLED, "a": SQUARES}), ["a"], ["Unnamed: 0"]),
    "names of identifiers": (
        rows(
            **dict.fromkeys(("id", "ID", "pupil_id", "pupilId", "rownames", "case.nr"), SHUFFLED),
            a=SQUARES,
        ),
        ["a"],
        ["id", "ID", "pupil_id", "pupilId", "rownames", "case.nr"],
    ),
    "text identifiers": (
        rows(who=[f"person {i}" for i in range(30)], id=[f"{i:x}k" for i in SHUFFLED], a=SQUARES),
        ["a"],
        ["who", "id"],
    ),
    "nearly distinct text": (
        rows(who=[f"person {i % 28}" for i in range(30)], a=SQUARES),
        ["a"],
        ["who"],
    ),
    "distinct integers that measure": (
        rows(population=SHUFFLED, paid=SQUARES, grid=SQUARES),
        ["population", "paid", "grid"],
        [],
    ),
    "identifiers that repeat": (rows(id=every(1, 2, 3)), ["id"], []),
    "an id that is no integer": (rows(id=[i + 0.5 for i in range(30)]), ["id"], []),
}


def in_categories(table):
    """Return a pandas frame whose texts are categories, one of which is not in use."""
    frame = pandas.DataFrame(table)
    for name, column in table.items():
        texts = {value for value in column if isinstance(value, str)}
        if texts and name != "t":
            frame[name] = pandas.Categorical(column, categories=sorted(texts | {"unused"}))
    return frame


def in_polars_categories(table):
    frame = polars.DataFrame(table)
    texts = [name for name in frame.columns if frame[name].dtype == polars.String and name != "t"]
    return frame.with_columns(polars.col(texts).cast(polars.Categorical))


def write_csv(table, path):
    pandas.DataFrame(table).to_csv(path, index=False)


def write_parquet(table, path):
    parquet.write_table(pyarrow.table(table), path)


def write_categories(table, path):
    parquet.write_table(pyarrow.Table.from_pandas(in_categories(table)), path)


#: Ways to store a table in a file.
WRITERS = {"CSV": write_csv, "Parquet": write_parquet, "categories": write_categories}

#: Ways to make a data frame of a table.
FRAMES = {
    "dict": dict,
    "arrays": lambda table: {name: np.array(column) for name, column in table.items()},
    "pandas": pandas.DataFrame,
    "pandas categories": in_categories,
    "polars": polars.DataFrame,
    "polars categories": in_polars_categories,
    "pyarrow": pyarrow.table,
    "pyarrow dictionaries": lambda table: pyarrow.Table.from_pandas(in_categories(table)),
}


FRAMES_WITHOUT_CATEGORIES = ("dict", "arrays", "pandas", "polars", "pyarrow")


def stream_tasks(path, *columns, **options):
    return ltl.open_stream(path, *columns, **options).collection()


def ways(tmp_path):
    """Return functions that read tasks from a table, by name; arguments are those of read_tasks."""

    def from_file(write, read, table, *arguments, **options):
        write(table, tmp_path / "table")
        return read(tmp_path / "table", *arguments, **options)

    def from_frame(frame, table, *arguments, **options):
        return ltl.TaskSet.from_frame(frame(table), *arguments, **options)

    found = {}
    for kind, write in WRITERS.items():
        for read in (read_tasks, stream_tasks):
            found[f"{kind}, {read.__name__}"] = partial(from_file, write, read)
    return found | {kind: partial(from_frame, frame) for kind, frame in FRAMES.items()}


WAYS = list(ways(None))


def names_left_out(caught):
    return [re.match("column '(.*)' is left out", str(one.message))[1] for one in caught]


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TABLES)
def test_every_way_to_read_a_table_gives_the_same_tasks(tmp_path, name, way):
    table, names, left_out = TABLES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tasks = ways(tmp_path)[way](table, "t", "y")
    assert names_left_out(caught) == left_out
    assert tasks.feature_names == tuple(names)
    assert list(tasks.labels) == [f"s{i}" for i in range(6)]
    expected = []
    for feature in names:
        column, _, text = feature.partition("=")
        values = np.array(table[column])
        expected.append(values == text if text else values)
    X, y = map(np.concatenate, zip(*tasks, strict=True))
    assert np.array_equal(X, np.stack(expected, axis=1))
    assert np.array_equal(y, table["y"])


@pytest.mark.parametrize("way", WAYS)
def test_columns_that_are_named_or_dropped_cause_no_note(tmp_path, way):
    table = rows(id=list(range(30)), a=SQUARES, when=every("2026-01-02"))
    read = ways(tmp_path)[way]
    assert read(table, "t", "y", features=["id", "a"]).feature_names == ("id", "a")
    assert read(table, "t", "y", drop=["id", "when"]).feature_names == ("a",)


@pytest.mark.parametrize("words", [("true", "false"), ("True", "False"), ("TRUE", "FALSE", "1")])
def test_booleans_of_csv_are_numbers_in_any_case(table, words):
    columns = rows(a=every(*words))
    cells = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in cells)]
    path = table("\n".join(lines))
    for read in (read_tasks, stream_tasks):
        tasks = read(path, "t", "y")
        assert tasks.feature_names == ("a",)
        X = np.concatenate([X for X, _ in tasks])[:, 0]
        assert np.array_equal(X, [word.lower() in ("true", "1") for word in columns["a"]])


def test_numbers_as_labels_are_text_in_csv_and_numbers_elsewhere(tmp_path):
    columns = {"t": [2, 2, 10, 10], "a": [1.5, 2, 3, 4], "y": [1.0, 2, 3, 4]}
    labels = {way: list(read(columns, "t", "y").labels) for way, read in ways(tmp_path).items()}
    for way, found in labels.items():
        assert found == (["2", "10"] if "CSV" in way else [2, 10])


DATES = [f"2026-01-{k + 1:02}" for k in range(30)]
WORDY = [str(x) for x in SQUARES[:27]] + ["?", "n.a.", "?"]

#: Mistakes: a table, the task and target columns if not t and y, and the message.
MISTAKES = {
    "dates as text": (
        rows(a=DATES),
        {},
        r"column 'a' must hold numbers or text, got dates, times or durations \(text such as "
        r"'2026-01-01'\): convert them to numbers, such as days since .* --drop",
    ),
    "times as text": (
        rows(a=every("12:30", "09:15:00")),
        {},
        "column 'a' .* got dates, times or dur",
    ),
    "days before months": (
        rows(a=every("24/01/2020", "13/02/2020", "01/03/2020")),
        {},
        r"column 'a' .* got dates, times or durations \(text such as '24/01/2020'\)",
    ),
    "names of months": (
        rows(a=every("Jan 24 2020", "24-Feb-20", "2020-03")),
        {},
        r"column 'a' .* got dates, times or durations \(text such as 'Jan 24 2020'\)",
    ),
    "few dates": (
        rows(a=every("2026-01-01T10:00", "x", "2026-1-2")),
        {},
        "'a' .* got dates, times",
    ),
    "words among numbers": (
        rows(a=WORDY),
        {},
        r"column 'a' must hold numbers, got '\?', 'n.a.' in rows 28, 29, 30 \(row 1 follows the "
        r"header\): replace each word by a number, or each number by a word, remove the rows, or "
        r"leave .* --drop",
    ),
    "a word in one row, and one number": (
        rows(a=[*["1.0"] * 29, "unknown"]),
        {},
        r"column 'a' must hold numbers, got 'unknown' in row 30 \(row 1 follows",
    ),
    "as many words as numbers": (
        rows(a=[*every("1", "2", "3")[:27], "?", "missing", "n.d."]),
        {},
        r"column 'a' must hold numbers, got '\?', 'missing', 'n.d.' in rows 28, 29, 30",
    ),
    "a word in most rows": (
        rows(a=[*map(str, range(5)), *["unknown"] * 25]),
        {},
        r"column 'a' must hold numbers, got 'unknown' in rows 6, 7, 8, 9, 10, ...",
    ),
    "many texts": (
        {
            "t": [f"s{i // 10}" for i in range(120)],
            "a": [f"v{i % 60}" for i in range(120)],
            "y": np.sin(np.arange(120)).tolist(),
        },
        {},
        r"column 'a' must hold at most 50 distinct texts to be a category, got 60, such as 'v0': "
        r"merge some, or leave the column out",
    ),
    "only identifiers": (
        rows(id=SHUFFLED),
        {},
        "features must name a column, got only identifiers: 'id'",
    ),
    "text as target": (
        rows(a=SQUARES, b=every("F", "M")),
        {"target": "b"},
        r"target must name a column of numbers, got 'b', which holds text such as 'F'\.$",
    ),
    "a number for the task, and text for the target": (
        rows(a=SQUARES),
        {"task": "y", "target": "t"},
        "got 't', which holds text such as 's0': task and target may be swapped, since 'y' holds",
    ),
    "words in the target": (
        rows(a=SQUARES) | {"y": WORDY},
        {},
        r"column 'y' must hold numbers, got '\?', 'n.a.' in rows 28, 29, 30",
    ),
    "a measurement as task": (
        rows(a=SQUARES, school=[i // 5 for i in range(30)]),
        {"task": "y", "target": "school"},
        r"task must name a column of labels, got 'y', which looks like a measurement: 30 distinct "
        r"numbers in 30 rows. Task and target \('school'\) may be swapped. If they are not, turn",
    ),
    "a measurement that repeats as task": (
        rows(a=every(1, 2), b=[0.5 * (i % 25) for i in range(30)]),
        {"task": "b"},
        "got 'b', which looks like a measurement: 25 distinct numbers in 30 rows",
    ),
    "row numbers as task": (
        rows(id=SHUFFLED, a=SQUARES),
        {"task": "id"},
        "got 'id', which has hardly two rows of a label: 30 distinct numbers in 30 rows",
    ),
    "a task column as target": (
        {
            "score": [i * 7 % 5 for i in range(90)],
            "a": [i * i for i in range(90)],
            "school": [i // 3 for i in range(90)],
        },
        {"task": "score", "target": "school"},
        r"target must name a column to predict, got 'school', which looks like a task column: each "
        r"of its 30 values fills adjacent rows, and those of 'score' do not. Task and target may "
        r"be swapped. If they are not, sort the rows by task",
    ),
    "a property of the task as target": (
        rows(a=SQUARES, size=[i // 5 * 2.5 for i in range(30)]),
        {"target": "size"},
        r"target must name a column that varies within tasks, got 'size', which has one value in "
        r"each task of 't'",
    ),
}

#: Columns that are no mistake if they are declared to be categories.
GOOD_CATEGORIES = {
    "dates as text",
    "times as text",
    "days before months",
    "names of months",
    "few dates",
    "words among numbers",
    "a word in one row, and one number",
    "as many words as numbers",
    "a word in most rows",
    "words in the target",
}

#: What a stream of CSV says when it reads the task.
NO_NUMBER = "must hold finite numbers, got no number in row"
FOUND_LATER = {
    "words among numbers": f"task 's5': column 'a' {NO_NUMBER} 28",
    "a word in one row, and one number": f"task 's5': column 'a' {NO_NUMBER} 30",
    "as many words as numbers": f"task 's5': column 'a' {NO_NUMBER} 28",
    "a word in most rows": f"task 's1': column 'a' {NO_NUMBER} 6",
    "words in the target": f"task 's5': column 'y' {NO_NUMBER} 28",
}


@pytest.mark.filterwarnings("ignore:.*is left out")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in MISTAKES
        for way in WAYS
        if name not in GOOD_CATEGORIES or not re.search("categories|dictionaries", way)
    ],
)
def test_every_way_to_read_a_table_finds_the_same_mistakes(tmp_path, name, way):
    columns, roles, message = MISTAKES[name]
    if way == "CSV, stream_tasks":
        message = FOUND_LATER.get(name, message)
    with pytest.raises(ValueError, match=message) as error:
        ways(tmp_path)[way](columns, **{"task": "t", "target": "y"} | roles)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["compare", "train"])
@pytest.mark.parametrize("name", MISTAKES)
def test_commands_report_mistakes_in_one_line(tmp_path, capsys, name, command):
    columns, roles, message = MISTAKES[name]
    path, out = tmp_path / "table.csv", tmp_path / "out.npz"
    write_csv(columns, path)
    roles = {"task": "t", "target": "y"} | roles
    places = {"compare": "--out", "train": "--checkpoint"}
    options = ["--task", roles["task"], "--target", roles["target"], places[command], str(out)]
    if command == "train":
        message = FOUND_LATER.get(name, message)
    assert cli.main([command, str(path), *options]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"fastltl {command}: ")
    assert re.search(message.removesuffix("$"), last)
    if name != "words in the target":  # train saves the tasks before
        assert name in FOUND_LATER or not out.exists()


def test_train_reads_text_and_prints_notes(tmp_path, capsys):
    path, checkpoint = tmp_path / "table.csv", tmp_path / "c.npz"
    columns = rows(id=SHUFFLED, a=every("F", "M"), b=np.cos(np.arange(30)).tolist(), c=DATES)
    write_csv(columns, path)
    options = ["--task", "t", "--target", "y", "--checkpoint", str(checkpoint)]
    assert cli.main(["train", str(path), *options, "--drop", "c"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note: ")]
    assert notes == [
        "Note: column 'id' is left out, since it looks like identifiers; to keep it, name it in "
        "features (command line: --features)."
    ]
    assert list(ltl.load(checkpoint).feature_names_in_) == ["a=F", "a=M", "b"]


#: Columns that only a table with types can have, and what is said about them.
TYPED_MISTAKES = {
    "dates": (pyarrow.array([date(2026, 1, 2)] * 30), r"got dates, times or durations \("),
    "times": (pyarrow.array([datetime(2026, 1, 2)] * 30), r"got dates, times or durations \("),
    "times of day": (pyarrow.array([time(12, 30)] * 30), r"got dates, times or durations \("),
    "durations": (pyarrow.array([timedelta(1)] * 30), r"got dates, times or durations \("),
    "bytes": (pyarrow.array([b"a", b"b"] * 15), r"must hold numbers or text, got b\w+: convert it"),
    "numbers as text": (
        pyarrow.array(["1.5", "2", "3"] * 10),
        r"must hold numbers, got text such as '1.5': convert it to numbers, as astype",
    ),
    "words among numbers": (
        pyarrow.array(["1.5", "2", "?"] * 10),
        r"must hold numbers, got '\?' in rows 3, 6, 9, 12, 15, ... \(row 1",
    ),
}


@pytest.mark.parametrize(
    "way", [*(way for way in WAYS if way.startswith("Parquet")), *FRAMES_WITHOUT_CATEGORIES]
)
@pytest.mark.parametrize("name", TYPED_MISTAKES)
def test_mistakes_of_types(tmp_path, name, way):
    column, message = TYPED_MISTAKES[name]
    with pytest.raises(ValueError, match=f"column 'a' .*{message}"):
        ways(tmp_path)[way](rows(a=column), "t", "y")


@pytest.mark.parametrize("frame", [dict, pandas.DataFrame])
@pytest.mark.parametrize(
    ("column", "found"),
    [
        ([*[1.0] * 29, "unknown"], "'unknown' in row 30"),
        ([1.0, "?", None, *[2.0] * 26, "?"], r"'\?' in rows 2, 30"),
        ([*["F"] * 28, 1, "M"], "1 in row 29"),
        ([1.0, "x"] * 15, "'x' in rows 2, 4, 6, 8, 10, ..."),
    ],
)
def test_frame_must_not_mix_numbers_and_text(column, found, frame):
    message = rf"column 'a' must hold either numbers or text, got both, such as {found} \(row 1"
    with pytest.raises(ValueError, match=message):
        ltl.TaskSet.from_frame(frame(rows(a=column)), "t", "y")


def with_gap(values):
    """Return the values with None in rows 8 and 9."""
    return [None if i in (7, 8) else value for i, value in enumerate(values)]


GAPS = {
    "integers": {"a": with_gap(SQUARES)},
    "floats": {"a": with_gap(np.cos(np.arange(30)).tolist())},
    "booleans": {"a": with_gap(every(True, False))},
    "text": {"a": with_gap(every("F", "M"))},
    "nothing but gaps": {"a": [None] * 30},
    "target": {"a": SQUARES, "y": with_gap(SQUARES)},
    "task": {"a": SQUARES, "t": with_gap(rows()["t"])},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GAPS)
def test_missing_values_are_refused_by_row_and_column(tmp_path, name, way):
    columns = {"t": rows()["t"], "a": [], "y": rows()["y"]} | GAPS[name]
    column = {"target": "y", "task": "t"}.get(name, "a")
    found = "30 in rows 1, 2, 3, 4, 5, ..." if name == "nothing but gaps" else "2 in rows 8, 9"
    message = rf"column '{column}' must have no missing values, got {found} \(row 1 follows"
    if name == "task" and "stream" in way:
        message = "every row of .* must name its task, got no label in row 8"
    elif name == "task" and way in FRAMES:
        message = "column 't' must name a task for every row"
    elif "stream" in way:
        row = 1 if name == "nothing but gaps" else 8
        message = rf"task 's{row // 5}': column '{column}' must hold .*, got no.* in row {row} of "
    with pytest.raises(ValueError, match=message):
        ways(tmp_path)[way](columns, "t", "y")


def test_targets_of_a_task_may_be_equal_by_chance():
    """Few rows prove nothing, and neither does a target that is the same everywhere."""
    few = {"t": [*"aabb"], "a": [1.0, 2.0, 3.0, 5.0], "y": [1, 1, 2, 2]}
    assert len(ltl.TaskSet.from_frame(few, "t", "y")) == 2
    constant = rows(a=SQUARES) | {"y": [1.0] * 30}
    assert len(ltl.TaskSet.from_frame(constant, "t", "y")) == 6


def test_consecutive_numbers_of_one_task_may_be_the_time():
    one = rows(time=list(range(30))) | {"t": ["s"] * 30}
    assert ltl.TaskSet.from_frame(one, "t", "y").feature_names == ("time",)


def test_few_levels_of_a_float_are_tasks():
    doses = rows(a=SQUARES, dose=every(0.5, 1.0, 2.0))
    assert list(ltl.TaskSet.from_frame(doses, "dose", "y", ["a"]).labels) == [0.5, 1.0, 2.0]


def test_text_labels_may_all_be_distinct():
    labels = rows(a=SQUARES, name=[f"p{i}" for i in range(30)])
    assert len(ltl.TaskSet.from_frame(labels, "name", "y", ["a"])) == 30


def test_target_in_runs_is_no_mistake_if_tasks_are_adjacent():
    runs = {"t": [f"s{i // 45}" for i in range(90)], "a": [i * i for i in range(90)]}
    table = runs | {"y": [i // 3 for i in range(90)]}
    assert len(ltl.TaskSet.from_frame(table, "t", "y")) == 2


def test_names_of_indicators_encode_another_table_alike(tmp_path):
    columns = rows(a=every("F", "M"), b=np.cos(np.arange(30)).tolist())
    names = ltl.TaskSet.from_frame(columns, "t", "y").feature_names
    assert names == ("a=F", "a=M", "b")
    other = columns | {"a": ["M", "D"] * 15, "c": ["x"] * 30}
    path = tmp_path / "other.csv"
    write_csv(other, path)
    ways = {
        "df": lambda: ltl.TaskSet.from_frame(other, "t", "y", names),
        "file": lambda: read_tasks(path, "t", "y", names),
        "stream": lambda: ltl.open_stream(path, "t", "y", names).collection(),
    }
    for way, read in ways.items():
        with pytest.warns(UserWarning, match="'a' has the new category 'D' in row 2 of"):
            tasks = read()
        assert tasks.feature_names == names, way
        X = np.concatenate([X for X, _ in tasks])
        assert X[:, :2].tolist() == [[0, 1], [0, 0]] * 15
    with pytest.raises(ValueError, match=r"features must name a column of df .* got 'c=x=y'"):
        ltl.TaskSet.from_frame(columns, "t", "y", ["b", "c=x=y"])


#: Texts that are dates or times, and texts that are not.
DATES_AND_TIMES = [
    *("2026-01-02", "2026/1/2", "2026.01.02", "2026-01-01T10:00", "12:30", "09:15:00", "2020-01"),
    *("24/01/2020", "01/24/2020", "24.01.2020", "1/24/20", "31/12/99", "24.01.20", "24-01-20"),
    *("24/01/2020 10:00", "24/01/2020, 10:00", "01/2020", "1-2020", "2020/12", "1999-02"),
    *("Jan 24 2020", "24 Jan 2020", "24-JAN-20", "January 24, 2020", "Jan. 24, 2020", "Jan-20"),
    *(
        "Jan 2020",
        "2020 Jan",
        "2020-Jan-24",
        "Jan 24",
        "3. May 2020",
        "3rd May 2021",
        "Sept 3 1999",
    ),
]
NO_DATES = [
    *(
        "1-2",
        "10/12",
        "0-9",
        "10-19",
        "10-4",
        "1/2",
        "120/80",
        "65+",
        "1990s",
        "Q1 2020",
        "2020-Q1",
    ),
    *("1.2.3", "1.10.2", "2.0.10", "10.15.7", "3.11.4", "99.0.4844", "192.168.1.1", "1-2-10"),
    *(
        "50-30-20",
        "20-20-20",
        "123-45-6789",
        "2010-11",
        "2011-12",
        "2019-20",
        "2020-2021",
        "2020/21",
    ),
    *(
        "May",
        "Jan",
        "March",
        "Dec-Feb",
        "May Day",
        "summer 2020",
        "Mars 2",
        "Mayor 3",
        "SEPT2",
        "A-12",
    ),
]


def test_dates_are_told_from_other_text():
    assert [text for text in DATES_AND_TIMES if not DATE.fullmatch(text)] == []
    assert [text for text in NO_DATES if DATE.fullmatch(text)] == []


@pytest.mark.parametrize("way", WAYS)
def test_indicators_of_a_column_must_be_named_together(tmp_path, way):
    columns, read = rows(a=every("F", "M"), b=SQUARES), ways(tmp_path)[way]
    message = "values of 'a' one after another, got 'a=M' after 'b': move it up"
    with pytest.raises(ValueError, match=message):
        read(columns, "t", "y", features=["a=F", "b", "a=M"])
    names = ("b", "a=M", "a=F")
    assert read(columns, "t", "y", features=names).feature_names == names


@pytest.mark.parametrize("way", WAYS)
def test_names_of_indicators_decide_that_a_column_is_text(tmp_path, way):
    """The other table, which had other shares of numbers, would be numbers with a word."""
    columns, names = rows(a=[*["1"] * 29, "x"]), ("a=1", "a=x")
    assert ways(tmp_path)[way](columns, "t", "y", features=names).feature_names == names


def test_adapt_encodes_for_a_learner_that_was_saved_in_python(tmp_path, capsys):
    columns = rows(a=every("F", "M"), b=np.cos(np.arange(30)).tolist())
    learner, path = tmp_path / "learner.npz", tmp_path / "table.csv"
    ltl.BayesLTL().fit(ltl.TaskSet.from_frame(columns, "t", "y")).save(learner)
    write_csv(columns, path)
    options = ["--task", "t", "--target", "y", "--out", str(tmp_path / "out")]
    assert cli.main(["adapt", str(learner), str(path), *options]) == 0
    assert "30 rows with target" in capsys.readouterr().out
    header = (tmp_path / "out" / "weights.csv").read_text().splitlines()[0]
    assert header == "task,n_labelled,intercept,intercept_se,a=F,a=F_se,a=M,a=M_se,b,b_se"
