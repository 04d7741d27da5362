import copy
import operator
import pickle

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import (
    AdditiveKernel,
    InducingPointKernel,
    LCMKernel,
    MaternKernel,
    MultitaskKernel,
    ProductKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import GammaPrior
from oracles import OUTPUTS, SEPARABLE, dense, operator_valued, randomize

from ovkgp.exceptions import InputError, KernelTypeError
from ovkgp.kernels import (
    BlockwiseProductKernel,
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    OperatorValuedKernel,
    TransformableKernel,
    block,
    components,
    is_operator_valued,
    num_outputs,
)

EVERY = pytest.mark.parametrize("name", OUTPUTS)


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sum_of_components(kernel, x, z):
    return sum(np.kron(dense(k, x, z), matrix.detach().numpy()) for k, matrix in components(kernel))


# --- num_outputs ------------------------------------------------------------------------------------------------


@EVERY
def test_num_outputs_of_every_class(name):
    assert num_outputs(operator_valued(name)) == OUTPUTS[name]


@EVERY
def test_num_outputs_of_nested_scales_and_sums(name):
    kernel = ScaleKernel(ScaleKernel(operator_valued(name)) + operator_valued(name))
    assert num_outputs(kernel) == OUTPUTS[name]


@EVERY
def test_matrix_has_num_outputs_rows_for_each_point(name):
    kernel = operator_valued(name)
    assert kernel(points(4, 2), points(5, 2)).shape == (4 * OUTPUTS[name], 5 * OUTPUTS[name])


def test_num_outputs_of_gpytorch_kernels():
    multitask = MultitaskKernel(RBFKernel(), num_tasks=4)
    lcm = LCMKernel([RBFKernel(), RQKernel()], num_tasks=3)
    assert [num_outputs(k) for k in (RBFKernel(), RBFKernel() * RQKernel(), multitask, lcm)] == [1, 1, 4, 3]


@pytest.mark.parametrize("p", [1, 3])
def test_num_outputs_of_inducing_point_kernel(p):
    inner = RBFKernel() if p == 1 else DecomposableKernel(RBFKernel(), num_outputs=p)
    kernel = InducingPointKernel(inner, torch.randn(2, 2), GaussianLikelihood())
    assert (num_outputs(kernel), is_operator_valued(kernel)) == (p, p > 1)


def test_num_outputs_rejects_kernel_without_num_outputs():
    with pytest.raises(KernelTypeError, match="num_outputs"):
        num_outputs(RBFKernelGrad())


def test_num_outputs_rejects_sum_of_different_numbers_of_outputs():
    with pytest.raises(KernelTypeError, match=r"\[1, 2\]"):
        num_outputs(DecomposableKernel(RBFKernel(), num_outputs=2) + RBFKernel())


def test_custom_kernel_needs_only_num_outputs_and_forward():
    class Independent(OperatorValuedKernel):
        num_outputs = 2

        def forward(self, x1, x2, diag=False, **params):
            value = torch.ones(len(x1), len(x2)).to(x1)
            return torch.ones(2 * len(x1)).to(x1) if diag else torch.kron(value, torch.eye(2).to(x1))

    kernel = ScaleKernel(Independent())
    assert (num_outputs(kernel), components(kernel), kernel(points(3, 1)).shape) == (2, None, (6, 6))


# --- components -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEPARABLE)
def test_components_of_a_separable_kernel_sum_to_its_matrix(name):
    kernel = randomize(operator_valued(name).double(), 1)
    x, z = points(4, 2), points(3, 2, seed=1)
    assert len(components(kernel)) == SEPARABLE[name]
    np.testing.assert_allclose(sum_of_components(kernel, x, z), dense(kernel, x, z), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(set(OUTPUTS) - set(SEPARABLE)))
def test_components_of_other_kernels_are_none(name):
    assert components(operator_valued(name)) is None
    assert components(ScaleKernel(operator_valued(name)) + operator_valued(name)) is None


def test_components_of_an_lmc_with_nested_scales_sum_to_its_matrix():
    first = DecomposableKernel(RBFKernel(), num_outputs=3, rank=2)
    second = DecomposableKernel(MaternKernel(nu=1.5), num_outputs=3)
    kernel = randomize((ScaleKernel(ScaleKernel(first) + second) + ScaleKernel(first)).double(), 3)
    x, z = points(4, 2), points(3, 2, seed=1)
    assert len(components(kernel)) == 3
    np.testing.assert_allclose(sum_of_components(kernel, x, z), dense(kernel, x, z), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "kernel",
    [MultitaskKernel(RBFKernel(), num_tasks=3, rank=2), LCMKernel([RBFKernel(), RQKernel()], num_tasks=3, rank=1)],
)
def test_components_of_gpytorchs_multitask_kernels_sum_to_their_matrix(kernel):
    kernel = randomize(ScaleKernel(kernel).double(), 4)
    x, z = points(4, 2), points(3, 2, seed=1)
    np.testing.assert_allclose(sum_of_components(kernel, x, z), dense(kernel, x, z), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kernel", [RBFKernel(), ScaleKernel(RBFKernel()), RBFKernel() + RQKernel()])
def test_scalar_kernel_is_its_own_component(kernel):
    [(scalar, matrix)] = components(kernel)
    assert scalar is kernel and torch.equal(matrix, torch.ones(1, 1))


def test_components_are_differentiable_in_the_output_scale_and_the_loadings():
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2))
    components(kernel)[0][1].sum().backward()
    assert kernel.raw_outputscale.grad.abs() > 0
    assert kernel.base_kernel.output_module.loadings.grad.abs().max() > 0


def test_components_are_batched_like_the_kernel():
    kernel = randomize(operator_valued("lmc", (2,)).double(), 5)
    x = points(4, 2)
    expected = [
        np.stack([np.kron(a, b) for a, b in zip(dense(k, x), m.detach().numpy(), strict=True)])
        for k, m in components(kernel)
    ]
    np.testing.assert_allclose(sum(expected), dense(kernel, x), rtol=1e-12, atol=1e-14)


# --- block ------------------------------------------------------------------------------------------------------


@EVERY
def test_block_is_the_ij_block_of_the_data_major_matrix(name):
    kernel, p = randomize(operator_valued(name).double(), 6), OUTPUTS[name]
    x, z = points(3, 2), points(4, 2, seed=1)
    matrix = dense(kernel, x, z)
    for i, j in [(0, 0), (2, 1), (1, 3)]:
        expected = matrix[i * p : (i + 1) * p, j * p : (j + 1) * p]
        np.testing.assert_allclose(block(kernel, x[i], z[j]).detach(), expected, rtol=1e-10, atol=1e-13)


def test_block_of_a_scalar_kernel_is_one_by_one():
    value = block(RBFKernel(), torch.tensor([0.0]), torch.tensor([1.0]))
    assert value.shape == (1, 1) and value.item() == pytest.approx(np.exp(-0.5 / np.log(2) ** 2), rel=1e-5)


def test_block_takes_points_as_rows_or_vectors_and_is_a_method_too():
    kernel, x, z = operator_valued("curl_free").double(), points(2), points(2, seed=1)
    assert torch.equal(block(kernel, x, z), kernel.block(x[None], z[None]))


def test_block_rejects_many_points():
    with pytest.raises(InputError, match="single points"):
        block(operator_valued("curl_free"), torch.zeros(3, 2), torch.zeros(2))


@pytest.mark.parametrize("function", [num_outputs, components, lambda k: block(k, torch.zeros(1), torch.zeros(1))])
def test_structure_functions_reject_other_types(function):
    with pytest.raises(KernelTypeError, match="got str"):
        function("rbf")


# --- blockwise products -----------------------------------------------------------------------------------------


@EVERY
def test_product_with_a_scalar_kernel_multiplies_every_block(name):
    kernel = randomize(operator_valued(name).double(), 7)
    scalar = randomize(RQKernel().double(), 8)
    x, z = points(4, 2), points(3, 2, seed=1)
    p = OUTPUTS[name]
    expected = dense(kernel, x, z) * np.kron(dense(scalar, x, z), np.ones((p, p)))
    product = BlockwiseProductKernel(kernel, scalar)
    np.testing.assert_allclose(dense(product, x, z), expected, rtol=1e-12, atol=1e-15)


@EVERY
def test_multiplication_in_both_orders_is_blockwise(name):
    kernel, scalar = randomize(operator_valued(name).double(), 7), randomize(ScaleKernel(RQKernel()).double(), 8)
    x, z = points(4, 2), points(3, 2, seed=1)
    for inner in (kernel, ScaleKernel(kernel).double()):
        expected = dense(inner, x, z) * np.kron(dense(scalar, x, z), np.ones((OUTPUTS[name],) * 2))
        for product in (inner * scalar, scalar * inner):
            assert isinstance(product, BlockwiseProductKernel) == is_operator_valued(kernel)
            assert num_outputs(product) == OUTPUTS[name]
            np.testing.assert_allclose(product(x, z).to_dense().detach(), expected, rtol=1e-10, atol=1e-13)
            diagonal = np.diagonal(product(x).to_dense().detach())
            np.testing.assert_allclose(product(x, diag=True).detach(), diagonal, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("wrap", [lambda k: k, ScaleKernel, lambda k: k + k], ids=["plain", "scaled", "sum"])
@pytest.mark.parametrize("name", ["decomposable", "curl_free"])
def test_sum_with_a_scalar_kernel_is_rejected(name, wrap):
    kernel = wrap(operator_valued(name))
    for add in (lambda: kernel + RBFKernel(), lambda: RBFKernel() + kernel):
        with pytest.raises(KernelTypeError, match=r"DecomposableKernel\(kernel, num_outputs="):
            add()


def test_product_of_kernels_with_other_numbers_of_outputs_is_rejected():
    two, three = (ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=p)) for p in (2, 3))
    with pytest.raises(KernelTypeError, match="same number of outputs"):
        two * three


def test_operators_of_gpytorch_kernels_are_unchanged():
    one, other, tasks = RBFKernel(), MaternKernel(), MultitaskKernel(RBFKernel(), num_tasks=2)
    assert type(one * other) is ProductKernel and type(one + other) is AdditiveKernel
    assert type(one * tasks) is ProductKernel and type(RBFKernelGrad() + RBFKernelGrad()) is AdditiveKernel
    assert len((one + other + one).kernels) == 3 and len((one * other * one).kernels) == 3


@pytest.mark.parametrize("name", ["decomposable", "curl_free"])
def test_product_of_two_operator_valued_kernels_is_elementwise(name):
    kernel, x = operator_valued(name).double(), points(4, 2)
    np.testing.assert_allclose(dense(kernel * kernel, x), dense(kernel, x) ** 2, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("function", [num_outputs, components, lambda k: block(k, torch.zeros(2), torch.ones(2))])
@pytest.mark.parametrize("name", ["decomposable", "curl_free"])
def test_product_kernel_of_scalar_and_operator_valued_kernels_is_rejected(name, function):
    with pytest.raises(KernelTypeError, match=r"operator_valued \* scalar"):
        function(ProductKernel(RBFKernel(), operator_valued(name)))


# --- features of all GPyTorch kernels -----------------------------------------------------------------------------


def batch_of_two(name):
    kernel = randomize(operator_valued(name, (2,)).double(), 9)
    assert kernel.batch_shape == (2,)
    return kernel


@EVERY
def test_transposed_arguments_transpose_the_matrix(name):
    kernel, x, z = randomize(operator_valued(name).double(), 10), points(3, 2), points(4, 2, seed=1)
    np.testing.assert_allclose(dense(kernel, x, z), dense(kernel, z, x).T, rtol=1e-12, atol=1e-14)


@EVERY
def test_diagonal_equals_that_of_the_matrix(name):
    kernel, x, z = randomize(operator_valued(name).double(), 11), points(4, 2), points(4, 2, seed=1)
    for pair in ((x, x), (x, z)):
        np.testing.assert_allclose(
            kernel(*pair, diag=True).detach(), np.diagonal(dense(kernel, *pair)), rtol=1e-10, atol=1e-13
        )


@EVERY
def test_diagonal_does_not_form_the_matrix(name):
    n = 100_000  # the matrix would take at least 40 GB
    with torch.no_grad():
        assert operator_valued(name)(torch.randn(n, 2), diag=True).shape == (n * OUTPUTS[name],)


@EVERY
def test_rows_of_the_lazy_matrix_can_be_selected(name):
    kernel, x, p = operator_valued(name).double(), points(4, 2), OUTPUTS[name]
    lazy = kernel(x)[p : 3 * p, : 2 * p].to_dense().detach()
    np.testing.assert_allclose(lazy, dense(kernel, x)[p : 3 * p, : 2 * p], rtol=1e-10, atol=1e-13)


@EVERY
def test_indexing_a_batch_picks_one_kernel(name):
    kernel, x = batch_of_two(name), points(4, 2)
    both = dense(kernel, x)
    assert not np.allclose(both[0], both[1])
    for i in range(2):
        np.testing.assert_allclose(dense(kernel[i], x), both[i], rtol=1e-10, atol=1e-13)


# GPyTorch's AdditiveKernel, the outermost class of an LMC, does not expand its terms and copies some of them
OURS = pytest.mark.parametrize("name", [name for name in OUTPUTS if name != "lmc"])


@OURS
def test_indexing_a_batch_keeps_the_parameters_as_they_are(name):
    kernel = batch_of_two(name)
    assert sorted(kernel[0].state_dict()) == sorted(kernel.state_dict())
    assert len(list(kernel[0].parameters())) == len(list(kernel.parameters()))


@EVERY
def test_batched_kernel_takes_unbatched_inputs(name):
    kernel, x = batch_of_two(name), points(4, 2)
    assert kernel(x).to_dense().shape == (2, 4 * OUTPUTS[name], 4 * OUTPUTS[name])
    assert kernel(x, diag=True).shape == (2, 4 * OUTPUTS[name])


@OURS
def test_expanding_the_batch_repeats_the_kernel(name):
    kernel, x = randomize(operator_valued(name).double(), 12), points(4, 2)
    expanded = kernel.expand_batch(torch.Size([3]))
    assert expanded.batch_shape == (3,)
    expected = np.broadcast_to(dense(kernel, x), (3, *dense(kernel, x).shape))
    np.testing.assert_allclose(dense(expanded, x), expected, rtol=1e-10, atol=1e-13)


NESTED = [
    lambda **b: RBFKernel(**b) + RQKernel(**b),
    lambda **b: ScaleKernel(RBFKernel(**b) * RQKernel(**b) + RBFKernel(active_dims=[1, 0], **b), **b),
]


@pytest.mark.parametrize("base", NESTED)
@pytest.mark.parametrize("make", [lambda k: DecomposableKernel(k, num_outputs=2), CurlFreeKernel])
def test_nested_base_kernels_can_be_indexed_and_expanded(base, make):
    x = points(3, 2)
    batch = randomize(make(base(batch_shape=torch.Size([2]))).double(), 19)
    expanded = randomize(make(base()).double(), 20).expand_batch(2)
    for kernel in (batch, expanded):
        np.testing.assert_allclose(dense(kernel[1], x), dense(kernel, x)[1], rtol=1e-12, atol=1e-14)
        assert len(list(kernel[1].parameters())) == len(list(kernel.parameters()))


@pytest.mark.parametrize("base", NESTED)
def test_batch_of_inputs_can_be_indexed_before_evaluation(base):
    kernel, x = DecomposableKernel(base(), num_outputs=2).double(), points(3, 4, 2)
    np.testing.assert_allclose(kernel(x)[1].to_dense().detach(), dense(kernel, x[1]), rtol=1e-12, atol=1e-14)


@EVERY
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))])
def test_copies_and_pickles_are_equal_and_independent(name, duplicate):
    kernel, x = randomize(operator_valued(name).double(), 13), points(4, 2)
    before, twin = dense(kernel, x), duplicate(kernel)
    np.testing.assert_array_equal(dense(twin, x), before)
    randomize(twin, 14)
    np.testing.assert_array_equal(dense(kernel, x), before)
    assert not np.allclose(dense(twin, x), before)


@EVERY
def test_state_dict_restores_a_kernel(name):
    kernel, x = randomize(operator_valued(name).double(), 15), points(4, 2)
    twin = operator_valued(name).double()
    twin.load_state_dict(kernel.state_dict())
    np.testing.assert_array_equal(dense(twin, x), dense(kernel, x))


@EVERY
def test_kernel_has_default_dtype_and_follows_conversions(name):
    kernel, x = operator_valued(name), points(3, 2)
    assert kernel(x.float()).to_dense().dtype == torch.float32
    assert kernel.double()(x).to_dense().dtype == torch.float64
    assert kernel.float()(x.float()).to_dense().dtype == torch.float32


@EVERY
def test_priors_and_constraints_of_base_kernels_are_kept(name):
    base = {"lengthscale_prior": GammaPrior(2.0, 1.0), "lengthscale_constraint": GreaterThan(0.7)}
    kernel = randomize(operator_valued(name, **base), 16)
    priors = list(kernel.named_priors())
    assert priors and all(prior.log_prob(closure(module)).isfinite().all() for _, module, prior, closure, _ in priors)
    assert all(m.lengthscale.min() > 0.7 for m in kernel.sub_kernels() if m.has_lengthscale)


@EVERY
def test_every_hyperparameter_has_a_finite_nonzero_gradient_even_at_coincident_points(name):
    kernel = randomize(operator_valued(name).double(), 17)
    x = points(4, 2)
    x = torch.cat([x, x[:2]])
    matrix = kernel(x).to_dense()
    (matrix * points(*matrix.shape, seed=2)).sum().backward()
    for label, parameter in kernel.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), label
        assert parameter.grad.abs().max() > 0, label


class _Dense(torch.nn.Module):
    def __init__(self, kernel, x):
        super().__init__()
        self.kernel, self.x = kernel, x

    def forward(self):
        return self.kernel(self.x).to_dense()


@EVERY
def test_hyperparameter_gradients_match_finite_differences(name):
    kernel = randomize(operator_valued(name).double(), 18)
    x = points(3, 2)
    module = _Dense(kernel, torch.cat([x, x[:1]]))  # one pair of coincident points
    labels = [label for label, _ in module.named_parameters()]

    def matrix(*values):
        return torch.func.functional_call(module, dict(zip(labels, values, strict=True)), ())

    values = tuple(v.detach().clone().requires_grad_() for v in module.parameters())
    assert torch.autograd.gradcheck(matrix, values, fast_mode=True)


@pytest.mark.parametrize("make", [CurlFreeKernel, DivergenceFreeKernel])
def test_num_outputs_of_field_of_unknown_dimension_raises(make):
    with pytest.raises(KernelTypeError, match="num_dims"):
        num_outputs(make(RBFKernel()))


@pytest.mark.parametrize(
    "make",
    [
        lambda base: DecomposableKernel(base, num_outputs=2),
        lambda base: CurlFreeKernel(base, num_dims=2),
        lambda base: HelmholtzKernel(base, num_dims=2),
        lambda base: FunctionValuedKernel(base, RBFKernel(), tasks=torch.linspace(0, 1, 2)),
        lambda base: TransformableKernel(base, [Delay(0.0), Delay(1.0)]),
    ],
)
def test_samples_of_hyperparameters_are_loaded_as_a_batch(make):
    """GPyTorch's `pyro_load_from_samples`, as fully Bayesian models use it."""
    kernel = make(RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)))
    samples = {name: torch.rand(5, 1, 1) + 0.5 for name, *_ in kernel.named_priors()}
    kernel.pyro_load_from_samples(samples)
    x = torch.rand(4, 2)
    assert kernel(x).to_dense().shape == (5, 8, 8)
    torch.testing.assert_close(kernel(x, diag=True), kernel(x).to_dense().diagonal(dim1=-2, dim2=-1))


def test_components_reject_multitask_kernel_that_ignores_active_dims():
    """GPyTorch calls the data kernel's `forward`, which does not select columns."""
    with pytest.raises(KernelTypeError, match="DecomposableKernel"):
        components(MultitaskKernel(RBFKernel(active_dims=[1]), num_tasks=2))
    assert components(MultitaskKernel(RBFKernel(), num_tasks=2, active_dims=[1])) is None


@pytest.mark.parametrize("combine", [operator.add, operator.mul])
def test_kernels_with_different_numbers_of_outputs_do_not_combine(combine):
    two, three = (DecomposableKernel(RBFKernel(), num_outputs=p) for p in (2, 3))
    with pytest.raises(KernelTypeError, match="must have the same number of outputs"):
        combine(two, three)
    assert num_outputs(combine(two, two)) == 2


def test_sum_with_a_scalar_kernel_raises_and_product_is_blockwise():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
    with pytest.raises(KernelTypeError, match=r"Wrap a scalar kernel: DecomposableKernel\(kernel, num_outputs=2\)"):
        kernel + RBFKernel()
    assert num_outputs(kernel * RBFKernel()) == 2
