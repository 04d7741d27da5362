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

_NAMES = {  # exported names and their modules
    "plot_basis": "curves",
    "plot_coverage": "calibration",
    "plot_criticism": "criticism",
    "plot_curves": "curves",
    "plot_feature_error": "feature_errors",
    "plot_field": "fields",
    "plot_gaussianity": "criticism",
    "plot_leave_one_out": "calibration",
    "plot_loss_shapes": "curves",
    "plot_output_correlations": "output_correlations",
    "plot_pit": "calibration",
    "plot_prediction": "predictions",
    "plot_quantiles": "predictions",
    "plot_relevance": "relevance",
    "plot_residuals": "calibration",
    "plot_simulation_calibration": "criticism",
    "plot_traces": "traces",
    "write_report": "report",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
