"""The version of a release is the same wherever it stands."""

import re
from pathlib import Path

import fastltl

ROOT = Path(__file__).parent.parent


def found(pattern, name):
    return re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)


def test_changelog_and_citation_have_the_version():
    version, date = found(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", "CHANGELOG.md").groups()
    assert version == fastltl.__version__
    assert found(r"^version: (\S+)$", "CITATION.cff")[1] == fastltl.__version__
    assert found(r'^date-released: "(\S+)"$', "CITATION.cff")[1] == date
