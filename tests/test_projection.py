"""Test the projection onto {D PSD, tr D <= radius}: its defining properties and hard cases."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from naive import random_psd, relative

import fastltl as ltl
from fastltl import reference
from fastltl._kernels import spectral


def symmetric(rng, d, scale):
    A = rng.normal(size=(d, d)) * scale
    return A + A.T


@st.composite
def matrix_and_radius(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    d = draw(st.integers(1, 12))
    scale, radius = 10.0 ** draw(st.integers(-6, 6)), 10.0 ** draw(st.integers(-6, 6))
    kind = draw(st.sampled_from(["any", "psd", "negative", "ties", "low rank", "feasible"]))
    Q = symmetric(rng, d, scale)
    if kind == "psd":
        Q = random_psd(rng, d, trace=scale)
    elif kind == "negative":
        Q = -random_psd(rng, d, trace=scale)
    elif kind == "ties":
        V = np.linalg.qr(rng.normal(size=(d, d)))[0]
        Q = (V * (scale * rng.integers(-1, 2, size=d))) @ V.T
        Q = (Q + Q.T) / 2
    elif kind == "low rank":
        Q = random_psd(rng, d, rank=1, trace=scale) - random_psd(rng, d, rank=1, trace=scale)
    elif kind == "feasible":
        Q = random_psd(rng, d, trace=radius * rng.uniform())
    return Q, radius, rng


@given(matrix_and_radius())
def test_projection_is_feasible_and_idempotent(case):
    Q, radius, _ = case
    D = spectral.project(Q, radius)
    size = max(np.linalg.norm(Q), radius)
    assert np.array_equal(D, D.T)
    assert np.trace(D) <= radius + 1e-14 * len(Q) * size
    assert np.linalg.eigvalsh(D)[0] >= -1e-14 * len(Q) * size
    assert np.linalg.norm(spectral.project(D, radius) - D) <= 1e-13 * len(Q) * size


@given(matrix_and_radius())
def test_projection_agrees_with_reference(case):
    Q, radius, _ = case
    size = max(np.linalg.norm(Q), radius)
    difference = spectral.project(Q, radius) - reference.project(Q, radius)
    assert np.linalg.norm(difference) <= 1e-13 * len(Q) * size


@given(matrix_and_radius())
def test_projection_satisfies_the_variational_inequality(case):
    Q, radius, rng = case
    D = spectral.project(Q, radius)
    size = max(np.linalg.norm(Q), radius)
    for _ in range(5):
        E = random_psd(rng, len(Q), rank=1, trace=radius * rng.uniform())
        assert np.sum((Q - D) * (E - D)) <= 1e-12 * len(Q) * size**2


@given(matrix_and_radius())
def test_projection_is_non_expansive(case):
    Q, radius, rng = case
    P = Q + symmetric(rng, len(Q), np.linalg.norm(Q) * rng.uniform())
    size = max(np.linalg.norm(Q), np.linalg.norm(P), radius)
    distance = np.linalg.norm(spectral.project(Q, radius) - spectral.project(P, radius))
    assert distance <= np.linalg.norm(Q - P) + 1e-13 * len(Q) * size


@pytest.mark.parametrize(
    ("values", "radius", "expected"),
    [
        ([1, 2, 3], 1, [0, 0, 1]),  # the shift equals an eigenvalue
        ([1, 2, 3], 6, [1, 2, 3]),  # feasible, trace equal to the radius
        ([1, 2, 3], 4, [1 / 3, 4 / 3, 7 / 3]),
        ([2, 2, 2], 3, [1, 1, 1]),  # three equal eigenvalues
        ([2, 2, -5], 1, [0.5, 0.5, 0]),
        ([0.2, 0.3, -9], 1, [0.2, 0.3, 0]),  # clipped, not shifted
        ([0.5, 0.5, -1], 1, [0.5, 0.5, 0]),  # clipped, trace then equal to the radius
        ([-1, -2, -3], 1, [0, 0, 0]),
        ([0, 0, 0], 1, [0, 0, 0]),
        ([5], 2, [2]),
        ([1], 2, [1]),
        ([-1], 2, [0]),
    ],
)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_projection_of_known_spectra(values, radius, expected, rotated, scale):
    d = len(values)
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0] if rotated else np.eye(d)
    Q, expected_D = (V * (scale * np.array(x, dtype=float)) @ V.T for x in (values, expected))
    D = ltl.project((Q + Q.T) / 2, scale * radius)
    assert np.abs(D - expected_D).max() <= 1e-14 * scale * max(map(abs, values))
    if sum(expected) == radius:
        assert np.trace(D) == pytest.approx(scale * radius, rel=1e-15)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(1e-3, 1e4))
def test_soft_threshold_clips_and_shifts_to_the_radius(values, radius):
    values = np.array(values)
    kept = spectral.soft_threshold(values, radius)
    rounding = 1e-13 * max(radius, np.abs(values).max())
    assert kept == pytest.approx(reference.soft_threshold(values, radius), abs=rounding)
    assert (kept >= 0).all()
    assert kept.sum() <= radius * (1 + 1e-14 * len(values))
    shifts = (values - kept)[kept > 0]
    if np.maximum(values, 0).sum() <= radius:
        assert np.array_equal(kept, np.maximum(values, 0))
    else:
        assert kept.sum() == pytest.approx(radius, rel=1e-13)
        assert shifts == pytest.approx(np.full(len(shifts), shifts.mean()), abs=rounding)
        assert (values[kept == 0] <= shifts.mean() + rounding).all()


def test_soft_threshold_sums_to_a_radius_far_below_the_values():
    for values in ([1e70, 1.0, -1e70], [1e70, 1e70 * (1 + 1e-15), 0.0], [1e20]):
        kept = spectral.soft_threshold(np.array(values), 1e-3)
        assert kept.sum() == pytest.approx(1e-3, rel=1e-15)
        assert kept.argmax() == np.argmax(values)


@pytest.mark.parametrize("size", [1e10, 1e13, 1e15, 1e70])
def test_projection_of_a_trace_far_above_the_radius_has_trace_equal_to_it(size):
    """No eigenvalue of these matrices is clipped."""
    rng = np.random.default_rng(0)
    for d in (1, 2, 7, 50):
        for Q in (size * np.eye(d), size * np.eye(d) + np.diag(rng.uniform(size=d)) / d):
            D = ltl.project(Q, 1.0)
            assert np.trace(D) == pytest.approx(1.0, rel=1e-13)
            assert np.linalg.eigvalsh(D)[0] >= -1e-15


def test_projection_of_a_feasible_matrix_is_bitwise_equal():
    D = random_psd(np.random.default_rng(0), 5, trace=0.9)
    D = (D + D.T) / 2
    assert np.array_equal(ltl.project(D, 1.0), D)
    assert relative(ltl.project(D, 0.5), reference.project(D, 0.5)) < 1e-14


def spectra(rng, d):
    """Yield eigenvalues of which a few, half or most are clipped, and repeated eigenvalues."""
    yield from (rng.normal(size=d) + shift for shift in (-2.0, -1.0, 0.0, 1.0, 2.0))
    yield np.repeat(rng.normal(size=(d + 3) // 4), 4)[:d]
    yield rng.normal(size=d) * np.logspace(-16, 0, d)
    yield 1.0 + 1e-9 * rng.normal(size=d)
    yield np.concatenate([-np.ones(d // 2), np.ones(d - d // 2)])


@pytest.mark.parametrize("d", [2, 7, 50, 120])
@pytest.mark.parametrize("size", [1e-120, 1e-30, 1.0, 1e120])
def test_projection_agrees_with_reference_for_any_number_of_clipped_eigenvalues(d, size):
    rng = np.random.default_rng(d)
    for values in spectra(rng, d):
        V = np.linalg.qr(rng.normal(size=(d, d)))[0]
        for basis in (V, np.eye(d), np.kron(np.eye(2), V[: (d + 1) // 2, : (d + 1) // 2])[:d, :d]):
            Q = size * (basis * values) @ basis.T
            Q = (Q + Q.T) / 2
            for radius in (1e-3 * size, size, 0.3 * d * size, 1e3 * d * size):
                D = spectral.project(Q, radius)
                unit = max(np.abs(Q).max(), 1e-3 * size)
                expected = reference.project(Q / size, radius / size)
                assert np.array_equal(D, D.T)
                assert np.linalg.norm(D / size - expected) <= 1e-13 * d * unit / size
                assert np.trace(D / size) <= radius / size * (1 + 1e-13) + 1e-14 * d * unit / size
