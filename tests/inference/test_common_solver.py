"""(γK + I) ⊗ Σ by one Cholesky factor: against the explicit np × np matrix and the two eigendecompositions, and where it is taken.

The tolerance is relative to the largest entry, 1e-9: K may be singular, but M = γK + I is not.
"""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.estimators.storage.models import posterior_from_state, posterior_state
from ovkgp.exceptions import FactorisationError, InputError, OptionError
from ovkgp.inference import OperatorValuedGP, noise_path
from ovkgp.inference.algebra import kronecker as common_solver
from ovkgp.inference.algebra.kronecker import CommonSolver, KroneckerSolver, common_scale, kronecker_solver
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.strategies import selection as roads
from ovkgp.kernels import DecomposableKernel

N, P = 7, 3
I = torch.eye(P).double()
SIGMA = torch.tensor([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.4]], dtype=torch.float64)
FORMS = ("diag", "output", "full")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram(X):
    return torch.exp(-0.5 * (X[:, None] - X[None]).square().sum(-1))


def close(actual, expected, rtol=1e-9):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def duplicates():
    X = normal(N, 2)
    return gram(torch.cat([X[:4], X[:3]]))


CASES = {
    "alike": lambda: (gram(normal(N, 2)), I, 0.2 * I),
    "full noise": lambda: (gram(normal(N, 2)), 3.7 * SIGMA, SIGMA),
    "little noise": lambda: (gram(normal(N, 2)), I, 1e-4 * I),
    "one output": lambda: (gram(normal(N, 2)), 1.3 * I[:1, :1], 0.2 * I[:1, :1]),
    "duplicate points": lambda: (duplicates(), 0.3 * SIGMA, SIGMA),
    "one point": lambda: (gram(normal(1, 2)), 2 * SIGMA, SIGMA),
    "rank one": lambda: (torch.ones(1, 1).double().expand(N, N), I, 0.2 * I),
    "no signal": lambda: (gram(normal(N, 2)), 0 * I, SIGMA),
}


@pytest.fixture(params=CASES)
def case(request):
    """K, Γ, Σ, R."""
    K, G, noise = CASES[request.param]()
    return K, G, noise, normal(len(K), len(G), seed=2)


def dense_covariance(K, G, noise):
    return np.kron(K, G) + np.kron(np.eye(len(K)), noise)


# --- every method ---------------------------------------------------------------------------------------------------


def test_every_number_against_the_dense_matrix(case):
    K, G, noise, R = case
    C, solver = dense_covariance(K, G, noise), CommonSolver(*case)
    inverse, r = np.linalg.inv(C), R.flatten().numpy()
    close(solver.alpha, (inverse @ r).reshape(R.shape))
    density = -(r @ inverse @ r + np.linalg.slogdet(C)[1] + len(r) * np.log(2 * np.pi)) / 2
    assert solver.log_density.item() == pytest.approx(density, rel=1e-9)
    rhs = normal(len(r), 4, seed=5)
    close(solver.solve(rhs), inverse @ rhs.numpy())
    close(solver.inverse_diagonal(), inverse.diagonal().copy().reshape(R.shape))


def test_every_number_against_the_eigendecompositions(case):
    solver, eigen = CommonSolver(*case), KroneckerSolver(*case)
    rhs = normal(eigen.alpha.numel(), 4, seed=5)
    close(solver.alpha, eigen.alpha)
    close(solver.log_density, eigen.log_density)
    close(solver.solve(rhs), eigen.solve(rhs))
    close(solver.inverse_diagonal(), eigen.inverse_diagonal())
    assert solver.standard_error == eigen.standard_error == 0.0


def test_explained_in_every_form(case):
    K, G, noise, _ = case
    p, cross = len(G), normal(4, len(K), seed=3)
    solver, eigen, wide = CommonSolver(*case), KroneckerSolver(*case), np.kron(cross, G)
    full = wide @ np.linalg.inv(dense_covariance(K, G, noise)) @ wide.T
    blocks = np.stack([full[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(4)])
    expected = {"diag": full.diagonal().copy().reshape(4, p), "output": blocks, "full": full}
    for form in FORMS:
        found = solver.explained(cross, form, num_outputs=p)
        close(found, expected[form])
        close(found, eigen.explained(cross, form))


@pytest.mark.parametrize("form", FORMS)
def test_explained_is_differentiable_in_the_scalar_covariance(form):
    K, G, noise = CASES["full noise"]()
    solver, eigen = (make(K, G, noise, normal(N, P)) for make in (CommonSolver, KroneckerSolver))
    cross = normal(2, N, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda k: solver.explained(k, form), cross)
    weights = normal(*solver.explained(cross, form).shape, seed=6)
    ours, theirs = (
        torch.autograd.grad((weights * one.explained(cross, form)).sum(), cross)[0] for one in (solver, eigen)
    )
    close(ours, theirs)


def test_path_is_the_density_at_each_noise(case):
    K, G, noise, R = case
    multipliers = [0.01, 1.0, 30.0]
    solver = CommonSolver(*case)
    path = solver.path(multipliers)
    close(path, KroneckerSolver(*case).path(multipliers))
    close(path, torch.stack([CommonSolver(K, G, c * noise, R).log_density for c in multipliers]))
    close(path[1], solver.log_density)


def test_the_eigendecomposition_is_made_once_and_only_for_a_path(monkeypatch):
    calls, eigh = [], common_solver.eigh
    monkeypatch.setattr(common_solver, "eigh", lambda matrix: calls.append(len(matrix)) or eigh(matrix))
    solver = kronecker_solver(*CASES["full noise"](), normal(N, P))
    solver.solve(normal(N * P, 1)), solver.inverse_diagonal(), solver.explained(normal(2, N), "full")
    assert calls == []
    assert torch.equal(solver.path([0.5]), solver.path([0.5])) and calls == [N]


@pytest.mark.parametrize("path_first", [False, True])
def test_tensors_restore_the_solver_bit_for_bit(path_first, case):
    solver = CommonSolver(*case)
    if path_first:
        solver.path([2.0])
    tensors = solver.tensors()
    assert all(tensor.is_contiguous() for tensor in tensors.values())
    again = CommonSolver.from_tensors({name: tensor.clone() for name, tensor in tensors.items()})
    cross, rhs = normal(4, len(solver.alpha)), normal(solver.alpha.numel(), 2)
    assert torch.equal(again.alpha, solver.alpha) and torch.equal(again.log_density, solver.log_density)
    assert torch.equal(again.solve(rhs), solver.solve(rhs))
    assert torch.equal(again.inverse_diagonal(), solver.inverse_diagonal())
    assert all(torch.equal(again.explained(cross, form), solver.explained(cross, form)) for form in FORMS)
    assert torch.equal(again.path([0.5]), solver.path([0.5]))


# --- what is refused ------------------------------------------------------------------------------------------------


def test_an_output_matrix_that_is_no_multiple_of_the_noise_is_refused():
    K, G, _ = CASES["alike"]()
    with pytest.raises(InputError, match="multiple of the noise"):
        CommonSolver(K, G, SIGMA, normal(N, P))


@pytest.mark.parametrize("make", [CommonSolver, kronecker_solver])
def test_nan_and_wrong_shapes_are_refused(make):
    K, G, noise = CASES["full noise"]()
    with pytest.raises(FactorisationError, match="hyperparameters"):
        make(K * float("nan"), G, noise, normal(N, P))
    with pytest.raises(FactorisationError, match="positive definite"):
        make(K, G, -noise, normal(N, P))
    with pytest.raises(InputError, match=r"noise of shape \(3, 3\)"):
        make(K, G, noise[:2, :2], normal(N, P))
    with pytest.raises(InputError, match=r"K of shape \(6, 6\)"):
        make(K, G, noise, normal(N - 1, P))


def test_forms_and_outputs_that_there_are_not():
    solver = CommonSolver(*CASES["full noise"](), normal(N, P))
    with pytest.raises(OptionError, match="'half'"):
        solver.explained(normal(4, N), "half")
    with pytest.raises(InputError, match="its own 3 outputs"):
        solver.explained(normal(4, N), "diag", num_outputs=2)


# --- where it is taken ----------------------------------------------------------------------------------------------


def test_it_is_chosen_where_the_outputs_are_alike(case):
    assert type(kronecker_solver(*case)) is CommonSolver


def test_the_scale_is_found():
    assert common_scale(3.7 * SIGMA, SIGMA) == pytest.approx(3.7, rel=1e-14)
    assert common_scale(0 * SIGMA, SIGMA) == 0.0


@pytest.mark.parametrize(
    "G",
    [I, SIGMA + 1e-10 * torch.diag(I[0]), SIGMA + 1e-10 * (I[:1].mT @ I[2:] + I[2:].mT @ I[:1]), -SIGMA],
    ids=["other matrix", "one variance", "one covariance", "negative"],
)
def test_it_is_not_chosen_elsewhere(G):
    assert common_scale(G, SIGMA) is None
    assert type(kronecker_solver(gram(normal(N, 2)), G, SIGMA, normal(N, P))) is KroneckerSolver


def model(noise=0.05, output_matrix=I, **options):
    return OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=output_matrix), noise=noise, **options)


def table(n=12):
    X = normal(n, 2)
    return X, torch.stack([X[:, 0].sin(), X[:, 1].cos(), X.sum(1)], 1) + 0.1 * normal(n, P, seed=4)


@pytest.mark.parametrize(
    ("noise", "output_matrix", "expected"),
    [
        (0.05, I, CommonSolver),
        (SIGMA, 2 * SIGMA, CommonSolver),
        (torch.tensor([0.1, 0.1, 0.2]), I, KroneckerSolver),
        (0.05, SIGMA, KroneckerSolver),
    ],
)
def test_the_posterior_of_a_model_equals_the_dense_one(noise, output_matrix, expected):
    X, Y = table()
    ours, dense = (model(noise, output_matrix, road=road) for road in ("auto", "dense"))
    posterior, oracle = ours.condition(X, Y), dense.condition(X, Y)
    assert type(posterior.solver) is expected
    assert posterior.log_evidence == pytest.approx(oracle.log_evidence, rel=1e-9)
    new = normal(5, 2, seed=7)
    for form in FORMS:
        mine, theirs = posterior.predict(new, form), oracle.predict(new, form)
        close(mine.mean, theirs.mean)
        close(mine.std, theirs.std)
        if form != "diag":
            close(mine.cov, theirs.cov)
    for mine, theirs in zip(ours.leave_one_out(X, Y), dense.leave_one_out(X, Y), strict=True):
        close(mine, theirs)
    draws = (one.sample_functions(3, random_state=1)(new) for one in (posterior, oracle))
    close(*draws, rtol=1e-8)


def test_chunking_over_test_points_changes_nothing(monkeypatch):
    posterior, new = model().condition(*table()), normal(5, 2, seed=7)
    whole = posterior.predict(new, "diag")
    monkeypatch.setattr("ovkgp.inference.posteriors.exact.CHUNK_ENTRIES", 1)
    calls, latent = [], posterior.latent
    monkeypatch.setattr(posterior, "latent", lambda X, form: calls.append(len(X)) or latent(X, form))
    close(posterior.predict(new, "diag").std, whole.std, 1e-12)
    assert calls == [1] * 5


def test_one_output_beyond_the_dense_limit(monkeypatch):
    X, Y = table()
    gp = OperatorValuedGP(RBFKernel(), noise=0.05)
    dense = gp.condition(X, Y[:, :1])
    monkeypatch.setattr(roads, "DENSE_LIMIT", 5)
    posterior = gp.condition(X, Y[:, :1])
    assert type(posterior.solver) is CommonSolver and type(dense.solver) is not CommonSolver
    close(posterior.predict(X).std, dense.predict(X).std)


def test_the_ridge_solver_eigen_stays_an_eigendecomposition():
    X, Y = table()
    auto, eigen = (solve_ridge(model(), X, Y, solver=name) for name in ("auto", "eigen"))
    assert type(auto.solver) is CommonSolver and type(eigen.solver) is KroneckerSolver
    close(auto.predict(X).mean, eigen.predict(X).mean)
    close(auto.predict(X).std, eigen.predict(X).std)
    assert auto.log_evidence == pytest.approx(eigen.log_evidence, rel=1e-9)


def test_paths_of_the_noise_from_the_model_and_from_its_posterior():
    X, Y = table()
    multipliers = [0.1, 1.0, 10.0]
    path, posterior = noise_path(model(), X, Y, multipliers), model().condition(X, Y)
    assert type(posterior.solver) is CommonSolver
    close(posterior.noise_path(multipliers), path.log_evidence)
    each = [model(0.05 * c).condition(X, Y) for c in multipliers]
    close(path.predict(X), torch.stack([one.predict(X).mean for one in each]))


# --- stored ---------------------------------------------------------------------------------------------------------


def test_a_posterior_goes_through_its_state_bit_for_bit():
    gp, (X, Y) = model(SIGMA, 2 * SIGMA), table()
    posterior = gp.condition(X, Y)
    header, tensors = posterior_state(posterior, gp.model)
    again = posterior_from_state(header, tensors, gp.frozen().model)
    assert header["kind"] == "common" and type(again.solver) is CommonSolver
    new = normal(5, 2, seed=7)
    assert torch.equal(again.predict(new, "full").cov, posterior.predict(new, "full").cov)
    assert again.log_evidence == posterior.log_evidence


def test_a_ridge_goes_through_a_file_bit_for_bit(tmp_path):
    X, Y = (part.numpy() for part in table(30))
    ridge = ovkgp.OVKRidge(lam=0.1).fit(X, Y)
    ridge.save(tmp_path / "ridge.ovkgp")
    loaded = ovkgp.load(tmp_path / "ridge.ovkgp")
    assert type(ridge.posterior_.solver) is type(loaded.posterior_.solver) is CommonSolver
    for mine, yours in zip(ridge.predict(X, return_cov="full"), loaded.predict(X, return_cov="full"), strict=True):
        assert np.array_equal(mine, yours)
    assert torch.equal(loaded.posterior_.noise_path([0.5]), ridge.posterior_.noise_path([0.5]))
    assert np.array_equal(ridge.sample_functions(2, random_state=0)(X), loaded.sample_functions(2, random_state=0)(X))
