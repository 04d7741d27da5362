"""Dense solver against explicit inverses, its derivatives against finite differences, and its errors."""

import math

import numpy as np
import pytest
import torch
from linear_operator.utils.warnings import NumericalWarning

from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.inference.algebra.dense import (
    DenseSolver,
    dense_log_density,
    gaussian_log_density,
    gram_in_form,
    kronecker_in_form,
    participation_ratio,
    psd_root,
    safe_cholesky,
    spectral_in_form,
)

NAN = float("nan")


def covariance(size, seed=0, noise=0.1):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT + noise * torch.eye(size, dtype=torch.float64)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected, rtol=1e-10):
    scale = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * scale)


def test_log_density_equals_torch():
    C, r = covariance(6), normal(6)
    expected = torch.distributions.MultivariateNormal(torch.zeros(6).double(), C).log_prob(r)
    close(dense_log_density(C, r), expected)


def test_derivatives_equal_finite_differences():
    def density(root, r):
        return dense_log_density(root @ root.mT + torch.eye(4).double(), r)

    inputs = normal(4, 4).requires_grad_(), normal(4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(density, inputs)
    assert torch.autograd.gradgradcheck(density, inputs)


def test_gradient_equals_closed_form():
    C, r = covariance(5).requires_grad_(), normal(5).requires_grad_()
    by_C, by_r = torch.autograd.grad(3 * dense_log_density(C, r), (C, r))
    inverse = torch.linalg.inv(C.detach())
    alpha = inverse @ r.detach()
    close(by_C, 1.5 * (alpha.outer(alpha) - inverse))
    close(by_r, -3 * alpha)
    assert torch.equal(by_C, by_C.mT)


def test_gradient_of_residuals_only():
    C, r = covariance(5), normal(5).requires_grad_()
    (by_r,) = torch.autograd.grad(dense_log_density(C, r), r)
    close(by_r, -torch.linalg.solve(C, r.detach()))


def test_cholesky_adds_jitter_with_warning():
    v = normal(6, 2)
    singular = v @ v.mT - 1e-12 * torch.eye(6).double()
    with pytest.warns(NumericalWarning, match="mean diagonal was added"):
        chol = safe_cholesky(singular)
    assert (chol @ chol.mT - singular).abs().max() < 1.1e-6 * singular.diagonal().mean()


def test_second_derivatives_use_same_jitter():
    """The matrix without its jitter is indefinite: its inverse has nothing in common with the one that was used."""
    v = normal(6, 2)
    C = (v @ v.mT - 1e-12 * torch.eye(6).double()).requires_grad_()
    with pytest.warns(NumericalWarning):
        value = dense_log_density(C, normal(6))
    once = torch.autograd.grad(value, C, retain_graph=True)[0]
    twice = torch.autograd.grad(value, C, create_graph=True)[0].detach()
    close(twice, once, 1e-4)  # the condition number is 1e10, and one method is Cholesky, the other LU


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_cholesky_rejects_nan(bad):
    C = covariance(4)
    C[1, 0] = C[0, 1] = bad
    with pytest.raises(FactorizationError, match="hyperparameters"):
        safe_cholesky(C)


def test_cholesky_rejects_indefinite_matrix():
    with pytest.raises(FactorizationError, match="more noise"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -1.0, 2.0]).double()))


# --- the solver ---------------------------------------------------------------------------------------------------


def missing_case():
    n, p = 5, 2
    R = normal(n, p)
    R[0, 1] = R[3, 0] = NAN
    observed = ~torch.isnan(R).flatten()
    full = covariance(n * p)
    return full, R, observed, full[observed][:, observed]


def padded_inverse(observed, C):
    inverse = torch.zeros(len(observed), len(observed)).double()
    inverse[observed.outer(observed)] = torch.linalg.inv(C).flatten()
    return inverse


def test_dense_solver_equals_padded_inverse():
    _, R, observed, C = missing_case()
    solver, inverse = DenseSolver(C, R), padded_inverse(observed, C)
    close(solver.alpha, (inverse @ R.nan_to_num().flatten()).view(R.shape))
    close(solver.log_density, dense_log_density(C, R.flatten()[observed]))
    assert solver.standard_error == 0.0 and not solver.log_density.requires_grad
    rhs = normal(10, 3)
    rhs[~observed] = NAN  # ignored
    close(solver.solve(rhs), inverse @ rhs.nan_to_num())
    close(solver.inverse_diagonal(), inverse.diagonal().view(R.shape))


@pytest.mark.parametrize("q", [None, 3])
def test_dense_solver_explained_equals_dense(q):
    _, R, observed, C = missing_case()
    size = 2 if q is None else q
    cross = normal(4 * size, 10, seed=5)
    expected = cross @ padded_inverse(observed, C) @ cross.mT
    solver = DenseSolver(C, R)
    close(solver.explained(cross, "full", num_outputs=q), expected)
    close(solver.explained(cross, "diag", num_outputs=q), expected.diagonal().view(4, size))
    blocks = torch.stack([expected[i * size : (i + 1) * size, i * size : (i + 1) * size] for i in range(4)])
    close(solver.explained(cross, "output", num_outputs=q), blocks)


def test_dense_solver_rejects_wrong_size():
    full, R, *_ = missing_case()
    with pytest.raises(InputError, match="covariance has shape"):
        DenseSolver(full, R)


def in_form(full, q, form):
    """Select the part of a full (m·q, m·q) covariance."""
    blocks = full.unflatten(1, (-1, q)).unflatten(0, (-1, q))
    blocks = torch.stack([blocks[i, :, i] for i in range(len(blocks))])
    return {"diag": blocks.diagonal(dim1=1, dim2=2), "output": blocks, "full": full}[form]


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_covariances_in_form_equal_dense(form):
    rows, scores, mixing, values = normal(8, 5), normal(4, 3, seed=2), normal(2, 6, seed=3), normal(3, 6, seed=4).exp()
    close(gram_in_form(rows, form, 2), in_form(rows @ rows.mT, 2, form))
    A, G = covariance(4), covariance(2, seed=5)
    scalar = A if form == "full" else A.diagonal().unsqueeze(-1)
    close(kronecker_in_form(scalar, G, form), in_form(torch.kron(A, G), 2, form))
    wide = torch.kron(scores, mixing)
    expected = wide @ torch.diag(1 / values.flatten()) @ wide.mT
    close(spectral_in_form(scores, values, mixing, form), in_form(expected, 2, form))


@pytest.mark.parametrize("rank", [1, 4])
def test_psd_root_of_singular_matrices(rank):
    rows = normal(2, 4, rank)
    matrices = rows @ rows.mT
    roots = psd_root(matrices)
    torch.testing.assert_close(roots @ roots.mT, matrices, atol=1e-12, rtol=0)
    torch.testing.assert_close(psd_root(matrices[1]).abs(), roots[1].abs(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_participation_ratio_is_the_effective_number_of_eigenvalues(shape):
    rows = normal(*shape).numpy()
    values = np.linalg.svd(rows, compute_uv=False) ** 2
    assert participation_ratio(rows) == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-12)
    assert participation_ratio(np.eye(4)) == 4 and participation_ratio(np.zeros((2, 3))) == 1


def test_gaussian_log_density_of_single_entries():
    y, std = normal(5), normal(5, seed=2).exp()
    expected = torch.distributions.Normal(torch.zeros(5).double(), std).log_prob(y)
    torch.testing.assert_close(gaussian_log_density((y / std) ** 2, 2 * std.log()), expected)
