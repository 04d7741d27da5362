"""ArviZ groups whose values are computed when they are first read.

xarray reads variables of files only when their values are needed; a group that is expensive is such a file. This module loads xarray:
import it inside functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing


def make_lazy_group(template: xarray.Dataset, compute: Callable[[], xarray.Dataset]) -> xarray.Dataset:
    """Return a group with the names, dimensions and labels of a template, and the values of `compute()`.

    The template's values are not used. The group can be pickled if `compute` can.
    """
    source = _Source(compute)
    variables = {}
    for name, variable in template.data_vars.items():
        values = indexing.LazilyIndexedArray(_Values(source, name, variable.shape, variable.dtype))
        cached = indexing.MemoryCachedArray(indexing.CopyOnWriteArray(values))
        variables[name] = xarray.Variable(variable.dims, cached, variable.attrs)
    return xarray.Dataset(variables, template.coords, template.attrs)


class _Source:
    """A group, computed once, for all of its variables."""

    def __init__(self, compute: Callable[[], xarray.Dataset]):
        self.compute, self.group = compute, None

    def read(self, name: str) -> np.ndarray:
        if self.group is None:
            self.group = self.compute()
            self.compute = None  # which holds model and data
        return self.group[name].values


class _Values(BackendArray):
    """The values of one variable."""

    def __init__(self, source: _Source, name: str, shape: tuple[int, ...], dtype: np.dtype):
        self.source, self.name, self.shape, self.dtype = source, name, shape, dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple) -> np.ndarray:
        return self.source.read(self.name)[key]
