"""Work of ``ovkgp features``: the number of random frequencies D by a rule of thumb, by measurement and by a guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch
from gpytorch.kernels import Kernel
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ovkgp.checks import check_one_of, check_positive
from ovkgp.datasets import TableStream
from ovkgp.estimators.common.dates import to_days
from ovkgp.estimators.common.named_kernels import base_kernel
from ovkgp.estimators.common.scaling import Moments
from ovkgp.estimators.common.summary import pluralize
from ovkgp.exceptions import OptionError
from ovkgp.features.bounds import measured_error, required_features, suggest_features
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel
from ovkgp.kernels.records import named_kernels

STRUCTURES = ("decomposable", "curl_free", "divergence_free")
FREQUENCY_COUNTS = (30, 100, 300, 1000, 3000)  # values of D at which the error is measured
NUM_POINTS, NUM_REPEATS = 20, 5
FAILURE_PROBABILITY = 0.05
MAX_DIMS, MAX_FIELD_DIMS, MAX_OUTPUTS = 1000, 20, 1000  # sizes at which the errors are measured in less than a minute
MIN_ERROR, MAX_ERROR = 1e-6, 10.0
MAX_RATIO = 1e10  # between lengthscale and diameter, in either direction


@dataclass(frozen=True)
class FeatureProblem:
    """Kernel and data that the features are for; `error` ε is a fraction of ‖K(x, x)‖, lengths are in one unit."""

    num_rows: int
    num_dims: int
    num_outputs: int
    kernel: str
    structure: str
    lengthscale: float
    diameter: float
    error: float

    @classmethod
    def from_options(
        cls,
        rows: int | None,
        dims: int | None,
        outputs: str | None,
        kernel: str,
        structure: str,
        lengthscale: float,
        diameter: float | None,
        error: float,
    ) -> FeatureProblem:
        """Check the options of the command; None stands for the default."""
        check_one_of("--kernel", kernel, named_kernels())
        check_one_of("--structure", structure, STRUCTURES)
        check_positive("--lengthscale", lengthscale)
        check_positive("--error", error)
        dims = 2 if dims is None else dims
        diameter = 2 * math.sqrt(dims) if diameter is None else diameter
        shape = 10_000 if rows is None else rows, dims, _parse_num_outputs(outputs, structure, dims)
        _check_size(
            "--dims", dims, MAX_DIMS if structure == "decomposable" else MAX_FIELD_DIMS, f" for a {structure} kernel"
        )
        _check_size("--outputs", shape[2], MAX_OUTPUTS)
        _check_size("--error", error, MAX_ERROR, minimum=MIN_ERROR)
        unit = diameter or 1.0
        _check_size("--lengthscale", lengthscale, MAX_RATIO * unit, " for this diameter", minimum=unit / MAX_RATIO)
        return cls(*shape, kernel, structure, lengthscale, diameter, error)

    def make_kernel(self, num_outputs: int) -> Kernel:
        """Make the kernel, with variance 1."""
        base = base_kernel(self.kernel, self.num_dims).double()
        base.lengthscale = self.lengthscale
        if self.structure == "decomposable":
            return DecomposableKernel(base, output_matrix=torch.eye(num_outputs, dtype=torch.float64))
        return CurlFreeKernel(base) if self.structure == "curl_free" else DivergenceFreeKernel(base)

    def guaranteed_count(self) -> int | float:
        """Return a D at which the error is below ε everywhere, with probability 1 − FAILURE_PROBABILITY."""
        kernel = self.make_kernel(self.num_outputs)
        size = torch.linalg.matrix_norm(kernel(torch.zeros(1, self.num_dims).double()).to_dense(), ord=2).item()
        return required_features(kernel, self.error * size, FAILURE_PROBABILITY, self.diameter)

    def measure_errors(self, seed: int) -> list[float]:
        """Measure the relative error at each of `FREQUENCY_COUNTS`, on random points of a cube.

        The error of a decomposable kernel is that of its scalar kernel.
        """
        generator = torch.Generator().manual_seed(seed)
        side = self.diameter / math.sqrt(self.num_dims)
        X = side * torch.rand(NUM_POINTS, self.num_dims, dtype=torch.float64, generator=generator)
        kernel = self.make_kernel(1)
        console = Console(stderr=True)
        counts = track(FREQUENCY_COUNTS, "measuring", transient=True, console=console, disable=not console.is_terminal)
        return [measured_error(kernel, X, count, repeats=NUM_REPEATS, random_state=seed) for count in counts]


def print_feature_counts(problem: FeatureProblem, seed: int, plot: Path | None) -> None:
    """Print the three values of D and the measured errors, and plot the errors to the file `plot` unless None."""
    console = Console(highlight=False)
    guarantee, errors = problem.guaranteed_count(), problem.measure_errors(seed)
    console.print(_describe(problem), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(
        "rule of thumb",
        f"{suggest_features(problem.num_rows):,}",
        "√n: ridge regression then has the same error rate as without features",
    )
    table.add_row(
        "measured",
        f"{estimate_count(errors, problem.error):,}",
        f"for an error of {problem.error:g} on {NUM_POINTS} points in a cube",
    )
    table.add_row(
        "guarantee",
        "none is known" if math.isinf(guarantee) else f"{guarantee:,}",
        f"for an error below {problem.error:g} everywhere, with probability {1 - FAILURE_PROBABILITY:g}",
    )
    console.print(table)
    console.print()
    console.print(error_table(errors))
    if plot is not None:
        _plot_errors(problem, errors, plot)
        console.print(f"\nFigure written to {plot}", soft_wrap=True)


def estimate_count(errors: list[float], error: float) -> int:
    """Return the D at which a line of slope −1/2 through the measured errors, in log scales, reaches `error`."""
    logs = [math.log(max(e, 1e-300)) + math.log(count) / 2 for e, count in zip(errors, FREQUENCY_COUNTS, strict=True)]
    constant = math.exp(np.mean(logs))
    return max(1, math.ceil(round((constant / error) ** 2, 6)))


def error_table(errors: list[float]) -> Table:
    """Make a table of D and measured error."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("D", justify="right")
    table.add_column(f"relative error (mean of {NUM_REPEATS} maps)", justify="right")
    for count, value in zip(FREQUENCY_COUNTS, errors, strict=True):
        table.add_row(f"{count:,}", f"{value:.3g}")
    return table


def _describe(problem: FeatureProblem) -> str:
    sizes = (problem.num_rows, "row"), (problem.num_dims, "input"), (problem.num_outputs, "output")
    shape = ", ".join(pluralize(number, noun) for number, noun in sizes)
    kernel = f"{problem.structure} {problem.kernel} kernel, lengthscale {problem.lengthscale:g}"
    return f"{shape}; {kernel}, diameter {problem.diameter:.3g}\n"


def _check_size(name: str, value: float, maximum: float, condition: str = "", minimum: float = 0) -> None:
    """Check that a number is small enough to compute with."""
    if not minimum <= value <= maximum:
        raise OptionError(
            f"{name} must be {f'from {minimum:g} to' if minimum else 'at most'} {maximum:g}{condition}, got {value:g}."
        )


def _parse_num_outputs(outputs: str | None, structure: str, dims: int) -> int:
    is_field = structure != "decomposable"
    if outputs is None:
        return dims if is_field else 1
    if not outputs.strip().isdecimal() or int(outputs) < 1:
        raise OptionError(f"--outputs must be a number of outputs, at least 1, got {outputs!r}.")
    if is_field and int(outputs) != dims:
        raise OptionError(f"--outputs of a {structure} field must be the number of inputs, {dims}, got {outputs}.")
    return int(outputs)


def _plot_errors(problem: FeatureProblem, errors: list[float], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ovkgp.plotting import plot_feature_error

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    FigureCanvasAgg(figure)  # no window
    axes = plot_feature_error(FREQUENCY_COUNTS, {f"{problem.structure} {problem.kernel}": errors}, ax=figure.subplots())
    axes.axhline(problem.error, color="0.6", linewidth=0.8, label="requested error")
    axes.set(xlabel="number of frequencies $D$", ylabel="relative error of the kernel")
    axes.legend()
    figure.savefig(path, dpi=150)


def measure_extent(
    path: str, inputs: str | None, outputs: str | None, separator: str
) -> tuple[int, int, int | None, float]:
    """Return the numbers of rows, inputs and outputs of a table, and the diagonal of its inputs in standard deviations.

    `outputs` are columns, a number, or None if unknown. Memory: one chunk.
    """
    if inputs is None:
        raise OptionError("--inputs is missing. Name the input columns of the table.")
    is_number = outputs is None or outputs.strip().isdecimal()
    rows = TableStream(
        Path(path).expanduser(), inputs, None if is_number else outputs, on_bad_rows="error", separator=separator
    )
    tables, origins = [], None
    for X, _ in rows:
        X, origins = to_days(X, origins)
        X = np.asarray(X, dtype=np.float64)
        tables.append((Moments.of(X), X.min(0), X.max(0)))
    moments, low, high = zip(*tables, strict=True)
    total = reduce(add, moments)
    sides = np.max(high, 0) - np.min(low, 0)
    sides = np.divide(sides, total.std, out=np.zeros_like(sides), where=total.std > 0)  # a constant input has side 0
    num_outputs = rows.num_outputs if not is_number else None if outputs is None else int(outputs)
    return int(total.count[0]), rows.num_inputs, num_outputs, float(np.linalg.norm(sides))
