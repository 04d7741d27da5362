"""Shared statistics as whitened ones: exactly those that are gathered whitened."""

import pytest
import torch
from weight_space_cases import MAPS, WHITENED, Case

from ovkgp.inference.statistics.accumulation import gather
from ovkgp.inference.statistics.statistics import whitened

BASES = {"zero": 0, "constant": 1, "linear": 3}
WAVES = [name for name in MAPS if name not in WHITENED]


def close(actual, expected, rtol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def both(name, mean, noise="full"):
    """Shared statistics of complete data, converted, and the same data gathered whitened."""
    case = Case(name, noise=noise, missing=0.0, mean=mean)
    parts = case.features, case.mean, case.noise, case.data
    with torch.no_grad():
        shared, direct = gather(*parts), gather(*parts, layout="whitened", fingerprint="w")
        assert shared.layout == "shared"
        template = case.features(case.data.X[:1])
        return case, whitened(shared, template, case.noise.matrix(), "w"), direct


@pytest.mark.parametrize("noise", ["full", "per_output", "shared"])
@pytest.mark.parametrize("mean", BASES)
@pytest.mark.parametrize("name", WAVES)
def test_converted_are_those_gathered_whitened(name, mean, noise):
    case, found, direct = both(name, mean, noise)
    d = case.data.X.shape[1]
    assert found.num_basis == (1 + d if mean == "linear" else BASES[mean])
    close(found.gram, direct.gram)
    close(found.log_noise, direct.log_noise)
    for name in ("layout", "num_rows", "num_waves", "num_basis", "weighted", "fingerprint"):
        assert getattr(found, name) == getattr(direct, name)
    for name in ("num_seen", "noise_sum"):
        assert torch.equal(getattr(found, name), getattr(direct, name))
    assert torch.equal(found.landmarks.X, direct.landmarks.X)


def test_a_mean_without_a_basis():
    _, found, direct = both("decomposable", "bumps")
    assert found.num_basis == 0
    close(found.gram, direct.gram)


def test_converted_add_to_those_of_later_rows():
    case, found, direct = both("lmc", "linear")
    later = Case("lmc", noise="full", missing=0.4, mean="linear", seed=1).data
    with torch.no_grad():
        more = gather(case.features, case.mean, case.noise, later, fingerprint="w")
    assert more.layout == "whitened"
    close((found + more).gram, (direct + more).gram)


def test_whitened_ones_stay_as_they_are():
    case, _, direct = both("decomposable", "constant")
    template = case.features(case.data.X[:1])
    assert whitened(direct, template, case.noise.matrix(), "other") is direct
