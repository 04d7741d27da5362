"""Draws of hyperparameters by the No-U-Turn sampler, Pyro's, on one plain potential function.

Chains move in coordinates z in which the posterior is about round, u = u* + R z (`ovkgp.inference.sampling.laplace`), start
overdispersed around the mode, and run one after another. Each transition is written down as soon as it is made, so that
Ctrl-C loses none. This module loads Pyro: import it only when it is needed.
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
from ovkgp.inference.sampling.draws import HyperparameterDraws
from ovkgp.inference.sampling.laplace import LaplaceApproximation, local_gaussian
from ovkgp.inference.training.log_posterior import LogPosterior

SPREAD = 1.5
"""How much wider than the Gaussian at the mode the starts of the chains are."""
TRIES = 100
"""How often a start is drawn again where the density cannot be evaluated."""
MIN_TUNE = 150
"""A shorter warm-up adapts the step alone: it is too short to learn a mass, and the coordinates are about round as they are."""
MAX_DENSE = 100
"""So many hyperparameters may have a dense mass matrix; more have a diagonal one."""


class Transition(NamedTuple):
    """Where one transition of the chain ended, and how it went."""

    z: np.ndarray
    lp: float
    energy: float
    acceptance_rate: float
    n_steps: int
    step_size: float
    diverging: bool


class RecordingNUTS(NUTS):
    """Pyro's sampler, which says of each transition what ArviZ wants to know."""

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
        """The last transition."""
        return Transition(
            z=params["z"].numpy().copy(),
            lp=-float(self._potential_energy_last),
            energy=self.energy,
            acceptance_rate=self.acceptance / max(self.n_steps, 1),
            n_steps=self.n_steps,
            step_size=float(self.step_size),
            diverging=self.diverging,
        )


def sample_nuts(
    log_posterior: LogPosterior,
    draws: int,
    tune: int,
    chains: int,
    seeds: list[int],
    target_accept: float = 0.8,
    verbose: int = 0,
) -> HyperparameterDraws:
    """Draws by NUTS, (chains, draws, k).

    Args:
        log_posterior: log π.
        draws, tune: transitions kept of each chain, and those before them in which step size and mass are adapted.
        chains: how many, one after another.
        seeds: one for each chain.
        target_accept: the acceptance rate that the step size aims at.
        verbose: 1 shows a progress bar.

    A place at which the density cannot be evaluated has density zero: the step there is rejected and counted as diverging.
    After Ctrl-C there are as many chains of equal length as keep the most draws.

    Cost: about 2 to 15 gradients a transition.

    Raises:
        KeyboardInterrupt: before there was a single draw.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.training.log_posterior import LogPosterior
        >>> from ovkgp.inference.sampling.nuts import sample_nuts
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero"), X, X.sin() + 0.1 * torch.cos(40 * X))
        >>> sampled = sample_nuts(density, draws=30, tune=30, chains=1, seeds=[0])
        >>> sampled.u.shape, sorted(sampled.stats)
        ((1, 30, 2), ['acceptance_rate', 'diverging', 'energy', 'lp', 'n_steps', 'step_size'])
    """
    local = local_gaussian(log_posterior)
    finished: list[list[Transition]] = []
    interrupted = False
    with tqdm(total=chains * (tune + draws), desc="NUTS", disable=not verbose) as bar:
        for seed in seeds[:chains]:
            finished.append([])
            try:
                _run_chain(log_posterior, local, finished[-1], draws, tune, seed, target_accept, bar)
            except KeyboardInterrupt as error:
                interrupted = True
                kept = _longest_block(finished)
                if not kept:
                    raise KeyboardInterrupt(
                        "sampling was interrupted before the first draw: there is nothing to keep."
                    ) from error
                words = f"{len(kept)} of {chains} chains with {len(kept[0])} of {draws} draws each"
                warnings.warn(f"sampling was interrupted: kept {words}.", FitWarning, stacklevel=4)
                finished = kept
                break
    return _assembled(finished, local, interrupted)


def _run_chain(log_posterior, local: LaplaceApproximation, written, draws, tune, seed, target_accept, bar) -> None:
    """Run one chain and append its transitions to `written`."""
    # Pyro and torch's distributions draw from the global generator: a fork of it is seeded, and put back
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        kernel = RecordingNUTS(
            potential_fn=lambda params: -local.value(log_posterior, params["z"]),
            target_accept_prob=target_accept,
            adapt_mass_matrix=tune >= MIN_TUNE,
            full_mass=len(local.mode) <= MAX_DENSE,
        )

        def write(kernel: RecordingNUTS, params: dict[str, Tensor], stage: str, index: int) -> None:
            if stage.startswith("Sample"):
                written.append(kernel.transition(params))
            bar.update()

        start = {"z": _start(log_posterior, local, seed)}
        MCMC(kernel, draws, tune, initial_params=start, hook_fn=write, disable_progbar=True).run()


def _start(log_posterior: LogPosterior, local: LaplaceApproximation, seed: int) -> Tensor:
    """A start (k,) in z, wider spread than the Gaussian at the mode, where the density can be evaluated."""
    generator = np.random.default_rng(seed)
    for _ in range(TRIES):
        z = SPREAD * generator.standard_normal(len(local.mode))
        if np.isfinite(log_posterior(local.u(z))[0]):
            return torch.from_numpy(z)
    raise FactorizationError(
        f"no start was found around the mode in {TRIES} tries: the posterior density cannot be evaluated next to its mode. Raise "
        "the noise, give tighter priors, or check the data for duplicates."
    )


def _longest_block(chains: list[list[Transition]]) -> list[list[Transition]]:
    """Chains cut to equal length, with as many draws in all as can be kept; [] where there are none."""
    *complete, cut = chains
    if complete and len(complete) * len(complete[0]) >= len(chains) * len(cut):
        return complete
    return [chain[: len(cut)] for chain in chains] if cut else []


def _assembled(chains: list[list[Transition]], local: LaplaceApproximation, interrupted: bool) -> HyperparameterDraws:
    columns = {name: np.array([[getattr(t, name) for t in chain] for chain in chains]) for name in Transition._fields}
    u = local.u(columns.pop("z"))
    attrs = {"interrupted": int(interrupted), "mode_converged": int(local.converged)}
    return HyperparameterDraws("nuts", u, columns, attrs)
