"""Time fastltl, plain NumPy and GPBoost on cases of the asv benchmarks.

The tests check results, not seconds. ``pytest tests/speed -m slow -n 0 --benchmark-json=FILE`` and
then ``python -m benchmarks.groups FILE`` print the ratios.
"""

import pytest

from benchmarks.kernels import Kernels, RankTwoUpdate
from benchmarks.learners import Batch, BatchError, Independent, Multitask, Path, Wide
from benchmarks.online import RULES, Online
from benchmarks.peers import RandomSlopes
from benchmarks.prior import Prior
from benchmarks.streams import Stream

CASES = [
    *[(Prior, (size,)) for size in ((50, 20), (10, 20))],
    (RandomSlopes, (100,)),
    (Stream, ("parquet",)),
    (Stream, ("csv",)),
    (Kernels, ("task_gradient, regularized", (50, 20))),
    (Kernels, ("task_gradient, error", (50, 20))),
    (Kernels, ("project", (50, 20))),
    (RankTwoUpdate, (50, "all")),
    *[(Online, (rule, (50, 20), 100)) for rule in RULES],
    (Online, ("euclidean adaptive", (200, 50), 50)),
    (Batch, (1e-2,)),
    (BatchError, (1e-2,)),
    (Multitask, (1e-2,)),
    (Wide, (1e-2,)),
    (Path, ("paper",)),
    (Independent, (10,)),
]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fastltl", "plain"])
@pytest.mark.parametrize(
    ("suite", "params"), CASES, ids=[f"{suite.__name__}-{params}" for suite, params in CASES]
)
def test_speed(benchmark, suite, params, way):
    work, data = suite(), suite().setup_cache()
    benchmark.group = f"{suite.__name__}: {', '.join(map(str, params))}"
    benchmark.extra_info |= {"way": way, "against": work.unit.split(" / ")[1]}
    try:
        work.setup(data, *params)
        run = work.fast if way == "fastltl" else work.plain
        benchmark.pedantic(run, rounds=5, warmup_rounds=1)
        assert way == "plain" or work.track_relative_error(data, *params) < work.tolerance
    except NotImplementedError as error:
        pytest.skip(str(error))
    finally:
        work.teardown(data, *params)
