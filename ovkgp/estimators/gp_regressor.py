"""The Gaussian-process regressor: a multi-output GP with missing outputs, behind scikit-learn's interface."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from ovkgp.estimators.approximations import approximate, feature_kind
from ovkgp.estimators.learning import Learner, Table
from ovkgp.estimators.options import require_options
from ovkgp.estimators.scaled_draws import ScaledDraws
from ovkgp.estimators.summary import Summary, summarise
from ovkgp.estimators.tables import as_array, input_table, output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features.noise import as_seed

ROWS_AT_ONCE = 1 << 16
"""Rows that are scaled and gathered together."""


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Multi-output Gaussian-process regression with an operator-valued kernel.

    Args:
        kernel: "auto" (the better of "independent" and "decomposable" by evidence), "independent", "decomposable" (ICM),
            "lmc", "curl_free", "divergence_free", "helmholtz" (vector fields), or a kernel object, which is copied.
        base_kernel: the scalar kernel of the named structures: "matern52", "matern32", "matern12", "rbf", "rq", or an object
            (which sees the inputs as they are).
        rank: of the output matrix of "decomposable"; the number of components of "lmc" (at least 2).
        approximation: "exact", "orff" (random features), "nystrom" (landmarks), or "auto": exact while n ≤ 4000 for
            separable kernels with complete outputs, or up to 5000 observed entries; features beyond.
        num_frequencies: of the random features; the number of landmarks for "nystrom".
        noise: "shared", "per_output" or "full" (trained), or a variance, (p,) or (p, p) in the units of Y (fixed).
        hyperparameters: "evidence" trains them. "fixed" leaves those of a kernel object as they are, in the user's units,
            and takes a noise that is not a number as a tenth of the variance of each output.
        likelihood: "gaussian".
        training_rows: beyond so many rows hyperparameters are trained on a random subset; None uses all.
        variance: "guarded" keeps the variance of random features from starving far from the data, "features" does not.
        random_state: as in scikit-learn.
        verbose: 0 is quiet, 1 shows progress.

    Inputs and outputs are centred and scaled inside (see `ovkgp.estimators.scaling`); everything public is in the user's
    units. NaN in Y is a missing output. Predictions describe a *new observation*: `noise=False` gives the latent function.

    Attributes:
        gp_, posterior_: the `OperatorValuedGP` behind it and its posterior, in scaled units (`scaling_`).
        kernel_: the name of the structure that was taken, or "given".
        approximation_: "exact", "orff" or "nystrom".
        noise_: the noise covariance (p, p) of a new observation.
        log_evidence_: log p(Y) of the data in the user's units, at the trained hyperparameters.
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
    """

    def __init__(
        self,
        kernel="auto",
        base_kernel="matern52",
        rank=2,
        approximation="auto",
        num_frequencies=500,
        noise="per_output",
        hyperparameters="evidence",
        likelihood="gaussian",
        training_rows=10_000,
        variance="guarded",
        random_state=None,
        verbose=0,
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

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, Y, noise=None, *, checkpoint=None) -> GPRegressor:
        """Train on X (n, d) and Y (n, p) or (n,), NaN where an output is missing.

        Args:
            noise: variances (n, p) of the entries of Y, where they are known; they replace the trained noise.
            checkpoint: a file to which training saves its progress; a later call with the same file goes on from there.
        """
        with self._all_or_nothing():
            table = self._prepare(X, Y, noise)
            self._learn(table, features=False, checkpoint=checkpoint)
            self._condition(table)
        return self

    def partial_fit(self, X, Y, noise=None) -> GPRegressor:
        """Add rows. The first call trains hyperparameters and scaling on its rows and takes a feature map (random
        features, or landmarks for approximation="nystrom"); later calls only add to the statistics of all rows seen,
        in memory that does not grow."""
        with self._all_or_nothing():
            if self.approximation == "exact":
                raise OptionError('partial_fit needs a feature map: use approximation="auto", "orff" or "nystrom".')
            if not hasattr(self, "gp_"):
                table = self._prepare(X, Y, noise)
                self._learn(table, features=True)
            else:
                table = self._further(X, Y, noise)
            self._add(table)
        return self

    @contextmanager
    def _all_or_nothing(self):
        """Whatever goes wrong inside, what was fitted before is there again."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _prepare(self, X, Y, noise) -> Table:
        """Check everything there is to check, and forget the last fit."""
        require_options(self)
        X = input_table(self, X, reset=True)
        Y, names, self._is_flat = output_table(Y, X)
        _require_seen(Y, names)
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in _KEPT]:
            delattr(self, fitted)
        self.n_outputs_ = Y.shape[1]
        self.output_names_ = names or [f"y{a}" for a in range(Y.shape[1])]
        self._has_names = names is not None
        return Table(X, Y, _known_noise(noise, Y))

    def _further(self, X, Y, noise) -> Table:
        X = input_table(self, X, reset=False)
        Y = self._outputs(Y, X)
        if self.approximation_ == "exact":
            self._leave_exact()
        return Table(X, Y, _known_noise(noise, Y))

    def _leave_exact(self) -> None:
        """Give an exactly fitted model a feature map, and its own data as the first statistics."""
        data, kind = self.posterior_.data, feature_kind(self.approximation, self.gp_.kernel)
        self.gp_ = deepcopy(self.gp_)
        self.gp_.features = approximate(self.gp_.kernel, kind, data.X, self.num_frequencies, as_seed(self.random_state))
        self.gp_.double()
        self.statistics_ = self.gp_.statistics(data.X, data.Y, data.noise)
        self.approximation_ = kind

    def _learn(self, table: Table, features: bool, checkpoint=None) -> None:
        # A resumed training must find the same rows and the same frequencies.
        seed = as_seed(0 if checkpoint is not None and self.random_state is None else self.random_state)
        learned = Learner(self, table, seed, checkpoint).learn(features)
        self.kernel_, self.scaling_, self.approximation_ = learned.kernel, learned.scaling, learned.approximation
        self.gp_, self.fit_report_ = learned.gp, learned.report
        if learned.candidates is not None:
            self.candidates_ = learned.candidates

    def _condition(self, table: Table) -> None:
        if self.approximation_ != "exact":
            self._add(table)
            return
        X, Y, noise = table.scaled(self.scaling_)
        self.posterior_ = self.gp_.condition(X, Y, noise=noise)
        self._num_seen = np.isfinite(table.Y).sum(0)
        self._report()

    def _add(self, table: Table) -> None:
        statistics = getattr(self, "statistics_", None)
        starts = range(0, len(table.X), ROWS_AT_ONCE)
        for start in tqdm(starts, "rows", disable=not self.verbose or len(starts) == 1):
            part = table[start : start + ROWS_AT_ONCE]
            if np.isfinite(part.Y).any():
                statistics = self.gp_.statistics(*part.scaled(self.scaling_), into=statistics)
        self.statistics_ = statistics
        self.posterior_ = self.gp_.condition(statistics, variance=self.variance)
        self._num_seen = statistics.num_seen.numpy()
        self._report()

    def _report(self) -> None:
        self.noise_ = self.scaling_.cov(self.posterior_.noise)
        self.log_evidence_ = self.scaling_.log_density(self.posterior_.log_evidence, self._num_seen)

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X, return_std=False, return_cov=False, noise=True):
        """The posterior mean at X (m, d), (m, p) or, where Y was one-dimensional, (m,).

        Args:
            return_std: also the standard deviation, of the same shape.
            return_cov: also the covariance between outputs at each point (m, p, p), or, for "full", between everything,
                (m·p, m·p), data-major.
            noise: of a new observation (True), or of the latent function (False).
        """
        if return_std and return_cov:
            raise OptionError("ask for return_std or return_cov, not both: the std is the root of cov's diagonal.")
        if return_cov not in (False, True, "full"):
            raise OptionError(f'return_cov must be False, True or "full", got {return_cov!r}.')
        form = "full" if return_cov == "full" else "output" if return_cov else "diag" if return_std else "none"
        X = self._inputs(X)
        prediction = self.posterior_.predict(X, form, noise=bool(noise))
        mean = self._flat(self.scaling_.mean(prediction.mean))
        if return_std:
            return mean, self._flat(self.scaling_.std(prediction.std))
        return (mean, self.scaling_.cov(prediction.cov)) if return_cov else mean

    def sample_y(self, X, n_samples=1, random_state=0, noise=True) -> np.ndarray:
        """Joint draws at X (m, d): (m, p, n_samples), or (m, n_samples) where Y was one-dimensional."""
        X = self._inputs(X)
        draws = self.posterior_.sample(X, n_samples, noise=noise, random_state=random_state)
        draws = np.moveaxis(self.scaling_.mean(draws), 0, -1)
        return draws[:, 0] if self._is_flat else draws

    def sample_functions(self, k=1, random_state=None) -> ScaledDraws:
        """k random latent functions: `draws[i](X)` is (m, p), `draws(X)` is (k, m, p), the same at every call."""
        check_is_fitted(self, "posterior_")
        draws = self.posterior_.sample_functions(k, random_state=random_state)
        return ScaledDraws(draws, self.scaling_, self._is_flat)

    def score(self, X, y, sample_weight=None) -> float:
        """R² over the observed entries of each output, averaged over the outputs."""
        predicted = np.reshape(self.predict(X), (-1, self.n_outputs_))
        Y = self._outputs(y, predicted)
        weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        seen = np.isfinite(Y)
        columns = [a for a in range(Y.shape[1]) if seen[:, a].any()]
        if not columns:
            raise InputError("there is nothing to score: every entry of y is missing.")
        scores = [r2_score(Y[s, a], predicted[s, a], sample_weight=weight[s]) for a in columns for s in [seen[:, a]]]
        return float(np.mean(scores))

    def summary(self) -> Summary:
        """The model in words: structure, hyperparameters in the user's units, evidence, and what deserves attention."""
        check_is_fitted(self, "posterior_")
        return summarise(self)

    def save(self, path) -> None:
        """Write the fitted model to one file, all or nothing; `ovkgp.load(path)` gives it back, equal to the bit.

        The file holds the options, what was learned and the factorised posterior, in safetensors with a checksum: no
        pickle. A kernel of a class of one's own is saved by its values; `ovkgp.load(path, kernel=…)` must then supply the
        object. Neither the priors of a kernel object nor a random state that is not a number are stored.

        Args:
            path: where; the folder must exist, and a file of this name is replaced.

        Raises:
            NotFittedError: there is nothing to save yet.
            OSError: the folder is missing or not writable, or the disk is full; an older file is then untouched.

        Example:
            See `ovkgp.load`.
        """
        from ovkgp.estimators.storage import save  # which makes regressors, and so imports this module

        save(self, path)

    def to_arviz(self):
        """Draws of the hyperparameters for ArviZ: with the samplers of a later version."""
        raise OptionError("to_arviz arrives in a later version, with samplers of the hyperparameters.")

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Further outputs (n, p), whose names must be those of the fit where both have names."""
        table, names, _ = output_table(Y, X)
        if table.shape[1] != self.n_outputs_:
            raise InputError(f"Y has {table.shape[1]} columns; the model was fitted with {self.n_outputs_}.")
        if names is not None and self._has_names and names != self.output_names_:
            raise InputError(
                f"the columns of Y are {names}; the model was fitted with {self.output_names_}, in this order."
            )
        return table

    def _inputs(self, X) -> torch.Tensor:
        check_is_fitted(self, "posterior_")
        return self.scaling_.inputs(input_table(self, X, reset=False))

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


_KEPT = {"n_features_in_", "feature_names_in_"}


def _require_seen(Y: np.ndarray, names: list[str] | None) -> None:
    unseen = np.flatnonzero(~np.isfinite(Y).any(0))
    if len(unseen):
        column = names[unseen[0]] if names else int(unseen[0])
        raise InputError(f"nobody observed output {column!r} of Y (all NaN): leave that column out, or add data.")


def _known_noise(noise, Y: np.ndarray) -> np.ndarray | None:
    if noise is None:
        return None
    noise = np.asarray(as_array(noise), dtype=np.float64)
    noise = noise[:, None] if noise.ndim == 1 and Y.shape[1] == 1 else noise
    if noise.shape != Y.shape:
        raise InputError(f"noise is a variance for each entry of Y, {Y.shape}; got {noise.shape}.")
    return noise
