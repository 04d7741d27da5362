"""From the records of a report to one HTML page: a jinja2 template and a style sheet that lie beside this file.

Everything that is not written here or in the template is escaped, so that a column may be called `<script>`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ovkgp.plotting.report.formulas import formula_html
from ovkgp.plotting.report.numbers import percent, show
from ovkgp.plotting.report.sections import Report

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
