"""Hyperparameters of the input kernel from the data: the most probable ones for a Gaussian process on at most 500 rows.

    y ~ N(0, v (K + 1) + σ² I),      K = s k_0(X/ℓ) + l XXᵀ/d + q (XXᵀ/d)²,

and log ℓ is normal about log 2√d, by 1 for all columns together and by ½ for each: few rows give one lengthscale for all, many rows
one for each. The variances v·s, v·l, v·q and σ² have log-normal priors, that of σ² such that it does not vanish by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from linear_operator import to_dense
from scipy.optimize import minimize
from torch import Tensor

from ovkgp.estimators.common.task_options import TASK_KERNELS
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.estimators.storage.functions import storable_part
from ovkgp.inference.algebra.dense import dense_log_density
from ovkgp.inference.tasks.factors import Factor

NOISES = torch.logspace(-8, 3, 89, dtype=torch.float64)
"""c = σ²/a², the noise of the Gaussian process as a part of the variance of its signal."""
LARGEST_GUESS = 0.1
NOISE_CENTRE, NOISE_WIDTH = -1.0, 1.5
"""Prior mean and standard deviation of log σ² of a target of variance one: few rows, or an outlier, do not make it vanish."""


@storable_part
@dataclass(frozen=True)
class GaussianQuantiles:
    """b(θ) = s Φ⁻¹(θ).

    Args:
        scale: s ≥ 0.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantiles.kernel import GaussianQuantiles
        >>> GaussianQuantiles(2.0)(torch.tensor([0.5, 0.975]).double())
        tensor([0.0000, 3.9199], dtype=torch.float64)
    """

    scale: float

    def __call__(self, tasks: Tensor) -> Tensor:
        return self.scale * torch.special.ndtri(tasks)

    def slopes(self, tasks: Tensor) -> Tensor:
        """∂b/∂θ = s √(2π) exp(Φ⁻¹(θ)²/2)."""
        return self.scale * math.sqrt(2 * math.pi) * (torch.special.ndtri(tasks) ** 2 / 2).exp()

    def variance(self, tasks: Tensor, count: float) -> Tensor:
        """s²/N (1 + Φ⁻¹(θ)²/2): how far N observations leave the mean and the standard deviation of Gaussian noise unknown, (m,)."""
        return self.scale**2 / count * (1 + torch.special.ndtri(tasks) ** 2 / 2)

    def errors(self, tasks: Tensor, count: float, normals: Tensor) -> Tensor:
        """Draws (k, m) of that error from normals (k, 2): one for the mean and one for the standard deviation."""
        along = torch.stack([torch.ones_like(tasks), torch.special.ndtri(tasks) / math.sqrt(2)])
        return self.scale / math.sqrt(count) * normals @ along


@dataclass(frozen=True)
class GaussianScales:
    """Signal and noise of a Gaussian process with a given kernel.

    Args:
        signal: the variance a² of the signal.
        noise: σ².
    """

    signal: float
    noise: float

    @property
    def residual_scale(self) -> float:
        """s = σ."""
        return math.sqrt(self.noise)

    def lam(self, num_rows: float) -> float:
        """The λ of the pinball loss at which its curvature meets the prior as the noise does: 0.3 σ / (n a²).

        A squared loss has λ = σ²/(n a²); near its minimiser the pinball loss of Gaussian noise bends by its density there,
        which is about 0.3/σ over the levels. At most 0.1: of a standardised target, larger ones leave the curves to the prior,
        whose noise is Gaussian.
        """
        return min(0.3 * math.sqrt(self.noise) / (num_rows * self.signal), LARGEST_GUESS)


def gaussian_scales(inputs: Tensor, y: Tensor, weights: Tensor) -> GaussianScales:
    """The most probable signal and noise for y = a Φ w + σ ε with w ~ N(0, I): a Gaussian process in coordinates.

    Args:
        inputs: Φ (n, r).
        y: (n,).
        weights: how often each row is there, (n,).

    With ΦᵀNΦ = Q diag(v) Qᵀ, u = QᵀΦᵀN y and c = σ²/a², minus twice the log evidence is, but for a constant,
    N log(a² c) + Σ log(1 + v/c) where a² = (yᵀN y − Σ u²/(c + v)) / (N c); log σ² = log(a² c) has a normal prior.

    Cost: O(n r² + r³).

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantiles.kernel import gaussian_scales
        >>> x = torch.linspace(-1, 1, 200).double()
        >>> noise = 0.1 * torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
        >>> scales = gaussian_scales(torch.stack([torch.ones_like(x), x], -1), 2 * x + noise, torch.ones_like(x))
        >>> bool(abs(scales.residual_scale - 0.1) < 0.02)
        True
    """
    weighted = weights[:, None] * inputs
    values, vectors = torch.linalg.eigh(inputs.T @ weighted)
    values, rotated = values.clamp_min(0.0), vectors.T @ (weighted.T @ y)
    count, square, c = weights.sum(), (weights * y**2).sum(), NOISES[:, None]
    explained = (rotated**2 / (c + values)).sum(-1)
    signals = (square - explained).clamp_min(1e-15 * square) / (count * NOISES)
    logs = (signals * NOISES).log()
    deviances = count * logs + torch.log1p(values / c).sum(-1) + ((logs - NOISE_CENTRE) / NOISE_WIDTH) ** 2
    best = int(deviances.argmin())
    return GaussianScales(float(signals[best]), float(signals[best] * NOISES[best]))


TRENDS = ("linear", "quadratic")


@dataclass(frozen=True)
class KernelShares:
    """The parts s, l, q ≥ 0 of a kernel, with sum one.

    Example:
        >>> from ovkgp.estimators.quantiles.kernel import KernelShares
        >>> KernelShares.of(stationary=1.0, linear=3.0)
        KernelShares(stationary=0.25, linear=0.75, quadratic=0.0)
    """

    stationary: float = 1.0
    linear: float = 0.0
    quadratic: float = 0.0

    @classmethod
    def of(cls, stationary: float, linear: float = 0.0, quadratic: float = 0.0) -> KernelShares:
        """From variances, not all zero."""
        total = stationary + linear + quadratic
        return cls(stationary / total, linear / total, quadratic / total)


@storable_part
class TrendFactor:
    """The rows of another factor and of a polynomial: φ(x)ᵀφ(z) = k(x, z), as above.

    Args:
        factor: φ_0, with φ_0(x)ᵀφ_0(z) = k_0(x, z).
        shares: s, l and q.

    Cost: d columns more where l > 0, d (d + 1)/2 where q > 0.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantiles.kernel import KernelShares, TrendFactor
        >>> from ovkgp.estimators.common.task_options import input_factor
        >>> X = torch.tensor([[0.0, 1.0], [2.0, 1.0]]).double()
        >>> phi = TrendFactor(input_factor(X, lengthscale=1.0), KernelShares(0.5, 0.25, 0.25))
        >>> (phi(X) @ phi(X).T).tolist()[0][0], 0.5 + 0.25 * 1 / 2 + 0.25 * (1 / 2) ** 2
        (0.6875, 0.6875)
    """

    def __init__(self, factor: Factor, shares: KernelShares):
        self.factor = factor
        self.stationary, self.linear, self.quadratic = shares.stationary, shares.linear, shares.quadratic

    def __call__(self, points: Tensor) -> Tensor:
        return self._beside(self.factor(points), points.double())

    def left_out(self, points: Tensor) -> Tensor:
        """That of the other factor, times its share, (k,)."""
        return self.stationary * self.factor.left_out(points)

    @property
    def anchor_rows(self) -> Tensor:
        """The rows at the anchors of the other factor, which must be a `KernelFactor`."""
        return self._beside(self.factor.anchor_rows, self.factor.anchors)

    def _beside(self, rows: Tensor, points: Tensor) -> Tensor:
        d = points.shape[-1]
        parts = [math.sqrt(self.stationary) * rows]
        if self.linear:
            parts.append(math.sqrt(self.linear / d) * points)
        if self.quadratic:
            parts.append(math.sqrt(self.quadratic) / d * products(points))
        return torch.cat(parts, -1)


def products(points: Tensor) -> Tensor:
    """Columns with inner product ⟨x, z⟩²: squares, and √2 times the products of different coordinates, (k, d (d + 1)/2).

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantiles.kernel import products
        >>> products(torch.tensor([[1.0, 3.0]]))
        tensor([[1.0000, 4.2426, 9.0000]])
    """
    row, column = torch.triu_indices(points.shape[-1], points.shape[-1])
    scale = torch.full(row.shape, math.sqrt(2.0), dtype=points.dtype).masked_fill(row == column, 1.0)
    return scale * points[:, row] * points[:, column]


MAX_ROWS = 500
"""Rows of which the Gaussian process is made."""
COMMON, OWN = 1.0, 0.5
"""Prior standard deviations of log ℓ: of what all columns share, and of what each has of its own."""
CENTRES = {"noise": NOISE_CENTRE, "stationary": 0.0, "linear": 0.0, "quadratic": -2.0}
"""Prior means of the logarithms of the variances, for a target of variance one."""
WIDTH = 3.0
"""Their prior standard deviation, but for that of the noise."""
SMALLEST = 1e-6
"""The least noise variance."""
SMALLEST_SIGNAL = 1e-3
"""A signal of less variance counts as this for the constant beside it."""
MAX_ITER = 100
SHORTER = 4.0
"""The search begins with lengthscales so much shorter than those of the prior, from where it finds waves and lines alike."""
STRONG = 5.0
"""By how much the log density must rise, odds of 150, for a quadratic trend to be taken."""
PLAIN = KernelShares()


@dataclass(frozen=True)
class LearnedKernel:
    """What is known of an input kernel.

    Args:
        lengthscale: "median", a number, or one a column (d,).
        shares: of its parts.
        scales: signal and noise of the Gaussian process; None where none was made.
        log_density: of what was learned, up to a constant of the rows; NaN where nothing was.
    """

    lengthscale: object
    shares: KernelShares = PLAIN
    scales: GaussianScales | None = None
    log_density: float = math.nan

    @property
    def intercept(self) -> float:
        """The prior standard deviation of a constant beside the kernel: where there is little signal, that of the target itself.

        It lets curves be those of noise that is not Gaussian where the inputs say nothing.
        """
        return 1.0 if self.scales is None else min(max(self.scales.signal, SMALLEST_SIGNAL), 1.0) ** -0.5


def learned_trend(rows: QuantileRows, kernel: str) -> LearnedKernel:
    """A linear trend, or a quadratic one where the data speak for it by odds of 150; lengthscales with them.

    Args:
        rows, kernel: as for `learned_kernel`.

    Cost: twice that of `learned_kernel`.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.kernel import learned_trend
        >>> from ovkgp.estimators.quantiles.rows import QuantileRows
        >>> X = np.random.default_rng(0).standard_normal((60, 3))
        >>> straight = QuantileRows.of(X, X.sum(1))
        >>> bent = QuantileRows.of(X, X[:, 0] * X[:, 1] + X[:, 2] ** 2)
        >>> learned_trend(straight, "rbf").shares.quadratic > 0, learned_trend(bent, "rbf").shares.quadratic > 0
        (False, True)
    """
    linear, quadratic = (learned_kernel(rows, kernel, trend) for trend in TRENDS)
    return quadratic if quadratic.log_density > linear.log_density + STRONG else linear


def learned_kernel(rows: QuantileRows, kernel: str, trend: str | None = None, lengthscale=None) -> LearnedKernel:
    """The most probable lengthscales (d,) and shares.

    Args:
        rows: scaled, of which y varies.
        kernel: k_0, a name of `TASK_KERNELS`.
        trend: None, "linear" or "quadratic".
        lengthscale: a number or (d,) that is known already; None to learn it.

    Cost: O(n³) for each of at most 100 steps, n ≤ 500: a second or so.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.kernel import learned_kernel
        >>> from ovkgp.estimators.quantiles.rows import QuantileRows
        >>> X = np.random.default_rng(0).standard_normal((60, 2))
        >>> found = learned_kernel(QuantileRows.of(X, np.sin(3 * X[:, 0])), "rbf")
        >>> bool(found.lengthscale[1] > 3 * found.lengthscale[0])  # nothing depends on the second column
        True
    """
    sample = rows.fenced().sample(MAX_ROWS)
    X, y = torch.from_numpy(sample.X), torch.from_numpy(sample.Y[:, 0])
    posterior = _LogPosterior(X, y, kernel, trend, lengthscale)
    bounds = [(-5.0, 9.0)] * posterior.num_scales + [(-16.0, 9.0)] * len(posterior.parts)
    found = minimize(
        posterior, posterior.start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_ITER}
    )
    scales, variances = posterior.split(torch.from_numpy(found.x))
    variances = {name: variance.item() for name, variance in variances.items()}
    noise = variances.pop("noise") + SMALLEST
    return LearnedKernel(
        scales.numpy() if lengthscale is None else lengthscale,
        KernelShares.of(**variances),
        GaussianScales(sum(variances.values()), noise),
        -float(found.fun),
    )


class _LogPosterior:
    """Minus the log posterior density of log ℓ and the log variances, and its gradient."""

    def __init__(self, X: Tensor, y: Tensor, kernel: str, trend: str | None, lengthscale):
        self.X, self.y, self.kernel = X, y, TASK_KERNELS[kernel](None).double().requires_grad_(False)
        self.kernel.lengthscale = 1.0
        d = X.shape[1]
        self.lengthscale = None if lengthscale is None else torch.as_tensor(lengthscale, dtype=torch.float64)
        self.num_scales = d if lengthscale is None else 0
        self.parts = ["noise", "stationary", *TRENDS[: (None, *TRENDS).index(trend)]]
        self.gram = X @ X.T / d
        self.centre = torch.tensor(
            [math.log(2 * math.sqrt(d))] * self.num_scales + [CENTRES[part] for part in self.parts], dtype=torch.float64
        )
        covariance = torch.full((self.num_scales, self.num_scales), COMMON**2, dtype=torch.float64)
        covariance.diagonal().add_(OWN**2)
        widths = torch.tensor([NOISE_WIDTH if part == "noise" else WIDTH for part in self.parts], dtype=torch.float64)
        self.precision = torch.block_diag(torch.linalg.inv(covariance), widths.pow(-2).diag())

    @property
    def start(self) -> np.ndarray:
        start = self.centre.numpy().copy()
        start[: self.num_scales] -= math.log(SHORTER)
        return start

    def split(self, logs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """ℓ, and the variances by name."""
        values = logs.exp()
        scales = values[: self.num_scales] if self.lengthscale is None else self.lengthscale
        return scales, dict(zip(self.parts, values[self.num_scales :], strict=True))

    def __call__(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(logs, requires_grad=True)
        value = self._evidence(*self.split(point)) + self._prior(point)
        value.backward()
        return value.item(), point.grad.numpy()

    def _prior(self, point: Tensor) -> Tensor:
        off = point - self.centre
        return off @ (self.precision @ off) / 2

    def _evidence(self, scales: Tensor, variances: dict[str, Tensor]) -> Tensor:
        noise, signal = variances["noise"] + SMALLEST, sum(v for name, v in variances.items() if name != "noise")
        K = signal + variances["stationary"] * to_dense(self.kernel(self.X / scales))
        for power, name in enumerate(TRENDS, 1):
            if name in variances:
                K = K + variances[name] * self.gram**power
        return -dense_log_density(K + noise * torch.eye(len(K), dtype=torch.float64), self.y)
