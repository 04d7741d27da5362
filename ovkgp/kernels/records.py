"""Records of scalar kernels, and dispatch of rules by kernel class.

A record holds everything that the package knows about a scalar kernel besides its formula; it is registered below the
class. Records and rules apply to a class and to the subclasses that inherit its `forward`. A subclass with another
formula, such as `RBFKernelGrad`, needs its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel

from ovkgp.exceptions import KernelTypeError, OptionError


class Profile(NamedTuple):
    """Value κ(s) of a radial profile, with its derivatives as functions without arguments, called only where needed.

    All must be differentiable by autograd at s = 0 too: take roots with `ovkgp.kernels.records.safe_root`.

    Parameters
    ----------
    value : Tensor or ndarray
        κ(s), of the shape of s.
    first, second : callable
        κ'(s) and κ''(s). Where one diverges at s = 0 it is any finite number, since it is multiplied by zero: s κ' → 0
        and, if the kernel is twice differentiable, s κ'' → 0.
    by_parameter : mapping, default={}
        Derivatives of κ in the parameters of the profile, by their names.
    """

    value: Any
    first: Callable[[], Any]
    second: Callable[[], Any]
    by_parameter: Mapping[str, Callable[[], Any]] = {}


def safe_root(xp: ModuleType, s):
    """Return √s, for torch with the gradient 0 instead of infinity at s = 0."""
    if xp is not torch or not (torch.is_grad_enabled() and s.requires_grad):
        return xp.sqrt(s)
    is_zero = s == 0
    return torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, s).sqrt())


class NamedKernel(NamedTuple):
    """Kernel that an option such as ``base_kernel="matern52"`` names.

    Parameters
    ----------
    title : str
        Name in reports.
    description : str
        What the draws are like, as a clause: "draws have two derivatives".
    formula : str
        Formula in the notation of the reports.
    options : mapping, default={}
        Arguments of the constructor, besides `ard_num_dims`.
    """

    title: str
    description: str
    formula: str
    options: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class KernelRecord:
    """All that the package needs to know of a scalar kernel, besides its `forward`.

    Parameters
    ----------
    kernel_class : type
        Class of the kernel.
    roles : mapping, default={}
        Roles of its parameters, by their names without "raw_", from which initial values, bounds and priors follow:
        "lengthscale", "shape", "period", "relative_lengthscale", "variance", … Other parameters start at their present
        value.
    profile : callable or None, default=None
        Of a radial kernel κ(s), s = Σ δ_i²/ℓ_i²: ``profile(xp, s, kernel, **parameters)`` returns a `Profile`, with
        `xp` being `torch` or `numpy`. `parameters` are those with a role, except the lengthscale. Vector fields and
        the NumPy log posterior use it.
    jet : callable or None, default=None
        Of another stationary kernel: ``jet(kernel, lag)`` returns a `Jet`.
    scale_mixture : callable or None, default=None
        Of a radial kernel that is a mixture of Gaussian kernels: ``scale_mixture(kernel)`` returns its `ScaleMixture`,
        from which random features follow.
    spectral_pair : callable or None, default=None
        Of another shift-invariant kernel: ``spectral_pair(kernel, num_dims)`` returns its `SpectralPair` or
        `SpectralSum` in `num_dims` dimensions.
    moment_order : callable, optional
        Function from the kernel to the supremum of the orders q with E‖ω‖^q < ∞ under the spectral distribution.
        Kernels of order 2 or less have no second derivative at zero lag. Infinite by default.
    state_space : callable or None, default=None
        Of a kernel of one input whose process is Markov: ``state_space(kernel)`` returns its `StateSpaceForm`, or None.
    names : mapping, default={}
        Names of the kernel in options of estimators, such as "rbf".
    options : tuple of str, default=()
        Arguments of the constructor that model files keep, besides `ard_num_dims`, `active_dims` and `batch_shape`; the
        kernel has attributes of the same names.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import Kernel
    >>> from ovkgp.kernels import CurlFreeKernel, KernelRecord, Profile, register_kernel
    >>> class InverseQuadratic(Kernel):  # κ(s) = 1 / (1 + s/2)
    ...     has_lengthscale = True
    ...
    ...     def forward(self, x1, x2, diag=False, **params):
    ...         scaled = x1 / self.lengthscale, x2 / self.lengthscale
    ...         return 1 / (1 + self.covar_dist(*scaled, diag=diag, square_dist=True) / 2)
    >>> def profile(xp, s, kernel):
    ...     k = 1 / (1 + s / 2)
    ...     return Profile(k, lambda: -(k**2) / 2, lambda: k**3 / 2)
    >>> register_kernel(KernelRecord(InverseQuadratic, roles={"lengthscale": "lengthscale"}, profile=profile))
    >>> CurlFreeKernel(InverseQuadratic(), num_dims=2)(torch.randn(3, 2)).shape
    torch.Size([6, 6])
    """

    kernel_class: type[Kernel]
    roles: Mapping[str, str] = field(default_factory=dict)
    profile: Callable[..., Profile] | None = None
    jet: Callable | None = None
    scale_mixture: Callable | None = None
    spectral_pair: Callable | None = None
    moment_order: Callable[[Kernel], float] = lambda kernel: math.inf
    state_space: Callable | None = None
    names: Mapping[str, NamedKernel] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __post_init__(self):
        if not (isinstance(self.kernel_class, type) and issubclass(self.kernel_class, Kernel)):
            raise KernelTypeError(f"kernel_class must be a class of kernels, got {self.kernel_class!r}.")
        if (self.profile or self.scale_mixture) and "lengthscale" not in self.roles:
            raise OptionError('profile and scale_mixture require a parameter with the role "lengthscale" in roles.')


_RECORDS: dict[type, KernelRecord] = {}


def register_kernel(record: KernelRecord) -> None:
    """Register the record of a scalar kernel; a later record of the same class replaces it.

    Parameters
    ----------
    record : KernelRecord
        Record of the kernel.

    See Also
    --------
    KernelRecord : Has an example.
    """
    _RECORDS[record.kernel_class] = record


def find_record(kernel: Kernel) -> KernelRecord | None:
    """Return the record of a kernel, or None.

    Parameters
    ----------
    kernel : Kernel
        Any kernel.

    Returns
    -------
    KernelRecord or None
        Record of its class, or of the parent from which it inherits `forward`.

    """
    return _find(kernel, _RECORDS.get)


def registered_records() -> tuple[KernelRecord, ...]:
    """Return the records of all registered kernels."""
    return tuple(_RECORDS.values())


def named_kernels() -> dict[str, NamedKernel]:
    """Return all kernels that options can name."""
    return {name: named for record in _RECORDS.values() for name, named in record.names.items()}


def find_named_record(name: str) -> KernelRecord:
    """Return the record of the kernel of a name."""
    record = next((record for record in reversed(_RECORDS.values()) if name in record.names), None)
    if record is None:
        raise OptionError(f"The name of a kernel must be one of {', '.join(map(repr, named_kernels()))}, got {name!r}.")
    return record


def make_scalar_kernel(name: str, num_dims: int | None = None) -> Kernel:
    """Make the scalar kernel of a name, with one lengthscale per column if their number is given."""
    record = find_named_record(name)
    return record.kernel_class(**record.names[name].options, ard_num_dims=num_dims)


def _find(kernel: Kernel, get: Callable[[type], Any]) -> Any | None:
    """Return what `get` knows of the nearest parent class, if the kernel has the `forward` of that class."""
    for parent in type(kernel).__mro__:
        if (found := get(parent)) is not None:
            return found if type(kernel).forward is parent.forward else None
    return None


class KernelDispatcher:
    """Table of rules by kernel class, filled with the decorator `register`, and by the records of scalar kernels."""

    def __init__(self):
        self._rules: dict[type, Callable] = {}

    def register(self, kernel_class: type) -> Callable[[Callable], Callable]:
        """Register the decorated function as the rule for `kernel_class`."""
        if not isinstance(kernel_class, type):
            raise KernelTypeError(f"kernel_class must be a class, as in @register(MyKernel), got {kernel_class!r}.")

        def decorate(rule: Callable) -> Callable:
            self._rules[kernel_class] = rule
            return rule

        return decorate

    def find(self, kernel: Kernel) -> Callable | None:
        """Return the rule for a kernel, or None."""
        if (rule := _find(kernel, self._rules.get)) is not None:
            return rule
        record = find_record(kernel)
        return None if record is None else self.from_record(record)

    def from_record(self, record: KernelRecord) -> Callable | None:
        """Return the rule that follows from a record, or None."""
        return None

    @property
    def known_classes(self) -> str:
        """Names of the classes with a rule, for messages."""
        from_records = {kernel_class for kernel_class, record in _RECORDS.items() if self.from_record(record)}
        return ", ".join(sorted(kernel_class.__name__ for kernel_class in self._rules.keys() | from_records))
