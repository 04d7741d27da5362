"""Tests of the speed benchmark of infinite quantile regression: claims that hold at any size are true at toy sizes."""

import importlib
import sys

import pytest
import torch


@pytest.fixture
def itl_speed(benchmark_of):
    return benchmark_of("itl_speed")


def test_speed_runs_and_size_independent_claims_hold(itl_speed, capsys, monkeypatch):
    monkeypatch.setattr(itl_speed, "NINE", itl_speed.NINE[[1, 4]])
    monkeypatch.setitem(sys.modules, "torch_itl", None)  # as where it is not installed
    claims = itl_speed.speed(((30, 4, 2),), 60, 10, 400, (10,), 300)
    printed = capsys.readouterr().out
    assert claims and all(claim.text in printed for claim in claims) and "nan" not in printed
    certain = [
        claim for claim in claims if any(text in claim.text for text in ("at least as low", "converged", "B-33"))
    ]
    assert len(certain) == 3 and all(claim.holds for claim in certain), printed


def test_norm_equals_that_of_the_peer(itl_speed):
    """Our h in the peer's terms: α = K⁻¹ h at the data, ‖h‖² = αᵀ K α."""
    peer = importlib.import_module("itl_speed_gram")
    X, y = peer.data(12)
    nodes = torch.tensor([0.2, 0.5, 0.9]).double()
    h = peer._ours(X, y, nodes).function_
    values = h(torch.from_numpy(X), nodes).flatten()
    square = values @ torch.linalg.solve(peer.gram(X, nodes), values)
    assert square.item() == pytest.approx(h.norm() ** 2, rel=1e-6)


def test_gram_matrix_larger_than_memory_is_omitted(itl_speed, capsys, monkeypatch):
    peer = importlib.import_module("itl_speed_gram")
    monkeypatch.setattr(peer, "available_memory", lambda: 1e3)
    assert peer.beside_the_gram(30, 4, 2) == []
    assert "no: 0.000115 GB" in capsys.readouterr().out
