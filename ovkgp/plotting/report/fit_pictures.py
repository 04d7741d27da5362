"""The pictures of the fit: what the model says over its inputs, chosen by the kind of estimator and the shape of its data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import matplotlib.pyplot as plt
import numpy as np

from ovkgp import plotting
from ovkgp.estimators.structures import FIELDS
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.panels import PANEL
from ovkgp.plotting.report import class_pictures
from ovkgp.plotting.report.changes import changes
from ovkgp.plotting.report.kinds import class_name, kind_of
from ovkgp.plotting.report.numbers import listed
from ovkgp.plotting.report.pictures import drawn
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.report.sections import Picture

MOST_PANELS = 9
"""Outputs that are drawn."""
SCALARS = {
    "curl_free": ("potential",),
    "divergence_free": ("stream_function",),
    "helmholtz": ("potential", "stream_function"),
}
"""What lies behind the fields."""


def fit_pictures(estimator, rows: Rows | None) -> tuple[Picture, ...]:
    """All pictures of the fit.

    Cost: predictions on grids of a few thousand points.
    """
    return tuple(_BY_KIND[kind_of(estimator)](estimator, rows)) if knows_inputs(estimator, rows) else ()


def knows_inputs(estimator, rows: Rows | None) -> bool:
    """Whether anybody says where the inputs lie: rows, or the scaling of a model that has forgotten them."""
    scaling = getattr(estimator, "scaling_", None)
    return rows is not None or (
        scaling is not None and bool(scaling.input_offset.any() or (scaling.input_scale != 1).any())
    )


# --- regressors -------------------------------------------------------------------------------------------------------


def _table(estimator, rows: Rows | None) -> Iterator[Picture]:
    is_plane = (estimator.n_features_in_, estimator.n_outputs_) == (2, 2)
    is_field = getattr(estimator, "kernel_", None) in FIELDS
    if is_plane:
        yield from _fields(estimator, rows)
    if hasattr(estimator, "posterior_") and not (is_plane and is_field):
        yield _bands(estimator, rows)


def _fields(estimator, rows: Rows | None) -> Iterator[Picture]:
    names, given = listed(output_names(estimator)), _given(rows)
    words = f"the field {names} over {listed(input_names(estimator))}"
    yield drawn(
        partial(plotting.plot_field, estimator, *given),
        f"Arrows of the predicted mean of {words}, shaded by its standard deviation, with the observations.",
        f"The mean of {words}. Arrows fade, and the background darkens, where the model is not sure.",
    )
    for scalar in SCALARS.get(getattr(estimator, "kernel_", None), ()):
        what = scalar.replace("_", " ")
        yield drawn(
            partial(plotting.plot_field, estimator, *given, shade=scalar),
            f"Arrows of the predicted mean of {words} over its {what}.",
            f"The same field over its {what}, up to a constant.",
        )


def _bands(estimator, rows: Rows | None) -> Picture:
    along, names = most_relevant(estimator, rows), output_names(estimator)
    shown = names[:MOST_PANELS]
    where = input_names(estimator)[along]
    caption = f"The line is the predicted mean, the band holds 90 % of new observations, dots are data. {_elsewhere(estimator, where)}"
    if len(names) > len(shown):
        caption += f" The first {len(shown)} of {len(names)} outputs."
    plot = (
        partial(_some_panels, estimator, rows, along)
        if len(names) > MOST_PANELS
        else partial(plotting.plot_prediction, estimator, *_given(rows), along=along)
    )
    return drawn(
        plot,
        f"Predicted mean and 90 % interval of {listed(shown)} along '{where}', with the observations as dots.",
        caption,
    )


def _some_panels(estimator, rows: Rows | None, along: int):
    axes = plt.subplots(3, 3, figsize=(3 * PANEL[0], 3 * PANEL[1]), layout="constrained")[1]
    for output, one in enumerate(axes.ravel()):
        plotting.plot_prediction(estimator, *_given(rows), output=output, along=along, ax=one)
    return axes


def _target(estimator, rows: Rows | None) -> Iterator[Picture]:
    along = most_relevant(estimator, rows)
    where = input_names(estimator)[along]
    levels = {} if estimator.coupling == "infinite" else {"levels": estimator.function_.tasks.levels.tolist()}
    yield drawn(
        partial(plotting.plot_quantiles, estimator, *_given(rows), along=along, **levels),
        f"Quantile curves along '{where}' as a fan, with the observations as dots.",
        f"Quantiles of a new observation: the darker, the nearer to the median. {_elsewhere(estimator, where)}",
    )


def most_relevant(estimator, rows: Rows | None) -> int:
    """The input along which predictions change most; the first where there is one only."""
    if estimator.n_features_in_ == 1:
        return 0
    spread = 1.0 if rows is None or rows.Y is None else np.nanstd(rows.Y, axis=0)
    return int(changes(estimator, None if rows is None else rows.inputs, spread).argmax())


def _elsewhere(estimator, where: str) -> str:
    if estimator.n_features_in_ == 1:
        return ""
    return f"Along '{where}', where predictions change most; the other inputs stay at their medians."


def _given(rows: Rows | None) -> tuple:
    return (None, None) if rows is None else (rows.X, rows.Y)


# --- others -----------------------------------------------------------------------------------------------------------


def _labels(estimator, rows: Rows | None) -> Iterator[Picture]:
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


def _points(estimator, rows: Rows | None) -> Iterator[Picture]:
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


def _tasks(estimator, rows: Rows | None) -> Iterator[Picture]:
    if rows is None:
        return
    yield drawn(
        partial(class_pictures.draw_observed, estimator, rows),
        "Observed against predicted entries of all tasks, with the line on which they agree.",
        f"Every entry of every task, {'on the rows given' if rows.is_given else 'on the rows of the fit'}.",
    )


_BY_KIND = {"table": _table, "target": _target, "labels": _labels, "none": _points, "tasks": _tasks}
