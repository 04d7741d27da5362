"""Where the outputs of gathered data lie and how much they vary: mean and covariance from statistics alone.

Exact where the statistics keep them (complete outputs, with a constant in the mean); otherwise good enough for a scale.
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


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of data for a feature map; `gather` makes them, `a + b` joins them.

    Args:
        layout: "shared", "by_output" or "whitened"; "empty" for no data.
        gram: (M + b + p)² for shared, (p, M + b + 1, M + b + 1) for by_output, (r + b·p + 1)² for whitened.
        num_observed: how often each output was observed, (p,) int64.
        num_rows: how many rows had something observed.
        num_scalar_features: M; the number r of features in the whitened layout.
        num_basis: b.
        log_noise: log det of the noise that was divided out at gathering; zero where none was.
        noise_sum: the sum (p,) of the known variances, where the noise is known.
        weighted: whether the rows were divided by the noise at gathering.
        fingerprint: what the rows were computed with; statistics add only where it agrees. Where they are `weighted`
            by a noise of the model, it must tell one noise from another.
        landmarks: a sample of the inputs that does not depend on the order of the data.
        to_whitened: makes whitened statistics of shared ones, for full noise, where a later part has missing outputs.

    Cost of `a + b`: that of adding the Gram matrices, whatever the number of rows.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.statistics.accumulation import gather
        >>> from ovkgp.inference.model.mean_noise import output_mean
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> mean, noise = output_mean("constant", 1), OutputNoise(0.1, 1)
        >>> parts = [observations(torch.rand(n, 1), torch.rand(n, 1), 1) for n in (30, 20)]
        >>> total = sum(gather(orff, mean, noise, part) for part in parts)
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
    landmarks: Landmarks = field(default_factory=Landmarks.none)
    to_whitened: Callable[[Statistics], Statistics] | None = None

    @classmethod
    def empty(cls) -> Statistics:
        """No data: the neutral element of +."""
        zero = torch.zeros((), dtype=torch.float64)
        return cls(
            "empty", zero.reshape(1, 1)[:0, :0], zero.new_zeros(0, dtype=torch.int64), 0, 0, 0, zero, zero[None][:0]
        )

    @property
    def num_outputs(self) -> int:
        """p."""
        return len(self.num_observed)

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        if "empty" in (self.layout, other.layout):
            kept, gone = (other, self) if self.layout == "empty" else (self, other)
            return replace(kept, landmarks=kept.landmarks + gone.landmarks)
        a, b = self._in_one_layout(other)
        a._require_alike(b)
        return replace(
            a,
            gram=a.gram + b.gram,
            num_observed=a.num_observed + b.num_observed,
            num_rows=a.num_rows + b.num_rows,
            log_noise=a.log_noise + b.log_noise,
            noise_sum=a.noise_sum + b.noise_sum,
            landmarks=a.landmarks + b.landmarks,
        )

    def __radd__(self, other) -> Statistics:
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def _in_one_layout(self, other: Statistics) -> tuple[Statistics, Statistics]:
        if self.layout == other.layout:
            return self, other
        if "whitened" not in (self.layout, other.layout):
            return self.by_output(), other.by_output()
        return tuple(part if part.to_whitened is None else part.to_whitened(part) for part in (self, other))

    def by_output(self) -> Statistics:
        """The same with one Gram matrix for each output: what a shared one becomes when an output is missing."""
        if self.layout != "shared":
            return self
        common = torch.arange(self.num_scalar_features + self.num_basis, device=self.gram.device)
        index = [torch.cat([common, common.new_tensor([len(common) + a])]) for a in range(self.num_outputs)]
        return replace(self, layout="by_output", gram=torch.stack([self.gram[i][:, i] for i in index]))

    def _require_alike(self, other: Statistics) -> None:
        if self.layout != other.layout and "whitened" in (self.layout, other.layout):
            raise InputError(
                f"statistics of layout {self.layout!r} and {other.layout!r} do not add: give the one to gp.statistics(…, into=…) "
                "when the other is gathered."
            )
        if self.fingerprint != other.fingerprint:
            raise InputError(
                f"these statistics were gathered with different features (fingerprints {self.fingerprint!r} and "
                f"{other.fingerprint!r}): their sum would have no meaning. Gather both at the same hyperparameters, with "
                "the same feature map, mean and noise."
            )
        if bool((self.noise_sum > 0).any()) != bool((other.noise_sum > 0).any()):
            raise InputError(
                "these statistics do not add: the noise is known for each entry in one and not in the other."
            )
        for name in ("num_outputs", "num_scalar_features", "num_basis", "weighted"):
            mine, yours = getattr(self, name), getattr(other, name)
            if mine != yours:
                raise InputError(f"these statistics do not add: {name} is {mine} in one and {yours} in the other.")

    def tensors(self) -> tuple[dict[str, Tensor], dict]:
        """Everything, to be stored: named tensors, and the rest as a dictionary that JSON can hold."""
        tensors = {name: getattr(self, name).detach() for name in ("gram", "num_observed", "log_noise", "noise_sum")}
        tensors |= {f"landmarks.{name}": getattr(self.landmarks, name) for name in ("X", "observed", "priorities")}
        names = ("layout", "num_rows", "num_scalar_features", "num_basis", "weighted", "fingerprint")
        return tensors, {**{name: getattr(self, name) for name in names}, "limit": self.landmarks.limit}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], header: dict) -> Statistics:
        """The inverse of `tensors`."""
        header = dict(header)
        landmarks = {name.removeprefix("landmarks."): t for name, t in tensors.items() if name.startswith("landmarks.")}
        own = {name: t for name, t in tensors.items() if not name.startswith("landmarks.")}
        return cls(**own, landmarks=Landmarks(**landmarks, limit=header.pop("limit")), **header)


@dataclass(frozen=True, eq=False)
class OutputStatistics:
    """The statistics of p independent outputs; a commutative monoid, as each of its parts is.

    Args:
        parts: those of each output alone.
    """

    parts: tuple[Statistics, ...]

    @property
    def num_outputs(self) -> int:
        """p."""
        return len(self.parts)

    @property
    def num_observed(self) -> Tensor:
        """How often each output was observed, (p,)."""
        return torch.stack([part.num_observed.sum() for part in self.parts])

    def __add__(self, other: OutputStatistics) -> OutputStatistics:
        if not isinstance(other, OutputStatistics):
            return NotImplemented
        if self.num_outputs != other.num_outputs:
            raise InputError(f"statistics of {self.num_outputs} and of {other.num_outputs} outputs do not add.")
        return OutputStatistics(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __radd__(self, other) -> OutputStatistics:
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def tensors(self) -> tuple[dict[str, Tensor], dict]:
        """Everything, to be stored: named tensors, and the rest as a dictionary that JSON can hold."""
        tensors, headers = {}, []
        for a, part in enumerate(self.parts):
            own, header = part.tensors()
            tensors |= {f"{a}.{name}": tensor for name, tensor in own.items()}
            headers.append(header)
        return tensors, {"parts": headers}


def statistics_from_tensors(tensors: dict[str, Tensor], header: dict) -> Statistics | OutputStatistics:
    """The inverse of `tensors` of either kind."""
    if "parts" not in header:
        return Statistics.from_tensors(tensors, header)
    own = (
        {n.removeprefix(f"{a}."): t for n, t in tensors.items() if n.startswith(f"{a}.")}
        for a in range(len(header["parts"]))
    )
    return OutputStatistics(tuple(Statistics.from_tensors(*pair) for pair in zip(own, header["parts"], strict=True)))


def whitened(statistics: Statistics, template: LinearOperator, noise: Tensor, fingerprint: str) -> Statistics:
    """The statistics in the whitened layout, at the noise Σ (p, p); whitened ones as they are.

    Args:
        statistics: shared (and of complete outputs), or whitened already.
        template: Φ at any one point, which carries the factors.
        noise: Σ.
        fingerprint: of the whitened rows.
    """
    if statistics.layout != "shared":
        return statistics
    chol = torch.linalg.cholesky(noise)
    weight = torch.cholesky_inverse(chol).contiguous()  # LAPACK's is by columns, and `kron` cannot look at it
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


MAX_LANDMARKS = 100
"""How many inputs stand for all of them."""


def output_moments(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (p,) and the covariance (p, p) of the outputs.

    Without a constant in the mean the level is taken for zero. Statistics that are divided by the noise know the
    variances relative to it: that of known variances on average, or the model's.

    Args:
        statistics: not empty.
        noise: Σ (p, p).

    Cost: O(p³).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.statistics.statistics import output_moments
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 10, random_state=0))
        >>> mean, covariance = output_moments(gp.statistics([[0.0], [1.0]], [[1.0], [5.0]]), gp.noise_model.matrix())
        >>> mean.tolist(), covariance.tolist()
        ([3.0], [[4.0]])
    """
    if isinstance(statistics, OutputStatistics):
        pairs = [output_moments(part, noise[a : a + 1, a : a + 1]) for a, part in enumerate(statistics.parts)]
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
    variances = square / statistics.num_observed
    return torch.zeros_like(square), torch.diag(
        variances * _level(statistics, noise) if statistics.weighted else variances
    )


def _whitened(statistics: Statistics, rest: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    p, square = statistics.num_outputs, rest[-1, -1]
    mean = rest.new_zeros(p)
    if statistics.num_basis:
        mean = torch.linalg.solve(rest[:p, :p], rest[:p, -1])
        square = square - mean @ rest[:p, -1]
    return mean, torch.diag(square / statistics.num_observed.sum() * _level(statistics, noise))


def _level(statistics: Statistics, noise: Tensor) -> Tensor:
    """The variances (p,) that the rows were divided by, on average."""
    is_known = bool((statistics.noise_sum > 0).any())
    return statistics.noise_sum / statistics.num_observed if is_known else noise.diagonal()


def make_surrogate_data(statistics: Statistics | OutputStatistics, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Data (n, d), (n, p) with inputs like the landmarks and outputs of the same mean and covariance: they tell the scales
    of the data to what asks for data, and nothing else.

    Args:
        statistics, noise: as for `output_moments`.
    """
    mean, covariance = output_moments(statistics, noise)
    values, vectors = torch.linalg.eigh(covariance)
    p = len(mean)
    steps = (vectors * (p * values.clamp_min(0)).sqrt()).mT
    Y = torch.cat([mean + steps, mean - steps])
    parts = statistics.parts if isinstance(statistics, OutputStatistics) else (statistics,)
    X = torch.cat([part.landmarks.X[:MAX_LANDMARKS] for part in parts]).double()
    return X.repeat(len(Y), 1), Y.repeat_interleave(len(X), 0)
