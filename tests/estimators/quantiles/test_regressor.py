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
LEVELS = [0.1, 0.3, 0.5, 0.7, 0.9]


@pytest.fixture(scope="module")
def sine():
    return make_sine_quantiles(150, random_state=0)


@pytest.fixture(scope="module")
def fitted(sine):
    return InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)


# --- what is learned ------------------------------------------------------------------------------------------------


def test_the_upper_quantile_of_skewed_data_is_the_upper_one():
    """τ = .8 on exponential data: 1.609, where a turned sign gives 0.223."""
    X, y, _ = make_exponential_quantiles(1000, random_state=0)
    model = InfiniteQuantileRegressor(lengthscale=2.0, lam=1e-3).fit(X, y)
    assert abs(model.predict(X, 0.8).mean() - 1.609) < 0.12
    assert abs((y <= model.predict(X, 0.8)).mean() - 0.8) < 0.02


def test_defaults_come_close_to_the_oracle():
    train, test = make_sine_quantiles(400, random_state=1), make_sine_quantiles(2000, random_state=2)
    model = InfiniteQuantileRegressor(random_state=0).fit(train.X, train.y)
    oracle = pinball_losses(test.y, test.quantiles(test.X, LEVELS), np.array(LEVELS))
    assert model.pinball_loss(test.X, test.y, LEVELS).sum() < 1.03 * oracle.sum()
    shares = (test.y[:, None] <= model.predict(test.X, LEVELS)).mean(0)
    assert np.abs(shares - LEVELS).max() < 0.05


def test_a_linear_model_is_that_of_scikit_learn():
    """Independent levels, a linear kernel and λ → 0: quantile regression as everybody knows it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    y = X @ [1.0, -2.0] + rng.standard_normal(80)
    ours = InfiniteQuantileRegressor(
        kernel=LinearKernel(), coupling="independent", levels=[0.3], lam=1e-9, prior_mean="zero", tol=1e-7
    ).fit(X, y)
    theirs = QuantileRegressor(quantile=0.3, alpha=0.0).fit(X, y)
    np.testing.assert_allclose(ours.predict(X, 0.3), theirs.predict(X), atol=1e-3)


def test_lambda_of_both_conventions_is_one_penalty(sine):
    """G-11: λ/2 ‖h‖² and λ ‖h‖²."""
    first, second = (
        InfiniteQuantileRegressor(lengthscale=0.5, lam=lam, convention=convention, tol=1e-7).fit(sine.X, sine.y)
        for lam, convention in ((2e-3, "samples"), (1e-3, "stability"))
    )
    np.testing.assert_array_equal(first.predict(sine.X, LEVELS), second.predict(sine.X, LEVELS))


def test_g_14_joint_levels_are_the_nodes_of_a_measure(sine):
    joint = InfiniteQuantileRegressor(coupling="joint", levels=LEVELS, noncrossing=None, tol=1e-7, **FIXED)
    nodes = InfiniteQuantileRegressor(measure=grid(LEVELS), noncrossing=None, tol=1e-7, **FIXED)
    found = [model.fit(sine.X, sine.y).predict(sine.X, LEVELS) for model in (joint, nodes)]
    np.testing.assert_allclose(found[0], found[1], atol=2e-3)


def test_g_14_independent_levels_are_fits_of_one_level_each(sine):
    together = InfiniteQuantileRegressor(
        coupling="independent", levels=[0.2, 0.8], noncrossing=None, tol=1e-8, lengthscale=0.5, lam=1e-3
    ).fit(sine.X, sine.y)
    for level in (0.2, 0.8):
        # the two levels share the loss, half each, and not the penalty
        alone = InfiniteQuantileRegressor(
            coupling="independent", levels=[level], noncrossing=None, tol=1e-8, lengthscale=0.5, lam=2e-3
        ).fit(sine.X, sine.y)
        np.testing.assert_allclose(together.predict(sine.X, level), alone.predict(sine.X, level), atol=2e-3)


def test_random_features_come_to_the_exact_kernel(sine):
    exact = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
    many, few = (
        InfiniteQuantileRegressor(num_frequencies=number, **FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
        for number in (150, 5)
    )
    assert np.abs(many - exact).mean() < 0.03  # of curves that are told apart by 0.3
    assert np.abs(many - exact).mean() < 0.5 * np.abs(few - exact).mean()


def test_rows_that_come_twice_are_rows_of_weight_two(sine):
    X, y = sine.X[:60], sine.y[:60]
    weights = np.ones(60)
    weights[:20] = 2.0
    twice = InfiniteQuantileRegressor(**FIXED).fit(np.vstack([X, X[:20]]), np.hstack([y, y[:20]]))
    weighted = InfiniteQuantileRegressor(**FIXED).fit(X, y, sample_weight=weights)
    for ours, theirs in zip(*(m.predict(X, LEVELS, return_std=True) for m in (twice, weighted)), strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_units_do_not_matter(sine):
    plain = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS, return_std=True)
    scaled = InfiniteQuantileRegressor(**FIXED).fit(1e3 * sine.X, 1e6 * sine.y + 5e7)
    mean, std = scaled.predict(1e3 * sine.X, LEVELS, return_std=True)
    np.testing.assert_allclose((mean - 5e7) / 1e6, plain[0], atol=1e-6)
    np.testing.assert_allclose(std / 1e6, plain[1], rtol=1e-4)


def test_a_smoothed_loss_of_little_width_is_the_sharp_one(sine):
    sharp = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y).predict(sine.X, LEVELS)
    smooth = InfiniteQuantileRegressor(loss="smoothed_pinball", kappa=1e-3, **FIXED).fit(sine.X, sine.y)
    assert np.abs(smooth.predict(sine.X, LEVELS) - sharp).max() < 0.03


# --- crossings ------------------------------------------------------------------------------------------------------


def test_no_option_lets_curves_cross_more_than_none(sine):
    few = make_sine_quantiles(40, random_state=3)
    shares = {}
    for option in (None, "rearrange", "penalty", "exact"):
        model = InfiniteQuantileRegressor(lengthscale=0.3, lam=1e-4, task_lengthscale=0.3, noncrossing=option, tol=1e-6)
        shares[option] = model.fit(few.X, few.y).crossing(few.X).share
    assert shares[None] > 0
    assert shares["rearrange"] == 0
    # beyond the outermost nodes there are no anchors, and percentiles that still fall
    assert shares["penalty"] < shares[None] and shares["exact"] < 0.5 * shares[None]


def test_exact_curves_do_not_fall_at_the_anchors():
    few = make_sine_quantiles(40, random_state=3)
    model = InfiniteQuantileRegressor(lengthscale=0.3, lam=1e-4, noncrossing="exact").fit(few.X, few.y)
    slopes = model.function_.slopes(model.scaling_.inputs(few.X), model.measure_.nodes)
    assert slopes.min() > -1e-8


def test_predictions_at_a_level_do_not_depend_on_the_others_asked_for(fitted, sine):
    together = fitted.predict(sine.X, [0.2, 0.9, 0.4])
    for column, level in enumerate((0.2, 0.9, 0.4)):
        np.testing.assert_allclose(together[:, column], fitted.predict(sine.X, level))


# --- uncertainty ----------------------------------------------------------------------------------------------------


def test_std_has_the_shape_of_the_quantiles(fitted, sine):
    for quantiles, shape in ((None, (7,)), (0.2, (7,)), ([0.2], (7, 1)), (LEVELS, (7, 5))):
        mean, std = fitted.predict(sine.X[:7], quantiles, return_std=True)
        assert mean.shape == std.shape == shape and (std > 0).all()
        np.testing.assert_array_equal(mean, fitted.predict(sine.X[:7], quantiles))


def test_far_from_the_data_the_curves_are_as_unsure_as_the_prior(fitted, sine):
    near = fitted.predict(sine.X, 0.5, return_std=True)[1]
    far = fitted.predict([[50.0]], 0.5, return_std=True)[1][0]
    prior = fitted.scaling_.output_scale[0] * np.sqrt(fitted.sandwich_.temperature)
    assert far > 2 * near.max()
    assert prior <= far < 1.5 * prior  # the constant that is added to the kernel is the rest


def test_more_rows_make_surer(fitted):
    many = make_sine_quantiles(1200, random_state=0)
    surer = InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3 / 8, num_frequencies=100, random_state=0).fit(
        many.X, many.y
    )
    at = np.linspace(0.1, 1.4, 9)[:, None]
    ratio = fitted.predict(at, LEVELS, return_std=True)[1] / surer.predict(at, LEVELS, return_std=True)[1]
    assert 2.0 < ratio.mean() < 3.8  # √8 = 2.8


def test_bootstrap_is_of_the_size_of_the_sandwich(sine):
    at = np.linspace(0.2, 1.3, 9)[:, None]
    std = {}
    for uncertainty in ("sandwich", "bootstrap"):
        model = InfiniteQuantileRegressor(uncertainty=uncertainty, num_replicates=30, **FIXED).fit(sine.X, sine.y)
        std[uncertainty] = model.predict(at, LEVELS, return_std=True)[1]
    assert 0.7 < (std["bootstrap"] / std["sandwich"]).mean() < 1.3


@pytest.mark.parametrize(
    "options", [{"coupling": "joint"}, {"coupling": "independent", "levels": [0.4]}, {"noncrossing": "exact"}]
)
def test_every_coupling_has_a_std(sine, options):
    model = InfiniteQuantileRegressor(**options, **FIXED).fit(sine.X, sine.y)
    std = model.predict(sine.X, [0.4] if "levels" in options else [0.5], return_std=True)[1]
    assert np.isfinite(std).all() and (std > 0).all()


def bands(model, seed, n=200):
    """Whether bands of 90 % hold the true curves, (points, levels)."""
    X, y, quantiles = make_sine_quantiles(n, random_state=seed)
    at, levels = np.linspace(0.1, 1.4, 27)[:, None], np.arange(1, 10) / 10
    mean, std = model.fit(X, y).predict(at, levels, return_std=True)
    return np.abs(mean - quantiles(at, levels)) <= 1.6449 * std


def test_bands_of_90_percent_cover_the_true_curves():
    """100 data sets of 200 rows, levels .1 to .9, x in [.1, 1.4]; lengthscale and λ are what the defaults choose on average."""
    model = InfiniteQuantileRegressor(lengthscale=0.57, lam=6.5e-4, random_state=0)
    inside = np.array([bands(model, seed) for seed in range(100)])
    assert 0.85 < inside.mean() < 0.95
    assert (inside.mean((0, 1)) > 0.8).all()


@pytest.mark.slow
def test_bands_of_the_defaults_cover_the_true_curves():
    inside = np.array([bands(InfiniteQuantileRegressor(random_state=0), seed) for seed in range(100)])
    assert 0.85 < inside.mean() < 0.95
    assert (inside.mean((0, 1)) > 0.82).all() and (inside.mean((0, 1)) < 0.97).all()


# --- many rows ------------------------------------------------------------------------------------------------------


def test_rows_made_a_few_at_a_time_give_the_same_model(sine, monkeypatch):
    whole = InfiniteQuantileRegressor(num_frequencies=30, tol=1e-5, **FIXED).fit(sine.X, sine.y)
    monkeypatch.setattr(quantile_model, "FASTER_APART", 100)
    parts = InfiniteQuantileRegressor(num_frequencies=30, tol=1e-5, **FIXED).fit(sine.X, sine.y)
    assert parts.fit_report_.converged
    for ours, theirs in zip(*(m.predict(sine.X, LEVELS, return_std=True) for m in (whole, parts)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
    assert parts.posterior_.sample(sine.X[:2], LEVELS, 3, random_state=0).shape == (3, 2, 5)


def test_lambda_of_streamed_rows_comes_from_a_part_of_them(sine, monkeypatch):
    monkeypatch.setattr(quantile_model, "FASTER_APART", 100)
    monkeypatch.setattr(quantile_model, "SAMPLE", 60)
    model = InfiniteQuantileRegressor(lengthscale=0.5, num_frequencies=20, random_state=0).fit(sine.X, sine.y)
    assert model.lam_ == pytest.approx(model.lam_path_.best * 60 / 150)


def test_penalties_on_crossings_need_all_rows_in_memory(sine, monkeypatch):
    monkeypatch.setattr(quantile_model, "MAX_ENTRIES", 100)
    with pytest.raises(OptionError, match="rearrange"):
        InfiniteQuantileRegressor(num_frequencies=20, noncrossing="exact", **FIXED).fit(sine.X, sine.y)


# --- asking and judging ---------------------------------------------------------------------------------------------


def test_distribution_has_the_predicted_quantiles(fitted, sine):
    distribution = fitted.predict_distribution(sine.X[:5])
    np.testing.assert_allclose(
        distribution.quantile(torch.tensor(LEVELS, dtype=torch.float64)), fitted.predict(sine.X[:5], LEVELS)
    )
    inside = distribution.cdf(torch.from_numpy(fitted.predict(sine.X[:5], LEVELS)))
    np.testing.assert_allclose(inside, np.broadcast_to(LEVELS, (5, 5)), atol=1e-8)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_the_share_of_fresh_rows_they_name(level):
    """Few rows and many inputs, where the curves alone lie far too close together."""
    shares = {}
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
        shares[calibrate] = np.mean(inside)
    assert abs(shares[True] - level) < 0.06
    assert shares[False] < level - 0.1


def test_finite_levels_have_the_interval_between_two_of_them(sine):
    model = InfiniteQuantileRegressor(coupling="joint", **FIXED).fit(sine.X, sine.y)
    lower, upper = model.predict_interval(sine.X, 0.8)
    assert abs(((lower <= sine.y) & (sine.y <= upper)).mean() - 0.8) < 0.12
    with pytest.raises(InputError, match="levels"):
        model.predict_interval(sine.X, 0.7)


def test_an_interval_is_of_one_level(fitted, sine):
    with pytest.raises(InputError, match="one number"):
        fitted.predict_interval(sine.X, [0.5, 0.9])


def test_outliers_move_no_quantile_but_the_outermost():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + 0.3 * rng.standard_normal(60)
    clean = InfiniteQuantileRegressor(random_state=0).fit(X, y).predict([[0.0, 0.0]], [0.1, 0.5, 0.9])
    for outlier in (10.0, 1e4, 1e9):
        y[3] = outlier
        moved = InfiniteQuantileRegressor(random_state=0).fit(X, y).predict([[0.0, 0.0]], [0.1, 0.5, 0.9])
        np.testing.assert_allclose(moved, clean, atol=0.25)


def test_where_inputs_say_nothing_the_bands_still_cover():
    """y ~ N(0, 1), whatever X: what is not known is the prior mean."""
    inside = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X, y = rng.uniform(-1, 1, (50, 2)), rng.standard_normal(50)
        model = InfiniteQuantileRegressor(random_state=0).fit(X, y)
        mean, std = model.predict(X[:10], [0.1, 0.5, 0.9], return_std=True)
        inside.append(np.abs(mean - [-1.2816, 0.0, 1.2816]) <= 1.6449 * std)
    assert np.mean(inside) > 0.75


def test_few_rows_are_warned_of():
    rng = np.random.default_rng(0)
    model = InfiniteQuantileRegressor(lam=1e-2, lengthscale=1.0).fit(
        rng.standard_normal((12, 1)), rng.standard_normal(12)
    )
    with pytest.warns(FitWarning, match="12 rows"):
        model.predict([[0.0]], 0.5, return_std=True)


def test_score_is_one_for_perfect_and_zero_for_nothing(fitted, sine):
    assert 0.2 < fitted.score(sine.X, sine.y) < 1
    X, y, _ = make_exponential_quantiles(300, random_state=0)
    nothing = InfiniteQuantileRegressor(lengthscale=1.0, lam=10.0).fit(X, y)
    assert abs(nothing.score(X, y)) < 0.1


def test_data_frames_and_tensors_are_taken(sine):
    frame = pd.DataFrame(sine.X, columns=["x"])
    model = InfiniteQuantileRegressor(**FIXED).fit(frame, pd.Series(sine.y))
    assert list(model.feature_names_in_) == ["x"]
    again = InfiniteQuantileRegressor(**FIXED).fit(torch.from_numpy(sine.X), torch.from_numpy(sine.y))
    np.testing.assert_array_equal(model.predict(frame, LEVELS), again.predict(sine.X, LEVELS))


def test_summary_names_what_was_learned(fitted):
    assert "duality gap" in str(fitted.summary()) and "all levels" in str(fitted.summary())


def test_the_same_seed_gives_the_same_bits(sine):
    options = {"num_frequencies": 20, "measure": "sobol", "lengthscale": "median", "random_state": 3}
    first, second = (InfiniteQuantileRegressor(**options).fit(sine.X, sine.y).predict(sine.X, LEVELS) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# --- keeping --------------------------------------------------------------------------------------------------------


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
def test_saved_and_loaded_it_says_the_same_to_the_bit(sine, tmp_path, options):
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


def test_a_corrupt_file_is_refused(fitted, tmp_path):
    path = tmp_path / "model.ovkgp"
    fitted.save(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(ModelFileError):
        ovkgp.load(path)


def test_a_network_can_be_pickled_and_says_that_it_cannot_be_saved(sine, tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = InfiniteQuantileRegressor(feature_extractor=network, extractor_epochs=2, lam=1e-3, random_state=0)
    model.fit(sine.X, sine.y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(sine.X, LEVELS), model.predict(sine.X, LEVELS))
    assert model.predict(sine.X, LEVELS, return_std=True)[1].min() > 0
    with pytest.raises(InputError, match="pickle"):
        model.save(tmp_path / "model.ovkgp")


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"lam": [1.0, 2.0]}, "lam"),
        ({"coupling": "some"}, "coupling"),
        ({"levels": [0.5]}, "levels"),
        ({"noncrossing": "often"}, "noncrossing"),
        ({"coupling": "joint", "noncrossing": "exact"}, "rearrange"),
        ({"uncertainty": "guess"}, "uncertainty"),
        ({"num_replicates": 1}, "num_replicates"),
        ({"loss": "smoothed_pinball"}, "kappa"),
        ({"kappa": 0.1}, "kappa"),
        ({"feature_extractor": "cnn", "lam": 1.0}, "Module"),
        ({"kernel": RBFKernel, "lam": 1.0}, "kernel"),
        ({"tol": 0.0}, "tol"),
    ],
)
def test_options_that_there_are_not_are_refused(sine, options, message):
    with pytest.raises(OptionError, match=message):
        InfiniteQuantileRegressor(**options).fit(sine.X, sine.y)


def test_bad_data_are_refused(sine, fitted):
    X, y = sine.X.copy(), sine.y.copy()
    X[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        InfiniteQuantileRegressor().fit(X, y)
    y[3] = np.inf
    with pytest.raises(ValueError, match="inf"):
        InfiniteQuantileRegressor().fit(sine.X, y)
    with pytest.raises(InputError, match="at least two"):
        InfiniteQuantileRegressor().fit([[1.0]], [2.0])
    with pytest.raises(InputError, match="one output"):
        InfiniteQuantileRegressor().fit(sine.X, np.zeros((150, 2)))
    with pytest.raises(ValueError, match="features"):
        fitted.predict(np.zeros((3, 2)))
    with pytest.raises(InputError, match="percentages"):
        fitted.predict(sine.X, [10, 90])
    with pytest.raises(NotFittedError):
        InfiniteQuantileRegressor().predict(sine.X)
    with pytest.raises(InputError, match="levels"):
        InfiniteQuantileRegressor(coupling="joint", **FIXED).fit(sine.X, sine.y).predict(sine.X, 0.33)


def test_a_failed_fit_leaves_the_model_as_it_was(sine):
    model = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    before = model.predict(sine.X, LEVELS)
    model.set_params(lam=-1.0)
    with pytest.raises(InputError, match="lam must be a positive number"):
        model.fit(sine.X[:20], sine.y[:20])
    np.testing.assert_array_equal(model.predict(sine.X, LEVELS), before)


def test_a_constant_target_is_predicted_with_certainty():
    X = np.linspace(0, 1, 20)[:, None]
    model = InfiniteQuantileRegressor().fit(X, np.full(20, 3.0))
    mean, std = model.predict(X, LEVELS, return_std=True)
    np.testing.assert_allclose(mean, 3.0, atol=1e-8)
    assert np.isfinite(std).all()


def test_two_rows_and_equal_inputs_are_enough():
    model = InfiniteQuantileRegressor(lam=1e-2, lengthscale=1.0).fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.warns(FitWarning, match="2 rows"):
        assert np.isfinite(model.predict([[0.5]], LEVELS, return_std=True)).all()
    assert np.isfinite(model.predict_interval([[0.5]], 0.9)).all()
    rng = np.random.default_rng(0)
    y = rng.standard_normal(50)
    same = InfiniteQuantileRegressor(lam=1e-3, lengthscale=1.0).fit(np.zeros((50, 2)), y)
    assert abs(same.predict(np.zeros((1, 2)), 0.5)[0] - np.median(y)) < 0.2


def test_ctrl_c_keeps_the_best_curves_so_far(sine, monkeypatch):
    def interrupted(self, budget, bar):
        raise KeyboardInterrupt

    monkeypatch.setattr(primal.ADMM, "run", interrupted)
    with pytest.warns(FitWarning, match="interrupted"):
        model = InfiniteQuantileRegressor(**FIXED).fit(sine.X, sine.y)
    assert model.fit_report_.interrupted and np.isfinite(model.predict(sine.X, LEVELS)).all()


def test_ctrl_c_in_the_bootstrap_ends_all_replicates(sine, monkeypatch):
    model = InfiniteQuantileRegressor(uncertainty="bootstrap", num_replicates=10, **FIXED).fit(sine.X, sine.y)
    rounds, calls = primal.ADMM.run, []

    def third_time(self, budget, bar):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return rounds(self, budget, bar)

    monkeypatch.setattr(primal.ADMM, "run", third_time)
    with pytest.warns(FitWarning, match="2 of 10"):
        model.predict(sine.X[:3], 0.5, return_std=True)
    assert len(model._replicates) == 2


INFINITE_QUANTILE_CHECKS_FIXED = {"lengthscale": "median", "lam": 1e-5, "num_tasks": 5, "tol": 1e-3}


@parametrize_with_checks(
    [
        InfiniteQuantileRegressor(random_state=0),
        InfiniteQuantileRegressor(coupling="joint", random_state=0, **INFINITE_QUANTILE_CHECKS_FIXED),
        InfiniteQuantileRegressor(num_frequencies=50, random_state=0, **INFINITE_QUANTILE_CHECKS_FIXED),
    ]
)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)
