"""`write_report`: gather the sections of a fitted model, render them, and put one whole file in its place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ovkgp import __version__
from ovkgp.estimators.model_file import replace_file
from ovkgp.plotting.report.calibration import calibration
from ovkgp.plotting.report.cautions import cautions, poor_intervals
from ovkgp.plotting.report.data_summary import data_summary
from ovkgp.plotting.report.fit_pictures import NO_PICTURE, fit_pictures, trace_pictures
from ovkgp.plotting.report.model_words import model_words
from ovkgp.plotting.report.page import render
from ovkgp.plotting.report.parameters import parameter_table
from ovkgp.plotting.report.pictures import extra_pictures
from ovkgp.plotting.report.predictions_made import predicted
from ovkgp.plotting.report.rows import report_rows
from ovkgp.plotting.report.sections import Report
from ovkgp.plotting.report.verdict import default_title, verdict
from ovkgp.plotting.report.whole_files import require_place


def write_report(
    estimator,
    path: str | os.PathLike,
    *,
    X=None,
    Y=None,
    title: str | None = None,
    notes: Iterable[str] = (),
    extra_figures: Iterable = (),
) -> Path:
    """Write one self-contained HTML file about a fitted estimator: data, model, hyperparameters, fit, calibration, warnings.

    The page needs no network and no other file; pictures are parts of it. With X and Y the data and the calibration are those of
    these rows; without, those of the rows that the model has kept, each predicted from the others.

    Args:
        estimator: a fitted estimator of `ovkgp`, or a loaded one.
        path: of the file, which is replaced where it exists; its folder must exist.
        X, Y: rows (n, d) and (n, p) with the columns of the fit, NaN in Y where an output is missing; labels (n,) for a classifier.
        title: of the page; the outputs and inputs of the model where it is None.
        notes: paragraphs of text at the end.
        extra_figures: pairs (caption, matplotlib Figure), which stay open.

    Returns:
        The path.

    Raises:
        NotFittedError: the estimator is not fitted.
        InputError: X came without Y, or their columns are not those of the fit.
        OSError: the path is a folder, or its folder does not exist or cannot be written to; an older file is then untouched.

    Cost: predictions on a grid; four times that of `ovkgp.criticism.pit_values`, once for the numbers and once for each picture of
    unseen entries; and for small models a hundred evaluations of the evidence. Seconds for small models.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting import write_report
        >>> X = np.linspace(0, 6, 20)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.01).fit(X, np.sin(X))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_report(model, Path(folder) / "report.html", title="A sine").read_text(encoding="utf-8")
        >>> "<h1>A sine</h1>" in page
        True
    """
    target = require_place(path)
    report = make_report(estimator, target.name, X=X, Y=Y, title=title, notes=notes, extra_figures=extra_figures)
    replace_file(target, render(report).encode())
    return target


def make_report(estimator, file_name: str, *, X=None, Y=None, title=None, notes=(), extra_figures=()) -> Report:
    """All sections of the report, before they become a page; the arguments are those of `write_report`."""
    rows, extra = report_rows(estimator, X, Y), extra_pictures(extra_figures)
    found, model = predicted(estimator, rows), model_words(estimator)
    calibrated = calibration(estimator, rows, found)
    warnings = (*cautions(estimator, rows), *poor_intervals(calibrated.judgements))
    fit = fit_pictures(estimator, rows, found)
    return Report(
        title=str(title) if title else default_title(estimator),
        verdict=verdict(estimator, model.name, rows, found, calibrated.judgements, len(warnings)),
        data=data_summary(estimator, rows),
        model=model,
        parameters=parameter_table(estimator),
        traces=trace_pictures(estimator),
        fit=fit,
        fit_note="" if fit else NO_PICTURE,
        calibration=calibrated,
        warnings=warnings,
        extra=extra,
        notes=_notes(notes),
        file_name=file_name,
        version=__version__,
    )


def _notes(notes: Iterable[str]) -> tuple[str, ...]:
    return (notes,) if isinstance(notes, str) else tuple(str(note) for note in notes)
