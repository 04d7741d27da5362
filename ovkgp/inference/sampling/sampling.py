"""Posteriors of hyperparameters: one function, three methods, one ArviZ object.

NUTS integrates over the hyperparameters, variational inference and Laplace's approximation replace their posterior by a
Gaussian in the variables u of `LogPosterior`. All see nothing but log π(u) and its gradient, and so work on every road.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from linear_operator.utils.warnings import NumericalWarning

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.inference.posteriors.posterior import seeds
from ovkgp.inference.sampling.arviz_data import to_arviz_object
from ovkgp.inference.sampling.arviz_groups import DrawGroups
from ovkgp.inference.sampling.diagnostics import chain_checks
from ovkgp.inference.sampling.draws import HyperparameterDraws
from ovkgp.inference.sampling.laplace import sample_laplace
from ovkgp.inference.training.log_posterior import LogPosterior

METHODS = ("nuts", "svi", "laplace")


def sample_hyperparameters(
    gp,
    X,
    Y=None,
    method: str = "nuts",
    *,
    noise=None,
    draws: int = 500,
    tune: int = 500,
    chains: int = 4,
    guide: str = "multivariate",
    batch_size: int | None = None,
    target_accept: float = 0.8,
    prior_draws: int = 500,
    log_likelihood: bool | str = "auto",
    posterior_predictive: bool | str = "auto",
    input_names: Sequence | None = None,
    output_names: Sequence | None = None,
    random_state=None,
    verbose: int = 0,
):
    """Draws from the posterior of a model's hyperparameters, as the object that ArviZ reads.

    π(θ) ∝ p(Y | θ) p(θ), with the evidence of the road that the model takes and the priors that are registered; parameters
    without one get a weakly informative prior scaled by the data (`ovkgp.inference.training.initialization`). The model is not changed.

    Args:
        gp: an `OperatorValuedGP`, or another model with `evidence(X, Y, noise)`.
        X, Y, noise: as for `gp.condition`; X may be `Statistics`, without Y.
        method: "nuts" (exact up to Monte Carlo), "svi" (a Gaussian trained by Pyro) or "laplace" (a Gaussian at the mode).
        draws: how many, of each chain; SVI and Laplace have one chain.
        tune, chains, target_accept: of NUTS: transitions before the first draw, how many chains, and the acceptance rate.
        guide: of SVI: "normal", "multivariate" or "low_rank".
        batch_size: of SVI for a `VariationalGP`: train with so many random rows at a time (`ovkgp.inference.sampling.svi`).
        prior_draws: draws from the priors, 0 for none.
        log_likelihood, posterior_predictive: whether to compute these groups; "auto" does where they cost little.
        input_names, output_names: labels of the columns of X and Y.
        random_state: everything random comes from it; the global generators are left as they were.
        verbose: 1 shows a progress bar.

    Returns:
        `arviz.InferenceData` (ArviZ 0.x) or `xarray.DataTree` (1.x) with the groups

        | group | variables |
        |---|---|
        | posterior | the hyperparameters by name, in the units of the data: lengthscale, noise, output_matrix, … |
        | unconstrained_posterior | the raw parameters by qualified name, which `gp.condition(hyperparameters=…)` reads |
        | prior | the same names as in posterior, drawn from the priors |
        | sample_stats | lp; for NUTS also diverging, acceptance_rate, energy, n_steps, step_size |
        | log_likelihood | y (chain, draw, entry): log p(y_ij given all others, θ_s), observed entries, coords row and output |
        | posterior_predictive | y (chain, draw, row, output): data drawn anew at X, noise included |
        | observed_data | y (row, output), NaN where missing |

        and in the attributes of posterior the method, seconds, evaluations, interrupted, and how far to trust it all: for
        NUTS num_divergences, rhat_max, ess_min; for SVI and Laplace the Pareto shape khat and the bound elbo.

    SVI and Laplace draw anew where a draw has no posterior density (num_failed_draws in the attributes). Ctrl-C keeps the draws
    so far, with a `FitWarning`; before the first draw it is passed on.

    Cost: gradients of the evidence: for Laplace some tens and one a draw (for khat), for SVI some thousands, for NUTS about 10 a
    transition. Then one factorisation a draw for log_likelihood and another for posterior_predictive.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.sampling.sampling import sample_hyperparameters
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero")
        >>> Y = X.sin() + 0.1 * torch.cos(40 * X)
        >>> data = sample_hyperparameters(gp, X, Y, method="laplace", draws=200, random_state=0)
        >>> data["posterior"]["lengthscale"].shape, bool(data["posterior"]["noise"].mean() < 0.05)
        ((1, 200), True)
    """
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")
    if batch_size is not None and (method != "svi" or not hasattr(gp, "elbo")):
        raise OptionError('batch_size is for method="svi" with a VariationalGP, whose bound is a sum over rows.')
    if not 0 < target_accept < 1:
        raise OptionError(f"target_accept is a rate between 0 and 1, got {target_accept}.")
    draws, chains = check_integer("draws", draws), check_integer("chains", chains)
    tune, prior_draws = check_integer("tune", tune), check_integer("prior_draws", prior_draws, 0)
    for_sampler, for_prior, for_replicates, *for_chains = seeds(random_state, 3 + chains)
    log_posterior, began = LogPosterior(gp, X, Y, noise), time.monotonic()
    with _quiet_trials():
        if batch_size is not None:
            from ovkgp.inference.sampling.svi import sample_batch_svi

            batches = X, Y, noise, check_integer("batch_size", batch_size)
            sampled = sample_batch_svi(log_posterior, *batches, draws, guide, for_sampler, verbose)
        elif method == "laplace":
            sampled = sample_laplace(log_posterior, draws, for_sampler)
        elif method == "svi":
            # Pyro is imported here and not above, since `import ovkgp` must not load it
            from ovkgp.inference.sampling.svi import sample_svi

            sampled = sample_svi(log_posterior, draws, guide, for_sampler, verbose)
        else:
            from ovkgp.inference.sampling.nuts import sample_nuts

            sampled = sample_nuts(log_posterior, draws, tune, chains, for_chains, target_accept, verbose)
    sampled.attrs["seconds"] = time.monotonic() - began
    raw = raw_draws(log_posterior, sampled)
    names = list(log_posterior.variables(sampled.flat[0]))
    writer = DrawGroups(log_posterior.gp, raw, names, X, Y, noise, input_names, output_names)
    groups = writer.sample_stats(sampled.stats) | writer.prior(prior_draws, for_prior)
    if Y is not None:
        groups |= writer.log_likelihood(log_likelihood)
        groups |= writer.posterior_predictive(posterior_predictive, for_replicates) | writer.observed_data()
    variables = writer.variables()
    return to_arviz_object(writer.posterior(variables, _attrs(log_posterior, sampled, variables)) | groups)


def raw_draws(log_posterior: LogPosterior, sampled: HyperparameterDraws) -> dict[str, np.ndarray]:
    """The raw parameters by qualified name, (chains, draws, *shape)."""
    rows = [log_posterior.raw(u) for u in sampled.flat]
    shape = sampled.u.shape[:2]
    return {
        name: np.stack([row[name] for row in rows]).reshape(*shape, *value.shape) for name, value in rows[0].items()
    }


@contextmanager
def _quiet_trials() -> Iterator[None]:
    """Without warnings of ill-conditioned matrices: a trial step may lie anywhere, and is judged by its density."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        yield


def _attrs(log_posterior: LogPosterior, sampled: HyperparameterDraws, variables: dict[str, np.ndarray]) -> dict:
    attrs = {
        "inference_library": "ovkgp",
        "method": sampled.method,
        "interrupted": 0,
        "evaluations": log_posterior.evaluations,
        "failures": log_posterior.failures,
        **sampled.attrs,
    }
    if sampled.method == "nuts":
        attrs |= chain_checks(variables, int(sampled.stats["diverging"].sum()))
    return attrs
