"""Names, sentences, formulas and facts that describe fitted estimators in summaries and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gpytorch.kernels import Kernel

from ovkgp.estimators.common.formatting import format_number
from ovkgp.estimators.common.named_kernels import DEFAULT_BASE_KERNEL, num_features
from ovkgp.estimators.common.summary import describe_candidates, evidence_name, likelihood_names, pluralize
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.kernels.records import NamedKernel, named_kernels


class Description(NamedTuple):
    """Name, sentences, and formula in the notation of `ovkgp.plotting.report.page.format_formula`."""

    name: str
    text: str
    formula: str


@dataclass(frozen=True)
class ModelDescription:
    """Fitted model: name, sentences, formulas, pairs (property, value), and what is known of its training data."""

    name: str
    paragraphs: tuple[str, ...]
    formulas: tuple[str, ...]
    facts: tuple[tuple[str, str], ...] = ()
    structure: str | None = None  # of the kernel, a key of `STRUCTURES`
    calibration: str = ""  # how predictions were calibrated, or why this is not assessed without held-out rows
    warnings: tuple[str, ...] = ()
    num_rows: int | None = None  # number of training rows
    num_observed: np.ndarray | None = None  # observed training entries of each output
    num_entries: int | None = None  # observed training entries of all outputs


STRUCTURES = {  # descriptions by structure, as in `kernel_`; "single" is any of one output, "identity" is k(x, z) I
    "single": Description(
        "one output", "The covariance is that of one output, a scalar kernel times a variance.", "K(x, z) = s^2 k(x, z)"
    ),
    "independent": Description(
        "independent outputs",
        "Each output is a separate Gaussian process with its own variance and lengthscales. Observations of one output carry no information about another.",
        "K(x, z) = diag(s_1^2 k_1(x, z), …, s_p^2 k_p(x, z))",
    ),
    "auto": Description(
        "a mixture of models",
        "The outputs are modeled by several candidates, which are averaged with weights that maximize the density of held-out rows: independent Gaussian processes with and without a linear term and, where outputs are missing, rows are few or the outputs may be a vector field, coupled ones. New observations of independent outputs at one point are correlated like the leave-one-out residuals.",
        "p(y) = Σ_k w_k p_k(y),   k_k(x, z) = 1 + v x · z + s^2 κ_k(x, z)",
    ),
    "identity": Description(
        "independent outputs with one kernel",
        "All outputs share one kernel of the inputs and are independent of each other.",
        "K(x, z) = k(x, z) I",
    ),
    "decomposable": Description(
        "coupled outputs (ICM)",
        "All outputs share one kernel of the inputs, and a matrix B contains the covariances between the outputs: an output with few observations borrows strength from the others. This is the intrinsic coregionalization model.",
        "K(x, z) = k(x, z) B,   B_{ab} = cov(f_a(x), f_b(x))",
    ),
    "lmc": Description(
        "coupled outputs on several scales (LMC)",
        "The outputs are mixtures of several latent processes, each with its own lengthscales: some variation may be shared over long distances and some over short ones. This is the linear model of coregionalization.",
        "K(x, z) = Σ_q k_q(x, z) B_q",
    ),
    "curl_free": Description(
        "a curl-free vector field",
        "The outputs are the components of a field that is the gradient of a potential φ. Every draw of the model and its mean are curl-free.",
        "f = ∇φ,   φ ~ GP(0, s^2 k),   K(x, z) = −s^2 ∇∇^⊤ k(x − z)",
    ),
    "divergence_free": Description(
        "a divergence-free vector field",
        "The outputs are the components of a field without sources and sinks, such as an incompressible flow. Every draw of the model and its mean are divergence-free.",
        "div f = 0,   K(x, z) = s^2 (∇∇^⊤ − I Δ) k(x − z)",
    ),
    "helmholtz": Description(
        "a vector field in two parts (Helmholtz)",
        "The outputs are the components of a vector field, the sum of a curl-free and a divergence-free part. Each part has its own scale and lengthscale.",
        "f = f_c + f_d,   K(x, z) = −s_c^2 ∇∇^⊤ k_c(x − z) + s_d^2 (∇∇^⊤ − I Δ) k_d(x − z)",
    ),
    "given": Description(
        "a custom kernel",
        "The covariance is a custom kernel object. Its hyperparameters have the names of its attributes.",
        "K(x, z) = cov(f(x), f(z))",
    ),
}

LIKELIHOODS = {  # descriptions by likelihood
    "gaussian": Description(
        "Gaussian", "observations are the function plus Gaussian noise", "y_a = f_a(x) + ε_a,   ε_a ~ N(0, σ_a^2)"
    ),
    "student_t": Description(
        "Student-t",
        "errors have heavy tails, so outliers have little weight",
        "y_a = f_a(x) + σ_a t_a,   t_a ~ Student(ν_a)",
    ),
    "laplace": Description("Laplace", "errors have heavy tails; f is the median", "p(y_a | f) ∝ exp(−|y_a − f_a|/σ_a)"),
    "asymmetric_laplace": Description("asymmetric Laplace", "f is a quantile", "p(y_a | f) ∝ exp(−ρ_τ(y_a − f_a)/σ_a)"),
    "huber": Description(
        "Huber", "errors are Gaussian in the center and Laplace in the tails", "p(y_a | f) ∝ exp(−H(y_a − f_a)/σ_a)"
    ),
    "asymmetric_huber": Description(
        "asymmetric Huber",
        "f is an M-quantile; errors are Gaussian in the center and Laplace in the tails",
        "p(y_a | f) ∝ exp(−w ψ_κ(y_a − f_a)/σ_a),   w = τ above f_a, 1 − τ below",
    ),
    "epsilon_insensitive": Description(
        "ε-insensitive",
        "small errors are equally likely, larger ones are Gaussian",
        "p(y_a | f) ∝ exp(−max(|y_a − f_a| − ε, 0)^2/(2σ_a^2))",
    ),
    "log_cosh": Description(
        "log-cosh",
        "errors are Gaussian in the center and Laplace in the tails, smoothly",
        "p(y_a | f) ∝ exp(−log cosh(ν(y_a − f_a))/(νσ_a))",
    ),
    "bernoulli": Description("Bernoulli", "labels 0 and 1; f is a log-odds", "P(y_a = 1) = 1/(1 + exp(−f_a(x)))"),
    "poisson": Description("Poisson", "counts; f is the logarithm of the expected count", "y_a ~ Poisson(exp f_a(x))"),
    "negative_binomial": Description(
        "negative binomial",
        "overdispersed counts; f is the logarithm of the expected count",
        "y_a ~ NB(exp f_a(x), r_a)",
    ),
    "softmax": Description("softmax", "classes, one column each", "P(y = a) = exp f_a(x) / Σ_b exp f_b(x)"),
}

MEANS = {-1: "zero", 0: "a constant for each output", 1: "a linear trend for each output"}  # by degree
SINGLE_OUTPUT_STRUCTURES = ("auto", "independent", "decomposable")  # structures that are equal for a single output
FACTS = (  # properties of a model, in the order of a report
    *("Estimator", "Kernel of the inputs", "Likelihood", "Noise", "Prior mean", "Approximation", "Penalty", "Levels"),
    *("Hyperparameters", "Candidates", "Evidence", "Training"),
)
EXACT_KERNEL = "none: the exact kernel"
NO_STD = "This estimator predicts no standard deviation, so there is nothing to calibrate."
NO_LEAVE_ONE_OUT = "Calibration is not assessed because this model has no leave-one-out predictions. Give rows that were not used for the fit (X=, Y=, or --data)."
NO_VARIANCE_FLOOR = 'With finitely many features, variances far from the data are underestimated (variance="features"). Use variance="guarded" if predictions there matter.'


def compose_description(
    own: Description,
    base: NamedKernel | None,
    facts: dict[str, str | None],
    structure: str | None,
    formulas=(),
    **about,
) -> ModelDescription:
    """Compose the description of an estimator from its parts; `about` has further fields of `ModelDescription`."""
    parts = [own, *([] if structure is None else [STRUCTURES[structure]])]
    name = ": ".join(part.name for part in parts)
    formulas = (*(part.formula for part in parts), *([] if base is None else [base.formula]), *formulas)
    known = tuple((fact, facts[fact]) for fact in FACTS if facts.get(fact) is not None)
    texts = tuple(part.text for part in parts)
    return ModelDescription(name[:1].upper() + name[1:], texts, formulas, known, structure, **about)


def describe_base_kernel(options: dict[str, Any]) -> NamedKernel | None:
    """Describe the scalar kernel of an estimator with these options; None if it is an object, or there is none."""
    kernel = options.get("kernel")
    base = options.get("base_kernel", kernel)
    base = DEFAULT_BASE_KERNEL if base == "auto" and kernel != "auto" else base
    return None if isinstance(kernel, Kernel) or isinstance(base, Kernel) else named_kernels().get(base)


def describe_options(options: dict[str, Any]) -> dict[str, str | None]:
    """Describe the kernel of the inputs and its approximation."""
    facts, kernel, base = {}, options.get("kernel"), describe_base_kernel(options)
    kernel = kernel if isinstance(kernel, Kernel) else options.get("base_kernel", kernel)
    if base is not None or isinstance(kernel, Kernel):
        name = f"an object of class {type(kernel).__name__}" if base is None else f"{base.title} ({base.description})"
        facts["Kernel of the inputs"] = name
    number, approximation = options.get("num_frequencies", "auto"), options.get("approximation", "orff")
    if number != "auto":
        is_exact = number is None or approximation == "exact"
        facts["Approximation"] = EXACT_KERNEL if is_exact else _count_features(number, approximation)
    return facts


def describe_penalty(estimator, options: dict[str, Any]) -> str | None:
    """Describe λ, the number of values that it was selected among, and its convention."""
    if "lam" not in options:
        return None
    num_values = 0 if isinstance(estimator.lam, str) else np.size(estimator.lam)
    num_values = len(estimator.lam_path_.lams) if hasattr(estimator, "lam_path_") else num_values
    text = f"λ = {format_number(getattr(estimator, 'lam_', estimator.lam))}"
    text += f", selected among {num_values}" if num_values > 1 else ", given"
    return f'{text} (convention "{options["convention"]}")' if "convention" in options else text


def describe_training(estimator) -> str | None:
    """Describe the end of an iterative training."""
    if (report := estimator.fit_report) is None:
        return None
    gap = f", duality gap {format_number(estimator.gap_, 2)}" if hasattr(estimator, "gap_") else ""
    return f"{report.message}; {pluralize(report.iterations, 'iteration')}{gap}"


def describe_mean(mean, offset: np.ndarray) -> str:
    """Describe the prior mean of a Gaussian process whose outputs were centered by `offset`."""
    if isinstance(mean, PolynomialMean):
        return "the mean of each output" if mean.degree < 0 and np.any(offset) else MEANS[mean.degree]
    return f"an object of class {type(mean).__name__}"


def describe_training_goal(estimator) -> str:
    """Name what training of a `GPRegressor` maximized: the evidence, or its bound, under default or given priors."""
    kind = "evidence lower bound" if estimator.approximation_ == "variational" else "evidence"
    objects = [option for option in (estimator.kernel, estimator.base_kernel) if isinstance(option, Kernel)]
    has_given = any(True for kernel in objects for _ in kernel.named_priors())
    return f"the largest {kind} under {'the given and ' if has_given else ''}weak priors"


def list_likelihood_formulas(estimator) -> tuple[str, ...]:
    """List the formulas of the likelihoods of a `GPRegressor`."""
    names = dict.fromkeys(likelihood_names(estimator.likelihood_))
    return tuple(LIKELIHOODS[name].formula for name in names if name in LIKELIHOODS)


def describe_gp(estimator) -> dict[str, str | None]:
    """Describe likelihood, noise, approximation and training of a `GPRegressor`."""
    return {
        "Likelihood": _describe_likelihood(estimator),
        "Noise": _describe_noise(estimator),
        "Approximation": _describe_approximation(estimator),
        "Hyperparameters": {
            "auto": _describe_automatic_hyperparameters(estimator),
            "evidence": f"by evidence: the values of {describe_training_goal(estimator)}",
            "fixed": "fixed at the values of the given kernel",
        }.get(estimator.hyperparameters, f"sampled from their posterior ({estimator.hyperparameters})"),
        "Candidates": _describe_candidates(estimator),
        "Evidence": _describe_evidence(estimator),
    }


def _describe_automatic_hyperparameters(estimator) -> str:
    if estimator.averages_draws:
        number = len(estimator.posterior_)
        return f"averaged over {number} draws around the mode of their posterior, with output matrices at the mode"
    states = [state for state in getattr(estimator.posterior_, "states", ()) if isinstance(state, list)]
    draws = [len(draws.weights) for state in states for draws in state]
    if max(draws, default=1) > 1:
        return f"averaged over up to {max(draws)} weighted draws per candidate and output, around the mode of their posterior"
    return f"by evidence: the values of {describe_training_goal(estimator)}"


def _describe_likelihood(estimator) -> str:
    texts = [
        name if (known := LIKELIHOODS.get(name)) is None else f"{known.name} ({known.text})"
        for name in likelihood_names(estimator.likelihood_)
    ]
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{output}: {text}" for output, text in zip(estimator.output_labels(), texts, strict=True))


def _describe_noise(estimator) -> str | None:
    if estimator.noise_ is None:
        return None
    data = estimator.training_observations()
    if data is not None and data.noise is not None:
        return "a known variance for each entry; new observations have the trained one"
    trained = {
        "shared": "one variance for all outputs, trained",
        "per_output": "a variance for each output, trained",
        "full": "correlated between outputs, trained",
    }
    fixed = "given, not trained"
    return trained.get(estimator.noise, fixed) if isinstance(estimator.noise, str) else fixed


def _describe_approximation(estimator) -> str:
    kind = estimator.approximation_
    if kind == "exact":
        return "none: the exact posterior"
    if kind == "variational":
        return f"variational, {pluralize(len(estimator.gp_.features.points), 'inducing point')}"
    number = num_features(estimator.num_frequencies, kind)
    floor = "; the variance is bounded from below far from the data" if estimator.variance == "guarded" else ""
    return f"{_count_features(number, kind)}{floor}"


def _count_features(number: int, approximation: str) -> str:
    if approximation == "orff":
        return pluralize(number, "random frequency", "random frequencies")
    return pluralize(number, "landmark")


def _describe_candidates(estimator) -> str | None:
    candidates = getattr(estimator, "candidates_", None)
    return None if candidates is None else describe_candidates(candidates, evidence_name(estimator))


def _describe_evidence(estimator) -> str:
    per_entry = estimator.log_evidence_ / max(1, int(estimator._num_observed.sum()))
    evidence = format_number(estimator.log_evidence_, 6)
    return f"{evidence_name(estimator)} {evidence}, {format_number(per_entry)} per observed entry"
