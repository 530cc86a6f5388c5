"""The Schools data, for those who have it."""

import os

import pytest

import fastltl as ltl

PATH = os.environ.get("FASTLTL_SCHOOLS")

needs_schools = pytest.mark.skipif(
    not PATH, reason="needs schoolData.mat, which the variable FASTLTL_SCHOOLS names"
)


def schools_tasks():
    return ltl.datasets.load_schools(PATH)
