"""The floor under the variance of features against dense conditional covariances, and what it is lifted to."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from oracles import dense, operator_valued, randomise

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors import weight_posterior as guard
from ovkgp.inference.posteriors.weight_posterior import NUGGET, VarianceFloor
from ovkgp.kernels import DecomposableKernel, components

FORMS = ("diag", "output", "full")
KERNELS = {
    "scalar": lambda: ScaleKernel(MaternKernel(nu=2.5)),
    "icm": lambda: operator_valued("decomposable"),
    "icm of rank 2": lambda: operator_valued("decomposable_known"),
    "lmc": lambda: operator_valued("lmc"),
    "curl-free": lambda: operator_valued("curl_free"),
    "helmholtz": lambda: operator_valued("helmholtz"),
    "delays": lambda: operator_valued("delays"),
}
SEEN = ("complete", "missing")


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected, rtol=1e-8):
    expected = torch.tensor(expected) if isinstance(expected, np.ndarray) else expected
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


class Case:
    """A kernel, landmarks, and which outputs were seen there."""

    def __init__(self, name, observed="complete", k=6):
        self.kernel = randomise(KERNELS[name]().double(), 3).requires_grad_(False)
        self.Z, self.X = normal(k, 2, seed=1), normal(4, 2, seed=2)
        p = self.num_outputs = self.kernel.num_outputs_per_input(self.Z, self.Z)
        self.observed = torch.ones(k, p, dtype=torch.bool)
        if observed == "missing":
            self.observed[1::2, 0] = False  # each row keeps something
            self.observed[2, -1] = p == 1
        self.guard = VarianceFloor(self.kernel, self.Z, self.observed)

    def oracle(self):
        """K(X, X) − K(X, Z) (K(Z, Z) + nugget)⁻¹ K(Z, X) on the seen entries, whole."""
        observed = self.observed.numpy().ravel()
        K, cross = dense(self.kernel, self.Z)[observed][:, observed], dense(self.kernel, self.X, self.Z)[:, observed]
        parts = components(self.kernel)
        if parts is not None and len(parts) == 1 and observed.all():  # the nugget is that of the scalar kernel, times Γ
            ((scalar, matrix),) = parts
            nugget = np.kron(np.diag(dense(scalar, self.Z)).mean() * np.eye(len(self.Z)), matrix.numpy())
        else:
            nugget = np.diag(K).mean() * np.eye(len(K))
        return dense(self.kernel, self.X) - cross @ np.linalg.pinv(K + NUGGET * nugget, hermitian=True) @ cross.T


def of_form(matrix, p, form):
    m = len(matrix) // p
    blocks = np.stack([matrix[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(m)])
    return {"full": matrix, "output": blocks, "diag": np.diag(matrix).reshape(m, p)}[form]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("observed", SEEN)
@pytest.mark.parametrize("name", KERNELS)
def test_covariance_is_that_of_dense_algebra(name, observed, form):
    case = Case(name, observed)
    close(case.guard.covariance(case.X, form), of_form(case.oracle(), case.num_outputs, form))


@pytest.mark.parametrize("observed", SEEN)
@pytest.mark.parametrize("name", KERNELS)
def test_it_vanishes_at_landmarks_and_is_the_prior_far_away(name, observed):
    case = Case(name, observed)
    prior = dense(case.kernel, case.Z).diagonal().reshape(case.observed.shape)
    at = case.guard.covariance(case.Z, "diag")
    assert (at[case.observed] <= 10 * NUGGET * prior.max()).all()
    assert (at.numpy() <= prior * (1 + 1e-12)).all()
    far = 1e4 + case.Z
    close(case.guard.covariance(far, "diag"), dense(case.kernel, far).diagonal().reshape(case.observed.shape))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("form", FORMS)
def test_one_landmark_and_one_point(name, form):
    case = Case(name, k=1)
    case.X = case.X[:1]
    close(case.guard.covariance(case.X, form), of_form(case.oracle(), case.num_outputs, form))


@pytest.mark.parametrize("observed", SEEN)
@pytest.mark.parametrize("name", ["scalar", "icm", "helmholtz"])
def test_duplicates_of_landmarks_do_no_harm(name, observed):
    case = Case(name, observed)
    twice = VarianceFloor(case.kernel, torch.cat([case.Z, case.Z]), torch.cat([case.observed, case.observed]))
    once = case.guard.covariance(case.X, "full")
    # two copies of a value halve its nugget, and nothing else
    assert (twice.covariance(case.X, "full") - once).abs().max() < 100 * NUGGET * once.abs().max()
    assert (twice.covariance(case.X, "diag") >= 0).all()


@pytest.mark.parametrize("name", ["icm", "lmc", "curl-free"])
def test_too_many_entries_leave_landmarks_out(name, monkeypatch):
    monkeypatch.setattr(guard, "MAX_ENTRIES", 6)
    case = Case(name, "missing")
    kept = int((case.observed.sum(1).cumsum(0) <= 6).sum())
    assert 1 <= kept < len(case.Z)
    fewer = VarianceFloor(case.kernel, case.Z[:kept], case.observed[:kept])
    assert torch.equal(case.guard.covariance(case.X, "full"), fewer.covariance(case.X, "full"))


def test_one_landmark_is_kept_however_many_outputs(monkeypatch):
    monkeypatch.setattr(guard, "MAX_ENTRIES", 1)
    assert len(Case("lmc").guard.landmarks) == 1


def test_separable_landmarks_are_all_kept(monkeypatch):
    monkeypatch.setattr(guard, "MAX_ENTRIES", 1)
    assert len(Case("icm").guard.landmarks) == 6


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("observed", SEEN)
@pytest.mark.parametrize("name", KERNELS)
def test_lift_raises_the_diagonal_to_the_larger_and_stays_positive(name, observed, form):
    case = Case(name, observed)
    floor = of_form(case.guard.covariance(case.X, "full").numpy(), case.num_outputs, "diag")
    root = (
        torch.nn.functional.normalize(normal(floor.size, 3, seed=9), dim=1) * torch.tensor(floor.reshape(-1, 1)).sqrt()
    )
    root[::2] *= 0.5  # every other variance is too small, the rest too large
    root[1::2] *= 1.5
    starved = root @ root.mT
    have = of_form(starved.numpy(), case.num_outputs, "diag")
    assert (floor > have).any() and (floor < have).any()
    given = torch.tensor(of_form(starved.numpy(), case.num_outputs, form))
    lifted = case.guard.lift(case.X, given, form)
    assert lifted.shape == given.shape
    diagonal = lifted.numpy() if form == "diag" else np.diagonal(lifted.numpy(), axis1=-2, axis2=-1)
    close(torch.tensor(diagonal).reshape(4, -1), np.maximum(have, floor), 1e-12)
    if form != "diag":
        assert torch.equal(lifted, lifted.mT) or (lifted - lifted.mT).abs().max() < 1e-14 * lifted.abs().max()
        assert torch.linalg.eigvalsh(lifted).min() > -1e-9 * lifted.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_enough_variance_is_left_alone(form):
    case = Case("lmc", "missing")
    wide = case.guard.covariance(case.X, form) * 2
    assert torch.equal(case.guard.lift(case.X, wide, form), wide)


def test_an_output_matrix_that_is_stored_by_columns():
    matrix = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=torch.float64).mT
    kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix).double()
    made = VarianceFloor(kernel, normal(4, 2, seed=1), torch.ones(4, 2, dtype=torch.bool))
    made.output_matrix = matrix
    X = normal(3, 2, seed=2)
    close(made.covariance(X, "full").diagonal().reshape(3, 2), made.covariance(X, "diag"), 1e-12)


def test_an_output_without_prior_variance_stays_without():
    matrix = torch.diag(torch.tensor([1.0, 0.0])).double()
    kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix).double()
    made = VarianceFloor(kernel, normal(4, 2, seed=1), torch.ones(4, 2, dtype=torch.bool))
    lifted = made.lift(normal(3, 2, seed=2), torch.zeros(3, 2, 2).double(), "output")
    assert torch.isfinite(lifted).all() and (lifted[:, 1, 1] == 0).all() and (lifted[:, 0, 0] > 0).all()


@pytest.mark.parametrize("name", ["scalar", "icm", "lmc", "curl-free"])
def test_a_guarded_posterior_is_nowhere_surer_than_its_landmarks(name):
    kernel = randomise(KERNELS[name]().double(), 3)
    X = normal(30, 2, seed=5)
    Y = normal(30, kernel.num_outputs_per_input(X, X), seed=6)
    gp = OperatorValuedGP(kernel, noise=0.01, features=ORFF(kernel, 4, num_dims=2, random_state=0))
    far = torch.cat([X[:3], 3 + normal(5, 2, seed=7)])
    bare, guarded = (gp.condition(X, Y, variance=v, num_landmarks=10) for v in ("features", "guarded"))
    floor = guarded.guard.covariance(far, "diag")
    assert len(guarded.guard.landmarks) == 10
    assert (bare.predict(far).variance < floor).any()
    close(guarded.predict(far).variance, torch.maximum(bare.predict(far).variance, floor), 1e-12)
    assert torch.equal(guarded.predict(far).mean, bare.predict(far).mean)
