"""Inducing points: features and residual of any kernel, against the kernel itself."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.posterior import prior_covariance, select_form
from ovkgp.inference.variational.inducing import InducingPoints, choose_inducing, inducing_points
from ovkgp.inference.variational.rows import DenseRows, KroneckerRows, make_rows
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel, SimplexMatrix, num_outputs


def kernels():
    icm = DecomposableKernel(RBFKernel(ard_num_dims=2), 3, rank=2)
    return {
        "scalar": ScaleKernel(RBFKernel()),
        "icm": icm,
        "lmc": DecomposableKernel(RBFKernel(ard_num_dims=2), 3) + DecomposableKernel(MaternKernel(), 3),
        "simplex": DecomposableKernel(RBFKernel(), output_matrix=SimplexMatrix(3)),
        "curl-free": CurlFreeKernel(RBFKernel(ard_num_dims=2)),
        "independent": IndependentKernel([RBFKernel(), MaternKernel()]),
    }


NAMES = tuple(kernels())


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=NAMES)
def points(request):
    return InducingPoints(kernels()[request.param].double(), normal(5, 2))


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_inducing_features_and_residual_add_up_to_the_kernel(points, form):
    X, p = normal(7, 2, seed=1), num_outputs(points.kernel)
    with torch.no_grad():
        Phi = to_dense(points(X))
        whole = select_form(Phi @ Phi.mT, p, form) + points.residual(X, form)
        # Γ is met up to its own jitter, the variance up to rounding: δ moves from the features to the residual
        torch.testing.assert_close(whole, prior_covariance(points.kernel, X, p, form), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_with_residual_equals_features_and_residual(points, form):
    X = normal(7, 2, seed=1)
    Phi, residual = points.with_residual(X, form)
    torch.testing.assert_close(to_dense(Phi), to_dense(points(X)))
    torch.testing.assert_close(residual, points.residual(X, form))


def test_residual_is_positive_semidefinite_and_vanishes_at_the_points(points):
    with torch.no_grad():
        values = torch.linalg.eigvalsh(points.residual(normal(6, 2, seed=1), "full"))
        there = points.residual(points.points, "diag")
    scale = points.kernel(points.points, diag=True).max().item()
    assert values.min() > -1e-10 * scale
    assert there.max() < 1e-7 * scale


def test_inducing_features_of_separable_kernels_keep_the_kronecker_form():
    X = normal(4, 2, seed=1)
    made = {name: InducingPoints(kernel.double(), normal(5, 2)) for name, kernel in kernels().items()}
    kinds = {name: type(make_rows(points(X), points.num_outputs)) for name, points in made.items()}
    assert kinds["icm"] is kinds["simplex"] is kinds["scalar"] is KroneckerRows
    assert kinds["curl-free"] is DenseRows
    counts = {name: points.num_features for name, points in made.items()}
    assert counts["icm"] == 15 and counts["simplex"] == 10 and counts["lmc"] == 30 and counts["curl-free"] == 10


def test_inducing_features_are_continuous_in_the_hyperparameters(points):
    X = normal(7, 2, seed=1)
    with torch.no_grad():
        before = to_dense(points(X))
        for parameter in points.kernel.parameters():
            parameter.add_(1e-6)
        assert (to_dense(points(X)) - before).abs().max() < 1e-4


def test_residual_is_differentiable_in_learned_points():
    points = InducingPoints(ScaleKernel(RBFKernel()).double(), normal(3, 1), learn=True)
    X = normal(4, 1, seed=1)
    assert "points" in dict(points.named_parameters())

    def function(Z):
        points.points.data.copy_(Z)
        return points.residual(X, "diag").sum()

    value = function(points.points.detach().clone())
    (gradient,) = torch.autograd.grad(value, points.points)
    Z, step = points.points.detach().clone(), 1e-5
    for i in range(3):
        up, down = Z.clone(), Z.clone()
        up[i] += step
        down[i] -= step
        with torch.no_grad():
            slope = (function(up) - function(down)) / (2 * step)
        assert abs(slope - gradient[i, 0]) < 1e-5


def test_prior_draws_agree_with_their_weights(points):
    """At the inducing points f̃ is Φ w̃, up to δ."""
    with torch.no_grad():
        function, weights = points.prior_draws(4, random_state=0, num_frequencies=50)
        there = to_dense(points(points.points)) @ weights
        gap = (there - function(points.points, torch.arange(4))).abs().max()
    assert weights.shape == (points.num_features, 4)
    assert gap < 1e-2  # noise with a standard deviation of about 1e-4, and the weights' own nugget


def test_prior_draws_have_the_covariance_of_the_kernel(points):
    X, p = normal(3, 2, seed=1), points.num_outputs
    with torch.no_grad():
        function, weights = points.prior_draws(4000, random_state=0, num_frequencies=500)
        prior = prior_covariance(points.kernel, X, p, "full")
        scale = prior.diagonal().max()  # five standard errors: of 500 frequencies, and of 4000 draws
        assert (torch.cov(function(X, torch.arange(4000))) - prior).abs().max() < 5 * (500**-0.5 + 4000**-0.5) * scale
        assert weights.var(1).sub(1).abs().mean() < 0.2


def test_choose_inducing_returns_distinct_and_distant_rows():
    X = torch.cat([torch.zeros(500, 2), normal(10, 2).float() + 9, normal(500, 2).float() * 0.1 - 9])
    chosen = choose_inducing(X, 6, random_state=0)
    assert len(torch.unique(chosen, dim=0)) == 6
    assert (chosen.unsqueeze(1) == X.double()).all(-1).any(1).all()
    assert (chosen == 0).all(1).any() and (chosen < -5).all(1).any() and (chosen > 5).all(1).any()
    assert torch.equal(chosen, choose_inducing(X, 6, random_state=0))
    assert len(choose_inducing(torch.zeros(10, 2), 6, random_state=0)) == 1


def test_inducing_points_accepts_numbers_and_arrays_only():
    X = normal(9, 2)
    assert inducing_points(4, X, 0).shape == (4, 2)
    assert torch.equal(inducing_points(X[:3].numpy(), X), X[:3])
    with pytest.raises(InputError, match="columns"):
        inducing_points(normal(3, 1), X)
    with pytest.raises(InputError, match="NaN"):
        inducing_points(normal(3, 2) * torch.nan, X)
    for bad in ("many", 2.5, True, None):
        with pytest.raises(OptionError, match="inducing"):
            inducing_points(bad, X)
    with pytest.raises(OptionError, match="inducing"):
        inducing_points(0, X)
    with pytest.raises(InputError, match="inducing points"):
        InducingPoints(RBFKernel(), torch.zeros(0, 2))
    with pytest.raises(InputError, match="columns"):
        InducingPoints(RBFKernel().double(), X)(normal(3, 1))


def test_prior_draws_rejects_kernels_without_random_features():
    from gpytorch.kernels import LinearKernel

    with pytest.raises(OptionError, match="random features"):
        InducingPoints(LinearKernel().double(), normal(3, 1)).prior_draws(2, 0, 10)
