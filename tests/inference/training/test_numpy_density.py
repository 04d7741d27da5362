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

from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training import numpy_density
from ovkgp.inference.training.initialization import initialize, register_data_priors, register_default_priors
from ovkgp.inference.training.log_posterior import LogDensity, LogPosterior
from ovkgp.inference.training.numpy_density import make_kernel_node
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, FullMatrix, IndependentKernel, MeanRegularizedMatrix

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


KERNELS = {
    "rbf": lambda: RBFKernel(),
    "matern 1/2": lambda: MaternKernel(nu=0.5, ard_num_dims=2),
    "matern 3/2": lambda: MaternKernel(nu=1.5),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=2),
    "rational quadratic": lambda: RQKernel(ard_num_dims=2),
    "scaled sum": lambda: ScaleKernel(RBFKernel(active_dims=(1,)) + ScaleKernel(MaternKernel(nu=1.5))),
}


def inputs(n=7):
    X = np.random.default_rng(0).standard_normal((n, 2))
    X[3] = X[1]  # a distance of zero off the diagonal
    return X


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_nodes_match_gpytorch(name):
    kernel, X = KERNELS[name]().double(), inputs()
    vector = ParameterVector(kernel)
    values = NumpyVector(vector)
    node, theta = make_kernel_node(kernel, X, values), values.values(vector.get())[0]
    K, backward = node.matrix(theta)
    with torch.no_grad():
        np.testing.assert_allclose(K, kernel(torch.from_numpy(X)).to_dense().numpy(), atol=1e-7)
    G = np.random.default_rng(1).standard_normal(K.shape)
    out = np.zeros(len(theta))
    backward(G + G.T, out)
    h = 1e-6
    steps = h * np.eye(len(theta))
    moved = [(node.matrix(theta + e)[0] - node.matrix(theta - e)[0]) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, [np.vdot(G + G.T, by) for by in moved], rtol=1e-6, atol=1e-8)
    half = np.zeros(len(theta))
    backward(2 * np.tril(G + G.T, -1) + np.diag(2 * G.diagonal()), half)  # only the symmetric part counts
    np.testing.assert_allclose(half, out, rtol=1e-9, atol=1e-10)


def test_kernel_node_rejects_other_kernels_and_many_rows(monkeypatch):
    for kernel in (PeriodicKernel(), RBFKernel(batch_shape=torch.Size([2]))):
        vector = NumpyVector(ParameterVector(kernel.double()))
        with pytest.raises(NoAnalyticForm):
            make_kernel_node(kernel, inputs(), vector)
    monkeypatch.setattr(numpy_density, "MAX_STORED_DIFFERENCES", 48)
    kernel = RBFKernel().double()
    with pytest.raises(NoAnalyticForm, match="rows"):
        make_kernel_node(kernel, inputs(), NumpyVector(ParameterVector(kernel)))


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
    densities = [prior.log_prob(read(module)).sum().item() for _, module, prior, read, _ in gp.named_priors()]
    assert value == pytest.approx(evidence().item() + sum(densities), rel=1e-9)


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
