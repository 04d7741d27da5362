"""Gaussian processes with operator-valued kernels.

scikit-learn users start with ``ovkgp.GPRegressor``, or with a predefined model from ``ovkgp.load_recipe``.
``ovkgp.plotting`` draws predictions, ``ovkgp.kernels`` holds the covariances, ``ovkgp.features`` their random features,
``ovkgp.inference`` evidence and posteriors, ``ovkgp.metrics`` scores, and ``ovkgp.exceptions`` the errors. Subpackages are loaded at their first
use: ``import ovkgp`` alone loads neither torch nor matplotlib. Codes such as BT-27 in the docstrings refer to the
literature, see ``docs/references.md``.

Examples
--------
>>> import ovkgp
>>> ovkgp.exceptions.InputError.__name__
'InputError'
"""

from ovkgp.lazy import lazy_names, silence_gpytorch_import

__version__ = "0.1.0"

silence_gpytorch_import()
__getattr__, __dir__, __all__ = lazy_names(__name__)
