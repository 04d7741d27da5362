"""Mixtures of candidate models, weighted by how well they predict held-out rows."""
