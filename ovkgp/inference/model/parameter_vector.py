"""The trained parameters of a module as a vector of well-scaled variables, and the hyperparameters of a kernel by name.

A positive parameter θ > l has the variable log(θ − l); other constrained parameters use their raw value, and free ones
are divided by their typical scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ProductKernel
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels import HelmholtzKernel, OutputMatrix

MIN_DISTANCE, MAX_DISTANCE = 1e-30, 1e30  # bounds of θ − l if none are given: finite in single precision too
RELATIVE_MARGIN = 1e-10
"""Minimum distance of a variable to the end of its constraint, relative to l or to the length of the interval."""

BOUND_TOLERANCE = 1e-9  # distance of a variable to an active bound, relative to the bound

WRAPPERS = {"base_kernel", "output_module", "kernels"}
"""Attribute names that describe how a kernel is built and are omitted from the names of its hyperparameters."""

HELMHOLTZ_PARTS = ("curl_free", "divergence_free")  # names of the terms, as in `posterior.components()`

Bounds = tuple[float | Tensor, float | Tensor]


@dataclass
class _Entry:
    """One parameter tensor and its span in the vector."""

    name: str
    parameter: torch.nn.Parameter
    constraint: Interval | None
    scale: Tensor
    span: slice
    distances: tuple[float, float] = (MIN_DISTANCE, MAX_DISTANCE)

    def __post_init__(self):
        ends = () if self.constraint is None else self.constraint
        self.is_log = [bool(torch.isfinite(end).all()) for end in ends] == [True, False]  # onto (l, ∞)
        self.lower = self.constraint.lower_bound.to(torch.float64).expand(self.parameter.shape) if self.is_log else None

    def widen(self, low: Tensor, high: Tensor) -> None:
        """Allow all values between bounds, in double precision: those of data in extreme units may be out of the default range."""
        if self.is_log and self.parameter.dtype == torch.float64:
            ends = (low - self.lower)[low > self.lower], (high - self.lower)[high < torch.inf]
            smallest, largest = (end if len(end) else torch.ones(1) for end in ends)
            self.distances = min(MIN_DISTANCE, float(smallest.min())), max(MAX_DISTANCE, float(largest.max()))

    def value(self) -> Tensor:
        raw = self.parameter.detach().to(torch.float64)
        return raw if self.constraint is None else self.constraint.transform(raw)

    def variable(self, value: Tensor) -> Tensor:
        """Convert a constrained value to u; an end of the constraint is moved inside by `RELATIVE_MARGIN`."""
        if self.is_log:
            floor = (RELATIVE_MARGIN * self.lower.abs()).clamp_min(self.distances[0])
            return torch.maximum(value - self.lower, floor).clamp_max(self.distances[1]).log()
        if self.constraint is None:
            return value / self.scale
        low, high = (bound.to(torch.float64) for bound in self.constraint)
        margin = RELATIVE_MARGIN * (high - low).nan_to_num(posinf=0.0)  # only an interval with two ends has a length
        return self.constraint.inverse_transform(torch.clamp(value, low + margin, high - margin))

    def raw(self, variable: Tensor) -> Tensor:
        if self.is_log:
            return self.constraint.inverse_transform(self.lower + variable.exp())
        return variable * self.scale if self.constraint is None else variable

    def slope(self) -> Tensor:
        """Compute d raw / du at the current value."""
        if not self.is_log:
            return self.scale
        raw = self.parameter.detach().to(torch.float64).requires_grad_()
        with torch.enable_grad():
            value = self.constraint.transform(raw)
            (rise,) = torch.autograd.grad(value.sum(), raw)
        return (value.detach() - self.lower) / rise

    def log_slopes(self, by_value: bool) -> tuple[Tensor, Tensor]:
        """Compute log |d raw / du| and its derivative in u, elementwise; those of log |dθ / du| if `by_value`."""
        slope = self.slope()
        if self.is_log and by_value:  # θ − l = exp u
            return (self.value() - self.lower).log(), torch.ones_like(slope)
        if self.constraint is None:
            return slope.abs().log(), torch.zeros_like(slope)
        log_rise, curvature = self._log_transform_slope()
        if not self.is_log:  # u is the raw parameter
            return (log_rise, curvature) if by_value else (torch.zeros_like(slope), torch.zeros_like(slope))
        return slope.log(), 1 - curvature * slope

    def _log_transform_slope(self) -> tuple[Tensor, Tensor]:
        """Compute log |dθ / d raw| and its derivative in the raw parameter."""
        raw = self.parameter.detach().to(torch.float64).requires_grad_()
        with torch.enable_grad():
            (rise,) = torch.autograd.grad(self.constraint.transform(raw).sum(), raw, create_graph=True)
            log_rise = rise.abs().log()
            if not log_rise.requires_grad:  # the transform is linear
                return log_rise, torch.zeros_like(log_rise)
            return log_rise.detach(), torch.autograd.grad(log_rise.sum(), raw)[0]


class ParameterVector:
    """The parameters of a module that require a gradient, as a float64 NumPy vector of well-scaled variables.

    `bounds` are (low, high) of constrained values, by qualified name or `id(parameter)`, and `scales` the typical sizes
    of unconstrained parameters, by qualified name. Values out of bounds are clipped at once.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bounds: Mapping[int | str, Bounds] | None = None,
        scales: Mapping[str, float | Tensor] | None = None,
    ):
        self.module = module
        self.entries = _make_entries(module, scales or {})
        bounds = _bounds_by_parameter(module, bounds or {})
        parts = [_variable_bounds(entry, bounds.get(id(entry.parameter))) for entry in self.entries]
        self.bounds = np.concatenate([*parts, np.zeros((0, 2))])
        self.kept = np.ones(len(self.bounds), dtype=bool)
        self.set(self.get())

    def __len__(self) -> int:
        return len(self.bounds)

    def keep(self, kept: np.ndarray) -> None:
        """Fix the variables for which `kept` (len,) is False at their current values and remove them from the vector."""
        self._rest = self.expand(self.get())
        self.kept[self.kept] = kept
        self.bounds = self.bounds[kept]

    def expand(self, vector: np.ndarray) -> np.ndarray:
        """Insert the fixed variables, in the order of the parameters."""
        if len(vector) == len(self.kept):
            return vector
        full = self._rest.copy()
        full[self.kept] = vector
        return full

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names of the trained parameters, as in `module.named_parameters()`."""
        return tuple(entry.name for entry in self.entries)

    @torch.no_grad()
    def get(self) -> np.ndarray:
        """Return the current variables, within their bounds."""
        parts = [entry.variable(entry.value()).reshape(-1).cpu().numpy() for entry in self.entries]
        return np.clip(self._join(parts), self.bounds[:, 0], self.bounds[:, 1])

    def _join(self, parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([*parts, np.zeros(0)])[self.kept]

    @torch.no_grad()
    def set(self, vector: np.ndarray) -> None:
        """Write the variables into the parameters."""
        vector = torch.as_tensor(self.expand(np.asarray(vector, dtype=np.float64)))
        for entry in self.entries:
            variable = vector[entry.span].reshape(entry.parameter.shape).to(entry.parameter.device)
            entry.parameter.copy_(entry.raw(variable))

    def active_bounds(self) -> tuple[tuple[str, int, str], ...]:
        """Return name, index and side of the entries whose variables are at a bound."""
        names = [(entry.name, i) for entry in self.entries for i in range(entry.parameter.numel())]
        names = [name for name, kept in zip(names, self.kept, strict=True) if kept]
        return name_active_bounds(names, self.get(), self.bounds)

    def gradient(self) -> np.ndarray:
        """Return the gradient in the variables, from the `.grad` of the parameters; zero if there is none."""
        return self._join([_variable_gradient(entry).reshape(-1).cpu().numpy() for entry in self.entries])

    def log_slopes(self, flat: Sequence[bool]) -> tuple[float, np.ndarray]:
        """Compute Σ log |d raw / du|, or log |dθ / du| of the values θ if `flat`, and its gradient in u (len,)."""
        pairs = [entry.log_slopes(by_value) for entry, by_value in zip(self.entries, flat, strict=True)]
        values, gradients = (
            self._join([part.reshape(-1).cpu().numpy() for part in parts]) for parts in zip(*pairs, strict=True)
        )
        return float(values.sum()), gradients

    def is_finite(self) -> bool:
        """Whether all raw parameters are finite."""
        return all(bool(torch.isfinite(entry.parameter).all()) for entry in self.entries)

    def clear_gradient(self) -> None:
        """Remove every `.grad`."""
        for entry in self.entries:
            entry.parameter.grad = None

    def values(self) -> dict[str, Tensor]:
        """Return the constrained values by name."""
        return {entry.name: entry.value() for entry in self.entries}

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the raw parameters by name."""
        return {entry.name: entry.parameter.detach().clone() for entry in self.entries}

    @torch.no_grad()
    def states(self, vectors: np.ndarray) -> dict[str, Tensor]:
        """Return the raw parameters by name, (S, *shape), at S vectors (S, len); the parameters are not changed."""
        full = np.repeat(self.expand(vectors[0])[None], len(vectors), 0)
        full[:, self.kept] = vectors
        found = {}
        for entry in self.entries:
            variables = torch.from_numpy(full[:, entry.span]).reshape(-1, *entry.parameter.shape)
            found[entry.name] = entry.raw(variables.to(entry.parameter.device)).to(entry.parameter.dtype)
        return found

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy raw parameters by name, bit for bit; other names are ignored."""
        for entry in self.entries:
            if entry.name in state:
                entry.parameter.copy_(state[entry.name])


def name_active_bounds(
    names: Sequence[tuple[str, int]], variables: np.ndarray, bounds: np.ndarray
) -> tuple[tuple[str, int, str], ...]:
    """Return name, index and side of the variables (k,) that are at one of their bounds (k, 2), from the names of all."""
    distance = np.abs(variables[:, None] - bounds)
    is_active = np.isfinite(distance) & (distance <= BOUND_TOLERANCE * (1 + np.abs(bounds)))
    return tuple((*names[row], ("lower", "upper")[side]) for row, side in np.argwhere(is_active))


def _make_entries(module: torch.nn.Module, scales: Mapping[str, float | Tensor]) -> list[_Entry]:
    entries, start = [], 0
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            owner, _, last = name.rpartition(".")
            constraint = getattr(module.get_submodule(owner), "_constraints", {}).get(f"{last}_constraint")
            scale = torch.as_tensor(scales.get(name, 1.0) if constraint is None else 1.0).to(
                parameter.device, torch.float64
            )
            stop = start + parameter.numel()
            entries.append(_Entry(name, parameter, constraint, scale.expand(parameter.shape), slice(start, stop)))
            start = stop
    return entries


def _bounds_by_parameter(module: torch.nn.Module, bounds: Mapping[int | str, Bounds]) -> dict[int, Bounds]:
    """Map bounds to `id(parameter)`; a parameter shared by two modules may be given by either name."""
    ids = {name: id(parameter) for name, parameter in module.named_parameters(remove_duplicate=False)}
    if unknown := [key for key in bounds if key not in ids and key not in ids.values()]:
        raise OptionError(f"bounds refers to unknown parameter {unknown[0]!r}. The parameters are {', '.join(ids)}.")
    return {ids.get(key, key): pair for key, pair in bounds.items()}


def _variable_gradient(entry: _Entry) -> Tensor:
    if entry.parameter.grad is None:
        return torch.zeros(entry.parameter.numel(), dtype=torch.float64)
    return entry.parameter.grad.to(torch.float64) * entry.slope()


def _variable_bounds(entry: _Entry, bounds: Bounds | None) -> np.ndarray:
    """Compute the bounds (numel, 2) of an entry's variables, from its constraint and the given bounds."""
    shape, options = entry.parameter.shape, {"dtype": torch.float64, "device": entry.parameter.device}
    low, high = (torch.as_tensor(end, **options).expand(shape) for end in bounds or (-torch.inf, torch.inf))
    if not bool((low < high).all()):
        raise OptionError(f"bounds of {entry.name} must satisfy low < high, got {bounds[0]} and {bounds[1]}.")
    if entry.constraint is not None:
        minimum, maximum = entry.constraint
        if bool((low >= maximum).any() or (high <= minimum).any()):
            raise OptionError(f"bounds of {entry.name} must overlap its constraint {entry.constraint}, got {bounds}.")
    entry.widen(low, high)
    return torch.stack([entry.variable(end).reshape(-1) for end in (low, high)], -1).cpu().numpy()


def hyperparameters(kernel: Kernel) -> dict[str, Tensor]:
    """Return the hyperparameters of a kernel by name, as constrained values.

    Names are lengthscale, outputscale, output_matrix, …; those of the terms of a sum are prefixed by `component_1`,
    `component_2`, …, unless all but one term are a constant and a linear kernel (`curl` and `div` for a Helmholtz kernel), and those of independent outputs by the index of the
    output. If two have the same name (a scaled kernel inside a scaled one), the inner one keeps its full path.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Kernel of `ovkgp.kernels` or GPyTorch.

    Returns
    -------
    dict of str to Tensor

    Examples
    --------
    >>> from gpytorch.kernels import MaternKernel, RBFKernel
    >>> from ovkgp.inference import hyperparameters
    >>> from ovkgp.kernels import DecomposableKernel
    >>> lmc = DecomposableKernel(RBFKernel(), 2) + DecomposableKernel(MaternKernel(), 2)
    >>> sorted(hyperparameters(lmc))
    ['component_1.lengthscale', 'component_1.output_matrix', 'component_2.lengthscale', 'component_2.output_matrix']
    """
    with torch.no_grad():
        return {name: read() for name, read in hyperparameter_readers(kernel).items()}


def hyperparameter_readers(kernel: Kernel) -> dict[str, Callable[[], Tensor]]:
    """Return functions that read the hyperparameters of a kernel at their present values, by name."""
    matrices = {path: part for path, part in kernel.named_modules() if isinstance(part, OutputMatrix)}
    found = {}
    for path, matrix in matrices.items():
        _add_reader(found, kernel, path, "output_matrix", matrix)
    for path, parameter, constraint in kernel.named_parameters_and_constraints():
        owner, _, last = path.rpartition(".")
        if not any(owner == inside or owner.startswith(f"{inside}.") for inside in matrices):
            reader = partial(read_constrained_value, parameter, constraint)
            _add_reader(found, kernel, owner, last.removeprefix("raw_"), reader)
    return found


def read_constrained_value(parameter: Tensor, constraint: Interval | None) -> Tensor:
    """Return a copy of the constrained value of a parameter."""
    return (parameter if constraint is None else constraint.transform(parameter)).detach().clone()


def parameter_name(kernel: Kernel, path: str) -> str:
    """Return the name in `hyperparameters` of the parameter at a path; the matrix, for a parameter inside an output matrix."""
    owner, _, last = path.rpartition(".")
    matrices = (step for step, part in kernel.named_modules() if isinstance(part, OutputMatrix))
    for matrix in matrices:
        if owner == matrix or owner.startswith(f"{matrix}."):
            owner, last = matrix, "output_matrix"
    return ".".join([*_term_names(kernel, owner), last.removeprefix("raw_")])


def _add_reader(found: dict[str, Callable], kernel: Kernel, path: str, last: str, reader: Callable) -> None:
    short = ".".join([*(_term_names(kernel, path)), last])
    found[f"{path}.{last}" if short in found else short] = reader


def _term_names(kernel: Kernel, path: str) -> Iterator[str]:
    """Yield the steps of a path that are shown: terms of sums by name, outputs of independent kernels by index."""
    modules, steps = [kernel], path.split(".") if path else []
    for step in steps:
        modules.append(getattr(modules[-1], step))
        owner = modules[-3] if len(modules) > 2 else None
        if step.isdigit() and isinstance(owner, HelmholtzKernel):
            yield HELMHOLTZ_PARTS[int(step)]
        elif step.isdigit() and isinstance(owner, AdditiveKernel) and _has_one_main_term(owner):
            continue
        elif step.isdigit() and isinstance(owner, AdditiveKernel | ProductKernel):
            yield f"{'component' if isinstance(owner, AdditiveKernel) else 'factor'}_{int(step) + 1}"
        elif step not in WRAPPERS:
            yield step


def _has_one_main_term(kernel: AdditiveKernel) -> bool:
    """Whether a sum is one kernel plus at most one constant and one linear kernel, whose parameters have unique names."""
    kinds = [type(term) for term in kernel.kernels]
    others = len(kinds) - kinds.count(ConstantKernel) - kinds.count(LinearKernel)
    return others == 1 and len(kinds) > 1 and max(kinds.count(ConstantKernel), kinds.count(LinearKernel)) == 1
