"""Posterior draws of hyperparameters by NUTS, variational inference or the Laplace approximation, as an ArviZ object.

NUTS samples the posterior; the others replace it by a Gaussian in the variables u of `LogPosterior`. All use only log
π(u) and its gradient, so they work with every inference strategy.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import numpy as np
from linear_operator.utils.warnings import NumericalWarning

from ovkgp.checks import check_integer, check_one_of, check_probability
from ovkgp.exceptions import OptionError
from ovkgp.inference.posteriors.posterior import spawn_seeds
from ovkgp.inference.sampling.arviz_data import Axes, DrawGroups, to_arviz_object
from ovkgp.inference.sampling.diagnostics import HyperparameterDraws, check_chains
from ovkgp.inference.sampling.laplace import sample_laplace
from ovkgp.inference.sampling.nuts import sample_nuts
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
    """Draw from the posterior of a model's hyperparameters.

    The posterior is π(θ) ∝ p(Y | θ) p(θ), with the evidence of the model and its registered priors. Parameters without
    a prior get a weakly informative one, scaled by the data (`register_data_priors`). The model is not changed.

    Parameters
    ----------
    gp : OperatorValuedGP or VariationalGP
        Model with `evidence(X, Y, noise)`.
    X : array-like of shape (n, d) or Statistics
        Inputs as for `gp.condition`, or statistics without Y.
    Y : array-like of shape (n, p), default=None
        Outputs, NaN where missing.
    method : {"nuts", "svi", "laplace"}, default="nuts"
        NUTS (exact up to Monte Carlo error), a Gaussian trained by Pyro, or a Gaussian at the mode.
    noise : array-like of shape (n, p), default=None
        Known noise variances.
    draws : int, default=500
        Number of draws per chain. SVI and Laplace have one chain.
    tune, chains : int, default=500 and 4
        Maximum number of transitions of NUTS before the first draw, and number of its chains. The warm-up ends after 100
        transitions where the Gaussian at the mode describes the posterior, so that only the step size is adapted.
    guide : {"normal", "multivariate", "low_rank"}, default="multivariate"
        Family of Gaussians of SVI.
    batch_size : int or None, default=None
        Number of random rows per step of SVI for a `VariationalGP`. If None, all rows are used.
    target_accept : float, default=0.8
        Acceptance rate of NUTS. Must be between 0 and 1.
    prior_draws : int, default=500
        Number of draws from the priors. If 0, the group prior is omitted.
    log_likelihood, posterior_predictive : bool or "auto", default="auto"
        Whether to include these groups, which are computed when they are first read. If "auto", they are included if they are
        cheap.
    input_names, output_names : sequence, default=None
        Labels of the columns of X and Y.
    random_state : int, RandomState or None, default=None
        Source of all randomness. The global generators are not changed.
    verbose : int, default=0
        If 1, show a progress bar.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Object of ArviZ 0.x or 1.x with the groups

        | group | variables |
        |---|---|
        | posterior | the hyperparameters by name, in the units of the data: lengthscale, noise, output_matrix, … |
        | unconstrained_posterior | the raw parameters by qualified name, which `gp.condition(hyperparameters=…)` reads |
        | prior | the same names as in posterior, drawn from the priors when it is read |
        | sample_stats | lp; for NUTS also diverging, acceptance_rate, energy, n_steps, step_size |
        | log_likelihood | y (chain, draw, row): log p(y_i given all other rows, θ_s) of each row with observed outputs; for a `VariationalGP` log p(y_i given f_i, θ_s) at a draw of f |
        | posterior_predictive | y (chain, draw, row, output): replicated data at X, noise included |
        | observed_data | y (row, output), NaN where missing |

        The attributes of posterior hold the method, seconds, evaluations, interrupted, and diagnostics:
        num_divergences, rhat_max and ess_min for NUTS; the Pareto shape khat and the bound elbo for SVI and Laplace.

    Raises
    ------
    OptionError
        If an option is invalid, or no trained parameter changes the evidence.

    Notes
    -----
    SVI and Laplace replace draws without posterior density (num_failed_draws in the attributes). Ctrl-C keeps the draws
    so far with a `FitWarning`; before the first draw it is raised. Long chains of NUTS run in parallel processes (on Linux), with
    the same draws as one after another.

    Complexity: gradients of the evidence: some tens plus one per draw (for khat) for Laplace, some thousands for SVI,
    about 5 to 15 per transition for NUTS. One factorization per draw when log_likelihood is read, two for posterior_predictive.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel, ScaleKernel
    >>> from ovkgp.inference import OperatorValuedGP, sample_hyperparameters
    >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
    >>> gp = OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero")
    >>> Y = X.sin() + 0.1 * torch.cos(40 * X)
    >>> data = sample_hyperparameters(gp, X, Y, method="laplace", draws=200, random_state=0)
    >>> data["posterior"]["lengthscale"].shape, bool(data["posterior"]["noise"].mean() < 0.05)
    ((1, 200), True)
    """
    check_one_of("method", method, METHODS)
    if batch_size is not None and (method != "svi" or not hasattr(gp, "elbo")):
        raise OptionError('batch_size is only supported with method="svi" and a VariationalGP. Use batch_size=None.')
    check_probability("target_accept", target_accept)
    draws, chains = check_integer("draws", draws), check_integer("chains", chains)
    tune, prior_draws = check_integer("tune", tune), check_integer("prior_draws", prior_draws, 0)
    for_sampler, for_prior, for_replicates, *for_chains = spawn_seeds(random_state, 3 + chains)
    log_posterior, began = LogPosterior(gp, X, Y, noise), time.monotonic()
    with warnings.catch_warnings():
        # ill-conditioned matrices at trial points, which are rejected by their density
        warnings.simplefilter("ignore", NumericalWarning)
        if batch_size is not None:
            from ovkgp.inference.sampling.svi import sample_batch_svi

            batches = X, Y, noise, check_integer("batch_size", batch_size)
            sampled = sample_batch_svi(log_posterior, *batches, draws, guide, for_sampler, verbose)
        elif method == "laplace":
            sampled = sample_laplace(log_posterior, draws, for_sampler)
        elif method == "svi":
            # imported here since `import ovkgp` must not load Pyro
            from ovkgp.inference.sampling.svi import sample_svi

            sampled = sample_svi(log_posterior, draws, guide, for_sampler, verbose)
        else:
            sampled = sample_nuts(log_posterior, draws, tune, chains, for_chains, target_accept, verbose)
    sampled.attrs["seconds"] = time.monotonic() - began
    raw = raw_draws(log_posterior, sampled)
    names = list(log_posterior.variables(sampled.flat[0]))
    writer = DrawGroups(log_posterior.gp, raw, names, X, Y, noise, input_names, output_names)
    groups = writer.sample_stats(sampled.stats) | writer.prior(prior_draws, for_prior)
    if Y is not None:
        groups |= writer.log_likelihood(log_likelihood, for_replicates)
        groups |= writer.posterior_predictive(posterior_predictive, for_replicates) | writer.observed_data()
    variables = writer.variables()
    attrs = _posterior_attributes(log_posterior, sampled, variables, writer.axes)
    return to_arviz_object(writer.posterior(variables, attrs) | groups)


def raw_draws(log_posterior: LogPosterior, sampled: HyperparameterDraws) -> dict[str, np.ndarray]:
    """Return the raw parameters by qualified name, (chains, draws, *shape)."""
    shape = sampled.u.shape[:2]
    states = log_posterior.vector.states(sampled.flat)
    return {name: values.cpu().numpy().reshape(*shape, *values.shape[1:]) for name, values in states.items()}


def _posterior_attributes(
    log_posterior: LogPosterior, sampled: HyperparameterDraws, variables: dict[str, np.ndarray], axes: Axes
) -> dict:
    attrs = {
        "inference_library": "ovkgp",
        "method": sampled.method,
        "interrupted": 0,
        "evaluations": log_posterior.evaluations,
        "failures": log_posterior.failures,
        **sampled.attrs,
    }
    if sampled.method == "nuts":
        attrs |= check_chains(variables, int(sampled.stats["diverging"].sum()), axes)
    return attrs
