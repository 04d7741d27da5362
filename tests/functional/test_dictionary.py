"""Tests of `ovkgp.functional.dictionary`: what holds for all dictionaries."""

import json
import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.estimators.storage.values import decode, encode
from ovkgp.exceptions import DomainError, InputError, SmoothnessError
from ovkgp.functional import (
    BSplines,
    Combination,
    Dictionary,
    Eigenfunctions,
    Fourier,
    FunctionalData,
    GaussianEigenfunctions,
    Interpolated,
    KernelSections,
    RandomFourier,
    RandomProcesses,
    TensorProduct,
    Wavelets,
)
from ovkgp.functional.dictionary import decompose, pseudo_inverse
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.kernels import LaplaceKernel
from ovkgp.losses import IntegralLoss, Square, gauss_legendre

RNG = np.random.default_rng(0)
SMOOTH = {  # dictionaries with two derivatives
    "fourier": Fourier(4, (1, 4)),
    "splines": BSplines(9, (-1, 2)),
    "interpolated": Interpolated(RNG.standard_normal((20, 3)), np.linspace(0, 2, 20), kind="cubic"),
    "laplace": Eigenfunctions(LaplaceKernel(), 6, (1, 3)),
    "sampled": Eigenfunctions(RBFKernel(), 5, (0, 4)),
    "features": Eigenfunctions(RandomFourier(RBFKernel(), 6, (0, 3), 0), 4),
    "hermite": GaussianEigenfunctions(6, 0.7, 1.0, 2.0),
    "random_fourier": RandomFourier(RBFKernel(), 5, (1, 3), random_state=0),
    "sections": KernelSections(RBFKernel(), [0.1, 0.5, 2.0], (0, 2)),
    "combination": Combination(BSplines(6), RNG.standard_normal((6, 3))),
}
ROUGH = {
    "wavelets": Wavelets(3, "db3", (0, 2)),
    "processes": RandomProcesses(2, [0.1, 0.3], random_state=0),
    "products": TensorProduct(Fourier(2), BSplines(5, (0, 2))),
}
EVERY = SMOOTH | ROUGH


def points_of(dictionary, count=7, margin=0.0):
    low, high = dictionary.domain.T
    middle, half = (low + high) / 2, (high - low) / 2 - margin
    if isinstance(dictionary, GaussianEigenfunctions):
        half = 3 * dictionary.std  # the functions are below rounding in the tails
    return middle + half * np.random.default_rng(1).uniform(-1, 1, (count, dictionary.num_dims))


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_equal_finite_differences(name):
    dictionary, step = SMOOTH[name], 1e-5
    t = points_of(dictionary, margin=2 * step)
    for order in (1, 2):
        below = dictionary.derivative(t - step, order - 1), dictionary.derivative(t + step, order - 1)
        found = dictionary.derivative(t, order)
        assert np.allclose(found, (below[1] - below[0]) / (2 * step), atol=1e-6 * max(1, np.abs(found).max()))


@pytest.mark.parametrize("name", EVERY)
def test_gram_equals_a_fine_quadrature(name):
    """Closed forms against the quadrature of the base class; wavelets against midpoints, as they are not smooth."""
    dictionary = EVERY[name]
    nodes, weights = Dictionary.rule(dictionary)
    if name == "wavelets":
        nodes, weights = (np.arange(2**14) + 0.5)[:, None] / 2**13, np.full(2**14, 2.0**-13)
    if name == "hermite":
        weights = weights * dictionary._density(nodes[:, 0])
    rows = dictionary(nodes)
    tolerance = {"wavelets": 1e-6, "processes": 1e-4}.get(name, 1e-10)
    assert np.allclose(dictionary.gram(), (rows * weights[:, None]).T @ rows, atol=tolerance)
    assert dictionary(points_of(dictionary)).shape == (7, dictionary.num_functions) == (7, len(dictionary))


@pytest.mark.parametrize("name", sorted(SMOOTH.keys() - {"hermite", "interpolated", "splines", "combination"}))
@pytest.mark.parametrize("order", [1, 2])
def test_roughness_equals_a_fine_quadrature(name, order):
    dictionary = SMOOTH[name]
    nodes, weights = Dictionary.rule(dictionary)
    rows = dictionary.derivative(nodes, order)
    expected = (rows * weights[:, None]).T @ rows
    assert np.allclose(dictionary.roughness(order), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"processes", "sections", "hermite"}))
@pytest.mark.parametrize("gaps", [False, True])
def test_projection_recovers_functions_of_the_span(name, gaps):
    dictionary = EVERY[name]
    t = np.unique(points_of(dictionary, 60), axis=0)
    a = np.random.default_rng(2).standard_normal((4, dictionary.num_functions))
    Y = dictionary.expand(a, t)
    if gaps:
        Y[0, ::7] = np.nan
    found = dictionary.project(FunctionalData(Y, t, dictionary.domain))
    assert np.allclose(dictionary.expand(found, t), dictionary.expand(a, t), atol=1e-7)


@pytest.mark.parametrize("name", ["fourier", "splines", "laplace", "sampled", "random_fourier"])
def test_projection_by_quadrature_recovers_functions_of_the_span(name):
    dictionary = EVERY[name]
    t = np.linspace(*dictionary.domain[0], 4001)
    a = np.random.default_rng(2).standard_normal((2, dictionary.num_functions))
    data = FunctionalData(dictionary.expand(a, t), t)
    found = dictionary.project(data, method="quadrature", rule="trapezoid")
    assert np.allclose(dictionary.expand(found, t), data.values, atol=1e-3 * np.abs(data.values).max())
    inner = dictionary.inner(data, "trapezoid")
    assert np.allclose(inner, a @ dictionary.gram(), atol=1e-4 * np.abs(inner).max())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), d=st.integers(4, 8), m=st.integers(2, 30))
def test_projection_is_the_least_squares_solution_of_least_norm(seed, d, m):
    rng = np.random.default_rng(seed)
    t, dictionary = np.sort(rng.uniform(size=m)), BSplines(d)
    Y = rng.standard_normal((3, m))
    data = FunctionalData(Y, t, (0, 1))
    expected = np.linalg.lstsq(dictionary(t), Y.T, rcond=None)[0].T
    assert np.allclose(dictionary.project(data), expected, atol=1e-6 * np.abs(expected).max())
    ragged = FunctionalData(list(Y), [t] * 3, (0, 1))
    assert np.allclose(dictionary.project(ragged), expected, atol=1e-6 * np.abs(expected).max())
    assert np.allclose(dictionary.inner(ragged), dictionary.inner(data))


def test_channels_are_projected_separately():
    t = np.linspace(0, 1, 30)
    Y = RNG.standard_normal((4, 30, 2))
    fourier, data = Fourier(3), FunctionalData(Y, t)
    for c in range(2):
        assert np.allclose(fourier.project(data)[..., c], fourier.project(FunctionalData(Y[..., c], t)))
        assert np.allclose(fourier.inner(data)[..., c], fourier.inner(FunctionalData(Y[..., c], t)))
    assert fourier.expand(fourier.project(data), [0.1, 0.2, 0.3]).shape == (4, 3, 2)
    Y[0, :, 1] = np.nan
    with pytest.raises(InputError, match="channel 1"):
        fourier.project(FunctionalData(Y, t))


@pytest.mark.parametrize("name", ["splines", "random_fourier", "products", "processes"])
def test_orthonormalize_keeps_the_span(name):
    dictionary = EVERY[name]
    orthonormal = dictionary.orthonormalize()
    assert np.allclose(orthonormal.gram(), np.eye(orthonormal.num_functions), atol=1e-6)
    t = points_of(dictionary, 50)
    rows, new = dictionary(t), orthonormal(t)
    back = new @ np.linalg.lstsq(new, rows, rcond=None)[0]
    assert np.allclose(back, rows, atol=1e-4 * np.abs(rows).max())


def test_orthonormalize_drops_repeated_functions():
    repeated = Combination(Fourier(2), np.eye(3)[:, [0, 1, 1, 2]])
    assert repeated.orthonormalize().num_functions == 3 and repeated.condition_number == np.inf


def test_subset_selects_functions():
    splines = BSplines(6)
    t = np.linspace(0, 1, 9)
    assert np.array_equal(splines.subset([4, 1])(t), splines(t)[:, [4, 1]])
    assert np.allclose(splines.subset(np.arange(6) > 2).roughness(), splines.roughness()[3:, 3:])
    for bad in ([], [6], [-7]):
        with pytest.raises(InputError, match="indices"):
            splines.subset(bad)


def test_bo_46_riesz_constants_of_copies_of_a_function():
    """d copies of a unit function: the largest eigenvalue of G is d; an orthonormal basis has condition 1."""
    assert Fourier(5, (0, 3)).condition_number == pytest.approx(1)
    copies = Combination(Fourier(1), np.ones((1, 4)))
    assert copies.riesz_constants == pytest.approx((0.0, 2.0))


def test_bo_e_17_norm_of_the_synthesis_operator_is_the_root_of_the_largest_eigenvalue():
    """BO C-37: ‖Φ‖ = sup ‖Σ a_l φ_l‖/‖a‖ = √υ_1, not υ_1."""
    splines = BSplines(7)
    values, vectors = np.linalg.eigh(splines.gram())
    nodes, weights = splines.rule()
    norm = np.sqrt(weights @ (splines(nodes) @ vectors[:, -1]) ** 2)
    assert splines.riesz_constants[1] == pytest.approx(norm) == pytest.approx(np.sqrt(values[-1]))
    assert abs(norm - values[-1]) > 0.1


def test_bo_c_31_expansions_depend_on_the_range_of_the_gram_matrix_only():
    """‖Φ W a − y‖ = ‖Φ W̌ ǎ − y‖ for the eigenvectors W̌ of nonzero eigenvalues of a rank-deficient dictionary."""
    dictionary = Combination(BSplines(6), RNG.standard_normal((6, 3)) @ RNG.standard_normal((3, 8)))
    values, vectors = np.linalg.eigh(dictionary.gram())
    keep = values > 1e-10 * values[-1]
    assert keep.sum() == 3
    a, nodes = RNG.standard_normal(8), dictionary.rule()[0]
    y = np.sin(4 * nodes[:, 0])
    full = dictionary(nodes) @ vectors @ a - y
    reduced = dictionary(nodes) @ vectors[:, keep] @ a[keep] - y
    weights = dictionary.rule()[1]
    assert np.sqrt(weights @ full**2) == pytest.approx(np.sqrt(weights @ reduced**2), rel=1e-10)
    inverse = pseudo_inverse(dictionary.gram())
    assert np.allclose(inverse, np.linalg.pinv(dictionary.gram(), rcond=1e-9), rtol=1e-6, atol=1e-6)
    assert len(decompose(dictionary.gram())[0]) == 3


def test_dictionary_is_a_factor_of_task_learning():
    splines, B = BSplines(5), np.diag([1.0, 2.0, 0.0, 1.0, 3.0])
    factor, t = splines.as_factor(np.diag(B)), torch.linspace(0, 1, 6, dtype=torch.float64)
    rows = factor(t[:, None])
    assert torch.allclose(rows @ rows.T, torch.from_numpy(splines(t) @ B @ splines(t).T))
    slopes = factor.slopes(t)
    assert torch.allclose(slopes @ slopes.T, torch.from_numpy(splines.derivative(t) @ B @ splines.derivative(t).T))
    for bad in (-B, np.ones((2, 2)), np.triu(np.ones((5, 5)))):
        with pytest.raises(InputError, match="output_matrix"):
            splines.as_factor(bad)


def test_interpolated_functions_are_linear_or_cubic_splines():
    grid = np.array([0.0, 0.3, 1.0])
    linear = Interpolated([[0.0], [3.0], [-4.0]], grid, (-1, 2))
    assert linear([-0.5, 0.15, 0.65, 2.0]).ravel().tolist() == pytest.approx([0.0, 1.5, -0.5, -4.0])
    assert linear.derivative([-0.5, 0.1, 0.5, 1.5]).ravel().tolist() == pytest.approx([0.0, 10.0, -10.0, 0.0])
    with pytest.raises(SmoothnessError, match="cubic"):
        linear.derivative([0.5], 2)
    for values, at in (([[1.0]], [0.0]), ([[1.0], [2.0]], [0.0, 0.0]), ([[1.0]], [0.0, 1.0])):
        with pytest.raises(InputError):
            Interpolated(values, at)


def test_dictionaries_reject_points_outside_and_wrong_shapes():
    fourier = Fourier(2, (0, 1))
    with pytest.raises(DomainError):
        fourier([1.5])
    with pytest.raises(DomainError):
        fourier.project(FunctionalData([[1.0, 2.0]], [0.0, 2.0]))
    with pytest.raises(InputError, match="coefficients"):
        fourier.expand(np.zeros((2, 4)), [0.1])
    with pytest.raises(InputError, match="order"):
        fourier.derivative([0.1], (1, 1))
    with pytest.raises(InputError, match="dimension"):
        fourier.project(FunctionalData(np.zeros((1, 3)), np.eye(3)[:, :2]))
    with pytest.raises(InputError, match="matrix"):
        Combination(fourier, np.zeros((2, 2)))


@pytest.mark.parametrize("name", EVERY)
def test_dictionaries_are_stored_in_model_files(name):
    """Attributes as JSON and tensors, and back, without the constructor."""
    tensors = {}
    entry = encode("dictionary", EVERY[name], tensors)
    copy = decode(json.loads(json.dumps(entry)), {key: value.clone() for key, value in tensors.items()})
    points = points_of(EVERY[name])
    assert type(copy) is type(EVERY[name]) and np.array_equal(copy(points), EVERY[name](points))
    assert np.array_equal(copy.gram(), EVERY[name].gram())
    pickled = pickle.loads(pickle.dumps(EVERY[name]))
    assert np.array_equal(pickled(points), EVERY[name](points))


def test_bo_11_task_learning_on_a_dictionary_is_the_process_with_its_kernel():
    """Square loss with tasks Φ B^½: the posterior mean of k_X · φᵀBφ with noise nλ/η at the nodes, by a dense solve."""
    rng, n, lam = np.random.default_rng(0), 8, 1e-2
    X, measure = torch.from_numpy(rng.uniform(0, 3, (n, 1))), gauss_legendre(14)
    Y = torch.sin(X + 3 * measure.nodes)
    inputs = KernelFactor(RBFKernel().double().requires_grad_(False), X, cutoff=0.0)
    tasks = BSplines(6).as_factor(np.linspace(1, 2, 6))
    Psi = tasks(measure.nodes[:, None])
    loss = IntegralLoss(Square(), measure)
    solution = solve_square(TaskProblem(inputs.anchor_rows, Psi, Y, loss, lam))
    t = torch.tensor([0.2, 0.9]).double()
    found = TaskFunction(inputs, tasks, solution.weights)(X, t)
    K = inputs.kernel(X).to_dense()
    system = torch.kron(K, Psi @ Psi.T) + torch.diag((lam * n / measure.weights).repeat(n))
    cross = torch.kron(K, tasks(t[:, None]) @ Psi.T)
    assert torch.allclose(found, (cross @ torch.linalg.solve(system, Y.flatten())).reshape(n, 2), atol=1e-8)
