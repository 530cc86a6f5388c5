"""The state of a learned prior: how it starts, is used, checked, saved, merged and refined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from fastltl._kernels import bayes as kernels
from fastltl._kernels.prior import (
    KAPPAS,
    N_CANDIDATES,
    N_SUMS,
    RECORD,
    BayesState,
    choose,
    known_squares,
    prior_covariance,
    set_units,
)
from fastltl._objective import Indices
from fastltl._online_run import MOST_TASKS, STATE_TOLERANCE, is_psd
from fastltl._run import Run
from fastltl._threads import call_kernel
from fastltl._validation import Array, memory_errors
from fastltl.adapted import Prior
from fastltl.tasks import TaskSet

#: Parts into which several passes split the tasks, to score each with what the others say.
N_FOLDS = 4

#: Entries of the table that are mean squares or variances.
SQUARES = [0, 2, 3, 5, 7, 8, 9, 11, 12]

#: Largest number in a state, so that products of two do not overflow.
LARGEST_NUMBER = 1e150


def new_state(
    n_features: int, fit_mean: bool, fit_intercept: bool, half_life: float | None
) -> BayesState:
    """Return the state before the first task."""
    d = n_features + fit_intercept
    records = np.zeros(1, RECORD)
    records["intercept"], records["fit_mean"] = fit_intercept, fit_mean
    records["decay"] = 1.0 if half_life is None else 0.5 ** (1.0 / half_life)
    records["kappa"] = records["inflation"] = records["weight_inflation"] = 1.0
    records["prior_inflation"] = 1.0
    with memory_errors(3, d):
        vectors = "origin", "scale", "squares", "variances", "mean", "weighted"
        state = BayesState(
            **{name: np.zeros(d) for name in vectors},
            precision=np.zeros((d, d)),
            covariance=np.zeros((d, d)),
            moments=np.zeros((d + 1, d + 1)),
            sums=np.zeros(d + 1),
            table=np.zeros((N_CANDIDATES, KAPPAS.size, N_SUMS)),
            weights=np.zeros((N_CANDIDATES, KAPPAS.size)),
            records=records,
        )
    state.scale[n_features:] = 1.0  # of the intercept
    return state


class BayesRun(Run):
    """A prior that is learned from one task after another."""

    state: BayesState

    def __init__(self, state: BayesState, settings: tuple[Any, ...]) -> None:
        record = state.records[0]
        super().__init__(state, settings, state.scale.size - int(record["intercept"]))
        self.latest_error = 0.0  #: of the latest task, before it was learned from
        self._forget_computed()

    def _forget_computed(self) -> None:
        """Forget what was computed from a state that changes."""
        self._solved: BayesState | None = None
        self._prior: Prior | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_solved": None, "_prior": None}

    @property
    def n_tasks(self) -> int:
        return int(self.state.records[0]["n_tasks"])

    def learn(self, X: Array, y: Array) -> bool:
        """Learn from one task; False if it is refused, which changes nothing."""
        return self.learn_tasks(X, y, np.array([0, len(y)])) == 1

    def learn_tasks(self, X: Array, y: Array, offsets: Indices) -> int:
        """Learn from the tasks of a block; return how many come before one that is refused."""
        with self.lock:
            self._forget_computed()
            side, learn_tasks = max(X.shape) + 1, kernels.learn_tasks
            n_learned, error = call_kernel(learn_tasks, side, self.state, X, y, offsets)
            if n_learned > 0:
                self.latest_error = error
            return int(n_learned)

    def learn_again(self, X: Array, y: Array, decay: float) -> None:
        """Learn once more from a task; `decay` makes this visit replace the first."""
        self._forget_computed()
        call_kernel(kernels.learn_again, max(X.shape) + 1, self.state, X, y, decay)

    @property
    def has_units(self) -> bool:
        """Whether targets have varied, so that units are known."""
        return bool(self.state.records[0]["y_scale"] > 0.0)

    def set_units(self, tasks: TaskSet) -> None:
        """Set units by the first task whose targets vary, without learning from it."""
        self._forget_computed()
        for X, y in tasks:
            if self.has_units:
                break
            set_units(self.state, X.copy(), y.copy())

    def solve_pending(self) -> BayesState:
        """Return the state with mean and variances solved for; other arrays are the run's."""
        with self.lock:
            state = self.state
            if state.records[0]["unscored"] == 0.0:
                return state
            if self._solved is None:
                names = "variances", "mean", "records"
                state = state._replace(**{name: getattr(state, name).copy() for name in names})
                call_kernel(kernels.solve, self.n_features + 1, state)
                self._solved = state
            return self._solved

    def prior(self) -> Prior:
        """Return the prior in use, whose arrays stay as they are while the run goes on.

        Covariance and noise are scaled by the z-scores of the tasks, so that intervals cover as
        many targets as they say.
        """
        with self.lock:
            if self._prior is None:
                state = self.solve_pending()
                record = state.records[0]
                D: Array = call_kernel(prior_covariance, self.n_features, state)
                self._prior = Prior(
                    state.mean * record["mean_share"],
                    record["weight_inflation"] * D,
                    float(record["inflation"] * record["noise"] / record["kappa"]),
                    float(record["prior_inflation"] / record["weight_inflation"]),
                    state.origin.copy(),
                    state.scale.copy(),
                    float(record["y_origin"]),
                    float(record["y_scale"]),
                    bool(record["intercept"]),
                )
            return self._prior

    def mean_covariance(self) -> Array:
        """Return the covariance of the error of m, in units: s (A + R)^-1; see `effects`."""
        with self.lock:
            state = self.solve_pending()
            record = state.records[0]
            if not (record["fit_mean"] and record["t"] > 0.0):
                return np.zeros_like(state.precision)
            A = np.tril(state.precision) + np.tril(state.precision, -1).T
            noise, decay = float(record["noise"] / record["kappa"]), float(record["decay"])
            scale = record["inflation"] * noise * (1.0 + decay**self.n_tasks) / (1.0 + decay)
            A[np.diag_indices_from(A)] += known_squares(state) * noise / record["y_square"]
        values, vectors = np.linalg.eigh(A)  # dependent features make A singular
        covariance: Array = (
            scale * (vectors / np.maximum(values, kernels.SMALLEST_RIDGE * values[-1])) @ vectors.T
        )
        return covariance

    def checkpoint(self) -> dict[str, Any]:
        with self.lock:
            arrays = {
                name: array.copy()
                for name, array in self.state._asdict().items()
                if name != "records"
            }
            record = {name: self.state.records[0][name].item() for name in RECORD.names or ()}
        return {**arrays, "record": record}

    def restore(self, checkpoint: dict[str, Any]) -> None:
        records = np.zeros(1, RECORD)
        for name in RECORD.names or ():
            value = np.array(checkpoint["record"][name])
            if value.shape != () or not np.can_cast(value.dtype, RECORD[name]):
                raise ValueError(f"{name} has shape {value.shape} and type {value.dtype}")
            records[name] = value
        # Kernels take arrays in C order; a file may have another one.
        arrays = {
            name: np.array(checkpoint[name], order="C")
            for name in BayesState._fields
            if name != "records"
        }
        state = BayesState(**arrays, records=records)
        check_state(state, self.state)
        self.state = state
        self._forget_computed()

    def merge(self, ends: Sequence[Self]) -> None:
        """Merge runs that started as copies of this one and learned from different tasks.

        Counts and the sums A, c, F and b add up. S and the table of errors, which are running
        means, become the means of the runs by what each has added, and move further from the start
        by the factor by which all tasks one after another would have moved them more than one run
        has. Variances and noise are means, weighted by tasks.
        """
        start, starting = self.state, self.state.records[0].copy()
        n_tasks = [end.n_tasks - self.n_tasks for end in ends]
        started = [
            (_in_units_of(end.state, ends), n)
            for end, n in zip(ends, n_tasks, strict=True)
            if end.state.records[0]["t"] > 0.0
        ]
        if len(started) == 1:
            self.state = started[0][0]
        elif started:
            self.state = _merged(start, started)
            call_kernel(kernels.solve_mean, self.n_features + 1, self.state)
            choose(self.state)
        self.state.records["n_tasks"] = starting["n_tasks"] + sum(n_tasks)
        self._forget_computed()


#: Arrays and numbers of a state that are sums over tasks.
SUMS = ("precision", "weighted", "moments", "sums")
COUNTS = ("t", "n_rows", "information", "scored")


def _in_units_of(state: BayesState, ends: Sequence[BayesRun]) -> BayesState:
    """Return a copy of a state in the units of the first run that knows each of them.

    Only sums over tasks are converted. S, v and m hold guesses for a feature whose units were not
    known before; these are as good in one unit as in another.
    """
    scales = np.array([end.state.scale for end in ends])
    wanted = scales[np.argmax(scales > 0, axis=0), np.arange(scales.shape[1])]
    factors = np.ones(len(wanted))
    np.divide(state.scale, wanted, out=factors, where=(wanted > 0) & (state.scale > 0))
    squares = np.append(factors, 1.0) ** 2
    return state._replace(
        origin=state.origin.copy(),
        scale=wanted,
        squares=state.squares * factors**2,
        variances=state.variances.copy(),
        mean=state.mean.copy(),
        precision=state.precision * np.outer(factors, factors),
        weighted=state.weighted * factors,
        covariance=state.covariance.copy(),
        moments=state.moments * np.outer(squares, squares),
        sums=state.sums * squares,
        table=state.table.copy(),
        weights=state.weights.copy(),
        records=state.records.copy(),
    )


def _new_share(before: float, gain: float, power: float) -> float:
    """Return the share of new terms in a running mean whose weights grow like count^(power - 1)."""
    return 1.0 - float((before / (before + gain)) ** power) if gain > 0.0 else 0.0


def _merged(start: BayesState, ends: Sequence[tuple[BayesState, int]]) -> BayesState:
    """Merge the states of several runs; each comes with its number of tasks since `start`."""
    first, merged = start.records[0], ends[0][0]
    decays = [float(first["decay"]) ** n for _, n in ends]
    shares = np.array([n for _, n in ends]) / sum(n for _, n in ends)

    def total(before: Any, after: Sequence[Any]) -> Any:
        """Decay a sum as often as the longest run has, and add what all runs have added."""
        gains = [new - decay * before for new, decay in zip(after, decays, strict=True)]
        return min(decays) * before + sum(gains)

    def moved(name: str, count: str, power: float) -> Array:
        """Move a running mean whose weights grow like the power of the count, less one."""
        before = float(first[count])
        gains = [
            max(0.0, float(state.records[0][count]) - decay * before)
            for (state, _), decay in zip(ends, decays, strict=True)
        ]
        source: Array = getattr(start, name)
        if sum(gains) == 0.0:
            return source.copy()
        parts = np.array(gains) / sum(gains)
        changes = [
            _new_share(decay * before, gain, power)
            for gain, decay in zip(gains, decays, strict=True)
        ]
        factor = _new_share(min(decays) * before, sum(gains), power) / (parts @ changes)
        mean = np.tensordot(parts, [getattr(state, name) for state, _ in ends], axes=1)
        target: Array = source + factor * (mean - source)
        return target

    # The weights of S grow from a power of 0.7 to one of 2; rounding must not make it indefinite.
    values, vectors = np.linalg.eigh(moved("covariance", "information", 1.0))
    table = moved("table", "scored", 3.0)
    table[:, :, SQUARES] = np.maximum(table[:, :, SQUARES], 0.0)
    records = merged.records.copy()
    for name in COUNTS:
        records[name] = total(first[name], [state.records[0][name] for state, _ in ends])
    records["y_square"] = (
        total(
            first["n_rows"] * first["y_square"],
            [state.records[0]["n_rows"] * state.records[0]["y_square"] for state, _ in ends],
        )
        / records["n_rows"]
    )
    for name in ("tau", "intercept_variance", "noise"):
        records[name] = shares @ [state.records[0][name] for state, _ in ends]
    squares = total(
        first["t"] * start.squares, [state.records[0]["t"] * state.squares for state, _ in ends]
    )
    return merged._replace(
        squares=np.maximum(squares / records["t"], 0.0),
        variances=shares @ np.array([state.variances for state, _ in ends]),
        covariance=(vectors * np.maximum(values, 0.0)) @ vectors.T,
        table=table,
        records=records,
        **{
            name: total(getattr(start, name), [getattr(state, name) for state, _ in ends])
            for name in SUMS
        },
    )


@np.errstate(over="ignore", invalid="ignore")  # an overflow fails the comparisons below
def check_state(state: BayesState, start: BayesState) -> None:
    """Check a state that did not come from a kernel, so that no kernel can fail on it.

    Every array has the shape and type it has in `start`, a state of the same settings before the
    first task; every number is finite and of a possible size; matrices are PSD where they must be.
    Raises a ValueError otherwise.
    """
    for name, found, wanted in zip(state._fields, state, start, strict=True):
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"{name} has shape {found.shape} and type {found.dtype}, not {wanted.shape} and "
                f"{wanted.dtype}"
            )
    for name, array in zip(state._fields[:-1], state[:-1], strict=True):
        largest = np.inf if name in ("origin", "scale") else LARGEST_NUMBER  # units may be any
        if not (np.abs(array) < largest).all():
            raise ValueError(f"{name} must be finite, with numbers below {largest:g}")
    for name in ("scale", "squares", "variances", "weights"):
        if (getattr(state, name) < 0).any():
            raise ValueError(f"{name} must not be negative")
    record = state.records[0]
    for name in ("intercept", "fit_mean", "decay"):
        if not np.isclose(record[name], start.records[0][name], rtol=STATE_TOLERANCE, atol=0):
            raise ValueError(f"its {name} is not that of its parameters")
    for name in RECORD.names or ():
        largest = np.inf if name in ("y_origin", "y_scale") else LARGEST_NUMBER
        if not abs(record[name]) < largest:
            raise ValueError(f"{name} must be finite, and below {largest:g}")
        if name != "y_origin" and record[name] < 0:
            raise ValueError(f"{name} must not be negative")
    if not 1 <= record["n_tasks"] <= MOST_TASKS:
        raise ValueError(f"n_tasks must be between 1 and {MOST_TASKS}")
    if not KAPPAS[0] / 2 <= record["kappa"] <= KAPPAS[-1] * 2:
        raise ValueError(f"kappa must be a factor between {KAPPAS[0]} and {KAPPAS[-1]}")
    if not record["mean_share"] <= 1 + STATE_TOLERANCE:
        raise ValueError("mean_share must be between 0 and 1")
    if record["t"] > 0:
        scales = "n_rows", "y_scale", "y_square", "tau", "intercept_variance", "noise"
        for name in (*scales, "inflation", "weight_inflation", "prior_inflation"):
            if not record[name] > 0:
                raise ValueError(f"{name} must be positive")
        if not abs(state.weights.sum() - 1) <= STATE_TOLERANCE:
            raise ValueError("weights must have a sum of one")
    if (state.table[:, :, SQUARES] < 0).any():
        raise ValueError("table must not have negative mean squares")
    if record["intercept"] and state.scale[-1] != 1.0:
        raise ValueError("the scale of the intercept must be one")
    S = state.covariance
    if not np.allclose(S, S.T, rtol=0, atol=STATE_TOLERANCE * np.abs(S).max()):
        raise ValueError("covariance must be symmetric")
    full = np.tril(state.precision) + np.tril(state.precision, -1).T
    for name, matrix in (("covariance", state.covariance), ("precision", full)):
        slack = STATE_TOLERANCE * np.abs(matrix).max()
        if not is_psd(matrix, slack + np.finfo(float).tiny):
            raise ValueError(f"{name} must be PSD")
    if not (np.diag(state.moments) >= 0).all():
        raise ValueError("moments must not be negative on the diagonal")


def refine(run: BayesRun, tasks: TaskSet, n_passes: int) -> None:
    """Go over the tasks of a run again, until there are n_passes.

    Each task replaces what it said before. The run has seen all tasks, so its own leave-one-out
    errors would be too small. Instead, N_FOLDS runs learn in the same way from all tasks but those
    of one fold, and score these; the scores of all tasks choose the prior.
    """
    data = [(X.copy(), y.copy()) for X, y in tasks]  # kernels are compiled for writable arrays
    n_folds = min(N_FOLDS, len(data))
    if n_folds < 2 or run.state.records[0]["t"] == 0.0:
        return
    learners = [(run, list(range(len(data))))]
    for k in range(n_folds):
        other = BayesRun(_start_in_units(run.state), run.settings)
        rest = [i for i in range(len(data)) if i % n_folds != k]
        for i in rest:
            other.learn(*data[i])
        learners.append((other, rest))
    _score(learners, data)
    for _ in range(n_passes - 1):
        for one, indices in learners:
            decay = 1.0 - 1.0 / len(indices)
            for i in indices:
                one.learn_again(*data[i], decay)
        _score(learners, data)


def _start_in_units(state: BayesState) -> BayesState:
    """Return a state before its first task that has the units of another."""
    record = state.records[0]
    start = new_state(
        state.scale.size - int(record["intercept"]),
        bool(record["fit_mean"]),
        bool(record["intercept"]),
        None,
    )
    start.origin[:], start.scale[:] = state.origin, state.scale
    for name in ("decay", "y_origin", "y_scale"):
        start.records[name] = record[name]
    return start


def _score(learners: list[tuple[BayesRun, list[int]]], data: list[tuple[Array, Array]]) -> None:
    """Score each task with the run that has not seen it, and choose the priors of all runs."""
    folds = [one for one, _ in learners[1:]]
    table, n_scored = np.zeros_like(folds[0].state.table), 0
    for i, (X, y) in enumerate(data):
        state = folds[i % len(folds)].state
        if state.records[0]["t"] > 0.0:
            call_kernel(kernels.add_scores, max(X.shape) + 1, state, X, y, table)
            n_scored += 1
    for one, _ in learners:
        if n_scored > 0 and one.state.records[0]["t"] > 0.0:
            one.state.table[:] = table / n_scored
            choose(one.state)
            one._forget_computed()
