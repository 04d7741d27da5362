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

from ovkgp.estimators.quantile_prior import NOISE_CENTRE, NOISE_WIDTH, GaussianScales
from ovkgp.estimators.quantile_rows import QuantileRows
from ovkgp.estimators.quantile_trend import TRENDS, KernelShares
from ovkgp.estimators.task_options import TASK_KERNELS
from ovkgp.inference.dense import dense_log_density

MOST_ROWS = 500
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
        >>> from ovkgp.estimators.quantile_kernel import learned_trend
        >>> from ovkgp.estimators.quantile_rows import QuantileRows
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
        >>> from ovkgp.estimators.quantile_kernel import learned_kernel
        >>> from ovkgp.estimators.quantile_rows import QuantileRows
        >>> X = np.random.default_rng(0).standard_normal((60, 2))
        >>> found = learned_kernel(QuantileRows.of(X, np.sin(3 * X[:, 0])), "rbf")
        >>> bool(found.lengthscale[1] > 3 * found.lengthscale[0])  # nothing depends on the second column
        True
    """
    sample = rows.fenced().sample(MOST_ROWS)
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
