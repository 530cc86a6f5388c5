import os

import hypothesis
import pytest

# A first call compiles, which no deadline allows for; the same examples every time keep CI steady.
hypothesis.settings.register_profile("fastltl", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("fastltl")

JIT_IS_OFF = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def pytest_collection_modifyitems(items):
    if JIT_IS_OFF:
        skip = pytest.mark.skip(reason="slow when the JIT is off")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
