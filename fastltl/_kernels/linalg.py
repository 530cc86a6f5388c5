"""Compile kernels, and call the routines of BLAS and LAPACK that Numba's NumPy lacks.

Kernels multiply with `np.dot` and decompose with `np.linalg`, which Numba compiles to calls of
SciPy's BLAS and LAPACK. It lacks five operations: a Cholesky decomposition that reports failure by
its return value, a few eigenvectors of a matrix, roots of the secular equation, A'A added in
place, and X L with a triangle L. Compiled code calls these routines by address. The addresses are
registered with LLVM by name, so machine code from the cache on disk finds them in any process.
With the JIT off, NumPy computes the same.

Fortran reads a row-major matrix as its transpose, so its upper triangle is our lower one.
"""

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.extending import get_cython_function_address, intrinsic

EPS = float(np.finfo(np.float64).eps)

#: OpenBLAS, the library of NumPy's and SciPy's wheels, uses one thread for products up to this
#: side, but not for products by a triangle.
LARGEST_UNTHREADED_SIDE = 64

HAS_JIT = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]

#: Arguments of each routine: c, i and d are pointers to characters, integers and doubles.
_SIGNATURES = {
    "dsyrk": "cciiddiddi",
    "dtrmm": "cccciiddidi",
    "dpotrf": "cidii",
    "dpotrs": "ciididii",
    "dsytrd": "cididdddii",
    "dsterf": "iddi",
    "dstein": "iddidiididiii",
    "dormtr": "ccciididdidii",
    "dlaed4": "iidddddi",
}


def _source_digest() -> str:
    """Return a digest of all compiled sources."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]


_DIGEST = _source_digest()


class CheckedCacheFile(IndexDataCacheFile):
    """Numba's cache files, with a checksum at the end of each; a damaged file counts as absent.

    Numba itself raises the errors of unpickling, and runs damaged machine code. It compiles and
    writes anew where a file is absent. Unpickling ignores the bytes after a pickle.
    """

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())

    def _check(self, path: str) -> None:
        """Raise OSError if a file cannot be read or has another checksum."""
        content = Path(path).read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise OSError(f"{path} is damaged")

    def _load_index(self) -> dict[Any, str]:
        try:
            self._check(self._index_path)
        except OSError:
            return {}
        return super()._load_index()  # type: ignore[no-any-return]

    def _load_data(self, name: str) -> Any:
        self._check(self._data_path(name))  # on an OSError the caller compiles
        return super()._load_data(name)

    def save(self, *entry: Any) -> None:
        """Save compiled code; if it cannot be written, the next process compiles again."""
        with contextlib.suppress(OSError):
            super().save(*entry)


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a function without the GIL, and cache the machine code on disk if possible.

    Numba's cache notices a change of the file that a kernel is in, but not of the files that the
    kernel calls into. So the name in the cache has a digest of all of them.
    """
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled: Any = numba.njit(**options)(function)
    if not HAS_JIT:
        return compiled
    name = function.__qualname__
    function.__qualname__ = f"{name}.{_DIGEST}"
    with contextlib.suppress(RuntimeError):  # Numba found no folder it can write to
        compiled.enable_caching()
        compiled._cache._cache_file.__class__ = CheckedCacheFile  # Numba takes no class for it
    function.__qualname__ = name
    return compiled


def inline_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function as a part of the kernels that call it, not once more on its own."""
    return kernel(function, inline="always")


def _external(name: str) -> Any:
    """Declare a routine of SciPy's BLAS or LAPACK as a function that compiled code can call."""
    pointers = {
        "c": types.CPointer(types.uint8),
        "i": types.CPointer(types.int32),
        "d": types.CPointer(types.float64),
    }
    symbol, library = f"fastltl_{name}", "blas" if name in ("dsyrk", "dtrmm") else "lapack"
    llvm.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.cython_{library}", name))
    return types.ExternalFunction(symbol, types.void(*(pointers[c] for c in _SIGNATURES[name])))


def _pointer(typingctx: Any, value: Any) -> Any:
    """Copy a scalar to the stack and return its address, as Fortran takes arguments.

    Integers become int32; characters are uint8.
    """
    is_integer = isinstance(value, types.Integer) and value is not types.uint8
    kind = types.int32 if is_integer else value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        converted = context.cast(builder, args[0], signature.args[0], kind)
        return cgutils.alloca_once_value(builder, converted)

    return types.CPointer(kind)(value), codegen


if HAS_JIT:
    _dsyrk, _dtrmm = _external("dsyrk"), _external("dtrmm")
    _dpotrf, _dpotrs, _dlaed4 = _external("dpotrf"), _external("dpotrs"), _external("dlaed4")
    _dsytrd, _dsterf = _external("dsytrd"), _external("dsterf")
    _dstein, _dormtr = _external("dstein"), _external("dormtr")
    _ref: Any = intrinsic(_pointer)
    _N, _U, _L = (np.uint8(ord(letter)) for letter in "NUL")

    @kernel
    def add_gram(A, c, C):
        """C + c A'A, its lower triangle only. Modified in place: C."""
        k, n = A.shape
        _dsyrk(
            _ref(_U), _ref(_N), _ref(n), _ref(k), _ref(c), A.ctypes, _ref(n), _ref(1.0),
            C.ctypes, _ref(n),
        )  # fmt: skip

    @kernel
    def multiply_by_triangle(X, A):
        """X L, n x d, with L the lower triangle of A. Modified in place: X."""
        n, d = X.shape
        _dtrmm(
            _ref(_L), _ref(_U), _ref(_N), _ref(_N), _ref(d), _ref(n), _ref(1.0), A.ctypes,
            _ref(d), X.ctypes, _ref(d),
        )  # fmt: skip

    @kernel
    def cholesky(A):
        """A = L L': replace the lower triangle of A by L; False if A is not positive definite.

        Modified in place: A.
        """
        n, info = A.shape[0], np.zeros(1, np.int32)
        _dpotrf(_ref(_U), _ref(n), A.ctypes, _ref(n), info.ctypes)
        return info[0] == 0

    @kernel
    def cholesky_solve(L, b):
        """(L L')^-1 b, of the lower triangle L. Modified in place: b."""
        n, info = b.size, np.zeros(1, np.int32)
        _dpotrs(
            _ref(_U), _ref(n), _ref(1), L.ctypes, _ref(n), b.ctypes, _ref(n), info.ctypes
        )  # fmt: skip

    @kernel
    def tridiagonal_form(A):
        """A = Q T Q' with T tridiagonal: the diagonal of T, the one beside it, and Q's factors.

        They are the rows of a 3 x d matrix; the reflections that make up Q replace A.
        """
        n, info = A.shape[0], np.zeros(1, np.int32)
        T, work = np.zeros((3, n)), np.empty(32 * n)
        _dsytrd(
            _ref(_L), _ref(n), A.ctypes, _ref(n), T[0].ctypes, T[1].ctypes, T[2].ctypes,
            work.ctypes, _ref(work.size), info.ctypes,
        )  # fmt: skip
        return T

    @kernel
    def tridiagonal_eigenvalues(A, T):
        """Eigenvalues, ascending, of the matrix passed to `tridiagonal_form`; NaN on failure."""
        values, beside, info = T[0].copy(), T[1].copy(), np.zeros(1, np.int32)
        _dsterf(_ref(values.size), values.ctypes, beside.ctypes, info.ctypes)
        if info[0] != 0:
            values[:] = np.nan
        return values

    @kernel
    def tridiagonal_eigenvectors(A, T, values, lo, hi):
        """Eigenvectors lo to hi, as rows, of the matrix passed to `tridiagonal_form`.

        Inverse iteration finds them; they are NaN on failure. It is not tried if T splits into
        blocks, because LAPACK needs the block of each eigenvalue.
        """
        n, k = values.size, hi - lo
        vectors, info = np.empty((k, n)), np.zeros(1, np.int32)
        blocks, ends = np.ones(n, np.int32), np.full(n, n, np.int32)
        work, iwork = np.empty(5 * n + 32 * k + 4160), np.empty(n, np.int32)
        failed = np.empty(n, np.int32)
        largest = max(abs(values[0]), abs(values[-1]))
        is_whole = 1e-100 < largest < 1e100  # or squares lose digits
        for i in range(n - 1):
            is_whole &= abs(T[1, i]) > EPS * (abs(T[0, i]) + abs(T[0, i + 1]))
        if is_whole and k > 0:
            _dstein(
                _ref(n), T[0].ctypes, T[1].ctypes, _ref(k), values[lo:].ctypes, blocks.ctypes,
                ends.ctypes, vectors.ctypes, _ref(n), work.ctypes, iwork.ctypes, failed.ctypes,
                info.ctypes,
            )  # fmt: skip
        if not is_whole or info[0] != 0:
            vectors[:] = np.nan
            return vectors
        _dormtr(
            _ref(_L), _ref(_L), _ref(_N), _ref(n), _ref(k), A.ctypes, _ref(n), T[2].ctypes,
            vectors.ctypes, _ref(n), work.ctypes, _ref(work.size), info.ctypes,
        )  # fmt: skip
        return vectors

    @kernel
    def secular_root(j, poles, z, rho, distances):
        """Root r of 1 + rho sum_i z_i^2 / (poles_i - r) = 0, the j-th; NaN if it fails.

        The poles ascend, rho > 0 and |z| = 1, all neither large nor small. `distances` <-
        poles - r, each to full precision; with one or two poles, the eigenvector instead.
        """
        root, info = np.empty(1), np.zeros(1, np.int32)
        _dlaed4(
            _ref(poles.size), _ref(j + 1), poles.ctypes, z.ctypes, distances.ctypes, _ref(rho),
            root.ctypes, info.ctypes,
        )  # fmt: skip
        return root[0] if info[0] == 0 else np.nan

else:

    def add_gram(A, c, C):
        C += c * np.tril(np.dot(A.T, A))

    def multiply_by_triangle(X, A):
        X[:] = np.dot(X, np.tril(A))

    def cholesky(A):
        try:
            A[:] = np.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return False
        return bool(np.all(np.diag(A) > 0.0))  # NaN raises no error

    def cholesky_solve(L, b):
        L = np.tril(L)
        b[:] = np.linalg.solve(L.T, np.linalg.solve(L, b))

    def tridiagonal_form(A):
        return np.zeros((3, len(A)))  # A itself stays

    def tridiagonal_eigenvalues(A, T):
        return np.linalg.eigvalsh(A)

    def tridiagonal_eigenvectors(A, T, values, lo, hi):
        return np.ascontiguousarray(np.linalg.eigh(A)[1].T[lo:hi])

    def secular_root(j, poles, z, rho, distances):
        return np.nan  # callers then decompose anew
