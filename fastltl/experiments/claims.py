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
#: Iterations that count as hundreds.
HUNDREDS = 100
#: Two bounds are approximately the same if their ratio is below this.
SIMILAR = 1.5
#: The batch method with the same objective as each online method.
SAME_OBJECTIVE = {
    paper.DEFAULT: paper.BATCH,
    paper.PAPER: paper.PAPER_BATCH,
    paper.PAPER_TUNED: paper.PAPER_BATCH,
}


class Claim(NamedTuple):
    """A claim of the paper, whether it holds here, and the figures that show it."""

    claim: str
    holds: str
    figures: str


def check_claims(results: Results) -> list[Claim]:
    """Check the claims about the experiment that the results are from."""
    checks = {
        "grid": _grid,
        "stream": _stream,
        "timing": _timing,
        "schools": _schools,
        "bounds": _bounds,
    }
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
    for online, batch in SAME_OBJECTIVE.items():
        is_close = gains[online]["mean"] >= COMPARABLE * gains[batch]["mean"]
        yield Claim(
            f"Online LTL closes the gap with batch LTL{where}: {online}",
            ("yes" if is_close else "no") if _is_above(gains[batch]) else "does not apply",
            f"gain over ITL: {online} {_format(gains[online], unit)}, {batch} "
            f"{_format(gains[batch], unit)}",
        )
    multitask = gains[paper.MULTITASK]
    best = max((*paper.BATCHES, *paper.ONLINE), key=lambda name: _mean(gains[name]))
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
    for online in (paper.PAPER, paper.DEFAULT):
        rows = [
            select(summary, method=name, measure="seconds")
            for name in (SAME_OBJECTIVE[online], online)
        ]
        ratios = [batch["mean"] / own["mean"] for batch, own in zip(*rows, strict=True)]
        yield Claim(
            f"Online LTL is clearly faster than batch LTL: {online}",
            "yes" if min(ratios) > CLEARLY else "no",
            f"{min(ratios):.0f} to {max(ratios):.0f} times (in the paper 1.9 to 2.6 times)",
        )
    for batch in paper.BATCHES:
        cold, warm = (
            [_mean(row) for row in select(summary, method=f"{batch}, {start} start")]
            for start in ("cold", "warm")
        )
        yield Claim(
            f"A fit takes hundreds of iterations, even with a warm start: {batch}",
            "yes" if min(warm) >= HUNDREDS else "no",
            f"after each task {min(cold):.0f} to {max(cold):.0f} iterations of the solver here "
            f"with a cold start, {min(warm):.0f} to {max(warm):.0f} with a warm one",
        )


def _bounds(summary: Sequence[Row]) -> Iterator[Claim]:
    pairs = zip(
        *(select(summary, method=name) for name in (paper.ONLINE_BOUND, paper.BATCH_BOUND)),
        strict=True,
    )
    ratios = [online["mean"] / batch["mean"] for online, batch in pairs]
    yield Claim(
        "The bounds for online and batch LTL are approximately the same",
        "yes" if max(ratios) < SIMILAR else "no",
        f"that of online LTL is {min(ratios):.2f} to {max(ratios):.2f} times that of batch LTL",
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
