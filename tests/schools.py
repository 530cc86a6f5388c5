"""The Schools data, for those who have it."""

import os

import numpy as np
import pytest
from scipy.io import loadmat

import fastltl as ltl

PATH = os.environ.get("FASTLTL_SCHOOLS")

needs_schools = pytest.mark.skipif(
    not PATH, reason="needs schoolData.mat, which the variable FASTLTL_SCHOOLS names"
)


def schools_tasks():
    """139 schools: 26 features, exam scores."""
    data = loadmat(PATH)
    return ltl.TaskSet(
        (np.ascontiguousarray(X.T, dtype=float), y.ravel().astype(float))
        for X, y in zip(data["X"].ravel(), data["Y"].ravel(), strict=True)
    )
