"""Kernels made finite-dimensional: spectral pairs, random Fourier and Nyström features, and how good they are.

Codes such as BT-47, and "the thesis": see ``docs/references.md``.
"""

from ovkgp.features import bounds, combined_pairs, field_pairs, radial_pairs, scalar_pairs  # noqa: F401  (they fill the table)
from ovkgp.features.blocks import BlockedORFF
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.manifold import ManifoldFeatures
from ovkgp.features.nystrom import Nystrom
from ovkgp.features.orff import ORFF
from ovkgp.features.orff_kernel import FeatureSumKernel, ORFFKernel
from ovkgp.features.spectral import SpectralPair, SpectralSum, spectral_pair
from ovkgp.features.tails import moment_order

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
