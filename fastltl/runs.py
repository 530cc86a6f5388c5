"""Online runs: the arrays of one pass over tasks, and the kernels that update them in place."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from fastltl import _kernels as kernels
from fastltl import bounds
from fastltl._kernels import MEET, MEET_AND_STEP, STEP
from fastltl._objective import ReducedTasks
from fastltl._threads import held_at_fork, in_pieces, steadily
from fastltl._validation import Array, check_positive
from fastltl.metrics import HeldOut

#: Steps after which X D X' is computed anew: each adds two rounding errors or so.
STEPS_FOLLOWED = 256

FIELDS = kernels.RECORD.names or ()

#: Those that parameters determine.
SETTINGS = ("radius", "scale", "adaptive", "entropic")

_runs: WeakSet[Run] = WeakSet()
_registry = threading.Lock()


def _locks() -> list[Any]:
    with _registry:
        runs = list(_runs)
    return [*(run.lock for run in runs), _registry]


held_at_fork(_locks)


class Run(ABC):
    """One pass over tasks by one or more candidates, stacked along the first axis of each array.

    A candidate has a radius and the numerator of its steps. Who holds the lock finds the arrays
    between two tasks, never within one. They all lie in one room, which kernels take.
    """

    #: What meets a task and steps on from it.
    _kernel: ClassVar[Any]
    _is_entropic: ClassVar[bool]

    def __init__(
        self, d: int, radii: Sequence[float], numerators: Sequence[float], adaptive: bool
    ) -> None:
        self.n_features, self.n_candidates = d, len(radii)
        # Of memory that is not made use of there is none yet, as compiled code would not have it.
        self.room: Array = np.zeros(self.n_candidates * kernels.room_for(d))
        settings = np.array([radii, numerators])
        kernels.begin(self.room, d, *settings, adaptive, self._is_entropic)
        self.is_merged = False
        self._guard()

    def _guard(self) -> None:
        self.lock: Any = threading.RLock()
        with _registry:
            _runs.add(self)

    def __getstate__(self) -> dict[str, Any]:
        """A copy of what was learned, without what the latest task told."""
        with self.lock:
            kept = {name: copy(value) for name, value in self.__dict__.items() if name != "lock"}
        kernels.parts_of(kept["room"], self.n_features)[3][:] = 0.0
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._guard()

    @property
    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """The parts of the room, as `kernels.rooms` describes them."""
        parts: tuple[Array, Array, Array, Array] = kernels.parts_of(self.room, self.n_features)
        return parts

    @property
    def state(self) -> Array:
        return self.arrays[0]

    @property
    def rows(self) -> Array:
        return self.arrays[1]

    @property
    def records(self) -> npt.NDArray[np.void]:
        """What is kept beside matrices, a record for each candidate: the first part of the room."""
        return np.ndarray(self.n_candidates, kernels.RECORD, self.room)

    @property
    def n_tasks(self) -> int:
        """T, the number of tasks learned from."""
        return int(self.records[0]["n_tasks"])

    def learn(self, X: Array, y: Array) -> bool:
        """Take one task with every candidate, or refuse it with nothing changed."""
        with self.lock:
            taken: bool = self._kernel(self.room, X, y, MEET_AND_STEP, 0, self.n_candidates)
        return taken

    def learn_in_threads(self, X: Array, y: Array, n_threads: int) -> bool:
        """`learn`, to the bit, with the candidates shared out between threads."""
        n_candidates, task = self.n_candidates, (self.room, X, y)
        cost = 0.1 * X.size * (X.shape[1] + min(X.shape))
        with self.lock:
            if not all(in_pieces(self._kernel, n_candidates, n_threads, cost, *task, MEET)):
                return False
            cost = (1.0 if self.steps_by_rank_two else 50.0) * self.n_features**2
            in_pieces(self._kernel, n_candidates, n_threads, cost, *task, STEP)
        return True

    @property
    def steps_by_rank_two(self) -> bool:
        """Whether most steps are certified: rank two and a multiple of the identity."""
        return not self.records[0]["adaptive"]

    def iterates(self) -> Array:
        """D^(T+1) of each candidate, in an array of its own."""
        iterates = np.empty((self.n_candidates, self.n_features, self.n_features))
        with self.lock:
            for k in range(self.n_candidates):
                iterates[k] = self.iterate(k)
        return iterates

    def iterate(self, k: int) -> Array:
        """D^(T+1) of a candidate, in an array of its own."""
        d = self.n_features
        with self.lock:
            iterate: Array = steadily(kernels.iterate, d, d, self.room, d, k)
        return iterate

    def sums(self) -> Array:
        """D^(1) + ... + D^(T) of each candidate, in an array of its own."""
        sums: Array = np.empty_like(self.state[1])
        d = self.n_features
        with self.lock:
            steadily(kernels.sums_of_iterates, d, d, self.state, self.records, sums, 0, len(sums))
        return sums

    def lower_sums(self) -> Array:
        """`sums`, of which only the lower triangles count: no copy if none is waiting."""
        waits = any(self.records[name].any() for name in ("n_added", "n_subtracted", "rest_total"))
        sums: Array = self.sums() if waits else self.state[1]
        return sums

    def representations(self, averaging: str) -> Array:
        """A representation for each candidate: the mean of D^(1..T) or, "last", D^(T+1)."""
        if averaging == "last":
            return self.iterates()
        with self.lock:
            means: Array = self.sums() / self.n_tasks
        return means

    def merge(self, ends: Sequence[Run]) -> None:
        """Go on from where copies of this run have come to, each with tasks of its own.

        Tasks, losses and squared norms add up, and so do the iterates met, whose mean is the
        representation. The next iterate is the mean of theirs or, entropic, the one for the
        gradients of all of them.
        """
        start, later = self.records.copy(), [end.records for end in ends]
        for name in ("n_tasks", "loss", "step_cost"):
            self.records[name] += sum(end[name] - start[name] for end in later)
        # In units in which squares neither underflow nor overflow.
        norms = np.array([start["norm"], *(end["norm"] for end in later)])
        unit = np.where(norms.max(axis=0) > 0.0, norms.max(axis=0), 1.0)
        first, *others = norms / unit
        squares = sum((other - first) * (other + first) for other in others)
        self.records["norm"] = unit * np.sqrt(first**2 + squares)
        self.records["largest"] = np.max([end["largest"] for end in later], axis=0)
        total = self.sums()
        self.state[1] = total + sum(end.sums() - total for end in ends)
        for name in ("n_added", "n_subtracted", "rest_total"):
            self.records[name] = 0
        self.state[0] = self._merged(ends)
        adaptive = self.records["adaptive"] > 0
        clocks = np.where(adaptive, self.records["norm"], np.sqrt(self.records["n_tasks"]))
        seen = clocks > 0.0
        self.records["step"] = np.where(seen, self.records["scale"] / np.where(seen, clocks, 1), 0)
        d = self.n_features
        steadily(kernels.start_over, d, d, self.state, self.rows, self.records)
        self.is_merged = True

    @abstractmethod
    def _merged(self, ends: Sequence[Run]) -> Array:
        """The matrices to go on with: D or, entropic, S."""

    def checkpoint(self) -> dict[str, Any]:
        """Copies of the arrays: whatever the bits of later steps depend on."""
        with self.lock:
            records = {name: self.records[name].tolist() for name in FIELDS}
            state = self.state.copy()
            for k in np.flatnonzero(self.records["rank"] < 0):
                kernels.mirror(state[0, k])
            return {
                "state": state,
                "rows": self.rows.copy(),
                "records": records,
                "is_merged": self.is_merged,
            }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Stand where a run like this one stood. Arrays that do not fit would crash kernels."""
        for name in ("state", "rows"):
            found, wanted = checkpoint[name], getattr(self, name)
            if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
                raise ValueError(f"{name} has the shape {found.shape}, not {wanted.shape}")
        records = self.records.copy()
        for name in FIELDS:
            records[name] = checkpoint["records"][name]
        if any((records[name] != self.records[name]).any() for name in SETTINGS):
            raise ValueError("its parameters are not those of its run")
        d, waiting = self.n_features, records["n_added"] + records["n_subtracted"]
        ranks = records["rank"] + (records["entropic"] == 0)  # -1 stands for D itself, not for S
        counts = np.stack([ranks, records["n_added"], records["n_subtracted"]])
        if (counts < 0).any() or (waiting > d).any() or (records["rank"] > d).any():
            raise ValueError("its counts are impossible")
        self.state[:], self.rows[:], self.records[:] = (
            checkpoint["state"],
            checkpoint["rows"],
            records,
        )
        self.is_merged = bool(checkpoint["is_merged"])

    @abstractmethod
    def regret_bound(self, k: int) -> float:
        """A bound on the regret of a candidate, from the gradients it met."""


class EuclideanRun(Run):
    """Projected gradient descent from D^(1) = radius / d I."""

    _kernel = staticmethod(kernels.learn_euclidean)
    _is_entropic = False

    def __init__(
        self,
        d: int,
        radii: Sequence[float],
        step: str | float,
        step_scales: Sequence[float] | None,
    ) -> None:
        adaptive = isinstance(step, str) and step == "adaptive"
        if adaptive:
            scales = [1.0] * len(radii) if step_scales is None else step_scales
            numerators = [scale * radius for scale, radius in zip(scales, radii, strict=True)]
        elif step_scales is not None:
            raise ValueError(
                f"step_scale goes with step='adaptive' only, got step={step!r} and "
                f"step_scale={step_scales[0]}."
            )
        elif isinstance(step, str) and step == "theory":
            numerators = [radius / math.sqrt(2.0) for radius in radii]
        else:
            wanted = "'adaptive', 'theory' or a positive finite number"
            numerators = [check_positive(step, "step", wanted)] * len(radii)
        super().__init__(d, radii, numerators, adaptive)

    def _merged(self, ends: Sequence[Run]) -> Array:
        mean: Array = np.mean([end.iterates() for end in ends], axis=0)
        return mean

    def regret_bound(self, k: int) -> float:
        run = self.records[k]
        if run["step"] == 0.0:  # every gradient was zero, so every iterate was optimal
            return 0.0
        return bounds.gradient_descent_regret(
            run["radius"], run["step"], run["step_cost"], run["n_tasks"]
        )


class EntropicRun(Run):
    """The leader regularised by von Neumann entropy, from D^(1) = radius / (d + 1) I."""

    _kernel = staticmethod(kernels.learn_entropic)
    _is_entropic = True

    def __init__(
        self,
        d: int,
        radii: Sequence[float],
        step: str | float,
        step_scales: Sequence[float] | None,
    ) -> None:
        if not isinstance(step, str) or step != "adaptive":
            raise ValueError(f"step must be 'adaptive' with geometry='entropic', got {step!r}.")
        self.step_scales = [2.0] * len(radii) if step_scales is None else list(step_scales)
        unit = float(np.sqrt(np.log(d + 1)))
        super().__init__(d, radii, [scale * unit for scale in self.step_scales], adaptive=True)

    def _merged(self, ends: Sequence[Run]) -> Array:
        S = self.state[0]
        merged: Array = S + sum(end.state[0] - S for end in ends)
        return merged

    def regret_bound(self, k: int) -> float:
        run = self.records[k]
        return bounds.entropic_regret(
            run["radius"],
            run["norm"],
            run["largest"],
            run["n_tasks"],
            self.n_features,
            self.step_scales[k],
        )


RUNS: dict[str, type[EuclideanRun] | type[EntropicRun]] = {
    "euclidean": EuclideanRun,
    "entropic": EntropicRun,
}


class FollowedDuals:
    """X D X' of tasks that stay, for the D of every candidate of a run, as the run goes on.

    Much cheaper than starting over while steps are of rank two, and exact to rounding, which
    starting over now and then keeps from piling up.
    """

    def __init__(self, run: Run, tasks: ReducedTasks, n_threads: int) -> None:
        self.tasks, self.n_threads = tasks, n_threads
        shape = run.n_candidates, int(tasks.corners[-1])
        self.of_iterates, self.of_totals = np.empty(shape), np.zeros(shape)
        self.grams = self._computed(np.eye(run.n_features)[None], np.empty((1, shape[1])))[0]
        self._computed(run.iterates(), self.of_iterates)

    def checkpoint(self) -> dict[str, Array]:
        """Copies of what changes from task to task."""
        return {"of_iterates": self.of_iterates.copy(), "of_totals": self.of_totals.copy()}

    def restore(self, checkpoint: dict[str, Array]) -> None:
        """Stand where the like of this stood."""
        self.of_iterates[:], self.of_totals[:] = (
            checkpoint["of_iterates"],
            checkpoint["of_totals"],
        )
        # Early checkpoints have nothing of use above the diagonal.
        for start, stop in pairwise(self.tasks.corners):
            side = math.isqrt(stop - start)
            for dual in (*self.of_iterates[:, start:stop], *self.of_totals[:, start:stop]):
                kernels.mirror(dual.reshape(side, side))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | self.checkpoint()

    def follow(self, run: Run) -> None:
        """Take the step that the run has taken last."""
        tasks = self.tasks
        in_pieces(
            kernels.follow_duals,
            run.n_candidates,
            self.n_threads,
            float(tasks.corners[-1] + 2 * tasks.R.size),
            *run.arrays,
            tasks.R,
            tasks.starts,
            tasks.corners,
            self.grams,
            self.of_iterates,
            self.of_totals,
        )
        if run.n_tasks % STEPS_FOLLOWED == 0:
            self._computed(run.iterates(), self.of_iterates)
            self._computed(run.sums(), self.of_totals)

    def score(self, run: Run, averaging: str, held_out: HeldOut) -> Array:
        """The scores of `run.representations(averaging)`, whose duals need not be computed."""
        if averaging == "last":
            return held_out.score_followed(1.0, run.iterates(), self.of_iterates)
        return held_out.score_followed(1.0 / run.n_tasks, run.lower_sums(), self.of_totals)

    def _computed(self, Ds: Array, duals: Array) -> Array:
        tasks = self.tasks
        in_pieces(
            kernels.compute_duals,
            len(Ds),
            self.n_threads,
            len(tasks.sizes) * tasks.cost_of_dual(tasks.n_features),
            Ds,
            tasks.R,
            tasks.starts,
            tasks.corners,
            duals,
        )
        return duals
