"""Tests of kernels as JSON and tensors: exact round trips, and rejection of unsupported classes."""

import copy
import json

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)
from gpytorch.priors import GammaPrior, LogNormalPrior
from oracles import OUTPUTS, SMOOTH_BASES, operator_valued, randomize, smooth_base
from spectral_cases import CASES, NUM_DIMS, make

from ovkgp.estimators.storage.file import read_model, write_model
from ovkgp.estimators.storage.kernels import (
    STORABLE,
    is_storable,
    kernel_from_spec,
    kernel_state,
    kernel_to_spec,
    load_kernel_state,
)
from ovkgp.exceptions import KernelTypeError, ModelFileError, OptionError
from ovkgp.kernels import (
    AdditiveGroup,
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
    EmpiricalMatrix,
    ExponentiatedChi2Kernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    GeneralMaternKernel,
    GraphMatrix,
    HelmholtzKernel,
    IndependentKernel,
    IntegratedBrownianKernel,
    LaplaceCurveKernel,
    ManifoldKernel,
    MultiplicativeGroup,
    OutputMatrix,
    ProductGroup,
    SeasonalKernel,
    SkewedMultiplicativeGroup,
    TransformableKernel,
    WarpedKernel,
    neighbor_laplacian,
)
from ovkgp.kernels.curves import AdditiveCurveKernel
from ovkgp.kernels.records import registered_records

CHAIN = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]])
SAMPLE = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
GROUPS = [AdditiveGroup(1), CyclicGroup(1.5), SkewedMultiplicativeGroup(0.3)]

MORE = {
    "manifold": lambda: ManifoldKernel(RBFKernel(), SAMPLE[:, :2], neighbor_laplacian(SAMPLE, 1), learn_strength=True),
    "manifold of outputs": lambda: ManifoldKernel(
        DecomposableKernel(RBFKernel(), 2), SAMPLE[:, :2], torch.eye(12), 0.3
    ),
    "manifold of combinations": lambda: ManifoldKernel(
        DecomposableKernel(RBFKernel(), 3), SAMPLE[:, :2], torch.eye(6), 0.3, combination=[[0.5, 0.5, 0], [0, 1, -1]]
    ),
    "linear": lambda: LinearKernel(ard_num_dims=2),
    "polynomial and constant": lambda: PolynomialKernel(power=3) + ConstantKernel(),
    "trend and season": lambda: ScaleKernel(
        IntegratedBrownianKernel(-0.5, 3.0, active_dims=[0]) + SeasonalKernel(0.7, 3, active_dims=[1])
    ),
    "exponentiated chi2": lambda: ExponentiatedChi2Kernel(),
    "gaussian curves": lambda: GaussianCurveKernel(num_channels=2),
    "additive curves": lambda: AdditiveCurveKernel(position_lengthscale=0.3),
    "laplace curves": lambda: LaplaceCurveKernel(weights=torch.tensor([0.3, 0.7])),
    "columns of a scaled sum": lambda: ScaleKernel(RBFKernel() + CosineKernel(), active_dims=[1]),
    "scaled columns": lambda: ScaleKernel(PeriodicKernel(active_dims=[1, 0])),
    "empirical": lambda: DecomposableKernel(RBFKernel(), output_matrix=EmpiricalMatrix(SAMPLE, shrinkage=0.2)),
    "bare graph": lambda: DecomposableKernel(RBFKernel(), output_matrix=GraphMatrix(CHAIN, mean_variance=0)),
    "known, a batch": lambda: DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2).repeat(3, 1, 1)),
    "full": lambda: DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(3)),
    "full, a batch": lambda: DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(2, batch_shape=torch.Size([2]))),
    "product group": lambda: WarpedKernel(RBFKernel(), ProductGroup(GROUPS[:2])),
    "skewed group": lambda: WarpedKernel(RBFKernel(), GROUPS[2], active_dims=[1]),
    "several periods": lambda: WarpedKernel(RBFKernel(), CyclicGroup([1.5, 2.5])),
    "warped outputs": lambda: WarpedKernel(DecomposableKernel(RBFKernel(), 2), MultiplicativeGroup(2)),
    "matern of any order": lambda: GeneralMaternKernel(nu=1.7, ard_num_dims=2),
    "helmholtz of different kernels": lambda: HelmholtzKernel(RQKernel(ard_num_dims=2), MaternKernel(nu=1.5)),
    "delays per column": lambda: TransformableKernel(RBFKernel(), [Delay(torch.tensor([0.1, 0.2])), Delay(0.3)]),
    "tasks in the plane": lambda: FunctionValuedKernel(RBFKernel(), RQKernel(ard_num_dims=2), tasks=SAMPLE[:, :2]),
}


def is_unstorable(name):
    """Whether a case has a GPyTorch multitask kernel or a transform that is a function."""
    return name in ("multitask", "lcm", "transformable")


ALL = [("base", name) for name in SMOOTH_BASES]
ALL += [("operator", name) for name in OUTPUTS if not is_unstorable(name)]
ALL += [("batch", name) for name in OUTPUTS if not is_unstorable(name)]
ALL += [("spectral", name) for name in CASES if not is_unstorable(name)]
ALL += [("more", name) for name in MORE]


def kernel_and_points(kind, name):
    makers = {
        "base": lambda: smooth_base(name, 2),
        "operator": lambda: operator_valued(name),
        "batch": lambda: operator_valued(name, (2,)),
        "spectral": lambda: make(name),
        "more": lambda: MORE[name](),
    }
    d = NUM_DIMS[name] if kind == "spectral" else 2
    x = torch.from_numpy(np.random.default_rng(3).uniform(0.2, 1.3, (4, d)))
    return randomize(makers[kind]().double(), 5), x


def through_a_file(kernel, path):
    spec, tensors = kernel_to_spec(kernel)
    write_model(path, tensors, {"kernel": spec})
    tensors, header = read_model(path)
    assert header["kernel"] == spec  # is JSON
    return kernel_from_spec(header["kernel"], tensors)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_kernel_round_trip_is_exact_and_differentiable(kind, name, tmp_path):
    kernel, x = kernel_and_points(kind, name)
    twin = through_a_file(kernel, tmp_path / "kernel")
    assert type(twin) is type(kernel) and twin.batch_shape == kernel.batch_shape
    assert [type(m) for m in twin.modules()] == [type(m) for m in kernel.modules()]
    matrices = [k(x).to_dense() for k in (kernel, twin)]
    assert torch.equal(*matrices)
    assert torch.equal(kernel(x, diag=True), twin(x, diag=True))
    if any(True for _ in kernel.parameters()):
        weights = torch.randn(matrices[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        pairs = zip((kernel, twin), matrices, strict=True)
        gradients = [torch.autograd.grad((matrix * weights).sum(), [*k.parameters()]) for k, matrix in pairs]
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_round_trip_covers_all_storable_classes():
    observed = set()
    for kind, name in ALL:
        observed |= {type(module).__name__ for module in kernel_and_points(kind, name)[0].modules()}
    classes = [record.kernel_class for record in registered_records()]  # other tests and examples register their own
    scalar = {kind.__name__ for kind in classes if kind.__module__.startswith(("ovkgp.", "gpytorch."))}
    assert (set(STORABLE) | scalar) - observed == set()


def test_restored_kernel_shares_no_memory():
    kernel = RBFKernel()
    spec, tensors = kernel_to_spec(kernel)
    twin = kernel_from_spec(spec, tensors)
    twin.lengthscale, tensors["raw_lengthscale"] = 7.0, tensors["raw_lengthscale"].add_(1)
    assert kernel.raw_lengthscale.item() == 0.0 and twin.lengthscale.item() == pytest.approx(7.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_spec_keeps_dtype(dtype):
    kernel = DecomposableKernel(RBFKernel(), output_matrix=GraphMatrix(CHAIN, mean_variance=0)).to(dtype)
    twin = kernel_from_spec(*kernel_to_spec(kernel))
    assert {p.dtype for p in [*twin.parameters(), *twin.buffers()]} == {dtype}


CONSTRAINTS = {
    "positive": lambda: Positive(),
    "positive exp": lambda: Positive(transform=torch.exp, inv_transform=torch.log),
    "greater": lambda: GreaterThan(1e-4),
    "greater, bound per column": lambda: GreaterThan(torch.tensor([[0.1, 0.2]])),
    "less": lambda: LessThan(5.0),
    "interval": lambda: Interval(0.1, 9.0),
    "interval, bounds per column": lambda: Interval(torch.tensor([0.1, 0.2]), torch.tensor([5.0, 7.0])),
    "interval, not enforced": lambda: Interval(0.1, 9.0, transform=None),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_kernel_spec_keeps_constraints(name, tmp_path):
    inner = RBFKernel(ard_num_dims=2, lengthscale_constraint=CONSTRAINTS[name]())
    kernel = ScaleKernel(DecomposableKernel(inner, 2)).double()
    inner.raw_lengthscale.data = torch.tensor([[0.3, 0.8]], dtype=torch.float64)
    twin = through_a_file(copy.deepcopy(kernel), tmp_path / "kernel").base_kernel.base_kernel
    assert type(twin.raw_lengthscale_constraint) is type(inner.raw_lengthscale_constraint)
    for a, b in zip(twin.raw_lengthscale_constraint, inner.raw_lengthscale_constraint, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(twin.lengthscale, inner.lengthscale)
    value = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    twin.lengthscale = value
    torch.testing.assert_close(twin.lengthscale.detach(), value, rtol=1e-12, atol=0)


def test_kernel_spec_keeps_constraints_of_matrices_and_terms():
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2))
    kernel.div.register_constraint("raw_outputscale", Interval(0.5, 2.0))
    assert kernel_from_spec(*kernel_to_spec(kernel)).div.raw_outputscale_constraint.upper_bound == 2.0
    kernel = DecomposableKernel(RBFKernel(), output_matrix=FreeMatrix(2, diagonal_constraint=GreaterThan(0.3)))
    assert kernel_from_spec(*kernel_to_spec(kernel)).output_matrix.diagonal().min() > 0.3


def test_kernel_spec_keeps_frozen_parameters():
    kernel = DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=2)
    kernel.base_kernel.raw_outputscale.requires_grad_(False)
    twin = kernel_from_spec(*kernel_to_spec(kernel))
    flags = [{n: p.requires_grad for n, p in k.named_parameters()} for k in (twin, kernel)]
    assert flags[0] == flags[1] and not all(flags[0].values())


def test_kernel_spec_keeps_shared_kernels():
    shared = RBFKernel()
    kernel = IndependentKernel([shared, ScaleKernel(shared), RBFKernel()])
    twin = kernel_from_spec(*kernel_to_spec(kernel))
    assert len(list(twin.parameters())) == len(list(kernel.parameters())) == 3
    twin.kernels[0].lengthscale = 3.0
    assert twin.kernels[1].base_kernel.lengthscale.item() == pytest.approx(3.0)


def test_kernel_spec_omits_priors():
    prior = GammaPrior(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 1.0]))
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, lengthscale_prior=prior), outputscale_prior=LogNormalPrior(0.0, 1.0))
    spec, tensors = kernel_to_spec(kernel)
    assert not [name for name in tensors if "prior" in name]
    twin = kernel_from_spec(spec, tensors)
    assert list(twin.named_priors()) == []
    x = torch.rand(3, 2)
    assert torch.equal(twin(x).to_dense(), kernel(x).to_dense())
    back = load_kernel_state(kernel, tensors)
    assert len(list(back.named_priors())) == 2


def test_kernel_spec_accepts_numpy_numbers():
    kernel = MaternKernel(nu=np.float64(1.5), ard_num_dims=np.int64(2))
    spec, tensors = kernel_to_spec(kernel)
    assert kernel_from_spec(json.loads(json.dumps(spec)), tensors).ard_num_dims == 2


# --- unsupported kernels --------------------------------------------------------------------------------------------


class CustomKernel(RBFKernel):
    pass


class CustomMatrix(OutputMatrix):
    def forward(self):
        return torch.eye(2)


class CustomConstraint(Positive):
    pass


def double(x):
    return 2 * x


UNKNOWN = {
    "CustomKernel": lambda: CustomKernel(),
    "RBFKernelGrad": lambda: ScaleKernel(RBFKernelGrad()),
    "CustomMatrix": lambda: DecomposableKernel(RBFKernel(), output_matrix=CustomMatrix(2)),
    "function": lambda: TransformableKernel(RBFKernel(), [double]),
    "RBFKernel": lambda: RBFKernel(lengthscale_constraint=CustomConstraint()),
    "PeriodicKernel": lambda: PeriodicKernel(
        period_length_constraint=Positive(transform=torch.square, inv_transform=torch.sqrt)
    ),
    "MultitaskKernel": lambda: make("multitask"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_kernel_to_spec_rejects_unsupported_classes(name):
    kernel = UNKNOWN[name]()
    assert not is_storable(kernel)
    with pytest.raises(KernelTypeError, match=rf"^{name} .*ovkgp\.load\(path, kernel="):
        kernel_to_spec(kernel)


def test_kernel_to_spec_rejects_class_with_same_name():
    namesake = type("RBFKernel", (RBFKernel,), {})
    with pytest.raises(KernelTypeError, match="RBFKernel"):
        kernel_to_spec(namesake())


def test_kernel_to_spec_rejects_kernel_changed_after_construction():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
    kernel.active_dims = torch.tensor([1])
    with pytest.raises(KernelTypeError, match=r"changed after construction: .*active_dims"):
        kernel_to_spec(kernel)


@pytest.mark.parametrize("value", ["rbf", None, Delay(0.1)])
def test_kernel_to_spec_rejects_other_types(value):
    with pytest.raises(KernelTypeError, match=r"gpytorch\.kernels\.Kernel"):
        kernel_to_spec(value)
    with pytest.raises(KernelTypeError, match=r"gpytorch\.kernels\.Kernel"):
        load_kernel_state(value, {})


def test_output_matrix_is_stored_but_is_not_a_kernel():
    spec, tensors = kernel_to_spec(FreeMatrix(2))
    assert type(kernel_from_spec(spec, tensors, FreeMatrix)) is FreeMatrix
    with pytest.raises(KernelTypeError, match="expected a kernel"):
        kernel_from_spec(spec, tensors)
    with pytest.raises(KernelTypeError, match=r"gpytorch\.kernels\.Kernel"):
        load_kernel_state(FreeMatrix(2), {})


# --- invalid specs --------------------------------------------------------------------------------------------------


def stored():
    return kernel_to_spec(DecomposableKernel(RBFKernel(), num_outputs=2))


@pytest.mark.parametrize("name", ["os.system", "system", "eval", "RBFKernelGrad", "Kernel", "__import__", "", None])
def test_kernel_from_spec_rejects_unsupported_classes(name):
    for is_nested in (False, True):
        spec, tensors = stored()
        node = spec["kernel"] if not is_nested else spec["kernel"]["options"]["base_kernel"]
        node["class"] = name
        with pytest.raises(KernelTypeError, match="supported class"):
            kernel_from_spec(spec, tensors)


def test_kernel_from_spec_rejects_spec_of_other_types():
    spec, tensors = stored()
    for other in (spec["kernel"]["options"]["output_matrix"], [spec["kernel"]], "RBFKernel"):
        with pytest.raises(KernelTypeError, match="expected"):
            kernel_from_spec({**spec, "kernel": other}, tensors)


DAMAGED = {
    "no kernel": lambda spec, tensors: spec.pop("kernel"),
    "no options": lambda spec, tensors: spec["kernel"].pop("options"),
    "an option too many": lambda spec, tensors: spec["kernel"]["options"].update(colour="red"),
    "a class in a list": lambda spec, tensors: spec["kernel"].update({"class": ["RBFKernel"]}),
    "impossible option": lambda spec, tensors: spec["kernel"]["options"]["output_matrix"]["options"].update(rank=5),
    "unknown constraint": lambda spec, tensors: spec["constraints"]["base_kernel.raw_lengthscale_constraint"].update(
        {"class": "eval"}
    ),
    "unknown transform": lambda spec, tensors: spec["constraints"]["base_kernel.raw_lengthscale_constraint"].update(
        transform="eval"
    ),
    "constraint of nothing": lambda spec, tensors: spec["constraints"].update(x_constraint={"class": "Positive"}),
    "tied to nothing": lambda spec, tensors: spec["tied"].append(["base_kernel.raw_lengthscale", "nothing"]),
    "frozen nothing": lambda spec, tensors: spec["frozen"].append("nothing"),
    "a tensor less": lambda spec, tensors: tensors.pop("base_kernel.raw_lengthscale"),
    "a tensor more": lambda spec, tensors: tensors.update(more=torch.ones(1)),
    "another shape": lambda spec, tensors: tensors.update({"base_kernel.raw_lengthscale": torch.ones(3)}),
    "integers": lambda spec, tensors: tensors.update({"base_kernel.raw_lengthscale": torch.ones(1, 1).long()}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_kernel_from_spec_rejects_damaged_spec(name):
    spec, tensors = stored()
    DAMAGED[name](spec, tensors)
    with pytest.raises(ModelFileError, match="cannot be built"):
        kernel_from_spec(spec, tensors)


# --- custom kernels -------------------------------------------------------------------------------------------------


def test_load_kernel_state_restores_custom_kernel(tmp_path):
    kernel = randomize(DecomposableKernel(CustomKernel(ard_num_dims=2), num_outputs=2).double(), 0)
    write_model(tmp_path / "kernel", kernel_state(kernel), {})
    fresh = DecomposableKernel(CustomKernel(ard_num_dims=2), num_outputs=2)
    before = copy.deepcopy(fresh.state_dict())
    twin = load_kernel_state(fresh, read_model(tmp_path / "kernel")[0])
    x = torch.rand(4, 2, dtype=torch.float64)
    assert torch.equal(twin(x).to_dense(), kernel(x).to_dense())
    assert all(torch.equal(fresh.state_dict()[name], value) for name, value in before.items())
    twin(x).to_dense().sum().backward()
    assert all(parameter.grad is not None for parameter in twin.parameters())


@pytest.mark.parametrize(
    ("fresh", "key"),
    [
        (lambda: CustomKernel(ard_num_dims=3), r"raw_lengthscale is .*\(1, 3\) .*\(1, 2\)"),
        (lambda: RQKernel(ard_num_dims=2), "raw_alpha is not stored"),
        (lambda: LinearKernel(ard_num_dims=2), "raw_lengthscale is stored, but"),
        (lambda: CurlFreeKernel(CustomKernel(ard_num_dims=2)), "base_kernel.raw_lengthscale is not stored"),
    ],
)
def test_load_kernel_state_names_mismatched_values(fresh, key):
    with pytest.raises(OptionError, match=key):
        load_kernel_state(fresh(), kernel_state(CustomKernel(ard_num_dims=2)))
