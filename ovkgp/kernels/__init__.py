"""Operator-valued kernels as GPyTorch modules, and the scalar kernels, groups and output matrices that they use."""

from ovkgp.kernels import gpytorch_records  # noqa: F401, registers the kernels of GPyTorch
from ovkgp.kernels.chi_square import ExponentiatedChi2Kernel, SkewedChi2Kernel
from ovkgp.kernels.curves import GaussianCurveKernel, LaplaceCurveKernel
from ovkgp.kernels.decomposable import DecomposableKernel, IndependentKernel
from ovkgp.kernels.fields import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel
from ovkgp.kernels.function_valued import FunctionValuedKernel
from ovkgp.kernels.groups import (
    AdditiveGroup,
    CyclicGroup,
    MultiplicativeGroup,
    ProductGroup,
    SkewedMultiplicativeGroup,
)
from ovkgp.kernels.manifold.kernel import ManifoldKernel
from ovkgp.kernels.manifold.penalties import cluster_laplacian, neighbor_laplacian
from ovkgp.kernels.outputs.matrices import (
    EmpiricalMatrix,
    FreeMatrix,
    FullMatrix,
    GraphMatrix,
    KnownMatrix,
    MeanRegularizedMatrix,
    OutputMatrix,
    SimplexMatrix,
    graph_laplacian,
    simplex_code,
)
from ovkgp.kernels.protocol import (
    BlockwiseProductKernel,
    OperatorValuedKernel,
    block,
    components,
    is_operator_valued,
    num_outputs,
)
from ovkgp.kernels.radial_derivatives import Jet, lag_jet, radial_jet, separable_jet
from ovkgp.kernels.records import KernelRecord, NamedKernel, Profile, find_record, register_kernel
from ovkgp.kernels.spectral import ScaleMixture
from ovkgp.kernels.stationary import CauchyKernel, GeneralMaternKernel, LaplaceKernel, RadialCauchyKernel, SobolevKernel
from ovkgp.kernels.temporal import IntegratedBrownianKernel, SeasonalKernel
from ovkgp.kernels.transformable import Delay, TransformableKernel
from ovkgp.kernels.warped import WarpedKernel

__all__ = [
    "AdditiveGroup",
    "BlockwiseProductKernel",
    "CauchyKernel",
    "CurlFreeKernel",
    "CyclicGroup",
    "DecomposableKernel",
    "Delay",
    "DivergenceFreeKernel",
    "EmpiricalMatrix",
    "ExponentiatedChi2Kernel",
    "FreeMatrix",
    "FullMatrix",
    "FunctionValuedKernel",
    "GaussianCurveKernel",
    "GeneralMaternKernel",
    "GraphMatrix",
    "HelmholtzKernel",
    "IndependentKernel",
    "IntegratedBrownianKernel",
    "Jet",
    "KernelRecord",
    "KnownMatrix",
    "LaplaceCurveKernel",
    "LaplaceKernel",
    "ManifoldKernel",
    "MeanRegularizedMatrix",
    "MultiplicativeGroup",
    "NamedKernel",
    "OperatorValuedKernel",
    "OutputMatrix",
    "ProductGroup",
    "Profile",
    "RadialCauchyKernel",
    "ScaleMixture",
    "SeasonalKernel",
    "SimplexMatrix",
    "SkewedChi2Kernel",
    "SkewedMultiplicativeGroup",
    "SobolevKernel",
    "TransformableKernel",
    "WarpedKernel",
    "block",
    "cluster_laplacian",
    "components",
    "find_record",
    "graph_laplacian",
    "is_operator_valued",
    "lag_jet",
    "neighbor_laplacian",
    "num_outputs",
    "radial_jet",
    "register_kernel",
    "separable_jet",
    "simplex_code",
]
