"""Tests of fastltl.experiments.claims."""

import pytest

from fastltl.experiments import claims
from fastltl.experiments.paper import (
    ALONE,
    BATCH,
    DEFAULT,
    EXPERIMENTS,
    MULTITASK,
    NOISES,
    ONLINE,
    PAPER,
    PAPER_BATCH,
    PAPER_TUNED,
    SUBSPACE,
)


def mean(value, half_width=1.0):
    return {"mean": value, "low": value - half_width, "high": value + half_width}


def check(experiment, summary):
    results = {"manifest": {"experiment": experiment}, "summary": summary}
    return {claim.claim: claim for claim in claims.check_claims(results)}


def grid(gains):
    """Return a grid's summary in which every method has these gains, by (n, T)."""
    return [
        {"noise": noise, "method": method, "n_samples": n, "n_tasks": t} | mean(gain, 0.1)
        for noise in NOISES
        for method in ONLINE
        for (n, t), gain in gains.items()
    ]


@pytest.mark.parametrize(
    ("gains", "holds"),
    [
        ({(10, 10): 5, (50, 10): 6}, "yes"),
        ({(10, 10): 0.05, (50, 10): -6}, "no"),
        ({(10, 10): 0.5, (50, 10): 6}, "partly"),
        ({(10, 10): 0.9, (50, 10): 0.2}, "no"),
    ],
)
def test_grid_counts_gains_of_one_percent_or_more(gains, holds):
    found = check("grid", grid(gains))
    for noise in NOISES:
        for method in ONLINE:
            claim = found[f"Online LTL consistently outperforms ITL: {method}, noise {noise}"]
            assert claim.holds == holds
            assert f"{max(gains.values()):+.1f} %" in claim.figures


def test_little_is_learned_from_few_samples():
    name = "With few samples per task little is learned"
    for at_ten, at_fifty, holds in ((1, 10, "yes"), (9, 10, "no"), (-6, -5, "no")):
        found = check("grid", grid({(10, 150): at_ten, (50, 150): at_fifty, (50, 10): 90}))
        claim = next(claim for text, claim in found.items() if text.startswith(name))
        assert claim.holds == holds
        assert "at n = 50" in claim.figures


def curves(gains, **setting):
    return [
        setting
        | {"method": method, "n_tasks": None if method in (ALONE, MULTITASK, SUBSPACE) else 50}
        | mean(20.0)
        | {"gain": mean(gain)}
        for method, gain in gains.items()
    ]


@pytest.mark.parametrize(
    ("batch", "online", "holds"), [(10, 8.5, "yes"), (10, 1, "no"), (-5, 1, "does not apply")]
)
def test_online_closes_the_gap_only_if_batch_has_a_gain(batch, online, holds):
    """Each online method is compared with the batch method of the same objective."""
    gains = dict.fromkeys([ALONE, MULTITASK, *ONLINE, BATCH, PAPER_BATCH], 3)
    for online_method, batch_method in (
        (DEFAULT, BATCH),
        (PAPER, PAPER_BATCH),
        (PAPER_TUNED, PAPER_BATCH),
    ):
        changed = gains | {online_method: online, batch_method: batch}
        found = check("schools", curves(changed))
        name = f"Online LTL closes the gap with batch LTL on the schools: {online_method}"
        assert found[name].holds == holds
        claim = found[f"Online LTL outperforms ITL on the schools: {online_method}"]
        assert claim.holds == ("yes" if online > 1 else "no")


def test_stream_claims_for_each_noise():
    gains = {ALONE: 0, MULTITASK: 2, SUBSPACE: 40, BATCH: 10, PAPER_BATCH: 10}
    gains |= dict.fromkeys(ONLINE, 9)
    others = gains | {SUBSPACE: 4}
    summary = curves(gains, noise=NOISES[1]) + curves(others, noise=NOISES[0])
    found = check("stream", summary)
    assert len(found) == 10
    for noise, favorable in zip(NOISES, ("no", "yes"), strict=True):
        assert found[f"The regime is particularly favorable to LTL, noise {noise}"].holds == (
            favorable
        )
        text = f"MTL on the test tasks outperforms all LTL methods, noise {noise}, after 50 tasks"
        assert found[text].holds == "no"


@pytest.mark.parametrize(("multitask", "holds"), [(12, "yes"), (10.5, "unclear"), (8, "no")])
def test_mtl_is_best_if_its_interval_is_above(multitask, holds):
    gains = {ALONE: 0, MULTITASK: multitask, BATCH: 10, PAPER_BATCH: 7} | dict.fromkeys(ONLINE, 9)
    found = check("schools", curves(gains))
    assert found["MTL on the test tasks outperforms all LTL methods on the schools"].holds == holds


def test_timing_claims():
    def rows(measure, values):
        setting = {"n_tasks": 50, "n_samples": 20, "measure": measure}
        return [setting | {"method": method, "mean": value} for method, value in values.items()]

    seconds = {BATCH: 10.0, PAPER_BATCH: 10.0, DEFAULT: 1.0, PAPER: 8.0}
    iterations = {
        f"{BATCH}, cold start": 20,
        f"{BATCH}, warm start": 5,
        f"{PAPER_BATCH}, cold start": 900,
        f"{PAPER_BATCH}, warm start": 300,
    }
    found = check("timing", rows("seconds", seconds) + rows("iterations", iterations))
    assert found[f"Online LTL is clearly faster than batch LTL: {DEFAULT}"].holds == "yes"
    assert found[f"Online LTL is clearly faster than batch LTL: {PAPER}"].holds == "no"
    name = "A fit takes hundreds of iterations, even with a warm start"
    assert found[f"{name}: {BATCH}"].holds == "no"
    assert "20 to 20 iterations" in found[f"{name}: {BATCH}"].figures
    assert found[f"{name}: {PAPER_BATCH}"].holds == "yes"


def test_bounds_are_similar():
    experiment = EXPERIMENTS["bounds"]
    rows = [cell | experiment.compute(cell) for cell in experiment.cells(0, 1, False)]
    (claim,) = check("bounds", experiment.summarise(rows)).values()
    assert claim.holds == "yes"
    assert claim.figures.startswith("that of online LTL is 1.0")


def test_one_trial_is_judged_by_its_mean():
    row = {"mean": 0.5, "low": None, "high": None}
    assert claims._is_above(row)
    assert claims._format(row, " %") == "+0.5 %"
