"""Tests of `ovkgp.inference.training.free_parameters`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import NormalPrior
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import chi, norm

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.sampling.laplace import find_laplace_approximation
from ovkgp.inference.training.free_parameters import find_used_variables, freeze_unused_parameters
from ovkgp.inference.training.log_posterior import LogPosterior, named_values
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel


def data(p=2, n=30):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((n, 2)))
    return X, X[:, :1] + torch.from_numpy(rng.standard_normal((n, p)))


def trained(gp):
    return {name.rpartition(".")[2] for name, parameter in gp.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    "known, expected", ((False, {"raw_lengthscale", "constant", "log_scale"}), (True, {"raw_lengthscale", "constant"}))
)
def test_unused_noise_is_frozen(known, expected):
    X, Y = data(1)
    gp = OperatorValuedGP(RBFKernel())
    freeze_unused_parameters(gp, gp.evidence(X, Y, torch.ones_like(Y) if known else None))
    assert trained(gp) == expected


def test_statistics_freeze_parameters_they_depend_on():
    X, Y = data()
    for mean, noise, missing, expected in (
        ("constant", "per_output", False, {"raw_outputscale", "loadings", "raw_diagonal", "constant", "log_scale"}),
        ("constant", "full", True, {"constant"}),
    ):
        kernel = ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2))
        gp = OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 5, random_state=0))
        statistics = gp.statistics(X, _holes(Y, missing))
        before = {name: parameter.detach().clone() for name, parameter in gp.named_parameters()}
        freeze_unused_parameters(gp, gp.evidence(statistics), from_statistics=True)
        assert trained(gp) == expected
        assert all(torch.equal(parameter, before[name]) for name, parameter in gp.named_parameters())


def _holes(Y, missing):
    Y = Y.clone()
    if missing:
        Y[3, 1] = torch.nan
    return Y


def test_inducing_points_are_frozen():
    X, Y = data()
    gp = VariationalGP(DecomposableKernel(RBFKernel(), num_outputs=2), inducing=5, learn_inducing=True)
    freeze_unused_parameters(gp, gp.evidence(X, Y))
    assert "points" not in trained(gp) and "raw_lengthscale" in trained(gp)


def test_find_used_variables_omits_unused_entries():
    X, Y = data()
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), "zero", "full")
    vector = ParameterVector(gp)
    before = vector.get()
    read = find_used_variables(vector, gp.evidence(X, Y), lambda: named_values(gp))
    names = [name for entry in vector.entries for name in [entry.name] * entry.parameter.numel()]
    unread = [name for name, is_read in zip(names, read, strict=True) if not is_read]
    assert unread == ["noise_model.lower"] * 3 and np.array_equal(vector.get(), before)
    # a lengthscale that one row says nothing about is read all the same
    alone = OperatorValuedGP(RBFKernel(), "zero", 0.1)
    assert find_used_variables(
        ParameterVector(alone), alone.evidence(X[:1], Y[:1, :1]), lambda: named_values(alone)
    ).all()


def model(rank: int, p: int = 3) -> OperatorValuedGP:
    return OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=p, rank=rank), mean="zero")


def data_rotations(n: int = 30, p: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    mixing = torch.tensor([[1.0, -0.5, 0.3], [0.2, 1.0, -1.0]], dtype=torch.float64)[:, :p]
    noise = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return X, torch.cat([X.sin(), (1.7 * X).cos()], -1) @ mixing + 0.1 * noise


@pytest.mark.parametrize(("p", "r"), [(2, 2), (3, 2), (4, 3), (3, 3)])
def test_rotation_volume_is_power_of_diagonal(p, r):
    lower = [(i, j) for i in range(p) for j in range(min(i + 1, r))]
    skew = [(i, j) for i in range(r) for j in range(i)]

    def loadings(entries: torch.Tensor) -> torch.Tensor:
        L, A = torch.zeros(p, r, dtype=torch.float64), torch.zeros(r, r, dtype=torch.float64)
        for value, position in zip(entries[: len(lower)], lower, strict=True):
            L = L.index_put(tuple(map(torch.tensor, position)), value)
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


def test_first_diagonal_of_normal_loadings_has_chi_distribution():
    """L₁₁ = ‖w₁‖ of two standard normal numbers: the density l exp(−l²/2) is what the term adds to the normal one."""
    lp = LogPosterior(model(2, p=2), *data_rotations(p=2))
    assert lp.loadings.powers.tolist() == [1.0]
    l = 2.0
    value, gradient = lp.loadings(np.full(len(lp), l))
    other, _ = lp.loadings(np.ones(len(lp)))
    log_densities = [chi(2).logpdf(x) - norm.logpdf(x) for x in (l, 1.0)]
    assert value - other == pytest.approx(log_densities[0] - log_densities[1])
    assert gradient[lp.loadings.indices[0]] == pytest.approx(1 / l)


@pytest.mark.parametrize("rank", [2, 3])
def test_triangular_loadings_density_integrates_to_one(rank):
    """Under W ~ N(0, s²), entry by entry: E Π |L_ii|^(r−i) under the same normal, times the density of the zeros."""
    lp = LogPosterior(model(rank), *data_rotations())
    (entry,) = (entry for entry in lp.vector.entries if entry.name.endswith("loadings"))
    size, s = entry.scale.numpy(), lp.gp.kernel.output_module.loadings_prior.scale.expand(3, rank).numpy()
    constant = lp.loadings(np.ones(len(lp)))[0] - sum(lp.loadings.powers * np.log(np.diag(size)[: rank - 1]))
    powers = [absolute_moment(s[i, i], rank - 1 - i) for i in range(rank)]
    zeros = [norm.pdf(0.0, scale=s[i, j]) for i in range(rank) for j in range(i + 1, rank)]
    assert np.exp(constant) * np.prod(powers) * np.prod(zeros) == pytest.approx(1.0, rel=1e-5)


def absolute_moment(scale: float, power: int) -> float:
    return quad(lambda x: abs(x) ** power * norm.pdf(x, scale=scale), -12 * scale, 12 * scale, points=[0.0])[0]


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_fixed_noise_adds_no_density(backend):
    """One output with full noise equals one with its own noise: the unused triangle adds nothing."""
    X, Y = data_rotations(p=1)
    whole, own = (
        LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero", noise=noise), X, Y, backend=backend)
        for noise in ("full", "per_output")
    )
    u = own.initial_point() + 0.2
    assert len(whole) == len(own) == 2 and whole(u)[0] == pytest.approx(own(u)[0], rel=1e-8)


def test_density_integrates_to_evidence():
    """∫ π(u) du is the mean of p(Y | W Wᵀ + diag v) over W from its prior, with all rotations and signs."""
    X, Y = data_rotations(n=5, p=2)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2, rank=2), mean="zero", noise=0.25)
    gp.kernel.output_module.diagonal = 0.1
    for parameter in (gp.kernel.base_kernel.raw_lengthscale, gp.kernel.output_module.raw_diagonal):
        parameter.requires_grad_(False)
    lp, rng = LogPosterior(gp, X, Y), np.random.default_rng(0)
    assert len(lp) == 3 and lp.log_num_modes == pytest.approx(np.log(4))
    scale = lp.gp.kernel.output_module.loadings_prior.scale.expand(2, 2).numpy()
    W = scale * rng.standard_normal((20_000, 2, 2))
    s, U = np.linalg.eigh(gp.kernel.base_kernel(X).to_dense().detach().numpy())
    gammas = W @ W.transpose(0, 2, 1) + 0.1 * np.eye(2)
    C = s[:, None, None] * gammas[:, None] + 0.25 * np.eye(2)  # of each rotated row
    rows = U.T @ Y.numpy()
    squares = (rows * np.linalg.solve(C, rows[..., None])[..., 0]).sum(-1)
    by_prior = -0.5 * (squares + np.linalg.slogdet(2 * np.pi * C)[1]).sum(-1)
    q = norm(scale=1.5)
    drawn = q.rvs((4000, 3), random_state=rng)
    ratios = [lp(u)[0] - q.logpdf(u).sum() for u in drawn]
    found, expected = (logsumexp(logs) - np.log(len(logs)) for logs in (ratios, by_prior))
    assert found == pytest.approx(expected, abs=0.1)


def test_rotation_keeps_output_matrix_and_evidence():
    X, Y = data_rotations()
    gp = model(3)
    before, evidence = gp.kernel.output_matrix.detach().clone(), gp.log_evidence(X, Y).item()
    lp = LogPosterior(gp, X, Y)
    lp.set(lp.initial_point())
    assert torch.allclose(lp.gp.kernel.output_matrix, before, rtol=1e-12)
    assert lp.gp.log_evidence(X, Y).item() == pytest.approx(evidence, rel=1e-12)
    loadings = lp.gp.kernel.output_module.loadings.detach()
    assert bool((loadings.triu(1) == 0).all()) and bool((loadings.diagonal() > 0).all())
    assert bool((gp.kernel.output_module.loadings.detach().triu(1) != 0).any())  # the user's model is left alone


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_triangular_loadings_gradient_matches_differences(backend):
    lp = LogPosterior(model(2), *data_rotations(), backend=backend)
    u = lp.initial_point() + 0.1
    slopes = [(lp(u + h)[0] - lp(u - h)[0]) / 2e-5 for h in 1e-5 * np.eye(len(u))]
    assert np.allclose(lp(u)[1], slopes, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 3])
def test_mode_with_triangular_loadings_has_no_flat_direction(rank):
    local = find_laplace_approximation(LogPosterior(model(rank), *data_rotations()))
    assert local.converged and not local.flat


def test_loadings_without_invariant_prior_are_not_rotated():
    gp = model(2)
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)
    gp.kernel.output_module.register_prior("loadings_prior", NormalPrior(torch.zeros(2).double(), scale), "loadings")
    lp = LogPosterior(gp, *data_rotations())
    assert len(lp.loadings.indices) == 0 and len(lp) == sum(parameter.numel() for parameter in lp.gp.parameters())


def test_density_is_zero_at_zero_diagonal():
    lp = LogPosterior(model(2), *data_rotations())
    u = lp.initial_point()
    u[lp.loadings.indices[0]] = 0.0
    value, gradient = lp(u)
    assert value == -np.inf and not gradient.any()
