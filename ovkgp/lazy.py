"""Lazy loading of a package's names at their first use (PEP 562), and of GPyTorch without its deprecation warning."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

JIT_MODULE = "linear_operator.utils.linear_cg"  # GPyTorch's module that calls `torch.jit.script` when it is imported


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__` and the list `__all__` of a package.

    The names are those that the package's stub `__init__.pyi` imports, which type checkers read too.
    """
    sources = _read_stub(Path(sys.modules[package].__path__[0]) / "__init__.pyi")

    def load(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if sources[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(sources[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *sources})

    return load, list_names, sorted(sources)


def _read_stub(path: Path) -> dict[str, str]:
    """Return the module from which a stub imports each name; a star stands for all names of a subpackage's stub."""
    sources = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.names[0].name == "*":
                names = list(_read_stub(path.parent / node.module.rpartition(".")[2] / path.name))
            else:
                names = [alias.name for alias in node.names]
            sources |= dict.fromkeys(names, node.module)
    return sources


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
