"""`KernelProjectionRegressor`, kernel projection learning of curves in a dictionary (BO-60..66, BO-80, BO-81)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.options import FRACTION, NONNEGATIVE, integer, one_of, restore_on_error
from ovkgp.estimators.functional.basis_ridge import (
    BASIS_ATTRIBUTES,
    BASIS_CONSTRAINTS,
    BasisRegressor,
    fit_curves,
    fit_loss,
    fit_projected,
    make_exact,
)
from ovkgp.estimators.functional.coordinates import gram_coordinates, observed_coordinates, project_plug_in
from ovkgp.estimators.functional.curve_problem import is_robust, to_tensor
from ovkgp.estimators.functional.options import (
    DICTIONARY_CONSTRAINTS,
    LOSS,
    check_loss,
    check_output_matrix,
    make_dictionary,
    truncate_dictionary,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import OptionError
from ovkgp.functional.factors import KernelFactor
from ovkgp.losses import IntegralLoss

METHODS = ("exact", "plug_in")


@storable(
    *BASIS_ATTRIBUTES,
    "dictionary_",
    "output_matrix_",
    optional=("path_", "function_", "fit_report_", "gap_"),
    parts=("latent_",),
)
class KernelProjectionRegressor(BasisRegressor):
    """Kernel projection learning: regression of the coefficients of curves in a dictionary, with a band (KPL, BO-61).

        min_h (1/n) Σ_i L(y_i, Φ h(x_i)) + λ ‖h‖²,      h ∈ RKHS of k_X(x, x') B,      (Φ h(x))(θ) = Σ_l φ_l(θ) h_l(x)

    With the square loss L = ‖y − Φh‖² in L² of the points, the estimate is the posterior mean of the Gaussian process with kernel
    k_X(x, x') φ(θ)ᵀBφ(θ') and noise variance nmλ of a value.

    Parameters
    ----------
    dictionary : {"bsplines", "fourier", "pca"} or Dictionary, default="bsplines"
        Functions φ, by name on the domain of the curves, or an object of `ovkgp.functional`.
    num_functions : int or None, default=None
        Number of functions of a dictionary by name. If None, a third of the points of a curve, between 4 and 20.
    output_matrix : array-like of shape (d, d) or (d,), or None, default=None
        B, or its diagonal. If None, the identity.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        k_X, by name or as a scalar GPyTorch kernel. Curves as inputs are compared by the Euclidean distance of their values.
    lengthscale : "median" or float, default="median"
        Lengthscale of a kernel by name.
    lam : float or list of float, default=1e-3
        λ > 0, or candidates among which `selection` chooses (with the square loss).
    convention : str, default="mean"
        Meaning of λ as the noise σ² in an orthonormal basis: "mean" nλ (the objective above), "sum" λ, "mean_halved" 2nλ (loss
        ½‖·‖², or any other loss with penalty λ‖h‖²). See `OVKRidge`; entries are counted as curves.
    method : {"exact", "plug_in"}, default="exact"
        "exact" uses the Gram matrix at the observed points, so that it is the exact posterior, also for curves with gaps or at
        different points. "plug_in" combines averages over the points of each curve with the exact Gram matrix (BO-62), which
        is less accurate with few points.
    loss : "square" or Loss, default="square"
        Loss of one value, integrated along the curve, such as `ovkgp.losses.LogCosh(25.0)`. Without the square loss there is no
        band; the objective is (1/n) Σ L + (λ/2) ‖h‖² for "mean". Losses that depend on a level, such as `Pinball`, are not supported.
    curve_weighting : {"equal", "points"}, default="equal"
        Weight of curves with different numbers m_i of points: "equal" has noise variance σ²m_i at a point of curve i, as the
        objective, "points" the same noise at all points. Ignored for complete curves.
    rank_threshold : float or None, default=None
        Eigenvalues of the Gram matrix up to this number are dropped with their functions (effective rank, BO-80). If None, only
        those that are numerically zero.
    quadrature : {"mean", "trapezoid"}, default="mean"
        Weights of the points of a curve.
    fit_intercept : bool, default=True
        Whether to subtract the mean curve. With a loss that bounds the influence of outliers, it is the median of complete curves, and
        with gaps a smooth mean without outlying values and curves.
    selection : {"loo", "evidence"}, default="loo"
        Criterion to choose among several λ: leave-one-curve-out error or evidence.
    scale : {"evidence", "given"}, default="evidence"
        λ determines only the ratio of noise and prior. "evidence" multiplies both by the factor s² that maximizes the evidence of
        all observed values, including their part outside of the dictionary; "given" is s² = 1.
    tolerance : float, default=1e-6
        Relative duality gap at which a loss other than the square ends.
    max_iter : int, default=5000
        Maximum number of steps with a loss other than the square.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    dictionary_, output_matrix_ : Dictionary, ndarray of shape (d, d)
        Functions and B after truncation.
    lam_, noise_, scale_ : float
        λ, σ² of an orthonormal basis before the scale, and s².
    point_noise_ : float
        Noise variance of one observed value.
    path_ : RidgePath
        Criteria of several λ.
    coordinates_ : CurveCoordinates
        Orthonormal basis with independent coordinates u and their prior variances.
    latent_, gp_, posterior_
        Ridge regression of u, its Gaussian process and posterior (square loss).
    function_, gap_, fit_report_ : CurveFunction, float, FitReport
        Solution, duality gap and report with another loss. `scale_`, `point_noise_`, `path_`, `latent_`, `gp_` and `posterior_` are then
        those of the ridge regression with the same λ, from which the solver begins.
    grid_, domain_, mean_curve_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        Default grid, domain, mean curve, names and numbers of columns.

    Notes
    -----
    Complexity: O(n³ + m d² + n² d) for complete curves; with gaps or different points O(N³) for N = Σ_i min(m_i, d) ≤ 5000, else
    O(n² d + Σ_i m_i d) per iteration of conjugate gradients and O(n R² + R³) for bands, the evidence and each of several λ, where R products of
    eigenfunctions of the two kernels have a variance above 1e-5 of that of the noise; O(n³ + m³ + q³ + n q (n + m)) for q missing values on a grid
    with m ≤ d points.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, grid = rng.uniform(0, 1, (40, 1)), np.linspace(0, 1, 30)
    >>> Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((40, 30))
    >>> model = ovkgp.KernelProjectionRegressor(lam=[1e-4, 1e-3, 1e-2]).fit(X, Y, grid)
    >>> mean, std = model.predict(X[:2], [0.25, 0.5, 0.75], return_std=True)
    >>> mean.shape, std.shape
    ((2, 3), (2, 3))
    """

    description = Description(
        "kernel projection learning of curves",
        "The model predicts the coefficients of a curve in a dictionary of functions. It is the posterior mean of a Gaussian process on pairs of input and position, which provides bands.",
        "y(x)(θ) = Σ_l φ_l(θ) h_l(x),   h ~ GP(0, s^2 k_X(x, x′) B)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **BASIS_CONSTRAINTS,
        **DICTIONARY_CONSTRAINTS,
        "method": [one_of(*METHODS)],
        "loss": LOSS,
        "rank_threshold": [NONNEGATIVE, None],
        "tolerance": [FRACTION],
        "max_iter": [integer()],
    }

    def __init__(
        self,
        dictionary="bsplines",
        num_functions=None,
        output_matrix=None,
        kernel="rbf",
        lengthscale="median",
        lam=1e-3,
        convention="mean",
        method="exact",
        loss="square",
        curve_weighting="equal",
        rank_threshold=None,
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        scale="evidence",
        tolerance=1e-6,
        max_iter=5000,
        verbose=0,
    ):
        self.dictionary = dictionary
        self.num_functions = num_functions
        self.output_matrix = output_matrix
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.lam = lam
        self.convention = convention
        self.method = method
        self.loss = loss
        self.curve_weighting = curve_weighting
        self.rank_threshold = rank_threshold
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> KernelProjectionRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d) or FunctionalData
            Inputs: vectors, or curves, which are interpolated linearly on a common grid.
        y : array-like of shape (n, m) or (n,), FunctionalData, or list of n arrays
            Curves, NaN where missing; a list of arrays with a list of grids for curves at different points.
        grid : array-like of shape (m,) or (m, b), list of n arrays, or None, default=None
            Points at which the curves were observed. If None, those of `y`, or equidistant points on [0, 1].

        Returns
        -------
        self : KernelProjectionRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid, is_robust(self.loss))
            dictionary = make_dictionary(self.dictionary, self.num_functions, data)
            matrix, gram = check_output_matrix(self.output_matrix, dictionary.num_functions), None
            if self.rank_threshold is not None:
                gram = dictionary.gram() / dictionary.volume
                dictionary, matrix = truncate_dictionary(dictionary, matrix, self.rank_threshold, gram)
            self.dictionary_, self.output_matrix_ = dictionary, matrix
            factor = dictionary.as_factor(matrix)
            if self.method == "plug_in":
                gram, root = dictionary.gram() / dictionary.volume, factor.root.numpy()
                coordinates = gram_coordinates(factor, root @ gram @ root)
                projected = project_plug_in(coordinates, data, self.quadrature)
                make_latent = partial(make_exact, self, self.kernel, coordinates.variances)
                fit_projected(self, X, data, coordinates, projected, make_latent)
            else:
                fit_curves(self, X, data, observed_coordinates(factor, data, self.quadrature))
            if self.loss != "square":
                inputs = KernelFactor(self._input_kernel, to_tensor(X))
                make_loss = partial(IntegralLoss, self.loss)
                fit_loss(self, X, data, inputs, factor, make_loss, self.curve_weighting)
        return self

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_loss(self.loss)
        if self.loss != "square" and self.method == "plug_in":
            raise OptionError('method="plug_in" is not supported with a loss. Use method="exact".')
