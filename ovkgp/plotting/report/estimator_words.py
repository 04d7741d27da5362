"""Estimators in words and formulas: a table keyed on the name of the class.

The words say what the estimator assumes and what it minimises; those of the kernel come from `structure_words`.
"""

from __future__ import annotations

from ovkgp.plotting.report.structure_words import Words

ESTIMATORS = {
    "GPRegressor": Words(
        "Gaussian-process regression",
        "The outputs are observations of an unknown function f with a Gaussian-process prior. Predictions are its posterior "
        "given the data, so that each comes with its uncertainty.",
        "f ~ GP(m, K)",
    ),
    "OVKRidge": Words(
        "ridge regression with an operator-valued kernel",
        "The fit weighs squared errors against the norm of the function. It is the posterior mean of a Gaussian process with noise "
        "σ², from which the standard deviations come. Nothing is trained: λ was given, or chosen among several.",
        "f = argmin Σ_i ‖y_i − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2",
    ),
    "ORFFRidge": Words(
        "ridge regression on random features",
        "The kernel is replaced by random Fourier features Φ, and the fit weighs squared errors against the size of their weights θ. It "
        "is the posterior mean of a Gaussian process with noise σ². Nothing is trained: λ was given, or chosen among several.",
        "f(x) = Φ(x) θ,   θ = argmin ‖y − Φθ‖^2/(2σ^2) + ‖θ‖^2/2",
    ),
    "ManifoldRidge": Words(
        "ridge regression on a manifold",
        "Few rows have labels; those without say where the function may vary. Beside the norm of the function, what it changes between "
        "neighbouring rows is penalised, so that labels spread along the shape of the data.",
        "f = argmin Σ_{labelled} ‖y_i − f(x_i)‖^2/(2n) + (λ/2) ‖f‖_K^2 + (λ_M/2) Σ_{ij} ⟨f(x_i), M_{ij} f(x_j)⟩",
    ),
    "ONORMA": Words(
        "online regression with an operator-valued kernel",
        "The function is learned one row at a time by stochastic gradients, in memory that does not grow. Standard deviations are "
        "given the kept points only, and so are upper bounds.",
        "f ← (1 − ηλ) f − η K(·, x)(f(x) − y)",
    ),
    "ConstrainedORFF": Words(
        "random features with bounded weights",
        "Least squares on random features whose weights are held in a ball for each frequency. There is no posterior, and so no "
        "standard deviation.",
        "min Σ_i ‖Φ(x_i)θ − y_i‖^2/(2n)   subject to ‖θ_j‖ ≤ M/√D",
    ),
    "VectorTaskRegressor": Words(
        "vectors at every point of a space of tasks",
        "The model learns a vector for each input x and each task θ, and so answers at tasks that were never seen. It is a Gaussian "
        "process on pairs (x, θ).",
        "K((x, θ), (x′, θ′)) = s^2 k_X(x, x′) k_Θ(θ, θ′) A",
    ),
    "InfiniteQuantileRegressor": Words(
        "all conditional quantiles at once",
        "The model is a function h of the input and the level: the quantile of y at any level τ between 0 and 1. Levels help each other "
        "through a kernel between them. The loss is the pinball loss ρ, averaged over all levels.",
        "h = argmin (1/n) Σ_i ∫ ρ_τ(y_i − h(x_i)(τ)) dτ + (λ/2) ‖h − b‖^2",
    ),
    "InfiniteCostSensitiveClassifier": Words(
        "classification for every cost of mistakes",
        "The model is a support vector machine for each price c of missing the second class, all of them learned at once. At any price "
        "asked for, h ≥ 0 says the second class.",
        "h = argmin (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖^2",
    ),
    "InfiniteOneClassSVM": Words(
        "level sets of every mass",
        "The model finds, for each share ν, a set that leaves about ν of the data outside: one-class support vector machines of all "
        "levels, fitted together. Points outside of the set of a small ν are unusual.",
        "P(h(x)(ν) ≥ t(ν)) ≈ 1 − ν",
    ),
    "SimplexClassifier": Words(
        "classes as corners of a simplex",
        "Each class is a corner of a simplex, and a ridge regression with an operator-valued kernel predicts a point in it. Scores become "
        "probabilities by a calibration on rows that were held out.",
        "f = argmin Σ_i ‖c_{y(i)} − f(x_i)‖^2/(2σ^2) + ‖f‖_K^2/2,   score_k(x) = ⟨c_k, f(x)⟩",
    ),
}
"""By the name of the class."""
