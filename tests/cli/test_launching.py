"""Whether torchrun started this process, told by the environment alone."""

import pytest

from ovkgp.cli.errors import ENVIRONMENT, is_first_rank, is_launched
from ovkgp.inference.statistics import distributed


def test_the_names_are_those_that_the_group_looks_for():
    assert ENVIRONMENT == distributed.ENVIRONMENT


@pytest.mark.parametrize(
    ("rank", "size", "launched", "first"), [("0", "2", True, True), ("1", "2", True, False), ("0", "1", False, True)]
)
def test_ranks(monkeypatch, rank, size, launched, first):
    for name, value in zip(ENVIRONMENT, (rank, size, "localhost", "1"), strict=True):
        monkeypatch.setenv(name, value)
    assert (is_launched(), is_first_rank()) == (launched, first)
    monkeypatch.delenv("MASTER_PORT")
    assert (is_launched(), is_first_rank()) == (False, True)
