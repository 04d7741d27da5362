"""Estimation of all conditional quantiles at once."""
