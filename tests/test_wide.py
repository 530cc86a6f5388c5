"""Tables of many columns, and learners of many features."""

import os
import subprocess
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import fastltl as ltl
from fastltl._columns import choose_features
from fastltl._validation import memory_errors, read_errors
from fastltl.io.tables import read_tasks


class Name(str):
    """A name that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("given", ["all", "features", "drop"])
def test_comparisons_of_names_grow_with_the_number_of_columns(given):
    """A search through a list for each name would take n^2 / 2 comparisons."""
    n = 1000
    names = [Name(f"x{j}") for j in range(n)]
    chosen = {"features": names[2:]} if given == "features" else {"features": None}
    if given == "drop":
        chosen["drop"] = names[500:]
    Name.compared = 0
    found = choose_features(names, "df", "x0", "x1", **chosen)
    assert found == names[2 : 500 if given == "drop" else n]
    assert Name.compared <= 10 * n
    Name.compared = 0
    df = {name: np.arange(3.0) for name in names}
    ltl.TaskSet.from_frame(df, "x0", "x1", chosen["features"])
    assert Name.compared <= 10 * n


def test_comparisons_of_names_are_few_in_errors():
    names = [Name(f"x{j}") for j in range(1000)]
    Name.compared = 0
    with pytest.raises(ValueError, match=r"must differ, got 'x1' twice"):
        choose_features(names, "df", "x0", "x1", [*names[2:], "x1"])
    with pytest.raises(ValueError, match=r"features 'x7' names several columns"):
        choose_features([*names, "x7"], "df", "x0", "x1", None)
    assert Name.compared <= 20 * len(names)


@pytest.mark.parametrize("name", [["x1"], {}, np.ones(2)])
def test_names_that_cannot_be_hashed_are_refused(name):
    with pytest.raises(ValueError, match="drop must name a column of df"):
        choose_features(["t", "y", "x1"], "df", "t", "y", None, [name])
    with pytest.raises(ValueError, match="task must name a column of df"):
        choose_features(["t", "y", "x1"], "df", name, "y", None)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "x"])
def test_header_may_be_longer_than_a_block(tmp_path, ending):
    """Blocks have a megabyte; one of these headers has a character across its end."""
    names = [60 * "\u00e9" + f"{ending}{j}" for j in range(10_000)]
    path = tmp_path / "wide.csv"
    rows = "".join(f"{task},1{',2' * len(names)}\n" for task in "ab")
    path.write_text(f"t,y,{','.join(names)}\n{rows}", encoding="utf-8")
    assert path.read_bytes().index(b"\n") > 2**20
    tasks = read_tasks(path, "t", "y")
    assert tasks.feature_names == tuple(names)
    assert list(tasks.labels) == ["a", "b"]
    stream = ltl.open_stream(path, "t", "y")
    assert stream.feature_names == tuple(names)
    assert [(X.shape, X.sum()) for X, _ in stream] == [((1, 10_000), 20_000.0)] * 2


FAR = {
    "timestamp": pyarrow.array([2**62, 2**62 + 1]).cast(pyarrow.timestamp("us")),
    "timestamp with zone": pyarrow.array([2**62, 2**62]).cast(pyarrow.timestamp("us", "UTC")),
    "date": pyarrow.array([2**31 - 1, 0], "int32").cast(pyarrow.date32()),
    "milliseconds": pyarrow.array([86400000 * 10**8, 0]).cast(pyarrow.date64()),
}


@pytest.mark.parametrize("kind", FAR)
def test_dates_that_python_has_not_are_refused(tmp_path, kind):
    path, numbers = tmp_path / "far.parquet", pyarrow.array([1.0, 2.0])
    columns = {"t": FAR[kind], "y": numbers, "x": numbers}
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(ValueError, match=r"far.parquet must hold dates .* up to the year 9999"):
        list(ltl.open_stream(path, "t", "y"))
    with pytest.raises(ValueError, match=r"far.parquet must hold dates .* up to the year 9999"):
        read_tasks(path, "t", "y")
    for target in "ty":
        with pytest.raises(ValueError, match="column 't' must hold numbers or text, got dates"):
            read_tasks(path, "x", target)


#: Features of which no machine has memory for a matrix: 200 TB.
MANY = 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (ltl.BayesLTL(), r"no memory for 3 matrices of 5000001 x 5000001 numbers, 600000.2 GB: "),
        (ltl.OnlineLTL(), r"no memory for 3 matrices of 5000000 .*: use fewer features\.$"),
        (ltl.OnlineLTLPath(), r"for 90 matrices .*: use fewer features, or fewer values of lam\.$"),
        (ltl.BatchLTL(), r"no memory for 12 matrices of 5000000 x 5000000 numbers"),
        (ltl.MTL(), r"no memory for 12 matrices of 5000000 x 5000000 numbers"),
    ],
)
def test_memory_errors_say_the_size_and_what_to_do(learner, message):
    tasks = ltl.TaskSet([(np.ones((1, MANY)), np.ones(1))])
    with pytest.raises(MemoryError, match=message):
        learner.fit(tasks)
    assert not learner.__sklearn_is_fitted__()


#: Runs the command with a gigabyte of address space more than it has after compiling.
LIMITED = """
import resource, sys
from pathlib import Path
from fastltl import cli, train
train.compile_kernels("online")
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 10**9, size + 10**9))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.compiled
def test_memory_that_tasks_take_is_not_put_down_to_matrices():
    with pytest.raises(MemoryError, match=r"^tasks$"), memory_errors(12, 20):
        raise MemoryError("tasks")
    message = r"12 matrices of 20000 x 20000 numbers, 38\.4 GB"
    with pytest.raises(MemoryError, match=message), memory_errors(12, 20_000):
        raise MemoryError("tasks")


def test_a_lack_of_memory_is_not_put_down_to_the_file():
    with pytest.raises(MemoryError, match=r"^none left$"), read_errors("file", "a checkpoint"):
        raise MemoryError("none left")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and limits")
def test_train_reports_a_lack_of_memory_in_one_line(tmp_path):
    path, checkpoint = tmp_path / "wide.parquet", tmp_path / "learner.npz"
    columns = {"t": np.repeat(np.arange(4), 2), "y": np.arange(8.0)}
    columns |= {f"x{j}": np.arange(8.0) % (j + 2) for j in range(1500)}
    parquet.write_table(pyarrow.table(columns), path)
    options = ["--task", "t", "--target", "y", "--learner", "online", "--validation", "2"]
    command = ["train", str(path), *options, "--checkpoint", str(checkpoint)]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *command],
        capture_output=True,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "fastltl train: no memory for 90 matrices of 1500 x 1500 numbers, 1.6 GB: use fewer "
        "features, or fewer values of lam."
    )
    assert not checkpoint.exists()
