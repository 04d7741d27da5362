"""Lazy loading of a package's names at their first use (PEP 562), and of GPyTorch without its deprecation warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

JIT_MODULE = "linear_operator.utils.linear_cg"  # GPyTorch's module that calls `torch.jit.script` when it is imported


def lazy_names(
    package: str, names: Mapping[str, str], subpackages: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    `names` maps each name to the module of the package that defines it; `subpackages` are loaded as modules.
    """

    def load(name: str) -> Any:
        if name in names:
            return getattr(import_module(f"{package}.{names[name]}"), name)
        if name in subpackages:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names, *subpackages})

    return load, list_names


class QuietJitFinder(MetaPathFinder):
    """Finder that imports `JIT_MODULE` without the deprecation warning of `torch.jit.script`, and nothing else.

    The warning is of no use to users of this package, who do not call that function; their own calls still warn.
    """

    def find_spec(self, name: str, path=None, target=None) -> ModuleSpec | None:
        """Find the module `JIT_MODULE`; None for all others."""
        spec = PathFinder.find_spec(name, path, target) if name == JIT_MODULE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_quietly(module) -> None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
                execute(module)

        spec.loader.exec_module = execute_quietly
        return spec


def silence_gpytorch_import() -> None:
    """Install a `QuietJitFinder`, unless there is one."""
    if not any(isinstance(finder, QuietJitFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, QuietJitFinder())
