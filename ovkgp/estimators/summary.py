"""A fitted model in words."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ovkgp.estimators.scaling import Scaling
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
    values, scaling = hyperparameters(estimator.gp_.kernel), estimator.scaling_
    if isinstance(estimator.kernel, str) and isinstance(estimator.base_kernel, str):
        values = {name: in_user_units(name, value, estimator.kernel_, scaling) for name, value in values.items()}
        title = "  hyperparameters, in the units of the data"
    else:
        values = {name: value.numpy() for name, value in values.items()}
        units = "of the data" if scaling.is_none else "of the model (outputs are divided by scaling_.output_scale)"
        title = f"  hyperparameters, in the units {units}"
    return [title, *(f"    {name:<28} {_text(value)}" for name, value in values.items())]


def _approximation(estimator) -> str:
    if estimator.approximation_ == "exact":
        return "exact"
    kind = "random features" if estimator.approximation_ == "orff" else "landmarks"
    return f"{estimator.num_frequencies} {kind}, variance {estimator.variance}"


def in_user_units(name: str, value: Tensor, structure: str, scaling: Scaling) -> np.ndarray:
    """A hyperparameter of a named structure, in the units of the data.

    A field is made of derivatives in the scaled inputs, so that its outputscale has their square in it.
    """
    value, path, scale = value.detach().numpy(), name.split("."), scaling.output_scale
    if path[-1] == "lengthscale":
        return value * (scaling.input_scale if value.shape[-1] > 1 else scaling.input_scale[0])
    if path[-1] == "output_matrix":
        return value * np.outer(scale, scale)
    if path[-1] != "outputscale":
        return value
    if structure == "independent":
        return value * scale[int(path[0])] ** 2
    return value * (scale[0] * scaling.input_scale[0]) ** 2


def _text(value: np.ndarray) -> str:
    text = np.array2string(value.squeeze(), precision=4, suppress_small=False, separator=", ", max_line_width=80)
    return text.replace("\n", "\n" + " " * 33)
