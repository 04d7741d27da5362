"""`ConstrainedORFF`, random features with the weights of each frequency in a ball, with proved consistency (BT-88, (7.7))."""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

import numpy as np
import torch
from linear_operator import LinearOperator
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.base import LENGTHSCALE, TableRegressor
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import RIDGE_KERNEL_CONSTRAINTS, check_base, name_structure, ridge_kernel
from ovkgp.estimators.common.options import FRACTION, POSITIVE, RANDOM_STATE, VERBOSE, integer, restore_on_error
from ovkgp.estimators.common.validation import input_table
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import ORFF
from ovkgp.features.bounds import constrained_excess_risk_bound, spectral_constants, weight_radius
from ovkgp.features.operators import FEATURE_CHUNK_ENTRIES, FeatureOperator
from ovkgp.inference.model.mean_noise import OutputNoise, make_output_mean
from ovkgp.inference.model.observations import Observations, validate_observations
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.ridge.ball_constraints import (
    MAX_STEPS,
    BallQuadratic,
    Balls,
    admm_initial_point,
    frequency_groups,
    minimize_in_balls,
)
from ovkgp.inference.ridge.products import WeightProducts
from ovkgp.inference.statistics.accumulation import compute_statistics
from ovkgp.inference.statistics.weight_space import make_normal_equations

MAX_FEATURES, MAX_FACTORIZED = 4000, 2000
"""Number of features up to which ΦᵀΦ is formed (128 MB), and up to which it is eigendecomposed unless it is a Kronecker product."""


class ConstrainedORFF(TableRegressor):
    """Least squares on D random frequencies whose weights are constrained to balls (BT-88).

    The problem is min (1/n) Σ ½ ‖Φ(x_i)θ − y_i‖² subject to ‖θ_j‖ ≤ M/√D for each frequency j, cosines and sines together. Φ includes
    the factor 1/√D; the thesis prints the radius of features without it (BT-E-41). The solution is the posterior mode of a
    prior that is uniform on the balls; there is no standard deviation. `excess_risk_bound` is the bound of Prop. 7.3.

    Parameters
    ----------
    kernel, base_kernel, lengthscale, output_matrix
        As for `OVKRidge`.
    radius : float, default=10.0
        M > 0 in the units of the outputs; |f| ≤ M ess sup ‖B(ω)‖.
    num_frequencies : int, default=500
        D.
    tolerance : float, default=1e-8
        The solver stops if the duality gap is at most `tolerance` times the mean of ½ ‖y‖², or the projected gradient at most
        `tolerance` times that at θ = 0.
    max_iter : int, default=10_000
        Maximum number of steps; a `FitWarning` is raised if they do not suffice.
    random_state : int, RandomState instance or None, default=None
        Seed of the frequencies.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    coef_ : ndarray of shape (2·D·r,)
        Weights θ in the order of the columns of `features_`, for r columns of the factor.
    weight_radius_ : float
        M/√D.
    features_ : ORFF
        Feature map.
    fit_report_ : FitReport
        Report of the gradient steps; `objective` is the mean of ½ ‖Φ(x_i)θ − y_i‖².
    n_iter_ : int
        Number of steps, including those of ADMM, which come first if the matrix can be factorized.
    num_rows_ : int
        Number of rows with an observed entry.
    kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        As for `OVKRidge`.

    Notes
    -----
    Complexity: O(n D²) for the statistics of a kernel k(x, z) Γ with complete outputs, O(n p D²) otherwise, once; then a
    factorization and some hundred products of O(D² p) (otherwise O(D² r²)). With more than 4000 features of other kernels,
    O(n D p) per step.

    Examples
    --------
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

    description = Description(
        "random features with bounded weights",
        "Least squares on random features whose weights are constrained to a ball for each frequency. There is no posterior, and so no standard deviation.",
        "min Σ_i ‖Φ(x_i)θ − y_i‖^2/(2n)   subject to ‖θ_j‖ ≤ M/√D",
    )
    reported = (("radius", "radius M of the weights"), ("weight_radius_", "radius of each frequency"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RIDGE_KERNEL_CONSTRAINTS,
        "radius": [POSITIVE],
        "num_frequencies": [integer()],
        "tolerance": [FRACTION],
        "max_iter": [integer()],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

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

    @torch.no_grad()
    def fit(self, X, y) -> ConstrainedORFF:
        """Fit the model to X (n, d) and y (n, p) or (n,), NaN where an output is missing.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.

        Returns
        -------
        self : ConstrainedORFF
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, Y = (table.astype(np.float64) for table in self._enter(X, y))
            self.kernel_ = name_structure(self.kernel)
            kernel, seed = ridge_kernel(self, X, Y), as_seed(self.random_state)
            # iid as the bound assumes, not orthogonal as in the other estimators
            orff = ORFF(kernel, self.num_frequencies, num_dims=X.shape[1], random_state=seed)
            self.features_ = orff.double().requires_grad_(False)
            data = validate_observations(X, Y, self.n_outputs_)
            template = self.features_(data.X[:1])
            self.num_rows_, self._trace = data.num_rows, float(template.squared_rows().sum())
            self._largest_output = float(torch.nan_to_num(data.Y).norm(dim=1).max())
            self.weight_radius_ = weight_radius(float(self.radius), self.num_frequencies)
            quadratic, balls = self._quadratic(data, template), Balls(frequency_groups(template), self.weight_radius_)
            initial, steps = None, 0
            if quadratic.spectrum is not None:
                limit = min(self.max_iter, MAX_STEPS)
                initial, steps = admm_initial_point(quadratic, balls, tolerance=self.tolerance, max_iter=limit)
            options = {"tolerance": self.tolerance, "max_iter": max(self.max_iter - steps, 1), "verbose": self.verbose}
            weights, self.fit_report_ = minimize_in_balls(quadratic, balls, init=initial, **options)
            self.n_iter_ = steps + self.fit_report_.iterations
            self.coef_ = weights.numpy()
            if not self.fit_report_.converged:
                message = f"The fit did not converge: {self.fit_report_.message}. Increase max_iter."
                warnings.warn(message, FitWarning, stacklevel=3)
        return self

    def _quadratic(self, data: Observations, template: LinearOperator) -> BallQuadratic:
        """Return the mean of ½ ‖Φ(x_i)θ − y_i‖² over the rows, from additive statistics or, for many features, by products."""
        n, r = data.num_rows, template.shape[-1]
        mean, noise = make_output_mean("zero", data.num_outputs), OutputNoise(1.0, data.num_outputs)
        is_kronecker = isinstance(template, FeatureOperator) and template.is_separable and data.is_complete
        if r > MAX_FEATURES and not is_kronecker:
            products = WeightProducts(self.features_, mean, noise, data)
            square = float(data.Y.nan_to_num().square().sum()) / n
            return BallQuadratic(
                lambda w: (products.apply(w[:, None])[:, 0] - w) / n, products.moment()[:, 0] / n, square
            )
        statistics = compute_statistics(self.features_, mean, noise, data, template=template, num_landmarks=0)
        found = make_normal_equations(statistics, template, noise.matrix(), mean.coefficients)
        matrix = found.precision
        matrix = (matrix[0] / n, matrix[1]) if isinstance(matrix, tuple) else matrix / n
        is_small = isinstance(matrix, tuple) or r <= MAX_FACTORIZED
        return BallQuadratic.from_matrix(matrix, found.moment / n, float(found.square) / n, factorize=is_small)

    @torch.no_grad()
    def predict(self, X) -> np.ndarray:
        """Return Φ(X)θ, (m, p), or (m,) if Y was one-dimensional.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, p) or (m,)
            Predictions.
        """
        check_is_fitted(self, "coef_")
        X = torch.from_numpy(input_table(self, X, reset=False).astype(np.float64))
        weights, size = torch.from_numpy(self.coef_), max(FEATURE_CHUNK_ENTRIES // len(self.coef_), 1)
        values = torch.cat([self.features_(part) @ weights for part in X.split(size)])
        return self._flat(values.view(len(X), self.n_outputs_).numpy())

    def largest_lengthscale(self) -> float:
        """Return the largest lengthscale of the kernel; 1 if it has none."""
        values = hyperparameters(self.features_.kernel).items()
        return max((float(v.max()) for name, v in values if name.endswith(LENGTHSCALE)), default=1.0)

    def excess_risk_bound(self, delta=0.05, output_bound=None) -> float:
        """Compute the bound of Prop. 7.3 for the cost ½ ‖f(x) − y‖².

        With probability 1 − 2δ, the risk exceeds the smallest risk under the constraint with infinitely many frequencies by at
        most this. u = ess sup ‖B(ω)‖ gives |f| ≤ uM, so the cost is at most C = ½ L² and L-Lipschitz with L = uM + C_y. T is the trace of
        the drawn features, as in the proof (Prop. 7.6).

        Parameters
        ----------
        delta : float, default=0.05
            Failure probability of each of the two parts.
        output_bound : float or None, default=None
            C_y ≥ ‖y‖ for all outputs. If None, the largest norm of the training rows, which is a guess.

        Returns
        -------
        float
            Bound; infinite if the factor of the kernel is not bounded.
        """
        check_is_fitted(self, "coef_")
        largest = self._largest_output if output_bound is None else float(output_bound)
        if not largest >= self._largest_output:
            raise OptionError(
                f"output_bound must be at least the largest norm of a training row, {self._largest_output:.6g}, got {output_bound}."
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

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_base(self)
