"""Report of a training: objective, convergence, number of iterations and messages."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class FitReport:
    """Outcome of a training.

    Parameters
    ----------
    objective : float
        Best value found (log evidence plus log priors). NaN if the objective could not be evaluated.
    converged : bool
        Whether the best restart stopped because it could not improve further.
    messages : tuple of str
        Reason for stopping, followed by consequences and advice. A single string is one message.
    iterations, evaluations, failures : int, default=0
        Totals over all restarts. A failure is an evaluation that raised an error or was not finite.
    gradient_norm : float, default=NaN
        Largest entry of the projected gradient, per observation, in the optimizer's variables.
    interrupted : bool, default=False
        Whether Ctrl-C ended the training.
    resumed : bool, default=False
        Whether the training was resumed from a checkpoint.
    seconds : float, default=0.0
        Wall time, including earlier runs of the same checkpoint.
    restarts : tuple of float, default=()
        Best objective of each restart. NaN if a restart found no initial point.
    history : tuple of float, default=()
        Objective after each iteration, restart after restart.
    num_rows, num_observed : int or None, default=None
        Number of rows and of observed entries used. Set by the caller.
    log_evidence : float or None, default=None
        Log evidence without the priors. Set by the caller.
    active_bounds : tuple of (str, int, str), default=()
        Parameters that ended at a bound: name, index of the entry, and "lower" or "upper".

    Examples
    --------
    >>> from ovkgp.inference import FitReport
    >>> print(FitReport(objective=-12.5, converged=True, messages="converged", iterations=9, evaluations=11))
    objective -12.5 (converged)
    9 iterations, 11 evaluations, 0 failed, 0.0 s
    """

    objective: float
    converged: bool
    messages: tuple[str, ...]
    iterations: int = 0
    evaluations: int = 0
    failures: int = 0
    gradient_norm: float = math.nan
    interrupted: bool = False
    resumed: bool = False
    seconds: float = 0.0
    restarts: tuple[float, ...] = ()
    history: tuple[float, ...] = ()
    num_rows: int | None = None
    num_observed: int | None = None
    log_evidence: float | None = None
    active_bounds: tuple[tuple[str, int, str], ...] = ()

    def __post_init__(self):
        self.messages = (self.messages,) if isinstance(self.messages, str) else tuple(self.messages)

    @property
    def message(self) -> str:
        """All messages in one line."""
        return "; ".join(self.messages)

    def __str__(self) -> str:
        lines = [f"objective {self.objective:.6g} ({self.message})"]
        if self.log_evidence is not None:
            lines.append(f"log evidence {self.log_evidence:.6g}")
        rows = "" if self.num_rows is None else f" on {self.num_rows} rows"
        lines.append(
            f"{self.iterations} iterations{rows}, {self.evaluations} evaluations, {self.failures} failed, {self.seconds:.1f} s"
        )
        if len(self.restarts) > 1:
            lines.append("restarts reached " + ", ".join(f"{value:.6g}" for value in self.restarts))
        lines += [f"{name}[{index}] is at its {side} bound" for name, index, side in self.active_bounds]
        if self.resumed:
            lines.append("resumed from a checkpoint")
        return "\n".join(lines)
