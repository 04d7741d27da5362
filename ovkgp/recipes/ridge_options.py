"""The options of the ridge estimators that a recipe may set: those for who knows λ, or several to choose from."""

from __future__ import annotations

from typing import Literal

from ovkgp.recipes.gp_options import Base
from ovkgp.recipes.values import (
    Count,
    Nothing,
    Options,
    Positive,
    Positives,
    Rows,
    Seed,
    Several,
    Switch,
    Verbosity,
)

Convention = Literal["sum", "mean", "mean_unhalved", "penalty_unhalved", "samples", "stability", "var"]
Solver = Literal["auto", "eigen", "closed_form", "cg", "lbfgs"]
Structure = Literal["auto", "independent", "decomposable", "curl_free", "divergence_free", "helmholtz"]


class OVKRidgeOptions(Options):
    """The constructor of `OVKRidge`, for values that can be written in a file."""

    kernel: Structure = "auto"
    lam: Positive | Positives = 1.0
    convention: Convention = "sum"
    solver: Solver = "auto"
    base_kernel: Base = "rbf"
    lengthscale: Literal["median"] | Positive = "median"
    output_matrix: Rows | Nothing = None
    output_metric: Positives | Rows | Nothing = None
    fit_intercept: Switch = False
    selection: Literal["loo", "evidence"] = "loo"
    scale: Literal["given", "evidence"] = "given"
    tolerance: Positive = 1e-9
    max_iter: Count | Nothing = None
    verbose: Verbosity = 0


class ORFFRidgeOptions(OVKRidgeOptions):
    """The constructor of `ORFFRidge`, for values that can be written in a file."""

    solver: Literal["auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd"] = "auto"
    num_frequencies: Count = 500
    variance: Literal["features", "guarded"] = "guarded"
    block_size: Count | Nothing = None
    batch_size: Count | Nothing = None
    learning_rate: Positive = 1.0
    preconditioned: Switch = True
    random_state: Seed | Nothing = None
    distributed: Switch = False


class SimplexOptions(Options):
    """The constructor of `SimplexClassifier`, for values that can be written in a file."""

    kernel: Literal["auto"] = "auto"
    lam: Positive | Positives = 1.0
    convention: Convention = "sum"
    coding: Literal["codes", "one_hot"] = "codes"
    num_frequencies: Count | Nothing = None
    solver: Solver = "auto"
    base_kernel: Base = "rbf"
    lengthscale: Literal["median"] | Positive = "median"
    cv: Several = 5
    random_state: Seed | Nothing = None
    verbose: Verbosity = 0
