"""Is the model right? Whether observations fall where its predictive distributions say.

Each name is loaded at its first use.

Example:
    >>> from ovkgp import criticism
    >>> criticism.coverage.__name__
    'coverage'
"""

from importlib import import_module

_NAMES = {
    "Coverage": "calibration",
    "coverage": "calibration",
    "kept_rows": "rows",
    "pit_values": "pit",
}
"""What is offered, and the module in which it lives."""

__all__ = [*_NAMES]


def __getattr__(name: str):
    """Load a name from its module at its first use (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
