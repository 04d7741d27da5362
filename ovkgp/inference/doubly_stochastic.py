"""Doubly stochastic gradient descent: one block of random features and one batch of rows at a time (BT-93, Algorithm 4; ID-19).

At iteration t the block i = t mod B is drawn again from its seed, and with the batch S of the n rows

    g = θ_i − (n/|S|) Φ_{S,i}ᵀ N⁻¹ (y_S − m_S − Φ_S θ),     H = I + (n/|S|) Φ_{S,i}ᵀ N⁻¹ Φ_{S,i},     θ_i ← θ_i − γ_t H⁻¹ g.

Only the active block shrinks. Φ is scaled by 1/√D everywhere (BT-E-36). With all rows and γ = 1 this is block Gauss–Seidel; with
one block as well it is Algorithm 3 in one step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Real

import torch
from tqdm import tqdm

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features.noise import as_seed
from ovkgp.inference.block_descent import AllRows, Batches, BlockDescent, Blocks
from ovkgp.inference.conjugate_gradients import Refined
from ovkgp.inference.data import Observations
from ovkgp.inference.model import Model
from ovkgp.inference.quadratics import warn_of_residual
from ovkgp.kernels.checks import whole_number

SWEEPS, PASSES = 2000, 20
"""Without `max_iter`: sweeps over the blocks with all rows at once, and passes of each block over the rows in batches."""

PATIENCE = 100
"""Sweeps over all rows in which the gradient must halve; where it does not, it would hardly arrive, and stops."""

BURN_IN, DECAY = 5, 0.75
"""Sweeps at the full rate, and the power of the sweep with which it falls afterwards, where rows come in batches."""


def doubly_stochastic_weights(
    model: Model,
    data: Observations,
    *,
    batch_size: int | None = None,
    learning_rate: float | Callable[[int], float] = 1.0,
    preconditioned: bool = True,
    tolerance: float = 1e-9,
    max_iter: int | None = None,
    random_state=None,
    verbose: int = 0,
) -> Refined:
    """The posterior mean of the weights (r,), and the number of iterations, by blocks of features and batches of rows.

    Args:
        model: with a feature map; a `BlockedORFF` has blocks, any other map is one block.
        data: the observations, in float64.
        batch_size: |S|; None, or n and more, for all rows.
        learning_rate: γ; a number, constant with all rows and falling like s^-3/4 after a few sweeps s with batches, or a
            function t ↦ γ_t of the iteration t = 1, 2, ….
        preconditioned: divide the gradient by the block's Hessian. If not, it is that of the thesis, of
            (1/n) Σ ½‖y − f‖² + (λ/2)‖θ‖² with λ the mean noise over n, and γ is at most about 1/E tr K(x, x).
        tolerance: with all rows, stop when the gradient over a sweep is this part of the one at θ = 0, and of the length of
            N^{-½} (y − m).
        max_iter: iterations, one block each.
        random_state: of the batches.
        verbose: 1 shows a progress bar.

    With batches and γ_t < 1 the Hessian is γ_t that of the batch and 1 − γ_t that of other rows (`ovkgp.inference.block_descent`).
    With all rows and a number for γ, the last few sweeps are combined (`ovkgp.inference.sweeps`); a function gives plain steps.

    Ctrl-C keeps the weights so far and warns. A gradient that stays above the tolerance is a `FitWarning`; with batches it is
    one only where it is not below that of θ = 0.

    Cost of an iteration: O(n b (p + d)) with all rows, or O(|S| D (p + d)) with batches, and O(|S| p r_b² + r_b³) for the
    Hessian of the r_b weights of a block, kept between sweeps where there is room. Frequencies of one block at a time.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import BlockedORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.doubly_stochastic import doubly_stochastic_weights
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> features = BlockedORFF(kernel, 40, block_size=10, random_state=0)
        >>> gp = OperatorValuedGP(kernel, mean="zero", noise=0.1, features=features)
        >>> X = torch.linspace(0, 6, 50, dtype=torch.float64).unsqueeze(-1)
        >>> weights = doubly_stochastic_weights(gp.frozen().model, observations(X, X.sin(), 1)).solution
        >>> exact = gp.condition(X, X.sin()).weights
        >>> bool(torch.allclose(weights, exact, atol=1e-6))
        True
    """
    size = data.num_rows if batch_size is None else min(whole_number("batch_size", batch_size), data.num_rows)
    is_full = size == data.num_rows
    blocks = Blocks(model.features)
    rate = _rates(learning_rate, blocks.num_blocks, is_full)
    if max_iter is None:
        max_iter = blocks.num_blocks * (SWEEPS if is_full else PASSES * math.ceil(data.num_rows / size))
    if is_full:
        descent = AllRows(model, data, blocks, preconditioned, combined=not callable(learning_rate))
    else:
        descent = Batches(model, data, blocks, preconditioned, size, as_seed(random_state))
    with torch.no_grad():
        interrupted = _run(descent, rate, max_iter, tolerance if is_full else 0.0, verbose)
        if not interrupted:
            _judge(descent, tolerance if is_full else 1.0)
    return Refined(descent.weights, descent.num_steps)


def _rates(learning_rate: float | Callable[[int], float], num_blocks: int, is_full: bool) -> Callable[[int], float]:
    """t ↦ γ_t, checked."""

    def rate(t: int) -> float:
        if callable(learning_rate):
            value = learning_rate(t)
        else:
            late = max((t - 1) // num_blocks - BURN_IN, 0)
            value = learning_rate if is_full else learning_rate * (1 + late) ** -DECAY
        if isinstance(value, bool) or not (isinstance(value, Real) and math.isfinite(value) and value > 0):
            raise OptionError(
                f"learning_rate must be a positive number, or a function of the iteration with such values; got {value!r} "
                f"at iteration {t}."
            )
        return float(value)

    rate(1)
    return rate


def _run(descent: BlockDescent, rate: Callable[[int], float], max_iter: int, tolerance: float, verbose: int) -> bool:
    """Iterate until the gradient of a sweep is small; whether Ctrl-C came before."""
    start, num_blocks, sweep, last = descent.start, descent.blocks.num_blocks, 0.0, math.inf
    with tqdm(total=max_iter, disable=not verbose, unit="iteration") as bar:
        try:
            for t in range(1, max_iter + 1):
                sweep += descent.step((t - 1) % num_blocks, rate(t))
                descent.num_steps = t
                bar.update()
                if t % num_blocks == 0:
                    relative, sweep = math.sqrt(sweep) / start if start else 0.0, 0.0
                    bar.set_postfix(gradient=f"{relative:.1e}", refresh=False)
                    _require_bounded(relative, t)
                    if relative <= tolerance:
                        break
                    if tolerance and t % (PATIENCE * num_blocks) == 0:
                        if relative > last / 2:
                            break
                        last = relative
        except KeyboardInterrupt:
            message = (
                f'solver="doubly_sgd" was interrupted at iteration {t} of {max_iter}: the weights so far are kept.'
            )
            warnings.warn(message, FitWarning, stacklevel=4)
            return True
    return False


def _require_bounded(relative: float, t: int) -> None:
    if not relative < 1e12:
        raise OptionError(
            f"doubly stochastic descent diverged by iteration {t}: take a smaller learning_rate, or preconditioned=True."
        )


def _judge(descent: BlockDescent, tolerance: float) -> None:
    relative = descent.gradient_norm() / descent.start if descent.start else 0.0
    if not relative <= 2 * tolerance:  # that of a sweep, by which it stopped, is not quite that of its end
        warn_of_residual("doubly_sgd", relative, tolerance)
