"""Draws of the hyperparameters of a variational model from a Gaussian trained on batches of rows.

q(θ) and q(w) are independent, and E_q(θ)[ELBO(q(w), θ)] − KL(q(θ) ‖ p(θ)) is climbed with random rows: a natural step of
q(w) and a step of Adam in q(θ) at a draw of θ. Since q(w) does not follow θ, the spreads of q(θ) are *too small*, the more so
the more the data say about the weights; the centre is that of a full training. For honest spreads use `method="laplace"`,
whose bound is collapsed over q(w). This module loads Pyro: import it only when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ovkgp.inference.ascent import FAILURES
from ovkgp.inference.autoguides import coordinates, fitted_guide, require_guide
from ovkgp.inference.data import Observations
from ovkgp.inference.hyperparameter_draws import HyperparameterDraws, draw_inside
from ovkgp.inference.laplace import gaussian_at
from ovkgp.inference.log_posterior import LogPosterior
from ovkgp.inference.posterior import seeds
from ovkgp.inference.posterior_mode import second_derivatives
from ovkgp.inference.variational_training import LAST_RATE, BatchTraining

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
        options = {"boxes": None, "sizes": None, "random_state": seed}
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
                piece = bound.piece(batch).turned(self.gp.q_.basis)
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
    require_guide(guide)
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
