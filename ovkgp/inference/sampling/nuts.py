"""Draws of hyperparameters by Pyro's No-U-Turn sampler.

Chains move in whitened coordinates z, u = u* + R z (`ovkgp.inference.sampling.laplace`), start overdispersed around the
mode, and run one after another. Each transition is stored at once, so that Ctrl-C loses none. This module loads Pyro.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor
from tqdm.auto import tqdm

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.diagnostics import HyperparameterDraws
from ovkgp.inference.sampling.laplace import LaplaceApproximation, find_laplace_approximation
from ovkgp.inference.training.log_posterior import LogPosterior

OVERDISPERSION = 1.5  # standard deviation of the initial points of the chains, relative to the Gaussian at the mode
MAX_TRIES = 100  # maximum number of draws of an initial point at which the density can be evaluated
MIN_MASS_ADAPTATION_STEPS = 150  # a shorter warm-up adapts only the step size: it is too short to learn a mass matrix
MAX_DENSE_MASS_VARIABLES = 100  # maximum number of hyperparameters with a dense mass matrix; for more it is diagonal


class Transition(NamedTuple):
    """End point and statistics of one transition of a chain."""

    z: np.ndarray
    lp: float
    energy: float
    acceptance_rate: float
    n_steps: int
    step_size: float
    diverging: bool


class RecordingNUTS(NUTS):
    """Pyro's NUTS, which records the statistics of each transition that ArviZ reads."""

    def _sample_r(self, name: str):
        momentum, unscaled = super()._sample_r(name)
        self.kinetic = float(self._kinetic_energy(unscaled))
        return momentum, unscaled

    def _build_basetree(self, *args):
        tree = super()._build_basetree(*args)
        self.n_steps += 1
        self.acceptance += float(tree.sum_accept_probs)
        self.diverging |= bool(tree.diverging)
        return tree

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        self.n_steps, self.acceptance, self.diverging = 0, 0.0, False
        start = float(self._potential_energy_last)
        params = super().sample(params)
        self.energy = start + self.kinetic
        return params

    def transition(self, params: dict[str, Tensor]) -> Transition:
        """Return the last transition."""
        z, lp, rate = params["z"].numpy().copy(), -float(self._potential_energy_last), float(self.step_size)
        acceptance = self.acceptance / max(self.n_steps, 1)
        return Transition(z, lp, self.energy, acceptance, self.n_steps, rate, self.diverging)


def sample_nuts(
    log_posterior: LogPosterior,
    draws: int,
    tune: int,
    chains: int,
    seeds: list[int],
    target_accept: float = 0.8,
    verbose: int = 0,
) -> HyperparameterDraws:
    """Draw by NUTS, (chains, draws, k), after `tune` transitions per chain that adapt step size and mass.

    After Ctrl-C as many draws as possible are kept in chains of equal length; before the first draw it is raised.
    """
    laplace = find_laplace_approximation(log_posterior)
    finished: list[list[Transition]] = []
    interrupted = False
    with tqdm(total=chains * (tune + draws), desc="NUTS", disable=not verbose) as bar:
        for seed in seeds[:chains]:
            finished.append([])
            try:
                _run_chain(log_posterior, laplace, finished[-1], draws, tune, seed, target_accept, bar)
            except KeyboardInterrupt as error:
                interrupted = True
                kept = _truncate_to_equal_length(finished)
                if not kept:
                    raise KeyboardInterrupt("Sampling was interrupted before the first draw.") from error
                size = f"{len(kept)} of {chains} chains with {len(kept[0])} of {draws} draws each"
                warnings.warn(f"Sampling was interrupted; {size} are kept.", FitWarning, stacklevel=4)
                finished = kept
                break
    return _assemble_draws(finished, laplace, interrupted)


def _run_chain(log_posterior, laplace: LaplaceApproximation, written, draws, tune, seed, target_accept, bar) -> None:
    """Run one chain and append its transitions to `written`."""
    # Pyro and torch's distributions draw from the global generator: seed a fork of it, which is restored
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        kernel = RecordingNUTS(
            potential_fn=lambda params: -laplace.value(log_posterior, params["z"]),
            target_accept_prob=target_accept,
            adapt_mass_matrix=tune >= MIN_MASS_ADAPTATION_STEPS,
            full_mass=len(laplace.mode) <= MAX_DENSE_MASS_VARIABLES,
        )

        def write(kernel: RecordingNUTS, params: dict[str, Tensor], stage: str, index: int) -> None:
            if stage.startswith("Sample"):
                written.append(kernel.transition(params))
            bar.update()

        initial = {"z": _initial_z(log_posterior, laplace, seed)}
        MCMC(kernel, draws, tune, initial_params=initial, hook_fn=write, disable_progbar=True).run()


def _initial_z(log_posterior: LogPosterior, laplace: LaplaceApproximation, seed: int) -> Tensor:
    """Return an initial point (k,) in z, overdispersed around the mode, where the density can be evaluated."""
    generator = np.random.default_rng(seed)
    for _ in range(MAX_TRIES):
        z = OVERDISPERSION * generator.standard_normal(len(laplace.mode))
        if np.isfinite(log_posterior(laplace.u(z))[0]):
            return torch.from_numpy(z)
    raise FactorizationError(
        f"No initial point was found around the mode in {MAX_TRIES} tries: the posterior density cannot be evaluated next to "
        "its mode. Increase the noise, use tighter priors, or check the data for duplicates."
    )


def _truncate_to_equal_length(chains: list[list[Transition]]) -> list[list[Transition]]:
    """Return chains cut to equal length, with as many draws in total as possible; [] if there are none."""
    *complete, cut = chains
    if complete and len(complete) * len(complete[0]) >= len(chains) * len(cut):
        return complete
    return [chain[: len(cut)] for chain in chains] if cut else []


def _assemble_draws(
    chains: list[list[Transition]], laplace: LaplaceApproximation, interrupted: bool
) -> HyperparameterDraws:
    columns = {name: np.array([[getattr(t, name) for t in chain] for chain in chains]) for name in Transition._fields}
    u = laplace.u(columns.pop("z"))
    attrs = {"interrupted": int(interrupted), "mode_converged": int(laplace.converged)}
    return HyperparameterDraws("nuts", u, columns, attrs)
