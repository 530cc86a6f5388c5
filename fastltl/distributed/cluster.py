"""Calls on the workers of a Dask cluster, and what becomes of them if it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastltl._validation import check_positive, reason_of

#: How many matrices one worker adds up before the sum goes on to another.
FAN_IN = 16

#: Seconds without a scheduler after which a computation is given up.
TIMEOUT = 60.0


class Cluster:
    """Calls on the workers of a Dask client, whose results come or else a clear error."""

    def __init__(self, client: Any, timeout: float) -> None:
        if not hasattr(client, "submit"):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}.")
        self.client = client
        self.timeout = check_positive(timeout, "timeout")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The future of a call, which other calls can take for an argument."""
        try:
            return self.client.submit(function, *arguments, pure=False)
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._is_gone() from error

    def result(self, future: Any) -> Any:
        """The result of a future, or its error; a ConnectionError if the cluster fails."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        self._wait_for_one_of([future])
        try:
            return future.result()
        except (CancelledError, CommClosedError) as error:
            time.sleep(0.5)  # until the client, too, knows
            if self.client.status == "running":
                raise ConnectionError(f"the cluster gave up: {reason_of(error)}.") from error
            raise self._is_gone() from error
        except KilledWorker as error:
            raise ConnectionError(
                "workers must have the memory for their shards, but several died while they "
                "computed one."
            ) from error
        except RuntimeError as error:
            if "deserialization" not in str(error):
                raise
            raise ConnectionError(
                "fastltl, and what shards are made of, must be installed where the scheduler runs, "
                f"which cannot read them ({reason_of(error)})."
            ) from error

    def results(self, futures: Iterable[Any]) -> list[Any]:
        """The results of futures, in their order."""
        return [self.result(future) for future in futures]

    def results_as_they_come(self, futures: Iterable[Any]) -> Iterator[Any]:
        """The results of futures, the earliest first."""
        waiting = list(futures)
        while waiting:
            self._wait_for_one_of(waiting)
            done = [future for future in waiting if future.done()]
            waiting = [future for future in waiting if future not in done]
            yield from self.results(done)

    def _wait_for_one_of(self, futures: list[Any]) -> None:
        """Wait until a future is done, as long as there is somebody to compute it."""
        from distributed import TimeoutError, wait

        seen = time.monotonic()
        while not any(future.done() for future in futures):
            try:
                wait(futures, timeout=1.0, return_when="FIRST_COMPLETED")
            except TimeoutError:
                if time.monotonic() - seen < self.timeout:
                    continue
                if self.client.status != "running":
                    raise self._is_gone() from None
                if not self.client.nthreads():
                    raise ConnectionError(
                        f"client must have workers that stay, got none for {self.timeout:g} s; is "
                        "fastltl installed where they run?"
                    ) from None
                seen = time.monotonic()
            except Exception:  # that of the future, which `result` raises
                return

    def send(self, value: Any) -> Any:
        """The future of a value on a worker, from which others fetch it."""
        return self.submit(_same, value)

    def ask_all(self, parts: Iterable[Any], function: Callable[..., Any], value: Any) -> list[Any]:
        """The futures of function(part, value) for each part; the value is sent once."""
        sent = self.send(value)
        return [self.submit(function, part, sent) for part in parts]

    def total(self, futures: list[Any]) -> Any:
        """The sum of tuples of numbers and arrays, in the order of the futures."""
        while len(futures) > 1:
            futures = [
                self.submit(_added, *futures[i : i + FAN_IN])
                for i in range(0, len(futures), FAN_IN)
            ]
        return self.result(futures[0])

    def _is_gone(self) -> ConnectionError:
        address = getattr(self.client.scheduler, "address", "unknown")
        return ConnectionError(
            f"client must be connected, but its scheduler at {address} does not answer."
        )


def _same(value: Any) -> Any:
    """A call, not data: so the scheduler can make it anew if a worker is lost."""
    return value


def _added(*terms: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sums of what has the same place in each of the terms, from the first on."""
    return tuple(sum(parts[1:], start=parts[0]) for parts in zip(*terms, strict=True))
