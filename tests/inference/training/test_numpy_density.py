"""Tests of `ovkgp.inference.training.numpy_density`."""

import numpy as np
import pytest
import torch
from density_cases import assert_backends_agree
from gp_cases import CosSinFeatures
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import (
    AdditiveKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior
from linear_operator.utils.warnings import NumericalWarning
from pairwise import pairwise
from scipy.stats import multivariate_normal, norm

from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.covariance_prior import CovariancePrior
from ovkgp.inference.training.initialization import initialize, register_data_priors, register_default_priors
from ovkgp.inference.training.log_posterior import LogDensity, LogPosterior
from ovkgp.inference.training.numpy_density import (
    MAX_SCIPY_ROWS,
    DenseEvidence,
    SeparableEvidence,
    SingleOutputEvidence,
    SumOfEvidences,
    _solve_with_cholesky,
    _solve_with_eigh,
    solve_and_invert,
)
from ovkgp.inference.training.numpy_outputs import BasisMean, CholeskyOutputs, FreeOutputs, Variances
from ovkgp.inference.training.numpy_values import Radial, Reference, ScaledKernel
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    FullMatrix,
    IndependentKernel,
    MeanRegularizedMatrix,
    find_record,
)

SCALARS = {
    "rbf": lambda: RBFKernel(),
    "rbf, a column each": lambda: ScaleKernel(RBFKernel(ard_num_dims=2)),
    "matern 1/2": lambda: ScaleKernel(MaternKernel(nu=0.5)),
    "matern 3/2, one column": lambda: ScaleKernel(MaternKernel(nu=1.5, active_dims=(1,))),
    "matern 5/2, swapped columns": lambda: MaternKernel(nu=2.5, ard_num_dims=2, active_dims=(1, 0)),
    "rational quadratic": lambda: ScaleKernel(RQKernel()),
    "rational quadratic, a column each": lambda: RQKernel(ard_num_dims=2),
    "sum": lambda: ScaleKernel(RBFKernel(active_dims=(0,))) + ScaleKernel(MaternKernel(nu=1.5)),
    "scaled sum": lambda: ScaleKernel(RBFKernel() + ScaleKernel(RQKernel(active_dims=(1,)))),
    "interval": lambda: ScaleKernel(
        RBFKernel(lengthscale_constraint=Interval(0.1, 4.0)), outputscale_constraint=GreaterThan(0.1)
    ),
}
STRUCTURES = {
    "scalar": lambda: ScaleKernel(MaternKernel(ard_num_dims=2)),
    "icm": lambda: DecomposableKernel(RBFKernel(), num_outputs=3, rank=2),
    "icm, full": lambda: ScaleKernel(DecomposableKernel(MaternKernel(nu=1.5), output_matrix=FullMatrix(3))),
    "lmc": lambda: (
        DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
        + ScaleKernel(DecomposableKernel(MaternKernel(active_dims=(0,)), num_outputs=3))
    ),
    "independent": lambda: IndependentKernel([ScaleKernel(RBFKernel()), MaternKernel(nu=1.5), RQKernel()]),
}
MATRICES = {
    "known": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=torch.ones(3, 3) + torch.eye(3)),
    "known, singular": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=torch.ones(3, 3)),
    "coupled": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=MeanRegularizedMatrix(3)),
    "twice scaled": lambda: ScaleKernel(ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=3))),
    "scaled lmc": lambda: ScaleKernel(STRUCTURES["lmc"]()),
    "many outputs": lambda: DecomposableKernel(RBFKernel(), num_outputs=7, rank=3),
    "one output": lambda: DecomposableKernel(RBFKernel(), num_outputs=1),
}
CASES = [("zero", False), ("constant", True), ("linear", False), ("linear", True)]
NOISES = ("shared", "per_output", "full", "fixed", "known")


def data(p, missing, n=15, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    Y = X[:, :1] + rng.standard_normal((n, p))
    if missing:
        Y[rng.random((n, p)) < 0.25] = np.nan
        Y[:1] = 0.3
    return torch.from_numpy(X), torch.from_numpy(Y), torch.from_numpy(rng.uniform(0.1, 0.5, (n, p)))


@pytest.mark.parametrize(("name", "noise", "case"), pairwise(name=STRUCTURES, noise=NOISES, case=CASES))
def test_numpy_density_matches_torch(name, noise, case):
    mean, missing = case
    kernel = STRUCTURES[name]()
    p = 1 if name == "scalar" else 3
    X, Y, known = data(p, missing)
    gp = OperatorValuedGP(kernel, mean, {"fixed": 0.2, "known": "per_output"}.get(noise, noise))
    lp = assert_backends_agree(gp, X, Y, known if noise == "known" else None)
    assert lp.density.numpy_density.priors is not None  # all default priors have a NumPy form


@pytest.mark.parametrize("name", SCALARS)
def test_numpy_density_of_scalar_kernels_matches_torch(name):
    X, Y, _ = data(1, False)
    assert_backends_agree(OperatorValuedGP(SCALARS[name]()), X, Y)


@pytest.mark.parametrize("missing", (False, True))
@pytest.mark.parametrize("name", MATRICES)
def test_numpy_density_of_output_matrices_matches_torch(name, missing):
    kernel = MATRICES[name]()
    X, Y, _ = data({"many outputs": 7, "one output": 1}.get(name, 3), missing)
    assert_backends_agree(OperatorValuedGP(kernel, noise="full"), X, Y)


def test_numpy_density_of_many_rows_matches_torch():
    X, Y, _ = data(3, False, n=90)
    assert_backends_agree(OperatorValuedGP(STRUCTURES["icm"]()), X, Y)
    assert_backends_agree(OperatorValuedGP(STRUCTURES["scalar"]()), X, Y[:, :1])


@pytest.mark.parametrize("noise", ("shared", "per_output", "full", 0.2))
def test_numpy_density_of_missing_outputs_by_kronecker_products_matches_torch(noise):
    X, Y, _ = data(3, True)
    gp = OperatorValuedGP(STRUCTURES["icm"](), noise=noise, strategy="kronecker_missing")
    assert_backends_agree(gp, X, Y)


@pytest.mark.parametrize("strategy", ("dense", "kronecker"))
def test_numpy_density_supports_named_exact_strategies(strategy):
    X, Y, _ = data(3, False)
    assert_backends_agree(OperatorValuedGP(STRUCTURES["icm"](), strategy=strategy), X, Y)


def test_numpy_density_of_repeated_and_single_rows_matches_torch():
    X, Y, _ = data(3, False)
    assert_backends_agree(OperatorValuedGP(STRUCTURES["icm"]()), torch.cat([X, X]), torch.cat([Y, Y]))
    assert_backends_agree(OperatorValuedGP(STRUCTURES["icm"](), "zero"), X[:1], Y[:1])


def test_numpy_density_of_one_output_per_row_matches_torch():
    X, Y, _ = data(3, False)
    Y[torch.arange(15), torch.arange(15) % 3] = torch.nan
    Y[torch.arange(15), (torch.arange(15) + 1) % 3] = torch.nan
    assert_backends_agree(OperatorValuedGP(STRUCTURES["lmc"](), noise="full"), X, Y)


def test_numpy_density_with_fixed_parts_matches_torch():
    X, Y, _ = data(3, False)
    gp = OperatorValuedGP(STRUCTURES["icm"](), CosSinFeatures(3), "shared")
    gp.mean.requires_grad_(False)
    gp.kernel.output_module.loadings.requires_grad_(False)
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    assert len(assert_backends_agree(gp, X, Y)) == 4


def test_numpy_density_with_other_priors_matches_torch():
    X, Y, _ = data(3, False)
    kernel = DecomposableKernel(
        RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0), lengthscale_constraint=GreaterThan(0.1)), num_outputs=3
    )
    lp = assert_backends_agree(OperatorValuedGP(kernel), X, Y)
    assert lp.density.numpy_density.priors is None


def test_numpy_density_with_custom_or_no_priors_matches_torch():
    X, Y, _ = data(1, False)
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=NormalPrior(1.0, 0.3)), outputscale_prior=LogNormalPrior(0.3, 0.8))
    lp = assert_backends_agree(OperatorValuedGP(kernel), X, Y, priors="given")
    assert lp.density.numpy_density.priors is not None
    register_default_priors(kernel, 2)
    assert_backends_agree(OperatorValuedGP(kernel), X, Y)


def test_singular_matrix_falls_back_to_torch():
    X, Y, _ = data(1, False)
    gp = OperatorValuedGP(ScaleKernel(RBFKernel()), "zero", 1e-17)
    lp = LogPosterior(gp, X, Y)
    u = lp.initial_point() + np.array([0.0, 8.0])  # lengthscales so long that the Gram matrix is singular to rounding
    with pytest.raises(np.linalg.LinAlgError):
        lp.density.numpy_density(u)
    with pytest.warns(NumericalWarning, match="positive definite"):
        value, gradient = lp(u)
        other, by_other = LogPosterior(gp, X, Y, backend="torch")(u)
    assert np.isfinite(value) and value == other and np.array_equal(gradient, by_other)


# --- what is not in the tables --------------------------------------------------------------------------------------


class OwnKernel(RBFKernel):
    """A subclass with a custom `forward`."""

    def forward(self, x1, x2, **params):
        return 0.5 * super().forward(x1, x2, **params)


class OwnGP(OperatorValuedGP):
    """A model that means something else by its evidence."""

    def evidence(self, X, Y=None, noise=None):
        whole = super().evidence(X, Y, noise)
        return lambda: 0.5 * whole()


OTHERS = {
    "subclass": lambda: ScaleKernel(OwnKernel()),
    "periodic": lambda: ScaleKernel(PeriodicKernel()),
    "product": lambda: ProductKernel(RBFKernel(), PeriodicKernel()),
    "sum with another": lambda: AdditiveKernel(RBFKernel(), PeriodicKernel()),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(ard_num_dims=2)),
    "constraint": lambda: RBFKernel(lengthscale_constraint=LessThan(5.0)),
    "transform": lambda: RBFKernel(lengthscale_constraint=Interval(0.1, 5.0, transform=_arctan, inv_transform=_tan)),
}


def _arctan(x):
    return 0.5 + x.atan() / torch.pi


def _tan(y):
    return (torch.pi * (y - 0.5)).tan()


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels_use_torch(name):
    kernel = OTHERS[name]()
    X, Y, _ = data(2 if name == "curl-free" else 1, False)
    assert_backends_agree(OperatorValuedGP(kernel), X, Y, backend="torch")


def test_other_models_means_strategies_and_features_use_torch():
    X, Y, _ = data(3, False)
    kernel = STRUCTURES["icm"]()
    assert_backends_agree(OwnGP(kernel), X, Y, backend="torch")
    assert_backends_agree(OperatorValuedGP(kernel, CosSinFeatures(3)), X, Y, backend="torch")
    assert LogPosterior(OperatorValuedGP(kernel, strategy="iterative"), X, Y).backend == "torch"
    flat = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
    for features in (ORFF(flat, 5, random_state=0), Nystrom(flat, X[:5])):
        assert_backends_agree(OperatorValuedGP(flat, features=features), X, Y, backend="torch")
    independent = IndependentKernel([RBFKernel(ard_num_dims=2), RBFKernel(ard_num_dims=2), RBFKernel(ard_num_dims=2)])
    assert_backends_agree(
        OperatorValuedGP(independent, features=ORFF(independent, 5, random_state=0)), X, Y, backend="torch"
    )


@pytest.mark.parametrize("priors", [True, False])
@pytest.mark.parametrize("noise", ["shared", "per_output", "full", "fixed"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_training_objective_matches_torch(name, noise, priors):
    X, Y, _ = data(1 if name == "scalar" else 3, missing=False)
    gp = OperatorValuedGP(STRUCTURES[name](), "linear", 0.2 if noise == "fixed" else noise)
    observed = gp.observe(X, Y)
    if priors:
        register_data_priors(gp, X, Y)
    start = initialize(gp, observed)
    vector, evidence = ParameterVector(gp, start.bounds, start.scales), gp.evidence(X, Y)
    fast, slow = (
        LogDensity(gp, evidence, observed, vector, jacobian=False, backend=backend) for backend in ("auto", "torch")
    )
    assert (fast.backend, slow.backend) == ("numpy", "torch")
    vector.load(start.values[0])
    u = vector.get() + 0.1 * np.random.default_rng(0).standard_normal(len(vector))
    (value, gradient), (expected, by_torch) = fast(u), slow(u)
    assert value == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(gradient, by_torch, rtol=1e-7, atol=1e-8 * np.abs(by_torch).max())
    densities = [density_of_logs(prior, read(module)) for _, module, prior, read, _ in gp.named_priors()]
    assert value == pytest.approx(evidence().item() + sum(densities), rel=1e-9)


def density_of_logs(prior, value):
    """Log density of a default prior, of the logarithm of positive values (of variances, for a covariance)."""
    value = value.detach()
    if isinstance(prior, LogNormalPrior):
        return norm(prior.loc.numpy(), prior.scale.numpy()).logpdf(value.log().numpy()).sum()
    log_variances = value.square().sum(-1).log().sum().item() if isinstance(prior, CovariancePrior) else 0.0
    return prior.log_prob(value).sum().item() + log_variances


def test_given_prior_is_a_density_of_the_value_and_a_default_one_of_its_logarithm():
    X, Y, _ = data(1, missing=False)
    optima = {}
    for is_default in (True, False):
        gp = OperatorValuedGP(ScaleKernel(RBFKernel(ard_num_dims=2)), mean="zero", noise=0.1)
        prior = LogNormalPrior(torch.tensor(1.0).double(), torch.tensor(1e-3).double())
        prior.is_default = is_default
        gp.kernel.register_prior("outputscale_prior", prior, lambda m: m.outputscale)
        gp.fit(X, Y, tolerance=1e-12)
        optima[is_default] = gp.kernel.outputscale.log().item()
    # the tight prior determines the optimum: its location, or loc − scale² as a density of the value
    assert optima[True] - optima[False] == pytest.approx(1e-6, rel=0.05)


def test_training_objective_includes_priors_on_fixed_parameters():
    X, Y, _ = data(1, missing=False)
    gp = OperatorValuedGP(STRUCTURES["scalar"](), noise="shared")
    register_data_priors(gp, X, Y)
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    vector, evidence = ParameterVector(gp), gp.evidence(X, Y)
    fast, slow = (
        LogDensity(gp, evidence, gp.observe(X, Y), vector, jacobian=False, backend=name) for name in ("auto", "torch")
    )
    assert fast.backend == "numpy" and fast(vector.get())[0] == pytest.approx(slow(vector.get())[0], rel=1e-10)


def test_training_with_two_priors_on_one_parameter_uses_torch():
    X, Y, _ = data(1, missing=False)
    gp = OperatorValuedGP(STRUCTURES["scalar"](), noise="shared")
    for name in ("first", "second"):
        gp.kernel.register_prior(name, LogNormalPrior(0.0, 1.0), lambda m: m.outputscale)
    assert gp.fit(X, Y).fit_report_.converged


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
        self.kernel = ScaledKernel(
            ref["scale"], Radial(find_record(RBFKernel()).profile, None, self.X, {"lengthscale": ref["lengthscale"]})
        )
        self.outputs = FreeOutputs(ref["W"], ref["v"])
        self.noise = CholeskyOutputs(ref["log_scale"], ref["lower"]) if full else Variances(ref["log_scale"], P)
        self.ref = ref

    def mean(self, index=None):
        constant = self.ref["constant"]
        return BasisMean(np.ones((N, 1)), [constant if index is None else constant.column(index)])

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
    observed = case.data(holes)
    evidence = DenseEvidence([(case.kernel, case.outputs)], case.noise, case.mean(), observed)
    assert_evidence(evidence, lambda theta: case.oracle(theta, observed.observed.numpy()), case.theta)


@pytest.mark.parametrize("full", (False, True))
def test_separable_evidence_is_normal_density(full):
    case = EvidenceCase(full)
    evidence = SeparableEvidence(case.kernel, case.outputs, case.noise, case.mean(), case.data())
    assert_evidence(evidence, lambda theta: case.oracle(theta, np.ones((N, P), dtype=bool)), case.theta)


def test_sum_of_evidences_is_normal_density():
    case = EvidenceCase(full=False)
    observed = case.data()
    parts = []
    for a in range(P):
        noise = Variances(case.ref["log_scale"].column(a), 1)
        parts.append(SingleOutputEvidence(case.kernel, noise, case.mean(a), observed.output(a)))

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


def feature_model(name, mean="constant", noise="per_output"):
    kernel = SEPARABLE[name]()
    return OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 15, random_state=0))


@pytest.mark.parametrize(
    ("name", "noise", "mean"), pairwise(name=SEPARABLE, noise=NOISES[:3], mean=("zero", "constant", "linear"))
)
def test_statistics_evidence_matches_torch(name, noise, mean):
    gp = feature_model(name, mean, noise)
    is_tied = name == "independent" and noise == "full"  # then no longer separable
    X, Y, _ = data(1 if name == "scalar" else 3, False, n=80)
    assert_backends_agree(gp, gp.statistics(X, Y), backend="torch" if is_tied else "numpy")


def test_statistics_evidence_supports_missing_independent_outputs():
    X, Y, _ = data(3, False, n=80)
    Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = torch.nan
    for name, backend in (("independent", "numpy"), ("icm", "torch")):
        gp = feature_model(name)
        assert_backends_agree(gp, gp.statistics(X, Y), backend=backend)


def test_statistics_of_other_features_use_torch():
    X, Y, _ = data(3, False, n=80)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=Nystrom(kernel, X[:9]))
    assert LogPosterior(gp, gp.statistics(X, Y)).backend == "torch"
    kernel = kernel + DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 9, random_state=0))
    assert LogPosterior(gp, gp.statistics(X, Y)).backend == "torch"


def test_statistics_of_full_noise_and_missing_outputs_are_rejected():
    X, Y, _ = data(3, False, n=80)
    Y[3, 1] = torch.nan
    gp = feature_model("icm", "zero", "full")
    with pytest.raises(ValueError, match="one noise and output matrix"):
        LogPosterior(gp, gp.statistics(X, Y))
