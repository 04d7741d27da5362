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

_NAMES = {  # public names and the modules that define them
    "BSplines": "bases",
    "Combination": "dictionary",
    "Dictionary": "dictionary",
    "DictionaryFactor": "dictionary",
    "DictionaryKernel": "dictionary_kernel",
    "DoublySparse": "learned",
    "Eigenfunctions": "eigenfunctions",
    "Fourier": "bases",
    "FunctionalData": "data",
    "GaussianEigenfunctions": "eigenfunctions",
    "IntegralOperator": "operators",
    "Interpolated": "dictionary",
    "KernelSections": "smoothing",
    "Learned": "learned",
    "LongFormat": "data",
    "MeanCurve": "mean_curve",
    "PrincipalComponents": "principal_components",
    "RandomFourier": "random_functions",
    "RandomProcesses": "random_functions",
    "SmoothedCurves": "smoothing",
    "TensorProduct": "bases",
    "VectorEigenpairs": "operators",
    "Wavelets": "wavelets",
    "as_functional_data": "conversion",
    "keep_largest": "smoothing",
    "quadrature_weights": "quadrature",
    "select_functions": "smoothing",
    "smooth": "smoothing",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
