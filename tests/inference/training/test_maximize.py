"""Tests of `ovkgp.inference.training.maximize`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Positive
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.module import Module
from linear_operator.utils.errors import NanError, NotPSDError
from scipy.optimize import minimize

from ovkgp.exceptions import FactorizationError, FitWarning, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.maximize import FitReport, can_train_independently, maximize, train_independently
from ovkgp.inference.training.priors import LogPrior
from ovkgp.kernels import DecomposableKernel, IndependentKernel


def table():
    generator = torch.Generator().manual_seed(0)
    X = 6 * torch.rand(50, 1, generator=generator, dtype=torch.float64)
    Y = torch.cat([X.sin(), 3 * (2 * X).cos() + 10], 1) + 0.1 * torch.randn(50, 2, generator=generator)
    Y[::4, 0] = torch.nan
    return X, Y


def independent():
    return IndependentKernel([ScaleKernel(RBFKernel()) for _ in range(2)])


def model(mean="constant", noise="per_output", priors=True):
    gp = OperatorValuedGP(independent(), mean=mean, noise=noise)
    if priors:
        register_default_priors(gp.kernel, 1)
        register_noise_prior(gp.noise_model)
    return gp


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("noise", ["per_output", [0.01, 0.02]])
def test_independent_training_reaches_joint_optimum(mean, noise):
    X, Y = table()
    together, separate = model(mean, noise), model(mean, noise)
    together.fit(X, Y, init="data", tolerance=1e-9)
    separate.observe(X, Y, None)
    train_independently(separate, validate_observations(X, Y, 2), tolerance=1e-9)
    values = [(gp.log_evidence(X, Y) + LogPrior(gp)()).item() for gp in (together, separate)]
    assert values[1] == pytest.approx(values[0], rel=1e-6)


def test_can_train_independently():
    assert can_train_independently(model())
    assert not can_train_independently(model(noise="shared"))
    assert not can_train_independently(model(noise="full"))
    assert not can_train_independently(OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2)))
    kernel = independent()
    assert not can_train_independently(OperatorValuedGP(kernel, features=ORFF(kernel, 5, num_dims=1, random_state=0)))


def test_fit_trains_independently_first():
    X, Y = table()
    gp = model().fit(X, Y)
    assert gp.fit_report_.num_rows == 50  # the report is that of the last look at all outputs together
    assert gp.fit_report_.converged and gp.fit_report_.iterations < 15


class Toy(Module):
    """One parameter tensor with a constraint."""

    def __init__(self, raw, constraint=None):
        super().__init__()
        self.register_parameter("raw", torch.nn.Parameter(torch.as_tensor(raw, dtype=torch.float64)))
        if constraint is not None:
            self.register_constraint("raw", constraint)

    @property
    def value(self):
        constraint = self.constraint_for_parameter_name("raw")
        return self.raw if constraint is None else constraint.transform(self.raw)


class Free(Module):
    """Plain parameters x (d,)."""

    def __init__(self, *x):
        super().__init__()
        self.register_parameter("x", torch.nn.Parameter(torch.tensor(x, dtype=torch.float64)))


def rosenbrock(x):
    return -((1 - x[0]) ** 2) - 100 * (x[1] - x[0] ** 2) ** 2


# --- maxima that are known ------------------------------------------------------------------------------------------


def test_maximize_solves_quadratic():
    matrix, target = torch.diag(torch.tensor([1.0, 10.0, 100.0]).double()), torch.tensor([1.0, -2.0, 3.0]).double()
    module = Free(0.0, 0.0, 0.0)
    report = maximize(module, lambda: 5 - (module.x - target) @ matrix @ (module.x - target), tolerance=1e-10)
    torch.testing.assert_close(module.x.detach(), target, rtol=1e-8, atol=0)
    assert report.converged and report.objective == pytest.approx(5, abs=1e-12) and report.gradient_norm < 1e-6
    assert module.x.grad is None


def test_maximize_solves_rosenbrock_and_reports_counts():
    module, observed = Free(-1.2, 1.0), []

    def objective():
        observed.append(rosenbrock(module.x))
        return observed[-1]

    report = maximize(module, objective, tolerance=1e-12)
    torch.testing.assert_close(module.x.detach(), torch.ones(2).double(), rtol=1e-6, atol=0)  # f is 1e-12 off
    assert report.evaluations == len(observed) and report.iterations == len(report.history) > 10
    assert report.objective == max(value.item() for value in observed) == rosenbrock(module.x).item()
    assert list(report.history) == sorted(report.history)


def test_maximize_reaches_bound():
    module = Toy([1.0, 1.0], Positive())
    report = maximize(
        module, lambda: -(module.value.log() - 2).square().sum(), bounds={"raw": (0.1, torch.tensor([5.0, 50.0]))}
    )
    torch.testing.assert_close(module.value.detach(), torch.tensor([5.0, math.exp(2)]).double(), rtol=1e-6, atol=0)
    assert report.converged and report.gradient_norm < 1e-6  # what pushes against the box does not count


def gp_data():
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 5, (30, 1))
    return X, np.sin(2 * X[:, 0]) + 0.1 * generator.standard_normal(30)


def dense_evidence(log_theta, X, y):
    lengthscale, variance, noise = np.exp(log_theta)
    K = variance * np.exp(-((X - X.T) ** 2) / (2 * lengthscale**2)) + noise * np.eye(len(y))
    return -0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + len(y) * math.log(2 * math.pi))


class SmallGP(Module):
    def __init__(self, X, y):
        super().__init__()
        self.kernel, self.noise = ScaleKernel(RBFKernel()), Toy([0.0], GreaterThan(1e-9))
        self.double()
        self.X, self.y = torch.as_tensor(X), torch.as_tensor(y)

    def evidence(self):
        K = self.kernel(self.X).to_dense() + self.noise.value * torch.eye(len(self.y)).double()
        return torch.distributions.MultivariateNormal(torch.zeros(len(self.y)).double(), K).log_prob(self.y)


def test_maximize_reaches_optimum_of_dense_evidence():
    X, y = gp_data()
    oracle = minimize(
        lambda t: -dense_evidence(t, X, y),
        np.log([0.7, 0.7, 0.7]),
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 2000},
    )
    gp = SmallGP(X, y)
    report = maximize(gp, gp.evidence, scale=len(y), tolerance=1e-9)
    found = [gp.kernel.base_kernel.lengthscale.item(), gp.kernel.outputscale.item(), gp.noise.value.item()]
    assert report.converged and report.objective == pytest.approx(-oracle.fun, rel=1e-9)
    np.testing.assert_allclose(found, np.exp(oracle.x), rtol=1e-3)  # the evidence is flat to 1e-9 within that


def test_maximize_reports_unscaled_objective():
    runs = []
    for factor in (1.0, 1e6):
        module = Free(-1.2, 1.0)
        report = maximize(module, lambda factor=factor, module=module: factor * rosenbrock(module.x), scale=factor)
        runs.append((report.iterations, report.objective / factor))
    assert runs[0][0] == runs[1][0] and runs[0][1] == pytest.approx(runs[1][1], rel=1e-6)


def test_maximize_with_scales_is_independent_of_units():
    ends = []
    for unit in (1.0, 1e-8, 1e8):
        module = Free(2.0 * unit, -1.0 * unit)
        maximize(module, lambda unit=unit, module=module: rosenbrock(module.x / unit), scales={"x": unit})
        ends.append(module.x.detach() / unit)
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(ends[2], ends[0], rtol=1e-6, atol=0)


# --- failures -------------------------------------------------------------------------------------------------------


def raising(error):
    def fail(value):
        raise error("not here")

    return fail


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.nan


FAILURES = {
    "FactorizationError": raising(FactorizationError),
    "torch": raising(torch.linalg.LinAlgError),
    "numpy": raising(np.linalg.LinAlgError),
    "NotPSDError": raising(NotPSDError),
    "NanError": raising(NanError),
    "nan": lambda value: value * torch.nan,
    "infinite": lambda value: value + torch.inf,
    "gradient": BadGradient.apply,
}


@pytest.mark.parametrize("kind", FAILURES)
def test_maximize_reaches_maximum_despite_failures(kind):
    module = Free(0.5, 0.0)

    def objective():  # log(1 − x) + 5x − (y + 3)²/100, whose maximum is at x = 4/5
        x, y = module.x
        is_inside = x < 1
        value = torch.log(torch.where(is_inside, 1 - x, 1.0)) + 5 * x - (y + 3) ** 2 / 100
        return value if is_inside else FAILURES[kind](value)

    report = maximize(module, objective, tolerance=1e-10)
    torch.testing.assert_close(module.x.detach(), torch.tensor([0.8, -3.0]).double(), rtol=1e-6, atol=0)
    assert report.converged and report.failures > 0 and report.evaluations < 40


def test_maximize_solves_rosenbrock_with_failing_half_plane():
    module = Free(-1.2, 1.0)

    def objective():
        if module.x[1] > module.x[0] ** 2 + 0.2 and module.x[0] > -1.1:
            raise NotPSDError("not here")
        return rosenbrock(module.x)

    report = maximize(module, objective, tolerance=1e-12)
    torch.testing.assert_close(module.x.detach(), torch.ones(2).double(), rtol=1e-5, atol=0)
    assert report.converged and report.failures > 0


def fails_below(module, edge):
    def objective():
        if module.x[0] < edge:
            raise torch.linalg.LinAlgError("not positive definite")
        return -((module.x[0] - 3.0) ** 2)

    return objective


def test_maximize_skips_failing_initial_state():
    module = Free(-1.0)
    report = maximize(module, fails_below(module, 0.0), initial_states=[None, {"x": torch.tensor([1.0])}])
    assert report.failures == 1 and module.x.item() == pytest.approx(3.0, rel=1e-4)


def test_maximize_perturbs_failing_initial_state():
    module = Free(-0.1)
    report = maximize(module, fails_below(module, 0.0), random_state=0)
    assert report.failures >= 1 and module.x.item() == pytest.approx(3.0, rel=1e-4)


def test_maximize_error_names_hyperparameters_if_all_fail():
    module = Toy([2.0, 4.0], GreaterThan(1.0, transform=None))

    def objective():
        raise NotPSDError("matrix not positive definite")

    with pytest.raises(FactorizationError, match=r"matrix not positive definite.* raw = \[2.0, 4.0\]"):
        maximize(module, objective, random_state=0)
    assert module.raw.tolist() == [2.0, 4.0]


def test_maximize_raises_other_errors_at_best_point():
    module, values = Free(-1.2, 1.0), []

    def objective():
        if len(values) == 9:
            raise ZeroDivisionError
        values.append(rosenbrock(module.x))
        return values[-1]

    with pytest.raises(ZeroDivisionError):
        maximize(module, objective)
    assert rosenbrock(module.x).item() == max(value.item() for value in values) and module.x.grad is None


# --- interruption ---------------------------------------------------------------------------------------------------


class Interrupting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        raise KeyboardInterrupt


def interrupted_at(module, when, values, where="forward"):
    def objective():
        values.append(rosenbrock(module.x))
        if len(values) == when:
            if where == "forward":
                raise KeyboardInterrupt
            return Interrupting.apply(values[-1])
        return values[-1]

    return objective


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_interrupt_keeps_best_parameters(where):
    module, values = Free(-1.2, 1.0), []
    with pytest.warns(FitWarning, match="interrupted"):
        report = maximize(module, interrupted_at(module, 7, values, where))
    best = max(value.item() for value in values[:6])
    assert report.interrupted and not report.converged and report.evaluations == 7
    assert report.objective == best == rosenbrock(module.x).item() > values[0].item()
    assert module.x.grad is None and report.iterations == len(report.history)


def test_interrupt_at_first_evaluation_changes_nothing():
    module = Free(-1.2, 1.0)
    with pytest.warns(FitWarning, match="interrupted"):
        report = maximize(module, interrupted_at(module, 1, []))
    assert report.interrupted and math.isnan(report.objective) and module.x.tolist() == [-1.2, 1.0]


# --- initial states and restarts ------------------------------------------------------------------------------------


def two_hills(x):
    """A hill of height 1 at 0 and one of height 2 at 2."""
    return torch.exp(-4 * x[0] ** 2) + 2 * torch.exp(-4 * (x[0] - 2) ** 2)


def test_maximize_uses_best_initial_state():
    module = Free(0.1)
    report = maximize(
        module, lambda: two_hills(module.x), initial_states=[{"x": torch.tensor([0.2])}, {"x": torch.tensor([1.8])}]
    )
    assert module.x.item() == pytest.approx(2.0, rel=1e-4) and len(report.restarts) == 1


def test_initial_states_replace_present_state_unless_none():
    for initial_states, expected in (([{"x": torch.tensor([0.2])}], 0.0), ([{"x": torch.tensor([0.2])}, None], 2.0)):
        module = Free(1.9)
        maximize(module, lambda module=module: two_hills(module.x), initial_states=initial_states)
        assert module.x.item() == pytest.approx(expected, abs=1e-3)


def test_restarts_find_higher_maximum():
    module = Free(0.3)
    report = maximize(module, lambda: two_hills(module.x), restarts=12, random_state=3)
    assert len(report.restarts) == 12 and report.restarts[0] == pytest.approx(1.0, rel=1e-4)
    assert report.objective == max(report.restarts) == pytest.approx(2.0, rel=1e-6)
    assert module.x.item() == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize(("restarts", "expected"), [(1, 0.0), (2, 0.0), (3, 2.0)])
def test_restarts_begin_at_best_points_of_other_groups(restarts, expected):
    module = Free(0.3)
    groups = [
        np.array([[0.2], [0.1]]),
        np.array([1.2]),
    ]  # two points of value .85 and .96, one of .16; the state has .70
    report = maximize(module, lambda: two_hills(module.x), initial_points=groups, restarts=restarts)
    assert len(report.restarts) == restarts and module.x.item() == pytest.approx(expected, abs=1e-3)


def test_restarts_are_reproducible():
    ends = []
    for seed in (5, 5, 6):
        module = Free(0.3)
        ends.append(
            (
                maximize(module, lambda module=module: two_hills(module.x), restarts=3, random_state=seed).restarts,
                module.x.item(),
            )
        )
    assert ends[0] == ends[1] != ends[2]


def test_restart_without_initial_point_is_skipped():
    module, base = Free(0.0), torch.tensor([0.0]).double()

    def objective():
        if (module.x.detach() - base).abs() > 1e-3:  # everywhere except near the maximum of the first run
            raise NotPSDError("not here")
        return -module.x.square().sum()

    report = maximize(module, objective, restarts=2, random_state=0)
    assert report.restarts[0] == 0.0 and math.isnan(report.restarts[1]) and report.converged


def test_maximize_rejects_unknown_initial_state():
    module = Free(0.3)
    with pytest.raises(OptionError, match="trained parameters x, got y"):
        maximize(module, lambda: two_hills(module.x), initial_states=[{"y": torch.zeros(1)}])
    assert module.x.tolist() == [0.3]


# --- what is said ---------------------------------------------------------------------------------------------------


def test_maximize_warns_without_convergence():
    module = Free(-1.2, 1.0)
    with pytest.warns(FitWarning, match="max_iter"):
        report = maximize(module, lambda: rosenbrock(module.x), max_iter=4)
    assert not report.converged and report.iterations == 4
    assert report.message.startswith("stopped after 4 iterations without converging")


def test_module_without_trained_parameters_is_evaluated_once():
    module = Free(3.0)
    module.x.requires_grad_(False)
    report = maximize(module, lambda: -module.x.square().sum())
    assert report.objective == -9.0 and report.evaluations == 1 and report.converged


def test_maximize_rejects_constant_objective():
    module = Free(3.0)
    with pytest.raises(OptionError, match="does not depend on the parameters x"):
        maximize(module, lambda: torch.tensor(1.0))


@pytest.mark.parametrize(
    "option", [{"max_iter": 0}, {"restarts": 0}, {"tolerance": 0.0}, {"scale": -1.0}, {"random_state": -1}]
)
def test_maximize_rejects_invalid_options(option):
    module = Free(3.0)
    with pytest.raises(OptionError):
        maximize(module, lambda: -module.x.square().sum(), **option)


def test_training_is_silent_by_default(capsys):
    for verbose in (0, 1):
        module = Free(-1.2, 1.0)
        maximize(module, lambda module=module: rosenbrock(module.x), verbose=verbose, restarts=2, random_state=0)
        shown = "".join(capsys.readouterr())
        assert shown == "" if verbose == 0 else "training 2/2" in shown and "objective=" in shown


def test_fit_report_prints():
    report = FitReport(
        objective=-3.25, converged=True, messages="converged", iterations=7, evaluations=9, failures=1, seconds=0.5,
        restarts=(-3.25, math.nan), history=(-5.0, -3.25), num_rows=40, log_evidence=-3.0, resumed=True,
    )  # fmt: skip
    assert str(report).splitlines() == [
        "objective -3.25 (converged)",
        "log evidence -3",
        "7 iterations on 40 rows, 9 evaluations, 1 failed, 0.5 s",
        "restarts reached -3.25, nan",
        "resumed from a checkpoint",
    ]
