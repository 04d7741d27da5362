"""Leave-one-out predictions against models that never saw the entry, and their mixtures against Bayes' rule."""

import numpy as np
import plot_cases
import pytest
import torch

import ovkgp
from ovkgp.criticism.predictive_distributions import _mixed, leave_one_out_entries
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.prediction import normal_cdf

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

FACTORISED = 1e-8
"""Two factorisations of a well-conditioned matrix."""


def ridge(Y):
    return ovkgp.OVKRidge("decomposable", lam=0.05, lengthscale=1.0, output_matrix=[[1.0, 0.7], [0.7, 1.0]]).fit(
        rows(), Y
    )


def rows():
    return np.linspace(0, 6, 12)[:, None]


def outputs():
    Y = np.column_stack([np.sin(rows()[:, 0]), np.cos(rows()[:, 0])])
    Y[4, 1] = np.nan
    return Y


def test_an_entry_left_out_is_an_entry_never_seen():
    Y, found = outputs(), leave_one_out_entries(ridge(outputs()))
    for i, a in [(0, 0), (3, 1), (4, 0), (11, 1)]:
        without = Y.copy()
        without[i, a] = np.nan
        mean, std = ridge(without).predict(rows()[[i]], return_std=True)
        np.testing.assert_allclose([found.mean[i, a], found.std[i, a]], [mean[0, a], std[0, a]], rtol=FACTORISED)
    assert np.isnan(found.mean[4, 1]) and np.isnan(found.cdf[4, 1])
    assert found.is_gaussian


def test_the_distribution_function_is_that_of_the_prediction():
    found = leave_one_out_entries(plot_cases.two_outputs())
    seen = np.isfinite(found.Y)
    wanted = normal_cdf(*(torch.from_numpy(part[seen]) for part in (found.Y, found.mean, found.std)))
    np.testing.assert_allclose(found.cdf[seen], wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_weights_of_draws_take_back_what_the_entry_told_them():
    """Two values of θ, equally likely without the entry, with densities 0.2 and 0.4 of it: its posterior has them as 1 : 2."""
    mean, std = torch.tensor([0.0, 1.0, 1.0]).reshape(3, 1, 1), torch.tensor([1.0, 2.0, 2.0]).reshape(3, 1, 1)
    log_density = torch.tensor([0.2, 0.4, 0.4]).log().reshape(3, 1, 1)
    draws = [LeaveOneOut(*parts) for parts in zip(mean, std, log_density, strict=True)]
    y = torch.tensor([[0.3]])
    centre, spread, cdf = _mixed(draws, y)
    assert centre.item() == pytest.approx(0.5)
    assert spread.item() ** 2 == pytest.approx(0.5 * (1 + 4) + 0.25)
    assert cdf.item() == pytest.approx(normal_cdf(y, mean, std)[:2].mean().item())


def test_a_weight_that_outweighs_all_others_is_cut():
    one = torch.zeros(1, 1)
    draws = [LeaveOneOut(one + s, one + 1, one - (2 if s == 0 else 0)) for s in range(4)]
    weights = np.exp([2.0, 0, 0, 0]) / np.exp([2.0, 0, 0, 0]).sum()  # 0.71, 0.10, 0.10, 0.10
    cut = np.minimum(weights, 0.5)
    assert _mixed(draws, one)[0].item() == pytest.approx((cut / cut.sum()) @ np.arange(4))


def test_a_model_with_draws_averages_over_them():
    model, (X, Y) = plot_cases.drawn(), plot_cases.table()
    found, scaling = leave_one_out_entries(model), model.scaling_
    assert not found.is_gaussian
    drawn = (model.posterior_.parts.place(index) for index in range(len(model.posterior_)))
    means = [scaling.mean(gp.leave_one_out(scaling.inputs(X), scaling.outputs(Y)).mean) for gp in drawn]
    low, high, seen = np.min(means, axis=0), np.max(means, axis=0), np.isfinite(found.Y)
    assert (found.mean[seen] >= low[seen]).all() and (found.mean[seen] <= high[seen]).all()
    assert (high[seen] > low[seen]).all()


def test_a_model_with_features_takes_the_rows_it_was_fitted_to():
    X, Y = plot_cases.table()
    found = leave_one_out_entries(plot_cases.featured(), X, Y)
    seen = np.isfinite(Y.to_numpy()[:, 0])
    assert np.corrcoef(found.mean[seen, 0], found.Y[seen, 0])[0, 1] > 0.9
    with pytest.raises(OptionError, match="keeps no rows"):
        leave_one_out_entries(plot_cases.featured())


@pytest.mark.parametrize("make", [plot_cases.mixed, plot_cases.quantile_model])
def test_models_without_a_closed_form_ask_for_rows_held_out(make):
    with pytest.raises(OptionError, match="held out"):
        leave_one_out_entries(make())


def test_x_without_y_is_refused():
    with pytest.raises(InputError, match="together"):
        leave_one_out_entries(plot_cases.two_outputs(), plot_cases.table()[0])
