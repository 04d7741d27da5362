import numpy as np
import pytest
import torch
from gpytorch.kernels import CosineKernel, Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from oracles import SMOOTH_BASES, difference_gradient, difference_hessian, smooth_base
from pairwise import pairwise

from ovkgp.exceptions import SmoothnessError
from ovkgp.kernels import CurlFreeKernel, Jet, LaplaceKernel, SobolevKernel, lag_jet

EVERY = pytest.mark.parametrize("name", SMOOTH_BASES)
LAGS = {
    "generic": [0.31, -0.57, 0.23],
    "coincident": [0.0, 0.0, 0.0],
    "one_coordinate_equal": [0.31, 0.0, 0.23],
    "far": [1.3, -1.7, 2.1],
}


def value_at(kernel):
    """Evaluate k at lags (L, d)."""
    return lambda lags: (
        kernel(torch.tensor(lags), torch.zeros(1, lags.shape[-1]).double()).to_dense()[:, 0].detach().numpy()
    )


def jet_at(kernel, lag):
    return [part[0, 0].detach().numpy() for part in lag_jet(kernel, torch.tensor(lag).reshape(1, 1, -1))]


@pytest.mark.parametrize(("name", "d", "lag"), pairwise(name=SMOOTH_BASES, d=[2, 3], lag=LAGS))
def test_jet_matches_finite_differences(name, d, lag):
    kernel, lag = smooth_base(name, d), np.array(LAGS[lag][:d])
    value, gradient, hessian = jet_at(kernel, lag)
    k = value_at(kernel)
    np.testing.assert_allclose(value, k(lag[None])[0], rtol=1e-9)
    np.testing.assert_allclose(gradient, difference_gradient(k, lag), atol=2e-6)
    np.testing.assert_allclose(hessian, difference_hessian(k, lag), atol=1e-6)


@pytest.mark.parametrize("name", ["rbf", "matern32", "spectral_mixture", "periodic", "periodic_sobolev2", "sobolev2"])
@pytest.mark.parametrize("lag", [[0.0], [0.4], [-1.1]])
def test_jet_in_one_dimension(name, lag):
    kernel, lag = smooth_base(name, 1), np.array(lag)
    k = value_at(kernel)
    value, gradient, hessian = jet_at(kernel, lag)
    np.testing.assert_allclose(value, k(lag[None])[0], rtol=1e-9)
    np.testing.assert_allclose(gradient, difference_gradient(k, lag), atol=2e-6)
    np.testing.assert_allclose(hessian, difference_hessian(k, lag), atol=1e-6)


def test_jet_of_the_cosine_kernel():
    kernel, lag = CosineKernel().double(), np.array([0.3])
    kernel.period_length = 1.7
    k = value_at(kernel)
    value, gradient, hessian = jet_at(kernel, lag)
    np.testing.assert_allclose(value, k(lag[None])[0], rtol=1e-9)
    np.testing.assert_allclose(gradient, difference_gradient(k, lag), atol=2e-6)
    np.testing.assert_allclose(hessian, difference_hessian(k, lag), atol=1e-6)


@EVERY
def test_jet_converges_at_zero_lag(name):
    """No cancellation: the Hessian at a lag of 1e-9 equals that at 0 up to the change of the kernel."""
    kernel = smooth_base(name, 2)
    for lag in (np.array([1e-9, -2e-9]), np.array([1e-160, 0.0])):
        np.testing.assert_allclose(jet_at(kernel, lag)[2], jet_at(kernel, np.zeros(2))[2], rtol=1e-7, atol=1e-7)


@EVERY
def test_jet_is_even_odd_and_even(name):
    kernel, lag = smooth_base(name, 3), np.array([0.3, -0.6, 1.2])
    for sign, there, back in zip((1, -1, 1), jet_at(kernel, lag), jet_at(kernel, -lag), strict=True):
        np.testing.assert_allclose(back, sign * there, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "rough",
    [
        MaternKernel(nu=0.5),
        LaplaceKernel(),
        SobolevKernel(order=1),
        SobolevKernel(order=1, periodic=True),
        ScaleKernel(MaternKernel(nu=0.5)),
        RBFKernel() + MaternKernel(nu=0.5),
        RBFKernel() * LaplaceKernel(),
    ],
)
def test_lag_jet_rejects_rough_kernel(rough):
    with pytest.raises(SmoothnessError, match=r"RBFKernel or MaternKernel\(nu=2.5\)"):
        CurlFreeKernel(rough)


def test_lag_jet_rejects_unregistered_kernel():
    with pytest.raises(SmoothnessError, match=r"LinearKernel are not registered.*register_kernel"):
        CurlFreeKernel(LinearKernel())


def test_lag_jet_rejects_cosine_kernel_in_several_dimensions():
    with pytest.raises(SmoothnessError, match="1 input dimension"):
        CurlFreeKernel(CosineKernel(), num_dims=2)


def test_lag_jet_rejects_subclass_with_another_formula():
    class Other(RBFKernel):
        def forward(self, x1, x2, **params):
            return super().forward(x1, x2, **params) ** 2

    with pytest.raises(SmoothnessError, match="Other"):
        CurlFreeKernel(Other())


def test_lag_jet_registers_custom_kernel():
    class CustomKernel(Kernel):
        is_stationary = True

        def forward(self, x1, x2, **params):
            return RBFKernel.forward(self, x1, x2, **params)

    @lag_jet.register(CustomKernel)
    def _(kernel, lag):
        value = torch.exp(-lag.pow(2).sum(-1) / 2)
        outer = lag.unsqueeze(-1) * lag.unsqueeze(-2)
        return Jet(value, -value[..., None] * lag, value[..., None, None] * (outer - torch.eye(lag.shape[-1])))

    reference = RBFKernel()
    reference.lengthscale = 1.0
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(CurlFreeKernel(CustomKernel())(x).to_dense(), CurlFreeKernel(reference)(x).to_dense())
