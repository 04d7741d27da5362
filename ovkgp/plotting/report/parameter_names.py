"""What an entry of a hyperparameter is called: a lengthscale *of* an input, a noise *of* an output, a scale *of* a part.

Variances are shown as standard deviations, which have the units of the data, and covariance matrices as standard deviations and
correlations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MOST_OUTPUTS = 6
"""Correlations between more outputs than this are left to a picture."""
PARTS = {
    "helmholtz": ("the curl-free part", "the divergence-free part"),
    "curl_free": ("the potential",),
    "divergence_free": ("the stream function",),
}
"""What the terms of a vector field are called."""
ROOTED = {
    "outputscale": "signal standard deviation",
    "noise": "noise standard deviation",
    "variance": "standard deviation",
}
"""Variances, and the names of their roots."""
MATRICES = {"output_matrix": "signal", "noise": "noise"}
"""Matrices between outputs, and what varies."""
PLAIN = {
    "lengthscale": "lengthscale",
    "mean": "mean",
    "mean.slopes": "slope of the mean",
    "scale": "scale of the errors",
    "df": "degrees of freedom",
    "dispersion": "dispersion",
    "alpha": "mixture of lengthscales α",
    "period_length": "period",
}
"""Others by their names."""


class Entry(NamedTuple):
    """An entry of a hyperparameter: its name, what it is of, and its draws (chains, draws)."""

    name: str
    of: str
    draws: np.ndarray


class Names(NamedTuple):
    """The names of inputs, outputs and the structure of the kernel."""

    inputs: list[str]
    outputs: list[str]
    structure: str | None


def entries(path: str, draws: np.ndarray, names: Names) -> Iterator[Entry]:
    """The entries of one hyperparameter, as a reader knows them.

    Args:
        path: its name, such as "0.lengthscale".
        draws: (chains, draws, *shape), in the user's units.
        names: of the columns.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.parameter_names import Names, entries
        >>> names = Names(["time"], ["u", "v"], "decomposable")
        >>> matrix = np.array([[4.0, 3.0], [3.0, 9.0]])[None, None]
        >>> [(entry.name, entry.of, entry.draws.item()) for entry in entries("output_matrix", matrix, names)]
        [('signal standard deviation', 'u', 2.0), ('signal standard deviation', 'v', 3.0), ('signal correlation', 'u and v', 0.5)]
    """
    last, p = path.rpartition(".")[2], len(names.outputs)
    part = _part(path, names)
    shape = tuple(size for size in draws.shape[2:] if size > 1)
    flat = draws.reshape(*draws.shape[:2], *shape)
    if last in MATRICES and draws.shape[-2:] == (p, p) and draws.ndim == 4:
        yield from _matrix(MATRICES[last], draws, part, names)
    elif not shape:
        yield Entry(_name(path), _of_one(last, part, names), _rooted(last, flat))
    else:
        for index in np.ndindex(shape):
            yield Entry(_name(path), _joined(_of(last, index, shape, names), part), _rooted(last, flat[(..., *index)]))


def _name(path: str) -> str:
    last = path.rpartition(".")[2]
    known = ROOTED.get(last) or PLAIN.get(path) or PLAIN.get(last)
    if known is None and "_" in last and last.rpartition("_")[2].isdigit():  # of one output's likelihood
        known = PLAIN.get(last.rpartition("_")[0])
    return known or last.replace("_", " ")


def _rooted(last: str, draws: np.ndarray) -> np.ndarray:
    return np.sqrt(draws) if last in ROOTED else draws


def _matrix(what: str, draws: np.ndarray, part: str, names: Names) -> Iterator[Entry]:
    deviations = np.sqrt(np.einsum("cdaa->cda", draws))
    for a, output in enumerate(names.outputs):
        yield Entry(f"{what} standard deviation", _joined(output, part), deviations[..., a])
    if len(names.outputs) > MOST_OUTPUTS:
        return
    for a in range(len(names.outputs)):
        for b in range(a + 1, len(names.outputs)):
            size = deviations[..., a] * deviations[..., b]
            ratio = np.divide(draws[..., a, b], size, out=np.zeros_like(size), where=size > 0)
            pair = f"{names.outputs[a]} and {names.outputs[b]}"
            yield Entry(f"{what} correlation", _joined(pair, part), ratio)


def _of(last: str, index: tuple[int, ...], shape: tuple[int, ...], names: Names) -> str:
    """The column that an entry belongs to, by the length of its axis."""
    if last == "slopes" and len(index) == 2:
        return f"{names.outputs[index[1]]} along {names.inputs[index[0]]}"
    if last in ("lengthscale", "period_length") and shape == (len(names.inputs),):
        return names.inputs[index[0]]
    if shape == (len(names.outputs),):
        return names.outputs[index[0]]
    return "[" + ", ".join(map(str, index)) + "]"


def _of_one(last: str, part: str, names: Names) -> str:
    """What a single number belongs to."""
    if last in ("lengthscale", "period_length"):
        is_own = part in names.outputs and len(names.outputs) > 1
        where = names.inputs[0] if len(names.inputs) == 1 else "all inputs"
        return _joined(where, part) if is_own else where if part in ("", *names.outputs) else part
    return part or (names.outputs[0] if len(names.outputs) == 1 else "")


def _part(path: str, names: Names) -> str:
    """The term of the kernel that a hyperparameter belongs to, or the output of a likelihood of its own."""
    steps = path.split(".")[:-1]
    if path == "mean.slopes":
        return ""
    if not steps:
        number = path.rpartition("_")[2]
        if "_" in path and number.isdigit() and int(number) < len(names.outputs):
            return names.outputs[int(number)]
        return PARTS[names.structure][0] if path == "outputscale" and names.structure in PARTS else ""
    if not steps[0].isdigit():
        return ".".join(steps).replace("_", " ")
    number = int(steps[0])
    if names.structure == "independent":
        return names.outputs[number]
    if names.structure == "helmholtz":
        return PARTS["helmholtz"][number]
    return f"component {number + 1}"


def _joined(of: str, part: str) -> str:
    return f"{of}, {part}" if of and part else of or part
