"""Every strategy of OperatorValuedGP against dense algebra on the observed entries: mean, covariance, evidence, gradients.

The tolerance is relative, to the largest entry: 1e-8 for the exact strategies and the features, 1e-6 for conjugate gradients, whose
evidence is an estimate and is held against its own standard error.
"""

from functools import partial

import numpy as np
import pytest
import torch
from gp_cases import KERNELS, MEANS, NOISES, ONE_COMPONENT, SEPARABLE, Problem, close
from pairwise import pairwise
from posterior_oracle import diagonal_parts

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.strategies import exact as exact_strategies
from ovkgp.inference.strategies import selection

MISSING = (0.0, 0.3)
NYSTROM = ("icm, singular", "lmc", "independent", "curl-free", "transformable", "blockwise", "scalar")
"""One kernel of each shape that Nyström features take."""


def check(problem, rtol=1e-8):
    """Mean, covariance in all forms, and evidence both from the posterior and from `log_evidence`."""
    mean, covariance, evidence = problem.expected()
    posterior = problem.condition()
    check_forms(posterior, problem, mean, covariance, rtol)
    slack = 3 * posterior.log_evidence_error + rtol * abs(evidence)
    assert abs(posterior.log_evidence - evidence) < slack
    assert abs(problem.log_evidence().item() - evidence) < slack


def check_forms(posterior, problem, mean, covariance, rtol):
    variances, blocks = diagonal_parts(covariance, problem.num_outputs)
    for form, expected in {"none": None, "diag": variances, "output": blocks, "full": covariance}.items():
        prediction = posterior.predict(problem.test, cov=form)
        close(prediction.mean, mean, rtol)
        if form != "none":
            close(prediction.variance, variances, rtol)
            close(prediction.std, np.sqrt(variances), rtol)
        if form in ("output", "full"):
            close(prediction.cov, expected, rtol)


def automatic(name, noise, missing, features):
    """Name of the strategy that is selected for few data."""
    if name == "independent" and noise != "matrix":
        return "independent"
    if features is not None:
        return "features"
    return "kronecker" if name in ONE_COMPONENT and missing == 0 and noise != "known" else "dense"


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=KERNELS, noise=NOISES, missing=MISSING))
def test_exact_strategies_equal_dense_algebra(name, noise, missing):
    problem = Problem(name, noise, missing)
    assert problem.strategy == automatic(name, noise, missing, None)
    check(problem)


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=KERNELS, noise=NOISES, missing=MISSING))
def test_random_features_equal_dense_algebra(name, noise, missing):
    problem = Problem(name, noise, missing, features="orff")
    assert problem.strategy == automatic(name, noise, missing, "orff")
    check(problem)


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=NYSTROM, noise=NOISES, missing=MISSING))
def test_nystrom_features_equal_dense_algebra(name, noise, missing):
    problem = Problem(name, noise, missing, features="nystrom")
    assert problem.strategy == automatic(name, noise, missing, "nystrom")
    check(problem)


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=SEPARABLE, noise=NOISES, missing=MISSING))
def test_iterative_strategy_equals_dense_algebra(name, noise, missing):
    problem = Problem(name, noise, missing, strategy="iterative")
    assert problem.strategy == "iterative"
    check(problem, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "noise", "missing"),
    pairwise(name=ONE_COMPONENT, noise=("float", "vector", "matrix"), missing=(0.0, 0.3, 0.8)),
)
def test_kronecker_missing_strategy_equals_dense_algebra(name, noise, missing):
    problem = Problem(name, noise, missing, strategy="kronecker_missing")
    assert problem.strategy == "kronecker_missing"
    check(problem)


def test_kronecker_missing_strategy_draws_the_functions_of_the_dense_strategy():
    """The random numbers are the same, so that the functions are, and with them their covariance."""
    draws = []
    for strategy in ("kronecker_missing", "dense"):
        problem = Problem("icm, rank 2", "matrix", strategy=strategy)
        draws.append(problem.condition().sample_functions(5, random_state=0)(problem.test))
    close(*draws)


@pytest.mark.parametrize("noise", NOISES)
def test_dense_strategy_can_be_requested(noise):
    for name in ("icm, rank 2", "independent"):
        problem = Problem(name, noise, 0.0, strategy="dense")
        assert problem.strategy == "dense"
        check(problem)


def test_kronecker_strategy_can_be_requested_for_one_output():
    problem = Problem("scalar", "float", 0.0, strategy="kronecker")
    assert problem.strategy == "kronecker"
    check(problem)


# --- one model per strategy ---------------------------------------------------------------------------------------

STRATEGIES = {
    "kronecker": lambda **kw: Problem("icm, rank 2", **{"missing": 0.0, **kw}),
    "kronecker_missing": lambda **kw: Problem("function-valued", **{"strategy": "kronecker_missing", **kw}),
    "dense": lambda **kw: Problem("curl-free", **kw),
    "iterative": lambda **kw: Problem("lmc", strategy="iterative", **kw),
    "features": lambda **kw: Problem("helmholtz", features="orff", **kw),
    "features, shared": lambda **kw: Problem("icm, rank 2", features="orff", **{"missing": 0.0, **kw}),
    "features, nystrom": lambda **kw: Problem("lmc", features="nystrom", **kw),
    "independent": lambda **kw: Problem("independent", **kw),
    "independent, features": lambda **kw: Problem("independent", features="orff", **kw),
}


def precision(strategy):
    return 1e-6 if strategy == "iterative" else 1e-8


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_mean_is_used_by_every_strategy(strategy, mean):
    problem = STRATEGIES[strategy](mean=mean)
    assert problem.strategy == strategy.split(",")[0]
    check(problem, precision(strategy))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predict_adds_noise_in_every_form(strategy, noise):
    """A new observation has Σ; where the noise is known for each entry, its average over the observed entries."""
    if (strategy, noise) == ("kronecker_missing", "known"):
        pytest.skip("not supported, see test_selection_rejects_unsupported_strategy")
    problem = STRATEGIES[strategy](noise=noise)
    p, m = problem.num_outputs, len(problem.test)
    if problem.known is None:
        new = problem.noise_matrix()[:p, :p]
    else:
        observed = ~np.isnan(problem.Y.numpy())
        new = np.diag((problem.known.numpy() * observed).sum(0) / observed.sum(0))
    posterior = problem.condition()
    latent = {form: posterior.predict(problem.test, form) for form in ("diag", "output", "full")}
    noisy = {form: posterior.predict(problem.test, form, noise=True) for form in latent}
    close(noisy["diag"].variance - latent["diag"].variance, np.tile(new.diagonal(), (m, 1)))
    close(noisy["output"].cov - latent["output"].cov, np.tile(new, (m, 1, 1)))
    close(noisy["full"].cov - latent["full"].cov, np.kron(np.eye(m), new))
    assert all(torch.equal(noisy[form].mean, latent[form].mean) for form in latent)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_predict_is_unchanged_by_chunks(strategy, monkeypatch):
    problem = STRATEGIES[strategy]()
    posterior = problem.condition()
    whole = {form: posterior.predict(problem.test, form) for form in ("none", "diag", "output", "full")}
    for module in ("exact", "weight_posterior"):
        monkeypatch.setattr(f"ovkgp.inference.posteriors.{module}.CHUNK_ENTRIES", 1)
    calls, latent = [], posterior.latent
    monkeypatch.setattr(posterior, "latent", lambda X, form: calls.append(len(X)) or latent(X, form))
    for form, expected in whole.items():
        calls.clear()
        found = posterior.predict(problem.test, form)
        assert calls == [5] if form == "full" else calls == [1] * 5
        close(found.mean, expected.mean, 1e-12)
        if form != "none":
            close(found.variance, expected.variance, 1e-12 if strategy != "iterative" else 1e-8)
        if form == "output":
            close(found.cov, expected.cov, 1e-12 if strategy != "iterative" else 1e-8)


# --- gradients -------------------------------------------------------------------------------------------------------


def difference_quotient(value, parameter, direction, h=2e-4):
    """Fourth-order central differences: error (hω)⁴ and 1e-14 |value| / h; features have frequencies ω of up to 100."""
    values = []
    for step in (-2, -1, 1, 2):
        with torch.no_grad():
            parameter.add_(step * h * direction)
            values.append(value())
            parameter.sub_(step * h * direction)
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * h)


def slopes(problem, seed=0):
    """The slope of the evidence along a random direction of each parameter: by differences of the dense twin, and ours."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {name: t for name, t in problem.gp.named_parameters() if t.requires_grad}
    directions = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in parameters.values()]
    pairs = list(zip(parameters.values(), directions, strict=True))
    expected = [difference_quotient(lambda: problem.oracle().evidence, t, direction) for t, direction in pairs]
    return list(parameters), np.array(expected), partial(analytic_slopes, problem, pairs)


def analytic_slopes(problem, pairs):
    found = torch.autograd.grad(problem.log_evidence(), [t for t, _ in pairs])
    return np.array([(g * direction).sum().item() for g, (_, direction) in zip(found, pairs, strict=True)])


@pytest.mark.parametrize(
    ("name", "features", "observations"),
    pairwise(
        name=["icm, rank 2", "lmc", "independent", "helmholtz", "delays", "scalar"],
        features=[None, "orff", "nystrom"],
        observations=[("shared", 0.0), ("per_output", 0.3), ("full", 0.0), ("full", 0.3)],
    ),
)
def test_evidence_gradient_equals_finite_differences(name, features, observations):
    noise, missing = observations
    problem = Problem(name, noise, missing, "linear", features)
    names, expected, found = slopes(problem)
    assert {"mean.constant", "mean.slopes", "noise_model.log_scale"} < set(names)
    np.testing.assert_allclose(found(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max(), err_msg=str(names))


@pytest.mark.parametrize("noise", ("shared", "per_output", "full"))
@pytest.mark.parametrize("name", ("icm, rank 2", "function-valued"))
def test_kronecker_missing_evidence_gradient_equals_finite_differences(name, noise):
    names, expected, found = slopes(Problem(name, noise, 0.3, "linear", strategy="kronecker_missing"))
    assert {"mean.constant", "mean.slopes", "noise_model.log_scale"} < set(names)
    np.testing.assert_allclose(found(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max(), err_msg=str(names))


@pytest.mark.parametrize("name", KERNELS)
def test_evidence_gradient_with_known_noise_and_custom_mean(name):
    problem = Problem(name, "known", 0.3, "gpytorch", level=0.05)
    names, expected, found = slopes(problem)
    assert "mean.mean.speed" in names
    np.testing.assert_allclose(found(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max(), err_msg=str(names))


@pytest.mark.parametrize("missing, noise", [(0.0, "full"), (0.3, "per_output"), (0.3, "full")])
@pytest.mark.slow
def test_iterative_evidence_gradient_is_within_monte_carlo_error(missing, noise, monkeypatch):
    """Its trace is estimated with probes. Over seeds, with a preconditioner too small to be exact, the mean must lie within
    four of its standard errors of the true slope, and each within six standard deviations."""
    problem = Problem("lmc", noise, missing, "linear", strategy="iterative", n=25)
    names, expected, found = slopes(problem)
    exact = exact_strategies.iterative_log_density
    draws = []
    for seed in range(20):
        monkeypatch.setattr(exact_strategies, "iterative_log_density", partial(exact, seed=seed, max_rank=10))
        draws.append(found())
    draws = np.array(draws)
    std, floor = draws.std(0, ddof=1), 1e-6 * np.abs(expected).max()
    assert (std[[n.startswith("kernel") for n in names]] > 10 * floor).any()  # the probes do matter
    assert (np.abs(draws.mean(0) - expected) < 4 * std / np.sqrt(len(draws)) + floor).all(), names
    assert (np.abs(draws - expected) < 6 * std + floor).all(), names


@pytest.mark.slow
def test_iterative_evidence_standard_error_is_calibrated(monkeypatch):
    """Where the preconditioner is too small to be exact: errors over seeds, in units of each standard error."""
    problem = Problem("lmc", "per_output", 0.3, strategy="iterative", n=25)
    evidence, solver, scores = problem.oracle().evidence, exact_strategies.IterativeSolver, []
    for seed in range(30):
        monkeypatch.setattr(exact_strategies, "IterativeSolver", partial(solver, seed=seed, max_rank=10))
        posterior = problem.condition()
        assert posterior.log_evidence_error > 1e-3
        scores.append((posterior.log_evidence - evidence) / posterior.log_evidence_error)
    assert np.abs(np.mean(scores)) < 3 / np.sqrt(30)
    assert 0.7 < np.sqrt(np.mean(np.square(scores))) < 1.4  # one, up to 3 / √(2 · 30)


# --- selection, and unsupported strategies ------------------------------------------------------------------------------


def test_selection_uses_products_or_raises_for_many_entries(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.strategies.selection.MAX_DENSE_ENTRIES", 19)
    for name in ("lmc", "icm, rank 2"):
        problem = Problem(name)
        assert problem.strategy == "iterative"
        check(problem, 1e-6)
    assert Problem("scalar", missing=0.3, n=40).strategy == "kronecker"  # rows without outputs are dropped
    assert Problem("curl-free", features="orff").strategy == "features"
    with pytest.raises(InputError, match=r"19 .*CurlFreeKernel.*ORFF"):
        Problem("curl-free").condition()
    with pytest.raises(InputError, match="ORFF"):
        Problem("helmholtz").log_evidence()


@pytest.mark.parametrize(
    ("n", "missing", "expected"),
    [(250, 0.0, "kronecker"), (250, 0.05, "kronecker_missing"), (250, 0.6, "dense"), (20, 0.05, "dense")],
)
def test_selection_compares_the_cost_of_missing_and_observed_entries(n, missing, expected):
    assert Problem("icm, rank 2", missing=missing, n=n).strategy == expected


def test_selection_keeps_kronecker_products_for_many_observed_and_few_missing_entries(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.strategies.selection.MAX_DENSE_ENTRIES", 100)
    assert Problem("icm, rank 2", missing=0.05, n=200).strategy == "kronecker_missing"
    assert Problem("icm, rank 2", missing=0.6, n=200).strategy == "iterative"
    assert Problem("lmc", missing=0.05, n=200).strategy == "iterative"


def test_table_of_strategies_follows_the_protocol():
    on_statistics = {"statistics", "log_evidence_from_statistics", "condition_on_statistics"}
    methods = {name for name, value in vars(selection.Strategy).items() if not name.startswith("_") and callable(value)}
    assert methods == {
        "supports",
        "log_evidence",
        "condition",
        "leave_one_out",
        "leave_groups_out",
        "whitened_residuals",
    }
    for name, (strategy, _) in selection.STRATEGIES.items():
        assert strategy.name == name and isinstance(strategy.requirement, str)
        assert all(callable(getattr(strategy, method)) for method in methods)
        assert all(hasattr(strategy, method) == (name in ("features", "independent")) for method in on_statistics)


def test_exact_strategies_reject_too_many_rows(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.strategies.exact.MAX_EXACT_ROWS", 13)
    for strategy in ("kronecker", "kronecker_missing", "dense", "iterative"):
        for call in (lambda p: p.condition(), lambda p: p.log_evidence()):
            with pytest.raises(InputError, match=r"14 rows.*ORFF"):
                call(STRATEGIES[strategy](missing=0.0))
    STRATEGIES["features"]().condition()


def test_error_of_too_many_rows_states_the_memory():
    rows = torch.zeros(50_000, 1)
    with pytest.raises(InputError, match=r"50000 rows.* 20 GB"):  # 50000² entries of 8 bytes
        exact_strategies.check_exact_size(Observations(rows, rows))


@pytest.mark.parametrize(
    "name, noise, missing, strategy, message",
    [
        ("icm, rank 2", "float", 0.3, "kronecker", "complete"),
        ("icm, rank 2", "known", 0.0, "kronecker", "kronecker"),
        ("lmc", "float", 0.0, "kronecker", "one component"),
        ("lmc", "float", 0.3, "kronecker_missing", "one component"),
        ("icm, rank 2", "known", 0.3, "kronecker_missing", "equal noise"),
        ("curl-free", "float", 0.3, "kronecker_missing", "separable"),
        ("curl-free", "float", 0.0, "kronecker", "separable"),
        ("curl-free", "float", 0.0, "iterative", "separable"),
        ("icm, rank 2", "float", 0.0, "features", "ORFF"),
        ("icm, rank 2", "float", 0.0, "independent", "IndependentKernel"),
        ("independent", "matrix", 0.0, "independent", "independent between outputs"),
    ],
)
def test_selection_rejects_unsupported_strategy(name, noise, missing, strategy, message):
    problem = Problem(name, noise, missing, strategy=strategy)
    for call in (problem.condition, problem.log_evidence):
        with pytest.raises(OptionError, match=message):
            call()
