"""The state-space strategy in models, against the dense strategy."""

import math

import pytest
import torch
from gpytorch.kernels import ConstantKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.strategies import selection, state_space
from ovkgp.kernels import DecomposableKernel, IndependentKernel, IntegratedBrownianKernel, SeasonalKernel
from ovkgp.kernels.state_space import matern_form

P = 2


def make_kernel(name):
    trend = MaternKernel(nu=2.5) + ScaleKernel(LinearKernel())
    smooth = ScaleKernel(IntegratedBrownianKernel(origin=-4.0, span=8.0)) + ConstantKernel() + LinearKernel()
    season = SeasonalKernel(period_length=1.3, num_harmonics=2)
    return {
        "trend and season": smooth + ScaleKernel(season),
        "quasi-periodic": DecomposableKernel(smooth, P, rank=1)
        + DecomposableKernel(season * MaternKernel(nu=1.5), P, rank=1),
        "scalar": trend,
        "icm": DecomposableKernel(trend, num_outputs=P, rank=1),
        "lmc": DecomposableKernel(trend, num_outputs=P) + DecomposableKernel(MaternKernel(nu=0.5), num_outputs=P),
        "independent": IndependentKernel([MaternKernel(nu=1.5), trend]),
    }[name].double()


def make_data(p, n=70):
    """Unsorted times, two equal ones, rows without outputs, and points before, between, at and after the times."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 1, generator=generator, dtype=torch.float64) * 8
    X[5] = X[6]
    Y = torch.sin(X) + 0.1 * torch.randn(n, p, generator=generator, dtype=torch.float64)
    Y[torch.rand(n, p, generator=generator) < 0.3] = math.nan
    Y[0] = 1.0
    known = 0.01 + 0.05 * torch.rand(n, p, generator=generator, dtype=torch.float64)
    test = torch.cat([torch.linspace(-3, 11, 40, dtype=torch.float64)[:, None], X[:8]])
    return X, Y, known, test


def fields_of(name, noise, strategy):
    """Everything that the strategy computes, as a list of tensors."""
    kernel = make_kernel(name)
    p = 1 if name in ("scalar", "trend and season") else P
    X, Y, known, test = make_data(p)
    known = known if noise == "known" else None
    kind = {"known": "shared", "full": "full", "shared": "shared"}[noise]
    gp = OperatorValuedGP(kernel, mean="linear", noise=kind, strategy=strategy)
    evidence = gp.log_evidence(X, Y, noise=known)
    posterior = gp.condition(X, Y, noise=known)
    gradients = torch.autograd.grad(evidence, list(gp.parameters()), allow_unused=True)  # known noise is not trained
    found = [evidence.detach(), *(gradient for gradient in gradients if gradient is not None)]
    for form in ("none", "diag", "output", "full"):
        prediction = posterior.predict(test, form)
        found += [prediction.mean] if form == "none" else [prediction.mean, prediction.variance]
        found += [prediction.cov] if form in ("output", "full") else []
    chosen, model, data = posterior.conditioning
    found += [chosen.whitened_residuals(model, data), *chosen.leave_one_out(model, data)]
    found += chosen.leave_groups_out(model, data, torch.arange(data.num_rows) // 3)
    return [part.detach() for part in found]


@pytest.mark.parametrize("noise", ["shared", "full", "known"])
@pytest.mark.parametrize("name", ["scalar", "icm", "lmc", "independent", "trend and season", "quasi-periodic"])
def test_state_space_strategy_equals_dense_strategy(name, noise):
    parts = zip(fields_of(name, noise, "state_space"), fields_of(name, noise, "dense"), strict=True)
    for found, expected in parts:
        scale = float(expected.nan_to_num().abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9 * max(scale, 1e-3), equal_nan=True)


def test_state_space_is_selected_for_many_rows_of_a_series(monkeypatch):
    monkeypatch.setattr(selection, "MIN_STATE_SPACE_ENTRIES", 20)
    X, Y, *_ = make_data(P)
    for name in ("icm", "lmc"):
        posterior = OperatorValuedGP(make_kernel(name)).condition(X, Y)
        assert posterior.conditioning.strategy.name == "state_space"
    posterior = OperatorValuedGP(make_kernel("independent"), noise="per_output").condition(X, Y)
    assert {part.conditioning.strategy.name for part in posterior.parts} == {"state_space"}
    monkeypatch.setattr(selection, "MIN_STATE_SPACE_ENTRIES", 2000)
    assert OperatorValuedGP(make_kernel("lmc")).condition(X, Y).conditioning.strategy.name == "dense"


def test_unsupported_kernels_are_rejected():
    X, Y, *_ = make_data(P)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=P)
    with pytest.raises(OptionError, match="one input column"):
        OperatorValuedGP(kernel, strategy="state_space").condition(X, Y)


def test_too_many_rows_are_rejected(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.strategies.state_space.MAX_STATE_ENTRIES", 100)
    X, Y, *_ = make_data(P)
    gp = OperatorValuedGP(make_kernel("icm"), strategy="state_space")
    for call in (gp.condition, gp.log_evidence):
        with pytest.raises(InputError, match=r"rows.*ORFF"):
            call(X, Y)


def test_draws_have_the_moments_of_the_posterior():
    X, Y, *_ = make_data(P)
    kernel = DecomposableKernel(MaternKernel(nu=2.5), num_outputs=P) + DecomposableKernel(
        MaternKernel(0.5), num_outputs=P
    )
    posterior = OperatorValuedGP(kernel, strategy="state_space").condition(X, Y)
    test = torch.tensor([[-1.0], [2.2], [9.0]], dtype=torch.float64)
    prediction = posterior.predict(test, "full")
    draws = posterior.sample(test, 4000, random_state=0).flatten(1)
    scale = prediction.cov.diagonal().sqrt()
    torch.testing.assert_close(
        draws.mT.cov() / scale / scale[:, None], prediction.cov / scale / scale[:, None], rtol=0, atol=0.08
    )
    functions = posterior.sample_functions(300, random_state=0)(test).flatten(1)
    assert float(((functions.mean(0) - prediction.mean.flatten()) / scale).abs().max()) < 0.3  # five standard errors
    assert float((functions.std(0) / scale - 1).abs().max()) < 0.25


def test_prediction_of_a_point_does_not_depend_on_the_others():
    X, Y, _, test = make_data(P)
    posterior = OperatorValuedGP(make_kernel("icm"), strategy="state_space").condition(X, Y)
    whole, alone = posterior.predict(test), posterior.predict(test[7:8])
    torch.testing.assert_close(alone.mean[0], whole.mean[7], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(alone.std[0], whole.std[7], rtol=1e-12, atol=1e-13)


def test_training_finds_the_optimum_of_the_dense_strategy():
    X, Y, *_ = make_data(P)
    objectives = []
    for strategy in ("state_space", "dense"):
        gp = OperatorValuedGP(DecomposableKernel(MaternKernel(nu=1.5), num_outputs=P, rank=1), strategy=strategy)
        objectives.append(gp.fit(X, Y).fit_report_.objective)
    assert objectives[0] == pytest.approx(objectives[1], abs=1e-5)


def exact_covariance(posterior, test, noise, monkeypatch):
    """Covariance of `sample`, a linear function of its scores, from unit vectors as scores."""
    sizes, start = [], 0

    def record(shape, rng, like):
        sizes.append(shape)
        return torch.zeros(shape, dtype=torch.float64)

    monkeypatch.setattr(state_space, "draw_normal", record)
    posterior.sample(test, 1, noise=noise)
    axes = [shape.index(1) if shape[-1] != 1 else len(shape) - 1 for shape in sizes]
    total = sum(math.prod(shape) for shape in sizes)
    calls = iter(range(len(sizes)))

    def unit(shape, rng, like):
        nonlocal start
        axis = axes[next(calls)]
        rest = [size for i, size in enumerate(shape) if i != axis]
        count = math.prod(rest)
        scores = torch.zeros(total, count, dtype=torch.float64)
        scores[start : start + count] = torch.eye(count, dtype=torch.float64)
        start += count
        return scores.view(total, *rest).movedim(0, axis)

    monkeypatch.setattr(state_space, "draw_normal", unit)
    draws = posterior.sample(test, total, noise=noise)
    deviations = (draws - posterior.predict(test, "none").mean).flatten(1)
    return deviations.mT @ deviations


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("where", ["anywhere", "after the end"])
@pytest.mark.parametrize("name", ["lmc", "quasi-periodic"])
def test_draws_have_exactly_the_joint_covariance_of_the_dense_strategy(name, where, known, monkeypatch):
    X, Y, noise, test = make_data(P, n=25)
    test = test[::4] if where == "anywhere" else torch.tensor([[9.0], [8.5], [9.0], [12.0]], dtype=torch.float64)
    noise = noise if known else None
    found, dense = (
        OperatorValuedGP(make_kernel(name), noise="full", strategy=strategy).condition(X, Y, noise=noise)
        for strategy in ("state_space", "dense")
    )
    for is_observation in (False, True):
        expected = dense.predict(test, "full", noise=is_observation).cov
        covariance = exact_covariance(found, test, is_observation, monkeypatch)
        torch.testing.assert_close(covariance, expected, rtol=1e-8, atol=1e-9 * float(expected.abs().max()))


def test_draws_reproduce_and_do_not_depend_on_the_order_of_the_points():
    X, Y, _, test = make_data(P)
    posterior = OperatorValuedGP(make_kernel("lmc"), strategy="state_space").condition(X, Y)
    draws = posterior.sample(test, 3, random_state=0)
    assert torch.equal(draws, posterior.sample(test, 3, random_state=0))
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(posterior.sample(test[order], 3, random_state=0), draws[:, order])
    torch.testing.assert_close(
        draws[:, -3], posterior.sample(test[[-3, -3]], 3, random_state=0).mean(1), atol=3.0, rtol=0
    )


@pytest.mark.parametrize("drop", [0, pytest.param(1, marks=pytest.mark.slow)])  # expanding and sliding windows
@pytest.mark.parametrize("strategy", ["state_space", "dense"])
@pytest.mark.parametrize("name", ["trend and season", pytest.param("lmc", marks=pytest.mark.slow)])
def test_update_equals_conditioning_again_over_200_steps(name, strategy, drop):
    p = 1 if name == "trend and season" else P
    X, Y, *_ = make_data(p, n=240)
    X, is_stored = X.sort(0).values, ~Y.isnan().all(1)
    gp = OperatorValuedGP(make_kernel(name), mean="linear", noise="per_output", strategy=strategy)
    later = torch.tensor([[8.1], [8.9], [7.0], [3.0]], dtype=torch.float64)
    posterior = gp.condition(X[:40], Y[:40])
    for row in range(40, 240):
        num_dropped = drop * int(is_stored[row - 40])
        posterior = gp.update(posterior, X[row : row + 1], Y[row : row + 1], drop=num_dropped)
        if row % 40 and row < 239:
            continue
        first = row - 39 if drop else 0
        again = gp.condition(X[first : row + 1], Y[first : row + 1])
        assert len(posterior.X) == len(again.X)
        assert posterior.log_evidence == pytest.approx(again.log_evidence, rel=1e-9)
        for form in ("diag", "full"):
            found, expected = posterior.predict(later, form), again.predict(later, form)
            torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-9)
            torch.testing.assert_close(found.variance, expected.variance, rtol=1e-8, atol=1e-9)


def test_update_by_earlier_rows_and_by_none_equals_conditioning():
    X, Y, known, test = make_data(P)
    gp = OperatorValuedGP(make_kernel("lmc"), strategy="state_space")
    posterior = gp.update(gp.condition(X[:30], Y[:30], noise=known[:30]), X[30:], Y[30:], known[30:])
    expected = gp.condition(X, Y, noise=known)
    torch.testing.assert_close(posterior.predict(test, noise=True).std, expected.predict(test, noise=True).std)
    missing = torch.full((1, P), math.nan)
    assert gp.update(posterior, [[9.0]], missing, torch.ones(1, P)) is posterior
    with pytest.raises(InputError, match="noise"):
        gp.update(posterior, X[:2], Y[:2])
    with pytest.raises(InputError, match="drop"):
        gp.update(posterior, [[9.0]], missing, torch.ones(1, P), drop=1000)
    with pytest.raises(InputError, match="columns"):
        gp.update(posterior, [[9.0, 1.0]], missing, torch.ones(1, P))


def test_update_of_points_after_the_end_makes_no_solver(monkeypatch):
    X, Y, *_ = make_data(P)
    gp = OperatorValuedGP(make_kernel("lmc"), strategy="state_space")
    posterior = gp.condition(X, Y)
    expected = gp.condition(torch.cat([X, X[:1] + 9]), torch.cat([Y, Y[:1]]))
    monkeypatch.setattr(state_space, "KalmanSolver", None)  # calling it fails
    posterior = gp.update(posterior, X[:1] + 9, Y[:1])
    later = torch.tensor([[18.0]], dtype=torch.float64)
    torch.testing.assert_close(posterior.predict(later, "output").cov, expected.predict(later, "output").cov)
    assert posterior.sample(later, 5).shape == (5, 1, P)
    with pytest.raises(TypeError):
        posterior.predict(X)


@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 1.0, 10.0])
def test_roots_of_process_noise_keep_the_digits_of_small_entries(ratio):
    noise = matern_form(2.5, torch.tensor(1.0)).process_noise(torch.tensor([ratio], dtype=torch.float64))
    root, scale = state_space.scaled_root(noise), noise.diagonal(dim1=-2, dim2=-1).sqrt().unsqueeze(-1)
    torch.testing.assert_close(root @ root.mT / scale / scale.mT, noise / scale / scale.mT, rtol=0.0, atol=1e-14)


def test_functions_of_kernels_without_features_refer_to_joint_draws():
    X, Y, *_ = make_data(1)
    posterior = OperatorValuedGP(make_kernel("trend and season"), strategy="state_space").condition(X, Y)
    with pytest.raises(OptionError, match="sample"):
        posterior.sample_functions(2)
