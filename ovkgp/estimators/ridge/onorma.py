"""`ONORMA`, online learning with an operator-valued kernel, one row at a time and in constant memory (BT-108)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import RIDGE_KERNEL_CONSTRAINTS, check_base, name_structure, ridge_kernel
from ovkgp.estimators.common.options import (
    POSITIVE,
    RANDOM_STATE,
    VERBOSE,
    integer,
    noise_of,
    number,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.summary import Hyperparameter, list_gp_parameters
from ovkgp.estimators.common.validation import input_table
from ovkgp.exceptions import FitWarning
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.ridge.online import Expansion, OnlineGradient, OnlinePosterior

STEP = number("a positive number of at most 1", lambda value: 0 < value <= 1)


class ONORMA(PosteriorRegressor):
    """Online kernel gradient descent for (1/n) Σ ½ ‖f(x_i) − y_i‖² + (λ/2) ‖f‖², one row at a time (BT-108).

    At step t the row (x, y) moves f ← (1 − ηλ) f − η K(·, x)(f(x) − y) with η = 2 eta0 t^(−power_t) / (λ + κ), where κ is the largest
    ‖K(x, x)‖ so far. 2 / (λ + κ) is the largest stable step, so no step diverges. With "invscaling" steps the squared error decreases at
    the rate of the steps towards `OVKRidge(lam=lam, convention="mean")`. Missing outputs (NaN) contribute no gradient. The
    standard deviation is that of the Gaussian process given the stored points only, with noise nλ for n rows: an upper bound.

    Parameters
    ----------
    kernel, base_kernel, lengthscale, output_matrix
        As for `OVKRidge`; values taken from data are those of the first batch.
    lam : float, default=1e-3
        λ > 0.
    learning_rate : {"invscaling", "constant"}, default="invscaling"
        Step sizes; "constant" (power_t = 0) is for data that change with time.
    eta0 : float, default=0.5
        Fraction of the largest stable step, 0 < eta0 ≤ 1; up to ½ no step overshoots.
    power_t : float, default=0.5
        Exponent of the step sizes, 0 < power_t ≤ 1.
    budget : int, default=1000
        Maximum number of points of f. Beyond it, each step either projects the new term on a stored point or drops the smallest
        stored one, whichever loses less; `truncation_error_` bounds the effect.
    average : bool, default=False
        Whether to predict with the average of all iterates (Polyak).
    n_epochs : int, default=1
        Number of passes of `fit` over its rows.
    shuffle : bool, default=False
        Whether `fit` takes the rows of each pass in random order.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffling.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    noise_ : float
        σ² = nλ.
    num_rows_, num_steps_ : int
        Number of rows with an observed entry, and of steps.
    truncation_error_ : float
        b with ‖f(x) − f'(x)‖ ≤ b √‖K(x, x)‖, where f' is learned from the same rows without a budget.
    support_, dual_coef_ : ndarray of shape (m, d) and (m, p)
        Points and coefficients of f(x) = Σ_j K(x, x_j) a_j.
    gp_, posterior_, scaling_, kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        As for `OVKRidge`.

    Notes
    -----
    Complexity: O(budget p²) per row, O(budget p) for k(x, z) Γ; O(budget (p² + d)) memory.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> model = ovkgp.ONORMA(lam=1e-4, lengthscale=1.0, budget=100)
    >>> for _ in range(20):
    ...     X = rng.uniform(0, 6, (100, 1))
    ...     _ = model.partial_fit(X, np.hstack([np.sin(X), np.cos(X)]))
    >>> model.num_rows_, len(model.support_)
    (2000, 100)
    >>> bool(np.abs(model.predict([[1.5]]) - [np.sin(1.5), np.cos(1.5)]).max() < 0.1)
    True
    """

    description = Description(
        "online regression with an operator-valued kernel",
        "The function is learned row by row with stochastic gradients and bounded memory. Standard deviations are conditional on the stored points only, and so are upper bounds.",
        "f ← (1 − ηλ) f − η K(·, x)(f(x) − y)",
    )
    reported = (("lam", "penalty λ"),)
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RIDGE_KERNEL_CONSTRAINTS,
        "lam": [POSITIVE],
        "learning_rate": [one_of("constant", "invscaling")],
        "eta0": [STEP],
        "power_t": [STEP],
        "budget": [integer()],
        "average": ["boolean"],
        "n_epochs": [integer()],
        "shuffle": ["boolean"],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

    def __init__(
        self,
        kernel="auto",
        lam=1e-3,
        learning_rate="invscaling",
        eta0=0.5,
        power_t=0.5,
        budget=1000,
        average=False,
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        n_epochs=1,
        shuffle=False,
        random_state=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.lam = lam
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.budget = budget
        self.average = average
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.n_epochs = n_epochs
        self.shuffle = shuffle
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y) -> ONORMA:
        """Fit the model to X (n, d) and y (n, p) or (n,), NaN where missing, in `n_epochs` passes from f = 0.

        Ctrl-C keeps the steps so far, warns and returns.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.

        Returns
        -------
        self : ONORMA
            Fitted estimator.
        """
        with restore_on_error(self):
            X, Y, expansion = self._begin(X, y)
            rng = np.random.default_rng(as_seed(self.random_state)) if self.shuffle else None
            self._learn(expansion, X, Y, 0, self.n_epochs, rng)
        return self

    def partial_fit(self, X, y) -> ONORMA:
        """Learn from further rows, in their order; the first call determines columns, kernel and lengthscale.

        Parameters
        ----------
        X, y
            As for `fit`.

        Returns
        -------
        self : ONORMA
            Fitted estimator.
        """
        with restore_on_error(self):
            if not hasattr(self, "posterior_"):
                X, Y, expansion = self._begin(X, y)
                self._learn(expansion, X, Y, 0)
            else:
                self.check_options()
                X = input_table(self, X, reset=False).astype(np.float64)
                Y = self._outputs(y, X).astype(np.float64)
                self._learn(self.posterior_.expansion, X, Y, self.num_rows_)
        return self

    def _begin(self, X, Y) -> tuple[np.ndarray, np.ndarray, Expansion]:
        """Check the data, and return f = 0 in the space of their kernel."""
        self.check_options()
        X, Y = (table.astype(np.float64) for table in self._enter(X, Y))
        self.kernel_ = name_structure(self.kernel)
        self.scaling_ = Scaling.none(X.shape[1], Y.shape[1])
        gp = OperatorValuedGP(ridge_kernel(self, X, Y), mean="zero", noise=1.0)
        gp.observe(X[:1], np.zeros((1, Y.shape[1])))  # raises if the kernel does not support these inputs
        self.gp_ = gp.requires_grad_(False)
        return X, Y, self._learner().start(X.shape[1])

    def _learner(self) -> OnlineGradient:
        power = 0.0 if self.learning_rate == "constant" else self.power_t
        options = {"eta0": self.eta0, "power": power, "budget": self.budget, "average": bool(self.average)}
        return OnlineGradient(self.gp_.kernel, self.n_outputs_, float(self.lam), **options)

    def _learn(self, expansion: Expansion, X, Y, rows_before: int, num_epochs: int = 1, rng=None) -> None:
        kept = np.isfinite(Y).any(1)
        X, Y, learner = X[kept], Y[kept], self._learner()
        first = expansion.num_steps
        bar = tqdm(total=num_epochs * len(X), disable=not self.verbose, unit="row", desc="learning")
        try:
            with bar:
                for index in _chunks(len(X), num_epochs, learner.max_chunk_rows, rng):
                    expansion = learner.learn(expansion, X[index], Y[index])
                    bar.update(len(index))
        except KeyboardInterrupt:
            if expansion.num_steps == first:  # nothing was learned
                raise
            message = (
                f"Learning was interrupted after {expansion.num_steps - first} of {bar.total} steps, which are kept."
            )
            warnings.warn(message, FitWarning, stacklevel=3)
        self.num_rows_, self.num_steps_ = rows_before + min(expansion.num_steps - first, len(X)), expansion.num_steps
        self.noise_ = noise_of(float(self.lam), "mean", self.num_rows_, self.num_rows_)
        self.truncation_error_ = expansion.average_error if self.average else expansion.error
        self.gp_ = OperatorValuedGP(self.gp_.kernel, mean="zero", noise=self.noise_).requires_grad_(False)
        self.posterior_ = OnlinePosterior(self.gp_, expansion, bool(self.average))

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, noise and the parameters of the kernel."""
        return [*super().list_parameters(), *list_gp_parameters(self, self.noise_)]

    def _about(self) -> dict:
        truncated = "The budget truncated the expansion of the online learner. Increase budget to keep more terms."
        return super()._about() | {"warnings": (truncated,) if self.truncation_error_ > 0 else ()}

    @property
    def support_(self) -> np.ndarray:
        """Points (m, d) of the expansion."""
        return self.posterior_.expansion.X

    @property
    def dual_coef_(self) -> np.ndarray:
        """Coefficients (m, p) of the expansion."""
        return self.posterior_.coefficients.numpy()

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_base(self)


def _chunks(num_rows: int, num_epochs: int, size: int, rng: np.random.Generator | None) -> Iterator[np.ndarray]:
    """Yield indices of the rows, by chunk and epoch."""
    for _ in range(num_epochs):
        order = np.arange(num_rows) if rng is None else rng.permutation(num_rows)
        yield from (order[start : start + size] for start in range(0, num_rows, size))
