"""A fingerprint of estimators, options and data: equal for what is equal, in every process, so that work on disk is not resumed with
something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import joblib
import numpy as np
import torch


def fingerprint(value: Any) -> str:
    """A short text that is the same for equal values in every process: parameters of estimators, arrays, tensors, frames,
    modules by what they hold, everything else by its `repr`.

    Example:
        >>> from sklearn.linear_model import Ridge
        >>> from ovkgp.estimators.fingerprints import fingerprint
        >>> fingerprint(Ridge(alpha=1.0)) == fingerprint(Ridge(alpha=1.0)), fingerprint(Ridge(2.0)) == fingerprint(Ridge())
        (True, False)
    """
    return joblib.hash(_described(value))


def _described(value: Any) -> Any:
    if hasattr(value, "get_params") and not isinstance(value, type):
        return type(value).__qualname__, _described(value.get_params(deep=False))
    if isinstance(value, torch.nn.Module):
        return repr(value), _described(dict(value.state_dict()))
    if isinstance(value, Mapping):
        return sorted((str(name), _described(entry)) for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return [_described(entry) for entry in value]
    if torch.is_tensor(value):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, joblib.hash(np.ascontiguousarray(value))
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return [str(name) for name in value.columns], joblib.hash(value.to_numpy())
    if hasattr(value, "tocsr"):
        matrix = value.tocsr()
        return matrix.shape, _described([matrix.data, matrix.indices, matrix.indptr])
    if isinstance(value, np.ndarray) or hasattr(value, "to_numpy"):
        return joblib.hash(np.asarray(value))
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
