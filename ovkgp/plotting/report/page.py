"""`write_report`: gather the sections of a fitted model, render them, and put one whole file in its place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ovkgp import __version__
from ovkgp.estimators.storage.file import replace_file
from ovkgp.plotting.report.calibration import calibration
from ovkgp.plotting.report.descriptions import model_words
from ovkgp.plotting.report.evaluation_data import predicted, report_rows
from ovkgp.plotting.report.figures import NO_PICTURE, extra_pictures, fit_pictures, trace_pictures
from ovkgp.plotting.report.fit_warnings import cautions, poor_intervals
from ovkgp.plotting.report.numbers import percent, show
from ovkgp.plotting.report.overview import data_summary, default_title, verdict
from ovkgp.plotting.report.parameters import parameter_table
from ovkgp.plotting.report.sections import Report


def check_place(path: str | os.PathLike) -> Path:
    """A path at which a file can be written; of a link, the file behind it counts.

    Raises:
        OSError: it is a folder, or its folder does not exist or may not be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file in it, such as {target / 'report.html'}.")
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to write {target.name} to; make it first.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"may not write to the folder {folder}; write the report elsewhere.")
    return target


TOKENS = re.compile(r"[_^](?:\{[^{}]*\}|[^\s{}])|[^\W\d_]+|.", re.DOTALL)
"""A lowered or raised part, a word, or any other character."""
WIDE = "\N{EM SPACE}"
"""What three spaces are: browsers would make one of them."""


def formula_html(text: str) -> Markup:
    """A formula as HTML.

    Example:
        >>> from ovkgp.plotting.report.page import formula_html
        >>> str(formula_html("s_a^2 < exp(x)"))
        '<var>s</var><sub><var>a</var></sub><sup>2</sup> &lt; exp(<var>x</var>)'
    """
    return Markup("").join(_token(token) for token in TOKENS.findall(text.replace("   ", WIDE)))


def _token(token: str) -> Markup:
    if token[0] in "_^" and len(token) > 1:
        tag = "sub" if token[0] == "_" else "sup"
        inside = token[2:-1] if token[1] == "{" else token[1:]
        # two letters are two indices, and no word
        html = Markup("").join(map(_token, inside)) if len(inside) == 2 else formula_html(inside)
        return Markup(f"<{tag}>") + html + Markup(f"</{tag}>")
    if len(token) == 1 and token.isalpha() and token not in "ΣΠ":
        return Markup("<var>") + escape(token) + Markup("</var>")
    return escape(token)


TEMPLATE, STYLE = "report.html.j2", "report.css"
TIED = re.compile(r"(?<=[<>0-9]) (?=[0-9%])")
"""Spaces inside of a number, at which a line must not break."""


def render(report: Report) -> str:
    """The page as text.

    Cost: that of the template; pictures are already text.
    """
    return _template().render(report=report, style=Markup(_read(STYLE)))


@cache
def _template():
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"show": _number, "percent": percent, "formula": formula_html, "prose": _prose}
    return environment.from_string(_read(TEMPLATE))


def _read(name: str) -> str:
    return files("ovkgp.plotting.report").joinpath(name).read_text(encoding="utf-8")


def _number(value: float | None, digits: int = 4) -> Markup:
    """A number for readers, with all its digits for machines."""
    if value is None:
        return Markup("–")
    return Markup('<data value="{}">{}</data>').format(repr(float(value)), show(value, digits))


def _prose(sentence: str) -> str:
    return TIED.sub("\N{NO-BREAK SPACE}", sentence)


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
    target = check_place(path)
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
