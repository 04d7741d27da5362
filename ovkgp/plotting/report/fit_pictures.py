"""The pictures of the fit, chosen by the kind of estimator, and the traces of its hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ovkgp import plotting
from ovkgp.plotting.report import class_pictures
from ovkgp.plotting.report.kinds import class_name, kind_of
from ovkgp.plotting.report.pictures import drawn
from ovkgp.plotting.report.predictions_made import Predicted
from ovkgp.plotting.report.regression_pictures import fan_pictures, observed_picture, table_pictures
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.report.sections import Picture

NO_PICTURE = (
    "Nobody says where the inputs lie, as the model keeps no rows: give X and Y (or --data) for pictures of the fit."
)


def fit_pictures(estimator, rows: Rows | None, found: Predicted | None) -> tuple[Picture, ...]:
    """All pictures of the fit.

    Args:
        estimator: fitted.
        rows: those given or kept.
        found: predictions of unseen entries, where there are some.

    Cost: predictions on grids of a few thousand points, and what `found` cost once more.
    """
    return tuple(_BY_KIND[kind_of(estimator)](estimator, rows, found)) if knows_inputs(estimator, rows) else ()


def trace_pictures(estimator) -> tuple[Picture, ...]:
    """Traces of the hyperparameters, where chains drew them."""
    if not hasattr(estimator, "draws_") or estimator.draws_["posterior"].attrs["method"] != "nuts":
        return ()
    plot = partial(plotting.plot_traces, estimator)
    alt = "Traces of the draws of each hyperparameter, one line a chain, beside their densities."
    return (
        drawn(plot, alt, "Chains that have mixed look like one band of noise, and their densities lie on each other."),
    )


def knows_inputs(estimator, rows: Rows | None) -> bool:
    """Whether anybody says where the inputs lie: rows, or the scaling of a model that has forgotten them."""
    scaling = getattr(estimator, "scaling_", None)
    return rows is not None or (
        scaling is not None and bool(scaling.input_offset.any() or (scaling.input_scale != 1).any())
    )


def _labels(estimator, rows: Rows | None, found: Predicted | None) -> Iterator[Picture]:
    if rows is None:
        return
    is_cost, is_plane = class_name(estimator) == "InfiniteCostSensitiveClassifier", estimator.n_features_in_ == 2
    where = "the rows given" if rows.is_given else "the rows of the fit, on which it looks better than on others"
    if is_plane:
        draw = class_pictures.draw_cost_map if is_cost else class_pictures.draw_class_map
        words = (
            "at a low, a middle and a high cost of missing the second class"
            if is_cost
            else "with the probability of the class"
        )
        yield drawn(
            partial(draw, estimator, rows),
            f"A map of the borders between the classes {words}.",
            f"Borders between the classes, {words}.",
        )
    if is_cost and len(np.unique(rows.Y)) == 2:
        yield drawn(
            partial(class_pictures.draw_roc, estimator, rows),
            "The share of the second class that is found against the share of false alarms, at every cost.",
            f"Every point of the curve is a cost: the dearer a miss, the further to the upper right. On {where}.",
        )
    if not is_cost:
        yield drawn(
            partial(class_pictures.draw_confusion, estimator, rows),
            "A table of observed against predicted classes, in rows.",
            f"Observed against predicted classes, in numbers of rows. On {where}.",
        )


def _points(estimator, rows: Rows | None, found: Predicted | None) -> Iterator[Picture]:
    if estimator.n_features_in_ == 2:
        yield drawn(
            partial(class_pictures.draw_level_sets, estimator, rows),
            "Nested level sets over the rows, each marked with the share of the data outside.",
            "Each line leaves the share outside that is written on it.",
        )
    yield drawn(
        partial(class_pictures.draw_level_scores, estimator, rows),
        "A histogram of the level scores of the rows, with the line of an even spread.",
        "Level scores of the rows: where they are p-values, a share ν of fresh rows has a score below ν, and the bars are level.",
    )


def _tasks(estimator, rows: Rows | None, found: Predicted | None) -> Iterator[Picture]:
    if rows is not None:
        yield observed_picture(estimator, rows)


_BY_KIND = {"table": table_pictures, "target": fan_pictures, "labels": _labels, "none": _points, "tasks": _tasks}
