"""The shape of the package: imports go one way, and importing it costs next to nothing."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from mounts import mounted, needs_mounts

import fastltl

PACKAGE = Path(fastltl.__file__).parent

# A file imports only from those above it.
ORDER = [
    "compilation",
    "lapack",
    "threads",
    "kernels.registers",
    "kernels.tiles",
    "kernels.turns",
    "kernels.tridiagonal",
    "kernels.dual",
    "kernels.spectrum",
    "kernels.packed",
    "kernels.rooms",
    "kernels.online",
    "kernels",
    "reference",
    "validation",
    "representation",
    "objectives",
    "labels",
    "frames",
    "tasks",
    "storage",
    "bounds",
    "evaluation",
    "candidates",
    "learners.ridge",
    "learners.base",
    "learners.independent",
    "learners.solver",
    "learners.batch",
    "learners.runs",
    "learners.online",
    "path",
    "checkpoints",
    "selection",
    "tables",
    "streams",
    "distributed.shards",
    "distributed.online",
    "distributed",
    "training",
    "datasets",
    "results",
    "trials",
    "comparison",
    "experiments",
    "claims",
    "figures",
    "report",
    "arguments",
    "cli",
]


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def file_of(name):
    path = PACKAGE / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(path):
    """Modules of the package that a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.ImportFrom) and node.level), "imports are absolute"
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fastltl"):
            base = node.module.removeprefix("fastltl").removeprefix(".")
            for alias in node.names:
                joined = f"{base}.{alias.name}".removeprefix(".")
                yield joined if joined in ORDER else base
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("fastltl") for alias in node.names), path


def test_every_file_has_its_place():
    files = {module_name(path) for path in PACKAGE.rglob("*.py")}
    assert files - {"__init__", "__main__", "learners"} == set(ORDER)
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_from_those_above_it(name):
    allowed = set(ORDER[: ORDER.index(name)]) | {""}
    assert set(imported(file_of(name))) <= allowed


def test_public_names_load_on_first_use():
    for name in fastltl.__all__:
        assert getattr(fastltl, name) is not None
    assert set(fastltl.__all__) <= set(dir(fastltl))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fastltl.nothing


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    ).stdout.strip()


def test_importing_loads_neither_numba_nor_scikit_learn():
    loaded = run("import sys, fastltl; print([m for m in sys.modules if '.' not in m])")
    assert not {"numba", "sklearn", "scipy", "tqdm", "pandas"} & set(ast.literal_eval(loaded))


def test_dask_is_loaded_only_for_a_cluster():
    code = (
        "import sys, fastltl\n"
        "for name in fastltl.__all__: getattr(fastltl, name)\n"
        "import fastltl.cli, fastltl.distributed, fastltl.experiments.paper, fastltl.train\n"
        "print({'dask', 'distributed'} & set(sys.modules))"
    )
    assert run(code) == "set()"


def test_kernels_run_where_no_cache_can_be_written():
    """Numba asks its locators for a writable place; with none left it finds none."""
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from fastltl import kernels\n"
        "import numpy as np\n"
        "print(kernels.soft_threshold(np.array([1.0, 2.0, 3.0]), 1.0))"
    )
    assert run(code) == "[0. 0. 1.]"


@needs_mounts
def test_it_runs_where_neither_the_install_nor_the_home_can_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    mount = " && ".join(
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        for folder in (PACKAGE, home)
    )
    for caches in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        mount = f"unset {caches}; {mount}"
    with pytest.raises(subprocess.CalledProcessError):  # it is read-only indeed
        mounted(mount, ["touch", str(PACKAGE / "new")])
    code = "import fastltl; print(fastltl.project([[3.0, 0.0], [0.0, 1.0]], 2.0).tolist())"
    done = mounted(f"export HOME={home}; {mount}", [sys.executable, "-W", "error", "-c", code])
    assert done.stdout == "[[2.0, 0.0], [0.0, 0.0]]\n"


def test_compiled_code_from_the_cache_is_never_stale(tmp_path):
    """A kernel that calls into another file is compiled anew when that file changes."""
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    package = tmp_path / "fastltl"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fastltl._kernels import dual\n"
        "import numpy as np\n"
        "print(dual.__file__, dual.product(np.eye(2), np.ones(2)))"
    )
    cache = str(tmp_path / "cache")
    assert run(code, NUMBA_CACHE_DIR=cache) == f"{package / 'kernels' / 'dual.py'} [1. 1.]"
    lapack = package / "lapack.py"
    source = lapack.read_text()
    assert source.count("_gemv(_T, A, x, y)") == 1
    lapack.write_text(source.replace("_gemv(_T, A, x, y)", "y[:] = 7.0"))
    assert run(code, NUMBA_CACHE_DIR=cache) == f"{package / 'kernels' / 'dual.py'} [7. 7.]"
