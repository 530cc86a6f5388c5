"""The soak at a length that the suite has time for, or at that of FASTLTL_SOAK."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # last, so that what is installed is tested

from benchmarks import soak

LENGTHS = [3000, *(int(length) for length in [os.environ.get("FASTLTL_SOAK")] if length)]
HAS_STATUS = Path("/proc/self/status").exists()

pytestmark = pytest.mark.skipif(not HAS_STATUS, reason="needs /proc to read memory from")


@pytest.mark.slow
@pytest.mark.parametrize("n_tasks", LENGTHS)
@pytest.mark.parametrize("rule", soak.RULES)
def test_promises_last(rule, n_tasks):
    run = soak.soak(rule, n_tasks)
    assert len(run.looks) >= 10
    assert run.looks[-1].n_tasks == n_tasks
    assert len(run.memory) >= 10
    assert run.growth <= soak.GROWTH
    for look in run.looks:
        assert look.excess <= 1e-9
        assert look.eigenvalue >= -1e-9
        assert look.is_symmetric
    assert run.looks[-1].D_difference <= 1e-7
    assert run.looks[-1].iterate_difference <= 1e-7
    assert soak.broken_promises(run) == []


FINE = soak.Look(10, 5000, 0.0, 0.0, True, 0.0, 0.0)


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
def test_a_broken_promise_is_named(change, wrong):
    run = soak.Soak("entropic", 1e-5, 2e-4, [FINE, FINE._replace(**change)])
    assert soak.broken_promises(run) == [f"entropic: {wrong}"]
    assert soak.broken_promises(run._replace(looks=[FINE])) == []


def test_the_table_has_a_row_for_each_rule(capsys):
    assert soak.main(["--tasks", "20"]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {rule}" for rule in soak.RULES]
    assert {row.count("|") for row in rows} == {header.count("|")}


def test_a_broken_promise_shows_in_the_exit_status(capsys, monkeypatch):
    monkeypatch.setattr(soak, "DIFFERENCE", -1.0)
    assert soak.main(["--tasks", "20"]) == 1
    assert "broken: entropic: D_ is off by" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        soak.main(["--tasks", "0"])
