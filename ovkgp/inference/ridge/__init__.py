"""Solvers of ridge regression with operator-valued kernels."""
