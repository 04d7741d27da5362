"""Outputs coupled by a graph: K(x, z) = s k(x, z) Γ, with Γ from the Laplacian of the graph (BT-25).

Neighbours are drawn to each other: the prior punishes ½ Σ W_kl ‖f_k − f_l‖². The scale s is trained, Γ is not.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import Kernel, ScaleKernel

from ovkgp.estimators.structures import base_kernel
from ovkgp.exceptions import OptionError
from ovkgp.kernels import DecomposableKernel, GraphMatrix
from ovkgp.recipes.outputs import Outputs


def graph_kernel(graph: dict[str, Any], base: str, outputs: Outputs, num_inputs: int | None = None) -> Kernel:
    """The kernel of p outputs that are the nodes of a graph.

    Args:
        graph: `edges`, and `mean_variance` or `ridge`.
        base: the scalar kernel by name.
        outputs: the columns that edges speak of.
        num_inputs: d, for a lengthscale of each input; None is one for all.

    Example:
        >>> import numpy as np
        >>> from ovkgp.kernels import num_outputs
        >>> from ovkgp.recipes.output_graphs import graph_kernel
        >>> from ovkgp.recipes.outputs import Outputs
        >>> num_outputs(graph_kernel({"edges": "chain", "ridge": 0.1}, "rbf", Outputs.of(np.ones((5, 3)))))
        3
    """
    weights = edge_weights(graph["edges"], outputs)
    matrix = GraphMatrix(weights, ridge=graph.get("ridge"), mean_variance=graph.get("mean_variance"))
    return ScaleKernel(DecomposableKernel(base_kernel(base, num_inputs), output_matrix=matrix))


def edge_weights(edges: str | list, outputs: Outputs) -> torch.Tensor:
    """W (p, p): the weight of the edge between two outputs, 0 where there is none.

    Args:
        edges: "chain" (each column with the next), "complete" (all with all), or a list of pairs of columns with, where it is
            not 1, a weight.

    Example:
        >>> import numpy as np
        >>> from ovkgp.recipes.output_graphs import edge_weights
        >>> from ovkgp.recipes.outputs import Outputs
        >>> edge_weights([("y0", 1), (1, 2, 0.5)], Outputs.of(np.ones((5, 3)))).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 0.0]]
    """
    p = len(outputs.names)
    weights = torch.zeros(p, p, dtype=torch.float64)
    if edges == "complete":
        return torch.ones_like(weights).fill_diagonal_(0.0)
    for first, second, weight in _numbered(edges, outputs):
        weights[first, second] = weights[second, first] = weight
    return weights


def _numbered(edges: str | list, outputs: Outputs) -> list[tuple[int, int, float]]:
    if edges == "chain":
        return [(k, k + 1, 1.0) for k in range(len(outputs.names) - 1)]
    found = []
    for first, second, *weight in edges:
        ends = outputs.number(first, "edges"), outputs.number(second, "edges")
        if ends[0] == ends[1]:
            raise OptionError(f"edges has one from {first!r} to itself; an edge joins two outputs.")
        found.append((*ends, *(weight or [1.0])))
    return found
