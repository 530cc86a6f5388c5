"""How kernels are compiled and kept on disk, and which routines of SciPy's they can call.

Compiled code calls BLAS and LAPACK at their addresses: these are registered with LLVM under names
of ours, so that machine code from the cache on disk finds them in any process.
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.extending import get_cython_function_address

_CHARACTER = types.CPointer(types.uint8)
_INTEGER = types.CPointer(types.int32)
_REAL = types.CPointer(types.float64)

#: Arguments of each routine: c, i and d are pointers to characters, integers and doubles.
_SIGNATURES = {
    "blas": {
        "dgemm": "cciiiddididdi",
        "dgemv": "ciiddididdi",
        "dnrm2": "idi",
        "dsymv": "ciddididdi",
        "dsyrk": "cciiddiddi",
        "dtrmm": "cccciiddidi",
        "dtrsv": "cccididi",
    },
    "lapack": {
        "dpotrf": "cidii",
        "dpstrf": "cidiiiddi",
        "dsyevd": "ccididdiiii",
        "dsytrd": "cididdddii",
        "dsterf": "iddi",
        "dstein": "iddidiididiii",
        "dormtr": "ccciididdidii",
        "dgelqf": "iididdii",
        "dormlq": "cciiididdidii",
        "dgesdd": "ciididdididiii",
        "dlaed4": "iidddddi",
        "dlasrt": "cidi",
    },
}


def _external(library: str, name: str) -> Any:
    """A routine of SciPy's as a function that compiled code can call."""
    pointers = {"c": _CHARACTER, "i": _INTEGER, "d": _REAL}
    symbol = f"fastltl_{name}"
    llvm.add_symbol(symbol, get_cython_function_address(f"scipy.linalg.cython_{library}", name))
    arguments = [pointers[kind] for kind in _SIGNATURES[library][name]]
    result = types.float64 if name == "dnrm2" else types.void
    return types.ExternalFunction(symbol, result(*arguments))


def _routines() -> dict[str, Any]:
    """Every routine, or none if one is missing or the JIT is off."""
    if not HAS_JIT:
        return {}
    try:
        return {
            name: _external(library, name)
            for library in _SIGNATURES
            for name in _SIGNATURES[library]
        }
    except (ImportError, ValueError, AttributeError):
        return {}


#: Whether kernels are compiled, and may use what only LLVM has.
HAS_JIT = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]

#: By their names.
ROUTINES = _routines()

#: Whether routines are called directly. The secular equation has no other way.
IS_DIRECT = bool(ROUTINES)


def _digest() -> str:
    """Of all compiled code, and of how it calls LAPACK."""
    here = Path(__file__).parent
    sources = sorted(here.glob("*.py"))
    code = b"".join(source.read_bytes() for source in sources)
    return hashlib.sha256(code + bytes([IS_DIRECT])).hexdigest()[:8]


_DIGEST = _digest()


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """Compile without the GIL, and keep the machine code on disk where a folder can be written.

    Numba's cache watches the file that a kernel is in, and not those it calls into. So it is given
    a name that changes with any of them.
    """
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, **options}
    kernel = numba.njit(**options)(function)
    if kernel is function:  # the JIT is off
        return kernel
    name = function.__qualname__
    function.__qualname__ = f"{name}.{_DIGEST}"
    # Numba raises if it finds no writable place for its cache; then there is none.
    with contextlib.suppress(RuntimeError):
        kernel.enable_caching()
    function.__qualname__ = name
    return kernel


def inlined(function: Callable[..., Any]) -> Any:
    """`compiled` as a part of each compiled caller, without a compilation of its own."""
    return compiled(function, inline="always")


def inner(function: Callable[..., Any]) -> Any:
    """`compiled` for compiled callers only, without a way in from Python."""
    return compiled(function, no_cpython_wrapper=True)
