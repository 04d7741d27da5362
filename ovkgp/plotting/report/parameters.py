"""The hyperparameters of a report: draws with their intervals where there are draws, point values where there are none.

A Gaussian-process regressor that was trained by evidence on few data gets intervals as well, from a Laplace approximation at its
mode; they say how well the data know each value, and the predictions do not use them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ovkgp.criticism.predictive_distributions import kept_observations
from ovkgp.estimators.common.scaling import in_user_units, named_structure
from ovkgp.estimators.common.summary import count
from ovkgp.estimators.regression.hyperparameters import units_of, values_in_units
from ovkgp.estimators.ridge.base import RidgeEstimator
from ovkgp.exceptions import FactorizationError, FitWarning
from ovkgp.inference.sampling.diagnostics import FEWEST, MAX_PARETO_K, effective_size, rhat
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.plotting.axes import input_names, output_names
from ovkgp.plotting.report.descriptions import is_gp, structure_of, training_goal
from ovkgp.plotting.report.evaluation_data import class_name
from ovkgp.plotting.report.numbers import show
from ovkgp.plotting.report.sections import Parameter, ParameterTable

MAX_OUTPUTS = 6
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
        >>> from ovkgp.plotting.report.parameters import Names, entries
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
    if len(names.outputs) > MAX_OUTPUTS:
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


SCALARS = {
    "lam_": "penalty λ",
    "lam": "penalty λ",
    "lam_manifold": "penalty on the manifold λ_M",
    "scale_": "scale of prior and noise s²",
    "residual_scale_": "residual scale",
    "radius": "radius M of the weights",
    "weight_radius_": "radius of each frequency",
    "nu": "level ν of predict",
    "offset_": "threshold at that level",
    "kappa": "width of the smoothing κ",
    "task_lengthscale": "lengthscale of the tasks",
    "threshold_lengthscale": "lengthscale of the thresholds",
}
"""Attributes that are single numbers, by what they are called."""
SET_PARAMETERS_MOST_OUTPUTS = 30
"""Entries of more outputs are not listed."""


def set_parameters(estimator) -> list[Parameter]:
    """The numbers that an estimator was fitted with, in the user's units."""
    fitted = getattr(estimator, "ridge_", estimator)  # that of a classifier
    kernel = _kernel(fitted)
    if fitted is not estimator:  # outputs of the regression are codes, which nobody knows
        kernel = [one for one in kernel if one.name == "lengthscale"]
    elif structure_of(estimator) == "identity":
        kernel = [one for one in kernel if one.name != "signal correlation"]
    return [*_scalars(estimator), *_noise(fitted), *kernel, *_lengthscale(estimator)]


def _scalars(estimator) -> list[Parameter]:
    found = ((words, getattr(estimator, name, None)) for name, words in SCALARS.items())
    known = {words: float(value) for words, value in reversed([*found]) if isinstance(value, float | int)}
    return [Parameter(words, "", known[words]) for words in dict.fromkeys(SCALARS.values()) if words in known]


def _noise(estimator) -> list[Parameter]:
    """σ, of an observation."""
    if isinstance(estimator, RidgeEstimator):
        return [Parameter("noise standard deviation", "", float(np.sqrt(estimator._noise_now)))]
    if class_name(estimator) == "VectorTaskRegressor":
        return [Parameter("noise standard deviation", "", float(np.sqrt(estimator.noise_ * estimator.scale_)))]
    return (
        [Parameter("noise standard deviation", "", float(np.sqrt(estimator.noise_)))]
        if hasattr(estimator, "noise_")
        else []
    )


def _kernel(estimator) -> list[Parameter]:
    if not hasattr(estimator, "gp_"):
        return []
    outputs = output_names(estimator)
    names = Names(input_names(estimator), outputs, getattr(estimator, "kernel_", None))
    values = {name: v for name, v in named_values(estimator.gp_).items() if not _is_left_out(name, v, len(outputs))}
    found = (entry for name, value in values.items() for entry in entries(name, value[None, None], names))
    return [Parameter(entry.name, entry.of, float(entry.draws.item())) for entry in found]


def _is_left_out(name: str, value: np.ndarray, num_outputs: int) -> bool:
    """Matrices that are large, or not between the columns of Y."""
    is_matrix = name.rpartition(".")[2] == "output_matrix"
    return is_matrix and (len(value) != num_outputs or num_outputs > SET_PARAMETERS_MOST_OUTPUTS)


def _lengthscale(estimator) -> list[Parameter]:
    """Of an estimator that has scaled its inputs: given in their standard deviations, shown in their units."""
    factor = getattr(getattr(estimator, "function_", None), "inputs", None)
    while hasattr(factor, "factor"):  # beside an intercept or a trend
        factor = factor.factor
    kernel = getattr(getattr(factor, "features", factor), "kernel", None)
    if (lengthscale := getattr(kernel, "lengthscale", None)) is None:
        return []
    values = np.broadcast_to(lengthscale.detach().numpy().reshape(-1), estimator.n_features_in_)
    values, names = values * estimator.scaling_.input_scale, input_names(estimator)
    return [Parameter("lengthscale", name, float(value)) for name, value in zip(names, values, strict=True)]


MAX_ENTRIES, MAX_PARAMETERS = 500, 40
"""Observed entries and trained numbers up to which the approximation is made."""
DRAWS = 200


class LocalDraws(NamedTuple):
    """Draws by name, (1, draws, *shape), in the user's units, and how far to trust them."""

    values: dict[str, np.ndarray]
    notes: tuple[str, ...]


def local_draws(estimator) -> LocalDraws | None:
    """Draws from the Laplace approximation of a trained `GPRegressor`; None where it would be dear, or makes no sense.

    Cost: some tens of gradients of the evidence, two for each parameter, and one evaluation for each of 200 draws.
    """
    if not _is_cheap(estimator):
        return None
    data = kept_observations(estimator)
    options = {
        "draws": DRAWS,
        "prior_draws": 0,
        "log_likelihood": False,
        "posterior_predictive": False,
        "random_state": 0,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # k̂ and flat directions are said in the notes
        try:
            found = sample_hyperparameters(estimator.gp_, data.X, data.Y, "laplace", noise=data.noise, **options)
        except FactorizationError as error:
            return LocalDraws({}, (f"No intervals: the Laplace approximation failed ({error}).",))
    group = found["posterior"]
    return LocalDraws(values_in_units(estimator, group), _notes(group.attrs))


def _is_cheap(estimator) -> bool:
    if estimator.hyperparameters != "evidence" or estimator.approximation_ != "exact":
        return False
    trained = sum(parameter.numel() for parameter in estimator.gp_.parameters() if parameter.requires_grad)
    return (
        bool(estimator._num_observed.sum() <= MAX_ENTRIES and 0 < trained <= MAX_PARAMETERS)
        and kept_observations(estimator) is not None
    )


def _notes(attrs: dict) -> tuple[str, ...]:
    notes = []
    if attrs.get("khat", 0) > MAX_PARETO_K:
        notes.append(
            f"The Laplace approximation is rough here (Pareto k̂ = {show(attrs['khat'], 3)}, above {MAX_PARETO_K}): read these intervals as "
            "orders of magnitude."
        )
    if attrs.get("num_flat", 0):
        notes.append(
            "The data leave some directions of the hyperparameters open; their intervals come from the prior alone."
        )
    return tuple(notes)


LEVEL = 0.9
"""Of the intervals."""
MAX_ROWS = 60
"""A table is no longer than this."""


def parameter_table(estimator) -> ParameterTable:
    """The hyperparameters of a fitted estimator, in the user's units."""
    if not is_gp(estimator):
        rows = set_parameters(estimator)
        return _table(
            estimator, "They were given or chosen, not trained: there is no interval to state.", rows, "value", ()
        )
    if hasattr(estimator, "draws_"):
        return _drawn(estimator)
    return _point(estimator)


def _drawn(estimator) -> ParameterTable:
    group = estimator.draws_["posterior"]
    values, sizes, attrs = values_in_units(estimator, group), group.sizes, group.attrs
    is_chain = attrs["method"] == "nuts"
    rows = [row for name, draws in values.items() for row in _rows(name, draws, _names(estimator), is_chain)]
    sentence = (
        f"Drawn from their posterior by {METHODS[attrs['method']]}: {count(sizes['chain'], 'chain')} of "
        f"{count(sizes['draw'], 'draw')}. Predictions average over {len(estimator.posterior_)} of them."
    )
    return _table(estimator, sentence, rows, "mean", _notes_parameters(estimator, ()))


METHODS = {
    "nuts": "Hamiltonian Monte Carlo (NUTS)",
    "svi": "variational inference (SVI)",
    "laplace": "a Laplace approximation",
}


def _point(estimator) -> ParameterTable:
    values, found = point_values(estimator), local_draws(estimator)
    rows = [row for name, value in values.items() for row in _rows(name, value[None, None], _names(estimator), False)]
    how = (
        "given with the kernel"
        if estimator.hyperparameters == "fixed"
        else f"point values: those of {training_goal(estimator)}"
    )
    if found is None:
        return _table(
            estimator,
            f"These are {how}. How uncertain they are is not known.",
            rows,
            "value",
            _notes_parameters(estimator, ()),
        )
    rows, notes = _with_intervals(rows, estimator, found), found.notes
    if found.values and any(row.low is None for row in rows):
        notes = (
            *notes,
            "No interval is stated where the approximation, which adds priors where training has none and works on another scale, is "
            "centred on another value.",
        )
    sentence = (
        f"These are {how}, and predictions use them alone. The intervals are from a Laplace approximation at the mode, made for this "
        'report; hyperparameters="nuts" would average over them.'
    )
    return _table(estimator, sentence, rows, "value", _notes_parameters(estimator, notes))


def point_values(estimator) -> dict[str, np.ndarray]:
    """The hyperparameters of a trained `GPRegressor` by name, in the user's units."""
    structure, scaling = named_structure(estimator), estimator.scaling_
    values = {name: in_user_units(name, v, structure, scaling) for name, v in named_values(estimator.gp_).items()}
    if "noise" not in values and estimator.noise_ is not None:  # given, not trained
        values["noise"] = np.diag(estimator.noise_)
    return values


def _rows(name: str, draws: np.ndarray, names: Names, is_chain: bool) -> list[Parameter]:
    return [_row(entry.name, entry.of, entry.draws, is_chain) for entry in entries(name, draws, names)]


def _row(name: str, of: str, draws: np.ndarray, is_chain: bool) -> Parameter:
    value = float(draws.mean())
    if draws.size == 1 or not np.ptp(draws) > 0:
        return Parameter(name, of, value)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    known = is_chain and draws.shape[1] >= 2 * FEWEST
    checks = (rhat(draws), effective_size(draws)) if known else (None, None)
    return Parameter(name, of, value, float(draws.std()), float(low), float(high), *checks)


def _with_intervals(rows: list[Parameter], estimator, found: LocalDraws) -> list[Parameter]:
    """Point values with the spread of draws around them."""
    drawn = [row for name, draws in found.values.items() for row in _rows(name, draws, _names(estimator), False)]
    spread = {(row.name, row.of): row for row in drawn}
    known = [spread.get((row.name, row.of), row) for row in rows]
    return [
        Parameter(row.name, row.of, row.value, near.sd, near.low, near.high) if _holds(near, row.value) else row
        for row, near in zip(rows, known, strict=True)
    ]


def _holds(near: Parameter, value: float) -> bool:
    """Whether an interval is about the value.

    The approximation is made for the density of the raw parameters, with priors on those that training leaves without one, so that
    its mode may be elsewhere.
    """
    return near.low is not None and near.low <= value <= near.high


def _names(estimator) -> Names:
    return Names(input_names(estimator), output_names(estimator), named_structure(estimator))


def _notes_parameters(estimator, notes: tuple[str, ...]) -> tuple[str, ...]:
    if units_of(estimator) != "of the data":
        words = "Noise and mean are in the units of the data; of the kernel only its author knows which numbers carry units."
        notes = (words, *notes)
    if estimator.n_outputs_ > MAX_OUTPUTS:
        notes = (*notes, "Correlations between outputs are left to the picture of the fit.")
    return notes


def _table(estimator, sentence: str, rows: list[Parameter], value_name: str, notes: tuple[str, ...]) -> ParameterTable:
    if len(rows) > MAX_ROWS:
        notes = (*notes, f"The table shows the first {MAX_ROWS} of {len(rows)} values.")
    units = units_of(estimator) if is_gp(estimator) else "of the data"
    return ParameterTable(sentence, tuple(rows[:MAX_ROWS]), value_name, units, notes)
