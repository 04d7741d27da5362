"""Labels of classes and tasks, which a text table holds as texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def as_labels(values: list) -> np.ndarray:
    """Labels (n,): numbers where all texts are such, written as Python writes them, else as they are.

    Example:
        >>> as_labels(["1", "0"]).tolist(), as_labels(["yes", "1"]).tolist(), as_labels(["007", "010"]).tolist()
        ([1, 0], ['yes', '1'], ['007', '010'])
    """
    for kind in (int, float):
        try:
            numbers = [kind(value) for value in values]
        except ValueError:
            continue
        if [str(number) for number in numbers] == values:
            return np.array(numbers)
    return np.array(values)


def in_order(labels: Sequence[str]) -> list[str]:
    """The distinct labels, sorted: by size where all are numbers, else by the alphabet.

    Example:
        >>> in_order(["10", "9", "9"]), in_order(["b", "10", "a"])
        (['9', '10'], ['10', 'a', 'b'])
    """
    distinct = sorted(set(labels))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct
