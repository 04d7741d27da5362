"""Independent outputs stream one by one, and give the one-pass answer."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.statistics.statistics import OutputStatistics, statistics_from_tensors
from ovkgp.kernels import IndependentKernel


def model(noise="per_output"):
    kernel = IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(3)])
    for a, part in enumerate(kernel.kernels):
        part.base_kernel.lengthscale = 0.5 + a
    return OperatorValuedGP(kernel, noise=noise, features=ORFF(kernel, 15, random_state=0))


def table(missing=True):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    Y = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    if missing:
        Y[torch.rand(40, 3, generator=generator) < 0.3] = torch.nan
        Y[:10, 1] = torch.nan  # an output that the first part of the stream does not see
    return X, Y


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_any_chunking_and_order_is_one_pass(missing, known):
    gp, (X, Y) = model(), table(missing)
    noise = torch.rand(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1 if known else None
    parts = [slice(10, 25), slice(0, 10), slice(25, 40)]
    pieces = [gp.statistics(X[part], Y[part], None if noise is None else noise[part]) for part in parts]
    total = sum(pieces)
    assert isinstance(total, OutputStatistics)
    torch.testing.assert_close(total.num_seen, (~torch.isnan(Y)).sum(0))
    whole = gp.condition(X, Y, noise=noise, variance="guarded")
    streamed = gp.condition(total, variance="guarded")
    one, other = whole.predict(X[:7], "full", noise=True), streamed.predict(X[:7], "full", noise=True)
    torch.testing.assert_close(other.mean, one.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(other.cov, one.cov, rtol=1e-8, atol=1e-10)
    assert streamed.log_evidence == pytest.approx(whole.log_evidence, rel=1e-8)
    assert gp.log_evidence(total).item() == pytest.approx(gp.log_evidence(X, Y, noise).item(), rel=1e-8)


def test_it_is_the_answer_of_the_whole_feature_map():
    """One weight space for all outputs together says the same as one for each."""
    gp, (X, Y) = model(), table()
    together = OperatorValuedGP(kernel := gp.kernel, noise="per_output", road="features", features=gp.features)
    assert together.kernel is not kernel
    apart, joint = gp.condition(X, Y), together.condition(X, Y)
    torch.testing.assert_close(apart.predict(X, "full").cov, joint.predict(X, "full").cov, rtol=1e-8, atol=1e-10)
    assert apart.log_evidence == pytest.approx(joint.log_evidence, rel=1e-8)


def test_stored_and_read():
    gp, (X, Y) = model(), table()
    statistics = gp.statistics(X, Y)
    again = statistics_from_tensors(*statistics.tensors())
    mean = gp.condition(statistics).predict(X).mean
    assert torch.equal(gp.condition(again).predict(X).mean, mean)


def test_an_output_without_data_is_refused():
    gp, (X, Y) = model(), table()
    with pytest.raises(InputError, match="nobody observed output 1"):
        gp.condition(gp.statistics(X[:10], Y[:10]))


def test_different_numbers_of_outputs_do_not_add():
    gp, (X, Y) = model(), table()
    statistics = gp.statistics(X, Y)
    with pytest.raises(InputError, match="do not add"):
        statistics + OutputStatistics(statistics.parts[:2])
    with pytest.raises(TypeError):
        statistics + statistics.parts[0]
