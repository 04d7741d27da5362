"""What a training did: how good, how long, whether it converged, and what to do if it did not."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class FitReport:
    """The outcome of a training.

    Args:
        objective: the best value found (log evidence plus log priors); NaN where nothing could be evaluated.
        converged: whether the best restart stopped because it could not improve further.
        message: why it stopped, in words.
        iterations, evaluations, failures: over all restarts; a failure is an evaluation that could not be done.
        gradient_norm: the largest entry of the projected gradient, per observation, in the optimiser's variables.
        interrupted: whether Ctrl-C ended the training.
        resumed: whether it went on from a checkpoint.
        seconds: wall time, earlier runs of the same checkpoint included.
        restarts: the best objective of each restart; NaN where a restart found no point to begin at.
        history: the objective after each iteration, restart after restart.
        num_rows, num_observed: the rows of data and the observed entries used; set by the caller.
        log_evidence: without the priors; set by the caller.

    Example:
        >>> from ovkgp.inference.model.fit_report import FitReport
        >>> print(FitReport(objective=-12.5, converged=True, message="converged", iterations=9, evaluations=11))
        objective -12.5 (converged)
        9 iterations, 11 evaluations, 0 failed, 0.0 s
    """

    objective: float
    converged: bool
    message: str
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

    def __str__(self) -> str:
        lines = [f"objective {self.objective:.6g} ({self.message})"]
        if self.log_evidence is not None:
            lines.append(f"log evidence {self.log_evidence:.6g}")
        rows = "" if self.num_rows is None else f" on {self.num_rows} rows"
        lines.append(
            f"{self.iterations} iterations{rows}, {self.evaluations} evaluations, {self.failures} failed, "
            f"{self.seconds:.1f} s"
        )
        if len(self.restarts) > 1:
            lines.append("restarts reached " + ", ".join(f"{value:.6g}" for value in self.restarts))
        if self.resumed:
            lines.append("resumed from a checkpoint")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, fit for JSON (NaN and infinity become None)."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FitReport:
        """The report that `to_dict` described; names it does not know are left out.

        Example:
            >>> from ovkgp.inference.model.fit_report import FitReport
            >>> report = FitReport(objective=-1.0, converged=False, message="stopped")
            >>> FitReport.from_dict(report.to_dict()).message
            'stopped'
        """
        known = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for name in ("objective", "gradient_norm"):
            known[name] = _number(known.get(name))
        for name in ("restarts", "history"):
            known[name] = tuple(_number(value) for value in known.get(name, ()))
        return cls(**known)


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value
