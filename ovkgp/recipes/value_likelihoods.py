"""Which likelihood for which output: by what its values look like, or as a table of the recipe says."""

from __future__ import annotations

import numpy as np

from ovkgp.recipes.outputs import Outputs

BY_VALUES = "by_values"


def depends_on_outputs(likelihood) -> bool:
    """Whether a likelihood of a recipe is known only when the columns are."""
    return isinstance(likelihood, dict) or likelihood == BY_VALUES


def choose_likelihoods(likelihood: str | dict[str, str], outputs: Outputs) -> str | list[str]:
    """The likelihood of each output, as `GPRegressor` takes it.

    Args:
        likelihood: "by_values", or a table from columns to likelihoods; columns that it does not name go by their values.
        outputs: the columns.

    Returns:
        A list with one for each output; "gaussian" where all are, which is then exact.

    Example:
        >>> import numpy as np
        >>> from ovkgp.recipes.outputs import Outputs
        >>> from ovkgp.recipes.value_likelihoods import choose_likelihoods
        >>> outputs = Outputs.of(np.array([[0.0, 3.0, 0.5], [1.0, 0.0, np.nan]]))
        >>> choose_likelihoods("by_values", outputs)
        ['bernoulli', 'negative_binomial', 'gaussian']
        >>> choose_likelihoods({"y1": "poisson"}, outputs)
        ['bernoulli', 'poisson', 'gaussian']
    """
    chosen = [likelihood_of(column) for column in outputs.values.T]
    if isinstance(likelihood, dict):
        for key, name in likelihood.items():
            chosen[outputs.number(key, "likelihood")] = name
    return "gaussian" if set(chosen) == {"gaussian"} else chosen


def likelihood_of(values: np.ndarray) -> str:
    """That of values (n,), NaN where missing: labels are 0 and 1, counts are whole numbers from 0.

    Counts are "negative_binomial", which comes close to "poisson" where they do not vary more than that.

    Example:
        >>> from ovkgp.recipes.value_likelihoods import likelihood_of
        >>> likelihood_of([0, 1, 1]), likelihood_of([0, 1, 7]), likelihood_of([0, -1])
        ('bernoulli', 'negative_binomial', 'gaussian')
    """
    seen = np.asarray(values, dtype=np.float64)
    seen = seen[np.isfinite(seen)]
    if np.isin(seen, (0.0, 1.0)).all():
        return "bernoulli"
    return "negative_binomial" if (seen >= 0).all() and (seen == np.round(seen)).all() else "gaussian"
