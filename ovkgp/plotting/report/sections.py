"""What a report holds, before it becomes a page: each section is a small record of words, numbers and pictures.

Nothing here knows of HTML. The template of `page` reads these records; the other modules make them from a fitted estimator.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of the data: its name, how many entries were observed, and what they are like.

    Numbers that are not known are None; `missing` is a share of the rows.
    """

    name: str
    count: int | None = None
    missing: float | None = None
    low: float | None = None
    mean: float | None = None
    high: float | None = None
    sd: float | None = None


@dataclass(frozen=True)
class DataSummary:
    """The rows that the report is about.

    Args:
        sentence: how many rows, inputs and outputs, and where they are from.
        inputs, outputs: their columns; only the first ones where there are many.
        classes: names and counts of the labels of a classifier.
        hint: how to learn more, where the model keeps no rows.
        left_off: what the tables leave out, in words.
    """

    sentence: str
    inputs: tuple[Column, ...] = ()
    outputs: tuple[Column, ...] = ()
    classes: tuple[tuple[str, int], ...] = ()
    hint: str = ""
    left_off: str = ""


@dataclass(frozen=True)
class ModelWords:
    """The model in words.

    Args:
        name: what it is, in a few words.
        paragraphs: what it believes, in sentences.
        formulas: the same in symbols, in the small language of `ovkgp.plotting.report.page`.
        facts: pairs (what, how).
    """

    name: str
    paragraphs: tuple[str, ...]
    formulas: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A hyperparameter, or one entry of it, in the user's units.

    Args:
        name: such as "lengthscale".
        of: the input, output or part that it belongs to; empty where it belongs to all.
        value: the mean of its draws, or its one value.
        sd, low, high: of its draws, and the ends of their central 90 %.
        rhat, ess: of its chains.
    """

    name: str
    of: str
    value: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    rhat: float | None = None
    ess: float | None = None


@dataclass(frozen=True)
class ParameterTable:
    """The hyperparameters and how they were found.

    Args:
        sentence: by draws, by evidence, or by the user.
        rows: one for each entry.
        value_name: what the column of values holds.
        units: whose units the values are in.
        notes: what is left out, and how far to trust the rest.
    """

    sentence: str
    rows: tuple[Parameter, ...]
    value_name: str = "value"
    units: str = "of the data"
    notes: tuple[str, ...] = ()

    @property
    def has_intervals(self) -> bool:
        """Whether any row has an interval."""
        return any(row.low is not None for row in self.rows)

    @property
    def has_chains(self) -> bool:
        """Whether any row comes from chains."""
        return any(row.rhat is not None for row in self.rows)


@dataclass(frozen=True)
class ReportFigure:
    """A picture that is a part of the page.

    Args:
        source: a data URI.
        alt: what is to be seen, for those who cannot see it.
        caption: what to look for.
        width, height: in CSS pixels.
    """

    source: str
    alt: str
    caption: str
    width: int
    height: int


@dataclass(frozen=True)
class CoverageAssessment:
    """Coverage in words: of so many entries so many lay inside, and what that says.

    Args:
        name: of the output; empty for all together.
        level: what the intervals promise.
        held, total: entries inside, and all.
        sentence: the judgement.
        is_good: whether chance explains the difference; None where too few entries say nothing.
    """

    name: str
    level: float
    held: int
    total: int
    sentence: str
    is_good: bool | None


@dataclass(frozen=True)
class Calibration:
    """Whether intervals hold what they promise: a sentence, judgements and pictures."""

    note: str
    judgements: tuple[CoverageAssessment, ...] = ()
    pictures: tuple[ReportFigure, ...] = ()


@dataclass(frozen=True)
class Report:
    """Everything that the page shows, in its order."""

    title: str
    verdict: str
    data: DataSummary
    model: ModelWords
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
