"""Solvers for structured linear systems: dense, Kronecker and iterative (no Gaussian process in it)."""
