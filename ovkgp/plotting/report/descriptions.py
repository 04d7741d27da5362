"""The model of a report: which words of the tables apply to a fitted estimator, and the facts that go with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gpytorch.kernels import Kernel

from ovkgp.criticism.predictive_distributions import kept_observations
from ovkgp.estimators.common.named_kernels import num_features
from ovkgp.estimators.common.summary import count
from ovkgp.inference.likelihoods import PerOutput
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.plotting.axes import output_names
from ovkgp.plotting.report.evaluation_data import class_name
from ovkgp.plotting.report.numbers import show
from ovkgp.plotting.report.sections import ModelWords


class Description(NamedTuple):
    """A name for readers, sentences, and a formula in the language of `formulas`."""

    name: str
    text: str
    formula: str


STRUCTURES = {
    "single": Description(
        "one output",
        "The covariance is that of one output, a scalar kernel times a variance.",
        "K(x, z) = s^2 k(x, z)",
    ),
    "independent": Description(
        "independent outputs",
        "Each output is a Gaussian process of its own, with its own variance and lengthscales. What is learned of one output says "
        "nothing about another.",
        "K(x, z) = diag(s_1^2 k_1(x, z), …, s_p^2 k_p(x, z))",
    ),
    "identity": Description(
        "independent outputs with one kernel",
        "All outputs share one kernel of the inputs and are independent of each other.",
        "K(x, z) = k(x, z) I",
    ),
    "decomposable": Description(
        "coupled outputs (ICM)",
        "All outputs share one kernel of the inputs, and a matrix B between the outputs says how they vary together: an output with few "
        "observations borrows from the others. This is the intrinsic coregionalisation model.",
        "K(x, z) = k(x, z) B,   B_{ab} = cov(f_a(x), f_b(x))",
    ),
    "lmc": Description(
        "coupled outputs on several scales (LMC)",
        "The outputs are mixtures of several latent processes, each with its own lengthscales: some variation may be shared over long "
        "distances and some over short ones. This is the linear model of coregionalisation.",
        "K(x, z) = Σ_q k_q(x, z) B_q",
    ),
    "curl_free": Description(
        "a curl-free vector field",
        "The outputs are the components of a field that is the gradient of a potential φ. Every draw of the model is curl-free, "
        "and so is its mean.",
        "f = ∇φ,   φ ~ GP(0, s^2 k),   K(x, z) = −s^2 ∇∇^⊤ k(x − z)",
    ),
    "divergence_free": Description(
        "a divergence-free vector field",
        "The outputs are the components of a field without sources and sinks, such as an incompressible flow. Every draw of the model is "
        "divergence-free, and so is its mean.",
        "div f = 0,   K(x, z) = s^2 (∇∇^⊤ − I Δ) k(x − z)",
    ),
    "helmholtz": Description(
        "a vector field in two parts (Helmholtz)",
        "The outputs are the components of a vector field, the sum of a gradient (curl-free) and a swirl (divergence-free). Each "
        "part has its own scale and lengthscale, and the data say how much there is of each.",
        "f = f_c + f_d,   K(x, z) = −s_c^2 ∇∇^⊤ k_c(x − z) + s_d^2 (∇∇^⊤ − I Δ) k_d(x − z)",
    ),
    "given": Description(
        "a kernel that was given",
        "The covariance is a kernel object that the user made. Its hyperparameters are named as its author named them.",
        "K(x, z) = cov(f(x), f(z))",
    ),
}
"""By the name of the structure, as `kernel_` has it; "single" is any of them that a single output leaves the same, and "identity" that
of ridge regressions with k(x, z) I."""

DISTANCE = "r^2 = Σ_i (x_i − z_i)^2/ℓ_i^2"
"""What r is in the formulas of `BASES`."""

BASES = {
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
"""By the name of the scalar kernel."""

LIKELIHOODS = {
    "gaussian": Description(
        "Gaussian", "observations are the function plus Gaussian noise", "y_a = f_a(x) + ε_a,   ε_a ~ N(0, σ_a^2)"
    ),
    "student_t": Description(
        "Student-t",
        "errors have heavy tails, so that outliers count little",
        "y_a = f_a(x) + σ_a t_a,   t_a ~ Student(ν_a)",
    ),
    "laplace": Description("Laplace", "errors have heavy tails; f is the median", "p(y_a | f) ∝ exp(−|y_a − f_a|/σ_a)"),
    "asymmetric_laplace": Description("asymmetric Laplace", "f is a quantile", "p(y_a | f) ∝ exp(−ρ_τ(y_a − f_a)/σ_a)"),
    "huber": Description(
        "Huber", "errors are Gaussian in the middle and Laplace in the tails", "p(y_a | f) ∝ exp(−H(y_a − f_a)/σ_a)"
    ),
    "bernoulli": Description("Bernoulli", "labels 0 and 1; f is a log-odds", "P(y_a = 1) = 1/(1 + exp(−f_a(x)))"),
    "poisson": Description("Poisson", "counts; f is the logarithm of the expected count", "y_a ~ Poisson(exp f_a(x))"),
    "negative_binomial": Description(
        "negative binomial",
        "counts that spread more than Poisson ones; f is the logarithm of the expected count",
        "y_a ~ NB(exp f_a(x), r_a)",
    ),
    "softmax": Description("softmax", "classes, one column each", "P(y = a) = exp f_a(x) / Σ_b exp f_b(x)"),
}
"""By the name of the likelihood."""


ESTIMATORS = {
    "GPRegressor": Description(
        "Gaussian-process regression",
        "The outputs are observations of an unknown function f with a Gaussian-process prior. Predictions are its posterior "
        "given the data, so that each comes with its uncertainty.",
        "f ~ GP(m, K)",
    ),
    "OVKRidge": Description(
        "ridge regression with an operator-valued kernel",
        "The fit weighs squared errors against the norm of the function. It is the posterior mean of a Gaussian process with noise "
        "σ², from which the standard deviations come. Nothing is trained: λ was given, or chosen among several.",
        "f = argmin Σ_i ‖y_i − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2",
    ),
    "ORFFRidge": Description(
        "ridge regression on random features",
        "The kernel is replaced by random Fourier features Φ, and the fit weighs squared errors against the size of their weights θ. It "
        "is the posterior mean of a Gaussian process with noise σ². Nothing is trained: λ was given, or chosen among several.",
        "f(x) = Φ(x) θ,   θ = argmin ‖y − Φθ‖^2/(2σ^2) + ‖θ‖^2/2",
    ),
    "ManifoldRidge": Description(
        "ridge regression on a manifold",
        "Few rows have labels; those without say where the function may vary. Beside the norm of the function, what it changes between "
        "neighbouring rows is penalised, so that labels spread along the shape of the data.",
        "f = argmin Σ_{labelled} ‖y_i − f(x_i)‖^2/(2n) + (λ/2) ‖f‖_K^2 + (λ_M/2) Σ_{ij} ⟨f(x_i), M_{ij} f(x_j)⟩",
    ),
    "ONORMA": Description(
        "online regression with an operator-valued kernel",
        "The function is learned one row at a time by stochastic gradients, in memory that does not grow. Standard deviations are "
        "given the kept points only, and so are upper bounds.",
        "f ← (1 − ηλ) f − η K(·, x)(f(x) − y)",
    ),
    "ConstrainedORFF": Description(
        "random features with bounded weights",
        "Least squares on random features whose weights are held in a ball for each frequency. There is no posterior, and so no "
        "standard deviation.",
        "min Σ_i ‖Φ(x_i)θ − y_i‖^2/(2n)   subject to ‖θ_j‖ ≤ M/√D",
    ),
    "VectorTaskRegressor": Description(
        "vectors at every point of a space of tasks",
        "The model learns a vector for each input x and each task θ, and so answers at tasks that were never seen. It is a Gaussian "
        "process on pairs (x, θ).",
        "K((x, θ), (x′, θ′)) = s^2 k_X(x, x′) k_Θ(θ, θ′) A",
    ),
    "InfiniteQuantileRegressor": Description(
        "all conditional quantiles at once",
        "The model is a function h of the input and the level: the quantile of y at any level τ between 0 and 1. Levels help each other "
        "through a kernel between them. The loss is the pinball loss ρ, averaged over all levels.",
        "h = argmin (1/n) Σ_i ∫ ρ_τ(y_i − h(x_i)(τ)) dτ + (λ/2) ‖h − b‖^2",
    ),
    "InfiniteCostSensitiveClassifier": Description(
        "classification for every cost of mistakes",
        "The model is a support vector machine for each price c of missing the second class, all of them learned at once. At any price "
        "asked for, h ≥ 0 says the second class.",
        "h = argmin (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖^2",
    ),
    "InfiniteOneClassSVM": Description(
        "level sets of every mass",
        "The model finds, for each share ν, a set that leaves about ν of the data outside: one-class support vector machines of all "
        "levels, fitted together. Points outside of the set of a small ν are unusual.",
        "P(h(x)(ν) ≥ t(ν)) ≈ 1 − ν",
    ),
    "SimplexClassifier": Description(
        "classes as corners of a simplex",
        "Each class is a corner of a simplex, and a ridge regression with an operator-valued kernel predicts a point in it. Scores become "
        "probabilities by a calibration on rows that were held out.",
        "f = argmin Σ_i ‖c_{y(i)} − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2,   score_k(x) = ⟨c_k, f(x)⟩",
    ),
}
"""By the name of the class."""


MEANS = {-1: "zero", 0: "a constant for each output", 1: "a linear trend for each output"}
"""By the degree of the polynomial."""


def facts_of(estimator) -> tuple[tuple[str, str], ...]:
    """All facts that apply to a fitted estimator."""
    found = ((name, read(estimator)) for name, read in FACTS.items())
    return tuple((name, how) for name, how in found if how is not None)


def base_words(estimator) -> Description | None:
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
    each = estimator.log_evidence_ / max(1, int(estimator._num_observed.sum()))
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


ALIKE = ("auto", "independent", "decomposable")
"""Structures that are the same for a single output."""


def model_words(estimator) -> ModelWords:
    """A fitted estimator in sentences, formulas and facts."""
    own, structure = ESTIMATORS[class_name(estimator)], structure_of(estimator)
    name = own.name if structure is None else f"{own.name}: {STRUCTURES[structure].name}"
    words = [own, *([] if structure is None else [STRUCTURES[structure]])]
    formulas = [one.formula for one in words] + _base_formulas(estimator) + _likelihood_formulas(estimator)
    return ModelWords(_capital(name), tuple(one.text for one in words), tuple(formulas), facts_of(estimator))


def structure_of(estimator) -> str | None:
    """The key of the kernel's structure in `STRUCTURES`; None where the estimator has none to choose."""
    structure = getattr(estimator, "kernel_", None)
    if structure in ALIKE and estimator.n_outputs_ == 1:
        return "single"
    if structure is None or class_name(estimator) == "GPRegressor":
        return structure
    if structure in ("auto", "independent"):  # of a ridge, one kernel for all outputs
        return "identity" if estimator.output_matrix is None else "decomposable"
    return structure


def _base_formulas(estimator) -> list[str]:
    words = base_words(estimator)
    return [] if words is None else [words.formula]


def _likelihood_formulas(estimator) -> list[str]:
    if class_name(estimator) != "GPRegressor":
        return []
    return [LIKELIHOODS[name].formula for name in dict.fromkeys(likelihood_names(estimator)) if name in LIKELIHOODS]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
