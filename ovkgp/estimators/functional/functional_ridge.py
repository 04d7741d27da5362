"""`FunctionalRidge`, ridge regression of curves with a kernel on their domain (FKRR, BO-50, BO-51, LT-80..82)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import integer, one_of, restore_on_error
from ovkgp.estimators.common.task_options import TASK_LENGTHSCALE, task_kernel
from ovkgp.estimators.functional.basis_ridge import (
    BASIS_ATTRIBUTES,
    BASIS_CONSTRAINTS,
    BasisRegressor,
    fit_curves,
)
from ovkgp.estimators.functional.coordinates import observed_coordinates
from ovkgp.estimators.functional.curve_problem import as_columns, to_tensor
from ovkgp.estimators.storage.storage import storable
from ovkgp.functional import Eigenfunctions, FunctionalData
from ovkgp.functional.factors import KernelFactor

MAX_ANCHORS = 500  # number of points that span the functions of curves at different points
BASES = ("grid", "eigen")
OUTPUT_KERNEL_CONSTRAINTS = {
    "output_kernel": BASE_KERNEL,
    "output_lengthscale": TASK_LENGTHSCALE,
    "basis": [one_of(*BASES)],
    "num_functions": [integer(), None],
}


def make_output_factor(options, data: FunctionalData):
    """Make the coordinates of the output kernel: exact at the points of the curves ("grid"), or its leading eigenfunctions."""
    points = as_columns(data.union_grid)
    kernel = task_kernel(options.output_kernel, options.output_lengthscale, to_tensor(points), "output_kernel")
    if options.basis == "eigen":
        return Eigenfunctions(kernel, options.num_functions or 20, data.domain).as_factor()
    if len(points) > MAX_ANCHORS:
        points = points[np.linspace(0, len(points) - 1, MAX_ANCHORS).round().astype(int)]
    return KernelFactor(kernel, to_tensor(points))


@storable(*BASIS_ATTRIBUTES, optional=("path_", "eigenvalues_", "truncated_variance_"), parts=("latent_",))
class FunctionalRidge(BasisRegressor):
    """Ridge regression of curves with a kernel between inputs and one along the curve, with a band (FKRR, BO-50).

        min_h (1/n) Σ_i ‖y_i − h(x_i)‖²_{L²} + λ ‖h‖²,      K((x, θ), (x', θ')) = k_X(x, x') k_Θ(θ, θ')

    is the posterior mean of a Gaussian process with noise variance nmλ of a value on a grid of m points, nλ/η with quadrature
    weights η. It is not trained; `FunctionGPRegressor` trains the hyperparameters.

    Parameters
    ----------
    output_kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="matern52"
        k_Θ, by name or as a scalar GPyTorch kernel.
    output_lengthscale : "median", "quantile_0.2", float or array-like of shape (b,), default="quantile_0.2"
        Lengthscale of an output kernel by name; a quantile of the distances between points.
    basis : {"grid", "eigen"}, default="grid"
        "grid": the kernel itself, by Kronecker products. "eigen": its leading eigenfunctions in L² of the domain (BO-51), which is
        faster for many points and smoother; their Gram matrix is that of the observed points, as for `basis="grid"`.
    num_functions : int or None, default=None
        Number of eigenfunctions for `basis="eigen"`. If None, 20.
    kernel, lengthscale, lam, convention, curve_weighting, quadrature, fit_intercept, selection, scale, verbose
        As for `KernelProjectionRegressor`.

    Attributes
    ----------
    eigenvalues_, truncated_variance_ : ndarray of shape (d,), float
        Eigenvalues of the output kernel, and the average prior variance that their truncation removes (`basis="eigen"`).
    lam_, noise_, scale_, point_noise_, path_, coordinates_, latent_, gp_, posterior_, grid_, domain_, mean_curve_, n_outputs_,
    output_names_, n_features_in_, feature_names_in_
        As for `KernelProjectionRegressor`.

    Notes
    -----
    Complexity: O(n³ + m³ + n m (n + m)) for complete curves on m points, O(n³ + n² d + n m d) with d eigenfunctions; a path of λ
    costs O(n² m) per value. With gaps or different points as `KernelProjectionRegressor`. Between the points of more than 500
    different ones, functions are spanned by k_Θ at 500 of them.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, grid = rng.uniform(0, 1, (40, 1)), np.linspace(0, 1, 30)
    >>> Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((40, 30))
    >>> model = ovkgp.FunctionalRidge(lam=[1e-4, 1e-3, 1e-2]).fit(X, Y, grid)
    >>> lower, upper = model.predict_interval(X[:2], 0.9, simultaneous=True)
    >>> lower.shape
    (2, 30)
    """

    description = Description(
        "ridge regression of curves",
        "The model predicts a curve with a kernel between inputs and a kernel along the curve. It is the posterior mean of a Gaussian process on pairs of input and position, which provides bands.",
        "K((x, θ), (x′, θ′)) = s^2 k_X(x, x′) k_Θ(θ, θ′)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {**BASIS_CONSTRAINTS, **OUTPUT_KERNEL_CONSTRAINTS}

    def __init__(
        self,
        output_kernel="matern52",
        output_lengthscale="quantile_0.2",
        basis="grid",
        num_functions=None,
        kernel="rbf",
        lengthscale="median",
        lam=1e-3,
        convention="mean",
        curve_weighting="equal",
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        scale="evidence",
        verbose=0,
    ):
        self.output_kernel = output_kernel
        self.output_lengthscale = output_lengthscale
        self.basis = basis
        self.num_functions = num_functions
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.lam = lam
        self.convention = convention
        self.curve_weighting = curve_weighting
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> FunctionalRidge:
        """Fit the model.

        Parameters
        ----------
        X, y, grid
            As for `KernelProjectionRegressor.fit`.

        Returns
        -------
        self : FunctionalRidge
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid)
            factor = make_output_factor(self, data)
            if self.basis == "eigen":
                functions = factor.dictionary
                self.eigenvalues_ = functions.eigenvalues / functions.volume  # in L² of the uniform probability measure
                self.truncated_variance_ = max(functions.trace / functions.volume - float(self.eigenvalues_.sum()), 0.0)
            fit_curves(self, X, data, observed_coordinates(factor, data, self.quadrature))
        return self
