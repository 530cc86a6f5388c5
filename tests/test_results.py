"""Tests of fastltl.experiments.results: computing cells, and results files."""

import json
import os
import warnings

import pytest

from fastltl.experiments import results


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_cells_come_with_values_seconds_and_warnings(n_jobs, capsys):
    def square(cell):
        if cell["x"] == 2:
            warnings.warn("two is special", UserWarning, stacklevel=1)
        return {"square": cell["x"] ** 2}

    cells = [{"x": x} for x in range(4)]
    done = list(results.compute_cells(square, cells, n_jobs, "squaring"))
    done.sort(key=lambda one: one["cell"]["x"])
    assert [one["cell"] for one in done] == cells
    assert [one["values"]["square"] for one in done] == [0, 1, 4, 9]
    assert [one["warnings"] for one in done] == [[], [], ["two is special"], []]
    assert all(one["seconds"] >= 0 for one in done)
    assert "squaring: 100%" in capsys.readouterr().err


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_error_of_a_cell_is_raised(n_jobs):
    def fail_at_one(cell):
        if cell["x"] == 1:
            raise ValueError("x must not be one")
        return {}

    with pytest.raises(ValueError, match="x must not be one"):
        list(results.compute_cells(fail_at_one, [{"x": 0}, {"x": 1}], n_jobs, "failing"))


@pytest.mark.slow
def test_killed_worker_is_reported_as_a_lack_of_memory():
    def end(cell):
        os._exit(1)

    with pytest.raises(MemoryError, match=r"a worker process was killed, .*: use fewer jobs"):
        list(results.compute_cells(end, [{"x": 0}, {"x": 1}], 2, "ending"))


def test_continue_results(tmp_path):
    path = tmp_path / "out" / "grid.json"
    fresh = results.new_results("grid", {"seed": 0})
    assert results.continue_results(path, fresh) == fresh
    fresh["cells"] = [{"cell": {"x": 0.1}, "values": {}, "seconds": 2.0, "warnings": []}]
    results.write_results(path, fresh)
    again = results.continue_results(path, results.new_results("grid", {"seed": 0}))
    assert again["cells"] == fresh["cells"]
    assert results.missing_cells(again, [{"x": 0.1}, {"x": 0.2}]) == [{"x": 0.2}]
    again["cells"].append(
        {"cell": {"x": 3}, "values": {}, "seconds": 9.0, "warnings": ["unwanted"]}
    )
    again["cells"].append({"cell": {"x": 0}, "values": {"y": 1}, "seconds": 1.0, "warnings": ["w"]})
    assert results.finish(again, [{"x": 0}, {"x": 0.1}]) == [{"x": 0, "y": 1}, {"x": 0.1}]
    assert again["manifest"]["seconds"] == 3.0
    assert again["warnings"] == {"w": 1}


@pytest.mark.parametrize(
    ("name", "value"), [("fastltl", "0.0.1"), ("cpu", "Z80"), ("numpy", "1.0")]
)
def test_results_of_another_machine_are_refused(tmp_path, name, value):
    path = tmp_path / "grid.json"
    old = results.new_results("grid", {"seed": 0})
    old["manifest"]["machine"][name] = value
    results.write_results(path, old)
    with pytest.raises(ValueError, match=rf"computed with {name} {value}, not .* another output"):
        results.continue_results(path, results.new_results("grid", {"seed": 0}))


def test_other_files_are_refused(tmp_path):
    good = results.new_results("grid", {"seed": 0})
    manifest = good["manifest"]
    path = tmp_path / "grid.json"
    for content in (
        [],
        {},
        {"manifest": {"format": results.FORMAT}},
        good | {"manifest": manifest | {"format": 99}},
        good | {"manifest": manifest | {"experiment": "stream"}},
        good | {"manifest": manifest | {"machine": {}}},
        good | {"cells": [{"cell": {}}]},
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="is not a results file of this version"):
            results.read_results(path)
    path.write_text(json.dumps(good)[:-5])
    with pytest.raises(ValueError, match="is not a results file of this version"):
        results.read_results(path)
    path.write_text(json.dumps(good))
    assert results.read_results(path) == good


def test_manifest_describes_the_machine(tmp_path):
    manifest = results.new_results("grid", {"seed": 3})["manifest"]
    assert manifest["parameters"] == {"seed": 3}
    assert {"fastltl", "numpy", "numba", "cpu", "blas", "threads"} <= set(manifest["machine"])
    assert json.loads(json.dumps(manifest)) == manifest
