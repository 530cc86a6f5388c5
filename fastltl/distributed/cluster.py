"""Calls on the workers of a Dask cluster, with clear errors when the cluster fails."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastltl._validation import check_positive, reason_of

#: Number of partial sums that one task of the cluster adds up.
FAN_IN = 16

#: Seconds without a scheduler, or without workers, after which a computation fails.
TIMEOUT = 60.0


class Cluster:
    """Call functions on a client's workers; raise ConnectionError if the cluster fails."""

    def __init__(self, client: Any, timeout: float) -> None:
        if not hasattr(client, "submit"):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}.")
        self.client = client
        self.timeout = check_positive(timeout, "timeout")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the future of a call, which other calls accept as an argument."""
        try:
            return self.client.submit(function, *arguments, pure=False)
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._connection_lost() from error

    def result(self, future: Any) -> Any:
        """Wait for a future and return its result or raise its error."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        self._wait_for_any([future])
        try:
            return future.result()
        except (CancelledError, CommClosedError) as error:
            time.sleep(0.5)  # the client notices a lost connection with a delay
            if self.client.status == "running":
                raise ConnectionError(f"the call was cancelled: {reason_of(error)}.") from error
            raise self._connection_lost() from error
        except KilledWorker as error:
            raise ConnectionError(
                "several workers died on the same shard: give them more memory or use more shards."
            ) from error
        except RuntimeError as error:
            if "deserialization" not in str(error):
                raise
            raise ConnectionError(
                f"the scheduler cannot read a shard; is fastltl installed there? {reason_of(error)}"
            ) from error

    def results(self, futures: Iterable[Any]) -> list[Any]:
        """Return the results of futures, in the order given."""
        return [self.result(future) for future in futures]

    def results_as_they_come(self, futures: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of futures, in the order of completion."""
        waiting = list(futures)
        while waiting:
            self._wait_for_any(waiting)
            done = [future for future in waiting if future.done()]
            waiting = [future for future in waiting if future not in done]
            yield from self.results(done)

    def _wait_for_any(self, futures: list[Any]) -> None:
        """Wait until a future is done; raise if the scheduler or all workers are lost."""
        from distributed import TimeoutError, wait

        last_check = time.monotonic()
        while not any(future.done() for future in futures):
            try:
                wait(futures, timeout=1.0, return_when="FIRST_COMPLETED")
            except TimeoutError:
                if time.monotonic() - last_check < self.timeout:
                    continue
                if self.client.status != "running":
                    raise self._connection_lost() from None
                if not self.client.nthreads():
                    raise ConnectionError(
                        f"no workers for {self.timeout:g} s: start some with fastltl installed."
                    ) from None
                last_check = time.monotonic()
            except Exception:  # the future's own error, which `result` raises
                return

    def send(self, value: Any) -> Any:
        """Copy a value to a worker, from which other workers fetch it; return its future."""
        # A call, unlike scattered data, is repeated if its worker is lost.
        return self.submit(_identity, value)

    def ask_all(self, parts: Iterable[Any], function: Callable[..., Any], value: Any) -> list[Any]:
        """Return the futures of function(part, value) for each part; the value is sent once."""
        sent = self.send(value)
        return [self.submit(function, part, sent) for part in parts]

    def total(self, futures: list[Any]) -> Any:
        """Return the sum of the futures' results, tuples of numbers and arrays, in their order."""
        while len(futures) > 1:
            futures = [
                self.submit(_add, *futures[i : i + FAN_IN]) for i in range(0, len(futures), FAN_IN)
            ]
        return self.result(futures[0])

    def _connection_lost(self) -> ConnectionError:
        address = getattr(self.client.scheduler, "address", "unknown")
        return ConnectionError(
            f"client is not connected: no answer from the scheduler at {address}."
        )


def _identity(value: Any) -> Any:
    return value


def _add(*terms: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add tuples elementwise, from the first to the last."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*terms, strict=True))
