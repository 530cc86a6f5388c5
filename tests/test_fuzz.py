"""Corrupted files are read correctly or refused with a one-line ValueError, in little memory."""

import io
import json
import os
import random
import re
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import fastltl as ltl
from fastltl.io import checkpoints
from fastltl.io.tables import read_tasks

#: Files per reader; FASTLTL_FUZZ_SEED changes the corruptions.
few_or_many = pytest.mark.parametrize(
    "n_files", [100, pytest.param(20_000, marks=pytest.mark.slow)]
)
SEED = os.environ.get("FASTLTL_FUZZ_SEED", "")

FOUND = Path(__file__).parent / "found"

#: Memory that reading a small file may take, and times its size that reading a large one may.
MOST_BYTES = 32 * 2**20
MOST_TIMES = 100

environment = ltl.datasets.make_environment(n_features=3, noise=0.1, random_state=0)
TASKS = environment.tasks(6, n_samples=3)


def corrupt_bytes(content, rng):
    """Flip, replace, delete, duplicate or move some bytes, or truncate the file."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(content) + 1)
        length = rng.choice([1, 1, 2, 4, 8, 30])
        piece = content[place : place + length]
        kind = rng.randrange(6)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            del content[place : place + length]
        elif kind == 3:
            content[place:place] = piece
        elif kind == 4:
            other = rng.randrange(len(content) + 1)
            content[place : place + length] = content[other : other + length]
        elif rng.random() < 0.2:
            del content[place:]
    return bytes(content)


#: JSON values that replace others in a forged header.
VALUES = ["-1", "0", "7", "1e9", "1e400", "null", "true", '"x"', "[]", "{}", "[1]", "NaN"]


def forge_checkpoint(content, rng):
    """Change the header or arrays of a checkpoint and update its checksums to match."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files if name != checkpoints.HEADER}
        header = archive[checkpoints.HEADER].decode()
    if rng.random() < 0.5:
        name = rng.choice(sorted(arrays))
        array = arrays[name].copy()
        kind = rng.randrange(4)
        if kind == 0:
            array.flat[rng.randrange(array.size)] = rng.choice([0, -1, 7, 10**9])
        elif kind == 1:
            array = array.astype(rng.choice(["f4", "i8", "f8", "u1", "c16", "S3"]))
        elif kind == 2:
            array = array[..., : rng.randrange(3)]
        else:
            array = np.frombuffer(corrupt_bytes(array.tobytes(), rng)[:8], "u1")
        arrays[name] = array
    for _ in range(rng.choice([0, 1, 1, 2])):
        token = rng.choice(list(re.finditer(r'"[^"]*"|-?[0-9][0-9.e+-]*|true|null', header)))
        header = header[: token.start()] + rng.choice(VALUES) + header[token.end() :]
    file = io.BytesIO()
    checkpoints._write_archive(file, header.encode(), arrays)
    checkpoints._seal(file)
    return file.getvalue()


def prior_file(path):
    path = path.with_suffix(".npz")
    ltl.BayesLTL().fit(TASKS).save(path)
    return path.read_bytes()


def checkpoint_file(path):
    path = path.with_suffix(".npz")
    validation = TASKS.split_samples(0.5, random_state=0)
    ltl.OnlineLTLPath([0.1, 1.0], validation).fit(TASKS).save(path)
    return path.read_bytes()


def frame():
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    labels = np.repeat([f"t{i}" for i in range(6)], 3)
    return {"task": labels, "a": X[:, 0], "b": X[:, 1].round(1), "y": y}


def typed_frame():
    """Return a table that also has a text and a boolean."""
    return frame() | {"s": ["F", "M", "F"] * 6, "b": [True, False] * 9}


def csv_file(path):
    columns = typed_frame()
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    return "\n".join(lines).encode()


def parquet_file(path):
    parquet.write_table(pyarrow.table(typed_frame()), path, row_group_size=5)
    return path.read_bytes()


def npz_file(path):
    path.mkdir()
    np.savez(path / "t.npz", **frame())
    return (path / "t.npz").read_bytes()


def load(path):
    """Load and use a learner: a forged state may be meaningless, but must not crash."""
    ltl.load(path).partial_fit(*TASKS[0])


def stream(path):
    for X, y in ltl.open_stream(path, task="task", target="y"):
        assert np.isfinite(X).all()
        assert len(X) == len(y) > 0


def folder(path):
    stream(path.parent)


def table(path):
    assert len(read_tasks(path, "task", "y")) > 0


READERS = {
    "checkpoint": (checkpoint_file, corrupt_bytes, load),
    "forged checkpoint": (checkpoint_file, forge_checkpoint, load),
    "forged prior": (prior_file, forge_checkpoint, load),
    "csv stream": (csv_file, corrupt_bytes, stream),
    "parquet stream": (parquet_file, corrupt_bytes, stream),
    "npz stream": (npz_file, corrupt_bytes, folder),
    "csv table": (csv_file, corrupt_bytes, table),
    "parquet table": (parquet_file, corrupt_bytes, table),
}


def memory(name):
    """Return a number of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)[1])


class PeakMemory:
    """By how much memory grew at most while each of several calls ran, where Linux tells."""

    def __init__(self):
        self.bytes = 0
        self._peak = Path("/proc/self/clear_refs")
        self._is_known = os.access(self._peak, os.W_OK)

    def __call__(self, function, *arguments):
        if not self._is_known:
            return function(*arguments)
        self._peak.write_text("5")  # the peak becomes what is in use now
        before = memory("VmHWM")
        result = function(*arguments)
        self.bytes = max(self.bytes, memory("VmHWM") - before)
        return result


def read(reader, path):
    """Return whether the file was read; if not, the error is a short ValueError."""
    with warnings.catch_warnings():
        # Forged numbers may overflow, or put lam at the edge of the grid.
        warnings.simplefilter("ignore")
        try:
            reader(path)
        except ValueError as error:
            message = str(error)
        else:
            return True
    assert 0 < len(message) < 2000
    return False


@pytest.mark.compiled
@pytest.mark.parametrize("name", READERS)
@few_or_many
def test_corrupted_files(tmp_path, name, n_files):
    write, corrupt, reader = READERS[name]
    content, rng = write(tmp_path / "whole"), random.Random(SEED + name)
    path, peak = tmp_path / "corrupted.npz", PeakMemory()
    path.write_bytes(content)
    assert read(reader, path)  # which loads and compiles what the reader needs
    n_refused = 0
    for _ in range(n_files):
        path.write_bytes(corrupt(content, rng))
        n_refused += not peak(read, reader, path)
    assert n_refused > n_files // 10
    print(f"{n_refused} of {n_files} files refused, {peak.bytes / 2**20:.1f} MB at the most")
    assert peak.bytes <= MOST_BYTES


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [csv_file, parquet_file])
@few_or_many
def test_tables_and_streams_read_corrupted_files_alike(tmp_path, write, n_files):
    content, rng = write(tmp_path / "whole"), random.Random(SEED + write.__name__)
    path, n_read = tmp_path / "corrupted", 0
    for _ in range(n_files // 5):
        path.write_bytes(corrupt_bytes(content, rng))
        try:
            streamed = ltl.open_stream(path, "task", "y").collection()
        except ValueError as error:
            if "must be adjacent" not in str(error):
                with pytest.raises(ValueError, match=r"."):
                    read_tasks(path, "task", "y")
            continue
        tasks, n_read = read_tasks(path, "task", "y"), n_read + 1
        assert tasks.feature_names == streamed.feature_names
        assert tasks.labels.tolist() == streamed.labels.tolist()
        for one, other in zip(tasks, streamed, strict=True):
            assert all(map(np.array_equal, one, other))
    assert n_read > n_files // 100


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "part", ["[],", "{},", '{"a":1},', "1.5,", "1,", '"ab",', '{"$tuple":[]},', "[[[[]]]],"]
)
def test_memory_for_a_header_is_bounded(tmp_path, part):
    path, peak = tmp_path / "large.npz", PeakMemory()
    ltl.OnlineLTL().save(path)
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    values = part * (2**20 // len(part))
    text = json.dumps(header).replace('"position": {}', f'"position": {{"x": [{values} 0]}}')
    with path.open("w+b") as file:
        checkpoints._write_archive(file, text.encode(), {})
        checkpoints._seal(file)
    assert peak(ltl.load, path).lam == 1.0
    assert peak.bytes <= MOST_TIMES * path.stat().st_size


@pytest.mark.parametrize("path", sorted(FOUND.glob("*")), ids=lambda path: path.name)
def test_files_that_were_once_too_much_for_a_reader(path, tmp_path):
    """The name of a file is that of its reader and a number."""
    _, _, reader = READERS[path.stem.rpartition(" ")[0]]
    copy = tmp_path / "corrupted.npz"
    copy.write_bytes(path.read_bytes())
    peak = PeakMemory()  # of the first call, as pyarrow keeps memory for the next
    assert not peak(read, reader, copy)
    assert peak.bytes <= MOST_BYTES


def test_deeply_nested_header(tmp_path):
    path = tmp_path / "deep.npz"
    ltl.OnlineLTL().save(path)
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    text = json.dumps(header).replace('"position": {}', '"position": ' + "[" * 10**5 + "]" * 10**5)
    with path.open("w+b") as file:
        checkpoints._write_archive(file, text.encode(), {})
        checkpoints._seal(file)
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        ltl.load(path)
