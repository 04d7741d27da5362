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
