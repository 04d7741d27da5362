"""Posterior and prior draws of hyperparameters, their diagnostics, and their export to ArviZ."""
