"""Readers of files, given files that were tampered with: a sentence, or a right result."""

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
from fastltl.io import storage
from fastltl.io.tables import read_tasks

#: Files for each of the readers: more than 20,000 in all. Another seed makes others.
N_FILES = int(os.environ.get("FASTLTL_FUZZ", "3000"))
SEED = os.environ.get("FASTLTL_FUZZ_SEED", "")

FOUND = Path(__file__).parent / "found"

environment = ltl.datasets.make_environment(n_features=3, noise=0.1, random_state=0)
TASKS = environment.tasks(6, n_samples=3)


def tampered(content, chance):
    """The bytes with some changed, taken out, put in, doubled or cut off."""
    content = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        place = chance.randrange(len(content) + 1)
        length = chance.choice([1, 1, 2, 4, 8, 30])
        piece = content[place : place + length]
        kind = chance.randrange(6)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            content[place : place + length] = chance.randbytes(length)
        elif kind == 2:
            del content[place : place + length]
        elif kind == 3:
            content[place:place] = piece
        elif kind == 4:
            other = chance.randrange(len(content) + 1)
            content[place : place + length] = content[other : other + length]
        elif chance.random() < 0.2:
            del content[place:]
    return bytes(content)


#: What a forger may write in the place of a value.
VALUES = ["-1", "0", "7", "1e9", "1e400", "null", "true", '"x"', "[]", "{}", "[1]", "NaN"]


def forged(content, chance):
    """A checkpoint with other values in header and arrays, and checksums that fit them."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files if name != storage.HEADER}
        header = archive[storage.HEADER].decode()
    before = storage._checksum(arrays)
    if chance.random() < 0.5:
        name = chance.choice(sorted(arrays))
        array = arrays[name].copy()
        kind = chance.randrange(4)
        if kind == 0:
            array.flat[chance.randrange(array.size)] = chance.choice([0, -1, 7, 10**9])
        elif kind == 1:
            array = array.astype(chance.choice(["f4", "i8", "f8", "u1", "c16", "S3"]))
        elif kind == 2:
            array = array[..., : chance.randrange(3)]
        else:
            array = np.frombuffer(tampered(array.tobytes(), chance)[:8], "u1")
        arrays[name] = array
    for _ in range(chance.choice([0, 1, 1, 2])):
        token = chance.choice(list(re.finditer(r'"[^"]*"|-?[0-9][0-9.e+-]*|true|null', header)))
        header = header[: token.start()] + chance.choice(VALUES) + header[token.end() :]
    header = header.replace(before, storage._checksum(arrays))
    file = io.BytesIO()
    storage._write_archive(file, header.encode(), arrays)
    storage._seal(file)
    return file.getvalue()


def checkpoint_file(path):
    path = path.with_suffix(".npz")
    validation = TASKS.split_samples(0.5, random_state=0)
    ltl.OnlineLTLPath([0.1, 1.0], validation).fit(TASKS).save(path)
    return path.read_bytes()


def frame():
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    labels = np.repeat([f"t{i}" for i in range(6)], 3)
    return {"task": labels, "a": X[:, 0], "b": X[:, 1].round(1), "y": y}


def csv_file(path):
    columns = frame()
    lines = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    return "\n".join(lines).encode()


def parquet_file(path):
    parquet.write_table(pyarrow.table(frame()), path, row_group_size=5)
    return path.read_bytes()


def npz_file(path):
    path.mkdir()
    np.savez(path / "t.npz", **frame())
    return (path / "t.npz").read_bytes()


def load(path):
    """What a forger makes up need make no sense, but nothing may crash."""
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
    "checkpoint": (checkpoint_file, tampered, load),
    "forged checkpoint": (checkpoint_file, forged, load),
    "csv stream": (csv_file, tampered, stream),
    "parquet stream": (parquet_file, tampered, stream),
    "npz stream": (npz_file, tampered, folder),
    "csv table": (csv_file, tampered, table),
    "parquet table": (parquet_file, tampered, table),
}


def read(reader, path):
    """Whatever is in a file, reading it ends well or in a ValueError of one line."""
    with warnings.catch_warnings():
        # A forger may well write numbers that overflow, or a lam at the edge.
        warnings.simplefilter("ignore")
        try:
            reader(path)
        except ValueError as error:
            message = str(error)
        else:
            return True
    assert 0 < len(message) < 2000
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_files_that_were_tampered_with(tmp_path, name):
    write, tamper, reader = READERS[name]
    content, chance = write(tmp_path / "whole"), random.Random(SEED + name)
    path = tmp_path / "tampered.npz"
    n_refused = 0
    for _ in range(N_FILES):
        path.write_bytes(tamper(content, chance))
        n_refused += not read(reader, path)
    assert n_refused > N_FILES // 10


@pytest.mark.parametrize("path", sorted(FOUND.glob("*")), ids=lambda path: path.name)
def test_files_that_once_did_harm(path, tmp_path):
    """Kept by name: the reader, and a number."""
    _, _, reader = READERS[path.stem.rpartition(" ")[0]]
    copy = tmp_path / "tampered.npz"
    copy.write_bytes(path.read_bytes())
    assert not read(reader, copy)


def test_headers_nested_beyond_reason(tmp_path):
    path = tmp_path / "deep.npz"
    ltl.OnlineLTL().save(path)
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    text = json.dumps(header).replace('"position": {}', '"position": ' + "[" * 10**5 + "]" * 10**5)
    with path.open("w+b") as file:
        storage._write_archive(file, text.encode(), {})
        storage._seal(file)
    with pytest.raises(ValueError, match="no checkpoint that can be read"):
        ltl.load(path)
