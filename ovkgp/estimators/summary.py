"""A fitted model in words."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.arviz_export import units_of, values_in_units
from ovkgp.estimators.user_units import in_user_units, named_structure
from ovkgp.inference.hyperparameters import hyperparameters

FEW = 10
"""Observations of an output below which a summary warns."""


class Summary(str):
    """A text that a notebook shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def summarise(estimator) -> Summary:
    """Structure, hyperparameters in the user's units, evidence and warnings of a fitted `GPRegressor`."""
    counts = estimator._num_seen
    lines = [
        f"GPRegressor: {estimator.kernel_} kernel, {_approximation(estimator)}",
        f"  {estimator.n_features_in_} inputs, {estimator.n_outputs_} outputs, {int(counts.sum())} observed entries",
        f"  log evidence {estimator.log_evidence_:.6g} ({estimator.log_evidence_ / counts.sum():.4g} per entry)",
    ]
    if hasattr(estimator, "candidates_"):
        scores = ", ".join(f"{name} {score:.6g}" for name, score in estimator.candidates_.items())
        lines.append(f"  candidates (log evidence less one a parameter): {scores}")
    if estimator.fit_report_ is not None:
        lines.append(f"  training: {estimator.fit_report_.message}")
    lines += ["", *_hyperparameters(estimator)]
    lines += ["", f"  {'output':<20} {'observed':>9} {'noise sd':>12}"]
    noise = np.sqrt(np.diag(estimator.noise_))
    for name, count, sd in zip(estimator.output_names_, counts, noise, strict=True):
        lines.append(f"  {name:<20} {int(count):>9} {sd:>12.4g}")
    few = [
        f"output {n} has only {int(c)} observations"
        for n, c in zip(estimator.output_names_, counts, strict=True)
        if c < FEW
    ]
    return Summary("\n".join([*lines, *([""] if few else []), *(f"  note: {line}" for line in few)]))


def _hyperparameters(estimator) -> list[str]:
    title = f"  hyperparameters, in the units {units_of(estimator)}"
    if hasattr(estimator, "draws_"):
        values = values_in_units(estimator, estimator.draws_["posterior"])
        listed = {name: _text(draws.mean((0, 1))) + " ± " + _text(draws.std((0, 1))) for name, draws in values.items()}
        return [f"{title} (posterior mean ± standard deviation)", *_rows(listed), "", f"  {_sampling(estimator)}"]
    values, structure, scaling = hyperparameters(estimator.gp_.kernel), named_structure(estimator), estimator.scaling_
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
    kind = "random features" if estimator.approximation_ == "orff" else "landmarks"
    return f"{estimator.num_frequencies} {kind}, variance {estimator.variance}"


def _text(value: np.ndarray) -> str:
    text = np.array2string(value.squeeze(), precision=4, suppress_small=False, separator=", ", max_line_width=80)
    return text.replace("\n", "\n" + " " * 33)
