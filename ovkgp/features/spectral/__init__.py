"""Spectral pairs of kernels: frequency distributions and factors of the operator-valued Bochner theorem.

Importing this package registers the pair of every known kernel.
"""

from ovkgp.features.spectral import combined, fields

__all__ = ["combined", "fields"]
