"""Nodes and weights of task measures: Monte Carlo and Sobol samples, Gauss–Legendre and trapezoidal rules (LT-70..72).

In R^b, samples have one column per coordinate, and rules are products of rules in one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import qmc, uniform
from sklearn.utils import check_random_state

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses.measures import TaskMeasure, check_count, grid, product_measure


def monte_carlo(
    num_nodes: int, distribution=None, *, num_rows: int | None = None, num_dims: int | None = None, random_state=None
) -> TaskMeasure:
    """Draw independent nodes with equal weights.

    Parameters
    ----------
    num_nodes : int
        Number of nodes.
    distribution : frozen scipy.stats distribution, sequence of them or None, default=None
        Distribution of the nodes; a sequence has one per coordinate, which are independent. If None, uniform on [0, 1].
    num_rows : int or None, default=None
        Number of rows with separate nodes; one node per row already gives a consistent estimate. If None, all rows
        share the nodes.
    num_dims : int or None, default=None
        Dimension b of a task. If None, the number of distributions, or 1. A single distribution is that of each coordinate.
    random_state : int, Generator, RandomState or None, default=None
        Seed or random number generator.

    Returns
    -------
    TaskMeasure
        Nodes of shape (num_nodes,) or (num_rows, num_nodes), with a last axis of length b if b > 1.

    References
    ----------
    LT-70

    Examples
    --------
    >>> from ovkgp.losses import monte_carlo
    >>> monte_carlo(1, num_rows=50, random_state=0).nodes.shape
    torch.Size([50, 1])
    >>> monte_carlo(8, num_dims=3, random_state=0).nodes.shape  # uniform on the unit cube
    torch.Size([8, 3])
    """
    distributions = _list_distributions(distribution, num_dims)
    shape = (check_count(num_nodes),)
    if num_rows is not None:
        shape = (check_count(num_rows, "num_rows"), *shape)
    uniforms = np.random.default_rng(_draw_seed(random_state)).uniform(size=(*shape, len(distributions)))
    return _map_to_distributions(uniforms, distributions)


def sobol(
    num_nodes: int, distribution=None, *, num_dims: int | None = None, scramble: bool = True, random_state=None
) -> TaskMeasure:
    """Map a Sobol sequence through the quantile function of a distribution, with equal weights.

    Parameters
    ----------
    num_nodes : int
        Number of nodes.
    distribution : frozen scipy.stats distribution, sequence of them or None, default=None
        Distribution of the nodes; a sequence has one per coordinate, which are independent. If None, uniform on [0, 1].
    num_dims : int or None, default=None
        Dimension b of a task. If None, the number of distributions, or 1. A single distribution is that of each coordinate.
    scramble : bool, default=True
        Whether to scramble the sequence. If False, its first point 0 is omitted, since its quantile may be infinite.
    random_state : int, Generator, RandomState or None, default=None
        Seed or random number generator of the scrambling.

    Returns
    -------
    TaskMeasure
        Nodes of shape (num_nodes,), or (num_nodes, b) if b > 1.

    Notes
    -----
    The error is O((log m)^b / m) for functions of bounded variation, and that of Monte Carlo O(m^(−1/2)) for any b.

    References
    ----------
    LT-71

    Examples
    --------
    >>> from ovkgp.losses import sobol
    >>> sorted(sobol(3, scramble=False).nodes.tolist())
    [0.25, 0.5, 0.75]
    """
    distributions = _list_distributions(distribution, num_dims)
    engine = qmc.Sobol(len(distributions), scramble=scramble, rng=np.random.default_rng(_draw_seed(random_state)))
    first = 0 if scramble else 1
    # SciPy warns unless the size is a power of 2; the first points are the same
    size = 2 ** int(np.ceil(np.log2(check_count(num_nodes) + first)))
    return _map_to_distributions(engine.random(size)[first : first + num_nodes], distributions)


def gauss_legendre(
    num_nodes: int | Sequence[int],
    low: float | Sequence[float] | None = None,
    high: float | Sequence[float] | None = None,
    distribution=None,
    *,
    num_dims: int | None = None,
) -> TaskMeasure:
    """Return the Gauss–Legendre rule on [low, high], weighted by the density of a distribution, or a product of such rules.

    Parameters
    ----------
    num_nodes : int or sequence of int
        Number m of nodes, per coordinate: the product has m^b nodes.
    low, high : float, sequence of float or None, default=None
        Ends of the interval, or of that of each coordinate. If None, those of the support of `distribution`, or 0 and 1.
    distribution : frozen scipy.stats distribution, sequence of them or None, default=None
        Distribution of the tasks; a sequence has one per coordinate, which are independent. If None, uniform on
        [low, high]; polynomials of degree 2m − 1 in each coordinate are then integrated exactly.
    num_dims : int or None, default=None
        Dimension b of a task. If None, the length of the sequences among the other arguments, or 1.

    Returns
    -------
    TaskMeasure
        Nodes of shape (num_nodes,), or (m^b, b) if b > 1, the last coordinate varying fastest.

    References
    ----------
    LT-72

    Examples
    --------
    >>> from scipy.stats import beta
    >>> from ovkgp.losses import gauss_legendre
    >>> measure = gauss_legendre(5, distribution=beta(2, 1))
    >>> round(measure.integral(measure.nodes).item(), 12)  # the mean of the distribution with density 2θ
    0.666666666667
    """
    arguments = [_as_list(argument) for argument in (num_nodes, low, high, distribution)]
    num_dims = max(map(len, arguments)) if num_dims is None else check_count(num_dims, "num_dims")
    if any(len(values) not in (1, num_dims) for values in arguments):
        lengths = [len(values) for values in arguments]
        raise OptionError(
            f"num_nodes, low, high and distribution must have one value or one per coordinate ({num_dims}), got {lengths} values."
        )
    columns = [values * num_dims if len(values) == 1 else values for values in arguments]
    rules = [_gauss_legendre(*options) for options in zip(*columns, strict=True)]
    return rules[0] if num_dims == 1 else product_measure(*rules)


def _gauss_legendre(num_nodes: int, low: float | None, high: float | None, distribution) -> TaskMeasure:
    """Return the rule in one dimension."""
    ends = (0.0, 1.0) if distribution is None else distribution.support()
    low, high = (end if given is None else float(given) for given, end in zip((low, high), ends, strict=True))
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise OptionError(f"[low, high] must be a bounded interval, got [{low}, {high}]. Truncate the distribution.")
    points, weights = np.polynomial.legendre.leggauss(check_count(num_nodes))
    nodes = low + (high - low) * (points + 1) / 2
    return grid(nodes, weights / 2 if distribution is None else weights * distribution.pdf(nodes))


def trapezoid(nodes, low: float = 0.0, high: float = 1.0) -> TaskMeasure:
    """Return the trapezoidal rule, which integrates linear splines that are constant beyond the outer nodes.

    Parameters
    ----------
    nodes : array-like of shape (m,)
        Strictly increasing tasks in [low, high].
    low, high : float, default=0.0 and 1.0
        Ends of the interval.

    Returns
    -------
    TaskMeasure
        The nodes with weights that sum to 1.

    References
    ----------
    LT-E-27

    Examples
    --------
    >>> from ovkgp.losses import trapezoid
    >>> [round(w, 6) for w in trapezoid([0.1, 0.5, 0.7]).weights.tolist()]
    [0.3, 0.3, 0.4]
    """
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    inside = nodes.dim() == 1 and len(nodes) > 0 and bool(((nodes >= low) & (nodes <= high)).all())
    if not inside or not bool((nodes.diff() > 0).all()):
        raise InputError(f"nodes must be a strictly increasing vector in [{low}, {high}].")
    # node j represents the points nearer to it than to its neighbors
    edges = torch.cat([nodes.new_tensor([low]), (nodes[1:] + nodes[:-1]) / 2, nodes.new_tensor([high])])
    return TaskMeasure(nodes, edges.diff() / (high - low))


def _as_list(argument) -> list:
    """Return a sequence or array as a list, anything else as a list of length 1."""
    if torch.is_tensor(argument) or isinstance(argument, np.ndarray):
        argument = argument.tolist()
    return list(argument) if isinstance(argument, (list, tuple)) else [argument]


def _list_distributions(distribution, num_dims: int | None) -> list:
    """Return one distribution per coordinate; None is uniform on [0, 1]."""
    given = [uniform() if each is None else each for each in _as_list(distribution)]
    count = len(given) if num_dims is None else check_count(num_dims, "num_dims")
    if not given or len(given) not in (1, count):
        raise OptionError(f"distribution must be one distribution or one per coordinate ({count}), got {len(given)}.")
    return given * count if len(given) == 1 else given


def _map_to_distributions(uniforms: np.ndarray, distributions: list) -> TaskMeasure:
    """Map uniform numbers (..., b) through the quantile functions."""
    columns = [np.asarray(each.ppf(uniforms[..., j]), dtype=np.float64) for j, each in enumerate(distributions)]
    nodes = columns[0] if len(columns) == 1 else np.stack(columns, -1)
    return TaskMeasure(torch.from_numpy(nodes), num_dims=len(columns))


def _draw_seed(random_state) -> int:
    """Draw a seed; unlike `as_seed`, an int seeds the draw."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    return int(check_random_state(random_state).randint(2**31))
