"""The model of a report: which words of the tables apply to a fitted estimator, and the facts that go with them."""

from __future__ import annotations

from ovkgp.plotting.report.estimator_words import ESTIMATORS
from ovkgp.plotting.report.kinds import class_name
from ovkgp.plotting.report.model_facts import base_words, facts_of, likelihood_names
from ovkgp.plotting.report.sections import ModelWords
from ovkgp.plotting.report.structure_words import LIKELIHOODS, STRUCTURES

ALIKE = ("auto", "independent", "decomposable")
"""Structures that are the same for a single output."""


def model_words(estimator) -> ModelWords:
    """A fitted estimator in sentences, formulas and facts."""
    own, structure = ESTIMATORS[class_name(estimator)], structure_of(estimator)
    name = own.name if structure is None else f"{own.name}: {STRUCTURES[structure].name}"
    words = [own, *([] if structure is None else [STRUCTURES[structure]])]
    formulas = [one.formula for one in words] + _base_formulas(estimator) + _likelihood_formulas(estimator)
    return ModelWords(_capital(name), tuple(one.text for one in words), tuple(formulas), facts_of(estimator))


def structure_of(estimator) -> str | None:
    """The key of the kernel's structure in `STRUCTURES`; None where the estimator has none to choose."""
    structure = getattr(estimator, "kernel_", None)
    if structure in ALIKE and estimator.n_outputs_ == 1:
        return "single"
    if structure is None or class_name(estimator) == "GPRegressor":
        return structure
    if structure in ("auto", "independent"):  # of a ridge, one kernel for all outputs
        return "identity" if estimator.output_matrix is None else "decomposable"
    return structure


def _base_formulas(estimator) -> list[str]:
    words = base_words(estimator)
    return [] if words is None else [words.formula]


def _likelihood_formulas(estimator) -> list[str]:
    if class_name(estimator) != "GPRegressor":
        return []
    return [LIKELIHOODS[name].formula for name in dict.fromkeys(likelihood_names(estimator)) if name in LIKELIHOODS]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
