"""Records of scalar kernels: each agrees with the kernel it describes. Rules and records are inherited only with the formula."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from oracles import difference_gradient, difference_hessian
from spectral_cases import CASES, make

import ovkgp
from ovkgp.exceptions import KernelTypeError, OptionError, SmoothnessError
from ovkgp.features import ORFF, bounds, moment_order
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.kernels import (
    CurlFreeKernel,
    KernelRecord,
    NamedKernel,
    Profile,
    ScaleMixture,
    find_record,
    records,
    register_kernel,
)
from ovkgp.kernels.records import KernelDispatcher, make_scalar_kernel, named_kernels, registered_records, safe_root
from ovkgp.kernels.spectral import gamma_quantile, gamma_ratio, scale_mixture

VARIANTS = {  # constructor options that change a kernel
    "MaternKernel": [{"nu": 0.5}, {"nu": 1.5}, {"nu": 2.5}],
    "PolynomialKernel": [{"power": 2}],
    "SpectralMixtureKernel": [{"num_mixtures": 2}],
    "SobolevKernel": [{"order": 2}, {"order": 3, "periodic": True}],
}
BUILT_IN = [
    pytest.param(record, options, id=f"{record.kernel_class.__name__}{options or ''}")
    for record in registered_records()
    for options in VARIANTS.get(record.kernel_class.__name__, [{}])
]
RADIAL = [case for case in BUILT_IN if case.values[0].profile is not None]
MIXTURES = [case for case in BUILT_IN if case.values[0].scale_mixture is not None]


class Renamed(RBFKernel):
    pass


@pytest.fixture
def registry(monkeypatch):
    """Forget the kernels that a test registers."""
    monkeypatch.setattr(records, "_RECORDS", dict(records._RECORDS))


def kernel_and_parameters(record, options):
    """Return a kernel of lengthscale 1 and the parameters of its profile, away from their initial values."""
    kernel = record.kernel_class(**options).double()
    kernel.lengthscale = 1.0
    others = [name for name in record.roles if name != "lengthscale"]
    kernel.initialize(**dict.fromkeys(others, 1.7))
    return kernel, {name: getattr(kernel, name).detach().item() for name in others}


@pytest.mark.parametrize(("record", "options"), BUILT_IN)
def test_record_is_found_and_names_parameters_and_options_of_the_kernel(record, options):
    kernel = record.kernel_class(**options)
    assert find_record(kernel) is record
    if not getattr(kernel, "periodic", False):
        assert {f"raw_{name}" for name in record.roles} <= dict(kernel.named_parameters()).keys()
    assert all(hasattr(kernel, name) for name in record.options)


@pytest.mark.parametrize(("record", "options"), RADIAL)
def test_profile_agrees_with_the_kernel_and_finite_differences(record, options):
    kernel, parameters = kernel_and_parameters(record, options)
    s = np.array([0.2, 1.1, 7.0])

    def value(squared):
        lag = torch.from_numpy(np.sqrt(squared)).unsqueeze(-1)
        return kernel(lag, torch.zeros(1, 1).double()).to_dense()[:, 0].detach().numpy()

    found = record.profile(np, s, kernel, **parameters)
    np.testing.assert_allclose(found.value, value(s), rtol=1e-9)
    for index, at in enumerate(s[:, None]):
        differences = [f(lambda t: value(t[:, 0]), at).item() for f in (difference_gradient, difference_hessian)]
        np.testing.assert_allclose([found.first()[index], found.second()[index]], differences, atol=2e-6)


@pytest.mark.parametrize(("record", "options"), RADIAL)
def test_profile_is_the_same_in_torch_and_numpy(record, options):
    kernel, parameters = kernel_and_parameters(record, options)
    s = np.array([0.0, 1e-200, 0.2, 1.1, 7.0, 400.0])
    ours = record.profile(np, s, kernel, **parameters)
    inputs = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in parameters.items()}
    squares = torch.from_numpy(s).requires_grad_()
    theirs = record.profile(torch, squares, kernel, **inputs)
    for a, b in ((ours.value, theirs.value), (ours.first(), theirs.first()), (ours.second(), theirs.second())):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-13)
        assert np.isfinite(a).all()
    (by_square,) = torch.autograd.grad(theirs.value.sum(), squares, retain_graph=True)
    np.testing.assert_allclose(by_square[2:], ours.first()[2:], rtol=1e-12)
    assert torch.isfinite(by_square).all()
    assert ours.by_parameter.keys() == parameters.keys()
    for name, parameter in inputs.items():
        (by_parameter,) = torch.autograd.grad(theirs.value.sum(), parameter)
        np.testing.assert_allclose(ours.by_parameter[name]().sum(), by_parameter, rtol=1e-12)


@pytest.mark.parametrize(("record", "options"), MIXTURES)
def test_scale_mixture_reproduces_profile_moments_and_variance_bound(record, options):
    kernel, parameters = kernel_and_parameters(record, options)
    mixture = record.scale_mixture(kernel)
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    with torch.no_grad():
        tau = torch.ones_like(u) if mixture.quantile is None else mixture.quantile(u)
        s = torch.tensor([0.0, 0.3, 2.0, 9.0], dtype=torch.float64)
        found = torch.exp(-tau * s[:, None] / 2).mean(-1)
        torch.testing.assert_close(found, record.profile(torch, s, kernel, **parameters).value, atol=1e-4, rtol=0)
        assert tau.sqrt().mean().item() == pytest.approx(mixture.moment(1), rel=1e-2) or mixture.moment(1) == np.inf
        if mixture.tilted_quantile is not None and mixture.moment(2) < np.inf:
            tilted = torch.exp(-mixture.tilted_quantile(u) / 2).mean()
            expected = -2 * record.profile(torch, s.new_ones(1), kernel, **parameters).first() / mixture.moment(2)
            torch.testing.assert_close(tilted, expected[0], atol=1e-3, rtol=0)  # E[τ exp(−τ/2)] = −2κ'(1)
        s = torch.linspace(0, 60, 1001, dtype=torch.float64)
        once, twice = (record.profile(torch, scale * s, kernel, **parameters).value for scale in (1, 4))
        assert ((1 + twice - 2 * once**2) / 2).max() <= mixture.variance + 1e-12


def test_all_records_with_a_spectral_distribution_are_tested_by_monte_carlo():
    """`tests/features/spectral/test_every_pair.py` compares all of `CASES` with their kernels."""
    tested = {type(make(name)) for name in CASES}
    found = {r.kernel_class for r in registered_records() if r.spectral_pair or r.scale_mixture}
    own = {one for one in found if one.__module__.startswith(("ovkgp.", "gpytorch."))}  # other tests register kernels
    assert own and own <= tested


@pytest.mark.parametrize("name", named_kernels())
def test_named_kernel_has_a_text_and_trains_one_lengthscale_per_column(name):
    kernel, named = make_scalar_kernel(name, 3), named_kernels()[name]
    assert kernel.lengthscale.shape == (1, 3) and make_scalar_kernel(name).lengthscale.shape == (1, 1)
    assert all(getattr(kernel, option) == value for option, value in named.options.items())
    assert named.title and named.formula.startswith("k(x, z) = ") and not named.description.endswith(".")


def test_names_of_kernels():
    made = {name: make_scalar_kernel(name) for name in named_kernels()}
    assert list(made) == ["rbf", "matern12", "matern32", "matern52", "rq", "laplace"]
    assert isinstance(made["rbf"], RBFKernel) and made["matern32"].nu == 1.5


def test_records_and_rules_are_inherited_only_with_forward():
    table = KernelDispatcher()
    table.register(RBFKernel)(lambda kernel: "rbf")
    assert table.find(Renamed())(None) == "rbf" and find_record(Renamed()) is find_record(RBFKernel())
    assert table.find(RBFKernelGrad()) is None and find_record(RBFKernelGrad()) is None
    assert table.known_classes == "RBFKernel" and scale_mixture(RBFKernelGrad()) is None


def test_register_rejects_other_types():
    with pytest.raises(KernelTypeError, match="MyKernel"):
        KernelDispatcher().register(lambda kernel: None)
    with pytest.raises(KernelTypeError, match="class of kernels"):
        KernelRecord(RBFKernel())
    with pytest.raises(OptionError, match="role"):
        KernelRecord(RBFKernel, profile=lambda xp, s, kernel: None)
    with pytest.raises(OptionError, match="together"):
        ScaleMixture(lambda s: 1.0, lambda u: u)


# --- a new kernel, from its class and its record alone --------------------------------------------------------------


class Matern72Kernel(Kernel):
    """(1 + a + 2a²/5 + a³/15) exp(−a), a = √7 r."""

    has_lengthscale = True

    def forward(self, x1, x2, diag=False, **params):
        a = 7**0.5 * self.covar_dist(x1 / self.lengthscale, x2 / self.lengthscale, diag=diag, **params)
        return (1 + a + 2 * a**2 / 5 + a**3 / 15) * torch.exp(-a)


def matern72_profile(xp, s, kernel):
    a = safe_root(xp, 7 * s)
    decay = xp.exp(-a)
    return Profile(
        (1 + a + 2 * a**2 / 5 + a**3 / 15) * decay,
        lambda: -7 / 30 * (3 + 3 * a + a**2) * decay,
        lambda: 49 / 60 * (1 + a) * decay,
    )


def matern72_mixture(kernel):
    shape = torch.tensor(3.5, dtype=torch.float64)
    return ScaleMixture(
        lambda s: 3.5 ** (s / 2) * gamma_ratio(3.5, -s / 2),
        lambda u: 3.5 / gamma_quantile(shape, u),
        lambda u: 3.5 / gamma_quantile(shape - 1, u),
    )


RECORD = KernelRecord(
    Matern72Kernel,
    roles={"lengthscale": "lengthscale"},
    profile=matern72_profile,
    scale_mixture=matern72_mixture,
    moment_order=lambda kernel: 7.0,
    names={"matern72": NamedKernel("Matérn 7/2", "draws have three derivatives", "k(x, z) = f(r)")},
)


def field_data(n=40):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.column_stack([np.sin(X[:, 1]), np.cos(X[:, 0])]) + 0.05 * rng.standard_normal((n, 2))


def test_profile_of_the_new_kernel_is_right():
    test_profile_agrees_with_the_kernel_and_finite_differences(RECORD, {})
    test_profile_is_the_same_in_torch_and_numpy(RECORD, {})
    test_scale_mixture_reproduces_profile_moments_and_variance_bound(RECORD, {})


def test_registered_kernel_has_fields_features_bounds_and_a_numpy_density(registry):
    register_kernel(RECORD)
    X, Y = field_data()
    x, kernel = torch.from_numpy(X[:6]), CurlFreeKernel(Matern72Kernel(ard_num_dims=2)).double()
    K = kernel(x).to_dense()
    Phi = ORFF(kernel, 20_000, sampler="orthogonal", random_state=0)(x).to_dense()
    assert (Phi @ Phi.mT - K).abs().max() < 0.03 * K.abs().max()
    assert moment_order(kernel) == 7 and bounds.spectral_constants(kernel).slope < np.inf
    gp = OperatorValuedGP(ScaleKernel(Matern72Kernel(ard_num_dims=2)))
    density = LogPosterior(gp, X, Y[:, :1])
    assert density.backend == "numpy"
    u = density.initial_point()
    expected, by_u = LogPosterior(gp, X, Y[:, :1], backend="torch")(u)
    value, gradient = density(u)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, by_u, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("structure", ["decomposable", "curl_free"])
def test_registered_kernel_is_trained_by_name_reported_and_stored(registry, structure, tmp_path):
    register_kernel(RECORD)
    X, Y = field_data()
    model = ovkgp.GPRegressor(structure, base_kernel="matern72", random_state=0).fit(X, Y)
    assert sum(isinstance(part, Matern72Kernel) for part in model.gp_.kernel.modules()) == 1
    model.save(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(ovkgp.load(tmp_path / "model.ovkgp").predict(X), model.predict(X), rtol=1e-6, atol=1e-8)


def test_unregistered_kernel_is_not_loaded(registry, tmp_path, monkeypatch):
    register_kernel(RECORD)
    X, Y = field_data(12)
    ovkgp.GPRegressor("decomposable", base_kernel="matern72", random_state=0).fit(X, Y).save(tmp_path / "model.ovkgp")
    monkeypatch.delitem(records._RECORDS, Matern72Kernel)
    with pytest.raises(ovkgp.exceptions.OvkgpError, match="Matern72Kernel"):
        ovkgp.load(tmp_path / "model.ovkgp")


def test_rough_kernel_has_no_field():
    with pytest.raises(SmoothnessError, match=r"MaternKernel\(nu=0.5\) has no second derivative at zero lag"):
        CurlFreeKernel(MaternKernel(nu=0.5))
