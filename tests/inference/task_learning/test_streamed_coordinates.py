"""Coordinates of even curvature, from a sample of the rows."""

import pytest
import torch
from loss_cases import normal
from streamed_cases import in_memory, sine, streamed

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.solvers import streamed as streamed_coordinates
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedCoordinates, target_unit, task_curvatures
from ovkgp.losses import Pinball, PinballEnvelope, Square

WEIGHTS = torch.linspace(0, 2, 400, dtype=torch.float64)


def normal_curvature(coordinates, kappa):
    """The Hessian in U at a fit, (rq, rq), by differences of the gradient."""
    problem, size = coordinates.problem, coordinates.scale.numel()
    fit = solve_primal(in_memory(problem), tolerance=1e-6).weights

    def slope(W):
        return coordinates.gradient(problem.evaluate(W, kappa).gradient).flatten()

    steps = 1e-4 * torch.eye(size, dtype=torch.float64).view(size, *problem.shape)
    return torch.stack([(slope(fit + coordinates.back(d)) - slope(fit - coordinates.back(d))) / 2e-4 for d in steps])


def test_there_and_back():
    coordinates = StreamedCoordinates(streamed(), unit=1.0)
    W, U = normal(*coordinates.problem.shape), normal(*coordinates.problem.shape, seed=1)
    torch.testing.assert_close(coordinates.back(coordinates.into(W)), W)
    inner = (coordinates.gradient(W) * U).sum()  # the chain rule: ⟨∇_U, U⟩ = ⟨∇_W, W(U)⟩
    torch.testing.assert_close(inner, (W * coordinates.back(U)).sum())


@pytest.mark.parametrize("options", [{}, {"row_weights": WEIGHTS}])
def test_the_square_loss_has_curvature_one_in_all_directions(options):
    coordinates = StreamedCoordinates(streamed(loss=Square(), lam=1e-4, num_frequencies=4, **options), unit=1.0)
    hessian = normal_curvature(coordinates, 0.0)
    torch.testing.assert_close(hessian, torch.eye(len(hessian)).double(), rtol=1e-6, atol=1e-6)


def test_quantiles_have_nearly_even_curvature_at_a_fit_and_much_less_so_in_the_first_coordinates():
    problem = streamed(2000, num_frequencies=3, num_tasks=4, lam=1e-4)
    coordinates = StreamedCoordinates(problem, target_unit(problem))
    coordinates.adapt(solve_primal(in_memory(problem), tolerance=1e-5).weights)
    hessian = normal_curvature(coordinates, 0.1)
    into = torch.stack(
        [coordinates.into(d).flatten() for d in torch.eye(len(hessian)).double().view(-1, *problem.shape)]
    )
    spread, plain = (torch.linalg.cond(matrix).item() for matrix in (hessian, into @ hessian @ into.T))
    assert spread < 6 < 100 < plain


def test_effective_dimensions_are_degrees_of_freedom():
    """Of the square loss: tr A (A + λ)⁻¹, with A the normal matrix."""
    problem = streamed(loss=Square(), lam=1e-2, num_frequencies=4)
    dense = in_memory(problem)
    A = torch.kron(dense.inputs.T @ dense.inputs / 400, dense.tasks.T @ (dense.loss.weights[:, None] * dense.tasks))
    expected = torch.linalg.solve(A + problem.lam * torch.eye(len(A), dtype=torch.float64), A).trace().item()
    dimension, tasks = StreamedCoordinates(problem, unit=1.0).dimensions
    assert dimension == pytest.approx(expected, rel=1e-9)
    assert 1 < tasks <= min(6, dimension)


def test_only_a_sample_of_the_rows_is_seen(monkeypatch):
    monkeypatch.setattr(streamed_coordinates, "LEAST_ROWS", 50)
    monkeypatch.setattr(streamed_coordinates, "ROWS_EACH", 4)
    problem, seen = streamed(), []
    rows = problem.rows
    problem.rows = lambda places: seen.append(len(places)) or rows(places)
    StreamedCoordinates(problem, 1.0)
    assert sum(seen) == 2 * 4 * 16  # once for the inputs, once for the tasks


def test_curvatures_of_tasks():
    problem = streamed(row_weights=WEIGHTS)
    zero = torch.zeros(problem.shape).double()
    torch.testing.assert_close(task_curvatures(streamed(loss=Square()), zero, 0.3), torch.ones(6).double())
    inside = (problem.targets.abs() < 0.3).double().squeeze()
    share = (WEIGHTS * inside).sum() / WEIGHTS.sum()  # ρ_θ has a jump of one at its kink
    torch.testing.assert_close(task_curvatures(problem, zero, 0.3), (share / 0.6).expand(6))


def test_tasks_without_any_curvature_are_given_one():
    problem = streamed(targets=torch.full((400, 1), 50.0).double())
    coordinates = StreamedCoordinates(problem, 1.0)
    assert bool(torch.isfinite(coordinates.scale).all()) and bool((coordinates.scale > 0).all())


@pytest.mark.parametrize("loss", [Pinball(), PinballEnvelope(0.1), Square()], ids=str)
def test_the_unit_scales_with_the_targets_and_not_with_the_rows(loss):
    _, y = sine(400)
    units = [target_unit(streamed(loss=loss, targets=scale * y)) for scale in (1.0, 10.0)]
    assert units[1] / units[0] == pytest.approx(1.0 if isinstance(loss, Square) else 10.0, rel=0.1)
    assert target_unit(streamed(loss=loss), num_rows=200) == pytest.approx(units[0], rel=0.2)


def test_the_unit_of_nothing_is_one():
    assert target_unit(streamed(targets=torch.zeros(400, 1).double())) == 1.0
    assert target_unit(streamed(row_weights=torch.zeros(400))) == 1.0


def test_targets_too_large_to_square_are_refused():
    with pytest.raises(InputError, match="scale them"):
        target_unit(streamed(targets=torch.full((400, 1), 1e200, dtype=torch.float64)))
