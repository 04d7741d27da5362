"""Options that a recipe may set for each estimator, as pydantic models, and descriptions of their types for messages."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class ValueDescription:
    """Description of a type of values in error messages."""

    text: str


class Options(BaseModel):
    """Table of a recipe: unknown keys and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _none_if(word: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if isinstance(value, str) and value == word else value)


Count = Annotated[int, Field(ge=1), ValueDescription("an integer of at least 1")]
AtLeastTwo = Annotated[int, Field(ge=2), ValueDescription("an integer of at least 2")]
Seed = Annotated[int, Field(ge=0, lt=2**32), ValueDescription("an integer from 0 to 2³² − 1")]
Switch = Annotated[bool, ValueDescription("true or false")]
Verbosity = Annotated[int, Field(ge=0, le=1), ValueDescription("0 or 1")]
Number = Annotated[float, Field(allow_inf_nan=False), ValueDescription("a number")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), ValueDescription("a positive number")]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), ValueDescription("a number of at least 0")]
Fraction = Annotated[float, Field(gt=0, lt=1), ValueDescription("a number between 0 and 1")]
Positives = Annotated[list[Positive], Field(min_length=1), ValueDescription("a list of positive numbers")]
Numbers = Annotated[list[Number], Field(min_length=1), ValueDescription("a list of numbers")]
Rows = Annotated[list[Numbers], Field(min_length=1), ValueDescription("a list of rows of numbers")]
Fractions = Annotated[list[Fraction], Field(min_length=1), ValueDescription("a list of numbers between 0 and 1")]
Costs = Annotated[
    list[Annotated[float, Field(ge=-1, le=1)]], Field(min_length=1), ValueDescription("a list of numbers from −1 to 1")
]
NoneWord = Annotated[None, _none_if("none"), ValueDescription("'none'")]
AllRows = Annotated[None, _none_if("all"), ValueDescription("'all'")]


def allowed_strings(field: FieldInfo) -> tuple[str, ...]:
    """Return the strings that an option may be."""
    return tuple(value for value in _literals(field.annotation) if isinstance(value, str))


def describe_field(field: FieldInfo) -> str:
    """Describe the values that an option may have."""
    own = next((mark.text for mark in field.metadata if isinstance(mark, ValueDescription)), None)
    texts = [own] if own else _descriptions(field.annotation)
    if len(texts) > 1 and len(texts) == len(_literals(field.annotation)):
        return f"one of {', '.join(texts)}"
    return f"{', '.join(texts[:-1])} or {texts[-1]}" if len(texts) > 1 else texts[0]


def _literals(kind) -> tuple:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if _is_union(kind):
        return tuple(value for part in get_args(kind) for value in _literals(part))
    return ()


def _descriptions(kind) -> list[str]:
    if get_origin(kind) is Annotated:
        own = next((mark.text for mark in get_args(kind) if isinstance(mark, ValueDescription)), None)
        return [own] if own else _descriptions(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if _is_union(kind):
        return [text for part in get_args(kind) for text in _descriptions(part)]
    if isinstance(kind, type) and issubclass(kind, Options):
        return [f"a table with {', '.join(kind.model_fields)}"]
    if kind is NoneType:  # TOML has no null
        return []
    return [{str: "a string in quotes", dict: "a table"}.get(get_origin(kind) or kind, "another value")]


def _is_union(kind) -> bool:
    return get_origin(kind) is Union or type(kind).__name__ == "UnionType"


def incompatible_options(field: str, message: str) -> PydanticCustomError:
    """Make an error about options that exclude each other; `field` is the one whose line is named."""
    return PydanticCustomError("incompatible_options", "{message}", {"message": message, "field": field})


Convention = Literal["sum", "mean", "mean_unhalved", "penalty_unhalved", "samples", "stability", "var"]
Base = Literal["rbf", "matern12", "matern32", "matern52", "rq"]
Likelihood = Literal[
    "gaussian",
    "student_t",
    "laplace",
    "asymmetric_laplace",
    "huber",
    "bernoulli",
    "poisson",
    "negative_binomial",
    "softmax",
]
OneLikelihood = Literal[
    "gaussian", "student_t", "laplace", "asymmetric_laplace", "huber", "bernoulli", "poisson", "negative_binomial"
]
"""Likelihoods of a single output; softmax is joint over all outputs."""
LikelihoodList = Annotated[
    list[OneLikelihood], Field(min_length=1), ValueDescription("a list with one of them (except 'softmax') per output")
]
LikelihoodTable = Annotated[
    dict[str, OneLikelihood], ValueDescription("a table from columns to one of them (except 'softmax')")
]
Node = Annotated[str | Annotated[int, Field(ge=0)], ValueDescription("the name or the index of a column")]
Edge = Annotated[
    tuple[Node, Node] | tuple[Node, Node, Positive],
    BeforeValidator(lambda edge: tuple(edge) if isinstance(edge, list) else edge),
]
EDGES = '\'chain\', \'complete\' or a list of edges, such as [["a", "b"], ["b", "c", 2.0]]'


class Sampling(Options):
    """Options of `ovkgp.inference.sample_hyperparameters`, and `max_draws`."""

    draws: Count = 500
    tune: Count = 500
    chains: Count = 4
    guide: Literal["normal", "multivariate", "low_rank"] = "multivariate"
    batch_size: Count | NoneWord = None
    target_accept: Fraction = 0.8
    prior_draws: Annotated[int, Field(ge=0), ValueDescription("an integer of at least 0")] = 500
    log_likelihood: Literal["auto"] | Switch = "auto"
    posterior_predictive: Literal["auto"] | Switch = "auto"
    max_draws: Count = 50


class GPOptions(Options):
    """Constructor arguments of `GPRegressor` that TOML can express."""

    kernel: Literal["auto", "independent", "decomposable", "lmc", "curl_free", "divergence_free", "helmholtz"] = "auto"
    base_kernel: Base = "matern52"
    rank: Count = 2
    approximation: Literal["auto", "exact", "orff", "nystrom", "variational"] = "auto"
    num_frequencies: Literal["auto"] | Count = "auto"
    noise: Literal["shared", "per_output", "full"] | Positive | Positives | Rows = "per_output"
    hyperparameters: Literal["fixed", "evidence", "laplace", "svi", "nuts"] = "evidence"
    likelihood: Likelihood | Literal["by_values"] | LikelihoodList | LikelihoodTable = "gaussian"
    training_rows: Count | AllRows = 10_000
    variance: Literal["features", "guarded"] = "guarded"
    random_state: Seed | NoneWord = None
    verbose: Verbosity = 0
    distributed: Switch = False
    sampling: Sampling | NoneWord = None

    @model_validator(mode="after")
    def _check_sampling(self) -> GPOptions:
        if self.sampling is not None and self.hyperparameters not in ("laplace", "svi", "nuts"):
            raise incompatible_options(
                "sampling",
                f"sampling must be 'none' unless hyperparameters is 'laplace', 'svi' or 'nuts', got hyperparameters = {self.hyperparameters!r}",
            )
        return self

    @model_validator(mode="after")
    def _check_likelihood(self) -> GPOptions:
        if self.likelihood not in ("gaussian", "by_values") and self.approximation not in ("auto", "variational"):
            raise incompatible_options(
                "approximation",
                f"approximation must be 'auto' or 'variational' unless likelihood is 'gaussian', got {self.approximation!r}",
            )
        return self


class Graph(Options):
    """Graph of the outputs: arguments of `ovkgp.kernels.GraphMatrix`."""

    edges: Annotated[Literal["chain", "complete"] | Annotated[list[Edge], Field(min_length=1)], ValueDescription(EDGES)]
    mean_variance: Positive | NoneWord = None
    ridge: Positive | NoneWord = None

    @model_validator(mode="after")
    def _check_mean_variance(self) -> Graph:
        if (self.mean_variance is None) == (self.ridge is None):
            raise incompatible_options(
                "ridge",
                "exactly one of mean_variance and ridge must be set: each defines the variance of the mean of all outputs",
            )
        return self


Solver = Literal["auto", "eigen", "closed_form", "cg", "lbfgs"]
Structure = Literal["auto", "independent", "decomposable", "curl_free", "divergence_free", "helmholtz"]


class OVKRidgeOptions(Options):
    """Constructor arguments of `OVKRidge` that TOML can express."""

    kernel: Structure = "auto"
    lam: Positive | Positives = 1.0
    convention: Convention = "sum"
    solver: Solver = "auto"
    base_kernel: Base = "rbf"
    lengthscale: Literal["median"] | Positive = "median"
    output_matrix: Rows | NoneWord = None
    output_metric: Positives | Rows | NoneWord = None
    fit_intercept: Switch = False
    selection: Literal["loo", "evidence"] = "loo"
    scale: Literal["given", "evidence"] = "given"
    tolerance: Positive = 1e-9
    max_iter: Count | NoneWord = None
    verbose: Verbosity = 0


class ORFFRidgeOptions(OVKRidgeOptions):
    """Constructor arguments of `ORFFRidge` that TOML can express."""

    solver: Literal["auto", "eigen", "closed_form", "cg", "lbfgs", "doubly_sgd"] = "auto"
    num_frequencies: Count = 500
    variance: Literal["features", "guarded"] = "guarded"
    block_size: Count | NoneWord = None
    batch_size: Count | NoneWord = None
    learning_rate: Positive = 1.0
    preconditioned: Switch = True
    random_state: Seed | NoneWord = None
    distributed: Switch = False


class SimplexOptions(Options):
    """Constructor arguments of `SimplexClassifier` that TOML can express."""

    kernel: Literal["auto"] = "auto"
    lam: Positive | Positives = 1.0
    convention: Convention = "sum"
    coding: Literal["codes", "one_hot"] = "codes"
    num_frequencies: Count | NoneWord = None
    solver: Solver = "auto"
    base_kernel: Base = "rbf"
    lengthscale: Literal["median"] | Positive = "median"
    cv: AtLeastTwo = 5
    random_state: Seed | NoneWord = None
    verbose: Verbosity = 0


TaskKernel = Literal["rbf", "matern12", "matern32", "matern52", "rq", "laplace"]
Median = Literal["median"] | Positive | Positives
TaskConvention = Literal["samples", "stability"]
Measure = Literal["gauss_legendre", "sobol", "monte_carlo"]


class QuantileOptions(Options):
    """Constructor arguments of `InfiniteQuantileRegressor` that TOML can express."""

    kernel: TaskKernel = "rbf"
    lengthscale: Literal["auto", "median"] | Positive | Positives = "auto"
    trend: Literal["auto", "linear", "quadratic"] | NoneWord = "auto"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = 0.3
    lam: Literal["auto"] | Positive = "auto"
    convention: TaskConvention = "samples"
    coupling: Literal["infinite", "joint", "independent"] = "infinite"
    levels: Fractions | NoneWord = None
    num_tasks: Literal["auto"] | Count = "auto"
    measure: Measure = "gauss_legendre"
    loss: Literal["pinball", "smoothed_pinball"] = "pinball"
    kappa: Positive | NoneWord = None
    noncrossing: Literal["rearrange", "penalty", "exact"] | NoneWord = "rearrange"
    lam_nc: NonNegative = 1.0
    num_frequencies: Count | NoneWord = None
    uncertainty: Literal["sandwich", "bootstrap"] = "sandwich"
    num_replicates: Count = 50
    prior_mean: Literal["gaussian", "zero"] = "gaussian"
    intercept: Switch = True
    tol: Positive = 1e-4
    max_iter: Count = 5000
    random_state: Seed | NoneWord = None
    verbose: Verbosity = 0


class CostOptions(Options):
    """Constructor arguments of `InfiniteCostSensitiveClassifier` that TOML can express."""

    costs: Literal["signed", "unit"] = "signed"
    kernel: TaskKernel = "rbf"
    lengthscale: Median = "median"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = 0.1**0.5
    lam: Positive = 1e-4
    convention: TaskConvention = "samples"
    coupling: Literal["infinite", "independent"] = "infinite"
    levels: Costs | NoneWord = None
    measure: Measure = "sobol"
    num_tasks: Count = 20
    kappa: Positive | NoneWord = None
    num_frequencies: Count | NoneWord = None
    num_replicates: Count = 20
    tol: Positive = 1e-3
    max_iter: Count = 5000
    random_state: Seed | NoneWord = None
    verbose: Verbosity = 0


class LevelSetOptions(Options):
    """Constructor arguments of `InfiniteOneClassSVM` that TOML can express."""

    nu: Annotated[float, Field(gt=0, le=1), ValueDescription("a number above 0 and at most 1")] = 0.1
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
    min_nu: Fraction = 0.01
    calibrate: Switch = True
    nested: Switch = True
    num_frequencies: Count | NoneWord = None
    num_replicates: Count = 20
    scale_inputs: Switch = True
    random_state: Seed | NoneWord = None
    verbose: Verbosity = 0


class VectorTaskOptions(Options):
    """Constructor arguments of `VectorTaskRegressor` that TOML can express."""

    tasks: Numbers | Rows | NoneWord = None
    kernel: TaskKernel = "rbf"
    lengthscale: Median = "median"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = "median"
    output_matrix: Literal["identity"] | Count | Rows = "identity"
    lam: Positive = 1e-3
    convention: Convention = "samples"
    normalization: Literal["fixed", "pooled", "per_sample"] = "fixed"
    fit_intercept: Switch = False
    scale: Literal["evidence", "given"] = "evidence"
    hyperparameters: Literal["fixed", "evidence"] = "fixed"
    verbose: Verbosity = 0
