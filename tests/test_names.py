"""Names from outside: in the terminal, on the page, in CSV files and as the names of files."""

import csv
import json
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest

import fastltl as ltl
from fastltl import cli
from fastltl._text import printable, spreadsheet_cell
from fastltl.experiments import compare, paper
from fastltl.io.files import whole_file

#: What no output may hold: controls other than line breaks, characters that reorder or break
#: lines, and surrogates.
UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

TASK, TARGET = "shop\u2066", "sales\x07"
FEATURES = ["red\x1b[31m", "turned\u202e321", r"$\frac{1$ <i>", "\u05e9\u05dc\u05d5\u05dd", "+sum"]


@pytest.fixture
def table(tmp_path):
    """Write a table of 8 tasks whose names are hostile."""
    if sys.platform == "win32":
        pytest.skip("Windows has no control characters in names of files")
    random, path = np.random.default_rng(0), tmp_path / "evil\x1b[2J\u202e.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([TASK, TARGET, *FEATURES])
        for task in range(8):
            for _ in range(6):
                x = random.normal(size=len(FEATURES))
                label = f"=HYPERLINK({task})\x1b]0;evil"
                writer.writerow([label, (task + 1) * x.sum() + random.normal(), *x])
    return path


COLUMNS = ["--task", TASK, "--target", TARGET]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x00\x7f\x85\x9b", r"\x00\x7f\x85\x9b"),
        ("\u202e1\u2066\u200f\u061c", r"\u202e1\u2066\u200f\u061c"),
        ("\u2028\u2029\udcff", r"\u2028\u2029\udcff"),
        ("caf\u00e9 \u05e9\u05dc \u4e2d\u00a0\u200d\U0001f600 \\x", None),
    ],
)
def test_printable_escapes_controls_and_keeps_letters(text, shown):
    assert printable(text) == (text if shown is None else shown)


def test_compare_shows_hostile_names_escaped(table, capsys):
    out = table.parent / "out"
    arguments = ["compare", str(table), *COLUMNS, "--out", str(out), "--jobs", "1"]
    assert cli.main([*arguments, "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert not UNPRINTABLE.search(printed)
    assert printed.startswith(r"evil\x1b[2J\u202e.csv: tasks by shop\u2066, target sales\x07, fea")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert not UNPRINTABLE.search(page)
    assert r"turned\u202e321" in page
    assert "$\\frac{1$ &lt;i&gt;" in page
    assert "<bdi>\u05e9\u05dc\u05d5\u05dd</bdi>" in page
    assert not re.search("(?<!<bdi>)\u05e9", page)
    learned = json.loads((out / "results.json").read_text())["learned"]
    names = [one["name"] for one in learned["features"]]
    assert names == [*FEATURES, "intercept"]  # results keep the names as they are


@pytest.mark.parametrize("command", ["compare", "train", "adapt"])
def test_errors_show_hostile_names_escaped(command, table, capsys):
    learner = table.parent / "learner.npz"
    ltl.OnlineLTL().partial_fit(np.ones((1, 5)), [1.0]).save(learner)
    arguments = {
        "compare": [str(table), "--task", TASK, "--target", "gone\x1b"],
        "train": [str(table), "--task", "gone\x1b", "--target", TARGET, "--checkpoint", "c"],
        "adapt": [str(learner), str(table), "--task", TASK, "--target", "gone\x1b"],
    }
    assert cli.main([command, *arguments[command]]) == 2
    err = capsys.readouterr().err
    assert not UNPRINTABLE.search(err)
    assert r"evil\x1b[2J\u202e.csv (shop\u2066, sales\x07, red\x1b[31m, turned\u202e321" in err
    assert err.count("\n") == 1
    with pytest.raises(SystemExit):
        cli.main([command, *arguments[command], "more\x1b\u202e"])
    assert r"unrecognized arguments: more\x1b\u202e (see" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+sum", "'+sum"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-12", "-12"),
        ("+1.5e3", "+1.5e3"),
        (-12, -12),
        (-0.5, -0.5),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_text_like_a_formula_gets_an_apostrophe(value, cell):
    assert spreadsheet_cell(value) == cell


def test_adapt_writes_no_formulas(table, capsys):
    learner, out = table.parent / "learner.npz", table.parent / "out"
    assert cli.main(["train", str(table), *COLUMNS, "--checkpoint", str(learner)]) == 0
    assert cli.main(["adapt", str(learner), str(table), "--out", str(out)]) == 0
    assert not UNPRINTABLE.search(capsys.readouterr().out)
    for name in ("weights", "predictions"):
        with (out / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        if name == "weights":
            assert header[-2:] == ["'+sum", "'+sum_se"]
        assert rows[0][0] == "'=HYPERLINK(0)\x1b]0;evil"
        assert all(isinstance(float(cell), float) for row in rows for cell in row[1:])


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fastltl", *map(os.fsencode, arguments)],
        capture_output=True,
        env=os.environ | environment,
    )


ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="file names need not be UTF-8 on Linux only")
@pytest.mark.parametrize("environment", [{}, ASCII], ids=["UTF-8", "ASCII"])
def test_file_names_that_are_not_utf_8(tmp_path, environment):
    random, folder = np.random.default_rng(0), tmp_path / "tasks"
    rows = "".join(f"{i // 8},{x:.3f},{2 * x:.3f}\n" for i, x in enumerate(random.normal(size=64)))
    path = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    with open(path, "wb") as file:
        file.write(f"shop,caf\u00e9,y\n{rows}".encode())
    folder.mkdir()
    for k in range(6):
        with open(os.fsencode(folder) + b"/\xe9%d.npz" % k, "wb") as file:
            np.savez(file, X=random.normal(size=(4, 2)), y=random.normal(size=4))

    out, columns = os.fsencode(tmp_path) + b"/out\xff", ["--task", "shop", "--target", "y"]
    options = "--out", out, "--jobs", "1", "--repeats", "1"
    done = run("compare", path, *columns, *options, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"caf\\udce9.csv: tasks by shop")
    assert done.stdout.endswith(b"/out\\udcff/report.html\n")
    assert os.path.exists(out + b"/report.html")

    options = ["--target", "y", "--checkpoint"]
    done = run("train", path, "--task", "shop", *options, tmp_path / "c.npz", **environment)
    refused = b"caf\\udce9.csv must have a name in UTF-8 to be opened: rename it.\n"
    assert done.returncode == 0 or done.stderr.endswith(refused)
    checkpoint = os.fsencode(tmp_path) + b"/\xe9.npz"
    done = run("train", folder, *options, checkpoint, **environment)
    assert done.returncode == 0, done.stderr
    done = run("adapt", checkpoint, folder, "--out", out, **environment)
    assert done.returncode == 0, done.stderr
    with open(out + b"/weights.csv", encoding="utf-8") as file:
        assert [line.split(",")[0] for line in file][1:] == [rf"\udce9{k}" for k in range(6)]


@pytest.mark.slow
def test_ascii_terminal_shows_escapes(tmp_path):
    path = tmp_path / "table.csv"
    rows = "".join(f"{i % 8},{i % 5},{i % 3}\n" for i in range(64))
    path.write_text(f"shop,\u540d,y\n{rows}", encoding="utf-8")
    options = ["--task", "shop", "--target", "y", "--out", tmp_path / "out", "--jobs", "1"]
    done = run("compare", path, *options, **ASCII)
    assert done.returncode == 0, done.stderr
    assert rb"features \u540d." in done.stdout
    done = run("compare", path, "--task", "no", "--target", "y", **ASCII)
    assert done.returncode == 2
    assert rb"(shop, \u540d, y), got 'no'" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o666])
def test_private_file_stays_private_while_it_is_written(tmp_path, mode):
    path = tmp_path / "learner.npz"
    path.write_bytes(b"old")
    path.chmod(mode)
    with whole_file(path) as file:
        file.write(b"new")
        (begun,) = (one for one in tmp_path.iterdir() if one != path)
        assert stat.S_IMODE(begun.stat().st_mode) & ~mode == 0
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_new_file_has_the_permissions_of_the_umask(tmp_path):
    previous = os.umask(0o027)
    try:
        with whole_file(tmp_path / "new") as file:
            file.write(b"new")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def block(path, how):
    """Make a path that cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "gone" / "file")


@pytest.fixture
def no_work(monkeypatch):
    """Fail where work begins."""

    def work(*_, **__):
        raise AssertionError("the work has begun")

    for module, name in ((compare, "compare"), (paper, "reproduce")):
        monkeypatch.setattr(module, name, work)
    for module in (compare, paper):
        compiling = "compile_comparison" if module is compare else "compile_kernels"
        monkeypatch.setattr(module, compiling, work)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("how", ["folder", "link"])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("demo", "results.json"),
        ("demo", "report.html"),
        ("compare", "results.json"),
        ("compare", "learning.png"),
        ("reproduce", "report.html"),
        ("reproduce", "bounds.svg"),
    ],
)
def test_output_that_cannot_be_written_is_reported_first(command, name, how, table, capsys):
    path = table.parent / "out" / name
    block(path, how)
    arguments = {"demo": [], "compare": [str(table), *COLUMNS], "reproduce": ["bounds"]}
    assert cli.main([command, *arguments[command], "--out", str(path.parent)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert name in err
    assert ("not a regular file" if how == "folder" else "which cannot be written") in err
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("how", ["folder", "link"])
@pytest.mark.parametrize("name", ["weights.csv", "predictions.csv"])
def test_adapt_reports_an_output_that_cannot_be_written(name, how, table, capsys):
    learner, path = table.parent / "learner.npz", table.parent / "out" / name
    ltl.OnlineLTL().partial_fit(np.ones((1, 5)), [1.0]).save(learner)
    block(path, how)
    arguments = ["adapt", str(learner), str(table), *COLUMNS, "--out", str(path.parent)]
    assert cli.main(arguments) == 2
    assert name in capsys.readouterr().err
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("option", ["--out", "--checkpoint"])
@pytest.mark.parametrize("how", ["link", "below a link"])
def test_broken_links_are_reported_first(option, how, table, capsys):
    path = table.parent / "link"
    path.symlink_to(table.parent / "gone" / "further")
    path = path / "below" if how == "below a link" else path
    command = ["demo"] if option == "--out" else ["train", str(table), *COLUMNS]
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, option, str(path)])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert f"argument {option}: " in err
    assert err.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe with a name")
def test_checkpoint_must_not_be_a_pipe(table, capsys):
    path = table.parent / "pipe"
    os.mkfifo(path)
    with pytest.raises(SystemExit):
        cli.main(["train", str(table), *COLUMNS, "--checkpoint", str(path)])
    assert "must be a file, got the device or pipe" in capsys.readouterr().err


def test_links_to_files_that_can_be_written_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "folder" / "file").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()
