"""The covariance K ⊗ Γ + I ⊗ Σ between observed entries, by the inverse for complete outputs, against dense algebra."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra import kronecker_missing
from ovkgp.inference.algebra.dense import DenseSolver, dense_log_density
from ovkgp.inference.algebra.inverse_roots import dense_inverse_root
from ovkgp.inference.algebra.kronecker import kronecker_log_density
from ovkgp.inference.algebra.kronecker_missing import MissingSolver, missing_inverse_root, missing_log_density

FORMS = ("diag", "output", "full")


def make(n=9, p=5, noise="diagonal", seed=0, level=0.1, output_rank=None):
    """K, Γ, Σ and complete residuals."""
    rng = np.random.default_rng(seed)
    X, T = rng.uniform(size=(n, 2)), np.linspace(0, 1, p)[:, None]
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1) / 0.3**2)
    G = np.exp(-0.5 * (T - T.T) ** 2 / 0.2**2)
    if output_rank is not None:
        B = rng.normal(size=(p, output_rank))
        G = B @ B.T
    A = rng.normal(size=(p, p))
    Sigma = {"diagonal": np.diag(rng.uniform(0.5, 1.5, p)), "full": A @ A.T / p + 0.5 * np.eye(p)}[noise]
    return [torch.from_numpy(a) for a in (K, G, level * Sigma, rng.normal(size=(n, p)))]


def hide(problem, mask):
    """Set residuals to NaN where `mask` is True."""
    *matrices, R = problem
    return [*matrices, torch.where(torch.as_tensor(mask), torch.nan, R)]


def random_mask(n, p, fraction, seed=1):
    return np.random.default_rng(seed).uniform(size=(n, p)) < fraction


def mask_of(case, n=9, p=5):
    mask = np.zeros((n, p), dtype=bool)
    if case == "row missing":
        mask[3] = True
    elif case == "output observed once":
        mask[1:, 2] = True
    elif case == "cut ends":
        mask[:4, 3:] = True
        mask[6, :2] = True
    elif case == "most missing":
        mask[:] = True
        mask[0, 0] = mask[4, 2] = mask[8, 1] = False
    elif case == "scattered":
        mask = random_mask(n, p, 0.2)
    return mask


CASES = ("none missing", "row missing", "output observed once", "cut ends", "most missing", "scattered")


def dense_parts(K, G, Sigma, R):
    """C between the observed entries, and their residuals."""
    observed = ~torch.isnan(R).flatten()
    C = torch.kron(K, G) + torch.kron(torch.eye(len(K), dtype=K.dtype), Sigma)
    return C[observed][:, observed], R.flatten()[observed]


def gradients(density, problem):
    """Value and gradients, those of matrices symmetrized: only their symmetric part is defined."""
    leaves = [a.clone().requires_grad_() for a in problem]
    value = density(*leaves)
    value.backward()
    found = [leaf.grad.nan_to_num() for leaf in leaves]
    return value.item(), [*((g + g.mT) / 2 for g in found[:3]), found[3]]


def close(actual, expected, rtol=1e-8):
    scale = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * max(scale, 1e-300))


def assert_equals_dense(problem, rtol=1e-8):
    """Evidence, gradient, solutions and all parts of the inverse."""
    value, found = gradients(missing_log_density, problem)
    expected, by_dense = gradients(lambda *parts: dense_log_density(*dense_parts(*parts)), problem)
    assert value == pytest.approx(expected, rel=rtol)
    for ours, theirs in zip(found, by_dense, strict=True):
        close(ours, theirs, rtol)
    C, r = dense_parts(*problem)
    solver, dense = MissingSolver(*problem), DenseSolver(C, problem[3])
    rng = torch.Generator().manual_seed(0)
    close(solver.alpha, dense.alpha, rtol)
    assert solver.log_density.item() == pytest.approx(expected, rel=rtol)
    rhs = torch.randn(problem[3].numel(), 3, generator=rng, dtype=torch.float64)
    close(solver.solve(rhs), dense.solve(rhs), rtol)
    close(solver.inverse_diagonal(), dense.inverse_diagonal(), rtol)
    n = len(problem[0])
    for rows in (torch.arange(n).unsqueeze(-1), torch.arange(n - n % 2).view(-1, 2)):
        close(solver.inverse_blocks(rows), dense.inverse_blocks(rows), rtol)
    cross = torch.randn(4, n, generator=rng, dtype=torch.float64)
    for form in FORMS:
        close(solver.explained(cross, form), dense.explained(torch.kron(cross, problem[1]), form), rtol)
    observed = ~torch.isnan(problem[3])
    root = missing_inverse_root(*problem)
    assert torch.equal(torch.isnan(root), ~observed)
    close(root[observed], dense_inverse_root(C, r), rtol)


@pytest.mark.parametrize("noise", ("diagonal", "full"))
@pytest.mark.parametrize("case", CASES)
def test_missing_solver_equals_dense_algebra(case, noise):
    assert_equals_dense(hide(make(noise=noise), mask_of(case)))


@pytest.mark.parametrize("noise", ("diagonal", "full"))
@pytest.mark.parametrize("output_rank", (1, 2))
def test_missing_solver_equals_dense_for_singular_output_matrix(output_rank, noise):
    assert_equals_dense(hide(make(noise=noise, output_rank=output_rank), mask_of("scattered")))


@pytest.mark.parametrize(("n", "p"), [(4, 12), (12, 4), (7, 1), (2, 2)])
def test_missing_solver_equals_dense_for_either_grouping(n, p):
    mask = random_mask(n, p, 0.3)
    mask[0, 0] = False
    assert_equals_dense(hide(make(n, p, noise="full"), mask))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(1, 6), st.floats(0.0, 0.95), st.booleans(), st.integers(0, 1000))
def test_missing_density_equals_dense_for_random_masks(n, p, fraction, is_full, seed):
    mask = random_mask(n, p, fraction, seed)
    mask[seed % n, seed % p] = False
    problem = hide(make(n, p, "full" if is_full else "diagonal", seed), mask)
    value, found = gradients(missing_log_density, problem)
    expected, by_dense = gradients(lambda *parts: dense_log_density(*dense_parts(*parts)), problem)
    assert value == pytest.approx(expected, rel=1e-8, abs=1e-8)
    for ours, theirs in zip(found, by_dense, strict=True):
        close(ours, theirs)


def test_missing_solver_is_unchanged_by_chunks(monkeypatch):
    problem = hide(make(noise="full"), mask_of("scattered"))
    whole, by_whole = gradients(missing_log_density, problem)
    diagonal = MissingSolver(*problem).inverse_diagonal()
    monkeypatch.setattr(kronecker_missing, "GROUP_CHUNK_ENTRIES", 1)
    value, found = gradients(missing_log_density, problem)
    assert value == pytest.approx(whole, rel=1e-12)
    for ours, theirs in zip(found, by_whole, strict=True):
        close(ours, theirs, 1e-12)
    close(MissingSolver(*problem).inverse_diagonal(), diagonal, 1e-12)


def test_missing_density_equals_kronecker_density_of_complete_outputs():
    problem = make(noise="full")
    (value, found), (expected, complete) = (gradients(f, problem) for f in (missing_log_density, kronecker_log_density))
    assert value == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(found, complete, strict=True):
        close(ours, theirs, 1e-10)


@pytest.mark.parametrize("index", range(4))
def test_missing_density_gradient_of_one_argument_equals_joint_gradient(index):
    problem = hide(make(noise="full"), mask_of("cut ends"))
    leaves = [part.clone().requires_grad_(i == index) for i, part in enumerate(problem)]
    missing_log_density(*leaves).backward()
    joint = [part.clone().requires_grad_() for part in problem]
    missing_log_density(*joint).backward()
    close(leaves[index].grad.nan_to_num(), joint[index].grad.nan_to_num(), 1e-12)


def test_missing_density_rejects_second_derivatives():
    K, *rest = hide(make(), mask_of("scattered"))
    K.requires_grad_()
    with pytest.raises(OptionError, match="create_graph"):
        torch.autograd.grad(missing_log_density(K, *rest), K, create_graph=True)


def test_missing_solver_does_not_hide_residuals_that_are_not_finite():
    problem = hide(make(), mask_of("cut ends"))
    problem[3][0, 0] = torch.inf
    assert not torch.isfinite(MissingSolver(*problem).log_density)


def test_missing_solver_explained_is_differentiable_in_the_cross_covariance():
    problem = hide(make(), mask_of("cut ends"))
    solver = MissingSolver(*problem)
    cross = torch.randn(2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: solver.explained(c, "diag"), cross)


def test_missing_solver_path_equals_density_at_each_noise():
    problem = hide(make(noise="full"), mask_of("scattered"))
    K, G, Sigma, R = problem
    expected = [dense_log_density(*dense_parts(K, G, c * Sigma, R)) for c in (0.1, 1.0, 7.0)]
    close(MissingSolver(*problem).path([0.1, 1.0, 7.0]), torch.stack(expected))


@pytest.mark.parametrize(("level", "rtol"), [(1e-2, 1e-9), (1e-4, 1e-7), (1e-6, 1e-5)])
def test_missing_solver_is_as_accurate_as_dense_for_smooth_kernels_and_little_noise(level, rtol):
    """Γ of a Gaussian kernel on a fine grid is singular to rounding; C has condition number 10⁸ at noise 1e-6.

    Both solutions have errors of about the condition number times 1e-16; `rtol` has a margin of 100. The
    backward error ‖C α − r‖ / (‖C‖ ‖α‖ + ‖r‖) does not depend on the condition, since solutions are refined.
    """
    mask = np.zeros((15, 20), dtype=bool)
    mask[:5, 14:] = True
    problem = hide(make(15, 20, level=level), mask | random_mask(15, 20, 0.05))
    C, r = dense_parts(*problem)
    solver, dense = MissingSolver(*problem), DenseSolver(C, problem[3])
    observed = ~torch.isnan(problem[3])
    alpha = solver.alpha[observed]
    size = torch.linalg.matrix_norm(C, ord=2) * torch.linalg.vector_norm(alpha) + torch.linalg.vector_norm(r)
    assert torch.linalg.vector_norm(C @ alpha - r) < 1e-14 * size  # backward stable, as a dense Cholesky factor is
    assert solver.log_density.item() == pytest.approx(dense.log_density.item(), rel=rtol)
    close(solver.alpha, dense.alpha, rtol)
    close(solver.inverse_diagonal(), dense.inverse_diagonal(), rtol)
