"""Kernel structures, base kernels and likelihoods in words and formulas: three tables keyed on their names."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """A name for readers, sentences, and a formula in the language of `formulas`."""

    name: str
    text: str
    formula: str


STRUCTURES = {
    "single": Words(
        "one output",
        "The covariance is that of one output, a scalar kernel times a variance.",
        "K(x, z) = s^2 k(x, z)",
    ),
    "independent": Words(
        "independent outputs",
        "Each output is a Gaussian process of its own, with its own variance and lengthscales. What is learned of one output says "
        "nothing about another.",
        "K(x, z) = diag(s_1^2 k_1(x, z), …, s_p^2 k_p(x, z))",
    ),
    "identity": Words(
        "independent outputs with one kernel",
        "All outputs share one kernel of the inputs and are independent of each other.",
        "K(x, z) = k(x, z) I",
    ),
    "decomposable": Words(
        "coupled outputs (ICM)",
        "All outputs share one kernel of the inputs, and a matrix B between the outputs says how they vary together: an output with few "
        "observations borrows from the others. This is the intrinsic coregionalisation model.",
        "K(x, z) = k(x, z) B,   B_{ab} = cov(f_a(x), f_b(x))",
    ),
    "lmc": Words(
        "coupled outputs on several scales (LMC)",
        "The outputs are mixtures of several latent processes, each with its own lengthscales: some variation may be shared over long "
        "distances and some over short ones. This is the linear model of coregionalisation.",
        "K(x, z) = Σ_q k_q(x, z) B_q",
    ),
    "curl_free": Words(
        "a curl-free vector field",
        "The outputs are the components of a field that is the gradient of a potential φ. Every draw of the model is curl-free, "
        "and so is its mean.",
        "f = ∇φ,   φ ~ GP(0, s^2 k),   K(x, z) = −s^2 ∇∇^⊤ k(x − z)",
    ),
    "divergence_free": Words(
        "a divergence-free vector field",
        "The outputs are the components of a field without sources and sinks, such as an incompressible flow. Every draw of the model is "
        "divergence-free, and so is its mean.",
        "div f = 0,   K(x, z) = s^2 (∇∇^⊤ − I Δ) k(x − z)",
    ),
    "helmholtz": Words(
        "a vector field in two parts (Helmholtz)",
        "The outputs are the components of a vector field, the sum of a gradient (curl-free) and a swirl (divergence-free). Each "
        "part has its own scale and lengthscale, and the data say how much there is of each.",
        "f = f_c + f_d,   K(x, z) = −s_c^2 ∇∇^⊤ k_c(x − z) + s_d^2 (∇∇^⊤ − I Δ) k_d(x − z)",
    ),
    "given": Words(
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
    "rbf": Words("squared exponential", "draws are infinitely smooth", f"k(x, z) = exp(−r^2/2),   {DISTANCE}"),
    "matern12": Words("Matérn 1/2", "draws are continuous and rough", f"k(x, z) = exp(−r),   {DISTANCE}"),
    "matern32": Words("Matérn 3/2", "draws have one derivative", f"k(x, z) = (1 + √3 r) exp(−√3 r),   {DISTANCE}"),
    "matern52": Words(
        "Matérn 5/2", "draws have two derivatives", f"k(x, z) = (1 + √5 r + 5r^2/3) exp(−√5 r),   {DISTANCE}"
    ),
    "rq": Words("rational quadratic", "a mixture of lengthscales", f"k(x, z) = (1 + r^2/(2α))^{{−α}},   {DISTANCE}"),
    "laplace": Words("Laplace", "draws are continuous and rough", "k(x, z) = exp(−Σ_i |x_i − z_i|/ℓ_i)"),
}
"""By the name of the scalar kernel."""

LIKELIHOODS = {
    "gaussian": Words(
        "Gaussian", "observations are the function plus Gaussian noise", "y_a = f_a(x) + ε_a,   ε_a ~ N(0, σ_a^2)"
    ),
    "student_t": Words(
        "Student-t",
        "errors have heavy tails, so that outliers count little",
        "y_a = f_a(x) + σ_a t_a,   t_a ~ Student(ν_a)",
    ),
    "laplace": Words("Laplace", "errors have heavy tails; f is the median", "p(y_a | f) ∝ exp(−|y_a − f_a|/σ_a)"),
    "asymmetric_laplace": Words("asymmetric Laplace", "f is a quantile", "p(y_a | f) ∝ exp(−ρ_τ(y_a − f_a)/σ_a)"),
    "huber": Words(
        "Huber", "errors are Gaussian in the middle and Laplace in the tails", "p(y_a | f) ∝ exp(−H(y_a − f_a)/σ_a)"
    ),
    "bernoulli": Words("Bernoulli", "labels 0 and 1; f is a log-odds", "P(y_a = 1) = 1/(1 + exp(−f_a(x)))"),
    "poisson": Words("Poisson", "counts; f is the logarithm of the expected count", "y_a ~ Poisson(exp f_a(x))"),
    "negative_binomial": Words(
        "negative binomial",
        "counts that spread more than Poisson ones; f is the logarithm of the expected count",
        "y_a ~ NB(exp f_a(x), r_a)",
    ),
    "softmax": Words("softmax", "classes, one column each", "P(y = a) = exp f_a(x) / Σ_b exp f_b(x)"),
}
"""By the name of the likelihood."""
