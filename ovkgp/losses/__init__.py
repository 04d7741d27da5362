"""What does an error cost? Losses, their conjugates and proximal operators, and measures on tasks."""

from ovkgp.losses.base import CurveLoss, Loss
from ovkgp.losses.envelope import CurveEnvelope
from ovkgp.losses.integral import IntegralLoss
from ovkgp.losses.measures import TaskMeasure, gauss_legendre
from ovkgp.losses.pinball import Pinball

__all__ = ["CurveEnvelope", "CurveLoss", "IntegralLoss", "Loss", "Pinball", "TaskMeasure", "gauss_legendre"]
