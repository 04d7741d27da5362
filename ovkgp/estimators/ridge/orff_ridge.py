"""Ridge regression on operator-valued random Fourier features (Algorithm 3; BT-71, 76, 78, 93).

    θ̂ = argmin ‖y − Φθ‖² / (2σ²) + ½ ‖θ‖²,      f̂(x) = Φ(x) θ̂,

from statistics of fixed size that add: rows may come at once, batch by batch, from a file, or from several machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.named_kernels import random_features
from ovkgp.estimators.common.options import all_or_nothing, check_lam, check_option
from ovkgp.estimators.common.streaming import (
    SAMPLE_ROWS,
    StreamScan,
    accumulate_rows,
    accumulate_statistics,
    enter_survey,
    ranks_of,
    shown_parts,
    survey,
)
from ovkgp.estimators.common.validation import Weighed
from ovkgp.estimators.regression.training import Table
from ovkgp.estimators.ridge.base import RidgeEstimator, RidgePath, check_solver, middle, positive
from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.inference import Statistics, primal_dual_residual
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.posteriors.weight_posterior import WeightPosterior
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.statistics.statistics import OutputStatistics
from ovkgp.inference.statistics.weight_space import WeightSystem

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
    if estimator.solver == "auto":
        return True
    raise AttributeError(f'partial_fit adds to statistics of the rows, with solver="auto"; got {estimator.solver!r}.')


class ORFFRidge(RidgeEstimator):
    """Ridge regression on random Fourier features of an operator-valued kernel, for any number of rows (BT-71).

    Args:
        kernel, lam, convention, base_kernel, lengthscale, output_matrix, output_metric, fit_intercept, selection, scale,
            tolerance, max_iter, verbose: as for `OVKRidge`.
        num_frequencies: D; Φ has 2·D·r columns, with r the columns of the kernel's factor.
        solver: "auto" (statistics in one pass, then the fastest factorisation), or "eigen" (the Stein equation: separable
            kernels, complete outputs), "closed_form" (Algorithm 3), "cg", "lbfgs" (products with Φ only), "doubly_sgd"
            (blocks of features and batches of rows, Algorithm 4). They agree; blocks that tell each other much, with little
            noise, make "doubly_sgd" slow, and it warns where it has not arrived.
        random_state: of the frequencies (and of the batches).
        block_size: draw the frequencies in blocks of this size, regenerated from their seeds whenever they are wanted and
            never stored; for "doubly_sgd", the block of one step. None is one block.
        batch_size: rows of a step of "doubly_sgd"; None takes all, so that one step with one block is the exact solution.
        learning_rate: of "doubly_sgd": a number, or a function of the step.
        preconditioned: whether a step of "doubly_sgd" is multiplied by the inverse of its block of the Hessian.
        variance: "guarded" keeps the variance of random features from starving far from the data, "features" does not.
        distributed: the rows are this process's shard of a table (`ovkgp.inference.statistics.distributed.process_group`); all
            processes get the model of the whole table.

    Attributes:
        coef_: the weights θ̂ (r,).
        n_iter_: iterations of the solver; 1 for those that factorise.
        statistics_: what is kept of the rows, for solver="auto".
        noise_, lam_, path_, scale_, gp_, posterior_, kernel_, …: as for `OVKRidge`.

    Cost: O(n M² + M³ + p³) time for M = 2D waves of a separable kernel with complete outputs, O(n p r² + r³) at most for
    others; O(r²) memory beside the data, whatever n.

    Example:
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

    @property
    def n_iter_(self) -> int:
        """How many iterations the solver took; 1 for those that factorise."""
        check_is_fitted(self, "posterior_")
        return max(getattr(getattr(self.posterior_, "system", None), "num_iterations", 1), 1)

    @property
    def coef_(self) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return self.posterior_.weights.numpy()

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y, sample_weight=None) -> ORFFRidge:
        """Fit to X (n, d) and y (n, p) or (n,), NaN where an output is missing.

        Args:
            sample_weight: of the rows (n,), which then count so many times, or of the entries (n, p) in the loss. The noise
                of an entry is σ² / weight; a weight of zero leaves it out.
        """
        if not self.distributed:
            return super().fit(X, y, sample_weight)
        if sample_weight is not None:
            raise OptionError("weights of the entries are not for distributed=True: leave sample_weight out.")
        return self.fit_stream([(X, y)])

    def fit_stream(self, chunks: Iterable) -> ORFFRidge:
        """Fit to a table that need not fit into memory, in two passes.

        Args:
            chunks: pairs (X, Y) that can be read again: a list, or `ovkgp.datasets.stream(path, inputs, outputs)`. With
                `distributed`, those of this process's shard.
        """
        with all_or_nothing(self):
            with ranks_of(self) as ranks:
                ranks.together(lambda: self._require_streamable("fit_stream"), "checking the options")
                found = survey(chunks, SAMPLE_ROWS, ranks, verbose=self.verbose)
                seed = ranks.broadcast(as_seed(self.random_state), "agreeing on a seed")
                ranks.together(lambda: self._prepare(found, seed), "making the features")
                streams = self.scaling_, chunks, ranks, self.verbose
                self.statistics_ = accumulate_rows(self.gp_, *streams, found=found)
            self._conclude()
        return self

    def _prepare(self, found: StreamScan, seed: int) -> None:
        """The model of a stream: kernel, features and noise."""
        sample = enter_survey(self, found)
        super()._begin(sample.X, sample.Y, found.outputs.mean)  # of a sample already
        self._seed, self._counts = seed, (found.num_observed_rows, int(found.outputs.count.sum()))
        self._take(self._noises()[0])  # with a metric and gaps, rows are divided by the noise as they come

    @available_if(_has_statistics)
    def partial_fit(self, X, y, sample_weight=None) -> ORFFRidge:
        """Add rows, in memory that does not grow. The first call takes from its rows what the kernel takes from data (the
        median distance, the covariance of the outputs) and the intercept; later calls only add."""
        with all_or_nothing(self):
            self._require_streamable("partial_fit")
            if self.distributed:
                raise OptionError("partial_fit knows this process's rows only: use fit_stream with distributed=True.")
            if hasattr(self, "statistics_"):
                table = self._part(X, y, sample_weight)
            elif hasattr(self, "posterior_"):
                raise OptionError(
                    'this model was fitted without statistics; fit it with solver="auto" to add rows to it.'
                )
            else:
                table = self._first(X, y, sample_weight, simplify=False)
                self._begin(table.X, table.Y, table.mean())
                self._counts = (0, 0)
            self._counts = self._counts[0] + table.num_rows, self._counts[1] + table.num_observed
            noise_before, noise = getattr(self, "noise_", None), float(self._noises()[0])
            self._take(noise)
            self._gather(table, getattr(self, "statistics_", None))
            if _is_weighted(self.statistics_) and noise_before not in (None, noise):
                raise OptionError(
                    "sample weights, or an output_metric with missing outputs, divide the rows by the noise as they come, and it "
                    f'has changed from {noise_before:.6g} to {noise:.6g}: keep lam, with convention="sum", or fit.'
                )
            self._conclude()
        return self

    def _part(self, X, y, sample_weight) -> Weighed:
        """A later part: with weights where those before have some, without where they have none."""
        if self.output_metric is None and _is_weighted(self.statistics_):
            weight = np.ones(len(X)) if sample_weight is None else sample_weight
            return self._again(X, y, weight, simplify=False)
        table = self._again(X, y, sample_weight)
        if table.variances is not None:
            raise OptionError("the rows before came without sample_weight: give them ones there, or leave it out here.")
        return table

    def _begin(self, X: np.ndarray, Y: np.ndarray, mean: np.ndarray) -> None:
        sample = RowSample.of(X, Y, SAMPLE_ROWS)
        self._seed = as_seed(self.random_state)
        super()._begin(sample.X, sample.Y, mean)

    def _features(self, kernel: Kernel) -> ORFF:
        return random_features(kernel, self.n_features_in_, self.num_frequencies, self._seed, self.block_size)

    def _solve(self, table: Weighed) -> None:
        if self.solver == "auto":
            self._counts = table.num_rows, table.num_observed
            self._gather(table, None)
            self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)
            return
        X, Y, noise = self._data(table)
        options = {name: getattr(self, name) for name in SOLVER_OPTIONS}
        self.posterior_ = solve_ridge(self.gp_, X, Y, noise, random_state=self._seed, **options)

    def _gather(self, table: Weighed, into) -> None:
        noise = None if table.variances is None else self._noise_now * table.variances
        whole = Table(table.X, table.Y, noise)
        self.statistics_ = accumulate_statistics(self.gp_, self.scaling_, shown_parts(whole, self.verbose), into)

    def _conclude(self) -> None:
        """λ, the scale and the posterior from statistics alone."""
        if len(check_lam(self.lam)) > 1 or self.scale == "evidence":
            self._require_plain()
        self._choose(self._statistics_path)
        if self.scale == "evidence":
            system = self._system()
            self.scale_ = positive(system.quadratic.item() / system.num_observed)
            self._take(self.noise_, self.scale_)
        self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)

    def _statistics_path(self, lams: np.ndarray, noises: np.ndarray) -> RidgePath:
        nothing = np.full(len(lams), np.nan)  # an error of rows left out needs the rows
        return RidgePath(lams, noises, self._evidence(noises), nothing, nothing)

    def _evidence(self, noises: np.ndarray) -> np.ndarray:
        """log p(Y) (k,) at each noise level, at the best scale where that is asked for."""
        unit = middle(noises)
        self._take(unit)
        if self.scale != "evidence":
            return self.gp_.condition(self.statistics_).noise_path(noises / unit).numpy()
        systems = self._system().rotated(noises / unit)[1]
        scales = [max(system.quadratic.item() / system.num_observed, np.finfo(float).tiny) for system in systems]
        return np.array([s.log_density.item() + _rescaled(s, c) for s, c in zip(systems, scales, strict=True)])

    def _system(self) -> WeightSystem:
        posterior = self.gp_.condition(self.statistics_)
        if not isinstance(posterior, WeightPosterior):
            raise OptionError('a kernel that is independent for each output has no one scale: use scale="given".')
        return posterior.system

    def primal_dual_residual(self, X, y, sample_weight=None) -> float:
        """‖Σ_i Φ(x_i)ᵀ u_i − θ̂‖ / ‖θ̂‖ for the fitted data, with u the dual solution (K̃ + N) u = y (BT-69).

        Zero, to rounding, where the two problems have one solution; anything else says that λ is numerically zero.
        """
        table = self._again(X, y, sample_weight)
        return primal_dual_residual(self.gp_, *self._data(table)).relative

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        super()._require_options()
        check_solver(self)
        check_integer("num_frequencies", self.num_frequencies)
        check_option("variance", self.variance, VARIANCES)
        for name in ("block_size", "batch_size"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))

    def _require_streamable(self, method: str) -> None:
        self._require_options()
        if self.solver != "auto":
            raise OptionError(f'{method} works on statistics of the rows, with solver="auto"; got {self.solver!r}.')
        if len(check_lam(self.lam)) > 1 and self.selection != "evidence":
            raise OptionError(f'{method} chooses among several lam by selection="evidence": the rows are not kept.')

    def _require_plain(self) -> None:
        if _is_weighted(self.statistics_):
            raise OptionError(
                "an output_metric with missing outputs, or sample weights, divide the rows by the noise as they come: give "
                'one lam and scale="given", or use fit.'
            )


def _rescaled(system: WeightSystem, scale: float) -> float:
    """What a scale adds to log p(Y)."""
    return -system.num_observed / 2 * math.log(scale) + (1 - 1 / scale) * system.quadratic.item() / 2


def _is_weighted(statistics: Statistics | OutputStatistics) -> bool:
    return any(part.weighted for part in getattr(statistics, "parts", (statistics,)))
