"""Gaussian-process regression: `GPRegressor`, its training, and its hyperparameter draws."""
