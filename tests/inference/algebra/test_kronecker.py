"""Tests of `ovkgp.inference.algebra.kronecker`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.inference import OperatorValuedGP, noise_path
from ovkgp.inference.algebra import kronecker
from ovkgp.inference.algebra.dense import dense_log_density
from ovkgp.inference.algebra.kronecker import (
    KroneckerSolver,
    ProportionalSolver,
    kronecker_log_density,
    make_kronecker_solver,
    proportionality_factor,
)
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.strategies import selection as strategies
from ovkgp.kernels import DecomposableKernel

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
    "generic": lambda: (gram(points()), output_matrix(3), SIGMA.clone()),
    "singular outputs": lambda: (gram(points()), output_matrix(1), SIGMA.clone()),
    "repeated eigenvalues": lambda: (torch.eye(N).double(), torch.eye(P).double(), 0.2 * torch.eye(P).double()),
    "duplicate points": lambda: (gram(points(duplicates=True)), output_matrix(2), SIGMA.clone()),
    "no outputs correlated": lambda: (gram(points()), torch.zeros(P, P).double(), SIGMA.clone()),
}


def dense_covariance(K, G, noise):
    return torch.kron(K, G) + torch.kron(torch.eye(len(K)).double(), noise)


@pytest.mark.parametrize("name", CASES)
def test_log_density_and_gradient_equal_dense(name):
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


def test_gradient_equals_finite_differences():
    """In the lengthscale and in roots of Γ and Σ, so that what is varied stays a covariance."""

    def density(lengthscale, root, chol, R):
        noise = chol @ chol.mT + 0.1 * torch.eye(P).double()
        return kronecker_log_density(gram(points(), lengthscale), root @ root.mT, noise, R)

    inputs = (torch.tensor(0.8).double(), normal(P, 1, seed=1), normal(P, P, seed=4), normal(N, P, seed=2))
    assert torch.autograd.gradcheck(density, [t.requires_grad_() for t in inputs])


@pytest.mark.parametrize("index", range(4))
def test_gradient_of_one_argument_equals_joint_gradient(index):
    inputs = [*CASES["generic"](), normal(N, P, seed=2)]
    together = torch.autograd.grad(kronecker_log_density(*[t.requires_grad_() for t in inputs]), inputs)
    inputs = [t.detach() for t in inputs]
    inputs[index].requires_grad_()
    (alone,) = torch.autograd.grad(kronecker_log_density(*inputs), inputs[index])
    assert torch.equal(alone, together[index])


def test_second_derivative_is_rejected():
    K, G, noise = CASES["generic"]()
    value = kronecker_log_density(K.requires_grad_(), G, noise, normal(N, P))
    with pytest.raises(OptionError, match="first derivatives only"):
        torch.autograd.grad(value, K, create_graph=True)


def test_log_density_rejects_nan_and_wrong_shapes():
    K, G, noise = CASES["generic"]()
    with pytest.raises(FactorizationError, match="hyperparameters"):
        kronecker_log_density(K * float("nan"), G, noise, normal(N, P))
    with pytest.raises(FactorizationError, match="positive definite"):
        kronecker_log_density(K, G, -noise, normal(N, P))
    with pytest.raises(InputError, match=r"noise has shape .*\(3, 3\)"):
        kronecker_log_density(K, G, noise[:2, :2], normal(N, P))


# --- the solver ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_kronecker_solver_equals_dense_inverse(name):
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
def test_kronecker_solver_explained_equals_dense(name):
    K, G, noise = CASES[name]()
    cross = normal(4, N, seed=3)
    wide = torch.kron(cross, G)
    expected = wide @ torch.linalg.inv(dense_covariance(K, G, noise)) @ wide.mT
    solver = KroneckerSolver(K, G, noise, normal(N, P))
    close(solver.explained(cross, "full"), expected)
    close(solver.explained(cross, "diag"), expected.diagonal().view(4, P))
    blocks = torch.stack([expected[i * P : (i + 1) * P, i * P : (i + 1) * P] for i in range(4)])
    close(solver.explained(cross, "output"), blocks)


def test_kronecker_solver_path_equals_density_at_each_noise():
    K, G, noise = CASES["generic"]()
    R, multipliers = normal(N, P, seed=2), [0.01, 1.0, 30.0]
    expected = torch.stack([kronecker_log_density(K, G, c * noise, R) for c in multipliers])
    close(KroneckerSolver(K, G, noise, R).path(multipliers), expected)


I = torch.eye(P).double()
FORMS = ("diag", "output", "full")


def close_numpy(actual, expected, rtol=1e-9):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def duplicates():
    X = normal(N, 2)
    return gram(torch.cat([X[:4], X[:3]]))


PROPORTIONAL_CASES = {
    "proportional": lambda: (gram(normal(N, 2)), I, 0.2 * I),
    "full noise": lambda: (gram(normal(N, 2)), 3.7 * SIGMA, SIGMA),
    "little noise": lambda: (gram(normal(N, 2)), I, 1e-4 * I),
    "one output": lambda: (gram(normal(N, 2)), 1.3 * I[:1, :1], 0.2 * I[:1, :1]),
    "duplicate points": lambda: (duplicates(), 0.3 * SIGMA, SIGMA),
    "one point": lambda: (gram(normal(1, 2)), 2 * SIGMA, SIGMA),
    "rank one": lambda: (torch.ones(1, 1).double().expand(N, N), I, 0.2 * I),
    "no signal": lambda: (gram(normal(N, 2)), 0 * I, SIGMA),
}


@pytest.fixture(params=PROPORTIONAL_CASES)
def case(request):
    """K, Γ, Σ, R."""
    K, G, noise = PROPORTIONAL_CASES[request.param]()
    return K, G, noise, normal(len(K), len(G), seed=2)


def dense_covariance_numpy(K, G, noise):
    return np.kron(K, G) + np.kron(np.eye(len(K)), noise)


# --- every method ---------------------------------------------------------------------------------------------------


def test_proportional_solver_equals_dense_inverse(case):
    K, G, noise, R = case
    C, solver = dense_covariance_numpy(K, G, noise), ProportionalSolver(*case)
    inverse, r = np.linalg.inv(C), R.flatten().numpy()
    close_numpy(solver.alpha, (inverse @ r).reshape(R.shape))
    density = -(r @ inverse @ r + np.linalg.slogdet(C)[1] + len(r) * np.log(2 * np.pi)) / 2
    assert solver.log_density.item() == pytest.approx(density, rel=1e-9)
    rhs = normal(len(r), 4, seed=5)
    close_numpy(solver.solve(rhs), inverse @ rhs.numpy())
    close_numpy(solver.inverse_diagonal(), inverse.diagonal().copy().reshape(R.shape))


def test_proportional_solver_equals_kronecker_solver(case):
    solver, eigen = ProportionalSolver(*case), KroneckerSolver(*case)
    rhs = normal(eigen.alpha.numel(), 4, seed=5)
    close_numpy(solver.alpha, eigen.alpha)
    close_numpy(solver.log_density, eigen.log_density)
    close_numpy(solver.solve(rhs), eigen.solve(rhs))
    close_numpy(solver.inverse_diagonal(), eigen.inverse_diagonal())
    assert solver.standard_error == eigen.standard_error == 0.0


def test_proportional_solver_explained_equals_dense(case):
    K, G, noise, _ = case
    p, cross = len(G), normal(4, len(K), seed=3)
    solver, eigen, wide = ProportionalSolver(*case), KroneckerSolver(*case), np.kron(cross, G)
    full = wide @ np.linalg.inv(dense_covariance_numpy(K, G, noise)) @ wide.T
    blocks = np.stack([full[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(4)])
    expected = {"diag": full.diagonal().copy().reshape(4, p), "output": blocks, "full": full}
    for form in FORMS:
        found = solver.explained(cross, form)
        close_numpy(found, expected[form])
        close_numpy(found, eigen.explained(cross, form))


@pytest.mark.parametrize("form", FORMS)
def test_proportional_solver_explained_is_differentiable(form):
    K, G, noise = PROPORTIONAL_CASES["full noise"]()
    solver, eigen = (make(K, G, noise, normal(N, P)) for make in (ProportionalSolver, KroneckerSolver))
    cross = normal(2, N, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: solver.explained(k, form), cross)
    weights = normal(*solver.explained(cross, form).shape, seed=6)
    ours, theirs = (
        torch.autograd.grad((weights * one.explained(cross, form)).sum(), cross)[0] for one in (solver, eigen)
    )
    close_numpy(ours, theirs)


def test_proportional_solver_path_equals_density_at_each_noise(case):
    K, G, noise, R = case
    multipliers = [0.01, 1.0, 30.0]
    solver = ProportionalSolver(*case)
    path = solver.path(multipliers)
    close_numpy(path, KroneckerSolver(*case).path(multipliers))
    close_numpy(path, torch.stack([ProportionalSolver(K, G, c * noise, R).log_density for c in multipliers]))
    close_numpy(path[1], solver.log_density)


def test_proportional_solver_path_decomposes_once(monkeypatch):
    calls, eigh = [], kronecker.eigh
    monkeypatch.setattr(kronecker, "eigh", lambda matrix: calls.append(len(matrix)) or eigh(matrix))
    solver = make_kronecker_solver(*PROPORTIONAL_CASES["full noise"](), normal(N, P))
    solver.solve(normal(N * P, 1)), solver.inverse_diagonal(), solver.explained(normal(2, N), "full")
    assert calls == []
    assert torch.equal(solver.path([0.5]), solver.path([0.5])) and calls == [N]


# --- invalid arguments ------------------------------------------------------------------------------------------------


def test_proportional_solver_rejects_other_output_matrix():
    K, G, _ = PROPORTIONAL_CASES["proportional"]()
    with pytest.raises(InputError, match="multiple of the noise"):
        ProportionalSolver(K, G, SIGMA, normal(N, P))


@pytest.mark.parametrize("make", [ProportionalSolver, make_kronecker_solver])
def test_proportional_solver_rejects_nan_and_wrong_shapes(make):
    K, G, noise = PROPORTIONAL_CASES["full noise"]()
    with pytest.raises(FactorizationError, match="hyperparameters"):
        make(K * float("nan"), G, noise, normal(N, P))
    with pytest.raises(FactorizationError, match="positive definite"):
        make(K, G, -noise, normal(N, P))
    with pytest.raises(InputError, match=r"noise has shape .*\(3, 3\)"):
        make(K, G, noise[:2, :2], normal(N, P))
    with pytest.raises(InputError, match=r"K has shape .*\(6, 6\)"):
        make(K, G, noise, normal(N - 1, P))


# --- where it is taken ----------------------------------------------------------------------------------------------


def test_proportional_solver_is_selected_for_proportional_outputs(case):
    assert type(make_kronecker_solver(*case)) is ProportionalSolver


def test_proportionality_factor_is_found():
    assert proportionality_factor(3.7 * SIGMA, SIGMA) == pytest.approx(3.7, rel=1e-14)
    assert proportionality_factor(0 * SIGMA, SIGMA) == 0.0


@pytest.mark.parametrize(
    "G",
    [I, SIGMA + 1e-10 * torch.diag(I[0]), SIGMA + 1e-10 * (I[:1].mT @ I[2:] + I[2:].mT @ I[:1]), -SIGMA],
    ids=["other matrix", "one variance", "one covariance", "negative"],
)
def test_kronecker_solver_is_selected_otherwise(G):
    assert proportionality_factor(G, SIGMA) is None
    assert type(make_kronecker_solver(gram(normal(N, 2)), G, SIGMA, normal(N, P))) is KroneckerSolver


def model(noise=0.05, output_matrix=I, **options):
    return OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=output_matrix), noise=noise, **options)


def table(n=12):
    X = normal(n, 2)
    return X, torch.stack([X[:, 0].sin(), X[:, 1].cos(), X.sum(1)], 1) + 0.1 * normal(n, P, seed=4)


@pytest.mark.parametrize(
    ("noise", "output_matrix", "expected"),
    [
        (0.05, I, ProportionalSolver),
        (SIGMA, 2 * SIGMA, ProportionalSolver),
        (torch.tensor([0.1, 0.1, 0.2]), I, KroneckerSolver),
        (0.05, SIGMA, KroneckerSolver),
    ],
)
def test_posterior_equals_dense_strategy(noise, output_matrix, expected):
    X, Y = table()
    ours, dense = (model(noise, output_matrix, strategy=strategy) for strategy in ("auto", "dense"))
    posterior, oracle = ours.condition(X, Y), dense.condition(X, Y)
    assert type(posterior.solver) is expected
    assert posterior.log_evidence == pytest.approx(oracle.log_evidence, rel=1e-9)
    new = normal(5, 2, seed=7)
    for form in FORMS:
        mine, theirs = posterior.predict(new, form), oracle.predict(new, form)
        close_numpy(mine.mean, theirs.mean)
        close_numpy(mine.std, theirs.std)
        if form != "diag":
            close_numpy(mine.cov, theirs.cov)
    for mine, theirs in zip(ours.leave_one_out(X, Y), dense.leave_one_out(X, Y), strict=True):
        close_numpy(mine, theirs)
    draws = (one.sample_functions(3, random_state=1)(new) for one in (posterior, oracle))
    close_numpy(*draws, rtol=1e-8)


def test_posterior_is_unchanged_by_chunks(monkeypatch):
    posterior, new = model().condition(*table()), normal(5, 2, seed=7)
    whole = posterior.predict(new, "diag")
    monkeypatch.setattr("ovkgp.inference.posteriors.exact.CHUNK_ENTRIES", 1)
    calls, latent = [], posterior.latent
    monkeypatch.setattr(posterior, "latent", lambda X, form: calls.append(len(X)) or latent(X, form))
    close_numpy(posterior.predict(new, "diag").std, whole.std, 1e-12)
    assert calls == [1] * 5


def test_posterior_of_one_output_beyond_dense_limit(monkeypatch):
    X, Y = table()
    gp = OperatorValuedGP(RBFKernel(), noise=0.05)
    dense = gp.condition(X, Y[:, :1])
    monkeypatch.setattr(strategies, "MAX_DENSE_ENTRIES", 5)
    posterior = gp.condition(X, Y[:, :1])
    assert type(posterior.solver) is ProportionalSolver and type(dense.solver) is not ProportionalSolver
    close_numpy(posterior.predict(X).std, dense.predict(X).std)


def test_ridge_solver_eigen_uses_eigendecomposition():
    X, Y = table()
    auto, eigen = (solve_ridge(model(), X, Y, solver=name) for name in ("auto", "eigen"))
    assert type(auto.solver) is ProportionalSolver and type(eigen.solver) is KroneckerSolver
    close_numpy(auto.predict(X).mean, eigen.predict(X).mean)
    close_numpy(auto.predict(X).std, eigen.predict(X).std)
    assert auto.log_evidence == pytest.approx(eigen.log_evidence, rel=1e-9)


def test_noise_paths_of_model_and_posterior_agree():
    X, Y = table()
    multipliers = [0.1, 1.0, 10.0]
    path, posterior = noise_path(model(), X, Y, multipliers), model().condition(X, Y)
    assert type(posterior.solver) is ProportionalSolver
    close_numpy(posterior.noise_path(multipliers), path.log_evidence)
    each = [model(0.05 * c).condition(X, Y) for c in multipliers]
    close_numpy(path.predict(X), torch.stack([one.predict(X).mean for one in each]))


# --- stored ---------------------------------------------------------------------------------------------------------


def test_ridge_file_restores_bit_for_bit(tmp_path):
    X, Y = (part.numpy() for part in table(30))
    ridge = ovkgp.OVKRidge(lam=0.1).fit(X, Y)
    ridge.save(tmp_path / "ridge.ovkgp")
    loaded = ovkgp.load(tmp_path / "ridge.ovkgp")
    assert type(ridge.posterior_.solver) is type(loaded.posterior_.solver) is ProportionalSolver
    for mine, yours in zip(ridge.predict(X, return_cov="full"), loaded.predict(X, return_cov="full"), strict=True):
        assert np.array_equal(mine, yours)
    assert torch.equal(loaded.posterior_.noise_path([0.5]), ridge.posterior_.noise_path([0.5]))
    assert np.array_equal(ridge.sample_functions(2, random_state=0)(X), loaded.sample_functions(2, random_state=0)(X))


def test_kronecker_solver_with_another_noise_equals_a_new_one():
    generator = torch.Generator().manual_seed(0)
    X, root = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 2), (3, 3)))
    K, output_matrix = X @ X.mT + torch.eye(6).double(), root @ root.mT
    noise, residuals = (
        torch.diag(torch.tensor([0.5, 1.0, 2.0]).double()),
        torch.randn(6, 3, generator=generator).double(),
    )
    changed = KroneckerSolver(K, output_matrix, noise, residuals).with_noise(0.3)
    expected = KroneckerSolver(K, output_matrix, 0.3 * noise, residuals)
    torch.testing.assert_close(changed.alpha, expected.alpha)
    torch.testing.assert_close(changed.log_density, expected.log_density)
    rhs = torch.randn(18, 2, generator=generator).double()
    torch.testing.assert_close(changed.solve(rhs), expected.solve(rhs))
    torch.testing.assert_close(changed.explained(K[:2], "diag"), expected.explained(K[:2], "diag"))
