"""Model criticism: calibration of predictive distributions, and tests on data and Gram matrices.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
