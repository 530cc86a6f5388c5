"""Validation of arguments. Each error names the argument, what it must be and what was given."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeGuard, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from sklearn.utils import check_array, column_or_1d

Array = npt.NDArray[np.float64]
Result = TypeVar("Result", float, Array)

#: Types that NumPy converts to float64 although they are not numbers.
_NOT_NUMBERS = (str, bytes, date, timedelta, np.datetime64, np.timedelta64)

#: Largest relative asymmetry, or negative eigenvalue, that counts as a rounding error.
TOLERANCE = 1e-10


def is_ready(array: Any) -> TypeGuard[Array]:
    """Return whether kernels accept the array without a copy.

    Numba would compile each kernel a second time for read-only arrays; a copy is cheaper.
    """
    return type(array) is np.ndarray and array.dtype == np.float64 and array.flags.carray


def text_or_dates(values: npt.NDArray[Any]) -> str:
    """Describe the text or dates that an array holds; return "" if it holds neither."""
    found = values.ravel()[:1].tolist() if values.dtype.kind in "US" else []
    if values.dtype == object:
        found = [value for value in values.flat if isinstance(value, _NOT_NUMBERS)]
    if found:
        return f"{values.dtype} that holds {found[0]!r}"
    return str(values.dtype) if values.dtype.kind in "USmM" else ""


def as_objects(labels: Sequence[Hashable]) -> npt.NDArray[np.object_]:
    """Return the labels as a 1-D object array, even if they are sequences."""
    array = np.empty(len(labels), dtype=object)
    for i, label in enumerate(labels):
        array[i] = label
    return array


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or NA; the last three do not equal themselves."""
    try:
        return value is None or not bool(value == value)
    except (TypeError, ValueError):
        return True


def as_floats(array: npt.ArrayLike, name: str) -> Array:
    """Convert an array of any shape to a writable, C-contiguous float64 array."""
    if is_ready(array):
        return array
    if type(array) is np.ndarray and array.dtype.kind in "fiub":  # check_array takes 0.1 ms
        return np.require(array, np.float64, ["C", "A", "W"])
    wanted = f"{name} must be an array of real numbers"
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{wanted}, got a masked array: fill or drop the masked values first.")
    try:
        values = np.asarray(array)
        not_numeric = text_or_dates(values)
        floats = check_array(
            values if isinstance(array, list | tuple) else array,
            dtype=None if not_numeric else np.float64,
            ensure_2d=False,
            allow_nd=True,
            ensure_all_finite=False,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name=name,
        )
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{wanted}, got {type(array).__name__} ({reason_of(error)})") from error
    if not_numeric:
        raise ValueError(f"{wanted}, got dtype {not_numeric}.")
    return np.require(floats, requirements=["C", "A", "W"])


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, at most 300 characters long."""
    return shorten(str(error).partition("\n")[0], 300, placeholder=" ...") or type(error).__name__


@contextmanager
def read_errors(path: str | PathLike[str], kind: str) -> Iterator[None]:
    """Replace any error by a one-line ValueError that names the file and what it should hold."""
    try:
        yield
    except MemoryError:  # nothing is wrong with the file
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds
        raise ValueError(f"{path} cannot be read as {kind} ({reason_of(error)}).") from error


@contextmanager
def memory_errors(n_matrices: int, d: int, remedy: str = "use fewer features") -> Iterator[None]:
    """Say in a MemoryError how much memory so many d x d matrices take, and what to do."""
    try:
        yield
    except MemoryError as error:
        gigabytes = 8 * n_matrices * d**2 / 1e9
        if gigabytes < 0.1:  # it is the tasks that take the memory
            raise
        raise MemoryError(
            f"no memory for {n_matrices} matrices of {d} x {d} numbers, {gigabytes:.1f} GB: "
            f"{remedy}."
        ) from error


def check_finite(array: Array, name: str) -> None:
    """Check that every entry is finite; an error gives the first that is not."""
    finite = np.isfinite(array)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        value = "NaN" if np.isnan(array[index]) else f"{array[index]}"
        where = index[0] if len(index) == 1 else index
        raise ValueError(f"{name} must hold finite numbers only, got {value} at index {where}.")


def check_computed(result: Result) -> Result:
    """Check that a result is finite; finite arguments can still overflow or underflow."""
    if not np.isfinite(result).all():
        raise ValueError(
            "D, X and y must not be so large or so small that results overflow or lose all "
            "precision; rescale X and y."
        )
    return result


def check_matrix(
    X: npt.ArrayLike,
    n_features: int | None = None,
    name: str = "X",
    owner: str = "this representation",
) -> Array:
    """Return X as a finite matrix with a row per sample and a column per feature."""
    A = as_floats(X, name)
    if A.ndim != 2:
        raise ValueError(
            f"{name} must be a 2-D array of shape (samples, features), got an array of shape "
            f"{A.shape}. Reshape your data with reshape(-1, 1) if it has a single feature or "
            "reshape(1, -1) if it is a single sample."
        )
    if A.size == 0:
        what = "feature(s)" if len(A) else "sample(s)"
        raise ValueError(f"{name} has 0 {what} (shape={A.shape}) while a minimum of 1 is required.")
    if n_features is not None and A.shape[1] != n_features:
        raise ValueError(
            f"{name} has {A.shape[1]} features, but {owner} is expecting {n_features} features "
            "as input."
        )
    check_finite(A, name)
    return A


def check_target(y: npt.ArrayLike | None, n_samples: int, owner: str = "a task") -> Array:
    """Return y as a finite vector with one value per sample."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None.")
    v = as_floats(y, "y")
    if v.ndim == 2 and v.shape[1] == 1:
        v = column_or_1d(v, warn=True)  # warns as scikit-learn does
    if v.shape != (n_samples,):
        raise ValueError(
            f"y must have one value for each of the {n_samples} rows of X, got shape {v.shape}."
        )
    check_finite(v, "y")
    return v


def check_symmetric(A: npt.ArrayLike, name: str) -> Array:
    """Return a finite symmetric matrix, with rounding errors in its symmetry removed."""
    A = as_floats(A, name)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.size == 0:
        raise ValueError(f"{name} must be a square matrix, got an array of shape {A.shape}.")
    check_finite(A, name)
    half = A / 2  # the sum of two halves cannot overflow
    asymmetry = float(np.abs(half - half.T).max())
    if asymmetry > TOLERANCE * np.abs(half).max():
        raise ValueError(f"{name} must be symmetric, got an asymmetry of {2 * asymmetry:.3g}.")
    return half + half.T


def check_representation(D: npt.ArrayLike, n_features: int | None = None) -> Array:
    """Return D as a symmetric positive semidefinite matrix with a row per feature."""
    if hasattr(D, "get_params"):  # a learner, or its class
        name = D.__name__ if isinstance(D, type) else type(D).__name__
        raise TypeError(f"D must be an array of real numbers, got {name}: pass its D_.")
    D = check_symmetric(D, "D")
    if n_features is not None and len(D) != n_features:
        raise ValueError(f"D must have a row per feature ({n_features}), got shape {D.shape}.")
    values = np.linalg.eigvalsh(D)
    if values[0] < -TOLERANCE * max(values[-1], 0.0):
        raise ValueError(f"D must be positive semidefinite, got the eigenvalue {values[0]:.3g}.")
    return D


def _is_number(value: Any, kind: type) -> bool:
    """Return whether a value is a number; booleans and durations are not."""
    return isinstance(value, kind) and not isinstance(value, bool | np.timedelta64)


def _as_float(value: Any) -> float:
    """Convert a real number to a float, anything else to NaN."""
    if type(value) is float:  # isinstance(value, Real) is slow
        return value
    try:
        return float(value) if _is_number(value, Real) else np.nan
    except OverflowError:  # an integer or a fraction larger than any float
        return np.inf


def check_positive(value: Any, name: str, wanted: str = "a positive finite number") -> float:
    """Return a positive finite number as a float."""
    number = _as_float(value)
    if 0 < number < np.inf:
        return number
    raise ValueError(f"{name} must be {wanted}, got {value!r}.")


def check_from_zero(value: Any, name: str) -> float:
    """Return a non-negative finite number as a float."""
    if _as_float(value) == 0:
        return 0.0
    return check_positive(value, name, "a non-negative finite number")


def check_count(value: Any, name: str) -> int:
    """Return a positive integer that fits in 64 bits."""
    if not _is_number(value, Integral) or int(value) < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    if int(value) >= 2**63:
        raise ValueError(f"{name} must be an integer below 2^63, got {value!r}.")
    return int(value)


def check_threads(n_threads: Any) -> int:
    """Return a number of threads; None means Numba's default, one per core."""
    if n_threads is None:
        return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    return check_count(n_threads, "n_threads")


def check_flag(value: Any, name: str) -> bool:
    """Return True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_path(path: Any) -> Path:
    """Return a file name as a Path."""
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must name a file, got {path!r}.")
    if not str(path):
        raise ValueError("path must name a file, got ''.")
    return Path(path)


def check_generator(random_state: Any) -> np.random.Generator:
    """Return a random generator for a seed, or the generator given."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"random_state must be None, an integer >= 0 or a Generator, got {random_state!r}."
        ) from error


def check_lam(lam: Any, name: str = "lam") -> float:
    """Check that lam is positive and return the radius 1 / lam, which must be finite."""
    radius = 1.0 / check_positive(lam, name)
    if radius == np.inf:
        raise ValueError(f"{name} must be large enough for 1 / lam to be finite, got {lam!r}.")
    return radius


def check_lams(lams: npt.ArrayLike) -> Array:
    """Return a copy of a sequence of values of lam, in the order given."""
    values = as_floats(lams, "lams").copy()
    if values.ndim != 1 or values.size == 0:
        got = f"shape {values.shape}" if values.ndim else f"the number {values}"
        raise ValueError(f"lams must be a sequence of at least one number, got {got}.")
    for i, lam in enumerate(values.tolist()):
        check_lam(lam, f"lams[{i}]")
    return values


def check_objective(objective: Any) -> bool:
    """Return whether the objective is the regularized one; else it is the training error."""
    return check_choice(objective, "objective", ("regularized", "error")) == "regularized"


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return a value that is one of the choices."""
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
