"""Slow twins of the package, written from the papers' formulas with loops, and the kernels that are held against them."""

import itertools

import numpy as np
import torch
from gpytorch.kernels import (
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)

from ovkgp.kernels import (
    CauchyKernel,
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FunctionValuedKernel,
    GeneralMaternKernel,
    HelmholtzKernel,
    IndependentKernel,
    MeanRegularizedMatrix,
    RadialCauchyKernel,
    SimplexMatrix,
    SobolevKernel,
    TransformableKernel,
)

# --- matrices ---------------------------------------------------------------------------------------------------


def gram(block, X, Z):
    """The data-major (n·p) × (m·p) matrix whose block (i, j) is block(X[i], Z[j])."""
    return np.block([[np.asarray(block(x, z)) for z in Z] for x in X])


def dense(kernel, x, z=None):
    """The kernel's own matrix as NumPy."""
    return kernel(x, x if z is None else z).to_dense().detach().numpy()


def scalar_gram(profile, X, Z):
    """The n × m matrix of a scalar kernel given as a function of the lag."""
    return np.array([[profile(x - z) for z in Z] for x in X])


# --- scalar kernels and vector fields as functions of the lag ------------------------------------------------------


def rbf(delta, lengthscale=1.0):
    return np.exp(-0.5 * np.sum((np.asarray(delta) / lengthscale) ** 2))


def curl_free_rbf(delta, s):
    """BT-27, as printed, for one lengthscale s."""
    d = len(delta)
    return np.exp(-delta @ delta / (2 * s**2)) / s**2 * (np.eye(d) - np.outer(delta, delta) / s**2)


def divergence_free_rbf(delta, s):
    """BT-28, as printed, for one lengthscale s."""
    d, r2 = len(delta), delta @ delta
    inner = np.outer(delta, delta) / s**2 + (d - 1 - r2 / s**2) * np.eye(d)
    return np.exp(-r2 / (2 * s**2)) / s**2 * inner


def rbf_hessian_ard(delta, lengthscale):
    """∂²k/∂δ_i∂δ_j of exp(−½ Σ δ_i²/ℓ_i²), entry by entry."""
    d = len(delta)
    out = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            cross = delta[i] * delta[j] / (lengthscale[i] ** 2 * lengthscale[j] ** 2)
            out[i, j] = rbf(delta, lengthscale) * (cross - (i == j) / lengthscale[i] ** 2)
    return out


def curl_free(hessian):
    return -hessian


def divergence_free(hessian):
    return hessian - np.trace(hessian) * np.eye(len(hessian))


def difference_gradient(value, delta, h=1e-4):
    """Central differences of a function of the lag, given for many lags (L, d) at once."""
    steps = h * np.eye(len(delta))
    return (value(delta + steps) - value(delta - steps)) / (2 * h)


def difference_hessian(value, delta, h=4e-3):
    """Second central differences D(h), extrapolated twice: (D(h) − 6 D(h/2) + 8 D(h/4)) / 3.

    That removes errors of order h² and of order h, which D has where k has a term |δ|³ (Matérn-3/2 at zero lag).
    """

    def differences(h):
        d = len(delta)
        steps = h * np.eye(d)
        out = np.zeros((d, d))
        for i in range(d):
            for a, b in itertools.product((1, -1), repeat=2):
                out[i] += a * b * value(delta + a * steps[i] + b * steps)
        return out / (4 * h**2)

    return (differences(h) - 6 * differences(h / 2) + 8 * differences(h / 4)) / 3


# --- kernels to test on ------------------------------------------------------------------------------------------


def smooth_base(name, d):
    """A twice-differentiable stationary scalar kernel in d dimensions, in double precision, hyperparameters generic."""
    lengthscale = torch.linspace(0.8, 1.5, d)
    first, rest = [0], list(range(1, d))

    def ard(cls, **kwargs):
        kernel = cls(ard_num_dims=d, **kwargs)
        kernel.lengthscale = lengthscale
        return kernel

    def rq():
        kernel = ard(RQKernel)
        kernel.alpha = 1.3
        return kernel

    def periodic():
        kernel = ard(PeriodicKernel)
        kernel.period_length = torch.linspace(1.9, 2.7, d)
        return kernel

    def mixture():
        kernel = SpectralMixtureKernel(num_mixtures=2, ard_num_dims=d)
        kernel.mixture_weights = torch.tensor([0.6, 0.9])
        kernel.mixture_means = torch.linspace(0.05, 0.3, 2 * d).reshape(2, 1, d)
        kernel.mixture_scales = torch.linspace(0.2, 0.1, 2 * d).reshape(2, 1, d)
        return kernel

    def scaled():
        kernel = ScaleKernel(ard(RBFKernel))
        kernel.outputscale = 2.3
        return kernel

    make = {
        "rbf": lambda: ard(RBFKernel),
        "rbf_isotropic": lambda: RBFKernel(),
        "matern32": lambda: ard(MaternKernel, nu=1.5),
        "matern52": lambda: ard(MaternKernel, nu=2.5),
        "rq": rq,
        "periodic": periodic,
        "spectral_mixture": mixture,
        "cauchy": lambda: ard(CauchyKernel),
        "radial_cauchy": lambda: ard(RadialCauchyKernel),
        "matern_any": lambda: ard(GeneralMaternKernel, nu=3.2),
        "sobolev2": lambda: ard(SobolevKernel, order=2),
        "periodic_sobolev2": lambda: SobolevKernel(order=2, periodic=True),
        "periodic_sobolev3": lambda: SobolevKernel(order=3, periodic=True),
        "scale": scaled,
        "sum": lambda: scaled() + MaternKernel(nu=2.5),
        "product": lambda: rq() * ard(MaternKernel, nu=1.5),
        "sum_active_dims": lambda: RBFKernel(active_dims=first) + ScaleKernel(CauchyKernel(active_dims=rest)),
        "product_active_dims": lambda: RBFKernel(active_dims=rest[::-1]) * RQKernel(active_dims=first) + RBFKernel(),
    }
    return make[name]().double()


SMOOTH_BASES = (
    "rbf",
    "rbf_isotropic",
    "matern32",
    "matern52",
    "rq",
    "periodic",
    "spectral_mixture",
    "cauchy",
    "sobolev2",
    "periodic_sobolev2",
    "periodic_sobolev3",
    "scale",
    "sum",
    "product",
    "sum_active_dims",
    "product_active_dims",
)


def square(x):
    return x**2


def operator_valued(name, batch_shape=torch.Size(), **base):
    """One kernel of each class, for inputs with two columns; `base` and the batch shape go to the base kernels."""
    base = {"batch_shape": torch.Size(batch_shape), **base}
    grid = torch.tensor([0.0, 0.3, 1.0])
    make = {
        "decomposable": lambda: DecomposableKernel(RBFKernel(**base), num_outputs=3, rank=2),
        "decomposable_known": lambda: DecomposableKernel(MaternKernel(nu=1.5, **base), output_matrix=SimplexMatrix(3)),
        "decomposable_mean": lambda: DecomposableKernel(
            RQKernel(**base), output_matrix=MeanRegularizedMatrix(3, batch_shape=base["batch_shape"])
        ),
        "lmc": lambda: (
            DecomposableKernel(RBFKernel(**base), num_outputs=3)
            + ScaleKernel(
                DecomposableKernel(MaternKernel(nu=2.5, **base), num_outputs=3, rank=2), batch_shape=base["batch_shape"]
            )
        ),
        "independent": lambda: IndependentKernel(
            [
                RBFKernel(**base),
                ScaleKernel(MaternKernel(nu=1.5, **base), batch_shape=base["batch_shape"]),
                RQKernel(active_dims=[1], **base) + RBFKernel(**base),
            ]
        ),
        "curl_free": lambda: CurlFreeKernel(RBFKernel(**base), num_dims=2),
        "curl_free_matern": lambda: CurlFreeKernel(MaternKernel(nu=1.5, **base), num_dims=2),
        "divergence_free": lambda: DivergenceFreeKernel(RBFKernel(**base), num_dims=2),
        "divergence_free_matern": lambda: DivergenceFreeKernel(MaternKernel(nu=2.5, **base), num_dims=2),
        "helmholtz": lambda: HelmholtzKernel(RBFKernel(**base), MaternKernel(nu=2.5, **base), num_dims=2),
        "transformable": lambda: TransformableKernel(RBFKernel(**base), [Delay(0.0), Delay(0.4), square]),
        "delays": lambda: TransformableKernel(RBFKernel(**base), [Delay(0.0), Delay(0.4)]),
        "function_valued_grid": lambda: FunctionValuedKernel(RBFKernel(**base), MaternKernel(**base), tasks=grid),
        "function_valued_pairs": lambda: FunctionValuedKernel(RBFKernel(**base), MaternKernel(nu=1.5, **base)),
        "function_valued_vector": lambda: FunctionValuedKernel(
            DecomposableKernel(RBFKernel(**base), num_outputs=2), MaternKernel(**base), tasks=grid
        ),
        "blockwise_separable": lambda: DecomposableKernel(RBFKernel(**base), num_outputs=2) * RQKernel(**base),
        "blockwise_field": lambda: CurlFreeKernel(RBFKernel(**base), num_dims=2) * MaternKernel(nu=2.5, **base),
    }
    return make[name]()


OUTPUTS = {
    "decomposable": 3,
    "decomposable_known": 3,
    "decomposable_mean": 3,
    "lmc": 3,
    "independent": 3,
    "curl_free": 2,
    "curl_free_matern": 2,
    "divergence_free": 2,
    "divergence_free_matern": 2,
    "helmholtz": 2,
    "transformable": 3,
    "delays": 2,
    "function_valued_grid": 3,
    "function_valued_pairs": 1,
    "function_valued_vector": 6,
    "blockwise_separable": 2,
    "blockwise_field": 2,
}
"""The number of outputs of every kernel that `operator_valued` makes."""

SEPARABLE = {
    "decomposable": 1,
    "decomposable_known": 1,
    "decomposable_mean": 1,
    "lmc": 2,
    "independent": 3,
    "function_valued_grid": 1,
    "function_valued_pairs": 1,
    "function_valued_vector": 1,
    "blockwise_separable": 1,
}
"""How many components the separable ones have."""

STATIONARY = tuple(name for name in OUTPUTS if name != "transformable")


def randomize(kernel, seed):
    """Standard normal raw hyperparameters: lengthscales and scales between about 0.1 and 3."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in kernel.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
    return kernel
