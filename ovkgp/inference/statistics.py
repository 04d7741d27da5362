"""What weight space keeps of the data: Gram matrices of fixed size that add (BT-74, Algorithm 3).

With waves φ (n, M), the basis h (n, b) of the mean and outputs Y (n, p), three layouts,

    shared      Zᵀ Z,   Z = [φ, h, Y]                             complete outputs, noise alike at all points
    by_output   Z_aᵀ D_a Z_a for each output a,  Z_a = [φ, h, y_a]   missing outputs, or noise known for each entry
    whitened    Z_wᵀ Z_w,  Z_w = N^{-½} [Φ, h ⊗ I, y]              everything else

each a commutative monoid under +: streaming, out-of-core work and `partial_fit` are one and the same sum. In the first
two (unless the noise is known) the noise, the mean's coefficients and the output factors enter afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.landmarks import Landmarks

LAYOUTS = ("empty", "shared", "by_output", "whitened")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of data for a feature map; `gather` makes them, `a + b` joins them.

    Args:
        layout: "shared", "by_output" or "whitened"; "empty" for no data.
        gram: (M + b + p)² for shared, (p, M + b + 1, M + b + 1) for by_output, (r + b·p + 1)² for whitened.
        num_seen: how often each output was observed, (p,) int64.
        num_rows: how many rows had something observed.
        num_waves: M; the number r of features in the whitened layout.
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
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.gathering import gather
        >>> from ovkgp.inference.means import output_mean
        >>> from ovkgp.inference.noise import OutputNoise
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> mean, noise = output_mean("constant", 1), OutputNoise(0.1, 1)
        >>> parts = [observations(torch.rand(n, 1), torch.rand(n, 1), 1) for n in (30, 20)]
        >>> total = sum(gather(orff, mean, noise, part) for part in parts)
        >>> total.num_rows, tuple(total.gram.shape)
        (50, (102, 102))
    """

    layout: str
    gram: Tensor
    num_seen: Tensor
    num_rows: int
    num_waves: int
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
        return len(self.num_seen)

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
            num_seen=a.num_seen + b.num_seen,
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
        common = torch.arange(self.num_waves + self.num_basis, device=self.gram.device)
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
        for name in ("num_outputs", "num_waves", "num_basis", "weighted"):
            mine, yours = getattr(self, name), getattr(other, name)
            if mine != yours:
                raise InputError(f"these statistics do not add: {name} is {mine} in one and {yours} in the other.")

    def tensors(self) -> tuple[dict[str, Tensor], dict]:
        """Everything, to be stored: named tensors, and the rest as a dictionary that JSON can hold."""
        tensors = {name: getattr(self, name).detach() for name in ("gram", "num_seen", "log_noise", "noise_sum")}
        tensors |= {f"landmarks.{name}": getattr(self.landmarks, name) for name in ("X", "seen", "priorities")}
        names = ("layout", "num_rows", "num_waves", "num_basis", "weighted", "fingerprint")
        return tensors, {**{name: getattr(self, name) for name in names}, "limit": self.landmarks.limit}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], header: dict) -> Statistics:
        """The inverse of `tensors`."""
        header = dict(header)
        landmarks = {name.removeprefix("landmarks."): t for name, t in tensors.items() if name.startswith("landmarks.")}
        own = {name: t for name, t in tensors.items() if not name.startswith("landmarks.")}
        return cls(**own, landmarks=Landmarks(**landmarks, limit=header.pop("limit")), **header)
