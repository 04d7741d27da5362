"""(λI + Σ_i φ_iφ_iᵀ ⊗ B_i) D = R by three roads, against the dense matrix."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import N, case, own_nodes

from ovkgp.inference.tasks.solvers import primal as newton_systems
from ovkgp.inference.tasks.solvers.primal import Curvature

ROADS = ["_by_active", "_by_matrix", "_by_gradients"]


def problem_with(nodes=None, inputs=5, tasks=3, lam=0.2):
    problem = case("square", nodes, lam=lam)
    shape = problem.tasks.shape[:-1]
    return replace(problem, inputs=normal(N, inputs, seed=1), tasks=normal(*shape, tasks, seed=2))


def dense(problem, blocks):
    """λI + Σ φφᵀ ⊗ B."""
    matrix = problem.lam * np.eye(np.prod(problem.shape))
    for row, block in zip(problem.inputs.numpy(), blocks.numpy(), strict=True):
        matrix += np.kron(np.outer(row, row), block)
    return matrix


def blocks_of(problem, entries):
    tasks = problem.tasks.expand(*entries.shape, -1).numpy()
    return torch.from_numpy(np.einsum("ij,ijc,ijd->icd", entries.numpy(), tasks, tasks))


def curvature_of(problem, share=0.4):
    entries = normal(*problem.entry_weights.shape, seed=3).abs()
    return torch.where(entries < share, entries, 0.0)


@pytest.fixture
def exact_gradients(monkeypatch):
    """Conjugate gradients stop early, as a Newton step may; here they go on."""
    monkeypatch.setattr(newton_systems, "CG_TOLERANCE", 1e-13)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("road", ROADS)
def test_every_road_solves_the_dense_system(road, nodes, exact_gradients):
    problem, R = problem_with(nodes), normal(5, 3, seed=4)
    entries = curvature_of(problem)
    expected = np.linalg.solve(dense(problem, blocks_of(problem, entries)), R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, entries), road)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("road", ROADS[1:])
def test_blocks_may_couple_the_entries_of_a_row(road, exact_gradients):
    problem, R, root = problem_with(), normal(5, 3, seed=4), normal(N, 3, 2, seed=5)
    blocks = root @ root.mT
    expected = np.linalg.solve(dense(problem, blocks), R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, None, blocks), road)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("road", ROADS)
def test_damping_adds_to_the_ridge(road, exact_gradients):
    problem, R = problem_with(), normal(5, 3, seed=4)
    entries = curvature_of(problem)
    stiffer = dense(problem, blocks_of(problem, entries)) + 0.7 * np.eye(15)
    expected = np.linalg.solve(stiffer, R.numpy().ravel()).reshape(5, 3)
    found = getattr(Curvature(problem, entries, damping=0.7), road)(R, None)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_cost_is_that_of_the_cheapest_road():
    problem = problem_with()
    few, many = (Curvature(problem, curvature_of(problem, share)) for share in (0.05, 3.0))
    k = int((few.entries > 0).sum())
    assert few.cost == k**3 / 3 + 2 * k**2 * 8
    assert many.cost == N * 15**2 + 15**3 / 3


def test_product_is_that_of_the_dense_matrix():
    problem, D = problem_with(), normal(5, 3, seed=6)
    entries = curvature_of(problem)
    expected = dense(problem, blocks_of(problem, entries)) @ D.numpy().ravel()
    np.testing.assert_allclose(Curvature(problem, entries).apply(D).flatten(), expected, atol=1e-11)


def test_a_diagonal_to_divide_by_saves_steps(monkeypatch):
    """Coordinates of a kernel on its anchors: the curvature of equal entries is divided away in one step."""
    problem = case("square", lam=1e-4)
    R, gram = (
        normal(*problem.shape, seed=7),
        torch.outer(problem.inputs.square().sum(0), (problem.loss.weights[:, None] * problem.tasks.square()).sum(0))
        / N,
    )
    curvature, counts = Curvature(problem, 3.0 * problem.entry_weights / N), []
    monkeypatch.setattr(newton_systems, "CG_TOLERANCE", 1e-8)
    apply = curvature.apply
    monkeypatch.setattr(curvature, "apply", lambda D: counts.append(1) or apply(D))
    plain = curvature._by_gradients(R, None)
    num_plain = len(counts)
    divided = curvature._by_gradients(R, gram)
    assert (apply(divided) - R).norm() < 1e-6 * R.norm()
    assert (apply(plain) - R).norm() < 1e-6 * R.norm()
    assert len(counts) - num_plain < num_plain / 2


@pytest.mark.parametrize("active", [0, 1, 40])
def test_solve_takes_a_road_that_is_right(active):
    problem, R = problem_with(), normal(5, 3, seed=4)
    entries = torch.zeros_like(problem.entry_weights)
    entries.view(-1)[:active] = 0.7
    expected = np.linalg.solve(dense(problem, blocks_of(problem, entries)), R.numpy().ravel()).reshape(5, 3)
    np.testing.assert_allclose(Curvature(problem, entries).solve(R), expected, atol=1e-9)


def test_solve_takes_the_cheap_road(monkeypatch):
    """Few active entries: their system; many of them and few coordinates: the matrix; too many of both: products."""
    taken = []
    for name in ROADS:
        monkeypatch.setattr(Curvature, name, lambda self, right, gram, name=name: taken.append(name) or right)
    problem, R = problem_with(), normal(5, 3, seed=4)
    Curvature(problem, curvature_of(problem, 0.05)).solve(R)
    Curvature(problem, torch.ones_like(problem.entry_weights)).solve(R)
    monkeypatch.setattr(newton_systems, "MEMORY", 10)
    Curvature(problem, torch.ones_like(problem.entry_weights)).solve(R)
    assert taken == ROADS
