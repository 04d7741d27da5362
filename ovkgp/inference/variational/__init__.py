"""Variational."""
