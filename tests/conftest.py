import os

import hypothesis
import numpy as np  # noqa: F401  (loads the BLAS that is to be held)
import pytest
from threadpoolctl import threadpool_limits

# A first call compiles, which no deadline allows for; the same examples every time keep CI steady.
hypothesis.settings.register_profile("fastltl", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("fastltl")

JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


@pytest.fixture(scope="session", autouse=True)
def _numpy_at_one_thread():
    """Small matrices gain nothing from BLAS threads, and lose a lot to them on a busy machine."""
    with threadpool_limits(1, user_api="blas"):
        yield


def pytest_collection_modifyitems(items):
    if JIT_IS_OFF:
        skip = pytest.mark.skip(reason="slow when the JIT is off")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
