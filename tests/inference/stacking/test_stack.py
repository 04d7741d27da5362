"""Tests of `ovkgp.inference.stacking.stack` and `candidates`."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from ovkgp.inference.model.observations import Observations
from ovkgp.inference.stacking import candidates
from ovkgp.inference.stacking import stack as stack_module
from ovkgp.inference.stacking.candidates import CoupledCandidate, IndependentCandidate, default_candidates
from ovkgp.inference.stacking.output_draws import MIN_SEARCH_ROWS
from ovkgp.inference.stacking.output_posterior import OutputPosterior
from ovkgp.inference.stacking.stack import StackPosterior, fit_stack, residual_correlation, stacking_weights

CHEAP = default_candidates()[:2]


def data(n=30, p=2, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    noise = rng.standard_normal((n, p)) + rng.standard_normal((n, 1))  # correlated
    Y = np.sin(X @ rng.standard_normal((2, p))) + 0.3 * noise
    Y = (Y - Y.mean(0)) / Y.std(0)
    Y[rng.random(Y.shape) < missing] = np.nan
    return Observations(torch.from_numpy(X), torch.from_numpy(Y)).observed_rows()


def test_weights_maximize_the_density_of_held_out_rows_with_pseudo_counts():
    log_density = np.random.default_rng(0).normal(0, 2, (40, 3))

    def objective(free):
        weights = np.exp(free) / np.exp(free).sum()
        return -np.log(np.exp(log_density) @ weights).sum() - np.log(weights).sum()

    best = minimize(objective, np.zeros(3), tol=1e-12)
    np.testing.assert_allclose(stacking_weights(log_density), np.exp(best.x) / np.exp(best.x).sum(), atol=1e-4)


def test_weights_are_those_of_the_pseudo_counts_if_one_candidate_is_impossible():
    log_density = np.stack([np.zeros(20), np.full(20, -1e4)], 1)
    np.testing.assert_allclose(stacking_weights(log_density), [21 / 22, 1 / 22], rtol=1e-12)


def test_residual_correlation_is_shrunk_and_positive_definite():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 3))
    R = np.corrcoef(scores.T)
    found = residual_correlation(scores - scores.mean(0))
    clipped = np.clip(scores - scores.mean(0), -4, 4)
    moments = clipped.T @ clipped
    root = np.sqrt(moments.diagonal())
    np.testing.assert_allclose(found, 50 / 53 * moments / np.outer(root, root) + 3 / 53 * np.eye(3), rtol=1e-10)
    assert np.sign(found[0, 1]) == np.sign(R[0, 1])
    scores[rng.random(scores.shape) < 0.6] = np.nan
    incomplete = residual_correlation(scores)
    assert np.linalg.eigvalsh(incomplete).min() > 0
    np.testing.assert_allclose(incomplete.diagonal(), 1.0, rtol=1e-12)


def test_mixture_density_is_the_weighted_sum_over_candidates():
    rows = data()
    stack = fit_stack(CHEAP, rows)
    posterior, points = stack.posterior, torch.randn(4, 2, dtype=torch.float64)
    prediction = posterior.predict(points, "diag", noise=True)
    y = torch.zeros(4, 2, dtype=torch.float64)
    parts = [part.predict(points, "diag", noise=True).log_density(y) for part in posterior.parts]
    weights = torch.from_numpy(posterior.weights)
    expected = (weights[:, None, None] * torch.stack(parts).exp()).sum(0).log()
    torch.testing.assert_close(prediction.log_density(y), expected)
    assert set(stack.scores) == {candidate.name for candidate in CHEAP}
    assert sum(score.weight for score in stack.scores.values()) == pytest.approx(1.0)
    assert stack.gp.fit_report_.converged and stack.gp.fit_report_.num_rows == 30
    assert posterior.correlation[0, 1] > 0.1  # the noise is correlated


def test_scores_are_mean_densities_of_entries_given_the_other_rows():
    rows = data(12)
    fit = CHEAP[0].train(rows)
    held_out = fit.posterior.leave_groups_out(rows, torch.arange(12))
    scores = fit_stack(CHEAP[:1], rows).scores[CHEAP[0].name]
    assert scores.weight == pytest.approx(1.0) and scores.log_density == pytest.approx(fit.log_density.mean())
    assert scores.standard_error == pytest.approx(fit.log_density.std(ddof=1) / 24**0.5)
    assert held_out.shape == (3, 12, 2)


def test_candidates_with_small_weights_are_dropped(monkeypatch):
    monkeypatch.setattr("ovkgp.inference.stacking.stack.MIN_WEIGHT", 0.6)
    stack = fit_stack(CHEAP, data(60))
    assert len(stack.posterior) == 1 and stack.posterior.weights.tolist() == [1.0] and len(stack.scores) == 2


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_states_give_the_same_posterior(missing):
    rows = data(30, missing=missing)
    own = [*CHEAP, CoupledCandidate("coupled", "icm", "matern52"), CoupledCandidate("sum", "lmc", "matern52")]
    posterior = fit_stack(own, rows).posterior
    again = StackPosterior.of_states(
        posterior.candidates, posterior.states, posterior.weights, rows, posterior.correlation
    )
    points = torch.randn(3, 2, dtype=torch.float64)
    for form in ("diag", "output", "full"):
        one, two = (p.predict(points, form, noise=True) for p in (posterior, again))
        torch.testing.assert_close(one._covariance, two._covariance, rtol=1e-12, atol=1e-14)
    mean, std, cdf = posterior.leave_groups_out(torch.arange(rows.num_rows))
    assert bool((torch.isfinite(mean) == rows.observed).all()) and bool((std[rows.observed] > 0).all())
    assert bool(((cdf > 0) & (cdf < 1))[rows.observed].all())


def linear_data(n=310):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 6))
    Y = X @ rng.standard_normal((6, 1)) + 0.05 * rng.standard_normal((n, 1))
    return Observations(torch.from_numpy(X), torch.from_numpy(Y / Y.std()))


def test_candidates_that_lose_on_a_subset_are_not_trained_on_all_of_many_rows(monkeypatch):
    rows = linear_data()  # Matérn 3/2 without a linear term is far worse
    monkeypatch.setattr(stack_module, "MAX_COMPARED_ROWS", 300)
    trained = []
    train = candidates.IndependentFit.train
    monkeypatch.setattr(
        candidates.IndependentFit,
        "train",
        lambda self, **options: (trained.append(self.candidate.name), train(self, **options))[1],
    )
    stack = fit_stack(CHEAP, rows, average=False)
    linear, rough = (one.name for one in CHEAP)
    assert trained == [linear] and stack.scores[linear].weight == 1.0
    assert stack.scores[rough].weight == 0.0 and stack.scores[rough].log_density < stack.scores[linear].log_density


def test_candidates_that_lose_on_a_subset_are_not_averaged(monkeypatch):
    rows, folds = linear_data(), []
    fold_density = candidates._fold_density
    monkeypatch.setattr(
        candidates, "_fold_density", lambda *given: (folds.append(len(given[1])), fold_density(*given))[1]
    )
    monkeypatch.setattr(stack_module, "MIN_WEIGHT", 0.0)
    linear, rough = fit_stack(CHEAP, rows).posterior.parts
    assert len(linear.parts[0].weights) == 16 and len(rough.parts[0].weights) == 1
    assert folds == [MIN_SEARCH_ROWS] * 2  # to screen; the weights are those of leave-one-out


def test_fold_problems_are_shared_by_outputs():
    problem = candidates.IndependentFit(CHEAP[0], data(40))
    (one, *_), (two, *_) = problem.outputs()
    assert one is two and one.folds is two.folds
    held_out = np.stack([left for (_, left), _ in one.folds])
    np.testing.assert_array_equal(held_out.sum(0), 1)
    for (kept, left), part in one.folds:
        np.testing.assert_array_equal(part.X, one.X[kept])
        np.testing.assert_array_equal(kept, ~left)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_screening_scores_each_output_on_a_subset_of_its_rows(missing):
    rows = data(450, missing=missing)
    training = CHEAP[0].begin(rows)
    densities = training.screen()
    for a, (problem, y, _, own) in enumerate(training.outputs()):
        found = np.flatnonzero(np.isfinite(densities[:, a]))
        if problem.subset is None:
            assert found.size == 0
            continue
        assert set(found) <= set(np.flatnonzero(own)) and len(found) == len(problem.subset[0])
        first = training.first[a]
        np.testing.assert_array_equal(first.y, y[problem.subset[0]])
        found = densities[np.flatnonzero(own)[first.rows], a]
        leave_one_out = OutputPosterior(first.problem, first.y, first.known, first.draws).held_out_density()
        assert np.abs(found - leave_one_out).max() > 1e-3  # those of folds, with hyperparameters trained without them
        assert np.corrcoef(found, leave_one_out)[0, 1] > 0.8


def test_missing_outputs_are_ignored_by_independent_candidates():
    rows = data(30, missing=0.4)
    posterior = CHEAP[1].train(rows).posterior
    kept = rows.observed[:, 0]
    alone = CHEAP[1].train(Observations(rows.X[kept], rows.Y[kept][:, :1])).posterior
    points = torch.randn(3, 2, dtype=torch.float64)
    one, two = (p.predict(points, "diag", noise=True) for p in (posterior, alone))
    torch.testing.assert_close(one.mean[:, :1], two.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one.std[:, :1], two.std, rtol=1e-10, atol=1e-12)


def test_known_noise_replaces_the_trained_one():
    rows = data(20)
    known = Observations(rows.X, rows.Y, torch.full_like(rows.Y, 0.04))
    fit = CHEAP[1].train(known)
    torch.testing.assert_close(fit.posterior.noise.diagonal(), torch.full((2,), 0.04).double())
    assert all(part.known is not None for part in fit.posterior.parts)


def test_fold_densities_are_held_out_predictions_of_models_trained_on_other_folds(monkeypatch):
    rows = data(40, p=1)
    at_mode = CHEAP[1].train(rows, average=False)
    leave_one_out = at_mode.posterior.parts[0].held_out_density()
    by_folds = at_mode.log_density[:, 0]
    assert np.isfinite(by_folds).all() and np.abs(by_folds - leave_one_out).max() > 1e-3
    assert np.corrcoef(by_folds, leave_one_out)[0, 1] > 0.8
    monkeypatch.setattr(candidates, "MAX_FOLD_ROWS", 10)
    np.testing.assert_allclose(CHEAP[1].train(rows, average=False).log_density[:, 0], leave_one_out, rtol=1e-10)


def test_model_of_a_candidate_predicts_like_its_mode():
    rows = data(25)
    fit = CHEAP[0].train(rows, average=False)
    points = torch.randn(3, 2, dtype=torch.float64)
    by_gp = fit.make_gp().condition(rows.X, rows.Y).predict(points, "diag", noise=True)
    by_draws = fit.posterior.predict(points, "diag", noise=True)
    torch.testing.assert_close(by_gp.mean, by_draws.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(by_gp.std, by_draws.std, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("base", [None, "rbf"])
def test_default_candidates_have_distinct_names_and_the_given_kernel(base):
    found = default_candidates(base)
    assert len({candidate.name for candidate in found}) == 3
    assert all(isinstance(candidate, IndependentCandidate) for candidate in found)
    assert base is None or {candidate.base for candidate in found} == {"rbf"}


def test_spectra_are_predicted_by_the_linear_term():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 4)) @ rng.standard_normal((4, 50)) + 0.01 * rng.standard_normal((60, 50))
    X = (X - X.mean(0)) / X.std(0)
    y = X @ rng.standard_normal(50)
    y = (y - y.mean()) / y.std()
    train, test = slice(0, 40), slice(40, 60)
    rows = Observations(torch.from_numpy(X[train]), torch.from_numpy(y[train, None]))
    mean = fit_stack(default_candidates(), rows).posterior.predict(torch.from_numpy(X[test]), "none").mean[:, 0]
    assert np.sqrt(np.mean((mean.numpy() - y[test]) ** 2)) < 0.05


def test_vector_field_is_computed_in_common_units():
    """Standardized columns times the given scales are the data of the field; predictions are in standardized units."""
    rows = data(24)
    inputs, outputs = (0.5, 1.3), (0.7, 1.2)
    candidate = CoupledCandidate("field", "helmholtz", "rbf", input_scale=inputs, output_scale=outputs)
    fit = candidate.train(rows, average=False)
    scale = torch.tensor(outputs, dtype=torch.float64)
    own = rows.X * torch.tensor(inputs, dtype=torch.float64), rows.Y * scale
    direct = fit.make_gp().condition(*own)
    points = torch.randn(3, 2, dtype=torch.float64)
    for form in ("diag", "output", "full"):
        found = fit.posterior.predict(points, form, noise=True)
        expected = direct.predict(points * torch.tensor(inputs, dtype=torch.float64), form, noise=True)
        torch.testing.assert_close(found.mean * scale, expected.mean)
        torch.testing.assert_close(found.std * scale, expected.std)
    tiled = scale.repeat(3)
    torch.testing.assert_close(found.cov * torch.outer(tiled, tiled), expected.cov)
    torch.testing.assert_close(fit.posterior.noise * torch.outer(scale, scale), direct.noise)
    assert fit.posterior.log_evidence == pytest.approx(direct.log_evidence + 24 * np.log(outputs).sum())
    functions = fit.posterior.sample_functions(2, random_state=0)(points)
    moved = direct.sample_functions(2, random_state=0)(points * torch.tensor(inputs, dtype=torch.float64))
    torch.testing.assert_close(functions * scale, moved)
    loo = fit.make_gp().leave_one_out(*own, groups="rows")
    density = torch.distributions.Normal(loo.mean, loo.std).log_prob(own[1]) + scale.log()
    np.testing.assert_allclose(fit.log_density, density, rtol=1e-8)


@pytest.mark.parametrize(
    ("candidate", "missing"),
    [
        (CoupledCandidate("coupled", "icm", "matern52"), 0.3),
        (CoupledCandidate("field", "helmholtz", "rbf", input_scale=(0.5, 1.3), output_scale=(0.7, 1.2)), 0.0),
    ],
)
def test_averaged_coupled_candidate_is_the_mixture_of_its_models(candidate, missing):
    rows = data(24, missing=missing)
    fit = candidate.train(rows)
    own, weights, points = candidate.scale(rows), fit.posterior.weights, torch.randn(3, 2, dtype=torch.float64)
    scale = torch.tensor(candidate.output_scale or (1.0, 1.0), dtype=torch.float64)
    predictions, held_out = [], []
    for gp in fit.posterior.models():
        one = gp.condition(own.X, own.Y).predict(candidate.scale_inputs(points), "output", noise=True)
        predictions.append((one.mean / scale, one.cov / torch.outer(scale, scale)))
        mean, std, joint, *_ = gp.leave_one_out(own.X, own.Y, groups="rows")
        entries = torch.distributions.Normal(mean, std, validate_args=False).log_prob(own.Y) + scale.log()
        held_out.append((joint.numpy(), entries.numpy()))
    means, covariances = (torch.stack(part) for part in zip(*predictions, strict=True))
    found, w = fit.posterior.predict(points, "output", noise=True), torch.from_numpy(weights)
    mean = torch.einsum("s,smp->mp", w, means)
    between = torch.einsum("s,smp,smq->mpq", w, means - mean, means - mean)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.cov, torch.einsum("s,smpq->mpq", w, covariances) + between)
    # given the other rows, a draw has the weight w_s / p(y_i | y_−i, θ_s) for the joint density of the row
    joint, entries = (np.stack(part) for part in zip(*held_out, strict=True))
    ratios = np.log(weights)[:, None] - joint
    ratios = ratios - logsumexp(ratios, axis=0)
    np.testing.assert_allclose(fit.log_density, logsumexp(ratios[..., None] + entries, axis=0), rtol=1e-8)
    # whose normalization is the harmonic mean
    total = logsumexp(ratios + joint, axis=0)
    np.testing.assert_allclose(total, -logsumexp(np.log(weights)[:, None] - joint, axis=0), rtol=1e-8)
    found = fit.posterior.leave_groups_out(rows, torch.arange(rows.num_rows) // 3)
    assert bool((torch.isfinite(found[0]) == rows.observed).all())
    functions = fit.posterior.sample_functions(400, random_state=0)(points)
    prediction = fit.posterior.predict(points)
    assert float(((functions.mean(0) - prediction.mean) / prediction.std).abs().max()) < 0.3


def test_mixture_with_a_field_shows_the_model_of_another_candidate():
    rows = data(24)
    field = CoupledCandidate("field", "helmholtz", "rbf", input_scale=(1.0, 1.0), output_scale=(1.0, 1.0))
    stack = fit_stack([field, CHEAP[0]], rows)
    assert stack.name == CHEAP[0].name and set(stack.scores) == {"field", CHEAP[0].name}


# --- joint log density ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def correlated_stack():
    rng = np.random.default_rng(3)
    X = torch.from_numpy(rng.standard_normal((25, 1)))
    noise = rng.standard_normal((25, 2)) @ np.array([[0.5, 0.4], [0.0, 0.3]])
    Y = torch.from_numpy(np.hstack([np.sin(X.numpy()), np.cos(X.numpy())]) + noise)
    data = Observations(X, (Y - Y.mean(0)) / Y.std(0, correction=0))
    return {average: fit_stack(default_candidates(), data, average=average).posterior for average in (True, False)}


@pytest.mark.parametrize("average", [pytest.param(True, marks=pytest.mark.slow), False])
def test_joint_log_density_of_a_mixture_integrates_to_one_and_has_its_marginals(correlated_stack, average):
    posterior, x = correlated_stack[average], torch.tensor([[0.3]], dtype=torch.float64)
    assert abs(posterior.correlation[0, 1]) > 0.3
    levels = torch.linspace(-9, 9, 241, dtype=torch.float64)
    Y = torch.cartesian_prod(levels, levels)
    density = posterior.joint_log_density(x.expand(len(Y), 1), Y).exp().reshape(241, 241)
    step = float(levels[1] - levels[0])
    assert float(density.sum() * step**2) == pytest.approx(1.0, abs=1e-3)
    entries = torch.stack([levels, torch.full_like(levels, torch.nan)], 1)
    alone = posterior.joint_log_density(x.expand(len(levels), 1), entries).exp()
    np.testing.assert_allclose(density.sum(1) * step, alone, atol=2e-3)
    expected = posterior.predict(x, "diag", noise=True).log_density(entries.unsqueeze(1))[:, 0, 0].exp()
    np.testing.assert_allclose(alone, expected, atol=1e-9)


def test_joint_log_density_at_the_mode_is_gaussian(correlated_stack):
    posterior, X = correlated_stack[False], torch.tensor([[0.3], [-1.0]], dtype=torch.float64)
    Y = torch.tensor([[0.2, -0.5], [1.0, 0.4]], dtype=torch.float64)
    parts = []
    for part in posterior.parts:
        found = part.predict(X, "output", noise=True)
        parts.append([multivariate_normal.logpdf(y, m, c) for y, m, c in zip(Y, found.mean, found.cov, strict=True)])
    expected = logsumexp(np.array(parts) + np.log(posterior.weights)[:, None], 0)
    np.testing.assert_allclose(posterior.joint_log_density(X, Y), expected, atol=1e-9)
    nothing = posterior.joint_log_density(X, torch.full_like(Y, torch.nan))
    np.testing.assert_allclose(nothing, 0.0, atol=1e-12)
