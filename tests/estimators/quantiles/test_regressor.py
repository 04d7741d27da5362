"""Tests of `ovkgp.estimators.quantiles.regressor`."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import QuantileRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.datasets import make_exponential_quantiles, make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles import model as quantile_model
from ovkgp.estimators.quantiles.rows import pinball_losses
from ovkgp.exceptions import FitWarning, InputError, ModelFileError, OptionError
from ovkgp.inference.tasks.solvers import primal
from ovkgp.losses import grid

FIXED = {"lengthscale": 0.5, "lam": 1e-3, "random_state": 0}
MINIMIZER = {**FIXED, "calibrate": False}
LEVELS = [0.1, 0.3, 0.5, 0.7, 0.9]


@pytest.fixture(scope="module")
def sine():
    return make_sine_quantiles(150, random_state=0)


@pytest.fixture(scope="module")
def fitted(sine):
    return InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)


# --- curves ---------------------------------------------------------------------------------------------------------


def test_upper_quantile_of_skewed_data_is_correct():
    """τ = .8 on exponential data: 1.609, where a wrong sign gives 0.223."""
    X, y, _ = make_exponential_quantiles(1000, random_state=0)
    model = InfiniteQuantileRegressor(lengthscale=2.0, lam=1e-3).fit(X, y)
    assert abs(model.predict(X, 0.8).mean() - 1.609) < 0.12
    assert abs((y <= model.predict(X, 0.8)).mean() - 0.8) < 0.02


@pytest.mark.slow
def test_default_fit_is_close_to_the_oracle():
    train, test = make_sine_quantiles(400, random_state=1), make_sine_quantiles(2000, random_state=2)
    model = InfiniteQuantileRegressor(random_state=0).fit(train.X, train.y)
    oracle = pinball_losses(test.y, test.quantiles(test.X, LEVELS), np.array(LEVELS))
    assert model.pinball_loss(test.X, test.y, LEVELS).sum() < 1.03 * oracle.sum()
    coverage = (test.y[:, None] <= model.predict(test.X, LEVELS)).mean(0)
    assert np.abs(coverage - LEVELS).max() < 0.05


def test_linear_fit_matches_scikit_learn():
    """Independent levels, a linear kernel and λ → 0: linear quantile regression."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    y = X @ [1.0, -2.0] + rng.standard_normal(80)
    ours = InfiniteQuantileRegressor(
        kernel=LinearKernel(), coupling="independent", levels=[0.3], lam=1e-9, prior_mean="zero", tol=1e-7
    ).fit(X, y)
    theirs = QuantileRegressor(quantile=0.3, alpha=0.0).fit(X, y)
    np.testing.assert_allclose(ours.predict(X, 0.3), theirs.predict(X), atol=1e-3)


def test_lam_conventions_are_equivalent(sine):
    """G-11: λ/2 ‖h‖² and λ ‖h‖²."""
    first, second = (
        InfiniteQuantileRegressor(lengthscale=0.5, lam=lam, convention=convention, tol=1e-7, random_state=0).fit(
            sine.X, sine.y
        )
        for lam, convention in ((2e-3, "samples"), (1e-3, "stability"))
    )
    np.testing.assert_array_equal(first.predict(sine.X, LEVELS), second.predict(sine.X, LEVELS))


def test_g_14_joint_levels_equal_nodes_of_a_measure(sine):
    joint = InfiniteQuantileRegressor(coupling="joint", levels=LEVELS, noncrossing=None, tol=1e-7, **MINIMIZER)
    nodes = InfiniteQuantileRegressor(measure=grid(LEVELS), noncrossing=None, tol=1e-7, **MINIMIZER)
    found = [model.fit(sine.X, sine.y).predict(sine.X, LEVELS) for model in (joint, nodes)]
    np.testing.assert_allclose(found[0], found[1], atol=2e-3)


def test_g_14_independent_levels_equal_separate_fits(sine):
    joint = InfiniteQuantileRegressor(
        coupling="independent", levels=[0.2, 0.8], noncrossing=None, tol=1e-8, **MINIMIZER
    ).fit(sine.X, sine.y)
    for level in (0.2, 0.8):
        # each of the two levels has half of the loss, and all of its penalty
        single = InfiniteQuantileRegressor(
            coupling="independent", levels=[level], noncrossing=None, tol=1e-8, lengthscale=0.5, lam=2e-3
        ).fit(sine.X, sine.y)
        np.testing.assert_allclose(joint.predict(sine.X, level), single.predict(sine.X, level), atol=2e-3)


def test_random_features_approach_the_exact_kernel(sine):
    exact = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
    many, few = (
        InfiniteQuantileRegressor(num_frequencies=number, **FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
        for number in (150, 5)
    )
    assert np.abs(many - exact).mean() < 0.03  # of curves that differ by 0.3
    assert np.abs(many - exact).mean() < 0.5 * np.abs(few - exact).mean()


def test_fit_counts_weights_as_copies(sine):
    X, y = sine.X[:60], sine.y[:60]
    weights = np.ones(60)
    weights[:20] = 2.0
    twice = InfiniteQuantileRegressor(**FIXED).fit(np.vstack([X, X[:20]]), np.hstack([y, y[:20]]))
    weighted = InfiniteQuantileRegressor(**FIXED).fit(X, y, sample_weight=weights)
    for ours, theirs in zip(*(m.predict(X, LEVELS, return_std=True) for m in (twice, weighted)), strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_predictions_are_equivariant_to_units(sine):
    original = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS, return_std=True)
    scaled = InfiniteQuantileRegressor(**FIXED).fit(1e3 * sine.X, 1e6 * sine.y + 5e7)
    mean, std = scaled.predict(1e3 * sine.X, LEVELS, return_std=True)
    np.testing.assert_allclose((mean - 5e7) / 1e6, original[0], atol=1e-6)
    np.testing.assert_allclose(std / 1e6, original[1], rtol=1e-4)


def test_smoothed_loss_of_small_width_approaches_pinball(sine):
    sharp = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
    smooth = InfiniteQuantileRegressor(loss="smoothed_pinball", kappa=1e-3, **FIXED).fit(sine.X, sine.y)
    assert np.abs(smooth.predict(sine.X, LEVELS) - sharp).max() < 0.03


# --- crossings ------------------------------------------------------------------------------------------------------


def test_noncrossing_options_reduce_crossings(sine):
    few = make_sine_quantiles(40, random_state=3)
    proportions = {}
    for option in (None, "rearrange", "penalty", "exact"):
        model = InfiniteQuantileRegressor(lengthscale=0.3, lam=1e-4, task_lengthscale=0.3, noncrossing=option, tol=1e-6)
        proportions[option] = model.fit(few.X, few.y).crossing(few.X).share
    assert proportions[None] > 0
    assert proportions["rearrange"] == 0
    # percentiles beyond the outermost nodes are not constrained
    assert proportions["penalty"] < proportions[None] and proportions["exact"] < 0.5 * proportions[None]


def test_exact_noncrossing_has_nonnegative_slopes_at_anchors():
    few = make_sine_quantiles(40, random_state=3)
    model = InfiniteQuantileRegressor(lengthscale=0.3, lam=1e-4, noncrossing="exact").fit(few.X, few.y)
    slopes = model.function_.slopes(model.scaling_.inputs(few.X), model.measure_.nodes)
    assert slopes.min() > -1e-8


def test_predictions_at_a_level_do_not_depend_on_other_levels(fitted, sine):
    together = fitted.predict(sine.X, [0.2, 0.9, 0.4])
    for column, level in enumerate((0.2, 0.9, 0.4)):
        np.testing.assert_allclose(together[:, column], fitted.predict(sine.X, level))


# --- uncertainty ----------------------------------------------------------------------------------------------------


def test_std_has_the_shape_of_the_quantiles(fitted, sine):
    for quantiles, shape in ((None, (7,)), (0.2, (7,)), ([0.2], (7, 1)), (LEVELS, (7, 5))):
        mean, std = fitted.predict(sine.X[:7], quantiles, return_std=True)
        assert mean.shape == std.shape == shape and (std > 0).all()
        np.testing.assert_array_equal(mean, fitted.predict(sine.X[:7], quantiles))


def test_std_is_that_of_the_prior_far_from_the_data(fitted, sine):
    near = fitted.predict(sine.X, 0.5, return_std=True)[1]
    far = fitted.predict([[50.0]], 0.5, return_std=True)[1][0]
    prior = fitted.scaling_.output_scale[0] * np.sqrt(fitted.sandwich_.temperature)
    assert far > 2 * near.max()
    assert prior <= far < 1.5 * prior  # the rest is the intercept


def test_std_decreases_with_more_rows(fitted):
    many = make_sine_quantiles(1200, random_state=0)
    many_rows = InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3 / 8, num_frequencies=100, random_state=0).fit(
        many.X, many.y
    )
    points = np.linspace(0.1, 1.4, 9)[:, None]
    ratio = fitted.predict(points, LEVELS, return_std=True)[1] / many_rows.predict(points, LEVELS, return_std=True)[1]
    assert 2.0 < ratio.mean() < 3.8  # √8 = 2.8


def test_bootstrap_std_agrees_with_the_sandwich(sine):
    points = np.linspace(0.2, 1.3, 9)[:, None]
    std = {}
    for uncertainty in ("sandwich", "bootstrap"):
        model = InfiniteQuantileRegressor(uncertainty=uncertainty, num_replicates=30, **FIXED).fit(sine.X, sine.y)
        std[uncertainty] = model.predict(points, LEVELS, return_std=True)[1]
    assert 0.7 < (std["bootstrap"] / std["sandwich"]).mean() < 1.3


@pytest.mark.parametrize(
    "options", [{"coupling": "joint"}, {"coupling": "independent", "levels": [0.4]}, {"noncrossing": "exact"}]
)
def test_std_is_positive_for_every_coupling(sine, options):
    model = InfiniteQuantileRegressor(**options, **FIXED).fit(sine.X, sine.y)
    std = model.predict(sine.X, [0.4] if "levels" in options else [0.5], return_std=True)[1]
    assert np.isfinite(std).all() and (std > 0).all()


def bands(model, seed, n=200):
    """Return whether 90 % bands contain the true curves, (points, levels)."""
    X, y, quantiles = make_sine_quantiles(n, random_state=seed)
    at, levels = np.linspace(0.1, 1.4, 27)[:, None], np.arange(1, 10) / 10
    mean, std = model.fit(X, y).predict(at, levels, return_std=True)
    return np.abs(mean - quantiles(at, levels)) <= 1.6449 * std


@pytest.mark.slow
def test_90_percent_bands_cover_the_true_curves():
    """100 data sets of 200 rows, levels .1 to .9, x in [.1, 1.4]; lengthscale and λ are typical defaults."""
    model = InfiniteQuantileRegressor(lengthscale=0.57, lam=6.5e-4, calibrate=False, random_state=0)
    inside = np.array([bands(model, seed) for seed in range(100)])
    assert 0.85 < inside.mean() < 0.95
    assert (inside.mean((0, 1)) > 0.8).all()


@pytest.mark.slow
def test_90_percent_bands_of_defaults_cover_the_true_curves():
    inside = np.array([bands(InfiniteQuantileRegressor(calibrate=False, random_state=0), seed) for seed in range(100)])
    assert 0.85 < inside.mean() < 0.95
    assert (inside.mean((0, 1)) > 0.82).all() and (inside.mean((0, 1)) < 0.97).all()


# --- many rows ------------------------------------------------------------------------------------------------------


def test_streamed_features_give_the_same_model(sine, monkeypatch):
    whole = InfiniteQuantileRegressor(num_frequencies=30, tol=1e-5, **FIXED).fit(sine.X, sine.y)
    monkeypatch.setattr(quantile_model, "STREAMING_THRESHOLD_ENTRIES", 100)
    parts = InfiniteQuantileRegressor(num_frequencies=30, tol=1e-5, **FIXED).fit(sine.X, sine.y)
    assert parts.fit_report_.converged
    for ours, theirs in zip(*(m.predict(sine.X, LEVELS, return_std=True) for m in (whole, parts)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert parts.posterior_.sample(sine.X[:2], LEVELS, 3, random_state=0).shape == (3, 2, 5)


def test_auto_projects_the_kernel_of_many_rows_on_landmarks(sine, monkeypatch):
    exact = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    assert "exact" in str(exact.summary())
    monkeypatch.setattr(quantile_model, "MAX_EXACT_ROWS", 100)
    monkeypatch.setattr(quantile_model, "NUM_LANDMARKS", 60)
    projected = InfiniteQuantileRegressor(tol=1e-5, **FIXED).fit(sine.X, sine.y)
    assert "projected" in str(projected.summary()) and projected.fit_report_.converged
    assert len(projected.function_.weights) < len(exact.function_.weights)
    for ours, theirs in zip(*(m.predict(sine.X, LEVELS, return_std=True) for m in (projected, exact)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
    always = InfiniteQuantileRegressor(num_frequencies=None, **FIXED).fit(sine.X, sine.y)
    np.testing.assert_array_equal(always.predict(sine.X, LEVELS), exact.predict(sine.X, LEVELS))


@pytest.mark.slow
def test_fit_of_many_rows_is_close_to_the_oracle():
    train, test = make_sine_quantiles(20_000, random_state=1), make_sine_quantiles(5000, random_state=2)
    model = InfiniteQuantileRegressor(random_state=0).fit(train.X, train.y)
    oracle = pinball_losses(test.y, test.quantiles(test.X, LEVELS), np.array(LEVELS))
    assert model.pinball_loss(test.X, test.y, LEVELS).sum() < 1.005 * oracle.sum()
    coverage = (test.y[:, None] <= model.predict(test.X, LEVELS)).mean(0)
    assert np.abs(coverage - LEVELS).max() < 0.02


def test_lam_of_streamed_features_is_selected_on_a_subset(sine, monkeypatch):
    monkeypatch.setattr(quantile_model, "STREAMING_THRESHOLD_ENTRIES", 100)
    monkeypatch.setattr(quantile_model, "MAX_SELECTION_ROWS", 60)
    model = InfiniteQuantileRegressor(lengthscale=0.5, num_frequencies=20, random_state=0).fit(sine.X, sine.y)
    assert model.lam_ == pytest.approx(model.lam_path_.best * 60 / 150)


def test_noncrossing_penalty_raises_for_streamed_features(sine, monkeypatch):
    monkeypatch.setattr(quantile_model, "MAX_STORED_ENTRIES", 100)
    with pytest.raises(OptionError, match="rearrange"):
        InfiniteQuantileRegressor(num_frequencies=20, noncrossing="exact", **FIXED).fit(sine.X, sine.y)


# --- predictions and scores -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [pytest.param(0.5, marks=pytest.mark.slow), 0.9])
@pytest.mark.slow
def test_calibrated_intervals_have_nominal_coverage(level):
    """Few rows and many inputs, where uncalibrated intervals are far too narrow."""
    proportions = {}
    for calibrate in (True, False):
        inside = []
        for seed in range(6):
            rng = np.random.default_rng(seed)
            X, Z = rng.standard_normal((70, 6)), rng.standard_normal((500, 6))
            y, z = (A[:, 0] + np.sin(A[:, 1]) + 0.5 * rng.standard_normal(len(A)) for A in (X, Z))
            model = InfiniteQuantileRegressor(lengthscale=2.0, lam=1e-5, random_state=0, tol=1e-3).fit(X, y)
            lower, upper = model.predict_interval(Z, level, calibrate=calibrate)
            assert (lower <= upper).all()
            inside.append(((lower <= z) & (z <= upper)).mean())
        proportions[calibrate] = np.mean(inside)
    assert abs(proportions[True] - level) < 0.06
    assert proportions[False] < level - 0.1


@pytest.mark.parametrize("options", [{}, {"noncrossing": "exact"}, {"coupling": "joint"}, {"num_frequencies": 20}])
def test_calibrated_quantiles_are_monotone_and_the_ends_of_intervals(sine, options):
    model = InfiniteQuantileRegressor(**options, **FIXED).fit(sine.X[:60], sine.y[:60])
    levels = LEVELS if "coupling" in options else np.arange(1, 400) / 400
    curves = model.predict(sine.X, levels)
    assert (np.diff(curves, axis=1) >= 0).all()
    bare = model.predict(sine.X, levels, calibrate=False)
    assert np.abs(curves - bare).max() > 1e-3
    for level in (0.4, 0.8):
        ends = model.predict(sine.X, [(1 - level) / 2, (1 + level) / 2])
        np.testing.assert_array_equal(np.stack(model.predict_interval(sine.X, level), -1), ends)


def test_calibrate_false_gives_the_minimizer(sine):
    calibrated, bare = (
        InfiniteQuantileRegressor(calibrate=flag, **FIXED).fit(sine.X, sine.y) for flag in (True, False)
    )
    assert hasattr(calibrated, "calibration_") and not hasattr(bare, "calibration_")
    expected = bare.predict(sine.X, LEVELS)
    np.testing.assert_array_equal(calibrated.predict(sine.X, LEVELS, calibrate=False), expected)
    assert np.abs(calibrated.predict(sine.X, LEVELS) - expected).max() > 1e-3
    # a calibration made later is the same
    np.testing.assert_allclose(bare.predict(sine.X, LEVELS, calibrate=True), calibrated.predict(sine.X, LEVELS))
    np.testing.assert_array_equal(bare.predict(sine.X, LEVELS), expected)
    with pytest.raises(InputError, match="calibrate"):
        bare.predict(sine.X, LEVELS, calibrate="yes")


def test_intervals_of_finite_levels_need_learned_ends(sine):
    model = InfiniteQuantileRegressor(coupling="joint", **FIXED).fit(sine.X, sine.y)
    lower, upper = model.predict_interval(sine.X, 0.8)
    assert abs(((lower <= sine.y) & (sine.y <= upper)).mean() - 0.8) < 0.12
    with pytest.raises(InputError, match="levels"):
        model.predict_interval(sine.X, 0.7)


def test_predict_interval_rejects_several_levels(fitted, sine):
    with pytest.raises(InputError, match="level"):
        fitted.predict_interval(sine.X, [0.5, 0.9])


@pytest.mark.slow
def test_outliers_hardly_change_inner_quantiles():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(60)
    clean = InfiniteQuantileRegressor(random_state=0).fit(X, y).predict([[0.0, 0.0]], [0.1, 0.5, 0.9])
    for outlier in (10.0, 1e4, 1e9):
        y[3] = outlier
        moved = InfiniteQuantileRegressor(random_state=0).fit(X, y).predict([[0.0, 0.0]], [0.1, 0.5, 0.9])
        np.testing.assert_allclose(moved, clean, atol=0.25)


@pytest.mark.slow
def test_bands_cover_without_informative_inputs():
    """y ~ N(0, 1) independent of X: the uncertainty is that of the prior mean."""
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.uniform(-1, 1, (50, 2)), rng.standard_normal(50)
        model = InfiniteQuantileRegressor(calibrate=False, random_state=0).fit(X, y)
        mean, std = model.predict(X[:10], [0.1, 0.5, 0.9], return_std=True)
        inside.append(np.abs(mean - [-1.2816, 0.0, 1.2816]) <= 1.6449 * std)
    assert np.mean(inside) > 0.75


def test_std_warns_for_few_rows():
    rng = np.random.default_rng(0)
    model = InfiniteQuantileRegressor(lam=1e-2, lengthscale=1.0).fit(
        rng.standard_normal((12, 1)), rng.standard_normal(12)
    )
    with pytest.warns(FitWarning, match="12 rows"):
        model.predict([[0.0]], 0.5, return_std=True)


def test_score_is_zero_for_an_uninformative_fit(fitted, sine):
    assert 0.2 < fitted.score(sine.X, sine.y) < 1
    X, y, _ = make_exponential_quantiles(300, random_state=0)
    uninformative = InfiniteQuantileRegressor(lengthscale=1.0, lam=10.0).fit(X, y)
    assert abs(uninformative.score(X, y)) < 0.1


def test_fit_accepts_data_frames_and_tensors(sine):
    frame = pd.DataFrame(sine.X, columns=["x"])
    model = InfiniteQuantileRegressor(**FIXED).fit(frame, pd.Series(sine.y))
    assert list(model.feature_names_in_) == ["x"]
    again = InfiniteQuantileRegressor(**FIXED).fit(torch.from_numpy(sine.X), torch.from_numpy(sine.y))
    np.testing.assert_array_equal(model.predict(frame, LEVELS), again.predict(sine.X, LEVELS))


def test_summary_lists_gap_and_levels(fitted):
    assert "duality gap" in str(fitted.summary()) and "all levels" in str(fitted.summary())


def test_fit_is_reproducible_with_a_seed(sine):
    options = {"num_frequencies": 20, "measure": "sobol", "lengthscale": "median", "random_state": 3}
    first, second = (InfiniteQuantileRegressor(**options).fit(sine.X, sine.y).predict(sine.X, LEVELS) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# --- storage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_frequencies": 20},
        {"coupling": "joint"},
        {"noncrossing": "exact"},
        {"uncertainty": "bootstrap", "num_replicates": 3},
    ],
)
def test_save_and_load_keep_predictions_exactly(sine, tmp_path, options):
    model = InfiniteQuantileRegressor(**options, **FIXED).fit(sine.X, sine.y)
    expected = model.predict(sine.X, LEVELS, return_std=True)
    interval = model.predict_interval(sine.X, 0.8) if model.coupling == "infinite" else ()
    model.save(tmp_path / "model.ovkgp")
    for again in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for ours, theirs in zip(again.predict(sine.X, LEVELS, return_std=True), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if interval:
            np.testing.assert_array_equal(again.predict_interval(sine.X, 0.8), interval)
        assert again.get_params().keys() == model.get_params().keys() and again.gap_ == model.gap_


def test_load_rejects_a_corrupt_file(fitted, tmp_path):
    path = tmp_path / "model.ovkgp"
    fitted.save(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError):
        ovkgp.load(path)


def test_network_can_be_pickled_but_not_saved(sine, tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = InfiniteQuantileRegressor(feature_extractor=network, extractor_epochs=2, lam=1e-3, random_state=0)
    model.fit(sine.X, sine.y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(sine.X, LEVELS), model.predict(sine.X, LEVELS))
    assert model.predict(sine.X, LEVELS, return_std=True)[1].min() > 0
    with pytest.raises(InputError, match="network"):
        model.save(tmp_path / "model.ovkgp")


# --- validation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"coupling": "some"}, "coupling"),
        ({"coupling": "joint", "noncrossing": "exact"}, "rearrange"),
        ({"uncertainty": "guess"}, "uncertainty"),
        ({"num_replicates": 1}, "num_replicates"),
        ({"kernel": RBFKernel, "lam": 1.0}, "kernel"),
    ],
)
def test_fit_rejects_invalid_options(sine, options, message):
    with pytest.raises(OptionError, match=message):
        InfiniteQuantileRegressor(**options).fit(sine.X, sine.y)


def test_fit_and_predict_reject_invalid_data(sine, fitted):
    X, y = sine.X.copy(), sine.y.copy()
    X[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        InfiniteQuantileRegressor().fit(X, y)
    y[3] = np.inf
    with pytest.raises(ValueError, match="inf"):
        InfiniteQuantileRegressor().fit(sine.X, y)
    with pytest.raises(InputError, match="1 sample"):
        InfiniteQuantileRegressor().fit([[1.0]], [2.0])
    with pytest.raises(InputError, match="shape"):
        InfiniteQuantileRegressor().fit(sine.X, np.zeros((150, 2)))
    with pytest.raises(ValueError, match="features"):
        fitted.predict(np.zeros((3, 2)))
    with pytest.raises(InputError, match="percentages"):
        fitted.predict(sine.X, [10, 90])
    with pytest.raises(NotFittedError):
        InfiniteQuantileRegressor().predict(sine.X)
    with pytest.raises(InputError, match="levels"):
        InfiniteQuantileRegressor(coupling="joint", **FIXED).fit(sine.X, sine.y).predict(sine.X, 0.33)


def test_failed_fit_keeps_the_previous_model(sine):
    model = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    before = model.predict(sine.X, LEVELS)
    model.set_params(lam=-1.0)
    with pytest.raises(OptionError, match="lam"):
        model.fit(sine.X[:20], sine.y[:20])
    np.testing.assert_array_equal(model.predict(sine.X, LEVELS), before)


def test_constant_target_is_predicted_exactly():
    X = np.linspace(0, 1, 20)[:, None]
    model = InfiniteQuantileRegressor().fit(X, np.full(20, 3.0))
    mean, std = model.predict(X, LEVELS, return_std=True)
    np.testing.assert_allclose(mean, 3.0, atol=1e-8)
    assert np.isfinite(std).all()


def test_fit_accepts_two_rows_and_equal_inputs():
    model = InfiniteQuantileRegressor(lam=1e-2, lengthscale=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.warns(FitWarning, match="2 rows"):
        assert np.isfinite(model.predict([[0.5]], LEVELS, return_std=True)).all()
    assert np.isfinite(model.predict_interval([[0.5]], 0.9)).all()
    rng = np.random.default_rng(0)
    y = rng.standard_normal(50)
    same = InfiniteQuantileRegressor(lam=1e-3, lengthscale=1.0).fit(np.zeros((50, 2)), y)
    assert abs(same.predict(np.zeros((1, 2)), 0.5)[0] - np.median(y)) < 0.2


def test_interrupted_fit_keeps_the_best_curves(sine, monkeypatch):
    def interrupt(self, budget, bar):
        raise KeyboardInterrupt

    monkeypatch.setattr(primal.ADMM, "run", interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        model = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    assert model.fit_report_.interrupted and np.isfinite(model.predict(sine.X, LEVELS)).all()


def test_interrupted_calibration_keeps_the_curves(sine, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("ovkgp.estimators.quantiles.regressor.calibrate_quantiles", interrupt)
    with pytest.warns(FitWarning, match="calibration was interrupted"):
        model = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    np.testing.assert_array_equal(model.predict(sine.X, LEVELS), model.predict(sine.X, LEVELS, calibrate=False))


def test_interrupted_bootstrap_keeps_complete_replicates(sine, monkeypatch):
    model = InfiniteQuantileRegressor(uncertainty="bootstrap", num_replicates=10, **FIXED).fit(sine.X, sine.y)
    rounds, calls = primal.ADMM.run, []

    def interrupt_third(self, budget, bar):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rounds(self, budget, bar)

    monkeypatch.setattr(primal.ADMM, "run", interrupt_third)
    with pytest.warns(FitWarning, match="2 of 10"):
        model.predict(sine.X[:3], 0.5, return_std=True)
    assert len(model._replicates) == 2


FAST_OPTIONS = {"lengthscale": "median", "lam": 1e-5, "num_tasks": 5, "tol": 1e-3}


@parametrize_with_checks([InfiniteQuantileRegressor(random_state=0, **FAST_OPTIONS)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        InfiniteQuantileRegressor(random_state=0),
        InfiniteQuantileRegressor(coupling="joint", random_state=0, **FAST_OPTIONS),
        InfiniteQuantileRegressor(num_frequencies=50, random_state=0, **FAST_OPTIONS),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)
