"""Vector fields in the plane: arrows of the posterior mean over its uncertainty, or over the scalar that the field comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.criticism.predictive_distributions import as_inputs
from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.inference.posteriors.fields import field_terms
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.plotting.axes import INK, LINE, OTHER, Panels, colour_bar, input_names, label
from ovkgp.plotting.slices import Data, check_posterior, input_range

SCALARS = {
    "potential": 'kernel="curl_free" or kernel="helmholtz"',
    "stream_function": 'kernel="divergence_free" or kernel="helmholtz"',
}
"""What a field may come from, and which kernels have it."""


class FieldValues(NamedTuple):
    """Mean of the field (m, 2), and the root of the mean variance of its two components, (m,)."""

    mean: np.ndarray
    std: np.ndarray


def field_values(estimator, points: np.ndarray) -> FieldValues:
    """The latent field at points (m, 2)."""
    mean, std = estimator.predict(as_inputs(estimator, points), return_std=True, noise=False)
    return FieldValues(mean, np.sqrt(np.mean(std**2, axis=1)))


def scalar_behind(estimator, points: np.ndarray, kind: str, reference: np.ndarray) -> np.ndarray:
    """The posterior mean (m,) of the potential or stream function at points (m, 2); zero at `reference` (2,).

    The gradient of the potential of a curl-free model is its predicted mean; that of a Helmholtz model is the mean of its curl-free
    part, without the constant that both parts could have. A stream function ψ has the field (∂₂ψ, −∂₁ψ).

    Args:
        estimator: a fitted regressor with the kernel of a field in the plane.
        points: in the user's units.
        kind: "potential" or "stream_function".
        reference: where it is taken as zero.

    Raises:
        OptionError: the kernel has none.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.fields import scalar_behind
        >>> X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
        >>> model = ovkgp.OVKRidge("curl_free", lam=1e-3).fit(X, X)  # the gradient of |x|²/2
        >>> scalar_behind(model, np.array([[0.6, 0.8]]), "potential", np.zeros(2)).round(2)
        array([0.5])
    """
    scaling, posterior = estimator.scaling_, estimator.posterior_
    try:
        scalar = getattr(posterior, kind)(scaling.inputs(reference[None])[0])
    except (KernelTypeError, AttributeError) as error:  # posteriors of independent outputs are no fields at all
        raise OptionError(f"shade={kind!r} needs {SCALARS[kind]}; this model has none behind it: {error}") from error
    values = scalar.predict(scaling.inputs(points), "none").mean[:, 0].numpy()
    values = values * scaling.input_scale[0] * scaling.output_scale[0]
    if len(field_terms(estimator.gp_.kernel)) > 1:
        return values
    level = scaling.mean(_prior_mean(posterior, scaling.inputs(reference[None])))[0]
    direction = level if kind == "potential" else np.array([-level[1], level[0]])
    return values + (points - reference) @ direction


def _prior_mean(posterior: Posterior, X: Tensor) -> Tensor:
    """m(X) (m, p) in the units of the model, averaged where there are draws."""
    if isinstance(posterior, MixturePosterior):
        return torch.stack([part.prior_mean(X) for part in posterior.parts]).mean(0)
    return posterior.prior_mean(X)


FAINTEST = 0.12
"""The opacity of an arrow of which nothing is known."""


def opacity(values: FieldValues) -> np.ndarray:
    """1 / (1 + σ²/τ²) (m,), never less than 0.12, with τ the root mean square of the field: ½ where the model is as unsure as
    the field is strong.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.fields import opacity
        >>> from ovkgp.plotting.fields import FieldValues
        >>> opacity(FieldValues(np.array([[3.0, 4.0], [-3.0, 4.0]]), np.array([0.0, 5.0])))
        array([1. , 0.5])
    """
    typical = np.mean(np.sum(values.mean**2, axis=1))
    if typical == 0:
        return np.full(len(values.std), FAINTEST)
    return np.maximum(1 / (1 + values.std**2 / typical), FAINTEST)


def draw_arrows(axes: Axes, points: np.ndarray, values: FieldValues, scale: float) -> list[Line2D]:
    """The posterior mean (m, 2), each arrow as dark as it is sure; what stands for it in a legend."""
    colours = np.tile(to_rgba(LINE), (len(points), 1))
    colours[:, 3] = opacity(values)
    _quiver(axes, points, values.mean, scale, width=0.0045, headwidth=3.5, color=colours, zorder=3)
    longest = np.hypot(*values.mean.T).max()
    return [_sign(f"mean (longest: {longest:.3g})", color=LINE, linewidth=2.5)]


def true_vectors(points: np.ndarray, truth: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The true field (m, 2) at points (m, 2), checked."""
    field = np.asarray(truth(points), dtype=np.float64)
    if field.shape != points.shape:
        raise InputError(f"truth must map points {points.shape} to vectors {points.shape}, got {field.shape}.")
    return field


def draw_truth(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float) -> list[Line2D]:
    """The true field at the same points: thin outlines, which an arrow of the mean fills where the two agree."""
    _quiver(
        axes,
        points,
        vectors,
        scale,
        width=0.0065,
        headwidth=3.2,
        facecolor="none",
        edgecolor=INK,
        linewidth=0.5,
        zorder=4,
    )
    return [_sign("truth", color=INK, linewidth=0.5, marker=">", markerfacecolor="none", markeredgewidth=0.5)]


def draw_data(axes: Axes, data: Data, scale: float) -> list[Line2D]:
    """Observed vectors, with a dot at their foot; a square where only one component was observed."""
    observed = np.isfinite(data.Y)
    handles = []
    for rows, marker, name in ((observed.all(1), "o", "data"), (observed.sum(1) == 1, "s", "data, one component")):
        if rows.any():
            style = {"color": OTHER, "marker": marker, "markersize": 3.0, "markeredgewidth": 0.6}
            fill = {} if marker == "o" else {"markerfacecolor": "white"}
            axes.plot(*data.X[rows].T, linestyle="none", zorder=2.6, **style, **fill)
            arrows = np.nan_to_num(data.Y[rows])
            _quiver(axes, data.X[rows], arrows, scale, width=0.0028, color=OTHER, headwidth=4, zorder=2.5)
            handles.append(_sign(name, linewidth=1.2, **style, **fill))
    return handles


def _quiver(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float, **style) -> None:
    axes.quiver(*points.T, *vectors.T, angles="xy", scale_units="xy", scale=scale, **style)


def _sign(name: str, **style) -> Line2D:
    return Line2D([], [], label=name, **style)


SHADES = ("std", *SCALARS)
SHADED_POINTS = 50
"""Points of the background along the longer side."""
GREYS = ListedColormap([(level, level, level) for level in np.linspace(1.0, 0.55, 256)], "light greys")
"""From white, where the model is sure, to a grey on which black is still seen."""
LIGHT_CIVIDIS = ListedColormap(colormaps["cividis"](np.linspace(0.5, 1.0, 128)), "light cividis")
"""The lighter half of a perceptually uniform map, so that dark arrows stay visible."""
WORDS = {
    "std": "standard deviation of the field",
    "potential": "potential",
    "stream_function": "stream function",
}


def grid(box: tuple[float, float, float, float], number: int, *, inside: bool) -> tuple[np.ndarray, tuple[int, int]]:
    """Points (m, 2) of a grid with square cells, row by row from the bottom, and its shape (rows, columns).

    Args:
        box: left, right, bottom, top.
        number: of points along the longer side.
        inside: whether points are the middles of cells, or reach the edge.
    """
    width, height = box[1] - box[0], box[3] - box[2]
    counts = [max(2, round(number * side / max(width, height))) for side in (width, height)]
    axes = [_places(*ends, count, inside) for ends, count in zip((box[:2], box[2:]), counts, strict=True)]
    first, second = np.meshgrid(*axes)
    return np.column_stack([first.ravel(), second.ravel()]), first.shape


def _places(low: float, high: float, count: int, inside: bool) -> np.ndarray:
    half = (high - low) / count / 2 if inside else 0.0
    return np.linspace(low + half, high - half, count)


def shade_values(estimator, box: tuple[float, float, float, float], shade: str) -> np.ndarray:
    """The background (rows, columns) of a field on the grid of a box (left, right, bottom, top), from the bottom."""
    points, shape = grid(box, SHADED_POINTS, inside=False)
    if shade == "std":
        return field_values(estimator, points).std.reshape(shape)
    middle = np.array([(box[0] + box[1]) / 2, (box[2] + box[3]) / 2])
    return scalar_behind(estimator, points, shade, middle).reshape(shape)


def draw_shade(axes: Axes, values: np.ndarray, box: tuple[float, float, float, float], shade: str) -> None:
    """These values within their box, with their scale in words: greys for "std", contours for the others."""
    if shade == "std":
        highest = values.max() or 1.0
        options = {"extent": box, "origin": "lower", "interpolation": "bilinear"}
        drawn = axes.imshow(values, GREYS, vmin=0.0, vmax=highest, **options)
    else:
        levels = MaxNLocator(nbins=12).tick_values(values.min(), values.max())
        where = [np.linspace(*ends, count) for ends, count in zip((box[:2], box[2:]), values.shape[::-1], strict=True)]
        drawn = axes.contourf(*where, values, levels, cmap=LIGHT_CIVIDIS)
        axes.contour(*where, values, levels, colors="0.35", linewidths=0.5, linestyles="solid")
    colour_bar(axes, drawn, WORDS[shade])


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
    check_posterior(estimator, "plot_field")
    _require_plane(estimator)
    if shade is not None and shade not in SHADES:
        raise OptionError(f"shade must be one of {', '.join(map(repr, SHADES))} or None, got {shade!r}.")
    data = Data.of(estimator, X, Y)
    box = _extent(estimator, data, extent)
    number = check_integer("num_arrows", num_arrows, least=2)
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
