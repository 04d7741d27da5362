"""`ORFFRidge`, ridge regression on operator-valued random Fourier features (Algorithm 3; BT-71, 76, 78, 93).

    θ̂ = argmin ‖y − Φθ‖² / (2σ²) + ½ ‖θ‖²,      f̂(x) = Φ(x) θ̂,

from additive statistics of fixed size: rows may come at once, in batches, from a file, or from several processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.descriptions import NO_VARIANCE_FLOOR, Description
from ovkgp.estimators.common.loss_options import MODE_ATTRIBUTES, is_square
from ovkgp.estimators.common.named_kernels import name_structure, random_features, ridge_kernel, usable_scale
from ovkgp.estimators.common.options import (
    POSITIVE,
    RANDOM_STATE,
    check_lam,
    integer,
    noise_of,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.streaming import (
    SAMPLE_ROWS,
    StreamScan,
    accumulate_rows,
    accumulate_statistics,
    is_distributed,
    ranks_of,
    scan,
    shown_parts,
    store_columns,
)
from ovkgp.estimators.common.validation import Table, WeightedData
from ovkgp.estimators.ridge.base import (
    RIDGE_ATTRIBUTES,
    RIDGE_BUILDER,
    SOLVER_CONSTRAINTS,
    RidgeEstimator,
    RidgePath,
    best_scale,
    compute_path,
    make_ridge_gp,
    make_scaling,
    middle,
    multiply_kernel,
    select_lam,
    weighted_table,
)
from ovkgp.estimators.ridge.losses import LEVEL, LOSS, LossMixin
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import OptionError
from ovkgp.inference import OperatorValuedGP, Statistics, primal_dual_residual
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.posteriors.weight_posterior import WeightPosterior
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.statistics.statistics import OutputStatistics
from ovkgp.inference.statistics.weight_space import WeightSystem
from ovkgp.inference.tasks.mode_posterior import ModePosterior

SOLVER_OPTIONS = (
    "solver",
    "tolerance",
    "max_iter",
    "batch_size",
    "learning_rate",
    "preconditioned",
    "variance",
    "verbose",
)


def _has_statistics(estimator: ORFFRidge) -> bool:
    if estimator._is_mode:
        raise AttributeError('partial_fit requires loss="square", whose statistics have a fixed size. Use fit.')
    if estimator.solver == "auto":
        return True
    raise AttributeError(f'partial_fit requires solver="auto", got {estimator.solver!r}.')


@storable(*RIDGE_ATTRIBUTES, "_seed", optional=("path_", "scale_", *MODE_ATTRIBUTES), builder=RIDGE_BUILDER)
class ORFFRidge(LossMixin, RidgeEstimator):
    """Ridge regression on random Fourier features of an operator-valued kernel, for any number of rows (BT-71).

    Parameters
    ----------
    kernel, lam, convention, base_kernel, lengthscale, output_matrix, output_metric, fit_intercept, selection, scale,
    tolerance, max_iter, verbose, loss, level
        As for `OVKRidge`. Losses other than "square" need all rows in memory, so that `partial_fit`, `fit_stream` and `distributed`
        are not supported with them.
    num_frequencies : int, default=500
        D; Φ has 2·D·r columns for r columns of the factor of the kernel.
    solver : {"auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd"}, default="auto"
        "auto" accumulates statistics in one pass and uses the fastest factorization; "eigen" solves a Stein equation (separable
        kernels, complete outputs), "closed_form" is Algorithm 3, "cg" and "lbfgs" use only products with Φ, "doubly_sgd" blocks
        of features and batches of rows (Algorithm 4). All agree. "doubly_sgd" is slow for correlated blocks with little noise
        and warns if it has not converged.
    random_state : int, RandomState instance or None, default=None
        Seed of the frequencies and batches.
    variance : {"guarded", "features"}, default="guarded"
        "guarded" bounds the variance of random features from below far from the data.
    block_size : int or None, default=None
        Number of frequencies per block; blocks are regenerated from their seeds and never stored. For "doubly_sgd" it is the
        block of one step. If None, there is one block.
    batch_size : int or None, default=None
        Number of rows per step of "doubly_sgd". If None, all rows, so that one step with one block is the exact solution.
        Sweeps over all rows follow the batches until `tolerance` is reached, unless `max_iter` or a function `learning_rate`
        is given.
    learning_rate : float or callable, default=1.0
        Learning rate of "doubly_sgd", or a function of the step.
    preconditioned : bool, default=True
        Whether a step of "doubly_sgd" is multiplied by the inverse of its block of the Hessian.
    distributed : bool, default=False
        Whether the rows are the shard of one process among those started by torchrun; all get the model of all rows.

    Attributes
    ----------
    coef_ : ndarray
        Weights θ̂.
    n_iter_ : int
        Number of iterations; 1 for direct solvers.
    statistics_ : Statistics
        Statistics of the rows, for `solver="auto"`.
    noise_, lam_, path_, scale_, gp_, posterior_, kernel_
        As for `OVKRidge`.

    Notes
    -----
    Complexity: O(n M² + M³ + p³) for M = 2D scalar features of a separable kernel with complete outputs, at most O(n p r² + r³)
    for r features otherwise; O(r²) memory besides the data.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> X = np.random.default_rng(0).uniform(-3, 3, (500, 2))
    >>> Y = np.column_stack([np.sin(X).prod(1), np.cos(X).sum(1)])
    >>> ridge = ovkgp.ORFFRidge(lam=1e-3, lengthscale=1.0, random_state=0).fit(X[:400], Y[:400])
    >>> ridge.score(X[400:], Y[400:]) > 0.99
    True
    >>> halves = ovkgp.ORFFRidge(lam=1e-3, lengthscale=1.0, random_state=0)
    >>> halves.partial_fit(X[:200], Y[:200]).partial_fit(X[200:], Y[200:]).predict(X[:3]).shape
    (3, 2)
    """

    description = Description(
        "ridge regression on random features",
        "The kernel is approximated by random Fourier features Φ. The fit minimizes squared errors plus a penalty on the weights θ of the features. It is the posterior mean of a Gaussian process with noise σ². Nothing is trained: λ was given, or selected among several values.",
        "f(x) = Φ(x) θ,   θ = argmin ‖y − Φθ‖^2/(2σ^2) + ‖θ‖^2/2",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RidgeEstimator._parameter_constraints,
        **SOLVER_CONSTRAINTS,
        "num_frequencies": [integer()],
        "random_state": RANDOM_STATE,
        "variance": [one_of(*VARIANCES)],
        "block_size": [integer(), None],
        "batch_size": [integer(), None],
        "learning_rate": [POSITIVE, callable],
        "preconditioned": ["boolean"],
        "distributed": ["boolean"],
        "loss": LOSS,
        "level": LEVEL,
    }

    def __init__(
        self,
        kernel="auto",
        lam=1.0,
        convention="sum",
        num_frequencies=500,
        solver="auto",
        random_state=None,
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        output_metric=None,
        fit_intercept=False,
        selection="loo",
        scale="given",
        variance="guarded",
        block_size=None,
        batch_size=None,
        learning_rate=1.0,
        preconditioned=True,
        tolerance=1e-9,
        max_iter=None,
        distributed=False,
        verbose=0,
        loss="square",
        level=0.5,
    ):
        self.kernel = kernel
        self.lam = lam
        self.convention = convention
        self.num_frequencies = num_frequencies
        self.solver = solver
        self.random_state = random_state
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.output_metric = output_metric
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.variance = variance
        self.block_size = block_size
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.preconditioned = preconditioned
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.distributed = distributed
        self.verbose = verbose
        self.loss = loss
        self.level = level

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver; 1 for direct ones."""
        check_is_fitted(self, "posterior_")
        if isinstance(self.posterior_, ModePosterior):
            return max(self.fit_report_.iterations, 1)
        return max(getattr(getattr(self.posterior_, "system", None), "num_iterations", 1), 1)

    @property
    def coef_(self) -> np.ndarray:
        """Weights θ̂ of the features."""
        check_is_fitted(self, "posterior_")
        return self.posterior_.weights.numpy()

    def fit(self, X, y, sample_weight=None) -> ORFFRidge:
        """Fit the model.

        Parameters
        ----------
        X, y, sample_weight
            As for `OVKRidge.fit`; weights are not supported with `distributed`.

        Returns
        -------
        self : ORFFRidge
            Fitted estimator.
        """
        if is_distributed(self):
            if self._is_mode:
                self._reject("distributed=True", "Fit in one process.")
            if sample_weight is None:
                return self.fit_stream([(X, y)])
            raise OptionError("sample_weight is not supported with distributed=True. Remove it or fit in one process.")
        with restore_on_error(self):
            self.check_options()
            data = self._check_first_rows(X, y, sample_weight)
            self._seed = as_seed(self.random_state)
            self._make_kernel(RowSample.from_table(data.X, data.Y, SAMPLE_ROWS), data.mean())
            self._counts = data.num_rows, data.num_observed
            if self._is_mode:
                self._fit_mode(data, self._make_gp, self.variance)
                return self
            rescale = self.scale == "evidence"
            select_lam(self, lambda *levels: compute_path(self._make_gp, data, *levels, self.scaling_, rescale=rescale))
            self.gp_, table = self._make_gp(self.noise_), weighted_table(data, self.noise_)
            self._solve(table)
            if rescale:
                self.scale_ = best_scale(self.gp_, self.posterior_, table, self.scaling_)
                self.gp_ = self._make_gp(self.noise_, self.scale_)
                self._solve(weighted_table(data, self._scaled_noise))
        return self

    def _make_kernel(self, sample: RowSample | Table, mean: np.ndarray) -> None:
        """Set kernel and intercept, from a sample of the rows with an observed entry."""
        self._kernel = ridge_kernel(self, sample.X, sample.Y)
        self.kernel_ = name_structure(self.kernel)
        self.scaling_ = make_scaling(sample.X.shape[1], mean, fit_intercept=self.fit_intercept)

    def _make_gp(self, noise: float, scale: float = 1.0) -> OperatorValuedGP:
        """Make the model with random features, prior and noise times a scale."""
        kernel = multiply_kernel(self._kernel, scale)
        features = random_features(kernel, self.n_features_in_, self.num_frequencies, self._seed, self.block_size)
        return make_ridge_gp(kernel, noise * scale, self._metric(), features)

    def _solve(self, table: Table) -> None:
        """Set `posterior_`, and `statistics_` if the solver uses them."""
        if self.solver == "auto":
            parts = shown_parts(table, self.verbose)
            self.statistics_ = accumulate_statistics(self.gp_, self.scaling_, parts)
            self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)
            return
        options = {name: getattr(self, name) for name in SOLVER_OPTIONS}
        data = table.scaled(self.scaling_)
        self.posterior_ = solve_ridge(self.gp_, *data, random_state=self._seed, **options)

    def fit_stream(self, chunks: Iterable) -> ORFFRidge:
        """Fit the model to a table in chunks, which may be larger than memory, in two passes.

        Parameters
        ----------
        chunks : iterable of (X, Y)
            Re-iterable pairs: a list or `ovkgp.datasets.stream(path, inputs, outputs)`. With `distributed`, those of this
            process.

        Returns
        -------
        self : ORFFRidge
            Fitted estimator.
        """
        with restore_on_error(self):
            with ranks_of(self) as ranks:
                ranks.run_on_all(lambda: self._check_streamable("fit_stream"), "checking the options")
                found = scan(chunks, SAMPLE_ROWS, ranks, verbose=self.verbose)
                seed = ranks.broadcast(as_seed(self.random_state), "agreeing on a seed")
                ranks.run_on_all(lambda: self._prepare(found, seed), "making the features")
                streams = self.scaling_, chunks, ranks, self.verbose
                self.statistics_ = accumulate_rows(self.gp_, *streams, found=found)
            self._condition_on_statistics()
        return self

    def _prepare(self, found: StreamScan, seed: int) -> None:
        """Make kernel, features and noise of a stream."""
        self._make_kernel(store_columns(self, found), found.outputs.mean)
        self._seed, self._counts = seed, (found.num_observed_rows, int(found.outputs.count.sum()))
        # with a metric and missing outputs, rows are divided by the noise when they are added
        self.gp_ = self._make_gp(self._first_noise())

    def _first_noise(self) -> float:
        """Return σ² of the first λ, for the rows so far."""
        return noise_of(check_lam(self.lam)[0], self.convention, *self._counts)

    @available_if(_has_statistics)
    def partial_fit(self, X, y, sample_weight=None) -> ORFFRidge:
        """Add rows, in constant memory.

        The first call determines from its rows what the kernel takes from data (median distance, covariance of the outputs) and
        the intercept; later calls add to the statistics.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        self : ORFFRidge
            Fitted estimator.
        """
        with restore_on_error(self):
            self._check_streamable("partial_fit")
            if self.distributed:
                raise OptionError("partial_fit is not supported with distributed=True. Use fit_stream.")
            before, noise_before = getattr(self, "statistics_", None), getattr(self, "noise_", None)
            if before is not None:
                data = self._check_later_part(X, y, sample_weight)
            elif hasattr(self, "posterior_"):
                raise OptionError('partial_fit requires a model fitted with solver="auto". Fit again with it.')
            else:
                data = self._check_first_rows(X, y, sample_weight, simplify=False)
                self._seed = as_seed(self.random_state)
                self._make_kernel(RowSample.from_table(data.X, data.Y, SAMPLE_ROWS), data.mean())
                self._counts = (0, 0)
            self._counts = self._counts[0] + data.num_rows, self._counts[1] + data.num_observed
            noise = self._first_noise()
            self.gp_ = self._make_gp(noise)
            parts = shown_parts(weighted_table(data, noise), self.verbose)
            self.statistics_ = accumulate_statistics(self.gp_, self.scaling_, parts, before)
            if _is_weighted(self.statistics_) and noise_before not in (None, noise):
                raise OptionError(
                    f"The noise changed from {noise_before:.6g} to {noise:.6g}, which is not supported with sample weights or with an "
                    'output_metric and missing outputs. Keep lam and convention="sum", or use fit.'
                )
            self._condition_on_statistics()
        return self

    def _check_later_part(self, X, y, sample_weight) -> WeightedData:
        """Check a later part: with weights if the earlier ones have some."""
        if self.output_metric is None and _is_weighted(self.statistics_):
            weight = np.ones(len(X)) if sample_weight is None else sample_weight
            return self._check_further_rows(X, y, weight, simplify=False)
        table = self._check_further_rows(X, y, sample_weight)
        if table.variances is not None:
            raise OptionError(
                "sample_weight must be passed in all calls or in none. Pass ones for the earlier rows, or remove it."
            )
        return table

    def _condition_on_statistics(self) -> None:
        """Select λ and compute scale and posterior from the statistics."""
        rescale = self.scale == "evidence"
        if (rescale or len(check_lam(self.lam)) > 1) and _is_weighted(self.statistics_):
            raise OptionError(
                'Several lam and scale="evidence" are not supported with sample weights or with an output_metric and missing outputs. Use one lam and scale="given", or fit.'
            )
        vars(self).pop("scale_", None)  # that of earlier rows
        select_lam(self, self._evidence_path)
        self.gp_ = self._make_gp(self.noise_)
        if rescale:
            system = self._system(self.gp_)
            self.scale_ = usable_scale(system.quadratic.item() / system.num_observed)
            self.gp_ = self._make_gp(self.noise_, self.scale_)
        self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)

    def _evidence_path(self, lams: np.ndarray, noises: np.ndarray) -> RidgePath:
        """Compute log p(Y) of each λ from the statistics, at the best scale if requested."""
        unit = middle(noises)
        gp, multipliers = self._make_gp(unit), noises / unit
        if self.scale == "evidence":
            evidence = np.array([_scaled_evidence(part) for part in self._system(gp).to_eigenbasis(multipliers)[1]])
        else:
            evidence = gp.condition(self.statistics_).noise_path(multipliers).numpy()
        nothing = np.full(len(lams), np.nan)  # leave-one-out errors need the rows
        return RidgePath(lams, noises, evidence, nothing, nothing)

    def _system(self, gp: OperatorValuedGP) -> WeightSystem:
        posterior = gp.condition(self.statistics_)
        if not isinstance(posterior, WeightPosterior):
            raise OptionError('scale="evidence" is not supported with independent outputs. Use scale="given".')
        return posterior.system

    @classmethod
    def reason_not_streamable(cls, options) -> str | None:
        """Return why a fit with these options needs all rows in memory; None if it supports `fit_stream`."""
        if not is_square(options.get("loss", "square")):
            return "only loss=square can be fitted in chunks"
        return None if options.get("solver", "auto") == "auto" else "only solver=auto can be fitted in chunks"

    def _about(self) -> dict:
        return super()._about() | {"warnings": (NO_VARIANCE_FLOOR,) if self.variance == "features" else ()}

    def primal_dual_residual(self, X, y, sample_weight=None) -> float:
        """Compute ‖Σ_i Φ(x_i)ᵀ u_i − θ̂‖ / ‖θ̂‖ for the fitted data, with u the dual solution (K̃ + N) u = y (BT-69).

        It is zero up to rounding unless λ is numerically zero.

        Parameters
        ----------
        X, y, sample_weight
            Training data.

        Returns
        -------
        float
            Relative residual.
        """
        if self._is_mode:
            self._reject("primal_dual_residual", "See gap_, the duality gap.")
        table = weighted_table(self._check_further_rows(X, y, sample_weight), self._scaled_noise)
        return primal_dual_residual(self.gp_, *table.scaled(self.scaling_)).relative

    def _check_streamable(self, method: str) -> None:
        self.check_options()
        if self._is_mode:
            self._reject(method, "Use fit.")
        if self.solver != "auto":
            raise OptionError(f'{method} requires solver="auto", got {self.solver!r}.')
        if len(check_lam(self.lam)) > 1 and self.selection != "evidence":
            raise OptionError(
                f'{method} requires selection="evidence" with several lam, since the rows are not stored.'
            )


def _scaled_evidence(system: WeightSystem) -> float:
    """Compute log p(Y) at the best scale."""
    size, quadratic = system.num_observed, system.quadratic.item()
    scale = max(quadratic / size, np.finfo(float).tiny)
    return system.log_density.item() - size / 2 * math.log(scale) + (1 - 1 / scale) * quadratic / 2


def _is_weighted(statistics: Statistics | OutputStatistics) -> bool:
    return any(part.weighted for part in getattr(statistics, "parts", (statistics,)))
