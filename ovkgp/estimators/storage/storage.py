"""Saving and loading fitted estimators: `estimator.save(path)` and `ovkgp.load(path)`.

A model file holds the constructor's options, the fitted attributes and the factorized posterior. Loading executes nothing and
factorizes nothing again, so predictions are equal to the bit; only averages over hyperparameter draws with the exact kernel
are conditioned on the data again. An estimator class declares its saved attributes with the decorator `storable`.
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

from ovkgp.estimators.storage.file import from_memory_order, prefixed, read_model, to_memory_order, under, write_model
from ovkgp.estimators.storage.functions import (
    function_from_state,
    function_state,
    task_posterior_from_state,
    task_posterior_state,
)
from ovkgp.estimators.storage.models import (
    MIXTURE,
    VARIATIONAL,
    ModelBuilder,
    check_same_model,
    gp_from_state,
    gp_state,
    mixture_from_state,
    mixture_state,
    posterior_from_state,
    posterior_state,
    unscaled_from_state,
)
from ovkgp.estimators.storage.values import (
    add_prefix,
    draws_from_state,
    draws_state,
    json_value,
    option_state,
    options_from_state,
    strip_prefix,
    value_from_state,
    value_state,
)
from ovkgp.exceptions import InputError, ModelFileError, OvkgpError
from ovkgp.inference import VariationalGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.statistics.statistics import statistics_from_tensors
from ovkgp.losses import TaskMeasure

ESTIMATORS: dict[str, SavedAttributes] = {}  # classes that a file may hold, by name


class SavableMixin:
    """Mixin of estimators with `save`."""

    def save(self, path) -> None:
        """Write the fitted estimator to one file, which `ovkgp.load` reads.

        The file holds the options, the fitted attributes and the factorized posterior, in safetensors with a checksum; no
        pickle is involved. Predictions of the loaded estimator are equal to the bit. Hyperparameter draws are stored; averages
        over them with the exact kernel are computed again from the data and are equal to 1e-12. A custom kernel class is saved
        by its values and must be passed to `ovkgp.load(path, kernel=...)`. Priors of a kernel object and a `random_state` that
        is not an integer are not stored. A model with a custom kernel elsewhere, or with a network, must be pickled.

        Parameters
        ----------
        path : str or path-like
            File to write. The folder must exist; a file of this name is replaced.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        OSError
            If the folder is missing or not writable, or the disk is full. An existing file is then unchanged.

        See Also
        --------
        ovkgp.load : Read the file.
        """
        save(self, path)


@dataclass(frozen=True)
class SavedAttributes:
    """Attributes of an estimator class that a file holds, besides the options."""

    kind: type[BaseEstimator]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    builder: ModelBuilder | None
    parts: tuple[str, ...]
    finish: Callable[[BaseEstimator], None]


def storable(
    *required: str,
    optional: tuple[str, ...] = (),
    builder: ModelBuilder | None = None,
    parts: tuple[str, ...] = (),
    finish: Callable[[BaseEstimator], None] = lambda estimator: None,
) -> Callable[[type], type]:
    """Make a class decorator that registers the fitted attributes to save.

    `required` and `optional` are names of fitted attributes (`CODECS` has the formats of those that are not plain values),
    `builder` makes the model `gp_`, `parts` are attributes that are estimators, and `finish` computes what is not stored.
    """

    def register(kind: type) -> type:
        names = ("feature_names_in_", *optional)
        ESTIMATORS[kind.__name__] = SavedAttributes(kind, required, names, builder, parts, finish)
        return kind

    return register


class Codec(NamedTuple):
    """Conversion of a fitted attribute to JSON and tensors, and back."""

    encode: Callable[[object], tuple[object, dict[str, Tensor]]]
    decode: Callable[[object, dict[str, Tensor]], object]


CODECS = {  # formats of fitted attributes that `value_state` does not know
    "feature_names_in_": Codec(lambda names: (list(names), {}), lambda entry, _: np.array(entry, dtype=object)),
    "candidates_": Codec(lambda pairs: (list(pairs.items()), {}), lambda entry, _: dict(entry)),  # keeps their order
    "fit_report_": Codec(
        lambda report: (None if report is None else report.to_dict(), {}),
        lambda entry, _: None if entry is None else FitReport.from_dict(entry),
    ),
    "statistics_": Codec(
        lambda statistics: statistics.tensors()[::-1], lambda entry, tensors: statistics_from_tensors(tensors, entry)
    ),
    "draws_": Codec(draws_state, draws_from_state),
    "function_": Codec(function_state, function_from_state),
    "measure_": Codec(lambda measure: ({}, dict(vars(measure))), lambda _, tensors: TaskMeasure(**tensors)),
    "posterior_": Codec(task_posterior_state, task_posterior_from_state),
    "_num_observed": Codec(
        lambda counts: ({}, {"counts": torch.as_tensor(counts)}), lambda _, tensors: tensors["counts"].numpy()
    ),
    "_counts": Codec(lambda counts: (json_value("_counts", counts), {}), lambda entry, _: tuple(entry)),
}


def save(estimator: BaseEstimator, path: str | os.PathLike) -> None:
    """Write a fitted estimator to one file; see `SavableMixin.save`."""
    name = type(estimator).__name__
    if name not in ESTIMATORS or type(estimator) is not ESTIMATORS[name].kind:
        raise InputError(f"A model file can hold {', '.join(ESTIMATORS)}, got {name}. Pickle the estimator instead.")
    check_is_fitted(estimator)
    _warn_about_priors(estimator)
    header, tensors = _state(estimator)
    tensors, orders = to_memory_order(tensors)
    write_model(path, tensors, {**header, "orders": orders})


def _warn_about_priors(estimator: BaseEstimator) -> None:
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, torch.nn.Module) and any(isinstance(part, Prior) for part in value.modules()):
            fix = (
                "Load it with ovkgp.load(path, kernel=...)"
                if isinstance(value, Kernel)
                else f"Call set_params({name}=...) after loading"
            )
            warnings.warn(
                f"The priors of {name} are not stored; the loaded model predicts as this one does. {fix} to train again with them.",
                UserWarning,
                stacklevel=4,
            )


def _state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    saved, groups = ESTIMATORS[type(estimator).__name__], {}
    header = {"estimator": type(estimator).__name__}
    header["options"], groups["option"] = option_state(estimator)
    header["fitted"], groups["fitted"] = _fitted_state(estimator, saved)
    if saved.builder is not None:
        header["gp"], groups["gp"] = gp_state(estimator, saved.builder)
        header["posterior"], groups["posterior"] = _posterior_state(estimator)
    for name in saved.parts:
        header[name], groups[name] = _state(getattr(estimator, name))
    return header, prefixed(**groups)


def _posterior_state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    if isinstance(estimator.posterior_, MixturePosterior):
        return mixture_state(estimator.posterior_, estimator.gp_)
    if isinstance(estimator.gp_, VariationalGP):
        check_same_model(estimator.posterior_, estimator.gp_)
        return {"kind": VARIATIONAL}, {}
    return posterior_state(estimator.posterior_, estimator.gp_.model)


def _fitted_state(estimator: BaseEstimator, saved: SavedAttributes) -> tuple[dict, dict[str, Tensor]]:
    header, tensors = {}, {}
    for name in (*saved.required, *(name for name in saved.optional if hasattr(estimator, name))):
        value = getattr(estimator, name)
        header[name], found = CODECS[name].encode(value) if name in CODECS else value_state(name, value)
        tensors |= add_prefix(name.strip("_"), found)
    return header, tensors


def load(path: str | os.PathLike, kernel: Kernel | None = None) -> BaseEstimator:
    """Load a fitted estimator from a file written by `save`.

    Predictions of the loaded estimator are equal to those of the saved one.

    Parameters
    ----------
    path : str or path-like
        File to read.
    kernel : gpytorch.kernels.Kernel or None, default=None
        Kernel object that was passed to the constructor as `kernel` or `base_kernel`, created with the same options. Required
        only if its class is custom, so that the file cannot describe it; its values come from the file. For any other
        kernel object it may be passed to restore its priors, which are not stored.

    Returns
    -------
    estimator
        Fitted estimator.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ModelFileError
        If the file is truncated, modified, not an ovkgp model, or has another format version.
    OptionError
        If the file needs a `kernel`, cannot use one, or was written with a different one.

    Notes
    -----
    Complexity: reading the file; nothing is trained or factorized. A `ManifoldRidge` factorizes its penalty at the first
    prediction. A model that averages over hyperparameter draws with the exact kernel is conditioned on its data once per
    draw; its predictions are equal to 1e-12.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> import ovkgp
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> model = ovkgp.GPRegressor(random_state=0).fit(X, np.hstack([np.sin(X), np.cos(X)]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.ovkgp")
    ...     loaded = ovkgp.load(Path(folder) / "model.ovkgp")
    >>> np.array_equal(loaded.predict(X), model.predict(X))
    True
    """
    tensors, header = read_model(path)
    try:
        if header.get("estimator") not in ESTIMATORS:
            raise ModelFileError(
                f"{path} holds {header.get('estimator')!r}, which is not an estimator of this version."
            )
        return _estimator(header, from_memory_order(tensors, header["orders"]), kernel)
    except OvkgpError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not describe a fitted model: {error!r}") from error


def _estimator(header: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> BaseEstimator:
    saved = ESTIMATORS[header["estimator"]]
    estimator = saved.kind(**options_from_state(header["options"], under("option", tensors), kernel))
    _restore_fitted(estimator, saved, header["fitted"], under("fitted", tensors))
    if saved.builder is not None:
        _restore_posterior(estimator, saved.builder, header, tensors, describe_kernel=kernel is None)
    for name in saved.parts:
        setattr(estimator, name, _estimator(header[name], under(name, tensors), kernel))
    saved.finish(estimator)
    return estimator


def _restore_fitted(estimator: BaseEstimator, saved: SavedAttributes, header: dict, tensors: dict[str, Tensor]) -> None:
    for name in (*saved.required, *(name for name in saved.optional if name in header)):
        decode = CODECS[name].decode if name in CODECS else value_from_state
        setattr(estimator, name, decode(header[name], strip_prefix(name.strip("_"), tensors)))


def _restore_posterior(
    estimator: BaseEstimator, builder: ModelBuilder, header: dict, tensors: dict[str, Tensor], *, describe_kernel: bool
) -> None:
    parts = header["gp"], under("gp", tensors), estimator, builder
    estimator.gp_ = gp_from_state(*parts, describe_kernel=describe_kernel)
    if builder.keeps_unscaled_kernel:
        estimator._kernel = unscaled_from_state(*parts, describe_kernel=describe_kernel)
    estimator.gp_.fit_report_ = getattr(estimator, "fit_report_", None)
    about, values = header["posterior"], under("posterior", tensors)
    if about["kind"] == MIXTURE:
        estimator.posterior_ = mixture_from_state(about, values, estimator.gp_)
    elif about["kind"] == VARIATIONAL:
        estimator.posterior_ = estimator.gp_.posterior()
    else:
        estimator.posterior_ = posterior_from_state(about, values, estimator.gp_.frozen().model)
