"""Checkpoints: learners load as they were saved, damage is found, failed saves change nothing."""

import contextlib
import copy
import datetime
import io
import itertools
import json
import os
import pickle
import re
import struct
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
from fastltl import reference
from fastltl._kernels.online import RECORD
from fastltl.io import checkpoints, files

SAMPLES = Path(__file__).parent / "checkpoints"

environment = ltl.datasets.make_environment(n_features=4, noise=0.1, random_state=0)
TASKS = environment.tasks(40, n_samples=3)
VALIDATION = environment.tasks(5, n_samples=6).split_samples(0.5, random_state=0)
PAPER = {"objective": "error", "geometry": "euclidean", "step": "theory"}

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
PRIORS = {"bayes": ltl.BayesLTL()}
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
    """Return whether two learners have the same parameters and attributes, to the bit."""
    return pickle.dumps(vars(ours)) == pickle.dumps(vars(theirs))


@pytest.mark.parametrize("name", ONLINE)
def test_a_loaded_learner_continues_with_the_same_bits(path, tmp_path, name):
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
        assert again.progress_summary() == learner.progress_summary()


@pytest.mark.parametrize("name", PRIORS)
def test_a_loaded_prior_continues_with_the_same_bits(path, tmp_path, name):
    learner = fitted(PRIORS[name], TASKS[:20])
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
    assert np.array_equal(again.covariance_, learner.covariance_)
    assert np.array_equal(again.mean_, learner.mean_)


@pytest.mark.parametrize("name", OTHERS)
def test_other_learners_load_with_all_attributes(path, name):
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


def test_a_warm_start_continues_from_a_checkpoint(path):
    learner = fitted(ltl.BatchLTL(0.1, tol=1e-2, warm_start=True))
    learner.save(path)
    again = ltl.load(path)
    assert np.array_equal(again.fit(TASKS[5:]).D_, learner.fit(TASKS[5:]).D_)


def test_a_model_of_one_task_loads_as_it_was_saved(path):
    model = ridge()
    model.save(path)
    again = ltl.load(path)
    assert np.array_equal(again.coef_, model.coef_)
    assert again.intercept_ == model.intercept_
    assert np.array_equal(again.D, model.D)


@pytest.mark.parametrize("learner", [*ONLINE.values(), *PRIORS.values(), *OTHERS.values()], ids=str)
def test_learners_before_their_first_fit_can_be_saved(path, learner):
    learner.save(path)
    again = ltl.load(path)
    assert not again.__sklearn_is_fitted__()
    assert again.get_params().keys() == learner.get_params().keys()
    assert again.fit(TASKS).n_features_in_ == 4


def test_feature_names_are_kept(path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    learner = ltl.OnlineLTL().partial_fit(frame, [1.0, 2.0])
    learner.save(path)
    again = ltl.load(path)
    assert list(again.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        again.partial_fit(frame.rename(columns={"a": "c"}), [1.0, 2.0])
    again.partial_fit(frame, [1.0, 2.0])


def test_saving_does_not_change_the_learner(path):
    watched, alone = clone(ONLINE["entropic"]), clone(ONLINE["entropic"])
    for X, y in TASKS:
        watched.partial_fit(X, y).save(path)
        alone.partial_fit(X, y)
    assert same(watched, alone)


def test_a_checkpoint_is_an_npz_with_a_header(path):
    fitted(ONLINE["entropic"]).save(path)
    with np.load(path, allow_pickle=False) as arrays:
        header = json.loads(arrays["header.json"])
        shapes = {name: arrays[name].shape for name in arrays.files if name != "header.json"}
    assert shapes == {
        "state/run/matrices": (1, 4, 4),
        "state/run/totals": (1, 4, 4),
        "state/run/vectors": (1, 4, 4),
        "state/run/values": (1, 4),
        "state/run/weights": (1, 4),
    }
    assert header["state"]["run"]["records"].keys() == set(RECORD.names)
    assert header["format"] == checkpoints.FORMAT == 3
    assert header["fastltl"] == ltl.__version__
    assert header["learner"] == "OnlineLTL"
    assert header["parameters"]["lam"] == 0.1
    assert header["position"] == {"n_tasks_read": 40}


def test_parameters_that_changed_after_the_first_task_are_not_saved(path):
    learner = fitted(ONLINE["entropic"]).set_params(lam=1.0)
    with pytest.raises(ValueError, match=r"lam=1.0 after lam=0.1"):
        learner.save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (ltl.OnlineLTL(Fraction(1, 2)), "lam cannot be saved: .* got Fraction"),
        (ltl.ITL(1 + 2j), "lam cannot be saved: .* got complex"),
        (ltl.OnlineLTLPath([{1}]), "lams cannot be saved: .* got set"),
    ],
)
def test_an_error_names_the_parameter_that_cannot_be_saved(path, learner, message):
    with pytest.raises(TypeError, match=message):
        learner.save(path)
    assert not path.exists()


def test_subclasses_outside_the_package_are_not_saved(path):
    class Mine(ltl.OnlineLTL):
        pass

    with pytest.raises(TypeError, match="save supports the learners of fastltl only, got Mine"):
        Mine().save(path)


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("format-*.npz")), ids=lambda path: path.stem)
def test_checkpoints_of_every_format_stay_readable(sample):
    """`python tests/test_checkpoints.py` wrote the samples when the format was new."""
    _, number, name = sample.stem.split("-", 2)
    found = ltl.load(sample)
    if name == "ridge":
        assert np.allclose(found.coef_, ridge().coef_, rtol=1e-9)
        return
    learner = clone({**ONLINE, **PRIORS, **OTHERS}[name])
    if int(number) < 3 and "objective" in learner.get_params():
        learner.set_params(objective="error")  # there was no other
        assert found.objective == "error"
    fresh = fitted(learner)
    assert found.get_params().keys() == fresh.get_params().keys()
    if name in OTHERS:
        tol = found.get_params().get("tol", 1e-12)  # solvers stop at a gap, each one elsewhere
        assert np.linalg.norm(found.D_ - fresh.D_) < np.sqrt(tol) * np.linalg.norm(fresh.D_)
        if hasattr(found, "objective_"):
            assert np.isclose(found.objective_, fresh.objective_, rtol=tol)
            tasks = list(TASKS)
            if found.fit_intercept:
                tasks = [(X - X.mean(axis=0), y - y.mean()) for X, y in tasks]
            value, _ = reference.mean_objective(found.D_, tasks, found.objective)
            assert value == pytest.approx(found.objective_, rel=1e-9)
        return
    for _ in range(2):
        if name in PRIORS:
            assert np.allclose(found.mean_, fresh.mean_, rtol=1e-6, atol=1e-9)
            assert np.allclose(found.covariance_, fresh.covariance_, rtol=1e-6, atol=1e-9)
            assert np.isclose(found.noise_, fresh.noise_, rtol=1e-6)
        else:
            assert np.allclose(found._representations(), fresh._representations(), rtol=1e-9)
        found.partial_fit(*TASKS[0])
        fresh.partial_fit(*TASKS[0])


def test_every_learner_has_a_sample_of_the_latest_format():
    names = {path.stem for path in SAMPLES.glob("*.npz")}
    learners = (*ONLINE, *PRIORS, *OTHERS, "ridge")
    assert {f"format-{checkpoints.FORMAT}-{name}" for name in learners} <= names


@pytest.fixture
def content(path):
    fitted(ONLINE["entropic"]).save(path)
    return path.read_bytes()


def read_parts(path):
    """Return the header and the arrays of a checkpoint."""
    with np.load(path) as archive:
        header = json.loads(archive["header.json"])
        return header, {name: archive[name] for name in archive.files if name != "header.json"}


def write_parts(path, header, arrays):
    """Write a checkpoint, with a valid seal, whatever its parts are."""
    with path.open("w+b") as file:
        checkpoints._write_archive(file, json.dumps(header).encode(), arrays)
        checkpoints._seal(file)


def test_every_truncation_is_found(path, content):
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"is cut short|is not a checkpoint of fastltl"):
            ltl.load(path)
        if length > 50:
            with pytest.raises(ValueError, match="is cut short"):
                ltl.load(path)


def test_every_flipped_bit_is_found(path, content):
    random = np.random.default_rng(0)
    for place in random.permutation(len(content))[:1000]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << random.integers(8)
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"is damaged|is cut short"):
            ltl.load(path)


@pytest.mark.parametrize("foreign", [b"", b"hello", b"PK\x05\x06" + bytes(18), bytes(1000)])
def test_other_files_are_refused(path, foreign):
    path.write_bytes(foreign)
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)


def test_other_npz_files_are_refused(path):
    np.savez(path, header=np.ones(3))
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.txt", "text")
    with pytest.raises(ValueError, match="is not a checkpoint of fastltl"):
        ltl.load(path)


def test_a_newer_format_is_named(path, content):
    header, arrays = read_parts(path)
    write_parts(path, header | {"format": 4, "fastltl": "9.1"}, arrays)
    with pytest.raises(ValueError, match=r"has format 4 .* by fastltl 9.1: .* too old"):
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
def test_headers_of_other_content_are_refused(path, content, change):
    header, arrays = read_parts(path)
    write_parts(path, header | change, arrays)
    with pytest.raises(ValueError, match=r"cannot be read as .* \("):
        ltl.load(path)


#: One learner for each form of the state: eigenvectors of S, of D, and D itself.
FORMS = ("entropic", "euclidean", "theory")
ARRAYS = ("matrices", "totals", "vectors", "values", "weights")
COUNTS = ("adaptive", "entropic", "regularized", "n_tasks", "rank")
FLOATS = tuple(name for name in RECORD.names if name not in COUNTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the header and the arrays of learners, by name."""
    path, parts = tmp_path_factory.mktemp("saved") / "learner.npz", {}
    for name in (*FORMS, "path-of-scales"):
        fitted(ONLINE[name]).save(path)
        parts[name] = read_parts(path)
    return parts


@pytest.fixture
def forge(saved, path):
    """Return a function that loads a learner with another state, from a file with a valid seal."""

    def load_forged(name, records=None, arrays=None):
        header, old = copy.deepcopy(saved[name])
        header["state"]["run"]["records"].update(records or {})
        new = {f"state/run/{key}": value for key, value in (arrays or {}).items()}
        write_parts(path, header, old | new)
        return ltl.load(path)

    return load_forged


def saved_array(saved, name, array):
    return saved[name][1][f"state/run/{array}"].copy()


def saved_record(saved, name, column):
    return saved[name][0]["state"]["run"]["records"][column]


@pytest.mark.parametrize("name", FORMS)
def test_an_unchanged_state_is_accepted(forge, name):
    assert np.array_equal(forge(name).D_, fitted(ONLINE[name]).D_)


def test_forms_of_the_state(saved):
    """The tests below cover D in all its forms only if the learners end in them."""
    ranks = [saved_record(saved, name, "rank")[0] for name in FORMS]
    assert ranks[0] > 0
    assert ranks[1] > 0
    assert ranks[2] == -1


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("count", [0, -1, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**70, -(2**63)])
def test_impossible_numbers_of_tasks_are_refused(forge, name, count):
    with pytest.raises(ValueError, match="n_tasks"):
        forge(name, {"n_tasks": [count]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("rank", [5, -2, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63)])
def test_impossible_ranks_are_refused(forge, name, rank):
    with pytest.raises(ValueError, match="rank must be a number of eigenvectors up to 4"):
        forge(name, {"rank": [rank]})


def test_an_entropic_state_has_eigenvectors(forge):
    with pytest.raises(ValueError, match="rank must be"):
        forge("entropic", {"rank": [-1]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", ["adaptive", "entropic"])
@pytest.mark.parametrize("value", [-1, 2, 2**62])
def test_impossible_flags_are_refused(forge, name, column, value):
    with pytest.raises(ValueError, match=column):
        forge(name, {column: [value]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", COUNTS)
@pytest.mark.parametrize("value", [1.5, "1", None, [1], {"$float": "nan"}])
def test_counts_that_are_no_integers_are_refused(forge, name, column, value):
    with pytest.raises(ValueError, match=column):
        forge(name, {column: [value]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", FLOATS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_are_refused(forge, name, column, value):
    with pytest.raises(ValueError, match=f"{column} must be finite"):
        forge(name, {column: [{"$float": value}]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", FLOATS)
def test_negative_numbers_are_refused(forge, name, column):
    with pytest.raises(ValueError, match=f"{column} must not be negative"):
        forge(name, {column: [-1e-3]})


@pytest.mark.parametrize("column", RECORD.names)
def test_each_candidate_is_checked(forge, saved, column):
    *others, last = saved_record(saved, "path-of-scales", column)
    for value in (-2, last + 2**60):
        if column in FLOATS and value > 0:
            value = {"$float": "inf"}
        with pytest.raises(ValueError, match=column):
            forge("path-of-scales", {column: [*others, value]})


def test_all_candidates_have_seen_the_same_tasks(forge):
    with pytest.raises(ValueError, match=r"n_tasks must be .* the same for all candidates"):
        forge("path-of-scales", {"n_tasks": [40, 40, 40, 40, 40, 39]})


@pytest.mark.parametrize("column", RECORD.names)
def test_records_of_another_number_of_candidates_are_refused(forge, saved, column):
    values = saved_record(saved, "path-of-scales", column)
    for wrong in (values[:1], values[:-1], [*values, values[0]], [values], values[0], []):
        with pytest.raises(ValueError, match=f"{column} has shape"):
            forge("path-of-scales", {column: wrong})


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_another_number_of_candidates_are_refused(forge, saved, array):
    values = saved_array(saved, "path-of-scales", array)
    for wrong in (values[:1], values[:-1], np.concatenate([values, values[:1]]), values[0]):
        with pytest.raises(ValueError, match=f"{array} has shape"):
            forge("path-of-scales", arrays={array: wrong})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_another_shape_or_type_are_refused(forge, saved, name, array):
    values = saved_array(saved, name, array)
    wrong = [
        values.astype(np.float32),
        values.astype(">f8"),
        values.astype(np.int64),
        values[..., :2],
        values[..., None],
        values[:, :2],
        np.zeros(0),
        np.zeros(()),
    ]
    for one in wrong:
        with pytest.raises(ValueError, match=f"{array} has shape"):
            forge(name, arrays={array: one})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_arrays_that_are_not_finite_are_refused(forge, saved, name, array, value):
    for place in (0, -1):
        values = saved_array(saved, name, array)
        values.flat[place] = value
        with pytest.raises(ValueError, match=f"{array} must be finite"):
            forge(name, arrays={array: values})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_in_fortran_order_are_accepted(forge, saved, name, array):
    """Kernels write to views of arrays in C order."""
    found = forge(name, arrays={array: np.asfortranarray(saved_array(saved, name, array))})
    fresh = fitted(ONLINE[name])
    for task in TASKS[:5]:
        found.partial_fit(*task)
        fresh.partial_fit(*task)
    assert np.array_equal(found.D_, fresh.D_)


@pytest.mark.parametrize("name", ["entropic", "theory"])
def test_matrices_that_are_not_symmetric_are_refused(forge, saved, name):
    matrices = saved_array(saved, name, "matrices")
    matrices[0, 0, 1] += 1e-3 * np.abs(matrices).max()
    with pytest.raises(ValueError, match="matrices must be symmetric"):
        forge(name, arrays={"matrices": matrices})


@pytest.mark.parametrize("name", ["entropic", "euclidean"])
def test_vectors_that_are_not_orthonormal_are_refused(forge, saved, name):
    vectors = saved_array(saved, name, "vectors")
    repeated = vectors.copy()
    repeated[0, 1] = repeated[0, 0]
    for wrong in (repeated, 1.001 * vectors, np.zeros_like(vectors), 1e200 * vectors):
        with pytest.raises(ValueError, match="vectors must be orthonormal"):
            forge(name, arrays={"vectors": wrong})


def test_matrices_that_are_no_representations_are_refused(forge, saved):
    D = saved_array(saved, "theory", "matrices")
    for wrong in (-D, 2 * D, D - 3 * np.eye(4)):
        with pytest.raises(ValueError, match="matrices must be PSD, with a trace up to the radius"):
            forge("theory", arrays={"matrices": wrong})
    with pytest.raises(ValueError, match="matrices must be PSD"):
        forge("theory", {"floor": [9.0]})


def test_a_sum_that_exceeds_the_gradients_is_refused(forge, saved):
    for array in ("matrices", "values"):
        with pytest.raises(ValueError, match="must not exceed the sum of the gradients"):
            forge("entropic", arrays={array: 1e3 * saved_array(saved, "entropic", array)})
    with pytest.raises(ValueError, match="must not exceed the sum of the gradients"):
        forge("entropic", {"norm": [0.0], "step": [0.0], "largest": [0.0]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("value", [0.0, 5e-324, 1.0, 1e308])
def test_a_step_is_not_free(forge, name, value):
    with pytest.raises(ValueError, match="step must be its scale over"):
        forge(name, {"step": [value]})


@pytest.mark.parametrize("name", FORMS)
def test_the_largest_gradient_is_one_of_all(forge, name):
    with pytest.raises(ValueError, match="largest must be the norm of a gradient"):
        forge(name, {"largest": [1e308]})


@pytest.mark.parametrize("name", FORMS)
def test_totals_that_exceed_the_iterates_are_refused(forge, saved, name):
    with pytest.raises(ValueError, match="totals must be a sum of iterates"):
        forge(name, arrays={"totals": 1e3 * saved_array(saved, name, "totals")})


@pytest.mark.parametrize("name", ["entropic", "euclidean"])
def test_weights_that_do_not_fit_the_radius_are_refused(forge, saved, name):
    weights = saved_array(saved, name, "weights")
    for wrong in (-weights, 2 * weights):
        with pytest.raises(ValueError, match="weights and rest must not be negative"):
            forge(name, arrays={"weights": wrong})
    with pytest.raises(ValueError, match="weights"):
        forge(name, {"rest": [11.0]})
    with pytest.raises(ValueError, match="floor must be a lower bound on weights"):
        forge(name, {"floor": [9.0]})


def test_eigenvalues_of_a_euclidean_iterate_are_its_weights(forge, saved):
    values = saved_array(saved, "euclidean", "values")
    with pytest.raises(ValueError, match="values must equal weights"):
        forge("euclidean", arrays={"values": values + 1.0})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", ["radius", "scale"])
def test_settings_are_compared_with_a_tolerance(forge, saved, name, column):
    """They are computed from the parameters, perhaps by a CPU that rounds otherwise."""
    (value,) = saved_record(saved, name, column)
    for factor in (1 + 1e-6, 1 - 1e-6, 2.0):
        with pytest.raises(ValueError, match=f"its {column} is not that of its parameters"):
            forge(name, {column: [factor * value]})
    for factor in (1 + 1e-12, 1 - 1e-12):
        assert forge(name, {column: [factor * value]}).n_tasks_seen_ == 40


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("part", [*RECORD.names, *ARRAYS])
def test_no_forged_number_makes_results_nan(forge, saved, name, part):
    """A state is refused or, with numbers that are possible, learns without NaN."""
    values = (0, 1, 3, 40, 2**53) if part in COUNTS else (0.0, 1e-308, 1e-9, 1.0, 1e9, 1e150, 1e308)
    forged = []
    if part in RECORD.names:
        forged = [({part: [value]}, None) for value in values]
    else:
        for sign, value, place in itertools.product((1, -1), values, (0, 1, -1)):
            array = saved_array(saved, name, part)
            array.flat[place] = sign * value
            forged.append((None, {part: array}))
        forged += [(None, {part: np.full_like(array, value)}) for value in values]
    for records, arrays in forged:
        try:
            learner = forge(name, records, arrays)
        except ValueError:
            continue
        for task in TASKS[:5]:
            # With the JIT off, NumPy warns of an overflow before the kernel refuses the task.
            with contextlib.suppress(ValueError), np.errstate(over="ignore", invalid="ignore"):
                learner.partial_fit(*task)
            assert np.isfinite(learner.D_).all()
            assert np.isfinite(learner.iterate_).all()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("lam", [1e-12, 1e-3, 1.0, 1e12])
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_every_state_of_a_learner_is_accepted(path, name, lam, unit):
    learner = clone(ONLINE[name]).set_params(lam=lam)
    random = np.random.default_rng(0)
    for n in (1, 3, 1, 20, 2, 4, 1, 9):
        X, y = random.normal(size=(n, 12)), unit * random.normal(size=n)
        for task in ((X, y), (X, 0 * y), (0 * X, y), (X[:, :1] * np.ones(12), y)):
            learner.partial_fit(*task).save(path)
            assert np.array_equal(ltl.load(path).iterate_, learner.iterate_)


@pytest.fixture
def forge_format_1(path):
    """Return a function that loads a learner of format 1 with another state."""

    def load_forged(name, records=None, arrays=None):
        header, old = read_parts(SAMPLES / f"format-1-{name}.npz")
        header["state"]["run"]["records"].update(records or {})
        new = {f"state/run/{key}": change(old[f"state/run/{key}"]) for key, change in arrays or ()}
        write_parts(path, header, old | new)
        return ltl.load(path)

    return load_forged


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "counts",
    [(2**63 - 1, 2**63 - 1), (-1, 0), (0, -1), (-1, -1), (5, 0), (0, 5), (3, 2), (2**70, 0)],
)
def test_impossible_buffers_of_format_1_are_refused(forge_format_1, name, counts):
    n_added, n_subtracted = counts
    with pytest.raises(ValueError, match="its buffer has 4 rows"):
        forge_format_1(name, {"n_added": [n_added], "n_subtracted": [n_subtracted]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("column", ["n_added", "n_subtracted", "rest_total"])
@pytest.mark.parametrize("values", [[], [[1]], 1, [None], [{"$float": "nan"}]])
def test_other_records_of_format_1_are_refused(forge_format_1, name, column, values):
    with pytest.raises(ValueError, match="cannot be read as OnlineLTL"):
        forge_format_1(name, {column: values})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("value", ["inf", "-inf"])
def test_totals_of_format_1_that_are_not_finite_are_refused(forge_format_1, name, value):
    with pytest.raises(ValueError, match="totals must be finite"):
        forge_format_1(name, {"rest_total": [{"$float": value}]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("state", lambda state: np.full_like(state, np.nan)),
        ("state", lambda state: np.full_like(state, np.inf)),
        ("state", lambda state: np.full_like(state, 1e200)),
        ("state", lambda state: state.astype(np.float32)),
        ("state", lambda state: state[:3]),
        ("state", lambda state: state[:, :, :2]),
        ("state", lambda state: state[0]),
        ("state", lambda state: np.concatenate([state, state], axis=1)),
        ("rows", lambda rows: np.full_like(rows, np.nan)),
        ("rows", lambda rows: rows.astype(np.float32)),
        ("rows", lambda rows: rows[:1]),
        ("rows", lambda rows: rows[:, :, :2]),
        ("rows", lambda rows: rows[:, 0]),
    ],
)
def test_other_arrays_of_format_1_are_refused(forge_format_1, name, array, change):
    with pytest.raises(ValueError, match="cannot be read as OnlineLTL"):
        forge_format_1(name, arrays=[(array, change)])


def test_objects_are_never_unpickled(path, content):
    header, _ = read_parts(path)
    member = np.array([print], dtype=object)
    with path.open("w+b") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("header.json"), json.dumps(header))
        with archive.open("state/run/matrices.npy", "w") as inner:
            np.lib.format.write_array(inner, member, allow_pickle=True)
        archive.comment = checkpoints.SEAL + b"0" * checkpoints.DIGITS
    with path.open("r+b") as file:
        checkpoints._seal(file)
    with pytest.raises(ValueError, match="an array has the type object"):
        ltl.load(path)


@pytest.mark.slow
def test_only_regular_files_are_read(tmp_path):
    """Another process loads them, since a pipe would block and /dev/zero never ends."""
    os.mkfifo(tmp_path / "pipe")
    code = "import fastltl, sys; fastltl.load(sys.argv[1])"
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/stdin")):
        command = [sys.executable, "-c", code, str(path)]
        found = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=120)
        assert b"ValueError" in found.stderr
        assert b"is not a regular file" in found.stderr


def write_members(path, members):
    """Write a sealed archive of members: name, content and kind of compression."""
    with path.open("w+b") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content, kind in members:
                archive.writestr(name, content, kind)
            archive.comment = checkpoints.SEAL + b"0" * checkpoints.DIGITS
        checkpoints._seal(file)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("name", ["header.json", "state/run/matrices.npy"])
def test_compressed_members_are_not_unpacked(path, content, kind, name):
    header, _ = read_parts(path)
    stored = [("header.json", json.dumps(header), zipfile.ZIP_STORED)] * (name != "header.json")
    write_members(path, [*stored, (name, bytes(2**20), kind)])
    with pytest.raises(ValueError, match="its members are compressed"):
        ltl.load(path)


def test_members_that_overlap_are_refused(path, content):
    """Two entries of the directory that share their bytes would double what is read."""
    write_members(path, [(name, bytes(5000), zipfile.ZIP_STORED) for name in ("a.npy", "b.npy")])
    data = bytearray(path.read_bytes())
    entries = [match.start() for match in re.finditer(b"PK\x01\x02", data)]
    for entry in entries:  # each takes up all the file
        data[entry + 20 : entry + 28] = struct.pack("<II", len(data), len(data))
    path.write_bytes(data)
    with path.open("r+b") as file:
        checkpoints._seal(file)
    with pytest.raises(ValueError, match="its members are larger than the file"):
        ltl.load(path)


@pytest.mark.parametrize(
    "shape", [(2**40,), (2**62, 2**62), (-1,), (-2, -4), (7,), (9,), (0, 2**62), (1,) * 80]
)
def test_arrays_that_declare_other_shapes_are_refused(path, content, shape):
    header, _ = read_parts(path)
    member = io.BytesIO()
    declared = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(member, declared)
    array = ("state/run/matrices.npy", member.getvalue() + bytes(64), zipfile.ZIP_STORED)
    write_members(path, [("header.json", json.dumps(header), zipfile.ZIP_STORED), array])
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        ltl.load(path)


def test_parameters_do_not_ask_for_more_memory_than_the_file_has(path):
    """Two arrays of 100,000 numbers would make 10^10 candidates, a large d even more."""
    learner = fitted(ONLINE["path-of-scales"])
    learner.save(path)
    header, arrays = read_parts(path)
    many = np.ones(100_000)
    header["parameters"] |= {"lams": {"$array": "lams"}, "step_scale": {"$array": "scales"}}
    write_parts(path, header, arrays | {"lams": many, "scales": many})
    with pytest.raises(ValueError, match="its arrays are too small"):
        ltl.load(path)
    for name in ("entropic", "bayes"):
        header, arrays = read_parts(SAMPLES / f"format-3-{name}.npz")
        header["state"]["n_features_in_"] = 10**9
        write_parts(path, header, arrays)
        with pytest.raises(ValueError, match="its arrays are too small"):
            ltl.load(path)


def test_the_latest_format_names_its_objective(path, content):
    header, arrays = read_parts(path)
    del header["parameters"]["objective"]
    write_parts(path, header, arrays)
    with pytest.raises(ValueError, match="are not its parameters"):
        ltl.load(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("batch", {"objective_": {"$float": "nan"}}),
        ("batch", {"gap_": {"$float": "inf"}}),
        ("batch", {"n_iter_": True}),
        ("batch", {"history_": [{"$tuple": [1.0, {"$float": "nan"}, 1.0]}]}),
        ("batch", {"history_": [{"$tuple": [1.0, 1.0]}]}),
        ("multitask", {"labels_": {"$objects": [[1], [2]]}}),
        ("multitask", {"labels_": {"$objects": [1]}}),
        ("independent", {"intercept_": {"$array": "state/coef_"}}),
        ("ridge", {"intercept_": {"$float": "nan"}}),
    ],
    ids=str,
)
def test_other_attributes_are_checked(path, name, change):
    header, arrays = read_parts(SAMPLES / f"format-3-{name}.npz")
    header["state"] |= change
    write_parts(path, header, arrays)
    with pytest.raises(ValueError, match="cannot be read as"):
        ltl.load(path)


@pytest.mark.slow
def test_no_forged_checkpoint_crashes():
    """`forge.py` has the list of changes; more than 4,000 of them are tried here."""
    script = Path(__file__).parent / "forge.py"
    command = [sys.executable, str(script), "--every", "30"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    last = found.stderr.splitlines()[-1:]
    assert found.returncode == 0, f"{found.stdout}\n{last}"
    refused, used, failed = map(int, re.findall(r"\d+", found.stdout.splitlines()[-1]))
    assert refused + used > 4000
    assert used > 100
    assert failed == 0


def test_a_failed_write_leaves_the_earlier_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write_whole(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_files_have_the_usual_permissions(tmp_path):
    before = os.umask(0o077)
    try:
        files.write_whole(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path, path):
    (tmp_path / "latest.npz").symlink_to(path)
    ONLINE["entropic"].save(tmp_path / "latest.npz")
    assert (tmp_path / "latest.npz").is_symlink()
    assert path.is_file()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe with a name")
def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="not a regular file: "):
            ONLINE["entropic"].save(other)


@pytest.mark.parametrize("name", ["learner", "run[1]"])
def test_partial_files_of_killed_processes_are_removed(tmp_path, name):
    (tmp_path / f".{name}.npz.0a1b2c3d.part").write_bytes(b"begun")
    (tmp_path / ".run1.npz.0a1b2c3d.part").write_bytes(b"begun")
    files.discard_unfinished(tmp_path / f"{name}.npz")
    assert [file.name for file in tmp_path.iterdir()] == [".run1.npz.0a1b2c3d.part"]


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_a_file_keeps_its_permissions(path):
    ONLINE["entropic"].save(path)
    path.chmod(0o640)
    ONLINE["entropic"].save(path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_an_error_says_that_nothing_was_saved(tmp_path):
    message = "No such file or directory: nothing was saved, and an earlier file is unchanged: "
    with pytest.raises(FileNotFoundError, match=message):
        ONLINE["entropic"].save(tmp_path / "none" / "learner.npz")


def test_nanoseconds_are_not_dropped(path):
    pandas = pytest.importorskip("pandas")
    days = [pandas.Timestamp("2020-01-01"), pandas.Timestamp("2020-01-02")]
    ltl.MTL(0.1).fit(ltl.TaskSet(list(TASKS[:2]), days)).save(path)
    assert ltl.load(path).predict(TASKS[0][0], days[:1] * 3).shape == (3,)
    days[1] += pandas.Timedelta(1, "ns")
    with pytest.raises(TypeError, match=r"labels_ cannot be saved: .* got Timestamp"):
        ltl.MTL(0.1).fit(ltl.TaskSet(list(TASKS[:2]), days)).save(path)


SAVES_TWICE = """
import resource, sys
import fastltl as ltl
learner = ltl.OnlineLTL().partial_fit([[1.0] * 50], [1.0])
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


@pytest.mark.slow
@pytest.mark.parametrize("n_bytes", [0, 100, 3000, 50000])
def test_a_disk_that_fills_up_during_a_save_changes_nothing(tmp_path, path, n_bytes):
    """The operating system refuses to write more bytes than this to a file."""
    command = [sys.executable, "-W", "error", "-c", SAVES_TWICE, str(path), str(n_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reason, counts = done.stdout.splitlines()
    assert reason == (
        "File too large: nothing was saved, and an earlier file is unchanged; free some space or "
        "save elsewhere"
    )
    assert counts == "2 1"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
@needs_mounts
def test_a_disk_that_is_too_small_for_a_second_file(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=100k tmpfs {disk}"
    done = mounted(
        mount, [sys.executable, "-W", "error", "-c", SAVES_TWICE, str(disk / "learner.npz")]
    )
    reason, counts = done.stdout.splitlines()
    assert reason.startswith("No space left on device: nothing was saved, and an earlier")
    assert counts == "2 1"


if __name__ == "__main__":  # once for each new format
    for sample, learner in {**ONLINE, **PRIORS, **OTHERS}.items():
        fitted(learner).save(SAMPLES / f"format-{checkpoints.FORMAT}-{sample}.npz")
    ridge().save(SAMPLES / f"format-{checkpoints.FORMAT}-ridge.npz")
