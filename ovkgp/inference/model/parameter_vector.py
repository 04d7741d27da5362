"""The hyperparameters of a kernel by name, as values and not as raw parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels import OutputMatrix

SMALLEST, LARGEST = 1e-30, 1e30
"""Where θ − l stays without a box: finite in single precision too."""
EDGE = 1e-10
"""How near a variable may come to the end of its constraint, relative to l or to the length of the interval."""

Bounds = tuple[float | Tensor, float | Tensor]


@dataclass
class _Entry:
    """One parameter tensor and the piece of the vector that belongs to it."""

    name: str
    parameter: torch.nn.Parameter
    constraint: Interval | None
    size: Tensor
    piece: slice

    def __post_init__(self):
        ends = () if self.constraint is None else self.constraint
        self.is_log = [bool(torch.isfinite(end).all()) for end in ends] == [True, False]  # onto (l, ∞)
        self.lower = self.constraint.lower_bound.to(torch.float64).expand(self.parameter.shape) if self.is_log else None

    def value(self) -> Tensor:
        raw = self.parameter.detach().to(torch.float64)
        return raw if self.constraint is None else self.constraint.transform(raw)

    def variable(self, value: Tensor) -> Tensor:
        """u of a constrained value; an end of the constraint is moved inside by `EDGE`."""
        if self.is_log:
            floor = (EDGE * self.lower.abs()).clamp_min(SMALLEST)
            return torch.maximum(value - self.lower, floor).clamp_max(LARGEST).log()
        if self.constraint is None:
            return value / self.size
        low, high = (bound.to(torch.float64) for bound in self.constraint)
        room = EDGE * (high - low).nan_to_num(posinf=0.0)  # only an interval with two ends has a length
        return self.constraint.inverse_transform(torch.clamp(value, low + room, high - room))

    def raw(self, variable: Tensor) -> Tensor:
        if self.is_log:
            return self.constraint.inverse_transform(self.lower + variable.exp())
        return variable * self.size if self.constraint is None else variable

    def slope(self) -> Tensor:
        """d raw / du at the present value."""
        if not self.is_log:
            return self.size
        raw = self.parameter.detach().to(torch.float64).requires_grad_()
        with torch.enable_grad():
            value = self.constraint.transform(raw)
            (rise,) = torch.autograd.grad(value.sum(), raw)
        return (value.detach() - self.lower) / rise

    def log_slopes(self, by_value: bool) -> tuple[Tensor, Tensor]:
        """log |d raw / du| and its derivative in u, entry by entry; those of log |dθ / du| where `by_value`."""
        slope = self.slope()
        if self.is_log and by_value:  # θ − l = exp u
            return (self.value() - self.lower).log(), torch.ones_like(slope)
        if self.constraint is None:
            return slope.abs().log(), torch.zeros_like(slope)
        log_rise, curvature = self._log_rise()
        if not self.is_log:  # u is the raw parameter
            return (log_rise, curvature) if by_value else (torch.zeros_like(slope), torch.zeros_like(slope))
        return slope.log(), 1 - curvature * slope

    def _log_rise(self) -> tuple[Tensor, Tensor]:
        """log |dθ / d raw| and its derivative in the raw parameter."""
        raw = self.parameter.detach().to(torch.float64).requires_grad_()
        with torch.enable_grad():
            (rise,) = torch.autograd.grad(self.constraint.transform(raw).sum(), raw, create_graph=True)
            log_rise = rise.abs().log()
            if not log_rise.requires_grad:  # a transform that is linear
                return log_rise, torch.zeros_like(log_rise)
            return log_rise.detach(), torch.autograd.grad(log_rise.sum(), raw)[0]


class ParameterVector:
    """The parameters of `module` that require a gradient, as a float64 NumPy vector of well-scaled variables.

    Args:
        module: any torch module; constraints are those that GPyTorch modules keep.
        bounds: (low, high) of the *constrained* value, by qualified name or by `id(parameter)`: numbers or tensors that
            expand to the parameter's shape. Values outside are clipped at once.
        sizes: the typical size of an unconstrained parameter, by qualified name, a number or a tensor that
            expands to its shape; 1 where none is given.

    The vector has `len(vector)` numbers in the order of `names`; `bounds` is (len, 2). Reading, writing and the
    gradient cost O(len).

    Raises:
        OptionError: a box is empty, or belongs to no parameter.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> kernel = RBFKernel().double()
        >>> vector = ParameterVector(kernel, bounds={"raw_lengthscale": (0.1, 10.0)})
        >>> vector.set(vector.get() * 0 + 1.0)
        >>> round(kernel.lengthscale.item(), 6), vector.bounds.round(2).tolist()
        (2.718282, [[-2.3, 2.3]])
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bounds: Mapping[int | str, Bounds] | None = None,
        sizes: Mapping[str, float | Tensor] | None = None,
    ):
        self.module = module
        self.entries = _entries(module, sizes or {})
        bounds = _by_parameter(module, bounds or {})
        pieces = [_bounds(entry, bounds.get(id(entry.parameter))) for entry in self.entries]
        self.bounds = np.concatenate([*pieces, np.zeros((0, 2))])
        self.kept = np.ones(len(self.bounds), dtype=bool)
        self.set(self.get())

    def __len__(self) -> int:
        return len(self.bounds)

    def keep(self, kept: np.ndarray) -> None:
        """Leave out some of the variables: those where `kept` (len,) is False stay as they are from now on."""
        self._rest = self.spread(self.get())
        self.kept[self.kept] = kept
        self.bounds = self.bounds[kept]

    def spread(self, vector: np.ndarray) -> np.ndarray:
        """The vector with the variables that were left out, in the order of the parameters."""
        if len(vector) == len(self.kept):
            return vector
        full = self._rest.copy()
        full[self.kept] = vector
        return full

    @property
    def names(self) -> tuple[str, ...]:
        """The qualified names of the trained parameters, as in `module.named_parameters()`."""
        return tuple(entry.name for entry in self.entries)

    @torch.no_grad()
    def get(self) -> np.ndarray:
        """The present variables, inside their bounds."""
        pieces = [entry.variable(entry.value()).reshape(-1).cpu().numpy() for entry in self.entries]
        return np.clip(self._join(pieces), self.bounds[:, 0], self.bounds[:, 1])

    def _join(self, pieces: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([*pieces, np.zeros(0)])[self.kept]

    @torch.no_grad()
    def set(self, vector: np.ndarray) -> None:
        """Write the variables into the parameters."""
        vector = torch.as_tensor(self.spread(np.asarray(vector, dtype=np.float64)))
        for entry in self.entries:
            piece = vector[entry.piece].reshape(entry.parameter.shape).to(entry.parameter.device)
            entry.parameter.copy_(entry.raw(piece))

    def gradient(self) -> np.ndarray:
        """The gradient in the variables, from the `.grad` of the parameters; zero where there is none."""
        return self._join([_gradient(entry).reshape(-1).cpu().numpy() for entry in self.entries])

    def log_slopes(self, flat: Sequence[bool]) -> tuple[float, np.ndarray]:
        """Σ log |d raw / du|, and its gradient in u (len,): what a density of the raw parameters gains as one of u.

        Args:
            flat: for each parameter, whether to take log |dθ / du| of its constrained value θ instead.
        """
        pairs = [entry.log_slopes(by_value) for entry, by_value in zip(self.entries, flat, strict=True)]
        values, gradients = (
            self._join([part.reshape(-1).cpu().numpy() for part in parts]) for parts in zip(*pairs, strict=True)
        )
        return float(values.sum()), gradients

    def is_finite(self) -> bool:
        """Whether all raw parameters are finite numbers."""
        return all(bool(torch.isfinite(entry.parameter).all()) for entry in self.entries)

    def clear_gradient(self) -> None:
        """Forget every `.grad`."""
        for entry in self.entries:
            entry.parameter.grad = None

    def values(self) -> dict[str, Tensor]:
        """The constrained values by name."""
        return {entry.name: entry.value() for entry in self.entries}

    def state(self) -> dict[str, Tensor]:
        """A copy of the raw parameters by name."""
        return {entry.name: entry.parameter.detach().clone() for entry in self.entries}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy raw parameters by name, bit for bit; names that are not trained are left out."""
        for entry in self.entries:
            if entry.name in state:
                entry.parameter.copy_(state[entry.name])


def _entries(module: torch.nn.Module, sizes: Mapping[str, float | Tensor]) -> list[_Entry]:
    entries, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            owner, _, last = name.rpartition(".")
            constraint = getattr(module.get_submodule(owner), "_constraints", {}).get(f"{last}_constraint")
            size = torch.as_tensor(sizes.get(name, 1.0) if constraint is None else 1.0).to(
                parameter.device, torch.float64
            )
            stop = start + parameter.numel()
            entries.append(_Entry(name, parameter, constraint, size.expand(parameter.shape), slice(start, stop)))
            start = stop
    return entries


def _by_parameter(module: torch.nn.Module, bounds: Mapping[int | str, Bounds]) -> dict[int, Bounds]:
    """The boxes by `id(parameter)`; a parameter that two modules share goes by either name."""
    ids = {name: id(parameter) for name, parameter in module.named_parameters(remove_duplicate=False)}
    if unknown := [key for key in bounds if key not in ids and key not in ids.values()]:
        raise OptionError(f"there is a box for {unknown[0]!r}, but no such parameter; there are {', '.join(ids)}.")
    return {ids.get(key, key): box for key, box in bounds.items()}


def _gradient(entry: _Entry) -> Tensor:
    if entry.parameter.grad is None:
        return torch.zeros(entry.parameter.numel(), dtype=torch.float64)
    return entry.parameter.grad.to(torch.float64) * entry.slope()


def _bounds(entry: _Entry, box: Bounds | None) -> np.ndarray:
    """The bounds (numel, 2) of an entry's variables: of its constraint, and of its box where there is one."""
    shape, options = entry.parameter.shape, {"dtype": torch.float64, "device": entry.parameter.device}
    low, high = (torch.as_tensor(end, **options).expand(shape) for end in box or (-torch.inf, torch.inf))
    if not bool((low < high).all()):
        raise OptionError(f"the box of {entry.name} is empty: low {box[0]} must be below high {box[1]}.")
    if entry.constraint is not None:
        least, most = entry.constraint
        if bool((low >= most).any() or (high <= least).any()):
            raise OptionError(f"the box {box} of {entry.name} lies outside its constraint {entry.constraint}.")
    return torch.stack([entry.variable(end).reshape(-1) for end in (low, high)], -1).cpu().numpy()


WRAPPERS = {"base_kernel", "output_module", "kernels"}
"""Names that say how a kernel is built and not what it believes."""


def hyperparameters(kernel: Kernel) -> dict[str, Tensor]:
    """lengthscale, outputscale, output_matrix, … of a kernel; those of the terms of a sum are prefixed by their number.

    Where two have the same name (a scaled kernel inside a scaled one) the inner one keeps its whole path.

    Example:
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from ovkgp.inference.model.parameter_vector import hyperparameters
        >>> from ovkgp.kernels import DecomposableKernel
        >>> lmc = DecomposableKernel(RBFKernel(), 2) + DecomposableKernel(MaternKernel(), 2)
        >>> sorted(hyperparameters(lmc))
        ['0.lengthscale', '0.output_matrix', '1.lengthscale', '1.output_matrix']
    """
    matrices = {path: part for path, part in kernel.named_modules() if isinstance(part, OutputMatrix)}
    with torch.no_grad():
        found = {}
        for path, matrix in matrices.items():
            _add(found, path, "output_matrix", matrix())
        for path, parameter, constraint in kernel.named_parameters_and_constraints():
            owner, _, last = path.rpartition(".")
            if not any(owner == inside or owner.startswith(f"{inside}.") for inside in matrices):
                value = parameter.detach() if constraint is None else constraint.transform(parameter)
                _add(found, owner, last.removeprefix("raw_"), value.clone())
    return found


def _add(found: dict[str, Tensor], path: str, last: str, value: Tensor) -> None:
    short = ".".join([*(step for step in path.split(".") if step and step not in WRAPPERS), last])
    found[f"{path}.{last}" if short in found else short] = value
