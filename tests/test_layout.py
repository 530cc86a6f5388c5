"""The layout of the package: small modules, imports in one direction, and a fast import."""

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

#: Bounds that keep the package readable. Modules are counted without __init__ and __main__.
MAX_MODULES = 58
MAX_LINES = 450
MAX_KERNEL_PARAMETERS = 10

#: Modules in layers. A module imports only from those before it, unless inside a function.
LAYERS = [
    ["_text", "_validation", "_columns", "_frames"],
    ["_kernels.linalg", "_kernels.task", "_kernels.spectral", "_kernels.batch", "_kernels.online"],
    ["_kernels.prior", "_kernels.bayes"],
    ["_threads", "_plain_prior", "reference", "functional"],
    ["_objective", "_solver"],
    ["tasks"],
    ["bounds", "adapted", "_run", "_online_run", "_bayes_run"],
    ["effects"],
    ["io.files", "io.checkpoints", "io.tables", "io.sources", "io.streams"],
    ["base", "_incremental", "ridge", "bayes", "online", "batch"],
    ["metrics", "selection", "path", "plots"],
    ["datasets"],
    ["distributed.shards", "distributed.online", "distributed"],
    ["experiments.results", "experiments.trials", "experiments.peers", "experiments.verdict"],
    ["experiments.compare", "experiments.paper"],
    ["experiments.prior"],
    ["experiments.claims", "experiments.advice"],
    ["experiments.charts", "experiments.figures", "experiments.report"],
    ["train", "adapt", "_arguments", "cli"],
]
ORDER = [name for layer in LAYERS for name in layer]

#: The learners that a checkpoint names are looked up in the package.
IMPORTS_THE_PACKAGE = {"io.checkpoints"}


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def file_of(name):
    path = PACKAGE / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


def module_files():
    return [path for path in source_files() if path.stem not in ("__init__", "__main__")]


def statements(tree):
    """Yield the nodes that run when a module is imported: none in functions or for type checks."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node)


def imported(path):
    """Return the modules of the package that a file imports when it is imported; "" is fastltl."""
    names = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            for alias in node.names:
                joined = f"{node.module}.{alias.name}"
                is_module = joined.removeprefix("fastltl.") in ORDER
                # fastltl.__version__ is there before anything else is imported.
                if is_module or alias.name != "__version__":
                    names.add(joined if is_module else node.module)
    return {
        name.removeprefix("fastltl").removeprefix(".")
        for name in names
        if name == "fastltl" or name.startswith("fastltl.")
    }


def kernels():
    """Yield the file and the definition of each compiled function."""
    for path in sorted((PACKAGE / "_kernels").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
                if decorators & {"kernel", "inline_kernel"}:
                    yield path, node


def test_every_module_has_its_place():
    names = {module_name(path) for path in module_files()}
    assert names == set(ORDER) - {"distributed"}
    assert len(ORDER) == len(set(ORDER))
    assert (PACKAGE / "py.typed").exists()


def test_packages_are_listed_where_they_import_anything():
    packages = {
        module_name(path) for path in source_files() if path.stem == "__init__" and imported(path)
    }
    assert packages == {"distributed"}


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_from_modules_before_it(name):
    allowed = set(ORDER[: ORDER.index(name)])
    if name in IMPORTS_THE_PACKAGE:
        allowed.add("")
    assert imported(file_of(name)) <= allowed


def test_modules_are_few_and_short():
    assert len(module_files()) <= MAX_MODULES
    lengths = {module_name(path): len(path.read_text().splitlines()) for path in source_files()}
    assert {name for name, length in lengths.items() if length > MAX_LINES} == set()


def test_one_module_calls_llvm():
    naming = {module_name(path) for path in source_files() if "llvmlite" in path.read_text()}
    assert naming == {"_kernels.linalg"}


def test_kernels_are_documented_and_take_few_parameters():
    definitions = list(kernels())
    assert len(definitions) > 50
    for path, function in definitions:
        where = f"{path.name}: {function.name}"
        assert ast.get_docstring(function), f"{where} has no docstring"
        arguments = function.args
        n_parameters = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
        assert n_parameters <= MAX_KERNEL_PARAMETERS, f"{where} has {n_parameters} parameters"


def test_public_names_load_on_first_use():
    for name in fastltl.__all__:
        assert getattr(fastltl, name) is not None
    assert set(fastltl.__all__) <= set(dir(fastltl))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fastltl.nothing


def run(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    ).stdout.strip()


def test_importing_loads_neither_numba_nor_scikit_learn():
    loaded = run("import sys, fastltl; print([m for m in sys.modules if '.' not in m])")
    assert not {"numba", "sklearn", "scipy", "tqdm", "pandas", "matplotlib"} & set(
        ast.literal_eval(loaded)
    )


@pytest.mark.slow
def test_dask_is_loaded_only_for_a_cluster():
    code = (
        "import sys, fastltl\n"
        "for name in fastltl.__all__: getattr(fastltl, name)\n"
        "import fastltl.cli, fastltl.distributed, fastltl.experiments.paper, fastltl.train\n"
        "print({'dask', 'distributed'} & set(sys.modules))"
    )
    assert run(code) == "set()"


@pytest.mark.slow
def test_kernels_run_where_no_cache_can_be_written():
    """Without locators, Numba finds no folder to write to."""
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from fastltl._kernels import spectral\n"
        "import numpy as np\n"
        "print(spectral.soft_threshold(np.array([1.0, 2.0, 3.0]), 1.0))"
    )
    assert run(code) == "[0. 0. 1.]"


@pytest.mark.slow
@needs_mounts
def test_kernels_run_where_neither_the_package_nor_the_home_can_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    mount = " && ".join(
        f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}"
        for folder in (PACKAGE, home)
    )
    for caches in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        mount = f"unset {caches}; {mount}"
    with pytest.raises(subprocess.CalledProcessError):  # the mount is read-only
        mounted(mount, ["touch", str(PACKAGE / "new")])
    code = "import fastltl; print(fastltl.project([[3.0, 0.0], [0.0, 1.0]], 2.0).tolist())"
    done = mounted(f"export HOME={home}; {mount}", [sys.executable, "-W", "error", "-c", code])
    assert done.stdout == "[[2.0, 0.0], [0.0, 0.0]]\n"


@pytest.mark.slow
def test_compiled_code_from_the_cache_is_never_stale(tmp_path):
    """A kernel that calls into another file is compiled again when that file changes."""
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    package = tmp_path / "fastltl"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from fastltl._kernels import spectral\n"
        "import numpy as np\n"
        "print(spectral.__file__, spectral.compose(np.eye(2), np.ones(2), 0.0).tolist())"
    )
    cache, spectral = str(tmp_path / "cache"), package / "_kernels" / "spectral.py"
    assert run(code, NUMBA_CACHE_DIR=cache) == f"{spectral} [[1.0, 0.0], [0.0, 1.0]]"
    called = package / "_kernels" / "task.py"
    source = called.read_text()
    assert source.count("A[j, i] = A[i, j]") == 1
    called.write_text(source.replace("A[j, i] = A[i, j]", "A[j, i] = 7.0"))
    assert run(code, NUMBA_CACHE_DIR=cache) == f"{spectral} [[1.0, 7.0], [0.0, 1.0]]"


#: Defines a function that compiles a kernel, or loads it from the cache, as a new process would. It
#: returns whether the result is right and whether the kernel was loaded.
LOAD_KERNEL = """
import numpy as np
from fastltl._kernels import linalg, spectral
def load():
    kernel = linalg.kernel(spectral.soft_threshold.py_func)
    values = kernel(np.array([1.0, 2.0, 3.0]), 1.0).tolist()
    return values == [0.0, 0.0, 1.0], sum(kernel.stats.cache_hits.values())
"""

#: Damages the files of the cache in many ways; prints what `load` returns the next two times. Numba
#: would run the machine code with a flipped byte.
DAMAGE_CACHE = """
import sys
from pathlib import Path
ways = {
    "emptied": lambda content: b"",
    "cut to a byte": lambda content: content[:1],
    "cut to a half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "random": lambda content: np.random.default_rng(0).bytes(len(content)),
    "flipped": lambda content: content[:-99] + bytes([content[-99] ^ 255]) + content[-98:],
}
load()
found = {}
for suffix in ("nbi", "nbc"):
    (path,) = Path(sys.argv[1]).glob(f"*/*soft_threshold*.{suffix}")
    for way, damage in ways.items():
        path.write_bytes(damage(path.read_bytes()))
        found[f"{suffix} {way}"] = load(), load()
print(found)
"""


@pytest.mark.slow
def test_damaged_cache_is_compiled_again_and_mended(tmp_path):
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    cache = str(tmp_path)
    found = ast.literal_eval(run(LOAD_KERNEL + DAMAGE_CACHE, cache, NUMBA_CACHE_DIR=cache))
    assert found == dict.fromkeys(found, ((True, 0), (True, 1)))
    assert len(found) == 12
    assert run(f"{LOAD_KERNEL}\nprint(load())", NUMBA_CACHE_DIR=cache) == "(True, 1)"


@pytest.mark.slow
def test_kernels_run_where_the_cache_cannot_be_read_or_replaced(tmp_path):
    if numba.config.DISABLE_JIT:
        pytest.skip("with the JIT off there is no cache")
    run(f"{LOAD_KERNEL}\nload()", NUMBA_CACHE_DIR=str(tmp_path))
    (path,) = tmp_path.glob("*/*soft_threshold*.nbi")
    path.unlink()
    path.mkdir()
    assert run(f"{LOAD_KERNEL}\nprint(load())", NUMBA_CACHE_DIR=str(tmp_path)) == "(True, 0)"
