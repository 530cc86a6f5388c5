"""What the paper says of its experiments, and whether results bear it out."""

from __future__ import annotations

from collections.abc import Sequence
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

#: A share of the cells of the grid that is as good as all, or as good as none.
NEARLY_ALL, NEARLY_NONE = 0.9, 0.1
#: Online LTL is as good as batch LTL if it has this share of its gain.
COMPARABLE = 0.8
#: A gain in percent that counts on the grid. ITL and online LTL try representations of different
#: traces, so that results that are the same but for the choice of lam differ by about as much.
WORTH = 1.0
#: How many times faster is clearly faster.
CLEARLY = 1.5
#: A gain over ITL, in percent, that makes a regime favorable.
MUCH = 20


class Claim(NamedTuple):
    """A sentence of the paper, whether it holds here, and the figures that say so."""

    claim: str
    holds: str
    figures: str


def check_claims(results: Results) -> list[Claim]:
    """The claims that go with the experiment of some results."""
    checks = {"grid": _grid, "stream": _stream, "timing": _timing, "schools": _schools}
    return checks[results["manifest"]["experiment"]](results["summary"])


def _is_above(row: Row) -> bool:
    """Whether a gain is above zero, by its interval if there is one."""
    return bool((row["mean"] if row["low"] is None else row["low"]) > 0)


def _shown(row: Row, unit: str) -> str:
    """A mean with its interval."""
    if row["low"] is None:
        return f"{row['mean']:+z.1f}{unit}"
    return f"{row['mean']:+z.1f}{unit} ({row['low']:+z.1f} to {row['high']:+z.1f})"


def _where(summary: Sequence[Row], **key: Any) -> list[Row]:
    return [row for row in summary if all(row[name] == value for name, value in key.items())]


def _grid(summary: Sequence[Row]) -> list[Claim]:
    claims = []
    for noise in NOISES:
        for method in ONLINE:
            rows = _where(summary, noise=noise, method=method)
            share = sum(row["mean"] >= WORTH for row in rows) / len(rows)
            lost = sum(row["mean"] <= -WORTH for row in rows) / len(rows)
            holds = "yes" if share >= NEARLY_ALL else "no" if share <= NEARLY_NONE else "partly"
            best = max(rows, key=lambda row: float(row["mean"]))
            worst = min(rows, key=lambda row: float(row["mean"]))
            claims.append(
                Claim(
                    f"Online LTL consistently outperforms ITL: {method}, noise {noise}",
                    holds,
                    f"gains of {WORTH:g} % or more in {100 * share:.0f} % of the settings, losses "
                    f"in {100 * lost:.0f} %; from {worst['mean']:+z.1f} % "
                    f"(T = {worst['n_tasks']}, n = {worst['n_samples']}) to {best['mean']:+z.1f} % "
                    f"(T = {best['n_tasks']}, n = {best['n_samples']})",
                )
            )
    most = max(row["n_tasks"] for row in summary)
    at_most = _where(summary, noise=NOISES[1], method=DEFAULT, n_tasks=most)
    fewest = min(at_most, key=lambda row: int(row["n_samples"]))
    best = max(at_most, key=lambda row: float(row["mean"]))
    claims.append(
        Claim(
            f"With few samples a task little is learned, however many tasks: {DEFAULT}, noise "
            f"{NOISES[1]}, T = {most}",
            "yes" if best["mean"] >= WORTH and fewest["mean"] < best["mean"] / 2 else "no",
            f"{_shown(fewest, ' %')} at n = {fewest['n_samples']}, {_shown(best, ' %')} at "
            f"n = {best['n_samples']}",
        )
    )
    return claims


def _last(summary: Sequence[Row], **setting: Any) -> dict[str, Row]:
    """For each method, its gain after the most training tasks."""
    rows = sorted(_where(summary, **setting), key=lambda row: row["n_tasks"] or 0)
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
        f"gain over ITL: {BATCH} {_shown(gains[BATCH], unit)}, "
        + ", ".join(f"{name} {_shown(gains[name], unit)}" for name in ONLINE),
    )


def _against_multitask(gains: dict[str, Row], unit: str, where: str) -> Claim:
    best = max((BATCH, *ONLINE), key=lambda name: float(gains[name]["mean"]))
    low, high = (gains[MULTITASK][end] for end in ("low", "high"))
    if low is None:
        low = high = gains[MULTITASK]["mean"]
    level = gains[best]["mean"]
    return Claim(
        f"MTL on the test tasks outperforms all LTL methods{where}",
        "yes" if low > level else "no" if high < level else "unclear",
        f"gain over ITL: MTL {_shown(gains[MULTITASK], unit)}, the best of the others, {best}, "
        f"{_shown(gains[best], unit)}",
    )


def _stream(summary: Sequence[Row]) -> list[Claim]:
    claims = []
    for noise in NOISES:
        gains = _last(summary, noise=noise)
        most = max(row["n_tasks"] or 0 for row in summary)
        where = f", noise {noise}, after {most} tasks"
        claims += [_against_batch(gains, " %", where), _against_multitask(gains, " %", where)]
        claims.append(
            Claim(
                f"The regime is particularly favorable to LTL, noise {noise}",
                "yes" if gains[SUBSPACE]["mean"] > MUCH else "no",
                f"with the true subspace known, the gain is {_shown(gains[SUBSPACE], ' %')}",
            )
        )
    return claims


def _timing(summary: Sequence[Row]) -> list[Claim]:
    claims = []
    for method, rule in ((PAPER, "paper's step"), (DEFAULT, "default")):
        pairs = zip(_where(summary, method=BATCH), _where(summary, method=method), strict=True)
        ratios = [batch["mean"] / online["mean"] for batch, online in pairs]
        claims.append(
            Claim(
                f"Online LTL is clearly faster than batch LTL: {rule}",
                "yes" if min(ratios) > CLEARLY else "no",
                f"{min(ratios):.0f} to {max(ratios):.0f} times (in the paper 1.9 to 2.6 times)",
            )
        )
    return claims


def _schools(summary: Sequence[Row]) -> list[Claim]:
    gains = _last(summary)
    alone = _where(summary, method=ALONE)[0]["mean"]
    unit = " points"
    return [
        Claim(
            f"Online LTL outperforms ITL on the schools: {method}",
            "yes" if _is_above(gains[method]) else "no",
            f"{_shown(gains[method], unit)} of explained variance, over {alone:.1f} of ITL",
        )
        for method in ONLINE
    ] + [
        _against_batch(gains, unit, " on the schools"),
        _against_multitask(gains, unit, " on the schools"),
    ]
