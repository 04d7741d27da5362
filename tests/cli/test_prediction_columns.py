"""The columns of predictions: what each kind of model is asked, equal to what Python says."""

import warnings

import numpy as np
import pandas as pd
import pytest
from cli_cases import scalar_features
from scipy.stats import norm

import ovkgp
from ovkgp.cli.prediction_columns import PredictionRequest, answers, quantile_name
from ovkgp.exceptions import InputError, OptionError

FRAME = scalar_features()
X = FRAME[["a", "b"]]


@pytest.fixture(scope="module")
def regressor():
    return ovkgp.GPRegressor("independent", random_state=0).fit(X, FRAME[["u", "v"]])


@pytest.mark.parametrize(
    ("level", "name"), [(0.05, "q05"), (0.5, "q50"), (0.1, "q10"), (0.025, "q02.5"), (0.999, "q99.9"), (1e-3, "q00.1")]
)
def test_names_of_quantiles(level, name):
    assert quantile_name(level) == name


def test_a_regressor(regressor):
    found = answers(regressor, X, PredictionRequest())
    assert list(found) == [f"{y}_{what}" for y in ("u", "v") for what in ("mean", "sd", "q05", "q50", "q95")]
    mean, std = regressor.predict(X, return_std=True)
    quantiles = regressor.predict_quantiles(X, [0.05, 0.5, 0.95])
    for place, name in enumerate(("u", "v")):
        np.testing.assert_array_equal(found[f"{name}_mean"], mean[:, place])
        np.testing.assert_array_equal(found[f"{name}_sd"], std[:, place])
        np.testing.assert_array_equal(found[f"{name}_q95"], quantiles[:, place, 2])


def test_an_interval_and_the_latent_function(regressor):
    found = answers(regressor, X, PredictionRequest(quantiles=(0.3,), level=0.8, latent=True))
    assert list(found)[:5] == ["u_mean", "u_sd", "u_q30", "u_low", "u_high"]
    lower, upper = regressor.predict_interval(X, 0.8, noise=False)
    np.testing.assert_allclose(found["u_low"], lower[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found["v_high"], upper[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(found["u_sd"], regressor.predict(X, return_std=True, noise=False)[1][:, 0])


def test_a_model_fitted_from_arrays_with_one_output():
    model = ovkgp.OVKRidge(lam=0.1).fit(X.to_numpy(), FRAME["u"].to_numpy())
    found = answers(model, X.to_numpy(), PredictionRequest(quantiles=(0.5,)))
    assert list(found) == ["y0_mean", "y0_sd", "y0_q50"]
    np.testing.assert_array_equal(found["y0_mean"], model.predict(X.to_numpy()))


def test_counts_have_whole_quantiles():
    model = ovkgp.GPRegressor("independent", likelihood="poisson", num_frequencies=8, random_state=0)
    model.fit(X, FRAME[["n"]])
    found = answers(model, X, PredictionRequest(quantiles=(0.9,)))
    np.testing.assert_array_equal(found["n_q90"], np.round(found["n_q90"]))
    assert (found["n_mean"] > 0).all()


def test_vectors_at_tasks():
    Y = pd.DataFrame(
        {"left_x": FRAME["u"], "left_y": FRAME["n"], "right_x": FRAME["u"] + 1, "right_y": 2.0 * FRAME["n"]}
    )
    model = ovkgp.VectorTaskRegressor(tasks=[0.0, 1.0]).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = answers(model, X, PredictionRequest(quantiles=(0.1,), level=0.5, latent=True))
    assert list(found)[:5] == ["left_x_mean", "left_x_sd", "left_x_q10", "left_x_low", "left_x_high"]
    mean, std = model.predict(X, return_std=True, noise=False)
    np.testing.assert_array_equal(found["right_y_mean"], mean[:, 3])
    np.testing.assert_allclose(found["right_x_q10"], mean[:, 2] + norm.ppf(0.1) * std[:, 2], rtol=1e-12)
    np.testing.assert_allclose(found["right_x_high"], mean[:, 2] + norm.ppf(0.75) * std[:, 2], rtol=1e-12)


def quantile_regressor(**options):
    return ovkgp.InfiniteQuantileRegressor(lam=0.01, lengthscale=1.0, num_tasks=5, **options).fit(X, FRAME["u"])


def test_quantiles_and_their_calibrated_interval():
    model = quantile_regressor()
    found = answers(model, X, PredictionRequest(quantiles=(0.9, 0.2)))
    assert list(found) == ["u_q90", "u_q20", "u_low", "u_high"]
    np.testing.assert_allclose(found["u_q20"], model.predict(X, quantiles=0.2), rtol=1e-12)
    np.testing.assert_array_equal(found["u_low"], model.predict_interval(X, 0.9)[0])
    np.testing.assert_array_equal(
        answers(model, X, PredictionRequest(level=0.5))["u_high"], model.predict_interval(X, 0.5)[1]
    )


def test_finitely_many_quantiles():
    model = quantile_regressor(coupling="joint", levels=[0.25, 0.75])
    assert list(answers(model, X, PredictionRequest())) == ["u_q25", "u_q75"]
    assert list(answers(model, X, PredictionRequest(level=0.5))) == ["u_q25", "u_q75", "u_low", "u_high"]
    with pytest.raises(InputError, match="were learned"):
        answers(model, X, PredictionRequest(quantiles=(0.5,)))


def test_classes_at_costs():
    model = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, FRAME["label"])
    found = answers(model, X, PredictionRequest())
    assert list(found) == ["label_class", "label_decision"]
    assert found["label_class"].tolist() == model.predict(X).tolist()
    found = answers(model, X, PredictionRequest(costs=(-0.9, 0.9)))
    assert list(found) == [f"label_{w}_at_{c}" for c in ("-0.9", "0.9") for w in ("class", "decision")]
    np.testing.assert_array_equal(found["label_decision_at_0.9"], model.decision_function(X, 0.9))
    # of two classes the first is "high", and a large cost finds every "low"
    assert (found["label_class_at_0.9"] == "low").sum() >= (found["label_class_at_-0.9"] == "low").sum()


def test_classes_with_probabilities():
    model = ovkgp.SimplexClassifier(cv=2).fit(X, FRAME["label"])
    found = answers(model, X, PredictionRequest())
    assert list(found) == ["label_class", "label_p_high", "label_p_low"]
    np.testing.assert_allclose(found["label_p_high"] + found["label_p_low"], 1)


def test_level_sets():
    model = ovkgp.InfiniteOneClassSVM(nu=0.2, random_state=0).fit(X)
    found = answers(model, X, PredictionRequest())
    assert list(found) == ["inlier", "level"] and found["inlier"].dtype == bool
    np.testing.assert_array_equal(found["inlier"], model.predict(X) == 1)
    far = answers(model, X.iloc[:1] + 99.0, PredictionRequest())
    assert not far["inlier"][0] and far["level"][0] == 0.0


def test_questions_that_mean_nothing(regressor):
    classifier = ovkgp.InfiniteCostSensitiveClassifier(random_state=0).fit(X, FRAME["label"])
    level_sets = ovkgp.InfiniteOneClassSVM(random_state=0).fit(X)
    for model, question, option in [
        (regressor, PredictionRequest(costs=(0.5,)), "--costs"),
        (quantile_regressor(), PredictionRequest(latent=True), "--latent"),
        (classifier, PredictionRequest(level=0.9), "--level"),
        (classifier, PredictionRequest(quantiles=(0.5,)), "--quantiles"),
        (level_sets, PredictionRequest(latent=True), "--latent"),
    ]:
        with pytest.raises(OptionError, match=f"{option} means nothing to"):
            answers(model, X, question)
