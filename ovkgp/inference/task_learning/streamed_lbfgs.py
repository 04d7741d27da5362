"""Many rows by L-BFGS on Moreau envelopes, a chunk of Φ at a time, until the duality gap is small (LT-84, LT-86, BT-102).

In the coordinates of `streamed_coordinates` some 20 to 40 passes over the rows are enough. The first steps see a random part of the
rows only, and more of them as the fit gets better; κ falls with the error of the part, and further where the kinks keep the gap open.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FitWarning
from ovkgp.inference.task_learning.certificates import require_start
from ovkgp.inference.task_learning.streamed import Evaluation, StreamedProblem
from ovkgp.inference.task_learning.streamed_coordinates import StreamedCoordinates, target_unit
from ovkgp.inference.task_learning.streamed_run import StreamedRun, StreamedSolution
from ovkgp.kernels.checks import whole_number

PARTS = ((1 / 64, 0.06), (1 / 16, 0.03), (1 / 4, 0.012))
"""Parts of the rows, and κ in units of target over slope, with which it begins."""
ROWS_EACH = 3
"""The least rows for each coordinate r of a part: fewer would be fitted too well."""
KAPPA, SHARPER, SHARPEST = 0.006, 0.25, 1e-8
"""κ with all rows at first, by what it is multiplied where the gap asks for it, and its end."""
ROUGH = 3e-4
"""The relative error at which a part of the rows has said what it can."""
MEMORY = 20


def solve_streamed(
    problem: StreamedProblem,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iter: int = 500,
    verbose: int = 0,
) -> StreamedSolution:
    """Minimise J on streamed rows. It stops where the duality gap is at most tolerance · |J|.

    Args:
        problem: J.
        start: W (r, q) to begin with, near the solution: all rows are then used at once.
        tolerance: of the relative gap. A small λ asks for more passes: the gap holds the gradient's square over 2λ.
        max_iter: the most steps of L-BFGS, one pass over the rows each.
        verbose: 1 shows the gap as it falls.

    Ctrl-C keeps the best so far. A gap above the tolerance is a `FitWarning`.

    Cost: 20 to 60 passes, each O(n q (r + m)) and the making of Φ; memory O(r² + 40 r q) and a chunk of Φ, whatever n.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
        >>> from ovkgp.inference.task_learning.streamed_lbfgs import solve_streamed
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> y = torch.linspace(0, 1, 101).double()[:, None]  # quantiles of U[0, 1], without any input
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(3))
        >>> problem = StreamedProblem.of(torch.ones_like, y, torch.eye(3).double(), y, loss, lam=1e-6)
        >>> bool((solve_streamed(problem).weights - loss.nodes).abs().max() < 0.01)
        True
    """
    require_start("start", start, problem.shape)
    descent = _Descent(problem, start, StreamedRun(problem, tolerance), whole_number("max_iter", max_iter))
    with torch.no_grad(), tqdm(total=max_iter, disable=not verbose, unit="step") as bar:
        try:
            descent.run(bar)
        except KeyboardInterrupt:
            descent.finding.interrupted = True
    return descent.conclude()


class _Descent:
    def __init__(self, problem: StreamedProblem, start: Tensor | None, finding: StreamedRun, max_iter: int):
        self.problem, self.finding, self.max_iter, self.fresh = problem, finding, max_iter, start is None
        self.weights = torch.zeros(problem.shape, dtype=torch.float64) if start is None else start.double()

    def run(self, bar: tqdm) -> None:
        """From small parts to all rows, then from smooth to sharp."""
        unit = target_unit(self.problem)
        self.coordinates = StreamedCoordinates(self.problem, unit)
        for part, kappa in PARTS if self.fresh else ():
            count = math.ceil(part * self.problem.num_rows)
            if count >= ROWS_EACH * self.problem.shape[0]:
                self._stage(self._kappa(kappa * unit), count, bar)
                self.coordinates.adapt(self.weights, count)
        if not self.fresh:
            self.coordinates.adapt(self.weights)
        kappa = KAPPA * unit
        while not self._over and kappa > SHARPEST * unit:
            self._stage(self._kappa(kappa), None, bar)
            kappa = SHARPER * kappa if self._kappa(kappa) else 0.0

    def _kappa(self, kappa: float) -> float:
        """κ, or 0 where the loss is that smooth by itself."""
        return kappa if kappa * self.problem.loss.lipschitz() > 0.1 else 0.0

    @property
    def _over(self) -> bool:
        return self.finding.done or self.finding.steps >= self.max_iter

    def _stage(self, kappa: float, num_rows: int | None, bar: tqdm) -> None:
        """L-BFGS on J_κ, until another κ, or more rows, are of more use."""
        finding, last, shape = self.finding, {}, self.problem.shape

        def both(x: np.ndarray) -> tuple[float, np.ndarray]:
            last["W"] = self.coordinates.back(torch.from_numpy(x.copy()).view(shape))
            last["found"] = found = finding.evaluate(last["W"], kappa, num_rows)
            last["slope"] = slope = self.coordinates.gradient(found.gradient)
            return found.smoothed, slope.flatten().numpy()

        def after(intermediate_result) -> None:
            self.weights, finding.steps = last["W"], finding.steps + 1
            bar.update()
            bar.set_postfix(
                objective=f"{last['found'].objective:.6g}", gap=f"{finding.relative_gap:.1e}", refresh=False
            )
            if self._over or self._said(last["found"], last["slope"], num_rows):
                raise StopIteration

        options = {
            "maxiter": max(1, self.max_iter - finding.steps),
            "maxfun": 10**9,
            "maxcor": MEMORY,
            "ftol": 0.0,
            "gtol": 0.0,
        }
        start = self.coordinates.into(self.weights).flatten().numpy()
        minimize(both, start, jac=True, method="L-BFGS-B", callback=after, options=options)

    def _said(self, found: Evaluation, slope: Tensor, num_rows: int | None) -> bool:
        """Whether a part is fitted well enough, or, with all rows, whether kinks are most of what is left of the gap."""
        if num_rows is not None:
            return float(slope.square().sum()) / 2 <= ROUGH * abs(found.objective)
        stationarity = float(found.gradient.square().sum()) / (2 * self.problem.lam)
        return stationarity <= 0.1 * found.gap

    def conclude(self) -> StreamedSolution:
        finding = self.finding
        if not finding.history:  # interrupted before the first pass over all rows
            finding.evaluate(self.weights, 0.0)
        if finding.done:
            return finding.solution(True, "converged")
        part = f"at a duality gap of {finding.relative_gap:.1e} of the objective, with {finding.tolerance:.1e} wanted"
        if finding.interrupted:
            message = f"was interrupted {part}: the best solution so far is kept"
        elif finding.steps >= self.max_iter:
            message = f"stopped after {finding.steps} steps {part}: raise max_iter, the tolerance or lam"
        else:
            message = f"stopped by rounding {part}: raise the tolerance or lam"
        warnings.warn(message + ".", FitWarning, stacklevel=3)
        return finding.solution(False, message)
