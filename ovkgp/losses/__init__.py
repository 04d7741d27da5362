"""Losses with their conjugates and proximal operators, and measures on tasks over which they are integrated."""

from ovkgp.losses.base import CurveLoss, Loss
from ovkgp.losses.curves import CurveHuber, CurveInsensitive, robustness_ratio
from ovkgp.losses.envelope import CurveEnvelope, Envelope
from ovkgp.losses.integral import IntegralLoss
from ovkgp.losses.kernel_rules import KernelRule, gaussian_embedding, kernel_quadrature, kernel_rule
from ovkgp.losses.measures import (
    Coordinates,
    TaskMeasure,
    Truncated,
    grid,
    product_measure,
    star_discrepancy,
)
from ovkgp.losses.piecewise import (
    CostSensitiveHinge,
    OneClass,
    Pinball,
    PinballEnvelope,
    SmoothedHinge,
    SmoothedPinball,
)
from ovkgp.losses.quadrature_rules import gauss_legendre, monte_carlo, sobol, trapezoid
from ovkgp.losses.smooth import EpsilonInsensitive, Huber, LogCosh, Square

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
    "product_measure",
    "robustness_ratio",
    "sobol",
    "star_discrepancy",
    "trapezoid",
]
