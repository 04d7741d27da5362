"""Options of recipes that depend on the data: graphs of outputs and likelihoods by values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel

from ovkgp.checks import suggest_name
from ovkgp.estimators.common.named_kernels import base_kernel
from ovkgp.estimators.common.validation import output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import DecomposableKernel, GraphMatrix

DEFAULT_BASE_KERNEL = "matern52"  # scalar kernel of a graph, if the recipe has none
BY_VALUES = "by_values"


def complete_options(
    name: str, options: dict[str, Any], graph: dict[str, Any] | None, X=None, Y=None
) -> dict[str, Any]:
    """Complete the options of the recipe `name` by those that depend on data X (n, d) and Y (n, p), None if none do."""
    options = dict(options)
    if graph is not None:
        shape, outputs = np.shape(X), _check_outputs(name, Y, "graph")
        num_inputs = shape[1] if len(shape) == 2 else None  # without X, or with one that the estimator will reject
        base = options.get("base_kernel", DEFAULT_BASE_KERNEL)
        options["kernel"] = make_graph_kernel(graph, base, outputs, num_inputs)
    if (named := _named_likelihoods(options)) is not None:
        options["likelihood"] = choose_likelihoods(named, _check_outputs(name, Y, "likelihood"))
    return options


def options_without_data(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as the estimator can check them before it has data."""
    if (named := _named_likelihoods(options)) is None:
        return options
    known = {"likelihood": list(named.values())} if named else {}
    return {name: value for name, value in options.items() if name != "likelihood"} | known


def _named_likelihoods(options: dict[str, Any]) -> dict[str, str] | None:
    """Return the likelihoods by column, empty for "by_values"; None unless they depend on the columns of the data."""
    likelihood = options.get("likelihood")
    if likelihood == BY_VALUES:
        return {}
    return likelihood if isinstance(likelihood, dict) else None


def _check_outputs(name: str, Y, option: str) -> Outputs:
    if Y is None:
        raise InputError(f"The {option} of recipe {name} depends on the outputs. Pass Y.")
    return Outputs.from_table(Y)


def select_target(name: str, kind: str, Y) -> Any:
    """Return what an estimator of this kind learns: (n,) from a one-column table if it has a single target, else Y."""
    if kind not in ("target", "labels"):
        return Y
    if Y is None:
        raise InputError(f"Recipe {name} needs a target column, got Y=None.")
    shape = np.shape(Y)
    if len(shape) < 2:
        return Y
    if len(shape) > 2 or shape[1] != 1:
        raise InputError(f"Y has shape {shape}, but recipe {name} takes one column. Fit one model per column.")
    return np.squeeze(Y, axis=1)


@dataclass(frozen=True)
class Outputs:
    """Outputs of a fit: names (y0, y1, … if the columns have none) and values (n, p), NaN where missing."""

    names: list[str]
    values: np.ndarray

    @classmethod
    def from_table(cls, Y) -> Outputs:
        """Convert an array, a tensor, a series or a data frame."""
        values, names, _ = output_table(Y, Y)
        return cls(names or [f"y{column}" for column in range(values.shape[1])], values)

    def find_index(self, key: str | int, option: str) -> int:
        """Return the index of a column from its name or its index, which may be a string."""
        if key in self.names:
            return self.names.index(key)
        index = int(key) if str(key).isdecimal() else len(self.names)
        if index < len(self.names):
            return index
        raise OptionError(
            f"{option} refers to unknown output {key!r}{suggest_name(key, self.names)}. The columns of Y are {', '.join(self.names)}, or 0 to {len(self.names) - 1} by index."
        )


def make_graph_kernel(graph: dict[str, Any], base: str, outputs: Outputs, num_inputs: int | None = None) -> Kernel:
    """Make the kernel of outputs that are the nodes of a graph, with one lengthscale per input unless `num_inputs` is None."""
    weights = make_edge_weights(graph["edges"], outputs)
    matrix = GraphMatrix(weights, ridge=graph.get("ridge"), mean_variance=graph.get("mean_variance"))
    return ScaleKernel(DecomposableKernel(base_kernel(base, num_inputs), output_matrix=matrix))


def make_edge_weights(edges: str | list, outputs: Outputs) -> torch.Tensor:
    """Make W (p, p), the weights of the edges between outputs, 0 where there is none.

    `edges` is "chain" (each column with the next), "complete" (all pairs), or a list of pairs of columns with an optional
    weight.
    """
    p = len(outputs.names)
    weights = torch.zeros(p, p, dtype=torch.float64)
    if edges == "complete":
        return torch.ones_like(weights).fill_diagonal_(0.0)
    for first, second, weight in _index_edges(edges, outputs):
        weights[first, second] = weights[second, first] = weight
    return weights


def _index_edges(edges: str | list, outputs: Outputs) -> list[tuple[int, int, float]]:
    if edges == "chain":
        return [(k, k + 1, 1.0) for k in range(len(outputs.names) - 1)]
    found = []
    for first, second, *weight in edges:
        ends = outputs.find_index(first, "edges"), outputs.find_index(second, "edges")
        if ends[0] == ends[1]:
            raise OptionError(f"edges must connect two different outputs, got an edge from {first!r} to itself.")
        found.append((*ends, *(weight or [1.0])))
    return found


def choose_likelihoods(named: dict[str, str], outputs: Outputs) -> str | list[str]:
    """Choose the likelihood of each output: as named by its column, otherwise by its values.

    Returns a list with one likelihood per output, or "gaussian" if all are Gaussian, for which inference is exact.
    """
    chosen = [guess_likelihood(column) for column in outputs.values.T]
    for key, name in named.items():
        chosen[outputs.find_index(key, "likelihood")] = name
    return "gaussian" if set(chosen) == {"gaussian"} else chosen


def guess_likelihood(values: np.ndarray) -> str:
    """Guess the likelihood of values (n,), NaN where missing: labels are 0 and 1, counts are integers from 0.

    Counts are "negative_binomial", which approaches "poisson" if they are not overdispersed.
    """
    observed = np.asarray(values, dtype=np.float64)
    observed = observed[np.isfinite(observed)]
    if np.isin(observed, (0.0, 1.0)).all():
        return "bernoulli"
    return "negative_binomial" if (observed >= 0).all() and (observed == np.round(observed)).all() else "gaussian"
