"""The posterior density of hyperparameters: against dense NumPy densities, integrals over θ, and central differences."""

import itertools

import numpy as np
import pytest
import torch
from gp_cases import KERNELS, Problem
from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior
from scipy.stats import gamma, lognorm, multivariate_normal, norm

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel, FullMatrix, IndependentKernel, MeanRegularizedMatrix

NOISES, MEANS = ("shared", "per_output", "full", "vector", "known"), ("zero", "constant", "linear", "gpytorch")


def data(n=20, d=1, p=1, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.uniform(0, 5, (n, d)))
    mixing = torch.from_numpy(rng.standard_normal((2, p)))
    return X, torch.cat([X[:, :1].sin(), X[:, :1].cos()], -1) @ mixing + 0.2 * torch.from_numpy(
        rng.standard_normal((n, p))
    )


def away(lp, seed=0, std=0.2):
    return lp.initial_point() + std * np.random.default_rng(seed).standard_normal(len(lp))


def assert_gradient(lp, u, tolerance=1e-6, h=1e-5):
    """Slopes along random directions, in which every variable takes part, are those of the values."""
    value, gradient = lp(u)
    assert np.isfinite(value)
    for direction in np.random.default_rng(3).standard_normal((3, len(u))):
        slope = (lp(u + h * direction)[0] - lp(u - h * direction)[0]) / (2 * h)
        assert abs(slope - gradient @ direction) <= tolerance * max(1.0, np.linalg.norm(gradient))


@pytest.mark.parametrize("index, name", list(enumerate(KERNELS)))
@pytest.mark.parametrize("shift", (0, 1))
def test_gradient_matches_differences(index, name, shift):
    noise, mean = NOISES[(index + 2 * shift) % 5], MEANS[(index + shift) % 4]
    case = Problem(name, noise=noise, mean=mean, missing=0.3 * shift)
    lp = LogPosterior(case.gp, case.X, case.Y, case.known, backend="torch")
    assert_gradient(lp, away(lp))


@pytest.mark.parametrize("features", ("orff", "nystrom"))
@pytest.mark.parametrize("name", ("icm, rank 2", "lmc", "independent", "curl-free"))
def test_gradient_matches_differences_with_features(name, features):
    case = Problem(name, noise="per_output", features=features, n=30, missing=0.0)
    lp = LogPosterior(case.gp, case.X, case.Y)
    assert lp.backend == "torch"
    assert_gradient(lp, away(lp, std=0.05), 1e-5)


@pytest.mark.parametrize("backend", ("auto", "torch"))
def test_density_matches_numpy_oracle(backend):
    X, Y = data()
    kernel = ScaleKernel(
        RBFKernel(lengthscale_prior=LogNormalPrior(*exact(0.25, 0.75)), lengthscale_constraint=GreaterThan(0.0625)),
        outputscale_prior=GammaPrior(*exact(2.0, 1.5)),
    )
    gp = OperatorValuedGP(kernel, mean="constant", noise="shared")
    gp.mean.register_prior("constant_prior", NormalPrior(*exact(0.5, 2.0)), "constant")
    gp.noise_model.register_prior("variances_prior", LogNormalPrior(*exact(-2.0, 1.25)), _variances)
    lp = LogPosterior(gp, X, Y, priors="given", backend=backend)
    assert lp.backend == ("numpy" if backend == "auto" else "torch")
    u = away(lp)
    v = lp.variables(u)
    ell, scale, noise, mean = (v[name].item() for name in ("lengthscale", "outputscale", "noise", "mean"))
    C = scale * np.exp(-0.5 * np.square(X.numpy() - X.numpy().T) / ell**2) + noise * np.eye(len(X))
    evidence = multivariate_normal.logpdf(Y.numpy()[:, 0], np.full(len(X), mean), C)
    priors = (
        lognorm.logpdf(ell, 0.75, scale=np.exp(0.25))
        + gamma.logpdf(scale, 2.0, scale=1 / 1.5)
        + norm.logpdf(mean, 0.5, 2.0)
    )
    priors += lognorm.logpdf(noise, 1.25, scale=np.exp(-2.0))
    (size,) = (entry.scale.item() for entry in lp.vector.entries if entry.name == "mean.constant")
    slopes = np.log(ell - 0.0625) + np.log(scale) + np.log(size) + np.log(2 * noise)
    assert lp(u)[0] == pytest.approx(evidence + priors + slopes, rel=1e-10)


def exact(*numbers):
    """A prior made of Python's numbers computes its constants in single precision."""
    return [torch.tensor(number, dtype=torch.float64) for number in numbers]


def _variances(module):
    return module.variances


CONSTRAINED = {
    "positive": (Positive(), LogNormalPrior(0.0, 0.5)),
    "greater than": (GreaterThan(0.4), GammaPrior(3.0, 2.0)),
    "interval": (Interval(0.2, 3.0), GammaPrior(3.0, 2.0)),
    "interval, uniform": (Interval(0.2, 3.0), UniformPrior(0.1, 4.0)),
    "no prior": (Interval(0.2, 3.0), None),
}


@pytest.mark.parametrize("name", CONSTRAINED)
@pytest.mark.parametrize("backend", ("auto", "torch"))
def test_integral_over_u_matches_integral_over_theta(name, backend):
    constraint, prior = CONSTRAINED[name]
    X, Y = data(8, seed=1)
    gp = OperatorValuedGP(
        RBFKernel(lengthscale_constraint=constraint, lengthscale_prior=prior), mean="zero", noise=0.125
    )
    lp = LogPosterior(gp, X, Y, priors="given", backend=backend)
    assert lp.backend == ("numpy" if backend == "auto" else "torch")
    level, grid = lp(lp.initial_point())[0], np.arange(-18.0, 18.0, 0.2)
    weights = np.array([np.exp(lp([u])[0] - level) for u in grid]) * 0.2
    theta = np.array([lp.variables([u])["lengthscale"].item() for u in grid])

    def density(ell):
        C = np.exp(-0.5 * np.square(X.numpy() - X.numpy().T) / ell**2) + 0.125 * np.eye(len(X))
        evidence = multivariate_normal.logpdf(Y.numpy()[:, 0], cov=C)
        return np.exp(
            evidence - level + (0.0 if prior is None else prior.log_prob(torch.tensor(ell, dtype=torch.float64)).item())
        )

    nodes, node_weights = _quadrature(*(end.item() for end in constraint))
    expected = node_weights * [density(t) for t in nodes]
    for power in range(3):  # the first says that π(u) is normalized as p(Y, θ) is
        assert weights @ theta**power == pytest.approx(expected @ nodes**power, rel=1e-5)


def _quadrature(low, high):
    """Gauss–Legendre nodes and weights on (low, high), or as far as the priors reach."""
    ends = [low, 0.7, 2.0, high] if high < 5 else [low, 0.7, 2.0, 6.0, 40.0]
    x, w = np.polynomial.legendre.leggauss(60)
    pairs = [((b - a) * (x + 1) / 2 + a, (b - a) / 2 * w) for a, b in itertools.pairwise(ends)]
    return (np.concatenate(part) for part in zip(*pairs, strict=True))


def test_parameter_without_prior_is_flat_in_constrained_value():
    X, Y = data()
    gp = OperatorValuedGP(RBFKernel(lengthscale_constraint=GreaterThan(0.1)), mean="zero", noise=0.1)
    for backend in ("auto", "torch"):
        lp = LogPosterior(gp, X, Y, priors="given", backend=backend)
        u = np.array([0.3])
        lp.set(u)
        assert lp(u)[0] == pytest.approx(lp.gp.log_evidence(X, Y).item() + 0.3, rel=1e-12)


def test_fixed_parameters_are_not_variables():
    X, Y = data()
    gp = OperatorValuedGP(ScaleKernel(RBFKernel()), mean="constant", noise=0.1)
    gp.kernel.raw_outputscale.requires_grad_(False)
    lp = LogPosterior(gp, X, Y)
    assert len(lp) == 2 and sorted(lp.variables(lp.initial_point())) == ["lengthscale", "mean"]
    assert sorted(lp.raw(lp.initial_point())) == ["kernel.base_kernel.raw_lengthscale", "mean.constant"]


def test_shared_parameter_is_one_variable_with_one_prior():
    X, Y = data(p=2)
    scalar = ScaleKernel(RBFKernel())
    lp = LogPosterior(OperatorValuedGP(IndependentKernel([scalar, scalar]), mean="zero", noise=0.1), X, Y)
    assert len(lp) == 2 and lp.backend == "numpy"
    assert_gradient(lp, away(lp))
    other = LogPosterior(
        OperatorValuedGP(IndependentKernel([scalar, scalar]), mean="zero", noise=0.1), X, Y, backend="torch"
    )
    assert lp(away(lp))[0] == pytest.approx(other(away(lp))[0], rel=1e-12)


@pytest.mark.parametrize("p", (1, 3))
def test_full_noise_has_one_variable_per_triangle_entry(p):
    X, Y = data(p=p)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.eye(p))
    lp = LogPosterior(OperatorValuedGP(kernel, mean="zero", noise="full"), X, Y)
    assert len(lp) == 1 + p * (p + 1) // 2
    assert_gradient(lp, away(lp))


def test_known_noise_fixes_noise_of_model():
    X, Y = data(p=2)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), noise="per_output")
    gp.noise_model.set([0.3, 0.7])
    lp = LogPosterior(gp, X, Y, torch.full_like(Y, 0.1))
    assert "noise" not in lp.variables(lp.initial_point())
    lp.mode()
    assert lp.gp.noise.tolist() == pytest.approx([0.3, 0.7], rel=1e-12)


@pytest.mark.parametrize("backend", ("auto", "torch"))
def test_statistics_fix_lengthscales(backend):
    X, Y = data(200, 2, 3)
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3))
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
    lp = LogPosterior(gp, gp.statistics(X, Y), backend=backend)
    assert sorted(lp.variables(lp.initial_point())) == ["mean", "noise", "output_matrix", "outputscale"]
    assert_gradient(lp, away(lp))
    found = lp.mode()
    assert found.converged
    lp.set(found.u)
    assert torch.equal(lp.gp.kernel.base_kernel.base_kernel.lengthscale, gp.kernel.base_kernel.base_kernel.lengthscale)


def test_density_of_statistics_matches_data():
    X, Y = data(100, 2, 2)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 10, random_state=0))
    from_statistics = LogPosterior(gp, gp.statistics(X, Y), priors="given")
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    direct = LogPosterior(gp, X, Y, priors="given")
    assert (
        direct.backend == "torch"
        and from_statistics.backend == "numpy"
        and from_statistics.vector.names == direct.vector.names
    )
    scales = [
        np.concatenate([e.scale.reshape(-1).numpy() for e in lp.vector.entries]) for lp in (from_statistics, direct)
    ]
    u = away(direct)
    (value, gradient), (other, by_other) = direct(u), from_statistics(u * scales[1] / scales[0])
    assert value - np.log(scales[1]).sum() == pytest.approx(other - np.log(scales[0]).sum(), rel=1e-9)
    np.testing.assert_allclose(gradient / scales[1], by_other / scales[0], rtol=1e-7, atol=1e-7)


def test_iterative_strategy_is_deterministic():
    X, Y = data(30, 1, 2)
    Y[3, 1] = torch.nan
    lp = LogPosterior(OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), strategy="iterative"), X, Y)
    u = away(lp)
    first, again = lp(u), lp(u)
    assert lp.backend == "torch" and first[0] == again[0] and np.array_equal(first[1], again[1])
    dense = LogPosterior(OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2)), X, Y)
    assert first[0] == pytest.approx(dense(u)[0], abs=0.5)


@pytest.mark.parametrize("backend", ("auto", "torch"))
@pytest.mark.parametrize("u", (1e3, -1e3, np.nan, np.inf))
def test_density_is_zero_where_evaluation_fails(backend, u):
    X, Y = data()
    lp = LogPosterior(OperatorValuedGP(ScaleKernel(RBFKernel())), X, Y, backend=backend)
    value, gradient = lp(np.full(len(lp), u))
    assert value == -np.inf and np.array_equal(gradient, np.zeros(len(lp)))
    assert (lp.evaluations, lp.failures) == (1, 1)


@pytest.mark.parametrize("backend", ("auto", "torch"))
def test_density_is_zero_outside_prior_support(backend):
    X, Y = data()
    gp = OperatorValuedGP(RBFKernel(lengthscale_prior=UniformPrior(0.1, 2.0)), mean="zero", noise=0.1)
    lp = LogPosterior(gp, X, Y, backend=backend)
    assert np.isfinite(lp(np.log([1.9]))[0]) and lp(np.log([2.1]))[0] == -np.inf


def test_potential_is_negative_density_with_gradient():
    X, Y = data()
    lp = LogPosterior(OperatorValuedGP(ScaleKernel(RBFKernel())), X, Y)
    u = torch.from_numpy(away(lp)).requires_grad_()
    potential = lp.potential(u)
    potential.backward()
    value, gradient = lp(u.detach().numpy())
    assert potential.dtype == torch.float64 and potential.item() == -value
    np.testing.assert_array_equal(u.grad.numpy(), -gradient)


@pytest.mark.parametrize("backend", ("auto", "torch"))
def test_mode_has_zero_gradient_and_hessian_matches_differences(backend):
    X, Y = data(15, 1, 2)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(2)), mean="constant")
    lp = LogPosterior(gp, X, Y, backend=backend)
    found = lp.mode()
    value, gradient = lp(found.u)
    assert found.converged and value == found.value and np.abs(gradient).max() < 1e-3
    assert value >= max(lp(lp.initial_point())[0], LogPosterior(gp.initialize(X, Y), X, Y)(lp.initial_point())[0])
    H, h = lp.hessian(found.u), 1e-3
    assert np.array_equal(H, H.T) and np.linalg.eigvalsh(H).max() < 0
    for i, j in ((0, 0), (0, 1), (2, 3)):
        e = np.eye(len(lp)) * h
        corners = [lp(found.u + a * e[i] + b * e[j])[0] * a * b for a in (1, -1) for b in (1, -1)]
        assert sum(corners) / (4 * h * h) == pytest.approx(H[i, j], abs=1e-3 * np.abs(H).max())


def test_mode_starts_from_data_if_present_values_are_poor():
    X, Y = data(40)
    gp = OperatorValuedGP(ScaleKernel(RBFKernel()))
    gp.kernel.base_kernel.lengthscale = 1e-4
    gp.noise_model.set(1e3)
    lp, other = LogPosterior(gp, X, Y), LogPosterior(OperatorValuedGP(ScaleKernel(RBFKernel())), X, Y)
    assert lp.mode().value == pytest.approx(other.mode().value, abs=1e-4)
    assert lp.mode(initial_points=[lp.initial_point(), other.mode().u]).value == pytest.approx(
        other.mode().value, abs=1e-4
    )


def test_mode_fails_without_valid_initial_point(monkeypatch):
    X, Y = data()
    lp = LogPosterior(OperatorValuedGP(RBFKernel()), X, Y)
    monkeypatch.setattr(lp, "density", lambda u: (-np.inf, u))
    with pytest.raises(FactorizationError, match="any initial point"):
        lp.mode()


def test_variables_and_raw_parameters_agree():
    X, Y = data(30, 2, 2)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2) + DecomposableKernel(
        MaternKernel(), num_outputs=2
    )
    gp = OperatorValuedGP(kernel, mean="linear", noise="full")
    lp = LogPosterior(gp, X, Y)
    u = away(lp)
    raw, named = lp.raw(u), lp.variables(u)
    assert set(named) == {
        "component_1.lengthscale",
        "component_1.output_matrix",
        "component_2.lengthscale",
        "component_2.output_matrix",
        "noise",
        "mean",
        "mean.slopes",
    }
    gp.observe(X, Y)
    with torch.no_grad():
        for name, parameter in gp.named_parameters():
            parameter.copy_(torch.from_numpy(raw[name]))
    np.testing.assert_allclose(gp.noise.detach(), named["noise"])
    np.testing.assert_allclose(gp.kernel.kernels[0].output_matrix.detach(), named["component_1.output_matrix"])
    np.testing.assert_allclose(gp.mean.slopes.detach(), named["mean.slopes"])


def test_variables_have_unit_scale_in_any_units():
    X, Y = data(40, 1, 2)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), mean="linear", noise="full")
    widths = []
    for unit in (1e-4, 1.0, 1e5):
        lp = LogPosterior(gp, X, unit * Y)
        widths.append(np.abs(np.diag(lp.hessian(lp.mode().u))) ** -0.5)
    np.testing.assert_allclose(widths[0], widths[1], rtol=0.1)
    np.testing.assert_allclose(widths[2], widths[1], rtol=0.1)
    assert widths[1].min() > 1e-3 and widths[1].max() < 10


def test_model_and_random_state_are_unchanged():
    X, Y = data(20, 1, 2)
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=MeanRegularizedMatrix(2)), mean="constant")
    before, state = {name: value.clone() for name, value in gp.state_dict().items()}, torch.random.get_rng_state()
    lp = LogPosterior(gp, X, Y)
    lp.mode()
    assert all(torch.equal(value, before[name]) for name, value in gp.state_dict().items())
    assert not list(gp.named_priors()) and torch.equal(state, torch.random.get_rng_state())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in gp.parameters())


def test_one_row_keeps_prior_of_lengthscale():
    lp = LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1), [[0.0]], [[1.0]])
    values = [lp([np.log(ell)])[0] - np.log(ell) for ell in (0.5, 2.0)]
    (prior,) = (prior for _, _, prior, *_ in lp.gp.named_priors())
    densities = prior.log_prob(torch.tensor([0.5, 2.0], dtype=torch.float64))
    assert len(lp) == 1 and values[1] - values[0] == pytest.approx((densities[1] - densities[0]).item(), rel=1e-9)


def test_variational_model_uses_bound_as_evidence():
    X, Y = data(30, 1, 2)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
    lp = LogPosterior(VariationalGP(kernel, "student_t", inducing=6, learn_inducing=True), X, Y)
    assert lp.backend == "torch" and not any("points" in name for name in lp.vector.names)
    assert {"scale", "df"} <= set(lp.variables(lp.initial_point()))
    assert_gradient(lp, away(lp), 1e-4)


def test_log_posterior_rejects_invalid_arguments():
    X, Y = data()
    gp = OperatorValuedGP(RBFKernel())
    lp = LogPosterior(gp, X, Y)
    with pytest.raises(InputError, match=r"expected \(3,\)"):
        lp(np.zeros(4))
    with pytest.raises(InputError, match=r"expected \(3,\)"):
        lp.mode(initial_points=np.zeros(2))
    with pytest.raises(OptionError, match="priors must be"):
        LogPosterior(gp, X, Y, priors="none")
    with pytest.raises(OptionError, match="backend must be"):
        LogPosterior(gp, X, Y, backend="fast")
    with pytest.raises(OptionError, match="no parameter to infer"):
        LogPosterior(gp.frozen(), X, Y)
    with pytest.raises(InputError, match="NaN or infinity"):
        LogPosterior(gp, X * torch.inf, Y)


def test_gpytorch_means_are_named_and_scaled():
    X, Y = data(20, 1, 2)
    lp = LogPosterior(OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), ConstantMean()), X, 100 * Y)
    assert "mean" in lp.variables(lp.initial_point()) and lp.backend == "torch"
    assert_gradient(lp, away(lp))
