"""Draws of hyperparameters by the No-U-Turn sampler.

Multinomial NUTS with the generalized U-turn criterion (Betancourt 2017, arXiv:1701.02434, appendix A; Hoffman and Gelman 2014) and
a step size adapted by dual averaging. Chains move in whitened coordinates z, u = u* + R z (`ovkgp.inference.sampling.laplace`),
with unit mass, and start overdispersed around the mode. A mass matrix is the same as other whitened coordinates: it is adapted
only if the first window of the warm-up shows that the Gaussian at the mode does not describe the posterior.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.chain_processes import count_workers, run_in_processes, single_thread
from ovkgp.inference.sampling.diagnostics import HyperparameterDraws
from ovkgp.inference.sampling.laplace import LaplaceApproximation, find_laplace_approximation
from ovkgp.inference.training.log_posterior import LogPosterior

OVERDISPERSION = 1.5  # standard deviation of the initial points of the chains, relative to the Gaussian at the mode
MAX_TRIES = 100  # maximum number of draws of an initial point at which the density can be evaluated
MAX_TREE_DEPTH = 10  # at most 2¹⁰ − 1 steps per transition
MAX_ENERGY_ERROR = 1000.0  # a larger error of the energy is a divergence
STEPS_PER_TRANSITION = 8  # guess, to decide whether parallel processes pay

FIRST_WINDOW, NUM_SKIPPED = 100, 30
"""Transitions of the first window of the warm-up, and those at its beginning that are not used to assess it."""
MASS_WINDOW, LAST_WINDOW = 100, 50
"""Transitions of the first window of a mass adaptation, and of its last one, which adapts only the step size."""
MAX_VARIANCE_RATIO, MIN_ENERGY_RATIO, MAX_DIVERGENCE_RATE = 4.0, 0.3, 0.05
"""Variances of z further from 1, a smaller ratio of the variances of the energy (E-BFMI) and more divergences ask for an adapted mass."""
MASS_PRIOR_DRAWS = 20  # weight of the present coordinates in an adapted mass, in draws
MIN_DRAWS_PER_VARIABLE = 5  # with fewer draws, only the variances are adapted

Density = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Transition(NamedTuple):
    """End point and statistics of one transition of a chain."""

    z: np.ndarray
    u: np.ndarray
    lp: float
    energy: float
    acceptance_rate: float
    n_steps: int
    step_size: float
    diverging: bool


class State(NamedTuple):
    """Position, momentum, log density and its gradient."""

    z: np.ndarray
    r: np.ndarray
    lp: float
    gradient: np.ndarray

    @property
    def energy(self) -> float:
        return 0.5 * float(self.r @ self.r) - self.lp


class Tree(NamedTuple):
    """A part of a trajectory, from `first` to `last` in the order in which it was built."""

    first: State
    last: State
    proposal: State  # drawn from its states with probabilities in proportion to exp(−energy)
    log_weight: float  # log Σ exp(energy at the beginning − energy)
    momentum: np.ndarray  # Σ r
    n_steps: int
    acceptance: float  # Σ min(1, exp(energy at the beginning − energy))
    diverging: bool = False
    turning: bool = False

    @property
    def is_valid(self) -> bool:
        return not (self.diverging or self.turning)

    def reversed(self) -> Tree:
        return self._replace(first=self.last, last=self.first)


def leapfrog(density: Density, state: State, step: float) -> State:
    """Make one leapfrog step, backward in time if `step` is negative."""
    r = state.r + 0.5 * step * state.gradient
    z = state.z + step * r
    lp, gradient = density(z)
    return State(z, r + 0.5 * step * gradient, lp, gradient)


def make_trajectory(density: Density, state: State, step: float, rng: np.random.Generator) -> tuple[Tree, float]:
    """Draw a momentum and double the trajectory until it turns or diverges; return it and its energy.

    Its proposal is the next state of the chain.
    """
    start = state._replace(r=rng.standard_normal(len(state.z)))
    energy = start.energy
    tree = Tree(start, start, start, 0.0, start.r, 0, 0.0)
    for depth in range(MAX_TREE_DEPTH):
        is_forward = rng.random() < 0.5
        old = tree if is_forward else tree.reversed()
        new = build_tree(density, old.last, depth, step if is_forward else -step, energy, rng)
        tree = join(old, new, math.exp(min(0.0, new.log_weight - old.log_weight)), rng)
        if not tree.is_valid:
            break
        tree = tree if is_forward else tree.reversed()
    return tree, energy


def build_tree(density: Density, state: State, depth: int, step: float, energy: float, rng) -> Tree:
    """Build a tree of 2^depth steps that begins one step after `state`; stop if a part of it turns or diverges."""
    if depth == 0:
        new = leapfrog(density, state, step)
        error = new.energy - energy
        if not error <= MAX_ENERGY_ERROR:  # also if it is not a number
            return Tree(new, new, new, -math.inf, new.r, 1, 0.0, diverging=True)
        return Tree(new, new, new, -error, new.r, 1, math.exp(min(0.0, -error)))
    old = build_tree(density, state, depth - 1, step, energy, rng)
    if not old.is_valid:
        return old
    new = build_tree(density, old.last, depth - 1, step, energy, rng)
    return join(old, new, 1 / (1 + math.exp(min(700.0, old.log_weight - new.log_weight))), rng)


def join(old: Tree, new: Tree, probability: float, rng: np.random.Generator) -> Tree:
    """Append a tree to another, and take its proposal with a probability; an invalid one adds only its statistics."""
    n_steps, acceptance = old.n_steps + new.n_steps, old.acceptance + new.acceptance
    if not new.is_valid:
        return old._replace(n_steps=n_steps, acceptance=acceptance, diverging=new.diverging, turning=new.turning)
    proposal = new.proposal if rng.random() < probability else old.proposal
    low, high = sorted((old.log_weight, new.log_weight))
    momentum = old.momentum + new.momentum
    turning = is_turning(momentum, old.first.r, new.last.r)
    if not turning and old.first is not old.last:
        # each half with the next state, as Stan does: halves alone may miss a turn between them
        turning = is_turning(old.momentum + new.first.r, old.first.r, new.first.r) or is_turning(
            new.momentum + old.last.r, old.last.r, new.last.r
        )
    log_weight = high + math.log1p(math.exp(low - high))
    return Tree(old.first, new.last, proposal, log_weight, momentum, n_steps, acceptance, turning=turning)


def is_turning(momentum: np.ndarray, first: np.ndarray, last: np.ndarray) -> bool:
    """Whether one end of a trajectory with this sum of momenta moves toward the other."""
    return momentum @ first <= 0 or momentum @ last <= 0


class StepSize:
    """Step size by dual averaging of the acceptance rate, with the constants of Hoffman and Gelman (2014)."""

    SHRINKAGE, DELAY, DECAY = 0.05, 10, 0.75

    def __init__(self, initial: float, target_accept: float):
        self.center, self.target_accept = math.log(10 * initial), target_accept
        self.value, self.error, self.log_average, self.count = initial, 0.0, 0.0, 0

    def update(self, acceptance_rate: float) -> None:
        """Use the acceptance rate of the last transition."""
        self.count += 1
        self.error += (self.target_accept - acceptance_rate - self.error) / (self.count + self.DELAY)
        log_step = self.center - math.sqrt(self.count) / self.SHRINKAGE * self.error
        self.log_average += self.count**-self.DECAY * (log_step - self.log_average)
        self.value = math.exp(log_step)

    @property
    def average(self) -> float:
        """The step size after the adaptation."""
        return math.exp(self.log_average) if self.count else self.value


def find_step_size(density: Density, state: State, rng: np.random.Generator) -> float:
    """Return a step size at which the acceptance of one step crosses 0.8, by doubling or halving."""
    state, step = state._replace(r=rng.standard_normal(len(state.z))), 1.0

    def is_accepted(step: float) -> bool:
        return state.energy - leapfrog(density, state, step).energy > math.log(0.8)

    factor = 2.0 if is_accepted(step) else 0.5
    for _ in range(50):
        step *= factor
        if is_accepted(step) != (factor > 1):
            break
    return step


class WhitenedDensity:
    """log π(u* + R z) and its gradient as a function of z."""

    def __init__(self, log_posterior: LogPosterior, mode: np.ndarray, root: np.ndarray):
        self.log_posterior, self.mode, self.root = log_posterior, mode, root

    def __call__(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        lp, gradient = self.log_posterior(self.u(z))
        return lp, gradient @ self.root

    def u(self, z: np.ndarray) -> np.ndarray:
        """Return u* + R z."""
        return self.mode + self.root @ z


class Chain:
    """One chain: its coordinates, state and generator."""

    def __init__(self, log_posterior: LogPosterior, laplace: LaplaceApproximation, seed: int, target_accept: float):
        self.density, self.target_accept = WhitenedDensity(log_posterior, laplace.mode, laplace.root), target_accept
        self.rng = np.random.default_rng(seed)
        self.state = self._find_initial_state()

    def _find_initial_state(self) -> State:
        """Return a state overdispersed around the mode, where the density can be evaluated."""
        k = len(self.density.mode)
        for _ in range(MAX_TRIES):
            z = OVERDISPERSION * self.rng.standard_normal(k)
            lp, gradient = self.density(z)
            if np.isfinite(lp):
                return State(z, np.zeros(k), lp, gradient)
        raise FactorizationError(
            f"No initial point was found around the mode in {MAX_TRIES} tries: the posterior density cannot be evaluated next to "
            "its mode. Increase the noise, use tighter priors, or check the data for duplicates."
        )

    def run(self, draws: int, tune: int) -> Iterator[Transition | None]:
        """Yield None for each of at most `tune` transitions of the warm-up, needed or not, then the draws."""
        step, window = yield from self._warm_up(min(tune, FIRST_WINDOW))
        window, left, size, has_changed = window[NUM_SKIPPED:], tune - FIRST_WINDOW, MASS_WINDOW, False
        while left >= 2 * LAST_WINDOW and needs_mass_adaptation(window):
            self._rescale(window)
            size = min(size, left - LAST_WINDOW)
            _, window = yield from self._warm_up(size)
            left, size, has_changed = left - size, 2 * size, True
        if has_changed:
            self._rescale(window)
            step, _ = yield from self._warm_up(LAST_WINDOW)
            left -= LAST_WINDOW
        yield from repeat(None, left)  # not needed
        for _ in range(draws):
            yield self._move(step)

    def _warm_up(self, count: int):
        """Make transitions while the step size is adapted; return it and the transitions in z."""
        step, window = StepSize(find_step_size(self.density, self.state, self.rng), self.target_accept), []
        for _ in range(count):
            window.append(self._move(step.value))
            step.update(window[-1].acceptance_rate)
            yield None
        return step.average, window

    def _move(self, step: float) -> Transition:
        """Make one transition."""
        tree, energy = make_trajectory(self.density, self.state, step, self.rng)
        self.state, rate = tree.proposal, tree.acceptance / tree.n_steps
        point = self.state.z, self.density.u(self.state.z), self.state.lp
        return Transition(*point, energy, rate, tree.n_steps, step, tree.diverging)

    def _rescale(self, window: list[Transition]) -> None:
        """Adapt the coordinates to the draws of a window: the same as a mass matrix, their precision, which shrinks to I."""
        z = np.array([move.z for move in window])
        n, k = z.shape
        covariance = np.cov(z, rowvar=False).reshape(k, k)
        if n < MIN_DRAWS_PER_VARIABLE * k:
            covariance = np.diag(covariance.diagonal())
        factor = np.linalg.cholesky((n * covariance + MASS_PRIOR_DRAWS * np.eye(k)) / (n + MASS_PRIOR_DRAWS))
        density = self.density
        self.density = WhitenedDensity(density.log_posterior, density.mode, density.root @ factor)
        z, gradient = np.linalg.solve(factor, self.state.z), self.state.gradient @ factor
        self.state = self.state._replace(z=z, gradient=gradient)


def needs_mass_adaptation(window: list[Transition]) -> bool:
    """Whether the draws of a window contradict a standard normal distribution of z."""
    variances = np.var([move.z for move in window], axis=0)
    energy = np.array([move.energy for move in window])
    is_far = max(variances.max(), 1 / max(variances.min(), 1e-300)) > MAX_VARIANCE_RATIO
    is_slow = np.mean(np.diff(energy) ** 2) < MIN_ENERGY_RATIO * np.var(energy)
    return bool(is_far or is_slow or np.mean([move.diverging for move in window]) > MAX_DIVERGENCE_RATE)


def sample_nuts(
    log_posterior: LogPosterior,
    draws: int,
    tune: int,
    chains: int,
    seeds: list[int],
    target_accept: float = 0.8,
    verbose: int = 0,
) -> HyperparameterDraws:
    """Draw by NUTS, (chains, draws, k), after a warm-up of at most `tune` transitions per chain.

    Long chains run in parallel processes; the draws are the same. After Ctrl-C as many draws as possible are kept in
    chains of equal length; before the first draw it is raised.
    """
    began, evaluations = time.perf_counter(), log_posterior.evaluations
    laplace = find_laplace_approximation(log_posterior)
    gradient_seconds = (time.perf_counter() - began) / max(log_posterior.evaluations - evaluations, 1)
    workers = count_workers(chains, gradient_seconds * STEPS_PER_TRANSITION * (min(tune, FIRST_WINDOW) + draws))
    written: list[list[Transition]] = [[] for _ in range(chains)]

    def run_chain(index: int) -> Iterator[Transition | None]:
        return Chain(log_posterior, laplace, seeds[index], target_accept).run(draws, tune)

    interrupted = False
    with tqdm(total=chains * (tune + draws), desc="NUTS", disable=not verbose) as bar, single_thread(chains > 1):

        def write(index: int, moves: list[Transition | None]) -> None:
            written[index] += [move for move in moves if move is not None]
            bar.update(len(moves))

        try:
            if workers > 1:
                run_in_processes(run_chain, chains, workers, write, log_posterior)
            else:
                for index in range(chains):
                    for move in run_chain(index):
                        write(index, [move])
        except KeyboardInterrupt as error:
            interrupted = True
            written = truncate_to_equal_length(written)
            if not written:
                raise KeyboardInterrupt("Sampling was interrupted before the first draw.") from error
            size = f"{len(written)} of {chains} chains with {len(written[0])} of {draws} draws each"
            warnings.warn(f"Sampling was interrupted; {size} are kept.", FitWarning, stacklevel=4)
    columns = {
        name: np.array([[getattr(t, name) for t in chain] for chain in written]) for name in Transition._fields[1:]
    }
    attrs = {"interrupted": int(interrupted), "mode_converged": int(laplace.converged)}
    return HyperparameterDraws("nuts", columns.pop("u"), columns, attrs)


def truncate_to_equal_length(chains: list[list]) -> list[list]:
    """Return as many chains, cut to equal length, as have most draws in total; [] if there are none."""
    lengths = sorted({len(chain) for chain in chains if chain}, reverse=True)
    blocks = [[chain[:length] for chain in chains if len(chain) >= length] for length in lengths]
    return max(blocks, key=lambda block: len(block) * len(block[0]), default=[])
