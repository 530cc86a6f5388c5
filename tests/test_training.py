"""`fastltl train` and `fastltl adapt`: interruptions and bad input do not change results."""

import csv
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tqdm import tqdm

import fastltl as ltl
from fastltl import cli, train
from fastltl.io import checkpoints

pytestmark = pytest.mark.slow

environment = ltl.datasets.make_environment(n_features=4, noise=0.1, random_state=0)
TASKS = environment.tasks(150, n_samples=5)


def write_table(path, tasks, first=0):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["store", "a", "b", "c", "d", "sales"])
        for i, (X, y) in enumerate(tasks, first):
            rows.writerows([f"s{i}", *x, target] for x, target in zip(X.tolist(), y, strict=True))
    return path


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.csv", TASKS)


def train_arguments(table, checkpoint, *options):
    arguments = ["train", str(table), "--task", "store", "--target", "sales"]
    return [*arguments, "--checkpoint", str(checkpoint), *map(str, options)]


def run_training(table, checkpoint, *options):
    """Train, and return the bytes of the checkpoint."""
    assert cli.main(train_arguments(table, checkpoint, *options)) == 0
    return checkpoint.read_bytes()


def test_train_fits_a_path_to_all_but_the_validation_tasks(table, tmp_path, capsys):
    run_training(table, tmp_path / "c.npz", "--validation", 30)
    learner = ltl.load(tmp_path / "c.npz")
    tasks = ltl.open_stream(table, task="store", target="sales")
    kept = ltl.TaskSet(list(tasks)[:30]).split_samples(0.5, random_state=0)
    path = ltl.OnlineLTLPath(validation=kept, fit_intercept=True).fit(list(tasks)[30:])
    assert np.array_equal(learner.representations_, path.representations_)
    assert np.array_equal(learner.scores_, path.scores_)
    assert list(learner.feature_names_in_) == [*"abcd"]
    progress = path.progress_summary()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"Learned from 120 tasks; validation: lam {progress['lam']}, mse {progress['mse']}.",
        f"Saved: {tmp_path / 'c.npz'}",
    ]
    assert "task/s" in err
    assert "mse=" in err


def test_result_does_not_depend_on_how_often_it_saves(table, tmp_path):
    once = run_training(table, tmp_path / "once.npz")
    assert run_training(table, tmp_path / "often.npz", "--every", 7) == once


def test_train_resumes_when_tasks_were_added(tmp_path, table, capsys):
    whole = run_training(table, tmp_path / "whole.npz")
    checkpoint = tmp_path / "c.npz"
    run_training(write_table(table, TASKS[:70]), checkpoint)
    assert run_training(write_table(table, TASKS), checkpoint) == whole
    assert "Resuming after 70 tasks" in capsys.readouterr().out
    assert run_training(table, checkpoint) == whole  # no new tasks
    assert checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"] == 150


def test_train_with_one_lam_without_intercept(table, tmp_path):
    run_training(
        table, tmp_path / "c.npz", "--lam", "0.01", "--no-intercept", "--features", "a", "c"
    )
    learner = ltl.load(tmp_path / "c.npz")
    assert learner.lams_.tolist() == [0.01]
    assert not learner.fit_intercept
    assert list(learner.feature_names_in_) == ["a", "c"]


def bad_table(tmp_path):
    tasks = [(X.copy(), y.copy()) for X, y in TASKS]
    tasks[60][0][2, 1] = np.nan
    tasks[80][0][0, 0] = 1e200
    return write_table(tmp_path / "bad.csv", tasks)


def test_bad_task_keeps_the_tasks_before_it(tmp_path, capsys):
    path, checkpoint = bad_table(tmp_path), tmp_path / "c.npz"
    message = (
        f"fastltl train: task 's60': column 'b' must hold finite numbers, got no number in row 303 "
        f"of {path}: correct it, or leave the column out with drop (command line: --drop). "
        f"{checkpoint} holds all tasks before it."
    )
    for _ in range(2):
        assert cli.main(train_arguments(path, checkpoint)) == 2
        assert capsys.readouterr().err.splitlines()[-1] == message
        assert checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"] == 60
    assert run_training(write_table(path, TASKS), checkpoint) == run_training(
        path, tmp_path / "whole.npz"
    )


def test_bad_tasks_can_be_skipped(tmp_path, capsys):
    path, good = bad_table(tmp_path), [TASKS[i] for i in range(150) if i not in (60, 80)]
    run_training(path, tmp_path / "c.npz", "--skip-bad")
    out, err = capsys.readouterr()
    assert "Learned from 128 tasks, skipped 2; validation" in out
    assert "skipped: task 's60': column 'b' must hold finite numbers" in err
    assert "skipped: task 's80': X and y must not be so large" in err
    run_training(write_table(tmp_path / "good.csv", good), tmp_path / "good.npz")
    found, wanted = ltl.load(tmp_path / "c.npz"), ltl.load(tmp_path / "good.npz")
    assert np.array_equal(found.representations_, wanted.representations_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lam", "0.1"], r"lam must be None, as in .*c.npz, got 0.1"),
        (["--validation", "5"], r"validation must be 20, .* got 5"),
        (["--validation", "9" * 30], "must be a whole number from 1 up, got '999"),
        (["--no-intercept"], r"fit_intercept must be True, .* got False"),
        (["--features", "a"], r"features must be None, as in .*c.npz, got \('a',\)"),
        (["--every", "0"], "must be a whole number from 1 up, got '0'"),
        (["--lam", "nan"], "must be a positive number, got 'nan'"),
        (["--target", "store"], "task, target and features must differ, got 'store' twice"),
        (["--checkpoint", "."], r"must be a file, got the folder '\.'"),
        (["--checkpoint", "no/c.npz"], "folder 'no' does not exist"),
    ],
)
def test_changed_options_are_reported_in_one_line(table, tmp_path, capsys, options, message):
    checkpoint = tmp_path / "c.npz"
    before = run_training(table, checkpoint)
    capsys.readouterr()
    try:
        status = cli.main([*train_arguments(table, checkpoint), *options])
    except SystemExit as error:
        status = error.code
    assert status == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("fastltl train: ")
    assert re.search(message, line)
    assert checkpoint.read_bytes() == before


def test_changed_stream_is_an_error(table, tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    longer = [*TASKS[:-1], tuple(np.concatenate([part, part]) for part in TASKS[-1])]
    changed = [(X, y + (i == 3)) for i, (X, y) in enumerate(TASKS)]
    for tasks, first in ((TASKS[:50], 0), (TASKS, 1), (longer, 0), (changed, 0)):
        assert cli.main(train_arguments(write_table(table, tasks, first), checkpoint)) == 2
        assert "must begin with the 150 tasks that" in capsys.readouterr().err
    ltl.OnlineLTL().fit(TASKS).save(checkpoint)
    assert cli.main(train_arguments(write_table(table, TASKS), checkpoint)) == 2
    assert "must be a checkpoint of fastltl train, got another" in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 2**70, 0.5, True])
@pytest.mark.parametrize("name", ["settings", "n_tasks_read", "n_left_out", "digest"])
def test_forged_positions_are_refused(table, tmp_path, capsys, name, value):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    found = checkpoints.read_checkpoint(checkpoint)
    checkpoints.write_checkpoint(
        checkpoint, found._replace(position=found.position | {name: value})
    )
    before = checkpoint.read_bytes()
    capsys.readouterr()
    status = cli.main(train_arguments(table, checkpoint))
    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert lines[-1].startswith("fastltl train: ")
    assert checkpoint.read_bytes() == before
    if name == "settings" and not isinstance(value, dict):
        arguments = ["adapt", str(checkpoint), str(table), "--out", str(tmp_path / "out")]
        assert cli.main(arguments) == 2
        assert "settings is a" in capsys.readouterr().err


def test_too_few_tasks(tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    assert cli.main(train_arguments(write_table(tmp_path / "t.csv", TASKS[:20]), checkpoint)) == 2
    assert "must have more than the 20 tasks kept for validation, got 20" in (
        capsys.readouterr().err
    )
    singles = [(X[:1], y[:1]) for X, y in TASKS]
    assert cli.main(train_arguments(write_table(tmp_path / "t.csv", singles), checkpoint)) == 2
    assert "the first 20 tasks, kept for validation, need one with two samples, got none in 20" in (
        capsys.readouterr().err
    )
    assert not checkpoint.exists()


def fork_command(arguments):
    """Run the command in a forked process; return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads
        child = os.fork()
    if child == 0:
        status = 99
        try:
            tqdm.set_lock(threading.RLock())  # the inherited lock is shared with the parent
            nowhere = open(os.devnull, "w")  # noqa: SIM115  (to the end of the process)
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                status = cli.main(arguments)
        finally:
            os._exit(status)
    return child


def test_killed_training_resumes_with_the_same_bits(table, tmp_path):
    """Send SIGKILL at 50 random times, some during a save, and resume each time."""
    whole = run_training(table, tmp_path / "whole.npz")
    rng = random.Random(0)
    began = time.perf_counter()
    run_training(table, tmp_path / "timed.npz", "--every", 1)
    seconds = time.perf_counter() - began
    n_killed = n_within_save = 0
    while n_killed < 50:
        checkpoint = tmp_path / f"killed-{n_killed}.npz"
        for _ in range(1000):
            child = fork_command(
                train_arguments(table, checkpoint, "--every", rng.choice([1, 2, 10]))
            )
            time.sleep(rng.uniform(0.0, seconds / 2))
            os.kill(child, signal.SIGKILL)
            if os.waitpid(child, 0)[1] == 0:
                break
            n_killed += 1
            n_within_save += any(tmp_path.glob(f".{checkpoint.name}.*.part"))
        assert checkpoint.read_bytes() == whole
        assert list(tmp_path.glob(".*")) == []
    assert n_within_save > 0


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_stops_training_after_a_save(tmp_path, number):
    """The command finishes the current task, saves and exits."""
    table, checkpoint = write_table(tmp_path / "t.csv", list(TASKS) * 40), tmp_path / "c.npz"
    command = [sys.executable, "-m", "fastltl", *train_arguments(table, checkpoint, "--every", 10)]
    command.append("--allow-repeats")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        while not checkpoint.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert "Stopped before the end: run the same command to resume." in err.splitlines()
    assert "Traceback" not in err
    n_read = checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"]
    assert f"Learned from {n_read - 20} tasks; validation: lam " in out
    assert 0 < n_read < 6000


def test_second_signal_interrupts():
    with cli._stop_signals(bool) as received:
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_before_the_first_task(table, tmp_path, monkeypatch, capsys):
    def compile_kernels():
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(train, "compile_kernels", compile_kernels)
    assert cli.main(train_arguments(table, tmp_path / "c.npz")) == 128 + signal.SIGTERM
    assert "Stopped before the first task: nothing was saved." in capsys.readouterr().err
    assert not (tmp_path / "c.npz").exists()


FULL = """
import resource, sys
from fastltl import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(cli.main(sys.argv[2:]))
"""


def test_full_disk_keeps_the_old_checkpoint(tmp_path):
    """Resume with more tasks when the disk has no space for the larger checkpoint."""
    table, checkpoint = write_table(tmp_path / "t.csv", TASKS[:50]), tmp_path / "c.npz"
    before = run_training(table, checkpoint)
    write_table(table, TASKS)
    command = [sys.executable, "-c", FULL, "5000", *train_arguments(table, checkpoint)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"fastltl train: {checkpoint}: File too large: nothing was saved, and an earlier file is "
        "unchanged; free some space or save elsewhere"
    )
    assert checkpoint.read_bytes() == before
    assert list(tmp_path.glob(".*")) == []


def test_adapt_writes_weights_and_predictions(table, tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    learner = ltl.load(checkpoint)
    new = environment.tasks(3, n_samples=6)
    lines = write_table(tmp_path / "new.csv", new, 500).read_text().splitlines()
    lines[2] = lines[2].rpartition(",")[0] + ","  # a row without a target
    columns = [line.split(",") for line in lines]  # in another order, with one more
    shuffled = [",".join([row[5], row[2], row[1], "x", *row[3:5], row[0]]) for row in columns]
    (tmp_path / "new.csv").write_text("\n".join(shuffled))
    capsys.readouterr()
    out = tmp_path / "out"
    assert cli.main(["adapt", str(checkpoint), str(tmp_path / "new.csv"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "3 tasks, 17 rows with target, 1 without"
    with (out / "weights.csv").open() as file:
        weights = list(csv.DictReader(file))
    with (out / "predictions.csv").open() as file:
        predictions = list(csv.DictReader(file))
    assert [row["task"] for row in weights] == ["s500", "s501", "s502"]
    assert [int(row["row"]) for row in predictions] == [*range(1, 19)]
    assert predictions[1]["sales"] == ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best lam is at the edge
        for i, (X, y) in enumerate(new):
            kept = np.arange(6) != 1 if i == 0 else slice(None)
            model = learner.adapt(X[kept], y[kept])
            found = [float(weights[i][name]) for name in ("intercept", *"abcd")]
            assert np.allclose(found, [model.intercept_, *model.coef_], rtol=1e-12)
            found = [float(row["prediction"]) for row in predictions[6 * i : 6 * i + 6]]
            assert np.allclose(found, model.predict(X), rtol=1e-9)


def test_adapt_with_a_saved_learner(tmp_path, capsys):
    """`save` does not record the columns."""
    checkpoint, table = tmp_path / "c.npz", write_table(tmp_path / "new.csv", TASKS[:2])
    ltl.BatchLTL(0.1, tol=1e-3).fit(TASKS).save(checkpoint)
    command = ["adapt", str(checkpoint), str(table), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "target must name a column of" in capsys.readouterr().err
    assert cli.main([*command, "--target", "sales"]) == 2
    assert "task must name a column of" in capsys.readouterr().err
    assert cli.main([*command, "--target", "sales", "--task", "store"]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("store,a,b,c,sales\n", "features must name a column of"),
        ("store,a,b,c,d,sales\nx,1,2,3,4,\n", "task 'x' must have a row with a target, got none"),
        ("store,a,b,c,d,sales\nx,1,2,,4,5\n", "task 'x': column 'c' must hold finite numbers"),
        ("store,a,b,c,d,sales\nx,1,2,3,4,inf\n", "'sales' must hold finite numbers, got inf"),
        ("store,a,b,c,d,sales\nx,1,2,3,4,1e308\nx,9,2,3,4,-1e308\n", "task 'x': D, X and y must"),
    ],
)
def test_adapt_reports_bad_tasks(table, tmp_path, capsys, content, message):
    checkpoint, new, out = tmp_path / "c.npz", tmp_path / "new.csv", tmp_path / "out"
    run_training(table, checkpoint)
    new.write_text(content)
    assert cli.main(["adapt", str(checkpoint), str(new), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize("learner", [ltl.RepresentationRidge(), ltl.BatchLTL(), ltl.OnlineLTL()])
def test_adapt_needs_a_fitted_learner(tmp_path, capsys, learner):
    learner.save(tmp_path / "c.npz")
    table = write_table(tmp_path / "new.csv", TASKS[:2])
    assert cli.main(["adapt", str(tmp_path / "c.npz"), str(table), "--target", "sales"]) == 2
    assert "must hold a fitted learner of a representation, got " in capsys.readouterr().err


def write_folder(path, tasks):
    path.mkdir(exist_ok=True)
    for i, (X, y) in enumerate(tasks):
        np.savez(path / f"{i:03}.npz", X=X, y=y)
    return path


def test_train_and_adapt_with_a_folder(tmp_path, capsys):
    folder, checkpoint = write_folder(tmp_path / "folder", TASKS[:40]), tmp_path / "c.npz"
    command = ["train", str(folder), "--target", "y", "--checkpoint"]
    assert cli.main([*command, str(checkpoint)]) == 0
    assert list(ltl.load(checkpoint).feature_names_in_) == ["X0", "X1", "X2", "X3"]
    out = ["--out", str(tmp_path / "out")]
    assert cli.main(["adapt", str(checkpoint), str(folder), *out]) == 0
    assert cli.main([*command, str(folder / "c.npz")]) == 2
    assert "checkpoint must be outside the folder of the stream" in capsys.readouterr().err
    (folder / "030.npz").unlink()
    assert cli.main([*command, str(checkpoint)]) == 2
    assert "must begin with the 40 tasks that" in capsys.readouterr().err
    (folder / "031.npz").write_bytes(b"")
    assert cli.main([*command, str(tmp_path / "other.npz")]) == 2
    assert "031.npz cannot be read as .npz" in capsys.readouterr().err
    assert checkpoints.read_checkpoint(tmp_path / "other.npz").position["n_tasks_read"] == 29


@pytest.mark.parametrize("kind", ["decimal", "binary", "timestamp[ns]", "time64[ns]", "int64"])
def test_labels_of_any_type(tmp_path, kind):
    """Labels need not have a JSON type."""
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    numbers = pyarrow.array(np.repeat(np.arange(1, 151) * 10**6, 5))
    casts = {
        "decimal": lambda: numbers.cast(pyarrow.decimal128(19, 0)),
        "binary": lambda: numbers.cast("string").cast("binary"),
    }
    labels = casts.get(kind, lambda: numbers.cast(kind))()
    table = pyarrow.table({"store": labels, "a": X[:, 0], "sales": y})
    path, checkpoint = tmp_path / "table.parquet", tmp_path / "c.npz"
    parquet.write_table(table, path)
    assert run_training(path, checkpoint) == run_training(path, checkpoint)


def test_overflow_in_validation_tasks(tmp_path, capsys):
    tasks = [(X * 1e200 if i == 3 else X, y) for i, (X, y) in enumerate(TASKS)]
    path, checkpoint = write_table(tmp_path / "t.csv", tasks), tmp_path / "c.npz"
    assert cli.main(train_arguments(path, checkpoint)) == 2
    assert "the first 20 tasks, kept for validation: D, X and y must not be so large" in (
        capsys.readouterr().err
    )


def test_adapt_does_not_overwrite_its_input(table, tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    new = write_table(tmp_path / "predictions.csv", TASKS[:2])
    before = new.read_bytes()
    assert cli.main(["adapt", str(checkpoint), str(new), "--out", str(tmp_path)]) == 2
    assert "adapt would overwrite its input" in capsys.readouterr().err
    assert new.read_bytes() == before


def test_adapt_rejects_malformed_targets(table, tmp_path, capsys):
    checkpoint, new = tmp_path / "c.npz", tmp_path / "new.csv"
    run_training(table, checkpoint)
    new.write_text('store,a,b,c,d,sales\nx,1,2,3,4,5\nx,1,2,3,4,"1,5"\n')
    command = ["adapt", str(checkpoint), str(new), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "column 'sales' must hold finite numbers, got no number in row 2" in (
        capsys.readouterr().err
    )
    new.write_text("store,a,b,c,d,sales\nx,1,2,3,4,5\nz,1,2,3,4,6\nx,1,2,3,4,7\n")
    assert cli.main(command) == 2
    assert "--allow-repeats" in capsys.readouterr().err
    assert cli.main([*command, "--allow-repeats"]) == 0
