"""The parts of a recipe against their schemas: first the tables of the file, then the options by the name of the estimator."""

from __future__ import annotations

from typing import Any

from ovkgp.recipes.complaints import Place, check
from ovkgp.recipes.finding import did_you_mean
from ovkgp.recipes.gp_options import Graph
from ovkgp.recipes.schemas import SCHEMAS, Document, Model


def checked_document(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """The fields of a `Recipe` from the values of a file.

    Example:
        >>> from ovkgp.recipes.checking import checked_document
        >>> from ovkgp.recipes.complaints import Place
        >>> checked_document({"model": {"estimator": "OVKRidge", "options": {"lam": 0.1}}}, Place("mine.toml"))["options"]
        {'lam': 0.1}
    """
    document = check(Document, values, place, "a table or key of a recipe")
    return {**document.recipe.model_dump(), **_checked(document.model, place.within("model"))}


def checked_model(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """`estimator`, `options` and `graph` as the estimator's schema reads them; only those options that were set."""
    return _checked(check(Model, values, place, "a part of a model"), place)


def _checked(model: Model, place: Place) -> dict[str, Any]:
    if model.estimator not in SCHEMAS:
        near = did_you_mean(model.estimator, SCHEMAS)
        sentence = f"estimator must be one of {', '.join(SCHEMAS)}; got {model.estimator!r}{near}"
        raise place.error(sentence, ("estimator",))
    owner, inside = f"an option of {model.estimator}", place.within("options")
    options = check(SCHEMAS[model.estimator], model.options, inside, owner).model_dump(exclude_unset=True)
    return {"estimator": model.estimator, "options": options, "graph": _checked_graph(model, place)}


def _checked_graph(model: Model, place: Place) -> dict[str, Any] | None:
    if model.graph is None:
        return None
    if model.estimator != "GPRegressor":
        raise place.error(f"a graph between outputs is for GPRegressor, not for {model.estimator}", ("graph",))
    graph = check(Graph, model.graph, place.within("graph"), "a key of [model.graph]")
    for name, only in (("kernel", "decomposable"), ("rank", None)):
        if model.options.get(name, only) != only:
            sentence = (
                f"{name} cannot be set beside a graph, which is the matrix of a decomposable kernel: leave it out"
            )
            raise place.error(sentence, ("options", name))
    return graph.model_dump(exclude_unset=True)
