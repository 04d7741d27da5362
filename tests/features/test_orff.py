"""ORFF as an object: reproducible, growing, learnable, differentiable, and curl- or divergence-free draw by draw."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import AdditiveKernel, MaternKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense
from spectral_cases import CASES, FIELDS, NUM_DIMS, make
from torch.autograd.functional import jacobian

from ovkgp.exceptions import DomainError, InputError, KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF, SpectralPair, spectral_pair
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    SkewedChi2Kernel,
    TransformableKernel,
    num_outputs,
)


def small(**options):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=1)
    return ORFF(kernel, 10, **{"random_state": 0, **options})


X = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_orff_has_num_outputs_rows_per_point(name):
    kernel = make(name)
    orff = ORFF(kernel, 7, num_dims=NUM_DIMS[name], random_state=0)
    Phi = orff(torch.rand(4, NUM_DIMS[name]).double() + 0.1)
    assert Phi.shape == (4 * num_outputs(kernel), orff.num_features)
    assert orff.num_outputs == num_outputs(kernel)


SAMPLERS = ["iid", "orthogonal", "qmc"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_random_state_reproduces_bit_for_bit_without_global_state(sampler):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = small(sampler=sampler), small(sampler=sampler), small(sampler=sampler, random_state=1)
    assert torch.equal(first.frequencies, again.frequencies)
    assert not torch.equal(first.frequencies, other.frequencies)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


def test_random_state_none_differs_and_a_random_state_object_advances():
    assert not torch.equal(small(random_state=None).frequencies, small(random_state=None).frequencies)
    for state in (np.random.RandomState(0), np.random.default_rng(0)):
        assert not torch.equal(small(random_state=state).frequencies, small(random_state=state).frequencies)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_extend_keeps_the_old_frequencies_and_renormalizes(sampler):
    """BT-08: appended frequencies are those a larger map would have had."""
    orff, larger = small(sampler=sampler), small(sampler=sampler).extend(15)
    assert larger.num_frequencies == 25
    assert torch.equal(larger.frequencies[:10], orff.frequencies)
    direct = ORFF(larger.kernel, 25, sampler=sampler, random_state=0)
    assert torch.equal(direct.frequencies, larger.frequencies)
    torch.testing.assert_close(larger(X).to_dense(), direct(X).to_dense())
    torch.testing.assert_close(larger(X).to_dense()[:, :6] * 25**0.5, orff(X).to_dense()[:, :6] * 10**0.5)


def test_extend_keeps_learned_frequencies():
    orff = small(learn_frequencies=True)
    with torch.no_grad():
        orff.raw_frequencies_0.mul_(0.5)
    learned = orff.frequencies.detach().clone()
    assert torch.equal(orff.extend(3).frequencies[:10], learned)
    assert isinstance(orff.raw_frequencies_0, torch.nn.Parameter)


def test_blocks_are_regenerated_from_their_seed():
    """BT-93: block i is a function of (random_state, i), independent of the others, over the same kernel."""
    orff = small()
    memory = sum(b.numel() for b in orff.buffers())
    third = orff.block(3)
    assert torch.equal(third.frequencies, small().block(3).frequencies)
    assert torch.equal(orff.block(0).frequencies, orff.frequencies)
    assert not torch.equal(third.frequencies, orff.block(2).frequencies)
    assert third.kernel is orff.kernel
    assert sum(b.numel() for b in orff.buffers()) == memory
    assert torch.equal(orff.frequencies, small().frequencies)


def test_blocks_average_to_the_map_of_all_their_frequencies():
    orff = small()
    blocks = [orff.block(i)(X).to_dense() for i in range(400)]
    mean = sum(Phi @ Phi.mT for Phi in blocks) / 400
    assert (mean - orff.kernel(X).to_dense()).abs().max() < 0.1


def test_learn_frequencies_makes_them_parameters():
    """BT-110: the spectrum is learned; ordinary maps have no parameter beyond the kernel's."""
    orff, fixed = small(learn_frequencies=True), small()
    assert set(dict(orff.named_parameters())) - set(dict(fixed.named_parameters())) == {"raw_frequencies_0"}
    (orff(X).to_dense() @ torch.arange(60.0)).sum().backward()
    assert orff.raw_frequencies_0.grad.abs().min() > 0
    assert torch.equal(orff.frequencies, fixed.frequencies)


@pytest.mark.parametrize("learn", [False, True])
def test_state_dict_round_trip(learn):
    source, target = small(learn_frequencies=learn), small(learn_frequencies=learn, random_state=5)
    with torch.no_grad():
        source.kernel.base_kernel.lengthscale = torch.tensor([0.3, 2.0])
    buffer = io.BytesIO()
    torch.save(source.state_dict(), buffer)
    buffer.seek(0)
    target.load_state_dict(torch.load(buffer))
    assert torch.equal(source(X).to_dense(), target(X).to_dense())


@pytest.mark.parametrize("name", [n for n in CASES if n not in ("multitask", "lcm")])
def test_orff_survives_pickle_and_deepcopy(name):
    orff = ORFF(make(name), 4, num_dims=NUM_DIMS[name], random_state=0)
    x = torch.rand(3, NUM_DIMS[name]).double() + 0.1
    for twin in (pickle.loads(pickle.dumps(orff)), copy.deepcopy(orff)):
        assert torch.equal(twin(x).to_dense(), orff(x).to_dense())
        assert twin.kernel is not orff.kernel


def test_dtype_follows_the_inputs():
    assert small()(X).dtype == torch.float32
    assert small()(X.double()).dtype == torch.float64
    exact = small().double()(X.double()).to_dense()
    torch.testing.assert_close(small()(X).to_dense().double(), exact, atol=1e-5, rtol=0)


# Laws that pick integers or mixture components carry their gradient in an importance weight: not a path derivative.
SMOOTH = [n for n in CASES if not any(word in n for word in ("periodic", "seasonal", "mixture 2d", "free mixture"))]


@pytest.mark.parametrize("name", SMOOTH)
def test_features_are_differentiable_in_every_hyperparameter(name):
    """The gradient of a functional of ΦΦᵀ against central differences."""
    kernel = make(name)
    orff = ORFF(kernel, 3, num_dims=NUM_DIMS[name], random_state=0)
    x = torch.rand(3, NUM_DIMS[name], generator=torch.Generator().manual_seed(0)).double() + 0.2
    weight = torch.randn(3 * num_outputs(kernel), generator=torch.Generator().manual_seed(1)).double()

    def value():
        Phi = orff(x).to_dense()
        return (weight @ Phi).square().sum() + Phi[0].square().sum().sin()

    parameters = [p for p in kernel.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(value(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert gradient is not None
        step = 1e-6
        with torch.no_grad():
            flat = parameter.view(-1)
            for i in range(flat.numel()):
                flat[i] += step
                up = value()
                flat[i] -= 2 * step
                down = value()
                flat[i] += step
                assert gradient.view(-1)[i].item() == pytest.approx(
                    ((up - down) / (2 * step)).item(), rel=1e-4, abs=1e-6
                )


CURL = [n for n in FIELDS if n.startswith("curl-free") and "times" not in n]
DIV = [n for n in FIELDS if n.startswith("divergence-free")]


def field_jacobian(name, bounded, seed=0):
    """The Jacobian of one draw x ↦ Φ(x)θ at a few points, by autograd."""
    orff = ORFF(make(name), 20, num_dims=3, bounded=bounded, random_state=seed)
    theta = torch.randn(orff.num_features, generator=torch.Generator().manual_seed(seed)).double()
    for x in torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double():
        yield jacobian(lambda z: orff(z.unsqueeze(0))._matmul(theta), x)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("name", CURL)
def test_every_draw_of_curl_free_features_is_curl_free(name, bounded):
    if not bounded and "matern32" in name:
        bounded = True  # unbounded ones are rejected
    for J in field_jacobian(name, bounded):
        assert (J - J.mT).abs().max() < 1e-11 * J.abs().max()


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("name", DIV)
def test_every_draw_of_divergence_free_features_is_divergence_free(name, bounded):
    if not bounded and "matern32" in name:
        bounded = True
    for J in field_jacobian(name, bounded):
        assert J.trace().abs() < 1e-11 * J.abs().max()


def test_helmholtz_draw_is_neither_curl_nor_divergence_free_unlike_its_parts():
    orff = ORFF(make("helmholtz"), 20, random_state=0)
    theta = torch.randn(orff.num_features).double()
    x = torch.randn(3).double()
    J = jacobian(lambda z: orff(z.unsqueeze(0))._matmul(theta), x)
    assert (J - J.mT).abs().max() > 1e-3
    assert J.trace().abs() > 1e-3
    curl = jacobian(lambda z: orff(z.unsqueeze(0)).parts[0]._matmul(theta[:40]), x)
    assert (curl - curl.mT).abs().max() < 1e-11 * curl.abs().max()


def test_scalar_features_have_exact_variance():
    """BT-04: k̃(x, x) = k(0) exactly, for every draw."""
    Phi = ORFF(ScaleKernel(MaternKernel(ard_num_dims=2)).double(), 5, random_state=0)(X.double())
    torch.testing.assert_close(
        Phi.squared_rows(), torch.full((5,), torch.nn.functional.softplus(torch.zeros(())).item()).double()
    )


def test_bt_e_12_and_13_the_estimate_is_a_mean_and_not_a_sum():
    """BT-E-12, BT-E-13: K̃ = (1/D) Σ_j cos⟨ω_j, δ⟩ A(ω_j)."""
    orff = ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)).double(), 50, random_state=0)
    x = X.double()
    w = orff.frequencies
    B = orff.factors[0]
    cos = torch.cos((x[0] - x[1]) @ w.mT)
    Phi = orff(x).to_dense()
    torch.testing.assert_close(Phi[:2] @ Phi[2:4].mT, (cos[:, None, None] * (B @ B.mT)).mean(0))


def test_bt_52_feature_operator_converges():
    """θ = D^(−1/2) ⊕ g(ω_j) ⇒ ‖θ‖² → E g² and Φ(x)θ → E[cos⟨ω, x⟩ g(ω)], at rate D^(−1/2)."""
    orff = ORFF(RBFKernel(ard_num_dims=1).double(), 100_000, random_state=0)
    w = orff.frequencies.squeeze(-1)
    lengthscale = orff.kernel.lengthscale.item()
    g = torch.exp(-(w**2) * lengthscale**2 / 2)
    theta = torch.cat([g, torch.zeros_like(g)]) / 100_000**0.5
    assert theta.square().sum().item() == pytest.approx(3**-0.5, abs=0.01)  # E exp(−z²) = 1/√3
    x = torch.tensor([[0.5]]).double()
    expected = 2**-0.5 * np.exp(-(0.5**2) / (4 * lengthscale**2))  # E[cos(ωx) e^{−z²/2}]
    assert (orff(x) @ theta).item() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("field", [None, CurlFreeKernel, DivergenceFreeKernel])
def test_bt_55_spectral_form_of_the_rkhs_norm(field):
    """‖K(·, x₀)u‖² = uᵀK_e(e)u; its Fourier transform is ρ(ω)A(ω)u, so that ⟨Ff, A†Ff⟩/ρ integrates to E[uᵀAu]."""
    base = RBFKernel(ard_num_dims=2).double()
    kernel = (
        DecomposableKernel(base, output_matrix=torch.tensor([[1.0, 0.5], [0.5, 2.0]])).double()
        if field is None
        else field(base)
    )
    pair = spectral_pair(kernel)
    uniforms = torch.from_numpy(np.random.default_rng(0).random((100_000, pair.base_dim)))
    B = pair.factor(pair.frequencies(uniforms)).detach()
    A = (B @ B.mT).expand(len(uniforms), 2, 2)
    u = torch.tensor([0.3, -1.1]).double()
    draws = torch.einsum("a,jab,jbc,jcd,d->j", u, A, torch.linalg.pinv(A), A, u)
    exact = u @ kernel(torch.zeros(1, 2).double()).to_dense() @ u
    error = 4 * draws.std().item() / draws.numel() ** 0.5 + 1e-9
    assert draws.mean().item() == pytest.approx(exact.item(), abs=error)


def test_orff_rejects_invalid_arguments():
    orff = small()
    with pytest.raises(InputError, match="NaN or infinity"):
        orff(torch.tensor([[0.0, torch.nan]]))
    with pytest.raises(InputError, match="NaN or infinity"):
        orff(torch.tensor([[0.0, torch.inf]]))
    with pytest.raises(InputError, match="2 columns, got 3"):
        orff(torch.zeros(4, 3))
    with pytest.raises(InputError, match="floating"):
        orff(torch.zeros(4, 2, dtype=torch.long))
    with pytest.raises(InputError, match="tensor"):
        orff(np.zeros((4, 2)))
    with pytest.raises(OptionError, match="at least 1"):
        ORFF(RBFKernel(ard_num_dims=1), 0)
    with pytest.raises(OptionError, match="sampler"):
        ORFF(RBFKernel(ard_num_dims=1), 5, sampler="halton")
    with pytest.raises(OptionError, match="random_state"):
        small(random_state=-1)
    with pytest.raises(OptionError):
        small().extend(-1)
    with pytest.raises(DomainError):
        ORFF(SkewedChi2Kernel(ard_num_dims=2), 5)(torch.full((1, 2), -5.0))


def test_orff_of_one_point_and_frequency_has_unit_variance():
    Phi = ORFF(RBFKernel(ard_num_dims=1), 1, random_state=0)(torch.zeros(1))
    assert Phi.shape == (1, 2)
    torch.testing.assert_close((Phi @ Phi.mT).to_dense(), torch.ones(1, 1))


def test_duplicate_inputs_have_equal_rows():
    Phi = small()(X[[0, 0]]).to_dense()
    assert torch.equal(Phi[:3], Phi[3:])


def test_batches_of_hyperparameters_use_the_same_base_samples():
    base = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([2]))
    base.lengthscale = torch.tensor([[[0.5, 0.5]], [[2.0, 1.0]]])
    orff = ORFF(CurlFreeKernel(base), 6, random_state=0)
    Phi = orff(X)
    assert Phi.shape == (2, 10, 12)
    for i in range(2):
        single = ORFF(CurlFreeKernel(base[i]), 6, random_state=0)(X)
        torch.testing.assert_close(Phi.to_dense()[i], single.to_dense())


def test_maps_over_other_kernels_do_not_change_the_original():
    orff = ORFF(RBFKernel(ard_num_dims=2), 4, random_state=0)
    other = orff.over(RBFKernel(ard_num_dims=2))
    other.extend(4)
    other.double()
    assert orff.num_frequencies == 4
    assert orff.frequencies.shape == (4, 2)
    assert orff.raw_frequencies_0.dtype == torch.float32


@pytest.mark.parametrize("name", ["periodic", "cosine", "sobolev periodic", "icm times periodic"])
def test_frequencies_on_a_lattice_cannot_be_learned(name):
    with pytest.raises(SpectralError, match="lattice"):
        ORFF(make(name), 4, num_dims=NUM_DIMS[name], learn_frequencies=True)


@pytest.mark.parametrize("field", [CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel])
def test_orff_scales_with_batches_of_outputscales(field):
    kernel = ScaleKernel(field(RBFKernel(ard_num_dims=2)), batch_shape=torch.Size([3]))
    kernel.outputscale = torch.tensor([0.5, 1.0, 2.0])
    Phi = ORFF(kernel, 5, random_state=0)(X).to_dense()
    once = ORFF(kernel.base_kernel, 5, random_state=0)(X).to_dense()
    torch.testing.assert_close(Phi, kernel.outputscale.detach().sqrt()[:, None, None] * once)


def test_orff_approximates_delays_times_a_scalar_kernel():
    kernel = (
        TransformableKernel(RBFKernel(ard_num_dims=1), [Delay(0.0), Delay(0.4)]) * RBFKernel(ard_num_dims=1)
    ).double()
    x = torch.linspace(0, 1, 4).double().unsqueeze(-1)
    Phi = ORFF(kernel, 20_000, random_state=0)(x).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, kernel(x).to_dense(), atol=0.03, rtol=0)  # 4/√20 000


def test_sums_of_kernels_with_different_outputs_are_rejected():
    with pytest.raises(KernelTypeError, match="outputs"):
        ORFF(AdditiveKernel(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2), RBFKernel(ard_num_dims=2)), 4)


def test_orff_of_a_product_does_not_depend_on_the_order():
    scalar, vector = RBFKernel(ard_num_dims=2), DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
    X = torch.rand(3, 2)
    first, second = (to_dense(ORFF(kernel, 4, random_state=0)(X)) for kernel in (scalar * vector, vector * scalar))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("count", [2.7, "many", None])
def test_orff_rejects_num_frequencies_that_is_not_an_integer(count):
    with pytest.raises(OptionError, match="num_frequencies"):
        ORFF(RBFKernel(ard_num_dims=1), count)


def test_orff_rejects_invalid_shapes_and_dimensions():
    with pytest.raises(OptionError, match="at least 0"):
        small().block(-1)
    with pytest.raises(OptionError, match="num_dims must be 2"):
        ORFF(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2), 3, num_dims=3)
    with pytest.raises(InputError, match="column 4"):
        ORFF(RBFKernel(active_dims=[4]), 3)(X)
    with pytest.raises(OptionError, match="columns of x and of the task"):
        ORFF(FunctionValuedKernel(RBFKernel(), RBFKernel()), 3, num_dims=1)
    with pytest.raises(SpectralError, match="shape"):
        ORFF(SpectralPair(1, torch.special.ndtri, lambda w: torch.ones(2, 2)), 3)


def test_features_reject_frequencies_and_phases_that_overflow():
    kernel = RBFKernel(ard_num_dims=2).double()
    orff = ORFF(kernel, 4, random_state=0)
    with pytest.raises(InputError, match=r"finite phases.*1.7e\+308"):
        orff(torch.tensor([[0.0, 0.0], [1.7e308, 1.7e308]], dtype=torch.float64))
    assert torch.isfinite(to_dense(orff(torch.tensor([[1e300, 0.0]], dtype=torch.float64)))).all()
    kernel.register_constraint("raw_lengthscale", Positive(transform=None, inv_transform=None))
    kernel.lengthscale = torch.tensor(5e-324, dtype=torch.float64)
    with pytest.raises(OptionError, match="lengthscale"):
        orff(torch.zeros(2, 2, dtype=torch.float64))
