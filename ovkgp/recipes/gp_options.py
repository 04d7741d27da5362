"""The options of `GPRegressor` that a recipe may set, and a graph between its outputs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ovkgp.recipes.values import (
    AllRows,
    Count,
    Nothing,
    Options,
    Positive,
    Positives,
    Rows,
    Says,
    Seed,
    Share,
    Switch,
    Verbosity,
)

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
