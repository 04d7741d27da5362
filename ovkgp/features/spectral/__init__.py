"""Spectral."""
