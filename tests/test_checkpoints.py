"""Checkpoints: everything comes back, damage is noticed, a failed save costs nothing."""

import datetime
import json
import os
import pickle
import subprocess
import sys
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from mounts import mounted, needs_mounts
from sklearn.base import clone

import fastltl as ltl
from fastltl import storage

SAMPLES = Path(__file__).parent / "checkpoints"

environment = ltl.datasets.make_environment(n_features=4, noise=0.1, random_state=0)
TASKS = environment.tasks(40, n_samples=3)
VALIDATION = environment.tasks(5, n_samples=6).split_samples(0.5, random_state=0)
PAPER = {"geometry": "euclidean", "step": "theory"}

ONLINE = {
    "entropic": ltl.OnlineLTL(0.1),
    "euclidean": ltl.OnlineLTL(0.1, geometry="euclidean", step_scale=2),
    "theory": ltl.OnlineLTL(0.1, **PAPER),
    "number": ltl.OnlineLTL(np.float32(0.5), geometry="euclidean", step=0.1, averaging="last"),
    "intercept": ltl.OnlineLTL(0.1, fit_intercept=True),
    "path": ltl.OnlineLTLPath(validation=VALIDATION),
    "path-followed": ltl.OnlineLTLPath([1e-2, 1.0], VALIDATION, score_every=1, **PAPER),
    "path-of-scales": ltl.OnlineLTLPath((1e-2, 1.0, 1e2), VALIDATION, step_scale=[1.0, 2.0]),
    "path-without-validation": ltl.OnlineLTLPath(np.array([0.1])),
}
OTHERS = {
    "batch": ltl.BatchLTL(0.1, tol=1e-3),
    "multitask": ltl.MTL(0.1, fit_intercept=True),
    "independent": ltl.ITL(0.1),
}


def fitted(learner, tasks=TASKS):
    return clone(learner).fit(tasks)


def ridge():
    X, y = TASKS[0]
    return ltl.RepresentationRidge(np.eye(4), fit_intercept=True).fit(X, y)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "learner.npz"


def same(ours, theirs):
    """Whether two learners have the same parameters and attributes, to the bit."""
    return pickle.dumps(vars(ours)) == pickle.dumps(vars(theirs))


@pytest.mark.parametrize("name", ONLINE)
def test_what_follows_a_checkpoint_has_the_bits_it_would_have_had(path, tmp_path, name):
    learner = fitted(ONLINE[name], TASKS[:20])
    learner.save(path)
    again = ltl.load(path)
    for X, y in TASKS[20:]:
        learner.partial_fit(X, y)
        again.partial_fit(X, y)
    again.save(tmp_path / "again.npz")
    learner.save(path)
    assert path.read_bytes() == (tmp_path / "again.npz").read_bytes()
    assert type(again) is type(learner)
    assert again.n_tasks_seen_ == 40
    if "path" in name:
        assert np.array_equal(again.representations_, learner.representations_)
    else:
        assert np.array_equal(again.D_, learner.D_)
        assert again.cumulative_loss_ == learner.cumulative_loss_
        assert again.regret_bound_ == learner.regret_bound_
    if "validation" in again.get_params() and again.validation is not None:
        assert np.array_equal(again.scores_, learner.scores_)
        assert again.progress_summary() == learner.standing()


@pytest.mark.parametrize("name", OTHERS)
def test_other_learners_come_back_whole(path, name):
    labels = ["a", 2, 3.5, ("b", 1), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3)]
    learner = fitted(OTHERS[name], ltl.TaskSet(list(TASKS[:6]), labels))
    learner.save(path)
    again = ltl.load(path)
    assert again.get_params() == learner.get_params()
    assert np.array_equal(again.D_, learner.D_)
    for attribute, value in vars(learner).items():
        found = getattr(again, attribute)
        assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value
        assert type(found) is type(value)
    if name == "multitask":
        X = TASKS[3][0]
        groups = ltl.TaskSet([TASKS[3]] * 3, [("b", 1)] * 3).labels
        assert np.array_equal(again.predict(X, groups), learner.predict(X, groups))


def test_a_warm_start_goes_on_from_a_checkpoint(path):
    learner = fitted(ltl.BatchLTL(0.1, tol=1e-2, warm_start=True))
    learner.save(path)
    again = ltl.load(path)
    assert np.array_equal(again.fit(TASKS[5:]).D_, learner.fit(TASKS[5:]).D_)


def test_a_model_of_one_task_comes_back(path):
    model = ridge()
    model.save(path)
    again = ltl.load(path)
    assert np.array_equal(again.coef_, model.coef_)
    assert again.intercept_ == model.intercept_
    assert np.array_equal(again.D, model.D)


@pytest.mark.parametrize("learner", [*ONLINE.values(), *OTHERS.values()], ids=str)
def test_learners_that_have_learned_nothing_can_be_saved(path, learner):
    learner.save(path)
    again = ltl.load(path)
    assert not again.__sklearn_is_fitted__()
    assert again.get_params().keys() == learner.get_params().keys()
    assert again.fit(TASKS).n_features_in_ == 4


def test_names_of_features_come_back(path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    learner = ltl.OnlineLTL().partial_fit(frame, [1.0, 2.0])
    learner.save(path)
    again = ltl.load(path)
    assert list(again.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        again.partial_fit(frame.rename(columns={"a": "c"}), [1.0, 2.0])
    again.partial_fit(frame, [1.0, 2.0])


def test_saving_changes_no_later_bits(path):
    watched, alone = clone(ONLINE["entropic"]), clone(ONLINE["entropic"])
    for X, y in TASKS:
        watched.partial_fit(X, y).save(path)
        alone.partial_fit(X, y)
    assert same(watched, alone)


def test_a_checkpoint_is_an_npz_with_a_header(path):
    fitted(ONLINE["entropic"]).save(path)
    with np.load(path, allow_pickle=False) as arrays:
        header = json.loads(arrays["header.json"])
        assert arrays["state/run/rows"].shape == (2, 1, 4)
    assert header["format"] == 1
    assert header["fastltl"] == ltl.__version__
    assert header["learner"] == "OnlineLTL"
    assert header["parameters"]["lam"] == 0.1
    assert header["position"] == {"n_tasks_read": 40}
    assert len(header["checksum"]) == 64


def test_parameters_that_changed_on_the_way_are_not_saved(path):
    learner = fitted(ONLINE["entropic"]).set_params(lam=1.0)
    with pytest.raises(ValueError, match=r"lam=1.0 after lam=0.1"):
        learner.save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (ltl.OnlineLTL(Fraction(1, 2)), "lam must be made of numbers, text, .* got Fraction"),
        (ltl.ITL(1 + 2j), "lam must be made of numbers, text, .* got complex"),
        (ltl.OnlineLTLPath([{1}]), "lams must be made of numbers, text, .* got set"),
    ],
)
def test_what_cannot_be_saved_is_named(path, learner, message):
    with pytest.raises(TypeError, match=message):
        learner.save(path)
    assert not path.exists()


def test_learners_of_others_are_not_saved(path):
    class Mine(ltl.OnlineLTL):
        pass

    with pytest.raises(TypeError, match="save is for the learners of fastltl, got a Mine"):
        Mine().save(path)


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("format-*.npz")), ids=lambda path: path.stem)
def test_checkpoints_of_every_format_stay_readable(sample):
    """Samples hold what `python tests/test_storage.py` fitted when the format was new."""
    name = sample.stem.split("-", 2)[2]
    found = ltl.load(sample)
    if name == "ridge":
        assert np.allclose(found.coef_, ridge().coef_, rtol=1e-9)
        return
    fresh = fitted({**ONLINE, **OTHERS}[name])
    assert found.get_params().keys() == fresh.get_params().keys()
    if name in OTHERS:
        assert np.allclose(found.D_, fresh.D_, rtol=1e-6)
        return
    for _ in range(2):
        assert np.allclose(found._representations(), fresh._representations(), rtol=1e-9)
        found.partial_fit(*TASKS[0])
        fresh.partial_fit(*TASKS[0])


def test_there_is_a_sample_of_the_format_for_every_learner():
    names = {path.stem for path in SAMPLES.glob("*.npz")}
    assert {f"format-{storage.FORMAT}-{name}" for name in (*ONLINE, *OTHERS, "ridge")} <= names


@pytest.fixture
def content(path):
    fitted(ONLINE["entropic"]).save(path)
    return path.read_bytes()


def resealed(path, header=None, arrays=None):
    """A checkpoint with another header, or arrays, and the right seal."""
    with np.load(path) as old:
        header = header or json.loads(old["header.json"])
        found = {name: old[name] for name in old.files if name != "header.json"}
    arrays = found if arrays is None else arrays
    header["checksum"] = storage._checksum(arrays)
    with path.open("w+b") as file:
        storage._write_archive(file, json.dumps(header).encode(), arrays)
        storage._seal(file)


def test_every_cut_is_noticed(path, content):
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"is cut short|is not a checkpoint of fastltl"):
            ltl.load(path)
        if length > 50:
            with pytest.raises(ValueError, match="is cut short"):
                ltl.load(path)


def test_every_flipped_bit_is_noticed(path, content):
    random = np.random.default_rng(0)
    for place in random.permutation(len(content))[:1000]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << random.integers(8)
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"is damaged|is cut short"):
            ltl.load(path)


@pytest.mark.parametrize("foreign", [b"", b"hello", b"PK\x05\x06" + bytes(18), bytes(1000)])
def test_other_files_are_told_apart(path, foreign):
    path.write_bytes(foreign)
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)


def test_an_npz_of_somebody_else_is_told_apart(path):
    np.savez(path, header=np.ones(3))
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "text")
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)


def test_a_newer_format_is_named(path, content):
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    resealed(path, header | {"format": 2, "fastltl": "9.1"})
    with pytest.raises(ValueError, match=r"has format 2 .* by fastltl 9.1: .* too old"):
        ltl.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"learner": "os.system"},
        {"parameters": {"lambda": 1}},
        {"parameters": 3},
        {"state": {"fit": 3}},
        {"state": {"n_features_in_": 10**6, "run": {}}},
        {"state": [1]},
        {"parameters": {"lam": {"$call": "os.system"}}},
        {"parameters": {"lam": {"$array": "nowhere"}}},
        {"position": {"$tuple": 3}},
    ],
)
def test_headers_that_make_no_sense_are_refused(path, content, change):
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    resealed(path, header | change)
    with pytest.raises(ValueError, match=r"can be read \("):
        ltl.load(path)


def test_arrays_that_would_crash_kernels_are_refused(path, content):
    with np.load(path) as arrays:
        state, rows = arrays["state/run/state"], arrays["state/run/rows"]
        header = json.loads(arrays["header.json"])
    for arrays in (
        {"state/run/state": state[:, :, :2], "state/run/rows": rows},
        {"state/run/state": state.astype(np.float32), "state/run/rows": rows},
        {"state/run/state": state, "state/run/rows": rows[:1]},
    ):
        resealed(path, arrays=arrays)
        with pytest.raises(ValueError, match=r"holds no OnlineLTL that can be read"):
            ltl.load(path)
    for name, value in (("rank", [5]), ("n_added", [9]), ("n_subtracted", [-1]), ("rank", [-1])):
        changed = json.loads(json.dumps(header))
        changed["state"]["run"]["records"][name] = value
        resealed(path, changed, {"state/run/state": state, "state/run/rows": rows})
        with pytest.raises(ValueError, match="its counts are impossible"):
            ltl.load(path)


def test_objects_are_never_unpickled(path, content):
    with np.load(path) as arrays:
        header = json.loads(arrays["header.json"])
    member = np.array([print], dtype=object)
    with path.open("w+b") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("header.json"), json.dumps(header))
        with archive.open("state/run/state.npy", "w") as inner:
            np.lib.format.write_array(inner, member, allow_pickle=True)
        archive.comment = storage.SEAL + b"0" * storage.DIGITS
    with path.open("r+b") as file:
        storage._seal(file)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        ltl.load(path)


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "file"
    storage.write_whole(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        storage.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_files_have_the_usual_permissions(tmp_path):
    before = os.umask(0o077)
    try:
        storage.write_whole(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path, path):
    (tmp_path / "latest.npz").symlink_to(path)
    ONLINE["entropic"].save(tmp_path / "latest.npz")
    assert (tmp_path / "latest.npz").is_symlink()
    assert path.is_file()


def test_only_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="path must be that of a file, got"):
            ONLINE["entropic"].save(other)


@pytest.mark.parametrize("name", ["learner", "run[1]"])
def test_what_a_killed_process_had_begun_is_removed(tmp_path, name):
    (tmp_path / f".{name}.npz.0a1b2c3d.part").write_bytes(b"begun")
    (tmp_path / ".run1.npz.0a1b2c3d.part").write_bytes(b"begun")
    storage.discard_unfinished(tmp_path / f"{name}.npz")
    assert [file.name for file in tmp_path.iterdir()] == [".run1.npz.0a1b2c3d.part"]


def test_a_file_keeps_its_permissions(path):
    ONLINE["entropic"].save(path)
    path.chmod(0o640)
    ONLINE["entropic"].save(path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there(tmp_path):
    message = "No such file or directory: nothing was saved, .* is as it was: "
    with pytest.raises(FileNotFoundError, match=message):
        ONLINE["entropic"].save(tmp_path / "none" / "learner.npz")


def test_nanoseconds_are_not_dropped(path):
    pandas = pytest.importorskip("pandas")
    days = [pandas.Timestamp("2020-01-01"), pandas.Timestamp("2020-01-02")]
    ltl.MTL(0.1).fit(ltl.TaskSet(list(TASKS[:2]), days)).save(path)
    assert ltl.load(path).predict(TASKS[0][0], days[:1] * 3).shape == (3,)
    days[1] += pandas.Timedelta(1, "ns")
    with pytest.raises(TypeError, match=r"labels_ must be made of .* got Timestamp"):
        ltl.MTL(0.1).fit(ltl.TaskSet(list(TASKS[:2]), days)).save(path)


SAVES_TWICE = """
import resource, sys
import fastltl as ltl
learner = ltl.OnlineLTL().fit([([[1.0] * 50], [1.0])])
learner.save(sys.argv[1])
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
learner.partial_fit([[1.0] * 50], [2.0])
try:
    learner.save(sys.argv[1])
except OSError as error:
    print(error.strerror)
print(learner.n_tasks_seen_, ltl.load(sys.argv[1]).n_tasks_seen_)
"""


@pytest.mark.parametrize("room", [0, 100, 3000, 80000])
def test_a_disk_that_fills_up_during_a_save_costs_nothing(tmp_path, path, room):
    """The kernel itself refuses to write more than so many bytes to a file."""
    command = [sys.executable, "-W", "error", "-c", SAVES_TWICE, str(path), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reason, counts = done.stdout.splitlines()
    assert reason == (
        "File too large: nothing was saved, and what was saved there before is as it was; make "
        "room or save elsewhere"
    )
    assert counts == "2 1"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [path]


@needs_mounts
def test_a_disk_without_room_for_a_second_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=128k tmpfs {disk}"
    done = mounted(
        mount, [sys.executable, "-W", "error", "-c", SAVES_TWICE, str(disk / "learner.npz")]
    )
    reason, counts = done.stdout.splitlines()
    assert reason.startswith("No space left on device: nothing was saved, and what was saved there")
    assert counts == "2 1"


if __name__ == "__main__":  # once for each new format
    for sample, learner in {**ONLINE, **OTHERS}.items():
        fitted(learner).save(SAMPLES / f"format-{storage.FORMAT}-{sample}.npz")
    ridge().save(SAMPLES / f"format-{storage.FORMAT}-ridge.npz")
