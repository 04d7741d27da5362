import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.plotting.report.evaluation_data import KINDS, called, class_name, kind_of


@pytest.mark.parametrize("name", KINDS)
def test_an_estimator_that_is_not_fitted_is_refused(name):
    with pytest.raises(NotFittedError):
        kind_of(getattr(ovkgp, name)())


@pytest.mark.parametrize("stranger", [Ridge(), make_pipeline(StandardScaler(), ovkgp.GPRegressor()), "model", None])
def test_strangers_are_refused_and_the_estimators_named(stranger):
    with pytest.raises(InputError, match=r"GPRegressor.*got"):
        kind_of(stranger)


def test_a_class_that_extends_one_of_ours_is_known():
    class Mine(ovkgp.OVKRidge):
        pass

    assert class_name(Mine()) == "OVKRidge"


def test_outputs_are_called_by_name_or_by_number(coupled):
    assert called(coupled, "w") == "Output 'w'"
    assert called(ovkgp.OVKRidge().fit(np.eye(2), np.eye(2)), "output 1") == "Output 1"
