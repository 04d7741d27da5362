"""Tests of `ovkgp.inference.ridge.noise_path`."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from gp_cases import NOISES, Problem
from posterior_oracle import DensePosterior
from posterior_oracle import leave_rows_out as dense_rows_left_out

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import leave_rows_out, noise_path
from ovkgp.kernels import KnownMatrix

MULTIPLIERS = [0.3, 1.0, 20.0]
CASES = [
    ("icm, rank 2", 0.0, None),
    ("icm, singular", 0.0, None),
    ("icm, rank 2", 0.3, None),
    ("curl-free", 0.0, None),
    ("lmc", 0.3, None),
    ("scalar", 0.0, None),
    ("icm, rank 2", 0.0, "orff"),
    ("icm, rank 2", 0.3, "orff"),
    ("divergence-free", 0.0, "orff"),
    ("lmc", 0.3, "orff"),
    ("independent", 0.3, "orff"),
    ("curl-free", 0.0, "nystrom"),
]


def at_level(problem, c):
    """Return the model and the known noise with the noise multiplied by c."""
    gp = deepcopy(problem.gp)
    gp.noise_model.set(c * problem.gp.noise)
    known = None if problem.known is None else c * problem.known
    return gp, known


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("name", "missing", "features"), CASES)
def test_noise_path_equals_the_model_at_each_noise_level(name, missing, features, noise):
    problem = Problem(name, noise, missing, features=features, level=0.05)
    path = noise_path(problem.gp, problem.X, problem.Y, MULTIPLIERS, problem.known)
    means = path.predict(problem.test)
    for i, c in enumerate(MULTIPLIERS):
        gp, known = at_level(problem, c)
        posterior = gp.condition(problem.X, problem.Y, noise=known)
        held_out = leave_rows_out(gp, problem.X, problem.Y, known)
        assert path.log_evidence[i].item() == pytest.approx(posterior.log_evidence, rel=1e-8)
        assert path.loo_log_density[i].item() == pytest.approx(held_out.log_density.nansum().item(), rel=1e-7)
        torch.testing.assert_close(means[i], posterior.predict(problem.test, "none").mean, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("name", "missing", "features"), CASES)
def test_leave_row_out_agrees_with_the_dense_oracle(name, missing, features, noise):
    problem = Problem(name, noise, missing, features=features, level=0.05)
    wanted = dense_rows_left_out(problem.oracle())
    found = leave_rows_out(problem.gp, problem.X, problem.Y, problem.known)
    for mine, theirs in zip(found, wanted, strict=False):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("name", "missing", "features"), CASES)
def test_noise_path_factorizes_once_for_many_levels(name, missing, features, monkeypatch):
    problem = Problem(name, "float", missing, features=features, level=0.05)
    sizes = []

    def counted(factorize):
        def wrapper(matrix, *others, **options):
            if matrix.ndim == 2 and len(matrix) > problem.num_outputs:  # not the blocks of single rows
                sizes.append(len(matrix))
            return factorize(matrix, *others, **options)

        return wrapper

    for module in (torch.linalg, np.linalg):
        for factorize in ("eigh", "cholesky", "cholesky_ex"):
            if hasattr(module, factorize):
                monkeypatch.setattr(module, factorize, counted(getattr(module, factorize)))
    counts = []
    for multipliers in ([1.0], list(np.logspace(-2, 2, 20))):
        sizes.clear()
        noise_path(problem.gp, problem.X, problem.Y, multipliers)
        counts.append(list(sizes))
    assert counts[0] and counts[0] == counts[1]


def test_leave_row_out_equals_leave_one_out_for_independent_outputs():
    problem = Problem("icm, rank 2", "float", 0.0)
    problem.gp.kernel.output_module = KnownMatrix(torch.eye(3).double())
    entries = problem.gp.leave_one_out(problem.X, problem.Y)
    found = leave_rows_out(problem.gp, problem.X, problem.Y)
    torch.testing.assert_close(found.mean, entries.mean)
    torch.testing.assert_close(found.std, entries.std)
    torch.testing.assert_close(found.log_density, entries.log_density.sum(1))


def test_loo_error_is_the_mean_squared_error_of_held_out_rows():
    problem = Problem("icm, rank 2", "float", 0.0)
    path = noise_path(problem.gp, problem.X, problem.Y, [1.0])
    held_out = leave_rows_out(problem.gp, problem.X, problem.Y)
    assert path.loo_error.item() == pytest.approx((held_out.mean - problem.Y).square().mean().item())


def test_loo_error_is_weighted_by_the_inverse_noise():
    problem = Problem("curl-free", "known", 0.3)
    path = noise_path(problem.gp, problem.X, problem.Y, [1.0], problem.known)
    held_out = leave_rows_out(problem.gp, problem.X, problem.Y, problem.known)
    observed = ~problem.Y.isnan()
    weights, errors = 1 / problem.known[observed], (held_out.mean - problem.Y)[observed].square()
    assert path.loo_error.item() == pytest.approx(((weights * errors).sum() / weights.sum()).item())


@pytest.mark.parametrize(("name", "missing", "features"), CASES[:8])
def test_noise_path_rescale_equals_the_model_at_the_best_scale(name, missing, features):
    problem = Problem(name, "matrix", missing, features=features, mean="zero", level=0.05)
    path = noise_path(problem.gp, problem.X, problem.Y, [1.0, 7.0], rescale=True)
    twin = problem.oracle()
    for i, c in enumerate((1.0, 7.0)):
        level = DensePosterior(twin.K, c * twin.N, twin.M, twin.Y)
        scale = level.residual @ np.linalg.solve(level.C, level.residual) / len(level.residual)
        best = DensePosterior(scale * twin.K, scale * c * twin.N, twin.M, twin.Y)
        assert path.scales[i].item() == pytest.approx(scale, rel=1e-7)
        assert path.log_evidence[i].item() == pytest.approx(best.evidence, rel=1e-7)
        assert path.loo_log_density[i].item() == pytest.approx(np.nansum(dense_rows_left_out(best)[2]), rel=1e-6)


def test_weight_system_at_another_noise_has_its_variances_and_draws():
    problem = Problem("lmc", "float", 0.3, features="orff")
    gp, _ = at_level(problem, 5.0)
    posterior, other = problem.condition(), gp.condition(problem.X, problem.Y)
    Phi = gp.features(problem.test)
    moved = posterior.system.scale_noise(5.0)
    torch.testing.assert_close(moved.variance(Phi), other.system.variance(Phi))
    torch.testing.assert_close(moved.weights, other.weights)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    variances = [s.draw(4000, g).var(0).sum() for s, g in zip((moved, other.system), generators, strict=True)]
    assert variances[0].item() == pytest.approx(variances[1].item(), rel=0.05)
    assert moved.path(torch.tensor([2.0])).item() == pytest.approx(posterior.system.path(torch.tensor([10.0])).item())


@pytest.mark.parametrize("multipliers", [[], [0.0], [-1.0], [float("nan")], [1.0, float("inf")]])
def test_noise_path_rejects_invalid_multipliers(multipliers):
    problem = Problem("scalar", "float", 0.0)
    with pytest.raises(InputError, match="multipliers"):
        noise_path(problem.gp, problem.X, problem.Y, multipliers)


def test_noise_path_rejects_too_many_entries_for_a_dense_factorization():
    problem = Problem("lmc", "float", 0.0, n=3000)
    with pytest.raises(OptionError, match="feature map"):
        noise_path(problem.gp, problem.X, problem.Y, [1.0])
