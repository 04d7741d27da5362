"""The box around the inputs of a table, in one pass over it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ovkgp.datasets import TableStream
from ovkgp.estimators.common.named_kernels import BASES, base_kernel
from ovkgp.estimators.common.summary import count
from ovkgp.exceptions import OptionError
from ovkgp.features.bounds import measured_error, required_features, suggest_features
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel

STRUCTURES = ("decomposable", "curl_free", "divergence_free")
SIZES = (30, 100, 300, 1000, 3000)
"""Numbers of frequencies that are measured."""
POINTS, REPEATS = 20, 5
"""On how many points, and with how many maps."""
DELTA = 0.05
"""With which probability the guarantee may fail."""


@dataclass(frozen=True)
class FeatureProblem:
    """What the features are for.

    Args:
        num_rows, num_dims, num_outputs: of the table.
        kernel: a scalar kernel by name.
        structure: "decomposable", "curl_free" or "divergence_free".
        lengthscale, diameter: in the same units.
        error: ε, as a part of ‖K(x, x)‖.
    """

    num_rows: int
    num_dims: int
    num_outputs: int
    kernel: str
    structure: str
    lengthscale: float
    diameter: float
    error: float

    @classmethod
    def of(
        cls,
        rows: int | None,
        dims: int | None,
        outputs: str | None,
        *,
        kernel: str,
        structure: str,
        lengthscale: float,
        diameter: float | None,
        error: float,
    ) -> FeatureProblem:
        """From what was typed, checked; None stands for the usual."""
        for option, value, allowed in (("--kernel", kernel, tuple(BASES)), ("--structure", structure, STRUCTURES)):
            if value not in allowed:
                raise OptionError(f"{option} must be one of {', '.join(allowed)}; got {value!r}.")
        for option, value in (("--lengthscale", lengthscale), ("--error", error)):
            if not 0 < value < math.inf:
                raise OptionError(f"{option} must be a positive number, got {value:g}.")
        dims = 2 if dims is None else dims
        diameter = 2 * math.sqrt(dims) if diameter is None else diameter
        shape = 10_000 if rows is None else rows, dims, _num_outputs(outputs, structure, dims)
        return cls(*shape, kernel, structure, lengthscale, diameter, error)

    def make(self, num_outputs: int) -> Kernel:
        """The kernel, with variance 1."""
        base = base_kernel(self.kernel, self.num_dims).double()
        base.lengthscale = self.lengthscale
        if self.structure == "decomposable":
            return DecomposableKernel(base, output_matrix=torch.eye(num_outputs, dtype=torch.float64))
        return CurlFreeKernel(base) if self.structure == "curl_free" else DivergenceFreeKernel(base)

    def guarantee(self) -> int | float:
        """Frequencies with which the error is below ε everywhere, with probability 0.95."""
        kernel = self.make(self.num_outputs)
        size = torch.linalg.matrix_norm(kernel(torch.zeros(1, self.num_dims).double()).to_dense(), ord=2).item()
        return required_features(kernel, self.error * size, DELTA, self.diameter)

    def measure(self, seed: int) -> list[float]:
        """The relative error at each of `SIZES`, on points of a box. That of a decomposable kernel is that of its scalar part."""
        generator = torch.Generator().manual_seed(seed)
        side = self.diameter / math.sqrt(self.num_dims)
        X = side * torch.rand(POINTS, self.num_dims, dtype=torch.float64, generator=generator)
        kernel = self.make(1)
        console = Console(stderr=True)
        sizes = track(SIZES, "measuring", transient=True, console=console, disable=not console.is_terminal)
        return [measured_error(kernel, X, size, repeats=REPEATS, random_state=seed) for size in sizes]


def needed(errors: list[float], error: float) -> int:
    """The number at which a line of slope −1/2 through measured errors meets an error.

    Example:
        >>> needed([1 / size**0.5 for size in SIZES], 0.1)
        100
    """
    constant = math.exp(
        np.mean([math.log(max(e, 1e-300)) + math.log(size) / 2 for e, size in zip(errors, SIZES, strict=True)])
    )
    return max(1, math.ceil(round((constant / error) ** 2, 6)))


def show(problem: FeatureProblem, seed: int, plot: Path | None) -> None:
    """Print the three answers, and draw the third."""
    console = Console(highlight=False)
    guarantee, errors = problem.guarantee(), problem.measure(seed)
    console.print(_title(problem), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(
        "rule of thumb",
        f"{suggest_features(problem.num_rows):,}",
        "√n: ridge regression then errs no more than without features",
    )
    table.add_row(
        "measured",
        f"{needed(errors, problem.error):,}",
        f"for an error of {problem.error:g}, on {POINTS} points in the box",
    )
    table.add_row(
        "guarantee",
        _count(guarantee),
        f"for an error below {problem.error:g} everywhere, with probability {1 - DELTA:g}",
    )
    console.print(table)
    console.print()
    console.print(error_table(errors))
    if plot is not None:
        _draw(problem, errors, plot)
        console.print(f"\nPicture written to {plot}", soft_wrap=True)


def error_table(errors: list[float]) -> Table:
    """D by measured error."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("D", justify="right")
    table.add_column(f"relative error (mean of {REPEATS} maps)", justify="right")
    for size, value in zip(SIZES, errors, strict=True):
        table.add_row(f"{size:,}", f"{value:.3g}")
    return table


def _title(problem: FeatureProblem) -> str:
    sizes = (problem.num_rows, "row"), (problem.num_dims, "input"), (problem.num_outputs, "output")
    words = ", ".join(count(number, noun) for number, noun in sizes)
    words = f"{words}; {problem.structure} {problem.kernel} kernel"
    return f"{words}, lengthscale {problem.lengthscale:g}, diameter {problem.diameter:.3g}\n"


def _count(number: int | float) -> str:
    return "none is known" if math.isinf(number) else f"{number:,}"


def _num_outputs(outputs: str | None, structure: str, dims: int) -> int:
    is_field = structure != "decomposable"
    if outputs is None:
        return dims if is_field else 1
    if not outputs.strip().isdecimal() or int(outputs) < 1:
        raise OptionError(f"--outputs must be a number of outputs, at least 1; got {outputs!r}.")
    if is_field and int(outputs) != dims:
        raise OptionError(f"a {structure} field has as many outputs as inputs, {dims}; got --outputs {outputs}.")
    return int(outputs)


def _draw(problem: FeatureProblem, errors: list[float], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ovkgp.plotting import plot_feature_error

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    FigureCanvasAgg(figure)  # a picture in a file, whatever the screen
    axes = plot_feature_error(SIZES, {f"{problem.structure} {problem.kernel}": errors}, ax=figure.subplots())
    axes.axhline(problem.error, color="0.6", linewidth=0.8, label="asked for")
    axes.set(xlabel="number of frequencies $D$", ylabel="relative error of the kernel")
    axes.legend()
    figure.savefig(path, dpi=150)


class DataExtent(NamedTuple):
    """Rows, inputs and outputs of a table, and the diagonal of the box around its inputs, each in its standard deviations."""

    num_rows: int
    num_dims: int
    num_outputs: int | None
    diagonal: float


def box_of(path: str, inputs: str | None, outputs: str | None, separator: str) -> DataExtent:
    """Look at a table.

    Args:
        path: the file.
        inputs: names of columns.
        outputs: names of columns, a number of outputs, or None where it is not known.
        separator: of a text table.

    Cost: one pass, memory for a chunk.
    """
    if inputs is None:
        raise OptionError("name the input columns of the table with --inputs.")
    is_number = outputs is None or outputs.strip().isdecimal()
    rows = TableStream(
        Path(path).expanduser(), inputs, None if is_number else outputs, bad="error", separator=separator
    )
    count, origin, total, squares, low, high = 0, None, 0.0, 0.0, np.inf, -np.inf
    for X, _ in rows:
        origin = X[0] if origin is None else origin  # sums of squares far from zero would lose their digits
        count, total, squares = count + len(X), total + (X - origin).sum(0), squares + np.square(X - origin).sum(0)
        low, high = np.minimum(low, X.min(0)), np.maximum(high, X.max(0))
    std = np.sqrt(np.maximum(squares / count - np.square(total / count), 0.0))
    spread = np.divide(high - low, std, out=np.zeros_like(std), where=std > 0)  # a constant input has no extent
    number = rows.num_outputs if not is_number else None if outputs is None else int(outputs)
    return DataExtent(count, rows.num_inputs, number, float(np.linalg.norm(spread)))
