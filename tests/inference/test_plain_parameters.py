"""θ(u) without modules: the values, slopes and Jacobians of a `ParameterVector`."""

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive

from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.numpy_values import NotPlain, PlainVector, Reference


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


def test_values_and_slopes_are_those_of_the_vector():
    vector = ParameterVector(Parts(**ALL), sizes={"free": 4.0})
    plain, u = PlainVector(vector), np.linspace(-2, 1.5, 8)
    theta, slope, log_slope, by_slope = plain.values(u)
    vector.set(u)
    np.testing.assert_allclose(theta, np.concatenate([value.numpy() for value in vector.values().values()]), rtol=1e-12)
    h = 1e-6
    ahead, behind = plain.values(u + h), plain.values(u - h)
    np.testing.assert_allclose(slope, (ahead[0] - behind[0]) / (2 * h), rtol=1e-7)
    assert log_slope == pytest.approx(np.log(slope).sum(), rel=1e-12)
    by_raw, by_value = vector.log_slopes([False] * 4), vector.log_slopes([True] * 4)
    np.testing.assert_allclose(by_value[1], by_slope, rtol=1e-10, atol=1e-12)
    assert by_value[0] == pytest.approx(log_slope, rel=1e-12)
    # of the raw parameters: θ'(raw) is missing
    rises = [entry._log_rise()[0].sum().item() for entry in vector.entries[:3]]
    assert by_raw[0] == pytest.approx(log_slope - sum(rises), rel=1e-10)


@pytest.mark.parametrize("flat", (False, True))
def test_derivatives_of_log_slopes(flat):
    vector, h = ParameterVector(Parts(**ALL)), 1e-5

    def total(u):
        vector.set(u)
        return vector.log_slopes([flat] * 4)

    u = np.linspace(-2, 1.5, 8)
    found = [(total(u + h * e)[0] - total(u - h * e)[0]) / (2 * h) for e in np.eye(8)]
    np.testing.assert_allclose(total(u)[1], found, atol=1e-8)


def test_variables_that_are_left_out_stay_where_they_are():
    vector = ParameterVector(Parts(**ALL))
    before = vector.get()
    vector.keep(np.arange(8) != 2)
    assert len(vector) == 7 and vector.bounds.shape == (7, 2)
    vector.set(np.zeros(7))
    np.testing.assert_allclose(vector.spread(vector.get()), np.where(np.arange(8) == 2, before, 0.0), atol=1e-12)
    vector.keep(np.arange(7) != 0)
    assert len(vector) == 6 and vector.kept.tolist() == [False, True, False, True, True, True, True, True]
    plain = PlainVector(vector)
    assert plain.values(np.zeros(6))[0].shape == (8,) and plain.kept(np.arange(8.0)).tolist() == [1, 3, 4, 5, 6, 7]


def test_a_constraint_outside_the_table_is_not_plain():
    with pytest.raises(NotPlain, match="below"):
        PlainVector(ParameterVector(Parts(below=LessThan(2.0))))


def test_references_read_and_add():
    theta, out = np.arange(4.0), np.zeros(4)
    moving, fixed = Reference((1, 2), slice(1, 3)), Reference((2,), None, np.array([7.0, 8.0]))
    assert moving.value(theta).tolist() == [[1.0, 2.0]] and fixed.value(theta).tolist() == [7.0, 8.0]
    moving.add(out, np.array([[5.0, 6.0]]))
    moving.add(out, np.array([1.0, 1.0]))
    fixed.add(out, np.ones(2))
    assert out.tolist() == [0.0, 6.0, 7.0, 0.0]
