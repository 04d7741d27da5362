"""Feature maps of every kind, data for them, and the dense equivalent of weight space: explicit (n·p) × (n·p)
matrices."""

import math

import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_dense, to_linear_operator

from ovkgp.features import ORFF, FeatureMap, Nystrom, SpectralPair
from ovkgp.inference.model.mean_noise import OutputNoise, make_output_mean
from ovkgp.inference.model.observations import Observations
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    HelmholtzKernel,
    SimplexMatrix,
    TransformableKernel,
)


def rbf(d=2):
    kernel = RBFKernel(ard_num_dims=d)
    kernel.lengthscale = torch.linspace(0.7, 1.3, d)
    return kernel


def orff(kernel, num_frequencies=6, **options):
    return ORFF(kernel.double(), num_frequencies, random_state=3, **options)


class Delayed(torch.nn.Module):
    """Two copies of one process, the second delayed: a signature that is not even, and so a complex factor."""

    def map(self):
        def factor(w):
            phases = torch.stack([torch.zeros_like(w), -0.6 * w], -2)
            return torch.polar(torch.ones_like(phases), phases)

        return ORFF(SpectralPair(1, torch.special.ndtri, factor, even=False), 6, random_state=3)


class Parabolas(FeatureMap):
    """A custom map with two outputs, a generic operator and a parameter."""

    kernel, num_outputs, num_features = None, 2, 4

    def __init__(self):
        super().__init__()
        self.register_parameter("bend", torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64)))

    def forward(self, X):
        first, rest = X[:, :1], torch.zeros_like(X[:, :1])
        rows = [
            torch.cat([first**0, first, self.bend * first**2, rest], 1),
            torch.cat([rest, self.bend * first, first**0, first], 1),
        ]
        return to_linear_operator(torch.stack(rows, 1).flatten(0, 1))


LANDMARKS = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)

MAPS = {
    "scalar": lambda: orff(ScaleKernel(rbf())),
    "curl-free": lambda: orff(CurlFreeKernel(rbf())),
    "divergence-free": lambda: orff(DivergenceFreeKernel(rbf(3))),
    "helmholtz": lambda: orff(HelmholtzKernel(rbf(), MaternKernel(ard_num_dims=2))),
    "decomposable": lambda: orff(DecomposableKernel(rbf(), num_outputs=3, rank=1)),
    "decomposable rank < p": lambda: orff(DecomposableKernel(rbf(), output_matrix=SimplexMatrix(3))),
    "lmc": lambda: orff(
        DecomposableKernel(rbf(), num_outputs=2)
        + ScaleKernel(DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=2, rank=1))
    ),
    "complex": lambda: Delayed().map(),
    "delays": lambda: orff(TransformableKernel(rbf(), [Delay(0.0), Delay(0.4)])),
    "nystrom": lambda: Nystrom(DecomposableKernel(rbf(), num_outputs=2).double(), LANDMARKS),
    "nystrom field": lambda: Nystrom(CurlFreeKernel(rbf()).double(), LANDMARKS),
    "own": Parabolas,
}
NUM_DIMS = {name: 2 for name in MAPS} | {"divergence-free": 3, "complex": 1}
WHITENED = ("delays", "nystrom field", "own")
"""Maps that do not consist of scalar features and factors for p outputs."""

NOISES = ("shared", "per_output", "full", "known")


class Bumps(Mean):
    """A mean that is not linear in its parameter, the same for all outputs."""

    def __init__(self):
        super().__init__()
        self.register_parameter("speed", torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64)))

    def forward(self, x):
        return torch.sin(self.speed * x[:, 0])


class Case:
    """A feature map, a mean, a noise and data, with parameters away from their initial values."""

    def __init__(self, name, noise="per_output", missing=0.3, mean="constant", n=25, seed=0):
        self.features, d = MAPS[name](), NUM_DIMS[name]
        p = self.num_outputs = self.features.num_outputs
        generator = torch.Generator().manual_seed(seed)
        self.mean = make_output_mean(Bumps() if mean == "bumps" else mean, p).double()
        self.mean.set_num_dims(d)
        self.noise = OutputNoise("shared" if noise == "known" else noise, p)
        with torch.no_grad():
            for parameter in (*self.mean.parameters(), *self.noise.parameters()):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        X = 2 * torch.rand(n, d, generator=generator, dtype=torch.float64) - 1
        Y = torch.randn(n, p, generator=generator, dtype=torch.float64) + X[:, :1]
        Y[torch.rand(n, p, generator=generator) < missing] = torch.nan
        known = 0.05 + torch.rand(n, p, generator=generator, dtype=torch.float64) if noise == "known" else None
        self.data = Observations(X, Y, known).observed_rows()
        self.test = 2 * torch.rand(7, d, generator=generator, dtype=torch.float64) - 1

    def parameters(self):
        """All parameters, by name."""
        modules = {"features": self.features, "mean": self.mean, "noise": self.noise}
        named = {f"{key}.{name}": t for key, module in modules.items() for name, t in module.named_parameters()}
        if self.data.noise is not None:
            del named["noise.log_scale"]
        return {name: tensor for name, tensor in named.items() if tensor.requires_grad}

    # --- the dense equivalent ---------------------------------------------------------------------------------------

    def noise_matrix(self):
        """N between all entries, observed or not."""
        n, p = self.data.Y.shape
        if self.data.noise is not None:
            return torch.diag(self.data.noise.flatten())
        return torch.kron(torch.eye(n, dtype=torch.float64), self.noise.matrix().expand(p, p))

    def dense(self):
        """Φ, N and y − m at the observed entries."""
        observed = self.data.observed.flatten()
        residual = (self.data.Y - self.mean(self.data.X)).flatten()[observed]
        return to_dense(self.features(self.data.X))[observed], self.noise_matrix()[observed][:, observed], residual

    def dense_log_density(self, multiplier=1.0):
        Phi, N, residual = self.dense()
        C = Phi @ Phi.mT + multiplier * N
        square = residual @ torch.linalg.solve(C, residual)
        return -0.5 * (square + torch.logdet(C) + len(C) * math.log(2 * math.pi))

    def dense_posterior(self):
        """Mean (m·p,) without the prior's and covariance (m·p, m·p) of the latent function at the test points."""
        Phi, N, residual = self.dense()
        test, C = to_dense(self.features(self.test)), Phi @ Phi.mT + N
        cross = test @ Phi.mT
        return cross @ torch.linalg.solve(C, residual), test @ test.mT - cross @ torch.linalg.solve(C, cross.mT)
