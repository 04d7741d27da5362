"""Sufficient statistics of data in weight space: Gram matrices of features, mean basis and outputs, which add up.

They hold everything that the evidence and the posterior of the weights depend on. The mean and covariance of the
outputs follow from them, exactly for complete outputs with a constant in the mean, else roughly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.model.row_sample import Landmarks

LAYOUTS = ("empty", "shared", "by_output", "whitened")
MIN_REMAINING_FRACTION = 1e-8  # of a sum of squares after a subtraction, whose rounding error is that of the sum before
MAX_SURROGATE_INPUTS = 100  # maximum number of landmarks used as inputs of surrogate data


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of data for a feature map; `a + b` are those of both data sets, and `a + b - a` those of b.

    Parameters
    ----------
    layout : {"shared", "by_output", "whitened", "empty"}
        Layout of the Gram matrix; "empty" for no data.
    gram : Tensor
        Gram matrix of shape (M + b + p, M + b + p) if shared, (p, M + b + 1, M + b + 1) if by_output, square of size r
        + b·p + 1 if whitened.
    num_observed : Tensor of shape (p,)
        Number of observed values of each output, int64.
    num_rows : int
        Number of rows with an observed value.
    num_scalar_features : int
        Number M of scalar features; number r of features if whitened.
    num_basis : int
        Number b of basis functions of the mean.
    log_noise : Tensor of shape ()
        log det of the noise by which the rows were divided; zero if they were not.
    noise_sum : Tensor of shape (p,)
        Sum of the known variances; zero if the noise is not known.
    weighted : bool, default=False
        Whether the rows were divided by the noise.
    fingerprint : str, default=""
        Identifies what the rows were computed with, including the noise of the model if `weighted`; statistics add only
        if it agrees.
    landmarks : Landmarks
        Sample of the inputs that does not depend on the order of the data.
    to_whitened : callable or None, default=None
        Converts shared to whitened statistics, for full noise, if data added later have missing outputs.

    Notes
    -----
    Complexity: `a + b` adds the Gram matrices, independently of the number of rows. A subtraction raises if less than 1e-8 of a sum of
    squares remains.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import ORFF
    >>> from ovkgp.inference import OperatorValuedGP
    >>> kernel = RBFKernel(ard_num_dims=1)
    >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 50, random_state=0))
    >>> total = sum(gp.statistics(torch.rand(n, 1), torch.rand(n, 1)) for n in (30, 20))
    >>> total.num_rows, tuple(total.gram.shape)
    (50, (102, 102))
    """

    layout: str
    gram: Tensor
    num_observed: Tensor
    num_rows: int
    num_scalar_features: int
    num_basis: int
    log_noise: Tensor
    noise_sum: Tensor
    weighted: bool = False
    fingerprint: str = ""
    landmarks: Landmarks = field(default_factory=Landmarks.empty)
    to_whitened: Callable[[Statistics], Statistics] | None = None

    @classmethod
    def empty(cls) -> Statistics:
        """Return the statistics of no data, the neutral element of addition.

        Returns
        -------
        Statistics
            Zero statistics.
        """
        zero = torch.zeros((), dtype=torch.float64)
        none = zero.new_zeros(0)
        return cls("empty", zero.new_zeros(0, 0), none.long(), 0, 0, 0, zero, none)

    @property
    def num_outputs(self) -> int:
        """Number of outputs p."""
        return len(self.num_observed)

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        if "empty" in (self.layout, other.layout):
            data, empty = (other, self) if self.layout == "empty" else (self, other)
            return replace(data, landmarks=data.landmarks + empty.landmarks)
        layout = common_layout({self.layout, other.layout})
        a, b = self.to_layout(layout), other.to_layout(layout)
        a._check_compatible(b)
        names = ("gram", "num_observed", "num_rows", "log_noise", "noise_sum", "landmarks")
        return replace(a, **{name: getattr(a, name) + getattr(b, name) for name in names})

    def __radd__(self, other) -> Statistics:
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Statistics) -> Statistics:
        """Return the statistics without those of rows that were added before, such as the oldest of a sliding window.

        Landmarks that are among the rows removed are dropped, and not replaced by others.
        """
        if not isinstance(other, Statistics):
            return NotImplemented
        if other.layout == "empty":
            return self
        layout = common_layout({self.layout, other.layout})
        a, b = self.to_layout(layout), other.to_layout(layout)
        a._check_compatible(b)
        counts = a.num_observed - b.num_observed
        if a.num_rows < b.num_rows or bool((counts < 0).any()):
            raise InputError(
                f"Statistics of {b.num_rows} rows cannot be subtracted from those of {a.num_rows}, which do not contain them. Subtract rows that were added before."
            )
        if a.num_rows == b.num_rows:
            return Statistics.empty()
        gram = a.gram - b.gram
        _check_difference(a.gram, gram)
        names = ("num_rows", "log_noise", "noise_sum", "landmarks")
        found = {name: getattr(a, name) - getattr(b, name) for name in names}
        return replace(a, gram=gram, num_observed=counts, **found)

    def to_layout(self, layout: str) -> Statistics:
        """Convert shared statistics to "by_output" or (if `to_whitened` is known) "whitened"; return others unchanged.

        Parameters
        ----------
        layout : {"by_output", "whitened"}
            Layout of the sums.

        Returns
        -------
        Statistics
            Equivalent statistics.
        """
        if self.layout != "shared" or layout not in ("by_output", "whitened"):
            return self
        if layout == "whitened":
            return self if self.to_whitened is None else self.to_whitened(self)
        common = torch.arange(self.num_scalar_features + self.num_basis, device=self.gram.device)
        index = [torch.cat([common, common.new_tensor([len(common) + a])]) for a in range(self.num_outputs)]
        return replace(self, layout="by_output", gram=torch.stack([self.gram[i][:, i] for i in index]))

    def _check_compatible(self, other: Statistics) -> None:
        if self.layout != other.layout and "whitened" in (self.layout, other.layout):
            raise InputError(
                f"Statistics of layout {self.layout!r} and {other.layout!r} cannot be added. Compute the second with gp.statistics(…, into=first)."
            )
        if self.fingerprint != other.fingerprint:
            raise InputError(
                f"Statistics computed with different features (fingerprints {self.fingerprint!r} and "
                f"{other.fingerprint!r}) cannot be added. Compute both at the same hyperparameters, with the same "
                "feature map, mean and noise."
            )
        if bool((self.noise_sum > 0).any()) != bool((other.noise_sum > 0).any()):
            raise InputError("Statistics with and without known noise cannot be added.")
        for name in ("num_outputs", "num_scalar_features", "num_basis", "weighted"):
            mine, yours = getattr(self, name), getattr(other, name)
            if mine != yours:
                raise InputError(f"Statistics with {name}={mine} and {name}={yours} cannot be added.")


def _check_difference(before: Tensor, after: Tensor) -> None:
    """Check that the sums of squares that remain after a subtraction have at least half of their digits."""
    before, after = (gram.diagonal(dim1=-2, dim2=-1) for gram in (before, after))
    lost = (after < MIN_REMAINING_FRACTION * before) & (before > 0)
    if bool(lost.any()):
        fraction = float((after[lost] / before[lost]).min())
        raise InputError(
            f"Subtraction of statistics leaves the fraction {fraction:.1g} of a sum of squares, which is lost to rounding, or the rows were not added before. Compute the statistics of the remaining rows."
        )


def common_layout(layouts: set[str]) -> str:
    """Return the layout in which statistics of these layouts can be added."""
    layouts = layouts - {"empty"}
    if len(layouts) < 2:
        return next(iter(layouts), "empty")
    return "whitened" if "whitened" in layouts else "by_output"


@dataclass(frozen=True, eq=False)
class OutputStatistics:
    """Statistics of p independent outputs: one `Statistics` per output, added output by output."""

    parts: tuple[Statistics, ...]

    @property
    def num_outputs(self) -> int:
        """Number of outputs p."""
        return len(self.parts)

    @property
    def num_observed(self) -> Tensor:
        """Number of observed values of each output, (p,)."""
        return torch.stack([part.num_observed.sum() for part in self.parts])

    def __add__(self, other: OutputStatistics) -> OutputStatistics:
        if not isinstance(other, OutputStatistics):
            return NotImplemented
        if self.num_outputs != other.num_outputs:
            raise InputError(f"Statistics of {self.num_outputs} and {other.num_outputs} outputs cannot be added.")
        return OutputStatistics(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __radd__(self, other) -> OutputStatistics:
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: OutputStatistics) -> OutputStatistics:
        if not isinstance(other, OutputStatistics):
            return NotImplemented
        if self.num_outputs != other.num_outputs:
            raise InputError(
                f"Statistics of {other.num_outputs} outputs cannot be subtracted from those of {self.num_outputs}."
            )
        return OutputStatistics(tuple(a - b for a, b in zip(self.parts, other.parts, strict=True)))


def whiten_statistics(statistics: Statistics, template: LinearOperator, noise: Tensor, fingerprint: str) -> Statistics:
    """Convert shared statistics to the whitened layout, at the noise Σ (p, p) and Φ at any point; others stay."""
    if statistics.layout != "shared":
        return statistics
    chol = torch.linalg.cholesky(noise)
    weight = torch.cholesky_inverse(chol).contiguous()  # LAPACK returns column-major memory, which `kron` rejects
    M, b = statistics.num_scalar_features, statistics.num_basis
    gram = statistics.gram
    to_basis = torch.einsum("mk,pa->mpka", gram[:M, M : M + b], weight).flatten(-2)  # (M, p, b·p)
    to_outputs = (gram[:M, M + b :] @ weight).unsqueeze(-1)  # (M, p, 1)
    moments = template.adjoint_from_scalar_features(torch.cat([to_basis, to_outputs], -1))
    basis = torch.kron(gram[M : M + b, M : M + b].contiguous(), weight)
    cross = (gram[M : M + b, M + b :] @ weight).reshape(-1, 1)
    square = (gram[M + b :, M + b :] * weight).sum().reshape(1, 1)
    targets = torch.cat([torch.cat([basis, cross], 1), torch.cat([cross.mT, square], 1)])
    top = torch.cat([template.gram_from_scalar_features(template, gram[:M, :M], weight), moments], 1)
    return replace(
        statistics,
        layout="whitened",
        gram=torch.cat([top, torch.cat([moments.mT, targets], 1)]),
        num_scalar_features=template.shape[-1],
        log_noise=2 * statistics.num_rows * chol.diagonal().log().sum(),
        weighted=True,
        fingerprint=fingerprint,
        to_whitened=None,
    )


def compute_output_moments(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean (p,), 0 without a constant, and covariance (p, p) of the outputs; Σ is the unit if weighted."""
    if isinstance(statistics, OutputStatistics):
        pairs = [compute_output_moments(part, noise[a : a + 1, a : a + 1]) for a, part in enumerate(statistics.parts)]
        return torch.cat([mean for mean, _ in pairs]), torch.block_diag(*(covariance for _, covariance in pairs))
    rest = statistics.gram[..., statistics.num_scalar_features :, statistics.num_scalar_features :]
    make = {"shared": _shared, "by_output": _by_output, "whitened": _whitened}[statistics.layout]
    return make(statistics, rest, noise.detach())


def _shared(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    b, n = statistics.num_basis, statistics.num_rows
    mean = rest[0, b:] / n if b else rest.new_zeros(statistics.num_outputs)
    return mean, rest[b:, b:] / n - torch.outer(mean, mean)


def _by_output(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    square = rest[:, -1, -1]
    if statistics.num_basis:
        mean = rest[:, 0, -1] / rest[:, 0, 0]
        return mean, torch.diag(square / rest[:, 0, 0] - mean.square())
    unit = _average_noise(statistics, noise) if statistics.weighted else 1.0
    return torch.zeros_like(square), torch.diag(square / statistics.num_observed * unit)


def _whitened(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    p, square = statistics.num_outputs, rest[-1, -1]
    mean = rest.new_zeros(p)
    if statistics.num_basis:
        mean = torch.linalg.solve(rest[:p, :p], rest[:p, -1])
        square = square - mean @ rest[:p, -1]
    return mean, torch.diag(square / statistics.num_observed.sum() * _average_noise(statistics, noise))


def _average_noise(statistics: Statistics, noise: Tensor) -> Tensor:
    """Return the average variances (p,) by which the rows were divided."""
    is_known = bool((statistics.noise_sum > 0).any())
    return statistics.noise_sum / statistics.num_observed if is_known else noise.diagonal()


def make_surrogate_data(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Make data (n, d), (n, p) of the same scales: landmarks, and outputs with the same mean and covariance."""
    mean, covariance = compute_output_moments(statistics, noise)
    values, vectors = torch.linalg.eigh(covariance)
    p = len(mean)
    steps = (vectors * (p * values.clamp_min(0)).sqrt()).mT
    Y = torch.cat([mean + steps, mean - steps])
    parts = statistics.parts if isinstance(statistics, OutputStatistics) else (statistics,)
    X = torch.cat([part.landmarks.X[:MAX_SURROGATE_INPUTS] for part in parts]).double()
    return X.repeat(len(Y), 1), Y.repeat_interleave(len(X), 0)
