"""Packages whose names are loaded at their first use (PEP 562), so that asking for one does not wait for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str], subpackages: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        names: what it offers, and the module of the package in which each lives.
        subpackages: modules that are offered as they are.

    Example:
        >>> from ovkgp.lazy import lazy_names
        >>> load, listed = lazy_names("ovkgp", {"InputError": "exceptions"})
        >>> load("InputError").__name__
        'InputError'
    """

    def load(name: str) -> Any:
        if name in names:
            return getattr(import_module(f"{package}.{names[name]}"), name)
        if name in subpackages:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *subpackages})

    return load, listed
