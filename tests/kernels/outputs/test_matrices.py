import pickle
import unittest
import warnings

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.priors import GammaPrior, LKJCovariancePrior, NormalPrior, SmoothedBoxPrior
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning
from oracles import dense, randomize

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.kernels import (
    DecomposableKernel,
    EmpiricalMatrix,
    FreeMatrix,
    FullMatrix,
    GraphMatrix,
    KnownMatrix,
    MeanRegularizedMatrix,
    SimplexMatrix,
    components,
    graph_laplacian,
    simplex_code,
)
from ovkgp.kernels.outputs.matrices import make_initial_loadings

CHAIN = torch.tensor([[0.0, 2.0, 0.0], [2.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
TWO_ISLANDS = torch.block_diag(torch.tensor([[0.0, 3.0], [3.0, 0.0]]), CHAIN.float()).double()


def array(tensor):
    return tensor.detach().numpy()


def random_psd(p, rank, seed=0):
    root = torch.randn(p, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT


def random_outputs(n=40, p=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, p, generator=generator, dtype=torch.float64) @ torch.tensor(
        [[1.0, 0.5, 0.0], [0.0, 1.0, -0.7], [0.0, 0.0, 0.3]], dtype=torch.float64
    )


EXAMPLES = {
    "free": lambda: randomize(FreeMatrix(4, rank=2).double(), 0),
    "full": lambda: randomize(FullMatrix(4).double(), 0),
    "known": lambda: KnownMatrix(random_psd(4, 4)),
    "known_singular": lambda: KnownMatrix(random_psd(4, 2)),
    "empirical": lambda: EmpiricalMatrix(random_outputs(), shrinkage=0.1),
    "graph_bare": lambda: GraphMatrix(CHAIN, mean_variance=0),
    "graph_ridge": lambda: GraphMatrix(CHAIN, ridge=0.3),
    "graph_mean": lambda: GraphMatrix(TWO_ISLANDS, mean_variance=0.7),
    "simplex": lambda: SimplexMatrix(4).double(),
    "mean_regularized": lambda: MeanRegularizedMatrix(4, coupling=0.3).double(),
}
EVERY = pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)


@EVERY
def test_factor_is_a_root_of_the_matrix(make):
    module = make()
    factor = array(module.factor())
    np.testing.assert_allclose(factor @ factor.T, array(module()), atol=1e-12)


@EVERY
def test_matrix_is_symmetric_and_positive_semidefinite(make):
    matrix = array(make()())
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-14, atol=1e-15)
    values = np.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-12 * values[-1]


@EVERY
def test_pickle_and_state_dict_keep_the_matrix(make):
    module = make()
    assert torch.equal(pickle.loads(pickle.dumps(module))(), module())
    twin = pickle.loads(pickle.dumps(module))
    randomize(twin, 5)
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin(), module())


@EVERY
def test_expanding_and_indexing_the_batch(make):
    module = make()
    batch = module.expand_batch(2, 3)
    p = module.num_outputs
    assert batch.batch_shape == batch().shape[:-2] == batch.factor().shape[:-2] == (2, 3)
    assert batch[1].batch_shape == (3,) and batch[1, 2]().shape == (p, p)
    np.testing.assert_allclose(array(batch[1, 2]()), array(module()), atol=1e-15)


@EVERY
def test_conversion_to_single_precision(make):
    module = make().float()
    assert module().dtype == module.factor().dtype == torch.float32


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_rank_of_a_fixed_matrix_is_the_number_of_columns_of_its_factor(rank):
    assert KnownMatrix(random_psd(4, rank)).factor().shape == (4, rank)


# --- free --------------------------------------------------------------------------------------------------------


def test_free_matrix_is_loadings_plus_diagonal():
    module = randomize(FreeMatrix(4, rank=2).double(), 1)
    W = array(module.loadings)
    np.testing.assert_allclose(array(module()), W @ W.T + np.diag(array(module.diagonal)), rtol=1e-14)


def test_free_matrix_diagonal_can_be_set_and_constrained():
    module = FreeMatrix(3, diagonal_constraint=GreaterThan(0.5))
    module.diagonal = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(module.diagonal, torch.tensor([1.0, 2.0, 3.0]))
    assert (randomize(module, 2).diagonal > 0.5).all()


def negative_log_likelihood(kernel, x, y):
    covariance = kernel(x).to_dense() + 0.05 * torch.eye(y.numel(), dtype=y.dtype)
    return -torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def train(initial, steps=5):
    """Return the loadings after some steps on data with three unequal outputs, and their first gradient."""
    x = torch.linspace(0, 3, 8, dtype=torch.float64).unsqueeze(-1)
    y = torch.cat([x.sin(), -x.sin() + 0.3 * x, (2 * x).cos()], dim=-1).flatten()
    kernel = DecomposableKernel(RBFKernel(), num_outputs=3, rank=2).double()
    loadings = kernel.output_module.loadings
    if initial is not None:
        loadings.data = initial.double()
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.05)
    first = None
    for _ in range(steps):
        optimizer.zero_grad()
        negative_log_likelihood(kernel, x, y).backward()
        first = loadings.grad.clone() if first is None else first
        optimizer.step()
    return loadings.detach(), first


def test_free_matrix_is_trained_from_initial_loadings():
    loadings, gradient = train(None)
    assert (gradient.abs() > 1e-3).all()
    assert (loadings[:, 0] - loadings[:, 1]).abs().min() > 1e-2


def test_free_matrix_with_zero_loadings_has_zero_gradient():
    loadings, gradient = train(torch.zeros(3, 2))
    assert torch.equal(gradient, torch.zeros(3, 2).double()) and torch.equal(loadings, torch.zeros(3, 2).double())


def test_free_matrix_with_equal_columns_keeps_them_equal():
    loadings, _ = train(torch.ones(3, 2))
    torch.testing.assert_close(loadings[:, 0], loadings[:, 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("p", "rank"), [(2, 1), (2, 2), (5, 3), (20, 10), (50, 50)])
def test_initial_loadings_are_deterministic_without_equal_rows_or_columns(p, rank):
    W = make_initial_loadings(p, rank)
    assert torch.equal(W, make_initial_loadings(p, rank)) and W.abs().max() <= 1
    for matrix in (W, W.mT):
        gaps = torch.cdist(matrix, matrix) + torch.eye(len(matrix))
        assert gaps.min() > 1e-2
    assert torch.linalg.matrix_rank(W) == rank


def test_free_matrix_accepts_prior_of_the_matrix():
    prior = LKJCovariancePrior(3, 2.0, SmoothedBoxPrior(0.01, 5.0))
    kernel = DecomposableKernel(RBFKernel(), output_matrix=FreeMatrix(3, rank=2, prior=prior))
    [(_, module, found, closure, _)] = list(kernel.named_priors())
    assert found is prior and torch.equal(closure(module), kernel.output_matrix)
    assert found.log_prob(closure(module)).isfinite()


def test_loadings_and_coupling_accept_priors():
    free, mean = FreeMatrix(3), MeanRegularizedMatrix(3)
    free.register_prior("loadings_prior", NormalPrior(0.0, 1.0), "loadings")
    mean.register_prior("coupling_prior", GammaPrior(2.0, 2.0), "coupling")
    for module in (free, mean):
        [(_, owner, prior, closure, _)] = list(module.named_priors())
        assert prior.log_prob(closure(owner)).isfinite().all()


def test_free_matrix_has_a_batch_shape():
    module = randomize(FreeMatrix(3, rank=2, batch_shape=torch.Size([2])).double(), 3)
    assert module().shape == (2, 3, 3)
    torch.testing.assert_close(module[1](), module()[1])


@pytest.mark.parametrize("rank", [0, 4, -1])
def test_free_matrix_rejects_invalid_rank(rank):
    with pytest.raises(OptionError, match="rank must be between 1 and num_outputs = 3"):
        FreeMatrix(3, rank=rank)


# --- full --------------------------------------------------------------------------------------------------------


class TestFullMatrixProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        matrix = FullMatrix(2, batch_shape=kwargs.get("batch_shape", torch.Size()))
        return DecomposableKernel(RBFKernel(**kwargs), output_matrix=matrix)

    def create_kernel_ard(self, num_dims, **kwargs):
        return self.create_kernel_no_ard(ard_num_dims=num_dims, **kwargs)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_full_matrix_is_the_product_of_its_factor(p):
    module = randomize(FullMatrix(p).double(), 1)
    L = np.diag(np.exp(array(module.log_scale)))
    L[np.tril_indices(p, -1)] = array(module.lower)
    np.testing.assert_allclose(array(module.factor()), L, rtol=1e-15)
    np.testing.assert_allclose(array(module()), L @ L.T, rtol=1e-14)


def test_full_matrix_has_no_redundant_parameter():
    module = randomize(FullMatrix(3).double(), 2)

    def matrix(raw):
        values = {"log_scale": raw[:3], "lower": raw[3:]}
        return torch.func.functional_call(module, values)[tuple(torch.tril_indices(3, 3))]

    raw = torch.cat([module.log_scale, module.lower]).detach()
    assert torch.linalg.matrix_rank(torch.autograd.functional.jacobian(matrix, raw)) == len(raw) == 6


def test_full_matrix_is_initialized_at_identity():
    assert torch.equal(FullMatrix(3)(), torch.eye(3))


def test_full_matrix_has_a_batch_shape():
    module = randomize(FullMatrix(3, batch_shape=torch.Size([2])).double(), 3)
    assert module().shape == (2, 3, 3) and module.factor().shape == (2, 3, 3)
    torch.testing.assert_close(module[1](), module()[1])


def test_full_matrix_factor_gives_features():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=randomize(FullMatrix(2), 4)).double()
    x = torch.linspace(0, 2, 5, dtype=torch.float64).unsqueeze(-1)
    Phi = ORFF(kernel, 20_000, num_dims=1, sampler="qmc", random_state=0).double()(x)
    np.testing.assert_allclose(array((Phi @ Phi.mT).to_dense()), dense(kernel, x), atol=2e-3 * dense(kernel, x).max())
    ((scalar, matrix),) = components(kernel)
    assert scalar is kernel.base_kernel and torch.equal(matrix, kernel.output_matrix)


# --- known -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(2, 3), "square"),
        (torch.ones(3), "square"),
        (torch.tensor([[1.0, 0.5], [0.2, 1.0]]), "symmetric"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue"),
        (torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]), "NaN or infinity"),
        (torch.tensor([[float("inf"), 0.0], [0.0, 1.0]]), "NaN or infinity"),
    ],
)
def test_known_matrix_rejects_invalid_covariance(matrix, message):
    with pytest.raises(InputError, match=message):
        KnownMatrix(matrix)


@pytest.mark.parametrize("given_as", [lambda m: m.tolist(), lambda m: m.numpy(), lambda m: m.int()])
def test_known_matrix_accepts_lists_arrays_and_integers(given_as):
    matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    np.testing.assert_array_equal(KnownMatrix(given_as(matrix))(), matrix)


def test_known_matrix_is_constant_and_copied():
    given = torch.eye(2).requires_grad_()
    module = KnownMatrix(given * 2)
    assert not list(module.parameters()) and not module().requires_grad
    pickle.dumps(module)
    with torch.no_grad():
        given.add_(5)
    assert torch.equal(module(), 2 * torch.eye(2))


def test_known_matrix_keeps_a_batch_of_matrices():
    stack = torch.stack([random_psd(3, 3, seed=s) for s in range(2)])
    module = KnownMatrix(stack)
    torch.testing.assert_close(module.factor() @ module.factor().mT, stack)
    assert module.batch_shape == (2,) and torch.equal(module[1](), stack[1])


# --- empirical ---------------------------------------------------------------------------------------------------


def test_ba_05_empirical_matrix_is_the_covariance_of_complete_outputs():
    Y = random_outputs()
    np.testing.assert_allclose(EmpiricalMatrix(Y)(), np.cov(Y.numpy().T), rtol=1e-12, atol=1e-14)


def test_empirical_shrinkage_keeps_the_diagonal():
    Y, C = random_outputs(), np.cov(random_outputs().numpy().T)
    np.testing.assert_allclose(
        EmpiricalMatrix(Y, shrinkage=0.25)(), 0.75 * C + 0.25 * np.diag(np.diag(C)), rtol=1e-12, atol=1e-14
    )


def pairwise_covariance(Y):
    """Compute each entry from the rows with both outputs observed, centered by the means of all observed values."""
    centered = Y - np.nanmean(Y, 0)
    out = np.zeros((Y.shape[1], Y.shape[1]))
    for a in range(Y.shape[1]):
        for b in range(Y.shape[1]):
            products = (centered[:, a] * centered[:, b])[~np.isnan(centered[:, a] * centered[:, b])]
            out[a, b] = products.sum() / max(len(products) - 1, 1)
    return out


def test_empirical_matrix_omits_missing_entries():
    Y = random_outputs()
    Y[::5, 0] = Y[1::7, 2] = float("nan")
    expected = pairwise_covariance(Y.numpy())
    assert np.linalg.eigvalsh(expected)[0] > 0
    np.testing.assert_allclose(EmpiricalMatrix(Y)(), expected, rtol=1e-12, atol=1e-14)


def test_empirical_matrix_clips_negative_eigenvalues():
    nan = float("nan")
    Y = torch.tensor(
        [[1, 1, nan], [-1, -1, nan], [nan, 1, 1], [nan, -1, -1], [1, nan, -1], [-1, nan, 1]], dtype=torch.float64
    )
    values, vectors = np.linalg.eigh(pairwise_covariance(Y.numpy()))
    assert values[0] < -0.1
    expected = vectors @ np.diag(values.clip(0)) @ vectors.T
    np.testing.assert_allclose(EmpiricalMatrix(Y)(), expected, atol=1e-12)


def test_empirical_matrix_of_a_constant_output_has_a_zero_row():
    Y = random_outputs()
    Y[:, 1] = 4.0
    matrix = array(EmpiricalMatrix(Y)())
    np.testing.assert_allclose(matrix[1], 0, atol=1e-14)
    np.testing.assert_allclose(matrix, np.cov(Y.numpy().T), atol=1e-12)


def test_empirical_matrix_accepts_integers():
    Y = torch.tensor([[0, 1], [2, 5], [4, 3]])
    np.testing.assert_allclose(EmpiricalMatrix(Y)(), np.cov(Y.numpy().T), rtol=1e-6)


def test_empirical_matrix_rejects_column_without_observed_values():
    Y = random_outputs()
    Y[:, 1] = float("nan")
    with pytest.raises(InputError, match="column 1"):
        EmpiricalMatrix(Y)


@pytest.mark.parametrize("Y", [torch.ones(4), torch.ones(1, 3), torch.full((3, 2), float("inf"))])
def test_empirical_matrix_rejects_too_few_rows_and_infinity(Y):
    with pytest.raises(InputError):
        EmpiricalMatrix(Y)


def test_empirical_matrix_rejects_invalid_shrinkage():
    with pytest.raises(OptionError, match="shrinkage must be between 0 and 1"):
        EmpiricalMatrix(random_outputs(), shrinkage=1.5)


# --- graph -------------------------------------------------------------------------------------------------------


def laplacian(W):
    W = W.numpy() if isinstance(W, torch.Tensor) else W
    W = W - np.diag(np.diag(W))
    return np.diag(W.sum(1)) - W


@pytest.mark.parametrize("weights", [CHAIN, TWO_ISLANDS])
def test_bt_25_graph_matrices_against_dense_algebra(weights):
    L = laplacian(weights)
    pinv = np.linalg.pinv(L, hermitian=True)
    null = np.eye(len(L)) - L @ pinv
    np.testing.assert_allclose(graph_laplacian(weights), L)
    np.testing.assert_allclose(GraphMatrix(weights, mean_variance=0)(), pinv, atol=1e-13)
    np.testing.assert_allclose(GraphMatrix(weights, ridge=0.3)(), np.linalg.inv(L + 0.3 * np.eye(len(L))), atol=1e-12)
    np.testing.assert_allclose(GraphMatrix(weights, mean_variance=0.7)(), pinv + 0.7 * null, atol=1e-13)


def test_mean_variance_of_a_connected_graph_is_the_variance_along_the_constant():
    matrix = array(GraphMatrix(CHAIN, mean_variance=0.7)())
    unit = np.ones(3) / np.sqrt(3)
    assert unit @ matrix @ unit == pytest.approx(0.7)


def test_bt_25_graph_matrix_warns_of_zero_mean_variance():
    with pytest.warns(UserWarning, match="zero prior variance"):
        GraphMatrix(CHAIN)


@pytest.mark.parametrize("options", [{"ridge": 0.1}, {"mean_variance": 1.0}, {"mean_variance": 0}])
def test_graph_matrix_does_not_warn_with_options(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GraphMatrix(CHAIN, **options)


def test_graph_matrix_rejects_ridge_with_mean_variance():
    with pytest.raises(OptionError, match="ridge"):
        GraphMatrix(CHAIN, ridge=1.0, mean_variance=1.0)


@pytest.mark.parametrize(
    ("module", "shown"),
    [
        (KnownMatrix(torch.eye(3)), "KnownMatrix(num_outputs=3)"),
        (GraphMatrix(CHAIN, ridge=1.0), "GraphMatrix(num_outputs=3)"),
    ],
)
def test_repr_shows_num_outputs(module, shown):
    assert repr(module) == shown


def test_repr_shows_rank():
    assert "num_outputs=4, rank=2" in repr(FreeMatrix(4, rank=2))


@pytest.mark.parametrize("make", [FreeMatrix, FullMatrix, MeanRegularizedMatrix, SimplexMatrix, simplex_code])
def test_output_matrices_reject_noninteger_sizes(make):
    with pytest.raises(OptionError, match=r"num_outputs|num_classes"):
        make(2.5)


def function_on_the_graph(weights):
    """Return the scalar Gram matrix, the coefficients of each f_a and ‖f‖² of f = Σ_i k(·, x_i) Γ u_i."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    u = torch.randn(6, len(weights), generator=generator, dtype=torch.float64)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=GraphMatrix(weights, mean_variance=0)).double()
    squared_norm = u.flatten().numpy() @ dense(kernel, x) @ u.flatten().numpy()
    return dense(kernel.base_kernel, x), (u @ kernel.output_matrix).numpy(), squared_norm, (kernel, x, u)


@pytest.mark.parametrize("weights", [CHAIN, TWO_ISLANDS])
def test_id_10_graph_norm_penalizes_differences_along_edges(weights):
    K, C, squared_norm, _ = function_on_the_graph(weights)
    L, p = laplacian(weights), len(weights)
    inner = C.T @ K @ C
    assert (L * inner).sum() == pytest.approx(squared_norm, rel=1e-10)
    edges = sum(
        weights[k, l].item() * (C[:, k] - C[:, l]) @ K @ (C[:, k] - C[:, l]) for k in range(p) for l in range(p)
    )
    assert edges / 2 == pytest.approx(squared_norm, rel=1e-10)


def test_id_10_functions_of_laplacian_pseudo_inverse_sum_to_zero():
    *_, (kernel, x, u) = function_on_the_graph(CHAIN)
    z = torch.randn(7, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    f = (dense(kernel, z, x) @ u.flatten().numpy()).reshape(7, 3)
    assert np.abs(f).max() > 0.1
    np.testing.assert_allclose(f.sum(1), 0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slow_modes_of_a_long_chain_are_kept(dtype):
    """λ_2 / λ_p = tan²(π/2p) is 7e-6 here: a cutoff for rounding errors must not drop it."""
    p = 600
    W = torch.diag(torch.ones(p - 1), 1).to(dtype)
    matrix = array(GraphMatrix(W + W.mT, mean_variance=0)()).astype(float)
    slowest = np.cos(np.pi * (np.arange(p) + 0.5) / p)
    slowest /= np.linalg.norm(slowest)
    assert slowest @ matrix @ slowest == pytest.approx(1 / (4 * np.sin(np.pi / (2 * p)) ** 2), rel=1e-4)
    assert np.abs(matrix.sum(1)).max() < 1e-5 * np.abs(matrix).max()


def test_null_space_is_found_in_single_precision_too():
    W = torch.rand(30, 30, generator=torch.Generator().manual_seed(6))
    assert GraphMatrix(W + W.mT, mean_variance=0)().sum(1).abs().max() < 1e-6


def test_graph_without_edges_has_only_its_mean_variance():
    np.testing.assert_allclose(GraphMatrix(torch.zeros(3, 3), mean_variance=0.5)(), 0.5 * np.eye(3), atol=1e-7)


def test_diagonal_of_the_weights_is_ignored():
    torch.testing.assert_close(GraphMatrix(CHAIN + torch.eye(3), ridge=1.0)(), GraphMatrix(CHAIN, ridge=1.0)())


def test_graph_from_outputs_is_the_sarcos_rule():
    Y = random_outputs().numpy()
    W = np.array([[np.exp(-0.3 * np.linalg.norm(a - b)) for b in Y.T] for a in Y.T])
    expected = np.linalg.inv(laplacian(W) + 0.2 * np.eye(3))
    np.testing.assert_allclose(GraphMatrix.from_outputs(random_outputs(), gamma=0.3, ridge=0.2)(), expected, atol=1e-11)


def test_graph_from_outputs_scales_by_the_median_distance():
    Y = random_outputs()
    distances = sorted(torch.linalg.norm(Y[:, a] - Y[:, b]).item() for a, b in [(0, 1), (0, 2), (1, 2)])
    torch.testing.assert_close(
        GraphMatrix.from_outputs(Y, ridge=0.2)(), GraphMatrix.from_outputs(Y, gamma=1 / distances[1], ridge=0.2)()
    )


def test_graph_from_equal_outputs_has_weights_one():
    expected = GraphMatrix(torch.ones(3, 3), ridge=1.0)()
    torch.testing.assert_close(GraphMatrix.from_outputs(torch.ones(5, 3), ridge=1.0)(), expected)


def test_graph_from_outputs_rejects_missing_values():
    with pytest.raises(InputError, match="Y must be finite"):
        GraphMatrix.from_outputs(torch.full((5, 3), float("nan")), ridge=1.0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(2, 3), "square matrix"),
        (torch.tensor([[0.0, 1.0], [2.0, 0.0]]), "symmetric and nonnegative"),
        (-torch.ones(2, 2), "symmetric and nonnegative"),
        (torch.full((2, 2), float("nan")), "symmetric and nonnegative"),
    ],
)
def test_graph_matrix_rejects_invalid_weights(weights, message):
    with pytest.raises(InputError, match=message):
        GraphMatrix(weights, ridge=1.0)


@pytest.mark.parametrize("option", ["ridge", "mean_variance"])
def test_graph_matrix_rejects_negative_options(option):
    with pytest.raises(OptionError, match=option):
        GraphMatrix(CHAIN, **{option: -0.1})


# --- simplex and mean-regularized ----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 3, 4, 10])
def test_bt_80_bt_e_29_simplex_code(p):
    C = array(simplex_code(p))
    assert C.shape == (p - 1, p)
    np.testing.assert_allclose(C.T @ C, p / (p - 1) * (np.eye(p) - np.ones((p, p)) / p), atol=1e-13)  # −1/(p−1) off it
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, atol=1e-13)
    np.testing.assert_allclose(C @ C.T, p / (p - 1) * np.eye(p - 1), atol=1e-13)


def test_bt_e_29_printed_recursion_is_no_simplex():
    """With u = −p⁻² in place of −1/p the columns are not even of unit length."""
    p, C = 2, np.array([[1.0, -1.0]])
    printed = np.block([[np.ones((1, 1)), np.full((1, p), -(p**-2.0))], [np.zeros((1, 1)), np.sqrt(1 - p**-2.0) * C]])
    assert np.abs(np.linalg.norm(printed, axis=0) - 1).max() > 0.05


@pytest.mark.parametrize("p", [2, 5])
def test_bt_80_simplex_code_is_decoded_by_argmax(p):
    C = simplex_code(p)
    assert torch.equal((C.mT @ C).argmax(0), torch.arange(p))


@pytest.mark.parametrize("p", [2, 5])
def test_bt_80_simplex_matrix_makes_class_scores_sum_to_zero(p):
    matrix = array(SimplexMatrix(p)())
    np.testing.assert_allclose(matrix, p / (p - 1) * (np.eye(p) - 1 / p), atol=1e-6)
    np.testing.assert_allclose(matrix.sum(1), 0, atol=1e-6)
    assert SimplexMatrix(p).factor().shape == (p, p - 1)


def test_simplex_code_rejects_one_class():
    with pytest.raises(OptionError, match="num_classes must be at least 2"):
        simplex_code(1)


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
def test_mean_regularized_matrix_matches_penalty(c):
    """‖f‖² = Σ_a ‖f_a − f̄‖² / (1 − c) + p ‖f̄‖² / (1 − c + p c), here for vectors f."""
    p = 4
    matrix = array(MeanRegularizedMatrix(p, coupling=c).double()())
    np.testing.assert_allclose(matrix, c * np.ones((p, p)) + (1 - c) * np.eye(p), atol=1e-7)
    f = np.random.default_rng(0).normal(size=p)
    penalty = ((f - f.mean()) ** 2).sum() / (1 - c) + p * f.mean() ** 2 / (1 - c + p * c)
    assert f @ np.linalg.solve(matrix, f) == pytest.approx(penalty, rel=1e-5)


def test_bt_e_42_output_matrix_of_figure_4_2_couples_its_outputs():
    """Half identity plus half ones, not half identity plus half identity, which does not couple the outputs."""
    matrix = array(MeanRegularizedMatrix(2, coupling=0.5)())
    np.testing.assert_allclose(matrix, 0.5 * np.eye(2) + 0.5 * np.ones((2, 2)), atol=1e-7)


def test_coupling_can_be_trained():
    module = MeanRegularizedMatrix(3)
    module()[0, 1].backward()
    assert module.raw_coupling.grad.abs() > 0


@pytest.mark.parametrize("coupling", [0.0, 1.0, -0.3])
def test_mean_regularized_matrix_rejects_invalid_coupling(coupling):
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        MeanRegularizedMatrix(3, coupling=coupling)


@settings(max_examples=30, deadline=None)
@given(p=st.integers(1, 6), rank=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_free_matrix_is_positive_definite(p, rank, seed):
    module = randomize(FreeMatrix(p, rank=min(rank, p)).double(), seed)
    values = torch.linalg.eigvalsh(module())
    assert values[0] > 0
    torch.testing.assert_close(module.factor() @ module.factor().mT, module())


@settings(max_examples=30, deadline=None)
@given(p=st.integers(2, 6), density=st.floats(0, 1), alpha=st.floats(0, 2), seed=st.integers(0, 10_000))
def test_graph_matrix_is_positive_semidefinite(p, density, alpha, seed):
    rng = np.random.default_rng(seed)
    W = np.triu(rng.exponential(size=(p, p)) * (rng.random((p, p)) < density), 1)
    values = torch.linalg.eigvalsh(GraphMatrix(torch.tensor(W + W.T), mean_variance=alpha)())
    assert values[0] >= -1e-10 * max(values[-1].item(), 1)


@settings(max_examples=30, deadline=None)
@given(missing=st.floats(0, 0.8), shrinkage=st.floats(0, 1), seed=st.integers(0, 10_000))
def test_empirical_matrix_is_positive_semidefinite(missing, shrinkage, seed):
    rng = np.random.default_rng(seed)
    Y = np.where(rng.random((12, 4)) < missing, np.nan, rng.normal(size=(12, 4)))
    Y[0] = 0.5  # every column has an observed value
    values = torch.linalg.eigvalsh(EmpiricalMatrix(torch.tensor(Y), shrinkage)())
    assert values[0] >= -1e-12 * max(values[-1].item(), 1e-3)


def test_factor_of_nearly_singular_free_matrix():
    matrix = FreeMatrix(4, rank=1).double()
    matrix.diagonal = 1e-18
    with pytest.warns(NumericalWarning):
        factor = matrix.factor()
    torch.testing.assert_close(factor @ factor.mT, matrix(), atol=1e-7, rtol=0)
