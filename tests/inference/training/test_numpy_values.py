"""Tests of `ovkgp.inference.training.numpy_values`."""

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training import numpy_values
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector, Reference, make_kernel_node


class Parts(torch.nn.Module):
    """A module with a parameter for each constraint of the table."""

    def __init__(self, **constraints):
        super().__init__()
        self._constraints = {}
        for name, constraint in constraints.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor([0.3, -0.2], dtype=torch.float64)))
            if constraint is not None:
                self._constraints[f"{name}_constraint"] = constraint


ALL = {"positive": Positive(), "above": GreaterThan(0.5), "between": Interval(-1.0, 3.0), "free": None}


def test_numpy_vector_values_match_parameter_vector():
    vector = ParameterVector(Parts(**ALL), scales={"free": 4.0})
    values, u = NumpyVector(vector), np.linspace(-2, 1.5, 8)
    theta, slope, log_slope, by_slope = values.values(u)
    vector.set(u)
    np.testing.assert_allclose(theta, np.concatenate([value.numpy() for value in vector.values().values()]), rtol=1e-12)
    h = 1e-6
    ahead, behind = values.values(u + h), values.values(u - h)
    np.testing.assert_allclose(slope, (ahead[0] - behind[0]) / (2 * h), rtol=1e-7)
    assert log_slope == pytest.approx(np.log(slope).sum(), rel=1e-12)
    by_raw, by_value = vector.log_slopes([False] * 4), vector.log_slopes([True] * 4)
    np.testing.assert_allclose(by_value[1], by_slope, rtol=1e-10, atol=1e-12)
    assert by_value[0] == pytest.approx(log_slope, rel=1e-12)
    # of the raw parameters: θ'(raw) is missing
    rises = [entry._log_transform_slope()[0].sum().item() for entry in vector.entries[:3]]
    assert by_raw[0] == pytest.approx(log_slope - sum(rises), rel=1e-10)


@pytest.mark.parametrize("flat", (False, True))
def test_numpy_vector_log_slopes_match_differences(flat):
    vector, h = ParameterVector(Parts(**ALL)), 1e-5

    def total(u):
        vector.set(u)
        return vector.log_slopes([flat] * 4)

    u = np.linspace(-2, 1.5, 8)
    found = [(total(u + h * e)[0] - total(u - h * e)[0]) / (2 * h) for e in np.eye(8)]
    np.testing.assert_allclose(total(u)[1], found, atol=1e-8)


def test_numpy_vector_keeps_omitted_variables():
    vector = ParameterVector(Parts(**ALL))
    before = vector.get()
    vector.keep(np.arange(8) != 2)
    assert len(vector) == 7 and vector.bounds.shape == (7, 2)
    vector.set(np.zeros(7))
    np.testing.assert_allclose(vector.expand(vector.get()), np.where(np.arange(8) == 2, before, 0.0), atol=1e-12)
    vector.keep(np.arange(7) != 0)
    assert len(vector) == 6 and vector.kept.tolist() == [False, True, False, True, True, True, True, True]
    values = NumpyVector(vector)
    assert values.values(np.zeros(6))[0].shape == (8,) and np.arange(8.0)[values.kept].tolist() == [1, 3, 4, 5, 6, 7]


def test_numpy_vector_rejects_unknown_constraint():
    with pytest.raises(NoAnalyticForm, match="below"):
        NumpyVector(ParameterVector(Parts(below=LessThan(2.0))))


def test_reference_reads_and_adds():
    theta, out = np.arange(4.0), np.zeros(4)
    moving, fixed = Reference((1, 2), slice(1, 3)), Reference((2,), None, np.array([7.0, 8.0]))
    assert moving.value(theta).tolist() == [[1.0, 2.0]] and fixed.value(theta).tolist() == [7.0, 8.0]
    moving.add(out, np.array([[5.0, 6.0]]))
    moving.add(out, np.array([1.0, 1.0]))
    fixed.add(out, np.ones(2))
    assert out.tolist() == [0.0, 6.0, 7.0, 0.0]


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
def test_kernel_nodes_match_gpytorch(name):
    kernel, X = KERNELS[name]().double(), inputs()
    vector = ParameterVector(kernel)
    values = NumpyVector(vector)
    node, theta = make_kernel_node(kernel, X, values), values.values(vector.get())[0]
    K, backward = node.matrix(theta)
    with torch.no_grad():
        np.testing.assert_allclose(K, kernel(torch.from_numpy(X)).to_dense().numpy(), atol=1e-7)
    G = np.random.default_rng(1).standard_normal(K.shape)
    out = np.zeros(len(theta))
    backward(G + G.T, out)
    h = 1e-6
    steps = h * np.eye(len(theta))
    moved = [(node.matrix(theta + e)[0] - node.matrix(theta - e)[0]) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, [np.vdot(G + G.T, by) for by in moved], rtol=1e-6, atol=1e-8)
    half = np.zeros(len(theta))
    backward(2 * np.tril(G + G.T, -1) + np.diag(2 * G.diagonal()), half)  # only the symmetric part counts
    np.testing.assert_allclose(half, out, rtol=1e-9, atol=1e-10)


def test_kernel_node_rejects_other_kernels_and_many_rows(monkeypatch):
    for kernel in (PeriodicKernel(), RBFKernel(batch_shape=torch.Size([2]))):
        vector = NumpyVector(ParameterVector(kernel.double()))
        with pytest.raises(NoAnalyticForm):
            make_kernel_node(kernel, inputs(), vector)
    monkeypatch.setattr(numpy_values, "MAX_STORED_DIFFERENCES", 48)
    kernel = RBFKernel().double()
    with pytest.raises(NoAnalyticForm, match="rows"):
        make_kernel_node(kernel, inputs(), NumpyVector(ParameterVector(kernel)))


@pytest.mark.parametrize("d", [1, 2, 9])
@pytest.mark.parametrize("is_ard", [True, False])
def test_nodes_of_sums_with_linear_and_constant_kernels_match_torch(d, is_ard):
    """More than six columns use matrix products instead of stored differences."""
    generator = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(n, d, generator=generator, dtype=torch.float64) for n in (7, 4))
    scaled = ScaleKernel(RQKernel(ard_num_dims=d if is_ard else None))
    kernel = AdditiveKernel(ConstantKernel(), LinearKernel(), scaled).double()
    vector = NumpyVector(ParameterVector(kernel))
    node = make_kernel_node(kernel, X.numpy(), vector)
    u = np.random.default_rng(0).normal(0, 0.3, len(vector.kept))
    vector.vector.set(u)
    theta = vector.values(u)[0]
    value, backward = node.matrix(theta)
    K = kernel(X).to_dense()
    np.testing.assert_allclose(value, K.detach(), rtol=1e-10)
    weights = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    (weights * K).sum().backward()
    out = np.zeros_like(theta)
    backward(weights.numpy(), out)
    by_u = out * vector.values(u)[1]
    np.testing.assert_allclose(by_u, vector.vector.gradient(), rtol=1e-8, atol=1e-10)
    with torch.no_grad():
        cross, variances = kernel(Z, X).to_dense(), kernel(Z, diag=True)
    thetas = np.stack([theta, theta])
    np.testing.assert_allclose(node.cross(thetas, Z.numpy())[1], cross, rtol=1e-10)
    np.testing.assert_allclose(node.cross(thetas, Z.numpy(), X.numpy())[0], cross, rtol=1e-10)
    np.testing.assert_allclose(node.variances(thetas, Z.numpy())[1], variances, rtol=1e-10)
