"""`evaluate_kernel` against distances in extended precision, GPyTorch's own values, and automatic differentiation."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    LCMKernel,
    LinearKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from linear_operator import to_dense

from ovkgp.exceptions import InputError
from ovkgp.kernels import DecomposableKernel, IndependentKernel, LaplaceKernel
from ovkgp.kernels.evaluation import evaluate_kernel, squared_distances

torch.manual_seed(0)
RADIAL = {
    "rbf": lambda d: RBFKernel(),
    "rbf ard": lambda d: RBFKernel(ard_num_dims=d),
    "matern12": lambda d: MaternKernel(0.5),
    "matern32 ard": lambda d: MaternKernel(1.5, ard_num_dims=d),
    "matern52": lambda d: MaternKernel(2.5),
    "matern52 ard": lambda d: MaternKernel(2.5, ard_num_dims=d),
    "rq": lambda d: RQKernel(),
    "rq ard": lambda d: RQKernel(ard_num_dims=d),
}
OTHERS = {
    "scaled": lambda d: ScaleKernel(MaternKernel(2.5, ard_num_dims=d)),
    "scaled columns": lambda d: ScaleKernel(RBFKernel(active_dims=[0])),
    "sum": lambda d: AdditiveKernel(RBFKernel(), ScaleKernel(LinearKernel()), ConstantKernel()),
    "product": lambda d: ProductKernel(RBFKernel(active_dims=[0]), PeriodicKernel()),
    "periodic": lambda d: PeriodicKernel(),
    "cosine": lambda d: CosineKernel(),
    "polynomial": lambda d: PolynomialKernel(power=2),
    "compact support": lambda d: PiecewisePolynomialKernel(q=2),
    "laplace": lambda d: LaplaceKernel(),
    "multitask": lambda d: MultitaskKernel(MaternKernel(1.5), num_tasks=2, rank=1),
    "lcm": lambda d: LCMKernel([RBFKernel(), MaternKernel(0.5)], num_tasks=2, rank=1),
    "decomposable": lambda d: ScaleKernel(DecomposableKernel(MaternKernel(2.5), num_outputs=2)),
    "independent": lambda d: IndependentKernel([ScaleKernel(RBFKernel()), MaternKernel(1.5)]),
}


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def exact_squares(x, z):
    """Squared distances in extended precision."""
    x, z = (rows.detach().numpy().astype(np.longdouble) for rows in (x, z))
    return np.square(x[..., :, None, :] - z[..., None, :, :]).sum(-1)


def hard_inputs(d):
    """Rows of order one, distant rows, distant clusters, an offset, and near duplicates."""
    x = normal(40, d)
    return {
        "ordinary": x,
        "one distant row": torch.cat([x, torch.full((1, d), 1e9)]),
        "distant clusters": x + 1e7 * torch.arange(40.0)[:, None].remainder(3),
        "offset": x + 1e6,
        "near duplicates": torch.cat([x, x + 1e-9 * normal(40, d, seed=1)]),
        "tiny": 1e-120 * x,
        "sentinel": torch.cat([x, torch.full((2, d), -999999999.0)]),
    }


@pytest.mark.parametrize("d", [1, 3, 4, 20])
@pytest.mark.parametrize("name", hard_inputs(1))
def test_squared_distances_have_small_relative_error(name, d):
    x = hard_inputs(d)[name].double()
    z = torch.cat([x[::2], normal(5, d, seed=3) * (1e-120 if name == "tiny" else 1)])
    found, exact = squared_distances(x, z).numpy(), exact_squares(x, z)
    assert (np.abs(found - exact) <= 2e-12 * exact).all()


@pytest.mark.parametrize("d", [3, 5])
@pytest.mark.parametrize("name", hard_inputs(1))
def test_squared_distances_of_rows_to_themselves_have_small_relative_error(name, d, monkeypatch):
    monkeypatch.setattr("ovkgp.kernels.evaluation.BLOCK_ENTRIES", 700)  # several blocks, the last one smaller
    x = hard_inputs(d)[name].double()
    x = torch.cat([x, x[:1]])  # a duplicate row is a zero outside the diagonal
    found, exact = squared_distances(x, x).numpy(), exact_squares(x, x)
    assert (np.abs(found - exact) <= 2e-12 * exact).all()
    batch = torch.stack([x, 2 * x])
    found, exact = squared_distances(batch, batch).numpy(), exact_squares(batch, batch)
    assert (np.abs(found - exact) <= 2e-12 * exact).all()


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_squared_distances_of_no_rows_are_empty(sizes):
    assert squared_distances(*(torch.zeros(size, 5).double() for size in sizes)).shape == sizes


def test_distances_of_single_precision_are_relative_too():
    x = torch.cat([normal(30, 8), torch.full((1, 8), 1e4)]).float()
    found, exact = squared_distances(x, x).numpy(), exact_squares(x, x)
    assert (np.abs(found - exact) <= 1e-3 * exact).all()


@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("name", [*RADIAL, *OTHERS])
def test_values_equal_those_of_gpytorch_on_ordinary_data(name, d):
    kernel = {**RADIAL, **OTHERS}[name](d).double()
    x, z = normal(30, d), normal(20, d, seed=1)
    for inputs in ((x, z), (x, x)):
        expected = to_dense(kernel(*inputs))
        assert torch.allclose(to_dense(evaluate_kernel(kernel, *inputs)), expected, rtol=1e-9, atol=1e-7)
    diagonal = evaluate_kernel(kernel, x, x + 0.1, diag=True)
    assert torch.allclose(diagonal, kernel(x, x + 0.1, diag=True), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("distant", [1e5, 1e9, 1e150, 1e200])
@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize("name", [*RADIAL, "scaled", "periodic", "multitask", "decomposable", "independent"])
def test_values_do_not_depend_on_other_rows(name, d, distant):
    kernel = {**RADIAL, **OTHERS}[name](d).double()
    x, z = normal(30, d), normal(20, d, seed=1)
    p = 2 if name in ("multitask", "decomposable", "independent") else 1
    alone = to_dense(evaluate_kernel(kernel, x, z))
    with_distant = to_dense(evaluate_kernel(kernel, torch.cat([x, torch.full((1, d), distant, dtype=torch.double)]), z))
    assert torch.allclose(with_distant[: 30 * p], alone, rtol=1e-11, atol=0)
    assert torch.isfinite(with_distant).all()
    single = torch.cat([to_dense(evaluate_kernel(kernel, row[None], z)) for row in x])
    assert torch.allclose(single, alone, rtol=1e-11, atol=1e-14)


def test_values_of_distant_rows_are_zero_for_decaying_kernels():
    x = torch.tensor([[0.5, 0.5], [1e300, 1e300]], dtype=torch.double)
    for make in RADIAL.values():
        K = evaluate_kernel(make(2).double(), x, x)
        assert torch.isfinite(K).all() and K[0, 1] < 1e-100 and K[1, 1] == 1


def test_inputs_that_overflow_when_scaled_are_rejected():
    kernel = RBFKernel().double()
    kernel.lengthscale = 1e-3
    with pytest.raises(InputError, match="lengthscale"):
        evaluate_kernel(kernel, torch.tensor([[1e307]], dtype=torch.double), torch.zeros(1, 1).double())


@pytest.mark.parametrize("columns", [2, 6])
@pytest.mark.parametrize("name", [name for name in RADIAL if "matern12" not in name])
def test_gradients_match_finite_differences(name, columns):
    kernel = RADIAL[name](columns).double()
    x, z = normal(5, columns).requires_grad_(), normal(4, columns, seed=1).requires_grad_()
    raw = [parameter for parameter in kernel.parameters()]

    def values(x, z, *parameters):
        state = dict(zip([name for name, _ in kernel.named_parameters()], parameters, strict=True))
        module = _Evaluation(kernel)
        return torch.func.functional_call(module, {f"kernel.{name}": value for name, value in state.items()}, (x, z))

    assert torch.autograd.gradcheck(values, (x, z, *raw))
    assert torch.autograd.gradgradcheck(values, (x, z, *raw))


class _Evaluation(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x, z):
        return evaluate_kernel(self.kernel, x, z)


@pytest.mark.parametrize("shift", [0.0, 1e7])
@pytest.mark.parametrize("ard", [None, 2])
def test_gradient_of_the_lengthscale_is_right_for_distant_clusters(ard, shift):
    kernel = MaternKernel(2.5, ard_num_dims=ard).double()
    x = normal(20, 2) + shift * (torch.arange(20.0)[:, None] % 2)
    weights = normal(20, 20, seed=4)
    (evaluate_kernel(kernel, x) * weights).sum().backward()
    found = kernel.raw_lengthscale.grad.clone()
    kernel.zero_grad()
    scaled = (x[:, None] - x) / kernel.lengthscale
    r = (5 * scaled.square().sum(-1)).clamp_min(1e-300).sqrt()
    (((1 + r + r**2 / 3) * torch.exp(-r)) * weights).sum().backward()
    assert torch.allclose(found, kernel.raw_lengthscale.grad, rtol=1e-6)


@pytest.mark.parametrize("name", ["rbf", "matern52 ard", "rq"])
def test_batches_of_kernels_equal_single_kernels(name):
    make = {
        "rbf": lambda **options: RBFKernel(**options),
        "matern52 ard": lambda **options: MaternKernel(2.5, ard_num_dims=5, **options),
        "rq": lambda **options: RQKernel(**options),
    }[name]
    kernel = make(batch_shape=torch.Size([3])).double()
    kernel.lengthscale = 1 + torch.rand_like(kernel.lengthscale)
    x, z = normal(7, 5), normal(3, 6, 5, seed=1)
    found = evaluate_kernel(kernel, x, z)
    assert found.shape == (3, 7, 6)
    for b in range(3):
        assert torch.allclose(found[b], to_dense(kernel[b](x, z[b])), rtol=1e-10, atol=1e-12)
    kernel.zero_grad()
    found.sum().backward()
    assert kernel.raw_lengthscale.grad.shape == kernel.raw_lengthscale.shape


def test_evaluation_leaves_the_kernel_unchanged():
    kernel = ScaleKernel(PiecewisePolynomialKernel(q=1)).double()
    before = set(vars(kernel.base_kernel))
    evaluate_kernel(kernel, normal(3, 2))
    assert set(vars(kernel.base_kernel)) == before


def test_wrong_number_of_columns_raises_the_error_of_gpytorch():
    with pytest.raises(RuntimeError, match="dimensionality"):
        evaluate_kernel(RBFKernel(ard_num_dims=3), torch.zeros(2, 2))
