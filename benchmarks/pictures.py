"""Pictures of the experiments, drawn without a screen.

A module for the scripts beside it; run by itself it does nothing.
"""

from __future__ import annotations

from pathlib import Path


def pyplot():
    """matplotlib's, which is loaded where a picture is asked for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure, folder: Path, name: str) -> Path:
    """Write a figure as name.png into a folder, which is made, and close it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=130)
    pyplot().close(figure)
    return path
