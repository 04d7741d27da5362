"""Features of a manifold kernel against Algorithm 6, the dual system, and the kernel itself (BT-112, ID-7)."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense, to_linear_operator
from manifold_oracle import dual_coefficients, gp_mean, primal_weights
from oracles import dense
from sklearn.datasets import make_moons

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, FeatureMap, ManifoldFeatures, Nystrom, ORFFKernel
from ovkgp.features import manifold as module
from ovkgp.features.operators import ComplexFeatureOperator, FeatureOperator
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FreeMatrix,
    ManifoldKernel,
    OutputMatrix,
    SimplexMatrix,
    TransformableKernel,
    cluster_laplacian,
    neighbor_laplacian,
    num_outputs,
)

GAMMA = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=torch.float64)
LOADINGS = torch.tensor([1.0, -0.6], dtype=torch.float64)


class Correlated(OutputMatrix):
    """Two outputs with a trained correlation, which is zero to begin with: Γ is the identity, but will not stay so."""

    def __init__(self):
        super().__init__(num_outputs=2)
        self.register_parameter("raw", torch.nn.Parameter(torch.zeros(1)))

    def forward(self):
        one = torch.ones(1).to(self.raw)
        return torch.cat([one, self.raw.tanh(), self.raw.tanh(), one]).reshape(2, 2)


KERNELS = {
    "scalar": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2)),
    "icm": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=GAMMA),
    "icm, rank 1": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=LOADINGS.outer(LOADINGS)),
    "icm, identity": lambda: ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=torch.eye(2))),
    "icm, simplex": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=SimplexMatrix(2)),
    "icm, trained": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=FreeMatrix(2, 1)),
    "icm, identity for now": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=Correlated()),
    "lmc": lambda: (
        DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
        + DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=2)
    ),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(ard_num_dims=2)),
    "divergence-free": lambda: DivergenceFreeKernel(RBFKernel(ard_num_dims=2)),
    "a point an output": lambda: TransformableKernel(RBFKernel(ard_num_dims=2), [lambda x: x, lambda x: 2 * x]),
    "delays": lambda: TransformableKernel(RBFKernel(ard_num_dims=2), [Delay(0.0), Delay(0.5)]),
}
SEPARABLE = ("scalar", "icm, rank 1", "icm, identity", "icm, simplex", "a point an output", "delays")
"""Kernels whose features stay scalar features times one factor under a penalty (n, n)."""

LAM, STRENGTH, N = 0.1, 0.75, 6


def points(n, seed=0, d=2):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def penalty_of(name, X, p):
    """M as it is given to the kernel, and as an (n·p, n·p) matrix."""
    if name == "laplacian":
        M = neighbor_laplacian(X, 3)
        return M, np.kron(M.toarray(), np.eye(p))
    if name == "dense":
        M = cluster_laplacian(X, 3, num_neighbors=3, random_state=0) / len(X)
        return M, np.kron(M, np.eye(p))
    root = np.random.default_rng(5).normal(size=(len(X) * p, len(X)))
    return root @ root.T, root @ root.T


def problem(name, penalty="laplacian", strength=STRENGTH, n=14, kind="orff"):
    base, X = KERNELS[name]().double(), points(n)
    given, M = penalty_of(penalty, X, num_outputs(base))
    kernel = ManifoldKernel(base, X, given, strength)
    features = ORFF(base, 9, random_state=0) if kind == "orff" else Nystrom(base, points(5, 8))
    return ManifoldFeatures(features.double(), kernel), kernel, X, M


def matrix(features, X):
    with torch.no_grad():
        return to_dense(features(X)).numpy()


CASES = [(name, penalty) for name in KERNELS for penalty in ("laplacian", "dense", "full")]


@pytest.mark.parametrize(("name", "penalty"), CASES)
def test_id_7_features_are_those_of_the_kernel_made_from_the_features(name, penalty):
    features, kernel, X, _ = problem(name, penalty)
    dual = ManifoldKernel(ORFFKernel(features.features), X, kernel.penalty, STRENGTH)
    x = torch.cat([points(5, 1), X[:2]])
    Phi = matrix(features, x)
    assert Phi.shape == (7 * features.num_outputs, features.num_features)
    expected = dense(dual, x)
    np.testing.assert_allclose(Phi @ Phi.T, expected, atol=1e-8)
    np.testing.assert_allclose(dense(ORFFKernel(features), x), expected, atol=1e-8)
    np.testing.assert_allclose(ORFFKernel(features)(x, diag=True).detach().numpy(), expected.diagonal(), atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("penalty", ["laplacian", "full"])
def test_bt_112_weight_prior_is_that_of_algorithm_6(name, penalty):
    """Φ_M Φ_Mᵀ = Φ M̃⁻¹ Φᵀ with M̃ = I + s Φ(X)ᵀ M Φ(X), from explicit matrices."""
    features, _, X, M = problem(name, penalty)
    x = points(5, 1)
    Phi, everywhere = matrix(features.features, x), matrix(features.features, X)
    M_tilde = np.eye(Phi.shape[1]) + STRENGTH * everywhere.T @ M @ everywhere
    Phi_M = matrix(features, x)
    np.testing.assert_allclose(Phi_M @ Phi_M.T, Phi @ np.linalg.solve(M_tilde, Phi.T), atol=1e-10)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("penalty", ["laplacian", "full"])
def test_primal_dual_and_both_gps_agree(name, penalty):
    """Algorithm 6, the dual system, the GP with these features and the GP with the kernel: one prediction."""
    features, kernel, X, M = problem(name, penalty)
    p, test = features.num_outputs, points(5, 1)
    Y = points(N, 3, d=p)
    labeled, everywhere, new = (matrix(features.features, x) for x in (X[:N], X, test))
    weights = primal_weights(labeled, everywhere, np.eye(p), M, Y.numpy(), LAM, STRENGTH * LAM)
    u = dual_coefficients(everywhere @ everywhere.T, np.eye(p), M, Y.numpy(), LAM, STRENGTH * LAM)
    expected = (new @ weights).reshape(5, p)
    np.testing.assert_allclose((new @ everywhere.T @ u).reshape(5, p), expected, atol=1e-8)
    in_weight_space = OperatorValuedGP(kernel, "zero", N * LAM, features=features).condition(X[:N], Y).predict(test)
    np.testing.assert_allclose(in_weight_space.mean.numpy(), expected, atol=1e-8)
    dual = ManifoldKernel(ORFFKernel(features.features), X, kernel.penalty, STRENGTH)
    in_function_space = OperatorValuedGP(dual, "zero", N * LAM).condition(X[:N], Y).predict(test)
    np.testing.assert_allclose(in_function_space.mean.numpy(), expected, atol=1e-8)
    np.testing.assert_allclose(in_weight_space.std.numpy(), in_function_space.std.numpy(), atol=1e-7)


@pytest.mark.parametrize("penalty", ["laplacian", "full"])
def test_bt_115_primal_with_an_observation_operator(penalty):
    features, _, X, M = problem("icm", penalty)
    V, Y, test = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 2.0]]), points(N, 3, d=3).numpy(), points(5, 1)
    labeled, everywhere, new = (matrix(features.features, x) for x in (X[:N], X, test))
    weights = primal_weights(labeled, everywhere, V, M, Y, LAM, STRENGTH * LAM)
    at_labels, at_test = matrix(features, X[:N]), matrix(features, test)
    found = gp_mean(at_test @ at_labels.T, at_labels @ at_labels.T, V, Y, N * LAM)
    np.testing.assert_allclose(found, new @ weights, atol=1e-8)


def test_figure_b_1_two_moons_primal_equals_dual():
    X, labels = make_moons(60, noise=0.05, random_state=0)
    order = np.argsort(np.arange(60) % 10 > 0, kind="stable")  # six labeled points first
    X, y = torch.from_numpy(X[order]), 2.0 * labels[order, None] - 1
    base = RBFKernel(ard_num_dims=2).double()
    base.lengthscale = 0.4
    M = cluster_laplacian(X, 2, num_neighbors=4, random_state=0)
    assert np.array_equal(M < 0, (y == y.T) & ~np.eye(60, dtype=bool))  # the clusters are the moons
    kernel = ManifoldKernel(base, X, M, strength=0.075 / 0.1)
    features = ManifoldFeatures(ORFF(base, 50, random_state=0), kernel)
    gp = OperatorValuedGP(kernel, "zero", N * 0.1, features=features)
    found = gp.condition(X[:N], y[:N]).predict(X).mean.numpy()
    everywhere = matrix(gp.features.features, X)
    u = dual_coefficients(everywhere @ everywhere.T, np.eye(1), M, y[:N], 0.1, 0.075)
    np.testing.assert_allclose(found.ravel(), everywhere @ everywhere.T @ u, atol=1e-8)
    assert (np.sign(found) == y).mean() > 0.95


def test_zero_strength_is_the_base_map_and_ridge():
    features, kernel, X, _ = problem("curl-free", strength=0.0)
    x = points(5, 1)
    np.testing.assert_array_equal(matrix(features, x), matrix(features.features, x))
    Y = points(14, 3)
    one = OperatorValuedGP(kernel, "zero", 0.3, features=features)
    other = OperatorValuedGP(kernel.base_kernel, "zero", 0.3, features=features.features)
    means = [gp.condition(X, Y).predict(x).mean for gp in (one, other)]
    torch.testing.assert_close(*means, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_separable_features_stay_separable_if_possible(name):
    features, _, _, _ = problem(name)
    Phi = features(points(5, 1))
    assert isinstance(Phi, FeatureOperator)
    prior = features._weight_prior(points(1))
    assert prior.separable == (name in SEPARABLE)
    if prior.separable:
        assert Phi.factor.shape == features.features(points(1)).factor.shape
        assert prior.chol.shape[-1] == Phi.features.shape[-1]


def test_manifold_features_form_no_matrix_of_all_values():
    """40 000 points and 2 outputs: n × n in float64 would be 13 GB."""
    X = points(40_000)
    base = DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=LOADINGS.outer(LOADINGS)).double()
    kernel = ManifoldKernel(base, X, neighbor_laplacian(X, 3, weights="binary"), strength=1e-3)
    features = ManifoldFeatures(ORFF(base, 10, random_state=0), kernel)
    Phi = matrix(features, X[:3])
    assert Phi.shape == (6, 20)
    scalar_features = features.features(X).features.detach().numpy()
    L = neighbor_laplacian(X, 3, weights="binary")
    scale = LOADINGS.square().sum().item() / 10
    M_tilde = np.eye(20) + 1e-3 * scale * scalar_features.T @ (L @ scalar_features)
    base_rows = matrix(features.features, X[:3])
    np.testing.assert_allclose(Phi @ Phi.T, base_rows @ np.linalg.solve(M_tilde, base_rows.T), atol=1e-9)


@pytest.mark.parametrize("name", ["icm, rank 1", "icm", "lmc", "a point an output"])
@pytest.mark.parametrize("penalty", ["laplacian", "full"])
def test_manifold_features_do_not_depend_on_chunks(name, penalty, monkeypatch):
    whole = matrix(problem(name, penalty)[0], points(4, 1))
    monkeypatch.setattr(module, "FEATURE_CHUNK_ENTRIES", 100)
    chunked = matrix(problem(name, penalty)[0], points(4, 1))
    np.testing.assert_allclose(chunked @ chunked.T, whole @ whole.T, atol=1e-10)


@pytest.mark.parametrize("kind", ["orff", "nystrom"])
@pytest.mark.parametrize("name", ["icm", "curl-free"])
def test_manifold_features_over_nystrom_features(name, kind):
    features, _, X, M = problem(name, kind=kind)
    x = points(5, 1)
    Phi, everywhere = matrix(features.features, x), matrix(features.features, X)
    M_tilde = np.eye(Phi.shape[1]) + STRENGTH * everywhere.T @ M @ everywhere
    found = matrix(features, x)
    np.testing.assert_allclose(found @ found.T, Phi @ np.linalg.solve(M_tilde, Phi.T), atol=1e-9)


class Parabolas(FeatureMap):
    """Custom map whose operator has no scalar features."""

    num_outputs, num_features = 1, 3

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, X):
        X = self.check(X)[..., :1]
        return to_linear_operator(torch.cat([X**0, X, X**2], -1))


class Complex(FeatureMap):
    """Map with a complex factor, as of a kernel that is not even."""

    num_outputs, num_features = 2, 12

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, X):
        angles = self.check(X) @ points(2, 5, d=3)
        scalar_features = torch.cat([angles.cos(), angles.sin()], -1)
        return ComplexFeatureOperator(scalar_features, points(6, 6), points(6, 7), num_outputs=2)


@pytest.mark.parametrize("make", [Parabolas, Complex])
def test_manifold_features_over_a_custom_map(make):
    X, p = points(9), make.num_outputs
    base = RBFKernel().double() if p == 1 else KERNELS["icm"]().double()
    L = neighbor_laplacian(X, 2)
    features = ManifoldFeatures(make(base), ManifoldKernel(base, X, L, STRENGTH))
    Phi, everywhere = matrix(features.features, points(4, 1)), matrix(features.features, X)
    M_tilde = np.eye(Phi.shape[1]) + STRENGTH * everywhere.T @ np.kron(L.toarray(), np.eye(p)) @ everywhere
    found = matrix(features, points(4, 1))
    np.testing.assert_allclose(found @ found.T, Phi @ np.linalg.solve(M_tilde, Phi.T), atol=1e-12)


@pytest.mark.parametrize(
    "name", ["scalar", "icm, identity", "icm, identity for now", "icm, trained", "lmc", "curl-free", "divergence-free"]
)
def test_manifold_features_gradients_match_differences(name):
    features, _, _, _ = problem(name, n=7)
    X, weights = points(3, 1), points(3 * features.num_outputs, 2, d=1)

    def value():  # of Φ_M Φ_Mᵀ, as the root itself is not unique
        return (weights.mT @ to_dense(features(X))).square().sum()

    with torch.no_grad():
        value()
    parameters = list(features.parameters())
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.view(-1)  # behind the back of the version counter, as GPyTorch does it
        for i in range(flat.numel()):
            with torch.no_grad():
                flat[i] += 1e-6
                up = value().item()
                flat[i] -= 2e-6
                down = value().item()
                flat[i] += 1e-6
            assert gradient.view(-1)[i].item() == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-7)


@pytest.mark.filterwarnings("ignore:training stopped")
@pytest.mark.parametrize("name", ["icm, identity", "icm, trained", "curl-free"])
def test_manifold_features_support_evidence_statistics_and_training(name):
    features, kernel, X, _ = problem(name, n=40)
    Y = torch.stack([X[:, 0].sin(), X[:, 1].cos()], 1) + 0.1 * points(40, 4)
    gp = OperatorValuedGP(kernel, "zero", 0.05, features=features)
    dual = ManifoldKernel(ORFFKernel(features.features), X, kernel.penalty, STRENGTH)
    expected = OperatorValuedGP(dual, "zero", 0.05).log_evidence(X, Y).item()
    before = gp.log_evidence(X, Y)
    assert before.item() == pytest.approx(expected, rel=1e-8)
    statistics = gp.statistics(X[:20], Y[:20]) + gp.statistics(X[20:], Y[20:])
    assert gp.log_evidence(statistics).item() == pytest.approx(expected, rel=1e-8)
    parameters = [p for p in gp.kernel.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(before, parameters)
    parameter, gradient = parameters[0], gradients[0].view(-1)[0].item()
    sides = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            parameter.view(-1)[0] += step
            sides.append(gp.log_evidence(X, Y).item())
            parameter.view(-1)[0] -= step
    assert gradient == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4)
    gp.fit(X, Y, init="current", max_iter=5)
    assert gp.fit_report_.log_evidence > before.item()


def test_manifold_features_gradients_do_not_depend_on_row_chunks(monkeypatch):
    from ovkgp.inference.statistics import accumulation

    features, kernel, X, _ = problem("curl-free", n=60)
    Y = points(60, 4)
    gp = OperatorValuedGP(kernel, "zero", 0.05, features=features)
    whole = torch.autograd.grad(gp.log_evidence(X, Y), list(gp.kernel.parameters()))
    monkeypatch.setattr(accumulation, "FEATURE_CHUNK_ENTRIES", 1)
    monkeypatch.setattr(accumulation, "MIN_CHUNK_ROWS", 25)
    chunked = torch.autograd.grad(gp.log_evidence(X, Y), list(gp.kernel.parameters()))
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_kernel_and_features_copied_together_stay_consistent():
    features, kernel, _, _ = problem("icm")
    twin, twin_features = deepcopy((kernel, features))
    assert twin_features.kernel is twin is not kernel
    assert twin_features.features.kernel is twin.base_kernel
    x = points(3, 1)
    np.testing.assert_array_equal(matrix(twin_features, x), matrix(features, x))
    twin.base_kernel.base_kernel.lengthscale = 3.0
    assert np.abs(matrix(twin_features, x) - matrix(features, x)).max() > 1e-3
    read = pickle.loads(pickle.dumps(features))
    assert read.features.kernel is read.kernel.base_kernel
    np.testing.assert_allclose(matrix(read, x), matrix(features, x), atol=1e-12)


def test_weight_prior_is_factorized_once(monkeypatch):
    features, kernel, _, _ = problem("icm")
    count, factorize = [], module._factorize
    monkeypatch.setattr(module, "_factorize", lambda *arguments: count.append(1) or factorize(*arguments))
    first = matrix(features, points(3, 1))
    matrix(features, points(5, 2))
    assert len(count) == 1
    kernel.strength = 2.0
    assert np.abs(matrix(features, points(3, 1)) - first).max() > 1e-3 and len(count) == 2


def test_manifold_features_accept_batches_of_hyperparameters():
    base, X = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([2])).double(), points(9)
    base.lengthscale = torch.tensor([0.5, 2.0])[:, None, None].expand(2, 1, 2)
    kernel = ManifoldKernel(base, X, neighbor_laplacian(X, 2), STRENGTH)
    features = ManifoldFeatures(ORFF(base, 7, random_state=0), kernel).double()
    both = matrix(features, points(4, 1))
    assert both.shape == (2, 4, 14)
    for i in range(2):
        part = features[i]
        assert part.features.kernel is part.kernel.base_kernel and part.batch_shape == ()
        np.testing.assert_allclose(matrix(part, points(4, 1)), both[i], atol=1e-10)
    assert matrix(features.expand_batch(3, 2), points(4, 1)).shape == (3, 2, 4, 14)


def test_manifold_features_support_single_precision():
    features, _, _, _ = problem("icm")
    expected = matrix(features, points(4, 1))
    found = matrix(deepcopy(features).float(), points(4, 1).float())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)


def test_manifold_features_reject_invalid_arguments():
    features, kernel, _, _ = problem("icm")
    with pytest.raises(OptionError, match=r"another kernel.*ORFF\(kernel\.base_kernel\)"):
        ManifoldFeatures(ORFF(KERNELS["icm"](), 5), kernel)
    with pytest.raises(KernelTypeError, match="kernel must be a ManifoldKernel"):
        ManifoldFeatures(features.features, kernel.base_kernel)
    with pytest.raises(KernelTypeError, match="feature map"):
        ManifoldFeatures("orff", kernel)
