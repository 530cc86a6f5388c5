"""Examples in docstrings and in the README do what they show."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from test_layout import ORDER

import fastltl

README = Path(__file__).parent.parent / "README.md"
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", ORDER)
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"fastltl.{name}")
    assert doctest.testmod(module, optionflags=FLAGS).failed == 0


def test_every_public_object_has_an_example():
    finder = doctest.DocTestFinder(recurse=False)
    for name in fastltl.__all__:
        thing = getattr(fastltl, name)
        if callable(thing):
            assert any(test.examples for test in finder.find(thing, name)), name


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.M | re.S)


def test_examples_in_the_readme(capsys):
    namespace: dict = {}
    shown = 0
    for code in blocks("python"):
        exec(compile(code, str(README), "exec"), namespace)
        expected = re.findall(r"# -> (.*)", code)
        printed = capsys.readouterr().out.splitlines()
        assert printed == expected
        shown += len(expected)
    assert shown > 0


def test_the_readme_has_the_two_commands():
    commands = blocks("sh")
    assert "pip install . && fastltl demo\n" in commands
    assert "pip install '.[test]' && pytest\n" in commands
