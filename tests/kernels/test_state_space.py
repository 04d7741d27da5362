"""State-space forms of scalar kernels: covariances between times, process noise and derivatives."""

import math

import pytest
import torch
from gpytorch.kernels import ConstantKernel, LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense

from ovkgp.kernels import GeneralMaternKernel, IntegratedBrownianKernel, SeasonalKernel
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.state_space import matern_form, state_space_forms

MATERN = {nu: MaternKernel(nu=nu).double() for nu in (0.5, 1.5, 2.5)}
KERNELS = {
    **{f"matern {nu}": kernel for nu, kernel in MATERN.items()},
    "constant": ConstantKernel().double(),
    "linear": LinearKernel().double(),
    "brownian": IntegratedBrownianKernel(origin=0.2, span=3.0).double(),
    "seasonal": SeasonalKernel(period_length=2.3, num_harmonics=3).double(),
    "quasi-periodic": (SeasonalKernel(2.3, 3) * MaternKernel(nu=1.5)).double(),
    "growing season": ((LinearKernel() + IntegratedBrownianKernel(0.2, 3.0)) * SeasonalKernel(2.3, 2)).double(),
    "product": (MATERN[2.5] * MATERN[0.5] * LinearKernel()).double(),
    "sum": (ScaleKernel(MATERN[2.5]) + MATERN[0.5] + ScaleKernel(LinearKernel())).double(),
}


@pytest.mark.parametrize("name", KERNELS)
def test_forms_have_the_covariance_of_the_kernel(name):
    kernel = KERNELS[name]
    times = torch.tensor([-1.0, 0.3, 0.3 + 1e-6, 4.0, 30.0], dtype=torch.float64)
    expected = to_dense(evaluate_kernel(kernel, times[:, None]))  # with exact short distances
    found = torch.zeros_like(expected)
    for form in state_space_forms(kernel):
        for i, time in enumerate(times):
            later = times[i:]
            cross = form.transition(later - time) @ form.covariance(time[None])
            found[i, i:] += form.read_vector() @ cross @ form.read_vector()
    torch.testing.assert_close(found.triu(), expected.triu(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", KERNELS)
def test_process_noise_is_what_the_transition_leaves_of_the_covariance(name):
    lags = torch.tensor([0.0, 1e-3, 0.1, 0.69, 1.0, 3.0, 50.0], dtype=torch.float64)
    for form in state_space_forms(KERNELS[name]):
        start = torch.tensor([0.4], dtype=torch.float64)
        transition = form.transition(lags)
        expected = form.covariance(start + lags) - transition @ form.covariance(start) @ transition.mT
        scale = max(1.0, float(form.covariance(start + lags).max()))
        torch.testing.assert_close(form.process_noise(lags, start + lags), expected, rtol=1e-10, atol=1e-13 * scale)


@pytest.mark.parametrize("ratio", [1e-8, 1e-6, 1e-4, 1e-2, 1.0, 1.99, 2.01, 10.0])
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_process_noise_is_positive_definite_for_any_lag(nu, ratio):
    """P − A P Aᵀ of Matérn-5/2 has a negative eigenvalue at a ratio of 1e-4 already; scaled by powers of the lag, Q is well conditioned."""
    form = matern_form(nu, torch.tensor(math.sqrt(2 * nu)))
    noise = form.process_noise(torch.tensor([ratio], dtype=torch.float64))[0]
    powers = min(ratio, 1.0) ** torch.arange(form.size - 0.5, 0, -1, dtype=torch.float64)
    assert torch.linalg.eigvalsh(noise / powers / powers[:, None]).min() > 1e-5


def test_process_noise_of_a_short_lag_is_that_of_integrated_white_noise():
    """Q → q ∫ v vᵀ with v = (s²/2, s, 1): relative to each entry, where the difference P − A P Aᵀ has no digit left."""
    lag = 1e-6
    form = matern_form(2.5, torch.tensor(math.sqrt(5.0)))
    powers = lag ** torch.tensor([[5, 4, 3], [4, 3, 2], [3, 2, 1]], dtype=torch.float64)
    leading = torch.tensor([[1 / 20, 1 / 8, 1 / 6], [1 / 8, 1 / 3, 1 / 2], [1 / 6, 1 / 2, 1.0]], dtype=torch.float64)
    found = form.process_noise(torch.tensor([lag], dtype=torch.float64))[0]
    torch.testing.assert_close(found, 16 / 3 * leading * powers, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_states_are_independent_at_a_huge_lag(nu):
    form = matern_form(nu, torch.tensor(1e-3))
    lags = torch.tensor([1e5, 1e200], dtype=torch.float64)
    assert not form.transition(lags).any()
    assert torch.equal(form.process_noise(lags), form.covariance(lags))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_forms_are_differentiable_in_the_lengthscale(nu):
    lags = torch.tensor([0.0, 1e-3, 0.5, 2.0, 9.0], dtype=torch.float64)
    lengthscale = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    for part in ("transition", "process_noise"):
        assert torch.autograd.gradcheck(
            lambda value, part=part: getattr(matern_form(nu, value), part)(lags), lengthscale
        )


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(),
        PeriodicKernel(),
        MaternKernel(ard_num_dims=2),
        MaternKernel(active_dims=[1]),
        MaternKernel(batch_shape=torch.Size([2])),
        GeneralMaternKernel(nu=1.7),
        MaternKernel() + RBFKernel(),
        MaternKernel() * RBFKernel(),
    ],
)
def test_kernels_without_form_have_none(kernel):
    assert state_space_forms(kernel) is None
