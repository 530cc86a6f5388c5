"""Access to the Schools data, which is not part of the repository."""

import os

import pytest

import fastltl as ltl

PATH = os.environ.get("FASTLTL_SCHOOLS")

needs_schools = pytest.mark.skipif(
    not PATH, reason="needs schoolData.mat; set FASTLTL_SCHOOLS to its path"
)


def schools_tasks():
    return ltl.datasets.load_schools(PATH)
