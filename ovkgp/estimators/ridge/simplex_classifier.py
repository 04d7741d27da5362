"""`SimplexClassifier`, classification by regression on the simplex code (BT-80, ID-18).

With the code C (K − 1, K) of `ovkgp.kernels.simplex_code`, C Cᵀ = K/(K − 1) I, and the smoother A(σ²) = k_* (k + σ² I)⁻¹ of
a scalar kernel, one-hot labels E (n, K) give

    codes      targets E Cᵀ, kernel k I:       scores f C = A(σ²) E CᵀC
    one_hot    targets E, kernel k CᵀC:        scores f = A(σ² (K − 1)/K) E (I − 11ᵀ/K) = (K − 1)/K · A(σ² (K − 1)/K) E CᵀC,

because CᵀC is K/(K − 1) times the projector I − 11ᵀ/K. So "one_hot" with noise σ² has the scores of "codes" with σ² (K − 1)/K,
times (K − 1)/K, the same standard deviations and the same probabilities. In conventions that do not count entries, λ scales like
σ².
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.model_selection import check_cv
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.formatting import format_number
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import (
    CONVENTIONS,
    LAM,
    POSITIVE,
    RANDOM_STATE,
    VERBOSE,
    Rule,
    integer,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.summary import Hyperparameter, pluralize
from ovkgp.estimators.common.validation import as_array, input_table, output_names, raise_input_errors
from ovkgp.estimators.ridge.base import SOLVER_CONSTRAINTS, RidgeEstimator
from ovkgp.estimators.ridge.calibration import Calibration, calibrate, deal_folds, lone_classes
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.posteriors.posterior import prior_covariance
from ovkgp.kernels import SimplexMatrix, simplex_code


def _are_splits(value) -> bool:
    """Return whether a value is an iterator, which is read only once, or a collection of pairs."""
    if isinstance(value, Iterator):
        return True
    return isinstance(value, Iterable) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in value)


SPLITS = Rule(
    "a splitter or a list of splits (train, test)",
    lambda value: not isinstance(value, str | bytes) and (hasattr(value, "split") or _are_splits(value)),
)


@storable(
    *("n_features_in_", "output_names_", "classes_", "lam_", "noise_", "calibration_", "_code", "_seed"),
    parts=("ridge_",),
)
class SimplexClassifier(ClassifierMixin, Estimator):
    """Least-squares classification with an operator-valued kernel and calibrated probabilities (BT-80).

    `scores` are the inner products (Cᵀ f(x))_k of the posterior mean of a ridge regression with the corners of the simplex.
    Probabilities are calibrated on held-out folds; far from the data they are the class frequencies. `predict` returns the most
    probable class. If the classes are equally frequent, it is the one with the largest score;
    `classes_[scores(X).argmax(1)]` is that rule in general.

    Parameters
    ----------
    kernel : "auto" or Kernel, default="auto"
        "auto" is k(x, z) I for "codes" and k(x, z) CᵀC for "one_hot". A kernel object needs K − 1 ("codes") or K ("one_hot")
        outputs and is copied.
    lam : float or list of float, default=1.0
        λ > 0, or candidates among which the leave-one-out error selects.
    convention : str, default="sum"
        Meaning of λ, as for `OVKRidge`.
    coding : {"codes", "one_hot"}, default="codes"
        Targets of the regression.
    num_frequencies : int or None, default=None
        Number of random frequencies (`ORFFRidge`). If None, the exact kernel is used (`OVKRidge`).
    solver, base_kernel, lengthscale
        As for `OVKRidge`.
    cv : int, splitter or iterable, default=5
        Number of folds for the calibration, or splits as in scikit-learn. A class with fewer distinct rows reduces the number
        of folds; a class with one distinct row raises a warning.
    random_state : int, RandomState instance or None, default=None
        Seed of the random features. The folds do not depend on it.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    classes_ : ndarray of shape (K,)
        Labels, sorted.
    ridge_ : OVKRidge or ORFFRidge
        Fitted regression of the coded labels.
    lam_, noise_ : float
        Selected λ and its noise variance σ².
    calibration_ : Calibration
        β, b, and the log loss of the held-out rows.
    output_names_, n_features_in_, feature_names_in_
        Name of y, names and number of inputs.

    Notes
    -----
    Complexity: that of `OVKRidge` or `ORFFRidge` with K − 1 or K outputs, 1 + cv times. Row weights make the noise vary over rows,
    which costs O(n³ K³) or conjugate gradients with the exact kernel.

    Examples
    --------
    >>> import ovkgp
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ovkgp.SimplexClassifier(lam=[0.01, 0.1, 1.0]).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    >>> model.predict_proba(X[:2]).shape, model.predict_proba([[99.0] * 4]).round(2).tolist()
    ((2, 3), [[0.33, 0.33, 0.33]])
    """

    kind = "labels"
    description = Description(
        "classes as vertices of a simplex",
        "Each class is a vertex of a simplex, and a ridge regression with an operator-valued kernel predicts a point in it. Scores are converted to probabilities by calibration on held-out rows.",
        "f = argmin Σ_i ‖c_{y(i)} − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2,   score_k(x) = ⟨c_k, f(x)⟩",
    )
    reported = (("lam_", "penalty λ"),)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "kernel": [one_of("auto"), Kernel],
        "lam": LAM,
        "convention": [one_of(*CONVENTIONS)],
        "coding": [one_of("codes", "one_hot")],
        "num_frequencies": [integer(), None],
        "solver": SOLVER_CONSTRAINTS["solver"],
        "base_kernel": BASE_KERNEL,
        "lengthscale": [one_of("median"), POSITIVE],
        "cv": [integer(2), SPLITS],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

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

    def fit(self, X, y, sample_weight=None) -> SimplexClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,)
            Labels of at least two classes: numbers, strings or booleans.
        sample_weight : array-like of shape (n,) or None, default=None
            Weights of the rows in the loss and in the calibration; a row of weight w counts as w copies.

        Returns
        -------
        self : SimplexClassifier
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            self.output_names_ = output_names(y) or ["y"]
            X = input_table(self, X, reset=True)
            with raise_input_errors("y"):
                X, y = check_X_y(X, as_array(y), dtype=None, estimator=self)
                check_classification_targets(y)
            weight = _row_weights(sample_weight, len(X))
            self.classes_ = np.unique(y[weight > 0])
            if len(self.classes_) < 2:
                raise InputError(
                    f"y must have at least 2 classes of positive weight, got one class only: {self.classes_.tolist()[0]!r}."
                )
            # the label of a row of weight zero may occur nowhere else; it is not used
            labels = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
            self._code, self._seed = simplex_code(len(self.classes_)).numpy(), as_seed(self.random_state)
            rows = np.flatnonzero(weight > 0)
            self.ridge_ = self._fitted(X, labels, weight, rows, self.lam)
            self.lam_, self.noise_ = self.ridge_.lam_, self.ridge_.noise_
            self.calibration_ = self._calibrated(X, labels, weight)
        return self

    def _fitted(self, X, labels, weight, rows, lam) -> RidgeEstimator:
        """Fit the ridge regression of the coded labels of some rows."""
        names = ("convention", "solver", "base_kernel", "lengthscale", "verbose")
        options = {"kernel": self.kernel, "lam": lam, **{name: getattr(self, name) for name in names}}
        if self.coding == "one_hot" and not isinstance(self.kernel, Kernel):
            options |= {"kernel": "decomposable", "output_matrix": SimplexMatrix(len(self.classes_)).double()}
        if self.num_frequencies is None:
            ridge = OVKRidge(**options)
        else:
            ridge = ORFFRidge(num_frequencies=self.num_frequencies, random_state=self._seed, **options)
        weights = None if np.all(weight[rows] == 1) else weight[rows]
        return ridge.fit(X[rows], self._targets()[labels[rows]], sample_weight=weights)

    def _targets(self) -> np.ndarray:
        """Return the target of each class, (K, K − 1) or (K, K)."""
        return self._code.T if self.coding == "codes" else np.eye(len(self.classes_))

    def _calibrated(self, X, labels, weight) -> Calibration:
        """Calibrate the probabilities on the scores of held-out rows, at the selected λ."""
        parts, splits = [], list(self._splits(X, labels, weight))
        for train, test in tqdm(splits, "folds", disable=not self.verbose):
            train, test = (part[weight[part] > 0] for part in (train, test))
            if len(train) and len(test):
                ridge = self._fitted(X, labels, weight, train, self.lam_)
                parts.append((*self._latent(ridge, X[test]), labels[test], weight[test]))
        if not parts:
            raise InputError(
                "cv must hold out at least one row. Pass a number of folds or non-empty splits (train, test)."
            )
        scores, unknown, truth, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        frequencies = np.bincount(labels[weight > 0], weight[weight > 0]) / weight.sum()
        return calibrate(scores, unknown, truth, frequencies, weights, num_folds=len(parts))

    def _splits(self, X, labels, weight) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pairs of training and held-out rows."""
        if not np.isscalar(self.cv):
            for split in check_cv(self.cv, labels, classifier=True).split(X, labels):
                yield tuple(np.arange(len(X))[part] for part in split)  # a part may be a mask
            return
        rows = np.flatnonzero(weight > 0)
        if len(lone := lone_classes(X[rows], labels[rows])):
            warnings.warn(
                f"Class {self.classes_.tolist()[lone[0]]!r} has one distinct row, so that held-out scores cannot predict it and all "
                "probabilities are biased towards the class frequencies; the scores are not affected. Add rows of that class or "
                "drop it.",
                FitWarning,
                stacklevel=4,
            )
        folds = deal_folds(X[rows], labels[rows], self.cv)
        for fold in range(folds.max() + 1):
            yield rows[folds != fold], rows[folds == fold]

    def _latent(self, ridge: RidgeEstimator, X) -> tuple[np.ndarray, np.ndarray]:
        """Return scores (m, K), scaled so that a perfectly fitted class has 1, and the unexplained fraction (m,) of the prior variance."""
        mean, std = ridge.predict(X, return_std=True, noise=False)
        with torch.no_grad():
            prior = prior_covariance(ridge.gp_.kernel, ridge.scaling_.inputs(X), mean.shape[1], "diag").sum(1).numpy()
        unknown = np.divide(
            (std**2).sum(1), prior, out=np.ones_like(prior), where=prior > 0
        )  # a kernel may vanish at x
        perfect = (self._targets() @ self._decoder())[0, 0]
        return mean @ self._decoder() / perfect, np.clip(unknown, 0.0, 1.0)

    def _decoder(self) -> np.ndarray:
        """Return the map from targets to scores: C (K − 1, K), or the projector I − 11ᵀ/K, (K, K)."""
        K = len(self.classes_)
        return self._code if self.coding == "codes" else np.eye(K) - 1 / K

    def predict(self, X) -> np.ndarray:
        """Return the most probable class (m,).

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            Labels.
        """
        logits = self._logits(X)
        return self.classes_[logits.argmax(1)]

    def scores(self, X, return_std=False):
        """Return the score of each class; scores sum to zero in each row.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviations of the latent scores, the square roots of the diagonal of Cᵀ Cov f(x) C. λ
            determines only the ratio of noise and prior; the prior is the kernel as given.

        Returns
        -------
        scores : ndarray of shape (m, K)
            Scores.
        std : ndarray of shape (m, K)
            Only if `return_std`.
        """
        X, decoder = self._inputs(X), self._decoder()
        if not return_std:
            return self.ridge_.predict(X) @ decoder
        mean, cov = self.ridge_.predict(X, return_cov=True, noise=False)
        variance = np.einsum("ak,mab,bk->mk", decoder, cov, decoder, optimize=True)
        return mean @ decoder, np.sqrt(np.clip(variance, 0.0, None))

    def decision_function(self, X) -> np.ndarray:
        """Return the calibrated logits (m, K), centered in each row; for two classes log p₁ − log p₀, (m,).

        They rank like the probabilities. Scores do not, since their reliability varies with x.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, K) or (m,)
            Logits.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits - logits.mean(1, keepdims=True)

    def predict_proba(self, X) -> np.ndarray:
        """Return the calibrated probability of each class, (m, K).

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, K)
            Probabilities in the order of `classes_`.
        """
        return softmax(self._logits(X), axis=1)

    def predict_log_proba(self, X) -> np.ndarray:
        """Return the logarithm of `predict_proba`, (m, K).

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, K)
            Log probabilities in the order of `classes_`.
        """
        return log_softmax(self._logits(X), axis=1)

    def largest_lengthscale(self) -> float:
        """Return the largest lengthscale of the ridge regression in original units."""
        return self.ridge_.largest_lengthscale()

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict the class and the probability of each class."""
        request.reject_options("this classifier", "quantiles", "level", "latent", "costs")
        (name,), probabilities = self.output_names_, self.predict_proba(X)
        found = {f"{name}_class": self.predict(X)}
        return found | {f"{name}_p_{label}": probabilities[:, k] for k, label in enumerate(self.classes_)}

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the training rows X (n, d) and their labels (n,); None with random features, which store no rows."""
        check_is_fitted(self)
        if (found := self.ridge_.training_data()) is None:
            return None
        return found[0], self.classes_[(found[1] @ self._targets().T).argmax(1)]

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, noise and lengthscales; outputs of the regression are codes of classes, without names."""
        shown = ("noise std", "lengthscale")
        return [*super().list_parameters(), *(p for p in self.ridge_.list_parameters() if p.parameter in shown)]

    def _about(self) -> dict:
        held_out, frequencies = self.calibration_, self.calibration_.frequencies
        entropy = -float(np.sum(frequencies * np.log(frequencies)))
        note = (
            f"Probabilities were calibrated on {pluralize(held_out.num_rows, 'row')} held out in "
            f"{pluralize(held_out.num_folds, 'fold')}. Log loss on these rows: {format_number(held_out.log_loss, 3)} "
            f"({format_number(entropy, 3)} for the class frequencies alone)."
        )
        return super()._about() | {"calibration": note}

    def _logits(self, X) -> np.ndarray:
        X = self._inputs(X)
        return self.calibration_.logits(*self._latent(self.ridge_, X))

    def _inputs(self, X) -> np.ndarray:
        check_is_fitted(self, "calibration_")
        return input_table(self, X, reset=False)


def _row_weights(weight, num_rows: int) -> np.ndarray:
    """Return finite nonnegative weights (n,), all one by default."""
    if weight is None:
        return np.ones(num_rows)
    weight = np.asarray(as_array(weight), dtype=np.float64)
    if weight.shape != (num_rows,):
        raise InputError(f"sample_weight has shape {weight.shape}, expected ({num_rows},).")
    if not bool((np.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight must be finite and nonnegative.")
    if not weight.any():
        raise InputError("sample_weight must be positive for at least one row, got only zeros.")
    return weight
