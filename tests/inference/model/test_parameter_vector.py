"""Tests of `ovkgp.inference.model.parameter_vector`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.module import Module

from ovkgp.exceptions import OptionError
from ovkgp.inference import hyperparameters
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    IndependentKernel,
    SimplexMatrix,
)

NAMES = {
    "scalar": (lambda: RBFKernel(), ["lengthscale"]),
    "scaled": (lambda: ScaleKernel(PeriodicKernel()), ["lengthscale", "outputscale", "period_length"]),
    "icm": (lambda: DecomposableKernel(RBFKernel(), 2), ["lengthscale", "output_matrix"]),
    "icm, scaled base": (
        lambda: DecomposableKernel(ScaleKernel(RBFKernel()), 2, rank=1),
        ["lengthscale", "output_matrix", "outputscale"],
    ),
    "icm, known matrix": (
        lambda: DecomposableKernel(RBFKernel(), output_matrix=SimplexMatrix(3)),
        ["lengthscale", "output_matrix"],
    ),
    "lmc": (
        lambda: DecomposableKernel(RBFKernel(), 2) + ScaleKernel(DecomposableKernel(MaternKernel(), 2)),
        [
            "component_1.lengthscale",
            "component_1.output_matrix",
            "component_2.lengthscale",
            "component_2.output_matrix",
            "component_2.outputscale",
        ],
    ),
    "field": (lambda: CurlFreeKernel(RBFKernel(ard_num_dims=2)), ["lengthscale"]),
    "scaled field": (lambda: ScaleKernel(CurlFreeKernel(RBFKernel(ard_num_dims=2))), ["lengthscale", "outputscale"]),
    "helmholtz": (
        lambda: HelmholtzKernel(RBFKernel(ard_num_dims=2)),
        [
            "curl_free.lengthscale",
            "curl_free.outputscale",
            "divergence_free.lengthscale",
            "divergence_free.outputscale",
        ],
    ),
    "independent": (
        lambda: IndependentKernel([RBFKernel(), ScaleKernel(MaternKernel())]),
        ["0.lengthscale", "1.lengthscale", "1.outputscale"],
    ),
    "sum of sums": (
        lambda: DecomposableKernel(RBFKernel() + LinearKernel(), 2) + DecomposableKernel(RBFKernel(), 2),
        [
            "component_1.lengthscale",
            "component_1.output_matrix",
            "component_1.variance",
            "component_2.lengthscale",
            "component_2.output_matrix",
        ],
    ),
    "function-valued": (
        lambda: FunctionValuedKernel(RBFKernel(), MaternKernel(), tasks=torch.tensor([0.0, 1.0])),
        ["input_kernel.lengthscale", "task_kernel.lengthscale"],
    ),
    "blockwise": (
        lambda: DecomposableKernel(RBFKernel(), 2) * MaternKernel(),
        ["lengthscale", "output_matrix", "scalar_kernel.lengthscale"],
    ),
    "scaled inside scaled": (
        lambda: ScaleKernel(DecomposableKernel(ScaleKernel(RBFKernel()), 2)),
        ["base_kernel.base_kernel.outputscale", "lengthscale", "output_matrix", "outputscale"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_have_short_names(name):
    make, expected = NAMES[name]
    assert sorted(hyperparameters(make())) == expected


def test_hyperparameters_are_constrained_and_detached():
    kernel = ScaleKernel(DecomposableKernel(ScaleKernel(MaternKernel(ard_num_dims=2)), 3, rank=1)).double()
    kernel.outputscale = 2.5
    kernel.base_kernel.base_kernel.outputscale = 0.3
    kernel.base_kernel.base_kernel.base_kernel.lengthscale = torch.tensor([0.4, 7.0])
    found = hyperparameters(kernel)
    assert found["outputscale"].item() == pytest.approx(2.5, rel=1e-6)
    assert found["base_kernel.base_kernel.outputscale"].item() == pytest.approx(0.3, rel=1e-6)
    assert found["lengthscale"].flatten().tolist() == pytest.approx([0.4, 7.0], rel=1e-6)
    assert torch.equal(found["output_matrix"], kernel.base_kernel.output_module())
    assert not any(value.requires_grad for value in found.values())


def test_hyperparameters_are_copies():
    kernel = DecomposableKernel(RBFKernel(), 2)
    found = hyperparameters(kernel)
    before = {name: value.clone() for name, value in found.items()}
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(1)
    assert all(torch.equal(found[name], before[name]) for name in before)
    assert not any(torch.equal(value, before[name]) for name, value in hyperparameters(kernel).items())


CONSTRAINTS = {
    "none": None,
    "positive": Positive(),
    "exponential": Positive(transform=torch.exp, inv_transform=torch.log),
    "greater": GreaterThan(1e-4),
    "far": GreaterThan(-3.0),
    "interval": Interval(0.5, 4.0),
    "less": LessThan(5.0),
    "greater, not enforced": GreaterThan(0.2, transform=None),
    "interval, not enforced": Interval(0.2, 9.0, transform=None),
}


class Toy(Module):
    """One parameter tensor with a constraint."""

    def __init__(self, raw, constraint=None):
        super().__init__()
        self.register_parameter("raw", torch.nn.Parameter(torch.as_tensor(raw, dtype=torch.float64)))
        if constraint is not None:
            self.register_constraint("raw", constraint)

    @property
    def value(self):
        constraint = self.constraint_for_parameter_name("raw")
        return self.raw if constraint is None else constraint.transform(self.raw)


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_parameter_vector_gradient_matches_differences(kind):
    module = Toy([0.6, 1.0, 2.5], CONSTRAINTS[kind])
    vector = ParameterVector(module, scales={"raw": torch.tensor([2.0, 1.0, 1e3])} if kind == "none" else None)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def at(x):
        vector.set(x)
        return (weights * module.value.sin() + module.value.square()).sum()

    x = vector.get()
    at(x).backward()
    differences = []
    for step in 1e-6 * np.eye(3):
        differences.append((at(x + step) - at(x - step)).item() / 2e-6)
    at(x)
    # central differences with h = 1e-6 are good to 1e-9 of the largest value, which is 1e6 with the large size
    np.testing.assert_allclose(vector.gradient(), differences, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_parameter_vector_get_and_set_are_inverse(kind):
    module = Toy([[0.6, 1.0], [2.5, 3.0]], CONSTRAINTS[kind])
    vector = ParameterVector(module)
    raw, x = module.raw.detach().clone(), np.array([-1.3, 0.3, 0.9, 1.2])
    vector.set(vector.get())
    torch.testing.assert_close(module.raw.detach(), raw, rtol=1e-9, atol=1e-12)
    if "not enforced" not in kind:
        vector.set(x)
        np.testing.assert_allclose(vector.get(), x, rtol=1e-9)


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_parameter_vector_states_equal_those_set_in_turn(kind):
    module = Toy([[0.6, 1.0], [2.5, 3.0]], CONSTRAINTS[kind])
    vector = ParameterVector(module, scales={"raw": torch.tensor([[2.0, 1.0], [3.0, 1e3]])} if kind == "none" else None)
    vector.keep(np.array([True, False, True, True]))
    vectors, before = vector.get() + np.random.default_rng(0).uniform(-0.1, 0.1, (5, 3)), module.raw.detach().clone()
    found = vector.states(vectors)["raw"]
    assert torch.equal(module.raw.detach(), before)
    for x, raw in zip(vectors, found, strict=True):
        vector.set(x)
        assert torch.equal(vector.state()["raw"], raw)


@pytest.mark.parametrize("kind", ["positive", "exponential", "greater", "far", "greater, not enforced"])
def test_parameter_vector_uses_logarithm_above_lower_bound(kind):
    module = Toy([0.6, 1.0, 2.5], CONSTRAINTS[kind])
    lower = CONSTRAINTS[kind].lower_bound.double()
    expected = (module.value - lower).log().detach().numpy()
    np.testing.assert_allclose(ParameterVector(module).get(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["positive", "exponential", "greater", "interval"])
def test_parameter_vector_is_finite_at_bounds(kind, dtype):
    module = Toy([0.6, 1.0], CONSTRAINTS[kind]).to(dtype)
    vector = ParameterVector(module)
    for end in vector.bounds.T:
        assert np.isfinite(end).all()
        vector.set(end)
        vector.clear_gradient()
        module.value.log().sum().backward()
        assert torch.isfinite(module.raw).all() and np.isfinite(vector.gradient()).all()


def test_parameter_vector_recovers_underflowed_value():
    module = Toy([-1e4], Positive())  # softplus(−1e4) = 0
    vector = ParameterVector(module)
    assert 0 < module.value.item() < 1e-20 and np.isfinite(vector.get()).all()


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_parameter_vector_bounds_constrained_value(kind):
    module = Toy([1.0, 1.0], CONSTRAINTS[kind])
    low, high = torch.tensor([0.7, 1.5], dtype=torch.float64), 3.0
    clipped = module.value.detach().clamp(low, torch.tensor(high))
    vector = ParameterVector(module, {"raw": (low, high)})
    torch.testing.assert_close(module.value.detach(), clipped, rtol=1e-9, atol=0)
    for end, expected in zip(vector.bounds.T, (low, torch.full_like(low, high)), strict=True):
        vector.set(end)
        torch.testing.assert_close(module.value.detach(), expected, rtol=1e-9, atol=0)


def test_parameter_vector_bounds_are_cut_to_constraint():
    module = Toy([1.0], GreaterThan(0.1))
    low, high = ParameterVector(module, {"raw": (0.01, 5.0)}).bounds[0]
    assert low < math.log(1e-10) and high == pytest.approx(math.log(4.9), rel=1e-7)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ({"raw": (2.0, 1.0)}, "bounds of raw"),
        ({"raw": (torch.nan, 1.0)}, "bounds of raw"),
        ({"raw": (5.0, 6.0)}, "constraint"),
        ({"lengthscale": (0.0, 1.0)}, "'lengthscale'.*raw"),
    ],
)
def test_parameter_vector_rejects_invalid_bounds(box, message):
    with pytest.raises(OptionError, match=message):
        ParameterVector(Toy([1.0], Interval(0.5, 4.0)), box)


def test_parameter_vector_accepts_id_and_every_name():
    kernel = RBFKernel().double()
    shared = torch.nn.ModuleDict({"a": kernel, "b": ScaleKernel(kernel).double()})
    expected = [[math.log(0.5), math.log(2.0)]]
    for key in ("a.raw_lengthscale", "b.base_kernel.raw_lengthscale", id(kernel.raw_lengthscale)):
        vector = ParameterVector(shared, {key: (0.5, 2.0)})
        np.testing.assert_allclose(vector.bounds[:1], expected)
    assert vector.names == ("a.raw_lengthscale", "b.raw_outputscale")


def test_parameter_vector_omits_fixed_parameters():
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    vector = ParameterVector(kernel, {"base_kernel.raw_lengthscale": (2.0, 3.0)})
    assert vector.names == ("raw_outputscale",) and kernel.base_kernel.lengthscale.item() == pytest.approx(math.log(2))
