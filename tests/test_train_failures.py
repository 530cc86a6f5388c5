"""`fastltl train` loses nothing: two trainings, lost terminals, half-written files, no memory."""

import contextlib
import errno
import os
import platform
import shlex
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet
from test_training import TASKS, run_training, train_arguments, write_table

import fastltl as ltl
from fastltl import cli, train
from fastltl._bayes_run import BayesRun
from fastltl.io import checkpoints, files

pytestmark = pytest.mark.compiled

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

#: The learner that takes longer, for trainings that must still run when something happens.
SLOW = "--learner", "online"


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.csv", TASKS)


@pytest.fixture
def long_table(tmp_path):
    """Write a table that takes seconds to learn."""
    return write_table(tmp_path / "long.csv", list(TASKS) * 40)


def train_options(table, checkpoint, *options):
    return train_arguments(table, checkpoint, "--allow-repeats", "--every", 10, *options)


def command(table, checkpoint, *options):
    return [sys.executable, "-m", "fastltl", *train_options(table, checkpoint, *options)]


@contextlib.contextmanager
def started(arguments, **options):
    """Start a process, and end it with the block."""
    with subprocess.Popen(arguments, **options) as process:
        try:
            yield process
        finally:
            process.kill()


#: Trains, and stops the process by SIGSTOP once 50 tasks are learned.
HALTING = """
import os, signal, sys
from fastltl import cli, train
learn, numbers = train.Training._learn, iter(range(10**6))
def learn_and_halt(self, block):
    learn(self, block)
    if 50 in [next(numbers) for _ in block.labels]:
        os.kill(os.getpid(), signal.SIGSTOP)
train.Training._learn = learn_and_halt
sys.exit(cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def halted_training(table, checkpoint, *options, **pipes):
    """Start a training, and wait until it has halted in the middle."""
    arguments = [sys.executable, "-c", HALTING, *train_options(table, checkpoint, *options)]
    with started(arguments, **pipes) as process:
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        yield process


def n_tasks_read(checkpoint):
    return checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"]


def files_of(checkpoint):
    """Return the names of the files that a training leaves beside its checkpoint."""
    return [path.name for path in checkpoint.parent.glob(f".{checkpoint.name}.*")]


@pytest.mark.slow
def test_second_training_of_a_checkpoint_is_refused(long_table, tmp_path, capsys):
    """The second process deletes nothing, and the first ends as if it were alone."""
    checkpoint, other_name = tmp_path / "c.npz", tmp_path / "link.npz"
    other_name.symlink_to(checkpoint)
    with halted_training(long_table, checkpoint, *SLOW, **PIPES) as process:
        part = tmp_path / ".c.npz.00000000.part"
        part.touch()
        for name in (checkpoint, other_name):
            assert cli.main(train_arguments("no such file", name)) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert err == (
                f"fastltl train: {checkpoint}: process {process.pid} on {platform.node()} trains "
                "it: wait until that ends, or use another checkpoint\n"
            )
        assert part.exists()
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    part.unlink()
    assert files_of(checkpoint) == []
    alone = run_training(long_table, tmp_path / "alone.npz", "--allow-repeats", *SLOW)
    assert checkpoint.read_bytes() == alone


@pytest.mark.slow
def test_lock_of_a_killed_training_is_free(table, tmp_path):
    checkpoint = tmp_path / "c.npz"
    with halted_training(table, checkpoint, **PIPES) as process:
        process.kill()
    assert ".c.npz.lock" in files_of(checkpoint)
    with files.locked(checkpoint) as is_locked:
        assert is_locked
    assert ".c.npz.lock" not in files_of(checkpoint)


def test_holder_of_a_lock_is_shown_only_if_it_is_plain_text(tmp_path):
    checkpoint = tmp_path / "c.npz"
    with files.locked(checkpoint):
        (tmp_path / ".c.npz.lock").write_text("\x1b[2J")
        with pytest.raises(OSError, match="another process trains it"):
            files.locked(checkpoint).__enter__()


def test_lock_is_exclusive_while_its_file_comes_and_goes(tmp_path):
    """The file is removed with each release, and others may hold a file that was removed."""
    inside, together = [], []

    def work():
        n_left = 50
        while n_left:
            try:
                with files.locked(tmp_path / "c.npz"):
                    inside.append(0)
                    together.append(len(inside))
                    inside.pop()
                    n_left -= 1
            except (BlockingIOError, PermissionError):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 200
    assert list(tmp_path.iterdir()) == [] or sys.platform == "win32"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(table, tmp_path, monkeypatch, capsys, number):
    def refuse(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "_lock", refuse)
    run_training(table, tmp_path / "c.npz")
    assert (
        "Note: its file system has no locks: make sure that no other process trains "
        f"{tmp_path / 'c.npz'}.\n"
    ) in capsys.readouterr().err
    assert files_of(tmp_path / "c.npz") == [] or sys.platform == "win32"


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="Windows follows links")
def test_lock_does_not_follow_links(table, tmp_path, capsys):
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / ".c.npz.lock").symlink_to("kept.txt")
    assert cli.main(train_arguments(table, tmp_path / "c.npz")) == 2
    assert ".c.npz.lock: Too many levels of symbolic links" in capsys.readouterr().err
    assert (tmp_path / "kept.txt").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    "outputs", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"]
)
def test_closed_and_full_outputs_do_not_stop_training(table, tmp_path, outputs):
    whole = run_training(table, tmp_path / "whole.npz", "--allow-repeats")
    arguments = shlex.join(command(table, tmp_path / "c.npz"))
    assert subprocess.run(["sh", "-c", f"exec {arguments} {outputs}"]).returncode == 0
    assert (tmp_path / "c.npz").read_bytes() == whole


@pytest.mark.slow
def test_reader_that_goes_does_not_stop_training(long_table, tmp_path):
    """As in `fastltl train ... 2>&1 | head -1`."""
    whole = run_training(long_table, tmp_path / "whole.npz", "--allow-repeats", *SLOW)
    checkpoint, pipes = tmp_path / "c.npz", PIPES | {"stderr": subprocess.STDOUT}
    with started(command(long_table, checkpoint, *SLOW), **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 0
    assert checkpoint.read_bytes() == whole


@pytest.mark.slow
def test_full_pipes_do_not_stop_training(table, tmp_path):
    """Neither messages nor the lines about bad tasks wait for a reader."""
    lines = table.read_text().splitlines()
    lines[500::10] = [line.rpartition(",")[0] + ",x" for line in lines[500::10]]
    table.write_text("\n".join([*lines, ""]))
    run_training(table, tmp_path / "whole.npz", "--skip-bad", "--allow-repeats")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    arguments = [*command(table, tmp_path / "c.npz"), "--skip-bad"]
    with started(arguments, stdout=writing, stderr=writing) as process:
        assert process.wait() == 0
    os.close(writing)
    os.close(reading)
    assert (tmp_path / "c.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_stderr_may_be_any_object_with_a_write(table, tmp_path):
    class Log:
        text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    log = Log()
    with contextlib.redirect_stderr(log):
        run_training(table, tmp_path / "c.npz")
    assert "learning" in log.text


@pytest.mark.slow
def test_reader_that_does_not_read_does_not_stop_training(long_table, tmp_path):
    """The bar is written only where there is space for it."""
    whole = run_training(long_table, tmp_path / "whole.npz", "--allow-repeats", *SLOW)
    reading, writing = os.pipe()
    checkpoint = tmp_path / "c.npz"
    pipes = {"stdout": subprocess.PIPE, "stderr": writing}
    with halted_training(long_table, checkpoint, *SLOW, **pipes) as process:
        os.set_blocking(writing, False)
        try:
            while os.write(writing, b"x"):  # fill the pipe
                pass
        except BlockingIOError:
            os.set_blocking(writing, True)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 0
    os.close(writing)
    os.close(reading)
    assert checkpoint.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.usefixtures("default_hangup")
def test_terminal_that_goes_ends_training_after_a_save(long_table, tmp_path):
    """The system sends SIGHUP, and writing fails from then on."""
    fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))

    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    whole = run_training(long_table, tmp_path / "whole.npz", "--allow-repeats", *SLOW)
    checkpoint = tmp_path / "c.npz"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    terminal = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    terminal |= {"start_new_session": True, "preexec_fn": take_terminal}
    with halted_training(long_table, checkpoint, *SLOW, "--every", 100000, **terminal) as process:
        os.close(theirs)
        os.close(ours)
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 128 + signal.SIGHUP
    assert 20 < n_tasks_read(checkpoint) < 6000
    assert run_training(long_table, checkpoint, "--allow-repeats", *SLOW) == whole


@pytest.mark.slow
def test_hangup_is_ignored_under_nohup(table, tmp_path):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    checkpoint = tmp_path / "c.npz"
    with halted_training(table, checkpoint, preexec_fn=ignore, **PIPES) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGCONT)
        process.communicate()
    assert process.returncode == 0
    assert n_tasks_read(checkpoint) == len(TASKS)


@pytest.mark.usefixtures("default_hangup")
def test_repeated_hangup_does_not_interrupt(capfd):
    with cli._stop_signals(bool) as received:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)  # the thread that watches takes the first
        assert received == [signal.SIGHUP] * 3
    assert capfd.readouterr().err == ""


LEARNERS = {"bayes": ltl.BayesLTL, "online": ltl.OnlineLTLPath}


def fail_at(monkeypatch, learner, n_tasks, error):
    """Let learning fail after a number of tasks, for a prior in the middle of a block."""
    owner = LEARNERS[learner]
    learn, learn_tasks = owner.partial_fit, BayesRun.learn_tasks

    def partial_fit(self, X, y):
        if getattr(self, "_run", None) is not None and self.n_tasks_seen_ == n_tasks:
            raise error
        return learn(self, X, y)

    def learn_some(self, X, y, offsets):
        return learn_tasks(self, X, y, offsets[: n_tasks - self.n_tasks + 1])

    monkeypatch.setattr(owner, "partial_fit", partial_fit)
    monkeypatch.setattr(BayesRun, "learn_tasks", learn_some)


def test_save_that_fails_after_a_failure_keeps_the_last_one(table, tmp_path, monkeypatch, capsys):
    checkpoint = tmp_path / "c.npz"
    run_training(write_table(table, TASKS[:50]), checkpoint)
    before = checkpoint.read_bytes()
    write_table(table, TASKS)

    def write(*_):
        raise MemoryError

    fail_at(monkeypatch, "bayes", 57, MemoryError())
    monkeypatch.setattr(train, "write_checkpoint", write)
    assert cli.main(train_arguments(table, checkpoint)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"fastltl train: out of memory. {checkpoint} holds 50 tasks before it."
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize(
    ("learner", "error", "message"),
    [
        ("bayes", MemoryError(), "out of memory. {} holds all tasks before it."),
        ("online", MemoryError("No space"), "No space. {} holds all tasks before it."),
        ("bayes", OSError(errno.EIO, "Input/output error", "disk"), "disk: Input/output error"),
        ("bayes", RuntimeError("can't start new thread"), None),
        ("online", RuntimeError("can't start new thread"), None),
    ],
)
def test_every_failure_ends_with_a_save(
    table, tmp_path, monkeypatch, capsys, learner, error, message
):
    options = "--learner", learner
    whole, checkpoint = run_training(table, tmp_path / "whole.npz", *options), tmp_path / "c.npz"
    with monkeypatch.context() as patch:
        fail_at(patch, learner, 57, error)
        arguments = train_arguments(table, checkpoint, *options)
        if message is None:
            with pytest.raises(RuntimeError, match="can't start new thread"):
                cli.main(arguments)
        else:
            assert cli.main(arguments) == 2
            line = capsys.readouterr().err.splitlines()[-1]
            assert line == f"fastltl train: {message.format(checkpoint)}"
    assert n_tasks_read(checkpoint) == (77 if learner == "online" else 57)
    assert run_training(table, checkpoint) == whole


@pytest.mark.parametrize(
    ("learner", "n_saved", "held"), [("bayes", 50, "all"), ("online", 71, "71")]
)
def test_half_learned_task_is_not_saved(
    table, tmp_path, monkeypatch, capsys, learner, n_saved, held
):
    """Memory may run out within a block, or when some of the candidates are updated."""
    options, checkpoint = ("--learner", learner), tmp_path / "c.npz"
    whole = run_training(table, tmp_path / "whole.npz", *options)
    owner, method = {"bayes": (BayesRun, "learn_tasks"), "online": (ltl.OnlineLTLPath, "_learn")}[
        learner
    ]
    learn = getattr(owner, method)

    def fail(self, *arguments):
        run = self if learner == "bayes" else arguments[0]
        found = learn(self, *arguments)
        if run.n_tasks >= 58:
            run.state.records["n_tasks"][3:] -= 1
            raise MemoryError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fail)
        assert cli.main(train_arguments(table, checkpoint, "--every", 10, *options)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"fastltl train: out of memory. {checkpoint} holds {held} tasks before it."
    )
    assert n_tasks_read(checkpoint) == n_saved
    assert run_training(table, checkpoint) == whole


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("n_counted", [0, 1, 54, 57, 60])
def test_failed_count_learns_no_task_twice(table, tmp_path, monkeypatch, learner, n_counted):
    """Memory may run out once tasks are learned, or skipped, and before they are counted."""
    lines = table.read_text().splitlines()
    for number in (50, 54):
        i = 1 + 5 * number
        assert lines[i].startswith(f"s{number},")
        lines[i] = f"s{number},0,0,0,0,x"
    table.write_text("\n".join([*lines, ""]))
    options = "--learner", learner, "--skip-bad", "--every", 20, "--allow-repeats"
    if learner == "online":
        options += "--validation", 10
    whole, checkpoint = run_training(table, tmp_path / "whole.npz", *options), tmp_path / "c.npz"
    numbers = iter(range(10**6))

    def fail(label):
        if next(numbers) == n_counted:
            raise MemoryError
        return repr(label)

    with monkeypatch.context() as patch:
        patch.setattr(train, "repr", fail, raising=False)
        assert cli.main(train_arguments(table, checkpoint, *options)) == 2
    assert checkpoint.exists() == (n_counted > 1)
    assert run_training(table, checkpoint, *options) == whole


def test_interrupted_save_keeps_the_old_checkpoint(table, tmp_path, monkeypatch, capsys):
    """A second signal may arrive within a save."""
    whole, checkpoint = run_training(table, tmp_path / "whole.npz"), tmp_path / "c.npz"
    run_training(write_table(table, TASKS[:50]), checkpoint)
    before = checkpoint.read_bytes()
    write_table(table, TASKS)

    def interrupt(file):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        assert cli.main(train_arguments(table, checkpoint)) == 130
    assert "interrupted; run the same command to resume" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before
    assert files_of(checkpoint) == []
    assert run_training(table, checkpoint) == whole


def test_signal_while_tasks_are_read_again(table, tmp_path, monkeypatch, capsys):
    """A training that resumes reads all tasks up to its position, but stops on a signal."""
    before = run_training(table, tmp_path / "c.npz")
    monkeypatch.setattr(train, "compile_kernels", lambda _: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr(train.Training, "_count", None)
    assert cli.main(train_arguments(table, tmp_path / "c.npz")) == 130
    assert "interrupted; run the same command to resume" in capsys.readouterr().err
    assert (tmp_path / "c.npz").read_bytes() == before


def test_half_written_file_is_learned_up_to_its_last_whole_task(table, tmp_path, capsys):
    """Wherever the file ends within a line, the run over the complete file gives the same bits."""
    whole, content = run_training(table, tmp_path / "whole.npz"), table.read_bytes()
    row = content.index(b"s100,")
    second_row = content.index(b"s100,", row + 1)
    next_task = content.index(b"s101,")
    # The end of the file, and the number of tasks that are certainly complete.
    cuts = [
        (row + 1, 99),  # s
        (row + 3, 99),  # s10, which is also the label of an earlier task
        (row + 7, 99),
        (second_row - 3, 99),  # \r\n is missing, and the last digit
        (second_row + 2, 100),
        (second_row + 20, 100),
        (next_task - 5, 100),
        (next_task + 1, 100),
        (len(content) - 2, 149),
    ]
    for end, n_tasks in cuts:
        checkpoint = tmp_path / f"{end}.npz"
        table.write_bytes(content[:end])
        capsys.readouterr()
        for _ in range(2):
            run_training(table, checkpoint)
            assert capsys.readouterr().err.splitlines()[-1] == (
                f"Note: the last line of {table} has no newline: it and the last task before it, "
                f"'s{n_tasks}', wait until it has one. If the file is complete, add one."
            )
            assert n_tasks_read(checkpoint) == n_tasks
        table.write_bytes(content)
        assert run_training(table, checkpoint) == whole
        assert "newline" not in capsys.readouterr().err
    table.write_bytes(content[:-1])  # \r alone ends a line
    assert run_training(table, tmp_path / "c.npz") == whole
    table.write_bytes(content)
    assert run_training(table, tmp_path / "c.npz") == whole
    table.write_bytes(content[:-2])
    assert cli.main(train_arguments(table, checkpoint)) == 2
    assert (
        "got a last line without newline: add one if the file is complete"
        in capsys.readouterr().err
    )


STUCK = """
import ctypes, os, signal, sys
from fastltl import cli
from fastltl.io.streams import TaskStream
read = TaskStream.blocks
def blocks(self, hold_back):
    yield next(read(self)).part(0, 100)
    print("stuck", flush=True)
    if sys.argv[1] == "before":
        os.kill(os.getpid(), signal.SIGTERM)
    mutex = ctypes.create_string_buffer(1000)
    for _ in range(2):  # the second call waits for ever, whatever the signals
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
TaskStream.blocks = blocks
cli.PATIENCE = 1
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "within"])
def test_signal_ends_a_reader_that_hangs(table, tmp_path, moment):
    """The signal comes before the call that hangs, and is handled, or within it."""
    checkpoint = tmp_path / "c.npz"
    arguments = [sys.executable, "-c", STUCK, moment]
    arguments += train_arguments(table, checkpoint, "--every", 10)
    with started(arguments, **PIPES) as process:
        assert process.stdout.readline() == b"stuck\n"
        if moment == "within":
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert b"ended without a save, since reading does not end\n" in err
    assert n_tasks_read(checkpoint) == 100


@pytest.mark.slow
def test_signal_ends_a_reader_that_hangs_though_nobody_reads_the_messages(table, tmp_path):
    checkpoint = tmp_path / "c.npz"
    arguments = [sys.executable, "-c", STUCK, "within"]
    arguments += train_arguments(table, checkpoint, "--every", 10)
    with started(arguments, **PIPES) as process:
        assert process.stdout.readline() == b"stuck\n"
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


SLOW_SAVE = """
import os, signal, sys, time
from fastltl import cli, train
from fastltl.io.streams import TaskStream
read, write = TaskStream.blocks, train.write_checkpoint
def blocks(self, hold_back=False):
    yield next(read(self, hold_back)).part(0, 95)
    raise ValueError("row 96 is bad")
def slow_write(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(4)
    write(*arguments)
TaskStream.blocks, train.write_checkpoint = blocks, slow_write
cli.PATIENCE = 1
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_slow_save_after_an_error_is_not_taken_for_reading(table, tmp_path):
    checkpoint = tmp_path / "c.npz"
    arguments = [sys.executable, "-c", SLOW_SAVE, *train_arguments(table, checkpoint)]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert found.returncode == 2
    assert "row 96 is bad" in found.stderr
    assert n_tasks_read(checkpoint) == 95


LITTLE_MEMORY = """
import resource, sys
import pyarrow.compute, pyarrow.csv, pyarrow.parquet
from fastltl import cli, train
train.compile_kernels("bayes")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]) * 2**20,) * 2)
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and limits")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("megabytes", [4, 8, 12, 16, 24, 140, 200, 350])
def test_little_memory_ends_in_one_line(tmp_path, kind, megabytes):
    """pyarrow alone waits for ever, at 12 and 16 MB for example, or aborts the process."""
    numbers = np.random.default_rng(0).standard_normal((200_000, 2))
    columns = {"store": np.arange(200_000) // 100, "a": numbers[:, 0], "sales": numbers[:, 1]}
    table, checkpoint = tmp_path / f"table.{kind}", tmp_path / "c.npz"
    write = csv.write_csv if kind == "csv" else parquet.write_table
    write(pyarrow.table(columns), table)
    arguments = [str(megabytes), *train_arguments(table, checkpoint)]
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.returncode == 2
        line = done.stderr.splitlines()[-1]
        assert line.startswith("fastltl train: ")
        assert checkpoint.exists() == (f"{checkpoint} holds all tasks before it." in line)
    else:
        assert megabytes > 128
