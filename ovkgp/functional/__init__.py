"""Functional data, dictionaries of functions, and smoothing.

Curves are `FunctionalData`; a `Dictionary` holds functions in which they are expanded; `smooth` represents curves that were observed
with noise. Integrals over a domain are with respect to Lebesgue measure in the units of the grid; quadrature weights of observed points
sum to 1.

Each name is loaded at its first use, so that one dictionary does not import what the others need.

Examples
--------
>>> from ovkgp import functional
>>> functional.Fourier.__name__
'Fourier'
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
