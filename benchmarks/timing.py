"""Time two implementations alternately, so that other load slows both."""

import time

import numpy as np
from threadpoolctl import threadpool_limits


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_seconds(fast, plain, repeats):
    """Return the median seconds of each function over interleaved runs."""
    return np.median([(seconds(fast), seconds(plain)) for _ in range(repeats)], axis=0)


def relative(A, B):
    """Return |A - B| / |B| in Frobenius norm."""
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))


class _Comparison:
    """Base of the asv suites that compare fastltl with plain NumPy.

    A suite defines `runs(data, *params)`, which returns two functions without arguments, `fast`
    and `plain`. BLAS uses one thread, and `setup` compiles the kernels before they are timed.
    """

    version = "2"
    timeout = 1200
    #: Number of interleaved runs; their medians are compared.
    repeats = 5
    #: Largest relative error of the result.
    tolerance = 1e-10

    def setup(self, data, *params):
        self.limit = threadpool_limits(1, user_api="blas")
        self.fast, self.plain = self.runs(data, *params)
        self.fast()

    def teardown(self, data, *params):
        self.limit.restore_original_limits()

    def time_fastltl(self, data, *params):
        self.fast()

    def track_time_over_numpy(self, data, *params):
        """Return the ratio of times; a rise is a regression."""
        fast, plain = median_seconds(self.fast, self.plain, self.repeats)
        return fast / plain

    def track_relative_error(self, data, *params):
        """Return the relative distance of the result from plain NumPy's."""
        return relative(self.fast(), self.plain())

    track_time_over_numpy.version = track_relative_error.version = "2"
    track_time_over_numpy.unit = "fastltl / NumPy"
    track_relative_error.unit = "relative"
