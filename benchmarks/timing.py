"""Time two ways to do the same work alternately, so that a busy machine slows both."""

import time

import numpy as np
from threadpoolctl import threadpool_limits


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleaved_medians(fast, plain, repeats):
    """Median seconds of each."""
    return np.median([(seconds(fast), seconds(plain)) for _ in range(repeats)], axis=0)


def relative(A, B):
    """|A - B| / |B| in Frobenius norm."""
    return float(np.linalg.norm(A - B) / np.linalg.norm(B))


class _Compared:
    """Base of the asv suites that compare fastltl with plain NumPy.

    A suite defines `runs(data, *params)`, which returns two functions without arguments, `fast`
    and `plain`. BLAS uses one thread, and everything is compiled before it is timed.
    """

    version = "2"
    timeout = 1200
    #: Interleaved runs of which the medians are compared.
    repeats = 5
    #: How far the results may differ.
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
        """A fraction, so that a regression shows upward."""
        fast, plain = interleaved_medians(self.fast, self.plain, self.repeats)
        return fast / plain

    def track_relative_error(self, data, *params):
        """Distance of the result from plain NumPy's."""
        return relative(self.fast(), self.plain())

    track_time_over_numpy.version = track_relative_error.version = "2"
    track_time_over_numpy.unit = "fastltl / NumPy"
    track_relative_error.unit = "relative"
