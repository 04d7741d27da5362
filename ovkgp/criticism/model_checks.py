"""`criticize`: all checks of a fitted model in one table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ovkgp.checks import as_seed, check_estimator, check_probability
from ovkgp.criticism.prediction_checks import Predictions, check_predictions, check_replicates, check_structure
from ovkgp.criticism.predictive_distributions import predictive
from ovkgp.criticism.residual_checks import MAX_KERNEL_ROWS, ResidualTests, check_residuals
from ovkgp.criticism.residuals import Residuals, match_rows
from ovkgp.criticism.results import Check, Criticism, correct_for_number
from ovkgp.exceptions import InputError, OptionError

MAX_CATEGORIES = 50  # categories of a column of text
MIN_ALPHA = 0.001  # smaller levels need too many permutations


def criticize(estimator, X=None, Y=None, *, extra=None, groups=None, alpha=0.05, random_state=None) -> Criticism:
    """Check whether a fitted model is right: tests, scores and recommendations in one table.

    Tests use residuals that are independent and standard normal if the model is right (`Estimator.normal_residuals`). The table says
    how they were computed and which checks do not apply.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator.
    X, Y : array-like of shape (m, d) and (m, p), or None, default=None
        Rows held out of the fit, or the training rows. If None, the stored training rows.
    extra : array-like of shape (m, k), DataFrame, Series or None, default=None
        Columns that are no inputs, such as time, a station or a measurement, in the order of the rows. Each is tested for dependence with
        the residuals.
    groups : array-like of shape (m,) or None, default=None
        Labels of the rows X and Y, which must be the training rows (a track, a station). Coverage and scores are then those of rows
        predicted from other groups, and residuals are tested for differences between groups.
    alpha : float, default=0.05
        Probability that any test rejects if the model is right, at least 0.001; p-values are corrected by Holm's method.
    random_state : int, RandomState instance or None, default=None
        Seed of permutations, simulations and random rows.

    Returns
    -------
    Criticism
        A sequence of checks, which prints as a table: check, statistic, p-value, conclusion, recommendation.

    Raises
    ------
    InputError
        If X is passed without Y, some but not all rows are training rows, or `extra` and `groups` do not match the rows.
    OptionError
        If the model stores no rows and none are passed, or has no predictive distributions.

    Notes
    -----
    Residuals of training rows of a Gaussian model are whitened by the prior covariance, those of new rows by the covariance of their
    joint prediction. A mixture (the default `GPRegressor`) has no whitened residuals: those of its heaviest component at its mode
    are tested, while coverage and scores are those of the mixture. Other models have normal scores of (randomized) probability integral
    transforms of single entries; if they can draw observations, predictive checks compare these with the given ones. Hyperparameters trained on the same rows shrink residuals: tests then compare with samples whose mean and
    variance are estimated too, and the test of scales of variation projects on the directions that training leaves free.

    Kernel tests use at most 500 random rows. Missing entries are replaced by standard normal draws, which does not change the
    level of a test. Complexity: one eigendecomposition of at most 2000 rows per output, and O(B r²) for r = 500 rows and B = 1000 permutations.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import criticize
    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(0, 6, 100)[:, None]
    >>> wind = rng.normal(size=100)
    >>> y = np.sin(X[:, 0]) + 0.2 * wind + 0.1 * rng.normal(size=100)
    >>> model = ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0).fit(X, y)
    >>> table = criticize(model, extra={"wind": wind}, random_state=0)
    >>> [check.name for check in table.rejected]
    ['residuals and wind']
    """
    check_estimator(estimator)
    if (X is None) != (Y is None) and estimator.kind != "none":
        raise InputError("X and Y must be passed together. Omit both to use the training rows.")
    if groups is not None and X is None:
        raise InputError("groups must be passed with X and Y, the training rows that the labels belong to.")
    alpha, seed = check_probability("alpha", alpha), as_seed(random_state)
    if alpha < MIN_ALPHA:
        raise OptionError(f"alpha must be at least {MIN_ALPHA}, got {alpha}.")
    stored = estimator.training_data()
    count = _count_rows(stored, X)
    _check_order_is_known(stored, X, extra)
    columns, labels = _read_extra(extra, count), _read_groups(groups, count)

    residuals = estimator.normal_residuals(X, Y, random_state=seed)
    if labels is not None and residuals.is_held_out:
        raise InputError("groups needs the training rows. Pass the rows of the fit as X and Y.")
    if labels is not None and count < len(stored[0]):
        raise InputError(f"groups needs all training rows, got {count} of {len(stored[0])}. Pass all rows of the fit.")
    names = estimator.output_labels()[: residuals.values.shape[1]]
    predictions = _predict(estimator, X, Y, groups, residuals.is_held_out, stored)
    num_trained = None if residuals.is_known else _count_observed(estimator, stored)
    tests = ResidualTests(
        residuals.fill(seed), ~np.isfinite(residuals.values), num_trained, alpha, seed, names, len(columns)
    )
    rows = residuals.rows
    extra_rows = [(name, column[rows]) for name, column in columns]
    checks = [
        *check_residuals(tests, extra_rows, None if labels is None else labels[rows]),
        *_check_draws(estimator, stored if X is None else (X, Y), residuals, tests),
        *check_predictions(estimator, predictions, (X, Y) if residuals.is_held_out else None, names),
        *check_structure(estimator, len(names)),
    ]
    notes = [residuals.source, _describe_predictions(predictions, residuals.is_held_out, groups)]
    if len(rows) > MAX_KERNEL_ROWS:
        notes.append(f"Kernel tests use {MAX_KERNEL_ROWS} random rows.")
    if tests.missing.any():
        notes.append(f"{tests.missing.sum()} missing entries are replaced by standard normal draws in the tests.")
    return Criticism(correct_for_number(checks, alpha), alpha, tuple(note for note in notes if note), residuals)


def _check_draws(estimator, data, residuals: Residuals, tests: ResidualTests) -> list[Check]:
    """List predictive checks of models whose residuals are those of single entries."""
    if residuals.is_joint:
        return [Check("predictive checks", conclusion="whitened residuals are tested instead", applies=False)]
    rows = residuals.rows[tests.kernel_rows]
    return check_replicates(estimator, *data, rows, tests.num_replicates, tests.alpha, tests.seed)


def _count_rows(stored, X) -> int | None:
    rows = stored[0] if X is None and stored is not None else X
    return None if rows is None else len(rows)


def _check_order_is_known(stored, X, extra) -> None:
    """Raise if stored rows with missing outputs may have another order than that of the fit."""
    if X is not None or stored is None or extra is None or stored[1] is None:
        return
    if stored[1].dtype.kind == "f" and np.isnan(stored[1]).any():
        raise InputError(
            "extra needs the rows of the fit if outputs are missing, since stored rows may have another order. Pass X and Y."
        )


def _read_extra(extra, count: int | None) -> list[tuple[str, np.ndarray]]:
    """Return names and numbers (n, k) of the extra columns; texts are indicators of their categories."""
    if extra is None:
        return []
    frame = pd.DataFrame(extra)
    if frame.empty or len(frame) != count:
        raise InputError(f"extra has {len(frame)} rows, expected {count}. Pass one row per row of the data.")
    is_numbered = list(frame.columns) == list(range(frame.shape[1]))
    names = [f"extra {name}" if is_numbered else str(name) for name in frame.columns]
    return [(name, _as_columns(name, frame.iloc[:, j])) for j, name in enumerate(names)]


def _as_columns(name: str, values: pd.Series) -> np.ndarray:
    """Return a column as numbers (n, 1), or the indicators (n, k) of its categories."""
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        origin = values.dropna().min()
        return ((values - origin) / pd.Timedelta(days=1)).to_numpy(dtype=float)[:, None]
    if pd.api.types.is_numeric_dtype(values):
        numbers = values.to_numpy(dtype=float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise InputError(f"extra must be finite, got infinity in column {name!r}. Use NaN for missing values.")
        return numbers[:, None]
    if pd.api.types.infer_dtype(values, skipna=True) in ("date", "datetime", "datetime64"):
        return _as_columns(name, pd.to_datetime(values))
    indicators = pd.get_dummies(values.astype("string")).to_numpy(dtype=float)
    if indicators.shape[1] > MAX_CATEGORIES:
        raise InputError(
            f"extra has {indicators.shape[1]} categories in column {name!r}, expected at most {MAX_CATEGORIES}. Pass numbers or coarser categories."
        )
    return indicators


def _read_groups(groups, count: int | None) -> np.ndarray | None:
    """Return the indicators (n, G) of the groups."""
    if groups is None:
        return None
    labels = np.asarray(groups)
    if labels.shape != (count,):
        raise InputError(f"groups has shape {labels.shape}, expected ({count},). Pass one label per row of the data.")
    if pd.isna(labels).any():
        raise InputError("groups must not contain missing labels. Give these rows a label or omit them.")
    names, index = np.unique(labels.astype(str), return_inverse=True)
    if len(names) < 2:
        raise InputError(f"groups must have at least 2 different labels, got {len(names)}.")
    return np.eye(len(names))[index]


def _predict(estimator, X, Y, groups, is_held_out: bool, stored) -> Predictions:
    """Predict held-out rows, or training rows from other rows or groups, in the order of the given rows."""
    try:
        if is_held_out:
            return Predictions(predictive(estimator, X, Y))
        order = np.arange(len(stored[0])) if X is None else match_rows(*estimator.check_rows(X, Y), stored)
        entries = predictive(estimator, groups="entries").rows(order)
        if groups is None:
            return Predictions(predictive(estimator).rows(order), entries)
        return Predictions(predictive(estimator, X, Y, np.asarray(groups)), entries)
    except OptionError as error:
        return Predictions(reason=str(error).partition(". ")[0].rstrip("."))


def _describe_predictions(predictions: Predictions, is_held_out: bool, groups) -> str:
    if predictions.rows is None:
        return ""
    held = "other groups" if groups is not None else "all other rows"
    how = "are those of the given rows" if is_held_out else f"predict each row from {held}"
    return f"Coverage and scores {how}."


def _count_observed(estimator, stored) -> int | None:
    """Return the number of entries of the fit; None if it is unknown."""
    if stored is not None and stored[1] is not None and stored[1].dtype.kind == "f":
        return int(np.isfinite(stored[1]).sum())
    return None
