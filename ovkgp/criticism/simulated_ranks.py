"""Simulation-based calibration: are posterior draws of hyperparameters right if the data come from the prior?

For each data set, hyperparameters θ* are drawn from the prior and data from the model at θ*; the rank of θ* among L posterior draws
is uniform on {0, …, L} if the sampler is right. The log evidence is ranked too: it depends on the data, and shows errors to which
the ranks of parameters are blind, such as a posterior that equals the prior.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.stats import binom

from ovkgp.checks import as_numbers, as_seed, check_estimator, check_integer, check_one_of, check_probability
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.posteriors.posterior import spawn_seeds
from ovkgp.inference.sampling.prior_predictive import draw_prior, prior_predictive, set_parameters
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.training.log_posterior import named_values

METHODS = ("laplace", "svi", "nuts")
LOG_EVIDENCE = "log evidence"
NUM_SIMULATIONS = 4000  # ECDFs of uniform ranks from which simultaneous envelopes are computed


@dataclass(frozen=True, repr=False)
class SimulationCalibration:
    """Ranks of true hyperparameters among posterior draws.

    Attributes
    ----------
    names : tuple of str
        Hyperparameters, named as by `ovkgp.inference.hyperparameters`, with the index of their entry, and the log evidence.
    ranks : ndarray of shape (num_datasets, k)
        Numbers of draws below the true value, from 0 to `num_draws`.
    num_draws : int
        Number of posterior draws L of each data set.
    alpha : float
        Probability that the ECDF of a right sampler leaves its envelope, for all names together.
    num_poor : int, default=0
        Number of data sets for which the sampler warned of poor diagnostics.
    """

    names: tuple[str, ...]
    ranks: np.ndarray
    num_draws: int
    alpha: float
    num_poor: int = 0

    def points(self) -> np.ndarray:
        """Return the points at which ECDFs are compared.

        Returns
        -------
        ndarray of shape (num_draws,)
            Fractions (r + 1)/(L + 1) of the ranks r.
        """
        return np.arange(1, self.num_draws + 1) / (self.num_draws + 1)

    def ecdf(self) -> np.ndarray:
        """Return the empirical distribution functions of the ranks.

        Returns
        -------
        ndarray of shape (num_draws, k)
            Fraction of data sets with a rank below each point.
        """
        thresholds = np.arange(self.num_draws)
        return (self.ranks[:, None, :] <= thresholds[None, :, None]).mean(0)

    def envelope(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends (num_draws,) of the simultaneous envelope of an ECDF, at level 1 − alpha/k.

        Returns
        -------
        lower, upper : ndarray of shape (num_draws,)
            Binomial quantiles with equal tails, which are adjusted by simulation so that whole curves stay inside.

        References
        ----------
        Säilynoja, Bürkner & Vehtari (2022), "Graphical test for discrete uniformity".
        """
        number, points = len(self.ranks), self.points()
        rng = np.random.default_rng(0)
        steps = np.full(self.num_draws + 1, 1 / (self.num_draws + 1))
        counts = rng.multinomial(number, steps, NUM_SIMULATIONS)[:, :-1].cumsum(1)
        tails = 2 * np.minimum(binom.cdf(counts, number, points), binom.sf(counts - 1, number, points))
        tail = np.quantile(tails.min(1), self.alpha / len(self.names), method="lower")
        return binom.ppf(tail / 2, number, points) / number, binom.isf(tail / 2, number, points) / number

    @property
    def miscalibrated(self) -> tuple[str, ...]:
        """Names whose ECDF leaves the envelope."""
        lower, upper = self.envelope()
        found = self.ecdf()
        outside = ((found < lower[:, None] - 1e-12) | (found > upper[:, None] + 1e-12)).any(0)
        return tuple(name for name, is_outside in zip(self.names, outside, strict=True) if is_outside)

    def __repr__(self) -> str:
        outside = ", ".join(self.miscalibrated) or "none"
        poor = f", {self.num_poor} with poor diagnostics" if self.num_poor else ""
        return (
            f"SimulationCalibration({len(self.ranks)} data sets{poor}, {self.num_draws} draws each, {len(self.names)} quantities; "
            f"outside of the {1 - self.alpha:.0%} envelope: {outside})"
        )


def simulation_calibration(
    estimator, X, *, num_datasets=100, method=None, num_draws=99, alpha=0.05, n_jobs=None, random_state=None, **sampling
) -> SimulationCalibration:
    """Check a sampler of hyperparameters on data simulated from the prior of a model.

    Parameters
    ----------
    estimator : GPRegressor
        Fitted estimator, whose model `gp_` and priors are used. Its data only set the scale of priors that were not registered, such as that
        of the mean.
    X : array-like of shape (n, d)
        Inputs of the simulated data sets.
    num_datasets : int, default=100
        Number of data sets.
    method : {"laplace", "svi", "nuts"} or None, default=None
        Sampler. If None, that of the estimator's option `hyperparameters`, or "laplace" if it names none.
    num_draws : int, default=99
        Number of posterior draws to which those of the sampler are thinned.
    alpha : float, default=0.05
        Probability that any ECDF of a right sampler leaves its envelope.
    n_jobs : int or None, default=None
        Number of joblib workers; `joblib.parallel_config` selects the backend.
    random_state : int, RandomState instance or None, default=None
        Seed. Results do not depend on `n_jobs`.
    **sampling
        Options of `ovkgp.inference.sample_hyperparameters`, such as `draws`, `tune` and `chains`.

    Returns
    -------
    SimulationCalibration
        Ranks, ECDFs and envelopes.

    Raises
    ------
    OptionError
        If the model is no Gaussian process, or a trained parameter has no prior.

    Notes
    -----
    Complexity: `num_datasets` runs of the sampler, and as many evidences as draws.

    References
    ----------
    Talts et al. (2018), "Validating Bayesian inference algorithms with simulation-based calibration"; Modrák et al. (2023),
    "Simulation-based calibration checking for Bayesian computation: the choice of test quantities".

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import simulation_calibration
    >>> X = np.linspace(0, 5, 20)[:, None]
    >>> model = ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0).fit(X, np.sin(X[:, 0]))
    >>> simulation_calibration(model, X, num_datasets=3, num_draws=19, random_state=0).ranks.shape[0]
    3
    """
    check_estimator(estimator)
    if not estimator.has_trained_hyperparameters:
        raise OptionError(f"{estimator.class_name} has no priors of hyperparameters. Use a GPRegressor.")
    chosen = method or estimator.get_params(deep=False).get("hyperparameters")
    method = check_one_of("method", chosen if chosen in METHODS or method else "laplace", METHODS)
    num_datasets, num_draws = check_integer("num_datasets", num_datasets, 2), check_integer("num_draws", num_draws, 9)
    alpha, points = check_probability("alpha", alpha), as_numbers(X, "X")
    if points.ndim != 2 or not np.isfinite(points).all():
        raise InputError(f"X must be finite numbers of shape (n, d), got shape {points.shape}.")
    points, gp = estimator.scaling_.inputs(points), deepcopy(estimator.gp_)
    if (data := estimator.training_observations()) is not None:
        gp.register_priors(data)  # of parameters without a prior, such as the mean
    draw_prior(gp, 1, 0)  # raises if a parameter has no prior
    options = {"prior_draws": 0, "log_likelihood": False, "posterior_predictive": False} | sampling
    seeds = spawn_seeds(as_seed(random_state), num_datasets)
    run = delayed(_rank_once)
    results = Parallel(n_jobs=n_jobs)(run(gp, points, method, num_draws, options, seed) for seed in seeds)
    names, ranks, is_poor = zip(*results, strict=True)
    return SimulationCalibration(names[0], np.array(ranks), num_draws, alpha, sum(is_poor))


def _rank_once(
    gp, X: torch.Tensor, method: str, num_draws: int, options: dict, seed: int
) -> tuple[tuple[str, ...], np.ndarray, bool]:
    """Simulate a data set and sample its posterior; return names, ranks (k,) and whether the sampler warned."""
    simulation, sampler = spawn_seeds(seed, 2)
    # the data are drawn at these hyperparameters, which have the same seed
    truth = {name: value[0] for name, value in draw_prior(gp, 1, spawn_seeds(simulation, 4)[0]).items()}
    Y = prior_predictive(gp, X, 1, random_state=simulation)[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        data = sample_hyperparameters(gp, X, Y, method, random_state=sampler, **options)
    raw = data["unconstrained_posterior"]
    draws = {name: torch.as_tensor(raw[name].values).flatten(0, 1) for name in truth}
    count = len(next(iter(draws.values())))
    if count < num_draws:
        raise OptionError(f"The sampler returned {count} draws, expected at least num_draws={num_draws}. Pass draws=.")
    copy, kept = deepcopy(gp), np.linspace(0, count - 1, num_draws).round().astype(int)
    at_truth = _compute_quantities(copy, X, Y, truth)
    at_draws = [_compute_quantities(copy, X, Y, {name: value[i] for name, value in draws.items()}) for i in kept]
    ranks = {
        name: sum(draw[name] < value for draw in at_draws)
        for name, value in at_truth.items()
        if any(draw[name] != value for draw in at_draws)  # others are fixed
    }
    return tuple(ranks), np.array([*ranks.values()]), any(issubclass(one.category, FitWarning) for one in caught)


@torch.no_grad()
def _compute_quantities(gp, X: torch.Tensor, Y: torch.Tensor, values: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the entries of the hyperparameters and log p(Y | θ) at raw parameters; of symmetric matrices the upper triangle.

    Raw parameters are not ranked: several factors give the same output matrix.
    """
    set_parameters(gp, values)
    quantities = {}
    for name, value in named_values(gp).items():
        is_symmetric = value.ndim == 2 and value.shape[0] == value.shape[1] and np.allclose(value, value.T)
        for index in np.ndindex(value.shape):
            if not (is_symmetric and index[0] > index[1]):
                label = name if value.size == 1 else f"{name}[{', '.join(map(str, index))}]"
                quantities[label] = float(value[index])
    return quantities | {LOG_EVIDENCE: float(gp.log_evidence(X, Y))}
