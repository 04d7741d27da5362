"""The facts of a model, as pairs (what, how): base kernel, noise, mean, likelihood, approximation, training.

Each fact is read from the fitted estimator by one small function, which gives None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpytorch.kernels import Kernel

from ovkgp.criticism.rows import kept_observations
from ovkgp.estimators.approximations import num_features
from ovkgp.estimators.summary import count
from ovkgp.inference.likelihoods import PerOutput
from ovkgp.inference.means import PolynomialMean
from ovkgp.plotting.names import output_names
from ovkgp.plotting.report.kinds import class_name
from ovkgp.plotting.report.numbers import show
from ovkgp.plotting.report.structure_words import BASES, LIKELIHOODS, Words

MEANS = {-1: "zero", 0: "a constant for each output", 1: "a linear trend for each output"}
"""By the degree of the polynomial."""


def facts_of(estimator) -> tuple[tuple[str, str], ...]:
    """All facts that apply to a fitted estimator."""
    found = ((name, read(estimator)) for name, read in FACTS.items())
    return tuple((name, how) for name, how in found if how is not None)


def base_words(estimator) -> Words | None:
    """The words of the scalar kernel; None where it is an object, or a part of one."""
    kernel = estimator.kernel
    base = getattr(estimator, "base_kernel", kernel)
    return None if isinstance(kernel, Kernel) or isinstance(base, Kernel) else BASES[base]


def likelihood_names(estimator) -> list[str]:
    """The likelihood of all outputs, or that of each, of a `GPRegressor`."""
    likelihood = getattr(estimator.gp_, "likelihood", None)
    if likelihood is None:
        return ["gaussian"]
    return [one.name for one in likelihood.likelihoods] if isinstance(likelihood, PerOutput) else [likelihood.name]


def is_gp(estimator) -> bool:
    """Whether it is a `GPRegressor`."""
    return class_name(estimator) == "GPRegressor"


def training_goal(estimator) -> str:
    """What the hyperparameters of a trained `GPRegressor` maximise: log evidence, or its bound, plus log priors where there are some."""
    kind = "evidence lower bound" if estimator.approximation_ == "variational" else "evidence"
    has_priors = next(estimator.gp_.named_priors(), None) is not None
    return f"the largest {kind}{' under weak priors' if has_priors else ''}"


def _class(estimator) -> str:
    return type(estimator).__name__


def _base(estimator) -> str:
    if (words := base_words(estimator)) is not None:
        return f"{words.name} ({words.text})"
    kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else estimator.base_kernel
    return f"an object of class {type(kernel).__name__}"


def _likelihood(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    names = likelihood_names(estimator)
    if len(names) == 1:
        return _likelihood_text(names[0])
    pairs = zip(output_names(estimator), names, strict=True)
    return "; ".join(f"{output}: {_likelihood_text(name)}" for output, name in pairs)


def _likelihood_text(name: str) -> str:
    words = LIKELIHOODS.get(name)
    return name if words is None else f"{words.name} ({words.text})"


def _noise(estimator) -> str | None:
    if not is_gp(estimator) or estimator.noise_ is None:
        return None
    data = kept_observations(estimator)
    if data is not None and data.noise is not None:
        return "a known variance for each entry; a new observation has the trained one"
    named = {
        "shared": "one variance for all outputs, trained",
        "per_output": "a variance for each output, trained",
        "full": "correlated between outputs, trained",
    }
    return (
        named.get(estimator.noise, "given, and not trained")
        if isinstance(estimator.noise, str)
        else "given, and not trained"
    )


def _mean(estimator) -> str | None:
    mean = getattr(getattr(estimator, "gp_", None), "mean", None)
    if mean is None:
        return None
    if isinstance(mean, PolynomialMean):
        offset = estimator.scaling_.output_offset if hasattr(estimator, "scaling_") else estimator.offset_
        return "the mean of each output" if mean.degree < 0 and np.any(offset) else MEANS[mean.degree]
    return f"an object of class {type(mean).__name__}"


def _approximation(estimator) -> str | None:
    if is_gp(estimator):
        return _gp_approximation(estimator)
    frequencies = getattr(estimator, "num_frequencies", None)
    if hasattr(estimator, "num_frequencies"):
        return (
            "none: the exact kernel"
            if frequencies is None
            else f"{count(frequencies, 'random frequency', 'random frequencies')}"
        )
    return "none: the exact kernel" if class_name(estimator) in ("OVKRidge", "VectorTaskRegressor") else None


def _gp_approximation(estimator) -> str:
    kind = estimator.approximation_
    if kind == "exact":
        return "none: the exact posterior"
    if kind == "variational":
        return f"variational, {count(len(estimator.gp_.features.points), 'inducing point')}"
    number = num_features(estimator.num_frequencies, kind)
    what = count(number, "random frequency", "random frequencies") if kind == "orff" else count(number, "landmark")
    guard = "; the variance is kept from starving far from the data" if estimator.variance == "guarded" else ""
    return f"{what}{guard}"


def _lam(estimator) -> str | None:
    lam = getattr(estimator, "lam_", getattr(estimator, "lam", None))
    if lam is None:
        return None
    tried = np.size(estimator.lam) if not isinstance(estimator.lam, str) else 0
    tried = len(estimator.lam_path_.lams) if hasattr(estimator, "lam_path_") else tried
    text = f"λ = {show(lam)}"
    text += f", chosen among {tried}" if tried > 1 else ", given"
    convention = getattr(estimator, "convention", None)
    return text if convention is None else f'{text} (convention "{convention}")'


def _levels(estimator) -> str | None:
    if class_name(estimator) != "InfiniteQuantileRegressor":
        return None
    if estimator.coupling == "infinite":
        return f"all between 0 and 1, learned at {count(len(estimator.measure_), 'node')}"
    return f"{', '.join(show(level) for level in estimator.measure_.nodes.tolist())} only ({estimator.coupling})"


def _hyperparameters(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    return {
        "evidence": f"by evidence: the values of {training_goal(estimator)}",
        "fixed": "fixed: those of the kernel that was given",
    }.get(estimator.hyperparameters, f"drawn from their posterior ({estimator.hyperparameters})")


def _candidates(estimator) -> str | None:
    scores = getattr(estimator, "candidates_", None)
    if scores is None:
        return None
    listed = ", ".join(f"{name} {show(score, 6)}" for name, score in scores.items())
    return f"{listed} (log evidence less one for each parameter; the larger was taken)"


def _evidence(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    kind = "evidence lower bound" if estimator.approximation_ == "variational" else "log evidence"
    each = estimator.log_evidence_ / max(1, int(estimator._num_seen.sum()))
    return f"{kind} {show(estimator.log_evidence_, 6)}, {show(each)} for each observed entry"


def _training(estimator) -> str | None:
    report = getattr(estimator, "fit_report_", None)
    if report is None:
        return None
    gap = f", duality gap {show(estimator.gap_, 2)}" if hasattr(estimator, "gap_") else ""
    return f"{report.message}; {count(report.iterations, 'iteration')}{gap}"


FACTS: dict[str, Callable] = {
    "Estimator": _class,
    "Kernel of the inputs": _base,
    "Likelihood": _likelihood,
    "Noise": _noise,
    "Prior mean": _mean,
    "Approximation": _approximation,
    "Penalty": _lam,
    "Levels": _levels,
    "Hyperparameters": _hyperparameters,
    "Candidates": _candidates,
    "Evidence": _evidence,
    "Training": _training,
}
"""What is said of a model, in this order."""
