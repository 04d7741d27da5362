"""Random features with the weights of each frequency held in a ball: the estimator whose consistency is proved (BT-88, (7.7))."""

from __future__ import annotations

import math
import warnings
from numbers import Real

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.base import TableRegressor
from ovkgp.estimators.common.named_kernels import check_base, ridge_kernel
from ovkgp.estimators.common.options import all_or_nothing
from ovkgp.estimators.common.validation import input_table
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import ORFF
from ovkgp.features.bounds import constrained_excess_risk_bound, spectral_constants, weight_radius
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.model.mean_noise import OutputNoise, output_mean
from ovkgp.inference.model.observations import Observations, observations
from ovkgp.inference.ridge.ball_constraints import (
    MAX_STEPS,
    BallQuadratic,
    Balls,
    admm_initial_point,
    frequency_groups,
    minimise_in_balls,
)
from ovkgp.inference.ridge.weight_products import CHUNK_ENTRIES, WeightProducts
from ovkgp.inference.statistics.accumulation import gather
from ovkgp.inference.statistics.weight_space import normal_equations

MAX_FEATURES, MAX_FACTORISED = 4000, 2000
"""Features up to which ΦᵀΦ is formed (128 MB), and up to which its eigenvectors are taken, where it is no Kronecker product."""


class ConstrainedORFF(TableRegressor):
    """Least squares on D random frequencies whose weights are held in balls, (7.7) of the thesis (BT-88):

    min (1/n) Σ ½ ‖Φ(x_i)θ − y_i‖²   subject to ‖θ_j‖ ≤ M/√D for each frequency j, cosines and sines together. Φ carries the factor
    1/√D; the thesis prints the radius of features without it (BT-E-41).

    This is the largest point of a posterior whose prior is uniform on the balls, not a Gaussian one: there is no standard deviation.
    `excess_risk_bound` is what Prop. 7.3 promises; a ridge penalty promises no such thing.

    Args:
        kernel, base_kernel, lengthscale, output_matrix: as in `OVKRidge`.
        radius: M > 0; |f| ≤ M ess sup ‖B(ω)‖ everywhere. It is in the units of the outputs.
        num_frequencies: D.
        tolerance: it stops where the duality gap is at most tolerance times the mean of ½ ‖y‖², or the projected gradient is at
            most tolerance times that at θ = 0.
        max_iter: the most steps; a `FitWarning` says if they were not enough.
        random_state: of the frequencies.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        coef_: θ (2·D·r,), r the columns of the factor, in the order of the columns of `features_`.
        weight_radius_: M/√D.
        features_: the `ORFF`.
        fit_report_: how the gradient steps went; its `objective` is the mean of ½ ‖Φ(x_i)θ − y_i‖².
        n_iter_: steps, those of `ovkgp.inference.ridge.ball_constraints` included, which come first where A can be factorised.
        num_rows_: n, the rows that had something observed.
        kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_: as in `OVKRidge`.

    Cost: O(n D²) for the statistics of a kernel k(x, z) Γ with complete outputs, O(n p D²) of others, once; then a factorisation
    and some hundred products of O(D² p) (others: O(D² r²)). With more than 4000 features of other kernels, O(n D p) a step.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> model = ovkgp.ConstrainedORFF(radius=10.0, num_frequencies=50, lengthscale=1.0, random_state=0).fit(X, Y)
        >>> model.score(X, Y) > 0.99, model.fit_report_.converged
        (True, True)
        >>> model.excess_risk_bound(0.05) > 0
        True
    """

    def __init__(
        self,
        kernel="auto",
        radius=10.0,
        num_frequencies=500,
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        tolerance=1e-8,
        max_iter=10_000,
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.radius = radius
        self.num_frequencies = num_frequencies
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def fit(self, X, y) -> ConstrainedORFF:
        """Fit to X (n, d) and y (n, p) or (n,), NaN where an output is missing."""
        with all_or_nothing(self):
            self._require_options()
            X, Y = (table.astype(np.float64) for table in self._enter(X, y))
            self.kernel_ = "given" if isinstance(self.kernel, Kernel) else self.kernel
            kernel, seed = ridge_kernel(self, X, Y), as_seed(self.random_state)
            # iid, as the bound wants them: not the orthogonal frequencies of the other estimators
            orff = ORFF(kernel, self.num_frequencies, num_dims=X.shape[1], random_state=seed)
            self.features_ = orff.double().requires_grad_(False)
            data = observations(X, Y, self.n_outputs_)
            self._settle(data, self.features_(data.X[:1]))
        return self

    def _settle(self, data: Observations, template: LinearOperator) -> None:
        """Solve, and keep what the bound needs to know of data and features."""
        self.num_rows_, self._trace = data.num_rows, float(template.squared_rows().sum())
        self._largest_output = float(torch.nan_to_num(data.Y).norm(dim=1).max())
        self.weight_radius_ = weight_radius(float(self.radius), self.num_frequencies)
        quadratic, balls = self._quadratic(data, template), Balls(frequency_groups(template), self.weight_radius_)
        start, steps = None, 0
        if quadratic.spectrum is not None:
            limit = min(self.max_iter, MAX_STEPS)
            start, steps = admm_initial_point(quadratic, balls, tolerance=self.tolerance, max_iter=limit)
        options = {"tolerance": self.tolerance, "max_iter": max(self.max_iter - steps, 1), "verbose": self.verbose}
        weights, self.fit_report_ = minimise_in_balls(quadratic, balls, start=start, **options)
        self.n_iter_ = steps + self.fit_report_.iterations
        self.coef_ = weights.numpy()
        if not self.fit_report_.converged:
            warnings.warn(f"fitting {self.fit_report_.message}.", FitWarning, stacklevel=4)

    def _quadratic(self, data: Observations, template: LinearOperator) -> BallQuadratic:
        """The mean of ½ ‖Φ(x_i)θ − y_i‖² over the rows, from additive statistics or, for many features, by products."""
        n, r = data.num_rows, template.shape[-1]
        mean, noise = output_mean("zero", data.num_outputs), OutputNoise(1.0, data.num_outputs)
        is_kronecker = isinstance(template, FeatureOperator) and template.is_separable and data.is_complete
        if r > MAX_FEATURES and not is_kronecker:
            products = WeightProducts(self.features_, mean, noise, data)
            square = float(data.Y.nan_to_num().square().sum()) / n
            return BallQuadratic(
                lambda w: (products.apply(w[:, None])[:, 0] - w) / n, products.moment()[:, 0] / n, square
            )
        statistics = gather(self.features_, mean, noise, data, template=template, num_landmarks=0)
        found = normal_equations(statistics, template, noise.matrix(), mean.coefficients)
        matrix = found.precision
        matrix = (matrix[0] / n, matrix[1]) if isinstance(matrix, tuple) else matrix / n
        is_small = isinstance(matrix, tuple) or r <= MAX_FACTORISED
        return BallQuadratic.of(matrix, found.moment / n, float(found.square) / n, factorise=is_small)

    # --- asking -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, X) -> np.ndarray:
        """Φ(X)θ, (m, p) or, where Y was one-dimensional, (m,)."""
        check_is_fitted(self, "coef_")
        X = torch.from_numpy(input_table(self, X, reset=False).astype(np.float64))
        weights, size = torch.from_numpy(self.coef_), max(CHUNK_ENTRIES // len(self.coef_), 1)
        values = torch.cat([self.features_(part) @ weights for part in X.split(size)])
        return self._flat(values.view(len(X), self.n_outputs_).numpy())

    def excess_risk_bound(self, delta=0.05, output_bound=None) -> float:
        """Prop. 7.3 for the cost ½ ‖f(x) − y‖²: with probability 1 − 2δ, the risk is at most so much above the smallest among all f
        that the constraint allows with infinitely many frequencies.

        u = ess sup ‖B(ω)‖ makes |f| ≤ uM, so that the cost is at most C = ½ L² and L-Lipschitz, with L = uM + C_y. T is the trace of
        the features drawn, which is what the proof uses (Prop. 7.6). Infinite where the kernel's factor is not bounded.

        Args:
            delta: the probability with which each of its two parts may fail.
            output_bound: C_y ≥ ‖y‖ for all outputs; the largest of the training rows where it is None, which is a guess.
        """
        check_is_fitted(self, "coef_")
        largest = self._largest_output if output_bound is None else float(output_bound)
        if not largest >= self._largest_output:
            raise OptionError(
                f"output_bound is {output_bound}, but a training row has norm {self._largest_output:.6g}."
            )
        factor_norm = math.sqrt(spectral_constants(self.features_.kernel, num_dims=self.n_features_in_).sup_norm)
        if math.isinf(factor_norm):
            return math.inf
        lipschitz = factor_norm * float(self.radius) + largest
        return constrained_excess_risk_bound(
            self.num_rows_,
            self.num_frequencies,
            lipschitz=lipschitz,
            norm_bound=float(self.radius),
            trace=self._trace,
            cost_bound=lipschitz**2 / 2,
            factor_norm=factor_norm,
            delta=delta,
        )

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        for name in ("radius", "tolerance"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
                raise OptionError(f"{name} must be a positive number, got {value!r}.")
        check_integer("num_frequencies", self.num_frequencies)
        check_integer("max_iter", self.max_iter)
        check_base(self)
