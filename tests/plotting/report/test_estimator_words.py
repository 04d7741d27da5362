from ovkgp import estimators
from ovkgp.estimators.storage.storage import ESTIMATORS as STORED
from ovkgp.plotting.report.descriptions import ESTIMATORS
from ovkgp.plotting.report.evaluation_data import KINDS


def test_every_estimator_that_a_file_may_hold_has_words():
    assert set(STORED) <= set(ESTIMATORS)


def test_every_estimator_of_the_package_has_words_but_the_search():
    offered = {name for name in estimators.__all__ if name[0].isupper()} - {"BayesSearchCV"}
    assert offered == set(ESTIMATORS) == set(KINDS)
