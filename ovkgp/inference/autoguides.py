"""Draws of hyperparameters by stochastic variational inference with Pyro's autoguides.

A Gaussian q(u) is trained to the largest E_q[log π(u)] + entropy(q), from the Gaussian at the mode, with several particles
and a step that is halved whenever the bound has stopped rising; it ends when the step has become small. This module
loads Pyro: import it only when it is needed.
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
from ovkgp.inference.hyperparameter_draws import HyperparameterDraws, draw_inside
from ovkgp.inference.laplace import LocalGaussian, local_gaussian
from ovkgp.inference.log_posterior import LogPosterior
from ovkgp.inference.sampler_checks import importance_checks

GUIDES = {"normal": AutoNormal, "multivariate": AutoMultivariateNormal, "low_rank": AutoLowRankMultivariateNormal}
PARTICLES = 4
"""Draws of u in each step."""
STEP, HALVINGS = 0.05, 6
"""The first step size of Adam, in coordinates of unit scale, and how often it is halved before the end."""
WINDOW = 40
"""Steps over which the bound is averaged before it is asked whether it still rises."""
MOST_WINDOWS = 20
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
        >>> from ovkgp.inference.log_posterior import LogPosterior
        >>> from ovkgp.inference.autoguides import sample_svi
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = LogPosterior(OperatorValuedGP(RBFKernel(), mean="zero"), X, X.sin() + 0.1 * torch.cos(40 * X))
        >>> sampled = sample_svi(density, draws=50, guide="normal", seed=0)
        >>> sampled.u.shape, sampled.attrs["guide"]
        ((1, 50, 2), 'normal')
    """
    require_guide(guide)
    local = coordinates(local_gaussian(log_posterior), guide)
    draw, attrs = fitted_guide(log_posterior, local, guide, seed, verbose)
    inside = draw_inside(log_posterior, draw, draws)
    attrs |= {"num_failed_draws": inside.num_failed, "interrupted": int(attrs["interrupted"] or inside.interrupted)}
    attrs |= importance_checks(inside.lp - inside.log_q, "svi")
    return HyperparameterDraws("svi", inside.u[None], {"lp": inside.lp[None]}, attrs)


def fitted_guide(
    density, local: LocalGaussian, guide: str, seed: int, verbose: int = 0
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
            law = law_of(q)
    generator = np.random.default_rng(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(int(generator.integers(2**63)))
            z = law.sample((count,))
            return local.u(z.numpy()), law.log_prob(z).numpy() - local.log_volume

    return draw, {"guide": guide, "steps": steps, "interrupted": int(interrupted)}


def require_guide(guide: str) -> None:
    """Refuse a guide that there is not."""
    if guide not in GUIDES:
        raise OptionError(f"guide must be one of {', '.join(map(repr, GUIDES))}, got {guide!r}.")


def coordinates(local: LocalGaussian, guide: str) -> LocalGaussian:
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
    for _ in range(MOST_WINDOWS):
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


def _model(density, local: LocalGaussian) -> Callable[[], None]:
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
