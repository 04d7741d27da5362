"""Fitted estimators on disk: `estimator.save(path)` and `ovkgp.load(path)`.

A model file (`model_file`) holds the constructor's options, what was learned and the factorised posterior. Nothing is
factorised again on the way back: what a loaded model says is equal, to the bit, to what was said before. Only averages over
draws of the hyperparameters are made again from data and draws (`mixture_state`). Nothing in the file is executed. What is
stored of a class is a row of `ESTIMATORS`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.quantiles.model import QuantilePath
from ovkgp.estimators.quantiles.posterior import FoldFits
from ovkgp.estimators.quantiles.regressor import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.estimators.regression.gp_regressor import GPRegressor
from ovkgp.estimators.ridge.base import RidgeEstimator, RidgePath
from ovkgp.estimators.ridge.calibration import Calibration
from ovkgp.estimators.ridge.manifold_ridge import ManifoldRidge
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.ridge.simplex_classifier import SimplexClassifier
from ovkgp.estimators.storage.file import prefixed, read_model, rolled, under, unrolled, write_model
from ovkgp.estimators.storage.functions import (
    function_from_state,
    function_state,
    put_gp,
    task_posterior_from_state,
    task_posterior_state,
)
from ovkgp.estimators.storage.models import KIND as VARIATIONAL
from ovkgp.estimators.storage.models import (
    MANIFOLD,
    RIDGE,
    TRAINED,
    Recipe,
    check_same_model,
    gp_from_state,
    gp_state,
    mixture_from_state,
    mixture_state,
    posterior_from_state,
    posterior_state,
    unscaled_from_state,
)
from ovkgp.estimators.storage.models import MIXTURE_STATE_KIND as MIXTURE
from ovkgp.estimators.storage.values import (
    draws_from_state,
    draws_state,
    option_state,
    options_from_state,
    placed,
    plain,
    there,
    value_from_state,
    value_state,
)
from ovkgp.estimators.tasks.cost_sensitive import InfiniteCostSensitiveClassifier
from ovkgp.estimators.tasks.one_class import REPLICATES, InfiniteOneClassSVM
from ovkgp.estimators.tasks.vector_tasks import VectorTaskRegressor
from ovkgp.exceptions import InputError, ModelFileError, OvkgpError
from ovkgp.inference import VariationalGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.statistics.statistics import statistics_from_tensors
from ovkgp.losses import TaskMeasure


@dataclass(frozen=True)
class Stored:
    """What a file holds of a class of estimators, beside its options.

    Args:
        kind: the class.
        always: the names of fitted attributes that it has in any case; `CODECS` says how they are stored.
        maybe: those that it may have.
        recipe: how it makes the model `gp_`, which is stored with its `posterior_`; None where it has none of its own.
        parts: the names of fitted attributes that are estimators.
        finish: computes, at the end, what is not stored.
    """

    kind: type[BaseEstimator]
    always: tuple[str, ...]
    maybe: tuple[str, ...] = ("feature_names_in_",)
    recipe: Recipe | None = None
    parts: tuple[str, ...] = ()
    finish: Callable[[BaseEstimator], None] = lambda estimator: None


_POSTERIOR = ("n_features_in_", "n_outputs_", "output_names_", "kernel_", "scaling_", "_is_flat", "_has_names")
_TRAINED = (*_POSTERIOR, "approximation_", "fit_report_", "_num_observed")
_RIDGE = (*_POSTERIOR, "lam_", "noise_", "_noise_now", "_counts")
_CLASSES = ("n_features_in_", "output_names_", "classes_", "lam_", "noise_", "calibration_", "_code", "_seed")
_TABLES = ("n_features_in_", "n_outputs_", "output_names_", "_is_flat", "_has_names")
_VECTORS = (*_TABLES, "_is_tensor", "tasks_", "offset_", "output_matrix_", "missing_", "posterior_")
_QUANTILES = (
    "n_features_in_",
    "output_names_",
    "scaling_",
    "function_",
    "lam_",
    "gap_",
    "lengthscale_",
    "residual_scale_",
)
_COSTS = (
    "n_features_in_",
    "output_names_",
    "classes_",
    "scaling_",
    "function_",
    "measure_",
    "lam_",
    "gap_",
    "fit_report_",
)
_COSTS += ("_seed", "_rows", "_labels")
_ONE_CLASS = (
    "n_features_in_",
    "scaling_",
    "function_",
    "measure_",
    "levels_",
    "thresholds_",
    "offset_",
    "nesting_rate_",
)
_ONE_CLASS += ("lam_", "gap_", "fit_report_", "_seed", "_rows", "_row_counts", "_shares")
_NAMES, _PATH = ("feature_names_in_",), ("feature_names_in_", "path_", "scale_")
_TABLE = (
    Stored(
        GPRegressor, _TRAINED, (*_NAMES, "candidates_", "statistics_", "draws_"), TRAINED, finish=GPRegressor._report
    ),
    Stored(OVKRidge, _RIDGE, _PATH, RIDGE),
    Stored(ORFFRidge, (*_RIDGE, "_seed"), (*_PATH, "statistics_"), RIDGE),
    Stored(ManifoldRidge, (*_RIDGE, "_seed", "manifold_"), _PATH, MANIFOLD),
    Stored(SimplexClassifier, _CLASSES, parts=("ridge_",)),
    Stored(
        InfiniteQuantileRegressor,
        (*_QUANTILES, "fit_report_", "measure_", "_data", "_seed"),
        (*_NAMES, "lam_path_", "_replicates", "_fold_fits"),
    ),
    Stored(InfiniteCostSensitiveClassifier, _COSTS, (*_NAMES, "_replicates")),
    Stored(InfiniteOneClassSVM, _ONE_CLASS, (*_NAMES, *REPLICATES)),
    Stored(VectorTaskRegressor, (*_VECTORS, "lam_", "noise_", "scale_", "fit_report_"), finish=put_gp),
)
ESTIMATORS = {stored.kind.__name__: stored for stored in _TABLE}
"""By name, the classes that a file may hold."""


class Codec(NamedTuple):
    """A fitted attribute to something that JSON can hold and tensors, and back."""

    encode: Callable[[object], tuple[object, dict[str, Tensor]]]
    decode: Callable[[object, dict[str, Tensor]], object]


def _record(kind: type) -> Codec:
    """Of a dataclass of numbers, which go into the JSON, and arrays, which are tensors."""

    def encode(record) -> tuple[dict, dict[str, Tensor]]:
        arrays = {name: value for name, value in vars(record).items() if isinstance(value, np.ndarray)}
        others = {name: plain(name, value) for name, value in vars(record).items() if name not in arrays}
        return others, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    return Codec(encode, lambda entry, tensors: kind(**entry, **{name: t.numpy() for name, t in tensors.items()}))


CODECS = {
    "scaling_": _record(Scaling),
    "path_": _record(RidgePath),
    "calibration_": _record(Calibration),
    "lam_path_": _record(QuantilePath),
    "_data": _record(QuantileRows),
    "_fold_fits": _record(FoldFits),
    "feature_names_in_": Codec(lambda names: (list(names), {}), lambda entry, _: np.array(entry, dtype=object)),
    "candidates_": Codec(lambda pairs: (list(pairs.items()), {}), lambda entry, _: dict(entry)),  # in their order
    "fit_report_": Codec(
        lambda report: (None if report is None else report.to_dict(), {}),
        lambda entry, _: None if entry is None else FitReport.from_dict(entry),
    ),
    "statistics_": Codec(
        lambda statistics: statistics.tensors()[::-1],
        lambda entry, tensors: statistics_from_tensors(tensors, entry),
    ),
    "draws_": Codec(draws_state, draws_from_state),
    "function_": Codec(function_state, function_from_state),
    "measure_": Codec(lambda measure: ({}, dict(vars(measure))), lambda _, tensors: TaskMeasure(**tensors)),
    "posterior_": Codec(task_posterior_state, task_posterior_from_state),
    "_num_observed": Codec(
        lambda counts: ({}, {"counts": torch.as_tensor(counts)}),
        lambda _, tensors: tensors["counts"].numpy(),
    ),
    "_counts": Codec(lambda counts: (plain("_counts", counts), {}), lambda entry, _: tuple(entry)),
}
"""How fitted attributes are stored that are neither plain nor arrays."""

UNWRITTEN = {"scaling_": {}, "_num_observed": {}}
"""What the JSON of the first files did not hold, as all of it is in tensors."""
ABSENT = (None, [])
"""What the JSON of the first files held for an attribute that an estimator did not have; now it holds nothing."""


# --- estimator → file -----------------------------------------------------------------------------------------------


def save(estimator: BaseEstimator, path: str | os.PathLike) -> None:
    """Write a fitted estimator to one file; see `GPRegressor.save`."""
    name = type(estimator).__name__
    if name not in ESTIMATORS or type(estimator) is not ESTIMATORS[name].kind:
        raise InputError(f"a model file can hold one of {', '.join(ESTIMATORS)}, not a {name} of one's own: pickle it.")
    check_is_fitted(estimator)
    _warn_of_priors(estimator)
    header, tensors = _state(estimator)
    tensors, orders = unrolled(tensors)
    write_model(path, tensors, {**header, "orders": orders})


def _warn_of_priors(estimator: BaseEstimator) -> None:
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, torch.nn.Module) and any(isinstance(part, Prior) for part in value.modules()):
            how = (
                "it is loaded with ovkgp.load(path, kernel=…)"
                if isinstance(value, Kernel)
                else f"set_params({name}=…) brings them"
            )
            warnings.warn(
                f"the priors of the {name} are not stored: the loaded model predicts as this one does, but is trained again "
                f"with them only if {how}.",
                UserWarning,
                stacklevel=4,
            )


def _state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    stored, groups = ESTIMATORS[type(estimator).__name__], {}
    header = {"estimator": type(estimator).__name__}
    header["options"], groups["option"] = option_state(estimator)
    header["fitted"], groups["fitted"] = _fitted(estimator, stored)
    if stored.recipe is not None:
        header["gp"], groups["gp"] = gp_state(estimator, stored.recipe)
        header["posterior"], groups["posterior"] = _posterior_state(estimator)
    for name in stored.parts:
        header[name], groups[name] = _state(getattr(estimator, name))
    return header, prefixed(**groups)


def _posterior_state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    if isinstance(estimator.posterior_, MixturePosterior):
        return mixture_state(estimator.posterior_, estimator.gp_)
    if isinstance(estimator.gp_, VariationalGP):
        check_same_model(estimator.posterior_, estimator.gp_)
        return {"kind": VARIATIONAL}, {}
    return posterior_state(estimator.posterior_, estimator.gp_.model)


def _fitted(estimator: BaseEstimator, stored: Stored) -> tuple[dict, dict[str, Tensor]]:
    header, tensors = {}, {}
    for name in (*stored.always, *(name for name in stored.maybe if hasattr(estimator, name))):
        value = getattr(estimator, name)
        header[name], found = CODECS[name].encode(value) if name in CODECS else value_state(name, value)
        tensors |= placed(_place(name), found)
    return header, tensors


def _place(name: str) -> str:
    """Where the tensors of a fitted attribute are found."""
    return "observed" if name == "_num_observed" else name.strip("_")


# --- file → estimator -----------------------------------------------------------------------------------------------


def load(path: str | os.PathLike, kernel: Kernel | None = None) -> BaseEstimator:
    """A fitted estimator from the file that `save` wrote; it predicts as before, to the bit.

    Args:
        path: the file.
        kernel: the object that the constructor was given as `kernel` (or as `base_kernel`), made with the same options.
            Needed only where the file cannot describe it, for a class of one's own; the values come from the file. It may
            be given for any other kernel object as well, and brings its priors, which no file holds.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: it is not a whole, untouched model, or one from a newer version.
        OptionError: the file needs a `kernel`, has no use for one, or was made with another.

    Cost: that of reading the file; nothing is trained or factorised. A `ManifoldRidge` factorises its penalty again when it
    is first asked, and a model that averages over draws of its hyperparameters with the exact kernel conditions on its data
    again, once for each draw: its predictions are then equal to 1e-12.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> model = ovkgp.GPRegressor(random_state=0).fit(X, np.hstack([np.sin(X), np.cos(X)]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "model.ovkgp")
        ...     again = ovkgp.load(Path(folder) / "model.ovkgp")
        >>> np.array_equal(again.predict(X), model.predict(X))
        True
    """
    tensors, header = read_model(path)
    try:
        if header.get("estimator") not in ESTIMATORS:
            raise ModelFileError(f"{path} does not hold an estimator of this version, but {header.get('estimator')!r}.")
        return _estimator(header, rolled(tensors, header["orders"]), kernel)
    except OvkgpError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not describe a fitted model: {error!r}") from error


def _estimator(header: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> BaseEstimator:
    stored = ESTIMATORS[header["estimator"]]
    estimator = stored.kind(**options_from_state(header["options"], under("option", tensors), kernel))
    _put_fitted(estimator, stored, {**UNWRITTEN, **header["fitted"]}, under("fitted", tensors))
    if stored.recipe is not None:
        _put_posterior(estimator, stored.recipe, header, tensors, describe_kernel=kernel is None)
    for name in stored.parts:
        setattr(estimator, name, _estimator(header[name], under(name, tensors), kernel))
    stored.finish(estimator)
    return estimator


def _put_fitted(estimator: BaseEstimator, stored: Stored, header: dict, tensors: dict[str, Tensor]) -> None:
    for name in (*stored.always, *(name for name in stored.maybe if header.get(name) not in ABSENT)):
        decode = CODECS[name].decode if name in CODECS else value_from_state
        setattr(estimator, name, decode(header[name], there(_place(name), tensors)))


def _put_posterior(
    estimator: BaseEstimator, recipe: Recipe, header: dict, tensors: dict[str, Tensor], *, describe_kernel: bool
) -> None:
    parts = header["gp"], under("gp", tensors), estimator, recipe
    estimator.gp_ = gp_from_state(*parts, describe_kernel=describe_kernel)
    if isinstance(estimator, RidgeEstimator):
        estimator._kernel = unscaled_from_state(*parts, describe_kernel=describe_kernel)
    estimator.gp_.fit_report_ = getattr(estimator, "fit_report_", None)
    about, values = header["posterior"], under("posterior", tensors)
    if about["kind"] == MIXTURE:
        estimator.posterior_ = mixture_from_state(about, values, estimator.gp_)
    elif about["kind"] == VARIATIONAL:
        estimator.posterior_ = estimator.gp_.posterior()
    else:
        estimator.posterior_ = posterior_from_state(about, values, estimator.gp_.frozen().model)
