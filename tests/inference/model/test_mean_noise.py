"""Tests of `ovkgp.inference.model.mean_noise`."""

import pickle
from copy import deepcopy

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.mean_noise import (
    MEANS,
    NOISE_KINDS,
    MeanColumn,
    NoiseEntry,
    OutputNoise,
    PolynomialMean,
    WrappedMean,
    make_output_mean,
)
from ovkgp.kernels import DecomposableKernel

NAN = float("nan")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected, rtol=1e-10):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=rtol)


def observed(kind, num_outputs=2, num_dims=3):
    """A mean with parameters away from zero."""
    mean = make_output_mean(kind, num_outputs)
    mean.set_num_dims(num_dims)
    for i, parameter in enumerate(mean.parameters()):
        parameter.data = normal(*parameter.shape, seed=i)
    return mean


@pytest.mark.parametrize("kind, b", [("zero", 0), ("constant", 1), ("linear", 4)])
@pytest.mark.parametrize("n", [1, 5])
def test_mean_equals_basis_times_coefficients(kind, b, n):
    mean, X = observed(kind), normal(n, 3)
    assert mean.basis(X).shape == (n, b)
    assert mean.coefficients.shape == (b, 2)
    assert mean(X).shape == (n, 2)
    close(mean(X), mean.basis(X) @ mean.coefficients)


def test_linear_mean_is_constant_plus_slopes():
    mean, X = observed("linear"), normal(5, 3)
    close(mean(X), mean.constant + X @ mean.slopes)


@pytest.mark.parametrize("kind", MEANS)
def test_mean_accepts_single_precision(kind):
    mean, X = observed(kind), normal(5, 3).float()
    close(mean(X).double(), mean(X.double()))


# --- initialization --------------------------------------------------------------------------------------------------------


def with_missing(n=20, p=2):
    X, Y = normal(n, 3) * torch.tensor([1.0, 1e-4, 1e5]) + torch.tensor([0.0, 3.0, -1e6]), normal(n, p, seed=1) + 4
    Y[normal(n, p, seed=2) > 0.5] = NAN
    return X, Y


@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_mean_initialization_is_least_squares_on_observed_entries(kind):
    X, Y = with_missing()
    mean = make_output_mean(kind, 2)
    mean.initialize_from_data(X, Y)
    scale = torch.ones(3) if kind == "constant" else X.std(0)
    for a in range(2):
        rows = ~torch.isnan(Y[:, a])
        basis = np.ones((int(rows.sum()), 1))
        if kind == "linear":  # in standardised columns, where the oracle is well-conditioned
            basis = np.concatenate([basis, ((X - X.mean(0)) / scale)[rows].numpy()], 1)
        fitted = basis @ np.linalg.lstsq(basis, Y[rows, a].numpy(), rcond=None)[0]
        close(mean(X[rows])[:, a], fitted, 1e-8)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8])
@pytest.mark.parametrize("others", [0, 1])
def test_mean_initialization_of_constant_column_has_no_slope(value, others):
    X = torch.cat([torch.full((7, 1), value).double(), normal(7, others)], 1)
    Y = normal(7, 2, seed=1)
    mean = make_output_mean("linear", 2)
    mean.initialize_from_data(X, Y)
    assert (mean.slopes[0] == 0).all()
    if not others:
        close(mean.constant, Y.mean(0))


def test_mean_initialization_of_equal_columns_divides_slope():
    x = normal(8, 1)
    mean = make_output_mean("linear", 1)
    mean.initialize_from_data(torch.cat([x, x], 1), 2 * x + 1)
    close(mean.slopes, torch.ones(2, 1).double())
    close(mean.constant, torch.ones(1).double())


@pytest.mark.parametrize("n", [1, 2, 4])
def test_mean_initialization_with_too_few_rows_is_constant(n):
    X, Y = normal(n, 3), normal(n, 2, seed=1)
    mean = observed("linear")  # with slopes from before, which must go
    mean.initialize_from_data(X, Y)
    assert (mean.slopes == 0).all()
    close(mean.constant, Y.mean(0))


def test_mean_initialization_keeps_output_without_observations():
    Y = torch.tensor([[1.0, NAN], [3.0, NAN]]).double()
    mean = make_output_mean("constant", 2)
    mean.initialize_from_data(normal(2, 1), Y)
    assert mean.constant.tolist() == [2, 0]


def test_zero_mean_initialization_does_nothing():
    mean = make_output_mean("zero", 2)
    mean.initialize_from_data(*with_missing())
    assert list(mean.parameters()) == []


def test_mean_initialization_from_single_precision():
    X, Y = with_missing()
    mean, other = make_output_mean("constant", 2), make_output_mean("constant", 2)
    mean.initialize_from_data(X, Y)
    other.initialize_from_data(X.float(), Y.float())
    assert other.constant.dtype == torch.float64
    torch.testing.assert_close(other.constant, mean.constant, rtol=1e-6, atol=0)


# --- the number of columns, and states ------------------------------------------------------------------------------


def test_linear_mean_needs_number_of_columns():
    mean = make_output_mean("linear", 2)
    for call in (lambda: mean.coefficients, lambda: mean(normal(4, 3))):
        with pytest.raises(InputError, match="number of input columns"):
            call()
    mean.set_num_dims(3)
    mean.set_num_dims(3)
    with pytest.raises(InputError, match="X has 2 columns"):
        mean.set_num_dims(2)


@pytest.mark.parametrize("kind", MEANS)
def test_mean_state_round_trip(kind):
    mean = observed(kind)
    fresh = make_output_mean(kind, 2)
    fresh.load_state_dict(mean.state_dict())
    X = normal(5, 3)
    assert torch.equal(fresh(X), mean(X))
    for copy in (deepcopy(mean), pickle.loads(pickle.dumps(mean))):
        assert torch.equal(copy(X), mean(X))


def test_linear_mean_rejects_state_with_other_columns():
    other = make_output_mean("linear", 2)
    other.set_num_dims(4)
    with pytest.raises(RuntimeError, match="size mismatch for slopes"):
        other.load_state_dict(observed("linear").state_dict())


def test_model_state_with_linear_mean_round_trip():
    X, Y = normal(12, 3), normal(12, 2, seed=1)

    def make():
        return OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2), mean="linear")

    gp, fresh = make(), make()
    gp.initialize(X, Y)
    fresh.load_state_dict(gp.state_dict())
    assert {name for name, _ in fresh.named_parameters()} == {name for name, _ in gp.named_parameters()}
    assert all(parameter.requires_grad for parameter in fresh.parameters())
    assert torch.equal(fresh.condition(X, Y).predict(X).mean, gp.condition(X, Y).predict(X).mean)


# --- GPyTorch's means, and one output alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize(
    "mean",
    [
        gpytorch.means.ConstantMean(),
        gpytorch.means.ZeroMean(),
        gpytorch.means.LinearMean(3),
        gpytorch.means.MultitaskMean([gpytorch.means.ConstantMean(), gpytorch.means.LinearMean(3)], num_tasks=2),
    ],
)
def test_gpytorch_mean_is_wrapped(mean, n):
    mean = mean.double()
    for parameter in mean.parameters():
        parameter.data = normal(*parameter.shape, seed=3)
    wrapped, X = make_output_mean(mean, 2), normal(n, 3)
    assert isinstance(wrapped, WrappedMean)
    assert wrapped.basis(X) is None
    assert wrapped.coefficients.shape == (0, 2)
    expected = mean(X)
    close(wrapped(X), expected if expected.dim() == 2 else torch.stack([expected, expected], 1))


class Misshapen(gpytorch.means.Mean):
    def forward(self, x):
        return x.new_zeros(len(x), 3)


def test_gpytorch_mean_of_wrong_shape_is_rejected():
    with pytest.raises(InputError, match=r"Misshapen returned shape \(5, 3\)"):
        make_output_mean(Misshapen(), 2)(normal(5, 1))


@pytest.mark.parametrize("kind", [*MEANS, "gpytorch"])
def test_mean_column_equals_column_of_mean(kind):
    whole = make_output_mean(gpytorch.means.LinearMean(3).double(), 2) if kind == "gpytorch" else observed(kind)
    X = normal(5, 3)
    column = MeanColumn(whole, 1)
    close(column(X), whole(X)[:, [1]])
    close(column.coefficients, whole.coefficients[:, [1]])
    if kind != "gpytorch":
        close(column.basis(X) @ column.coefficients, whole(X)[:, [1]])
    assert {id(p) for p in column.parameters()} == {id(p) for p in whole.parameters()}


@pytest.mark.parametrize("mean", ["quadratic", None, 3.0, np.zeros(2), gpytorch.means.ConstantMean])
def test_make_output_mean_rejects_unknown_means(mean):
    with pytest.raises(OptionError, match=r"'linear' or a gpytorch.means.Mean, got"):
        make_output_mean(mean, 2)


def test_make_output_mean_by_name():
    assert [make_output_mean(name, 2).degree for name in MEANS] == [-1, 0, 1]
    assert all(isinstance(make_output_mean(name, 2), PolynomialMean) for name in MEANS)


FULL = torch.tensor([[0.5, 0.2, -0.1], [0.2, 0.4, 0.05], [-0.1, 0.05, 0.3]], dtype=torch.float64)
VALUES = {"shared": torch.tensor(0.7).double(), "per_output": torch.tensor([0.2, 3.0, 1e-5]).double(), "full": FULL}


def close_noise(actual, expected, rtol=1e-14):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=0)


def dense(value):
    """Σ (3, 3)."""
    return value if value.dim() == 2 else torch.diag(value.expand(3))


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_fixed_noise_is_as_given(kind):
    noise = OutputNoise(VALUES[kind], 3)
    assert (noise.kind, noise.is_trained, noise.is_diagonal) == (kind, False, kind != "full")
    assert list(noise.parameters()) == []
    close_noise(noise.value, VALUES[kind])
    close_noise(noise.matrix(), dense(VALUES[kind]))
    close_noise(noise.variances, VALUES[kind].diagonal() if kind == "full" else VALUES[kind])


@pytest.mark.parametrize(
    "value", [0.3, np.float64(0.3), [0.3, 0.3, 0.3], np.full(3, 0.3), torch.full((3,), 0.3, dtype=torch.float64)]
)
def test_fixed_noise_accepts_numbers_arrays_and_lists(value):
    close_noise(OutputNoise(value, 3).matrix(), 0.3 * torch.eye(3).double())


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_trained_noise_has_initial_value_and_gradient(kind):
    noise = OutputNoise(kind, 3)
    assert noise.is_trained and noise.kind == kind
    assert noise.value.shape == VALUES[kind].shape
    close_noise(noise.matrix(), 0.1 * torch.eye(3).double())
    noise.set(VALUES[kind])
    (noise.matrix() * FULL).sum().backward()
    for parameter in noise.parameters():
        assert parameter.grad.abs().sum() > 0
    if kind == "full":
        assert (noise.lower.grad.triu() == 0).all()


@pytest.mark.parametrize("given", NOISE_KINDS)
@pytest.mark.parametrize("kind", NOISE_KINDS)
@pytest.mark.parametrize("is_trained", [True, False])
def test_noise_set_round_trip_and_expansion(kind, given, is_trained):
    noise = OutputNoise(kind if is_trained else 2 * VALUES[kind], 3)
    noise.set(VALUES[given])
    assert noise.kind == kind
    matrix = dense(VALUES[given])
    expected = {"shared": matrix.trace() / 3, "per_output": matrix.diagonal(), "full": matrix}[kind]
    close_noise(noise.value, expected)


def test_full_noise_set_to_variances_is_uncorrelated():
    noise = OutputNoise("full", 3)
    noise.set(FULL)
    noise.set(0.2)
    close_noise(noise.value, 0.2 * torch.eye(3).double())


@pytest.mark.parametrize("kind", NOISE_KINDS)
@pytest.mark.parametrize("is_trained", [True, False])
def test_noise_state_and_copy_round_trip(kind, is_trained):
    noise = OutputNoise(kind if is_trained else VALUES[kind], 3)
    noise.set(VALUES[kind])
    fresh = OutputNoise(kind if is_trained else 5 * VALUES[kind], 3)
    fresh.load_state_dict(noise.state_dict())
    for copy in (fresh, deepcopy(noise), pickle.loads(pickle.dumps(noise))):
        assert torch.equal(copy.value, noise.value)
        assert (copy.kind, copy.is_trained) == (kind, is_trained)


def test_noise_copies_are_not_shared():
    noise = OutputNoise("shared", 3)
    copy = deepcopy(noise)
    copy.set(9.0)
    close_noise(noise.value, torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_set_is_accurate_at_any_scale(kind, scale):
    noise = OutputNoise(kind, 3)
    noise.set(scale * VALUES[kind])
    close_noise(noise.value, scale * VALUES[kind], 1e-13)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_of_one_output_has_its_kind_and_matrix(kind):
    value = torch.full((1,) * NOISE_KINDS.index(kind), 0.4).double()
    noise = OutputNoise(value, 1)
    assert noise.kind == kind
    close_noise(noise.matrix(), value.reshape(1, 1))
    assert OutputNoise(kind, 1).matrix().shape == (1, 1)


@pytest.mark.parametrize("kind", ["shared", "per_output"])
def test_noise_entry_equals_entry_of_noise(kind):
    noise = OutputNoise(kind, 3)
    noise.set(VALUES[kind])
    for a in range(3):
        entry = NoiseEntry(noise, a)
        assert entry.is_diagonal
        close_noise(entry.matrix(), dense(VALUES[kind])[a, a].reshape(1, 1))
    entry.matrix().sum().backward()
    assert noise.log_scale.grad is not None


@pytest.mark.parametrize("bad", ["diagonal", "Shared", ""])
def test_noise_rejects_unknown_names(bad):
    with pytest.raises(OptionError, match=r"'shared', 'per_output', 'full' \(trained\)"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), [1.0, 0.0, 1.0]])
def test_noise_rejects_variances_that_are_not_positive(bad):
    with pytest.raises(InputError, match="positive, finite variance"):
        OutputNoise(bad, 3)
    with pytest.raises(InputError, match="positive, finite variance"):
        OutputNoise("full", 3).set(bad)


@pytest.mark.parametrize("bad", [[1.0, 1.0], np.eye(2), np.ones((3, 2)), np.ones((3, 3, 3)), np.ones((10, 3))])
def test_noise_rejects_wrong_shapes(bad):
    with pytest.raises(InputError, match=r"noise has shape .*\(3, 3\)"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize(
    "bad",
    [
        -FULL,
        torch.ones(3, 3).double(),
        torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]),
        1e-9 * torch.tensor([[1.0, 5.0, 0], [0, 1, 0], [0, 0, 1]]),  # small numbers are no excuse
        FULL * float("nan"),
    ],
)
def test_noise_rejects_invalid_matrices(bad):
    with pytest.raises(InputError, match="symmetric and positive definite"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [None, object(), ["a", "b", "c"], [[1.0], [2.0, 3.0]]])
def test_noise_rejects_other_types(bad):
    with pytest.raises(InputError, match="noise must be a number"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [True, False])
def test_noise_rejects_bool(bad):
    with pytest.raises(InputError, match="got a bool"):
        OutputNoise(bad, 3)
