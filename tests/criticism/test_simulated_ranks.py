"""Simulation-based calibration: ranks and envelopes by hand, right samplers, wrong priors, and parallel runs."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.priors import LogNormalPrior

import ovkgp
from ovkgp.criticism import SimulationCalibration, simulated_ranks, simulation_calibration
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.sampling.prior_predictive import draw_prior

X = np.linspace(0, 5, 15)[:, None]
NUTS = {"method": "nuts", "draws": 100, "tune": 200, "chains": 1, "num_draws": 49}


@pytest.fixture(scope="module")
def model():
    y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=15)
    return ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0).fit(X, y)


def make_result(ranks, alpha=0.05):
    return SimulationCalibration(tuple("abc"[: ranks.shape[1]]), ranks, 19, alpha)


def test_ecdf_counts_ranks():
    result = SimulationCalibration(("a",), np.array([[0], [1], [1], [3]]), 3, 0.05)
    np.testing.assert_allclose(result.points(), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(result.ecdf()[:, 0], [0.25, 0.75, 0.75])


def test_envelope_contains_uniform_ranks_with_its_probability():
    rng = np.random.default_rng(0)
    lower, upper = make_result(np.zeros((100, 1), dtype=int)).envelope()
    ranks = rng.integers(0, 20, (100, 2000))
    curves = (ranks[:, None, :] <= np.arange(19)[None, :, None]).mean(0)
    is_inside = ((curves >= lower[:, None] - 1e-12) & (curves <= upper[:, None] + 1e-12)).all(0)
    assert 0.935 < is_inside.mean() < 0.975  # .95, and discrete
    wider = make_result(np.zeros((100, 3), dtype=int)).envelope()  # all three together
    assert (wider[0] <= lower).all()
    assert (wider[1] >= upper).all()


def test_miscalibrated_names_leave_the_envelope():
    rng = np.random.default_rng(1)
    ranks = np.column_stack([rng.integers(0, 20, 200), rng.integers(0, 10, 200), rng.binomial(19, 0.5, 200)])
    result = make_result(ranks)
    assert result.miscalibrated == ("b", "c")  # ranks of b are too low, those of c too central
    assert "outside of the 95% envelope: b, c" in repr(result)


def test_ranks_count_draws_below_the_truth(model, monkeypatch):
    """With the draws −∞, …, ∞ around a truth the rank is known."""

    def sample(gp, X, Y, method, random_state, **options):
        names = draw_prior(gp, 1, 0)
        values = {
            name: torch.linspace(-40, 40, 9).reshape(1, 9, *[1] * value[0].dim()) for name, value in names.items()
        }
        shaped = {name: values[name].expand(1, 9, *names[name][0].shape) for name in names}
        return {"unconstrained_posterior": {name: FakeVariable(value) for name, value in shaped.items()}}

    monkeypatch.setattr(simulated_ranks, "sample_hyperparameters", sample)
    monkeypatch.setattr(type(model.gp_), "log_evidence", lambda gp, X, Y: X.sum())
    result = simulation_calibration(model, X, num_datasets=4, num_draws=9, random_state=0)
    assert result.ranks.shape == (4, len(result.names))
    assert "log evidence" not in result.names  # it is constant here
    assert np.isin(result.ranks, [4, 5]).all()  # truths lie between −10 and 10


class FakeVariable:
    """Array with the attribute `values`, as a variable of a dataset."""

    def __init__(self, values):
        self.values = values.numpy()


def test_results_do_not_depend_on_the_number_of_workers(model):
    import joblib

    options = {"num_datasets": 4, "num_draws": 9, "random_state": 1}
    alone = simulation_calibration(model, X, **options)
    with joblib.parallel_config(backend="threading"):
        together = simulation_calibration(model, X, n_jobs=2, **options)
    np.testing.assert_array_equal(alone.ranks, together.ranks)


def test_fitted_model_is_not_changed(model):
    before = {name: value.clone() for name, value in model.gp_.state_dict().items()}
    simulation_calibration(model, X, num_datasets=2, num_draws=9, random_state=0)
    assert all(torch.equal(before[name], value) for name, value in model.gp_.state_dict().items())


def test_output_matrices_are_ranked_by_their_entries():
    """Raw factors are not identified: several give the same matrix, so that their ranks are not uniform."""
    Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])])
    model = ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(X, Y)
    names = simulation_calibration(model, X, num_datasets=2, num_draws=9, random_state=0).names
    assert [name for name in names if "matrix" in name] == [
        f"output_matrix[{index}]" for index in ("0, 0", "0, 1", "1, 1")
    ]
    assert names[-1] == "log evidence"


@pytest.mark.slow
def test_right_sampler_is_calibrated(model):
    result = simulation_calibration(model, X, num_datasets=60, alpha=0.01, random_state=0, **NUTS)
    assert result.miscalibrated == ()


@pytest.mark.slow
def test_right_sampler_of_coupled_outputs_is_calibrated():
    Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.1 * np.random.default_rng(0).normal(size=(15, 2))
    model = ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(X, Y)
    options = NUTS | {"draws": 400, "tune": 400}
    result = simulation_calibration(model, X, num_datasets=40, alpha=0.01, random_state=0, **options)
    assert result.miscalibrated == ()


@pytest.mark.filterwarnings("error")
def test_warnings_of_the_sampler_are_counted(model):
    options = {"method": "nuts", "draws": 20, "tune": 20, "chains": 1, "num_draws": 19}
    result = simulation_calibration(model, X, num_datasets=2, random_state=0, **options)
    assert result.num_poor == 2
    assert "2 with poor diagnostics" in repr(result)


@pytest.mark.slow
def test_sampler_with_another_prior_is_miscalibrated(model, monkeypatch):
    sample = simulated_ranks.sample_hyperparameters

    def sample_with_short_lengthscales(gp, *arguments, **options):
        gp = deepcopy(gp)
        for name, module, *_ in list(gp.named_priors()):
            if name.endswith("lengthscale_prior"):
                module.register_prior("lengthscale_prior", LogNormalPrior(-2.0, 0.3), "lengthscale")
        return sample(gp, *arguments, **options)

    monkeypatch.setattr(simulated_ranks, "sample_hyperparameters", sample_with_short_lengthscales)
    result = simulation_calibration(model, X, num_datasets=60, alpha=0.01, random_state=0, **NUTS)
    assert "0.lengthscale" in result.miscalibrated


def test_prior_draws_instead_of_a_posterior_show_in_the_log_evidence(model, monkeypatch):
    """Ranks of parameters are uniform, so that only a quantity that depends on the data can show it."""

    def sample(gp, X, Y, method, random_state, **options):
        draws = draw_prior(gp, 19, random_state)
        return {"unconstrained_posterior": {name: FakeVariable(value[None]) for name, value in draws.items()}}

    monkeypatch.setattr(simulated_ranks, "sample_hyperparameters", sample)
    result = simulation_calibration(model, X, num_datasets=60, num_draws=19, alpha=0.01, random_state=0)
    assert result.miscalibrated == ("log evidence",)


def test_simulation_rejects_invalid_arguments(model):
    with pytest.raises(OptionError, match="OVKRidge has no priors"):
        simulation_calibration(ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X)), X)
    with pytest.raises(InputError, match="X must be finite"):
        simulation_calibration(model, X[:, 0])
    with pytest.raises(OptionError, match="method"):
        simulation_calibration(model, X, method="gibbs")
    with pytest.raises(OptionError, match="returned 20 draws, expected at least num_draws=99"):
        simulation_calibration(model, X, num_datasets=2, method="nuts", draws=20, tune=50, chains=1, random_state=0)
