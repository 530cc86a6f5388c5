"""Time two implementations alternately, so that other load slows both."""

import math
import time

import numpy as np
from threadpoolctl import threadpool_limits

#: A run that takes less than these seconds is repeated until it takes as long.
SHORTEST = 1e-3


def seconds(run, n_calls=1):
    """Return the seconds of a call, on average over calls one after another."""
    start = time.perf_counter()
    for _ in range(n_calls):
        run()
    return (time.perf_counter() - start) / n_calls


def median_seconds(fast, plain, repeats):
    """Return the median seconds of each function over interleaved runs."""
    n_calls = math.ceil(SHORTEST / seconds(fast))
    times = [(seconds(fast, n_calls), seconds(plain, n_calls)) for _ in range(repeats)]
    return np.median(times, axis=0)


def relative(A, B):
    """Return |A - B| / |B| in Frobenius norm."""
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))


class _Ratio:
    """Base of the asv suites that time fastltl and something else on the same work.

    A suite defines `runs(data, *params)`, which returns two functions without arguments, `fast`
    and `plain`. BLAS uses one thread, and `setup` compiles the kernels before they are timed.
    """

    version = "2"
    timeout = 1200
    #: asv's number of passes for `time_fastltl`, which is only shown beside the ratio.
    rounds = 1
    #: Names of the two, for the dashboards.
    unit = "fastltl / NumPy"
    #: Number of interleaved runs; their medians are compared.
    repeats = 5

    def setup(self, data, *params):
        self.limit = threadpool_limits(1, user_api="blas")
        self.fast, self.plain = self.runs(data, *params)
        self.fast()

    def teardown(self, data, *params):
        self.limit.restore_original_limits()

    def time_fastltl(self, data, *params):
        self.fast()

    def track_time_ratio(self, data, *params):
        """Return the ratio of times; a rise is a regression."""
        fast, plain = median_seconds(self.fast, self.plain, self.repeats)
        return fast / plain


class _Comparison(_Ratio):
    """Base of the suites whose two functions have the same result, up to `tolerance`."""

    #: Largest relative error of the result.
    tolerance = 1e-10

    def track_relative_error(self, data, *params):
        """Return the relative distance of the result from plain NumPy's."""
        return relative(self.fast(), self.plain())

    track_relative_error.unit = "relative"
