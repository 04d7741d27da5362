"""Draws of the hyperparameters of a variational model from a Gaussian trained on batches of rows.

q(θ) and q(w) are independent, and E_q(θ)[ELBO(q(w), θ)] − KL(q(θ) ‖ p(θ)) is climbed with random rows: a natural step of
q(w) and a step of Adam in q(θ) at a draw of θ. Since q(w) does not follow θ, the spreads of q(θ) are *too small*, the more so
the more the data say about the weights; the centre is that of a full training. For honest spreads use `method="laplace"`,
whose bound is collapsed over q(w). This module loads Pyro: import it only when it is needed.
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

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import seeds
from ovkgp.inference.sampling.diagnostics import importance_checks
from ovkgp.inference.sampling.draws import HyperparameterDraws, draw_inside
from ovkgp.inference.sampling.laplace import LaplaceApproximation, gaussian_at, local_gaussian
from ovkgp.inference.training.lbfgs import FAILURES, second_derivatives
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational.training import LAST_RATE, BatchTraining

GUIDES = {"normal": AutoNormal, "multivariate": AutoMultivariateNormal, "low_rank": AutoLowRankMultivariateNormal}
PARTICLES = 4
"""Draws of u in each step."""
STEP, HALVINGS = 0.05, 6
"""The first step size of Adam, in coordinates of unit scale, and how often it is halved before the end."""
WINDOW = 40
"""Steps over which the bound is averaged before it is asked whether it still rises."""
MAX_WINDOWS = 20
"""Windows with one step size, at most."""
OUTSIDE = 5.0
"""Where the density cannot be evaluated, log π(u*) − 5 |z|² stands for it, so that q is drawn back."""


def sample_svi(log_posterior: LogPosterior, draws: int, guide: str, seed: int, verbose: int = 0) -> HyperparameterDraws:
    """Train q and draw from it, (1, draws, k), with the shape of the importance ratios π / q as a check.

    Args:
        log_posterior: log π.
        draws: how many.
        guide: "normal" (independent variables), "multivariate" (any covariance) or "low_rank" (diagonal plus √k directions).
        seed: of training and draws.
        verbose: 1 shows a progress bar.

    Ctrl-C ends the training, and the draws are those of q as it is. Draws where there is no density are made anew.

    Cost: the mode and its Hessian, then some hundreds of steps with 4 gradients each, and one evaluation a draw.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.training.log_posterior import LogPosterior
        >>> from ovkgp.inference.sampling.svi import sample_svi
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero"), X, X.sin() + 0.1 * torch.cos(40 * X))
        >>> sampled = sample_svi(density, draws=50, guide="normal", seed=0)
        >>> sampled.u.shape, sampled.attrs["guide"]
        ((1, 50, 2), 'normal')
    """
    check_guide(guide)
    local = coordinates(local_gaussian(log_posterior), guide)
    draw, attrs = fitted_guide(log_posterior, local, guide, seed, verbose)
    inside = draw_inside(log_posterior, draw, draws)
    attrs |= {"num_failed_draws": inside.num_failed, "interrupted": int(attrs["interrupted"] or inside.interrupted)}
    attrs |= importance_checks(inside.lp - inside.log_q, "svi")
    return HyperparameterDraws("svi", inside.u[None], {"lp": inside.lp[None]}, attrs)


def fitted_guide(
    density, local: LaplaceApproximation, guide: str, seed: int, verbose: int = 0
) -> tuple[Callable[[int], tuple[np.ndarray, np.ndarray]], dict]:
    """A guide trained on a density (u ↦ value and gradient), as a function from a number to as many draws u (number, k) and
    log q there (number,); and how the training went."""
    # Guides keep their parameters in Pyro's store and draw from torch's global generator: both are put back
    with pyro.get_param_store().scope(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = _model(density, local)
        q = _guide(model, guide, len(local.mode))
        bound = Trace_ELBO(PARTICLES, max_plate_nesting=0, vectorize_particles=True)
        steps, interrupted = train(lambda: bound.differentiable_loss(model, q), q, verbose)
        with torch.no_grad():
            distribution = law_of(q)
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(int(generator.integers(2**63)))
            z = distribution.sample((count,))
            return local.u(z.numpy()), distribution.log_prob(z).numpy() - local.log_volume

    return draw, {"guide": guide, "steps": steps, "interrupted": int(interrupted)}


def check_guide(guide: str) -> None:
    """Refuse a guide that there is not."""
    if guide not in GUIDES:
        raise OptionError(f"guide must be one of {', '.join(map(repr, GUIDES))}, got {guide!r}.")


def coordinates(local: LaplaceApproximation, guide: str) -> LaplaceApproximation:
    """Coordinates in which the guide starts as N(0, I): round ones where it may turn them, else each on its own scale."""
    if guide == "multivariate":
        return local
    curvature = np.diag(np.linalg.inv(local.root @ local.root.T))
    return replace(local, root=np.diag(curvature**-0.5))


def train(loss: Callable[[], Tensor], guide: AutoGuide, verbose: int) -> tuple[int, bool]:
    """Minimise a noisy loss with Adam, halving its step where the loss has stopped falling: (steps, interrupted)."""
    optimiser = torch.optim.Adam(guide.parameters(), lr=STEP)
    steps = 0
    with tqdm(desc="SVI", disable=not verbose) as bar:
        try:
            for step_size in STEP * 0.5 ** np.arange(HALVINGS + 1):
                optimiser.param_groups[0]["lr"] = float(step_size)
                for window in _until_flat(lambda: _step(loss, optimiser)):
                    steps += len(window)
                    bar.update(len(window))
                    bar.set_postfix(elbo=f"{-np.mean(window):.6g}", refresh=False)
        except KeyboardInterrupt:
            warnings.warn("training q was interrupted: the draws are those of q as it was.", FitWarning, stacklevel=4)
            return steps, True
    return steps, False


def _until_flat(step: Callable[[], float]) -> Iterator[list[float]]:
    """Windows of losses, until one is not lower than the one before by more than its standard error."""
    before = np.inf
    for _ in range(MAX_WINDOWS):
        window = [step() for _ in range(WINDOW)]
        yield window
        now, error = np.mean(window), np.std(window) / np.sqrt(WINDOW)
        if now > before - error:
            return
        before = now


def _step(loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer) -> float:
    optimiser.zero_grad()
    value = loss()
    value.backward()
    optimiser.step()
    return value.item()


def _model(density, local: LaplaceApproximation) -> Callable[[], None]:
    size = len(local.mode)

    def log_density(z: Tensor) -> Tensor:
        value = local.value(density, z)
        return local.log_density - OUTSIDE * z.square().sum() if torch.isinf(value) else value

    def model() -> None:
        z = pyro.sample("z", ImproperUniform(constraints.real_vector, torch.Size(), torch.Size([size])))
        values = torch.stack([log_density(particle) for particle in z.reshape(-1, size)])
        pyro.factor("log_posterior", values.reshape(z.shape[:-1]))

    return model


def _guide(model: Callable[[], None], name: str, size: int) -> AutoGuide:
    start = init_to_value(values={"z": torch.zeros(size, dtype=torch.float64)})
    guide = GUIDES[name](model, init_loc_fn=start, init_scale=1.0)
    guide()  # Pyro makes the parameters at the first call
    return guide


def law_of(guide: AutoGuide) -> torch.distributions.Distribution:
    """The distribution of z under a guide."""
    if isinstance(guide, AutoNormal):
        return Normal(guide.locs.z, guide.scales.z).to_event(1)
    return guide.get_posterior()


SHARE = 0.05
"""ρ of the natural steps of q(w): about the last twenty batches are remembered."""
CURVATURE_BATCHES = 4
"""Batches from which the first spreads of q(θ) are found."""


class BatchDensity:
    """An unbiased estimate of ELBO(q(w), θ) + log p(θ) + log |dθ/du| from a batch of rows; q(w) moves with every call.

    Args:
        log_posterior: of a `VariationalGP`, whose copy of the model is trained.
        data: the observations.
        batch_size: rows of a batch.
        seed: of the order of the rows.

    Cost of a call with b rows: that of a step of `BatchTraining`.
    """

    def __init__(self, log_posterior: LogPosterior, data: Observations, batch_size: int, seed: int):
        self.log_posterior, self.gp, self.data = log_posterior, log_posterior.gp, data
        options = {"bounds": None, "sizes": None, "random_state": seed}
        self.training = BatchTraining(self.gp, data, batch_size, 1, 1.0, SHARE / LAST_RATE, **options)
        self.training.step = 10**6  # past the first steps, in which q(w) is forgotten quickly
        self.batches = self._batches()

    def _batches(self) -> Iterator[Observations]:
        while True:
            order = torch.randperm(self.data.num_rows, generator=self.training.generator)
            self.training.turn(order)
            for rows in order.split(self.training.batch_size):
                yield self.data.rows(rows.to(self.data.X.device))

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """The estimate and its gradient (k,) from the next batch, after a natural step of q(w); −∞ where it fails."""
        return self.estimate(u, next(self.batches), moving=True)

    def estimate(self, u: np.ndarray, batch: Observations, moving: bool = False) -> tuple[float, np.ndarray]:
        """The estimate from given rows, with or without a natural step of q(w)."""
        self.log_posterior.place(u)
        self.log_posterior.evaluations += 1
        scale, bound = self.data.num_rows / batch.num_rows, self.training.bound
        try:
            with torch.enable_grad():
                piece = bound.piece(batch).rotated(self.gp.q_.basis)
                if moving:
                    self.gp.q_ = self.training.natural(piece.detach(), scale)
                value = scale * bound.expected(piece, self.gp.q_) - self.gp.q_.divergence
                value, gradient = self.log_posterior.add_prior(value, u)
        except FAILURES:
            value, gradient = -np.inf, None
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.log_posterior.failures += 1
            return -np.inf, np.zeros(len(u))
        return value, gradient


def sample_batch_svi(
    log_posterior: LogPosterior,
    X,
    Y,
    noise,
    batch_size: int,
    draws: int,
    guide: str,
    seed: int,
    verbose: int = 0,
) -> HyperparameterDraws:
    """Train q(θ) and q(w) together with batches, and draw from q(θ): (1, draws, k).

    Args:
        log_posterior: of a `VariationalGP`.
        X, Y, noise: the data.
        batch_size: rows of a batch.
        draws, guide, seed, verbose: as for `sample_svi`.

    `lp` of a draw is an estimate from a few batches, and there is no k̂: both would need all rows for each draw. Ctrl-C while
    the centre is sought is passed on, since there is no q(θ) yet; later it keeps q as it is.

    Cost: `VariationalGP.fit` with batches for the centre, then some hundreds of steps with 4 batches each.
    """
    check_guide(guide)
    for_fit, for_batches, for_guide = seeds(seed, 3)
    gp = log_posterior.gp
    gp.fit(X, Y, noise, batch_size=batch_size, random_state=for_fit, verbose=verbose)
    if gp.fit_report_.interrupted:  # the training itself returns
        raise KeyboardInterrupt("sampling was interrupted before the first draw: there is nothing to keep.")
    log_posterior.loadings.turn()
    centre, data = log_posterior.vector.get(), gp.observe(X, Y, noise)
    density = BatchDensity(log_posterior, data, batch_size, for_batches)
    rows = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(for_batches))
    some = data.rows(rows[: CURVATURE_BATCHES * batch_size].to(data.X.device))
    fixed = lambda u: density.estimate(u, some)  # noqa: E731
    local = gaussian_at(centre, fixed(centre)[0], True, second_derivatives(fixed, centre))
    draw, attrs = fitted_guide(density, coordinates(local, guide), guide, for_guide, verbose)
    inside = draw_inside(fixed, draw, draws)
    attrs |= {"num_failed_draws": inside.num_failed, "interrupted": int(attrs["interrupted"] or inside.interrupted)}
    attrs |= {"batch_size": batch_size, "elbo": float((inside.lp - inside.log_q).mean())}
    return HyperparameterDraws("svi", inside.u[None], {"lp": inside.lp[None]}, attrs)
