"""The columns of Y as a recipe speaks of them: by name, or by number from 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovkgp.estimators.tables import output_table
from ovkgp.exceptions import OptionError
from ovkgp.recipes.finding import did_you_mean


@dataclass(frozen=True)
class Outputs:
    """The outputs that a model will be fitted to.

    Args:
        names: of the columns; y0, y1, … where they have none.
        values: (n, p), NaN where missing.

    Example:
        >>> import pandas as pd
        >>> from ovkgp.recipes.outputs import Outputs
        >>> outputs = Outputs.of(pd.DataFrame({"u": [1.0, 2.0], "v": [3.0, None]}))
        >>> outputs.number("v", "edges"), outputs.number(0, "edges")
        (1, 0)
    """

    names: list[str]
    values: np.ndarray

    @classmethod
    def of(cls, Y) -> Outputs:
        """From an array, a tensor, a series or a data frame."""
        values, names, _ = output_table(Y, Y)
        return cls(names or [f"y{column}" for column in range(values.shape[1])], values)

    def number(self, key: str | int, option: str) -> int:
        """The number of a column from its name or its number, a number in quotes included."""
        if key in self.names:
            return self.names.index(key)
        number = int(key) if str(key).isdecimal() else len(self.names)
        if number < len(self.names):
            return number
        raise OptionError(
            f"{option} speaks of the output {key!r}{did_you_mean(key, self.names)}; the columns of Y are "
            f"{', '.join(self.names)}, or 0 to {len(self.names) - 1} by number."
        )
