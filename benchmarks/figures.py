"""Figures of the experiments, without a display.

Imported by the scripts of this folder; not a script.
"""

from __future__ import annotations

from pathlib import Path


def pyplot():
    """Import and return matplotlib.pyplot."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure, folder: Path, name: str) -> Path:
    """Write a figure as name.png into a folder, which is created, and close it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=130)
    pyplot().close(figure)
    return path
