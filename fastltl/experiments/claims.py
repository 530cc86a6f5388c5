"""Check the claims of the paper's experiments section against results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from fastltl.experiments import paper
from fastltl.experiments.results import Results, Row, select

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


def _grid(summary: Sequence[Row]) -> Iterator[Claim]:
    def setting(row: Row) -> str:
        return f"{row['mean']:+z.1f} % (T = {row['n_tasks']}, n = {row['n_samples']})"

    for noise, method in product(paper.NOISES, paper.ONLINE):
        rows = select(summary, noise=noise, method=method)
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
    rows = select(summary, noise=paper.NOISES[1], method=paper.DEFAULT, n_tasks=most)
    fewest = min(rows, key=lambda row: int(row["n_samples"]))
    best = max(rows, key=_mean)
    yield Claim(
        "With few samples per task little is learned, however many tasks there are: "
        f"{paper.DEFAULT}, noise {paper.NOISES[1]}, T = {most}",
        "yes" if best["mean"] >= WORTH and fewest["mean"] < best["mean"] / 2 else "no",
        f"{_format(fewest, ' %')} at n = {fewest['n_samples']}, {_format(best, ' %')} at "
        f"n = {best['n_samples']}",
    )


def _last_gains(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the gain of each method after the most training tasks."""
    ordered = sorted(rows, key=lambda row: row["n_tasks"] or 0)
    return {row["method"]: row["gain"] for row in ordered}


def _against_others(gains: dict[str, Row], unit: str, where: str) -> Iterator[Claim]:
    """Check the claims that compare online LTL with batch LTL, and MTL with both."""
    batch, multitask = gains[paper.BATCH], gains[paper.MULTITASK]
    learners = (paper.BATCH, *paper.ONLINE)
    close = [name for name in paper.ONLINE if gains[name]["mean"] >= COMPARABLE * batch["mean"]]
    holds = "yes" if len(close) == len(paper.ONLINE) else "partly" if close else "no"
    yield Claim(
        f"Online LTL closes the gap with batch LTL{where}",
        holds if _is_above(batch) else "does not apply",
        "gain over ITL: " + ", ".join(f"{name} {_format(gains[name], unit)}" for name in learners),
    )
    best = max(learners, key=lambda name: _mean(gains[name]))
    level = gains[best]["mean"]
    ends = ("mean", "mean") if multitask["low"] is None else ("low", "high")
    low, high = (multitask[end] for end in ends)
    yield Claim(
        f"MTL on the test tasks outperforms all LTL methods{where}",
        "yes" if low > level else "no" if high < level else "unclear",
        f"gain over ITL: MTL {_format(multitask, unit)}, the best of the others, {best}, "
        f"{_format(gains[best], unit)}",
    )


def _stream(summary: Sequence[Row]) -> Iterator[Claim]:
    most = max(row["n_tasks"] or 0 for row in summary)
    for noise in paper.NOISES:
        gains = _last_gains(select(summary, noise=noise))
        yield from _against_others(gains, " %", f", noise {noise}, after {most} tasks")
        yield Claim(
            f"The regime is particularly favorable to LTL, noise {noise}",
            "yes" if gains[paper.SUBSPACE]["mean"] > MUCH else "no",
            f"with the true subspace known, the gain is {_format(gains[paper.SUBSPACE], ' %')}",
        )


def _timing(summary: Sequence[Row]) -> Iterator[Claim]:
    for method, rule in ((paper.PAPER, "paper's step"), (paper.DEFAULT, "default")):
        pairs = zip(*(select(summary, method=name) for name in (paper.BATCH, method)), strict=True)
        ratios = [batch["mean"] / online["mean"] for batch, online in pairs]
        yield Claim(
            f"Online LTL is clearly faster than batch LTL: {rule}",
            "yes" if min(ratios) > CLEARLY else "no",
            f"{min(ratios):.0f} to {max(ratios):.0f} times (in the paper 1.9 to 2.6 times)",
        )


def _schools(summary: Sequence[Row]) -> Iterator[Claim]:
    gains, unit, where = _last_gains(summary), " points", " on the schools"
    alone = select(summary, method=paper.ALONE)[0]["mean"]
    for method in paper.ONLINE:
        yield Claim(
            f"Online LTL outperforms ITL{where}: {method}",
            "yes" if _is_above(gains[method]) else "no",
            f"{_format(gains[method], unit)} of explained variance, over {alone:.1f} of ITL",
        )
    yield from _against_others(gains, unit, where)
