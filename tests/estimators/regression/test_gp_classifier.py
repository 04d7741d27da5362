"""Tests of `GPClassifier`: labels of any kind, calibrated probabilities, invariances, files and scikit-learn's checks."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp import GPClassifier
from ovkgp.exceptions import FitWarning, InputError, OptionError


@parametrize_with_checks([GPClassifier(random_state=0)])
def test_gp_classifier_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([GPClassifier(base_kernel="rq", training_rows=10, random_state=0)])
def test_gp_classifier_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


def blobs(n=60, num_classes=3, seed=0, noise=0.8):
    """Draw inputs (n, 2) around the corners of a polygon, and their labels."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % num_classes)
    angle = 2 * np.pi * y / num_classes
    return 1.5 * np.c_[np.cos(angle), np.sin(angle)] + noise * rng.standard_normal((n, 2)), y


X, LABELS = blobs()
Z = np.random.default_rng(1).uniform(-3, 3, (12, 2))


@pytest.fixture(scope="module")
def model():
    return GPClassifier(random_state=0).fit(X, LABELS)


@pytest.fixture(scope="module")
def binary():
    return GPClassifier(random_state=0).fit(X, LABELS == 0)


# --- labels -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        np.array(["b", "a", "c"]),
        np.array([7, -3, 20]),
        np.array([0.0, 2.0, 1.0]),
        np.array(["b", "a", "c"], dtype=object),
    ],
    ids=["strings", "integers", "floats", "objects"],
)
def test_relabeling_permutes_the_probabilities(model, names):
    other = GPClassifier(random_state=0).fit(X, names[LABELS])
    order = np.argsort(names)
    assert other.classes_.tolist() == names[order].tolist()
    np.testing.assert_allclose(other.predict_proba(Z), model.predict_proba(Z)[:, order], atol=1e-4)  # a quadrature rule
    np.testing.assert_array_equal(other.predict(X), names[model.predict(X)])


def test_booleans_and_swapped_classes_have_mirrored_probabilities(binary):
    assert binary.classes_.tolist() == [False, True] and binary.predict(Z).dtype == bool
    other = GPClassifier(random_state=0).fit(X, LABELS != 0)
    np.testing.assert_allclose(other.predict_proba(Z), binary.predict_proba(Z)[:, ::-1], rtol=1e-6)
    np.testing.assert_allclose(other.predict_latent(Z), -binary.predict_latent(Z), rtol=1e-6)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_rows_without_label_are_not_used(missing):
    y = np.array(["b", "a", "c"], dtype=object)[LABELS]
    y[::4] = missing
    kept = np.arange(len(X)) % 4 != 0
    expected = GPClassifier(random_state=0).fit(X[kept], y[kept])
    for labels in (y, y.tolist(), pd.Series(y, name="kind")):
        found = GPClassifier(random_state=0).fit(X, labels)
        assert found.classes_.tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(found.predict_proba(Z), expected.predict_proba(Z))
    np.testing.assert_array_equal(found.training_data()[0].shape, (kept.sum(), 2))
    assert found.output_names_ == ["kind"]
    assert found.score(X, y) == expected.score(X[kept], y[kept])


def test_columns_are_learned_independently():
    Y = np.c_[LABELS, LABELS == 1].astype(float)
    Y[::3, 0], Y[1::5, 1] = np.nan, np.nan
    both = GPClassifier(random_state=0).fit(X, Y)
    probabilities, std = both.predict_proba(Z, return_std=True)
    latent = both.predict_latent(Z)
    assert [classes.tolist() for classes in both.classes_] == [[0, 1, 2], [0, 1]]
    assert [part.shape for part in std] == [(12, 3), (12,)] and both.predict(Z).shape == (12, 2)
    for j in range(2):
        alone = GPClassifier(random_state=0).fit(X, Y[:, j])
        np.testing.assert_array_equal(probabilities[j], alone.predict_proba(Z))
        np.testing.assert_array_equal(latent[j], alone.predict_latent(Z))
        np.testing.assert_array_equal(both.predict(Z)[:, j], alone.predict(Z))
        np.testing.assert_array_equal(both.predict_log_proba(Z)[j], alone.predict_log_proba(Z))
    observed = np.isfinite(Y)
    right = ((both.predict(X) == Y) | ~observed).all(1)[observed.any(1)].mean()
    assert both.score(X, Y) == pytest.approx(right)
    weights, is_wrong = np.arange(60.0), both.predict(X) != Y
    has_labels, failed = observed.any(1), (is_wrong & observed).any(1)
    assert both.score(X, Y, weights) == pytest.approx(1 - weights[failed].sum() / weights[has_labels].sum())


def test_columns_of_a_data_frame_keep_names_and_types():
    frame = pd.DataFrame({"kind": np.array(["b", "a", "c"])[LABELS], "is_first": LABELS == 0})
    inputs = pd.DataFrame(X, columns=["east", "north"])
    found = GPClassifier(random_state=0).fit(inputs, frame)
    predicted = found.predict(inputs)
    assert (
        predicted.dtype == object and set(predicted[:, 1]) == {False, True} and set(predicted[:, 0]) == {"a", "b", "c"}
    )
    assert found.output_names_ == ["kind", "is_first"]
    with pytest.raises(OptionError, match="one column"):
        found.describe()
    assert "kind" in str(found.summary())
    one = GPClassifier(random_state=0).fit(inputs, frame[["kind"]])
    assert one.predict(inputs).shape == (60,) and one.classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (np.zeros(60), "one class only"),
        (np.full(60, np.nan), "no labels"),
        (np.where(LABELS == 0, "a", None).astype(object), "one class only: 'a'"),
        (np.c_[LABELS, np.ones(60, dtype=int)], "column 'output 1'"),
        (np.where(LABELS == 0, np.inf, 1.0), "infinity"),
        (np.linspace(0, 1, 60), "continuous"),
        (LABELS[:59], "inconsistent"),
        (["a"] * 30 + [1] * 30, "one type"),
        (np.zeros((60, 2, 2)), "shape"),
        (None, "requires y"),
    ],
)
def test_fit_rejects_invalid_labels(y, match):
    with pytest.raises(InputError, match=match):
        GPClassifier().fit(X, y)


def test_a_class_that_is_missing_in_a_fold_is_an_error_of_that_fold_only():
    """A class of one row is unknown where it is held out: its probability is not predicted."""
    y = LABELS.copy()
    y[0] = 3
    found = GPClassifier(random_state=0).fit(X, y)
    assert found.predict_proba(Z).shape == (12, 4)
    assert found.score(X[1:], y[1:]) > 0.7
    held_out = GPClassifier(random_state=0).fit(X[1:], y[1:])
    assert held_out.classes_.tolist() == [0, 1, 2] and held_out.score(X[:1], y[:1]) == 0
    assert np.isfinite(cross_val_score(GPClassifier(random_state=0), X, y, cv=StratifiedKFold(2))).all()


@pytest.mark.parametrize("options", [{"base_kernel": "matern"}, {"training_rows": 1}, {"verbose": -1}])
def test_fit_rejects_invalid_options(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        GPClassifier(**options).fit(X, LABELS)


# --- probabilities ------------------------------------------------------------------------------------------------------


def test_probabilities_are_finite_and_the_latent_std_grows_away_from_the_data(model, binary):
    far = np.array([[0.0, 0.0], [200.0, -100.0], [1e8, 1e8]])
    for fitted in (model, binary):
        probabilities, std = fitted.predict_proba(far, return_std=True)
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-12)
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(far)), probabilities, rtol=1e-12)
        assert np.isfinite(fitted.predict_log_proba(far)).all() and (std[1] > std[0]).all()
    np.testing.assert_allclose(model.predict_latent(Z).sum(1), 0, atol=1e-10)
    assert (np.sign(binary.predict_latent(Z)) == np.where(binary.predict(Z), 1, -1)).all()


def test_predictions_do_not_depend_on_the_batch(model, binary):
    for fitted in (model, binary):
        probabilities, std = fitted.predict_proba(Z, return_std=True)
        for rows in ([3], [7, 1, 7], range(11, -1, -1)):
            alone, alone_std = fitted.predict_proba(Z[list(rows)], return_std=True)
            np.testing.assert_allclose(alone, probabilities[list(rows)], rtol=1e-10)
            np.testing.assert_allclose(alone_std, std[list(rows)], rtol=1e-8)


def test_probabilities_do_not_depend_on_units_and_the_order_of_rows(model):
    expected, order = model.predict_proba(Z), np.random.default_rng(2).permutation(len(X))
    permuted = GPClassifier(random_state=0).fit(X[order], LABELS[order])
    np.testing.assert_allclose(permuted.predict_proba(Z), expected, rtol=1e-6, atol=1e-9)
    unit, origin = np.array([1e-3, 250.0]), np.array([40.0, -1e4])
    other = GPClassifier(random_state=0).fit(X * unit + origin, LABELS)
    np.testing.assert_allclose(other.predict_proba(Z * unit + origin), expected, rtol=1e-5, atol=1e-8)
    constant = GPClassifier(random_state=0).fit(np.c_[X, np.full(60, 3.0)], LABELS)
    np.testing.assert_allclose(constant.predict_proba(np.c_[Z, np.full(12, 3.0)]), expected, rtol=1e-12)


def test_rows_beyond_training_rows_improve_the_posterior():
    X, y = blobs(400, 3, seed=3)
    test = slice(200, 400)
    few = GPClassifier(training_rows=30, random_state=0).fit(X[:30], y[:30])
    more = GPClassifier(training_rows=30, random_state=0).fit(X[:200], y[:200])
    full = GPClassifier(training_rows=None, random_state=0).fit(X[:200], y[:200])
    losses = [log_loss(y[test], each.predict_proba(X[test])) for each in (few, more, full)]
    assert losses[1] < losses[0] and losses[1] < losses[2] + 0.03
    assert len(more.training_data()[0]) == 200


def test_rows_beyond_the_largest_posterior_raise_a_warning(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.stacking.class_mixture.MAX_ROWS", 40)
    with pytest.warns(FitWarning, match="random subset of 40"):
        found = GPClassifier(random_state=0).fit(X, LABELS)
    assert len(found.training_data()[0]) == 40
    assert np.bincount(found.training_data()[1]).min() >= 12


def test_probabilities_are_better_than_those_of_scikit_learn():
    """Log loss on half of iris and wine, 75 and 89 rows, below the values of the optimized `GaussianProcessClassifier` (.26, .43)."""
    for load, largest in ((load_iris, 0.15), (load_wine, 0.15)):
        X, y = load(return_X_y=True)
        fitted = GPClassifier(random_state=0).fit(X[::2], y[::2])
        assert log_loss(y[1::2], fitted.predict_proba(X[1::2])) < largest


@pytest.mark.slow
def test_probabilities_are_calibrated_on_simulated_data():
    """Expected calibration error of at most .03, on average over processes of 2 to 4 classes."""
    errors = []
    for seed in range(12):
        rng, num_classes = np.random.default_rng(seed), 2 + seed % 3
        X = rng.normal(size=(200 + 2000, 4))
        waves = np.cos(X @ rng.normal(size=(4, 200)) / 3 + rng.uniform(0, 2 * np.pi, 200))
        logits = 3 * waves @ rng.normal(size=(200, num_classes)) / 10
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        y = (probabilities.cumsum(1) < rng.random(len(X))[:, None]).sum(1)
        found = GPClassifier(random_state=0).fit(X[:200], y[:200]).predict_proba(X[200:])
        errors.append(calibration_error(found, y[200:]))
    assert np.mean(errors) <= 0.03, errors


def calibration_error(probabilities, labels, num_bins=10):
    """Return the mean difference of confidence and accuracy in bins of the confidence, weighted by their numbers of rows."""
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.minimum((num_bins * confidence).astype(int), num_bins - 1)
    gaps = [(bins == k).mean() * abs((confidence - is_right)[bins == k].mean()) for k in np.unique(bins)]
    return sum(gaps)


# --- the estimator ------------------------------------------------------------------------------------------------------


def test_saved_models_predict_the_same(model, binary, tmp_path):
    Y = pd.DataFrame({"kind": np.array(["b", "a", "c"])[LABELS], "is_first": LABELS == 0})
    both = GPClassifier(random_state=0).fit(pd.DataFrame(X, columns=["east", "north"]), Y)
    for fitted, rows in ((model, Z), (binary, Z), (both, pd.DataFrame(Z, columns=["east", "north"]))):
        fitted.save(tmp_path / "model.ovkgp")
        loaded = ovkgp.load(tmp_path / "model.ovkgp")
        for other in (loaded, copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
            for j, column in enumerate(fitted.columns_):
                inputs = column.scaling.inputs(np.asarray(rows)).numpy()
                for method in ("log_probabilities", "scores"):
                    found, expected = (getattr(c.mixture, method)(inputs) for c in (other.columns_[j], column))
                    np.testing.assert_allclose(found, expected, rtol=1e-12)
            np.testing.assert_array_equal(other.predict(rows), fitted.predict(rows))
        assert vars(loaded).keys() == vars(fitted).keys()
        assert str(loaded.summary()) == str(fitted.summary())


def test_pickles_omit_matrices(model):
    model.predict(Z)
    assert len(pickle.dumps(model)) < 40_000  # the factors of 60 rows and 3 classes take 86 kB per component


def test_parameters_are_in_original_units(model):
    unit = np.array([10.0, 0.1])
    other = GPClassifier(random_state=0).fit(X * unit, LABELS)
    for found, expected in zip(other.list_parameters(), model.list_parameters(), strict=True):
        factor = unit[int(found.input.removeprefix("input "))] if found.input else 1.0
        assert found.parameter == expected.parameter
        np.testing.assert_allclose(found.draws, factor * expected.draws, rtol=1e-4)
    assert model.largest_lengthscale() > 0 and model.fit_report_.converged
    assert sum(p.draws.item() for p in model.list_parameters() if p.parameter.endswith("weight")) == pytest.approx(1)


def test_description_and_prediction_columns(model):
    about = model.describe()
    assert about.num_rows == 60 and "leave-one-out" in about.calibration
    columns = model.prediction_columns(Z, ovkgp.estimators.common.prediction_columns.PredictionRequest())
    assert list(columns) == ["y_class", "y_p_0", "y_p_1", "y_p_2"]
    np.testing.assert_array_equal(columns["y_p_1"], model.predict_proba(Z)[:, 1])


def test_failed_fit_keeps_the_previous_one(model):
    fitted = copy.deepcopy(model)
    with pytest.raises(InputError):
        fitted.fit(X, np.zeros(60))
    np.testing.assert_array_equal(fitted.predict_proba(Z), model.predict_proba(Z))
    with pytest.raises(NotFittedError):
        clone(model).predict(X)
    search = GridSearchCV(
        GPClassifier(random_state=0), {"base_kernel": ["rbf", "matern32"]}, cv=2, scoring="neg_log_loss"
    )
    assert np.isfinite(search.fit(X, LABELS).best_score_)
