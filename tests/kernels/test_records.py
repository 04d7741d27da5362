"""Dispatch by kernel class: rules are inherited only with the formula."""

import pytest
from gpytorch.kernels import RBFKernel, RBFKernelGrad

from ovkgp.exceptions import KernelTypeError
from ovkgp.kernels.records import KernelDispatcher


class Renamed(RBFKernel):
    pass


def test_dispatcher_inherits_rules_only_with_forward():
    table = KernelDispatcher()
    table.register(RBFKernel)(lambda kernel: "rbf")
    assert table.find(Renamed())(None) == "rbf"
    assert table.find(RBFKernelGrad()) is None
    assert table.known_classes == "RBFKernel"


def test_register_rejects_other_types():
    with pytest.raises(KernelTypeError, match="MyKernel"):
        KernelDispatcher().register(lambda kernel: None)
