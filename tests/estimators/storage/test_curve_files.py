"""Model files of curve estimators with changed attributes and a right checksum: loading fails, not predicting."""

import warnings

import numpy as np
import pytest

import ovkgp
from ovkgp.estimators.storage.file import read_model, write_model
from ovkgp.exceptions import OvkgpError

rng = np.random.default_rng(0)
X = rng.uniform(0, 1, (12, 2))
C = X[:, :1] * np.sin(3 * np.linspace(0, 1, 6)) + X[:, 1:] + 0.05 * rng.standard_normal((12, 6))
ESTIMATORS = {
    "gp": ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False),
    "projection": ovkgp.KernelProjectionRegressor(),
    "ridge": ovkgp.FunctionalRidge(),
    "features": ovkgp.FeatureProjectionRegressor(random_state=0),
    "robust": ovkgp.RobustFunctionalRegressor(uncertainty="student_t", max_iter=300, tolerance=1e-3),
    "linear": ovkgp.FunctionalLinearRegressor(),
    "triple": ovkgp.TripleBasisRegressor(input_dictionary=None, num_features=20, random_state=0),
    "additive": ovkgp.KernelAdditiveRegressor(),
    "averages": ovkgp.KernelCurveRegressor(),
}
JUNK = (None, "text", 1.5, [], {"tuple": []}, {"mapping": []})


def use(model):
    """Use what a user calls."""
    model.predict(X, return_std=True) if model.has_predictive else model.predict(X)
    model.summary(), model.list_parameters(), model.training_curves(), model.score(X, C), model.training_data()


SLOW = [pytest.param(name, marks=[] if name == "ridge" else pytest.mark.slow) for name in ESTIMATORS]


@pytest.mark.parametrize("name", SLOW)
def test_changed_attributes_are_rejected_at_load_or_harmless(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ESTIMATORS[name].fit(X, C)
        model.save(tmp_path / "model")
        use(ovkgp.load(tmp_path / "model"))
        tensors, header = read_model(tmp_path / "model")
        failures = []
        for attribute in header["fitted"]:
            for junk in JUNK:
                changed = {**header, "fitted": {**header["fitted"], attribute: junk}}
                write_model(tmp_path / "changed", dict(tensors), changed)
                try:
                    loaded = ovkgp.load(tmp_path / "changed")
                except OvkgpError:
                    continue
                try:
                    use(loaded)
                except OvkgpError:
                    continue
                except Exception as error:  # what is tested is that there is none
                    failures.append(f"{attribute} = {junk!r}: {error!r}")
    assert not failures, "\n".join(failures)
