"""Saving and loading fitted estimators: `estimator.save(path)` and `ovkgp.load(path)`.

A model file holds the constructor's options, the fitted attributes, the parameters of the model, and the data or statistics from
which the posterior is computed again. Loading executes nothing. An estimator class declares its saved attributes with the
decorator `storable`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp import estimators
from ovkgp.estimators.storage.file import prefixed, read_model, under, write_model
from ovkgp.estimators.storage.models import (
    ModelBuilder,
    decode_posterior,
    encode_gp,
    encode_posterior,
    restore_gp,
    statistics_of,
)
from ovkgp.estimators.storage.values import decode, decode_options, encode, encode_options
from ovkgp.exceptions import InputError, ModelFileError, OvkgpError

EstimatorClass = TypeVar("EstimatorClass", bound=type)

ESTIMATORS: dict[str, SavedAttributes] = {}  # classes that a file may hold, by name


class SavableMixin:
    """Mixin of estimators with `save`."""

    def save(self, path) -> None:
        """Write the fitted estimator to one file, which `ovkgp.load` reads.

        The file holds the options, the fitted attributes, the parameters, and the data (with random features: statistics of
        the data) from which `ovkgp.load` computes the posterior again, in safetensors with a checksum; no pickle is involved.
        Predictions of the loaded estimator are equal to 1e-12 relative. A custom kernel class is saved by its values and must
        be passed to `ovkgp.load(path, kernel=...)`. Priors of a kernel object and a `random_state` that is not an integer are
        not stored. A model with a custom kernel elsewhere, or with a network, must be pickled.

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
        name = type(self).__name__
        if name not in ESTIMATORS or type(self) is not ESTIMATORS[name].kind:
            raise InputError(
                f"A model file can hold estimators of ovkgp and classes with the decorator storable, got {name}. Pickle the estimator instead."
            )
        check_is_fitted(self)
        _warn_about_priors(self)
        header, tensors = _encode(self)
        write_model(path, tensors, header)


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
) -> Callable[[EstimatorClass], EstimatorClass]:
    """Make a class decorator that registers the fitted attributes to save.

    `required` and `optional` are names of fitted attributes that `encode` knows, `builder` makes the model `gp_`, whose
    `posterior_` is computed again, `parts` are attributes that are estimators, if they are set, and `finish` computes what is not stored.
    """

    def register(kind: EstimatorClass) -> EstimatorClass:
        names = ("feature_names_in_", "input_times_", "output_times_", *optional)
        ESTIMATORS[kind.__name__] = SavedAttributes(kind, required, names, builder, parts, finish)
        return kind

    return register


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
                stacklevel=3,
            )


def _encode(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    saved, tensors = ESTIMATORS[type(estimator).__name__], {}
    names = [*saved.required, *(name for name in saved.optional if hasattr(estimator, name))]
    header = {"estimator": type(estimator).__name__, "options": encode_options(estimator, tensors)}
    header["fitted"] = {name: encode(name, getattr(estimator, name), tensors) for name in names}
    if saved.builder is not None:
        header["gp"] = encode_gp(estimator, saved.builder, tensors)
        header["posterior"] = encode_posterior("posterior", estimator.posterior_, estimator.gp_, tensors)
        header["has_statistics"] = hasattr(estimator, "statistics_")
    for name in saved.parts:
        if not hasattr(estimator, name):
            continue
        header[name], part = _encode(getattr(estimator, name))
        tensors |= prefixed(**{name: part})
    return header, tensors


def load(path: str | os.PathLike, kernel: Kernel | None = None) -> BaseEstimator:
    """Load a fitted estimator from a file written by `estimator.save`.

    Predictions of the loaded estimator are equal to those of the saved one, to 1e-12 relative.

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
    Nothing is trained, but the posterior is computed again. Complexity: one conditioning. With the exact kernel, O(n³ + p³) if it
    is separable and the outputs are complete, else O(N³) for N observed entries. With random features, O(M³) or O(r³) for M
    scalar features and r weights, from statistics whose size does not depend on the number of rows. A model that averages over
    hyperparameter draws is conditioned on its data once per draw. Solutions of iterative solvers, task functions and
    variational distributions are stored.

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
    >>> np.allclose(loaded.predict(X), model.predict(X), rtol=1e-12)
    True
    """
    tensors, header = read_model(path)
    try:
        return _decode(header, tensors, kernel)
    except OvkgpError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path} does not describe a fitted model: {error!r}") from error


def _find_class(name: str) -> SavedAttributes:
    """Return what a file holds of the class `name`, which is imported if it was not used yet."""
    if name in estimators.__all__:
        getattr(estimators, name)
    if name not in ESTIMATORS:
        raise ModelFileError(f"The file holds {name!r}, which is not an estimator of this version.")
    return ESTIMATORS[name]


def _decode(header: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> BaseEstimator:
    saved, fitted = _find_class(header["estimator"]), header["fitted"]
    if unknown := header["options"].keys() - saved.kind._get_param_names():
        raise ModelFileError(
            f"The file does not describe a {saved.kind.__name__}, which does not have the options {', '.join(sorted(unknown))}."
        )
    estimator = saved.kind(**decode_options(header["options"], tensors, kernel))
    for name in (*saved.required, *(name for name in saved.optional if name in fitted)):
        setattr(estimator, name, decode(fitted[name], tensors))
    if saved.builder is not None:
        restore_gp(estimator, header["gp"], tensors, saved.builder, describe=kernel is None)
        estimator.posterior_ = decode_posterior(header["posterior"], tensors, estimator.gp_)
        if header["has_statistics"]:
            estimator.statistics_ = statistics_of(estimator.posterior_)
    for name in saved.parts:
        if name in header:
            setattr(estimator, name, _decode(header[name], under(name, tensors), kernel))
    saved.finish(estimator)
    if hasattr(estimator, "check_loaded"):
        estimator.check_loaded()
    return estimator
