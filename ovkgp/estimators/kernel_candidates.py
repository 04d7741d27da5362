"""Candidates of a comparison: names of structures, kernels and regressors, all as regressors with a name each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpytorch.kernels import Kernel

from ovkgp.estimators.gp_regressor import GPRegressor
from ovkgp.estimators.options import is_variational
from ovkgp.exceptions import OptionError

UNNAMED = ("kernel", "random_state", "verbose")
"""Options that the name of a candidate does not tell."""


def regressors(candidates) -> dict[str, GPRegressor]:
    """Candidates as regressors by name.

    Example:
        >>> import ovkgp
        >>> from ovkgp.estimators.kernel_candidates import regressors
        >>> list(regressors(["lmc", ovkgp.GPRegressor("lmc", rank=3), "lmc"]))
        ['lmc', 'lmc, rank=3', 'lmc (2)']
    """
    if isinstance(candidates, Mapping):
        models = {str(name): _regressor(candidate) for name, candidate in candidates.items()}
    elif isinstance(candidates, (str, Kernel, GPRegressor)) or not isinstance(candidates, Iterable):
        raise OptionError(f"candidates must be a list or a dictionary of candidates, got {candidates!r}.")
    else:
        models = {}
        for candidate in candidates:
            model = _regressor(candidate)
            models[_free_name(_name(model), models)] = model
    if not models:
        raise OptionError("there is no candidate to compare.")
    return models


def _regressor(candidate) -> GPRegressor:
    if isinstance(candidate, GPRegressor):
        if is_variational(candidate) or candidate.distributed:
            raise OptionError(
                "compare_kernels is for Gaussian outputs that are not approximated by variational inference, in one process; got "
                + repr(candidate)
            )
        return candidate
    if isinstance(candidate, (str, Kernel)):
        return GPRegressor(candidate)
    raise OptionError(f"a candidate is the name of a structure, a kernel or a GPRegressor, got {candidate!r}.")


def _name(model: GPRegressor) -> str:
    """The kernel, and the options that were changed."""
    usual, kernel = GPRegressor().get_params(), model.kernel
    given = {name: value for name, value in model.get_params(deep=False).items() if name not in UNNAMED}
    plain = {name: isinstance(value, (str, int, float)) for name, value in given.items()}
    changed = [
        f"{name}={value if plain[name] else type(value).__name__}"
        for name, value in given.items()
        if value is not usual[name] and not (plain[name] and value == usual[name])
    ]
    return ", ".join([kernel if isinstance(kernel, str) else type(kernel).__name__, *changed])


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    return free
