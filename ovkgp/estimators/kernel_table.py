"""The classes that a model file may name, and what their constructors are given: an allow-list, by exact class.

Of a tensor only the shape is noted, and the constructor is given ones: the values come with the buffers. What a graph
or a table of outputs was turned into is such a buffer, so that any valid one will do in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from scipy import sparse
from torch.nn import Module

from ovkgp import kernels as ours
from ovkgp.kernels.manifold import OperatorValuedManifoldKernel
from ovkgp.kernels.penalties import Penalty
from ovkgp.kernels.warped import OperatorValuedWarpedKernel


@dataclass(frozen=True)
class Storable:
    """A class that may be stored: what its constructor is given, and, where that is not its keywords, how it is called."""

    kind: type
    options: Callable[[Module], dict]
    make: Callable | None = None


def _attributes(*names: str) -> Callable[[Module], dict]:
    return lambda module: {name: getattr(module, name) for name in names}


def _scalar(*names: str) -> Callable[[Kernel], dict]:
    """The options that every GPyTorch kernel has, and those of this one."""

    def options(kernel: Kernel) -> dict:
        common = {"ard_num_dims": kernel.ard_num_dims, "batch_shape": kernel._batch_shape}
        return {**common, **_columns(kernel), **_attributes(*names)(kernel)}

    return options


def _columns(kernel: Kernel) -> dict:
    return {"active_dims": None if kernel.active_dims is None else kernel.active_dims.tolist()}


def _scaled(kernel: ScaleKernel) -> dict:
    return {"base_kernel": kernel.base_kernel, "batch_shape": kernel._batch_shape, **_columns(kernel)}


def _warped(kernel: ours.WarpedKernel) -> dict:
    return {"base_kernel": kernel.base_kernel, "group": kernel.group, **_columns(kernel)}


def _helmholtz(kernel: ours.HelmholtzKernel) -> dict:
    curl, div = kernel.curl.base_kernel, kernel.div.base_kernel
    return {"curl_base": curl.base_kernel, "div_base": div.base_kernel, "num_dims": curl.num_dims}


def _manifold(kernel: ours.ManifoldKernel) -> dict:
    is_learned = "raw_strength" in kernel._parameters
    return {"base_kernel": kernel.base_kernel, "X": kernel.X, "penalty": kernel.penalty, "learn_strength": is_learned}


def _entries(penalty: Penalty) -> dict:
    return {"size": penalty.size, "num_entries": penalty.values.numel() if penalty.is_sparse else None}


def blank_penalty(size: int, num_entries: int | None = None) -> Penalty:
    """A penalty of the size and the form of another, whose values are filled in later.

    It passes the checks of the constructor in no time, which the values have passed when they were first given.

    Args:
        size: s, of the matrix (s, s).
        num_entries: how many entries a sparse one stores; None makes it dense.

    Cost: the memory of the values.

    Example:
        >>> from ovkgp.estimators.kernel_table import blank_penalty
        >>> blank_penalty(4).values.shape, blank_penalty(4, num_entries=10).indices.shape
        (torch.Size([4, 4]), torch.Size([2, 10]))
    """
    penalty, is_dense = Penalty(sparse.eye_array(size, format="csr")), num_entries is None
    penalty.values = torch.zeros([size, size] if is_dense else [num_entries], dtype=torch.float64)
    penalty.indices = None if is_dense else torch.zeros(2, num_entries, dtype=torch.int64)
    return penalty


_TABLE = (
    Storable(RBFKernel, _scalar()),
    Storable(MaternKernel, _scalar("nu")),
    Storable(RQKernel, _scalar()),
    Storable(PeriodicKernel, _scalar()),
    Storable(CosineKernel, _scalar()),
    Storable(LinearKernel, _scalar()),
    Storable(SpectralMixtureKernel, _scalar("num_mixtures")),
    Storable(ScaleKernel, _scaled),
    Storable(AdditiveKernel, _attributes("kernels"), lambda kernels: AdditiveKernel(*kernels)),
    Storable(ProductKernel, _attributes("kernels"), lambda kernels: ProductKernel(*kernels)),
    Storable(ours.LaplaceKernel, _scalar()),
    Storable(ours.CauchyKernel, _scalar()),
    Storable(ours.SobolevKernel, _scalar("order", "periodic")),
    Storable(ours.SkewedChi2Kernel, _scalar()),
    Storable(ours.ExponentiatedChi2Kernel, _scalar()),
    Storable(ours.GaussianCurveKernel, _scalar("num_channels", "weights")),
    Storable(ours.LaplaceCurveKernel, _scalar("num_channels", "weights")),
    Storable(ours.DecomposableKernel, lambda k: {"base_kernel": k.base_kernel, "output_matrix": k.output_module}),
    Storable(ours.IndependentKernel, _attributes("kernels")),
    Storable(ours.CurlFreeKernel, _attributes("base_kernel", "num_dims")),
    Storable(ours.DivergenceFreeKernel, _attributes("base_kernel", "num_dims")),
    Storable(ours.HelmholtzKernel, _helmholtz),
    Storable(ours.BlockwiseProductKernel, _attributes("base_kernel", "scalar_kernel")),
    Storable(ours.FunctionValuedKernel, _attributes("input_kernel", "task_kernel", "tasks")),
    Storable(ours.TransformableKernel, _attributes("base_kernel", "transforms")),
    Storable(ours.Delay, _attributes("delay")),
    Storable(ours.WarpedKernel, _warped),
    Storable(OperatorValuedWarpedKernel, _warped),
    Storable(ours.ManifoldKernel, _manifold),
    Storable(OperatorValuedManifoldKernel, _manifold),
    Storable(Penalty, _entries, blank_penalty),
    Storable(ours.AdditiveGroup, _attributes("num_dims")),
    Storable(ours.MultiplicativeGroup, _attributes("num_dims")),
    Storable(ours.SkewedMultiplicativeGroup, _attributes("c")),
    Storable(ours.CyclicGroup, _attributes("period")),
    Storable(ours.ProductGroup, _attributes("groups")),
    Storable(ours.FreeMatrix, _attributes("num_outputs", "rank", "batch_shape")),
    Storable(ours.FullMatrix, _attributes("num_outputs", "batch_shape")),
    Storable(ours.KnownMatrix, _attributes("matrix")),
    Storable(ours.EmpiricalMatrix, lambda matrix: {"Y": torch.ones(2, matrix.num_outputs)}),
    Storable(ours.GraphMatrix, lambda m: {"weights": torch.ones(m.num_outputs, m.num_outputs), "ridge": 1.0}),
    Storable(ours.SimplexMatrix, lambda matrix: {"num_classes": matrix.num_outputs}),
    Storable(ours.MeanRegularizedMatrix, _attributes("num_outputs", "batch_shape")),
)
STORABLE = {entry.kind.__name__: entry for entry in _TABLE}
"""By name, the classes of kernels, of their output matrices, penalties, groups and transforms."""

CONSTRAINTS = {kind.__name__: kind for kind in (Positive, GreaterThan, LessThan, Interval)}
"""By name, the constraints."""
TRANSFORMS = {
    "softplus": (torch.nn.Softplus(), inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "none": (None, None),
}
"""By name, the transforms of constraints and their inverses."""
