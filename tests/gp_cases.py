"""Models of every kind with data for them, and the matrices that the dense twin of `posterior_oracle` asks for.

Hyperparameters differ from their initial values, prior means are nonzero unless requested, and 30 % of the outputs may be missing.
"""

import numpy as np
import torch
from gpytorch.kernels import LCMKernel, MaternKernel, MultitaskKernel, RBFKernel, ScaleKernel
from gpytorch.means import Mean
from linear_operator import to_dense
from oracles import dense, operator_valued, randomize
from posterior_oracle import DensePosterior, noise_matrix

from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.kernels import DecomposableKernel

LOADINGS = torch.tensor([1.0, -0.6, 0.3], dtype=torch.float64)  # rounded to float32, W Wᵀ would not be of rank 1

KERNELS = {
    "icm, singular": lambda: DecomposableKernel(RBFKernel(), output_matrix=LOADINGS.outer(LOADINGS)),
    "icm, rank 2": lambda: operator_valued("decomposable"),
    "lmc": lambda: operator_valued("lmc"),
    "independent": lambda: operator_valued("independent"),
    "curl-free": lambda: operator_valued("curl_free"),
    "divergence-free": lambda: operator_valued("divergence_free_matern"),
    "helmholtz": lambda: operator_valued("helmholtz"),
    "transformable": lambda: operator_valued("transformable"),
    "delays": lambda: operator_valued("delays"),
    "function-valued": lambda: operator_valued("function_valued_grid"),
    "function-valued vector": lambda: operator_valued("function_valued_vector"),
    "blockwise": lambda: operator_valued("blockwise_field"),
    "scalar": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "gpytorch multitask": lambda: MultitaskKernel(RBFKernel(), num_tasks=2, rank=1),
    "gpytorch lcm": lambda: LCMKernel([RBFKernel(), MaternKernel()], num_tasks=2, rank=1),
}
ONE_COMPONENT = ("icm, singular", "icm, rank 2", "function-valued", "function-valued vector", "gpytorch multitask")
"""Separable, one component, several outputs: two eigendecompositions where the outputs are complete."""

SEPARABLE = (*ONE_COMPONENT, "lmc", "independent", "scalar", "gpytorch lcm")

NOISES = ("float", "vector", "matrix", "known")
MEANS = ("zero", "constant", "linear", "gpytorch")


class CosSinFeatures(Mean):
    """A GPyTorch mean with a value for each output, not linear in its parameter."""

    def __init__(self, num_outputs):
        super().__init__()
        self.shifts = torch.arange(num_outputs).double()
        self.register_parameter("speed", torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64)))

    def forward(self, x):
        return torch.sin(self.speed * x[:, :1] + self.shifts)


def normal(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def noise_of(kind, p, level, generator):
    """A noise that is nowhere below `level`, as the constructor takes it; "known" gives that of the model, not in use."""
    root = normal(generator, p, p)
    return {
        "float": level,
        "vector": level * (1 + torch.arange(p)),
        "matrix": level * (root @ root.mT + torch.eye(p)),
        "known": 7.0,
    }.get(kind, kind)


class Problem:
    """A model and data: `gp`, `X`, `Y`, `known` (None, or the variances (n, p)), and test inputs `test` (m, d).

    Args:
        name: of the kernel.
        noise: one of `NOISES` (fixed), or "shared", "per_output", "full" (trained).
        missing: fraction of missing outputs.
        mean: one of `MEANS`.
        features: "orff", "nystrom" or None.
        level: the smallest noise variance.
    """

    def __init__(
        self,
        name,
        noise="vector",
        missing=0.3,
        mean="constant",
        features=None,
        strategy="auto",
        n=14,
        m=5,
        level=1e-3,
        seed=0,
        num_frequencies=7,
    ):
        generator = torch.Generator().manual_seed(seed)
        self.name, self.mean_name = name, mean
        kernel = randomize(KERNELS[name]().double(), seed)
        probe = torch.zeros(1, 2, dtype=torch.float64)
        p = self.num_outputs = kernel.num_outputs_per_input(probe, probe)
        landmarks = normal(generator, 6, 2)
        maps = {
            None: lambda: None,
            "orff": lambda: ORFF(kernel, num_frequencies, num_dims=2, random_state=seed),
            "nystrom": lambda: Nystrom(kernel, landmarks),
        }
        mean_given = CosSinFeatures(p) if mean == "gpytorch" else mean
        given = noise_of(noise, p, level, generator)
        self.gp = OperatorValuedGP(kernel, mean_given, given, features=maps[features](), strategy=strategy)
        self.gp.mean.set_num_dims(2)
        with torch.no_grad():
            for parameter in (*self.gp.mean.parameters(), *self.gp.noise_model.parameters()):
                parameter.add_(0.4 * normal(generator, *parameter.shape))
        self.X, self.test = normal(generator, n, 2), normal(generator, m, 2)
        self.Y = 0.7 * normal(generator, n, p) + self.X[:, :1]
        hidden = torch.randperm(n * p, generator=generator)[: round(missing * n * p)]
        self.Y.view(-1)[hidden] = torch.nan
        self.known = level * (1 + normal(generator, n, p).square()) if noise == "known" else None

    def condition(self, **options):
        return self.gp.condition(self.X, self.Y, noise=self.known, **options)

    def log_evidence(self):
        return self.gp.log_evidence(self.X, self.Y, noise=self.known)

    @property
    def strategy(self):
        """Name of the selected strategy."""
        data = validate_observations(self.X, self.Y, self.num_outputs, self.known)
        return select_strategy(self.gp.model, data, self.gp.strategy).name

    # --- for the dense twin --------------------------------------------------------------------------------------

    def prior_covariance(self, X, Z):
        """K(X, Z), or that of the features, as an explicit matrix."""
        features = self.gp.features
        if features is None:
            return dense(self.gp.kernel, X, Z)
        if isinstance(features, Nystrom):
            left, right = (dense(self.gp.kernel, x, features.landmarks) for x in (X, Z))
            within = dense(self.gp.kernel, features.landmarks)
            return left @ np.linalg.pinv(within, rcond=1e-10, hermitian=True) @ right.T
        with torch.no_grad():
            return to_dense(features(X)).numpy() @ to_dense(features(Z)).numpy().T

    def prior_mean(self, X):
        X, p = X.numpy(), self.num_outputs
        values = {name: value.detach().numpy() for name, value in self.gp.mean.named_parameters()}
        return {
            "zero": lambda: np.zeros((len(X), p)),
            "constant": lambda: np.tile(values["constant"], (len(X), 1)),
            "linear": lambda: values["constant"] + X @ values["slopes"],
            "gpytorch": lambda: np.sin(values["mean.speed"] * X[:, :1] + np.arange(p)),
        }[self.mean_name]()

    def noise_matrix(self):
        noise = self.gp.noise.detach() if self.known is None else self.known
        return noise_matrix(noise, *self.Y.shape)

    def oracle(self):
        K = self.prior_covariance(self.X, self.X)
        return DensePosterior(K, self.noise_matrix(), self.prior_mean(self.X), self.Y.numpy())

    def expected(self):
        """Mean (m, p) and whole covariance (m·p, m·p) of the latent function at the test points, and the evidence."""
        oracle, cross = self.oracle(), self.prior_covariance(self.test, self.X)
        prior = self.prior_covariance(self.test, self.test)
        return oracle.mean(cross, self.prior_mean(self.test)), oracle.covariance(cross, prior), oracle.evidence


def close(actual, expected, rtol=1e-8):
    """Equal up to `rtol` of the largest entry."""
    actual, expected = (np.asarray(a.detach() if torch.is_tensor(a) else a) for a in (actual, expected))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=rtol * np.abs(expected).max())
