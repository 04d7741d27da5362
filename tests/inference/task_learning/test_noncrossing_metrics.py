import pytest
import torch

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.noncrossing import crossing_loss, falling_slope


def test_rising_curves_cost_nothing():
    rising = torch.linspace(-1, 1, 5).repeat(3, 1)
    assert crossing_loss(rising) == 0
    assert falling_slope(rising.diff()) == 0


def test_only_falls_count_and_rows_are_averaged():
    quantiles = torch.tensor([[0.0, 2.0, 1.0, 0.5], [0.0, 1.0, 2.0, 3.0]])
    assert crossing_loss(quantiles) == pytest.approx(0.75)
    assert falling_slope(quantiles.diff()) == pytest.approx(0.25)


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 3), torch.full((2, 3), torch.nan)])
def test_bad_tables_are_input_errors(bad):
    with pytest.raises(InputError, match="quantiles"):
        crossing_loss(bad)
    with pytest.raises(InputError, match="slopes"):
        falling_slope(bad)


def test_one_level_cannot_cross_and_is_refused():
    with pytest.raises(InputError, match="2 columns"):
        crossing_loss(torch.zeros(3, 1))
