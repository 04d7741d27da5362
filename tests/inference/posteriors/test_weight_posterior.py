"""The floor under the variance of features against dense conditional covariances, and what it is lifted to."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from oracles import dense, operator_valued, randomize
from pairwise import pairwise

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors import weight_posterior as module
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
OBSERVED = ("complete", "missing")


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(actual, expected, rtol=1e-8):
    expected = torch.tensor(expected) if isinstance(expected, np.ndarray) else expected
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


class Case:
    """A kernel, landmarks, and the outputs observed there."""

    def __init__(self, name, observed="complete", k=6):
        self.kernel = randomize(KERNELS[name]().double(), 3).requires_grad_(False)
        self.Z, self.X = normal(k, 2, seed=1), normal(4, 2, seed=2)
        p = self.num_outputs = self.kernel.num_outputs_per_input(self.Z, self.Z)
        self.observed = torch.ones(k, p, dtype=torch.bool)
        if observed == "missing":
            self.observed[1::2, 0] = False  # each row keeps something
            self.observed[2, -1] = p == 1
        self.variance_floor = VarianceFloor(self.kernel, self.Z, self.observed)

    def oracle(self):
        """K(X, X) − K(X, Z) (K(Z, Z) + nugget)⁻¹ K(Z, X) on the observed entries, in full."""
        observed = self.observed.numpy().ravel()
        K, cross = dense(self.kernel, self.Z)[observed][:, observed], dense(self.kernel, self.X, self.Z)[:, observed]
        parts = components(self.kernel)
        if parts is not None and len(parts) == 1 and observed.all():  # the nugget is that of the scalar kernel, times Γ
            ((scalar, matrix),) = parts
            nugget = np.kron(np.diag(dense(scalar, self.Z)).mean() * np.eye(len(self.Z)), matrix.numpy())
        else:
            nugget = np.diag(K).mean() * np.eye(len(K))
        return dense(self.kernel, self.X) - cross @ np.linalg.pinv(K + NUGGET * nugget, hermitian=True) @ cross.T


def select_form(matrix, p, form):
    m = len(matrix) // p
    blocks = np.stack([matrix[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(m)])
    return {"full": matrix, "output": blocks, "diag": np.diag(matrix).reshape(m, p)}[form]


@pytest.mark.parametrize(("name", "observed", "form"), pairwise(name=KERNELS, observed=OBSERVED, form=FORMS))
def test_variance_floor_equals_dense_algebra(name, observed, form):
    case = Case(name, observed)
    close(case.variance_floor.covariance(case.X, form), select_form(case.oracle(), case.num_outputs, form))


@pytest.mark.parametrize("observed", OBSERVED)
@pytest.mark.parametrize("name", KERNELS)
def test_variance_floor_vanishes_at_landmarks_and_is_prior_far_away(name, observed):
    case = Case(name, observed)
    prior = dense(case.kernel, case.Z).diagonal().reshape(case.observed.shape)
    at = case.variance_floor.covariance(case.Z, "diag")
    assert (at[case.observed] <= 10 * NUGGET * prior.max()).all()
    assert (at.numpy() <= prior * (1 + 1e-12)).all()
    far = 1e4 + case.Z
    close(case.variance_floor.covariance(far, "diag"), dense(case.kernel, far).diagonal().reshape(case.observed.shape))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("form", FORMS)
def test_variance_floor_with_one_landmark_and_one_point(name, form):
    case = Case(name, k=1)
    case.X = case.X[:1]
    close(case.variance_floor.covariance(case.X, form), select_form(case.oracle(), case.num_outputs, form))


@pytest.mark.parametrize("observed", OBSERVED)
@pytest.mark.parametrize("name", ["scalar", "icm", "helmholtz"])
def test_variance_floor_allows_duplicate_landmarks(name, observed):
    case = Case(name, observed)
    twice = VarianceFloor(case.kernel, torch.cat([case.Z, case.Z]), torch.cat([case.observed, case.observed]))
    once = case.variance_floor.covariance(case.X, "full")
    # two copies of a value halve its nugget, and nothing else
    assert (twice.covariance(case.X, "full") - once).abs().max() < 100 * NUGGET * once.abs().max()
    assert (twice.covariance(case.X, "diag") >= 0).all()


@pytest.mark.parametrize("name", ["icm", "lmc", "curl-free"])
def test_variance_floor_omits_landmarks_beyond_limit(name, monkeypatch):
    monkeypatch.setattr(module, "MAX_LANDMARK_ENTRIES", 6)
    case = Case(name, "missing")
    kept = int((case.observed.sum(1).cumsum(0) <= 6).sum())
    assert 1 <= kept < len(case.Z)
    fewer = VarianceFloor(case.kernel, case.Z[:kept], case.observed[:kept])
    assert torch.equal(case.variance_floor.covariance(case.X, "full"), fewer.covariance(case.X, "full"))


def test_variance_floor_keeps_one_landmark_with_many_outputs(monkeypatch):
    monkeypatch.setattr(module, "MAX_LANDMARK_ENTRIES", 1)
    assert len(Case("lmc").variance_floor.landmarks) == 1


def test_variance_floor_keeps_all_separable_landmarks(monkeypatch):
    monkeypatch.setattr(module, "MAX_LANDMARK_ENTRIES", 1)
    assert len(Case("icm").variance_floor.landmarks) == 6


@pytest.mark.parametrize(("name", "observed", "form"), pairwise(name=KERNELS, observed=OBSERVED, form=FORMS))
def test_lift_raises_diagonal_and_stays_positive(name, observed, form):
    case = Case(name, observed)
    floor = select_form(case.variance_floor.covariance(case.X, "full").numpy(), case.num_outputs, "diag")
    root = (
        torch.nn.functional.normalize(normal(floor.size, 3, seed=9), dim=1) * torch.tensor(floor.reshape(-1, 1)).sqrt()
    )
    root[::2] *= 0.5  # every other variance is too small, the rest too large
    root[1::2] *= 1.5
    low_variance = root @ root.mT
    have = select_form(low_variance.numpy(), case.num_outputs, "diag")
    assert (floor > have).any() and (floor < have).any()
    given = torch.tensor(select_form(low_variance.numpy(), case.num_outputs, form))
    lifted = case.variance_floor.lift(case.X, given, form)
    assert lifted.shape == given.shape
    diagonal = lifted.numpy() if form == "diag" else np.diagonal(lifted.numpy(), axis1=-2, axis2=-1)
    close(torch.tensor(diagonal).reshape(4, -1), np.maximum(have, floor), 1e-12)
    if form != "diag":
        assert torch.equal(lifted, lifted.mT) or (lifted - lifted.mT).abs().max() < 1e-14 * lifted.abs().max()
        assert torch.linalg.eigvalsh(lifted).min() > -1e-9 * lifted.abs().max()


@pytest.mark.parametrize("form", FORMS)
def test_lift_keeps_larger_variance(form):
    case = Case("lmc", "missing")
    wide = case.variance_floor.covariance(case.X, form) * 2
    assert torch.equal(case.variance_floor.lift(case.X, wide, form), wide)


def test_variance_floor_accepts_output_matrix_in_column_order():
    matrix = torch.tensor([[1.0, 0.3], [0.3, 2.0]], dtype=torch.float64).mT
    kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix).double()
    made = VarianceFloor(kernel, normal(4, 2, seed=1), torch.ones(4, 2, dtype=torch.bool))
    made.output_matrix = matrix
    X = normal(3, 2, seed=2)
    close(made.covariance(X, "full").diagonal().reshape(3, 2), made.covariance(X, "diag"), 1e-12)


def test_lift_keeps_zero_prior_variance():
    matrix = torch.diag(torch.tensor([1.0, 0.0])).double()
    kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix).double()
    made = VarianceFloor(kernel, normal(4, 2, seed=1), torch.ones(4, 2, dtype=torch.bool))
    lifted = made.lift(normal(3, 2, seed=2), torch.zeros(3, 2, 2).double(), "output")
    assert torch.isfinite(lifted).all() and (lifted[:, 1, 1] == 0).all() and (lifted[:, 0, 0] > 0).all()


@pytest.mark.parametrize("name", ["scalar", "icm", "lmc", "curl-free"])
def test_guarded_posterior_variance_is_at_least_the_floor(name):
    kernel = randomize(KERNELS[name]().double(), 3)
    X = normal(30, 2, seed=5)
    Y = normal(30, kernel.num_outputs_per_input(X, X), seed=6)
    gp = OperatorValuedGP(kernel, noise=0.01, features=ORFF(kernel, 4, num_dims=2, random_state=0))
    far = torch.cat([X[:3], 3 + normal(5, 2, seed=7)])
    bare, guarded = (gp.condition(X, Y, variance=v, num_landmarks=10) for v in ("features", "guarded"))
    floor = guarded.variance_floor.covariance(far, "diag")
    assert len(guarded.variance_floor.landmarks) == 10
    assert (bare.predict(far).variance < floor).any()
    close(guarded.predict(far).variance, torch.maximum(bare.predict(far).variance, floor), 1e-12)
    assert torch.equal(guarded.predict(far).mean, bare.predict(far).mean)
