"""Estimators with a scikit-learn interface, whose predictions have uncertainties.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
