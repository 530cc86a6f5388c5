"""Run the soak test on a few thousand tasks, and on FASTLTL_SOAK tasks if that is set."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # last, so that what is installed is tested

import fastltl as ltl
from benchmarks import soak

LENGTHS = [3000, *(int(length) for length in [os.environ.get("FASTLTL_SOAK")] if length)]
HAS_STATUS = Path("/proc/self/status").exists()

pytestmark = pytest.mark.skipif(not HAS_STATUS, reason="needs /proc to read memory from")


@pytest.mark.slow
@pytest.mark.parametrize("n_tasks", LENGTHS)
@pytest.mark.parametrize("rule", soak.RULES)
def test_soak_passes_all_checks(rule, n_tasks):
    run = soak.soak(rule, n_tasks)
    assert len(run.snapshots) >= 10
    assert run.snapshots[-1].n_tasks == n_tasks
    assert len(run.memory) >= 10
    assert run.growth <= soak.MAX_GROWTH
    for snapshot in run.snapshots:
        assert snapshot.excess <= 1e-9
        assert snapshot.eigenvalue >= -1e-9
        assert snapshot.is_symmetric
    assert run.snapshots[-1].D_difference <= 1e-7
    assert run.snapshots[-1].iterate_difference <= 1e-7
    assert soak.failed_checks(run) == []


@pytest.mark.compiled
@pytest.mark.parametrize("n_tasks", LENGTHS)
def test_a_prior_stays_valid_in_constant_memory(n_tasks):
    learner, interval, memory = ltl.BayesLTL(), max(1, n_tasks // 10), []
    done = 0
    for tasks in soak.blocks(n_tasks):
        soak.feed(learner, tasks)
        before, done = done, done + len(tasks)
        if before // interval < done // interval:
            memory.append(soak.resident_memory())
            C = learner.covariance_
            values = np.linalg.eigvalsh(C)
            assert np.array_equal(C, C.T)
            assert values[0] >= -1e-12 * values[-1]
            assert np.isfinite(learner.mean_).all()
            assert 0 < learner.noise_ < np.inf
            assert learner.weights_.sum() == pytest.approx(1)
    assert learner.n_tasks_seen_ == n_tasks
    assert len(memory) >= 10
    assert max(memory[1:]) - memory[1] <= soak.MAX_GROWTH


FINE = soak.Snapshot(10, 5000, 0.0, 0.0, True, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"kilobytes": 9000}, "memory grew by 4000 kB"),
        ({"excess": 1e-8}, "a trace exceeds the radius by 1.0e-08 of it"),
        ({"excess": np.nan}, "a trace exceeds the radius by nan of it"),
        ({"eigenvalue": -1e-8}, "an eigenvalue is -1.0e-08 radii"),
        ({"is_symmetric": False}, "a matrix is not symmetric"),
        ({"D_difference": 1e-6}, "D_ is off by 1.0e-06"),
        ({"iterate_difference": np.nan}, "iterate_ is off by nan"),
    ],
)
def test_failed_check_is_described(change, wrong):
    run = soak.Soak("entropic", 1e-5, 2e-4, [FINE, FINE._replace(**change)])
    assert soak.failed_checks(run) == [f"entropic: {wrong}"]
    assert soak.failed_checks(run._replace(snapshots=[FINE])) == []


def test_table_has_a_row_for_each_rule(capsys):
    assert soak.main(["--tasks", "20"]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {rule}" for rule in soak.RULES]
    assert {row.count("|") for row in rows} == {header.count("|")}


def test_failed_check_sets_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(soak, "MAX_DIFFERENCE", -1.0)
    assert soak.main(["--tasks", "20"]) == 1
    assert "failed: entropic: D_ is off by" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        soak.main(["--tasks", "0"])
