"""The options of the estimators of a continuum of tasks that a recipe may set."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class Says:
    """How a kind of value is called in an error."""

    phrase: str


class Options(BaseModel):
    """A table of a recipe: nothing but its fields, and no value of another kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _none_where(word: str) -> BeforeValidator:
    return BeforeValidator(lambda value: None if isinstance(value, str) and value == word else value)


Count = Annotated[int, Field(ge=1), Says("a whole number, at least 1")]
Several = Annotated[int, Field(ge=2), Says("a whole number, at least 2")]
Seed = Annotated[int, Field(ge=0, lt=2**32), Says("a whole number from 0 to 2³² − 1")]
Switch = Annotated[bool, Says("true or false")]
Verbosity = Annotated[int, Field(ge=0, le=1), Says("0 or 1")]
Number = Annotated[float, Field(allow_inf_nan=False), Says("a number")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Says("a positive number")]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Says("a number, at least 0")]
Share = Annotated[float, Field(gt=0, lt=1), Says("a number between 0 and 1")]
Positives = Annotated[list[Positive], Field(min_length=1), Says("a list of positive numbers")]
Numbers = Annotated[list[Number], Field(min_length=1), Says("a list of numbers")]
Rows = Annotated[list[Numbers], Field(min_length=1), Says("a list of rows of numbers")]
Shares = Annotated[list[Share], Field(min_length=1), Says("a list of numbers between 0 and 1")]
Costs = Annotated[
    list[Annotated[float, Field(ge=-1, le=1)]], Field(min_length=1), Says("a list of numbers from −1 to 1")
]
Nothing = Annotated[None, _none_where("none"), Says("'none'")]
AllRows = Annotated[None, _none_where("all"), Says("'all'")]


def allowed_words(field: FieldInfo) -> tuple[str, ...]:
    """The words that an option may be, where it may be words.

    Example:
        >>> from typing import Literal
        >>> from pydantic.fields import FieldInfo
        >>> from ovkgp.recipes.options import Count, allowed_words
        >>> allowed_words(FieldInfo.from_annotation(Literal["auto", "exact"] | Count))
        ('auto', 'exact')
    """
    return tuple(word for word in _words(field.annotation) if isinstance(word, str))


def described(field: FieldInfo) -> str:
    """What an option may be, in words.

    Example:
        >>> from typing import Literal
        >>> from pydantic.fields import FieldInfo
        >>> from ovkgp.recipes.options import Count, described
        >>> described(FieldInfo.from_annotation(Literal["auto"] | Count))
        "'auto' or a whole number, at least 1"
    """
    said = next((mark.phrase for mark in field.metadata if isinstance(mark, Says)), None)
    phrases = [said] if said else _phrases(field.annotation)
    if len(phrases) > 1 and len(phrases) == len(_words(field.annotation)):
        return f"one of {', '.join(phrases)}"
    return f"{', '.join(phrases[:-1])} or {phrases[-1]}" if len(phrases) > 1 else phrases[0]


def _words(kind) -> tuple:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if _is_union(kind):
        return tuple(word for part in get_args(kind) for word in _words(part))
    return ()


def _phrases(kind) -> list[str]:
    if get_origin(kind) is Annotated:
        said = next((mark.phrase for mark in get_args(kind) if isinstance(mark, Says)), None)
        return [said] if said else _phrases(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [repr(word) for word in get_args(kind)]
    if _is_union(kind):
        return [phrase for part in get_args(kind) for phrase in _phrases(part)]
    if isinstance(kind, type) and issubclass(kind, Options):
        return [f"a table with {', '.join(kind.model_fields)}"]
    if kind is NoneType:  # cannot be written in a file
        return []
    return [{str: "a text in quotes", dict: "a table"}.get(get_origin(kind) or kind, "another value")]


def _is_union(kind) -> bool:
    return get_origin(kind) is Union or type(kind).__name__ == "UnionType"


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
"""Those of a single output: softmax is of all."""
LikelihoodList = Annotated[
    list[OneLikelihood], Field(min_length=1), Says("a list with one of them (but 'softmax') for each output")
]
LikelihoodTable = Annotated[dict[str, OneLikelihood], Says("a table from columns to one of them (but 'softmax')")]
Node = Annotated[str | Annotated[int, Field(ge=0)], Says("the name or the number of a column")]
Edge = Annotated[
    tuple[Node, Node] | tuple[Node, Node, Positive],
    BeforeValidator(lambda edge: tuple(edge) if isinstance(edge, list) else edge),
]
EDGES = '\'chain\', \'complete\' or a list of edges, such as [["a", "b"], ["b", "c", 2.0]]'


class Sampling(Options):
    """How hyperparameters are drawn: options of `ovkgp.inference.sample_hyperparameters`, and `max_draws`."""

    draws: Count = 500
    tune: Count = 500
    chains: Count = 4
    guide: Literal["normal", "multivariate", "low_rank"] = "multivariate"
    batch_size: Count | Nothing = None
    target_accept: Share = 0.8
    prior_draws: Annotated[int, Field(ge=0), Says("a whole number, at least 0")] = 500
    log_likelihood: Literal["auto"] | Switch = "auto"
    posterior_predictive: Literal["auto"] | Switch = "auto"
    max_draws: Count = 50


class GPOptions(Options):
    """The constructor of `GPRegressor`, for values that can be written in a file."""

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
    random_state: Seed | Nothing = None
    verbose: Verbosity = 0
    distributed: Switch = False
    sampling: Sampling | Nothing = None

    @model_validator(mode="after")
    def _sampling_is_read(self) -> GPOptions:
        if self.sampling is not None and self.hyperparameters not in ("laplace", "svi", "nuts"):
            raise misfit(
                "sampling",
                "sampling is for hyperparameters = 'laplace', 'svi' or 'nuts'; with "
                f"{self.hyperparameters!r} nothing is drawn: leave it out, or say 'none'",
            )
        return self

    @model_validator(mode="after")
    def _likelihood_is_variational(self) -> GPOptions:
        if self.likelihood not in ("gaussian", "by_values") and self.approximation not in ("auto", "variational"):
            raise misfit(
                "approximation",
                f"approximation = {self.approximation!r} is for the likelihood 'gaussian'; others need 'auto' or 'variational'",
            )
        return self


class Graph(Options):
    """Which outputs are neighbours, and what keeps their common mean free (`ovkgp.kernels.GraphMatrix`)."""

    edges: Annotated[
        Literal["chain", "complete"] | Annotated[list[Edge], Field(min_length=1)],
        Says(EDGES),
    ]
    mean_variance: Positive | Nothing = None
    ridge: Positive | Nothing = None

    @model_validator(mode="after")
    def _one_remedy(self) -> Graph:
        if (self.mean_variance is None) == (self.ridge is None):
            raise misfit(
                "ridge", "give mean_variance or ridge, one of the two: each gives the mean of all outputs a variance"
            )
        return self


def misfit(field: str, sentence: str) -> PydanticCustomError:
    """An error about options that do not go together; `field` is the one whose line is named."""
    return PydanticCustomError("misfit", "{sentence}", {"sentence": sentence, "field": field})


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


TaskKernel = Literal["rbf", "matern12", "matern32", "matern52", "rq", "laplace"]
Median = Literal["median"] | Positive | Positives
Convention_task_options = Literal["samples", "stability"]
Measure = Literal["gauss_legendre", "sobol", "monte_carlo"]


class QuantileOptions(Options):
    """The constructor of `InfiniteQuantileRegressor`, for values that can be written in a file."""

    kernel: TaskKernel = "rbf"
    lengthscale: Literal["auto", "median"] | Positive | Positives = "auto"
    trend: Literal["auto", "linear", "quadratic"] | Nothing = "auto"
    task_kernel: TaskKernel = "rbf"
    task_lengthscale: Median = 0.3
    lam: Literal["auto"] | Positive = "auto"
    convention: Convention_task_options = "samples"
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
    convention: Convention_task_options = "samples"
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
