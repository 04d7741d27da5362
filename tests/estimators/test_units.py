"""Units: regressors are equivariant under X → cX + d and Y → aY + b, and all that they report is in original units."""

import math
import warnings

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, LogNormalPrior

import ovkgp
from ovkgp import FunctionGPRegressor, GPRegressor, InfiniteQuantileRegressor, ORFFRidge, OVKRidge
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.initialization import initialize
from ovkgp.kernels import DecomposableKernel, DivergenceFreeKernel, IndependentKernel

NEW = np.linspace(0.3, 9.7, 7)[:, None]
TIGHT, TRAINED = 1e-6, 3e-3
"""Tolerances relative to the scale of the outputs: of the same training in other units, and of two trainings."""


def curve(n=80, p=1, seed=0):
    """Return y = 100 (2 sin x + 5 + noise); further outputs are shifted."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 10, n))[:, None]
    return X, 100 * (2 * np.sin(X + np.arange(p)) + 5 + 0.14 * rng.normal(size=(n, p)))


def field(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.stack([-np.sin(X[:, 1]), np.sin(X[:, 0])], 1) + 0.05 * rng.normal(size=(n, 2))


def values(model):
    return {row[:3]: float(row.draws.mean()) for row in model.list_parameters()}


def fit(model, X, Y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return model.fit(X, Y)


def assert_equivariant(make, X, Y, new, tolerance, *, a=1e3, b=-50.0, c=1e-2, d=3.0):
    """Check means, standard deviations, intervals, distribution functions and log evidence."""
    one, other = fit(make(), X, Y), fit(make(), c * X + d, a * Y + b)
    scale, moved = np.std(Y), c * new + d
    found = [(one.predict(new), (other.predict(moved) - b) / a)]
    if hasattr(one, "predict_interval"):
        ends = zip(one.predict_interval(new, 0.8), other.predict_interval(moved, 0.8), strict=True)
        found += [(mine, (yours - b) / a) for mine, yours in ends]
    if isinstance(one, GPRegressor):
        found.append((one.predict(new, return_std=True)[1], other.predict(moved, return_std=True)[1] / a))
        levels = np.reshape(one.predict(new) + 0.1 * scale, (len(new), -1))
        mine, yours = one.predictive(new).cdf(levels), other.predictive(moved).cdf(a * levels + b)
        np.testing.assert_allclose(mine, yours, atol=10 * tolerance)
        evidence = other.log_evidence_ + np.isfinite(Y).sum() * math.log(a)
        assert evidence == pytest.approx(one.log_evidence_, abs=0.05)
    for mine, yours in found:
        np.testing.assert_allclose(yours, mine, rtol=0, atol=tolerance * scale)
    return one, other


# --- kernel objects -------------------------------------------------------------------------------------------------


def test_kernel_objects_agree_with_names():
    X, Y = curve()
    options = (
        {"kernel": "independent"},
        {"base_kernel": MaternKernel(2.5)},
        {"kernel": ScaleKernel(MaternKernel(2.5))},
    )
    named, *objects = (
        GPRegressor(hyperparameters="evidence", random_state=0, **one).fit(X, Y[:, 0]) for one in options
    )
    expected = {row.parameter: row.draws.item() for row in named.list_parameters()}
    for model in objects:
        found = {row.parameter: row.draws.item() for row in model.list_parameters()}
        assert found == pytest.approx(expected, rel=TRAINED)
        for mine, yours in zip(model.predict(NEW, return_std=True), named.predict(NEW, return_std=True), strict=True):
            np.testing.assert_allclose(mine, yours, rtol=0, atol=1e-3 * Y.std())
        assert model.log_evidence_ == pytest.approx(named.log_evidence_, abs=0.01)
        assert "original units" in model.summary() and "standardized" not in model.summary()
        assert model.to_arviz()["posterior"].attrs["units"] == "original units"


class Wavy(Kernel):
    """A kernel without a record: a parameter of unknown role, in the units of the inputs."""

    has_lengthscale = True

    def __init__(self):
        super().__init__()
        self.register_parameter("rate", torch.nn.Parameter(torch.tensor(0.3)))

    def forward(self, x1, x2, diag=False, **params):
        k = RBFKernel.forward(self, x1, x2, diag=diag, **params)
        lag = (x1 - x2)[..., 0] if diag else x1[..., 0].unsqueeze(-1) - x2[..., 0].unsqueeze(-2)
        return k * torch.cos(self.rate * lag)


OBJECTS = {
    "scaled": lambda: ScaleKernel(MaternKernel(2.5)),
    "sum": lambda: ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(1.5)),
    "product": lambda: ScaleKernel(RBFKernel() * MaternKernel(2.5)),
    "periodic": lambda: ScaleKernel(RBFKernel() * PeriodicKernel()),
    "decomposable": lambda: DecomposableKernel(MaternKernel(2.5), num_outputs=2),
    "independent": lambda: IndependentKernel([ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel(2.5))]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_kernel_objects_are_equivariant(name):
    p = 2 if name in ("decomposable", "independent") else 1
    one, other = assert_equivariant(
        lambda: GPRegressor(OBJECTS[name](), random_state=0), *curve(p=p), NEW, TIGHT, a=1e3, c=10.0
    )
    powers = {"lengthscale": 10.0, "signal std": 1e3, "noise std": 1e3}
    mine, yours = values(one), values(other)
    checked = {key: value for key, value in mine.items() if key[0] in powers}
    assert {"noise std"} < {key[0] for key in checked} or name == "sum"
    if name in ("scaled", "decomposable", "independent"):  # the others have flat directions
        assert yours.keys() == mine.keys()
        for key, value in checked.items():
            assert yours[key] == pytest.approx(powers[key[0]] * value, rel=1e-5), key


def test_default_values_of_an_object_are_no_initial_values_in_original_units():
    """Drawn from GPyTorch's default values, which are then the best initial point if they are read in original units."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, 6, 60))[:, None]
    K = 0.69 * np.exp(-0.5 * np.square((X - X.T) / 0.69))
    y = np.linalg.cholesky(K + 1e-8 * np.eye(60)) @ rng.normal(size=60) + math.sqrt(0.1) * rng.normal(size=60)
    make = lambda: GPRegressor(ScaleKernel(RBFKernel()), random_state=0)  # noqa: E731
    one, other = assert_equivariant(make, X, y, X[::9] + 0.01, 1e-10)
    assert one.fit_report_.evaluations == other.fit_report_.evaluations


@pytest.mark.parametrize("lengthscale", [0.02, 3.0])
def test_initial_states_keep_given_values_and_convert_defaults(lengthscale):
    """Default values are those of standardized data; a value that a user set is used as it is."""
    kernel = DecomposableKernel(MaternKernel(2.5), num_outputs=2)
    kernel.base_kernel.lengthscale = lengthscale
    (X, Y), states = (torch.from_numpy(part) for part in curve(p=2)), {}
    for a in (1.0, 1e3):
        gp = OperatorValuedGP(kernel)
        data = gp.observe(X, a * Y).double()
        before = {name: value.clone() for name, value in gp.state_dict().items()}
        first, second = initialize(gp, data).initial_states(gp, data, "auto")
        assert all(torch.equal(value, before[name]) for name, value in gp.state_dict().items())
        gp.load_state_dict(second)
        assert gp.kernel.base_kernel.lengthscale.item() == pytest.approx(lengthscale, rel=1e-6)
        np.testing.assert_allclose(gp.noise.detach(), 0.1 * a**2 * Y.var(0, correction=0), rtol=0.05)
        assert torch.equal(second["mean.constant"], first["mean.constant"])
        states[a] = gp.kernel.output_matrix.detach()
    np.testing.assert_allclose(states[1e3], 1e6 * states[1.0], rtol=1e-6)
    only = initialize(gp, data).initial_states(gp, data, "current")
    assert len(only) == 1 and only[0].keys() == second.keys()


def test_vector_field_object_is_equivariant_under_units_of_outputs():
    make = lambda: GPRegressor(ScaleKernel(DivergenceFreeKernel(RBFKernel(), num_dims=2)), random_state=0)  # noqa: E731
    assert_equivariant(make, *field(), field(5, seed=1)[0], TIGHT, c=1.0, d=0.0)


def test_kernel_object_without_roles_is_in_original_units():
    """The rate is trained from its present value, in the units of X, and shown as it is."""
    X, Y = curve()
    model = fit(GPRegressor(ScaleKernel(Wavy()), random_state=0), X, Y)
    assert values(model)["rate", "y0", ""] == pytest.approx(model.gp_.kernel.base_kernel.rate.item())
    assert (model.scaling_.input_scale == 1).all() and (model.scaling_.output_scale == 1).all()


@pytest.mark.parametrize("where", ["kernel", "base_kernel"])
def test_given_prior_is_in_original_units_and_not_cut_by_bounds(where):
    X, Y = curve()
    prior = LogNormalPrior(math.log(40_000), 0.01)
    model = GPRegressor(**{where: ScaleKernel(MaternKernel(2.5), outputscale_prior=prior)}, random_state=0).fit(X, Y)
    found = [value for (name, *_), value in values(model).items() if name.endswith("signal std")]
    assert min(abs(math.log(value**2 / 40_000)) for value in found) < 0.05


@pytest.mark.parametrize("a", [1e-4, 1.0, 1e4])
def test_given_prior_scales_with_the_units(a):
    X, Y = curve()
    kernel = ScaleKernel(
        MaternKernel(2.5, lengthscale_prior=GammaPrior(400.0, 100.0)),
        outputscale_prior=LogNormalPrior(math.log(1e10 * a**2), 0.01),  # far beyond the default bounds of 1e-8 and 1e4
    )
    found = values(fit(GPRegressor(kernel, random_state=0), X, a * Y))
    assert found["signal std", "y0", ""] / a == pytest.approx(1e5, rel=0.02)
    assert found["lengthscale", "", "x0"] == pytest.approx(4.0, rel=0.5)


def test_initialize_has_no_bounds_for_parameters_with_given_priors():
    kernel = ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0))).double()
    gp = OperatorValuedGP(kernel)
    X, Y = (torch.from_numpy(part) for part in curve())
    bounds = initialize(gp, gp.observe(X, Y)).bounds
    assert any("outputscale" in name for name in bounds) and not any("lengthscale" in name for name in bounds)
    gp.register_priors(gp.observe(X, Y))  # default ones
    assert initialize(gp, gp.observe(X, Y)).bounds.keys() == bounds.keys()


def test_fixed_hyperparameters_keep_the_values_of_a_base_kernel():
    X, Y = curve()
    base = MaternKernel(2.5)
    base.lengthscale = 3.25
    model = GPRegressor("independent", base_kernel=base, hyperparameters="fixed").fit(X, Y)
    assert values(model)["lengthscale", "y0", "x0"] == pytest.approx(3.25)
    assert values(model)["signal std", "y0", ""] == pytest.approx(Y.std(), rel=0.1)


@pytest.mark.parametrize("kernel", ["independent", ScaleKernel(MaternKernel(2.5))])
def test_active_bound_is_reported(kernel, tmp_path):
    X, _ = curve(30)
    with pytest.warns(FitWarning, match=r"noise std \(y0\) is at its lower bound"):
        model = GPRegressor(kernel, random_state=0).fit(X, np.full(30, 7.0))
    assert "noise std (y0) is at its lower bound" in model.summary()
    assert ("noise_model.log_scale", 0, "lower") in model.fit_report_.active_bounds
    model.save(tmp_path / "model")
    assert ovkgp.load(tmp_path / "model").summary() == model.summary()


def test_ordinary_training_has_no_active_bound():
    X, Y = curve()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        model = GPRegressor("independent", random_state=0).fit(X, Y)
    assert model.fit_report_.active_bounds == () and "bound" not in model.summary()


# --- all regressors -------------------------------------------------------------------------------------------------

REGRESSORS = {
    "auto": (lambda: GPRegressor(random_state=0), 2),
    "independent": (lambda: GPRegressor("independent", random_state=0), 2),
    "decomposable, full noise": (lambda: GPRegressor("decomposable", noise="full", random_state=0), 2),
    "lmc": (lambda: GPRegressor("lmc", base_kernel="rbf", random_state=0), 2),
    "orff": (lambda: GPRegressor("decomposable", approximation="orff", num_frequencies=60, random_state=0), 2),
    "nystrom": (lambda: GPRegressor("independent", approximation="nystrom", num_frequencies=30, random_state=0), 1),
    "student_t": (lambda: GPRegressor(likelihood="student_t", num_frequencies=20, random_state=0), 1),
    "laplace": (lambda: GPRegressor(likelihood="laplace", num_frequencies=20, random_state=0), 1),
    "variational": (lambda: GPRegressor(approximation="variational", num_frequencies=20, random_state=0), 1),
    "exact ridge": (lambda: OVKRidge(lam=0.1, fit_intercept=True, scale="evidence"), 2),
    "feature ridge": (
        lambda: ORFFRidge(lam=0.1, num_frequencies=50, fit_intercept=True, scale="evidence", random_state=0),
        2,
    ),
    "quantiles": (lambda: InfiniteQuantileRegressor(random_state=0), 1),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one in ("student_t", "laplace", "lmc"))) for one in REGRESSORS],
)
def test_regressors_are_equivariant(name):
    make, p = REGRESSORS[name]
    X, Y = curve(50, p)
    assert_equivariant(make, X, Y if p > 1 else Y[:, 0], NEW, TIGHT)


@pytest.mark.parametrize("kernel", ["curl_free", "divergence_free", "helmholtz"])
def test_vector_fields_are_equivariant(kernel):
    """A vector field has one scale for all inputs and one for all outputs."""
    make = lambda: GPRegressor(kernel, base_kernel="rbf", random_state=0)  # noqa: E731
    assert_equivariant(make, *field(), field(5, seed=1)[0], TIGHT)


# --- curves ---------------------------------------------------------------------------------------------------------


def curves(n=40, m=20, seed=0):
    """Return draws with lengthscales 25 and 300, standard deviation 400 and noise 40, around 5000."""
    rng = np.random.default_rng(seed)
    X, grid = np.sort(rng.uniform(0, 200, (n, 1)), 0), np.linspace(1000, 3000, m)
    roots = [
        np.linalg.cholesky(np.exp(-0.5 * np.square((a - a.T) / ell)) + 1e-8 * np.eye(len(a)))
        for a, ell in ((X, 25.0), (grid[:, None], 300.0))
    ]
    return X, 5000 + 400 * roots[0] @ rng.standard_normal((n, m)) @ roots[1].T + 40 * rng.standard_normal((n, m)), grid


def fit_curves(X, Y, grid, **options):
    model = FunctionGPRegressor(output_basis="kernel", **{"deviations": False} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return model.fit(X, Y, grid=grid)


def curve_values(model):
    return {row.parameter: row.draws.item() for row in model.list_parameters()}


CURVE_KERNELS = {
    "names": lambda: {"kernel": "rbf", "task_kernel": "rbf"},
    "inputs": lambda: {"kernel": ScaleKernel(RBFKernel()), "task_kernel": "rbf"},
    "domain": lambda: {"kernel": "rbf", "task_kernel": RBFKernel()},
    "both": lambda: {"kernel": ScaleKernel(RBFKernel()), "task_kernel": RBFKernel()},
    "both, variance of the domain": lambda: {"kernel": RBFKernel(), "task_kernel": ScaleKernel(RBFKernel())},
    "both, no variance": lambda: {"kernel": RBFKernel(), "task_kernel": RBFKernel()},
}


@pytest.mark.parametrize("name", CURVE_KERNELS)
def test_hyperparameters_of_curves_are_those_of_the_ground_truth(name):
    found = curve_values(fit_curves(*curves(), **CURVE_KERNELS[name]()))
    assert found["kernel of the inputs: lengthscale"] == pytest.approx(25, rel=0.15)
    assert found["kernel of the domain: lengthscale"] == pytest.approx(300, rel=0.15)
    assert found["noise"] == pytest.approx(1600, rel=0.15)
    variances = [value for key, value in found.items() if key.endswith("outputscale")]
    assert len(variances) == 1 and variances[0] == pytest.approx(160_000, rel=0.4)


@pytest.mark.parametrize("name", CURVE_KERNELS)
@pytest.mark.parametrize("a", [1e-6, 1e4])
def test_curves_are_equivariant_with_kernel_objects(name, a):
    """Of values of order 1e-9 and 1e7; inputs and points change their units too."""
    (X, Y, grid), c, e = curves(25, 12), 1e-2, 50.0
    options = CURVE_KERNELS[name]() | {"deviations": "auto"}
    one = fit_curves(X, Y, grid, **options)
    other = fit_curves(c * X, a * Y - 7 * a, e * grid, **options)
    new = np.array([[3.0], [77.5], [198.0]])
    (mean, std), (other_mean, other_std) = (
        model.predict(unit * new, return_std=True) for model, unit in ((one, 1.0), (other, c))
    )
    np.testing.assert_allclose(other_mean / a + 7, mean, rtol=0, atol=TIGHT * Y.std())
    np.testing.assert_allclose(other_std / a, std, rtol=0, atol=TIGHT * Y.std())
    for level, end in zip(other.predict_interval(c * new), one.predict_interval(new), strict=True):
        np.testing.assert_allclose(level / a + 7, end, rtol=0, atol=TIGHT * Y.std())
    mine, yours = curve_values(one), curve_values(other)
    for key, value in mine.items():
        unit = c if "inputs" in key and "lengthscale" in key else e if "lengthscale" in key else a**2
        unit = unit / c**2 if key == "kernel of the inputs: variance" else unit
        assert yours[key] == pytest.approx(unit * value, rel=1e-5), key
    for key, score in one.scores_.items():
        assert other.scores_[key].log_density == pytest.approx(score.log_density - math.log(a), abs=1e-6)


@pytest.mark.parametrize("where", ["kernel", "task_kernel"])
def test_given_prior_of_a_curve_kernel_is_in_original_units(where):
    kernel = ScaleKernel(RBFKernel(), outputscale_prior=LogNormalPrior(math.log(40_000), 0.01))
    found = curve_values(fit_curves(*curves(), **{where: kernel}))
    label = "kernel of the inputs" if where == "kernel" else "kernel of the domain"
    assert found[f"{label}: outputscale"] == pytest.approx(40_000, rel=0.05)
    assert found["noise"] == pytest.approx(1600, rel=0.15)


def test_given_prior_of_a_domain_lengthscale_is_in_original_units():
    kernel = MaternKernel(2.5, lengthscale_prior=LogNormalPrior(math.log(450), 0.001))
    found = curve_values(fit_curves(*curves(), task_kernel=kernel))
    assert found["kernel of the domain: lengthscale"] == pytest.approx(450, rel=0.02)


def test_channels_of_curves_with_kernel_objects_have_their_own_units():
    X, Y, grid = curves(25, 12)
    second = 1e-3 * np.cos(X / 30) * np.sin(grid / 300) + 1e-4 * np.random.default_rng(0).standard_normal(Y.shape)
    model = fit_curves(X, np.stack([Y, second], -1), grid, kernel=RBFKernel(), task_kernel=RBFKernel())
    alone = fit_curves(X, np.stack([Y, 1e6 * second], -1), grid, kernel=RBFKernel(), task_kernel=RBFKernel())
    scales = np.array([400, 1e-3])
    mine, yours = model.predict(X[:3]) / scales, alone.predict(X[:3]) / (scales * [1, 1e6])
    np.testing.assert_allclose(yours, mine, rtol=0, atol=TIGHT)
    found = curve_values(model)
    assert found["noise 1"] == pytest.approx(1e-8, rel=0.3) and found["noise 0"] == pytest.approx(1600, rel=0.3)


def test_curves_with_fixed_hyperparameters_may_be_tiny():
    """Values below 1e-10 were taken for rounding errors of equal curves."""
    X, Y, grid = curves(25, 12)
    predictions = []
    for a in (1.0, 1e-14):
        task_kernel = ScaleKernel(RBFKernel()).double()
        task_kernel.outputscale, task_kernel.base_kernel.lengthscale = (400 * a) ** 2, 300.0
        kernel = RBFKernel().double()
        kernel.lengthscale = 25.0
        options = {"kernel": kernel, "task_kernel": task_kernel, "noise": 1600 * a**2, "hyperparameters": "fixed"}
        predictions.append(fit_curves(X, a * (Y - 5000), grid, **options).predict(X[:3]) / a)
    np.testing.assert_allclose(predictions[1], predictions[0], atol=1e-6 * Y.std())


def test_posterior_of_curves_names_its_units():
    assert "original units" in repr(fit_curves(*curves(20, 8)).posterior_)


def test_listed_parameters_of_groups_are_variances_between_them():
    X, Y, grid = curves(20, 8)
    model = FunctionGPRegressor(output_basis="kernel", deviations=False).fit(X, Y, grid=grid, groups=np.arange(20) // 4)
    labels = [row.parameter for row in model.list_parameters()]
    assert "groups: outputscale" in labels and len(set(labels)) == len(labels)


@pytest.mark.parametrize("size", [1e-160, 1e153, 1e200])
@pytest.mark.parametrize(
    "make",
    [
        lambda: GPRegressor(ScaleKernel(RBFKernel()), random_state=0),
        lambda: GPRegressor(base_kernel=RBFKernel(), random_state=0),
        lambda: FunctionGPRegressor(output_basis="kernel", kernel=ScaleKernel(RBFKernel())),
    ],
    ids=["kernel", "base_kernel", "curves"],
)
def test_kernel_objects_reject_values_whose_squares_are_not_representable(make, size):
    """At 1e-160 standard deviations were too large by a factor of 1e140; at 1e153 the mean was predicted."""
    X, Y = curve(20)
    with pytest.raises(InputError, match=r"largest absolute value of (column 0 of Y|y) must be .* in another unit"):
        make().fit(X, Y / 1000 * size)
