"""Tests of `ovkgp.inference.training.numpy_evidence`."""

import numpy as np
import pytest
import torch
from density_cases import assert_backends_agree
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel
from pairwise import pairwise
from scipy.stats import multivariate_normal

from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.training.numpy_density import Radial
from ovkgp.inference.training.numpy_evidence import (
    MAX_SCIPY_ROWS,
    DenseEvidence,
    SeparableEvidence,
    SingleOutputEvidence,
    SumOfEvidences,
    _solve_with_cholesky,
    _solve_with_eigh,
    solve_and_invert,
)
from ovkgp.inference.training.numpy_values import (
    BasisMean,
    CholeskyOutputs,
    FreeOutputs,
    Reference,
    ScaledNode,
    Variances,
)
from ovkgp.kernels import DecomposableKernel, FullMatrix, IndependentKernel, find_record


@pytest.mark.parametrize("n", (1, 2, MAX_SCIPY_ROWS, MAX_SCIPY_ROWS + 1, 150))
def test_solve_and_invert_matches_numpy(n):
    rng = np.random.default_rng(n)
    root = rng.standard_normal((n, n))
    C, columns = root @ root.T + np.eye(n), rng.standard_normal((n, 2))
    x, inverse, logdet = solve_and_invert(C.copy(), columns)
    expected = np.linalg.inv(C)
    np.testing.assert_allclose(x, expected @ columns, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose((inverse + inverse.T) / 2, expected, rtol=1e-8, atol=1e-10)
    assert logdet == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-12) and inverse.flags.c_contiguous


@pytest.mark.parametrize("n", (3, MAX_SCIPY_ROWS + 1))
@pytest.mark.parametrize("value", (-1.0, np.nan, np.inf))
def test_solve_and_invert_rejects_indefinite_matrix(n, value):
    C = np.eye(n)
    C[1, 1] = value
    with pytest.raises(np.linalg.LinAlgError):
        solve_and_invert(C, np.ones((n, 1)))


P, N = 2, 6


class EvidenceCase:
    """A model of all kinds of pieces, with θ laid out by hand."""

    def __init__(self, full=True):
        rng = np.random.default_rng(0)
        self.X, self.Y = rng.standard_normal((N, 1)), rng.standard_normal((N, P))
        self.theta = np.array([0.8, 1.3, 0.5, -0.4, 0.3, 0.2, -0.6, -0.3, 0.25, 0.7, -0.2])
        layout = {"lengthscale": (0, (1, 1)), "scale": (1, (1,)), "W": (2, (P, 1)), "v": (4, (P,))}
        layout |= {"log_scale": (6, (P,)), "lower": (8, (1,)), "constant": (9, (P,))}
        ref = {name: Reference(shape, slice(i, i + int(np.prod(shape)))) for name, (i, shape) in layout.items()}
        self.kernel = ScaledNode(
            ref["scale"], Radial(find_record(RBFKernel()).profile, None, self.X, {"lengthscale": ref["lengthscale"]})
        )
        self.outputs = FreeOutputs(ref["W"], ref["v"])
        self.noise = CholeskyOutputs(ref["log_scale"], ref["lower"]) if full else Variances(ref["log_scale"], P)
        self.ref = ref

    def mean(self, index=None):
        return BasisMean(np.ones((N, 1)), [self.ref["constant"]], index)

    def data(self, holes=()):
        Y = torch.from_numpy(self.Y.copy())
        for row, column in holes:
            Y[row, column] = torch.nan
        return Observations(torch.from_numpy(self.X), Y)

    def oracle(self, theta, observed):
        C = np.kron(self.kernel.matrix(theta)[0], self.outputs.matrix(theta)[0])
        C += np.kron(np.eye(N), self.noise.matrix(theta)[0])
        center = np.tile(theta[9:11], N)
        kept = observed.ravel()
        return multivariate_normal.logpdf(self.Y.ravel()[kept], center[kept], C[np.ix_(kept, kept)])


def assert_evidence(evidence, oracle, theta):
    out, h = np.zeros(len(theta)), 1e-6
    assert evidence(theta, out) == pytest.approx(oracle(theta), rel=1e-10)
    steps = h * np.eye(len(theta))
    found = [(oracle(theta + e) - oracle(theta - e)) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, found, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("full", (False, True))
@pytest.mark.parametrize("holes", ((), ((0, 1), (3, 0)), ((0, 1), (2, 0), (5, 0))))
def test_dense_evidence_is_normal_density(full, holes):
    case = EvidenceCase(full)
    data = case.data(holes)
    evidence = DenseEvidence([(case.kernel, case.outputs)], case.noise, case.mean(), data)
    assert_evidence(evidence, lambda theta: case.oracle(theta, data.observed.numpy()), case.theta)


@pytest.mark.parametrize("full", (False, True))
def test_separable_evidence_is_normal_density(full):
    case = EvidenceCase(full)
    evidence = SeparableEvidence(case.kernel, case.outputs, case.noise, case.mean(), case.data())
    assert_evidence(evidence, lambda theta: case.oracle(theta, np.ones((N, P), dtype=bool)), case.theta)


def test_sum_of_evidences_is_normal_density():
    case = EvidenceCase(full=False)
    data = case.data()
    parts = []
    for a in range(P):
        noise = Variances(case.ref["log_scale"], P, a)
        parts.append(SingleOutputEvidence(case.kernel, noise, case.mean(a), data.output(a)))

    def oracle(theta):
        K = case.kernel.matrix(theta)[0]
        variances = np.exp(2 * theta[6:8])
        pairs = zip(case.Y.T, theta[9:11], variances, strict=True)
        return sum(multivariate_normal.logpdf(y, np.full(N, m), K + v * np.eye(N)) for y, m, v in pairs)

    assert_evidence(SumOfEvidences(parts), oracle, case.theta)


def test_cholesky_and_eigh_solutions_agree():
    rng = np.random.default_rng(0)
    K = EvidenceCase().kernel.matrix(EvidenceCase().theta)[0]
    t, rotated = np.array([0.0, 1e-9, 0.7, 30.0]), rng.standard_normal((N, 4))
    (logdet, alpha, by_K, traces), others = _solve_with_cholesky(K, t, rotated), _solve_with_eigh(K, t, rotated)
    assert logdet == pytest.approx(others[0], rel=1e-10)
    np.testing.assert_allclose(alpha, others[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose((by_K + by_K.T) / 2, others[2], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(traces, others[3], rtol=1e-8)


SEPARABLE = {
    "scalar": lambda: ScaleKernel(RBFKernel(ard_num_dims=2)),
    "icm": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2),
    "icm, full": lambda: ScaleKernel(
        DecomposableKernel(MaternKernel(nu=1.5, ard_num_dims=2), output_matrix=FullMatrix(3))
    ),
    "icm, singular": lambda: DecomposableKernel(ScaleKernel(RQKernel(ard_num_dims=2)), output_matrix=torch.ones(3, 3)),
    "independent": lambda: IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(3)]),
}
MEANS, NOISES = ("zero", "constant", "linear"), ("shared", "per_output", "full")


def data(p, n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.standard_normal((n, 2)))
    return X, X[:, :1] + torch.from_numpy(rng.standard_normal((n, p)))


def model(name, mean="constant", noise="per_output"):
    kernel = SEPARABLE[name]()
    return OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 15, random_state=0))


@pytest.mark.parametrize(("name", "noise", "mean"), pairwise(name=SEPARABLE, noise=NOISES, mean=MEANS))
def test_statistics_evidence_matches_torch(name, noise, mean):
    gp = model(name, mean, noise)
    is_tied = name == "independent" and noise == "full"  # then no longer separable
    assert_backends_agree(
        gp, gp.statistics(*data(1 if name == "scalar" else 3)), backend="torch" if is_tied else "numpy"
    )


def test_statistics_evidence_supports_missing_independent_outputs():
    X, Y = data(3)
    Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = torch.nan
    for name, backend in (("independent", "numpy"), ("icm", "torch")):
        gp = model(name)
        assert_backends_agree(gp, gp.statistics(X, Y), backend=backend)


def test_statistics_of_other_features_use_torch():
    X, Y = data(3)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=Nystrom(kernel, X[:9]))
    assert LogPosterior(gp, gp.statistics(X, Y)).backend == "torch"
    kernel = kernel + DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 9, random_state=0))
    assert LogPosterior(gp, gp.statistics(X, Y)).backend == "torch"


def test_statistics_of_full_noise_and_missing_outputs_are_rejected():
    X, Y = data(3)
    Y[3, 1] = torch.nan
    gp = model("icm", "zero", "full")
    with pytest.raises(ValueError, match="one noise and output matrix"):
        LogPosterior(gp, gp.statistics(X, Y))
