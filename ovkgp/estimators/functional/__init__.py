"""Estimators whose outputs are functions, observed on a grid, with gaps, or at different points."""
