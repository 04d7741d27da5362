"""Potentials, stream functions and Helmholtz parts against dense algebra with the joint covariance of (scalar, field)."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gpytorch.kernels import CosineKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from oracles import gram
from pairwise import pairwise

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors import exact as exact_posterior
from ovkgp.inference.posteriors import weight_posterior
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel

NOISE = 0.03
FORMS = ("diag", "output", "full")


# --- the oracle: covariances of scalar and field from the derivatives of k, written down one lag at a time -----------


def rbf_jet(delta, lengthscale):
    """k, ∇k, ∇∇ᵀk of exp(−½ Σ δ²/ℓ²)."""
    u = delta / lengthscale**2
    k = math.exp(-0.5 * u @ delta)
    return k, -u * k, (np.outer(u, u) - np.diag(1 / lengthscale**2)) * k


def matern52_jet(delta, lengthscale):
    """k, ∇k, ∇∇ᵀk of (1 + a + a²/3) e^{−a}, a = √5 |δ/ℓ|."""
    u, a = delta / lengthscale**2, math.sqrt(5 * np.sum((delta / lengthscale) ** 2))
    slope = 5 / 3 * math.exp(-a)
    hessian = slope * (5 * np.outer(u, u) - (1 + a) * np.diag(1 / lengthscale**2))
    return (1 + a + a**2 / 3) * math.exp(-a), -slope * (1 + a) * u, hessian


@dataclass
class Part:
    """One field: a list of (scale, jet, lengthscale) that add up to k, the columns it looks at, and its kind."""

    terms: list
    columns: list
    rotated: bool = False

    def jet(self, x, z):
        delta = (x - z)[self.columns]
        jets = [[scale * part for part in jet(delta, np.asarray(ell))] for scale, jet, ell in self.terms]
        return [sum(parts) for parts in zip(*jets, strict=True)]

    def scalar(self, x, z):
        return np.array([[self.jet(x, z)[0]]])

    def mixed(self, x, z):
        gradient = self.jet(x, z)[1]
        return np.array([[-gradient[1], gradient[0]]] if self.rotated else [-gradient])

    def field(self, x, z):
        hessian = self.jet(x, z)[2]
        return hessian - np.trace(hessian) * np.eye(len(hessian)) if self.rotated else -hessian


def number(value):
    return torch.tensor(value, dtype=torch.float64)  # GPyTorch would round a Python number to float32


def base(cls=RBFKernel, lengthscale=(0.8, 1.1), **options):
    kernel = cls(ard_num_dims=len(lengthscale), **options).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def scaled(kernel, scale, **options):
    kernel = ScaleKernel(kernel, **options).double()
    kernel.outputscale = number(scale)
    return kernel


def helmholtz():
    kernel = HelmholtzKernel(base(), base(MaternKernel, (1.2, 0.9), nu=2.5)).double()
    kernel.curl.outputscale, kernel.div.outputscale = number(1.3), number(0.6)
    return kernel


def helmholtz_of_sums():
    kernel = HelmholtzKernel(base() + scaled(base(lengthscale=(0.5, 0.6)), 0.3), base(lengthscale=(1.2, 0.9))).double()
    kernel.curl.outputscale, kernel.div.outputscale = number(1.3), number(0.6)
    return kernel


TWO, THREE = [0, 1], [0, 1, 2]
RBF, OTHER = (1.0, rbf_jet, (0.8, 1.1)), (0.3, rbf_jet, (0.5, 0.6))

CASES = {
    "curl": (lambda: CurlFreeKernel(base()), [Part([RBF], TWO)], 2),
    "curl in one dimension": (lambda: CurlFreeKernel(base(lengthscale=(0.8,))), [Part([(1, rbf_jet, (0.8,))], [0])], 1),
    "curl in three, scaled": (
        lambda: scaled(CurlFreeKernel(base(lengthscale=(0.8, 1.1, 0.9))), 2.5),
        [Part([(2.5, rbf_jet, (0.8, 1.1, 0.9))], THREE)],
        3,
    ),
    "curl, Matérn": (
        lambda: scaled(CurlFreeKernel(base(MaternKernel, nu=2.5)), 2.0),
        [Part([(2.0, matern52_jet, (0.8, 1.1))], TWO)],
        2,
    ),
    "curl, scaled twice": (
        lambda: scaled(scaled(CurlFreeKernel(scaled(base(), 3.0)), 0.5), 0.7),
        [Part([(3 * 0.5 * 0.7, rbf_jet, (0.8, 1.1))], TWO)],
        2,
    ),
    "curl on two of three columns": (
        lambda: scaled(CurlFreeKernel(base(active_dims=[2, 0])), 2.0),
        [Part([(2.0, rbf_jet, (0.8, 1.1))], [2, 0])],
        3,
    ),
    "curl, scale on two of three columns": (
        lambda: scaled(CurlFreeKernel(base()), 2.0, active_dims=[0, 2]),
        [Part([(2.0, rbf_jet, (0.8, 1.1))], [0, 2])],
        3,
    ),
    "curl of a sum": (
        lambda: CurlFreeKernel(base() + scaled(base(lengthscale=(0.5, 0.6)), 0.3)),
        [Part([RBF, OTHER], TWO)],
        2,
    ),
    "div": (lambda: DivergenceFreeKernel(base()), [Part([RBF], TWO, rotated=True)], 2),
    "div on two of three columns": (
        lambda: scaled(DivergenceFreeKernel(base(active_dims=[2, 0])), 2.0),
        [Part([(2.0, rbf_jet, (0.8, 1.1))], [2, 0], rotated=True)],
        3,
    ),
    "helmholtz": (
        helmholtz,
        [
            Part([(1.3, rbf_jet, (0.8, 1.1))], TWO),
            Part([(0.6, matern52_jet, (1.2, 0.9))], TWO, rotated=True),
        ],
        2,
    ),
    "helmholtz of sums": (
        helmholtz_of_sums,
        [
            Part([(1.3, rbf_jet, (0.8, 1.1)), (1.3 * 0.3, rbf_jet, (0.5, 0.6))], TWO),
            Part([(0.6, rbf_jet, (1.2, 0.9))], TWO, rotated=True),
        ],
        2,
    ),
}
SCALARS = [(name, i) for name, (_, parts, _) in CASES.items() for i in range(len(parts))]
HELMHOLTZ = ("helmholtz", "helmholtz of sums")


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    """A kernel, its oracle, data and test points; `mean` is the prior mean of the field."""

    def __init__(self, name, missing=True, n=9, mean="zero", features=None):
        make, self.parts, d = CASES[name]
        self.kernel = make()
        p = len(self.parts[0].columns)
        self.X, self.Y, self.test = normal(n, d, seed=1), normal(n, p, seed=2), normal(4, d, seed=3)
        if missing:
            self.Y[normal(n, p, seed=4) > 0.8] = torch.nan
        features = None if features is None else features(self.kernel)
        self.gp = OperatorValuedGP(self.kernel, mean=mean, noise=NOISE, features=features)
        if mean == "constant":
            with torch.no_grad():
                self.gp.mean.constant += 0.4
        self.posterior = self.gp.condition(self.X, self.Y)

    def scalar(self, index, reference=None):
        """The posterior of the potential, or of the stream function where the part is divergence-free."""
        view = self.posterior.stream_function if self.parts[index].rotated else self.posterior.potential
        return view(reference)

    def oracle(self, block, prior):
        """Mean (m, q) and full covariance, from a block's covariance with the field (q, p) and its own (q, q)."""
        X, observed = self.X.numpy(), ~np.isnan(self.Y.numpy().ravel())
        whole = gram(lambda x, z: sum(part.field(x, z) for part in self.parts), X, X)
        C = whole[observed][:, observed] + NOISE * np.eye(observed.sum())
        cross = gram(block, self.test.numpy(), X)[:, observed]
        mean = cross @ np.linalg.solve(C, self.Y.numpy().ravel()[observed])
        own = gram(prior, self.test.numpy(), self.test.numpy())
        q = own.shape[0] // len(self.test)
        return mean.reshape(-1, q), own - cross @ np.linalg.solve(C, cross.T)

    def scalar_oracle(self, index, reference=None):
        part, r = self.parts[index], reference
        if r is None:
            return self.oracle(part.mixed, part.scalar)
        return self.oracle(
            lambda x, z: part.mixed(x, z) - part.mixed(r, z),
            lambda x, z: part.scalar(x, z) - part.scalar(x, r) - part.scalar(r, z) + part.scalar(r, r),
        )


def close(actual, expected, rtol=1e-9):
    expected = torch.tensor(expected) if isinstance(expected, np.ndarray) else expected
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def agrees(posterior, X, mean, covariance, rtol=1e-9):
    """Whether predictions of every form are those of an oracle."""
    m, q = mean.shape
    blocks = covariance.reshape(m, q, m, q)
    expected = {
        "diag": np.diag(covariance).reshape(m, q),
        "output": np.stack([blocks[i, :, i] for i in range(m)]),
        "full": covariance,
    }
    close(posterior.predict(X, "none").mean, mean, rtol)
    for form in FORMS:
        prediction = posterior.predict(X, form)
        close(prediction.mean, mean, rtol)
        close(prediction.variance if form == "diag" else prediction.cov, expected[form], rtol)


def gradient(function, X):
    """The derivatives (m, q, d) of X (m, d) ↦ (m, q), each row of which depends on its own point only."""
    X = X.clone().requires_grad_()
    columns = [torch.autograd.grad(c.sum(), X, retain_graph=True)[0] for c in function(X).unbind(-1)]
    return torch.stack(columns, 1)


def field_from(function, part, X):
    """∇g, or (∂₂ψ, −∂₁ψ), in the coordinates of the field."""
    slopes = gradient(function, X)[:, 0][:, part.columns]
    return torch.stack([slopes[:, 1], -slopes[:, 0]], -1) if part.rotated else slopes


# --- exact posteriors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name, index", SCALARS)
def test_scalar_posterior_equals_dense_algebra(name, index, missing):
    case = Case(name, missing)
    agrees(case.scalar(index), case.test, *case.scalar_oracle(index))


@pytest.mark.parametrize("name, index", SCALARS)
def test_scalar_posterior_with_reference_equals_dense_algebra(name, index):
    case = Case(name)
    reference = case.test[1].numpy() / 2
    agrees(case.scalar(index, reference), case.test, *case.scalar_oracle(index, reference))


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", HELMHOLTZ)
def test_components_equal_dense_algebra(name, index):
    case = Case(name)
    component = case.posterior.components()[("curl_free", "divergence_free")[index]]
    part = case.parts[index]
    agrees(component, case.test, *case.oracle(part.field, part.field))


@pytest.mark.parametrize("name, index", SCALARS)
def test_scalar_posterior_is_zero_at_reference(name, index):
    case = Case(name)
    scalar = case.scalar(index, case.test[2])
    prediction = scalar.predict(case.test)
    assert prediction.mean[2].item() == 0
    assert prediction.std[2].item() == 0
    assert (prediction.std[[0, 1, 3]] > 0.01).all()
    full = scalar.predict(case.test, "full").cov
    assert full[2].abs().max() < 1e-12 * full.abs().max()


@pytest.mark.parametrize("name, index", [(name, i) for name, i in SCALARS if name not in HELMHOLTZ])
def test_scalar_mean_has_field_mean_as_derivatives(name, index):
    case = Case(name, mean="constant")
    points = torch.cat([case.test, case.X[:3]])  # at data, too, where distances vanish
    scalar = case.scalar(index, case.test[0])
    field = case.posterior.predict(points).mean
    close(field_from(lambda X: scalar.predict(X).mean, case.parts[index], points), field)


@pytest.mark.parametrize("name", HELMHOLTZ)
def test_helmholtz_scalars_agree_with_components(name):
    case = Case(name, mean="constant")
    components = case.posterior.components()
    for index, component in enumerate(components.values()):
        scalar = case.scalar(index)
        mean = component.predict(case.test).mean
        close(field_from(lambda X, s=scalar: s.predict(X).mean, case.parts[index], case.test), mean)
    total = sum(component.predict(case.test).mean for component in components.values())
    close(total, case.posterior.predict(case.test).mean)


# --- random features -------------------------------------------------------------------------------------------------


def map_of(bounded=True, num_frequencies=7):
    return lambda kernel: ORFF(kernel, num_frequencies, bounded=bounded, random_state=5)


def scalar_features(case, index, bounded):
    """ID-11 for Gaussian kernels: (1/√D) Σ_j b_j (sin⟨ω_j, x⟩ θ_j − cos⟨ω_j, x⟩ θ'_j), zeros for the other part's weights."""
    drawn = case.gp.features.frequencies
    drawn = iter(drawn if isinstance(drawn, list) else [drawn])
    columns = []
    for i, part in enumerate(case.parts):
        for scale, _, lengthscale in part.terms:
            W = next(drawn).detach().numpy()
            norm = np.linalg.norm(W * np.asarray(lengthscale), axis=1)
            b = math.sqrt(scale / len(W)) * (math.sqrt(W.shape[1]) / norm if bounded else np.ones(len(W)))
            if part.rotated:  # the factor is ‖ω‖ Q(ω), whose sign is that of −ω₁: Q(ω) = (−ω₂, ω₁) sign(ω₁) / ‖ω‖
                b = -b * np.sign(W[:, 0])
            angles = case.test.numpy()[:, part.columns] @ W.T
            columns += [b * np.sin(angles), -b * np.cos(angles)] if i == index else [0 * angles, 0 * angles]
    return np.concatenate(columns, 1)


RBF_SCALARS = [(name, i) for name, i in SCALARS if "Matérn" not in name and name != "helmholtz"]


@pytest.mark.parametrize(
    ("name_and_index", "bounded", "with_reference"),
    pairwise(name_and_index=RBF_SCALARS, bounded=[True, False], with_reference=[False, True]),
)
def test_scalar_posterior_of_features_equals_dense_algebra(name_and_index, bounded, with_reference):
    name, index = name_and_index
    case = Case(name, features=map_of(bounded))
    Phi, g = case.gp.features(case.X).to_dense().detach().numpy(), scalar_features(case, index, bounded)
    observed, y = ~np.isnan(case.Y.numpy().ravel()), case.Y.numpy().ravel()
    if with_reference:
        g = g - g[1]
    C = np.eye(Phi.shape[1]) + Phi[observed].T @ Phi[observed] / NOISE
    mean = g @ np.linalg.solve(C, Phi[observed].T @ y[observed] / NOISE)
    scalar = case.scalar(index, case.test[1] if with_reference else None)
    agrees(scalar, case.test, mean[:, None], g @ np.linalg.solve(C, g.T))


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", HELMHOLTZ)
def test_components_of_features_equal_dense_algebra(name, index):
    case = Case(name, features=map_of())
    Phi, test = (case.gp.features(X).to_dense().detach().numpy() for X in (case.X, case.test))
    observed, y = ~np.isnan(case.Y.numpy().ravel()), case.Y.numpy().ravel()
    counts = [2 * 7 * len(part.terms) for part in case.parts]
    own = np.arange(sum(counts)) < counts[0] if index == 0 else np.arange(sum(counts)) >= counts[0]
    test = test * own
    C = np.eye(Phi.shape[1]) + Phi[observed].T @ Phi[observed] / NOISE
    mean = test @ np.linalg.solve(C, Phi[observed].T @ y[observed] / NOISE)
    component = case.posterior.components()[("curl_free", "divergence_free")[index]]
    agrees(component, case.test, mean.reshape(-1, 2), test @ np.linalg.solve(C, test.T))


def product_base():
    """Periodic times cosine: warped, with frequencies that add to zero now and then."""
    periodic = PeriodicKernel(ard_num_dims=2).double()
    periodic.period_length = torch.tensor([2.0, 3.0]).double()
    cosine = CosineKernel(active_dims=[0]).double()
    cosine.period_length = number(1.0)
    return periodic * cosine


@pytest.mark.parametrize("make", [lambda: PeriodicKernel(ard_num_dims=2).double(), product_base])
def test_potential_with_zero_frequencies_keeps_prior_level(make):
    kernel = CurlFreeKernel(make())
    features = ORFF(kernel, 40, random_state=0)
    at_zero = (features.factors[0] == 0).all(-2).squeeze(-1)
    assert at_zero.any() and not at_zero.all()
    X = normal(3, 2, seed=1)
    potential = OperatorValuedGP(kernel, "zero", 1e12, features).condition(X, X).potential()
    close(
        potential.predict(X).variance, torch.ones(3, 1).double()
    )  # Σ b² (sin² + cos²) = k(0), whatever the frequencies


@pytest.mark.parametrize("make", [lambda: PeriodicKernel(ard_num_dims=2).double(), product_base])
def test_drawn_potential_has_field_as_gradient_for_lattice_frequencies(make):
    kernel = CurlFreeKernel(make())
    X = normal(5, 2, seed=1)
    posterior = OperatorValuedGP(kernel, "zero", NOISE, ORFF(kernel, 40, random_state=0)).condition(X, X.sin())
    potential = posterior.potential().sample_functions(1, random_state=0)
    close(gradient(potential[0], X)[:, 0], posterior.sample_functions(1, random_state=0)[0](X))


# --- random functions --------------------------------------------------------------------------------------------------

STRATEGIES = {"exact": None, "bounded": map_of(), "unbounded": map_of(bounded=False)}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name, index", [(name, i) for name, i in SCALARS if name not in HELMHOLTZ])
def test_drawn_scalar_has_drawn_field_as_derivatives(name, index, strategy):
    case = Case(name, mean="constant", features=STRATEGIES[strategy])
    scalars = case.scalar(index).sample_functions(3, random_state=11)
    pinned = case.scalar(index, case.test[0]).sample_functions(3, random_state=11)
    fields = case.posterior.sample_functions(3, random_state=11)
    for i in range(3):
        expected = fields[i](case.test)
        close(field_from(scalars[i], case.parts[index], case.test), expected)
        level = scalars[i](case.test[:1])
        close(pinned[i](case.test), scalars[i](case.test) - level)
    assert (fields[0](case.test) - fields[1](case.test)).abs().max() > 1e-3


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", HELMHOLTZ)
def test_drawn_components_add_up_and_are_curl_or_divergence_free(name, strategy):
    case = Case(name, mean="constant", features=STRATEGIES[strategy])
    components = case.posterior.components()
    curl, div = (components[key].sample_functions(2, random_state=11) for key in ("curl_free", "divergence_free"))
    close(curl(case.test) + div(case.test), case.posterior.sample_functions(2, random_state=11)(case.test))
    close(
        field_from(case.scalar(0).sample_functions(2, random_state=11)[1], case.parts[0], case.test), curl[1](case.test)
    )
    close(
        field_from(case.scalar(1).sample_functions(2, random_state=11)[1], case.parts[1], case.test), div[1](case.test)
    )
    for functions in (curl, div):
        slopes = gradient(functions[0], case.test)
        size = slopes.abs().max()
        broken = slopes[:, 0, 1] - slopes[:, 1, 0] if functions is curl else slopes[:, 0, 0] + slopes[:, 1, 1]
        kept = slopes[:, 0, 0] + slopes[:, 1, 1] if functions is curl else slopes[:, 0, 1] - slopes[:, 1, 0]
        assert broken.abs().max() < 1e-10 * size
        assert kept.abs().max() > 1e-2 * size


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_component_means_are_curl_or_divergence_free(strategy):
    case = Case("helmholtz", features=STRATEGIES[strategy])
    components = case.posterior.components()
    slopes = {key: gradient(lambda X, c=c: c.predict(X).mean, case.test) for key, c in components.items()}
    curl, div = slopes["curl_free"], slopes["divergence_free"]
    assert (curl[:, 0, 1] - curl[:, 1, 0]).abs().max() < 1e-10 * curl.abs().max()
    assert (div[:, 0, 0] + div[:, 1, 1]).abs().max() < 1e-10 * div.abs().max()


def test_scalar_samples_have_covariance_of_scalar():
    case = Case("curl")
    scalar = case.scalar(0, case.test[0])
    draws = scalar.sample(case.test, 20_000, random_state=0).squeeze(-1)
    assert draws.shape == (20_000, 4)
    covariance = scalar.predict(case.test, "full").cov
    assert draws[:, 0].abs().max() < 1e-6  # the root of a round-off
    assert (
        torch.cov(draws.T) - covariance
    ).abs().max() < 0.05 * covariance.max()  # five standard errors of 20 000 draws


# --- sizes and refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", ("none", "diag", "output"))
def test_scalar_posterior_is_unchanged_by_chunks_and_single_points(form, strategy, monkeypatch):
    case = Case("helmholtz", features=STRATEGIES[strategy])
    views = [case.scalar(0, case.test[0]), case.scalar(1), *case.posterior.components().values()]
    whole = [view.predict(case.test, form) for view in views]
    for module in (exact_posterior, weight_posterior):
        monkeypatch.setattr(module, "CHUNK_ENTRIES", 1)
    for view, expected in zip(views, whole, strict=True):
        assert view.max_chunk_rows(form) == 0
        found = view.predict(case.test, form)
        close(found.mean, expected.mean, 1e-12)
        assert view.predict(case.test[:1], form).mean.shape == (1, view.num_outputs)
        if form != "none":
            close(found._covariance, expected._covariance, 1e-12)


def test_scalar_posterior_accepts_lists_and_arrays():
    case = Case("curl")
    expected = case.scalar(0, case.test[0]).predict(case.test)
    found = case.scalar(0, case.test[0].tolist()).predict(case.test.numpy())
    assert torch.equal(found.mean, expected.mean)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", FORMS)
def test_derived_posteriors_reject_noise(form, strategy):
    case = Case("helmholtz", features=STRATEGIES[strategy])
    for view in (case.scalar(0), case.scalar(1), *case.posterior.components().values()):
        with pytest.raises(OptionError, match=r"noise=False"):
            view.predict(case.test, form, noise=True)


@pytest.mark.parametrize(
    "kernel, view, message",
    [
        (DivergenceFreeKernel(base()), "potential", "a CurlFreeKernel.*got a DivergenceFreeKernel"),
        (CurlFreeKernel(base()), "stream_function", "a DivergenceFreeKernel.*got a CurlFreeKernel"),
        (CurlFreeKernel(base()), "components", "HelmholtzKernel.*got a CurlFreeKernel"),
        (DecomposableKernel(base(), num_outputs=2), "potential", "CurlFreeKernel.*got a DecomposableKernel"),
        (DecomposableKernel(base(), num_outputs=2), "components", "HelmholtzKernel.*got a DecomposableKernel"),
        (
            CurlFreeKernel(base()) + DivergenceFreeKernel(base()),
            "potential",
            "HelmholtzKernel, got a AdditiveKernel",
        ),
    ],
)
def test_derived_posteriors_reject_unsupported_kernels(kernel, view, message):
    posterior = OperatorValuedGP(kernel, noise=NOISE).condition(normal(5, 2, seed=1), normal(5, 2, seed=2))
    with pytest.raises(KernelTypeError, match=message):
        getattr(posterior, view)()


@pytest.mark.parametrize("make", [DivergenceFreeKernel, HelmholtzKernel])
def test_stream_function_rejects_three_dimensions(make):
    kernel = make(base(lengthscale=(1.0, 1.0, 1.0)))
    posterior = OperatorValuedGP(kernel, noise=NOISE).condition(normal(5, 3, seed=1), normal(5, 3, seed=2))
    with pytest.raises(KernelTypeError, match="two dimensions, got 3"):
        posterior.stream_function()


@pytest.mark.parametrize("view", ["potential", "stream_function", "components"])
def test_derived_posteriors_reject_nystrom_maps(view):
    case = Case("helmholtz", features=lambda kernel: Nystrom(kernel, normal(6, 2, seed=7)))
    with pytest.raises(OptionError, match=r"Nystrom.*features=ORFF\(kernel\)"):
        getattr(case.posterior, view)()


def test_components_have_their_own_scalar_only():
    case = Case("helmholtz")
    parts = case.posterior.components()
    close(parts["curl_free"].potential().predict(case.test).mean, case.scalar(0).predict(case.test).mean)
    close(parts["divergence_free"].stream_function().predict(case.test).std, case.scalar(1).predict(case.test).std)
    with pytest.raises(KernelTypeError, match=r"a CurlFreeKernel.*got a DivergenceFreeKernel"):
        parts["divergence_free"].potential()
    with pytest.raises(KernelTypeError, match=r"a DivergenceFreeKernel.*got a CurlFreeKernel"):
        parts["curl_free"].stream_function()
    with pytest.raises(KernelTypeError, match="derived"):
        parts["curl_free"].components()
    for view in ("potential", "stream_function"):
        with pytest.raises(KernelTypeError, match="scalar function"):
            getattr(case.scalar(0), view)()


@pytest.mark.parametrize("reference", [[0.0], [0.0, 1.0, 2.0], [0.0, float("nan")], "here"])
def test_reference_must_be_one_finite_point(reference):
    case = Case("curl")
    with pytest.raises(InputError, match="reference must be one finite point with 2"):
        case.scalar(0, reference)


@pytest.mark.parametrize("matrix", [[[0.3, 0.0], [0.0, 0.5]], [[0.3, -0.2], [0.4, 0.1]]])
def test_parts_of_a_linear_mean_add_up_and_are_curl_or_divergence_free(matrix):
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2)).double()
    gp = OperatorValuedGP(kernel, mean="linear", noise=NOISE)
    X = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gp.mean.set_num_dims(2)
    with torch.no_grad():
        gp.mean.constant += torch.tensor([0.4, -0.2])
        gp.mean.slopes += torch.tensor(matrix).mT
    posterior = gp.condition(X, X.sin())
    parts, test = posterior.components(), X[:5] + 0.1
    close(sum(part.predict(test).mean for part in parts.values()), posterior.predict(test).mean)
    slopes = {key: gradient(lambda X, c=c: c.predict(X).mean, test) for key, c in parts.items()}
    curl_free, divergence_free = slopes["curl_free"], slopes["divergence_free"]
    assert (curl_free[:, 0, 1] - curl_free[:, 1, 0]).abs().max() < 1e-9
    assert (divergence_free[:, 0, 0] + divergence_free[:, 1, 1]).abs().max() < 1e-9
    potential = gradient(lambda X: posterior.potential().predict(X).mean, test)[..., 0, :]
    close(potential, parts["curl_free"].predict(test).mean)
    whole = gradient(lambda X: posterior.predict(X).mean, test)
    close(posterior.divergence().predict(test).mean[:, 0], whole[:, 0, 0] + whole[:, 1, 1])


def test_scalars_reject_means_of_which_they_do_not_exist():
    X = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for kernel, view in ((CurlFreeKernel(base()), "potential"), (DivergenceFreeKernel(base()), "stream_function")):
        gp = OperatorValuedGP(kernel, mean="linear", noise=NOISE)
        gp.mean.set_num_dims(2)
        with torch.no_grad():
            gp.mean.slopes += torch.tensor([[0.3, 0.5], [-0.2, 0.1]])
        with pytest.raises(OptionError, match="linear mean"):
            getattr(gp.condition(X, X.sin()), view)().predict(X)
