"""The noise in its three kinds, trained and fixed: values that come back, and refusals."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.mean_noise import KINDS, NoiseEntry, OutputNoise

FULL = torch.tensor([[0.5, 0.2, -0.1], [0.2, 0.4, 0.05], [-0.1, 0.05, 0.3]], dtype=torch.float64)
VALUES = {"shared": torch.tensor(0.7).double(), "per_output": torch.tensor([0.2, 3.0, 1e-5]).double(), "full": FULL}


def close(actual, expected, rtol=1e-14):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=0)


def dense(value):
    """Σ (3, 3)."""
    return value if value.dim() == 2 else torch.diag(value.expand(3))


@pytest.mark.parametrize("kind", KINDS)
def test_fixed_values_are_as_given(kind):
    noise = OutputNoise(VALUES[kind], 3)
    assert (noise.kind, noise.is_trained, noise.is_diagonal) == (kind, False, kind != "full")
    assert list(noise.parameters()) == []
    close(noise.value, VALUES[kind])
    close(noise.matrix(), dense(VALUES[kind]))
    close(noise.variances, VALUES[kind].diagonal() if kind == "full" else VALUES[kind])


@pytest.mark.parametrize(
    "value", [0.3, np.float64(0.3), [0.3, 0.3, 0.3], np.full(3, 0.3), torch.full((3,), 0.3, dtype=torch.float64)]
)
def test_numbers_arrays_and_lists(value):
    close(OutputNoise(value, 3).matrix(), 0.3 * torch.eye(3).double())


@pytest.mark.parametrize("kind", KINDS)
def test_trained_kinds_start_somewhere_and_have_gradients(kind):
    noise = OutputNoise(kind, 3)
    assert noise.is_trained and noise.kind == kind
    assert noise.value.shape == VALUES[kind].shape
    close(noise.matrix(), 0.1 * torch.eye(3).double())
    noise.set(VALUES[kind])
    (noise.matrix() * FULL).sum().backward()
    for parameter in noise.parameters():
        assert parameter.grad.abs().sum() > 0
    if kind == "full":
        assert (noise.lower.grad.triu() == 0).all()


@pytest.mark.parametrize("given", KINDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_trained", [True, False])
def test_set_round_trips_and_spreads(kind, given, is_trained):
    noise = OutputNoise(kind if is_trained else 2 * VALUES[kind], 3)
    noise.set(VALUES[given])
    assert noise.kind == kind
    matrix = dense(VALUES[given])
    expected = {"shared": matrix.trace() / 3, "per_output": matrix.diagonal(), "full": matrix}[kind]
    close(noise.value, expected)


def test_a_full_noise_set_to_variances_forgets_its_correlations():
    noise = OutputNoise("full", 3)
    noise.set(FULL)
    noise.set(0.2)
    close(noise.value, 0.2 * torch.eye(3).double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_trained", [True, False])
def test_state_and_copies_come_back(kind, is_trained):
    noise = OutputNoise(kind if is_trained else VALUES[kind], 3)
    noise.set(VALUES[kind])
    fresh = OutputNoise(kind if is_trained else 5 * VALUES[kind], 3)
    fresh.load_state_dict(noise.state_dict())
    for copy in (fresh, deepcopy(noise), pickle.loads(pickle.dumps(noise))):
        assert torch.equal(copy.value, noise.value)
        assert (copy.kind, copy.is_trained) == (kind, is_trained)


def test_copies_are_not_shared():
    noise = OutputNoise("shared", 3)
    copy = deepcopy(noise)
    copy.set(9.0)
    close(noise.value, torch.tensor(0.1, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_any_scale_of_the_data(kind, scale):
    noise = OutputNoise(kind, 3)
    noise.set(scale * VALUES[kind])
    close(noise.value, scale * VALUES[kind], 1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_one_output(kind):
    value = torch.full((1,) * KINDS.index(kind), 0.4).double()
    noise = OutputNoise(value, 1)
    assert noise.kind == kind
    close(noise.matrix(), value.reshape(1, 1))
    assert OutputNoise(kind, 1).matrix().shape == (1, 1)


@pytest.mark.parametrize("kind", ["shared", "per_output"])
def test_the_entry_of_one_output(kind):
    noise = OutputNoise(kind, 3)
    noise.set(VALUES[kind])
    for a in range(3):
        entry = NoiseEntry(noise, a)
        assert entry.is_diagonal
        close(entry.matrix(), dense(VALUES[kind])[a, a].reshape(1, 1))
    entry.matrix().sum().backward()
    assert noise.log_scale.grad is not None


@pytest.mark.parametrize("bad", ["diagonal", "Shared", ""])
def test_unknown_names_are_refused(bad):
    with pytest.raises(OptionError, match=r"'shared', 'per_output', 'full' \(trained\)"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), [1.0, 0.0, 1.0]])
def test_variances_that_are_not_positive_are_refused(bad):
    with pytest.raises(InputError, match="positive and finite"):
        OutputNoise(bad, 3)
    with pytest.raises(InputError, match="positive and finite"):
        OutputNoise("full", 3).set(bad)


@pytest.mark.parametrize("bad", [[1.0, 1.0], np.eye(2), np.ones((3, 2)), np.ones((3, 3, 3)), np.ones((10, 3))])
def test_shapes_are_refused_with_advice(bad):
    with pytest.raises(InputError, match=r"a number, \(3,\) or \(3, 3\); got shape .* go to fit, condition"):
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
def test_matrices_that_are_no_covariance_are_refused(bad):
    with pytest.raises(InputError, match="symmetric and positive definite"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [None, object(), ["a", "b", "c"], [[1.0], [2.0, 3.0]]])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(InputError, match="noise must be a number"):
        OutputNoise(bad, 3)


@pytest.mark.parametrize("bad", [True, False])
def test_switches_are_refused(bad):
    with pytest.raises(InputError, match="not a switch"):
        OutputNoise(bad, 3)
