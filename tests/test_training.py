"""`fastltl train` and `fastltl adapt`: interruptions and bad input do not change results."""

import csv
import hashlib
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
from naive import ragged_tasks
from pyarrow import csv as pyarrow_csv, parquet
from tqdm import tqdm

import fastltl as ltl
from fastltl import cli, train
from fastltl._bayes_run import BayesRun
from fastltl.io import checkpoints, sources, tables
from fastltl.io.streams import TaskStream

LEARNERS = ["bayes", "online"]

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


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_training(table, checkpoint, *options):
    """Train, and return the bytes of the checkpoint."""
    assert cli.main(train_arguments(table, checkpoint, *options)) == 0
    return checkpoint.read_bytes()


def state_of(checkpoint):
    """Return the bits of what a checkpoint has learned."""
    return checkpoints.read_checkpoint(checkpoint).state["run"]


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert np.array_equal(value, other[name]), name


def test_train_learns_a_prior_from_all_tasks(table, tmp_path, capsys):
    run_training(table, tmp_path / "c.npz")
    learner = ltl.load(tmp_path / "c.npz")
    stream = ltl.open_stream(table, task="store", target="sales")
    assert_same_state(learner._run.checkpoint(), ltl.BayesLTL().fit(stream)._run.checkpoint())
    assert list(learner.feature_names_in_) == [*"abcd"]
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Learned from 150 tasks; squared error to expect on a row of a new task, given its other "
        f"rows: {learner.loo_error_:.3g}.",
        f"Saved: {tmp_path / 'c.npz'}",
    ]
    assert "task/s" in err
    assert f"error={learner.loo_error_:.3g}" in err
    assert "Note" not in err


def test_train_with_half_life_without_intercept(table, tmp_path):
    options = "--half-life", 20, "--no-intercept", "--drop", "b", "d"
    run_training(table, tmp_path / "c.npz", *options)
    learner = ltl.load(tmp_path / "c.npz")
    tasks = [(X[:, [0, 2]], y) for X, y in ltl.open_stream(table, task="store", target="sales")]
    wanted = ltl.BayesLTL(fit_intercept=False, half_life=20).fit(tasks)
    assert_same_state(learner._run.checkpoint(), wanted._run.checkpoint())
    assert list(learner.feature_names_in_) == ["a", "c"]


def scaled_tasks(table, n_kept):
    """Return the tasks of a table in units of the deviations of the first ones, and these."""
    tasks = list(ltl.open_stream(table, task="store", target="sales"))
    scale = np.std(np.concatenate([X for X, _ in tasks[:n_kept]]), axis=0)
    return [(X / scale, y) for X, y in tasks], scale


def test_train_fits_a_path_to_all_but_the_validation_tasks(table, tmp_path, capsys):
    run_training(table, tmp_path / "c.npz", "--learner", "online", "--validation", 30)
    with pytest.warns(UserWarning, match="divided by scales that `load` does not apply"):
        learner = ltl.load(tmp_path / "c.npz")
    tasks, scale = scaled_tasks(table, 30)
    found = checkpoints.read_checkpoint(tmp_path / "c.npz").position["scale"]
    assert np.allclose(found, scale, rtol=1e-12)
    kept = ltl.TaskSet(tasks[:30]).split_samples(0.5, random_state=0)
    path = ltl.OnlineLTLPath(validation=kept, fit_intercept=True).fit(tasks[30:])
    assert np.allclose(learner.representations_, path.representations_, rtol=1e-6, atol=1e-9)
    assert np.allclose(learner.scores_, path.scores_, rtol=1e-6)
    assert list(learner.feature_names_in_) == [*"abcd"]
    progress = path.progress_summary()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"Learned from 120 tasks; validation: lam {progress['lam']}, mse {progress['mse']}.",
        f"Saved: {tmp_path / 'c.npz'}",
    ]
    assert "task/s" in err
    assert "mse=" in err


def test_units_do_not_matter_to_either_learner(tmp_path):
    """Features on scales a million apart give the same predictions, and weights in their units."""
    factors = np.array([1e-3, 1.0, 1e3, 7.0])
    weights, predictions = {}, {}
    for learner in LEARNERS:
        for name, unit in (("plain", np.ones(4)), ("mixed", factors)):
            tasks = [(X * unit, y) for X, y in TASKS]
            table = write_table(tmp_path / f"{name}.csv", tasks)
            checkpoint, out = tmp_path / f"{learner}-{name}.npz", tmp_path / f"{learner}-{name}"
            run_training(table, checkpoint, "--learner", learner)
            assert cli.main(["adapt", str(checkpoint), str(table), "--out", str(out)]) == 0
            rows = read_rows(out / "predictions.csv")
            predictions[name] = [float(row["prediction"]) for row in rows]
            rows = read_rows(out / "weights.csv")
            weights[name] = np.array([[float(row[column]) for column in "abcd"] for row in rows])
        assert np.allclose(predictions["plain"], predictions["mixed"], rtol=1e-4, atol=1e-6)
        assert np.allclose(weights["plain"], weights["mixed"] * factors, rtol=1e-4, atol=1e-6)


def test_constant_features_keep_their_scale(tmp_path):
    tasks = [(np.column_stack([X[:, :3], np.full(5, 0.1)]), y) for X, y in TASKS]
    table, checkpoint = write_table(tmp_path / "t.csv", tasks), tmp_path / "c.npz"
    run_training(table, checkpoint, "--learner", "online")
    scale = checkpoints.read_checkpoint(checkpoint).position["scale"]
    assert scale[3] == 1.0
    assert (scale[:3] != 1.0).all()


def test_best_lam_at_the_edge_is_noted(tmp_path, capsys):
    noise = [(X, np.random.default_rng(i).normal(size=5)) for i, (X, _) in enumerate(TASKS)]
    table, checkpoint = write_table(tmp_path / "t.csv", noise), tmp_path / "c.npz"
    for _ in range(2):  # also when it resumes
        before = run_training(table, checkpoint, "--learner", "online")
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note")]
        assert len(notes) == 1
        assert re.fullmatch(r"Note: the best lam, 1e\+03, is at the edge of the cand.*", notes[0])
    assert checkpoint.read_bytes() == before


@pytest.mark.parametrize("learner", LEARNERS)
def test_result_does_not_depend_on_how_often_it_saves(table, tmp_path, learner):
    once = run_training(table, tmp_path / "once.npz", "--learner", learner)
    often = run_training(table, tmp_path / "often.npz", "--every", 7, "--learner", learner)
    assert often == once


RAGGED = ragged_tasks(1, 150, 4, (1, 12))


def write_ragged(path, bad=()):
    """Write ragged tasks, some with a missing number; return tasks as (label, X, y)."""
    tasks = [(f"s{i}", X.copy(), y.copy()) for i, (X, y) in enumerate(RAGGED)]
    for i in bad:
        tasks[i][1][-1, 2] = np.nan
    X, y = (np.concatenate([task[k] for task in tasks]) for k in (1, 2))
    labels = np.repeat([label for label, _, _ in tasks], [len(y) for _, _, y in tasks])
    columns = {name: X[:, j] for j, name in enumerate("abcd")}
    table = pyarrow.table({"store": labels, **columns, "sales": y})
    write = parquet.write_table if path.suffix == ".parquet" else pyarrow_csv.write_csv
    write(table, path)
    return tasks


def learn_plainly(tasks):
    """Learn from tasks one by one; return the learner, the digest and the tasks left out."""
    learner, digest, left_out = ltl.BayesLTL(), hashlib.blake2b(digest_size=16), []
    for label, X, y in tasks:
        try:
            learner.partial_fit(X, y)
        except ValueError:
            left_out.append(label)
        for part in (repr(label).encode(), X.data, y.data):
            digest.update(part)
    return learner, digest.hexdigest(), left_out


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("bad", [(), (0, 57, 58, 100, 149)])
def test_blocks_give_the_bits_of_single_tasks(tmp_path, monkeypatch, capsys, kind, bad):
    """Wherever blocks end, the checkpoint is that of `partial_fit` and of one digest over all."""
    table = tmp_path / f"t.{kind}"
    learner, digest, left_out = learn_plainly(write_ragged(table, bad))
    assert left_out == [f"s{i}" for i in bad]
    found = []
    for size, options in ((2**20, ()), (2**20, ("--every", 1)), (2**12, ()), (100, ("--every", 7))):
        monkeypatch.setattr(tables, "BLOCK_BYTES", size)
        checkpoint = tmp_path / f"c{len(found)}.npz"
        found.append(run_training(table, checkpoint, "--skip-bad", *options))
        skipped = re.findall(r"skipped: task '(s\d+)': column 'c' must", capsys.readouterr().err)
        assert skipped == left_out
    assert set(found) == {found[0]}
    assert_same_state(state_of(checkpoint), learner._run.checkpoint())
    position = checkpoints.read_checkpoint(checkpoint).position
    assert position["digest"] == digest
    assert (position["n_tasks_read"], position["n_left_out"]) == (150, len(bad))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_bad_task_in_a_block_keeps_the_tasks_before_it(tmp_path, monkeypatch, kind):
    """Also where training resumes in the middle of a block."""
    table, checkpoint = tmp_path / f"t.{kind}", tmp_path / "c.npz"
    write_ragged(table)
    whole = run_training(table, tmp_path / "whole.npz")
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2**12)
    for i in (0, 57, 58, 100, 149):
        tasks = write_ragged(table, [i])
        assert cli.main(train_arguments(table, checkpoint)) == 2
        if i:
            learner, digest, _ = learn_plainly(tasks[:i])
            assert checkpoints.read_checkpoint(checkpoint).position["digest"] == digest
            assert_same_state(state_of(checkpoint), learner._run.checkpoint())
    write_ragged(table)
    assert run_training(table, checkpoint) == whole


def test_interrupted_training_resumes_in_the_middle_of_a_block(tmp_path, monkeypatch, capsys):
    table, checkpoint = tmp_path / "t.csv", tmp_path / "c.npz"
    write_ragged(table)
    whole = run_training(table, tmp_path / "whole.npz")
    learn, n_tasks = train.Training._learn, []

    def learn_and_stop(self, block):
        learn(self, block)
        n_tasks.append(len(block))
        if len(n_tasks) == 3:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(tables, "BLOCK_BYTES", 2**12)
        patch.setattr(train.Training, "_learn", learn_and_stop)
        assert cli.main(train_arguments(table, checkpoint)) == 128 + signal.SIGTERM
    assert "Stopped before the end" in capsys.readouterr().err
    n_read = checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"]
    assert n_read == sum(n_tasks) < 150
    assert run_training(table, checkpoint) == whole


@pytest.mark.parametrize(
    ("seconds", "share", "n_saves"), [(1e9, 1.0, 1), (0.0, 1e-12, 2), (0.0, np.inf, None)]
)
def test_checkpoints_are_written_by_the_clock(tmp_path, monkeypatch, seconds, share, n_saves):
    """A save waits for its time, and longer if the last one took long; the last is at the end."""
    table, n_written, n_blocks = tmp_path / "t.csv", [], []
    write_ragged(table)
    write, learn = train.write_checkpoint, train.Training._learn
    monkeypatch.setattr(tables, "BLOCK_BYTES", 2**12)
    monkeypatch.setattr(train, "SAVE_SECONDS", seconds)
    monkeypatch.setattr(train, "SAVE_SHARE", share)
    monkeypatch.setattr(train, "write_checkpoint", lambda *a: n_written.append(write(*a)))
    monkeypatch.setattr(
        train.Training, "_learn", lambda self, block: n_blocks.append(learn(self, block))
    )
    run_training(table, tmp_path / "c.npz")
    assert len(n_written) == (n_saves or len(n_blocks))
    assert len(n_blocks) > 5


@pytest.mark.parametrize("learner", LEARNERS)
def test_train_resumes_when_tasks_were_added(tmp_path, table, capsys, learner):
    """A training that resumes has the learner of its checkpoint, unless another is asked for."""
    whole = run_training(table, tmp_path / "whole.npz", "--learner", learner)
    checkpoint = tmp_path / "c.npz"
    run_training(write_table(table, TASKS[:70]), checkpoint, "--learner", learner)
    assert run_training(write_table(table, TASKS), checkpoint) == whole
    assert "Resuming after 70 tasks" in capsys.readouterr().out
    assert run_training(table, checkpoint, "--learner", learner) == whole  # no new tasks
    assert checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"] == 150


def test_train_with_one_lam_without_intercept(table, tmp_path, capsys):
    options = "--lam", "0.01", "--no-intercept", "--features", "a", "c", "--learner", "online"
    run_training(table, tmp_path / "c.npz", *options)
    assert "Note" not in capsys.readouterr().err
    checkpoint = checkpoints.read_checkpoint(tmp_path / "c.npz")
    learner = checkpoints.restored(checkpoint, "c.npz")
    assert learner.lams_.tolist() == [0.01]
    assert not learner.fit_intercept
    assert list(learner.feature_names_in_) == ["a", "c"]


def make_older(checkpoint):
    """Turn a checkpoint into one of an earlier version, which had neither learners nor scales."""
    found = checkpoints.read_checkpoint(checkpoint)
    names = "task", "target", "features", "lam", "validation", "fit_intercept"
    position = {name: found.position[name] for name in ("n_tasks_read", "n_left_out", "digest")}
    position["settings"] = {name: found.position["settings"][name] for name in names}
    checkpoints.write_checkpoint(checkpoint, found._replace(position=position))


def test_older_checkpoints_resume_as_online_without_scales(tmp_path, table, monkeypatch):
    monkeypatch.setattr(train, "_feature_scales", lambda X: np.ones(X.shape[1]))
    for name, tasks in (("whole", TASKS), ("old", TASKS[:70]), ("asked", TASKS[:70])):
        run_training(write_table(table, tasks), tmp_path / f"{name}.npz", "--learner", "online")
    monkeypatch.undo()
    write_table(table, TASKS)
    for name, options in (("old", ()), ("asked", ("--learner", "online"))):
        checkpoint = tmp_path / f"{name}.npz"
        make_older(checkpoint)
        assert run_training(table, checkpoint, *options) == (tmp_path / "whole.npz").read_bytes()
        make_older(checkpoint)
        assert cli.main(["adapt", str(checkpoint), str(table), "--out", str(tmp_path / name)]) == 0
    tasks, learner = ltl.open_stream(table, "store", "sales"), ltl.load(tmp_path / "old.npz")
    model = learner.adapt(*next(iter(tasks)))
    row = read_rows(tmp_path / "old" / "weights.csv")[0]
    assert np.allclose([float(row[name]) for name in "abcd"], model.coef_, rtol=1e-9)


def test_skipped_validation_tasks_are_printed(tmp_path, capsys):
    tasks = [(X.copy(), y.copy()) for X, y in TASKS[:30]]
    tasks[3][0][2, 1] = np.nan
    path = write_table(tmp_path / "bad.csv", tasks)
    run_training(path, tmp_path / "c.npz", "--skip-bad", "--learner", "online")
    out, err = capsys.readouterr()
    assert "Learned from 10 tasks, skipped 1; " in out
    assert err.count("skipped: task 's3': column 'b' must hold finite numbers") == 1


def bad_table(tmp_path):
    tasks = [(X.copy(), y.copy()) for X, y in TASKS]
    tasks[60][0][2, 1] = np.nan
    tasks[80][0][0, 0] = 1e200
    return write_table(tmp_path / "bad.csv", tasks)


@pytest.mark.parametrize("learner", LEARNERS)
def test_bad_task_keeps_the_tasks_before_it(tmp_path, capsys, learner):
    path, checkpoint = bad_table(tmp_path), tmp_path / "c.npz"
    message = (
        f"fastltl train: task 's60': column 'b' must hold finite numbers, got no number in row 303 "
        f"of {path}"
    )
    for _ in range(2):
        assert cli.main(train_arguments(path, checkpoint, "--learner", learner)) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(message)
        assert line.endswith(f". {checkpoint} holds all tasks before it.")
        assert checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"] == 60
    assert run_training(write_table(path, TASKS), checkpoint) == run_training(
        path, tmp_path / "whole.npz", "--learner", learner
    )


def test_large_file_whose_rows_are_apart_writes_nothing(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    checkpoint, content = tmp_path / "c.npz", table.read_text()
    lines = content.splitlines(keepends=True)
    table.write_text("".join([*lines[:501], lines[1], *lines[501:]]))
    assert cli.main(train_arguments(table, checkpoint)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "the rows of task 's0' must be adjacent, got the label again in row 501" in line
    assert not checkpoint.exists()
    table.write_text("".join([*lines[:2], *lines[1:]]))
    run_training(table, checkpoint)


@pytest.mark.compiled  # NumPy warns of the overflow
@pytest.mark.parametrize(("learner", "n_learned"), [("bayes", 148), ("online", 128)])
def test_bad_tasks_can_be_skipped(tmp_path, capsys, learner, n_learned):
    path, good = bad_table(tmp_path), [TASKS[i] for i in range(150) if i not in (60, 80)]
    run_training(path, tmp_path / "c.npz", "--skip-bad", "--learner", learner)
    out, err = capsys.readouterr()
    assert f"Learned from {n_learned} tasks, skipped 2; " in out
    assert "skipped: task 's60': column 'b' must hold finite numbers" in err
    assert "skipped: task 's80': X and y must not be so large" in err
    good_table = write_table(tmp_path / "good.csv", good)
    run_training(good_table, tmp_path / "good.npz", "--learner", learner)
    assert_same_state(state_of(tmp_path / "c.npz"), state_of(tmp_path / "good.npz"))


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("learner", "options", "message"),
    [
        ("online", ["--lam", "0.1"], r"lam must be None, as in .*c.npz, got 0.1"),
        ("online", ["--validation", "5"], r"validation must be 20, .* got 5"),
        ("online", ["--validation", "9" * 30], "must be a whole number from 1 up, got '999"),
        ("online", ["--lam", "nan"], "must be a positive number, got 'nan'"),
        ("online", ["--learner", "bayes"], "learner must be 'online', as in .*c.npz, got 'bayes'"),
        (
            "online",
            ["--half-life", "9"],
            "--half-life goes with --learner bayes only, got --half-life 9.0 with --learner online",
        ),
        ("bayes", ["--learner", "online"], "learner must be 'bayes', as in .*c.npz, got 'online'"),
        ("bayes", ["--learner", "batch"], "--learner: invalid choice: 'batch'"),
        ("bayes", ["--lam", "0.1"], "--lam goes with --learner online only, got --lam 0.1 with"),
        ("bayes", ["--validation", "5"], "--validation goes with --learner online only"),
        ("bayes", ["--half-life", "9"], r"half_life must be None, as in .*c.npz, got 9.0"),
        ("bayes", ["--half-life", "0"], "must be a positive number, got '0'"),
        ("bayes", ["--no-intercept"], r"fit_intercept must be True, .* got False"),
        ("bayes", ["--features", "a"], r"features must be None, as in .*c.npz, got \('a',\)"),
        ("bayes", ["--drop", "a"], r"drop must be \(\), as in .*c.npz, got \('a',\)"),
        ("bayes", ["--target", "store"], "target must be 'sales', as in .*c.npz, got 'store'"),
        ("bayes", ["--every", "0"], "must be a whole number from 1 up, got '0'"),
        ("bayes", ["--checkpoint", "."], r"must be a file, got the folder '\.'"),
        ("bayes", ["--checkpoint", "no/c.npz"], "folder 'no' does not exist"),
    ],
)
def test_changed_options_are_reported_in_one_line(
    table, tmp_path, capsys, learner, options, message
):
    checkpoint = tmp_path / "c.npz"
    before = run_training(table, checkpoint, "--learner", learner)
    capsys.readouterr()
    line = failed_line([*train_arguments(table, checkpoint), *options], capsys)
    assert line.startswith("fastltl train: ")
    assert re.search(message, line)
    assert checkpoint.read_bytes() == before


def failed_line(arguments, capsys):
    """Run a command that fails with status 2; return its line."""
    try:
        status = cli.main(arguments)
    except SystemExit as error:
        status = error.code
    assert status == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lam", "0.1"], "--lam goes with --learner online only, got --lam 0.1 with --learner b"),
        (["--learner", "bayes", "--validation", "5"], "--validation goes with --learner online o"),
        (["--learner", "online", "--half-life", "9"], "--half-life goes with --learner bayes only"),
        (["--target", "store"], "task, target and features must differ, got 'store' twice"),
        (["--drop", "gone"], "drop must name a column of"),
        (["--drop", "a", "--features", "a"], "task, target, features and drop must differ"),
    ],
)
def test_wrong_options_write_nothing(table, tmp_path, capsys, options, message):
    arguments = [*train_arguments(table, tmp_path / "c.npz"), *options]
    assert message in failed_line(arguments, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_changed_stream_is_an_error(table, tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    longer = [*TASKS[:-1], tuple(np.concatenate([part, part]) for part in TASKS[-1])]
    changed = [(X, y + (i == 3)) for i, (X, y) in enumerate(TASKS)]
    for tasks, first in ((TASKS[:50], 0), (TASKS, 1), (longer, 0), (changed, 0)):
        assert cli.main(train_arguments(write_table(table, tasks, first), checkpoint)) == 2
        assert "must begin with the 150 tasks that" in capsys.readouterr().err
    for learner in (ltl.OnlineLTL(), ltl.BayesLTL()):
        learner.fit(TASKS).save(checkpoint)
        assert cli.main(train_arguments(write_table(table, TASKS), checkpoint)) == 2
        assert "must be a checkpoint of fastltl train, got another" in capsys.readouterr().err


FORGED = [None, "x", [], {}, -1, 2**70, 0.5, True]
POSITIONS = {
    "settings": FORGED,
    "n_tasks_read": FORGED,
    "n_left_out": FORGED,
    "digest": FORGED,
    "encoding": [
        "x",
        {},
        1,
        [["a", None]],
        [["a", None], ["a", None]],
        [["a"]],
        [[1, None]],
        [["a", 1]],
        [["a", "text"]],
        [["a", [1]]],
        [None],
    ],
    "scale": [
        "x",
        1.0,
        [1.0] * 4,
        np.ones(3),
        np.zeros(4),
        -np.ones(4),
        np.full(4, np.nan),
        np.ones(4, dtype=np.int64),
        np.ones((4, 1)),
    ],
}


@pytest.mark.sample(4)
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in POSITIONS.items() for value in values]
)
def test_forged_positions_are_refused(table, tmp_path, capsys, name, value):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint, "--learner", "online" if name == "scale" else "bayes")
    found = checkpoints.read_checkpoint(checkpoint)
    position = found.position | {name: value}
    checkpoints.write_checkpoint(checkpoint, found._replace(position=position))
    before = checkpoint.read_bytes()
    capsys.readouterr()
    line = failed_line(train_arguments(table, checkpoint), capsys)
    assert line.startswith("fastltl train: ")
    assert checkpoint.read_bytes() == before
    if name in ("encoding", "scale") or (name == "settings" and not isinstance(value, dict)):
        arguments = ["adapt", str(checkpoint), str(table), "--out", str(tmp_path / "out")]
        assert failed_line(arguments, capsys).startswith("fastltl adapt: ")


@pytest.mark.parametrize("value", [None, 1, "batch", "online", ["bayes"]])
def test_forged_learners_are_refused(table, tmp_path, capsys, value):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    found = checkpoints.read_checkpoint(checkpoint)
    settings = found.position["settings"] | {"learner": value}
    position = found.position | {"settings": settings}
    checkpoints.write_checkpoint(checkpoint, found._replace(position=position))
    capsys.readouterr()
    line = failed_line(train_arguments(table, checkpoint), capsys)
    assert re.search("a checkpoint of fastltl train", line)


def test_warnings_of_the_reader_are_printed_once(table, tmp_path, monkeypatch, capsys):
    read = TaskStream.blocks

    def blocks(self, hold_back=False):
        for block in read(self):
            for _ in block.labels:
                warnings.warn("column 'a' has the new category '\x1b[2J'", stacklevel=2)
            yield block

    monkeypatch.setattr(TaskStream, "blocks", blocks)
    run_training(table, tmp_path / "c.npz")
    adapting = ["adapt", str(tmp_path / "c.npz"), str(table), "--out", str(tmp_path / "out")]
    for run in (lambda: None, lambda: cli.main(adapting)):
        run()
        lines = re.split(r"[\r\n]+", capsys.readouterr().err)
        notes = [line for line in lines if line.startswith("Note")]
        assert notes == [r"Note: column 'a' has the new category '\x1b[2J'"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_text_columns_become_the_same_features_in_every_file(tmp_path, capsys, learner):
    """Train on a growing file with text and row numbers; adapt to columns in another order."""
    rng = np.random.default_rng(0)
    lines, header = [], "row,kind,a,store,sales"
    for i in range(400):
        kind, a, level = rng.choice(["new", "old"]), rng.normal(), (i // 5) % 7
        target = 3 * (kind == "old") + a + level + 0.1 * rng.normal()
        lines.append(f"{i + 1},{kind},{a:.4f},s{i // 5},{target:.4f}")
    table, checkpoint = tmp_path / "t.csv", tmp_path / "c.npz"
    table.write_text("\n".join([header, *lines[:200], ""]))
    run_training(table, checkpoint, "--learner", learner)
    table.write_text("\n".join([header, *lines[:400], ""]))
    run_training(table, checkpoint)
    assert "column 'row' is left out" in capsys.readouterr().err
    (tmp_path / "new.csv").write_text(
        "store,sales,a,kind\nx,5,0,old\nx,2,0,new\nx,5,0,old\nx,,0,old\nx,,0,odd\nx,,0,new\n"
    )
    out = tmp_path / "out"
    arguments = ["adapt", str(checkpoint), str(tmp_path / "new.csv"), "--out", str(out)]
    assert cli.main(arguments) == 0
    assert "Note: column 'kind' has the new category 'odd'" in capsys.readouterr().err
    columns = list(read_rows(out / "weights.csv")[0])
    assert [name for name in columns if "=" in name and "_se" not in name] == [
        "kind=new",
        "kind=old",
    ]
    found = [float(row["prediction"]) for row in read_rows(out / "predictions.csv")]
    assert found[3] == pytest.approx(5, abs=0.3)
    assert found[5] == pytest.approx(2, abs=0.3)


def test_columns_of_any_name_are_recorded(tmp_path):
    """Names that begin with $ mark types in the header of a checkpoint."""
    table, checkpoint = tmp_path / "t.csv", tmp_path / "c.npz"
    lines = write_table(table, TASKS).read_text().splitlines()
    table.write_text("\n".join(["store,$array,b,$tuple,,sales", *lines[1:], ""]))
    whole = run_training(table, checkpoint)
    assert run_training(table, checkpoint) == whole
    assert cli.main(["adapt", str(checkpoint), str(table), "--out", str(tmp_path / "out")]) == 0
    assert list(read_rows(tmp_path / "out" / "weights.csv")[0])[4:6] == ["$array", "$array_se"]


def test_too_few_tasks(tmp_path, capsys):
    checkpoint = tmp_path / "c.npz"
    online = "--learner", "online"
    table = write_table(tmp_path / "t.csv", TASKS[:20])
    assert cli.main(train_arguments(table, checkpoint, *online)) == 2
    assert "must have more than the 20 tasks kept for validation, got 20" in (
        capsys.readouterr().err
    )
    singles = [(X[:1], y[:1]) for X, y in TASKS]
    write_table(table, singles)
    assert cli.main(train_arguments(table, checkpoint, *online)) == 2
    assert "the first 20 tasks, kept for validation, need one with two samples, got none in 20" in (
        capsys.readouterr().err
    )
    table.write_text("store,a,b,c,d,sales\nx,1,2,3,4,5\nx,2,2,3,4,5\n\n"[:-2])  # no newline
    assert cli.main(train_arguments(table, checkpoint)) == 2
    assert "t.csv must have a task that can be learned, got none in 0" in capsys.readouterr().err
    assert not checkpoint.exists()


def killed_command(arguments, seconds):
    """Run the command in a forked process that ends after so much CPU time; return its status."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads
        child = os.fork()
    if child == 0:
        status = 99
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends a process at once
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            tqdm.set_lock(threading.RLock())  # the inherited lock is shared with the parent
            nowhere = open(os.devnull, "w")  # noqa: SIM115  (to the end of the process)
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                status = cli.main(arguments)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_killed_training_resumes_with_the_same_bits(table, tmp_path, learner):
    """Kill the process at 25 random times, some during a save, and resume each time."""
    whole = run_training(table, tmp_path / "whole.npz", "--learner", learner)
    rng = random.Random(0)
    began = time.process_time()
    run_training(table, tmp_path / "timed.npz", "--every", 1, "--learner", learner)
    seconds = time.process_time() - began
    n_killed = n_within_save = 0
    while n_killed < 25:
        checkpoint = tmp_path / f"killed-{n_killed}.npz"
        for _ in range(1000):
            options = "--every", rng.choice([1, 2, 10]), "--learner", learner
            arguments = train_arguments(table, checkpoint, *options)
            if killed_command(arguments, rng.uniform(1e-3, seconds / 2)) == 0:
                break
            n_killed += 1
            n_within_save += any(tmp_path.glob(f".{checkpoint.name}.*.part"))
        assert checkpoint.read_bytes() == whole
        assert list(tmp_path.glob(".*")) == []
    assert n_within_save > 0


#: Trains, and sends a signal to the process before task 150.
SIGNALLED = """
import os, sys
from fastltl import cli, train
learn, numbers = train.Training._learn, iter(range(10**6))
def learn_after_a_signal(self, block):
    if 150 in [next(numbers) for _ in block.labels]:
        os.kill(os.getpid(), int(sys.argv[1]))
    learn(self, block)
train.Training._learn = learn_after_a_signal
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize(
    ("learner", "number"),
    [("online", signal.SIGINT), ("bayes", signal.SIGTERM), ("bayes", getattr(signal, "SIGHUP", 0))],
)
def test_signal_stops_training_after_a_save(tmp_path, learner, number):
    """The command finishes the current block of at most 10 tasks, or the task, saves and exits."""
    table, checkpoint = write_table(tmp_path / "t.csv", list(TASKS) * 2), tmp_path / "c.npz"
    options = "--every", 10, "--allow-repeats", "--learner", learner
    command = [sys.executable, "-c", SIGNALLED, str(int(number))]
    command += train_arguments(table, checkpoint, *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert "Stopped before the end: run the same command to resume." in done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    n_read = checkpoints.read_checkpoint(checkpoint).position["n_tasks_read"]
    n_kept = 20 if learner == "online" else 0
    assert f"Learned from {n_read - n_kept} tasks; " in done.stdout
    assert n_read - n_kept == (151 if learner == "online" else 160)


def test_second_signal_interrupts():
    with cli._stop_signals(bool) as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_signal_before_the_first_task(table, tmp_path, monkeypatch, capsys):
    def compile_kernels(learner):
        signal.raise_signal(signal.SIGTERM)

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_keeps_the_old_checkpoint(tmp_path):
    """Resume with more tasks when the disk has no space for the larger checkpoint."""
    table, checkpoint = write_table(tmp_path / "t.csv", TASKS[:50]), tmp_path / "c.npz"
    before = run_training(table, checkpoint, "--learner", "online")
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


@pytest.mark.parametrize("learner", LEARNERS)
def test_adapt_writes_weights_and_predictions(table, tmp_path, capsys, learner):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint, "--learner", learner)
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
    weights, predictions = read_rows(out / "weights.csv"), read_rows(out / "predictions.csv")
    assert [(row["task"], row["n_labelled"]) for row in weights] == [
        ("s500", "5"),
        ("s501", "6"),
        ("s502", "6"),
    ]
    assert [int(row["row"]) for row in predictions] == [*range(1, 19)]
    assert predictions[1]["sales"] == ""
    found = checkpoints.read_checkpoint(checkpoint)
    scale, fitted = train.scale_of(found, 4), checkpoints.restored(found, checkpoint)
    names = ["intercept", *"abcd"]
    for i, (X, y) in enumerate(new):
        kept = np.arange(6) != 1 if i == 0 else slice(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the best lam is at the edge
            model = fitted.adapt(X[kept] / scale, y[kept])
        found = [float(weights[i][name]) for name in names]
        wanted = [model.intercept_, *(model.coef_ / scale)]
        assert np.allclose(found, wanted, rtol=1e-9)
        rows = predictions[6 * i : 6 * i + 6]
        found = [float(row["prediction"]) for row in rows]
        assert np.allclose(found, model.predict(X / scale), rtol=1e-9)
        if learner == "online":
            assert list(rows[0]) == ["task", "row", "sales", "prediction"]
            assert list(weights[i]) == ["task", "n_labelled", *names]
            continue
        found = [float(weights[i][f"{name}_se"]) for name in names]
        effects = fitted.effects(ltl.TaskSet([(X[kept], y[kept])]))
        assert np.allclose(found, effects["se"].to_numpy()[[4, 0, 1, 2, 3]], rtol=1e-9)
        prediction, std = model.predict(X, return_std=True)
        for name, sign in (("lower", -1), ("upper", 1)):
            found = [float(row[name]) for row in rows]
            assert np.allclose(found, prediction + sign * 1.959964 * std, rtol=1e-5)


@pytest.fixture
def prior(table, tmp_path):
    checkpoint = tmp_path / "c.npz"
    run_training(table, checkpoint)
    return checkpoint


def adapt_rows(checkpoint, content, *options):
    """Adapt to a table; return the rows of both files."""
    new, out = checkpoint.parent / "new.csv", checkpoint.parent / "out"
    new.write_text(content)
    assert cli.main(["adapt", str(checkpoint), str(new), "--out", str(out), *options]) == 0
    return read_rows(out / "weights.csv"), read_rows(out / "predictions.csv")


def test_tasks_without_targets_are_predicted_from_the_prior(prior, capsys):
    header, row = "store,a,b,c,d,sales\n", "x,.1,.2,.3,.4,\n"
    weights, predictions = adapt_rows(
        prior, f"{header}{row}y,.1,.2,.3,.4,5\n{row.replace('x', 'z')}"
    )
    assert [row["n_labelled"] for row in weights] == ["0", "1", "0"]
    learner = ltl.load(prior)
    prediction, std = learner.predict(np.array([[0.1, 0.2, 0.3, 0.4]]), return_std=True)
    for row in (predictions[0], predictions[2]):
        assert row["sales"] == ""
        assert float(row["prediction"]) == pytest.approx(prediction[0])
        assert float(row["upper"]) == pytest.approx(prediction[0] + 1.959964 * std[0])
    assert float(predictions[1]["prediction"]) > prediction[0]  # drawn to the target 5
    found = [float(weights[0][name]) for name in (*"abcd", "intercept")]
    assert np.allclose(found, learner.mean_)
    found = [float(weights[0][f"{name}_se"]) for name in (*"abcd", "intercept")]
    prior_of_run, of_mean = learner._run.prior(), learner._run.mean_covariance()
    of_mean = prior_of_run.covariance_in_data_units(of_mean)
    assert np.allclose(found, np.sqrt(np.diag(learner.covariance_ + of_mean)), rtol=1e-9)
    assert "Note" not in capsys.readouterr().err


def test_a_file_without_a_target_column_is_predicted_from_the_prior(prior, tmp_path, capsys):
    content = "d,c,b,a,store\n.4,.3,.2,.1,x\n.4,.3,.2,.2,x\n.4,.3,.2,.1,y\n"
    _, predictions = adapt_rows(prior, content)
    assert [(row["task"], row["sales"]) for row in predictions] == [("x", ""), ("x", ""), ("y", "")]
    X = [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]]
    found = [float(row["prediction"]) for row in predictions]
    assert np.allclose(found, ltl.load(prior).predict(np.array(X)))
    out, err = capsys.readouterr()
    assert "2 tasks, 0 rows with target, 3 without" in out
    notes = [line for line in err.splitlines() if line.startswith("Note")]
    new = tmp_path / "new.csv"
    assert notes == [f"Note: {new} has no column 'sales': all rows are predicted from the prior."]


def test_a_target_that_is_asked_for_must_be_there(prior, tmp_path, capsys):
    new = tmp_path / "new.csv"
    new.write_text("store,a,b,c,d\nx,1,2,3,4\n")
    arguments = ["adapt", str(prior), str(new), "--target", "sale", "--out", str(tmp_path / "out")]
    capsys.readouterr()
    assert "target must name a column of" in failed_line(arguments, capsys)
    assert not (tmp_path / "out").exists()


def test_a_saved_prior_needs_no_target(tmp_path, capsys):
    checkpoint, content = tmp_path / "c.npz", "store,a,b,c,d\nx,.1,.2,.3,.4\n"
    ltl.BayesLTL(fit_intercept=False).fit(TASKS).save(checkpoint)
    weights, predictions = adapt_rows(checkpoint, content, "--task", "store")
    assert list(predictions[0]) == ["task", "row", "prediction", "lower", "upper"]
    assert (weights[0]["intercept"], weights[0]["intercept_se"]) == ("0.0", "0.0")
    assert "Note: no target is named: all rows are predicted from" in capsys.readouterr().err


@pytest.mark.parametrize("learner", LEARNERS)
def test_columns_of_adapt_have_distinct_names(tmp_path, learner):
    names = ["store", "intercept", "n_labelled", "a", "a_se", "prediction"]
    content = ",".join(names) + "\n" + write_table(tmp_path / "t.csv", TASKS).read_text()
    table, checkpoint = tmp_path / "named.csv", tmp_path / "c.npz"
    table.write_text(content.replace("store,a,b,c,d,sales\n", ""))
    options = "--target", "prediction", "--learner", learner
    run_training(table, checkpoint, *options)
    weights, predictions = adapt_rows(checkpoint, table.read_text())
    header, columns = list(weights[0]), list(predictions[0])
    assert header[:2] == ["task", "n_labelled"]
    if learner == "online":
        assert header[2:] == ["(intercept)", "intercept", "(n_labelled)", "a", "a_se"]
        assert columns == ["task", "row", "(prediction)", "prediction"]
    else:
        assert header[2::2] == ["(intercept)", "intercept", "(n_labelled)", "a", "(a_se)"]
        errors = ["(intercept)", "intercept", "n_labelled", "a", "a_se"]
        assert header[3::2] == [f"{name}_se" for name in errors]
        assert columns == ["task", "row", "(prediction)", "prediction", "lower", "upper"]
    targets = [float(row["(prediction)"]) for row in predictions]
    assert np.allclose(targets, np.concatenate([y for _, y in TASKS]))


def test_standard_errors_that_are_not_known_are_empty(tmp_path):
    checkpoint, content = tmp_path / "c.npz", "store,a,b,c,d,sales\nx,.1,.2,.3,.4,1\n"
    tasks = [(X * [1, 1, 1, 0], y) for X, y in TASKS]
    ltl.BayesLTL().fit(tasks).save(checkpoint)
    weights, _ = adapt_rows(checkpoint, content, "--task", "store", "--target", "sales")
    assert (weights[0]["d"], weights[0]["d_se"]) == ("0.0", "")
    assert float(weights[0]["c_se"]) > 0


def test_level_sets_the_width_of_the_intervals(prior):
    content = "store,a,b,c,d,sales\nx,.1,.2,.3,.4,.5\nx,.1,.3,.3,.4,\n"
    widths = {}
    for level, n_deviations in ((95, 1.959964), (50, 0.6744898), (99.9, 3.290527)):
        rows = adapt_rows(prior, content, "--level", str(level))[1]
        widths[level] = [
            (float(row["upper"]) - float(row["lower"])) / 2 / n_deviations for row in rows
        ]
    assert np.allclose(widths[50], widths[95], rtol=1e-6)
    assert np.allclose(widths[99.9], widths[95], rtol=1e-6)


def test_intervals_cover_as_many_targets_as_they_say(table, prior, tmp_path):
    """Rows without a target, of tasks never seen, with none to four known rows."""
    new = environment.tasks(400, n_samples=5)
    lines = write_table(tmp_path / "new.csv", new).read_text().splitlines()
    given = [
        line if i % 5 < (i // 5) % 5 else line.rpartition(",")[0] + ","
        for i, line in enumerate(lines[1:])
    ]
    truth = np.concatenate([y for _, y in new])
    for level in (95, 80):
        content = "\n".join([lines[0], *given, ""])
        predictions = adapt_rows(prior, content, "--level", str(level))[1]
        asked = [i for i, row in enumerate(predictions) if row["sales"] == ""]
        assert len(asked) == 1200
        inside = [
            float(predictions[i]["lower"]) <= truth[i] <= float(predictions[i]["upper"])
            for i in asked
        ]
        assert 100 * np.mean(inside) == pytest.approx(level, abs=3)


def test_adapt_with_a_saved_learner(tmp_path, capsys):
    """`save` does not record the columns."""
    checkpoint, table = tmp_path / "c.npz", write_table(tmp_path / "new.csv", TASKS[:2])
    ltl.BatchLTL(0.1, tol=1e-3).fit(TASKS).save(checkpoint)
    command = ["adapt", str(checkpoint), str(table), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "target must name a column of" in capsys.readouterr().err
    assert cli.main([*command, "--target", "sales"]) == 2
    assert "got None: name one (command line: use --task)" in capsys.readouterr().err
    assert cli.main([*command, "--target", "sales", "--task", "store"]) == 0


HEADER = "store,a,b,c,d,sales\n"


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("learner", "content", "options", "message"),
    [
        ("bayes", "store,a,b,c,sales\n", [], "must name a column of"),
        ("bayes", HEADER + "x,1,2,,4,5\n", [], "task 'x': column 'c' must hold finite numbers"),
        ("bayes", HEADER + "x,1,2,3,4,inf\n", [], "'sales' must hold finite numbers, got inf"),
        (
            "bayes",
            HEADER + "x,1,2,3,4,1e308\nx,9,2,3,4,-1e308\n",
            [],
            "task 'x': X and y must not be so large",
        ),
        ("bayes", HEADER + "x,1,2,3,4,5\n", ["--level", "0"], "between 1 and 100, got '0'"),
        ("bayes", HEADER + "x,1,2,3,4,5\n", ["--level", "100"], "between 1 and 100, got '100'"),
        ("bayes", HEADER + "x,1,2,3,4,5\n", ["--level", "high"], "between 1 and 100, got 'high'"),
        ("bayes", HEADER + "x,1,2,3,4,5\n", ["--level", "nan"], "between 1 and 100, got 'nan'"),
        ("online", HEADER + "x,1,2,3,4,5\n", ["--level", "90"], "--level needs a BayesLTL, got"),
        (
            "online",
            HEADER + "x,1,2,3,4,\n",
            [],
            "task 'x': there must be a row with a target, got none: leave the task out, or train "
            "with --learner bayes",
        ),
        ("online", "store,a,b,c,d\nx,1,2,3,4\n", [], "target must name a column of"),
        ("online", HEADER + "x,1,2,3,4,1e308\nx,9,2,3,4,-1e308\n", [], "task 'x': D, X and y must"),
    ],
)
def test_adapt_reports_bad_input(table, tmp_path, capsys, learner, content, options, message):
    checkpoint, new, out = tmp_path / "c.npz", tmp_path / "new.csv", tmp_path / "out"
    run_training(table, checkpoint, "--learner", learner)
    new.write_text(content)
    capsys.readouterr()
    arguments = ["adapt", str(checkpoint), str(new), "--out", str(out), *options]
    line = failed_line(arguments, capsys)
    assert line.startswith("fastltl adapt: ")
    assert message in line
    assert not out.exists() or list(out.iterdir()) == []


@pytest.mark.parametrize(
    "learner", [ltl.RepresentationRidge(), ltl.BatchLTL(), ltl.OnlineLTL(), ltl.BayesLTL()]
)
def test_adapt_needs_a_fitted_learner(tmp_path, capsys, learner):
    learner.save(tmp_path / "c.npz")
    table = write_table(tmp_path / "new.csv", TASKS[:2])
    assert cli.main(["adapt", str(tmp_path / "c.npz"), str(table), "--target", "sales"]) == 2
    assert "must hold a fitted learner, got " in capsys.readouterr().err


def write_folder(path, tasks):
    path.mkdir(exist_ok=True)
    for i, (X, y) in enumerate(tasks):
        np.savez(path / f"{i:03}.npz", X=X, y=y)
    return path


def test_train_and_adapt_with_a_folder(tmp_path, capsys):
    """Adapt also takes a table with a column for each feature, and a folder without targets."""
    folder, checkpoint = write_folder(tmp_path / "folder", TASKS[:40]), tmp_path / "c.npz"
    command = ["train", str(folder), "--target", "y", "--checkpoint"]
    assert cli.main([*command, str(checkpoint)]) == 0
    assert list(ltl.load(checkpoint).feature_names_in_) == ["X0", "X1", "X2", "X3"]
    out = ["--out", str(tmp_path / "out")]
    assert cli.main(["adapt", str(checkpoint), str(folder), *out]) == 0
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    np.savez(unlabelled / "x.npz", X=TASKS[0][0])
    assert cli.main(["adapt", str(checkpoint), str(unlabelled), *out]) == 0
    assert "1 tasks, 0 rows with target, 5 without" in capsys.readouterr().out
    (tmp_path / "t.csv").write_text("store,X3,X2,X1,X0,y\na,1,2,3,4,5\n")
    adapt = ["adapt", str(checkpoint), str(tmp_path / "t.csv"), "--task", "store", *out]
    assert cli.main(adapt) == 0
    assert cli.main([*command, str(folder / "c.npz")]) == 2
    assert "checkpoint must be outside the folder of the stream" in capsys.readouterr().err
    (folder / "030.npz").unlink()
    assert cli.main([*command, str(checkpoint)]) == 2
    assert "must begin with the 40 tasks that" in capsys.readouterr().err
    (folder / "031.npz").write_bytes(b"")
    assert cli.main([*command, str(tmp_path / "other.npz")]) == 2
    assert "031.npz cannot be read as .npz" in capsys.readouterr().err
    assert checkpoints.read_checkpoint(tmp_path / "other.npz").position["n_tasks_read"] == 29


COMPILING = """
import importlib, pkgutil, sys
from fastltl import _kernels, cli, train
modules = [importlib.import_module(f"fastltl._kernels.{m.name}") for m in
           pkgutil.iter_modules(_kernels.__path__)]
def n_compiled():
    return {f"{module.__name__}.{name}": len(kernel.signatures) for module in modules
            for name, kernel in vars(module).items() if hasattr(kernel, "signatures")}
learner, *arguments = sys.argv[1:]
train.compile_kernels(learner)
before = n_compiled()
assert cli.main(arguments) == 0
after = n_compiled()
print({name: (before[name], n) for name, n in after.items() if n != before[name]})
if learner == "bayes":
    assert after["fastltl._kernels.bayes.learn_tasks"] == 1
"""


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("learner", LEARNERS)
def test_training_compiles_nothing_after_the_first_message(table, tmp_path, learner):
    """A process that has just started compiles, or loads, the kernels for one kind of arrays."""
    arguments = train_arguments(table, tmp_path / "c.npz", "--learner", learner)
    found = subprocess.run(
        [sys.executable, "-c", COMPILING, learner, *arguments], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "{}"


@pytest.mark.parametrize("order", ["C", "F"])
def test_folder_of_one_large_file_is_learned_in_blocks(tmp_path, monkeypatch, order):
    monkeypatch.setattr(sources, "BLOCK_NUMBERS", 300)
    (tmp_path / "folder").mkdir()
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    arrays = {"X": np.asarray(X, order=order), "y": y, "task": np.repeat(np.arange(150), 5)}
    np.savez(tmp_path / "folder" / "a.npz", **arrays)
    learn, lengths = BayesRun.learn_tasks, []

    def learn_tasks(self, X, y, offsets):
        lengths.append(len(y))
        return learn(self, X, y, offsets)

    monkeypatch.setattr(BayesRun, "learn_tasks", learn_tasks)
    arguments = ["train", str(tmp_path / "folder"), "--task", "task", "--target", "y"]
    assert cli.main([*arguments, "--checkpoint", str(tmp_path / "c.npz")]) == 0
    assert len(lengths) > 12
    assert max(lengths) <= 65
    learner = ltl.BayesLTL()
    for X, y in TASKS:
        learner.partial_fit(X, y)
    assert_same_state(state_of(tmp_path / "c.npz"), learner._run.checkpoint())


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


@pytest.mark.compiled  # NumPy warns of the overflow
def test_overflow_in_validation_tasks(tmp_path, capsys):
    tasks = [(X, y * 1e200 if i == 3 else y) for i, (X, y) in enumerate(TASKS)]
    path, checkpoint = write_table(tmp_path / "t.csv", tasks), tmp_path / "c.npz"
    assert cli.main(train_arguments(path, checkpoint, "--learner", "online")) == 2
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


def test_adapt_rejects_malformed_targets(table, tmp_path, capsys, monkeypatch):
    checkpoint, new = tmp_path / "c.npz", tmp_path / "new.csv"
    run_training(table, checkpoint)
    new.write_text('store,a,b,c,d,sales\nx,1,2,3,4,5\nx,1,2,3,4,"1,5"\n')
    command = ["adapt", str(checkpoint), str(new), "--out", str(tmp_path / "out")]
    assert cli.main(command) == 2
    assert "column 'sales' must hold finite numbers, got no number in row 2" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(sources, "SMALL_BYTES", 0)
    new.write_text("store,a,b,c,d,sales\nx,1,2,3,4,5\nz,1,2,3,4,6\nx,1,2,3,4,7\n")
    assert cli.main(command) == 2
    assert "--allow-repeats" in capsys.readouterr().err
    assert cli.main([*command, "--allow-repeats"]) == 0


def test_one_task_is_noted(tmp_path, capsys):
    path = write_table(tmp_path / "one.csv", TASKS[:1])
    run_training(path, tmp_path / "c.npz")
    note = "Note: one task shows nothing that tasks share: add others."
    assert note in capsys.readouterr().err.splitlines()
