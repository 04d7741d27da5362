import pytest
import torch

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.task_learning import noncrossing_systems
from ovkgp.inference.task_learning.noncrossing_systems import NewtonSystems
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre

LAM = 0.03


def parts_and_curvatures(share: float):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    parts, curvatures = [], []
    for rows, tasks in ((7, 4), (5, 6)):
        loss = IntegralLoss(Pinball(), gauss_legendre(tasks))
        parts.append(TaskProblem(normal(rows, 3), normal(tasks, 2), normal(rows, 1), loss, LAM))
        d = torch.rand(rows, tasks, dtype=torch.float64, generator=generator)
        curvatures.append(torch.where(d < share, d, 0.0))
    return parts, curvatures, normal(3, 2)


def dense_answer(parts, curvatures, gradient):
    system = LAM * torch.eye(6, dtype=torch.float64)
    for part, d in zip(parts, curvatures, strict=True):
        rows = torch.kron(part.inputs, part.tasks)
        system += rows.T @ (d.flatten()[:, None] * rows)
    return torch.linalg.solve(system, gradient.flatten()).reshape(3, 2)


@pytest.mark.parametrize("road", ["_by_entries", "_by_weights", "_by_conjugate_gradients"])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_each_road_solves_the_dense_system(road, share, monkeypatch):
    monkeypatch.setattr(noncrossing_systems, "CG_TOLERANCE", 1e-13)
    parts, curvatures, gradient = parts_and_curvatures(share)
    answer = getattr(NewtonSystems(parts), road)(gradient, curvatures)
    assert torch.allclose(answer, dense_answer(parts, curvatures, gradient), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("share", "dense", "stored", "road"),
    [
        (0.05, 2000, 4000, "_by_entries"),
        (0.9, 2000, 4000, "_by_weights"),
        (0.05, 2000, 1, "_by_weights"),
        (0.9, 1, 4000, "_by_conjugate_gradients"),
    ],
)
def test_road_is_the_short_one(share, dense, stored, road, monkeypatch):
    monkeypatch.setattr(noncrossing_systems, "DENSE", dense)
    monkeypatch.setattr(noncrossing_systems, "STORED_ROWS", stored)
    taken = []
    original = getattr(NewtonSystems, road)
    monkeypatch.setattr(NewtonSystems, road, lambda *args: taken.append(road) or original(*args))
    parts, curvatures, gradient = parts_and_curvatures(share)
    NewtonSystems(parts).solve(gradient, curvatures)
    assert taken == [road]


def test_without_curvature_only_the_ridge_is_left():
    parts, curvatures, gradient = parts_and_curvatures(0.0)
    assert torch.allclose(NewtonSystems(parts).solve(gradient, curvatures), gradient / LAM)


def test_singular_system_is_solved_with_jitter_and_nan_is_refused():
    ones = torch.ones(3, 3, dtype=torch.float64)
    answer = noncrossing_systems._solved(ones.clone(), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(ones @ answer, torch.ones(3, dtype=torch.float64), atol=1e-6)
    with pytest.raises(FactorisationError, match="positive definite"):
        noncrossing_systems._solved(-ones, torch.ones(3, dtype=torch.float64))
