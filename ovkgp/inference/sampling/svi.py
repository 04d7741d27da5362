"""Draws of hyperparameters from a Gaussian q(θ) trained by stochastic variational inference, on all rows or on batches.

With batches of rows of a variational model, q(θ) and q(w) are independent, and E_q(θ)[ELBO(q(w), θ)] − KL(q(θ) ‖ p(θ))
is maximized by a natural step of q(w) and a step of Adam in q(θ) at a draw of θ. Since q(w) does not follow θ, the
standard deviations of q(θ) are *too small*, the more so the more the data determine the weights; the center is that of
a full training. For calibrated ones use `method="laplace"`, whose bound is collapsed over q(w). This module loads Pyro.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyro
import torch
from pyro.distributions import ImproperUniform, Normal, constraints
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoGuide,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_value,
)
from torch import Tensor
from tqdm.auto import tqdm

from ovkgp.checks import check_one_of
from ovkgp.exceptions import FitWarning
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import spawn_seeds
from ovkgp.inference.sampling.diagnostics import HyperparameterDraws, check_importance_ratios, draw_where_finite
from ovkgp.inference.sampling.laplace import (
    LaplaceApproximation,
    find_laplace_approximation,
    make_laplace_approximation,
)
from ovkgp.inference.training.lbfgs import FAILURES, compute_hessian
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational.training import FINAL_RATE_FRACTION, BatchTraining

GUIDES = {"normal": AutoNormal, "multivariate": AutoMultivariateNormal, "low_rank": AutoLowRankMultivariateNormal}
NUM_PARTICLES = 4  # draws of u per step
INITIAL_STEP_SIZE, NUM_HALVINGS = 0.05, 6
"""First step size of Adam, in coordinates of unit scale, and how often it is halved."""
WINDOW_STEPS = 40  # number of steps over which the bound is averaged to decide whether it still increases
MAX_WINDOWS_PER_STEP_SIZE = 20  # maximum number of windows with one step size
OUTSIDE_PENALTY = 5.0  # if the density cannot be evaluated it is replaced by log π(u*) − 5 |z|², which draws q back
NATURAL_STEP_SIZE = 0.05  # step size ρ of q(w): about the last twenty batches contribute
NUM_CURVATURE_BATCHES = 4  # number of batches from which the initial standard deviations of q(θ) are computed


def sample_svi(log_posterior: LogPosterior, draws: int, guide: str, seed: int, verbose: int = 0) -> HyperparameterDraws:
    """Train q and draw from it, (1, draws, k), assessing it by the Pareto shape of the importance ratios π / q.

    Ctrl-C ends the training, and the draws are those of the present q. Draws without a density are replaced.
    """
    check_one_of("guide", guide, GUIDES)
    laplace = guide_coordinates(find_laplace_approximation(log_posterior), guide)
    draw, attrs = fit_guide(log_posterior, laplace, guide, seed, verbose)
    inside = draw_where_finite(log_posterior, draw, draws)
    attrs |= {"num_failed_draws": inside.num_failed, "interrupted": int(attrs["interrupted"] or inside.interrupted)}
    attrs |= check_importance_ratios(inside.lp - inside.log_q, "svi")
    return HyperparameterDraws("svi", inside.u[None], {"lp": inside.lp[None]}, attrs)


def fit_guide(
    density, laplace: LaplaceApproximation, guide: str, seed: int, verbose: int = 0
) -> tuple[Callable[[int], tuple[np.ndarray, np.ndarray]], dict]:
    """Train a guide on a density; return a function from a number to draws (number, k) and log q, and statistics."""
    # guides keep their parameters in Pyro's store and draw from torch's global generator: restore both
    with pyro.get_param_store().scope(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = _model(density, laplace)
        q = _guide(model, guide, len(laplace.mode))
        bound = Trace_ELBO(NUM_PARTICLES, max_plate_nesting=0, vectorize_particles=True)
        steps, interrupted = train_guide(lambda: bound.differentiable_loss(model, q), q, verbose)
        with torch.no_grad():
            distribution = guide_distribution(q)
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(int(generator.integers(2**63)))
            z = distribution.sample((count,))
            return laplace.u(z.numpy()), distribution.log_prob(z).numpy() - laplace.log_volume

    return draw, {"guide": guide, "steps": steps, "interrupted": int(interrupted)}


def guide_coordinates(laplace: LaplaceApproximation, guide: str) -> LaplaceApproximation:
    """Return coordinates in which the guide starts as N(0, I): whitened if it can rotate them, else scaled."""
    if guide == "multivariate":
        return laplace
    curvature = np.diag(np.linalg.inv(laplace.root @ laplace.root.T))
    return replace(laplace, root=np.diag(curvature**-0.5))


def train_guide(loss: Callable[[], Tensor], guide: AutoGuide, verbose: int) -> tuple[int, bool]:
    """Minimize a noisy loss with Adam, halving its step when the loss stops decreasing; return (steps, interrupted)."""
    optimizer = torch.optim.Adam(guide.parameters(), lr=INITIAL_STEP_SIZE)
    steps = 0
    with tqdm(desc="SVI", disable=not verbose) as bar:
        try:
            for step_size in INITIAL_STEP_SIZE * 0.5 ** np.arange(NUM_HALVINGS + 1):
                optimizer.param_groups[0]["lr"] = float(step_size)
                for window in _iterate_until_flat(lambda: _step(loss, optimizer)):
                    steps += len(window)
                    bar.update(len(window))
                    bar.set_postfix(elbo=f"{-np.mean(window):.6g}", refresh=False)
        except KeyboardInterrupt:
            warnings.warn(
                "Training of q was interrupted; the draws are those of the present q.", FitWarning, stacklevel=4
            )
            return steps, True
    return steps, False


def _iterate_until_flat(step: Callable[[], float]) -> Iterator[list[float]]:
    """Yield windows of losses until one is not lower than the previous one by more than its standard error."""
    before = np.inf
    for _ in range(MAX_WINDOWS_PER_STEP_SIZE):
        window = [step() for _ in range(WINDOW_STEPS)]
        yield window
        now, error = np.mean(window), np.std(window) / np.sqrt(WINDOW_STEPS)
        if now > before - error:
            return
        before = now


def _step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    value = loss()
    value.backward()
    optimizer.step()
    return value.item()


def _model(density, laplace: LaplaceApproximation) -> Callable[[], None]:
    size = len(laplace.mode)

    def log_density(z: Tensor) -> Tensor:
        value = laplace.value(density, z)
        return laplace.log_density - OUTSIDE_PENALTY * z.square().sum() if torch.isinf(value) else value

    def model() -> None:
        z = pyro.sample("z", ImproperUniform(constraints.real_vector, torch.Size(), torch.Size([size])))
        values = torch.stack([log_density(particle) for particle in z.reshape(-1, size)])
        pyro.factor("log_posterior", values.reshape(z.shape[:-1]))

    return model


def _guide(model: Callable[[], None], name: str, size: int) -> AutoGuide:
    initial = init_to_value(values={"z": torch.zeros(size, dtype=torch.float64)})
    guide = GUIDES[name](model, init_loc_fn=initial, init_scale=1.0)
    guide()  # Pyro creates the parameters at the first call
    return guide


def guide_distribution(guide: AutoGuide) -> torch.distributions.Distribution:
    """Return the distribution of z under a guide."""
    if isinstance(guide, AutoNormal):
        return Normal(guide.locs.z, guide.scales.z).to_event(1)
    return guide.get_posterior()


class BatchDensity:
    """Unbiased estimate of ELBO(q(w), θ) + log p(θ) + log |dθ/du| from a batch of rows; q(w) moves with every call."""

    def __init__(self, log_posterior: LogPosterior, data: Observations, batch_size: int, seed: int):
        self.log_posterior, self.gp, self.data = log_posterior, log_posterior.gp, data
        options = {"bounds": None, "scales": None, "random_state": seed}
        self.training = BatchTraining(
            self.gp, data, batch_size, 1, 1.0, NATURAL_STEP_SIZE / FINAL_RATE_FRACTION, **options
        )
        self.training.step = 10**6  # past the first steps, in which q(w) changes quickly
        self.batches = self._batches()

    def _batches(self) -> Iterator[Observations]:
        while True:
            order = torch.randperm(self.data.num_rows, generator=self.training.generator)
            self.training.update_basis(order)
            for rows in order.split(self.training.batch_size):
                yield self.data.rows(rows.to(self.data.X.device))

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the estimate and its gradient (k,) from the next batch after a natural step of q(w); −∞ if it fails."""
        return self.estimate(u, next(self.batches), moving=True)

    def estimate(self, u: np.ndarray, batch: Observations, moving: bool = False) -> tuple[float, np.ndarray]:
        """Return the estimate from given rows, with or without a natural step of q(w)."""
        self.log_posterior.set(u)
        self.log_posterior.evaluations += 1
        scale, bound = self.data.num_rows / batch.num_rows, self.training.bound
        try:
            with torch.enable_grad():
                chunk = bound.make_chunk(batch).rotate(self.gp.q_.basis)
                if moving:
                    self.gp.q_ = self.training.take_natural_step(chunk.detach(), scale)
                value = scale * bound.expected(chunk, self.gp.q_) - self.gp.q_.divergence
                value, gradient = self.log_posterior.add_prior(value, u)
        except FAILURES:
            value, gradient = -np.inf, None
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.log_posterior.failures += 1
            return -np.inf, np.zeros(len(u))
        return value, gradient


def sample_batch_svi(
    log_posterior: LogPosterior, X, Y, noise, batch_size: int, draws: int, guide: str, seed: int, verbose: int = 0
) -> HyperparameterDraws:
    """Train q(θ) and q(w) together with batches, and draw from q(θ): (1, draws, k); options as for `sample_svi`.

    `lp` of a draw is an estimate from a few batches, and there is no k̂: both would need all rows per draw.
    """
    check_one_of("guide", guide, GUIDES)
    for_fit, for_batches, for_guide = spawn_seeds(seed, 3)
    gp = log_posterior.gp
    gp.fit(X, Y, noise, batch_size=batch_size, random_state=for_fit, verbose=verbose)
    if gp.fit_report_.interrupted:  # the training itself returns
        raise KeyboardInterrupt("Sampling was interrupted before the first draw.")
    log_posterior.loadings.rotate()
    center, data = log_posterior.vector.get(), gp.observe(X, Y, noise)
    density = BatchDensity(log_posterior, data, batch_size, for_batches)
    rows = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(for_batches))
    some = data.rows(rows[: NUM_CURVATURE_BATCHES * batch_size].to(data.X.device))
    fixed = lambda u: density.estimate(u, some)  # noqa: E731
    laplace = make_laplace_approximation(center, fixed(center)[0], True, compute_hessian(fixed, center))
    draw, attrs = fit_guide(density, guide_coordinates(laplace, guide), guide, for_guide, verbose)
    inside = draw_where_finite(fixed, draw, draws)
    attrs |= {"num_failed_draws": inside.num_failed, "interrupted": int(attrs["interrupted"] or inside.interrupted)}
    attrs |= {"batch_size": batch_size, "elbo": float((inside.lp - inside.log_q).mean())}
    return HyperparameterDraws("svi", inside.u[None], {"lp": inside.lp[None]}, attrs)
