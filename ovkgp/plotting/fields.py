"""Vector fields in the plane: arrows of the posterior mean over its uncertainty, or over the scalar that the field comes from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation
from sklearn.utils.validation import check_is_fitted

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.checks import whole_number
from ovkgp.plotting.bands import require_posterior
from ovkgp.plotting.cuts import Data, input_range
from ovkgp.plotting.field_arrows import draw_arrows, draw_data, draw_truth, true_vectors
from ovkgp.plotting.field_shades import SHADES, draw_shade, grid, shade_values
from ovkgp.plotting.field_values import field_values
from ovkgp.plotting.names import input_names, label
from ovkgp.plotting.panels import Panels

MARGIN = 0.05
SIZE = (6.4, 5.2)
"""Inches of the picture."""
BELOW, LINE_HEIGHT = 34, 13
"""Points from the axes to a legend below their label, and those of a further line of it."""


def plot_field(
    estimator,
    X=None,
    Y=None,
    *,
    extent=None,
    num_arrows: int = 15,
    shade: str | None = "std",
    truth: Callable[[np.ndarray], np.ndarray] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A vector field with two inputs and two outputs: arrows of its posterior mean, faint where the model is not sure.

    An arrow fades where the standard deviation is as large as the field itself usually is. All arrows have one scale.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge` or `ORFFRidge` with two inputs and two outputs.
        X, Y: rows to show as arrows (n, 2), NaN where a component is missing. X alone says only where to draw; without both they are
            the rows that the model keeps. Where one component is missing the arrow is that of the other.
        extent: (left, right, bottom, top); that of the rows, and a little more, where None.
        num_arrows: along the longer side.
        shade: behind the arrows: "std", the root of the mean variance of both components, "potential" or "stream_function", up to a
            constant that makes it zero in the middle, or None.
        truth: the true field, (m, 2) ↦ (m, 2), drawn with thin arrows.
        ax: where to draw.

    Raises:
        OptionError: the model is no field in the plane, or its kernel has no such scalar behind it.

    Cost: a prediction at about 2500 points.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from matplotlib.figure import Figure
        >>> X = np.random.default_rng(0).uniform(-1, 1, (40, 2))
        >>> model = ovkgp.OVKRidge("divergence_free", lam=1e-2).fit(X, np.stack([-X[:, 1], X[:, 0]], 1))
        >>> ax = ovkgp.plotting.plot_field(model, shade="stream_function", ax=Figure().subplots())
        >>> ax.get_xlabel(), ax.child_axes[0].get_ylabel()
        ('input 0', 'stream function')
    """
    check_is_fitted(estimator)
    require_posterior(estimator, "plot_field")
    _require_plane(estimator)
    if shade is not None and shade not in SHADES:
        raise OptionError(f"shade must be one of {', '.join(map(repr, SHADES))} or None, got {shade!r}.")
    data = Data.of(estimator, X, Y)
    box = _extent(estimator, data, extent)
    number = whole_number("num_arrows", num_arrows, least=2)
    points = grid(box, number, inside=True)[0]
    values = field_values(estimator, points)
    background = None if shade is None else shade_values(estimator, box, shade)
    vectors = None if truth is None else true_vectors(points, truth)
    panels = Panels.of(ax, 1, "one for the field", size=_size(box))  # last: a mistake leaves no empty figure behind
    (axes,) = panels.axes
    if shade is not None:
        draw_shade(axes, background, box, shade)
    scale = _scale(values.mean, box, number)
    handles = draw_arrows(axes, points, values, scale)
    handles += [] if vectors is None else draw_truth(axes, points, vectors, scale)
    handles += [] if data.Y is None else draw_data(axes, data, scale)
    _label(axes, estimator, box)
    _legend(panels, handles)
    return axes


def _require_plane(estimator) -> None:
    if (estimator.n_features_in_, estimator.n_outputs_) != (2, 2):
        raise OptionError(
            f"plot_field draws fields with two inputs and two outputs; this model has {estimator.n_features_in_} and "
            f"{estimator.n_outputs_}: use plot_prediction."
        )


def _extent(estimator, data: Data, extent) -> tuple[float, float, float, float]:
    if extent is None:
        low, _, high = input_range(estimator, data.X)
        reach = MARGIN * (high - low)
        return low[0] - reach[0], high[0] + reach[0], low[1] - reach[1], high[1] + reach[1]
    try:
        left, right, bottom, top = map(float, extent)
    except (TypeError, ValueError) as error:
        raise InputError(f"extent is four numbers (left, right, bottom, top), got {extent!r}.") from error
    if not (np.isfinite([left, right, bottom, top]).all() and left < right and bottom < top):
        raise InputError(f"extent is (left, right, bottom, top) with left < right and bottom < top, got {extent!r}.")
    return left, right, bottom, top


def _size(box) -> tuple[float, float]:
    """A figure about as high as the field is, beside its width."""
    ratio = (box[3] - box[2]) / (box[1] - box[0])
    return SIZE[0], float(np.clip(SIZE[1] * ratio, 3.4, 9.0))


def _scale(mean: np.ndarray, box, number: int) -> float:
    """Units of the field in a unit of length, such that a long arrow just fills its cell."""
    longest = np.quantile(np.hypot(*mean.T), 0.95)
    cell = max(box[1] - box[0], box[3] - box[2]) / number
    return float(longest / cell) if longest > 0 else 1.0


def _label(axes: Axes, estimator, box) -> None:
    across, up = (label(name) for name in input_names(estimator))
    axes.set(xlabel=across, ylabel=up, xlim=box[:2], ylim=box[2:], aspect="equal")


def _legend(panels: Panels, handles: list[Line2D]) -> None:
    """Above a figure of ours; below axes that were given, where neither arrows nor a title are covered."""
    (axes,) = panels.axes
    if panels.is_ours:
        axes.figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize="small")
        return
    points = BELOW + LINE_HEIGHT * axes.get_xlabel().count("\n")
    below = axes.transAxes + ScaledTranslation(0, -points / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        **{"handles": handles, "loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below},
        **{"ncols": 2, "frameon": False, "fontsize": "x-small", "handlelength": 1.4, "columnspacing": 0.8},
    )
