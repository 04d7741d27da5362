"""Losses other than the square loss in `OVKRidge` and `ORFFRidge`: options, fit and predictions (BT-70).

    f̂ = argmin Σ_ij ℓ(y_ij, f_j(x_i)) / σ² + ½ ‖f‖²_K

is the mode of the Gaussian process whose likelihood is exp(−ℓ/σ²), with σ² as for the square loss ½(y − f)² in every convention of λ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.descriptions import (
    LIKELIHOODS,
    NO_LEAVE_ONE_OUT,
    NO_STD,
    Description,
    ModelDescription,
    compose_description,
    describe_base_kernel,
)
from ovkgp.estimators.common.loss_options import (
    LOSS_NAMES,
    QUANTILE_LOSSES,
    fit_constants,
    is_square,
    make_loss,
    tune_loss,
)
from ovkgp.estimators.common.options import FRACTIONS, NUMBER, NUMBERS, check_constraints, check_lam, one_of
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.validation import WeightedData, as_array, check_size
from ovkgp.estimators.ridge.base import (
    RidgeEstimator,
    RidgePath,
    RowPredictions,
    make_scaling,
    select_lam,
    weighted_table,
)
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.likelihoods.factory import likelihood_of_loss
from ovkgp.inference.posteriors.posterior import KernelProcess
from ovkgp.inference.tasks.mode_posterior import (
    ModePosterior,
    find_evidence_scale,
    make_entry_problem,
    solve_mode,
)
from ovkgp.losses import CurveLoss, Loss, OneClass

LOSS = [one_of(*LOSS_NAMES), Loss, CurveLoss]
LEVEL = [NUMBER, NUMBERS]
DEFAULT_MAX_STEPS = 5000
MODE_TEXT = (
    "The fit minimizes a loss of the errors plus a penalty on the norm of the function. It is the mode of the posterior of a Gaussian process whose likelihood is that of the loss; standard deviations are those of a variational approximation of this posterior. Nothing is trained: λ was given.",
    "f = argmin Σ_ij ℓ(y_ij, f_j(x_i))/σ^2 + ‖f‖_K^2/2",
)
"""Text and formula of the description."""


class LossMixin:
    """Fit and predictions with any loss; the square loss is left to `RidgeEstimator`."""

    @property
    def _is_mode(self) -> bool:
        """Whether the loss of the options is not the square loss."""
        return not is_square(self.loss)

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if not self._is_mode:
            return
        name = self.loss if isinstance(self.loss, str) else type(self.loss).__name__
        if any(isinstance(one, OneClass) for one in (self.loss, getattr(self.loss, "loss", None))):
            raise OptionError(
                "loss=OneClass describes level sets of X and has no targets. Use InfiniteOneClassSVM, or Huber for regression."
            )
        if self.solver != "auto":
            self._reject(f"solver={self.solver!r}", 'Use solver="auto", a primal solver with a duality gap.')
        if len(check_lam(self.lam)) > 1:
            self._reject("Selection among several lam", "Use one lam, or GridSearchCV.")
        if self.output_metric is not None:
            self._reject("output_metric", 'Use output_metric=None and set the coupling by kernel="decomposable".')
        if self.scale == "evidence" and not self._has_likelihood():
            raise OptionError(
                f'scale="evidence" is not supported with loss={name}, which has no normalized likelihood. Use scale="given".'
            )

    def _reject(self, what: str, fix: str) -> None:
        raise OptionError(f'{what} is not supported with losses other than "square". {fix}')

    def _has_likelihood(self) -> bool:
        loss = make_loss(self.loss)
        half = torch.full((1,), 0.5, dtype=torch.float64)
        return isinstance(loss, Loss) and likelihood_of_loss(loss, 1.0, half) is not None

    def _levels(self) -> Tensor:
        """Return the level of each output, (p,)."""
        levels = np.atleast_1d(np.asarray(as_array(self.level), dtype=np.float64))
        if len(levels) not in (1, self.n_outputs_):
            raise InputError(f"level must be a number or {self.n_outputs_} values, one per output, got {len(levels)}.")
        if (isinstance(self.loss, str) and "pinball" in self.loss) or type(self.loss) in QUANTILE_LOSSES:
            check_constraints({"level": levels}, {"level": [FRACTIONS]})
        return torch.from_numpy(np.broadcast_to(levels, self.n_outputs_).copy())

    def _fit_mode(self, data: WeightedData, make_gp: Callable[..., OperatorValuedGP], variance: str) -> None:
        """Set `loss_`, `gp_`, `posterior_` and the certificate; `make_gp(noise, scale)` makes the model."""
        check_size([data.Y], "Y")
        levels = self._levels()
        intercept = fit_constants(self.loss, data, levels.numpy())
        self.scaling_ = make_scaling(data.X.shape[1], intercept, fit_intercept=self.fit_intercept)
        select_lam(self, None)
        self.gp_ = make_gp(self.noise_)
        X, Y, known = weighted_table(data, self.noise_).scaled(self.scaling_)
        observations = self.gp_.observe(X, Y).double().clone()
        weights = None if known is None else self.noise_ / known[torch.isfinite(Y).any(1)]
        loss = make_loss(self.loss)
        if isinstance(loss, Loss):
            loss.check_tasks(levels)
        entries = self.gp_.kernel, self.gp_.features, observations, loss, levels, self.noise_, weights
        (problem,) = tune_loss(self.loss, [make_entry_problem(*entries)])
        self.loss_ = problem.loss.loss if isinstance(loss, Loss) else loss
        options = {"tolerance": self.tolerance, "max_iter": self.max_iter or DEFAULT_MAX_STEPS, "verbose": self.verbose}
        mode = solve_mode(problem, observations.observed, self.noise_, **options)
        self.gap_, self.sparsity_, self.fit_report_ = mode.gap, mode.sparsity, mode.report
        if self.scale == "evidence":
            counts = (observations.observed * (1.0 if weights is None else weights)).sum(0)
            self.scale_ = find_evidence_scale(mode, self.loss_, levels, self.noise_, counts)
            self.gp_ = make_gp(self.noise_, self.scale_)
        scale = getattr(self, "scale_", 1.0)
        likelihood, reason = self._likelihood(levels, weights)
        model = self.gp_.frozen().model
        process = KernelProcess(model.kernel, self.n_outputs_)
        parts = observations, mode.coefficients / scale, likelihood, reason, model.features, variance
        self.posterior_ = ModePosterior(process, model.mean, *parts)

    def _likelihood(self, levels: Tensor, weights: Tensor | None) -> tuple[Likelihood | None, str]:
        """Return the likelihood of the loss, or None and the reason."""
        found = likelihood_of_loss(self.loss_, self._scaled_noise, levels) if isinstance(self.loss_, Loss) else None
        if found is None:
            name = type(self.loss_).__name__
            return None, f"with loss={name}, which has no normalized likelihood. Use a Huber, pinball or log-cosh loss."
        if weights is not None:
            return None, "with sample_weight and losses other than the square loss. Repeat rows instead of weights."
        return found, ""

    def path(self, X, y, lam=None, sample_weight=None) -> RidgePath:
        if self._is_mode:
            self._reject("path", "Fit at each lam.")
        return super().path(X, y, lam, sample_weight)

    path.__doc__ = RidgeEstimator.path.__doc__

    def leave_one_out(self, X, y, sample_weight=None) -> RowPredictions:
        if self._is_mode:
            self._reject("leave_one_out", "Use cross_val_predict.")
        return super().leave_one_out(X, y, sample_weight)

    leave_one_out.__doc__ = RidgeEstimator.leave_one_out.__doc__

    def leave_one_out_entries(self, X=None, Y=None, groups="rows"):
        if self._is_mode:
            self._reject("Leave-one-out in closed form", "Use rows X, Y that were held out of the fit.")
        return super().leave_one_out_entries(X, Y, groups)

    @property
    def likelihood_(self) -> Likelihood | None:
        """Likelihood of the loss; None for the square loss (Gaussian noise) and for losses without one."""
        return getattr(getattr(self, "posterior_", None), "likelihood", None)

    @property
    def has_predictive(self) -> bool:
        """Whether there are standard deviations: the loss has a normalized likelihood, and rows have no weights."""
        posterior = getattr(self, "posterior_", None)
        return not isinstance(posterior, ModePosterior) or posterior.likelihood is not None

    @property
    def has_posterior(self) -> bool:
        """Whether intervals and draws can be plotted."""
        return self.has_predictive

    @property
    def calibration_note(self) -> str:
        """Reason why calibration is not assessed without held-out rows."""
        return NO_LEAVE_ONE_OUT if self.has_predictive else NO_STD

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict mean, standard deviation and quantiles of each output at X (m, d), or the mean only if there is no likelihood."""
        owner = super() if self.has_predictive else super(PosteriorRegressor, self)
        return owner.prediction_columns(X, request)

    @property
    def has_leave_one_out(self) -> bool:
        """Whether there is a closed form, which only the square loss has, and training rows are stored."""
        return not isinstance(self.posterior_, ModePosterior) and super().has_leave_one_out

    def training_observations(self):
        """Return the stored training rows in standardized units; None if the model stores none."""
        found = super().training_observations()
        return self.posterior_.data if isinstance(self.posterior_, ModePosterior) else found

    def describe(self) -> ModelDescription:
        """Describe the fitted model in sentences, formulas and facts."""
        if not isinstance(getattr(self, "posterior_", None), ModePosterior):
            return super().describe()
        description = Description(self.description.name, *MODE_TEXT)
        base = describe_base_kernel(self.get_params(deep=False))
        return compose_description(description, base, self._facts(), **self._about())

    def _facts(self) -> dict[str, str | None]:
        if not isinstance(getattr(self, "posterior_", None), ModePosterior):
            return super()._facts()
        likelihood = self.posterior_.likelihood
        members = [] if likelihood is None else getattr(likelihood, "likelihoods", [likelihood])
        titles = sorted({LIKELIHOODS[one.name].name for one in members})
        return super()._facts() | {"Likelihood": f"{', '.join(titles) or 'none'}, of the loss {self.loss_!r}"}
