"""The options of the estimators of a continuum of tasks that a recipe may set."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ovkgp.recipes.values import (
    Costs,
    Count,
    NonNegative,
    Nothing,
    Numbers,
    Options,
    Positive,
    Positives,
    Rows,
    Says,
    Seed,
    Share,
    Shares,
    Switch,
    Verbosity,
)

TaskKernel = Literal["rbf", "matern12", "matern32", "matern52", "rq", "laplace"]
Median = Literal["median"] | Positive | Positives
Convention = Literal["samples", "stability"]
Measure = Literal["gauss_legendre", "sobol", "monte_carlo"]


class QuantileOptions(Options):
    """The constructor of `InfiniteQuantileRegressor`, for values that can be written in a file."""

    kernel: TaskKernel = "rbf"
    lengthscale: Literal["auto", "median"] | Positive | Positives = "auto"
    trend: Literal["auto", "linear", "quadratic"] | Nothing = "auto"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = 0.3
    lam: Literal["auto"] | Positive = "auto"
    convention: Convention = "samples"
    coupling: Literal["infinite", "joint", "independent"] = "infinite"
    levels: Shares | Nothing = None
    num_tasks: Literal["auto"] | Count = "auto"
    measure: Measure = "gauss_legendre"
    loss: Literal["pinball", "smoothed_pinball"] = "pinball"
    kappa: Positive | Nothing = None
    noncrossing: Literal["rearrange", "penalty", "exact"] | Nothing = "rearrange"
    lam_nc: NonNegative = 1.0
    num_frequencies: Count | Nothing = None
    uncertainty: Literal["sandwich", "bootstrap"] = "sandwich"
    num_replicates: Count = 50
    prior_mean: Literal["gaussian", "zero"] = "gaussian"
    intercept: Switch = True
    tol: Positive = 1e-4
    max_iter: Count = 5000
    random_state: Seed | Nothing = None
    verbose: Verbosity = 0


class CostOptions(Options):
    """The constructor of `InfiniteCostSensitiveClassifier`, for values that can be written in a file."""

    costs: Literal["signed", "unit"] = "signed"
    kernel: TaskKernel = "rbf"
    lengthscale: Median = "median"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = 0.1**0.5
    lam: Positive = 1e-4
    convention: Convention = "samples"
    coupling: Literal["infinite", "independent"] = "infinite"
    levels: Costs | Nothing = None
    measure: Measure = "sobol"
    num_tasks: Count = 20
    kappa: Positive | Nothing = None
    num_frequencies: Count | Nothing = None
    num_replicates: Count = 20
    tol: Positive = 1e-3
    max_iter: Count = 5000
    random_state: Seed | Nothing = None
    verbose: Verbosity = 0


class LevelSetOptions(Options):
    """The constructor of `InfiniteOneClassSVM`, for values that can be written in a file."""

    nu: Annotated[float, Field(gt=0, le=1), Says("a number above 0 and at most 1")] = 0.1
    kernel: TaskKernel = "rbf"
    lengthscale: Literal["local", "median"] | Positive | Positives = "local"
    task_kernel: TaskKernel = "matern52"
    task_lengthscale: Median = 0.3
    threshold_kernel: TaskKernel = "matern52"
    threshold_lengthscale: Median = 0.3
    lam: NonNegative = 1e-4
    measure: Measure = "gauss_legendre"
    num_tasks: Count = 20
    density: Literal["uniform", "linear"] = "uniform"
    lowest: Share = 0.01
    calibrate: Switch = True
    nested: Switch = True
    num_frequencies: Count | Nothing = None
    num_replicates: Count = 20
    scale_inputs: Switch = True
    random_state: Seed | Nothing = None
    verbose: Verbosity = 0


class VectorTaskOptions(Options):
    """The constructor of `VectorTaskRegressor`, for values that can be written in a file."""

    tasks: Numbers | Rows | Nothing = None
    kernel: TaskKernel = "rbf"
    lengthscale: Median = "median"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = "median"
    output_matrix: Literal["identity"] | Count | Rows = "identity"
    lam: Positive = 1e-3
    convention: Literal["sum", "mean", "mean_unhalved", "penalty_unhalved", "samples", "stability", "var"] = "samples"
    normalisation: Literal["fixed", "pooled", "per_sample"] = "fixed"
    fit_intercept: Switch = False
    scale: Literal["evidence", "given"] = "evidence"
    hyperparameters: Literal["fixed", "evidence"] = "fixed"
    verbose: Verbosity = 0
