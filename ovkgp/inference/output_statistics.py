"""Statistics of outputs that share nothing: one `Statistics` for each, added one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.statistics import Statistics


@dataclass(frozen=True, eq=False)
class OutputStatistics:
    """The statistics of p independent outputs; a commutative monoid, as each of its parts is.

    Args:
        parts: those of each output alone.
    """

    parts: tuple[Statistics, ...]

    @property
    def num_outputs(self) -> int:
        """p."""
        return len(self.parts)

    @property
    def num_seen(self) -> Tensor:
        """How often each output was observed, (p,)."""
        return torch.stack([part.num_seen.sum() for part in self.parts])

    def __add__(self, other: OutputStatistics) -> OutputStatistics:
        if not isinstance(other, OutputStatistics):
            return NotImplemented
        if self.num_outputs != other.num_outputs:
            raise InputError(f"statistics of {self.num_outputs} and of {other.num_outputs} outputs do not add.")
        return OutputStatistics(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))

    def __radd__(self, other) -> OutputStatistics:
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def tensors(self) -> tuple[dict[str, Tensor], dict]:
        """Everything, to be stored: named tensors, and the rest as a dictionary that JSON can hold."""
        tensors, headers = {}, []
        for a, part in enumerate(self.parts):
            own, header = part.tensors()
            tensors |= {f"{a}.{name}": tensor for name, tensor in own.items()}
            headers.append(header)
        return tensors, {"parts": headers}


def statistics_from_tensors(tensors: dict[str, Tensor], header: dict) -> Statistics | OutputStatistics:
    """The inverse of `tensors` of either kind."""
    if "parts" not in header:
        return Statistics.from_tensors(tensors, header)
    own = (
        {n.removeprefix(f"{a}."): t for n, t in tensors.items() if n.startswith(f"{a}.")}
        for a in range(len(header["parts"]))
    )
    return OutputStatistics(tuple(Statistics.from_tensors(*pair) for pair in zip(own, header["parts"], strict=True)))
