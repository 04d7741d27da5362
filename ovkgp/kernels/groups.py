"""Locally compact Abelian groups, on which "shift-invariant" has a meaning (BT-11 to BT-18).

A group has an operation ⋆, an identity, inverses, and a pairing (x, ω) = exp(i⟨h(x), ω⟩) that turns ⋆ into a
product; h is `log`. A shift-invariant kernel on it is a stationary kernel after the warp `embed`: h itself, or a
circle for cyclic coordinates. Calling the module checks the domain and warps. Everything costs O(n·d) for n points,
but for `pairing`, which is O(n·D·d) with D frequencies.
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


def require(inside: Tensor, x: Tensor, rule: str, columns: Columns = None) -> None:
    """Raise a `DomainError` naming the first column of x (..., n, d) with an entry that is not `inside` (..., n, d).

    `columns` are the names of the columns of x, where it is a selection from a wider table.
    """
    if bool(inside.all()):
        return
    bad = int((~inside).reshape(-1, inside.shape[-1]).any(0).nonzero()[0])
    name = bad if columns is None else int(columns[bad])
    raise DomainError(f"column {name} of the inputs {rule}; its smallest value is {x[..., bad].min().item():g}.")


def column_names(active_dims: Sequence[int] | Tensor | None) -> list[int] | None:
    """`active_dims` as a list, to keep for messages: while GPyTorch evaluates a kernel, it takes them away."""
    return None if active_dims is None else [int(column) for column in active_dims]


class AdditiveGroup(Module):
    """(R^d, +): h(x) = x (BT-12), and the parent of the other groups.

    Every method takes and returns points as the last axis: x (..., d). All cost O(n·d) for n points; `pairing` costs
    O(n·D·d) for D frequencies.

    Args:
        num_dims: the number d of columns.

    Example:
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
        """The number of columns of `embed(x)`."""
        return self.num_dims

    @property
    def identity(self) -> Tensor:
        """The neutral element e, (d,), in double precision."""
        return torch.zeros(self.num_dims, dtype=torch.float64)

    def op(self, x: Tensor, z: Tensor) -> Tensor:
        """x ⋆ z."""
        return x + z

    def inverse(self, x: Tensor) -> Tensor:
        """The element that undoes x."""
        return -x

    def log(self, x: Tensor) -> Tensor:
        """h(x), (..., d): the coordinates in which ⋆ is + and the pairing is linear."""
        return x

    def embed(self, x: Tensor) -> Tensor:
        """The warp to R^q, (..., embedding_dim), after which shift-invariant kernels are stationary ones."""
        return self.log(x)

    def pairing(self, x: Tensor, frequencies: Tensor) -> Tensor:
        """The characters exp(i⟨h(x), ω⟩), complex (..., n, D), for x (..., n, d) and frequencies (..., D, d)."""
        phase = self.log(x) @ frequencies.to(x).mT
        return torch.polar(torch.ones_like(phase), phase)

    def check(self, x: Tensor, columns: Columns = None) -> None:
        """Raise a `DomainError` that names the column where x (..., d) leaves the group (`columns`: their names)."""
        self._check_columns(x)
        require(x.isfinite(), x, "must be finite", columns)

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        """The Lipschitz constant of h where x_k ≥ `lower`_k, so that ⟨h(x), ω⟩ has at most this times ‖ω‖ (BT-63)."""
        return 1.0

    def forward(self, x: Tensor, columns: Columns = None) -> Tensor:
        self.check(x, columns)
        return self.embed(x)

    def extra_repr(self) -> str:
        return f"num_dims={self.num_dims}"

    def _check_columns(self, x: Tensor) -> None:
        if x.dim() == 0 or x.shape[-1] != self.num_dims:
            raise InputError(f"{type(self).__name__} has {self.num_dims} column(s); the inputs are {tuple(x.shape)}.")


def check_group(group: AdditiveGroup) -> None:
    """Raise unless `group` is one of the groups of this package, and not a class of them."""
    if isinstance(group, type) and issubclass(group, AdditiveGroup):
        raise OptionError(f"the group is the class {group.__name__} itself: make one of it, {group.__name__}(…).")
    if not isinstance(group, AdditiveGroup):
        raise OptionError(f"the group must be one such as CyclicGroup(24.0), got {type(group).__name__}.")


class SkewedMultiplicativeGroup(AdditiveGroup):
    """((−c, ∞)^d, ⊙) with x ⊙ z = (x + c)(z + c) − c: h(x) = log(x + c) (BT-14).

    Args:
        c: the skew, a number, or one a column. It is a constant; `SkewedChi2Kernel` learns one.
        num_dims: the number d of columns; None is that of c.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import SkewedMultiplicativeGroup
        >>> group = SkewedMultiplicativeGroup(0.5)
        >>> group.op(torch.tensor([1.5]), group.identity)
        tensor([1.5000], dtype=torch.float64)
    """

    def __init__(self, c: float | Sequence[float] | Tensor, num_dims: int | None = None):
        c = _per_column(c, num_dims)
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
        require(shifted.isfinite() & (shifted > 0), x, rule, columns)

    def lipschitz(self, lower: float | Sequence[float] | Tensor | None = None) -> float:
        """max_k 1 / (lower_k + c_k); infinite without a lower bound (BT-E-19)."""
        if lower is None:
            return math.inf
        lower = _per_column(lower, self.num_dims).to(self.c)
        require(lower + self.c > 0, lower, f"has no Lipschitz constant down to −c, c = {self.c.tolist()}")
        return (lower + self.c).reciprocal().max().item()

    def extra_repr(self) -> str:
        return f"c={_shown(self.c)}, num_dims={self.num_dims}"


class MultiplicativeGroup(SkewedMultiplicativeGroup):
    """((0, ∞)^d, ×): h(x) = log x (BT-13).

    Args:
        num_dims: the number d of columns.

    Example:
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
    """The circle (R / period·Z)^d: h(x) = 2πx / period, with integer frequencies.

    Integer inputs and an integer period N are the group Z/NZ. The warp is a circle of circumference `period` a
    column, (period / 2π)·(cos h, sin h), next to each other: embedding_dim = 2d. Short distances on it are those
    along the line (its own Lipschitz constant is 1; `lipschitz` is that of h). It turns a kernel that depends on
    distances, one column at a time, into a kernel of x − z modulo the period.

    Args:
        period: the period, a number, or one a column.
        num_dims: the number d of columns; None is that of the period.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import CyclicGroup
        >>> CyclicGroup(24.0).op(torch.tensor([23.0]), torch.tensor([2.0]))
        tensor([1.])
    """

    def __init__(self, period: float | Sequence[float] | Tensor, num_dims: int | None = None):
        period = _per_column(period, num_dims)
        if not bool((period > 0).all()):
            raise OptionError(f"a period is a positive number, got {period.tolist()}.")
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
        return f"period={_shown(self.period)}, num_dims={self.num_dims}"


class ProductGroup(AdditiveGroup):
    """A product of groups over consecutive blocks of columns (BT-15); the characters multiply.

    Args:
        groups: the groups; the first takes the first `num_dims` columns, and so on. For another order of the
            columns, give the kernel `active_dims`.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import AdditiveGroup, CyclicGroup, ProductGroup
        >>> group = ProductGroup([AdditiveGroup(2), CyclicGroup(7.0)])
        >>> group.num_dims, group(torch.zeros(5, 3)).shape
        (3, torch.Size([5, 4]))
    """

    def __init__(self, groups: Sequence[AdditiveGroup]):
        if not isinstance(groups, Sequence) or len(groups) == 0:
            raise OptionError(f"a product of groups is made of a list of one group or more, got {groups!r}.")
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
        blocks = self._blocks(_per_column(lower, self.num_dims))
        return max(group.lipschitz(block) for group, block in zip(self.groups, blocks, strict=True))

    def _blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split([group.num_dims for group in self.groups], -1)

    def _map(self, method: str, x: Tensor) -> Tensor:
        parts = zip(self.groups, self._blocks(x), strict=True)
        return torch.cat([getattr(group, method)(block) for group, block in parts], -1)


def _per_column(value: float | Sequence[float] | Tensor, num_dims: int | None) -> Tensor:
    """`value` as a double precision vector (d,): a user's 0.1 stays 0.1 in a model that is made double later."""
    num_dims = None if num_dims is None else check_integer("num_dims", num_dims)
    vector = torch.as_tensor(value, dtype=torch.float64).detach().clone().reshape(-1)
    if num_dims is not None and len(vector) not in (1, num_dims):
        raise OptionError(f"expected one number or {num_dims}, one a column; got {len(vector)}.")
    return vector if num_dims is None else vector.expand(num_dims).clone()


def _shown(values: Tensor) -> float | list[float]:
    """The numbers of a vector as a user would write them: one where all are equal."""
    numbers = [round(value, 6) for value in values.tolist()]
    return numbers[0] if len(set(numbers)) == 1 else numbers
