"""Columns of predictions for each kind of model, equal to those of the Python interface."""

import warnings

import numpy as np
import pandas as pd
import pytest
from cli_cases import make_table
from scipy.stats import norm

import ovkgp
from ovkgp.estimators.common.prediction_columns import PredictionRequest, quantile_suffix
from ovkgp.exceptions import InputError, OptionError

FRAME = make_table()
X = FRAME[["a", "b"]]


@pytest.fixture(scope="module")
def regressor():
    return ovkgp.GPRegressor("independent", random_state=0).fit(X, FRAME[["u", "v"]])


@pytest.mark.parametrize(
    ("level", "name"), [(0.05, "q05"), (0.5, "q50"), (0.1, "q10"), (0.025, "q02.5"), (0.999, "q99.9"), (1e-3, "q00.1")]
)
def test_quantile_suffix_is_percentage(level, name):
    assert quantile_suffix(level) == name


def test_prediction_columns_equals_predictions_of_regressor(regressor):
    found = regressor.prediction_columns(X, PredictionRequest())
    assert list(found) == [f"{y}_{quantity}" for y in ("u", "v") for quantity in ("mean", "std", "q05", "q50", "q95")]
    mean, std = regressor.predict(X, return_std=True)
    quantiles = regressor.predict_quantiles(X, [0.05, 0.5, 0.95])
    for j, name in enumerate(("u", "v")):
        np.testing.assert_array_equal(found[f"{name}_mean"], mean[:, j])
        np.testing.assert_array_equal(found[f"{name}_std"], std[:, j])
        np.testing.assert_array_equal(found[f"{name}_q95"], quantiles[:, j, 2])


def test_prediction_columns_supports_intervals_and_latent_function(regressor):
    found = regressor.prediction_columns(X, PredictionRequest(quantiles=(0.3,), level=0.8, latent=True))
    assert list(found)[:5] == ["u_mean", "u_std", "u_q30", "u_low", "u_high"]
    lower, upper = regressor.predict_interval(X, 0.8, noise=False)
    np.testing.assert_allclose(found["u_low"], lower[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found["v_high"], upper[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(found["u_std"], regressor.predict(X, return_std=True, noise=False)[1][:, 0])


def test_prediction_columns_numbers_outputs_without_names():
    model = ovkgp.OVKRidge(lam=0.1).fit(X.to_numpy(), FRAME["u"].to_numpy())
    found = model.prediction_columns(X.to_numpy(), PredictionRequest(quantiles=(0.5,)))
    assert list(found) == ["y0_mean", "y0_std", "y0_q50"]
    np.testing.assert_array_equal(found["y0_mean"], model.predict(X.to_numpy()))


def test_prediction_columns_has_integer_quantiles_of_counts():
    model = ovkgp.GPRegressor("independent", likelihood="poisson", num_frequencies=8, random_state=0)
    model.fit(X, FRAME[["n"]])
    found = model.prediction_columns(X, PredictionRequest(quantiles=(0.9,)))
    np.testing.assert_array_equal(found["n_q90"], np.round(found["n_q90"]))
    assert (found["n_mean"] > 0).all()


def test_prediction_columns_equals_predictions_of_vector_tasks():
    Y = pd.DataFrame(
        {"left_x": FRAME["u"], "left_y": FRAME["n"], "right_x": FRAME["u"] + 1, "right_y": 2.0 * FRAME["n"]}
    )
    model = ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0]).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.prediction_columns(X, PredictionRequest(quantiles=(0.1,), level=0.5, latent=True))
    assert list(found)[:5] == ["left_x_mean", "left_x_std", "left_x_q10", "left_x_low", "left_x_high"]
    mean, std = model.predict(X, return_std=True, noise=False)
    np.testing.assert_array_equal(found["right_y_mean"], mean[:, 3])
    np.testing.assert_allclose(found["right_x_q10"], mean[:, 2] + norm.ppf(0.1) * std[:, 2], rtol=1e-12)
    np.testing.assert_allclose(found["right_x_high"], mean[:, 2] + norm.ppf(0.75) * std[:, 2], rtol=1e-12)


def quantile_regressor(**options):
    return ovkgp.InfiniteQuantileRegressor(lam=0.01, lengthscale=1.0, num_tasks=5, **options).fit(X, FRAME["u"])


def test_prediction_columns_equals_predictions_of_quantile_regressor():
    model = quantile_regressor()
    found = model.prediction_columns(X, PredictionRequest(quantiles=(0.9, 0.2)))
    assert list(found) == ["u_q90", "u_q20", "u_low", "u_high"]
    np.testing.assert_allclose(found["u_q20"], model.predict(X, quantiles=0.2), rtol=1e-12)
    np.testing.assert_array_equal(found["u_low"], model.predict_interval(X, 0.9)[0])
    np.testing.assert_array_equal(
        model.prediction_columns(X, PredictionRequest(level=0.5))["u_high"], model.predict_interval(X, 0.5)[1]
    )


def test_prediction_columns_uses_levels_of_finite_quantile_regressor():
    model = quantile_regressor(coupling="joint", levels=[0.25, 0.75])
    assert list(model.prediction_columns(X, PredictionRequest())) == ["u_q25", "u_q75"]
    assert list(model.prediction_columns(X, PredictionRequest(level=0.5))) == ["u_q25", "u_q75", "u_low", "u_high"]
    with pytest.raises(InputError, match="level"):
        model.prediction_columns(X, PredictionRequest(quantiles=(0.5,)))


def test_prediction_columns_has_class_and_decision_per_cost():
    model = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, FRAME["label"])
    found = model.prediction_columns(X, PredictionRequest())
    assert list(found) == ["label_class", "label_decision"]
    assert found["label_class"].tolist() == model.predict(X).tolist()
    found = model.prediction_columns(X, PredictionRequest(costs=(-0.9, 0.9)))
    assert list(found) == [f"label_{w}_at_{c}" for c in ("-0.9", "0.9") for w in ("class", "decision")]
    np.testing.assert_array_equal(found["label_decision_at_0.9"], model.decision_function(X, 0.9))
    # the first of the two classes is "high", and a large cost finds every "low"
    assert (found["label_class_at_0.9"] == "low").sum() >= (found["label_class_at_-0.9"] == "low").sum()


def test_prediction_columns_has_probabilities_of_classifier():
    model = ovkgp.SimplexClassifier(cv=2).fit(X, FRAME["label"])
    found = model.prediction_columns(X, PredictionRequest())
    assert list(found) == ["label_class", "label_p_high", "label_p_low"]
    np.testing.assert_allclose(found["label_p_high"] + found["label_p_low"], 1)


def test_prediction_columns_has_inliers_and_levels_of_level_sets():
    model = ovkgp.InfiniteOneClassSVM(nu=0.2, random_state=0).fit(X)
    found = model.prediction_columns(X, PredictionRequest())
    assert list(found) == ["inlier", "level"] and found["inlier"].dtype == bool
    np.testing.assert_array_equal(found["inlier"], model.predict(X) == 1)
    far = model.prediction_columns(X.iloc[:1] + 99.0, PredictionRequest())
    assert not far["inlier"][0] and far["level"][0] == 0.0


def test_prediction_columns_rejects_unsupported_options(regressor):
    classifier = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, FRAME["label"])
    level_sets = ovkgp.InfiniteOneClassSVM(random_state=0).fit(X)
    for model, request, option in [
        (regressor, PredictionRequest(costs=(0.5,)), "--costs"),
        (quantile_regressor(), PredictionRequest(latent=True), "--latent"),
        (classifier, PredictionRequest(level=0.9), "--level"),
        (classifier, PredictionRequest(quantiles=(0.5,)), "--quantiles"),
        (level_sets, PredictionRequest(latent=True), "--latent"),
    ]:
        with pytest.raises(OptionError, match=f"{option} is not supported"):
            model.prediction_columns(X, request)
