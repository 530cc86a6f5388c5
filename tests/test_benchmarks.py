"""Tests of the tables and the picture that the benchmarks write."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd=ROOT):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Run one suite with asv in the current environment; return the folder."""
    folder = tmp_path_factory.mktemp("asv")
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    shutil.copy(ROOT / "asv.conf.json", folder)
    asv, git = [sys.executable, "-m", "asv"], ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    run(*git, "init", "-q", "-b", "main", cwd=folder)
    run(*git, "add", ".", cwd=folder)
    run(*git, "commit", "-qm", "measured", cwd=folder)
    commit = run("git", "rev-parse", "HEAD", cwd=folder).strip()
    run(*asv, "machine", "--yes", "--machine", "here", cwd=folder)
    options = ["--python=same", "--quick", "--machine", "here", "--set-commit-hash", commit]
    run(*asv, "run", *options, "--bench", "RankTwoUpdate", cwd=folder)
    return folder


@pytest.mark.slow
def test_summary_has_a_row_for_each_ratio_and_a_picture(measured):
    out = run(sys.executable, "-m", "benchmarks.summary", "--picture", "speed.png", cwd=measured)
    rows = [line for line in out.splitlines() if line.startswith("| RankTwoUpdate")]
    assert len(rows) == 6
    assert "| RankTwoUpdate | d = 500, all |" in out
    assert all("×" in row and "ms" in row for row in rows)
    assert (measured / "speed.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.compiled
def test_summary_without_results_says_what_to_do(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.summary", "--results", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no asv results in" in done.stderr
    assert "Traceback" not in done.stderr


def test_ratios_of_pytest_benchmark_groups(tmp_path):
    runs = [
        {"group": "work", "extra_info": {"way": way}, "stats": {"median": median}}
        for way, median in (("fastltl", 0.002), ("plain", 0.03))
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"benchmarks": runs}))
    out = run(sys.executable, "-m", "benchmarks.groups", str(tmp_path / "speed.json"))
    assert "| work | 2 ms | 30 ms | 15.0× |" in out
