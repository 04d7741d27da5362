"""Conjugate gradients on Σ K_q ⊗ Γ_q + N against the explicit matrix of the observed entries.

Solves must agree to 1e-6 or better. The log determinant and the trace in the gradient are estimates: their exact standard
deviations over probes are computed from the dense matrices, and the estimates over seeds must be consistent with those.
"""

import copy
import math

import pytest
import torch
from linear_operator.utils.warnings import NumericalWarning
from pairwise import pairwise

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.inference.algebra.dense import dense_log_density
from ovkgp.inference.algebra.iterative import IterativeSolver, iterative_log_density
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum, make_preconditioner, pivoted_cholesky

N, P = 60, 3
NOISES = ("shared", "per_output", "full", "full, by point", "known")
SHAPES = pairwise(components=(1, 2), missing=(0.0, 0.3), noise=NOISES)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected, rtol):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def noise_of(kind, n=N, level=0.05):
    root = normal(P, P, seed=11)
    full = level * (root @ root.mT + torch.eye(P).double())
    rising = 0.5 + torch.linspace(0, 1, n).double()
    return {
        "shared": torch.full((1, P), level).double(),
        "per_output": level * torch.tensor([[1.0, 2.0, 0.5]]).double(),
        "full": full.unsqueeze(0),
        "full, by point": full * rising.view(n, 1, 1),
        "known": level * (0.5 + normal(n, P, seed=12).square()),
    }[kind]


def problem(components=2, missing=0.3, noise="per_output", n=N, level=0.05):
    """Grams of a Matérn-½ and a Gaussian kernel, one Γ of rank 1 and one of full rank, noise, residuals with NaN."""
    X = normal(n, 2, seed=1)
    squares = (X[:, None] - X[None]).square().sum(-1)
    roots = normal(P, P, seed=2), normal(P, 1, seed=3)
    grams = [torch.exp(-squares.clamp_min(0).sqrt()), torch.exp(-2 * squares)][:components]
    outputs = [roots[0] @ roots[0].mT, roots[1] @ roots[1].mT][:components]
    noise = noise_of(noise, n, level)
    chol = torch.linalg.cholesky(dense_covariance(grams, outputs, noise))
    R = (chol @ normal(n * P, seed=4)).view(n, P)
    R[torch.rand(n, P, generator=torch.Generator().manual_seed(5)) < missing] = float("nan")
    return grams, outputs, noise, R


def dense_covariance(grams, outputs, noise):
    """The explicit np × np matrix, missing entries and all."""
    n = len(grams[0])
    blocks = torch.diag_embed(noise) if noise.dim() == 2 else noise
    signal = sum(torch.kron(K, G) for K, G in zip(grams, outputs, strict=True))
    return signal + torch.block_diag(*blocks.expand(n, P, P))


def dense_observed(grams, outputs, noise, R):
    observed = ~torch.isnan(R).flatten()
    return dense_covariance(grams, outputs, noise)[observed][:, observed]


def padded(R, inverse):
    observed = ~torch.isnan(R).flatten()
    out = torch.zeros(len(observed), len(observed)).double()
    out[observed.outer(observed)] = inverse.flatten()
    return out


# --- parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("components", "missing", "noise"), SHAPES)
def test_product_and_preconditioner_equal_dense(components, missing, noise):
    grams, outputs, noise, R = problem(components, missing, noise)
    observed = ~torch.isnan(R)
    C = KroneckerSum(grams, outputs, noise, observed)
    masked = normal(N * P, 4) * observed.flatten().unsqueeze(1)
    dense = dense_covariance(grams, outputs, noise)
    close(C.flatten(C.apply(C.stack(masked))), dense @ masked * observed.flatten().unsqueeze(1), 1e-12)
    assert C.norm_bound() >= torch.linalg.matrix_norm(dense_observed(grams, outputs, noise, R), 2)
    preconditioner = make_preconditioner(C, max_rank=40)
    approximate = [L @ L.mT for L in preconditioner.factors]
    P_hat = dense_observed(approximate, outputs, noise, R)
    close(preconditioner.logdet(), torch.logdet(P_hat), 1e-10)
    close(C.flatten(preconditioner.solve(C.stack(masked))), padded(R, torch.linalg.inv(P_hat)) @ masked, 1e-9)


def test_probes_have_covariance_of_preconditioner():
    grams, outputs, noise, R = problem(noise="full", n=6)
    preconditioner = make_preconditioner(KroneckerSum(grams, outputs, noise, ~torch.isnan(R)), max_rank=8)
    Z = KroneckerSum.flatten(preconditioner.sample(40_000, seed=0))
    expected = padded(R, dense_observed([L @ L.mT for L in preconditioner.factors], outputs, noise, R))
    error = (Z @ Z.mT / 40_000 - expected).abs()
    d = expected.diagonal()
    assert (error <= 5 * ((d.outer(d) + expected.square()) / 40_000).sqrt()).all()  # Wishart's standard deviation


def test_pivoted_cholesky_residual_is_within_tolerance():
    K = problem()[0][1]
    L = pivoted_cholesky(K, N, 1e-3)
    residual = K - L @ L.mT
    assert L.shape[1] < N
    assert residual.diagonal().max() <= 1e-3 and residual.diagonal().min() > -1e-12
    close(pivoted_cholesky(K, N, 0.0) @ pivoted_cholesky(K, N, 0.0).mT, K, 1e-10)


# --- the solver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("components", "missing", "noise"), SHAPES)
def test_iterative_solver_equals_dense_inverse(components, missing, noise):
    grams, outputs, noise, R = problem(components, missing, noise)
    inverse = padded(R, torch.linalg.inv(dense_observed(grams, outputs, noise, R)))
    solver = IterativeSolver(grams, outputs, noise, R, max_rank=30)
    close(solver.alpha, (inverse @ R.nan_to_num().flatten()).view(N, P), 1e-8)
    rhs = torch.where(torch.isnan(R).flatten().unsqueeze(1), float("nan"), normal(N * P, 3))
    close(solver.solve(rhs), inverse @ rhs.nan_to_num(), 1e-8)
    close(solver.inverse_diagonal(), inverse.diagonal().view(N, P), 1e-8)
    cross = normal(4 * 2, N * P, seed=6)
    expected = cross @ inverse @ cross.mT
    close(solver.explained(cross, "full", num_outputs=2), expected, 1e-8)
    close(solver.explained(cross, "diag", num_outputs=2), expected.diagonal().view(4, 2), 1e-8)
    blocks = torch.stack([expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(4)])
    close(solver.explained(cross, "output", num_outputs=2), blocks, 1e-8)


@pytest.mark.parametrize("max_rank", [600, 1500])
@pytest.mark.slow
def test_iterative_solver_is_accurate_with_small_noise(max_rank):
    grams, outputs, noise, R = problem(n=400, level=1e-3)
    C, observed = dense_observed(grams, outputs, noise, R), ~torch.isnan(R).flatten()
    solver = IterativeSolver(grams, outputs, noise, R, max_rank=max_rank)
    close(solver.alpha.flatten()[observed], torch.linalg.solve(C, R.flatten()[observed]), 1e-7)
    cross = torch.kron(grams[0][:5] + 0.1, outputs[0])
    variance = torch.einsum("ij,ji->i", cross[:, observed], torch.linalg.solve(C, cross[:, observed].mT))
    close(solver.explained(cross, "diag").flatten(), variance, 1e-7)


def test_iterative_solver_of_a_known_solution_solves_nothing_again(monkeypatch):
    arguments = problem(noise="full")
    solver = IterativeSolver(*arguments, max_rank=30)
    cross, rhs = normal(4 * P, N * P), normal(N * P, 2)
    with monkeypatch.context() as patch:
        patch.setattr(IterativeSolver, "_refine", None)
        again = IterativeSolver(*arguments, max_rank=30, solution=solver.solution)
    assert all(mine is yours for mine, yours in zip(again.solution, solver.solution, strict=True))
    assert torch.equal(again.solve(rhs), solver.solve(rhs))
    assert torch.equal(again.explained(cross, "output"), solver.explained(cross, "output"))


# --- the estimates --------------------------------------------------------------------------------------------------


def standard_deviation(matrix):
    """Standard deviation of N uᵀMu / uᵀu over directions u: N entries, M symmetrized."""
    size, symmetric = len(matrix), (matrix + matrix.mT) / 2
    variance = symmetric.square().sum() - symmetric.diagonal().sum() ** 2 / size
    return math.sqrt(2 * size / (size + 2) * variance.item())


def matrix_root(matrix, power):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values**power) @ vectors.mT


def matrix_log(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.log()) @ vectors.mT


def approximate_grams(grams, outputs, noise, R, max_rank):
    preconditioner = make_preconditioner(KroneckerSum(grams, outputs, noise, ~torch.isnan(R)), max_rank)
    return [L @ L.mT for L in preconditioner.factors]


CASES = [(1, 0.3, "shared"), (2, 0.0, "full"), (2, 0.3, "known")]


@pytest.mark.parametrize(("components", "missing", "noise"), CASES)
@pytest.mark.slow
def test_log_density_is_unbiased_with_known_error(components, missing, noise):
    """20 seeds of 16 probes: z-scores by the exact deviation have mean 0 ± 3/√20, none beyond 4; reported errors are right."""
    args = problem(components, missing, noise)
    R = args[-1]
    C, P_hat = dense_observed(*args), dense_observed(approximate_grams(*args, max_rank=30), *args[1:])
    half = matrix_root(P_hat, -0.5)
    exact_error = standard_deviation(matrix_log(half @ C @ half)) / 2 / math.sqrt(16)
    expected = dense_log_density(C, R[~torch.isnan(R)])
    solvers = [IterativeSolver(*args, seed=seed, max_rank=30) for seed in range(20)]
    z = torch.tensor([(solver.log_density - expected).item() / exact_error for solver in solvers])
    assert exact_error > 0.01  # else there is nothing to test
    assert z.abs().max() < 4 and abs(z.mean()) < 3 / math.sqrt(20) and 0.6 < z.std() < 1.5
    reported = torch.tensor([solver.standard_error for solver in solvers])
    assert 0.8 < reported.square().mean().sqrt() / exact_error < 1.2
    assert torch.equal(iterative_log_density(*args, max_rank=30), iterative_log_density(*args, max_rank=30))
    close(iterative_log_density(*args, max_rank=30, seed=3), solvers[3].log_density, 1e-7)


def directions_of(grams, outputs, noise):
    """A random symmetric direction for each argument."""
    squares = [normal(len(t), len(t), seed=20 + i) for i, t in enumerate(grams + outputs)]
    by_noise = noise * normal(*noise.shape, seed=30)
    return [d @ d.mT for d in squares] + [by_noise if noise.dim() == 2 else by_noise + by_noise.mT]


def change(index, direction, grams, outputs, noise, R):
    """The change of C along a direction of one of its arguments (it is linear in each)."""
    inputs = [*grams, *outputs, noise]
    moved = [t + direction if i == index else t for i, t in enumerate(inputs)]
    q = len(grams)
    return dense_observed(moved[:q], moved[q:-1], moved[-1], R) - dense_observed(grams, outputs, noise, R)


@pytest.mark.parametrize("max_rank", [30, 1500])
@pytest.mark.parametrize(("components", "missing", "noise"), CASES)
def test_gradient_is_unbiased_with_known_error(components, missing, noise, max_rank):
    """Along a direction of every argument: z-scores by the exact deviation over probes, as for the evidence.

    With 1500 columns the preconditioner is so close that only rounding (1e-10) may be left.
    """
    grams, outputs, noise, R = args = problem(components, missing, noise)
    C, approximate = dense_observed(*args), approximate_grams(*args, max_rank=max_rank)
    P_hat = dense_observed(approximate, outputs, noise, R)
    half, whole = matrix_root(P_hat, -0.5), matrix_root(P_hat, 0.5)
    c = min(1.0, 2 / torch.linalg.eigvalsh(half @ C @ half).max().item())
    assert (c == 1) == (max_rank == 1500)  # both kinds of preconditioner are here
    inputs = [t.clone().requires_grad_() for t in (*grams, *outputs, noise)]
    split = inputs[:components], inputs[components:-1], inputs[-1], R
    exact = torch.autograd.grad(dense_log_density(dense_observed(*split), R[~torch.isnan(R)]), inputs)
    estimates = [
        torch.autograd.grad(iterative_log_density(*split, seed=seed, max_rank=max_rank, tolerance=1e-10), inputs)
        for seed in range(10)
    ]
    for i, direction in enumerate(directions_of(grams, outputs, noise)):
        dC = change(i, direction, *args)
        # the exact part of ∂Γ is that of the preconditioner's own Gram matrix
        is_output = components <= i < 2 * components
        control = change(i, direction, approximate, *args[1:]) if is_output else dC
        inner = whole @ (torch.linalg.solve(C, dC) - c * torch.linalg.solve(P_hat, control)) @ half
        error = standard_deviation(inner) / 2 / math.sqrt(16) + 1e-10 * (exact[i] * direction).abs().sum().item()
        z = torch.stack([((estimate[i] - exact[i]) * direction).sum() / error for estimate in estimates])
        assert z.abs().max() < 4 and z.mean().abs() < 3.5 / math.sqrt(10)
        assert z.std() > 0.3 or max_rank == 1500


@pytest.mark.parametrize(("components", "missing", "noise"), SHAPES)
def test_gradient_of_residuals_is_exact(components, missing, noise):
    grams, outputs, noise, R = problem(components, missing, noise)
    observed = ~torch.isnan(R)
    (got,) = torch.autograd.grad(3 * iterative_log_density(grams, outputs, noise, R.requires_grad_()), R)
    expected = torch.zeros(N, P).double()
    expected[observed] = -3 * torch.linalg.solve(dense_observed(grams, outputs, noise, R), R.detach()[observed])
    close(got, expected, 1e-5)  # the solves of the evidence stop at 1e-6


@pytest.mark.slow
def test_gradient_converges_with_many_probes():
    """Every argument at once, entry by entry, with 20 000 probes: 1/√20000 of the largest entry, times six."""
    grams, outputs, noise, R = problem(noise="full, by point", n=12)
    inputs = [t.requires_grad_() for t in (*grams, *outputs, noise, R)]
    ours = iterative_log_density(inputs[:2], inputs[2:4], *inputs[4:], num_probes=20_000, max_rank=10)
    expected = dense_log_density(dense_observed(inputs[:2], inputs[2:4], *inputs[4:]), R[~torch.isnan(R)])
    wanted = torch.autograd.grad(expected, inputs)
    for got, want in zip(torch.autograd.grad(ours, inputs), wanted, strict=True):
        assert (got - want).abs().max() < 6 / math.sqrt(20_000) * want.abs().max()


def test_iterative_solver_keeps_no_graph():
    grams, outputs, noise, R = problem()
    solver = IterativeSolver([K.requires_grad_() * 1 for K in grams], outputs, noise.requires_grad_() * 1, R)
    again = copy.deepcopy(solver)  # fails on a tensor that is not a leaf
    assert torch.equal(again.solve(normal(N * P, 1)), solver.solve(normal(N * P, 1)))


# --- failures -------------------------------------------------------------------------------------------------------


def test_iterative_solver_warns_after_too_few_iterations():
    args = problem(level=1e-3)
    with pytest.warns(NumericalWarning, match="feature map"):
        IterativeSolver(*args, max_rank=4, max_iterations=5)
    with pytest.warns(NumericalWarning, match="feature map"):
        iterative_log_density(*args, max_rank=4, max_iterations=5)


def test_log_density_rejects_second_derivatives_nan_and_wrong_shapes():
    grams, outputs, noise, R = problem()
    value = iterative_log_density([grams[0].requires_grad_(), grams[1]], outputs, noise, R)
    with pytest.raises(OptionError, match="first derivatives only"):
        torch.autograd.grad(value, grams[0], create_graph=True)
    with pytest.raises(FactorizationError, match="hyperparameters"):
        iterative_log_density([grams[0] * float("nan")], outputs[:1], noise, R)
    with pytest.raises(InputError, match=r"Σ.unsqueeze\(0\)"):
        iterative_log_density(grams, outputs, torch.eye(P).double(), R)
    with pytest.raises(InputError, match="output_matrices"):
        iterative_log_density(grams, outputs[:1], noise, R)
    with pytest.raises(InputError, match="grams has a matrix of shape"):
        iterative_log_density([g[:5, :5] for g in grams], outputs, noise, R)


def test_zero_component_changes_nothing():
    grams, outputs, noise, R = problem()
    zero = [outputs[0], torch.zeros(P, P).double()]
    alone = IterativeSolver(grams[:1], outputs[:1], noise, R)
    close(IterativeSolver(grams, zero, noise, R).alpha, alone.alpha, 1e-9)


def test_zero_residuals_have_zero_solution():
    grams, outputs, noise, R = problem()
    R = torch.where(torch.isnan(R), R, 0.0)
    solver = IterativeSolver(grams, outputs, noise, R)
    assert torch.equal(solver.alpha, torch.zeros(N, P).double())
    close(iterative_log_density(grams, outputs, noise, R), solver.log_density, 1e-7)
