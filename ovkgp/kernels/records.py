"""A table from kernel classes to rules, for what only the formula of a kernel can tell.

A rule holds for a class and for those subclasses that keep its `forward`: one that computes something
else, as `RBFKernelGrad` does, needs a rule of its own, and never inherits a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

from gpytorch.kernels import Kernel

from ovkgp.exceptions import KernelTypeError


class KernelDispatcher:
    """Rules by kernel class, with a `register` decorator."""

    def __init__(self):
        self._rules: dict[type, Callable] = {}

    def register(self, kernel_class: type) -> Callable[[Callable], Callable]:
        """Decorate the rule for `kernel_class`: ``@table.register(MyKernel)``."""
        if not isinstance(kernel_class, type):
            raise KernelTypeError(f"name the kernel class: @register(MyKernel); got {kernel_class!r}.")

        def decorate(rule: Callable) -> Callable:
            self._rules[kernel_class] = rule
            return rule

        return decorate

    def find(self, kernel: Kernel) -> Callable | None:
        """The rule for this kernel, or None."""
        for parent in type(kernel).__mro__:
            if parent in self._rules:
                return self._rules[parent] if type(kernel).forward is parent.forward else None
        return None

    @property
    def known(self) -> str:
        """The names of the classes with a rule, for messages."""
        return ", ".join(sorted(kernel_class.__name__ for kernel_class in self._rules))
