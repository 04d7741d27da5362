"""The manifold kernel against the dual system of the thesis and the dense identity (BT-111, BT-113, ID-7)."""

import inspect
import pickle
import unittest
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st
from manifold_oracle import dual_coefficients, gp_mean, warped
from oracles import dense
from sklearn.datasets import make_moons

from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    ManifoldKernel,
    block,
    components,
    is_operator_valued,
    neighbor_laplacian,
    num_outputs,
)
from ovkgp.kernels.manifold.kernel import OperatorValuedManifoldKernel


def points(n, seed=0, d=2):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


GAMMA = torch.tensor([[1.0, 0.6, 0.1], [0.6, 2.0, -0.3], [0.1, -0.3, 0.5]], dtype=torch.float64)
BASES = {
    "scalar": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "decomposable": lambda: DecomposableKernel(RBFKernel(), output_matrix=GAMMA),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(), num_dims=2),
}
PENALTIES = ("laplacian", "laplacian, invertible", "full", "full, invertible")


def penalty_of(name, X, p):
    """Return M as passed to the kernel, and as an (n·p, n·p) matrix."""
    n, rng = len(X), np.random.default_rng(5)
    if name.startswith("laplacian"):
        M = neighbor_laplacian(X, 3) + (0.1 * np.eye(n) if "invertible" in name else 0)
        return M, np.kron(np.asarray(M.todense() if hasattr(M, "todense") else M), np.eye(p))
    root = rng.normal(size=(n * p, n * p if "invertible" in name else n))
    M = root @ root.T + (np.eye(n * p) if "invertible" in name else 0)
    return M, M


def problem(base, penalty, n=14, strength=0.75):
    kernel, X = BASES[base]().double(), points(n)
    p = num_outputs(kernel)
    given, M = penalty_of(penalty, X, p)
    return ManifoldKernel(kernel, X, given, strength).requires_grad_(False), X, M, p


EVERY = pytest.mark.parametrize(("base", "penalty"), [(base, penalty) for base in BASES for penalty in PENALTIES])


class TestManifoldProtocol(BaseKernelTestCase, unittest.TestCase):
    X = points(12, d=10).float()

    def make(self, num_dims=2, active_dims=None, **kwargs):
        X = self.X[:, :num_dims] if active_dims is None else self.X
        base = RBFKernel(active_dims=active_dims, **kwargs)
        return ManifoldKernel(base, X, neighbor_laplacian(self.X, 3), strength=0.8)

    create_kernel_no_ard = make

    def create_kernel_ard(self, num_dims, **kwargs):
        return self.make(num_dims, ard_num_dims=num_dims, **kwargs)

    def _compare_active_dims(self, active_dims):  # the columns of X are selected too
        x = self.create_data_no_batch()
        basic = ManifoldKernel(RBFKernel(), self.X[:, active_dims], neighbor_laplacian(self.X, 3), strength=0.8)
        selected = basic(x[:, active_dims]).to_dense()
        self.assertAllClose(self.make(active_dims=active_dims)(x).to_dense(), selected, rtol=1e-3, atol=1e-5)

    def test_active_dims_list(self):
        self._compare_active_dims([0, 2, 4, 6])

    def test_active_dims_range(self):
        self._compare_active_dims(list(range(3, 9)))


class TestOperatorValuedManifoldProtocol(TestManifoldProtocol):
    def make(self, num_dims=2, active_dims=None, **kwargs):
        X = self.X[:, :num_dims] if active_dims is None else self.X
        base = DecomposableKernel(RBFKernel(active_dims=active_dims, **kwargs), output_matrix=GAMMA.float())
        return ManifoldKernel(base, X, neighbor_laplacian(self.X, 3), strength=0.8)

    create_kernel_no_ard = make

    def _compare_active_dims(self, active_dims):
        x = self.create_data_no_batch()
        base = DecomposableKernel(RBFKernel(), output_matrix=GAMMA.float())
        basic = ManifoldKernel(base, self.X[:, active_dims], neighbor_laplacian(self.X, 3), strength=0.8)
        selected = basic(x[:, active_dims]).to_dense()
        self.assertAllClose(self.make(active_dims=active_dims)(x).to_dense(), selected, rtol=1e-3, atol=1e-5)


# --- values ---------------------------------------------------------------------------------------------------------


@EVERY
def test_id_7_covariance_matches_dense_identity(base, penalty):
    kernel, X, M, _ = problem(base, penalty)
    x, z, K = points(5, 1), points(4, 2), kernel.base_kernel
    expected = warped(dense(K, x, z), dense(K, x, X), dense(K, X), dense(K, X, z), M, 0.75)
    np.testing.assert_allclose(dense(kernel, x, z), expected, atol=1e-10)
    at_x = warped(dense(K, x), dense(K, x, X), dense(K, X), dense(K, X, x), M, 0.75)
    np.testing.assert_allclose(dense(kernel, x), at_x, atol=1e-10)
    np.testing.assert_allclose(kernel(x, diag=True).numpy(), at_x.diagonal(), atol=1e-10)
    torch.testing.assert_close(kernel(x[:4], z, diag=True), kernel(x[:4], z).to_dense().diagonal())


@EVERY
def test_id_7_kernel_is_prior_given_pseudo_observations_of_zero(base, penalty):
    """Conditioning on Rᵀ f(X) = 0 with variance 1/s, by the textbook formula for a joint Gaussian."""
    kernel, X, M, _ = problem(base, penalty)
    x, K = points(5, 1), kernel.base_kernel
    values, vectors = np.linalg.eigh(M)
    R = vectors * np.sqrt(values.clip(0))
    both = dense(K, torch.cat([x, X]))
    m = len(both) - len(M)
    observe = np.concatenate([np.zeros((m, len(M))), R])
    gain = both @ observe @ np.linalg.inv(observe.T @ both @ observe + np.eye(len(M)) / 0.75)
    posterior = both - gain @ observe.T @ both
    np.testing.assert_allclose(dense(kernel, x), posterior[:m, :m], atol=1e-10)


@pytest.mark.parametrize("base", BASES)
def test_bt_113_dual_system_is_gp_with_manifold_kernel(base):
    for penalty in PENALTIES:
        kernel, X, M, p = problem(base, penalty)
        lam, N, test = 0.1, 6, points(5, 1)
        Y = points(N, 3, d=p)
        u = dual_coefficients(dense(kernel.base_kernel, X), np.eye(p), M, Y.numpy(), lam, 0.75 * lam)
        expected = dense(kernel.base_kernel, test, X) @ u
        gp = OperatorValuedGP(kernel, mean="zero", noise=N * lam)
        found = gp.condition(X[:N], Y).predict(test).mean
        np.testing.assert_allclose(found.numpy().ravel(), expected, atol=1e-8)


def test_bt_e_04_the_right_hand_side_of_the_dual_system_is_divided_by_the_number_of_labels():
    kernel, X, M, p = problem("decomposable", "laplacian")
    N, lam, test = 6, 0.1, points(5, 1)
    Y = points(N, 3, d=p)
    K, cross = dense(kernel.base_kernel, X), dense(kernel.base_kernel, test, X)
    options = (K, np.eye(p), M, Y.numpy(), lam, 0.75 * lam)
    mean = OperatorValuedGP(kernel, mean="zero", noise=N * lam).condition(X[:N], Y).predict(test).mean.numpy().ravel()
    np.testing.assert_allclose(cross @ dual_coefficients(*options), mean, atol=1e-10)
    printed = cross @ dual_coefficients(*options, right_scale=1.0)
    np.testing.assert_allclose(printed, N * mean, atol=1e-9)  # N times too large


@pytest.mark.parametrize("penalty", ["laplacian", "full"])
def test_bt_115_manifold_kernel_supports_an_observation_operator(penalty):
    """Three latent outputs, two observed combinations of them."""
    kernel, X, M, _ = problem("decomposable", penalty)
    V = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, -1.0]])
    N, lam, test = 6, 0.1, points(5, 1)
    Y = points(N, 3).numpy()
    u = dual_coefficients(dense(kernel.base_kernel, X), V, M, Y, lam, 0.75 * lam)
    expected = dense(kernel.base_kernel, test, X) @ u
    found = gp_mean(dense(kernel, test, X[:N]), dense(kernel, X[:N]), V, Y, N * lam)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("strength", [0.0, 0.75])
@pytest.mark.parametrize("base", BASES)
def test_bt_115_manifold_kernel_of_combinations(base, strength):
    """V K_M Vᵀ, its diagonal, blocks and number of outputs; a scalar base kernel has u = 1."""
    kernel, X, _, u = problem(base, "laplacian", strength=strength)
    V = np.random.default_rng(0).normal(size=(2, u))
    combined = ManifoldKernel(kernel.base_kernel, X, neighbor_laplacian(X, 3), strength, combination=V)
    x, z = points(5, 1), points(4, 2)
    left, right = (np.kron(np.eye(len(part)), V) for part in (x, z))
    expected = left @ dense(kernel, x, z) @ right.T
    np.testing.assert_allclose(dense(combined, x, z), expected, atol=1e-12)
    np.testing.assert_allclose(combined(x, diag=True), np.diag(dense(combined, x)), atol=1e-12)
    assert num_outputs(combined) == 2 and isinstance(combined, OperatorValuedManifoldKernel)
    np.testing.assert_allclose(block(combined, x[0], z[0]), expected[:2, :2], atol=1e-12)


@pytest.mark.parametrize(
    "combination, message", [(np.eye(2), "expected .p, 3."), (np.full((1, 3), np.nan), "finite"), ("V", "numbers")]
)
def test_manifold_kernel_rejects_invalid_combination(combination, message):
    kernel, X, _, _ = problem("decomposable", "laplacian")
    with pytest.raises(InputError, match=message):
        ManifoldKernel(kernel.base_kernel, X, neighbor_laplacian(X, 3), combination=combination)


@pytest.mark.parametrize("base", BASES)
def test_zero_strength_gives_base_kernel_and_ridge(base):
    kernel, X, _, p = problem(base, "laplacian", strength=0.0)
    x = points(5, 1)
    np.testing.assert_allclose(dense(kernel, x, X), dense(kernel.base_kernel, x, X), rtol=1e-13)  # GPyTorch's distances
    np.testing.assert_array_equal(kernel(x, diag=True), kernel.base_kernel(x, diag=True))
    Y = points(len(X), 3, d=p)
    found, expected = (
        OperatorValuedGP(k, mean="zero", noise=0.3).condition(X, Y).predict(x) for k in (kernel, kernel.base_kernel)
    )
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(found.std, expected.std, atol=1e-10, rtol=0)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([(base, penalty) for base in BASES for penalty in PENALTIES]),
    st.sampled_from([1e-6, 1.0, 1e3, 1e6]),
    st.integers(0, 1000),
)
def test_manifold_kernel_is_positive_semidefinite_and_below_base_kernel(case, strength, seed):
    kernel, X, _, _ = problem(*case, strength=strength)
    x = torch.cat([X[:4], points(5, seed)])
    K, K_M = dense(kernel.base_kernel, x), dense(kernel, x)
    np.testing.assert_allclose(K_M, K_M.T, atol=1e-12)
    size = np.linalg.eigvalsh(K)[-1]
    assert np.linalg.eigvalsh(K_M)[0] > -1e-9 * size
    assert np.linalg.eigvalsh(K - K_M)[0] > -1e-9 * size


def test_variance_decreases_with_strength():
    kernel, X, M, _ = problem("curl-free", "laplacian")
    variances, energies = [], []
    for strength in (0.0, 0.1, 1.0, 10.0, 100.0):
        kernel.strength = strength
        K_M = dense(kernel, X)
        variances.append(np.trace(K_M))
        energies.append(np.trace(M @ K_M))  # the expected penalty
    assert variances == sorted(variances, reverse=True) and energies == sorted(energies, reverse=True)
    assert energies[-1] < 0.05 * energies[0]


def test_constants_on_connected_components_are_not_penalized():
    """The null space of a Laplacian: the mean over a connected part keeps its prior variance as the strength grows."""
    kernel, X, _, _ = problem("scalar", "laplacian", strength=1e5)
    ones = np.ones(len(X)) / len(X)
    free = 1 / (np.ones(len(X)) @ np.linalg.solve(dense(kernel.base_kernel, X), np.ones(len(X))))
    assert ones @ dense(kernel, X) @ ones == pytest.approx(free, rel=1e-3)  # variance of c in f = c on all of X


def test_variance_decreases_along_the_moons():
    X, labels = make_moons(80, noise=0.03, random_state=0)
    X = torch.from_numpy(X)
    labeled = [int(np.flatnonzero(labels == c)[0]) for c in (0, 1)]
    base = RBFKernel().double()
    base.lengthscale = 0.4
    kernel = ManifoldKernel(base, X, neighbor_laplacian(X, 6), strength=5.0)
    y = torch.tensor([[-1.0], [1.0]]).double()
    with_penalty, without = (
        OperatorValuedGP(k, mean="zero", noise=1e-2).condition(X[labeled], y).predict(X) for k in (kernel, base)
    )
    unlabeled = np.setdiff1d(np.arange(80), labeled)
    assert (with_penalty.std[unlabeled] < without.std[unlabeled]).all()
    right, right_without = (((p.mean.squeeze(-1) > 0).numpy() == labels).mean() for p in (with_penalty, without))
    assert right > 0.95 > right_without


# --- gradients and cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("base", ["scalar", "curl-free"])
def test_gradients_match_finite_differences(base, penalty):
    fixed, X, _, _ = problem(base, penalty, n=6)
    kernel = ManifoldKernel(fixed.base_kernel, X, fixed.penalty, 0.75, learn_strength=True).double()
    kernel.requires_grad_(True)
    x, z, parameters = points(2, 1).requires_grad_(), points(3, 2).requires_grad_(), list(kernel.parameters())
    assert len(parameters) == (3 if base == "scalar" else 2)
    with torch.no_grad():
        kernel(x, z).to_dense()  # the value cached here must not be used below

    def value(x, z, *_):  # the parameters are those of the kernel, and perturbed in place
        return kernel(x, z).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, *parameters))


def test_evidence_is_differentiable_and_trains_the_strength():
    X, labels = make_moons(40, noise=0.05, random_state=0)
    X, y = torch.from_numpy(X), torch.from_numpy(2.0 * labels - 1).unsqueeze(-1)
    base = RBFKernel().double()
    base.lengthscale = 0.3
    kernel = ManifoldKernel(base, X, neighbor_laplacian(X, 4), 0.5, learn_strength=True).double()
    gp = OperatorValuedGP(kernel, mean="zero", noise=0.1)
    before = gp.log_evidence(X[:20], y[:20])
    gradients = torch.autograd.grad(before, list(gp.kernel.parameters()))
    for parameter, gradient in zip(gp.kernel.parameters(), gradients, strict=True):
        sides = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                parameter.add_(step)
                sides.append(gp.log_evidence(X[:20], y[:20]).item())
                parameter.sub_(step)
        assert gradient.item() == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5)
    gp.fit(X[:20], y[:20], init="current", max_iter=20)
    assert gp.fit_report_.log_evidence > before.item()
    assert gp.kernel.strength.item() != pytest.approx(0.5, rel=1e-3)


def test_factorization_is_cached_until_hyperparameters_change(monkeypatch):
    kernel, X, _, _ = problem("decomposable", "laplacian")
    count = []
    factorize = ManifoldKernel._factorize

    def counted(self, *arguments):
        count.append(1)
        return factorize(self, *arguments)

    monkeypatch.setattr(ManifoldKernel, "_factorize", counted)
    x = points(3, 1)
    first = dense(kernel, x)
    np.testing.assert_array_equal(dense(kernel, x), first)
    dense(kernel, x, X), kernel(x, diag=True)
    assert len(count) == 1
    kernel.base_kernel.base_kernel.lengthscale = 2.0
    changed = dense(kernel, x)
    assert len(count) == 2 and np.abs(changed - first).max() > 1e-3
    fresh = pickle.loads(pickle.dumps(kernel))
    np.testing.assert_allclose(dense(fresh, x), changed, atol=1e-13)
    kernel.strength = 3.0
    assert np.abs(dense(kernel, x) - changed).max() > 1e-3
    kernel.load_state_dict(fresh.state_dict())
    np.testing.assert_allclose(dense(kernel, x), changed, atol=1e-13)


# --- the protocol ---------------------------------------------------------------------------------------------------


def test_manifold_kernel_of_scalar_base_is_scalar():
    kernel, _, _, _ = problem("scalar", "laplacian")
    assert type(kernel) is ManifoldKernel and not is_operator_valued(kernel) and num_outputs(kernel) == 1
    [(scalar, matrix)] = components(kernel)  # a scalar kernel is its single component
    assert scalar is kernel and matrix.tolist() == [[1.0]]
    assert not kernel.is_stationary
    assert block(kernel, torch.zeros(2).double(), torch.ones(2).double()).shape == (1, 1)


@pytest.mark.parametrize("base", ["decomposable", "curl-free"])
def test_manifold_kernel_of_operator_valued_base(base):
    kernel, X, _, p = problem(base, "laplacian")
    assert isinstance(kernel, OperatorValuedManifoldKernel) and is_operator_valued(kernel)
    assert kernel.num_outputs == num_outputs(kernel) == p and components(kernel) is None
    torch.testing.assert_close(block(kernel, X[1], X[2]), kernel(X[:3]).to_dense()[p : 2 * p, 2 * p : 3 * p])
    assert (kernel * RBFKernel().double())(X).shape == (14 * p, 14 * p)


@pytest.mark.parametrize("base", BASES)
def test_manifold_kernel_survives_copy_pickle_and_conversion(base):
    kernel, X, _, _ = problem(base, "laplacian")
    expected = dense(kernel, X[:3])
    for twin in (deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert type(twin) is type(kernel)
        np.testing.assert_array_equal(dense(twin, X[:3]), expected)
    single = deepcopy(kernel).float()(X[:3].float()).to_dense()
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-4 * np.abs(expected).max())


def test_single_precision_kernel_with_double_precision_points():
    """A kernel in torch's default dtype keeps the dtype of the points and of the penalty."""
    X = points(10)
    L = neighbor_laplacian(X, 3)
    born = ManifoldKernel(RBFKernel(), X, L, strength=0.3)
    assert born.dtype == torch.float32 and born(X[:2].float()).to_dense().dtype == torch.float32
    late = ManifoldKernel(RBFKernel().double(), X, L, strength=0.3)
    np.testing.assert_array_equal(dense(born.double(), X), dense(late, X))


def test_manifold_kernel_accepts_batches_of_hyperparameters():
    X = points(8)
    base = RBFKernel(batch_shape=torch.Size([2])).double()
    base.lengthscale = torch.tensor([0.5, 2.0])[:, None, None]
    kernel = ManifoldKernel(base, X, neighbor_laplacian(X, 3), 0.5, learn_strength=True).double()
    assert kernel.batch_shape == (2,)
    matrices = kernel(points(4, 1)).to_dense()
    for i, lengthscale in enumerate((0.5, 2.0)):
        alone = RBFKernel().double()
        alone.lengthscale = lengthscale
        expected = dense(ManifoldKernel(alone, X, neighbor_laplacian(X, 3), 0.5), points(4, 1))
        np.testing.assert_allclose(matrices[i].detach().numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(dense(kernel[i], points(4, 1)), expected, atol=1e-6)
    assert kernel.expand_batch(3, 2)(points(4, 1)).to_dense().shape == (3, 2, 4, 4)


@pytest.mark.parametrize("n", [1, 3])
def test_manifold_kernel_with_few_or_duplicate_points(n):
    X = torch.zeros(n, 2).double()  # all points are equal
    base = CurlFreeKernel(RBFKernel(), num_dims=2).double()
    base.base_kernel.lengthscale = 1.0
    nothing = ManifoldKernel(base, X, neighbor_laplacian(X), strength=2.0)  # differences between duplicates are zero
    np.testing.assert_allclose(dense(nothing, points(3)), dense(base, points(3)), atol=1e-12)
    ridge = ManifoldKernel(base, X, np.eye(n), strength=2.0)
    np.testing.assert_allclose(dense(ridge, X[:1]), np.eye(2) / (1 + 2 * n), atol=1e-12)


def test_points_may_be_one_dimensional():
    kernel = ManifoldKernel(RBFKernel(), [0, 1, 3], [[1, -1, 0], [-1, 2, -1], [0, -1, 1]], strength=1)
    assert kernel.X.shape == (3, 1) and kernel.X.dtype == torch.float32
    assert kernel(torch.zeros(2, 1)).shape == (2, 2)


def test_repr_shows_the_penalty():
    names = list(inspect.signature(ManifoldKernel).parameters)
    assert names == ["base_kernel", "X", "penalty", "strength", "learn_strength", "combination"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"base_kernel": "rbf"}, KernelTypeError, "got str"),
        ({"X": torch.full((4, 2), torch.nan)}, InputError, "X must be finite"),
        ({"X": torch.zeros(0, 2)}, InputError, "non-empty"),
        ({"X": torch.zeros(2, 2, 2)}, InputError, r"got shape \(2, 2, 2\)"),
        ({"X": [["a"]]}, InputError, "array of numbers"),
        ({"X": np.array([[1j]])}, InputError, "real numbers"),
        ({"penalty": np.eye(5)}, InputError, r"\(5, 5\), expected \(4, 4\) or \(8, 8\)"),
        ({"penalty": -np.eye(4)}, InputError, "negative eigenvalue"),
        ({"strength": -1.0}, OptionError, "strength"),
        ({"strength": np.inf}, OptionError, "finite"),
        ({"strength": "strong"}, OptionError, "must be a number"),
        ({"strength": 0.0, "learn_strength": True}, OptionError, "greater than 0"),
    ],
)
def test_manifold_kernel_rejects_invalid_arguments(options, error, message):
    good = {
        "base_kernel": CurlFreeKernel(RBFKernel(), num_dims=2),
        "X": points(4),
        "penalty": np.eye(4),
        "strength": 1.0,
    }
    with pytest.raises(error, match=message):
        ManifoldKernel(**{**good, **options})


def test_overflow_raises_factorization_error():
    kernel = ManifoldKernel(LinearKernel().double(), 1e200 * points(4), np.eye(4), strength=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(FactorizationError, match=r"strength=1\.0"):
            kernel(points(2)).to_dense()
