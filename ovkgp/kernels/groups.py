"""Locally compact Abelian groups, on which shift-invariant kernels are defined (BT-11 to BT-18).

A group has an operation ⋆, an identity, inverses, and characters exp(i⟨h(x), ω⟩) that map ⋆ to a product; h is `log`. A
shift-invariant kernel is a stationary kernel of the warped inputs `embed(x)`: h(x), or a circle for cyclic coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from ovkgp.checks import check_integer
from ovkgp.exceptions import DomainError, InputError, OptionError

Columns = Sequence[int] | Tensor | None


class AdditiveGroup(Module):
    """Additive group (R^d, +), h(x) = x, and base class of the other groups.

    Methods take and return points x (..., d). Calling the group checks the domain and returns `embed(x)`.

    Parameters
    ----------
    num_dims : int, default=1
        Number d of columns.

    Notes
    -----
    Complexity: O(n d) per method for n points; `pairing` O(n D d) for D frequencies.

    References
    ----------
    BT-12

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import AdditiveGroup
    >>> AdditiveGroup(2).op(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor([4., 6.])
    """

    def __init__(self, num_dims: int = 1):
        super().__init__()
        self.num_dims = check_integer("num_dims", num_dims)

    @property
    def embedding_dim(self) -> int:
        """Number q of columns of `embed(x)`."""
        return self.num_dims

    @property
    def identity(self) -> Tensor:
        """Neutral element e, (d,), in double precision."""
        return torch.zeros(self.num_dims, dtype=torch.float64)

    def op(self, x: Tensor, z: Tensor) -> Tensor:
        """Return x ⋆ z.

        Parameters
        ----------
        x, z : Tensor of shape (..., d)
            Elements of the group.

        Returns
        -------
        Tensor of shape (..., d)
            Elements of the group.
        """
        return x + z

    def inverse(self, x: Tensor) -> Tensor:
        """Return the inverse of x.

        Parameters
        ----------
        x : Tensor of shape (..., d)
            Elements of the group.

        Returns
        -------
        Tensor of shape (..., d)
            Inverse elements.
        """
        return -x

    def log(self, x: Tensor) -> Tensor:
        """Return h(x), (..., d), the coordinates in which ⋆ is addition.

        Parameters
        ----------
        x : Tensor of shape (..., d)
            Elements of the group.

        Returns
        -------
        Tensor of shape (..., d)
            Coordinates.
        """
        return x

    def embed(self, x: Tensor) -> Tensor:
        """Return the warped points (..., embedding_dim), of which shift-invariant kernels are stationary kernels.

        Parameters
        ----------
        x : Tensor of shape (..., d)
            Elements of the group.

        Returns
        -------
        Tensor of shape (..., embedding_dim)
            Warped points.
        """
        return self.log(x)

    def pairing(self, x: Tensor, frequencies: Tensor) -> Tensor:
        """Return the characters exp(i⟨h(x), ω⟩), complex (..., n, D), of x (..., n, d) and frequencies (..., D, d).

        Parameters
        ----------
        x : Tensor of shape (..., n, d)
            Elements of the group.
        frequencies : Tensor of shape (..., D, d)
            Frequencies ω.

        Returns
        -------
        Tensor of shape (..., n, D)
            Complex numbers of modulus one.
        """
        phase = self.log(x) @ frequencies.to(x).mT
        return torch.polar(torch.ones_like(phase), phase)

    def check(self, x: Tensor, columns: Columns = None) -> None:
        """Raise a `DomainError` if x (..., d) is outside the group; `columns` are the column indices to report.

        Parameters
        ----------
        x : Tensor of shape (..., d)
            Elements of the group.
        columns : list of int or None, default=None
            Indices of the columns in the data.
        """
        self._check_columns(x)
        check_domain(x.isfinite(), x, "must be finite", columns)

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        """Return the Lipschitz constant of h on {x_k ≥ lower_k} (BT-63).

        Parameters
        ----------
        lower : float, array-like of shape (d,) or None, default=None
            Lower bounds of the columns. If None, those of the group.

        Returns
        -------
        float
            Lipschitz constant.
        """
        return 1.0

    def forward(self, x: Tensor, columns: Columns = None) -> Tensor:
        self.check(x, columns)
        return self.embed(x)

    def extra_repr(self) -> str:
        return f"num_dims={self.num_dims}"

    def _check_columns(self, x: Tensor) -> None:
        if x.dim() == 0 or x.shape[-1] != self.num_dims:
            name = type(self).__name__
            raise InputError(f"Inputs of {name} have shape {tuple(x.shape)}, expected {self.num_dims} column(s).")


class SkewedMultiplicativeGroup(AdditiveGroup):
    """Group ((−c, ∞)^d, ⊙) with x ⊙ z = (x + c)(z + c) − c and h(x) = log(x + c).

    Parameters
    ----------
    c : float, sequence of float or Tensor
        Skew, one value or one per column. It is not trained; `SkewedChi2Kernel` has a trained skew.
    num_dims : int or None, default=None
        Number d of columns. If None, the length of c.

    References
    ----------
    BT-14

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import SkewedMultiplicativeGroup
    >>> group = SkewedMultiplicativeGroup(0.5)
    >>> group.op(torch.tensor([1.5]), group.identity)
    tensor([1.5000], dtype=torch.float64)
    """

    def __init__(self, c: float | Sequence[float] | Tensor, num_dims: int | None = None):
        c = _as_column_values(c, num_dims)
        super().__init__(len(c))
        self.register_buffer("c", c)

    @property
    def identity(self) -> Tensor:
        return 1 - self.c

    def op(self, x: Tensor, z: Tensor) -> Tensor:
        c = self.c.to(torch.result_type(x, z))
        return (x + c) * (z + c) - c

    def inverse(self, x: Tensor) -> Tensor:
        c = self.c.to(x)
        return (x + c).reciprocal() - c

    def log(self, x: Tensor) -> Tensor:
        return (x + self.c.to(x)).log()

    def check(self, x: Tensor, columns: Columns = None) -> None:
        self._check_columns(x)
        shifted = x + self.c.to(x)
        rule = f"must be finite and greater than −c, c = {self.c.tolist()}"
        check_domain(shifted.isfinite() & (shifted > 0), x, rule, columns)

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        """Return max_k 1 / (lower_k + c_k), infinite without a lower bound (BT-E-19)."""
        if lower is None:
            return math.inf
        lower = _as_column_values(lower, self.num_dims).to(self.c)
        check_domain(lower + self.c > 0, lower, f"has no Lipschitz constant down to −c, c = {self.c.tolist()}")
        return (lower + self.c).reciprocal().max().item()

    def extra_repr(self) -> str:
        return f"c={_format_values(self.c)}, num_dims={self.num_dims}"


class MultiplicativeGroup(SkewedMultiplicativeGroup):
    """Multiplicative group ((0, ∞)^d, ×), h(x) = log x.

    Parameters
    ----------
    num_dims : int, default=1
        Number d of columns.

    References
    ----------
    BT-13

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import MultiplicativeGroup
    >>> MultiplicativeGroup().inverse(torch.tensor([4.0]))
    tensor([0.2500])
    """

    def __init__(self, num_dims: int = 1):
        super().__init__(0.0, check_integer("num_dims", num_dims))

    def extra_repr(self) -> str:
        return AdditiveGroup.extra_repr(self)


class CyclicGroup(AdditiveGroup):
    """Circle (R / period·Z)^d, h(x) = 2πx / period, with integer frequencies.

    Integer inputs with an integer period N form the group Z/NZ. Each column is warped to a circle of circumference
    `period`, (period / 2π)·(cos h, sin h), so that q = 2d and short distances are preserved. A kernel of the distance
    in each pair of warped columns is a kernel of x − z modulo the period.

    Parameters
    ----------
    period : float, sequence of float or Tensor
        Period, one value or one per column. Must be greater than 0.
    num_dims : int or None, default=None
        Number d of columns. If None, the length of `period`.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import CyclicGroup
    >>> CyclicGroup(24.0).op(torch.tensor([23.0]), torch.tensor([2.0]))
    tensor([1.])
    """

    def __init__(self, period: float | Sequence[float] | Tensor, num_dims: int | None = None):
        period = _as_column_values(period, num_dims)
        if not bool((period > 0).all()):
            raise OptionError(f"period must be greater than 0, got {period.tolist()}.")
        super().__init__(len(period))
        self.register_buffer("period", period)

    @property
    def embedding_dim(self) -> int:
        return 2 * self.num_dims

    def op(self, x: Tensor, z: Tensor) -> Tensor:
        return (x + z).remainder(self.period.to(torch.result_type(x, z)))

    def inverse(self, x: Tensor) -> Tensor:
        return (-x).remainder(self.period.to(x))

    def log(self, x: Tensor) -> Tensor:
        return x * (2 * math.pi / self.period).to(x)

    def embed(self, x: Tensor) -> Tensor:
        angle = self.log(x)
        radius = (self.period / (2 * math.pi)).to(x)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).flatten(-2)

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        return (2 * math.pi / self.period).max().item()

    def extra_repr(self) -> str:
        return f"period={_format_values(self.period)}, num_dims={self.num_dims}"


class ProductGroup(AdditiveGroup):
    """Product of groups over consecutive blocks of columns; characters multiply.

    Parameters
    ----------
    groups : sequence of AdditiveGroup
        The groups in the order of their columns. For another order, set `active_dims` on the kernel.

    References
    ----------
    BT-15

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import AdditiveGroup, CyclicGroup, ProductGroup
    >>> group = ProductGroup([AdditiveGroup(2), CyclicGroup(7.0)])
    >>> group.num_dims, group(torch.zeros(5, 3)).shape
    (3, torch.Size([5, 4]))
    """

    def __init__(self, groups: Sequence[AdditiveGroup]):
        if not isinstance(groups, Sequence) or len(groups) == 0:
            raise OptionError(f"groups must be a list of at least one group, got {groups!r}.")
        for group in groups:
            check_group(group)
        super().__init__(sum(group.num_dims for group in groups))
        self.groups = ModuleList(groups)

    @property
    def embedding_dim(self) -> int:
        return sum(group.embedding_dim for group in self.groups)

    @property
    def identity(self) -> Tensor:
        return torch.cat([group.identity for group in self.groups])

    def op(self, x: Tensor, z: Tensor) -> Tensor:
        pairs = zip(self.groups, self._blocks(x), self._blocks(z), strict=True)
        return torch.cat([group.op(a, b) for group, a, b in pairs], -1)

    def inverse(self, x: Tensor) -> Tensor:
        return self._map("inverse", x)

    def log(self, x: Tensor) -> Tensor:
        return self._map("log", x)

    def embed(self, x: Tensor) -> Tensor:
        return self._map("embed", x)

    def check(self, x: Tensor, columns: Columns = None) -> None:
        self._check_columns(x)
        columns = list(range(self.num_dims) if columns is None else columns)
        for group, block in zip(self.groups, self._blocks(x), strict=True):
            group.check(block, columns[: group.num_dims])
            columns = columns[group.num_dims :]

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        if lower is None:
            return max(group.lipschitz() for group in self.groups)
        blocks = self._blocks(_as_column_values(lower, self.num_dims))
        return max(group.lipschitz(block) for group, block in zip(self.groups, blocks, strict=True))

    def _blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split([group.num_dims for group in self.groups], -1)

    def _map(self, method: str, x: Tensor) -> Tensor:
        pairs = zip(self.groups, self._blocks(x), strict=True)
        return torch.cat([getattr(group, method)(block) for group, block in pairs], -1)


def check_group(group: AdditiveGroup) -> None:
    """Raise OptionError unless `group` is an instance of a group."""
    if isinstance(group, type) and issubclass(group, AdditiveGroup):
        raise OptionError(f"group must be an instance, got the class {group.__name__}. Use {group.__name__}(…).")
    if not isinstance(group, AdditiveGroup):
        raise OptionError(f"group must be a group such as CyclicGroup(24.0), got {type(group).__name__}.")


def check_domain(inside: Tensor, x: Tensor, rule: str, columns: Columns = None) -> None:
    """Raise a `DomainError` that names the first column of x (..., n, d), among `columns`, not `inside`."""
    if bool(inside.all()):
        return
    bad = int((~inside).reshape(-1, inside.shape[-1]).any(0).nonzero()[0])
    name = bad if columns is None else int(columns[bad])
    raise DomainError(f"Input column {name} {rule}; its smallest value is {x[..., bad].min().item():g}.")


def list_columns(active_dims: Sequence[int] | Tensor | None) -> list[int] | None:
    """Return `active_dims` as a list for messages, since GPyTorch removes them while it evaluates a kernel."""
    return None if active_dims is None else [int(column) for column in active_dims]


def _as_column_values(value: float | Sequence[float] | Tensor, num_dims: int | None) -> Tensor:
    """Return a value per column, (d,), in double precision, so that 0.1 stays exact if a model is converted later."""
    num_dims = None if num_dims is None else check_integer("num_dims", num_dims)
    vector = torch.as_tensor(value, dtype=torch.float64).detach().clone().reshape(-1)
    if num_dims is not None and len(vector) not in (1, num_dims):
        raise OptionError(f"Expected 1 value or {num_dims} (one per column), got {len(vector)}.")
    return vector if num_dims is None else vector.expand(num_dims).clone()


def _format_values(values: Tensor) -> float | list[float]:
    """Return the rounded values of a vector for a repr; a single number if all are equal."""
    numbers = [round(value, 6) for value in values.tolist()]
    return numbers[0] if len(set(numbers)) == 1 else numbers
