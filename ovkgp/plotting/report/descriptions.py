"""Model section of a report: names, sentences, formulas and facts that describe a fitted estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gpytorch.kernels import Kernel

from ovkgp.estimators.common.named_kernels import num_features
from ovkgp.estimators.common.summary import pluralize
from ovkgp.inference.likelihoods import PerOutput
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.plotting.axes import get_output_names
from ovkgp.plotting.report.evaluation_data import get_class_name
from ovkgp.plotting.report.numbers import format_number
from ovkgp.plotting.report.sections import ModelDescription


class Description(NamedTuple):
    """Name, sentences, and formula in the notation of `page.format_formula`."""

    name: str
    text: str
    formula: str


ESTIMATORS = {  # descriptions by class name
    "GPRegressor": Description(
        "Gaussian-process regression",
        "The outputs are observations of an unknown function f with a Gaussian-process prior. Predictions are its posterior given the data, with their uncertainty.",
        "f ~ GP(m, K)",
    ),
    "OVKRidge": Description(
        "ridge regression with an operator-valued kernel",
        "The fit minimizes squared errors plus a penalty on the norm of the function. It is the posterior mean of a "
        "Gaussian process with noise σ², which provides the standard deviations. Nothing is trained: λ was given, "
        "or selected among several values.",
        "f = argmin Σ_i ‖y_i − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2",
    ),
    "ORFFRidge": Description(
        "ridge regression on random features",
        "The kernel is approximated by random Fourier features Φ. The fit minimizes squared errors plus a penalty "
        "on the weights θ of the features. It is the posterior mean of a Gaussian process with noise σ². Nothing is "
        "trained: λ was given, or selected among several values.",
        "f(x) = Φ(x) θ,   θ = argmin ‖y − Φθ‖^2/(2σ^2) + ‖θ‖^2/2",
    ),
    "ManifoldRidge": Description(
        "ridge regression on a manifold",
        "Few rows are labeled; the unlabeled rows define the manifold penalty. In addition to the norm of the "
        "function, its changes between neighboring rows are penalized, so that labels propagate along the shape of "
        "the data.",
        "f = argmin Σ_{labeled} ‖y_i − f(x_i)‖^2/(2n) + (λ/2) ‖f‖_K^2 + (λ_M/2) Σ_{ij} ⟨f(x_i), M_{ij} f(x_j)⟩",
    ),
    "ONORMA": Description(
        "online regression with an operator-valued kernel",
        "The function is learned row by row with stochastic gradients and bounded memory. Standard deviations are conditional on the stored points only, and so are upper bounds.",
        "f ← (1 − ηλ) f − η K(·, x)(f(x) − y)",
    ),
    "ConstrainedORFF": Description(
        "random features with bounded weights",
        "Least squares on random features whose weights are constrained to a ball for each frequency. There is no posterior, and so no standard deviation.",
        "min Σ_i ‖Φ(x_i)θ − y_i‖^2/(2n)   subject to ‖θ_j‖ ≤ M/√D",
    ),
    "VectorTaskRegressor": Description(
        "vectors at every point of a space of tasks",
        "The model predicts a vector for each input x and each task θ, including tasks that are not in the training data. It is a Gaussian process on pairs (x, θ).",
        "K((x, θ), (x′, θ′)) = s^2 k_X(x, x′) k_Θ(θ, θ′) A",
    ),
    "InfiniteQuantileRegressor": Description(
        "all conditional quantiles at once",
        "The model is a function h of the input and the level: the quantile of y at any level τ between 0 and 1. A "
        "kernel between levels shares information among them. The loss is the pinball loss ρ, averaged over all "
        "levels.",
        "h = argmin (1/n) Σ_i ∫ ρ_τ(y_i − h(x_i)(τ)) dτ + (λ/2) ‖h − b‖^2",
    ),
    "InfiniteCostSensitiveClassifier": Description(
        "classification for all misclassification costs",
        "The model is a support vector machine for each cost c of missing the second class, all of them learned jointly. At any cost, h ≥ 0 predicts the second class.",
        "h = argmin (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖^2",
    ),
    "InfiniteOneClassSVM": Description(
        "level sets of every mass",
        "For each fraction ν, the model estimates a set that excludes about ν of the data: one-class support vector "
        "machines of all levels, fitted jointly. Points outside of the set of a small ν are outliers.",
        "P(h(x)(ν) ≥ t(ν)) ≈ 1 − ν",
    ),
    "SimplexClassifier": Description(
        "classes as vertices of a simplex",
        "Each class is a vertex of a simplex, and a ridge regression with an operator-valued kernel predicts a point in it. Scores are converted to probabilities by calibration on held-out rows.",
        "f = argmin Σ_i ‖c_{y(i)} − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2,   score_k(x) = ⟨c_k, f(x)⟩",
    ),
}

STRUCTURES = {  # descriptions by structure, as in `kernel_`; "single" is any of one output, "identity" is k(x, z) I
    "single": Description(
        "one output", "The covariance is that of one output, a scalar kernel times a variance.", "K(x, z) = s^2 k(x, z)"
    ),
    "independent": Description(
        "independent outputs",
        "Each output is a separate Gaussian process with its own variance and lengthscales. Observations of one output carry no information about another.",
        "K(x, z) = diag(s_1^2 k_1(x, z), …, s_p^2 k_p(x, z))",
    ),
    "identity": Description(
        "independent outputs with one kernel",
        "All outputs share one kernel of the inputs and are independent of each other.",
        "K(x, z) = k(x, z) I",
    ),
    "decomposable": Description(
        "coupled outputs (ICM)",
        "All outputs share one kernel of the inputs, and a matrix B contains the covariances between the outputs: "
        "an output with few observations borrows strength from the others. This is the intrinsic coregionalization "
        "model.",
        "K(x, z) = k(x, z) B,   B_{ab} = cov(f_a(x), f_b(x))",
    ),
    "lmc": Description(
        "coupled outputs on several scales (LMC)",
        "The outputs are mixtures of several latent processes, each with its own lengthscales: some variation may "
        "be shared over long distances and some over short ones. This is the linear model of coregionalization.",
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

DISTANCE = "r^2 = Σ_i (x_i − z_i)^2/ℓ_i^2"  # definition of r in the formulas of `BASES`
BASES = {  # descriptions by scalar kernel
    "rbf": Description("squared exponential", "draws are infinitely smooth", f"k(x, z) = exp(−r^2/2),   {DISTANCE}"),
    "matern12": Description("Matérn 1/2", "draws are continuous and rough", f"k(x, z) = exp(−r),   {DISTANCE}"),
    "matern32": Description(
        "Matérn 3/2", "draws have one derivative", f"k(x, z) = (1 + √3 r) exp(−√3 r),   {DISTANCE}"
    ),
    "matern52": Description(
        "Matérn 5/2", "draws have two derivatives", f"k(x, z) = (1 + √5 r + 5r^2/3) exp(−√5 r),   {DISTANCE}"
    ),
    "rq": Description(
        "rational quadratic", "a mixture of lengthscales", f"k(x, z) = (1 + r^2/(2α))^{{−α}},   {DISTANCE}"
    ),
    "laplace": Description("Laplace", "draws are continuous and rough", "k(x, z) = exp(−Σ_i |x_i − z_i|/ℓ_i)"),
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
EXACT_KERNEL = "none: the exact kernel"


def describe_model(estimator) -> ModelDescription:
    """Describe a fitted estimator in sentences, formulas and facts."""
    own, structure = ESTIMATORS[get_class_name(estimator)], get_structure(estimator)
    name = own.name if structure is None else f"{own.name}: {STRUCTURES[structure].name}"
    parts = [own, *([] if structure is None else [STRUCTURES[structure]])]
    formulas = [part.formula for part in parts]
    if (base := describe_base_kernel(estimator)) is not None:
        formulas.append(base.formula)
    if is_gp(estimator):
        names = dict.fromkeys(_get_likelihood_names(estimator))
        formulas += [LIKELIHOODS[name].formula for name in names if name in LIKELIHOODS]
    texts = tuple(part.text for part in parts)
    return ModelDescription(name[:1].upper() + name[1:], texts, tuple(formulas), list_facts(estimator))


def get_structure(estimator) -> str | None:
    """Return the structure of the kernel, a key of `STRUCTURES`; None for estimators without a choice."""
    structure = getattr(estimator, "kernel_", None)
    if structure in SINGLE_OUTPUT_STRUCTURES and estimator.n_outputs_ == 1:
        return "single"
    if structure is None or is_gp(estimator):
        return structure
    if structure in ("auto", "independent"):  # of a ridge, one kernel for all outputs
        return "identity" if estimator.output_matrix is None else "decomposable"
    return structure


def describe_base_kernel(estimator) -> Description | None:
    """Describe the scalar kernel; None if it is an object or part of one."""
    kernel = estimator.kernel
    base = getattr(estimator, "base_kernel", kernel)
    return None if isinstance(kernel, Kernel) or isinstance(base, Kernel) else BASES[base]


def is_gp(estimator) -> bool:
    """Whether the estimator is a `GPRegressor`."""
    return get_class_name(estimator) == "GPRegressor"


def describe_training_goal(estimator) -> str:
    """Name what training of a `GPRegressor` maximized: the evidence, or its bound, with or without priors."""
    kind = "evidence lower bound" if estimator.approximation_ == "variational" else "evidence"
    has_priors = next(estimator.gp_.named_priors(), None) is not None
    return f"the largest {kind}{' under weak priors' if has_priors else ''}"


def _get_likelihood_names(estimator) -> list[str]:
    """Return the likelihood of all outputs, or of each, of a `GPRegressor`."""
    likelihood = getattr(estimator.gp_, "likelihood", None)
    if likelihood is None:
        return ["gaussian"]
    return [one.name for one in likelihood.likelihoods] if isinstance(likelihood, PerOutput) else [likelihood.name]


def list_facts(estimator) -> tuple[tuple[str, str], ...]:
    """List all pairs (property, value) that apply to a fitted estimator."""
    found = ((name, describe(estimator)) for name, describe in FACTS.items())
    return tuple((name, value) for name, value in found if value is not None)


def _describe_class(estimator) -> str:
    return type(estimator).__name__


def _describe_kernel(estimator) -> str:
    if (base := describe_base_kernel(estimator)) is not None:
        return f"{base.name} ({base.text})"
    kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else estimator.base_kernel
    return f"an object of class {type(kernel).__name__}"


def _describe_likelihood(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    texts = [
        name if (known := LIKELIHOODS.get(name)) is None else f"{known.name} ({known.text})"
        for name in _get_likelihood_names(estimator)
    ]
    if len(texts) == 1:
        return texts[0]
    return "; ".join(f"{output}: {text}" for output, text in zip(get_output_names(estimator), texts, strict=True))


def _describe_noise(estimator) -> str | None:
    if not is_gp(estimator) or estimator.noise_ is None:
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


def _describe_mean(estimator) -> str | None:
    mean = getattr(getattr(estimator, "gp_", None), "mean", None)
    if mean is None:
        return None
    if isinstance(mean, PolynomialMean):
        offset = estimator.scaling_.output_offset if hasattr(estimator, "scaling_") else estimator.offset_
        return "the mean of each output" if mean.degree < 0 and np.any(offset) else MEANS[mean.degree]
    return f"an object of class {type(mean).__name__}"


def _describe_approximation(estimator) -> str | None:
    if is_gp(estimator):
        return _describe_gp_approximation(estimator)
    if hasattr(estimator, "num_frequencies"):
        return EXACT_KERNEL if estimator.num_frequencies is None else _count_frequencies(estimator.num_frequencies)
    return EXACT_KERNEL if get_class_name(estimator) in ("OVKRidge", "VectorTaskRegressor") else None


def _describe_gp_approximation(estimator) -> str:
    kind = estimator.approximation_
    if kind == "exact":
        return "none: the exact posterior"
    if kind == "variational":
        return f"variational, {pluralize(len(estimator.gp_.features.points), 'inducing point')}"
    number = num_features(estimator.num_frequencies, kind)
    features = _count_frequencies(number) if kind == "orff" else pluralize(number, "landmark")
    floor = "; the variance is bounded from below far from the data" if estimator.variance == "guarded" else ""
    return f"{features}{floor}"


def _count_frequencies(number: int) -> str:
    return pluralize(number, "random frequency", "random frequencies")


def _describe_penalty(estimator) -> str | None:
    lam = getattr(estimator, "lam_", getattr(estimator, "lam", None))
    if lam is None:
        return None
    num_values = np.size(estimator.lam) if not isinstance(estimator.lam, str) else 0
    num_values = len(estimator.lam_path_.lams) if hasattr(estimator, "lam_path_") else num_values
    text = f"λ = {format_number(lam)}"
    text += f", selected among {num_values}" if num_values > 1 else ", given"
    convention = getattr(estimator, "convention", None)
    return text if convention is None else f'{text} (convention "{convention}")'


def _describe_levels(estimator) -> str | None:
    if get_class_name(estimator) != "InfiniteQuantileRegressor":
        return None
    if estimator.coupling == "infinite":
        return f"all between 0 and 1, learned at {pluralize(len(estimator.measure_), 'node')}"
    return (
        f"{', '.join(format_number(level) for level in estimator.measure_.nodes.tolist())} only ({estimator.coupling})"
    )


def _describe_hyperparameters(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    return {
        "evidence": f"by evidence: the values of {describe_training_goal(estimator)}",
        "fixed": "fixed at the values of the given kernel",
    }.get(estimator.hyperparameters, f"sampled from their posterior ({estimator.hyperparameters})")


def _describe_candidates(estimator) -> str | None:
    scores = getattr(estimator, "candidates_", None)
    if scores is None:
        return None
    text = ", ".join(f"{name} {format_number(score, 6)}" for name, score in scores.items())
    return f"{text} (log evidence − number of hyperparameters; the larger was selected)"


def _describe_evidence(estimator) -> str | None:
    if not is_gp(estimator):
        return None
    kind = "evidence lower bound" if estimator.approximation_ == "variational" else "log evidence"
    per_entry = estimator.log_evidence_ / max(1, int(estimator._num_observed.sum()))
    return f"{kind} {format_number(estimator.log_evidence_, 6)}, {format_number(per_entry)} per observed entry"


def _describe_training(estimator) -> str | None:
    report = getattr(estimator, "fit_report_", None)
    if report is None:
        return None
    gap = f", duality gap {format_number(estimator.gap_, 2)}" if hasattr(estimator, "gap_") else ""
    return f"{report.message}; {pluralize(report.iterations, 'iteration')}{gap}"


FACTS: dict[str, Callable] = {  # properties of a model, in the order of the page
    "Estimator": _describe_class,
    "Kernel of the inputs": _describe_kernel,
    "Likelihood": _describe_likelihood,
    "Noise": _describe_noise,
    "Prior mean": _describe_mean,
    "Approximation": _describe_approximation,
    "Penalty": _describe_penalty,
    "Levels": _describe_levels,
    "Hyperparameters": _describe_hyperparameters,
    "Candidates": _describe_candidates,
    "Evidence": _describe_evidence,
    "Training": _describe_training,
}
