"""Fitted regressors on disk: `estimator.save(path)` and `ovkgp.load(path)`.

A model file (`model_file`) holds the constructor's options, what was learned and the factorised posterior. Nothing is
computed again on the way back: what a loaded model says is equal, to the bit, to what was said before. Nothing in the file is
executed.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.estimators.gp_regressor import GPRegressor
from ovkgp.estimators.gp_state import gp_from_state, gp_state
from ovkgp.estimators.model_file import read_model, write_model
from ovkgp.estimators.option_state import option_state, options_from_state
from ovkgp.estimators.posterior_state import posterior_from_state, posterior_state
from ovkgp.estimators.scaling import Scaling
from ovkgp.estimators.tensor_layout import prefixed, rolled, under, unrolled
from ovkgp.exceptions import InputError, ModelFileError, OvkgpError
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.output_statistics import statistics_from_tensors

ESTIMATORS = {"GPRegressor": GPRegressor}
"""The classes that a file may name."""

PLAIN = ("n_features_in_", "n_outputs_", "output_names_", "kernel_", "approximation_", "_is_flat", "_has_names")
"""Fitted attributes that JSON holds as they are."""


# --- regressor → file -----------------------------------------------------------------------------------------------


def save(estimator: GPRegressor, path: str | os.PathLike) -> None:
    """Write a fitted regressor to one file; see `GPRegressor.save`."""
    check_is_fitted(estimator, "posterior_")
    if (name := type(estimator).__name__) not in ESTIMATORS or type(estimator) is not ESTIMATORS[name]:
        raise InputError(f"a model file can hold one of {', '.join(ESTIMATORS)}, not a {name} of one's own: pickle it.")
    options, option_tensors = option_state(estimator)
    gp, gp_tensors = gp_state(estimator)
    posterior, posterior_tensors = posterior_state(estimator.posterior_, estimator.gp_.model)
    fitted, fitted_tensors = _fitted(estimator)
    groups = {"option": option_tensors, "gp": gp_tensors, "posterior": posterior_tensors, "fitted": fitted_tensors}
    tensors, orders = unrolled(prefixed(**groups))
    header = {"estimator": name, "options": options, "gp": gp, "posterior": posterior}
    write_model(path, tensors, {**header, "fitted": fitted, "orders": orders})


def _fitted(estimator: GPRegressor) -> tuple[dict, dict[str, Tensor]]:
    report, names = estimator.fit_report_, getattr(estimator, "feature_names_in_", None)
    header = {
        **{name: getattr(estimator, name) for name in PLAIN},
        "feature_names_in_": None if names is None else list(names),
        "candidates_": list(getattr(estimator, "candidates_", {}).items()),  # pairs, which stay in their order
        "fit_report_": None if report is None else report.to_dict(),
    }
    tensors = {name: torch.from_numpy(array) for name, array in vars(estimator.scaling_).items()}
    groups = {"scaling": tensors, "seen": {"counts": torch.as_tensor(estimator._num_seen)}}
    if (statistics := getattr(estimator, "statistics_", None)) is not None:
        groups["statistics"], header["statistics_"] = statistics.tensors()
    return header, prefixed(**groups)


# --- file → regressor -----------------------------------------------------------------------------------------------


def load(path: str | os.PathLike, kernel: Kernel | None = None) -> GPRegressor:
    """A fitted regressor from the file that `save` wrote; it predicts as before, to the bit.

    Args:
        path: the file.
        kernel: the object that the constructor was given as `kernel` (or as `base_kernel`), made with the same options.
            Needed only where the file cannot describe it, for a class of one's own; the values come from the file. It may
            be given for any other kernel object as well, and brings its priors, which no file holds.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: it is not a whole, untouched model, or one from a newer version.
        OptionError: the file needs a `kernel`, has no use for one, or was made with another.

    Cost: that of reading the file; nothing is trained or factorised.

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


def _estimator(header: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> GPRegressor:
    estimator = ESTIMATORS[header["estimator"]](
        **options_from_state(header["options"], under("option", tensors), kernel)
    )
    _put_fitted(estimator, header["fitted"], under("fitted", tensors))
    gp = gp_from_state(header["gp"], under("gp", tensors), estimator, describe_kernel=kernel is None)
    gp.fit_report_ = estimator.fit_report_
    estimator.gp_ = gp
    estimator.posterior_ = posterior_from_state(header["posterior"], under("posterior", tensors), gp.frozen().model)
    estimator._report()
    return estimator


def _put_fitted(estimator: GPRegressor, header: dict, tensors: dict[str, Tensor]) -> None:
    for name in PLAIN:
        setattr(estimator, name, header[name])
    if header["feature_names_in_"] is not None:
        estimator.feature_names_in_ = np.array(header["feature_names_in_"], dtype=object)
    if header["candidates_"]:
        estimator.candidates_ = dict(header["candidates_"])
    report = header["fit_report_"]
    estimator.fit_report_ = None if report is None else FitReport.from_dict(report)
    estimator.scaling_ = Scaling(**{name: tensor.numpy() for name, tensor in under("scaling", tensors).items()})
    estimator._num_seen = tensors["seen.counts"].numpy()
    if "statistics_" in header:
        estimator.statistics_ = statistics_from_tensors(under("statistics", tensors), header["statistics_"])
