"""The first paragraph: what was fitted, how well it does, and whether to trust it, for a reader who reads nothing else."""

from __future__ import annotations

from ovkgp.plotting.report.data_summary import data_summary
from ovkgp.plotting.report.model_words import model_words
from ovkgp.plotting.report.numbers import count


def verdict(estimator, rows, warnings: tuple[str, ...]) -> str:
    """One paragraph in plain words."""
    name, data = model_words(estimator).name, data_summary(estimator, rows)
    trouble = (
        "There are no warnings."
        if not warnings
        else f"There {'is' if len(warnings) == 1 else 'are'} {count(len(warnings), 'warning')}."
    )
    return f"{name}, with {data.sentence} {trouble}"
