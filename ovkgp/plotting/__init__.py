"""Figures of fitted models and of their calibration, and an HTML report that contains them.

Every plotting function takes `ax=` and returns the Axes it drew on, or an array of Axes if there are several panels.
Names are imported on first use, so importing this package loads neither matplotlib nor torch.

Examples
--------
>>> from ovkgp import plotting
>>> "plot_field" in plotting.__all__
True
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
