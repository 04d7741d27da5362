"""Hyperparameters in the units of the data, from those of a model whose inputs and outputs are scaled.

With x = s_x x′ + o_x and y_a = s_a y′_a + o_a a lengthscale grows by s_x, an output matrix by s_a s_b, a noise variance by s_a², the
scale of a likelihood by s_a, and the mean is shifted and scaled as the outputs are. A kernel object keeps its own numbers: only its author knows which of
them carry units.
"""

from __future__ import annotations

import re

import numpy as np
import torch

from ovkgp.estimators.scaling import Scaling


def in_user_units(name: str, value, structure: str, scaling: Scaling) -> np.ndarray:
    """One hyperparameter of a named structure, in the units of the data.

    A field is made of derivatives in the scaled inputs, so that its outputscale has their square in it. A noise that all
    scaled outputs share is one for each output in the units of the data.

    Args:
        name: as `ovkgp.inference.hyperparameters` has it, or "noise", "mean" or one of a likelihood ("scale", "df", …; "scale_2" of
            output 2 where each has a likelihood of its own).
        value: in the units of the model, a tensor or an array of any shape, ones dropped or not.
        structure: the name of the kernel, such as "lmc"; "given" for a kernel object.
        scaling: from the user's units to the model's.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.scaling import Scaling
        >>> from ovkgp.estimators.user_units import in_user_units
        >>> scaling = Scaling(np.zeros(1), np.array([10.0]), np.array([5.0, 0.0]), np.array([2.0, 3.0]))
        >>> in_user_units("noise", np.array([0.1, 0.1]), "lmc", scaling).tolist()
        [0.4, 0.9]
    """
    value = value.detach().numpy() if torch.is_tensor(value) else np.asarray(value)
    path, scale = name.split("."), scaling.output_scale
    if path[-1] == "noise":
        return _noise(value, scale)
    if name == "mean":
        return value * scale + scaling.output_offset
    if name == "scale":  # of a likelihood
        return value * (scale if value.ndim else scale[0])
    if of_one := re.fullmatch(r"(scale|noise)_(\d+)", name):  # of one output's likelihood
        return value * scale[int(of_one[2])] ** (2 if of_one[1] == "noise" else 1)
    if structure == "given":
        return value
    if path[-1] == "lengthscale":
        return value * (scaling.input_scale if value.size > 1 else scaling.input_scale[0])
    if path[-1] == "output_matrix":
        return value * np.outer(scale, scale)
    if path[-1] != "outputscale":
        return value
    if structure == "independent":
        return value * scale[int(path[0])] ** 2
    return value * (scale[0] * scaling.input_scale[0]) ** 2


def draws_in_user_units(name: str, draws: np.ndarray, structure: str, scaling: Scaling) -> np.ndarray:
    """The same for draws (chains, draws, *shape)."""
    flat = draws.reshape(-1, *draws.shape[2:])
    moved = np.stack([in_user_units(name, value, structure, scaling) for value in flat])
    return moved.reshape(*draws.shape[:2], *moved.shape[1:])


def named_structure(estimator) -> str:
    """The structure whose hyperparameters have units that are known: "given" where a kernel object was."""
    by_name = isinstance(estimator.kernel, str) and isinstance(estimator.base_kernel, str)
    return estimator.kernel_ if by_name else "given"


def _noise(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if value.ndim == 2:
        return value * np.outer(scale, scale)
    return value * (scale[0] ** 2 if value.ndim == 0 and np.all(scale == scale[0]) else scale**2)
