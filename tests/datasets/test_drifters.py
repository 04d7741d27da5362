"""Currents against the derivatives of their two scalars, and reports that come in tracks with gaps."""

import numpy as np
import pytest

from ovkgp.datasets import make_drifters
from ovkgp.datasets.drifters import KM_PER_HOUR, NUM_REPORTS, REPORT_INTERVAL_HOURS, STEP_STD_KM
from ovkgp.exceptions import OptionError

STEP = 1e-3
DIFFERENCES = 1e-7
"""Error of central differences over 1e-3 km of bumps 10 km wide: STEP² · 10 / 10³ / 6 ≈ 2e-9, and rounding of 1e-12."""


def gradient(function, X):
    """∂f/∂x_j at every row (m, 2), or the Jacobian (m, p, 2), by central differences."""
    shifts = STEP * np.eye(2)
    return np.stack([(function(X + shift) - function(X - shift)) / (2 * STEP) for shift in shifts], axis=-1)


def grid(truth):
    west, east, south, north = truth.extent
    return np.stack(np.meshgrid(np.linspace(west, east, 21), np.linspace(south, north, 13)), -1).reshape(-1, 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_current_is_rotated_stream_gradient_plus_potential_gradient(seed):
    truth = make_drifters(5, random_state=seed).truth
    X = grid(truth)
    stream, potential = gradient(truth.stream_function, X), gradient(truth.potential, X)
    rotated = np.stack([stream[:, 1], -stream[:, 0]], axis=1)
    np.testing.assert_allclose(truth(X), rotated + potential, atol=DIFFERENCES)


@pytest.mark.parametrize("seed", range(8))
def test_eddies_are_stronger_than_upwelling(seed):
    truth = make_drifters(5, random_state=seed).truth
    X = grid(truth)
    eddies, upwelling = (np.sqrt(np.mean(part(X) ** 2)) for part in (truth.eddies, truth.upwelling))
    assert 0.2 < upwelling / eddies < 0.8
    assert upwelling > 0.05  # m/s, the standard deviation of the noise
    assert 0.3 < np.linalg.norm(truth(X), axis=1).max() < 1.5  # m/s: swift, as eddies are, and no torrent


def test_parts_are_divergence_free_and_curl_free():
    truth = make_drifters(5, random_state=0).truth
    eddies, upwelling = (gradient(part, grid(truth)) for part in (truth.eddies, truth.upwelling))
    np.testing.assert_allclose(np.trace(eddies, axis1=1, axis2=2), 0, atol=DIFFERENCES)
    np.testing.assert_allclose(upwelling[:, 0, 1], upwelling[:, 1, 0], atol=DIFFERENCES)
    assert abs(eddies[:, 0, 1] - eddies[:, 1, 0]).max() > 1e-2 < abs(np.trace(upwelling, axis1=1, axis2=2)).max()


def test_drifters_follow_the_current_inside_the_region():
    X, _, truth = make_drifters(1000 * NUM_REPORTS, random_state=0)
    west, east, south, north = truth.extent
    assert ([west, south] <= X).all() and ([east, north] >= X).all()
    tracks = X.reshape(-1, NUM_REPORTS, 2)
    before, after = tracks[:, :-1].reshape(-1, 2), tracks[:, 1:].reshape(-1, 2)
    there = before + KM_PER_HOUR * REPORT_INTERVAL_HOURS * truth(before)
    inside = ((there > 5) & (there < np.array([east, north]) - 5)).all(1)  # omit drifters that may have been reflected
    deviations = (after - there)[inside]
    assert len(deviations) > 1000
    assert (
        abs(deviations.std() - STEP_STD_KM) < 0.05 and abs(deviations.mean()) < 0.1
    )  # 2000 draws: three standard errors or more


def test_last_track_may_be_incomplete():
    few, many = make_drifters(NUM_REPORTS + 2, random_state=0), make_drifters(2 * NUM_REPORTS, random_state=0)
    np.testing.assert_array_equal(few.X, many.X[: NUM_REPORTS + 2])


def test_reports_miss_at_most_one_component():
    Y = make_drifters(4000, random_state=0).Y
    gaps = np.isnan(Y)
    np.testing.assert_allclose(gaps.mean(0), 0.15, atol=0.03)  # five standard errors of √(.15 · .85 / 4000)
    assert not gaps.all(1).any()


def test_missing_components_change_nothing_else():
    complete, half = make_drifters(40, missing=0.0, random_state=0), make_drifters(40, missing=0.5, random_state=0)
    np.testing.assert_array_equal(complete.X, half.X)
    observed = np.isfinite(half.Y)
    assert np.isfinite(complete.Y).all() and (observed.sum(1) == 1).all()
    np.testing.assert_array_equal(complete.Y[observed], half.Y[observed])


@pytest.mark.parametrize("missing", [-0.1, 0.6, np.nan])
def test_drifters_reject_invalid_missing_fraction(missing):
    with pytest.raises(OptionError, match="missing"):
        make_drifters(5, missing=missing)
