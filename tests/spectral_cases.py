"""Every kernel with a spectral pair, with hyperparameters away from their defaults: name → (maker, num_dims, options)."""

import torch
from gpytorch.kernels import (
    CosineKernel,
    LCMKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)

from ovkgp.kernels import (
    CauchyKernel,
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FunctionValuedKernel,
    GeneralMaternKernel,
    GraphMatrix,
    HelmholtzKernel,
    IndependentKernel,
    LaplaceKernel,
    MeanRegularizedMatrix,
    MultiplicativeGroup,
    RadialCauchyKernel,
    SeasonalKernel,
    SimplexMatrix,
    SkewedChi2Kernel,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
)

GAMMA = torch.tensor([[1.0, 0.4], [0.4, 0.7]])
CHAIN = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]])


def ard(kernel):
    """Unequal lengthscales."""
    d = kernel.ard_num_dims
    kernel.lengthscale = torch.linspace(0.6, 1.4, d)
    return kernel


def mixture(d):
    kernel = SpectralMixtureKernel(num_mixtures=2, ard_num_dims=d)
    kernel.mixture_weights = torch.tensor([0.6, 0.9])
    kernel.mixture_means = torch.linspace(0.05, 0.3, 2 * d).reshape(2, 1, d)
    kernel.mixture_scales = torch.linspace(0.2, 0.1, 2 * d).reshape(2, 1, d)
    return kernel


def scaled(kernel, scale=1.7):
    kernel = ScaleKernel(kernel)
    kernel.outputscale = scale
    return kernel


def seeded(make):
    """GPyTorch draws the start of its task matrices at random."""

    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make()

    return build


def rbf(d=2):
    return ard(RBFKernel(ard_num_dims=d))


BOUNDED = {
    "rbf": rbf,
    "matern12": lambda: ard(MaternKernel(nu=0.5, ard_num_dims=2)),
    "matern32": lambda: ard(MaternKernel(nu=1.5, ard_num_dims=2)),
    "matern52": lambda: ard(MaternKernel(nu=2.5, ard_num_dims=2)),
    "rq": lambda: ard(RQKernel(ard_num_dims=2)),
    "periodic": lambda: ard(PeriodicKernel(ard_num_dims=2)),
    "cosine": lambda: CosineKernel(ard_num_dims=1, active_dims=[0]),
    "seasonal": lambda: SeasonalKernel(period_length=1.7, num_harmonics=3, active_dims=[0]),
    "mixture 1d": lambda: mixture(1),
    "mixture 2d": lambda: mixture(2),
    "laplace": lambda: ard(LaplaceKernel(ard_num_dims=2)),
    "cauchy": lambda: ard(CauchyKernel(ard_num_dims=2)),
    "radial cauchy": lambda: ard(RadialCauchyKernel(ard_num_dims=2)),
    "matern of any order": lambda: ard(GeneralMaternKernel(nu=3.2, ard_num_dims=2)),
    "skewed chi2": lambda: SkewedChi2Kernel(ard_num_dims=2),
    "sobolev 1": lambda: ard(SobolevKernel(order=1, ard_num_dims=2)),
    "sobolev 2": lambda: ard(SobolevKernel(order=2, ard_num_dims=2)),
    "sobolev periodic": lambda: SobolevKernel(order=2, periodic=True, active_dims=[0]),
    "multiplicative group": lambda: WarpedKernel(rbf(), MultiplicativeGroup(2)),
    "cyclic group": lambda: WarpedKernel(RBFKernel(), CyclicGroup(1.5, num_dims=2)),
    "scaled": lambda: scaled(rbf()),
    "active dims": lambda: scaled(RBFKernel(active_dims=[1])),
    "sum": lambda: scaled(rbf()) + ard(MaternKernel(nu=1.5, ard_num_dims=2)),
    "product": lambda: rbf() * MaternKernel(nu=2.5, active_dims=[1]),
    "icm": lambda: DecomposableKernel(rbf(), output_matrix=GAMMA),
    "icm free": lambda: DecomposableKernel(rbf(), num_outputs=3, rank=2),
    "icm laplace": lambda: DecomposableKernel(ard(LaplaceKernel(ard_num_dims=2)), output_matrix=GAMMA),
    "icm chi2": lambda: DecomposableKernel(SkewedChi2Kernel(ard_num_dims=2), output_matrix=GAMMA),
    "icm graph": lambda: DecomposableKernel(rbf(), output_matrix=GraphMatrix(CHAIN, mean_variance=0.5)),
    "icm simplex": lambda: DecomposableKernel(rbf(), output_matrix=SimplexMatrix(3)),
    "icm mean-regularized": lambda: DecomposableKernel(rbf(), output_matrix=MeanRegularizedMatrix(3, coupling=0.3)),
    "lmc": lambda: (
        DecomposableKernel(rbf(), num_outputs=2) + DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=2)
    ),
    "independent": lambda: IndependentKernel(
        [
            rbf(),
            scaled(ard(MaternKernel(nu=1.5, ard_num_dims=2))) + RBFKernel(active_dims=[1]),
            ard(LaplaceKernel(ard_num_dims=2)),
        ]
    ),
    "icm times periodic": lambda: DecomposableKernel(rbf(), output_matrix=GAMMA) * ard(PeriodicKernel(ard_num_dims=2)),
    "multitask": seeded(lambda: MultitaskKernel(rbf(), num_tasks=2, rank=1)),
    "lcm": seeded(lambda: LCMKernel([rbf(), MaternKernel(ard_num_dims=2)], num_tasks=2, rank=1)),
    "function-valued grid": lambda: FunctionValuedKernel(rbf(), RBFKernel(), tasks=torch.linspace(0, 1, 3)),
    "function-valued pairs": lambda: FunctionValuedKernel(RBFKernel(ard_num_dims=1), LaplaceKernel(ard_num_dims=1)),
    "delays": lambda: TransformableKernel(rbf(), [Delay(0.0), Delay(0.4)]),
    "warped icm": lambda: WarpedKernel(DecomposableKernel(rbf(), output_matrix=GAMMA), MultiplicativeGroup(2)),
}

FIELDS = {
    f"{name} {base}": (lambda field=field, make=make: field(make()))
    for name, field in (("curl-free", CurlFreeKernel), ("divergence-free", DivergenceFreeKernel))
    for base, make in (
        ("rbf", lambda: rbf(3)),
        ("rbf isotropic", lambda: RBFKernel(active_dims=[0, 1, 2])),
        ("matern32", lambda: ard(MaternKernel(nu=1.5, ard_num_dims=3))),
        ("matern52", lambda: ard(MaternKernel(nu=2.5, ard_num_dims=3))),
        ("rq", lambda: ard(RQKernel(ard_num_dims=3))),
        ("cauchy", lambda: ard(CauchyKernel(ard_num_dims=3))),
        ("radial cauchy", lambda: ard(RadialCauchyKernel(ard_num_dims=3))),
        ("periodic", lambda: ard(PeriodicKernel(ard_num_dims=3))),
        ("mixture", lambda: mixture(3)),
        ("scaled sum", lambda: scaled(scaled(rbf(3), 0.8) + ard(RQKernel(ard_num_dims=3)))),
        ("product", lambda: rbf(3) * RQKernel(active_dims=[0, 2])),
    )
}
FIELDS["curl-free times rbf"] = lambda: CurlFreeKernel(rbf(3)) * RBFKernel(ard_num_dims=3)
FIELDS["helmholtz"] = lambda: HelmholtzKernel(rbf(3), ard(MaternKernel(nu=2.5, ard_num_dims=3)))

NUM_DIMS = {**{name: 2 for name in BOUNDED}, **{name: 3 for name in FIELDS}, "mixture 1d": 1}
CASES = {**BOUNDED, **FIELDS}


def make(name):
    """The kernel in float64."""
    return CASES[name]().double()
