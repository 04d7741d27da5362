"""A fitted model in words."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.common.named_kernels import num_features
from ovkgp.estimators.common.scaling import in_user_units, named_structure
from ovkgp.estimators.regression.hyperparameters import units_of, values_in_units
from ovkgp.inference.likelihoods import Likelihood, PerOutput
from ovkgp.inference.model.parameter_vector import hyperparameters

FEW = 10
"""Observations of an output below which a summary warns."""


class Summary(str):
    """A text that a notebook shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def summarise(estimator) -> Summary:
    """Structure, hyperparameters in the user's units, evidence and warnings of a fitted `GPRegressor`."""
    counts = estimator._num_observed
    lines = [
        f"GPRegressor: {estimator.kernel_} kernel, {_approximation(estimator)}",
        f"  {count(estimator.n_features_in_, 'input')}, {count(estimator.n_outputs_, 'output')}, "
        f"{count(int(counts.sum()), 'observed entry', 'observed entries')}",
        f"  {_evidence(estimator)} {estimator.log_evidence_:.6g} ({estimator.log_evidence_ / counts.sum():.4g} per entry)",
    ]
    if hasattr(estimator, "candidates_"):
        scores = ", ".join(f"{name} {score:.6g}" for name, score in estimator.candidates_.items())
        lines.append(f"  candidates ({_evidence(estimator)} less one a parameter): {scores}")
    if estimator.fit_report_ is not None:
        lines.append(f"  training: {estimator.fit_report_.message}")
    lines += ["", *_hyperparameters(estimator)]
    lines += ["", *_outputs(estimator)]
    few = [
        f"output {n} has only {count(int(c), 'observation')}"
        for n, c in zip(estimator.output_names_, counts, strict=True)
        if c < FEW
    ]
    return Summary("\n".join([*lines, *([""] if few else []), *(f"  note: {line}" for line in few)]))


def count(number: int, noun: str, several: str | None = None) -> str:
    """A number of things, in the singular or the plural.

    Example:
        >>> from ovkgp.estimators.common.summary import count
        >>> count(1, "row"), count(12000, "row"), count(2, "entry", "entries")
        ('1 row', '12,000 rows', '2 entries')
    """
    shown = f"{number:,}" if number >= 10_000 else str(number)
    return f"{shown} {noun if number == 1 else several or noun + 's'}"


def _evidence(estimator) -> str:
    return "evidence lower bound" if estimator.approximation_ == "variational" else "log evidence"


def _outputs(estimator) -> list[str]:
    """A row for each output: how often it was observed, and its noise where that is Gaussian."""
    rows = [
        f"  {name:<20} {int(count):>9}"
        for name, count in zip(estimator.output_names_, estimator._num_observed, strict=True)
    ]
    if estimator.noise_ is None:
        return [f"  {'output':<20} {'observed':>9}", *rows]
    deviations = [f" {sd:>12.4g}" for sd in np.sqrt(np.diag(estimator.noise_))]
    return [f"  {'output':<20} {'observed':>9} {'noise sd':>12}", *map("".join, zip(rows, deviations, strict=True))]


def _hyperparameters(estimator) -> list[str]:
    title = f"  hyperparameters, in the units {units_of(estimator)}"
    if hasattr(estimator, "draws_"):
        values = values_in_units(estimator, estimator.draws_["posterior"])
        listed = {name: _text(draws.mean((0, 1))) + " ± " + _text(draws.std((0, 1))) for name, draws in values.items()}
        return [f"{title} (posterior mean ± standard deviation)", *_rows(listed), "", f"  {_sampling(estimator)}"]
    values, structure, scaling = hyperparameters(estimator.gp_.kernel), named_structure(estimator), estimator.scaling_
    if estimator.noise_ is None:  # not Gaussian
        values |= estimator.gp_.likelihood.variables()
    return [title, *_rows({n: _text(in_user_units(n, value, structure, scaling)) for n, value in values.items()})]


def _rows(texts: dict[str, str]) -> list[str]:
    return [f"    {name:<28} {text}" for name, text in texts.items()]


def _sampling(estimator) -> str:
    """How the hyperparameters were drawn, and how far to trust them."""
    group = estimator.draws_["posterior"]
    attrs, sizes = group.attrs, group.sizes
    text = f"hyperparameters drawn by {attrs['method']}: {sizes['chain']} × {sizes['draw']} draws, predictions average over "
    text += str(len(estimator.posterior_))
    known = {"rhat_max": "largest R̂ {:.3f}", "num_divergences": "{:.0f} divergences", "khat": "Pareto k̂ {:.2f}"}
    checks = [words.format(attrs[name]) for name, words in known.items() if name in attrs]
    return f"{text}; {', '.join(checks)}" if checks else text


def _approximation(estimator) -> str:
    if estimator.approximation_ == "exact":
        return "exact"
    if estimator.approximation_ == "variational":
        points, likelihood = len(estimator.gp_.features.points), _likelihood(estimator.gp_.likelihood)
        return f"variational, {points} inducing points, {likelihood} likelihood"
    kind = "random features" if estimator.approximation_ == "orff" else "landmarks"
    number = num_features(estimator.num_frequencies, estimator.approximation_)
    return f"{number} {kind}, variance {estimator.variance}"


def _likelihood(likelihood: Likelihood) -> str:
    """Its name, or those of all outputs."""
    if isinstance(likelihood, PerOutput):
        return ", ".join(one.name for one in likelihood.likelihoods)
    return likelihood.name


def _text(value: np.ndarray) -> str:
    text = np.array2string(value.squeeze(), precision=4, suppress_small=False, separator=", ", max_line_width=80)
    return text.replace("\n", "\n" + " " * 33)
