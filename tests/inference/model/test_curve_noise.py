"""Tests of `ovkgp.inference.model.curve_noise`, and of training, priors and NumPy gradients of models with this noise."""

import numpy as np
import pytest
import torch
from curve_cases import CurveOracle
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.training.log_posterior import LogPosterior, named_values
from ovkgp.kernels import DecomposableKernel, FullMatrix, FunctionValuedKernel

GRID = torch.linspace(-1.5, 1.5, 6, dtype=torch.float64).unsqueeze(-1)
KNOTS = torch.linspace(-1.5, 1.5, 3, dtype=torch.float64).unsqueeze(-1)


def make_model(num_channels=1, knots=None, has_deviations=True):
    inputs = AdditiveKernel(LinearKernel(), ScaleKernel(MaternKernel(nu=2.5)))
    if num_channels > 1:
        inputs = DecomposableKernel(inputs, output_matrix=FullMatrix(num_channels))
    deviation = ScaleKernel(RBFKernel()) if num_channels == 1 else RBFKernel()
    noise = CurveNoise(GRID, deviation if has_deviations else None, num_channels, knots)
    return OperatorValuedGP(FunctionValuedKernel(inputs, MaternKernel(nu=2.5), tasks=GRID), mean="zero", noise=noise)


def make_data(num_channels=1, missing=0.0):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((9, 2)), rng.standard_normal((9, len(GRID) * num_channels))
    Y[rng.random(Y.shape) < missing] = np.nan
    return torch.from_numpy(X), torch.from_numpy(Y)


@pytest.mark.parametrize("knots", [None, KNOTS])
@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_evidence_equals_dense_algebra(missing, num_channels, knots):
    gp, (X, Y) = make_model(num_channels, knots), make_data(num_channels, missing)
    gp.initialize(X, Y)
    inner = gp.kernel.input_kernel
    base, channels = (inner, None) if num_channels == 1 else (inner.base_kernel, inner.output_module().detach().numpy())
    oracle = CurveOracle(base, gp.kernel.task_kernel, gp.noise_model, X, Y, GRID, channels)
    assert gp.log_evidence(X, Y).item() == pytest.approx(oracle.log_evidence, abs=1e-8)


@pytest.mark.parametrize("has_deviations", [True, False])
@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_numpy_density_equals_torch(missing, num_channels, has_deviations):
    gp, (X, Y) = make_model(num_channels, KNOTS, has_deviations), make_data(num_channels, missing)
    fast, slow = (LogPosterior(gp, X, Y, backend=backend) for backend in ("auto", "torch"))
    u = fast.initial_point() + 0.1 * np.random.default_rng(1).standard_normal(len(fast))
    (value, gradient), (expected, by_torch) = fast(u), slow(u)
    assert (fast.backend, slow.backend) == ("numpy", "torch")
    assert value == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(gradient, by_torch, atol=1e-9)


def test_variances_interpolate_between_knots():
    noise = CurveNoise(GRID, knots=KNOTS)
    noise.set(0.25)
    torch.testing.assert_close(noise.variances_at(GRID), torch.full((6,), 0.25, dtype=torch.float64))
    with torch.no_grad():
        noise.log_scale[:, 0] = torch.tensor([-2.0, 0.0, 1.0])
    found = noise.variances_at(torch.linspace(-1.5, 1.5, 20, dtype=torch.float64).unsqueeze(-1))
    assert bool((found.diff() > 0).all())
    assert noise.is_diagonal


def test_named_values_have_white_noise_and_deviations():
    names = set(named_values(make_model()))
    assert {"noise", "deviation.lengthscale", "deviation.outputscale", "task_kernel.lengthscale"} <= names
    assert "deviation.output_matrix" in named_values(make_model(2))


def test_noise_of_another_grid_is_rejected():
    with pytest.raises(OptionError, match="noise has 6 outputs"):
        OperatorValuedGP(FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=GRID[:4]), noise=CurveNoise(GRID))
    with pytest.raises(InputError, match="tasks"):
        CurveNoise(GRID[:, 0])


def test_training_recovers_deviations():
    rng = np.random.default_rng(0)
    grid = torch.linspace(-1.7, 1.7, 25, dtype=torch.float64).unsqueeze(-1)
    t, X = grid.numpy()[:, 0], rng.standard_normal((60, 1))
    K = 0.2 * np.exp(-0.5 * (t[:, None] - t) ** 2 / 0.6**2)
    smooth = rng.standard_normal((60, 25)) @ np.linalg.cholesky(K + 1e-10 * np.eye(25)).T
    Y = np.sin(t + X) + smooth + 0.1 * rng.standard_normal((60, 25))
    kernel = FunctionValuedKernel(ScaleKernel(RBFKernel()), RBFKernel(), tasks=grid)
    gp = OperatorValuedGP(kernel, mean="zero", noise=CurveNoise(grid, ScaleKernel(RBFKernel())))
    gp.fit(X, Y, random_state=0)
    values = named_values(gp)
    assert values["noise"] == pytest.approx(0.01, rel=0.2)
    assert values["deviation.outputscale"] == pytest.approx(0.2, rel=0.4)
    assert values["deviation.lengthscale"].item() == pytest.approx(0.6, rel=0.2)
