"""Rule tables: inheritance only where the formula is inherited."""

import pytest
from gpytorch.kernels import RBFKernel, RBFKernelGrad

from ovkgp.exceptions import KernelTypeError
from ovkgp.kernels.records import KernelDispatcher


class Renamed(RBFKernel):
    pass


def test_a_subclass_with_the_same_forward_inherits_and_another_does_not():
    table = KernelDispatcher()
    table.register(RBFKernel)(lambda kernel: "rbf")
    assert table.find(Renamed())(None) == "rbf"
    assert table.find(RBFKernelGrad()) is None
    assert table.known == "RBFKernel"


def test_register_needs_a_class():
    with pytest.raises(KernelTypeError, match="MyKernel"):
        KernelDispatcher().register(lambda kernel: None)
