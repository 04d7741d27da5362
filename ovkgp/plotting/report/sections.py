"""Contents of a report, independent of HTML: records that the other modules fill and the template of `page` shows."""

from __future__ import annotations

from dataclasses import dataclass

from ovkgp.criticism.results import Criticism
from ovkgp.estimators.common.descriptions import ModelDescription


@dataclass(frozen=True)
class Column:
    """Statistics of a data column; unknown numbers are None, `missing` is a fraction of the rows."""

    name: str
    count: int | None = None
    missing: float | None = None
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    sd: float | None = None


@dataclass(frozen=True)
class DataSummary:
    """Data of the report: a sentence, and tables of the first columns."""

    sentence: str
    inputs: tuple[Column, ...] = ()
    outputs: tuple[Column, ...] = ()
    classes: tuple[tuple[str, int], ...] = ()  # names and counts of the labels of a classifier
    hint: str = ""  # how to see more if the model stores no data
    omitted: str = ""  # which columns the tables omit


@dataclass(frozen=True)
class Parameter:
    """A scalar hyperparameter in original units, with the ends of its central 90 % interval if there are draws."""

    name: str
    output: str  # empty for all outputs
    input: str  # empty if it belongs to no input
    value: float  # mean of the draws, or the point value
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    rhat: float | None = None
    ess: float | None = None


@dataclass(frozen=True)
class ParameterTable:
    """Hyperparameters: a sentence on their origin, the table, and notes on what it omits or how reliable it is."""

    sentence: str
    rows: tuple[Parameter, ...]
    value_name: str = "value"
    units: str = "original units"
    notes: tuple[str, ...] = ()

    @property
    def has_intervals(self) -> bool:
        """Whether any row has an interval."""
        return any(row.low is not None for row in self.rows)

    @property
    def has_chains(self) -> bool:
        """Whether any row comes from Markov chains."""
        return any(row.rhat is not None for row in self.rows)


@dataclass(frozen=True)
class ReportFigure:
    """Figure as a data URI, with text for screen readers, caption and size in CSS pixels."""

    source: str
    alt: str
    caption: str
    width: int
    height: int


@dataclass(frozen=True)
class CoverageAssessment:
    """Coverage of intervals of one output, or of all if `name` is empty."""

    name: str
    level: float
    covered: int
    total: int
    sentence: str
    is_consistent: bool | None  # whether chance explains the difference to the level; None if there are too few entries


@dataclass(frozen=True)
class Calibration:
    """Calibration as a sentence, assessments of the coverage, and figures."""

    note: str
    assessments: tuple[CoverageAssessment, ...] = ()
    figures: tuple[ReportFigure, ...] = ()


@dataclass(frozen=True)
class Report:
    """All contents of the page, in its order."""

    title: str
    overview: str
    data: DataSummary
    model: ModelDescription
    parameters: ParameterTable
    traces: tuple[ReportFigure, ...]
    fit: tuple[ReportFigure, ...]
    fit_note: str
    calibration: Calibration
    warnings: tuple[str, ...]
    extra: tuple[ReportFigure, ...]
    notes: tuple[str, ...]
    file_name: str
    version: str
    criticism: Criticism | None = None
    criticism_figures: tuple[ReportFigure, ...] = ()
