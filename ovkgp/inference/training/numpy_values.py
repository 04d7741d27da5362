"""Parameters and scalar kernels as NumPy functions of θ with hand-written gradients; `numpy_outputs` has those of outputs.

Each node returns its value at θ and a `Backward` function, which adds derivatives by that value to those by θ.
Derivatives by a symmetric matrix need not be symmetric: only their symmetric part counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel
from scipy.special import expit

from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.kernels import find_record

MAX_STORED_DIFFERENCES = 20_000_000
"""Maximum number of stored squared differences (160 MB); for more, torch's overhead is negligible."""
MAX_DIFFERENCE_COLUMNS, MAX_ARD_DIFFERENCES = 6, 300_000
"""With more columns, or more stored differences, distances for several lengthscales are computed by matrix products."""
BLOCK_ENTRIES = 2**15  # entries of a kernel matrix (256 kB) that are computed together

Backward = Callable[[np.ndarray, np.ndarray], None]
"""Takes the derivatives by a value and the vector of those by θ, to which it adds."""


class NoAnalyticForm(Exception):
    """A part of the model has no NumPy form: use torch."""


class Reference:
    """One parameter: a slice of θ, or a constant."""

    def __init__(self, shape: tuple[int, ...], position: slice | None, constant: np.ndarray | None = None):
        self.shape, self.position, self.constant = tuple(shape), position, constant

    def value(self, theta: np.ndarray) -> np.ndarray:
        """Return the parameter in its shape."""
        return self.constant if self.position is None else theta[self.position].reshape(self.shape)

    def column(self, index: int) -> Reference:
        """Return the entries of one output, the last axis; a scalar belongs to all outputs."""
        if self.shape == ():
            return self
        shape = (*self.shape[:-1], 1)
        if self.position is None:
            return Reference(shape, None, self.constant[..., [index]])
        return Reference(shape, slice(self.position.start + index, self.position.stop, self.shape[-1]))

    def number(self, theta: np.ndarray) -> float:
        """Return a parameter with one entry as a float."""
        return self.constant.item() if self.position is None else theta[self.position.start]

    def entries(self, thetas: np.ndarray) -> np.ndarray:
        """Return the entries (S, size) of the parameter at S values of θ (S, k)."""
        if self.position is None:
            return np.broadcast_to(self.constant.reshape(1, -1), (len(thetas), self.constant.size))
        return thetas[:, self.position]

    def numbers(self, thetas: np.ndarray) -> np.ndarray:
        """Return a parameter with one entry at S values of θ, (S,)."""
        return self.entries(thetas)[:, 0]

    def add(self, out: np.ndarray, by_value) -> None:
        """Add derivatives by the parameter to those by θ."""
        if self.position is not None:
            out[self.position] += by_value.ravel() if isinstance(by_value, np.ndarray) else by_value


class NumpyVector:
    """θ of all trained parameters, flat and in the order of a `ParameterVector`, including the variables that it omits.

    Raises `NoAnalyticForm` if a parameter has a constraint with an unknown transform. Complexity: O(k) per call.
    """

    def __init__(self, vector: ParameterVector):
        self.vector, self.kept, size = vector, vector.kept, len(vector.kept)
        self.is_log, self.is_interval = np.zeros(size), np.zeros(size, dtype=bool)
        self.low, self.length, self.size = np.zeros(size), np.ones(size), np.ones(size)
        self.positions = {}
        for entry in vector.entries:
            at, constraint = entry.span, entry.constraint
            self.positions[id(entry.parameter)] = at
            if entry.is_log:
                self.is_log[at], self.low[at] = 1.0, entry.lower.reshape(-1).numpy()
            elif constraint is None:
                self.size[at] = entry.scale.reshape(-1).numpy()
            elif _is_sigmoid(constraint):
                low, high = (end.double().expand(entry.parameter.shape).reshape(-1).numpy() for end in constraint)
                self.is_interval[at], self.low[at], self.length[at] = True, low, high - low
            else:
                raise NoAnalyticForm(f"the constraint {constraint} of {entry.name}")
        self.has_intervals = bool(self.is_interval.any())
        self.linear = np.where((self.is_log == 1) | self.is_interval, 0.0, self.size)
        self.by_kept = self.is_log * self.kept
        self.log_size = float(np.log(self.size[self.kept]).sum())  # the size of others is 1

    def reference(self, module: torch.nn.Module, name: str) -> Reference:
        """Return the position of a parameter of a module in θ, or its constrained value if it is not trained."""
        parameter = getattr(module, name)
        if id(parameter) in self.positions:
            return Reference(parameter.shape, self.positions[id(parameter)])
        raw, constraint = parameter.detach().double(), module._constraints.get(f"{name}_constraint")
        value = raw if constraint is None else constraint.transform(raw)
        return Reference(parameter.shape, None, value.detach().cpu().numpy().copy())

    def values(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """Return θ and dθ/du of all entries, Σ log |dθ/du| of the variables u (len,), and its derivative in all entries."""
        full = self.vector.expand(u)
        grown = np.exp(self.is_log * full)  # 1 where θ is linear in u
        slope = self.is_log * grown + self.linear
        theta = self.low + self.is_log * grown + self.linear * full
        log_slope, by_slope = self.by_kept @ full + self.log_size, self.is_log
        if self.has_intervals:
            part, by_slope = self.is_interval, by_slope.copy()
            fraction, rest = expit(full[part]), expit(-full[part])
            theta[part] = self.low[part] + self.length[part] * fraction
            slope[part] = self.length[part] * fraction * rest
            log_slope, by_slope[part] = log_slope + np.log(slope[part & self.kept]).sum(), rest - fraction
        return theta, slope, log_slope, by_slope


def _is_sigmoid(constraint: Interval) -> bool:
    ends = all(bool(torch.isfinite(end).all()) for end in constraint)
    return ends and type(constraint) is Interval and constraint._transform is torch.sigmoid


def make_kernel_node(kernel: Kernel, X: np.ndarray, vector: NumpyVector, is_called: bool = True):
    """Return the node of a scalar kernel whose record has a profile, scaled or summed, at the rows of X (n, d).

    `is_called` says whether the kernel selects its `active_dims` itself; GPyTorch's ScaleKernel does it for its base
    kernel. Raises `NoAnalyticForm` for other kernels. Complexity: O(n²d) once, then O(n²), or
    O(n²d) with ARD.
    """
    if len(kernel.batch_shape):
        raise NoAnalyticForm("a batch of kernels")
    if is_called and kernel.active_dims is not None:
        X = X[:, kernel.active_dims.cpu().numpy()]
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = vector.reference(kernel, "raw_outputscale")
        return ScaledKernel(scale, make_kernel_node(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([make_kernel_node(part, X, vector) for part in kernel.kernels])
    if kind is ConstantKernel:
        return ScaledKernel(vector.reference(kernel, "raw_constant"), Ones(len(X)))
    if kind is LinearKernel and kernel.ard_num_dims is None:
        return ScaledKernel(vector.reference(kernel, "raw_variance"), InnerProducts(X))
    record = find_record(kernel)
    if record is None or record.profile is None:
        raise NoAnalyticForm(f"the kernel {kind.__name__}")
    if {name.removeprefix("raw_") for name, _ in kernel.named_parameters()} != record.roles.keys():
        raise NoAnalyticForm(f"a parameter of {kind.__name__} without a role")
    references = {name: vector.reference(kernel, f"raw_{name}") for name in record.roles}
    return Radial(record.profile, kernel, X, references)


class KernelNode:
    """A scalar kernel at n rows of data.

    `add_to(total, theta, factor)` adds `factor` times its matrix to `total` (n, n) in place; the function that it returns takes
    derivatives G by `total`, adds those by θ to a vector, and returns ⟨G, matrix⟩; it holds until the next call. `between(Z, X)` returns a function
    `add(total, thetas, factor)`, which adds the covariances of points Z (m, d) with points X, either of them the rows of the data if
    None, at S values of θ, times a factor () or (S, 1, 1), to `total` (S, m, n). `variances(thetas, Z)` are the prior variances (S, m) of Z, or
    (1, m) if they are equal.
    """

    num_rows: int

    def matrix(self, theta: np.ndarray, out: np.ndarray | None = None) -> tuple[np.ndarray, Backward]:
        """Return the matrix (n, n), a new one or written to `out`, and the function that propagates derivatives by it."""
        total = np.empty((self.num_rows, self.num_rows)) if out is None else out
        total.fill(0.0)
        return total, self.add_to(total, theta, 1.0)

    def matrices(self, thetas: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write the matrices (S, n, n) at S values of θ (S, k) to `out` and return it: for few rows faster than `matrix` in turn."""
        out.fill(0.0)
        add, size = self.between(), max(BLOCK_ENTRIES // self.num_rows**2, 1)
        for start in range(0, len(thetas), size):  # as many as stay in the cache
            add(out[start : start + size], thetas[start : start + size], 1.0)
        return out

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        """Return the covariances (S, m, n) of points Z with points X, or with the rows of the data, at S values of θ (S, k)."""
        total = np.zeros((len(thetas), len(Z), self.num_rows if X is None else len(X)))
        self.between(Z, X)(total, thetas, 1.0)
        return total

    @cached_property
    def blocks(self) -> list[slice]:
        """Blocks of rows whose intermediate results stay in the cache."""
        size = max(BLOCK_ENTRIES // self.num_rows, 1)
        return [slice(start, start + size) for start in range(0, self.num_rows, size)]


class Radial(KernelNode):
    """κ(s), s = Σ_i (x_i − z_i)²/ℓ_i², at the columns X (n, d), from the profile of the kernel and its parameters.

    Squared differences are stored for few rows and columns; for more, s and its gradient are matrix products, O(n²d) without an
    n × n × d array.
    """

    def __init__(self, profile: Callable, kernel: Kernel, X: np.ndarray, references: dict[str, Reference]):
        self.profile, self.kernel, self.others, self.X = profile, kernel, dict(references), X
        self.num_rows, self.lengthscale = len(X), self.others.pop("lengthscale")
        is_ard = self.lengthscale.shape[-1] > 1
        is_large = X.shape[1] > MAX_DIFFERENCE_COLUMNS or X.size * len(X) > MAX_ARD_DIFFERENCES
        self.uses_products = is_ard and is_large
        self.squares = None if self.uses_products else _squared_differences(X, X, separate=is_ard)

    def add_to(self, total: np.ndarray, theta: np.ndarray, factor: float) -> Callable:
        ell = self.lengthscale.value(theta).ravel()
        others = {name: reference.number(theta) for name, reference in self.others.items()}
        if self.uses_products:
            scaled = self.X / ell
            _squared_distances(scaled, self.blocks, self.distances)

        def evaluate(rows: slice):
            if self.uses_products:
                s = self.distances[rows]
            elif len(ell) == 1:
                s = self.squares[0, rows] * ell**-2
            else:
                s = _weigh(self.squares[:, rows], ell[None])[0]
            return self.profile(np, s, self.kernel, **others)

        for rows in self.blocks:
            found = evaluate(rows)
            total[rows] += factor * found.value

        def backward(G: np.ndarray, out: np.ndarray) -> float:
            by_log, by_others, product = 0.0, dict.fromkeys(self.others, 0.0), 0.0
            for (
                rows
            ) in self.blocks:  # with several blocks, fresh memory for all would take longer than a second evaluation
                value, first, _, by_parameter = found if len(self.blocks) == 1 else evaluate(rows)
                own = G[rows]
                M = own * first()
                if self.uses_products:  # Σ_ij M_ij (z_i − z_j)² = Σ_i z_i² Σ_j (M_ij + M_ji) − 2 zᵀ M z
                    squares = M.sum(1) @ np.square(scaled[rows]) + M.sum(0) @ np.square(scaled)
                    by_log += squares - 2 * (scaled[rows] * (M @ scaled)).sum(0)
                elif len(ell) == 1:
                    by_log += np.vdot(self.squares[0, rows], M) / ell**2
                else:
                    by_log += self.squares[:, rows].reshape(len(ell), -1) @ M.ravel() / ell**2
                for name in self.others:
                    by_others[name] += np.vdot(own, by_parameter[name]())
                product += np.vdot(own, value)
            self.lengthscale.add(out, -2 * factor * by_log / ell)
            for name, reference in self.others.items():
                reference.add(out, factor * by_others[name])
            return product

        return backward

    @cached_property
    def distances(self) -> np.ndarray:
        """Memory for s (n, n), which the gradient needs too."""
        return np.empty((self.num_rows, self.num_rows))

    def between(self, Z: np.ndarray | None = None, X: np.ndarray | None = None) -> Callable:
        if Z is None and X is None and self.squares is not None:
            squares = self.squares
        else:
            Z, X = (self.X if rows is None else rows for rows in (Z, X))
            squares = _squared_differences(Z, X, separate=self.lengthscale.shape[-1] > 1)

        def add(total: np.ndarray, thetas: np.ndarray, factor) -> None:
            others = {name: reference.numbers(thetas)[:, None, None] for name, reference in self.others.items()}
            size = max(4 * BLOCK_ENTRIES // squares[0].size, 1)
            for some in (slice(start, start + size) for start in range(0, len(thetas), size)):
                s, own = (
                    _weigh(squares, self.lengthscale.entries(thetas[some])),
                    {k: v[some] for k, v in others.items()},
                )
                value = self.profile(np, s, self.kernel, **own).value
                value *= factor[some] if np.ndim(factor) else factor
                total[some] += value

        return add

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.ones((len(thetas), len(Z)))


class Ones(KernelNode):
    """k(x, z) = 1."""

    def __init__(self, num_rows: int):
        self.num_rows = num_rows

    def add_to(self, total: np.ndarray, theta: np.ndarray, factor: float) -> Callable:
        total += factor
        return lambda G, out: G.sum()

    def between(self, Z: np.ndarray | None = None, X: np.ndarray | None = None) -> Callable:
        def add(total: np.ndarray, thetas: np.ndarray, factor) -> None:
            total += factor

        return add

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.ones((1, len(Z)))


class InnerProducts(KernelNode):
    """k(x, z) = x · z."""

    def __init__(self, X: np.ndarray):
        self.X, self.num_rows, self.products = X, len(X), X @ X.T

    def add_to(self, total: np.ndarray, theta: np.ndarray, factor: float) -> Callable:
        for rows in self.blocks:
            total[rows] += factor * self.products[rows]
        return lambda G, out: np.vdot(G, self.products)

    def between(self, Z: np.ndarray | None = None, X: np.ndarray | None = None) -> Callable:
        if Z is None and X is None:
            products = self.products
        else:
            products = (self.X if Z is None else Z) @ (self.X if X is None else X).T

        def add(total: np.ndarray, thetas: np.ndarray, factor) -> None:
            total += factor * products

        return add

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.square(Z).sum(1)[None]


class ScaledKernel(KernelNode):
    """v k, for a scalar v and another kernel."""

    def __init__(self, scale: Reference, inner: KernelNode):
        self.scale, self.inner, self.num_rows = scale, inner, inner.num_rows

    def add_to(self, total: np.ndarray, theta: np.ndarray, factor: float) -> Callable:
        scale = self.scale.number(theta)
        inner_backward = self.inner.add_to(total, theta, factor * scale)

        def backward(G: np.ndarray, out: np.ndarray) -> float:
            product = inner_backward(G, out)
            self.scale.add(out, factor * product)
            return scale * product

        return backward

    def between(self, Z: np.ndarray | None = None, X: np.ndarray | None = None) -> Callable:
        inner = self.inner.between(Z, X)
        return lambda total, thetas, factor: inner(total, thetas, factor * self.scale.numbers(thetas)[:, None, None])

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return self.scale.numbers(thetas)[:, None] * self.inner.variances(thetas, Z)


class Sum(KernelNode):
    """k_1 + k_2 + …"""

    def __init__(self, parts: list[KernelNode]):
        self.parts, self.num_rows = parts, parts[0].num_rows

    def add_to(self, total: np.ndarray, theta: np.ndarray, factor: float) -> Callable:
        found = [part.add_to(total, theta, factor) for part in self.parts]
        return lambda G, out: sum(backward(G, out) for backward in found)

    def between(self, Z: np.ndarray | None = None, X: np.ndarray | None = None) -> Callable:
        parts = [part.between(Z, X) for part in self.parts]

        def add(total: np.ndarray, thetas: np.ndarray, factor) -> None:
            for part in parts:
                part(total, thetas, factor)

        return add

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return sum(part.variances(thetas, Z) for part in self.parts)


def _squared_differences(Z: np.ndarray, X: np.ndarray, separate: bool) -> np.ndarray:
    """Return squared differences (d, m, n) between rows of Z and X, or their sum (1, m, n)."""
    if len(Z) * len(X) * (X.shape[1] if separate else 1) > MAX_STORED_DIFFERENCES:
        raise NoAnalyticForm("too many rows")
    if separate:
        return np.square(Z.T[:, :, None] - X.T[:, None, :])
    return sum(np.square(z[:, None] - x) for z, x in zip(Z.T, X.T, strict=True))[None]


def _weigh(squares: np.ndarray, ell: np.ndarray) -> np.ndarray:
    """Return Σ_i squares_i / ℓ_i² (S, m, n) for S lengthscales (S, d) or (S, 1)."""
    return (ell**-2 @ squares.reshape(len(squares), -1)).reshape(-1, *squares.shape[1:])


def _squared_distances(X: np.ndarray, blocks: list[slice], out: np.ndarray) -> None:
    """Write the squared distances ‖x‖² + ‖z‖² − 2 x·z of all rows to `out` (n, n)."""
    norms, ones = np.square(X).sum(1), np.ones(len(X))
    left, right = np.column_stack([-2 * X, norms, ones]), np.column_stack([X, ones, norms]).T
    for rows in blocks:
        np.maximum(np.matmul(left[rows], right, out=out[rows]), 0.0, out=out[rows])
    np.fill_diagonal(out, 0.0)
