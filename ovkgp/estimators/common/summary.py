"""Text summaries of fitted estimators, and their hyperparameters as one table with the user's column names.

Every scalar hyperparameter is one row: parameter, output, input and value. Variances are shown as standard deviations, matrices
between outputs as standard deviations and correlations, all in original units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from linear_operator import to_dense
from torch import Tensor

from ovkgp.criticism.calibration import Coverage
from ovkgp.criticism.sample_tests.samples import center_gram
from ovkgp.estimators.common.named_kernels import SEPARABLE_LIMIT, name_structure, num_features
from ovkgp.estimators.common.scaling import Scaling, draws_in_original_units, named_structure, values_in_units
from ovkgp.inference.likelihoods import Likelihood, PerOutput
from ovkgp.inference.sampling.arviz_data import factorization_cost
from ovkgp.inference.sampling.diagnostics import rhat
from ovkgp.inference.stacking.stack import StackPosterior
from ovkgp.inference.training.log_posterior import named_values, short_name
from ovkgp.kernels.evaluation import evaluate_kernel

MIN_OBSERVATIONS_PER_OUTPUT = 10  # outputs with fewer observations get a note
MAX_CORRELATED_OUTPUTS = 6  # correlations between more outputs are not listed
MAX_MATRIX_OUTPUTS = 30  # output matrices of more outputs are not listed
MAX_LISTED_NAMES = 12  # of more columns or classes, the first are listed
MAX_SUMMARY_COST = 1e9  # elementary operations for the predictions of held-out rows in a summary: about a second
INTERVAL_LEVEL = 0.9  # level of the intervals whose coverage a summary reports
MAX_SPECTRUM_ENTRIES = 1000  # of more entries, a summary does not compute the eigenvalues of the prior covariance
EXPLAINED_FRACTION = 0.95  # of the prior covariance, for which a summary counts components
MAX_SUMMARY_ROWS = 60  # rows of the table of hyperparameters in a summary

VARIANCES = {"outputscale": "signal std", "noise": "noise std", "variance": "slope std", "constant": "constant std"}
"""Hyperparameters that are variances, and the names of their square roots."""
FIELD_VARIANCES = {"curl_free": "potential std", "divergence_free": "stream function std"}
"""Names of the square root of the outputscale of a field kernel, which scales a potential or a stream function."""
MATRICES = {"output_matrix": "signal", "noise": "noise"}  # matrices between outputs
NAMES = {"mean.slopes": "mean slope", "alpha": "alpha", "period_length": "period", "df": "degrees of freedom"}
"""Other names that differ from those in the code."""
PER_INPUT = ("lengthscale", "period_length", "variance")
FACT_LABELS = {"lam_": "λ", "gap_": "duality gap", "nesting_rate_": "nested curves", "missing_": "missing"}
"""Numbers of a fitted estimator that `summarize_facts` shows."""


class Summary(str):
    """Text that a notebook shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class ColumnNames(NamedTuple):
    """Names of inputs and outputs, and the structure of the kernel."""

    inputs: list[str]
    outputs: list[str]
    structure: str | None

    @classmethod
    def of(cls, estimator) -> ColumnNames:
        """Return the names of a fitted estimator; `x0`, `y0`, … if it has none or they are not distinct.

        Columns of dates and durations are followed by "(days)", the unit of their lengthscales.
        """
        inputs, outputs = _column_names(estimator)
        inputs, outputs = _add_days(inputs, estimator, "input_times_"), _add_days(outputs, estimator, "output_times_")
        inputs = _select_used(inputs, estimator)
        return cls(inputs, outputs, getattr(estimator, "kernel_", None))


class Hyperparameter(NamedTuple):
    """One scalar hyperparameter: its name, the columns it belongs to, and its draws (chains, draws)."""

    parameter: str
    output: str
    input: str
    draws: np.ndarray

    @classmethod
    def of(cls, parameter: str, value: float, input: str = "") -> Hyperparameter:
        """Make the row of a number that belongs to no output."""
        return cls(parameter, "", input, np.full((1, 1), float(value)))


def axis_names(estimator) -> tuple[list[str], list[str]]:
    """Return the names of the inputs of the model and of the outputs; numbered ones if there are none or two are equal."""
    inputs, outputs = _column_names(estimator)
    return _select_used(inputs, estimator), outputs


def _select_used(inputs: list[str], estimator) -> list[str]:
    used = getattr(getattr(estimator, "scaling_", None), "used_inputs", None)
    return inputs if used is None else [inputs[i] for i in used]


def _column_names(estimator) -> tuple[list[str], list[str]]:
    """Return the names of all inputs and outputs, distinct."""
    inputs = [f"x{i}" for i in range(estimator.n_features_in_)]
    output_names = getattr(estimator, "output_names_", [])
    outputs = [f"y{a}" for a in range(len(output_names))]
    return _distinct(getattr(estimator, "feature_names_in_", inputs), inputs), _distinct(output_names, outputs)


def _add_days(names: list[str], estimator, attribute: str) -> list[str]:
    times = getattr(estimator, attribute, None) or [None] * len(names)
    return [name if time is None else f"{name} (days)" for name, time in zip(names, times, strict=True)]


def _distinct(names, numbered: list[str]) -> list[str]:
    names = [str(name) for name in names]
    return names if len(set(names)) == len(names) else numbered


def hyperparameter_table(estimator) -> list[Hyperparameter]:
    """List the hyperparameters of a fitted `GPRegressor` in original units; a point estimate is one draw."""
    if hasattr(estimator, "draws_"):
        values = values_in_units(estimator, estimator.draws_["posterior"])
    else:
        structure, scaling = named_structure(estimator), estimator.scaling_
        found = named_values(estimator.gp_).items()
        values = {n: draws_in_original_units(n, value[None, None], structure, scaling) for n, value in found}
    if "noise" not in values and estimator.noise_ is not None:  # fixed
        values["noise"] = estimator.noise_[None, None]
    return list_hyperparameters(values, ColumnNames.of(estimator))


def list_hyperparameters(values: dict[str, np.ndarray], names: ColumnNames) -> list[Hyperparameter]:
    """List the entries of hyperparameters by name, (chains, draws, *shape) each: kernel first, then noise and mean."""
    rows = [row for name, draws in values.items() for row in _entries(name, draws, names)]
    order = {name: i for i, name in enumerate(dict.fromkeys(row.parameter for row in rows))}
    ranks = {"lengthscale": -1, "noise std": 1, "noise correlation": 2, "mean": 3, "mean slope": 4}
    return sorted(rows, key=lambda row: (ranks.get(row.parameter, 0), order[row.parameter]))


def list_gp_parameters(estimator, variance: float) -> list[Hyperparameter]:
    """List noise and kernel of an untrained `gp_`, without matrices that are large or not between columns of Y."""
    names = ColumnNames.of(estimator)
    p = len(names.outputs)

    def is_listed(name: str, value: np.ndarray) -> bool:
        return name.rpartition(".")[2] != "output_matrix" or len(value) == p <= MAX_MATRIX_OUTPUTS

    values = {name: value[None, None] for name, value in named_values(estimator.gp_).items() if is_listed(name, value)}
    return [Hyperparameter.of("noise std", np.sqrt(variance)), *list_hyperparameters(values, names)]


def split_output(path: str, num_outputs: int) -> tuple[str, int | None]:
    """Split the index of an output off the name of a hyperparameter.

    `1.lengthscale` of independent outputs is `lengthscale` of output 1, and `scale_1` is `scale` of the likelihood of output 1.
    """
    first, _, rest = path.partition(".")
    if first.isdigit():
        return rest, int(first)
    stem, _, last = path.rpartition("_")
    if stem and last.isdigit() and "." not in path and int(last) < num_outputs:
        return stem, int(last)
    return path, None


def _entries(path: str, draws: np.ndarray, names: ColumnNames) -> Iterator[Hyperparameter]:
    name, output = split_output(path, len(names.outputs))
    term, _, last = name.rpartition(".")
    p = len(names.outputs)
    if last in MATRICES and draws.ndim == 4 and draws.shape[2:] == (p, p) and p > 1:
        yield from _matrix_entries(term, MATRICES[last], draws, names.outputs)
        return
    shape = tuple(size for size in draws.shape[2:] if size > 1)
    flat = draws.reshape(*draws.shape[:2], *shape)
    label = _label(name, names)
    for index in np.ndindex(shape):
        of_output, of_input = _columns(last, index, shape, names)
        if output is not None:
            of_output = names.outputs[output]
        value = flat[(..., *index)]
        yield Hyperparameter(label, of_output, of_input, np.sqrt(value) if last in VARIANCES else value)


def _label(name: str, names: ColumnNames) -> str:
    term, _, last = name.rpartition(".")
    if name in NAMES:
        return NAMES[name]
    if last == "outputscale" and (known := FIELD_VARIANCES.get(term) or FIELD_VARIANCES.get(names.structure)):
        label = known
    else:
        label = VARIANCES.get(last) or NAMES.get(last) or last.replace("_", " ")
    return f"{term}.{label}" if term else label


def _columns(last: str, index: tuple[int, ...], shape: tuple[int, ...], names: ColumnNames) -> tuple[str, str]:
    """Return the output and the input that an entry belongs to."""
    d, p = len(names.inputs), len(names.outputs)
    if last == "slopes" and len(index) == 2:
        return names.outputs[index[1]], names.inputs[index[0]]
    if last in PER_INPUT and shape in ((d,), ()):
        return "", names.inputs[index[0]] if shape else names.inputs[0] if d == 1 else "all"
    if not shape:
        return names.outputs[0] if p == 1 else "", ""
    if shape == (p,):
        return names.outputs[index[0]], ""
    return "[" + ", ".join(map(str, index)) + "]", ""


def _matrix_entries(term: str, kind: str, draws: np.ndarray, outputs: list[str]) -> Iterator[Hyperparameter]:
    prefix = f"{term}." if term else ""
    deviations = np.sqrt(np.einsum("cdaa->cda", draws))
    for a, output in enumerate(outputs):
        yield Hyperparameter(f"{prefix}{kind} std", output, "", deviations[..., a])
    off_diagonal = draws - np.einsum("cda,ab->cdab", np.einsum("cdaa->cda", draws), np.eye(len(outputs)))
    if len(outputs) > MAX_CORRELATED_OUTPUTS or not off_diagonal.any():
        return
    for a in range(len(outputs)):
        for b in range(a + 1, len(outputs)):
            size = deviations[..., a] * deviations[..., b]
            ratio = np.divide(draws[..., a, b], size, out=np.zeros_like(size), where=size > 0)
            yield Hyperparameter(f"{prefix}{kind} correlation", f"{outputs[a]}, {outputs[b]}", "", ratio)


def format_values(values: dict[str, Tensor], estimator, structure: str, scaling: Scaling) -> str:
    """Format hyperparameters of a model on one line, with column names and in original units.

    `structure` is the name of the kernel; it is ignored if a kernel object was passed, whose values are in original units.
    """
    structure = structure if isinstance(estimator.base_kernel, str) else "given"
    draws = {name: value.detach().numpy()[None, None] for name, value in values.items()}
    draws = {n: draws_in_original_units(n, value, structure, scaling) for n, value in draws.items()}
    return _listed(
        f"{row.parameter} ({', '.join(filter(None, row[1:3]))}) = {row.draws.item():.4g}".replace(" ()", "")
        for row in list_hyperparameters(draws, ColumnNames.of(estimator)._replace(structure=structure))
    )


def list_active_bounds(gp, bounds: Sequence[tuple[str, int, str]], names: ColumnNames) -> list[str]:
    """List the hyperparameters of a model that ended at a bound (`FitReport.active_bounds`), with column names."""
    if not bounds:
        return []
    codes = {"lower": 1.0, "upper": 4.0}  # variances are listed by their roots
    marks, others = {name: np.zeros((1, 1, *value.shape)) for name, value in named_values(gp).items()}, {}
    for path, index, side in bounds:
        name = short_name(gp, path)
        if name in marks and not (marks[name].ndim == 4 and name.rpartition(".")[2] in MATRICES):
            marks[name].flat[index] = codes[side]
        else:  # a part of a matrix between outputs
            others[f"{name.replace('_', ' ')} is at its {side} bound"] = None
    rows = (row for row in list_hyperparameters(marks, names) if row.draws.item() > 0)
    sides = {code: side for side, value in codes.items() for code in (value, np.sqrt(value))}
    columns = ((row, ", ".join(filter(None, row[1:3]))) for row in rows)
    found = [f"{row.parameter} ({text}) is at its {sides[row.draws.item()]} bound" for row, text in columns]
    return [text.replace(" ()", "") for text in [*found, *others]]


def summarize(estimator, problems: Sequence[str] = ()) -> Summary:
    """Describe a fitted `GPRegressor`: data, evidence, hyperparameters in original units, and notes on problems."""
    counts, evidence = estimator._num_observed, evidence_name(estimator)
    is_mixture = isinstance(estimator.posterior_, StackPosterior)
    name = "mixture of candidates" if is_mixture else f"{estimator.kernel_} kernel"
    if estimator.kernel_ == "auto" and not is_mixture:  # after partial_fit
        name = f"kernel of the candidate {next(iter(estimator.candidates_))}"
    lines = [f"GPRegressor: {name}, {_approximation(estimator)}"]
    about = {"data": _data(estimator)}
    if unused := [name for name in _column_names(estimator)[0] if name not in axis_names(estimator)[0]]:
        about["not used"] = f"{_listed(unused)} (constant)"
    names, roles = _column_names(estimator), ("input", "output")
    units = [
        label
        for role, own in zip(roles, names, strict=True)
        for label in estimator.label_units(role, own)
        if label not in own
    ]
    if units:
        about["dates"] = ", ".join(units)
    about[evidence] = f"{estimator.log_evidence_:.4g} ({estimator.log_evidence_ / counts.sum():.4g} per observed entry)"
    if estimator.fit_report_ is not None:
        about[evidence] += f"; optimization: {estimator.fit_report_.message}"
    if hasattr(estimator, "candidates_"):
        about["candidates"] = describe_candidates(estimator.candidates_, evidence)
    if name_structure(estimator.kernel) == "auto" and not is_mixture:
        about["one model"] = f"no mixture of candidates, because of {_reason_for_one_model(estimator)}"
    if hasattr(estimator, "draws_"):
        about["sampling"] = _sampling(estimator)
    elif estimator.averages_draws:
        about["averaged"] = (
            f"over {pluralize(len(estimator.posterior_), 'draw')} of the hyperparameters around their mode"
        )
    if _can_hold_out(estimator):
        about["held-out"] = _describe_held_out_rows(estimator)
        if (complexity := _describe_complexity(estimator)) is not None:
            about["complexity"] = complexity
    width = max(map(len, about)) + 3
    lines += [f"  {name:<{width}}{text}" for name, text in about.items()]
    of_first = f" of the candidate {next(iter(estimator.candidates_))} at its mode" if is_mixture else ""
    lines.append(f"  hyperparameters{of_first} (original units)")
    lines += [f"    {line}" for line in format_hyperparameters(hyperparameter_table(estimator))]
    lines += [
        f"  note: output {name} has only {pluralize(int(count), 'observation')}"
        for name, count in zip(estimator.output_names_, counts, strict=True)
        if count < MIN_OBSERVATIONS_PER_OUTPUT
    ]
    lines += [f"  note: {text}" for text in problems]
    return Summary("\n".join(lines))


def _reason_for_one_model(estimator) -> str:
    """Name what makes `kernel="auto"` one model; `uses_stack` of the training has the same conditions."""
    data = estimator.training_observations()
    num_rows = max(estimator._num_observed) if data is None else data.num_rows
    reasons = {
        f"likelihood={estimator.likelihood!r}": estimator.likelihood != "gaussian",
        f"hyperparameters={estimator.hyperparameters!r}": estimator.hyperparameters not in ("auto", "evidence"),
        "a kernel object as base_kernel": not isinstance(estimator.base_kernel, str),
        f"base_kernel={estimator.base_kernel!r}": estimator.base_kernel == "laplace",
        f"approximation={estimator.approximation!r}": estimator.approximation not in ("auto", "exact"),
        f"more than {SEPARABLE_LIMIT} rows": num_rows > SEPARABLE_LIMIT,
        "rows that were added to the statistics of features": hasattr(estimator, "statistics_"),
        "noise that is shared by outputs or correlated": not isinstance(estimator.noise, str)
        or (estimator.noise != "per_output" and estimator.n_outputs_ > 1),
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "a checkpoint")


def describe_candidates(candidates: dict, evidence: str) -> str:
    """Describe the candidates of kernel="auto": weights and scores of a mixture, or the criterion of a selection."""
    if any(isinstance(score, float) for score in candidates.values()):
        scores = ", ".join(f"{name} {score:.4g}" for name, score in candidates.items())
        return f"{scores} ({evidence} − number of hyperparameters; the largest was selected)"
    ordered = sorted(candidates.items(), key=lambda item: -item[1].weight)
    scores = (f"{name} {s.weight:.0%} ({s.log_density:.3g} ± {s.standard_error:.1g})" for name, s in ordered)
    return f"{', '.join(scores)}: weight (mean log density of held-out entries)"


def summarize_facts(estimator, problems: Sequence[str] = ()) -> Summary:
    """Summarize columns, classes, training and selected numbers of any fitted estimator, one per line, and notes on problems."""
    inputs = estimator.label_units("input", estimator.input_names or range(estimator.n_features_in_))
    found = {"estimator": estimator.class_name, "inputs": ", ".join(inputs)}
    for attribute, label in {"output_names_": "outputs", "classes_": "classes"}.items():
        if hasattr(estimator, attribute):
            names = getattr(estimator, attribute)
            total = f" ({len(names)} in total)" if len(names) > MAX_LISTED_NAMES else ""
            found[label] = f"{_listed(map(str, names))}{total}"
    if (report := estimator.fit_report) is not None:
        found |= {"rows": str(report.num_rows), "training": report.message}
    for attribute, label in FACT_LABELS.items():
        if hasattr(estimator, attribute):
            found[label] = f"{getattr(estimator, attribute):.4g}"
    width = max(map(len, found))
    lines = [f"{label:<{width}}  {text}" for label, text in found.items()]
    return Summary("\n".join([*lines, *(f"note: {text}" for text in problems)]))


def format_hyperparameters(rows: list[Hyperparameter]) -> list[str]:
    """Format rows as the lines of a table; values of draws are mean, standard deviation, quantiles and R̂."""
    has_draws = any(row.draws.size > 1 for row in rows)
    header = ("parameter", "output", "input", *(("mean", "sd", "5 %", "95 %", "R̂") if has_draws else ("value",)))
    cells, previous = [header], ("", "")
    for row in rows[:MAX_SUMMARY_ROWS]:
        here = row.parameter, row.output
        parameter = "" if row.parameter == previous[0] else row.parameter
        output = "" if here == previous else row.output
        cells.append((parameter, output, row.input, *_values(row.draws, has_draws)))
        previous = here
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    used = [i for i in range(len(header)) if i not in (1, 2) or any(line[i] for line in cells[1:])]
    lines = ["   ".join(f"{line[i]:<{widths[i]}}" for i in used).rstrip() for line in cells]
    if len(rows) > MAX_SUMMARY_ROWS:
        lines.append(f"... {pluralize(len(rows) - MAX_SUMMARY_ROWS, 'more row')}")
    return lines


def _values(draws: np.ndarray, has_draws: bool) -> tuple[str, ...]:
    if not has_draws:
        return (f"{draws.item():.4g}",)
    if draws.size == 1:
        return f"{draws.item():.4g}", "", "", "", ""
    low, high = np.quantile(draws, [0.05, 0.95])
    convergence = f"{rhat(draws):.3f}" if np.ptp(draws) > 0 else ""
    return f"{draws.mean():.4g}", f"{draws.std():.4g}", f"{low:.4g}", f"{high:.4g}", convergence


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun in the singular or the plural."""
    shown = f"{number:,}" if number >= 10_000 else str(number)
    return f"{shown} {noun if number == 1 else plural or noun + 's'}"


def _data(estimator) -> str:
    counts = [int(count) for count in estimator._num_observed]
    text = f"{pluralize(estimator.n_features_in_, 'input')}, {pluralize(estimator.n_outputs_, 'output')}, "
    text += pluralize(sum(counts), "observed entry", "observed entries")
    if len(counts) == 1:
        return text
    if len(set(counts)) == 1:
        return f"{text} ({counts[0]} per output)"
    return f"{text} ({_listed(f'{n} {c}' for n, c in zip(estimator.output_names_, counts, strict=True))})"


def _listed(items: Iterable[str]) -> str:
    items = [*items]
    return ", ".join(items if len(items) <= MAX_LISTED_NAMES else [*items[:MAX_LISTED_NAMES], "…"])


def _can_hold_out(estimator) -> bool:
    """Return whether stored rows can be predicted from all others in about a second."""
    if not estimator.has_leave_one_out:
        return False
    data = estimator.training_observations()
    num_models = len(estimator.posterior_) if estimator.averages_draws else 1
    cost = num_models * factorization_cost(estimator.gp_, data.X, data.Y, data.noise)
    return data.num_rows > 1 and cost <= MAX_SUMMARY_COST


def _describe_complexity(estimator) -> str | None:
    """Describe tr K(K + N)⁻¹, and the number of components of a parsimonious covariance of the entries (KT-35, 38).

    None if the noise is correlated or differs between rows.
    """
    gp, data = estimator.gp_, estimator.training_observations()
    noise = gp.noise.detach()
    if data.noise is not None or noise.dim() == 2:
        return None
    std = gp.leave_one_out(data.X, data.Y).std
    freedom, count = float((1 - noise / std.square()).nansum()), int(data.observed.sum())
    text = f"the mean has {freedom:.3g} degrees of freedom for {pluralize(count, 'entry', 'entries')}"
    if count > MAX_SPECTRUM_ENTRIES:
        return text
    mask = data.observed.reshape(-1)
    gram = to_dense(evaluate_kernel(gp.kernel, data.X))[mask][:, mask].detach().numpy()
    number = count_components(center_gram(gram), EXPLAINED_FRACTION)
    components = pluralize(number, "component has", "components have")
    return f"{text}; {components} {100 * EXPLAINED_FRACTION:g} % of their prior covariance"


def count_components(gram: np.ndarray, fraction: float) -> int:
    """Return the smallest number of eigenvalues that have a fraction of the trace of a Gram matrix (n, n)."""
    shares = np.cumsum(np.linalg.eigvalsh(gram)[::-1].clip(0))
    return int(np.searchsorted(shares, fraction * shares[-1]) + 1)


def _describe_held_out_rows(estimator) -> str:
    """Describe how well each stored row is predicted from all others."""
    found = estimator.leave_one_out_entries()
    error, centered = np.nansum((found.Y - found.mean) ** 2, 0), found.Y - np.nanmean(found.Y, 0)
    total = np.nansum(centered**2, 0)
    names = zip(estimator.output_names_, error, total, strict=True)
    scores = [f"{1 - e / t:.2g}" + (f" ({name})" if len(total) > 1 else "") for name, e, t in names if t > 0]
    coverage = Coverage.of(found.pit(), [INTERVAL_LEVEL]).overall[0]
    return f"R² {_listed(scores)}; coverage of {100 * INTERVAL_LEVEL:g} % intervals: {100 * coverage:.0f} % (leave-one-row-out)"


def evidence_name(estimator) -> str:
    """Name the maximum of the training of a `GPRegressor`."""
    return "evidence lower bound" if estimator.approximation_ == "variational" else "log evidence"


def _sampling(estimator) -> str:
    """Describe the draws of the hyperparameters and their diagnostics."""
    group = estimator.draws_["posterior"]
    attrs, sizes = group.attrs, group.sizes
    text = f"drawn by {attrs['method']}: {sizes['chain']} × {sizes['draw']} draws; predictions average over "
    text += pluralize(len(estimator.posterior_), "draw")
    known = {"rhat_max": "largest R̂ {:.3f}", "num_divergences": "{:.0f} divergences", "khat": "Pareto k̂ {:.2f}"}
    diagnostics = [text.format(attrs[name]) for name, text in known.items() if np.isfinite(attrs.get(name, np.nan))]
    return f"{text}; {', '.join(diagnostics)}" if diagnostics else text


def _approximation(estimator) -> str:
    if estimator.approximation_ == "exact":
        return "exact inference"
    if estimator.approximation_ == "variational":
        points, likelihood = len(estimator.gp_.features.points), ", ".join(likelihood_names(estimator.likelihood_))
        return f"variational inference with {points} inducing points, {likelihood} likelihood"
    kind = "random frequencies" if estimator.approximation_ == "orff" else "landmarks"
    number = num_features(estimator.num_frequencies, estimator.approximation_)
    return f"{number} {kind}, variance={estimator.variance!r}"


def likelihood_names(likelihood: Likelihood | None) -> list[str]:
    """Return the name of a likelihood, or those of all outputs; None is Gaussian noise."""
    if likelihood is None:
        return ["gaussian"]
    return [one.name for one in likelihood.likelihoods] if isinstance(likelihood, PerOutput) else [likelihood.name]
