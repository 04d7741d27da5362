"""Every spectral pair reproduces its kernel: Monte-Carlo z-scores, the rate D^(−1/2), and errors."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, MultitaskKernel, RBFKernel, RBFKernelGrad, ScaleKernel
from spectral_cases import CASES, FIELDS, NUM_DIMS, make

from ovkgp.exceptions import KernelTypeError, OptionError, SmoothnessError, SpectralError
from ovkgp.features import ORFF, SpectralPair, moment_order, spectral_pair
from ovkgp.features.bounds import kernel_variance
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    ExponentiatedChi2Kernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    KernelRecord,
    LaplaceKernel,
    MultiplicativeGroup,
    Profile,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
    register_kernel,
)

BOTH = [(name, True) for name in CASES] + [
    (name, False)
    for name in FIELDS
    if "matern32" not in name  # rejected: infinite variance
]


def points(d, rows=4):
    """Positive, so that they lie in the domain of every group."""
    return torch.from_numpy(np.random.default_rng(3).uniform(0.2, 1.3, (rows, d)))


def term_draws(term, uniforms, x, z):
    """cos⟨ω, h(x) − h(z)⟩ B Bᵀ for each draw (D, p, p); p points an output for transformed kernels."""
    frequencies = term.frequencies(uniforms)
    factor = term.factor(frequencies)
    hx, hz = (t if term.warp is None else term.warp(t) for t in (x, z))
    if hx.dim() == 3:  # (1, p, q): the scalar kernel between all pairs of transformed points
        lag = hx[0].unsqueeze(1) - hz[0].unsqueeze(0)
        return torch.cos(torch.einsum("abq,jq->jab", lag, frequencies)) * (factor @ factor.mT)
    return torch.cos((hx - hz) @ frequencies.mT).mT.unsqueeze(-1) * (factor @ factor.mT)


@pytest.mark.parametrize("D", [40_000, pytest.param(400_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "bounded"), BOTH)
@pytest.mark.slow
def test_monte_carlo_kernel_agrees_with_the_closed_form(name, bounded, D):
    """|z| < 4 for every entry of the block at three lags, D iid frequencies."""
    kernel = make(name)
    pair = spectral_pair(kernel, num_dims=NUM_DIMS[name], bounded=bounded)
    rng = np.random.default_rng(11)
    uniforms = [torch.from_numpy(rng.random((D, term.base_dim))) for term in pair.terms]
    x = points(NUM_DIMS[name])
    with torch.no_grad():
        for z in x[1:]:
            draws = sum(term_draws(t, u, x[:1], z[None]) for t, u in zip(pair.terms, uniforms, strict=True))
            error = draws.mean(0) - kernel(x[:1], z[None]).to_dense()
            standard_error = draws.std(0) / D**0.5
            assert (error.abs() <= 4 * standard_error + 1e-12).all(), (error / standard_error).abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "cosine"])
def test_errors_decrease_as_one_over_root_d(name):
    kernel, x = make(name), points(NUM_DIMS[name])
    sizes = np.array([64, 256, 1024, 4096])
    with torch.no_grad():
        K = kernel(x).to_dense()
        errors = [
            np.mean([_squared_error(kernel, K, x, D, seed, NUM_DIMS[name]) for seed in range(24)]) ** 0.5 for D in sizes
        ]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def _squared_error(kernel, K, x, D, seed, num_dims, sampler="iid"):
    Phi = ORFF(kernel, D, num_dims=num_dims, sampler=sampler, random_state=seed)(x).to_dense()
    return (Phi @ Phi.mT - K).square().mean().item()


def test_cosine_kernel_is_exact_with_one_frequency():
    kernel, x = make("cosine"), points(2)
    assert _squared_error(kernel, kernel(x).to_dense(), x, 1, 0, None) < 1e-24


@pytest.mark.parametrize("sampler", ["orthogonal", "qmc"])
@pytest.mark.parametrize("name", ["rbf", "curl-free rbf", "divergence-free rbf"])
def test_orthogonal_and_qmc_errors_are_smaller_than_iid_at_equal_d(name, sampler):
    kernel, d = make(name), NUM_DIMS[name]
    x = points(d, rows=12)
    with torch.no_grad():
        K = kernel(x).to_dense()
        ours, iid = (
            np.mean([_squared_error(kernel, K, x, 60, seed, d, s) for seed in range(40)]) for s in (sampler, "iid")
        )
    assert ours < 0.9 * iid


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["orthogonal", "qmc"])
@pytest.mark.parametrize(
    "name", ["rbf", "matern32", "rq", "icm", "lmc", "curl-free rbf", "divergence-free matern52", "helmholtz"]
)
def test_structured_samplers_are_unbiased(name, sampler):
    """The mean over 400 independent maps agrees with the kernel within 4 standard errors, entry by entry."""
    kernel, d = make(name), NUM_DIMS[name]
    x = points(d)
    with torch.no_grad():
        K = kernel(x).to_dense()
        maps = [ORFF(kernel, 6, num_dims=d, sampler=sampler, random_state=seed)(x).to_dense() for seed in range(400)]
        draws = torch.stack([Phi @ Phi.mT for Phi in maps])
    standard_error = draws.std(0) / 20
    assert ((draws.mean(0) - K).abs() <= 4.5 * standard_error + 1e-12).all()


@pytest.mark.parametrize("make_kernel", [lambda: LaplaceKernel(ard_num_dims=2), lambda: make("skewed chi2")])
def test_orthogonal_sampling_of_product_distributions_is_rejected(make_kernel):
    with pytest.raises(SpectralError, match='sampler="qmc"'):
        ORFF(make_kernel(), 10, sampler="orthogonal")


@pytest.mark.parametrize("field", [CurlFreeKernel, DivergenceFreeKernel])
def test_infinite_variance_is_rejected(field):
    rough = field(MaternKernel(nu=1.5, ard_num_dims=2))
    with pytest.raises(SpectralError, match="infinite variance"):
        ORFF(rough, 10, bounded=False)
    ORFF(rough, 10)  # the bounded features are fine
    with pytest.raises(SpectralError, match="infinite variance"):  # no bounded form, and E‖ω‖⁴ = ∞
        ORFF(field(SobolevKernel(order=2, ard_num_dims=2)), 10)
    with pytest.raises(SpectralError, match="infinite variance"):
        ORFF(field(RBFKernel(ard_num_dims=2) * MaternKernel(nu=1.5)), 10)


def test_moment_order_of_every_kind_of_kernel():
    assert moment_order(LaplaceKernel()) == 1
    assert moment_order(DecomposableKernel(MaternKernel(nu=1.5), num_outputs=2)) == 3
    assert moment_order(CurlFreeKernel(RBFKernel())) == math.inf
    assert moment_order(RBFKernel() * SobolevKernel(order=2)) == 3
    assert moment_order(HelmholtzKernel(MaternKernel(nu=1.5), num_dims=2)) == 3
    assert moment_order(MultitaskKernel(MaternKernel(nu=0.5), num_tasks=2)) == 1
    assert moment_order(FunctionValuedKernel(RBFKernel(), LaplaceKernel())) == 1
    assert moment_order(FunctionValuedKernel(RBFKernel(), LaplaceKernel(), tasks=torch.arange(2.0))) == math.inf


@pytest.mark.parametrize("kernel", [LinearKernel(), ExponentiatedChi2Kernel(), RBFKernelGrad()])
def test_kernels_without_a_pair_raise_with_advice(kernel):
    with pytest.raises(SpectralError, match="Nystrom"):
        spectral_pair(kernel)


def test_spectral_pair_rejects_other_objects():
    with pytest.raises(KernelTypeError):
        spectral_pair("rbf")
    with pytest.raises(KernelTypeError):
        ORFF("rbf")


def test_spectral_pair_requires_the_input_dimension():
    with pytest.raises(OptionError, match="num_dims"):
        ORFF(RBFKernel(), 5)
    assert ORFF(RBFKernel(active_dims=[0, 3]), 5).frequencies.shape == (5, 2)
    assert ORFF(CurlFreeKernel(RBFKernel(), num_dims=4), 5).frequencies.shape == (5, 4)


def test_subclass_with_another_forward_inherits_no_pair():
    class Doubled(RBFKernel):
        def forward(self, x1, x2, **params):
            return super().forward(2 * x1, 2 * x2, **params)

    with pytest.raises(SpectralError, match="register"):
        spectral_pair(Doubled(ard_num_dims=1))
    with pytest.raises(SmoothnessError, match="register"):
        CurlFreeKernel(Doubled(ard_num_dims=2))


def test_custom_kernel_is_registered_with_one_function():
    class CustomKernel(RBFKernel):
        """exp(−2 r²/ℓ²): a subclass whose parent's pair would be wrong."""

        def forward(self, x1, x2, **params):
            return super().forward(2 * x1, 2 * x2, **params)

    def pair(kernel, num_dims):
        return SpectralPair(num_dims, lambda u: 2 * torch.special.ndtri(u) / kernel.lengthscale)

    register_kernel(KernelRecord(CustomKernel, spectral_pair=pair))
    kernel = DecomposableKernel(CustomKernel(), output_matrix=torch.eye(2)).double()
    x = torch.linspace(0, 1, 5).double().unsqueeze(-1)
    Phi = ORFF(kernel, 20_000, num_dims=1, random_state=0)(x).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, kernel(x).to_dense(), atol=0.03, rtol=0)  # 4/√20 000


def test_fields_over_a_custom_kernel_use_its_pair():
    """A subclass of RBFKernel with another formula, derivatives and pair is not treated as an RBF kernel."""

    class Sharper(RBFKernel):
        def forward(self, x1, x2, **params):
            return super().forward(2 * x1, 2 * x2, **params)

    def profile(xp, s, kernel):
        value = xp.exp(-2 * s)
        return Profile(value, lambda: -2 * value, lambda: 4 * value)

    def pair(kernel, num_dims):
        return SpectralPair(num_dims, lambda u: 2 * torch.special.ndtri(u) / kernel.lengthscale)

    register_kernel(KernelRecord(Sharper, {"lengthscale": "lengthscale"}, profile=profile, spectral_pair=pair))
    kernel = CurlFreeKernel(Sharper(ard_num_dims=2)).double()
    x = points(2)
    Phi = ORFF(kernel, 100_000, random_state=0)(x).to_dense()
    K = kernel(x).to_dense()
    assert (Phi @ Phi.mT - K).abs().max() < 0.03 * K.abs().max()
    scale = (2 / kernel.base_kernel.lengthscale[0, 0].item()) ** 4  # E[(ωωᵀ)²] − K(0)² for ω ~ N(0, 4/ℓ² I)
    variance = kernel_variance(kernel, torch.zeros(2), bounded=False)
    torch.testing.assert_close(variance, 3 * scale * torch.eye(2).double(), rtol=0.02, atol=0.02 * scale)


def test_pair_without_a_kernel_is_a_valid_kernel():
    """BT-50, BT-51: any pairing, distribution and factor make a positive semi-definite kernel, closed form or not."""
    pair = SpectralPair(
        base_dim=2,
        frequencies=lambda u: 5 * (u - 0.5),
        factor=lambda w: torch.stack([w, w.square()], -1)[..., :, :],
    )
    Phi = ORFF(pair, 10, random_state=0)(torch.randn(30, 2).double())
    assert Phi.shape == (60, 40)
    gram = Phi.to_dense() @ Phi.to_dense().mT
    assert torch.linalg.eigvalsh(gram).min() > -1e-10 * torch.linalg.eigvalsh(gram).max()


TAU = 0.6


def delay_pair(even=False, factor=None):
    """BT-E-15: two copies of one RBF process, the second delayed by τ: B(ω) = (1, e^{−iωτ})ᵀ."""

    def phases(w):
        return torch.stack([torch.ones_like(w), w * TAU], -2)

    def complex_factor(w):
        return torch.polar(torch.ones_like(phases(w)), -phases(w) * torch.tensor([[0.0], [1.0]]))

    return SpectralPair(1, torch.special.ndtri, factor or complex_factor, even=even)


def delay_kernel(x):
    """K_e(δ) = [[k(δ), k(δ − τ)], [k(δ + τ), k(δ)]] in data-major order."""
    lag = x - x.mT
    blocks = torch.stack([torch.stack([lag, lag - TAU], -1), torch.stack([lag + TAU, lag], -1)], -2)
    return torch.exp(-blocks.square() / 2).transpose(1, 2).reshape(2 * len(x), 2 * len(x))


def test_bt_e_15_complex_factor_reproduces_the_delay_kernel():
    x = torch.linspace(-1, 1, 7).double().unsqueeze(-1)
    K, D = delay_kernel(x), 100_000
    Phi = ORFF(delay_pair(), D, random_state=0)(x).to_dense()
    assert Phi.shape == (14, 2 * D)
    assert (Phi @ Phi.mT - K).abs().max() < 4 / D**0.5
    assert not torch.allclose(K[:2, 2:4], K[:2, 2:4].mT)  # and it is not even


def test_bt_e_11_the_conjugate_pairing_matters():
    """BT-E-11: with the pairing of the wrong sign, the delay would run backwards."""
    x = torch.linspace(-1, 1, 7).double().unsqueeze(-1)
    Phi = ORFF(delay_pair(), 20_000, random_state=0)(x).to_dense()
    backwards = delay_kernel(-x)
    assert (Phi @ Phi.mT - backwards).abs().max() > 0.3


@pytest.mark.parametrize("even", [True, False])
def test_bt_e_15_real_factor_is_rejected(even):
    """A complex factor called even, and a real factor for a signature that is not."""
    factor = None if even else lambda w: torch.ones(1, 2, 1, dtype=w.dtype)
    with pytest.raises(SpectralError, match="factor"):
        ORFF(delay_pair(even, factor), 10)


def test_bt_e_15_even_pair_of_a_kernel_that_is_not_even_is_rejected():
    class DelayKernel(TransformableKernel):
        pass

    @spectral_pair.register(DelayKernel)
    def _(kernel):
        return SpectralPair(1, torch.special.ndtri, lambda w: torch.ones(1, 2, 1, dtype=w.dtype))

    kernel = DelayKernel(RBFKernel(ard_num_dims=1), [_no_delay, _delay])
    hidden = (
        kernel,
        ScaleKernel(kernel),
        kernel * RBFKernel(ard_num_dims=1),
        kernel + DecomposableKernel(RBFKernel(active_dims=[0]), num_outputs=2),
        WarpedKernel(kernel, MultiplicativeGroup()),
    )
    for bad in hidden:
        with pytest.raises(SpectralError, match="is not even"):
            ORFF(bad, 10)


def _no_delay(x):
    return x


def _delay(x):
    return x - TAU


class Undeclared(Kernel):
    def forward(self, x1, x2, **params):
        return x1 @ x2.mT


def test_unregistered_kernel_raises():
    with pytest.raises(SpectralError, match="register"):
        ORFF(Undeclared(), 3, num_dims=1)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("d", [2, 3, 6])
def test_field_pair_factors_equal_their_formula(d, bounded):
    """BT-E-05, -06, -07: A = ωωᵀ and ‖ω‖²I − ωωᵀ, normalized by ‖ω∘ℓ‖²/d where bounded; d − 1 columns across."""
    lengthscale = torch.linspace(0.5, 2, d).double()
    base = RBFKernel(ard_num_dims=d).double()
    base.lengthscale = lengthscale
    uniforms = torch.from_numpy(np.random.default_rng(0).random((50, d + bounded)))
    for field in (CurlFreeKernel, DivergenceFreeKernel):
        pair = spectral_pair(field(base), bounded=bounded)
        w = pair.frequencies(uniforms)
        B = pair.factor(w)
        outer = w.unsqueeze(-1) * w.unsqueeze(-2)
        A = outer if field is CurlFreeKernel else w.square().sum(-1)[:, None, None] * torch.eye(d) - outer
        scale = d / (w * lengthscale).square().sum(-1) if bounded else torch.ones(50).double()
        torch.testing.assert_close(B @ B.mT, A * scale[:, None, None])
        assert B.shape == (50, d, 1 if field is CurlFreeKernel else d - 1)


@pytest.mark.parametrize("d", [2, 5])
def test_bt_e_05_and_06_bounded_factors_have_norm_d_over_sigma_squared(d):
    sigma = 0.7
    for field in (CurlFreeKernel, DivergenceFreeKernel):
        base = RBFKernel(ard_num_dims=d).double()
        base.lengthscale = sigma
        pair = spectral_pair(field(base))
        B = pair.factor(pair.frequencies(torch.rand(20, d + 1).double()))
        norms = torch.linalg.matrix_norm(B @ B.mT, ord=2)
        torch.testing.assert_close(norms, torch.full((20,), d / sigma**2).double())


def test_bt_e_07_unbounded_divergence_free_factor_is_orthogonal_to_its_frequency():
    """The printed ‖ω‖I − ωωᵀ is not; ‖ω‖I − ωωᵀ/‖ω‖ is."""
    pair = spectral_pair(DivergenceFreeKernel(RBFKernel(ard_num_dims=3)).double(), bounded=False)
    w = pair.frequencies(torch.rand(20, 3).double())
    assert (w.unsqueeze(-2) @ pair.factor(w)).abs().max() < 1e-13


def test_bt_e_08_spectral_distribution_has_precision_lengthscale_squared():
    """N(0, σ⁻²I), not N(0, σ²I): a longer lengthscale means lower frequencies."""
    base = RBFKernel(ard_num_dims=2).double()
    base.lengthscale = 4.0
    for field in (CurlFreeKernel, DivergenceFreeKernel):
        w = spectral_pair(field(base), bounded=False).frequencies(torch.rand(20_000, 2).double()).detach()
        assert w.std() == pytest.approx(0.25, rel=0.03)


def test_bounded_radii_follow_chi_with_two_more_degrees_of_freedom():
    from scipy.stats import chi2, kstest

    d = 3
    pair = spectral_pair(CurlFreeKernel(RBFKernel(ard_num_dims=d)).double())
    w = pair.frequencies(torch.from_numpy(np.random.default_rng(0).random((20_000, d + 1)))).detach()
    squared = (w * math.log(2)).square().sum(-1)  # the default lengthscale is log 2
    assert kstest(squared, chi2(d + 2).cdf).pvalue > 0.01


def test_matern_frequencies_are_multivariate_student():
    """One Gamma draw a frequency: ‖z‖²·2ν/(d·χ²) is F(d, 2ν); a draw a coordinate would not be."""
    from scipy.stats import f, kstest

    d, nu = 3, 1.5
    kernel = MaternKernel(nu=nu, ard_num_dims=d).double()
    kernel.lengthscale = 1.0
    w = spectral_pair(kernel).frequencies(torch.from_numpy(np.random.default_rng(0).random((20_000, d + 1)))).detach()
    assert kstest(w.square().sum(-1) / d, f(d, 2 * nu).cdf).pvalue > 0.01
