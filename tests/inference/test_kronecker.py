"""K ⊗ Γ + I ⊗ Σ by two eigendecompositions against the explicit np × np matrix, also where it is singular or repeats."""

import pytest
import torch

from ovkgp.exceptions import FactorisationError, InputError, OptionError
from ovkgp.inference.algebra.dense import dense_log_density
from ovkgp.inference.algebra.kronecker import KroneckerSolver, kronecker_log_density

N, P = 7, 3
SIGMA = torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]], dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram(X, lengthscale=1.0):
    return torch.exp(-0.5 * (X[:, None] - X[None]).square().sum(-1) / lengthscale**2)


def close(actual, expected, rtol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def points(duplicates=False):
    X = normal(N, 2)
    return torch.cat([X[:4], X[:3]]) if duplicates else X


def output_matrix(rank):
    root = normal(P, rank, seed=1)
    return root @ root.mT


CASES = {
    "generic": lambda: (gram(points()), output_matrix(3), SIGMA),
    "singular outputs": lambda: (gram(points()), output_matrix(1), SIGMA),
    "repeated eigenvalues": lambda: (torch.eye(N).double(), torch.eye(P).double(), 0.2 * torch.eye(P).double()),
    "duplicate points": lambda: (gram(points(duplicates=True)), output_matrix(2), SIGMA),
    "no outputs correlated": lambda: (gram(points()), torch.zeros(P, P).double(), SIGMA),
}


def dense_covariance(K, G, noise):
    return torch.kron(K, G) + torch.kron(torch.eye(len(K)).double(), noise)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_the_dense_ones(name):
    inputs = [t.requires_grad_() for t in (*CASES[name](), normal(N, P, seed=2))]
    *matrices, R = inputs
    ours = kronecker_log_density(*matrices, R)
    expected = dense_log_density(dense_covariance(*matrices), R.flatten())
    close(ours, expected)
    wanted = torch.autograd.grad(2 * expected, inputs)
    for got, want in zip(torch.autograd.grad(2 * ours, inputs), wanted, strict=True):
        # ∂Σ goes through a triangular factor in one and not in the other; on symmetric matrices the two are one
        symmetric = got.shape[0] == got.shape[1]
        close((got + got.mT) / 2 if symmetric else got, (want + want.mT) / 2 if symmetric else want, 1e-9)


def test_gradient_equals_differences():
    """In the lengthscale and in roots of Γ and Σ, so that what is varied stays a covariance."""

    def density(lengthscale, root, chol, R):
        noise = chol @ chol.mT + 0.1 * torch.eye(P).double()
        return kronecker_log_density(gram(points(), lengthscale), root @ root.mT, noise, R)

    inputs = (torch.tensor(0.8).double(), normal(P, 1, seed=1), normal(P, P, seed=4), normal(N, P, seed=2))
    assert torch.autograd.gradcheck(density, [t.requires_grad_() for t in inputs])


@pytest.mark.parametrize("index", range(4))
def test_each_gradient_can_be_asked_for_alone(index):
    inputs = [*CASES["generic"](), normal(N, P, seed=2)]
    together = torch.autograd.grad(kronecker_log_density(*[t.requires_grad_() for t in inputs]), inputs)
    inputs = [t.detach() for t in inputs]
    inputs[index].requires_grad_()
    (alone,) = torch.autograd.grad(kronecker_log_density(*inputs), inputs[index])
    assert torch.equal(alone, together[index])


def test_a_second_derivative_is_refused():
    K, G, noise = CASES["generic"]()
    value = kronecker_log_density(K.requires_grad_(), G, noise, normal(N, P))
    with pytest.raises(OptionError, match="first derivatives only"):
        torch.autograd.grad(value, K, create_graph=True)


def test_nan_and_wrong_shapes_are_refused():
    K, G, noise = CASES["generic"]()
    with pytest.raises(FactorisationError, match="hyperparameters"):
        kronecker_log_density(K * float("nan"), G, noise, normal(N, P))
    with pytest.raises(FactorisationError, match="positive definite"):
        kronecker_log_density(K, G, -noise, normal(N, P))
    with pytest.raises(InputError, match=r"noise of shape \(3, 3\)"):
        kronecker_log_density(K, G, noise[:2, :2], normal(N, P))


# --- the solver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_solver_against_the_dense_inverse(name):
    K, G, noise = CASES[name]()
    R, inverse = normal(N, P, seed=2), torch.linalg.inv(dense_covariance(K, G, noise))
    solver = KroneckerSolver(K, G, noise, R)
    close(solver.alpha, (inverse @ R.flatten()).view(N, P))
    close(solver.log_density, kronecker_log_density(K, G, noise, R))
    assert solver.standard_error == 0.0 and not solver.log_density.requires_grad
    rhs = normal(N * P, 4)
    close(solver.solve(rhs), inverse @ rhs)
    close(solver.inverse_diagonal(), inverse.diagonal().view(N, P))


@pytest.mark.parametrize("name", ["generic", "singular outputs", "duplicate points"])
def test_explained_in_every_form(name):
    K, G, noise = CASES[name]()
    cross = normal(4, N, seed=3)
    wide = torch.kron(cross, G)
    expected = wide @ torch.linalg.inv(dense_covariance(K, G, noise)) @ wide.mT
    solver = KroneckerSolver(K, G, noise, normal(N, P))
    close(solver.explained(cross, "full"), expected)
    close(solver.explained(cross, "diag", num_outputs=P), expected.diagonal().view(4, P))
    blocks = torch.stack([expected[i * P : (i + 1) * P, i * P : (i + 1) * P] for i in range(4)])
    close(solver.explained(cross, "output"), blocks)
    with pytest.raises(InputError, match="its own 3 outputs"):
        solver.explained(cross, "diag", num_outputs=2)


def test_path_is_the_density_at_each_noise():
    K, G, noise = CASES["generic"]()
    R, multipliers = normal(N, P, seed=2), [0.01, 1.0, 30.0]
    expected = torch.stack([kronecker_log_density(K, G, c * noise, R) for c in multipliers])
    close(KroneckerSolver(K, G, noise, R).path(multipliers), expected)


def test_tensors_restore_the_solver_bit_for_bit():
    solver = KroneckerSolver(*CASES["generic"](), normal(N, P))
    tensors = solver.tensors()
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    again = KroneckerSolver.from_tensors({name: tensor.clone() for name, tensor in tensors.items()})
    cross, rhs = normal(4, N), normal(N * P, 2)
    assert torch.equal(again.alpha, solver.alpha) and torch.equal(again.log_density, solver.log_density)
    assert torch.equal(again.solve(rhs), solver.solve(rhs))
    assert torch.equal(again.explained(cross, "full"), solver.explained(cross, "full"))
    assert torch.equal(again.path([0.5]), solver.path([0.5]))
