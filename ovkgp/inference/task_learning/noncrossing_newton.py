"""Problems that share their weights, solved together: the method of multipliers, each step by a semismooth Newton method.

    minimise Σ_p risk_p(Φ_p W Ψ_pᵀ) + (λ/2) ‖W‖²

A step maximises the dual less (κ/2) ‖A − A_old‖², which in the primal is the Moreau envelope of each loss at values shifted by κ A_old.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.inference.task_learning.noncrossing_systems import NewtonSystems
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.losses import CurveEnvelope

TRACE = False

class Piece:
    def __init__(self, part: TaskProblem, ratio: float):
        self.part, self.ratio = part, ratio
        self.dual = torch.zeros(part.entry_weights.shape, dtype=torch.float64)
        self.kappa = ratio

    def smooth(self, values):
        shifted = values - self.kappa * self.dual
        return self.part.risk(shifted, CurveEnvelope(self.part.loss, self.kappa)).item()

    def slopes(self, values):
        return -self._c(values / self.kappa - self.dual)

    def _c(self, a):
        return self.part.loss.conjugate_prox(a, self.part.targets, 1 / self.kappa)

    def curvature(self, values):
        p, h = self.part, 1e-6
        a = values / self.kappa - self.dual
        rigid = (self._c(a + h) - self._c(a - h)) / (2 * h)
        return p.entry_weights / p.num_rows * torch.where(rigid > 1e-3, rigid, 0.0) / self.kappa


def solve_joint(parts: Sequence[TaskProblem], tolerance=1e-6, kappa=0.1, shrink=0.1, least=1e-4, outer=60, ratios=None, slack=1e-2, viol=None):
    lam = parts[0].lam
    systems = NewtonSystems(parts)
    base = parts[0].tasks.square().sum(-1).mean()
    pieces = [Piece(p, float(p.tasks.square().sum(-1).mean() / base) if ratios is None else ratios[i]) for i, p in enumerate(parts)]
    W = torch.zeros(systems.shape, dtype=torch.float64)
    H = [p.values(W) for p in parts]
    newton = 0
    t0 = time.perf_counter()
    for step in range(outer):
        for piece in pieces:
            piece.kappa = piece.ratio * kappa
        for inner in range(50):
            A = [piece.slopes(h) for piece, h in zip(pieces, H)]
            WA = sum(p.dual_weights(a) for p, a in zip(parts, A))
            g = lam * (W - WA)
            J = sum(p.risk(h).item() for p, h in zip(parts, H)) + lam / 2 * W.square().sum().item()
            safe, WS = A, WA
            D = sum(-(p.row_weights * p.loss.conjugate(-a, p.targets)).sum().item() / p.num_rows for p, a in zip(parts, safe)) - lam / 2 * WS.square().sum().item()
            gn = g.norm().item()
            change = max(((a - pc.dual).abs().max().item()) for a, pc in zip(A, pieces))
            d = [pc.curvature(h) for pc, h in zip(pieces, H)]
            if TRACE:
                print(f"{step} {inner} k={kappa:.0e} J={J:.10f} gap={J-D:.2e} g={gn:.1e} act={[int((x>0).sum()) for x in d]} change={change:.1e}  t={time.perf_counter()-t0:.2f}")
            if J - D <= tolerance * abs(J) and (viol is None or (parts[1].targets - H[1]).clamp(min=0).max() <= viol):
                return W, A, J, J - D, newton
            if gn <= 1e-11 * max(1, lam * W.norm().item()) or gn**2 / lam < slack * (J - D):
                break
            delta = -systems.solve(g, d)
            newton += 1
            moves = [p.values(delta) for p in parts]
            F0 = sum(pc.smooth(h) for pc, h in zip(pieces, H)) + lam / 2 * W.square().sum().item()
            slope = (g * delta).sum().item()
            t = 1.0
            for _ in range(30):
                Wt = W + t * delta
                F = sum(pc.smooth(h + t * mv) for pc, h, mv in zip(pieces, H, moves)) + lam / 2 * Wt.square().sum().item()
                if F <= F0 + 1e-4 * t * slope + 1e-15 * abs(F0):
                    break
                t /= 2
            W = Wt
            H = [p.values(W) for p in parts]
        for pc, a in zip(pieces, A):
            pc.dual = a
        kappa = max(kappa * shrink, least)
    return W, A, J, J - D, newton
