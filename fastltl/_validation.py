"""Arguments at the boundary: an error names the argument, what was wanted and what came."""

import math
from datetime import date, timedelta
from numbers import Integral, Real
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array, column_or_1d

from fastltl import _kernels as kernels

Array = npt.NDArray[np.float64]

Result = TypeVar("Result", float, Array)

_FLOAT64 = np.dtype(np.float64)
_ndarray = np.ndarray

#: Of some of these float() makes a number, though they are none.
_NO_NUMBERS = (str, bytes, date, timedelta, np.datetime64, np.timedelta64)

#: A matrix counts as symmetric, or PSD, if it is to this fraction of its largest entry or
#: eigenvalue: far above rounding, far below anything meant.
TOLERANCE = 1e-10


def is_ready(array: Any) -> bool:
    """Whether kernels take the array as it is.

    They are compiled for writable arrays only: a read-only one has another type in Numba, and
    copying it costs nothing beside compiling everything twice.
    """
    return type(array) is _ndarray and array.dtype == _FLOAT64 and array.flags.carray


def writable(array: Any) -> Any:
    """The array, copied if it is one that cannot be written to, as those of a TaskSet are."""
    return array.copy() if type(array) is _ndarray and not array.flags.writeable else array


def is_ready_task(X: Any, y: Any, n_features: int) -> bool:
    """Whether kernels take the task as it is, but for values that may not be finite.

    Every task of a stream passes here, in a fraction of the time that even a small one takes.
    """
    return (
        type(X) is type(y) is _ndarray
        and X.dtype == y.dtype == _FLOAT64
        and y.ndim == 1
        and X.shape == (len(y), n_features)
        and len(y) > 0 < n_features
        and X.flags.carray
        and y.flags.carray
    )


def text_or_dates(values: npt.NDArray[Any]) -> str:
    """Say what an array holds that NumPy would silently turn into numbers; nothing, if none."""
    strange = values.ravel()[:1].tolist() if values.dtype.kind in "US" else []
    if values.dtype == object:
        strange = [value for value in values.flat if isinstance(value, _NO_NUMBERS)]
    if strange:
        return f"{values.dtype} that holds {strange[0]!r}"
    return str(values.dtype) if values.dtype.kind in "USmM" else ""


def as_floats(array: npt.ArrayLike, name: str) -> Array:
    """A writable, C-contiguous float64 array of the same numbers, whatever its shape."""
    if type(array) is _ndarray and array.dtype.kind in "fiub":  # spares a search of 0.1 ms
        return np.require(array, np.float64, ["C", "A", "W"])
    wanted = f"{name} must be an array of real numbers"
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{wanted}, got a masked one: fill or drop the masked values first.")
    try:
        values = np.asarray(array)
        strange = text_or_dates(values)
        floats = check_array(
            values if isinstance(array, list | tuple) else array,
            dtype=None if strange else np.float64,
            order="C",
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name=name,
        )
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{wanted}, got {type(array).__name__} ({reason})") from error
    if strange:
        raise ValueError(f"{wanted}, got one of dtype {strange}.")
    return np.require(floats, requirements=["C", "A", "W"])


def reason_of(error: Exception) -> str:
    """What an error of a library says, in one line that is not too long."""
    return shorten(str(error).partition("\n")[0], 300, placeholder=" ...") or type(error).__name__


def check_finite(array: Array, name: str) -> None:
    """Every entry is finite; else say which is not."""
    if not kernels.all_finite(array):
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        value = "NaN" if np.isnan(array[place]) else f"{array[place]}"
        where = place[0] if len(place) == 1 else place
        raise ValueError(f"{name} must hold finite numbers only, got {value} at index {where}.")


def check_computed(result: Result) -> Result:
    """A result of finite arguments is finite too, unless they were too large or too small."""
    if not (math.isfinite(result) if type(result) is float else np.isfinite(result).all()):
        raise ValueError(
            "D, X and y must not be so large, or so small, that results overflow or lose all their "
            "digits; scale X and y."
        )
    return result


def check_matrix(
    X: npt.ArrayLike,
    n_features: int | None = None,
    name: str = "X",
    owner: str = "this representation",
) -> Array:
    """A finite matrix with a row per sample and a column per feature."""
    A: Array = X if is_ready(X) else as_floats(X, name)  # type: ignore[assignment]
    if A.ndim != 2:
        raise ValueError(
            f"{name} must be a 2-D array of shape (samples, features), got an array of shape "
            f"{A.shape}. Reshape your data with reshape(-1, 1) if it has a single feature or "
            "reshape(1, -1) if it is a single sample."
        )
    for size, thing in zip(A.shape, ("sample(s)", "feature(s)"), strict=True):
        if size == 0:
            raise ValueError(
                f"{name} has 0 {thing} (shape={A.shape}) while a minimum of 1 is required."
            )
    if n_features is not None and A.shape[1] != n_features:
        raise ValueError(
            f"{name} has {A.shape[1]} features, but {owner} is expecting {n_features} features "
            "as input."
        )
    check_finite(A, name)
    return A


def check_target(y: npt.ArrayLike | None, n_samples: int, owner: str = "a task") -> Array:
    """A finite vector with one value per sample."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
    v: Array = y if is_ready(y) else as_floats(y, "y")  # type: ignore[assignment]
    if v.ndim == 2 and v.shape[1] == 1:
        v = column_or_1d(v, warn=True)  # warns as scikit-learn does
    if v.ndim != 1:
        raise ValueError(
            f"y should be a 1d array with one value for each of the {n_samples} rows of X, got an "
            f"array of shape {v.shape} instead."
        )
    if len(v) != n_samples:
        raise ValueError(
            f"y must have one value for each of the {n_samples} rows of X, got {len(v)} values."
        )
    check_finite(v, "y")
    return v


def check_symmetric(A: npt.ArrayLike, name: str) -> Array:
    """A finite symmetric matrix, made symmetric to the bit."""
    A = as_floats(A, name)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.size == 0:
        raise ValueError(f"{name} must be a square matrix, got an array of shape {A.shape}.")
    check_finite(A, name)
    half = A / 2  # so that nothing overflows
    asymmetry = float(np.abs(half - half.T).max())
    if asymmetry > TOLERANCE * np.abs(half).max():
        raise ValueError(
            f"{name} must be symmetric, got entries that differ from their mirror image by up to "
            f"{2 * asymmetry:.3g}."
        )
    return half + half.T


def check_representation(D: npt.ArrayLike, n_features: int | None = None) -> Array:
    """A symmetric positive semidefinite matrix with a row per feature."""
    if hasattr(D, "get_params"):  # a learner, or the class of one
        name = D.__name__ if isinstance(D, type) else type(D).__name__
        raise TypeError(f"D must be an array of real numbers, got {name}: pass its D_.")
    D = check_symmetric(D, "D")
    if n_features is not None and len(D) != n_features:
        raise ValueError(
            f"D must have a row for each of the {n_features} features, got shape {D.shape}."
        )
    values = np.linalg.eigvalsh(D)
    if values[0] < -TOLERANCE * max(values[-1], 0.0):
        raise ValueError(
            f"D must be positive semidefinite, got one with the eigenvalue {values[0]:.3g}."
        )
    return D


def _is_number(value: Any, kind: type) -> bool:
    """Whether it is a number; to Python truth values are numbers too, to NumPy durations."""
    return isinstance(value, kind) and not isinstance(value, bool | np.timedelta64)


def _as_float(value: Any) -> float:
    """A real number as a float, NaN for what is none."""
    if type(value) is float:  # spares a search of abstract classes, as long as a small task takes
        return value
    try:
        return float(value) if _is_number(value, Real) else np.nan
    except OverflowError:  # a whole number or a fraction larger than any float
        return np.inf


def check_positive(value: Any, name: str, wanted: str = "a positive finite number") -> float:
    """A positive finite number."""
    number = _as_float(value)
    if 0 < number < np.inf:
        return number
    raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_from_zero(value: Any, name: str) -> float:
    """A finite number that is not negative."""
    if _as_float(value) == 0:
        return 0.0
    return check_positive(value, name, "a finite number from 0 up")


def check_count(value: Any, name: str) -> int:
    """A whole number from 1 up."""
    if not _is_number(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be a whole number from 1 up, got {value!r}.")
    if int(value) >= 2**63:
        raise ValueError(f"{name} must be a whole number below 2^63, got {value!r}.")
    return int(value)


def check_threads(n_threads: Any) -> int:
    """A number of threads; None is Numba's, by default one for each core."""
    if n_threads is None:
        return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    return check_count(n_threads, "n_threads")


def check_flag(value: Any, name: str) -> bool:
    """True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_path(path: Any) -> Path:
    """The name of a file."""
    try:
        named = Path(path)
    except TypeError:
        raise TypeError(f"path must name a file, got {path!r}.") from None
    if not str(path):
        raise ValueError("path must name a file, got ''.")
    return named


def check_generator(random_state: Any) -> np.random.Generator:
    """A generator of random numbers from a seed, or the one given."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "random_state must be None, a whole number from 0 up or a numpy Generator, "
            f"got {random_state!r}."
        ) from error


def check_lam(lam: Any) -> float:
    """A positive number with a finite inverse, which is returned: the radius 1 / lam."""
    radius = 1.0 / check_positive(lam, "lam")
    if radius == np.inf:
        raise ValueError(f"lam must be large enough for 1 / lam to be finite, got {lam!r}.")
    return radius


def check_lams(lams: npt.ArrayLike) -> Array:
    """Values of lam, in the order given."""
    values = as_floats(lams, "lams").copy()
    if values.ndim != 1 or values.size == 0:
        got = (
            f"{values}, a number: write [{values}]" if values.ndim == 0 else f"shape {values.shape}"
        )
        raise ValueError(f"lams must be a sequence of at least one number, got {got}.")
    for i, lam in enumerate(values.tolist()):
        try:
            check_lam(lam)
        except ValueError as error:
            raise ValueError(f"lams[{i}]: {error}") from None
    return values


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
