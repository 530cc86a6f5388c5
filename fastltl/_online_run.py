"""The state of an online run: how it starts, is checked, saved, restored and merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from fastltl._kernels import online as kernels
from fastltl._kernels.online import RECORD, OnlineState
from fastltl._run import Run
from fastltl._threads import call_kernel
from fastltl._validation import Array, check_computed, memory_errors

#: Relative difference up to which settings of a checkpoint count as equal: lam may have been
#: computed on another CPU.
SETTINGS_TOLERANCE = 1e-9

#: How far kept eigenvectors may be from orthonormal, matrices from symmetric, and numbers above
#: their bounds.
STATE_TOLERANCE = 1e-6

#: Tasks that a run may have seen: floats count exactly up to here.
MOST_TASKS = 2**53


def new_state(
    d: int,
    radii: Sequence[float],
    scales: Sequence[float],
    adaptive: bool,
    entropic: bool,
    regularized: bool,
) -> OnlineState:
    """Return the state before the first task: D = radius / d I, or entropic radius / (d + 1) I."""
    k = len(radii)
    records = np.zeros(k, RECORD)
    records["radius"], records["scale"] = radii, scales
    records["adaptive"], records["entropic"] = adaptive, entropic
    records["regularized"] = regularized
    first = records["radius"] / (d + entropic)
    records["rest"] = first
    weights = np.repeat(first[:, None], d, axis=1)
    values = np.zeros((k, d)) if entropic else weights.copy()
    if not entropic:
        records["floor"] = first
    remedy = f"use fewer features{', or fewer values of lam' if k > 1 else ''}"
    with memory_errors(3 * k, d, remedy):
        matrices, totals, vectors = (np.zeros((k, d, d)) for _ in range(3))
    return OnlineState(matrices, totals, vectors, values, weights, records)


@np.errstate(over="ignore", invalid="ignore")  # an overflow fails the comparisons below
def check_state(state: OnlineState, start: OnlineState) -> None:
    """Check a state that did not come from a kernel, so that no kernel can fail on it.

    Every array has the shape and type it has in `start`, a state of the same settings before the
    first task; every number is finite, every count fits its array, and matrices are symmetric,
    orthonormal or PSD as their role requires. Raises a ValueError otherwise.
    """
    for name, found, wanted in zip(state._fields, state, start, strict=True):
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{name} has shape {found.shape} and type {found.dtype}, not {wanted.shape} and "
                f"{wanted.dtype}"
            )
    records, d = state.records, state.values.shape[1]
    for name in RECORD.names or ():
        if not np.isfinite(records[name]).all():
            raise ValueError(f"{name} must be finite")
        if name != "rank" and (records[name] < 0).any():
            raise ValueError(f"{name} must not be negative")
    for name, found in zip(state._fields[:-1], state[:-1], strict=True):
        if not np.isfinite(found).all():
            raise ValueError(f"{name} must be finite")
    for name in ("radius", "scale", "adaptive", "entropic", "regularized"):
        if not np.allclose(records[name], start.records[name], rtol=SETTINGS_TOLERANCE, atol=0):
            raise ValueError(f"its {name} is not that of its parameters")
    n_tasks = records["n_tasks"]
    if not (1 <= n_tasks[0] <= MOST_TASKS and (n_tasks == n_tasks[0]).all()):
        raise ValueError(
            f"n_tasks must be between 1 and {MOST_TASKS}, and the same for all candidates"
        )
    clocks = np.where(records["adaptive"] > 0, records["norm"], np.sqrt(n_tasks))
    steps = np.divide(records["scale"], clocks, out=np.zeros(len(clocks)), where=clocks > 0)
    if not np.allclose(records["step"], steps, rtol=STATE_TOLERANCE, atol=0):
        raise ValueError("step must be its scale over the norm of the gradients or sqrt(n_tasks)")
    if not (records["largest"] <= (1 + STATE_TOLERANCE) * records["norm"]).all():
        raise ValueError("largest must be the norm of a gradient, at most that of all of them")
    lowest = np.where(records["entropic"] > 0, 0, -1)  # -1 stands for a D that is kept
    if (records["rank"] < lowest).any() or (records["rank"] > d).any():
        raise ValueError(f"rank must be a number of eigenvectors up to {d}")
    for k in range(len(records)):
        _check_candidate(state, k)


def _check_candidate(state: OnlineState, k: int) -> None:
    """Check that the arrays of the k-th candidate agree with each other, to a tolerance."""
    matrix, total, vectors, values, weights, record = (array[k] for array in state)
    rank, radius = record["rank"], record["radius"]
    rest, floor = record["rest"], record["floor"]
    slack = STATE_TOLERANCE * radius
    if not np.allclose(matrix, matrix.T, rtol=0, atol=STATE_TOLERANCE * np.abs(matrix).max()):
        raise ValueError("matrices must be symmetric")
    known = vectors[: max(0, rank)]
    if not np.allclose(known @ known.T, np.eye(len(known)), rtol=0, atol=STATE_TOLERANCE):
        raise ValueError("vectors must be orthonormal")
    if not np.abs(total).max() <= record["n_tasks"] * (radius + slack):
        raise ValueError("totals must be a sum of iterates, of trace up to the radius")
    if rank < 0:
        if not (np.trace(matrix) <= radius + slack and is_psd(matrix, slack - floor)):
            raise ValueError("matrices must be PSD, with a trace up to the radius")
        return
    if not (weights.min() >= 0 and max(weights.sum(), rest) <= radius + slack):
        raise ValueError("weights and rest must not be negative, with a sum up to the radius")
    if not np.allclose(weights[rank:], rest, rtol=0, atol=slack):
        raise ValueError("weights must equal rest where no eigenvector is known")
    if not floor <= weights.min() + slack:
        raise ValueError("floor must be a lower bound on weights")
    if record["entropic"]:
        # The sum of T gradients has at most the norm sum ||G_s|| <= sqrt(T sum ||G_s||^2).
        largest = (1 + STATE_TOLERANCE) * np.sqrt(record["n_tasks"]) * record["norm"]
        if not max(np.abs(matrix).max(), np.abs(values).max()) <= largest:
            raise ValueError("matrices and values must not exceed the sum of the gradients")
    elif not np.allclose(values, weights, rtol=0, atol=slack):
        raise ValueError("values must equal weights")


def is_psd(A: Array, shift: float) -> bool:
    """Return whether A + shift I is positive definite."""
    try:
        np.linalg.cholesky(A + shift * np.eye(len(A)))
    except np.linalg.LinAlgError:
        return False
    return True


class OnlineRun(Run):
    """A run of the online learners: one or more candidates that learn from the same tasks."""

    state: OnlineState

    def __init__(self, state: OnlineState, settings: tuple[Any, ...]) -> None:
        self.n_candidates, n_features = state.values.shape
        super().__init__(state, settings, n_features)
        self.is_entropic = bool(state.records[0]["entropic"])
        self.scores: tuple[Any, Array] | None = None  #: of candidates, and when they were computed
        self.is_merged = False  #: whether parts of the tasks were learned side by side

    @property
    def n_tasks(self) -> int:
        return int(self.state.records[0]["n_tasks"])

    def representations(self, averaging: str) -> Array:
        """D of each candidate: the mean of D^(1..T) or, "last", D^(T+1); a copy."""
        kernel = kernels.iterates if averaging == "last" else kernels.mean_iterates
        with self.lock:
            Ds: Array = call_kernel(kernel, self.n_features, self.state)
        return Ds

    def checkpoint(self) -> dict[str, Any]:
        with self.lock:
            arrays = {
                name: array.copy()
                for name, array in self.state._asdict().items()
                if name != "records"
            }
            records = {name: self.state.records[name].tolist() for name in RECORD.names or ()}
        totals = arrays["totals"]  # kernels keep lower triangles only
        arrays["totals"] = np.tril(totals) + np.tril(totals, -1).swapaxes(1, 2)
        return {**arrays, "records": records, "is_merged": self.is_merged}

    def restore(self, checkpoint: dict[str, Any]) -> None:
        if "state" in checkpoint:
            checkpoint = _from_format_1(checkpoint)
        records = np.zeros(self.n_candidates, RECORD)
        for name in RECORD.names or ():
            column = np.array(checkpoint["records"][name])
            if column.shape != records.shape or not np.can_cast(column.dtype, RECORD[name]):
                raise ValueError(f"{name} has shape {column.shape} and type {column.dtype}")
            records[name] = column
        arrays = {name: checkpoint[name] for name in OnlineState._fields if name != "records"}
        # Kernels take arrays in C order; a file may have another one.
        state = OnlineState(
            **{name: np.array(array, order="C") for name, array in arrays.items()}, records=records
        )
        check_state(state, self.state)
        self.state, self.is_merged = state, bool(checkpoint["is_merged"])

    def merge(self, ends: Sequence[Self]) -> None:
        """Merge runs that started as copies of this one and learned from different tasks.

        Tasks, losses, squared norms and sums of iterates add up. The next iterate is the mean of
        theirs or, entropic, the one for the gradients of all of them.
        """
        records, later = self.state.records, [end.state.records for end in ends]
        start = records.copy()
        for name in ("n_tasks", "loss", "step_cost"):
            records[name] += sum(end[name] - start[name] for end in later)
        # In units in which squares neither underflow nor overflow.
        norms = np.array([start["norm"], *(end["norm"] for end in later)])
        unit = np.where(norms.max(axis=0) > 0.0, norms.max(axis=0), 1.0)
        first, *others = norms / unit
        squares = sum((other - first) * (other + first) for other in others)
        records["norm"] = unit * np.sqrt(first**2 + squares)
        records["largest"] = np.max([end["largest"] for end in later], axis=0)
        clocks = np.where(records["adaptive"] > 0, records["norm"], np.sqrt(records["n_tasks"]))
        moved = clocks > 0.0
        records["step"] = np.where(moved, records["scale"] / np.where(moved, clocks, 1.0), 0.0)
        matrices, totals = self.state.matrices, self.state.totals
        totals += sum(end.state.totals - totals for end in ends)
        if self.is_entropic:
            matrices += sum(end.state.matrices - matrices for end in ends)
        else:
            matrices[:] = np.mean([end.representations("last") for end in ends], axis=0)
        check_computed(matrices)
        call_kernel(kernels.restart, self.n_features, self.state)
        self.is_merged = True


@np.errstate(over="ignore", invalid="ignore")  # check_state refuses what is not finite
def _from_format_1(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Convert the run of a checkpoint of format 1.

    It kept all matrices in one array, and some terms of the sum of the iterates in a buffer:
    n_added rows from its top to add, n_subtracted rows from its bottom to subtract, and a multiple
    of the identity.
    """
    (matrices, totals, vectors, buffers), (values, weights) = (
        checkpoint["state"],
        checkpoint["rows"],
    )
    records, d = checkpoint["records"], values.shape[1]
    totals = np.tril(totals) + np.tril(totals, -1).swapaxes(1, 2)
    for k, buffer in enumerate(buffers):
        n_added, n_subtracted = records["n_added"][k], records["n_subtracted"][k]
        if not (0 <= n_added <= d and 0 <= n_subtracted <= d and n_added + n_subtracted <= d):
            raise ValueError(
                f"its buffer has {d} rows, of which {n_added} cannot be added and {n_subtracted} "
                "subtracted"
            )
        added, subtracted = buffer[:n_added], buffer[d - n_subtracted :]
        totals[k] += added.T @ added - subtracted.T @ subtracted
        totals[k] += float(records["rest_total"][k]) * np.eye(d)
    return {
        "matrices": matrices,
        "totals": totals,
        "vectors": vectors,
        "values": values,
        "weights": weights,
        "records": records,
        "is_merged": checkpoint["is_merged"],
    }
