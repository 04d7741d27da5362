"""ORFFKernel in GPyTorch models: equal to dense algebra, low-rank in training and in prediction."""

import unittest

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from torch.utils._python_dispatch import TorchDispatchMode

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, FeatureSumKernel, Nystrom, ORFFKernel
from ovkgp.features.covariance import NoisyFeatureCovariance
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel

N, M_TEST, P = 40, 9, 3


def decomposable(seed=0, D=8):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=P, rank=1)
    return ORFFKernel(ORFF(kernel, D, random_state=seed))


def divergence_free(seed=0, D=6):
    return ORFFKernel(ORFF(DivergenceFreeKernel(RBFKernel(ard_num_dims=3)), D, random_state=seed))


KERNELS = {
    "decomposable": decomposable,
    "divergence-free": divergence_free,
    "scaled": lambda: ScaleKernel(decomposable()),
    "sum": lambda: decomposable(0, 5) + decomposable(1, 6),
    "sum of three": lambda: decomposable(0, 3) + decomposable(1, 4) + decomposable(2, 5),
    "sum of scaled": lambda: ScaleKernel(decomposable(0, 5)) + ScaleKernel(decomposable(1, 6)),
    "feature sum of scaled": lambda: FeatureSumKernel(ScaleKernel(decomposable(0, 5)), ScaleKernel(decomposable(1, 6))),
    "scaled sum": lambda: ScaleKernel(decomposable(0, 5) + decomposable(1, 6)),
    "features of a sum": lambda: ORFFKernel(
        ORFF(
            DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=P)
            + DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=P, rank=2),
            5,
            random_state=0,
        )
    ),
    "nystrom": lambda: ORFFKernel(
        Nystrom(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=P), torch.rand(6, 2).double())
    ),
    "nystrom, not separable": lambda: ORFFKernel(Nystrom(CurlFreeKernel(RBFKernel(), 3), torch.rand(6, 3).double())),
}


class Model(gpytorch.models.ExactGP):
    def __init__(self, X, Y, likelihood, kernel):
        super().__init__(X, Y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=P)
        self.covar_module = kernel

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


def build(name, rank, n=N):
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    d = 3 if name in ("divergence-free", "nystrom, not separable") else 2
    X, Y, Xs = (torch.randn(rows, cols).double() for rows, cols in ((n, d), (n, P), (M_TEST, d)))
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=P, rank=rank)
    return Model(X, Y, likelihood, kernel).double(), X, Y, Xs


def dense_parts(model, X, Xs):
    """Kernel matrices from the feature map's dense Φ alone, and the noise from the likelihood's parameters."""
    K = model.covar_module(torch.cat([X, Xs])).to_dense()
    n = len(X) * P
    likelihood = model.likelihood
    noise = likelihood.noise * torch.eye(P, dtype=torch.float64)
    if likelihood.rank == 0:
        noise = noise + torch.diag(likelihood.task_noises)
    else:
        noise = noise + likelihood.task_noise_covar
    return K[:n, :n], K[n:, :n], K[n:, n:], torch.kron(torch.eye(len(X), dtype=torch.float64), noise)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_evidence_gradient_and_prediction_equal_dense_algebra(name, rank):
    model, X, Y, Xs = build(name, rank)
    K, Ks, Kss, noise = dense_parts(model, X, Xs)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    parameters = [p for p in model.parameters() if p.requires_grad]

    model.train()
    output = model.likelihood(model(X))
    assert isinstance(output.lazy_covariance_matrix, NoisyFeatureCovariance)
    ours = mll(model(X), Y) * N * P
    mean = model.mean_module(X).flatten()
    dense = torch.distributions.MultivariateNormal(mean, K + noise).log_prob(Y.flatten())
    torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-9)
    gradients = torch.autograd.grad(ours, parameters, allow_unused=True)
    expected = torch.autograd.grad(dense, parameters, allow_unused=True)
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)

    model.eval()
    with torch.no_grad():
        posterior = model(Xs)
        solve = torch.linalg.solve(K + noise, torch.cat([(Y.flatten() - mean)[:, None], Ks.mT], 1))
        expected_mean = model.mean_module(Xs).flatten() + Ks @ solve[:, 0]
        torch.testing.assert_close(posterior.mean.flatten(), expected_mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(posterior.covariance_matrix, Kss - Ks @ solve[:, 1:], rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(
            posterior.variance.flatten(), (Kss - Ks @ solve[:, 1:]).diagonal(), atol=1e-7, rtol=0
        )


@pytest.mark.parametrize("rank", [0, 1])
def test_prediction_at_training_inputs_equals_dense_algebra(rank):
    model, X, Y, _ = build("decomposable", rank)
    K, *_, noise = dense_parts(model, X, X)
    model.eval()
    with torch.no_grad():
        residual = Y.flatten() - model.mean_module(X).flatten()
        expected = model.mean_module(X).flatten() + K @ torch.linalg.solve(K + noise, residual)
        torch.testing.assert_close(model(X).mean.flatten(), expected)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest storage made inside."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "name",
    ["decomposable", "divergence-free", "scaled", "sum", "scaled sum", "feature sum of scaled", "features of a sum"],
)
def test_no_square_matrix_of_all_observations_is_formed(name, rank):
    """Training, and prediction at as many points: nothing is larger than np × r, let alone np × np."""
    n = 300
    model, X, Y, _ = build(name, rank, n)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    with LargestTensor() as train:
        (-mll(model(X), Y)).backward()
    model.eval()
    with torch.no_grad(), LargestTensor() as predict:
        posterior = model(X + 0.1)
        assert posterior.mean.shape == posterior.variance.shape == (n, P)
    r = model.covar_module(X).evaluate_kernel().root.num_columns
    assert train.largest <= 2 * n * P * r
    assert predict.largest <= n * P * max(r, P)
    assert n * P * max(r, P) < (n * P) ** 2 / 4


def test_sum_of_scaled_kernels_trains_and_predicts_without_the_square_matrix():
    """A GPyTorch AdditiveKernel only forms the matrix between the (few) test points and the training points."""
    n = 300
    model, X, Y, Xs = build("sum of scaled", 1, n)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    with LargestTensor() as train:
        (-mll(model(X), Y)).backward()
    model.eval()
    with torch.no_grad(), LargestTensor() as predict:
        assert (model(Xs).variance > 0).all()
    assert max(train.largest, predict.largest) < (n * P) ** 2 / 4


def test_single_output_model_equals_dense_algebra():
    torch.manual_seed(0)
    X, y, Xs = torch.rand(30, 2).double(), torch.randn(30).double(), torch.rand(5, 2).double()
    kernel = ScaleKernel(ORFFKernel(ORFF(RBFKernel(ard_num_dims=2), 5, random_state=0)))

    class Single(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Single().double()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    K = kernel(X).to_dense() + model.likelihood.noise * torch.eye(30).double()
    dense = torch.distributions.MultivariateNormal(torch.zeros(30).double(), K).log_prob(y)
    torch.testing.assert_close(mll(model(X), y) * 30, dense)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(Xs).mean, kernel(Xs, X).to_dense() @ torch.linalg.solve(K, y))


def test_prediction_with_more_features_than_observations_equals_dense_algebra():
    model, X, Y, Xs = build("decomposable", 1, n=4)
    K, Ks, Kss, noise = dense_parts(model, X, Xs)
    assert model.covar_module.orff.num_features > 4 * P
    model.eval()
    with torch.no_grad():
        residual = Y.flatten() - model.mean_module(X).flatten()
        mean = model.mean_module(Xs).flatten() + Ks @ torch.linalg.solve(K + noise, residual)
        torch.testing.assert_close(model(Xs).mean.flatten(), mean)
        torch.testing.assert_close(model(Xs).covariance_matrix, Kss - Ks @ torch.linalg.solve(K + noise, Ks.mT))


@pytest.mark.parametrize("n", [N, 4])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["decomposable", "divergence-free", "sum", "nystrom, not separable"])
def test_missing_outputs_give_the_dense_mean_and_variance(name, rank, n):
    """GPyTorch's own variance ignores that outputs are missing; n = 4 has more features than observations."""
    model, X, Y, Xs = build(name, rank, n)
    Y = Y.clone()
    Y[::4, 1] = torch.nan
    Y[1] = torch.nan
    model.set_train_data(X, Y)
    K, Ks, Kss, noise = dense_parts(model, X, Xs)
    observed = ~Y.flatten().isnan()
    model.eval()
    with torch.no_grad(), gpytorch.settings.observation_nan_policy("mask"):
        solve = torch.linalg.solve((K + noise)[observed][:, observed], Ks[:, observed].mT).mT
        residual = (Y.flatten() - model.mean_module(X).flatten())[observed]
        posterior = model(Xs)
        mean = model.mean_module(Xs).flatten() + solve @ residual
        torch.testing.assert_close(posterior.mean.flatten(), mean, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(posterior.covariance_matrix, Kss - solve @ Ks[:, observed].mT, rtol=1e-6, atol=1e-7)


def test_single_output_model_with_fixed_noise_ignores_missing_outputs():
    torch.manual_seed(0)
    X, y, Xs = torch.rand(30, 2).double(), torch.randn(30).double(), torch.rand(5, 2).double()
    y[::3] = torch.nan
    noise = torch.rand(30).double() + 0.1
    kernel = ORFFKernel(ORFF(RBFKernel(ard_num_dims=2), 5, random_state=0)).double()

    class Single(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noise))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Single().double().eval()
    observed = ~y.isnan()
    with torch.no_grad():
        K = (kernel(X).to_dense() + torch.diag(noise))[observed][:, observed]
        Ks = kernel(Xs, X).to_dense()[:, observed]
        torch.testing.assert_close(model(Xs).mean, Ks @ torch.linalg.solve(K, y[observed]))
        expected = (kernel(Xs).to_dense() - Ks @ torch.linalg.solve(K, Ks.mT)).diagonal()
        torch.testing.assert_close(model(Xs).variance, expected)


def test_training_improves_the_evidence():
    model, X, Y, _ = build("decomposable", 0)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    initial = model.covar_module.orff.kernel.base_kernel.lengthscale.detach().clone()
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = -mll(model(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.equal(model.covar_module.orff.kernel.base_kernel.lengthscale, initial)


def test_samples_of_the_posterior_have_its_covariance():
    model, _, _, Xs = build("decomposable", 1)
    model.eval()
    with torch.no_grad():
        posterior = model.likelihood(model(Xs))
        samples = posterior.rsample(torch.Size([20_000])).flatten(1)
        covariance = posterior.covariance_matrix
    error = (torch.cov(samples.mT) - covariance).abs()
    error_std = (covariance.diagonal()[:, None] * covariance.diagonal() + covariance**2).sqrt() / 20_000**0.5
    assert (error < 5 * error_std).all()


def test_orff_kernel_rejects_other_objects():
    with pytest.raises(KernelTypeError, match="feature map"):
        ORFFKernel(RBFKernel())


def test_different_maps_add_in_either_order():
    """Nyström features of a kernel that is not separable have a row for each output, random ones a block."""
    orff = ORFFKernel(ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=3)), 4, random_state=0)).double()
    nystrom = ORFFKernel(Nystrom(orff.orff.kernel, torch.rand(5, 3).double()))
    X, noise = torch.rand(20, 3).double(), 0.3 * torch.eye(60).double()
    for kernel in (orff + nystrom, nystrom + orff):
        dense = sum(part(X).to_dense() for part in kernel.kernels) + noise
        ours = kernel(X).evaluate_kernel().add_diagonal(torch.tensor(0.3).double())
        torch.testing.assert_close(ours.logdet(), torch.logdet(dense))
        rhs = torch.randn(60, 2).double()
        torch.testing.assert_close(ours.solve(rhs), torch.linalg.solve(dense, rhs))


def test_gradients_distinguish_equal_inputs():
    """K(a, x) with a = x in value: row 1 of a does not enter K(a_0, x_1)."""
    kernel = decomposable().double()
    x = torch.randn(3, 2).double()
    a = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(kernel(a, x).to_dense()[0, P], a)
    assert gradient[0].abs().max() > 0
    assert torch.equal(gradient[1], torch.zeros(2).double())


def test_mixed_precision_is_promoted():
    kernel, x = decomposable(), torch.randn(3, 2)
    assert kernel(x.double(), x).to_dense().dtype == torch.float64


def test_converting_a_cross_covariance_does_not_change_the_map():
    kernel = decomposable()
    x = torch.randn(3, 2)
    cross = kernel(x, x + 1).evaluate_kernel()
    torch.testing.assert_close(cross.double().to_dense().float(), cross.to_dense())
    assert kernel.orff.raw_frequencies_0.dtype == torch.float32


def test_cross_covariance_raises_if_hyperparameters_changed():
    """The right factor is computed when needed; with other hyperparameters than the left there is no covariance."""
    kernel, x = decomposable(), torch.randn(3, 2)
    cross = kernel(x, x + 1).evaluate_kernel()
    with torch.no_grad():
        kernel.orff.kernel.base_kernel.raw_lengthscale.add_(1.0)
    with pytest.raises(OptionError, match="Call the kernel again"):
        cross.to_dense()


def test_hyperparameters_have_gpytorch_names():
    kernel = decomposable()
    kernel.initialize(**{"orff.kernel.base_kernel.lengthscale": 2.0})
    assert torch.equal(kernel.orff.kernel.base_kernel.lengthscale, torch.full((1, 2), 2.0))
    assert kernel.is_stationary
    assert not ORFFKernel(Nystrom(RBFKernel(), torch.rand(3, 2))).is_stationary


def test_feature_sum_is_dense_only_with_a_dense_term():
    assert isinstance(decomposable() + decomposable(1) + decomposable(2), FeatureSumKernel)
    assert isinstance(decomposable() + (decomposable(1) + decomposable(2)), FeatureSumKernel)
    mixed = (decomposable() + DecomposableKernel(RBFKernel(), num_outputs=P)).double()
    X = torch.randn(5, 2).double()
    parts = sum(kernel(X).to_dense() for kernel in mixed.kernels)
    torch.testing.assert_close(mixed(X).to_dense(), parts)


class TestORFFKernelBase(BaseKernelTestCase, unittest.TestCase):
    """GPyTorch's own checks on the features of a decomposable kernel."""

    def create_kernel_no_ard(self, **kwargs):
        active = kwargs.get("active_dims")
        dims = len(active) if active is not None else self.num_dims
        base = RBFKernel(**kwargs)
        return ORFFKernel(ORFF(DecomposableKernel(base, num_outputs=2), 4, num_dims=dims, random_state=0))

    def create_kernel_ard(self, num_dims, **kwargs):
        base = RBFKernel(ard_num_dims=num_dims, **kwargs)
        return ORFFKernel(ORFF(DecomposableKernel(base, num_outputs=2), 4, random_state=0))

    num_dims = 2  # random features know their input dimension: GPyTorch's batches have two columns

    def test_active_dims_list(self):
        self.num_dims = 4
        super().test_active_dims_list()

    def test_active_dims_range(self):
        self.num_dims = 6
        super().test_active_dims_range()
