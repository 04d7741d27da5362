"""Matrices that couple the outputs of a kernel."""
