"""Loadings without their rotations: the Jacobian, the law of Γ, and posteriors that a Gaussian can describe."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.priors import NormalPrior
from scipy.stats import chi, norm

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.laplace import local_gaussian
from ovkgp.inference.log_posterior import LogPosterior
from ovkgp.kernels import DecomposableKernel


def model(rank: int, p: int = 3) -> OperatorValuedGP:
    return OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=p, rank=rank), mean="zero")


def data(n: int = 30, p: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    mixing = torch.tensor([[1.0, -0.5, 0.3], [0.2, 1.0, -1.0]], dtype=torch.float64)[:, :p]
    noise = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return X, torch.cat([X.sin(), (1.7 * X).cos()], -1) @ mixing + 0.1 * noise


@pytest.mark.parametrize(("p", "r"), [(2, 2), (3, 2), (4, 3), (3, 3)])
def test_the_volume_of_rotations_is_a_power_of_the_diagonal(p, r):
    lower = [(i, j) for i in range(p) for j in range(min(i + 1, r))]
    skew = [(i, j) for i in range(r) for j in range(i)]

    def loadings(entries: torch.Tensor) -> torch.Tensor:
        L, A = torch.zeros(p, r, dtype=torch.float64), torch.zeros(r, r, dtype=torch.float64)
        for value, place in zip(entries[: len(lower)], lower, strict=True):
            L = L.index_put(tuple(map(torch.tensor, place)), value)
        for value, (i, j) in zip(entries[len(lower) :], skew, strict=True):
            A = A.index_put((torch.tensor(i), torch.tensor(j)), value).index_put(
                (torch.tensor(j), torch.tensor(i)), -value
            )
        return (L @ torch.matrix_exp(A)).flatten()

    generator, excess = torch.Generator().manual_seed(1), []
    for _ in range(4):
        entries = torch.cat([torch.randn(len(lower), generator=generator), torch.zeros(len(skew))]).double()
        volume = torch.linalg.slogdet(torch.autograd.functional.jacobian(loadings, entries)).logabsdet
        diagonal = torch.stack([entries[lower.index((i, i))].abs().log() for i in range(r)])
        excess.append(volume - (torch.arange(r - 1, -1, -1) * diagonal).sum())
    assert torch.stack(excess).std() < 1e-10


def test_the_first_diagonal_of_normal_loadings_has_a_chi_law():
    """L₁₁ = ‖w₁‖ of two standard normal numbers: the density l exp(−l²/2) is what the term adds to the normal one."""
    lp = LogPosterior(model(2, p=2), *data(p=2))
    assert lp.loadings.powers.tolist() == [1.0]
    l = 2.0
    value, gradient = lp.loadings(np.full(len(lp), l))
    difference = chi(2).logpdf(l) - norm.logpdf(l)
    assert value - difference == pytest.approx(1.0 - chi(2).logpdf(1.0) + norm.logpdf(1.0) - 1.0)
    assert gradient[lp.loadings.places[0]] == pytest.approx(1 / l)


def test_turning_changes_neither_gamma_nor_the_evidence():
    X, Y = data()
    gp = model(3)
    before, evidence = gp.kernel.output_matrix.detach().clone(), gp.log_evidence(X, Y).item()
    lp = LogPosterior(gp, X, Y)
    lp.place(lp.start())
    assert torch.allclose(lp.gp.kernel.output_matrix, before, rtol=1e-12)
    assert lp.gp.log_evidence(X, Y).item() == pytest.approx(evidence, rel=1e-12)
    loadings = lp.gp.kernel.output_module.loadings.detach()
    assert bool((loadings.triu(1) == 0).all()) and bool((loadings.diagonal() > 0).all())
    assert bool((gp.kernel.output_module.loadings.detach().triu(1) != 0).any())  # the user's model is left alone


@pytest.mark.parametrize("road", ["auto", "modules"])
def test_the_gradient_is_that_of_the_density(road):
    lp = LogPosterior(model(2), *data(), road=road)
    u = lp.start() + 0.1
    slopes = [(lp(u + h)[0] - lp(u - h)[0]) / 2e-5 for h in 1e-5 * np.eye(len(u))]
    assert np.allclose(lp(u)[1], slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 3])
def test_no_direction_is_flat_at_the_mode(rank):
    local = local_gaussian(LogPosterior(model(rank), *data()))
    assert local.converged and not local.flat


def test_a_prior_that_knows_columns_keeps_their_rotations():
    gp = model(2)
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gp.kernel.output_module.register_prior("loadings_prior", NormalPrior(torch.zeros(2).double(), scale), "loadings")
    lp = LogPosterior(gp, *data())
    assert len(lp.loadings.places) == 0 and len(lp) == sum(parameter.numel() for parameter in lp.gp.parameters())


def test_there_is_no_density_at_a_diagonal_of_zero():
    lp = LogPosterior(model(2), *data())
    u = lp.start()
    u[lp.loadings.places[0]] = 0.0
    value, gradient = lp(u)
    assert value == -np.inf and not gradient.any()
