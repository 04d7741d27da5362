"""How does a scikit-learn user get it? Estimators whose predictions come with their uncertainty."""

from ovkgp.estimators.gp_regressor import GPRegressor
from ovkgp.estimators.storage import load

__all__ = ["GPRegressor", "load"]
