"""How does a scikit-learn user get it? Estimators whose predictions come with their uncertainty."""

from ovkgp.estimators.gp_regressor import GPRegressor

__all__ = ["GPRegressor"]
