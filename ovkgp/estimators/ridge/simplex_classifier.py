"""Classification by regression on the simplex code (BT-80, ID-18): the classes are the corners of a simplex.

With the code C (K − 1, K) of `ovkgp.kernels.simplex_code`, C Cᵀ = K/(K − 1) I, and the smoother A(σ²) = k_* (k + σ² I)⁻¹ of
a scalar kernel, one-hot labels E (n, K) give

    codes      targets E Cᵀ, kernel k I:       scores f C = A(σ²) E CᵀC
    one_hot    targets E, kernel k CᵀC:        scores f = A(σ² (K − 1)/K) E (I − 11ᵀ/K) = (K − 1)/K · A(σ² (K − 1)/K) E CᵀC,

because CᵀC is K/(K − 1) times the projector I − 11ᵀ/K. So "one_hot" with noise σ² has the scores of "codes" with σ² (K − 1)/K,
times (K − 1)/K, and the same standard deviations: one classifier, and the same probabilities. In conventions that do not
count entries λ translates as σ² does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.options import all_or_nothing, check_option
from ovkgp.estimators.common.validation import as_array, input_table, output_names
from ovkgp.estimators.ridge.base import RidgeEstimator
from ovkgp.estimators.ridge.calibration import Calibration, calibrate, deal_folds, lone_classes
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.posteriors.posterior import prior_covariance
from ovkgp.kernels import SimplexMatrix, simplex_code

CODINGS = ("codes", "one_hot")


class SimplexClassifier(ClassifierMixin, BaseEstimator):
    """Least-squares classification with an operator-valued kernel and calibrated probabilities (BT-80).

    `scores` are the inner products (Cᵀ f(x))_k of the posterior mean of a ridge regression with the corners of the simplex.
    Probabilities are fitted to scores of held-out folds (`ovkgp.estimators.ridge.calibration`); far from the data they
    are the class frequencies. `predict` names the most probable class. Where the classes are equally frequent, that is the one
    with the largest score, as in the literature; otherwise frequencies have a say where little is known, and
    `classes_[scores(X).argmax(1)]` is the rule without them.

    Args:
        kernel: "auto" (k(x, z) I for "codes", k(x, z) CᵀC for "one_hot"), or a kernel object with K − 1 ("codes") or K
            ("one_hot") outputs, which is copied.
        lam: λ > 0, or a list of several, among which the error of rows left out chooses.
        convention: what λ means; see `ovkgp.estimators.common.options`.
        coding: "codes" or "one_hot": what the targets are. The module's docstring says how λ translates.
        num_frequencies: None for the exact kernel (`OVKRidge`), a number for so many random features (`ORFFRidge`).
        solver, base_kernel, lengthscale: as for `OVKRidge`.
        cv: into how many folds the rows are dealt to calibrate probabilities, or a splitter or list of (train, test) as in
            scikit-learn. A class with fewer distinct rows makes the folds fewer; a class with one warns, since no score of
            a held-out row can be expected to find it, and pulls the probabilities towards the class frequencies.
        random_state: of the random features. The folds do not depend on it.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        classes_: the K labels, sorted.
        ridge_: the fitted regression of the coded labels, with its `gp_` and `posterior_`.
        lam_, noise_: the λ taken and the noise variance σ² that it stands for.
        calibration_: β, b, and the log loss of the held-out rows.
        output_names_ (the column of y), n_features_in_, feature_names_in_.

    Cost: that of `OVKRidge` or `ORFFRidge` with K − 1 or K outputs, 1 + cv times.
    Row weights make the noise unlike from row to row, which is dearer for the exact kernel: O(n³ K³), or conjugate gradients.

    Example:
        >>> import ovkgp
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = ovkgp.SimplexClassifier(lam=[0.01, 0.1, 1.0]).fit(X[::2], y[::2])
        >>> model.score(X[1::2], y[1::2]) > 0.9
        True
        >>> model.predict_proba(X[:2]).shape, model.predict_proba([[99.0] * 4]).round(2).tolist()
        ((2, 3), [[0.33, 0.33, 0.33]])
    """

    def __init__(
        self,
        kernel="auto",
        lam=1.0,
        convention="sum",
        coding="codes",
        num_frequencies=None,
        solver="auto",
        base_kernel="rbf",
        lengthscale="median",
        cv=5,
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.lam = lam
        self.convention = convention
        self.coding = coding
        self.num_frequencies = num_frequencies
        self.solver = solver
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.cv = cv
        self.random_state = random_state
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y, sample_weight=None) -> SimplexClassifier:
        """Fit to X (n, d) and labels y (n,): numbers, strings or booleans, of two classes or more.

        Args:
            sample_weight: of the rows (n,), in the loss and in the calibration; a weight of w is a row given w times, and a
                weight of zero leaves it out.
        """
        with all_or_nothing(self):
            self._require_options()
            self.output_names_ = output_names(y) or ["y"]
            X, y = validate_data(self, as_array(X), as_array(y), reset=True, dtype=[np.float64, np.float32])
            check_classification_targets(y)
            weight = _row_weights(sample_weight, len(X))
            self.classes_ = np.unique(y[weight > 0])
            _require_two(self.classes_)
            # a row without weight may have a label of its own; it is never used
            labels = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
            self._code, self._seed = simplex_code(len(self.classes_)).numpy(), as_seed(self.random_state)
            rows = np.flatnonzero(weight > 0)
            self.ridge_ = self._fitted(X, labels, weight, rows, self.lam)
            self.lam_, self.noise_ = self.ridge_.lam_, self.ridge_.noise_
            self.calibration_ = self._calibrated(X, labels, weight)
        return self

    def _fitted(self, X, labels, weight, rows, lam) -> RidgeEstimator:
        """The ridge regression of the coded labels of some rows."""
        weights = None if np.all(weight[rows] == 1) else weight[rows]
        return self._ridge(lam).fit(X[rows], self._targets()[labels[rows]], sample_weight=weights)

    def _ridge(self, lam) -> RidgeEstimator:
        names = ("convention", "solver", "base_kernel", "lengthscale", "verbose")
        options = {"kernel": self.kernel, "lam": lam, **{name: getattr(self, name) for name in names}}
        if self.coding == "one_hot" and not isinstance(self.kernel, Kernel):
            options |= {"kernel": "decomposable", "output_matrix": SimplexMatrix(len(self.classes_)).double()}
        if self.num_frequencies is None:
            return OVKRidge(**options)
        return ORFFRidge(num_frequencies=self.num_frequencies, random_state=self._seed, **options)

    def _targets(self) -> np.ndarray:
        """The target of each class, (K, K − 1) or (K, K)."""
        return self._code.T if self.coding == "codes" else np.eye(len(self.classes_))

    # --- probabilities ----------------------------------------------------------------------------------------------

    def _calibrated(self, X, labels, weight) -> Calibration:
        """Scores of held-out rows, at the λ that was chosen, and what they say of probabilities."""
        parts, splits = [], list(self._splits(X, labels, weight))
        for train, test in tqdm(splits, "folds", disable=not self.verbose):
            train, test = (part[weight[part] > 0] for part in (train, test))
            if len(train) and len(test):
                ridge = self._fitted(X, labels, weight, train, self.lam_)
                parts.append((*self._latent(ridge, X[test]), labels[test], weight[test]))
        if not parts:
            raise InputError("cv holds no row out: give a number of folds, or splits (train, test) that are not empty.")
        scores, unknown, truth, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        frequencies = np.bincount(labels[weight > 0], weight[weight > 0]) / weight.sum()
        return calibrate(scores, unknown, truth, frequencies, weights, num_folds=len(parts))

    def _splits(self, X, labels, weight) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of rows to fit to and rows to hold out."""
        if not _is_number(self.cv):
            for split in check_cv(self.cv, labels, classifier=True).split(X, labels):
                yield tuple(map(_as_rows, split))
            return
        rows = np.flatnonzero(weight > 0)
        self._warn_of_lone_classes(X[rows], labels[rows])
        folds = deal_folds(X[rows], labels[rows], self.cv)
        for fold in range(folds.max() + 1):
            yield rows[folds != fold], rows[folds == fold]

    def _warn_of_lone_classes(self, X, labels) -> None:
        if len(lone := lone_classes(X, labels)):
            warnings.warn(
                f"class {self.classes_.tolist()[lone[0]]!r} has one distinct row: when it is held out nothing is known of its class, "
                "and the probabilities of all classes lean towards the class frequencies. Add rows of that class, or leave "
                "it out; the scores are not affected.",
                FitWarning,
                stacklevel=5,
            )

    def _latent(self, ridge: RidgeEstimator, X) -> tuple[np.ndarray, np.ndarray]:
        """Scores (m, K) in units of those of a class that is fitted perfectly, and the unknown share (m,) of the variance."""
        mean, std = ridge.predict(X, return_std=True, noise=False)
        with torch.no_grad():
            prior = prior_covariance(ridge.gp_.kernel, ridge.scaling_.inputs(X), mean.shape[1], "diag").sum(1).numpy()
        unknown = np.divide(
            (std**2).sum(1), prior, out=np.ones_like(prior), where=prior > 0
        )  # a kernel may vanish at x
        perfect = (self._targets() @ self._decoder())[0, 0]
        return mean @ self._decoder() / perfect, np.clip(unknown, 0.0, 1.0)

    def _decoder(self) -> np.ndarray:
        """From targets to scores: C (K − 1, K), or the projector I − 11ᵀ/K, (K, K)."""
        K = len(self.classes_)
        return self._code if self.coding == "codes" else np.eye(K) - 1 / K

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X) -> np.ndarray:
        """The most probable class (m,)."""
        logits = self._logits(X)
        return self.classes_[logits.argmax(1)]

    def scores(self, X, return_std=False):
        """The score of each class, (m, K), which sum to zero in each row.

        Args:
            return_std: also their standard deviations (m, K), of the latent scores: the roots of the diagonal of
                Cᵀ Cov f(x) C. λ fixes the ratio of noise and prior only: the prior is the kernel as it is.
        """
        X, decoder = self._inputs(X), self._decoder()
        if not return_std:
            return self.ridge_.predict(X) @ decoder
        mean, cov = self.ridge_.predict(X, return_cov=True, noise=False)
        variance = np.einsum("ak,mab,bk->mk", decoder, cov, decoder, optimize=True)
        return mean @ decoder, np.sqrt(np.clip(variance, 0.0, None))

    def decision_function(self, X) -> np.ndarray:
        """The calibrated logits of the classes (m, K), less their mean; for two classes log p₁ − log p₀, (m,).

        They rank as the probabilities do. The scores alone do not: equal ones mean less where less is known.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits - logits.mean(1, keepdims=True)

    def predict_proba(self, X) -> np.ndarray:
        """The calibrated probability of each class, (m, K)."""
        return softmax(self._logits(X), axis=1)

    def predict_log_proba(self, X) -> np.ndarray:
        """The logarithm of `predict_proba`, (m, K)."""
        return log_softmax(self._logits(X), axis=1)

    def save(self, path) -> None:
        """Write the fitted classifier to one file; see `GPRegressor.save` and `ovkgp.load`."""
        from ovkgp.estimators.storage.storage import save  # which makes classifiers, and so imports this module

        save(self, path)

    def _logits(self, X) -> np.ndarray:
        X = self._inputs(X)
        return self.calibration_.logits(*self._latent(self.ridge_, X))

    def _inputs(self, X) -> np.ndarray:
        check_is_fitted(self, "calibration_")
        return input_table(self, X, reset=False)

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        check_option("coding", self.coding, CODINGS)
        if not isinstance(self.kernel, Kernel) and self.kernel != "auto":
            raise OptionError(f'kernel must be "auto" or a kernel object, got {self.kernel!r}.')
        if self.num_frequencies is not None:
            check_integer("num_frequencies", self.num_frequencies)
        if self.cv is None or _is_number(self.cv):
            check_integer("cv", self.cv, least=2)


def _is_number(cv) -> bool:
    return np.isscalar(cv)


def _as_rows(part) -> np.ndarray:
    """Row numbers of a part of a split, which may be a mask."""
    part = np.asarray(part)
    return np.flatnonzero(part) if part.dtype == bool else part


def _row_weights(weight, num_rows: int) -> np.ndarray:
    """Weights (n,), finite and not negative, all one where there are none."""
    if weight is None:
        return np.ones(num_rows)
    weight = np.asarray(as_array(weight), dtype=np.float64)
    if weight.shape != (num_rows,):
        raise InputError(f"sample_weight must be ({num_rows},), a number for each row; got {weight.shape}.")
    if not bool((np.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight must be finite and not negative.")
    if not weight.any():
        raise InputError(
            "every sample_weight is zero: there is nothing to learn from. Leave them out, or weigh some row."
        )
    return weight


def _require_two(classes: np.ndarray) -> None:
    if len(classes) < 2:
        raise InputError(
            f"y holds one class only, {classes.tolist()[0]!r}; a classifier needs rows of two classes or more (with a positive weight)."
        )
