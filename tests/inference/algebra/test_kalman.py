"""The Kalman filter as a solver, against dense algebra: evidence, gradient, C⁻¹ and its diagonal."""

import itertools
import math

import mpmath
import pytest
import torch

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.algebra.dense import DenseSolver, dense_log_density
from ovkgp.inference.algebra.kalman import KalmanSolver, MarkovTerm, markov_log_density
from ovkgp.kernels.state_space import constant_form, matern_form


class Case:
    """Sum of Matérn processes with random output matrices, at random times, with equal stamps and missing outputs."""

    def __init__(self, smoothness=(2.5,), p=1, ratio=0.1, n=60, missing=0.3, noise=0.01):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        self.times = torch.rand(n, generator=generator, dtype=torch.float64) * n * ratio
        self.times[n // 2] = self.times[n // 3]
        self.smoothness, self.order = smoothness, self.times.argsort(stable=True)
        self.Y = draw(n, p)
        self.Y[torch.rand(n, p, generator=generator) < missing] = math.nan
        factors = [draw(p, p) for _ in smoothness]
        self.matrices = [(factor @ factor.mT / p).requires_grad_() for factor in factors]
        self.lengthscales = [
            torch.tensor(1.0 + i, dtype=torch.float64, requires_grad=True) for i in range(len(factors))
        ]
        root = draw(p, p)
        self.noise = (noise * (root @ root.mT / p + torch.eye(p))).requires_grad_()
        self.parameters = [*self.matrices, *self.lengthscales, self.noise]

    def parts(self):
        """Arguments of the solver."""
        stamps, terms = self.times[self.order], []
        for nu, lengthscale, matrix in zip(self.smoothness, self.lengthscales, self.matrices, strict=True):
            form = matern_form(nu, lengthscale)
            lags = torch.cat([torch.zeros(1, dtype=torch.float64), stamps.diff()])
            noises = torch.cat([form.covariance(stamps[:1]), form.process_noise(lags[1:])])
            terms.append(MarkovTerm(form.transition(lags), noises, matrix))
        return terms, self.noise.expand(len(stamps), *self.noise.shape), self.Y, self.order

    def covariance(self):
        """C between the observed entries, from the formula of the kernel."""
        total = torch.kron(torch.eye(len(self.times), dtype=torch.float64), self.noise)
        lags = (self.times[:, None] - self.times).abs()
        for nu, lengthscale, matrix in zip(self.smoothness, self.lengthscales, self.matrices, strict=True):
            a = math.sqrt(2 * nu) * lags / lengthscale
            series = {0.5: 1.0 + 0 * a, 1.5: 1 + a, 2.5: 1 + a + a**2 / 3}[nu]
            total = total + torch.kron(series * torch.exp(-a), matrix)
        observed = ~torch.isnan(self.Y).flatten()
        return total[observed][:, observed]


CASES = {
    **{
        f"nu {nu}, ratio {ratio:g}": Case((nu,), ratio=ratio)
        for nu in (0.5, 1.5, 2.5)
        for ratio in (1e-6, 1e-4, 0.01, 0.3, 10.0)
    },
    "several outputs": Case(p=3),
    "several outputs, short lags": Case(p=3, ratio=1e-6),
    "several terms": Case((2.5, 0.5), p=2),
    "several terms, long lags": Case((1.5, 2.5, 0.5), p=2, ratio=10.0),
    "complete": Case(p=2, missing=0.0),
    "two rows": Case(n=2, missing=0.0),
    "one row": Case(n=1, missing=0.0),
    "rows that do not fill chunks": Case(n=50),
}


@pytest.mark.parametrize("name", CASES)
def test_evidence_and_gradient_equal_dense_algebra(name):
    case = CASES[name]
    residuals = case.Y[~torch.isnan(case.Y)]
    expected = dense_log_density(case.covariance(), residuals)
    found = markov_log_density(*case.parts())
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad(found, case.parameters)
    for value, reference in zip(gradients, torch.autograd.grad(expected, case.parameters), strict=True):
        symmetric = (value + value.mT) / 2 if value.dim() else value
        symmetric_reference = (reference + reference.mT) / 2 if value.dim() else reference
        scale = max(1.0, float(reference.abs().max()))
        torch.testing.assert_close(symmetric, symmetric_reference, rtol=1e-8, atol=1e-9 * scale)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_solver_equals_dense_solver(name):
    case = CASES[name]
    found, expected = KalmanSolver(*case.parts()), DenseSolver(case.covariance(), case.Y)
    scale = float(expected.inverse_diagonal().max())
    torch.testing.assert_close(found.alpha, expected.alpha, rtol=1e-9, atol=1e-10 * scale)
    torch.testing.assert_close(found.inverse_diagonal(), expected.inverse_diagonal(), rtol=1e-9, atol=1e-10 * scale)
    rhs = torch.randn(case.Y.numel(), 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(found.solve(rhs), expected.solve(rhs), rtol=1e-9, atol=1e-10 * scale)
    cross = rhs.mT[: case.Y.shape[1]]
    for form in ("diag", "output", "full"):
        torch.testing.assert_close(found.explained(cross, form), expected.explained(cross, form), rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_blocks_of_the_inverse_equal_those_of_the_dense_solver():
    case = CASES["several outputs"]
    found, expected = KalmanSolver(*case.parts()), DenseSolver(case.covariance(), case.Y)
    for rows in (torch.arange(60)[:, None], torch.randperm(60, generator=torch.Generator().manual_seed(0)).view(12, 5)):
        torch.testing.assert_close(found.inverse_blocks(rows), expected.inverse_blocks(rows), rtol=1e-8, atol=1e-8)


def test_evidence_of_residuals_is_differentiable_in_them():
    case = Case(n=7, missing=0.0)
    terms, noise, residuals, order = case.parts()
    residuals = residuals.clone().requires_grad_()
    (found,) = torch.autograd.grad(markov_log_density(terms, noise, residuals, order), residuals)
    torch.testing.assert_close(found, -KalmanSolver(*case.parts()).alpha)


def test_second_derivatives_are_rejected():
    case = Case(n=5)
    with pytest.raises(OptionError, match="create_graph"):
        torch.autograd.grad(markov_log_density(*case.parts()), case.parameters, create_graph=True)


def test_failed_filter_says_what_to_do():
    case = Case(n=5)
    terms, noise, residuals, order = case.parts()
    with pytest.raises(FactorizationError, match="more noise"):
        KalmanSolver(terms, -10 * noise, residuals, order)


def exact_evidence(case):
    """Evidence and its derivative in the noise of complete data with one output, in 40 digits."""
    with mpmath.workdps(40):
        times, values = ([mpmath.mpf(value) for value in column.tolist()] for column in (case.times, case.Y[:, 0]))
        n, nu = len(times), case.smoothness[0]
        scale, noise, lengthscale = (
            mpmath.mpf(part.item()) for part in (case.matrices[0], case.noise, case.lengthscales[0])
        )
        covariance = noise * mpmath.eye(n)
        for i, j in itertools.product(range(n), repeat=2):
            a = mpmath.sqrt(2 * mpmath.mpf(nu)) * abs(times[i] - times[j]) / lengthscale
            covariance[i, j] += scale * {0.5: 1, 1.5: 1 + a, 2.5: 1 + a + a**2 / 3}[nu] * mpmath.exp(-a)
        inverse = covariance**-1
        alpha = inverse * mpmath.matrix(values)
        quadratic = sum(a * y for a, y in zip(alpha, values, strict=True))
        evidence = -(quadratic + mpmath.log(mpmath.det(covariance)) + n * mpmath.log(2 * mpmath.pi)) / 2
        by_noise = (sum(a**2 for a in alpha) - sum(inverse[i, i] for i in range(n))) / 2
        return float(evidence), float(by_noise)


@pytest.mark.parametrize("ratio", [1e-4, 0.1])
@pytest.mark.parametrize("nu", [0.5, 2.5])
def test_filter_is_accurate_with_little_noise(nu, ratio):
    """At a noise of 1e-8 of the variance, for which a dense factor has lost 8 digits, against 40 digits."""
    case = Case((nu,), ratio=ratio, n=25, missing=0.0, noise=1e-8)
    found = markov_log_density(*case.parts())
    (by_noise,) = torch.autograd.grad(found, case.noise)
    expected, expected_by_noise = exact_evidence(case)
    assert found.item() == pytest.approx(expected, rel=2e-9)
    assert by_noise.item() == pytest.approx(expected_by_noise, rel=2e-9)


@torch.no_grad()
def test_adjoint_covariances_of_a_long_series_stay_positive_and_bounded():
    """A term without damping, and missing outputs: rounding errors of an expanded recursion grow from row to row."""
    generator, n, p = torch.Generator().manual_seed(0), 4000, 4
    times = torch.linspace(0, 1, n, dtype=torch.float64)
    Y = torch.randn(n, p, generator=generator, dtype=torch.float64)
    Y[torch.rand(n, p, generator=generator) < 0.2] = math.nan
    root = torch.randn(p, p, generator=generator, dtype=torch.float64)
    lags, terms = times.diff(prepend=times[:1]), []
    forms = constant_form(torch.tensor(10.0)), matern_form(0.5, torch.tensor(0.004))
    for form, matrix in zip(forms, (torch.eye(p).double(), 0.1 * torch.eye(p) + 0.02 * root @ root.mT), strict=True):
        noises = torch.cat([form.covariance(times[:1]), form.process_noise(lags[1:])])
        terms.append(MarkovTerm(form.transition(lags), noises, matrix))
    noise = torch.diag(torch.tensor([0.0032, 0.0007, 0.0009, 0.0013], dtype=torch.float64))
    solver = KalmanSolver(terms, noise.expand(n, p, p), Y, torch.arange(n))
    eigenvalues = torch.linalg.eigvalsh(solver._adjoint_covariances)
    assert eigenvalues.min() > -1e-10 and eigenvalues.max() < 1e4
    diagonal = solver.inverse_diagonal()
    assert bool((diagonal[solver.observed] > 0).all()) and bool((diagonal <= 1 / noise.diagonal()).all())
