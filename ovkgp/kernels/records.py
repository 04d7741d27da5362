"""Dispatch of rules by kernel class.

A rule applies to a class and to the subclasses that inherit its `forward`. A subclass with another formula, such as
`RBFKernelGrad`, needs a separate rule.
"""

from __future__ import annotations

from collections.abc import Callable

from gpytorch.kernels import Kernel

from ovkgp.exceptions import KernelTypeError


class KernelDispatcher:
    """Table of rules by kernel class, filled with the decorator `register`."""

    def __init__(self):
        self._rules: dict[type, Callable] = {}

    def register(self, kernel_class: type) -> Callable[[Callable], Callable]:
        """Register the decorated function as the rule for `kernel_class`."""
        if not isinstance(kernel_class, type):
            raise KernelTypeError(f"kernel_class must be a class, as in @register(MyKernel), got {kernel_class!r}.")

        def decorate(rule: Callable) -> Callable:
            self._rules[kernel_class] = rule
            return rule

        return decorate

    def find(self, kernel: Kernel) -> Callable | None:
        """Return the rule for a kernel, or None."""
        for parent in type(kernel).__mro__:
            if parent in self._rules:
                return self._rules[parent] if type(kernel).forward is parent.forward else None
        return None

    @property
    def known_classes(self) -> str:
        """Names of the classes with a rule, for messages."""
        return ", ".join(sorted(kernel_class.__name__ for kernel_class in self._rules))
