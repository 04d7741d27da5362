"""Tests of `ovkgp.inference.training.units`."""

import pytest
import torch

from ovkgp.inference.training.units import column_distances, output_covariance, row_distances


def data(n=40, d=3, p=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 20.0, 0.05, 3.0])[:d].double()
    mixing = torch.tensor([[1.0, 0.0, 0.2], [2.0, 0.5, 0.0], [-1.0, 1.0, 3.0]]).double()[:p]
    return X, torch.randn(n, 3, generator=generator, dtype=torch.float64) @ mixing.mT + 4.0


def test_row_distances_subsample_deterministically():
    X = torch.rand(5000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once, again = row_distances(X).median, row_distances(X).median
    assert torch.equal(once, again) and once.item() == pytest.approx(0.512, rel=0.05)  # of the unit square


def test_column_distances_of_one_row_are_one():
    assert (
        column_distances(torch.ones(1, 2)).median.tolist()
        == [1.0, 1.0]
        == column_distances(torch.ones(1, 2)).small.tolist()
    )


def test_output_covariance_omits_missing_outputs_pairwise():
    _, Y = data(n=30, p=3)
    holes = Y.clone()
    holes[::3, 0] = holes[1::4, 2] = torch.nan
    covariance = output_covariance(holes)
    for a in range(3):
        observed = ~holes[:, a].isnan()
        assert covariance[a, a].item() == pytest.approx(
            holes[observed, a].var().item(), rel=1e-2
        )  # clipped to be positive
    assert torch.linalg.eigvalsh(covariance).amin() > -1e-12
    torch.testing.assert_close(output_covariance(Y), Y.mT.cov(), rtol=1e-9, atol=1e-12)


def test_output_covariance_of_constant_outputs_is_positive():
    _, Y = data()
    Y[:, 1] = 3.0
    variances = output_covariance(Y).diagonal()
    assert variances[1].item() == pytest.approx(1e-3 * variances[0].item(), rel=1e-9)
    assert output_covariance(torch.full((5, 1), 3.0)).item() == pytest.approx(9.0)
    assert output_covariance(torch.zeros(5, 2)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
