"""Whether torchrun started this process, and as which of several; told by the environment, without torch."""

from __future__ import annotations

import os

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each of its processes."""


def is_launched() -> bool:
    """Whether torchrun started this process as one of several.

    Example:
        >>> is_launched()
        False
    """
    return all(name in os.environ for name in ENVIRONMENT) and os.environ["WORLD_SIZE"] != "1"


def is_first_rank() -> bool:
    """Whether this process speaks and writes for all: rank 0, or one that is alone."""
    return not is_launched() or os.environ["RANK"] == "0"
