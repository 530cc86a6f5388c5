"""Forge checkpoints, load and use them, and count how that ends.

``python tests/forge.py`` takes each checkpoint of `tests/checkpoints`, which has one of every
format and learner. It replaces each value of the header, each array and each part of the archive by
hostile ones, one at a time, and writes the result with a valid checksum. A forged file may be
refused with a ValueError, or loaded as a learner whose results are all finite. Any other end counts
as a failure. The process runs under a memory limit of 1 GB.
"""

import argparse
import collections
import copy
import io
import itertools
import json
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np

import fastltl as ltl
from fastltl.io import checkpoints

SAMPLES = Path(__file__).parent / "checkpoints"

LIMIT = 2**30

#: Values that replace one of the header; DELETED removes it.
DELETED = object()
VALUES = [
    DELETED,
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    5,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**400,
    0.5,
    -0.5,
    5e-324,
    1e308,
    -1e308,
    {"$float": "nan"},
    {"$float": "inf"},
    {"$float": "x"},
    "",
    "x",
    "a\x00\x1b[31m\u202e",
    [],
    [1],
    [None, None, None],
    [[[]]],
    {},
    {"x": 1},
    {"$array": "missing"},
    {"$array": []},
    {"$tuple": [1, 2]},
    {"$tuple": 1},
    {"$date": "9999-12-31"},
    {"$datetime": "x"},
    {"$objects": [1, "x", None]},
    {"$tasks": [1, 2, 3, 4, 5]},
    {"$unknown": 1},
]


def read_parts(content):
    """Return header and arrays of a checkpoint."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files if name != checkpoints.HEADER}
        return json.loads(archive[checkpoints.HEADER]), arrays


def sealed(write):
    """Return the bytes of an archive that `write` fills, with a valid checksum."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        write(archive)
        archive.comment = checkpoints.SEAL + b"0" * checkpoints.DIGITS
    checkpoints._seal(file)
    return file.getvalue()


def join_parts(header, arrays):
    """Return the bytes of a checkpoint."""
    file = io.BytesIO()
    checkpoints._write_archive(file, json.dumps(header).encode(), arrays)
    checkpoints._seal(file)
    return file.getvalue()


def places(value, path=()):
    """Yield the paths of all values in a header."""
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(min(len(value), 3))
        for key in keys:
            yield from places(value[key], (*path, key))


def replaced(header, path, new):
    """Return a copy of a header with another value at a path."""
    header = copy.deepcopy(header)
    if not path:
        return new
    owner = header
    for key in path[:-1]:
        owner = owner[key]
    if new is DELETED:
        del owner[path[-1]]
    else:
        owner[path[-1]] = new
    return header


def other_arrays(array):
    """Yield arrays of other types, shapes and numbers."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in ("f4", "i8", "u1", "?", ">f8", "c16", "S3", "M8[s]"):
            yield array.astype(kind)
    yield array.ravel()
    yield array[:0]
    yield array[:1]
    yield array[..., :1]
    yield array[None]
    yield np.concatenate([array, array])
    yield np.asfortranarray(array)
    yield np.float64(1.0)
    for value in (np.nan, np.inf, 0.0, -1.0, 1.0, 7.0, 1e-308, 1e150, -1e308):
        for place in (0, 1, -1):
            if array.dtype == np.float64 and array.size > 1:
                changed = array.copy()
                changed.flat[place] = value
                yield changed
        if array.dtype == np.float64:
            yield np.full_like(array, value)
    if array.dtype.kind in "iu":
        for value in (0, -1, 2**31, 2**63 - 1, -(2**63)):
            for place in (0, 1, -1):
                changed = array.copy()
                changed.flat[place] = value
                yield changed
    yield array[::-1].copy()
    yield 2.0 * array
    yield -array


def npy_with_shape(shape, descr="<f8", order=False):
    """Return the start of a .npy file that declares a shape, and 64 bytes."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)
    return file.getvalue() + bytes(64)


#: Contents of a .npy member that declares what it does not hold.
MEMBERS = [
    b"",
    b"\x93NUMPY",
    npy_with_shape((2**40,)),
    npy_with_shape((2**62, 2**62)),
    npy_with_shape((-1,)),
    npy_with_shape((-2, -4)),
    npy_with_shape((0, 2**62)),
    npy_with_shape((1,) * 80),
    npy_with_shape((8,), "|O"),
    npy_with_shape((8,), "<U2147483647"),
    npy_with_shape((8,), [("a", "<f8")]),
    npy_with_shape((2, 4), order=True),
    np.lib.format.magic(9, 9) + bytes(64),
]


def bombs():
    """Yield archives whose members are compressed, to a thousandth of what they unpack to."""
    kinds = zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA
    for name, kind in itertools.product((checkpoints.HEADER, "state/x.npy"), kinds):

        def write(archive, name=name, kind=kind):
            if name != checkpoints.HEADER:
                archive.writestr(checkpoints.HEADER, "{}")
            member = zipfile.ZipInfo(name)
            member.compress_type = kind
            with archive.open(member, "w", force_zip64=True) as file:
                for _ in range(2 * LIMIT // 2**20 if kind == zipfile.ZIP_DEFLATED else 8):
                    file.write(bytes(2**20))

        yield sealed(write)


def other_archives(header, arrays):
    """Yield archives that are not as `write_checkpoint` writes them."""
    text = json.dumps(header)
    for name, content in itertools.product(itertools.islice(arrays, 2), MEMBERS):

        def write(archive, name=name, content=content):
            archive.writestr(checkpoints.HEADER, text)
            for other, array in arrays.items():
                with archive.open(f"{other}.npy", "w") as member:
                    if other == name:
                        member.write(content)
                    else:
                        np.lib.format.write_array(member, array)

        yield sealed(write)
    for texts in (["[" * 10**5], ['{"a":' * 10**5], [text, text], ["null"], ["[]"], ["1" * 10**6]):

        def write(archive, texts=texts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the name that is there twice
                for one in texts:
                    archive.writestr(checkpoints.HEADER, one)

        yield sealed(write)
    for names in (["../x.npy"], ["/x.npy"], ["x"], ["state.npy", "state.npy"]):

        def write(archive, names=names):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(checkpoints.HEADER, text)
                for one in names:
                    archive.writestr(one, npy_with_shape((8,)))

        yield sealed(write)


def forged(content):
    """Yield what was changed, and the bytes of the forged checkpoint."""
    header, arrays = read_parts(content)
    for path in places(header):
        for value in VALUES:
            if not (value is DELETED and not path):
                yield f"{path} = {value!r:.40}", join_parts(replaced(header, path, value), arrays)
    for name, array in arrays.items():
        for i, other in enumerate(other_arrays(array)):
            yield f"{name}: array {i}", join_parts(header, arrays | {name: np.asarray(other)})
        rest = {other: array for other, array in arrays.items() if other != name}
        yield f"without {name}", join_parts(header, rest)
    for i, archive in enumerate(other_archives(header, arrays)):
        yield f"archive {i}", archive


def check_finite(value):
    """Raise an AssertionError if a result has a number that is not finite."""
    if isinstance(value, float | np.floating):
        assert np.isfinite(value), value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        assert np.isfinite(value).all(), value
    elif isinstance(value, list | tuple):
        for one in value:
            check_finite(one)


def results(learner):
    """Yield what a learner computes; it is fitted, or raises a NotFittedError, a ValueError."""
    repr(learner)
    d = getattr(learner, "n_features_in_", 4)
    rng = np.random.default_rng(0)
    tasks = ltl.TaskSet([(rng.normal(size=(n, d)), rng.normal(size=n)) for n in (1, 3, 7)])
    for name in dir(type(learner)):
        if name.endswith("_") and not name.startswith("_"):
            yield lambda name=name: getattr(learner, name, 0.0)
    yield lambda: [value for name, value in vars(learner).items() if name.endswith("_")]
    X, y = tasks[1]
    if hasattr(learner, "transform"):
        yield lambda: learner.transform(X)
        yield lambda: learner.get_feature_names_out().tolist()
        yield lambda: learner.adapt(X, y).predict(X)
        yield lambda: learner.adapt(tasks).predict(X, np.zeros(3, dtype=int))
    if hasattr(learner, "labels_"):
        yield lambda: learner.predict(X, [learner.labels_[0]] * 3)
    elif hasattr(learner, "predict"):
        yield lambda: learner.predict(X)
    if isinstance(learner, ltl.BayesLTL):
        yield lambda: learner.predict(X, return_std=True)
        yield lambda: learner.adapt(X, y).predict(X, return_std=True)
    yield lambda: learner.save(Path(tempfile.gettempdir()) / "forged-again.npz")
    if hasattr(learner, "partial_fit"):
        for X_task, y_task in tasks:
            yield lambda X=X_task, y=y_task: learner.partial_fit(X, y).n_tasks_seen_
        yield lambda: learner.covariance_ if hasattr(learner, "mean_") else learner.D_


def outcome(path):
    """Load and use a checkpoint; return "refused", "used", or an error that is no ValueError."""
    try:
        learner = ltl.load(path)
    except ValueError as error:
        if isinstance(error.__cause__, MemoryError):
            return "load: MemoryError"
        return "refused"
    except Exception as error:
        return f"load: {type(error).__name__}: {error}"
    for compute in results(learner):
        try:
            check_finite(compute())
        except ValueError:
            continue
        except Exception as error:
            return f"use: {type(error).__name__}: {error}"
    return "used"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="try one file in this many")
    parser.add_argument("--samples", default="format-*.npz", help="which checkpoints to forge")
    options = parser.parse_args()
    for sample in SAMPLES.glob("format-*.npz"):  # compiles before memory is limited
        assert outcome(sample) == "used"
    extra = [(f"bomb {i}", content) for i, content in enumerate(bombs())]
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    warnings.simplefilter("ignore")
    counts, failures = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forged.npz"
        for sample in sorted(SAMPLES.glob(options.samples)):
            files = itertools.islice(forged(sample.read_bytes()), 0, None, options.every)
            for what, content in itertools.chain(files, extra):
                path.write_bytes(content)
                print(sample.stem, what, file=sys.stderr)  # the last line names a crash
                end = outcome(path)
                kind = end if end in ("refused", "used") else "failed"
                counts[kind] += 1
                if kind == "failed":
                    failures[end[:60]] += 1
                    if failures[end[:60]] <= 2:
                        print(f"{sample.stem}, {what}: {end}", flush=True)
    print(", ".join(f"{counts[kind]} {kind}" for kind in ("refused", "used", "failed")))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
