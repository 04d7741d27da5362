"""Weights of what was observed."""

import pytest
import torch

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.solvers.square import observed
from ovkgp.losses import TaskMeasure, gauss_legendre

SEEN = torch.tensor([[True, True, False], [False, False, True], [False, False, False]])


def test_the_weights_of_the_three_normalisations():
    uniform = TaskMeasure([0.0, 0.5, 1.0])
    n, m, total = 3, 3, 3
    noise = {how: n / observed(uniform, SEEN, how).weights[SEEN] for how in ("fixed", "pooled", "per_sample")}
    assert torch.allclose(noise["fixed"], torch.full((3,), float(n * m)).double())
    assert torch.allclose(noise["pooled"], torch.full((3,), float(total)).double())
    assert torch.allclose(noise["per_sample"], n * torch.tensor([2.0, 2.0, 1.0]).double())


@pytest.mark.parametrize("how", ["fixed", "pooled", "per_sample"])
def test_where_nothing_is_missing_they_are_the_measure(how):
    measure = gauss_legendre(4)
    found = observed(measure, torch.ones(5, 4, dtype=torch.bool), how)
    assert torch.allclose(found.weights, measure.weights.expand(5, 4), atol=1e-15)
    assert found.is_shared and len(found) == 4


def test_nothing_observed_wrong_shapes_and_names_are_refused():
    with pytest.raises(InputError, match="nothing was observed"):
        observed(gauss_legendre(3), torch.zeros(3, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="one column a node"):
        observed(gauss_legendre(4), SEEN)
    with pytest.raises(OptionError, match="normalisation"):
        observed(gauss_legendre(3), SEEN, "mean")
