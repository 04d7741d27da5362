"""What does it look like? Pictures of a fitted model and of how far it can be trusted, and a report of all of them.

Every function that draws takes `ax=` and gives back the Axes it drew on, or an array of them where there are several panels. Each name is
loaded at its first use, so that neither matplotlib nor torch is loaded before.

Example:
    >>> from ovkgp import plotting
    >>> plotting.plot_field.__name__
    'plot_field'
"""

from __future__ import annotations

from ovkgp.lazy import lazy_names

_NAMES = {
    "plot_coverage": "calibration",
    "plot_feature_error": "feature_errors",
    "plot_field": "fields",
    "plot_leave_one_out": "calibration",
    "plot_output_correlations": "relevance",
    "plot_pit": "calibration",
    "plot_prediction": "predictions",
    "plot_quantiles": "predictions",
    "plot_relevance": "relevance",
    "plot_residuals": "calibration",
    "plot_traces": "traces",
    "write_report": "report",
}
"""What is offered, and the module in which it lives."""

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
