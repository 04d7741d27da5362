"""One page about a fitted model: data, model, hyperparameters, fit, calibration and warnings, in a single HTML file.

`write_report(estimator, path)` is the door. `sections` is what a report holds, `page` how it looks; the other modules make
one section each.
"""

from __future__ import annotations

from ovkgp.plotting.report.page import write_report

__all__ = ["write_report"]
