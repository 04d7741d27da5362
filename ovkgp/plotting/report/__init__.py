"""A self-contained HTML page about a fitted model: `write_report`."""

from ovkgp.plotting.report.page import write_report

__all__ = ["write_report"]
