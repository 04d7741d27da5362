"""`GPRegressor`, multi-output Gaussian-process regression with missing outputs and a scikit-learn interface."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.base import POSTERIOR_ATTRIBUTES, PosteriorRegressor
from ovkgp.estimators.common.descriptions import NO_VARIANCE_FLOOR, Description, describe_gp, list_likelihood_formulas
from ovkgp.estimators.common.fit_checks import list_fit_notes, list_fit_problems, list_training_problems
from ovkgp.estimators.common.named_kernels import (
    ALIASES,
    BASE_KERNEL,
    STRUCTURES,
    approximate,
    choose_approximation,
    feature_kind,
    name_structure,
    num_features,
)
from ovkgp.estimators.common.options import (
    LIKELIHOOD,
    POSITIVE,
    RANDOM_STATE,
    VERBOSE,
    check_constraints,
    check_likelihood,
    integer,
    is_variational,
    one_of,
    reject_variational,
    restore_on_error,
)
from ovkgp.estimators.common.scaling import Moments
from ovkgp.estimators.common.streaming import (
    ACCUMULATE_LABEL,
    SAMPLE_ROWS,
    accumulate_rows,
    accumulate_statistics,
    is_distributed,
    ranks_of,
    scan,
    shown_parts,
    store_columns,
)
from ovkgp.estimators.common.summary import Hyperparameter, Summary, hyperparameter_table, summarize
from ovkgp.estimators.common.validation import (
    Table,
    entry_values,
    input_table,
    warn_about_constants,
    warn_about_distant_rows,
)
from ovkgp.estimators.regression.hyperparameters import (
    MIXTURE_DRAWS,
    SAMPLED,
    check_sampling,
    draw_hyperparameters,
    export,
    reject_sampling,
    supports_partial_fit,
)
from ovkgp.estimators.regression.training import (
    MODEL_BUILDER,
    TrainedModel,
    TrainingJob,
    average,
    make_gp,
    name_hyperparameters_on_failure,
    train,
    train_candidate,
    train_candidates,
    train_stack,
    uses_stack,
)
from ovkgp.estimators.regression.variational import (
    check_likelihood_data,
    make_variational_gp,
    train_variational,
    train_variational_candidate,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.stacking.stack import StackPosterior
from ovkgp.inference.statistics.distributed import Ranks, all_reduce

STANDARDIZED = "standardized (`scaling_`); the methods of the estimator use original units"  # units of `posterior_`


@storable(
    *(*POSTERIOR_ATTRIBUTES, "approximation_", "fit_report_", "_num_observed"),
    optional=("candidates_", "draws_"),
    builder=MODEL_BUILDER,
    finish=lambda estimator: estimator._report(),
)
class GPRegressor(PosteriorRegressor):
    """Multi-output Gaussian-process regression with an operator-valued kernel.

    NaN in `Y` marks a missing output. With a named kernel, inputs and outputs are centered and scaled internally, except labels,
    counts and classes; everything public is in original units. Predictions describe a new observation; pass `noise=False` for the latent function.

    Parameters
    ----------
    kernel : {"auto", "independent", "decomposable", "lmc", "curl_free", "divergence_free", "helmholtz"} or Kernel, default="auto"
        Structure of the kernel. "auto" is a mixture of candidates of independent outputs (see Notes) for up to 4000 rows, a
        Gaussian likelihood, noise per output or known, and `hyperparameters` "auto" or "evidence". Otherwise (more rows, features, `partial_fit`,
        streams, `checkpoint=`, noise "shared" or "full", draws, other likelihoods, a kernel object or "laplace" as `base_kernel`), it is one model,
        which `summary()` says: "independent" if Y is complete and the likelihood Gaussian, and else that or
        "decomposable", whichever has the larger evidence minus the number of its parameters (`candidates_`); "decomposable" (also "icm") couples the outputs; "lmc" is a sum of `rank` decomposable kernels;
        the last three are for vector fields. A kernel object is copied and used in original units: its values, priors and
        constraints are, and X and Y are not scaled.
    base_kernel : {"auto", "matern52", "matern32", "matern12", "rbf", "rq", "laplace"} or Kernel, default="auto"
        Scalar kernel of the named structures, or a kernel object in original units. "auto" is "matern52" for a single
        structure, and different ones for the candidates of `kernel="auto"`.
    rank : int, default=2
        Rank of the output matrix if `kernel="decomposable"`; number of components if `kernel="lmc"` (at least 2).
    approximation : {"auto", "exact", "orff", "nystrom", "variational"}, default="auto"
        "orff" uses random features, "nystrom" landmarks, "variational" inducing points with any likelihood. "auto" is variational if the likelihood is not Gaussian; otherwise exact for up to 4000 complete rows with a separable kernel or
        up to 5000 observed entries, or millions of rows with one input and a Matérn kernel, and features beyond.
    num_frequencies : int or "auto", default="auto"
        Number of random frequencies, of landmarks ("nystrom") or of inducing points ("variational"). "auto" is 500, and 200
        inducing points.
    noise : {"shared", "per_output", "full"}, float or array-like, default="per_output"
        Noise of a Gaussian likelihood. A name is trained; a variance, a vector (p,) or a matrix (p, p) in units of Y is fixed.
    hyperparameters : {"auto", "evidence", "fixed", "laplace", "svi", "nuts"}, default="auto"
        "auto" averages the candidates of `kernel="auto"`, or a named kernel with trained noise, over draws around the mode of
        their hyperparameters where rows are few, with output matrices at the mode, and is "evidence" otherwise. Candidates: 32
        draws up to 150 rows, 16 up to 500 and 8 up to 707, while rows times hyperparameters of an output are at most 12 000 (an
        output's factorizations need at most 32 MB); named kernels: 8 draws within the same limits. "evidence" maximizes evidence
        times priors: those registered on a kernel object, and weakly informative ones, relative
        to the scales of the data, on all other parameters of kernel and noise. "fixed" keeps those of a kernel object, in
        original units, and sets a noise given by name to a tenth of the variance of each output. The others train and then
        sample them; predictions average over the draws.
    likelihood : str, list of str or Likelihood, default="gaussian"
        Distribution of Y given the latent function: "gaussian"; "student_t", "laplace", "huber", "log_cosh", "asymmetric_laplace"
        or "asymmetric_huber" (the median) for errors with heavy tails; "epsilon_insensitive" for errors that are equally likely up to a limit; "bernoulli" for 0/1 labels; "poisson" or "negative_binomial" for counts; "softmax" for
        classes, one column each (one-hot or counts); a list with one per output; or an object of
        `ovkgp.inference.likelihoods`, in units of Y. All except "gaussian" are variational, in batches beyond 2000 rows.
    training_rows : int or None, default=10_000
        Maximum number of rows used to train the hyperparameters, a random subset if there are more. If None, all rows are used.
    variance : {"guarded", "features"}, default="guarded"
        "guarded" bounds the variance of random features from below far from the data.
    random_state : int, RandomState instance or None, default=None
        Seed of rows, frequencies and restarts.
    verbose : int, default=0
        If 1, progress is shown.
    distributed : bool, default=False
        Whether the data passed to `fit`, `fit_stream` and `partial_fit` are the shard of one of the processes that torchrun
        started. All must call the method with the same options; all end with the same model, which has a feature map.
    sampling : dict or None, default=None
        Options of `ovkgp.inference.sample_hyperparameters` for "laplace", "svi" and "nuts", such as
        `{"draws": 500, "chains": 4}`. "max_draws" is the number of draws that predictions average over (default 50).
    restarts : int, default=1
        Number of optimization runs of the hyperparameters, of which the best is kept. The first begins at the best of several
        lengthscales and noises, the next ones at the other lengthscales in the order of their objective, and those after them
        at random perturbations. The candidates of `kernel="auto"` have at least two runs with up to 150 rows, and no random
        perturbations.

    Attributes
    ----------
    gp_, posterior_ : OperatorValuedGP or VariationalGP, Posterior
        Model and posterior in the units of `scaling_`; `gp_` is at the mode, and `posterior_` is a `MixturePosterior` if predictions
        are averaged over draws.
    draws_ : ArviZ object
        Hyperparameter draws in standardized units, if any; `to_arviz` returns them in original units.
    scaling_ : Scaling
        Offsets and scales of inputs and outputs; a kernel object has only an offset of the outputs.
    kernel_ : str
        Name of the selected structure, or "given".
    approximation_ : {"exact", "orff", "nystrom", "variational"}
        Approximation used.
    noise_ : ndarray of shape (p, p) or None
        Noise covariance of a new observation, averaged over draws; None if the likelihood is not Gaussian.
    log_evidence_ : float
        log p(Y), averaged over draws, or the evidence lower bound of a variational model, in original units.
    candidates_ : dict
        For `kernel="auto"`, the weight of each candidate, its mean log density of held-out entries in original units, and
        the standard error of that mean, that of `gp_` first, with the report of its training, k̂ of its draws and the outputs
        whose draws were replaced by the mode; log evidence minus the number of trained parameters if one structure was selected.
    fit_report_ : FitReport or None
        Report of the optimization; None for "fixed".
    output_names_, n_outputs_, n_features_in_, feature_names_in_
        Names and numbers of columns.

    Notes
    -----
    `kernel="auto"` is a mixture of three models of independent outputs: a linear function plus a Matérn-5/2 kernel with one
    lengthscale, a Matérn-3/2 kernel with one lengthscale per input, and a linear function plus a rational quadratic kernel with
    wide priors. Their weights maximize the density of held-out rows (stacking). Correlations between new observations of
    different outputs are those of the leave-one-out residuals. If outputs are missing or rows are few per output, coupled
    outputs with a full noise covariance are candidates too, and a Helmholtz kernel if there are as many outputs as inputs, two
    or three, of similar scales. Constant inputs are not used, and their values do not change predictions. `gp_` is the heaviest candidate with independent or coupled outputs, at its mode.

    Posteriors of all draws that need more than 1 GB (with the exact kernel beyond about 1500 rows, or 1500 observed entries if
    the kernel is not separable or outputs are missing) are recomputed at every call. Use fewer draws or features there.

    Examples
    --------
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
    >>> lower, upper = model.predict_interval([[1.5]], 0.9)  # the expected count is e² = 7.4
    >>> bool(lower[0] < 7 < upper[0]), bool(lower[0] == round(lower[0]))
    (True, True)
    """

    description = Description(
        "Gaussian-process regression",
        "The outputs are observations of an unknown function f with a Gaussian-process prior. Predictions are its posterior given the data, with their uncertainty.",
        "f ~ GP(m, K)",
    )
    has_trained_hyperparameters = True
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [one_of("auto", *STRUCTURES, *ALIASES), Kernel],
        "base_kernel": [one_of("auto"), *BASE_KERNEL],
        "rank": [integer()],
        "approximation": [one_of("auto", "exact", "orff", "nystrom", "variational")],
        "num_frequencies": [one_of("auto"), integer()],
        "noise": [one_of("shared", "per_output", "full"), POSITIVE, "array-like"],
        "hyperparameters": [one_of("auto", "fixed", "evidence", *SAMPLED)],
        "likelihood": LIKELIHOOD,
        "training_rows": [integer(), None],
        "variance": [one_of(*VARIANCES)],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
        "distributed": ["boolean"],
        "sampling": [dict, None],
        "restarts": [integer()],
    }

    def __init__(
        self,
        kernel="auto",
        base_kernel="auto",
        rank=2,
        approximation="auto",
        num_frequencies="auto",
        noise="per_output",
        hyperparameters="auto",
        likelihood="gaussian",
        training_rows=10_000,
        variance="guarded",
        random_state=None,
        verbose=0,
        distributed=False,
        sampling=None,
        restarts=1,
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
        self.restarts = restarts

    def fit(self, X, Y, noise=None, *, checkpoint=None) -> GPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        Y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.
        noise : array-like of shape (n, p) or None, default=None
            Known noise variances of the entries of Y, which replace the trained noise.
        checkpoint : path-like or None, default=None
            File for the progress of training; a later call with the same file resumes. Not supported by variational models.

        Returns
        -------
        self : GPRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            if is_distributed(self):  # all processes check the options together
                self._stream([(X, Y)], noise, checkpoint)
                return self
            self.check_options()
            table = self._new_table(X, Y, noise)
            seed = self._seed(checkpoint)
            model = self._train(table, seed, checkpoint=checkpoint)
            self._store(model)
            if self.hyperparameters in SAMPLED:
                draw_hyperparameters(self, *model.trained, seed)
            self._condition(table, model.posterior or average(self, model, table))
            self._report()
            self._warn()
        return self

    def _new_table(self, X, Y, noise) -> Table:
        """Check the data of a new fit and store their columns."""
        X, Y = self._enter(X, Y)
        warn_about_constants(self, Y)
        warn_about_distant_rows(X, self.input_labels())
        return Table(X, Y, entry_values(noise, Y, "noise"))

    def _seed(self, checkpoint) -> int:
        # A resumed training must find the same rows and the same frequencies.
        return as_seed(0 if checkpoint is not None and self.random_state is None else self.random_state)

    def _train(
        self,
        table: Table,
        seed: int,
        *,
        features: bool = False,
        checkpoint=None,
        moments: tuple[Moments, Moments] | None = None,
    ) -> TrainedModel:
        """Choose structure, scaling and approximation (a feature map if `features`), and train on at most `training_rows` rows."""
        variational = is_variational(self)
        moments = moments or (Moments.of(table.X), Moments.of(table.Y))
        is_real = check_likelihood_data(self, table, checkpoint) if variational else None
        job = TrainingJob(self, table, seed, checkpoint, moments, is_real)

        if not features and uses_stack(self, table, checkpoint):
            return train_stack(job)
        models, criteria = {}, {}
        name = name_structure(self.kernel)
        is_single = table.Y.shape[1] == 1 or self.hyperparameters == "fixed"
        if name == "auto" and (is_single or (table.is_complete and not variational)):
            name = "independent"
        elif name == "auto":
            models, criteria = train_candidates(job, train_variational_candidate if variational else train_candidate)
            name = max(criteria, key=criteria.get)
        kernel = job.make_kernel(name)
        scaling = job.make_scaling(kernel)

        rows = table.some_rows(self.training_rows, seed)
        if variational:
            approximation = "variational"
            num_points = num_features(self.num_frequencies, approximation)
            gp = make_variational_gp(job, kernel, scaling, rows, num_points)
        else:
            if features:
                approximation = feature_kind(self.approximation, kernel)
            else:
                shape = len(scaling.used_inputs), table.Y, table.noise
                approximation = choose_approximation(self.approximation, kernel, *shape)
            X = scaling.inputs(rows.X)
            feature_map = approximate(kernel, approximation, X, self.num_frequencies, seed)
            gp = make_gp(self, kernel, scaling, feature_map, job.prior_units(kernel, rows))

        trained = gp, rows
        with name_hyperparameters_on_failure(self, name, scaling):
            if self.hyperparameters == "fixed":
                gp.initialize(*rows.scaled(scaling)[:2], kernel=not isinstance(self.kernel, Kernel))
            elif variational:
                train_variational(job, gp, name, scaling, rows, models.get(name))
            else:
                trained = train(job, gp, scaling, rows, models.get(name))
            if variational and (gp.q_ is None or len(rows.X) < len(table.X)):
                gp.fit_variational_distribution(*table.scaled(scaling))
        return TrainedModel(name, scaling, approximation, gp, criteria, trained)

    def _store(self, model: TrainedModel) -> None:
        self.kernel_, self.scaling_, self.approximation_ = model.kernel, model.scaling, model.approximation
        self.gp_, self.fit_report_ = model.gp, model.gp.fit_report_
        if model.candidates:
            self.candidates_ = model.candidates

    def _condition(self, table: Table, posterior: Posterior | None) -> None:
        """Condition the trained model on all rows, unless training has done so."""
        self._num_observed = np.isfinite(table.Y).sum(0)
        if posterior is not None:
            self.posterior_ = posterior
            return
        draws = getattr(self, "draws_", None)
        if draws is None and self.approximation_ in ("orff", "nystrom"):
            self._add(table)
            return
        if draws is None and self.approximation_ == "variational":
            self.posterior_ = self.gp_.posterior()
        else:
            X, Y, noise = table.scaled(self.scaling_)
            max_draws = (self.sampling or {}).get("max_draws", MIXTURE_DRAWS)
            with name_hyperparameters_on_failure(self, self.kernel_, self.scaling_):
                self.posterior_ = self.gp_.condition(X, Y, draws, noise, variance=self.variance, max_draws=max_draws)

    def _report(self) -> None:
        """Compute noise and evidence in original units, and name the units of the posterior."""
        if isinstance(self.kernel, str):
            self.posterior_.units = STANDARDIZED
        noise = self.posterior_.noise
        self.noise_ = None if noise is None else self.scaling_.cov(noise)
        self.log_evidence_ = self.scaling_.log_density(self.posterior_.log_evidence, self._num_observed)

    def _warn(self) -> None:
        # the optimizer of a single model, and Ctrl-C, have warned already
        known = (
            []
            if isinstance(self.posterior_, StackPosterior) and not self.fit_report_.interrupted
            else list_training_problems(self)
        )
        for problem in list_fit_problems(self):
            if problem not in known:
                warnings.warn(problem, FitWarning, stacklevel=3)

    def fit_stream(self, chunks: Iterable, *, checkpoint=None) -> GPRegressor:
        """Fit the model to a table in chunks, which may be larger than memory, in two passes.

        The first pass computes the scaling of all rows and a sample of `training_rows` rows, on which the hyperparameters are
        trained; the second accumulates the statistics of a feature map, so that the posterior uses all rows, whatever their
        order and chunks. `partial_fit` may add rows afterwards.

        Parameters
        ----------
        chunks : iterable of (X, Y)
            List or `ovkgp.datasets.stream(path, inputs, outputs)` of arrays, tensors or data frames, NaN in Y where missing.
            With `distributed=True`, the shard of this process, which may be empty.
        checkpoint : path-like or None, default=None
            As for `fit`.

        Returns
        -------
        self : GPRegressor
            Fitted estimator.

        Raises
        ------
        InputError, OptionError, DistributedError
            If a chunk is invalid or the chunks can be read only once; if the options need all rows at once, such as
            `approximation="exact"`; if another process failed.

        Notes
        -----
        Complexity: O(n M²) for M scalar features, divided by the number of processes, plus one training on the sample; memory
        for a chunk, the sample and the statistics.

        Examples
        --------
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 300)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> chunks = [(X[i : i + 100], Y[i : i + 100]) for i in range(0, 300, 100)]
        >>> model = ovkgp.GPRegressor("independent", num_frequencies=50, random_state=0).fit_stream(chunks)
        >>> bool(abs(model.predict(X) - Y).max() < 0.01)
        True
        """
        with restore_on_error(self):
            self._stream(chunks, None, checkpoint)
        return self

    @available_if(supports_partial_fit)
    def partial_fit(self, X, Y, noise=None) -> GPRegressor:
        """Add rows to the model.

        The first call trains hyperparameters and scaling on its rows and uses a feature map (random features, or landmarks if
        `approximation="nystrom"`). Later calls add to the statistics of all rows, in constant memory. Models with draws do not
        have this method, since each draw has its own features.

        Parameters
        ----------
        X, Y, noise
            As for `fit`.

        Returns
        -------
        self : GPRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            if self.approximation == "exact":
                raise OptionError(
                    'partial_fit is not supported with approximation="exact". Use "auto", "orff" or "nystrom".'
                )
            if hasattr(self, "gp_"):
                with ranks_of(self) as ranks:
                    seed = ranks.broadcast(as_seed(self.random_state)) if self.approximation_ == "exact" else None
                    check = partial(self._further, X, Y, noise, seed)
                    self._add(ranks.run_on_all(check, "checking the data"), ranks)
            elif self.distributed:
                self._stream([(X, Y)], noise)
            else:
                self.check_options()
                table = self._new_table(X, Y, noise)
                self._store(self._train(table, self._seed(None), features=True))
                self._add(table)
                self._report()
                self._warn()
                return self
            self._report()
        return self

    def _stream(self, chunks: Iterable, noise, checkpoint=None) -> None:
        with ranks_of(self) as ranks:
            ranks.run_on_all(lambda: self._check_stream(noise), "checking the options")
            found = scan(chunks, self.training_rows or SAMPLE_ROWS, ranks, verbose=self.verbose)
            num_rows = found.num_observed_rows
            if self.training_rows is None and self.hyperparameters != "fixed" and num_rows > len(found.sample):
                raise OptionError(
                    f"training_rows=None is not supported with a stream of {num_rows} rows, which is not kept in memory (limit {SAMPLE_ROWS}). Set training_rows=10_000."
                )
            table = store_columns(self, found)
            options = {"features": True, "checkpoint": checkpoint, "moments": (found.inputs, found.outputs)}
            train = partial(self._train, table, self._seed(checkpoint), **options)
            self._store(ranks.run_on_first(train, "training"))
            self.statistics_ = accumulate_rows(self.gp_, self.scaling_, chunks, ranks, self.verbose, found=found)
            self._condition_on_statistics()
            self._report()
            self._warn()

    def check_options(self) -> None:
        """Check the options, and their combinations with the likelihood and the sampler."""
        check_constraints(self.get_params(deep=False), self._parameter_constraints)
        check_likelihood(self)
        if self.sampling is not None:
            check_sampling(self)

    def _check_stream(self, noise) -> None:
        self.check_options()
        reject_variational(self, "a stream")
        if self.hyperparameters in SAMPLED:
            reject_sampling(self, "a stream")
        if self.approximation == "exact":
            raise OptionError('Streaming is not supported with approximation="exact". Use "auto", "orff" or "nystrom".')
        if noise is not None:
            raise OptionError("noise is not supported with distributed=True. Use noise=None or fit in one process.")

    def _further(self, X, Y, noise, seed: int | None) -> Table | None:
        """Return further rows, checked, after a switch of an exact model to features; None for an empty shard."""
        if seed is not None:  # the data of an exact model are the first statistics
            data, kind = self.training_observations(), feature_kind(self.approximation, self.gp_.kernel)
            self.gp_ = deepcopy(self.gp_)
            self.gp_.features = approximate(self.gp_.kernel, kind, data.X, self.num_frequencies, seed)
            self.gp_.double()
            self.statistics_, self.approximation_ = self.gp_.statistics(data.X, data.Y, data.noise), kind
        if self.distributed and np.shape(X)[:1] == np.shape(Y)[:1] == (0,):
            return None
        return self._further_table(X, Y, noise)

    def _further_table(self, X, Y, noise) -> Table:
        """Check rows against the columns of the fit."""
        X = input_table(self, X, reset=False)
        Y = self._outputs(Y, X)
        return Table(X, Y, entry_values(noise, Y, "noise"))

    def _add(self, table: Table | None, ranks: Ranks | None = None) -> None:
        ranks = ranks or Ranks.single_process()
        # Earlier statistics are equal on all ranks and are added once.
        before = getattr(self, "statistics_", None) if ranks.rank == 0 else None
        parts = [] if table is None else shown_parts(table, self.verbose and ranks.rank == 0)
        accumulate = partial(accumulate_statistics, self.gp_, self.scaling_, parts, before)
        self.statistics_ = all_reduce(ranks.run_on_all(accumulate, ACCUMULATE_LABEL), ranks)
        self._condition_on_statistics()

    def _condition_on_statistics(self) -> None:
        self.posterior_ = self.gp_.condition(self.statistics_, variance=self.variance)
        self._num_observed = self.statistics_.num_observed.numpy()

    def summary(self) -> Summary:
        """Return a text with the structure, evidence and hyperparameters in original units, and notes on problems."""
        check_is_fitted(self, "posterior_")
        return summarize(self, self.list_problems())

    def list_problems(self) -> list[str]:
        """List problems of the fit, such as active bounds, few rows, copied rows or signals taken for noise, and notes."""
        return [*list_fit_problems(self), *list_fit_notes(self)]

    def list_parameters(self) -> list[Hyperparameter]:
        """List the hyperparameters in original units."""
        return hyperparameter_table(self)

    @classmethod
    def has_checkpoints(cls, options: Mapping[str, Any]) -> bool:
        """Whether a fit with these options maximizes an evidence, and stores its progress in a file."""
        may_be_gaussian = options.get("likelihood", "gaussian") in ("gaussian", "by_values")
        has_evidence = options.get("approximation") != "variational"  # which maximizes a bound
        return may_be_gaussian and has_evidence and options.get("hyperparameters") != "fixed"

    @classmethod
    def reason_not_streamable(cls, options: Mapping[str, Any]) -> str | None:
        """Return why a fit with these options needs all rows in memory; None if it supports `fit_stream`."""
        if options.get("approximation", "auto") in ("exact", "variational"):
            return "chunks need a feature map, such as --set approximation=orff"
        if options.get("likelihood", "gaussian") != "gaussian":
            return "chunks need a Gaussian likelihood"
        if options.get("hyperparameters", "auto") not in ("auto", "evidence", "fixed"):
            return "sampling hyperparameters needs all rows, unlike --set hyperparameters=evidence"
        return None

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | describe_gp(self)

    def _about(self) -> dict[str, Any]:
        has_floor = self.approximation_ not in ("orff", "nystrom") or self.variance != "features"
        return super()._about() | {
            "formulas": list_likelihood_formulas(self),
            "warnings": () if has_floor else (NO_VARIANCE_FLOOR,),
            "num_observed": self._num_observed,
            "num_entries": int(np.sum(self._num_observed)),
        }

    def to_arviz(self, X=None, Y=None, noise=None):
        """Return the hyperparameters as an ArviZ object, in original units.

        With draws ("laplace", "svi", "nuts") it has the groups of `sample_hyperparameters`. The posterior of the mixture
        `kernel="auto"` has equally weighted draws of the hyperparameters of its candidates, with the prefix of their names
        except those of `gp_`, and their weights as the variable `weight`; that of a named kernel has the draws that its predictions
        average over. The log_likelihood of a mixture has, for each draw and for `az.loo`, the log density of each row given the
        others: that of the weighted candidates at this draw, each the product of the marginal densities of the outputs. Otherwise the
        posterior has one draw, and its attribute `elpd_loo` (also of a mixture) is the sum of the closed-form leave-one-row-out log densities; a variational model
        has a log_likelihood of 1000 draws of the latent functions instead, for `az.loo`. Hyperparameters of independent
        outputs have the dimension `output`; those of sums are prefixed, as in `curl_free.lengthscale` or
        `component_1.output_matrix`.

        Parameters
        ----------
        X, Y, noise : array-like or None, default=None
            Training data, for the log_likelihood of a model without draws that does not store them: one with features, or a
            variational one that was loaded from a file.

        Returns
        -------
        InferenceData or DataTree
            The type that the installed ArviZ reads.

        Examples
        --------
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
