"""Kernels by name: what an estimator builds from "decomposable", "matern52" and the shape of the data."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    FreeMatrix,
    FullMatrix,
    HelmholtzKernel,
    IndependentKernel,
    OutputMatrix,
    TransformableKernel,
    is_operator_valued,
    num_outputs,
)
from ovkgp.kernels.checks import whole_number
from ovkgp.kernels.decomposable import require_scalar
from ovkgp.kernels.fields import FieldKernel

BASES: dict[str, Callable[[int], Kernel]] = {
    "rbf": lambda d: RBFKernel(ard_num_dims=d),
    "matern12": lambda d: MaternKernel(nu=0.5, ard_num_dims=d),
    "matern32": lambda d: MaternKernel(nu=1.5, ard_num_dims=d),
    "matern52": lambda d: MaternKernel(nu=2.5, ard_num_dims=d),
    "rq": lambda d: RQKernel(ard_num_dims=d),
}
FIELDS = ("curl_free", "divergence_free", "helmholtz")
STRUCTURES = ("independent", "decomposable", "lmc", *FIELDS)
CANDIDATES = ("independent", "decomposable")
"""What kernel="auto" compares."""
FREE = (FreeMatrix, FullMatrix)
"""Output matrices that can have any scale an output."""


def base_kernel(base: str | Kernel, num_dims: int) -> Kernel:
    """A scalar kernel by name, with a lengthscale for each input column, or a copy of the one given."""
    if isinstance(base, Kernel):
        require_scalar(base, "base_kernel")
        return deepcopy(base)
    if base not in BASES:
        raise OptionError(f"base_kernel must be one of {', '.join(map(repr, BASES))} or a scalar kernel, got {base!r}.")
    return BASES[base](num_dims)


def structure(name: str, base: str | Kernel, rank: int, num_dims: int, num_outputs: int) -> Kernel:
    """The operator-valued kernel of a name, for d inputs and p outputs."""
    if name not in STRUCTURES:
        names = ", ".join(map(repr, ("auto", *STRUCTURES)))
        raise OptionError(f"kernel must be one of {names} or a kernel object, got {name!r}.")
    rank = min(whole_number("rank", rank), num_outputs)
    if name == "independent":
        scaled = [ScaleKernel(base_kernel(base, num_dims)) for _ in range(num_outputs)]
        return IndependentKernel(scaled)
    if name == "decomposable":
        return DecomposableKernel(base_kernel(base, num_dims), num_outputs, rank)
    if name == "lmc":
        first, *rest = (DecomposableKernel(base_kernel(base, num_dims), num_outputs, 1) for _ in range(max(rank, 2)))
        return sum(rest, first)
    return field_kernel(name, base, num_dims, num_outputs)


def field_kernel(name: str, base: str | Kernel, num_dims: int, num_outputs: int) -> Kernel:
    """The kernel of a vector field by its name."""
    if num_dims != num_outputs:
        raise InputError(
            f"kernel={name!r} is for vector fields, with as many outputs as inputs; X has {num_dims} columns and Y has "
            f'{num_outputs}. For outputs that are related otherwise use kernel="decomposable".'
        )
    if name == "helmholtz":
        return HelmholtzKernel(_field_base(base, num_dims), num_dims=num_dims)
    kind = CurlFreeKernel if name == "curl_free" else DivergenceFreeKernel
    return ScaleKernel(kind(_field_base(base, num_dims), num_dims=num_dims))


def _field_base(base: str | Kernel, num_dims: int) -> Kernel:
    """One lengthscale for all directions: a field has no preferred axis unless the user says so."""
    if isinstance(base, Kernel) or base not in BASES:
        return base_kernel(base, num_dims)
    return BASES[base](None)


def given_kernel(kernel: Kernel, num_columns: int) -> Kernel:
    """A copy of the user's kernel, which must have as many outputs as Y."""
    if (p := num_outputs(kernel)) != num_columns:
        raise InputError(f"the kernel has {p} outputs and Y has {num_columns} columns; they must agree.")
    return deepcopy(kernel)


def carries_units(kernel: Kernel) -> bool:
    """Whether a kernel object holds numbers that mean something in the user's units: frozen parameters, priors, known output
    matrices, or a variance that nothing trains."""
    if any(not parameter.requires_grad for parameter in kernel.parameters()) or any(
        True for _ in kernel.named_priors()
    ):
        return True
    return not _has_free_scale(kernel)


def _has_free_scale(kernel: Kernel) -> bool:
    if isinstance(kernel, ScaleKernel):
        return True
    if isinstance(kernel, (AdditiveKernel, IndependentKernel)):
        return all(_has_free_scale(part) for part in kernel.kernels)
    return isinstance(kernel, DecomposableKernel) and isinstance(kernel.output_module, FREE)


def shares_scale(kernel: Kernel) -> bool:
    """Whether the kernel ties its outputs together in a way that scaling them one by one would destroy."""
    tied = (FieldKernel, TransformableKernel)
    if any(isinstance(part, tied) for part in kernel.modules()):
        return True
    if any(isinstance(part, OutputMatrix) and not isinstance(part, FREE) for part in kernel.modules()):
        return True
    free = (DecomposableKernel, IndependentKernel)
    return is_operator_valued(kernel) and not any(isinstance(part, free) for part in kernel.modules())
