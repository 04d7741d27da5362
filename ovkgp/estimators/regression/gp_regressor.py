"""The Gaussian-process regressor: a multi-output GP with missing outputs, behind scikit-learn's interface."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import deepcopy

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.named_kernels import approximate, feature_kind
from ovkgp.estimators.common.options import all_or_nothing, check_options, is_variational, reject_variational
from ovkgp.estimators.common.scaling import Moments
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
from ovkgp.estimators.common.summary import Summary, summarise
from ovkgp.estimators.common.validation import entry_values, input_table, warn_of_constants
from ovkgp.estimators.regression.hyperparameters import (
    check_sampling,
    draw_hyperparameters,
    export,
    is_sampled,
    mixture_draws,
    reject_sampling,
    takes_further_rows,
)
from ovkgp.estimators.regression.training import RegressorTrainer, Table
from ovkgp.estimators.regression.variational import VariationalLearner
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.statistics.distributed import Ranks, all_reduce


class GPRegressor(PosteriorRegressor):
    """Multi-output Gaussian-process regression with an operator-valued kernel.

    Args:
        kernel: "auto" (the better of "independent" and "decomposable" by evidence), "independent", "decomposable" (ICM),
            "lmc", "curl_free", "divergence_free", "helmholtz" (vector fields), or a kernel object, which is copied.
        base_kernel: the scalar kernel of the named structures: "matern52", "matern32", "matern12", "rbf", "rq", or an object
            (which sees the inputs as they are).
        rank: of the output matrix of "decomposable"; the number of components of "lmc" (at least 2).
        approximation: "exact", "orff" (random features), "nystrom" (landmarks), "variational" (inducing points, for any
            likelihood), or "auto": variational where the likelihood is not "gaussian", else exact while n ≤ 4000 for
            separable kernels with complete outputs, or up to 5000 observed entries; features beyond.
        num_frequencies: of the random features; the number of landmarks for "nystrom", and of inducing points for
            "variational". "auto" is 500, and 200 inducing points.
        noise: "shared", "per_output" or "full" (trained), or a variance, (p,) or (p, p) in the units of Y (fixed); of a
            Gaussian likelihood.
        hyperparameters: "evidence" trains them. "fixed" leaves those of a kernel object as they are, in the user's units,
            and takes a noise that is not a number as a tenth of the variance of each output. "laplace", "svi" and "nuts"
            train them and then draw from their posterior (`ovkgp.inference.sampling.sampling`); predictions average over the draws.
        likelihood: of Y given the latent function: "gaussian"; for errors with heavy tails "student_t", "laplace", "huber" or
            "asymmetric_laplace" (the median); for 0/1 labels "bernoulli"; for counts "poisson" or "negative_binomial"; for
            classes, one column each (one-hot, or counts), "softmax"; a list of these with one for each output; or a `Likelihood` object
            (`ovkgp.inference.likelihoods`), in the units of Y. All but "gaussian" take the variational approximation. Beyond
            2000 rows it is trained in batches.
        training_rows: beyond so many rows hyperparameters are trained on a random subset; None uses all.
        variance: "guarded" keeps the variance of random features from starving far from the data, "features" does not.
        random_state: as in scikit-learn.
        verbose: 0 is quiet, 1 shows progress.
        distributed: whether the data given to `fit`, `fit_stream` and `partial_fit` are the shard of one process among those
            that torchrun started (see `ovkgp.inference.statistics.distributed.process_group`). All must call them, with the same
            options; all end with the same model, which takes a feature map in any case. A process that torchrun did not
            start is one process.
        sampling: options of `sample_hyperparameters` for "laplace", "svi" and "nuts", such as {"draws": 500, "chains": 4};
            "max_draws" is how many of the draws predictions average over (50). None for the defaults. Posteriors of all
            draws that need more than 1 GB together (with the exact kernel beyond about 1500 rows, or 1500 observed
            entries where it is not separable or outputs are missing) are made anew at every
            question: take fewer draws there, or features.

    Inputs and outputs are centred and scaled inside (see `ovkgp.estimators.common.scaling`), but labels, counts and classes are not;
    everything public is in the user's units. NaN in Y is a missing output. Predictions describe a *new observation*, with
    E[y] a probability or an expected count where y is a label or a count: `noise=False` gives the latent function (a log-odds,
    or a logarithm of the expected count).

    Attributes:
        gp_, posterior_: the `OperatorValuedGP` (or `VariationalGP`) behind it and its posterior, in scaled units (`scaling_`). Where hyperparameters
            were drawn, gp_ is at their mode, and posterior_ is a `MixturePosterior`.
        draws_: the draws of the hyperparameters, in scaled units, where there are any; `to_arviz` has them in the user's.
        kernel_: the name of the structure that was taken, or "given".
        approximation_: "exact", "orff", "nystrom" or "variational".
        noise_: the noise covariance (p, p) of a new observation; its mean over the draws where there are draws; None where the
            likelihood is not Gaussian.
        log_evidence_: log p(Y) of the data in the user's units, at the trained hyperparameters; its mean over the draws where
            there are draws. The evidence lower bound, of a variational model.
        candidates_: for kernel="auto", the log evidence of each candidate, less one for each trained parameter.
        fit_report_: how training went; None for "fixed".
        output_names_, n_outputs_, n_features_in_, feature_names_in_.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> Y[10:20, 0] = np.nan  # missing outputs
        >>> model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
        >>> mean, std = model.predict([[1.5], [2.0]], return_std=True)
        >>> mean.shape, std.shape
        ((2, 2), (2, 2))
        >>> counts = np.random.default_rng(0).poisson(np.exp(2 * np.sin(X[:, 0])))
        >>> model = ovkgp.GPRegressor(likelihood="poisson", num_frequencies=10, random_state=0).fit(X, counts)
        >>> lower, upper = model.predict_interval([[1.5]], 0.9)  # e² = 7.4 is expected
        >>> bool(lower[0] < 7 < upper[0]), bool(lower[0] == round(lower[0]))
        (True, True)
    """

    def __init__(
        self,
        kernel="auto",
        base_kernel="matern52",
        rank=2,
        approximation="auto",
        num_frequencies="auto",
        noise="per_output",
        hyperparameters="evidence",
        likelihood="gaussian",
        training_rows=10_000,
        variance="guarded",
        random_state=None,
        verbose=0,
        distributed=False,
        sampling=None,
    ):
        self.kernel = kernel
        self.base_kernel = base_kernel
        self.rank = rank
        self.approximation = approximation
        self.num_frequencies = num_frequencies
        self.noise = noise
        self.hyperparameters = hyperparameters
        self.likelihood = likelihood
        self.training_rows = training_rows
        self.variance = variance
        self.random_state = random_state
        self.verbose = verbose
        self.distributed = distributed
        self.sampling = sampling

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, Y, noise=None, *, checkpoint=None) -> GPRegressor:
        """Train on X (n, d) and Y (n, p) or (n,), NaN where an output is missing.

        Args:
            noise: variances (n, p) of the entries of Y, where they are known; they replace the trained noise.
            checkpoint: a file to which training saves its progress; a later call with the same file goes on from there. Not
                for variational models.
        """
        with all_or_nothing(self):
            if self.distributed:
                self._stream([(X, Y)], noise, checkpoint)
                return self
            table = self._prepare(X, Y, noise)
            self._draw(self._learn(table, features=False, checkpoint=checkpoint))
            self._condition(table)
        return self

    def fit_stream(self, chunks: Iterable, *, checkpoint=None) -> GPRegressor:
        """Train on a table that comes in chunks and may be larger than memory, in two passes over them.

        The first pass finds the scaling of all rows and a sample of `training_rows` of them, on which the hyperparameters
        are trained; the second gathers the statistics of a feature map, so that the posterior is that of *all* rows.
        Neither the order of the rows nor the way they are cut changes the answer by more than rounding. With
        distributed=True the chunks are the shard of this process, rank 0 trains for all, and an error on one is an error on
        all. `partial_fit` may add rows afterwards.

        Args:
            chunks: pairs (X, Y) of arrays, tensors or data frames, NaN in Y where an output is missing: a list, or
                `ovkgp.datasets.stream(path, inputs, outputs)`. A shard may be empty.
            checkpoint: as for `fit`.

        Raises:
            InputError: a chunk is bad, or the chunks can be read only once.
            OptionError: approximation="exact", which needs all rows at once.
            DistributedError: another process failed.

        Cost: O(n M²) time for M waves, divided by the number of processes, and one training on the sample; memory for a
        chunk, the sample and the statistics.

        Example:
            >>> import numpy as np
            >>> import ovkgp
            >>> X = np.linspace(0, 6, 300)[:, None]
            >>> Y = np.hstack([np.sin(X), np.cos(X)])
            >>> chunks = [(X[i : i + 100], Y[i : i + 100]) for i in range(0, 300, 100)]
            >>> model = ovkgp.GPRegressor("independent", num_frequencies=50, random_state=0).fit_stream(chunks)
            >>> bool(abs(model.predict(X) - Y).max() < 0.01)
            True
        """
        with all_or_nothing(self):
            self._stream(chunks, None, checkpoint)
        return self

    @available_if(takes_further_rows)
    def partial_fit(self, X, Y, noise=None) -> GPRegressor:
        """Add rows. The first call trains hyperparameters and scaling on its rows and takes a feature map (random
        features, or landmarks for approximation="nystrom"); later calls only add to the statistics of all rows seen,
        in memory that does not grow. A model with draws of its hyperparameters does not have this method: each draw has
        features of its own, and looks at all rows."""
        with all_or_nothing(self):
            if self.approximation == "exact":
                raise OptionError('partial_fit needs a feature map: use approximation="auto", "orff" or "nystrom".')
            if hasattr(self, "gp_"):
                with ranks_of(self) as ranks:
                    self._add(self._further(X, Y, noise, ranks), ranks)
            elif self.distributed:
                self._stream([(X, Y)], noise)
            else:
                table = self._prepare(X, Y, noise)
                self._learn(table, features=True)
                self._add(table)
        return self

    # --- shards and chunks ------------------------------------------------------------------------------------------

    def _stream(self, chunks: Iterable, noise, checkpoint=None) -> None:
        with ranks_of(self) as ranks:
            ranks.together(lambda: self._require_stream(noise), "checking the options")
            found = survey(chunks, self.training_rows or SAMPLE_ROWS, ranks, verbose=self.verbose)
            self._require_sample(found)
            table = enter_survey(self, found)
            self._learn(table, features=True, checkpoint=checkpoint, moments=(found.inputs, found.outputs), ranks=ranks)
            self.statistics_ = accumulate_rows(self.gp_, self.scaling_, chunks, ranks, self.verbose, found=found)
            self._settle()

    def _require_stream(self, noise) -> None:
        check_options(self)
        reject_variational(self, "a stream")
        if is_sampled(self):
            reject_sampling(self, "a stream")
        if self.approximation == "exact":
            raise OptionError('a stream needs a feature map: use approximation="auto", "orff" or "nystrom".')
        if noise is not None:
            raise OptionError(
                "variances of the entries of Y are not available with distributed=True: leave noise=None, or fit in one "
                "process."
            )

    def _require_sample(self, found: StreamScan) -> None:
        if (
            self.training_rows is None
            and self.hyperparameters != "fixed"
            and found.num_observed_rows > len(found.sample)
        ):
            raise OptionError(
                f"training_rows=None trains on all rows at once, but a stream is not kept in memory: it has {found.num_observed_rows} "
                f"rows, more than the {SAMPLE_ROWS} kept without being asked. Say how many to train on, such as "
                "training_rows=10_000."
            )

    # --- steps ------------------------------------------------------------------------------------------------------

    def _prepare(self, X, Y, noise) -> Table:
        """Check everything there is to check, and forget the last fit."""
        check_options(self)
        check_sampling(self)
        X, Y = self._enter(X, Y)
        warn_of_constants(self, Y)
        return Table(X, Y, entry_values(noise, Y, "noise is a variance"))

    def _further(self, X, Y, noise, ranks: Ranks) -> Table | None:
        """More rows, checked; None for an empty shard."""
        seed = ranks.broadcast(as_seed(self.random_state)) if self.approximation_ == "exact" else None
        return ranks.together(lambda: self._further_here(X, Y, noise, seed), "checking the data")

    def _further_here(self, X, Y, noise, seed: int | None) -> Table | None:
        if self.approximation_ == "exact":
            self._leave_exact(seed)
        if self.distributed and np.shape(X)[:1] == np.shape(Y)[:1] == (0,):
            return None
        X = input_table(self, X, reset=False)
        Y = self._outputs(Y, X)
        return Table(X, Y, entry_values(noise, Y, "noise is a variance"))

    def _leave_exact(self, seed: int) -> None:
        """Give an exactly fitted model a feature map, and its own data as the first statistics."""
        data, kind = self.posterior_.data, feature_kind(self.approximation, self.gp_.kernel)
        self.gp_ = deepcopy(self.gp_)
        self.gp_.features = approximate(self.gp_.kernel, kind, data.X, self.num_frequencies, seed)
        self.gp_.double()
        self.statistics_ = self.gp_.statistics(data.X, data.Y, data.noise)
        self.approximation_ = kind

    def _learn(
        self,
        table: Table,
        features: bool,
        checkpoint=None,
        moments: tuple[Moments, Moments] | None = None,
        ranks: Ranks | None = None,
    ) -> RegressorTrainer:
        ranks = ranks or Ranks.alone()
        # A resumed training must find the same rows and the same frequencies.
        seed = as_seed(0 if checkpoint is not None and self.random_state is None else self.random_state)
        kind = VariationalLearner if is_variational(self) else RegressorTrainer
        learner = kind(self, table, seed, checkpoint, moments)
        learned = ranks.first(lambda: learner.learn(features), "training")
        self.kernel_, self.scaling_, self.approximation_ = learned.kernel, learned.scaling, learned.approximation
        self.gp_, self.fit_report_ = learned.gp, learned.report
        if learned.candidates is not None:
            self.candidates_ = learned.candidates
        return learner

    def _draw(self, learner: RegressorTrainer) -> None:
        """Draws of the hyperparameters, where they are asked for; none after a training that was interrupted."""
        if not is_sampled(self):
            return
        if self.fit_report_.interrupted:
            warnings.warn(
                "the training was interrupted, and no hyperparameters were drawn: predictions use the best values so far.",
                FitWarning,
                stacklevel=3,
            )
            return
        self.draws_ = draw_hyperparameters(self, *learner.trained, learner.seed)

    def _condition(self, table: Table) -> None:
        draws = getattr(self, "draws_", None)
        if draws is None and self.approximation_ in ("orff", "nystrom"):
            self._add(table)
            return
        if draws is None and self.approximation_ == "variational":
            self.posterior_ = self.gp_.posterior()
        else:
            X, Y, noise = table.scaled(self.scaling_)
            options = {"hyperparameters": draws, "max_draws": mixture_draws(self), "variance": self.variance}
            self.posterior_ = self.gp_.condition(X, Y, noise=noise, **options)
        self._num_observed = np.isfinite(table.Y).sum(0)
        self._report()

    def _add(self, table: Table | None, ranks: Ranks | None = None) -> None:
        ranks = ranks or Ranks.alone()
        # What was seen before is the same on all ranks, and counts once.
        before = getattr(self, "statistics_", None) if ranks.rank == 0 else None
        parts = [] if table is None else shown_parts(table, self.verbose and ranks.rank == 0)
        mine = ranks.together(
            lambda: accumulate_statistics(self.gp_, self.scaling_, parts, before), "gathering statistics"
        )
        self.statistics_ = all_reduce(mine, ranks)
        self._settle()

    def _settle(self) -> None:
        """The posterior of the statistics."""
        self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)
        self._num_observed = self.statistics_.num_observed.numpy()
        self._report()

    def _report(self) -> None:
        noise = self.posterior_.noise
        self.noise_ = None if noise is None else self.scaling_.cov(noise)
        self.log_evidence_ = self.scaling_.log_density(self.posterior_.log_evidence, self._num_observed)

    def summary(self) -> Summary:
        """The model in words: structure, hyperparameters in the user's units, evidence, and what deserves attention."""
        check_is_fitted(self, "posterior_")
        return summarise(self)

    def to_arviz(self, X=None, Y=None, noise=None):
        """The hyperparameters as the object that ArviZ reads, in the user's units; see `ovkgp.estimators.regression.hyperparameters`.

        With draws ("laplace", "svi", "nuts") it has the groups of `sample_hyperparameters`. Without, the posterior has the
        one draw that there is, and `az.loo` has no use for it: attribute elpd_loo is the sum of the log predictive densities
        of each observed entry given all the others, in closed form. A variational model has no such densities.

        Args:
            X, Y, noise: the data, as `fit` had them, for the log_likelihood of a model without draws that has not kept
                them, one with features, or not as rows: independent outputs of which some are missing are else numbered
                one output after another.

        Example:
            >>> import numpy as np
            >>> import ovkgp
            >>> X = np.linspace(0, 6, 30)[:, None]
            >>> y = 100 * np.sin(X[:, 0]) + np.random.default_rng(0).normal(size=30)
            >>> model = ovkgp.GPRegressor(hyperparameters="laplace", random_state=0).fit(X, y)
            >>> data = model.to_arviz()  # for az.summary, az.plot_trace, az.loo
            >>> data["posterior"]["noise"].dims, bool(data["posterior"]["noise"].mean() < 3)
            (('chain', 'draw', 'output'), True)
        """
        check_is_fitted(self, "posterior_")
        return export(self, X, Y, noise)
