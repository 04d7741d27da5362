"""Blockwise evaluation: the same values and gradients, whatever the size of a block."""

import pytest
import torch
from likelihood_cases import normal
from torch.autograd import gradcheck

from ovkgp.inference.likelihoods.quadrature import BLOCK_ENTRIES, by_blocks


def row_function(x, M):
    """One number a row of x (n,) and M (n, 2, 2)."""
    return (x[:, None, None] * M.sin()).sum((-2, -1))


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_values_and_gradients_do_not_depend_on_the_blocks(rows_at_once):
    x, M = normal(7).requires_grad_(), normal(7, 2, 2, seed=1).requires_grad_()
    nodes = BLOCK_ENTRIES // rows_at_once
    torch.testing.assert_close(by_blocks(row_function, nodes, x, M), row_function(x, M), rtol=1e-14, atol=0.0)
    assert gradcheck(lambda *parts: by_blocks(row_function, nodes, *parts), (x, M))


def test_no_graph_is_made_where_none_is_wanted():
    x, M = normal(4).requires_grad_(), normal(4, 2, 2)
    with torch.no_grad():
        assert not by_blocks(row_function, 1, x, M).requires_grad
    assert not by_blocks(row_function, 1, x.detach(), M).requires_grad
    assert by_blocks(row_function, 1, x, M).requires_grad


def test_no_rows_are_no_values():
    x, M = torch.zeros(0, requires_grad=True), torch.zeros(0, 2, 2)
    value = by_blocks(row_function, 10, x, M)
    value.sum().backward()
    assert value.shape == (0,) and x.grad.shape == (0,)
