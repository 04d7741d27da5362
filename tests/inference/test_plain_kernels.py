"""Scalar kernels as plain functions: values of GPyTorch's kernels, and derivatives by central differences."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel

from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training import numpy_density as plain_kernels
from ovkgp.inference.training.numpy_density import plain_kernel
from ovkgp.inference.training.numpy_values import NotPlain, PlainVector

KERNELS = {
    "rbf": lambda: RBFKernel(),
    "matern 1/2": lambda: MaternKernel(nu=0.5, ard_num_dims=2),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=2),
    "rational quadratic": lambda: RQKernel(ard_num_dims=2),
    "scaled sum": lambda: ScaleKernel(RBFKernel(active_dims=(1,)) + ScaleKernel(MaternKernel(nu=1.5))),
}


def inputs(n=7):
    X = np.random.default_rng(0).standard_normal((n, 2))
    X[3] = X[1]  # a distance of zero off the diagonal
    return X


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_derivatives(name):
    kernel, X = KERNELS[name]().double(), inputs()
    vector = ParameterVector(kernel)
    plain = PlainVector(vector)
    piece, theta = plain_kernel(kernel, X, plain), plain.values(vector.get())[0]
    K, back = piece.matrix(theta)
    with torch.no_grad():
        np.testing.assert_allclose(K, kernel(torch.from_numpy(X)).to_dense().numpy(), atol=1e-7)
    G = np.random.default_rng(1).standard_normal(K.shape)
    out = np.zeros(len(theta))
    back(G + G.T, out)
    h = 1e-6
    steps = h * np.eye(len(theta))
    moved = [(piece.matrix(theta + e)[0] - piece.matrix(theta - e)[0]) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, [np.vdot(G + G.T, by) for by in moved], rtol=1e-6, atol=1e-8)
    half = np.zeros(len(theta))
    back(2 * np.tril(G + G.T, -1) + np.diag(2 * G.diagonal()), half)  # only the symmetric part counts
    np.testing.assert_allclose(half, out, rtol=1e-9, atol=1e-10)


def test_other_kernels_and_too_many_rows_are_not_plain(monkeypatch):
    for kernel in (PeriodicKernel(), RBFKernel(batch_shape=torch.Size([2]))):
        vector = PlainVector(ParameterVector(kernel.double()))
        with pytest.raises(NotPlain):
            plain_kernel(kernel, inputs(), vector)
    monkeypatch.setattr(plain_kernels, "MOST_ENTRIES", 48)
    kernel = RBFKernel().double()
    with pytest.raises(NotPlain, match="rows"):
        plain_kernel(kernel, inputs(), PlainVector(ParameterVector(kernel)))
