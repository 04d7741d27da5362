"""What does an error cost? Losses, their conjugates and proximal operators, and measures on tasks."""

from ovkgp.losses.base import CurveLoss, Loss
from ovkgp.losses.curves import CurveHuber, CurveInsensitive
from ovkgp.losses.envelope import CurveEnvelope, Envelope
from ovkgp.losses.hinge import CostSensitiveHinge, SmoothedHinge
from ovkgp.losses.integral import IntegralLoss
from ovkgp.losses.kernel_quadrature import KernelRule, gaussian_embedding, kernel_quadrature, kernel_rule
from ovkgp.losses.log_cosh import LogCosh
from ovkgp.losses.measures import Coordinates, TaskMeasure
from ovkgp.losses.one_class import OneClass
from ovkgp.losses.pinball import Pinball, PinballEnvelope, SmoothedPinball
from ovkgp.losses.quadratic import EpsilonInsensitive, Huber, Square
from ovkgp.losses.rules import Truncated, gauss_legendre, grid, monte_carlo, sobol, star_discrepancy, trapezoid

__all__ = [
    "Coordinates",
    "CostSensitiveHinge",
    "CurveEnvelope",
    "CurveHuber",
    "CurveInsensitive",
    "CurveLoss",
    "Envelope",
    "EpsilonInsensitive",
    "Huber",
    "IntegralLoss",
    "KernelRule",
    "LogCosh",
    "Loss",
    "OneClass",
    "Pinball",
    "PinballEnvelope",
    "SmoothedHinge",
    "SmoothedPinball",
    "Square",
    "TaskMeasure",
    "Truncated",
    "gauss_legendre",
    "gaussian_embedding",
    "grid",
    "kernel_quadrature",
    "kernel_rule",
    "monte_carlo",
    "sobol",
    "star_discrepancy",
    "trapezoid",
]
