"""Checkpoints: a learner in a file that is written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from os import PathLike
from typing import IO, Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

import fastltl
from fastltl._validation import as_objects, check_path, read_errors
from fastltl.io.files import whole_file
from fastltl.tasks import TaskSet

#: Format of checkpoints. Every format stays readable: tests keep samples of each.
FORMAT = 3

HEADER = "header.json"

#: Classes that a checkpoint may hold.
LEARNERS = (
    "BayesLTL",
    "OnlineLTL",
    "OnlineLTLPath",
    "BatchLTL",
    "MTL",
    "ITL",
    "RepresentationRidge",
)

#: A checkpoint ends with this and the hexadecimal SHA-256 of everything before. It is the comment
#: of the zip file, so NumPy reads the arrays as usual.
SEAL = b"fastltl checkpoint, sha256 "
DIGITS = 64


class Checkpoint(NamedTuple):
    """A learner's class, parameters and state, and its position in a stream."""

    learner: str
    parameters: dict[str, Any]
    state: dict[str, Any] | None
    position: dict[str, Any]


class Savable:
    """An estimator that `save` writes to a file and `fastltl.load` reads back."""

    #: Attributes of the fitted state, all optional, and their types.
    _KEPT: ClassVar[dict[str, type]]

    def save(self, path: str | PathLike[str]) -> None:
        """Save the learner to a file, from which `fastltl.load` continues with the same bits.

        The file is a NumPy ``.npz`` with a JSON header. It is written whole or not at all: an
        earlier file stays until the new one is on the disk.

        Examples
        --------
        >>> import os, tempfile
        >>> import fastltl as ltl
        >>> learner = ltl.OnlineLTL(lam=0.1).partial_fit([[1.0, 2.0]], [3.0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "learner.npz")
        ...     learner.save(path)
        ...     again = ltl.load(path)
        >>> again.n_tasks_seen_, bool((again.D_ == learner.D_).all())
        (1, True)
        """
        write_checkpoint(path, self._checkpoint({}))

    def _checkpoint(self, position: dict[str, Any]) -> Checkpoint:
        owner = type(self)
        if not owner.__module__.startswith("fastltl."):
            raise TypeError(f"save supports the learners of fastltl only, got {owner.__name__}.")
        parameters: dict[str, Any] = self.get_params(deep=False)  # type: ignore[attr-defined]
        return Checkpoint(owner.__name__, parameters, self._state(), position)

    def _state(self) -> dict[str, Any] | None:
        """Return the fitted state, None before the first fit."""
        kept = self._kept()
        return {name: self.__dict__[name] for name in kept if name in self.__dict__} or None

    @classmethod
    def _kept(cls) -> dict[str, type]:
        """Return the attributes that this class and its bases save."""
        kept: dict[str, type] = {}
        for owner in cls.__mro__:
            kept |= vars(owner).get("_KEPT", {})
        return kept

    def _restore(self, state: dict[str, Any]) -> None:
        """Set the fitted state to that of a checkpoint."""
        kept = self._kept()
        for name, value in state.items():
            check_type(value, kept[name], name)
        self.__dict__.update(state)


def check_type(value: Any, kind: type, name: str) -> None:
    """Check the type of a value of a checkpoint; a number must be finite."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")


def check_saved_array(array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Check an array of a checkpoint: its shape, its type, and that it is finite."""
    is_float = array.dtype == np.float64
    if not is_float or array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"an array has shape {array.shape} and type {array.dtype}, not {shape}")


def write_checkpoint(path: str | PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    content = {name: _encode(value, name, arrays) for name, value in checkpoint._asdict().items()}
    header = {"format": FORMAT, "fastltl": fastltl.__version__, **content}
    try:
        with whole_file(path) as file:
            _write_archive(file, json.dumps(header, indent=1).encode(), arrays)
            _seal(file)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise OSError(
            error.errno,
            f"{error.strerror or error}: nothing was saved, and an earlier file is unchanged"
            f"{'; free some space or save elsewhere' if is_full else ''}",
            os.fspath(path),
        ) from error


def _write_archive(file: BinaryIO, header: bytes, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a zip file as `numpy.savez` does, but without times, so that bytes are reproducible."""
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(HEADER), header)
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = SEAL + b"0" * DIGITS


def _seal(file: BinaryIO) -> None:
    size = file.seek(-DIGITS, os.SEEK_END)
    digest = _digest(file, size)
    file.seek(size)
    file.write(digest)


def _digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of the first bytes of a file."""
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(min(size, 2**20)):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest().encode()


def read_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read a checkpoint; no code in the file is run."""
    with open(check_path(path), "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file, so it is no checkpoint.")
        _check_seal(file, path)
        with read_errors(path, "a checkpoint"):
            header, arrays = _read_archive(file)
    if header.get("format") not in (1, 2, FORMAT):
        raise ValueError(
            f"{path} has format {header.get('format')} and was written by fastltl "
            f"{header.get('fastltl')}: fastltl {fastltl.__version__} is too old to read it."
        )
    with read_errors(path, "a checkpoint"):
        content = {name: _decode(header[name], arrays) for name in Checkpoint._fields}
        for name, kind in {"learner": str, "parameters": dict, "position": dict}.items():
            check_type(content[name], kind, name)
        if content["state"] is not None:
            check_type(content["state"], dict, "state")
        checkpoint = Checkpoint(**content)
        return checkpoint if header["format"] == FORMAT else _with_objective(checkpoint)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a named pipe without a writer would block."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_archive(file: BinaryIO) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return header and arrays of a checkpoint, in memory proportional to the size of the file."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("its members are compressed")
        if sum(member.file_size for member in members) > os.fstat(file.fileno()).st_size:
            raise ValueError("its members are larger than the file")
        contents = {member.filename: archive.read(member) for member in members}
    header = json.loads(contents.pop(HEADER))
    check_type(header, dict, "header")
    arrays = {name.removesuffix(".npy"): _read_array(data) for name, data in contents.items()}
    return header, arrays


def _read_array(content: bytes) -> npt.NDArray[Any]:
    """Return the numbers of a .npy file."""
    file = io.BytesIO(content)
    shape, is_fortran, dtype = read_npy_header(file, len(content))
    if dtype.kind not in "biuf":
        raise ValueError(f"an array has the type {dtype}")
    array = np.frombuffer(content, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if is_fortran else "C").copy(order="K")


def read_npy_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and type of a .npy file of so many bytes, which must hold that array."""
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    if dtype.hasobject:
        raise ValueError("an array has the type object, which is never unpickled")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"an array of shape {shape} is not in its {size} bytes")
    return shape, is_fortran, dtype


def _with_objective(checkpoint: Checkpoint) -> Checkpoint:
    """Add the objective to a checkpoint of formats 1 and 2, which knew the error only."""
    learner, parameters, state, position = checkpoint
    if learner in ("OnlineLTL", "OnlineLTLPath", "BatchLTL"):
        parameters = {**parameters, "objective": "error"}
    if learner in ("OnlineLTL", "OnlineLTLPath") and state is not None:
        records = state["run"]["records"]
        records["regularized"] = [0] * len(records["n_tasks"])
    return Checkpoint(learner, parameters, state, position)


def _check_seal(file: BinaryIO, path: str | PathLike[str]) -> None:
    """Check that the file is as `write_checkpoint` wrote it."""
    length = len(SEAL) + DIGITS
    start = file.read(30 + len(HEADER))
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - length))
    end = file.read()
    if end.startswith(SEAL) and len(end) == length:
        if _digest(file, size - DIGITS) != end[len(SEAL) :]:
            raise ValueError(f"{path} is damaged: its checksum does not match.")
    elif start and b"PK\x03\x04".startswith(start[:4]) and HEADER.encode().startswith(start[30:]):
        raise ValueError(f"{path} is cut short: the end of the checkpoint is missing.")
    else:
        raise ValueError(f"{path} is not a checkpoint of fastltl.")


def _encode(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Encode a value for JSON; other types become a dict whose only key names the type."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    # isoformat would drop the nanoseconds of pandas.
    if isinstance(value, datetime | date) and not getattr(value, "nanosecond", 0):
        return {f"${'datetime' if isinstance(value, datetime) else 'date'}": value.isoformat()}
    if isinstance(value, TaskSet):
        return {"$tasks": _encode(value.__reduce__()[1], name, arrays)}
    if isinstance(value, list | tuple):
        items = [_encode(one, f"{name}/{i}", arrays) for i, one in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict):
        return {key: _encode(one, f"{name}/{key}", arrays) for key, one in value.items()}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            arrays[name] = array
            return {"$array": name}
        if array.ndim == 1 and array.dtype.kind in "OU":
            return {"$objects": _encode(array.tolist(), name, arrays)}
    owner = (name + "/").split("/")[1]
    raise TypeError(
        f"{owner} cannot be saved: it must consist of numbers, text, dates and arrays of them, got "
        f"{type(value).__name__}."
    )


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Invert `_encode`."""
    if isinstance(value, list):
        return [_decode(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if not kind.startswith("$"):
        return {key: _decode(one, arrays) for key, one in value.items()}
    decoders: dict[str, Callable[[Any], Any]] = {
        "$array": arrays.__getitem__,
        "$float": float,
        "$date": date.fromisoformat,
        "$datetime": datetime.fromisoformat,
        "$tuple": tuple,
        "$objects": as_objects,
        "$tasks": _check_tasks,
    }
    if kind not in decoders:
        raise ValueError(f"unknown type {kind}")
    return decoders[kind](_decode(value[kind], arrays))


def _check_tasks(arrays: Sequence[Any]) -> TaskSet:
    """Return a TaskSet of packed arrays, after checking them."""
    X, y, offsets, labels, names = arrays
    if not (
        (X.dtype, y.dtype, offsets.dtype) == (np.float64, np.float64, np.int64)
        and (X.ndim, y.ndim, offsets.ndim) == (2, 1, 1)
        and len(offsets) == len(labels) + 1
        and offsets[0] == 0
        and offsets[-1] == len(X) == len(y)
        and (np.diff(offsets) > 0).all()
        and (names is None or len(names) == X.shape[1])
    ):
        raise ValueError("the arrays of its tasks do not fit together")
    return TaskSet._packed(X, y, offsets, labels, names)


def load(path: str | PathLike[str]) -> Any:
    """Load a learner as it was saved; what it learns from here on has the same bits.

    No code in the file is run. A file that is cut short, damaged, of another kind or of a newer
    format is refused with a ValueError that says which.

    Examples
    --------
    >>> import os, tempfile
    >>> import fastltl as ltl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "ridge.npz")
    ...     ltl.RepresentationRidge(lam=0.5).fit([[1.0], [1.0]], [3.0, 3.0]).save(path)
    ...     model = ltl.load(path)
    >>> model
    RepresentationRidge(lam=0.5)
    >>> model.predict([[2.0]])
    array([4.])
    """
    saved = read_checkpoint(path)
    if saved.position.get("scale") is not None:
        warnings.warn(
            f"the learner of {path} takes features divided by scales that `load` does not apply: "
            "use 'fastltl adapt', which does.",
            stacklevel=2,
        )
    return restored(saved, path)


def restored(checkpoint: Checkpoint, path: str | PathLike[str]) -> Any:
    """Return the learner of a checkpoint that was read from a file."""
    with read_errors(path, checkpoint.learner):
        if checkpoint.learner not in LEARNERS:
            raise ValueError(f"unknown learner {checkpoint.learner!r}")
        owner = getattr(fastltl, checkpoint.learner)
        if checkpoint.parameters.keys() != set(owner._get_param_names()):
            raise ValueError(f"{', '.join(checkpoint.parameters)} are not its parameters")
        learner = owner(**checkpoint.parameters)
        if checkpoint.state is not None:
            learner._restore(checkpoint.state)
        return learner
