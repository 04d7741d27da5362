"""Tests of `ConstrainedORFF`: optimality conditions of problem (7.7), limits, bound and scikit-learn's checks."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.estimators.ridge import constrained_orff
from ovkgp.estimators.ridge.constrained_orff import ConstrainedORFF
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features.bounds import constrained_excess_risk_bound
from ovkgp.inference.ridge.ball_constraints import frequency_groups
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel


@parametrize_with_checks([ConstrainedORFF(num_frequencies=50, random_state=0)])
def test_constrained_orff_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ConstrainedORFF(kernel="decomposable", num_frequencies=30, random_state=0)])
def test_constrained_orff_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


KERNELS = {
    "independent": "independent",
    "decomposable": "decomposable",
    "curl-free": "curl_free",
    "divergence-free": "divergence_free",
    "helmholtz": "helmholtz",
    "one each": IndependentKernel.copies(RBFKernel(ard_num_dims=2), 2),
    "sum": DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=torch.eye(2))
    + CurlFreeKernel(RBFKernel(), num_dims=2),
}


def table(n=60, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), X[:, 1] * X[:, 0]] + 0.1 * rng.standard_normal((n, 2))
    Y[(rng.random(Y.shape) < missing) & (np.arange(2) > 0)] = np.nan
    return X, Y


def dense(model, X):
    """Return Φ(X) (n·p, r) and its groups of columns."""
    Phi = model.features_(torch.from_numpy(X))
    return Phi.to_dense().detach().numpy(), frequency_groups(Phi).numpy()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_solution_satisfies_the_optimality_conditions(kernel, missing):
    X, Y = table(missing=missing)
    model = ConstrainedORFF(KERNELS[kernel], radius=3.0, num_frequencies=15, random_state=0).fit(X, Y)
    assert model.fit_report_.converged
    (Phi, groups), observed = dense(model, X), np.isfinite(Y).ravel()
    residuals = Phi[observed] @ model.coef_ - Y.ravel()[observed]
    gradient, norms = Phi[observed].T @ residuals / 60, np.linalg.norm(model.coef_[groups], axis=1)
    assert norms.max() <= 3 / np.sqrt(15) * (1 + 1e-9)
    # −∇ is in the normal cone: the linear function ⟨∇, ·⟩ is smallest over the balls at θ, up to the requested gap.
    smallest = -3 / np.sqrt(15) * np.linalg.norm(gradient[groups], axis=1).sum()
    assert -1e-12 <= gradient @ model.coef_ - smallest <= 1e-8 * np.nansum(Y**2) / 120
    assert model.fit_report_.objective == pytest.approx(np.square(residuals).sum() / 120)
    np.testing.assert_allclose(model.predict(X).ravel(), Phi @ model.coef_, atol=1e-12)


def test_bt_e_41_radius_of_normalized_features_is_m_over_root_d():
    """Φ = D^{-½}[…] with ‖θ_j‖ ≤ M/√D is the unnormalized map with M/D: the largest |f| does not shrink with D."""
    X, Y = table()
    for D in (10, 100, 1000):
        model = ConstrainedORFF(radius=0.5, num_frequencies=D, lengthscale=1.0, random_state=0).fit(X, 100 * Y[:, 0])
        norms = np.linalg.norm(model.coef_[dense(model, X[:1])[1]], axis=1)
        np.testing.assert_allclose(norms, 0.5 / np.sqrt(D), rtol=1e-6)  # outputs out of reach: every ball is active
        unnormalized = model.coef_ / np.sqrt(D)  # the coefficients that √D Φ would have
        assert np.linalg.norm(unnormalized[dense(model, X[:1])[1]], axis=1).max() <= 0.5 / D * (1 + 1e-9)
        reached = np.abs(model.predict(X)).max()
        assert (
            0.1 < reached <= 0.5
        )  # |f| ≤ M ess sup ‖B‖ = M, and of this order for every D; M/D would make it 0.5 / √D


def test_solution_with_a_large_radius_is_least_squares():
    X, Y = table(300)
    model = ConstrainedORFF(radius=1e4, num_frequencies=8, lengthscale=1.0, random_state=0).fit(X, Y)
    Phi = dense(model, X)[0]
    expected = Phi @ np.linalg.lstsq(Phi, Y.ravel(), rcond=None)[0]
    np.testing.assert_allclose(model.predict(X).ravel(), expected, atol=1e-5)


def test_objective_decreases_with_the_radius():
    X, Y = table()
    fits = [ConstrainedORFF(radius=M, num_frequencies=20, random_state=0).fit(X, Y) for M in (0.1, 0.5, 1.0, 10.0)]
    objectives = [model.fit_report_.objective for model in fits]
    assert objectives == sorted(objectives, reverse=True) and objectives[0] > 2 * objectives[-1]


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_three_solution_strategies_agree(missing, monkeypatch):
    """Eigenvectors, the matrix alone, and products with Φ."""
    X, Y = table(missing=missing)
    options = dict(kernel="curl_free", radius=1.0, num_frequencies=20, tolerance=1e-9, random_state=0)
    predictions = [ConstrainedORFF(**options).fit(X, Y).predict(X)]
    for name in ("MAX_FACTORIZED", "MAX_FEATURES"):
        monkeypatch.setattr(constrained_orff, name, 1)
        model = ConstrainedORFF(**options).fit(X, Y)
        assert model.n_iter_ == model.fit_report_.iterations > 0
        predictions.append(model.predict(X))
    np.testing.assert_allclose(predictions[1], predictions[0], atol=1e-4)
    np.testing.assert_allclose(predictions[2], predictions[0], atol=1e-4)


def test_fit_warns_after_too_few_steps():
    X, Y = table()
    with pytest.warns(FitWarning, match="max_iter"):
        model = ConstrainedORFF(max_iter=2, num_frequencies=30, random_state=0).fit(X, Y)
    assert not model.fit_report_.converged and np.isfinite(model.predict(X)).all()


def test_excess_risk_bound_equals_the_proposition():
    X, Y = table()
    model = ConstrainedORFF(radius=2.0, num_frequencies=40, random_state=0).fit(X, Y)
    largest = np.linalg.norm(Y, axis=1).max()
    lipschitz = 2.0 + largest  # u = 1 for k(x, z) I, T = p
    expected = constrained_excess_risk_bound(
        60, 40, lipschitz=lipschitz, norm_bound=2.0, trace=2.0, cost_bound=lipschitz**2 / 2, factor_norm=1.0, delta=0.1
    )
    assert model.excess_risk_bound(0.1) == pytest.approx(expected)
    assert model.excess_risk_bound(0.1, output_bound=2 * largest) > expected
    with pytest.raises(OptionError, match="output_bound"):
        model.excess_risk_bound(output_bound=largest / 2)
    with pytest.raises(OptionError, match="delta"):
        model.excess_risk_bound(0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_excess_risk_bound_constants_hold(kernel):
    """|f| ≤ u M for any weights in the balls, and T is the trace of the features."""
    X, Y = table()
    model = ConstrainedORFF(KERNELS[kernel], radius=1.5, num_frequencies=10, random_state=0).fit(X, 1e4 * Y)
    Phi, _ = dense(model, X)
    assert model._trace == pytest.approx(np.square(Phi[:2]).sum())
    constants = constrained_orff.spectral_constants(model.features_.kernel, num_dims=2)
    assert np.linalg.norm(model.predict(X), axis=1).max() <= 1.5 * np.sqrt(constants.sup_norm) * (1 + 1e-9)
    assert 0 < model.excess_risk_bound(0.05) < np.inf


def test_excess_risk_bound_holds_on_new_data():
    """The gap between the risk of a small fit and the best of a large one, on fresh rows, is below the bound (it is loose)."""
    X, Y = table(100)
    model = ConstrainedORFF(radius=2.0, num_frequencies=50, lengthscale=1.0, random_state=0).fit(X, Y)
    best = ConstrainedORFF(radius=2.0, num_frequencies=400, lengthscale=1.0, random_state=1).fit(*table(2000, seed=1))
    X_new, Y_new = table(2000, seed=2)
    risks = [np.square(each.predict(X_new) - Y_new).sum(1).mean() / 2 for each in (model, best)]
    assert risks[0] - risks[1] <= model.excess_risk_bound(0.05)


def test_fit_handles_one_row_and_rows_without_observations():
    one = ConstrainedORFF(num_frequencies=10, random_state=0).fit([[1.0]], [2.0])
    assert one.predict([[1.0]]) == pytest.approx([2.0], abs=1e-3)
    X, Y = table()
    X_more, Y_more = np.r_[X, X[:5] + 1], np.r_[Y, np.full((5, 2), np.nan)]
    options = dict(num_frequencies=10, lengthscale=1.0, random_state=0)
    fits = ConstrainedORFF(**options).fit(X, Y), ConstrainedORFF(**options).fit(X_more, Y_more)
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert fits[1].num_rows_ == 60
    with pytest.raises(InputError, match="observed"):
        ConstrainedORFF().fit(X, np.c_[Y[:, 0], np.full(60, np.nan)])


def test_constrained_orff_can_be_copied_and_reproduced():
    X, Y = table()
    model = ConstrainedORFF(num_frequencies=10, random_state=0).fit(
        torch.from_numpy(X), pd.DataFrame(Y, columns=["a", "b"])
    )
    assert model.output_names_ == ["a", "b"]
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        ConstrainedORFF(**model.get_params()).fit(X, Y),
    ):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
    assert not hasattr(model, "sample_y") and not hasattr(model, "posterior_")


@pytest.mark.parametrize(
    "options",
    [
        {"radius": 0.0},
        {"radius": "large"},
        {"radius": np.inf},
        {"num_frequencies": 0},
        {"tolerance": 0.0},
        {"tolerance": -1.0},
        {"tolerance": np.nan},
        {"max_iter": 0},
        {"max_iter": 1.5},
        {"lengthscale": "mean"},
        {"kernel": "nothing"},
        {"random_state": -1},
    ],
)
def test_fit_names_invalid_options(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        ConstrainedORFF(**options).fit(*table())
