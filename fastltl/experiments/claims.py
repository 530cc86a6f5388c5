"""Check the claims of the paper's experiments section against results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from fastltl.experiments.paper import (
    ALONE,
    BATCH,
    DEFAULT,
    MULTITASK,
    NOISES,
    ONLINE,
    PAPER,
    SUBSPACE,
    Row,
)
from fastltl.experiments.results import Results

#: Shares of the grid's settings that count as (nearly) all and as (nearly) none.
NEARLY_ALL, NEARLY_NONE = 0.9, 0.1
#: Online LTL closes the gap with batch LTL if it reaches this share of its gain.
COMPARABLE = 0.8
#: Gain, in percent, that counts on the grid. ITL and online LTL select among representations of
#: different traces, so even equally good results differ by about this much.
WORTH = 1.0
#: How many times faster counts as clearly faster.
CLEARLY = 1.5
#: Gain over ITL, in percent, that makes a regime favorable.
MUCH = 20


class Claim(NamedTuple):
    """A claim of the paper, whether it holds here, and the figures that show it."""

    claim: str
    holds: str
    figures: str


def check_claims(results: Results) -> list[Claim]:
    """Check the claims about the experiment that the results are from."""
    checks = {"grid": _grid, "stream": _stream, "timing": _timing, "schools": _schools}
    return list(checks[results["manifest"]["experiment"]](results["summary"]))


def _is_above(row: Row) -> bool:
    """Return whether a gain is above zero, by its interval if it has one."""
    return bool((row["mean"] if row["low"] is None else row["low"]) > 0)


def _format(row: Row, unit: str) -> str:
    """Format a mean with its interval, if it has one."""
    if row["low"] is None:
        return f"{row['mean']:+z.1f}{unit}"
    return f"{row['mean']:+z.1f}{unit} ({row['low']:+z.1f} to {row['high']:+z.1f})"


def _mean(row: Row) -> float:
    return float(row["mean"])


def _select(summary: Sequence[Row], **key: Any) -> list[Row]:
    return [row for row in summary if all(row[name] == value for name, value in key.items())]


def _grid(summary: Sequence[Row]) -> Iterator[Claim]:
    def setting(row: Row) -> str:
        return f"{row['mean']:+z.1f} % (T = {row['n_tasks']}, n = {row['n_samples']})"

    for noise, method in product(NOISES, ONLINE):
        rows = _select(summary, noise=noise, method=method)
        gained = sum(row["mean"] >= WORTH for row in rows) / len(rows)
        lost = sum(row["mean"] <= -WORTH for row in rows) / len(rows)
        worst, best = min(rows, key=_mean), max(rows, key=_mean)
        yield Claim(
            f"Online LTL consistently outperforms ITL: {method}, noise {noise}",
            "yes" if gained >= NEARLY_ALL else "no" if gained <= NEARLY_NONE else "partly",
            f"gains of {WORTH:g} % or more in {100 * gained:.0f} % of the settings, losses in "
            f"{100 * lost:.0f} %; from {setting(worst)} to {setting(best)}",
        )
    most = max(row["n_tasks"] for row in summary)
    rows = _select(summary, noise=NOISES[1], method=DEFAULT, n_tasks=most)
    fewest = min(rows, key=lambda row: int(row["n_samples"]))
    best = max(rows, key=_mean)
    yield Claim(
        "With few samples per task little is learned, however many tasks there are: "
        f"{DEFAULT}, noise {NOISES[1]}, T = {most}",
        "yes" if best["mean"] >= WORTH and fewest["mean"] < best["mean"] / 2 else "no",
        f"{_format(fewest, ' %')} at n = {fewest['n_samples']}, {_format(best, ' %')} at "
        f"n = {best['n_samples']}",
    )


def _last(summary: Sequence[Row], **setting: Any) -> dict[str, Row]:
    """Return the gain of each method after the most training tasks."""
    rows = sorted(_select(summary, **setting), key=lambda row: row["n_tasks"] or 0)
    return {row["method"]: row["gain"] for row in rows}


def _against_batch(gains: dict[str, Row], unit: str, where: str) -> Claim:
    close = [name for name in ONLINE if gains[name]["mean"] >= COMPARABLE * gains[BATCH]["mean"]]
    if not _is_above(gains[BATCH]):
        holds = "does not apply"
    else:
        holds = "no" if not close else "yes" if len(close) == len(ONLINE) else "partly"
    return Claim(
        f"Online LTL closes the gap with batch LTL{where}",
        holds,
        f"gain over ITL: {BATCH} {_format(gains[BATCH], unit)}, "
        + ", ".join(f"{name} {_format(gains[name], unit)}" for name in ONLINE),
    )


def _against_multitask(gains: dict[str, Row], unit: str, where: str) -> Claim:
    best = max((BATCH, *ONLINE), key=lambda name: _mean(gains[name]))
    low, high = (gains[MULTITASK][end] for end in ("low", "high"))
    if low is None:
        low = high = gains[MULTITASK]["mean"]
    level = gains[best]["mean"]
    return Claim(
        f"MTL on the test tasks outperforms all LTL methods{where}",
        "yes" if low > level else "no" if high < level else "unclear",
        f"gain over ITL: MTL {_format(gains[MULTITASK], unit)}, the best of the others, {best}, "
        f"{_format(gains[best], unit)}",
    )


def _stream(summary: Sequence[Row]) -> Iterator[Claim]:
    most = max(row["n_tasks"] or 0 for row in summary)
    for noise in NOISES:
        gains = _last(summary, noise=noise)
        where = f", noise {noise}, after {most} tasks"
        yield _against_batch(gains, " %", where)
        yield _against_multitask(gains, " %", where)
        yield Claim(
            f"The regime is particularly favorable to LTL, noise {noise}",
            "yes" if gains[SUBSPACE]["mean"] > MUCH else "no",
            f"with the true subspace known, the gain is {_format(gains[SUBSPACE], ' %')}",
        )


def _timing(summary: Sequence[Row]) -> Iterator[Claim]:
    for method, rule in ((PAPER, "paper's step"), (DEFAULT, "default")):
        pairs = zip(_select(summary, method=BATCH), _select(summary, method=method), strict=True)
        ratios = [batch["mean"] / online["mean"] for batch, online in pairs]
        yield Claim(
            f"Online LTL is clearly faster than batch LTL: {rule}",
            "yes" if min(ratios) > CLEARLY else "no",
            f"{min(ratios):.0f} to {max(ratios):.0f} times (in the paper 1.9 to 2.6 times)",
        )


def _schools(summary: Sequence[Row]) -> Iterator[Claim]:
    gains, unit, where = _last(summary), " points", " on the schools"
    alone = _select(summary, method=ALONE)[0]["mean"]
    for method in ONLINE:
        yield Claim(
            f"Online LTL outperforms ITL{where}: {method}",
            "yes" if _is_above(gains[method]) else "no",
            f"{_format(gains[method], unit)} of explained variance, over {alone:.1f} of ITL",
        )
    yield _against_batch(gains, unit, where)
    yield _against_multitask(gains, unit, where)
