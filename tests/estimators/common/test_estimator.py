"""A new estimator needs its file, a line in `__init__` and its test: commands, plots and reports use only the protocol."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

import ovkgp
from ovkgp import estimators, plotting
from ovkgp.cli.prediction_job import predict_file, read_evaluation_data
from ovkgp.criticism import coverage, training_data
from ovkgp.criticism.predictive_distributions import PredictiveDistribution
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.estimators.functional.base import FunctionalRegressor
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import write_report
from ovkgp.recipes import Recipe

ROOT = Path(ovkgp.__file__).parent
CLASSES = [getattr(ovkgp, name) for name in estimators.__all__ if name[0].isupper() and name != "BayesSearchCV"]


class Averages(RegressorMixin, Estimator):
    """Trial estimator: the mean of each output, without inputs and without a posterior."""

    description = Description("averages", "Each output is predicted by its mean.", "f(x) = ȳ")
    reported = (("shrinkage", "shrinkage"),)

    def __init__(self, shrinkage=0.5):
        self.shrinkage = shrinkage

    def fit(self, X, y):
        self.output_names_ = [str(name) for name in y.columns]
        validate_data(self, X, reset=True)
        self.n_outputs_, self.mean_ = y.shape[1], (1 - self.shrinkage) * np.asarray(y).mean(0)
        return self

    def predict(self, X):
        return np.tile(self.mean_, (len(X), 1))


class GaussianAverages(Averages):
    """Trial estimator that predicts distributions."""

    has_predictive = True

    def fit(self, X, y):
        self.std_ = np.asarray(y).std(0)
        return super().fit(X, y)

    def predictive(self, X):
        mean, std = self.predict(X), np.tile(self.std_, (len(X), 1))

        def cdf(Y):
            return norm.cdf(Y, mean, std)

        return PredictiveDistribution(mean, std, cdf, cdf, is_gaussian=True)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(40, 2)), columns=["a", "b"]), pd.DataFrame(
        rng.normal(size=(40, 2)), columns=["u", "v"]
    )


def test_trial_estimator_is_predicted_by_command(data, tmp_path):
    X, Y = data
    X.to_csv(tmp_path / "rows.csv", index=False)
    model = Averages().fit(X, Y)
    assert predict_file(model, tmp_path / "rows.csv", tmp_path / "out.csv", PredictionRequest()) == 40
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == ["a", "b", "u_mean", "v_mean"]
    np.testing.assert_allclose(found["v_mean"], Y["v"].mean() / 2)
    with pytest.raises(OptionError, match="--quantiles"):
        model.prediction_columns(X, PredictionRequest(quantiles=(0.5,)))


def test_trial_estimator_reads_evaluation_data(data, tmp_path):
    X, Y = data
    pd.concat([X, Y], axis=1).to_csv(tmp_path / "rows.csv", index=False)
    found = read_evaluation_data(Averages().fit(X, Y), tmp_path / "rows.csv", None, None, None, True, ",")
    pd.testing.assert_frame_equal(found[0], X)
    pd.testing.assert_frame_equal(found[1], Y)


@pytest.mark.parametrize("kind", [Averages, GaussianAverages])
def test_trial_estimator_is_reported(kind, data, tmp_path):
    X, Y = data
    model = kind().fit(X, Y)
    page = write_report(model, tmp_path / "report.html", X=X + 0.1, Y=Y).read_text(encoding="utf-8")
    assert "<h1>u and v over a and b</h1>" in page and "predicted by its mean" in page and "shrinkage" in page
    assert ("Coverage of the 90" in page.replace("\N{NO-BREAK SPACE}", " ")) == model.has_predictive
    assert write_report(model, tmp_path / "report.html").is_file()


def test_trial_estimator_is_criticized_and_plotted(data):
    X, Y = data
    model = GaussianAverages(shrinkage=0.0).fit(X, Y)
    assert training_data(model) is None
    assert coverage(model, X, Y, levels=[0.9]).overall[0] == pytest.approx(0.9, abs=0.1)
    axes = plotting.plot_coverage(model, X, Y)
    assert axes.shape == (2,) and axes[0].get_title().startswith("u ")
    plt.close("all")
    with pytest.raises(OptionError, match="Averages has no predictive"):
        coverage(Averages().fit(X, Y), X, Y)


def test_trial_estimator_is_built_by_recipe(data, monkeypatch):
    monkeypatch.setattr(ovkgp, "Averages", Averages, raising=False)
    recipe = Recipe(name="mine", estimator="Averages", options={"shrinkage": 0.1})
    assert recipe.estimator_class is Averages and recipe.estimator_class.kind == "table"
    assert "chunks" in recipe.estimator_class.reason_not_streamable({}) and not Averages.has_checkpoints({})


def test_trial_estimator_has_summary(data):
    assert str(Averages().fit(*data).summary()) == "estimator  Averages\ninputs     a, b\noutputs    u, v"


@pytest.mark.parametrize("kind", CLASSES)
def test_fit_is_read_in_the_file_of_the_estimator(kind):
    """What estimators share are functions with arguments, not the `fit` of a base class that calls methods of subclasses."""
    assert "fit" in vars(kind)


@pytest.mark.parametrize("kind", CLASSES)
def test_estimators_follow_protocol(kind):
    assert issubclass(kind, Estimator) and kind.kind in ("table", "tasks", "target", "labels", "none", "series")
    has_predictive, overrides = kind().has_predictive, kind.predictive is not Estimator.predictive
    assert kind.description.name and (has_predictive == overrides or issubclass(kind, FunctionalRegressor))


def test_class_names_of_estimators_decide_nothing_above():
    """Names of classes occur above the estimators only in texts, the graph of recipes, and the demonstration."""
    names = "|".join(kind.__name__ for kind in CLASSES)
    pattern = re.compile(rf"""(==|!=|\bin|isinstance\(.*,) *\(?["']?({names})\b|^ *["']({names})["']: """)
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("cli", "plotting", "criticism", "recipes")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    }
    assert found <= {"recipes/schemas.py"}


def test_report_rejects_objects_outside_of_protocol(tmp_path):
    with pytest.raises(InputError, match="estimator of ovkgp"):
        write_report("model", tmp_path / "report.html")
