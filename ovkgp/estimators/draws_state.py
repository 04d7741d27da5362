"""Draws of hyperparameters as JSON and tensors: every variable of every group, with its dimensions and labels.

What comes back is the object that the ArviZ here reads, whichever wrote the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ovkgp.estimators.arviz_export import groups_of
from ovkgp.estimators.option_state import placed, plain, there, value_from_state, value_state
from ovkgp.inference.arviz_data import to_arviz_object

if TYPE_CHECKING:
    import xarray


def draws_state(draws) -> tuple[list, dict[str, Tensor]]:
    """An ArviZ object as a list that JSON can hold, in the order of its groups and variables, and tensors by name.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.draws_state import draws_from_state, draws_state
        >>> from ovkgp.inference.arviz_data import dataset, to_arviz_object
        >>> group = dataset({"noise": np.ones((2, 3))}, {"noise": ("chain", "draw")}, attrs={"method": "nuts"})
        >>> header, tensors = draws_state(to_arviz_object({"posterior": group}))
        >>> sorted(tensors), draws_from_state(header, tensors)["posterior"].identical(group)
        (['posterior.chain', 'posterior.draw', 'posterior.noise'], True)
    """
    header, tensors = [], {}
    for name, group in groups_of(draws):
        about, found = _group_state(group)
        header.append({"name": name, **about})
        tensors |= placed(name, found)
    return header, tensors


def draws_from_state(header: list, tensors: dict[str, Tensor]):
    """The ArviZ object that `draws_state` described."""
    return to_arviz_object({about["name"]: _group(about, there(about["name"], tensors)) for about in header})


def _group_state(group: xarray.Dataset) -> tuple[dict, dict[str, Tensor]]:
    variables, tensors = [], {}
    for name in (*group.data_vars, *group.coords):
        variable = group.variables[name]
        entry, found = value_state(str(name), np.asarray(variable.values))
        about = {"name": str(name), "dims": list(variable.dims), "is_label": name in group.coords}
        variables.append({**about, "value": entry})
        tensors |= placed(str(name), found)
    return {"variables": variables, "attrs": [[key, _attribute(key, v)] for key, v in group.attrs.items()]}, tensors


def _group(about: dict, tensors: dict[str, Tensor]) -> xarray.Dataset:
    import xarray  # here, since `import ovkgp` must not load it

    data, labels = {}, {}
    for variable in about["variables"]:
        name = variable["name"]
        value = value_from_state(variable["value"], there(name, tensors))
        (labels if variable["is_label"] else data)[name] = (variable["dims"], value)
    return xarray.Dataset(data, labels, dict(about["attrs"]))


def _attribute(key: str, value):
    return plain(key, value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
