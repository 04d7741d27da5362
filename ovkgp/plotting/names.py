"""The user's names of inputs and outputs, as they stand at an axis, and the columns that they mean."""

from __future__ import annotations

import textwrap

from ovkgp.exceptions import OptionError

WIDTH, LINES = 30, 3
"""Characters in a line of a label, and how many lines it may have."""


def input_names(estimator) -> list[str]:
    """The names of the input columns of a fitted estimator; "input 0", … where it was fitted to an array.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.names import input_names, output_names
        >>> model = ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)[:, :2])
        >>> input_names(model)[2], output_names(model)
        ('input 2', ['output 0', 'output 1'])
    """
    numbered = [f"input {i}" for i in range(estimator.n_features_in_)]
    return [str(name) for name in getattr(estimator, "feature_names_in_", numbered)]


def output_names(estimator) -> list[str]:
    """The names of the outputs of a fitted estimator; "output 0", … where it was fitted to an array."""
    if getattr(estimator, "_has_names", hasattr(estimator, "output_names_")):
        return list(estimator.output_names_)
    return [f"output {a}" for a in range(num_outputs(estimator))]


def num_outputs(estimator) -> int:
    """p; one for an estimator that does not count its outputs."""
    return getattr(estimator, "n_outputs_", 1)


def chosen_outputs(estimator, output) -> list[int]:
    """The columns to draw: all for None, else those of that name or number, or of a list of them."""
    names = output_names(estimator)
    if output is None:
        return list(range(len(names)))
    is_list = isinstance(output, list | tuple | range) and len(output) > 0
    wanted = output if is_list else [output]
    return [column(one, names, "output") for one in wanted]


def chosen_input(estimator, along) -> int:
    """The input column to draw along: the first for None, else the one of that name or number."""
    return 0 if along is None else column(along, input_names(estimator), "along")


def column(wanted, names: list[str], option: str) -> int:
    """The place of a name, or of a number that may count from the end.

    Raises:
        OptionError: there is none.

    Example:
        >>> from ovkgp.plotting.names import column
        >>> column("v", ["u", "v"], "output"), column(-1, ["u", "v"], "output")
        (1, 1)
    """
    if isinstance(wanted, str):
        if wanted in names:
            return names.index(wanted)
    elif hasattr(wanted, "__index__") and not isinstance(wanted, bool) and -len(names) <= wanted < len(names):
        return int(wanted) % len(names)
    raise OptionError(
        f"{option} must be one of {', '.join(map(repr, names))} or a number from 0 to {len(names) - 1}, got {wanted!r}."
    )


def label(name: str, width: int = WIDTH) -> str:
    """A name as text at an axis: long ones in at most three lines, and a dollar sign is a dollar sign and no formula.

    Example:
        >>> from ovkgp.plotting.names import label
        >>> print(label("price in $ of a very long column name"))
        price in \\$ of a very long
        column name
    """
    text = str(name)
    if len(textwrap.wrap(text, width)) > LINES:
        half = LINES * width // 2 - width // 4  # names that begin alike often differ at their ends: the middle goes
        text = f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
    lines = textwrap.wrap(text, width, max_lines=LINES, placeholder=" …") or [""]
    return "\n".join(lines).replace("$", r"\$")


def legend_label(name: str) -> str:
    """The same in a legend, where matplotlib hides names that begin with an underscore."""
    text = label(name)
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text
