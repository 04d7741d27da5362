"""Finite-dimensional kernels: spectral pairs, random Fourier and Nyström features, and bounds on their errors.

Codes such as BT-47, and "the thesis": see ``docs/references.md``.
"""

from ovkgp.features import bounds
from ovkgp.features.blocked_orff import BlockedORFF
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.manifold import ManifoldFeatures
from ovkgp.features.nystrom import Nystrom
from ovkgp.features.orff import ORFF
from ovkgp.features.orff_kernel import FeatureSumKernel, ORFFKernel
from ovkgp.features.spectral.moments import moment_order
from ovkgp.features.spectral.pair import spectral_pair
from ovkgp.kernels.spectral import SpectralPair, SpectralSum

__all__ = [
    "ORFF",
    "BlockedORFF",
    "FeatureMap",
    "FeatureSumKernel",
    "ManifoldFeatures",
    "Nystrom",
    "ORFFKernel",
    "SpectralPair",
    "SpectralSum",
    "bounds",
    "moment_order",
    "spectral_pair",
]
