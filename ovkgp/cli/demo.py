"""``ovkgp demo``: two random vector fields, and how fast random features converge.

A draw of the Gaussian process behind a feature map is f(x) = Φ(x) θ with θ ~ N(0, I). With the features of a
curl-free kernel every draw is a gradient field, with those of a divergence-free kernel every draw in the plane is a
rotated gradient, whatever the number D of frequencies; D only decides how close ΦΦᵀ is to the kernel, and the error
falls as D^(−1/2). The errors are measured in three dimensions: in two, the divergence-free kernel is the curl-free
one turned by 90°, and their errors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from ovkgp.cli.demo_figure import save_figure
from ovkgp.cli.inputs import reason
from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel

TABLE_SIZES = (10, 100, 1_000, 10_000)
SIZES = (10, 32, 100, 316, 1_000, 3_162, 10_000)
REPEATS = 8
POINTS = 20
ERROR_DIMS = 3
FIELD_FREQUENCIES = 500
GRID = 61
HALF_WIDTH = 3.0


@dataclass(frozen=True)
class FieldPicture:
    """One drawn field on a square grid, with the potential (or stream function) behind it.

    Attributes:
        axis: (g,) the coordinates along one side of the grid.
        vectors: (g, g, 2) the field; the first index runs along y.
        potential: (g, g) the scalar whose gradient, or rotated gradient, the field is.
        curl, divergence: the largest absolute value of each over the grid.
    """

    axis: np.ndarray
    vectors: np.ndarray
    potential: np.ndarray
    curl: float
    divergence: float


def run(out: Path, seed: int) -> None:
    """Compute everything, write ``fields.png`` into the folder `out` and print the tables."""
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Drawing fields", total=2 + len(SIZES) * len(kernels()))
        curl_free = picture(kernels()["curl-free"], child_seed(seed, 0), rotated=False)
        progress.advance(task)
        divergence_free = picture(kernels()["divergence-free"], child_seed(seed, 1), rotated=True)
        progress.update(task, advance=1, description="Measuring errors")
        errors = {
            name: sup_errors(kernel, seed, lambda: progress.advance(task))
            for name, kernel in kernels(ERROR_DIMS).items()
        }
    path = out / "fields.png"
    try:
        save_figure(path, curl_free, divergence_free, SIZES, errors)
    except OSError as error:
        raise OptionError(f"cannot write '{path}' ({reason(error)}): choose another folder with --out.") from error
    try:
        console.print(error_table(errors))
        console.print(check_table({"curl-free": curl_free, "divergence-free": divergence_free}))
        console.print(f"Picture written to {path}", soft_wrap=True, highlight=False)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the picture was written to {path}") from None


def child_seed(seed: int, *path: int) -> int:
    """A seed of its own for every use of the user's one."""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1)[0])


def kernels(num_dims: int = 2) -> dict[str, Kernel]:
    """The three kernels of the demo over ℝᵈ, with d outputs each and lengthscale 1."""
    matrix = 0.5 * torch.eye(num_dims) + 0.5
    chosen = {
        "decomposable": DecomposableKernel(RBFKernel(ard_num_dims=num_dims), output_matrix=matrix),
        "curl-free": CurlFreeKernel(RBFKernel(ard_num_dims=num_dims)),
        "divergence-free": DivergenceFreeKernel(RBFKernel(ard_num_dims=num_dims)),
    }
    return {name: _with_unit_lengthscale(kernel.double()) for name, kernel in chosen.items()}


def _with_unit_lengthscale(kernel: Kernel) -> Kernel:
    kernel.base_kernel.lengthscale = 1.0
    return kernel.requires_grad_(False)


def sup_errors(kernel: Kernel, seed: int, advance: Callable[[], None] = lambda: None) -> np.ndarray:
    """The sup error at each of `SIZES`, averaged over `REPEATS` feature maps and divided by sup ‖K‖ = ‖K(x, x)‖."""
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.rand(POINTS, ERROR_DIMS, dtype=torch.float64, generator=generator) - 1
    exact = kernel(X).to_dense()
    size_of_kernel = block_norms(exact).max().item()
    means = []
    for size in SIZES:
        draws = [sup_error(kernel, X, exact, size, child_seed(seed, size, i)) for i in range(REPEATS)]
        means.append(np.mean(draws) / size_of_kernel)
        advance()
    return np.array(means)


def sup_error(kernel: Kernel, X: Tensor, exact: Tensor, size: int, seed: int) -> float:
    """max over pairs (x, z) of ‖Φ(x)Φ(z)ᵀ − K(x, z)‖, for one feature map with `size` frequencies."""
    Phi = ORFF(kernel, num_frequencies=size, sampler="iid", random_state=seed)(X).to_dense()
    return block_norms(Phi @ Phi.mT - exact).max().item()


def block_norms(gram: Tensor) -> Tensor:
    """The spectral norm of every p × p block of a data-major (n·p) × (n·p) matrix, (n, n)."""
    blocks = gram.unflatten(0, (POINTS, -1)).unflatten(2, (POINTS, -1)).transpose(1, 2)
    return torch.linalg.matrix_norm(blocks, ord=2)


def slope(errors: np.ndarray) -> float:
    """The exponent of D in a least-squares fit of log error on log D: −1/2 in theory."""
    return float(np.polyfit(np.log(SIZES), np.log(errors), 1)[0])


def draw_field(kernel: Kernel, seed: int) -> Callable[[Tensor], Tensor]:
    """One draw x (n, 2) ↦ Φ(x) θ (n, 2) of the process with this kernel."""
    orff = ORFF(kernel, num_frequencies=FIELD_FREQUENCIES, random_state=seed)
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(orff.num_features, dtype=torch.float64, generator=generator)
    return lambda X: (orff(X) @ theta).unflatten(-1, (-1, 2))


def picture(kernel: Kernel, seed: int, *, rotated: bool) -> FieldPicture:
    """Draw a field on the grid, integrate it, and check it by autograd."""
    field = draw_field(kernel, seed)
    axis = torch.linspace(-HALF_WIDTH, HALF_WIDTH, GRID, dtype=torch.float64)
    X = torch.cartesian_prod(axis, axis).flip(-1)  # the first index runs along y, as matplotlib has it
    jacobian = field_jacobian(field, X)
    return FieldPicture(
        axis=axis.numpy(),
        vectors=field(X).reshape(GRID, GRID, 2).numpy(),
        potential=line_integral(field, X, rotated=rotated).reshape(GRID, GRID).numpy(),
        curl=(jacobian[:, 1, 0] - jacobian[:, 0, 1]).abs().max().item(),
        divergence=(jacobian[:, 0, 0] + jacobian[:, 1, 1]).abs().max().item(),
    )


def field_jacobian(field: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """∂f_i/∂x_j at every row of X, (n, 2, 2), by autograd."""
    X = X.clone().requires_grad_(True)
    values = field(X)
    rows = [torch.autograd.grad(values[:, i].sum(), X, retain_graph=True)[0] for i in range(2)]
    return torch.stack(rows, dim=1)


def line_integral(field: Callable[[Tensor], Tensor], X: Tensor, *, rotated: bool, nodes: int = 24) -> Tensor:
    """The potential φ(x) = ∫₀¹ ⟨f(tx), x⟩ dt of a gradient field f = ∇φ (n,), by Gauss–Legendre quadrature.

    With `rotated`, the stream function ψ of a divergence-free field f = (∂ψ/∂y, −∂ψ/∂x).
    """
    t, weights = np.polynomial.legendre.leggauss(nodes)
    direction = torch.stack([X[:, 1], -X[:, 0]], dim=1) if rotated else X
    along = [w / 2 * (field((s + 1) / 2 * X) * direction).sum(-1) for s, w in zip(t, weights, strict=True)]
    return torch.stack(along).sum(0)


def error_table(errors: dict[str, np.ndarray]) -> Table:
    """Kernel by D, with the fitted slope."""
    table = Table(
        title=f"Relative sup error of ORFF in {ERROR_DIMS} dimensions (mean of {REPEATS} maps)", title_justify="left"
    )
    table.add_column("kernel")
    for size in TABLE_SIZES:
        table.add_column(f"D = {size}", justify="right")
    table.add_column("slope", justify="right")
    for name, values in errors.items():
        shown = [values[SIZES.index(size)] for size in TABLE_SIZES]
        table.add_row(name, *(f"{value:.4f}" for value in shown), f"{slope(values):.2f}")
    return table


def check_table(fields: dict[str, FieldPicture]) -> Table:
    """The largest curl and divergence of each drawn field."""
    table = Table(title="Check of the drawn fields, by autograd on the grid", title_justify="left")
    for column in ("field", "max |curl|", "max |divergence|"):
        table.add_column(column, justify="left" if column == "field" else "right")
    for name, drawn in fields.items():
        table.add_row(name, f"{drawn.curl:.1e}", f"{drawn.divergence:.1e}")
    return table
