"""Other operating systems: what Windows and macOS lack, refuse or name otherwise is simulated."""

import ast
import errno
import importlib.util
import io
import os
import shlex
import signal
import subprocess
import sys
import types
from pathlib import Path, PurePath

import numpy as np
import pytest

import fastltl as ltl
from fastltl import cli
from fastltl.experiments import advice, peers, results
from fastltl.io import files, sources

TESTS = Path(__file__).parent
PACKAGE = Path(ltl.__file__).parent

#: Modules that Windows lacks.
POSIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}

on_posix = pytest.mark.skipif(os.name != "posix", reason="simulates Windows by means of POSIX")


@pytest.fixture
def learner():
    return ltl.OnlineLTL().partial_fit(np.ones((2, 3)), [1.0, 2.0])


def sharing_violation(*_, **__):
    """Raise what Windows raises for a file that another program has open."""
    error = PermissionError(errno.EACCES, "The file is used by another process", ".part", 32)
    error.winerror = 32
    raise error


# Files


def test_file_that_is_in_use_is_replaced_once_it_is_free(tmp_path, monkeypatch):
    replace, calls, pauses = os.replace, [], []

    def replace_at_third_call(*arguments):
        calls.append(arguments)
        if len(calls) < 3:
            sharing_violation()
        replace(*arguments)

    monkeypatch.setattr(os, "replace", replace_at_third_call)
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    files.write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert pauses == [*files.PAUSES[:2]]


def test_file_that_stays_in_use_is_named_and_unchanged(tmp_path, monkeypatch, learner):
    path, pauses = tmp_path / "learner.npz", []
    learner.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", sharing_violation)
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    message = "used by another process: close it in other programs: nothing was saved"
    with pytest.raises(PermissionError, match=message) as raised:
        learner.partial_fit(np.ones((1, 3)), [1.0]).save(path)
    assert raised.value.filename == str(path)
    assert pauses == [*files.PAUSES]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_refusals_are_not_waited_for(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "file")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(files.time, "sleep", None)
    with pytest.raises(PermissionError, match="Permission denied"):
        files.write_whole(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_partial_file_that_is_open_is_left(tmp_path, monkeypatch):
    """Windows removes no file that is open: neither does a failed save hide its error."""
    path = tmp_path / "file"
    (tmp_path / ".file.00000000.part").touch()
    monkeypatch.setattr(os, "unlink", sharing_violation)
    files.discard_unfinished(path)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_whole(path, b"new")
    assert not path.exists()


def test_folder_that_cannot_be_opened_is_not_flushed(tmp_path, monkeypatch):
    open_file = os.open

    def open_no_folder(path, *arguments, **options):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_no_folder)
    files.write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_flags_that_a_system_lacks(tmp_path, monkeypatch, learner):
    for name in ("O_NONBLOCK", "O_NOFOLLOW"):
        monkeypatch.delattr(os, name, raising=False)
    with files.locked(tmp_path / "learner.npz") as is_locked:
        assert is_locked
        learner.save(tmp_path / "learner.npz")
    assert ltl.load(tmp_path / "learner.npz").n_tasks_seen_ == 1


def test_files_of_a_folder_are_read_by_name(tmp_path, monkeypatch):
    """Windows compares paths without regard to case: the order of tasks would depend on it."""
    for name in ("b", "C", "a"):
        np.savez(tmp_path / f"{name}.npz", X=np.ones((2, 2)), y=np.ones(2))
    before = lambda path, other: str(path).lower() < str(other).lower()  # noqa: E731
    monkeypatch.setattr(PurePath, "__lt__", before)
    folder = sources.Folder(tmp_path, None, "y", None, (), False)
    assert [file.stem for file in folder.files] == ["C", "a", "b"]


def load_again(name):
    """Load a module once more, as another system would; the first one stays in use."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files_of_windows(monkeypatch):
    """Load `files` as Windows would, with a stand-in for msvcrt that locks single bytes.

    Files that are open cannot be removed, and a file has another number in each call.
    """
    fcntl = pytest.importorskip("fcntl")
    stand_in = types.ModuleType("msvcrt")
    stand_in.LK_NBLCK, stand_in.locked_bytes = 2, []

    def locking(file, mode, n_bytes):
        assert (mode, n_bytes) == (stand_in.LK_NBLCK, 1)
        stand_in.locked_bytes.append(os.lseek(file, 0, os.SEEK_CUR))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    stand_in.locking = locking
    monkeypatch.setitem(sys.modules, "msvcrt", stand_in)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "unlink", sharing_violation)
    monkeypatch.setattr(os.path, "samestat", lambda *_: False)
    return load_again("fastltl.io.files")


def test_lock_of_windows_excludes_others_and_leaves_its_file(files_of_windows, tmp_path):
    path = tmp_path / "learner.npz"
    for _ in range(2):  # the file that is left does no harm
        with files_of_windows.locked(path) as is_locked:
            assert is_locked
            with pytest.raises(PermissionError, match=f"process {os.getpid()} on .* trains it"):
                files_of_windows.locked(path).__enter__()
    # The bytes that tell the holder are not locked: others could not read them.
    left = tmp_path / ".learner.npz.lock"
    assert set(sys.modules["msvcrt"].locked_bytes) == {2**30}
    assert left.stat().st_size < 2**30
    assert left.read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")


# Signals and the terminal


@pytest.fixture
def ctrl_break(monkeypatch):
    """Let another signal stand for SIGBREAK, and remove SIGHUP."""
    number = signal.SIGUSR1
    previous = signal.signal(number, signal.SIG_IGN)
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(signal, "SIGBREAK", number, raising=False)
    yield number
    signal.signal(number, previous)


@on_posix
def test_ctrl_break_stops_a_training_where_there_is_no_hangup(ctrl_break):
    with cli._stop_signals(bool) as received:
        signal.raise_signal(ctrl_break)
        assert received == [ctrl_break]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(ctrl_break) == signal.SIG_IGN


def test_threads_where_no_process_forks(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    threads = load_again("fastltl._threads")
    found = threads.run_in_threads(lambda lo, hi: hi - lo, 8, 2, 1e9)
    assert sum(found) == 8


def test_output_is_written_where_files_cannot_be_waited_for(monkeypatch):
    """On Windows `select` takes sockets only."""

    def refuse(*_):
        raise OSError(10038, "An operation was attempted on something that is not a socket")

    monkeypatch.setattr(cli.select, "select", refuse)
    text = io.StringIO()
    output = cli._Output(text)
    assert output.write("a line\n") == 7
    output.end()
    assert text.getvalue() == "a line\n"


class ClosedPipe(io.StringIO):
    """The stdout of a Windows process after its reader has closed the pipe."""

    def __init__(self, file):
        super().__init__()
        self._file = file

    def fileno(self):
        return self._file.fileno()

    def flush(self):
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(("system", "status"), [("win32", 1), ("linux", 2)])
def test_closed_pipe_of_windows(monkeypatch, tmp_path, capsys, system, status):
    def command(options):
        monkeypatch.setattr(sys, "platform", system)

    monkeypatch.setitem(cli.COMMANDS, "info", command)
    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", ClosedPipe(file))
        assert cli.main(["info"]) == status
    assert ("Invalid argument" in capsys.readouterr().err) == (status == 2)


def test_name_that_windows_refuses_is_shown(monkeypatch, capsys):
    def command(options):
        monkeypatch.setattr(sys, "platform", "win32")
        raise OSError(errno.EINVAL, "Invalid argument", "a?.csv")

    monkeypatch.setitem(cli.COMMANDS, "info", command)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == "fastltl info: a?.csv: Invalid argument\n"


def test_text_that_the_console_lacks_becomes_escapes(monkeypatch, tmp_path):
    """A console of Windows may have a code page without most letters."""
    table = tmp_path / "table.csv"
    table.write_text("shop,\u540d,y\n1,1,1\n1,2,x\n", encoding="utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="cp1252") for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    command = ["compare", str(table), "--task", "shop", "--target", "sales"]
    assert cli.main([*command, "--out", str(tmp_path)]) == 2
    assert rb"(shop, \u540d, y), got 'sales'" in err.buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (r"C:\data\exam.csv", r"C:\data\exam.csv"),
        (r"C:\my data\exam.csv", r'"C:\my data\exam.csv"'),
        ("it's", "it's"),
        ('5" nails', r'"5\" nails"'),
        ("red\x1b[31m", r"red\x1b[31m"),
    ],
)
def test_commands_are_quoted_for_windows(monkeypatch, text, quoted):
    monkeypatch.setattr(sys, "platform", "win32")
    assert advice.quote(text) == quoted


def test_quoted_commands_are_read_as_they_were_meant(monkeypatch):
    """Python splits the arguments of a process of Windows by the rule that joins them."""
    texts = [r"C:\my data\exam.csv", "it's", 'a "b" c', "sales"]
    expected = subprocess.list2cmdline(texts)
    monkeypatch.setattr(sys, "platform", "win32")
    assert " ".join(map(advice.quote, texts)) == expected
    monkeypatch.setattr(sys, "platform", "linux")
    assert shlex.split(" ".join(map(advice.quote, texts))) == texts


# The machine


def test_cpu_is_described_without_proc(monkeypatch):
    read = Path.read_text

    def refuse_proc(self, *arguments, **options):
        if "proc" in self.parts:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse_proc)
    monkeypatch.setattr(results.platform, "processor", lambda: "arm")
    assert results.machine()["cpu"] == "arm"
    monkeypatch.setattr(results.platform, "processor", lambda: "")
    assert results.machine()["cpu"] == "unknown"


def test_info_where_threadpoolctl_knows_no_blas(monkeypatch, capsys):
    """As with Accelerate, on which wheels for macOS are built."""
    monkeypatch.setattr(results, "threadpool_info", list)
    assert cli.main(["info"]) == 0
    assert "\nBLAS: unknown\n" in capsys.readouterr().out


def test_gpboost_whose_library_does_not_load_is_left_out(monkeypatch):
    """As on macOS without libomp."""

    class Finder:
        def find_spec(self, name, *_):
            if name == "gpboost":
                raise OSError("dlopen(lib_gpboost.so): Library not loaded: libomp.dylib")

    monkeypatch.delitem(sys.modules, "gpboost", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    assert peers.missing_gpboost() == "the library libomp (macOS: brew install libomp)"


# Sources


def trees(folder):
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}


def is_text(call):
    """Return whether a call opens a file as text."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("read_text", "write_text"):
        return True
    owner = ast.unparse(call.func).rpartition(".")[0]
    if name != "open" or owner in ("os", "archive", "archive.zip"):
        return False
    mode = [*call.args, *(one.value for one in call.keywords if one.arg == "mode")]
    return not any(
        isinstance(one, ast.Constant) and isinstance(one.value, str) and "b" in one.value
        for one in mode[not owner :]
    )


def test_text_files_are_opened_with_an_encoding():
    """The default of Windows is a code page, and not UTF-8."""
    calls = [
        (path, node)
        for path, tree in trees(PACKAGE).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_text(node)
    ]
    assert len(calls) > 5
    without = [
        f"{path.name}:{call.lineno}"
        for path, call in calls
        if "encoding" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def import_time(node):
    """Yield the nodes that run when a module is imported, on each system."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from child.decorator_list if isinstance(child, ast.FunctionDef) else ()
            continue
        if isinstance(child, ast.If) and "sys.platform" in ast.unparse(child.test):
            continue
        yield child
        yield from import_time(child)


@pytest.mark.parametrize("folder", [PACKAGE, TESTS], ids=["package", "tests"])
def test_modules_can_be_imported_without_those_of_posix(folder):
    """Tests that need such a module import it themselves, and are skipped without."""
    needed = set()
    for path, tree in trees(folder).items():
        for node in import_time(tree):
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
            needed |= {(path.name, name) for name in names if name in POSIX_MODULES}
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "signal":
                is_common = node.attr in {"SIGINT", "SIGTERM"} or not node.attr.startswith("SIG")
                needed |= set() if is_common else {(path.name, node.attr)}
    assert needed == set()
