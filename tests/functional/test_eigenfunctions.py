"""Tests of `ovkgp.functional.eigenfunctions`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.stats import beta, norm, uniform

from ovkgp.exceptions import InputError, KernelTypeError, SmoothnessError
from ovkgp.functional import BSplines, Eigenfunctions, GaussianEigenfunctions, RandomFourier
from ovkgp.functional.eigenfunctions import (
    EigenFactor,
    feature_eigenpairs,
    gaussian_eigenpairs,
    laplace_eigenpairs,
    sampled_eigenpairs,
    uniform_moments,
)
from ovkgp.kernels import LaplaceKernel
from ovkgp.losses import TaskMeasure, gauss_legendre, product_measure, sobol

FINE = gauss_legendre(400)


def orthonormality(pairs, measure=FINE):
    values = pairs.functions(measure.nodes)
    return ((values * measure.weights[:, None]).T @ values - torch.eye(len(pairs))).abs().max().item()


def rbf(gamma):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(1 / math.sqrt(2 * gamma), dtype=torch.float64)
    return kernel


def test_lt_e_15_the_eigenfunctions_of_the_laplace_kernel_are_orthonormal():
    pairs = laplace_eigenpairs(20)
    assert orthonormality(pairs) < 1e-12
    roots = (2 / pairs.values - 1).sqrt()
    assert torch.allclose(roots[:4], torch.tensor([1.30654, 3.67319, 6.58462, 9.63168]).double(), atol=1e-5)
    assert torch.allclose(1 / roots.tan(), (roots - 1 / roots) / 2, atol=1e-8)


@pytest.mark.parametrize("lengthscale", [0.2, 1.0, 5.0])
def test_laplace_pairs_are_those_of_the_operator_at_any_lengthscale(lengthscale):
    pairs, t = laplace_eigenpairs(6, lengthscale), 0.37
    low, high = gauss_legendre(100, 0, t), gauss_legendre(100, t, 1)  # the kernel has a kink at t
    image = sum(
        width * (rule.weights * (-(rule.nodes - t).abs() / lengthscale).exp()) @ pairs.functions(rule.nodes)
        for width, rule in ((t, low), (1 - t, high))
    )
    at = torch.tensor([t], dtype=torch.float64)
    assert torch.allclose(image, pairs.values * pairs.functions(at)[0], atol=1e-12)
    assert orthonormality(pairs) < 1e-10


def test_mercers_sum_of_the_laplace_kernel_converges():
    """LT B-09: Σλ = 1, tail 2/(π²N), error of the kernel 5e-4 with 400 pairs, and twice that at the ends of the interval."""
    pairs = laplace_eigenpairs(400)
    t = torch.linspace(0, 1, 41).double()
    rows = EigenFactor(pairs)(t[:, None])
    error = (rows @ rows.T - (-(t[:, None] - t).abs()).exp()).abs()
    assert error[1:-1, 1:-1].max() < 5.5e-4 and error.max() < 1.1e-3
    assert 1 - pairs.values.sum().item() == pytest.approx(2 / (math.pi**2 * 400), rel=0.01)


def test_sampled_pairs_are_orthonormal_for_their_measure_and_extend_by_the_kernel():
    """LT-22 with weights."""
    measure, kernel = gauss_legendre(12), rbf(3.0)
    pairs = sampled_eigenpairs(kernel, measure).first(6)
    assert orthonormality(pairs, measure) < 1e-9
    t = torch.tensor([0.123, 0.77]).double()
    image = (kernel(t[:, None], measure.nodes[:, None]).to_dense() * measure.weights) @ pairs.functions(measure.nodes)
    assert torch.allclose(image, pairs.values * pairs.functions(t), atol=1e-10)


def test_sampled_pairs_of_uniform_weights_are_eigenvalues_over_m():
    nodes = torch.rand(15, generator=torch.Generator().manual_seed(0)).double()
    K = rbf(20.0)(nodes[:, None]).to_dense()
    values, vectors = torch.linalg.eigh(K)
    pairs = sampled_eigenpairs(rbf(20.0), TaskMeasure(nodes))
    assert torch.allclose(pairs.values[:5], values.flip(0)[:5] / 15)
    first = pairs.functions(nodes)[:, 0].abs()
    assert torch.allclose(first, math.sqrt(15) * vectors[:, -1].abs(), atol=1e-8)


def test_sampled_pairs_approach_those_of_the_operator():
    exact = laplace_eigenpairs(3).values
    kernel = LaplaceKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(1.0, dtype=torch.float64)
    sampled = sampled_eigenpairs(kernel, gauss_legendre(200)).values[:3]
    assert torch.allclose(sampled, exact, atol=1e-4)


def test_moments_of_fourier_features_equal_their_closed_form():
    """LT B-10."""
    frequencies = torch.tensor([0.0, 0.3, 2.0, 2.0, -5.0]).double()
    angles = FINE.nodes[:, None] * frequencies
    F = torch.cat([angles.cos(), angles.sin()], 1)
    assert torch.allclose(uniform_moments(frequencies), (F * FINE.weights[:, None]).T @ F, atol=1e-12)


@pytest.mark.parametrize("measure", [None, gauss_legendre(30, 0.2, 0.9)])
def test_lt_e_16_eigenpairs_of_fourier_features(measure):
    """T̃ψ = λψ for k̃ = FᵀF/D, with ψ = Fᵀa/√e and λ = e/D."""
    frequencies = 4 * torch.randn(7, generator=torch.Generator().manual_seed(0)).double()
    pairs, rule = feature_eigenpairs(frequencies, measure), FINE if measure is None else measure
    t = torch.tensor([0.25, 0.6]).double()
    kernel = torch.cos((t[:, None, None] - rule.nodes[:, None]) * frequencies).mean(-1)
    image = (kernel * rule.weights) @ pairs.functions(rule.nodes)
    assert torch.allclose(image, pairs.values * pairs.functions(t), atol=1e-10)
    assert orthonormality(pairs, rule) < 1e-4  # the smallest eigenvalues are at the cutoff, 1e-10 of the largest
    assert orthonormality(pairs.first(4), rule) < 1e-9
    rows = EigenFactor(pairs)(t[:, None])
    assert torch.allclose(rows @ rows.T, torch.cos((t[:, None, None] - t[:, None]) * frequencies).mean(-1), atol=1e-8)


def test_lt_24_eigenpairs_of_fourier_features_in_the_plane():
    """Moments over [0, 1]² in closed form equal a product rule, and T̃ψ = λψ; another measure by its nodes."""
    rule = gauss_legendre(24, num_dims=2)
    frequencies = 3 * torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    angles = rule.nodes @ frequencies.T
    F = torch.cat([angles.cos(), angles.sin()], 1)
    assert torch.allclose(uniform_moments(frequencies), (F * rule.weights[:, None]).T @ F, atol=1e-12)
    t = torch.tensor([[0.25, 0.4], [0.6, 0.9]], dtype=torch.float64)
    for measure in (None, sobol(64, [beta(2, 1), uniform()], random_state=0)):
        pairs, used = feature_eigenpairs(frequencies, measure).first(4), rule if measure is None else measure
        kernel = torch.cos((t[:, None] - used.nodes) @ frequencies.T).mean(-1)
        image = (kernel * used.weights) @ pairs.functions(used.nodes)
        assert torch.allclose(image, pairs.values * pairs.functions(t), atol=1e-10)
        assert torch.allclose(EigenFactor(pairs)(t), pairs.functions(t) * pairs.values.sqrt())
    with pytest.raises(InputError, match="num_dims=1"):
        feature_eigenpairs(frequencies, gauss_legendre(5))
    with pytest.raises(SmoothnessError, match="one dimension"):
        EigenFactor(pairs).slopes(t)


def test_sampled_pairs_in_the_plane_are_products_of_those_of_a_product_kernel():
    """LT-22 in R²: the Gaussian kernel on a product rule has the products of the eigenvalues of one dimension."""
    line = gauss_legendre(10)
    values = sampled_eigenpairs(rbf(3.0), line).values
    pairs = sampled_eigenpairs(rbf(3.0), product_measure(line, line))
    products = torch.outer(values, values).flatten().sort(descending=True).values[:12]
    assert torch.allclose(pairs.values[:12], products, rtol=1e-7, atol=0)
    measure = product_measure(line, line)
    assert orthonormality(pairs.first(6), measure) < 1e-9
    curve = pairs.functions(measure.nodes)[:, 2:3].T
    coefficients = pairs.first(5).coefficients(curve, measure)
    assert torch.allclose(coefficients, torch.eye(5).double()[2:3], atol=1e-8)


def test_lt_e_13_14_the_norm_is_that_of_the_square_root_of_the_operator():
    """k(·, t) is in H with norm k(t, t), though it is not in the image of T, which is smaller than H (LT-E-14): Σ c²/λ² diverges, Σ c²/λ does not."""
    t = torch.tensor([0.3]).double()
    norms, images = [], []
    for count in (100, 400, 1600):
        pairs = laplace_eigenpairs(count)
        c = pairs.values * pairs.functions(t)[0]  # ⟨k(·, t), ψ_j⟩
        norms.append(pairs.squared_norm(c).item())
        images.append((c / pairs.values).square().sum().item())  # ‖f‖² for k(·, t) = T f
    assert norms[2] == pytest.approx(1.0, abs=1e-3) and abs(norms[2] - 1) < abs(norms[0] - 1)
    assert images[2] > 3.5 * images[1] > 12 * images[0]


def test_squared_norm_of_sections_is_the_quadratic_form_of_the_kernel():
    """‖Σ a_i k(·, t_i)‖² = aᵀKa."""
    pairs = sampled_eigenpairs(rbf(3.0), gauss_legendre(25))
    t, a = torch.tensor([0.1, 0.5, 0.8]).double(), torch.tensor([1.0, -2.0, 0.5]).double()
    c = a @ (pairs.values * pairs.functions(t))
    assert pairs.squared_norm(c).item() == pytest.approx((a @ rbf(3.0)(t[:, None]).to_dense() @ a).item(), rel=1e-6)


@pytest.mark.parametrize(
    "pairs", [laplace_eigenpairs(5), feature_eigenpairs([1.0, 3.0]), sampled_eigenpairs(rbf(3.0), gauss_legendre(6))]
)
def test_slopes_are_derivatives(pairs):
    factor, t, step = EigenFactor(pairs), torch.tensor([[0.2], [0.7]]).double(), 1e-6
    differences = (factor(t + step) - factor(t - step)) / (2 * step)
    assert torch.allclose(factor.slopes(t), differences, atol=1e-6)


def test_eigenpairs_reject_invalid_arguments():
    with pytest.raises(InputError, match="curves"):
        laplace_eigenpairs(3).coefficients(torch.zeros(4, 5).double(), gauss_legendre(6))
    with pytest.raises(InputError, match="measure"):
        sampled_eigenpairs(rbf(1.0), TaskMeasure(np.zeros((2, 3))))
    with pytest.raises(InputError, match="lengthscale"):
        laplace_eigenpairs(3, lengthscale=-1.0)


def test_sampled_eigenfunctions_require_no_gradient_and_do_not_follow_the_kernel():
    kernel, tasks = rbf(3.0), torch.linspace(0, 1, 7, dtype=torch.float64)
    assert any(parameter.requires_grad for parameter in kernel.requires_grad_(True).parameters())
    pairs = sampled_eigenpairs(kernel, gauss_legendre(25))
    before = pairs.functions(tasks)
    assert not before.requires_grad and not pairs.values.requires_grad
    kernel.lengthscale = 0.1
    assert torch.equal(pairs.functions(tasks), before)


def laplace(lengthscale=1.0):
    kernel = LaplaceKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale).double()
    return kernel


def test_bo_14_eigenvalues_of_the_laplace_kernel():
    expected = [0.738811, 0.138004, 0.045088, 0.021329]
    assert np.allclose(Eigenfunctions(laplace(), 4).eigenvalues, expected, atol=5e-7)
    sampled = Eigenfunctions(laplace(), 4, method="sampled", num_nodes=800)
    assert np.allclose(sampled.eigenvalues, expected, atol=2e-6)
    matern = ScaleKernel(MaternKernel(nu=0.5)).double()
    matern.outputscale, matern.base_kernel.lengthscale = torch.tensor(3.0).double(), torch.tensor(1.0).double()
    assert np.allclose(Eigenfunctions(matern, 4, method="exact").eigenvalues, 3 * np.array(expected), atol=2e-6)


def test_bo_e_31_eigenpairs_of_midpoints_approach_those_of_the_operator():
    """BO C-04: √m k(θ)ᵀu/λ̂ is orthonormal on the nodes; m = 400 gives the first four eigenvalues within 2e-6."""
    nodes = (torch.arange(400).double() + 0.5) / 400
    pairs = sampled_eigenpairs(laplace(), TaskMeasure(nodes)).first(4)
    assert torch.allclose(pairs.values, laplace_eigenpairs(4).values, atol=2e-6)
    rows = pairs.functions(nodes)
    assert torch.allclose(rows.T @ rows / 400, torch.eye(4).double(), atol=1e-10)
    printed = rows * pairs.values.sqrt()  # 1/√(mλ̃) instead of 1/(√m λ̃)
    assert not torch.allclose(printed.T @ printed / 400, torch.eye(4).double(), atol=0.1)


@pytest.mark.parametrize("domain", [(0, 1), (-1, 3)])
def test_bo_c_03_mercer_sum_of_the_laplace_kernel_on_any_interval(domain):
    functions = Eigenfunctions(laplace(0.7), 400, domain)
    t = np.linspace(*domain, 23)[1:-1]
    rows = functions(t)
    error = np.abs((rows * functions.eigenvalues) @ rows.T - np.exp(-np.abs(t[:, None] - t) / 0.7))
    assert error.max() < 1e-3 * functions.volume / 0.7
    assert functions.trace == pytest.approx(functions.volume)
    tail = functions.trace - functions.eigenvalues.sum()
    assert tail == pytest.approx(2 * functions.volume**2 / 0.7 / (np.pi**2 * 400), rel=0.02)


def test_bo_c_03_hermite_pairs_of_the_gaussian_kernel():
    """BO-14: 60 terms of Mercer's sum; orthonormal under N(0, σ²) after division by √((a/c)^½ 2^l l!); the eigenvalues sum to 1."""
    pairs = gaussian_eigenpairs(60, lengthscale=0.8, std=0.6)
    t = torch.linspace(-1.2, 1.2, 11).double()
    rows = pairs.functions(t)
    kernel = torch.exp(-((t[:, None] - t) ** 2) / (2 * 0.8**2))
    assert torch.allclose((rows * pairs.values) @ rows.T, kernel, atol=1e-13)
    assert pairs.values.sum().item() == pytest.approx(1, abs=1e-12)
    functions = GaussianEigenfunctions(12, 0.8, mean=2.0, std=0.6)
    nodes = np.linspace(-10, 10, 4001)
    values, weights = functions(2.0 + 0.6 * nodes), norm.pdf(nodes) / 200
    assert np.allclose((values * weights[:, None]).T @ values, np.eye(12), atol=1e-10)
    assert np.allclose(functions.gram(), np.eye(12), atol=1e-10)


def test_hermite_pairs_are_those_of_the_operator():
    pairs = gaussian_eigenpairs(5, lengthscale=1.3, std=0.9)
    fine = np.linspace(-12, 12, 20_001)
    density = norm(scale=0.9).pdf(fine) * (fine[1] - fine[0])
    t = np.array([-0.4, 1.1])
    kernel = np.exp(-((t[:, None] - fine) ** 2) / (2 * 1.3**2))
    image = (kernel * density) @ pairs.functions(torch.from_numpy(fine)).numpy()
    assert np.allclose(image, pairs.values.numpy() * pairs.functions(torch.from_numpy(t)).numpy(), atol=1e-12)


def test_eigenfunctions_of_a_dictionary_are_those_of_its_kernel():
    features = RandomFourier(RBFKernel(), 6, (1, 3), random_state=0)
    functions = Eigenfunctions(features, 5)
    assert np.allclose(functions.gram(), np.eye(5), atol=1e-8)
    nodes, weights = features.rule()
    t = np.array([1.2, 2.7])
    image = (features(t) @ features(nodes).T * weights) @ functions(nodes)
    assert np.allclose(image, functions.eigenvalues * functions(t), atol=1e-10)
    assert functions.trace == pytest.approx(2.0)  # k(t, t) = 1 on an interval of length 2
    with pytest.raises(InputError, match="domain"):
        Eigenfunctions(features, 5, domain=(0, 1))


def test_eigenfunctions_in_two_dimensions_are_products_for_product_kernels():
    kernel = RBFKernel().double()
    surface, line = Eigenfunctions(kernel, 6, [(0, 1), (0, 1)]), Eigenfunctions(kernel, 4)
    products = np.sort(np.outer(line.eigenvalues, line.eigenvalues).ravel())[::-1]
    assert np.allclose(surface.eigenvalues, products[:6], rtol=1e-6)
    assert np.allclose(surface.gram(), np.eye(6), atol=1e-8)


def test_bo_17_factor_of_eigenfunctions_has_the_kernel():
    functions, t = Eigenfunctions(RBFKernel().double(), None), torch.linspace(0, 1, 7).double()
    rows = functions.as_factor()(t)
    expected = RBFKernel().double()(t[:, None]).to_dense()
    assert torch.allclose(rows @ rows.T, expected, atol=1e-8)
    weighted = functions.as_factor(np.ones(functions.num_functions))(t)
    assert torch.allclose(weighted, torch.from_numpy(functions(t)))


def test_exact_eigenfunctions_are_available_for_laplace_kernels_only():
    with pytest.raises(KernelTypeError, match="exact"):
        Eigenfunctions(RBFKernel(), 3, method="exact")
    with pytest.raises(KernelTypeError, match="exact"):
        Eigenfunctions(laplace(), 3, [(0, 1), (0, 1)], method="exact")
    assert Eigenfunctions(BSplines(5), None).num_functions == 5


def test_lt_e_12_eigenfunctions_are_continuous():
    """For a continuous kernel: |ψ_j(t) − ψ_j(s)| ≤ ‖k(t, ·) − k(s, ·)‖/λ_j, which vanishes as t → s, also between the nodes."""
    pairs = sampled_eigenpairs(rbf(3.0), gauss_legendre(12)).first(5)
    t = torch.linspace(0.05, 0.9, 40).double()
    for step in (1e-1, 1e-3, 1e-5):
        change = (pairs.functions(t + step) - pairs.functions(t)).abs()
        distance = (2 - 2 * math.exp(-3 * step**2)) ** 0.5  # ‖k(t, ·) − k(s, ·)‖ in the RKHS bounds that in L²
        assert bool((change <= distance / pairs.values.sqrt() + 1e-12).all())
