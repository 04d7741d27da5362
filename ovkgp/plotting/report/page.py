"""`write_report`: collect the sections of a fitted model, render them as HTML, and write one file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache, partial
from importlib.resources import files
from operator import methodcaller
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ovkgp import __version__
from ovkgp.checks import check_estimator, check_type
from ovkgp.criticism.results import Criticism
from ovkgp.estimators.common.formatting import format_number, format_percent
from ovkgp.exceptions import OptionError
from ovkgp.files import check_writable, replace_file
from ovkgp.plotting.report.calibration import assess_calibration
from ovkgp.plotting.report.curve_data import collect_curve_rows, predict_entries
from ovkgp.plotting.report.curve_figures import make_curve_figures
from ovkgp.plotting.report.curve_sections import (
    NO_CURVES,
    assess_curves,
    collect_curve_warnings,
    make_curve_title,
    summarize_curves,
    write_curve_overview,
)
from ovkgp.plotting.report.evaluation_data import collect_rows, predict_held_out
from ovkgp.plotting.report.figures import (
    NO_FIGURE_NOTE,
    encode_extra_figures,
    make_criticism_figures,
    make_fit_figures,
    make_trace_figures,
)
from ovkgp.plotting.report.fit_warnings import collect_warnings, miscalibrated_intervals
from ovkgp.plotting.report.overview import make_default_title, summarize_data, write_overview
from ovkgp.plotting.report.parameters import make_parameter_table
from ovkgp.plotting.report.sections import Report

TEMPLATE, STYLE = "report.html.j2", "report.css"
NUMBER_SPACES = re.compile(r"(?<=[<>0-9]) (?=[0-9%])")  # spaces inside of a number, where lines must not break
FORMULA_TOKENS = re.compile(r"[_^](?:\{[^{}]*\}|[^\s{}])|[^\W\d_]+|.", re.DOTALL)  # sub- or superscript, word, other
WIDE_SPACE = "\N{EM SPACE}"  # replaces three spaces, which browsers would collapse


def write_report(
    estimator,
    path: str | os.PathLike,
    *,
    X=None,
    Y=None,
    groups=None,
    title: str | None = None,
    notes: Iterable[str] = (),
    extra_figures: Iterable = (),
    criticism: Criticism | None = None,
) -> Path:
    """Write a self-contained HTML report on a fitted estimator.

    The sections are data, model, hyperparameters, fit, calibration and warnings. The page needs no network and no
    other file. If X and Y are given, data and calibration are those of these rows; otherwise, those of the stored
    training rows, each of which is predicted from all other rows.

    Parameters
    ----------
    estimator : estimator
        Fitted or loaded estimator of `ovkgp`.
    path : str or path-like
        File to write, replaced if it exists. Its folder must exist.
    X, Y : array-like of shape (n, d) and (n, p), default=None
        Rows with the columns of the fit, NaN in Y where missing. Y has labels of shape (n,) for a classifier.
    groups : array-like of shape (n,), default=None
        Labels of groups (tracks, stations) of the training rows X and Y. If given, all rows of a group are predicted from the
        other groups.
    title : str, default=None
        Title of the page. If None, the names or numbers of outputs and inputs.
    notes : iterable of str, default=()
        Paragraphs of text at the end.
    extra_figures : iterable of tuple, default=()
        Pairs (caption, matplotlib Figure). The figures stay open.
    criticism : Criticism or None, default=None
        Table of `ovkgp.criticism.criticize`, which is shown as a section.

    Returns
    -------
    pathlib.Path
        The path.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    InputError
        If X is given without Y, or their columns differ from those of the fit.
    OSError
        If the path is a folder, or its folder does not exist or is not writable. An existing file is unchanged.

    Notes
    -----
    Complexity: predictions on a grid; four times the cost of `ovkgp.criticism.pit_values`, once for the
    numbers and once for each figure of held-out entries; for small models, a hundred evaluations of the evidence.
    Seconds for small models.

    Examples
    --------
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
    target = check_writable(path)
    options = {"title": title, "notes": notes, "extra_figures": extra_figures, "criticism": criticism}
    report = collect_sections(estimator, target.name, X=X, Y=Y, groups=groups, **options)
    replace_file(target, methodcaller("write", render(report).encode()))
    return target


def collect_sections(
    estimator, file_name: str, *, X=None, Y=None, groups=None, title=None, notes=(), extra_figures=(), criticism=None
) -> Report:
    """Collect all sections of the report; the arguments are those of `write_report`."""
    check_estimator(estimator)
    common = {
        "model": estimator.describe(),
        "traces": make_trace_figures(estimator),
        "extra": encode_extra_figures(extra_figures),
        "notes": (notes,) if isinstance(notes, str) else tuple(str(note) for note in notes),
        "file_name": file_name,
        "version": __version__,
        "criticism": criticism
        if criticism is None
        else check_type("criticism", criticism, Criticism, "a table of criticize"),
        "criticism_figures": () if criticism is None else make_criticism_figures(criticism, estimator.output_labels()),
    }
    if estimator.has_curves and len(estimator.grid_) > 1:
        return _collect_curve_sections(estimator, X, Y, groups, title, common)
    rows, model = collect_rows(estimator, X, Y), common["model"]
    held_out = predict_held_out(estimator, rows, groups)
    calibration = assess_calibration(estimator, rows, held_out)
    warnings = (*collect_warnings(estimator, rows), *miscalibrated_intervals(calibration.assessments))
    fit = make_fit_figures(estimator, rows, held_out)
    return Report(
        title=str(title) if title else make_default_title(estimator),
        overview=write_overview(estimator, model.name, rows, held_out, calibration.assessments, len(warnings)),
        data=summarize_data(estimator, rows),
        parameters=make_parameter_table(estimator),
        fit=fit,
        fit_note="" if fit else NO_FIGURE_NOTE,
        calibration=calibration,
        warnings=warnings,
        **common,
    )


def _collect_curve_sections(estimator, X, Y, groups, title, common: dict) -> Report:
    """Collect the sections of a report on curves."""
    if groups is not None:
        raise OptionError(f"groups is not supported by reports on {estimator.class_name}. Pass held-out curves.")
    rows = collect_curve_rows(estimator, X, Y)
    entries = None if rows is None else predict_entries(estimator, rows)
    calibration = assess_curves(estimator, rows, entries)
    warnings = (
        *collect_curve_warnings(estimator, rows),
        *miscalibrated_intervals(calibration.assessments),
    )
    fit, name = tuple(make_curve_figures(estimator, rows, entries)), common["model"].name
    return Report(
        title=str(title) if title else make_curve_title(estimator),
        overview=write_curve_overview(estimator, name, rows, entries, calibration, warnings),
        data=summarize_curves(estimator, rows),
        parameters=make_parameter_table(estimator),
        fit=fit,
        fit_note="" if fit else NO_CURVES,
        calibration=calibration,
        warnings=warnings,
        **common,
    )


def render(report: Report) -> str:
    """Render the page as text."""
    return _load_template().render(report=report, style=Markup(_read_resource(STYLE)))


@cache
def _load_template():
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    prose = partial(NUMBER_SPACES.sub, "\N{NO-BREAK SPACE}")
    environment.filters |= {
        "number": _format_data,
        "percent": format_percent,
        "formula": format_formula,
        "prose": prose,
    }
    return environment.from_string(_read_resource(TEMPLATE))


def _read_resource(name: str) -> str:
    return files("ovkgp.plotting.report").joinpath(name).read_text(encoding="utf-8")


def _format_data(value: float | None, digits: int = 4) -> Markup:
    """Format a number for readers, with all its digits for machines."""
    if value is None:
        return Markup("–")
    return Markup('<data value="{}">{}</data>').format(repr(float(value)), format_number(value, digits))


def format_formula(text: str) -> Markup:
    """Format a formula such as "s_a^2 < exp(x)" as HTML."""
    tokens = FORMULA_TOKENS.findall(text.replace("   ", WIDE_SPACE))
    return Markup("").join(_format_token(token) for token in tokens)


def _format_token(token: str) -> Markup:
    if token[0] in "_^" and len(token) > 1:
        tag = "sub" if token[0] == "_" else "sup"
        inside = token[2:-1] if token[1] == "{" else token[1:]
        # two letters are two indices, not a word
        html = Markup("").join(map(_format_token, inside)) if len(inside) == 2 else format_formula(inside)
        return Markup(f"<{tag}>") + html + Markup(f"</{tag}>")
    if len(token) == 1 and token.isalpha() and token not in "ΣΠ":
        return Markup("<var>") + escape(token) + Markup("</var>")
    return escape(token)
