"""Graphs between outputs: weights of edges, and the kernel that they make."""

import numpy as np
import pandas as pd
import pytest
import torch

from ovkgp.exceptions import OptionError
from ovkgp.kernels import GraphMatrix, block
from ovkgp.recipes.factory import Outputs, edge_weights, graph_kernel

DAYS = Outputs.of(pd.DataFrame(np.ones((2, 4)), columns=["mon", "tue", "wed", "thu"]))


def test_a_chain_joins_neighbours():
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert edge_weights("chain", DAYS).tolist() == expected


def test_a_complete_graph_joins_all():
    assert torch.equal(edge_weights("complete", DAYS), 1 - torch.eye(4, dtype=torch.float64))


def test_edges_by_name_and_number_with_weights():
    weights = edge_weights([["mon", "thu"], [1, "wed", 0.5]], DAYS)
    assert weights[0, 3] == weights[3, 0] == 1 and weights[1, 2] == weights[2, 1] == 0.5
    assert weights.sum() == 3


def test_an_edge_joins_two():
    with pytest.raises(OptionError, match="'mon' to itself"):
        edge_weights([["mon", 0]], DAYS)


def test_an_edge_to_nobody():
    with pytest.raises(OptionError, match=r"'mond' \(did you mean 'mon'\?\); the columns of Y are mon, tue, wed, thu"):
        edge_weights([["tue", "mond"]], DAYS)


@pytest.mark.parametrize("remedy", [{"mean_variance": 2.0}, {"ridge": 0.1}, {"ridge": 0.1, "mean_variance": None}])
def test_the_kernel_is_the_scalar_one_times_the_matrix(remedy):
    kernel = graph_kernel({"edges": "chain", **remedy}, "rbf", DAYS, 2).double()
    x = torch.zeros(1, 2, dtype=torch.float64)
    expected = GraphMatrix(edge_weights("chain", DAYS), **remedy)()
    assert torch.allclose(block(kernel, x[0], x[0]), kernel.outputscale * expected)
    assert kernel.base_kernel.base_kernel.ard_num_dims == 2


def test_without_inputs_there_is_one_lengthscale():
    kernel = graph_kernel({"edges": "chain", "ridge": 0.1}, "matern32", DAYS)
    assert kernel.base_kernel.base_kernel.lengthscale.shape == (1, 1)
