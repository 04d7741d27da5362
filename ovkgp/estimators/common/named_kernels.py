"""Kernels by name for the estimators, and the approximation and feature map that go with a kernel."""

from __future__ import annotations

import warnings
from copy import deepcopy

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel
from torch import Tensor

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.loss_options import is_square
from ovkgp.estimators.common.options import POSITIVE, names_in, one_of
from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import FitWarning, InputError, KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, Nystrom, spectral_pair
from ovkgp.inference.model.observations import Observations, as_floating
from ovkgp.inference.model.row_sample import choose_landmarks
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES, fits_state_space
from ovkgp.inference.training.kernel_parameters import output_covariance, row_distances
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    FreeMatrix,
    FullMatrix,
    HelmholtzKernel,
    IndependentKernel,
    OutputMatrix,
    TransformableKernel,
    components,
    is_operator_valued,
    num_outputs,
)
from ovkgp.kernels.fields import FieldKernel
from ovkgp.kernels.protocol import check_scalar_kernel
from ovkgp.kernels.records import make_scalar_kernel, named_kernels

FIELDS = ("curl_free", "divergence_free", "helmholtz")
STRUCTURES = ("independent", "decomposable", "lmc", *FIELDS)
ALIASES = {"icm": "decomposable"}  # other names of structures
CANDIDATES = ("independent", "decomposable")  # structures that kernel="auto" compares if outputs are missing
DEFAULT_BASE_KERNEL = "matern52"  # base_kernel="auto" of a single structure
LINEAR_TERMS = (ConstantKernel, LinearKernel)  # kernels with finitely many features
FREE = (FreeMatrix, FullMatrix)  # output matrices with a free scale per output


def base_kernel(base: str | Kernel, num_dims: int | None = None) -> Kernel:
    """Make a scalar kernel by name, with one lengthscale per input if their number is given, or copy the given one."""
    if isinstance(base, Kernel):
        check_scalar_kernel(base, "base_kernel")
        return deepcopy(base)
    base = DEFAULT_BASE_KERNEL if base == "auto" else base
    if base not in named_kernels():
        names = ", ".join(map(repr, named_kernels()))
        raise OptionError(f"base_kernel must be one of {names} or a scalar kernel, got {base!r}.")
    return make_scalar_kernel(base, num_dims)


def make_named_kernel(name: str, base: str | Kernel, rank: int, num_dims: int, num_outputs: int) -> Kernel:
    """Make the operator-valued kernel of a name, for d inputs and p outputs."""
    rank = min(rank, num_outputs)
    if name == "independent":
        scaled = [ScaleKernel(base_kernel(base, num_dims)) for _ in range(num_outputs)]
        return IndependentKernel(scaled)
    if name == "decomposable":
        return DecomposableKernel(base_kernel(base, num_dims), num_outputs, rank)
    if name == "lmc":
        first, *rest = (DecomposableKernel(base_kernel(base, num_dims), num_outputs, 1) for _ in range(max(rank, 2)))
        return sum(rest, first)
    return field_kernel(name, base, num_dims, num_outputs)


def field_kernel(name: str, base: str | Kernel, num_dims: int, num_outputs: int) -> Kernel:
    """Make the kernel of a vector field by name."""
    if num_dims != num_outputs:
        raise InputError(
            f"kernel={name!r} requires as many outputs as inputs, got {num_dims} columns of X and {num_outputs} of Y. Use "
            'kernel="decomposable" for outputs that are not a vector field.'
        )
    if name == "helmholtz":
        return HelmholtzKernel(base_kernel(base), num_dims=num_dims)
    kind = CurlFreeKernel if name == "curl_free" else DivergenceFreeKernel
    return ScaleKernel(kind(base_kernel(base), num_dims=num_dims))


def given_kernel(kernel: Kernel, num_columns: int) -> Kernel:
    """Copy a kernel object, which must have as many outputs as Y."""
    if (p := num_outputs(kernel)) != num_columns:
        fix = f"Pass one with num_outputs={num_columns}."
        if p == 1:
            fix = f"Wrap it: DecomposableKernel(kernel, num_outputs={num_columns})."
        raise InputError(
            f"kernel must have as many outputs as Y, got {p} outputs and {num_columns} columns of Y. {fix}"
        )
    return deepcopy(kernel)


def name_structure(kernel: str | Kernel) -> str:
    """Return the name of the structure of a kernel option; "given" for a kernel object."""
    return "given" if isinstance(kernel, Kernel) else ALIASES.get(kernel, kernel)


def shares_scale(kernel: Kernel) -> bool:
    """Whether the kernel couples its outputs so that they must share one scale."""
    tied = (FieldKernel, TransformableKernel)
    if any(isinstance(part, tied) for part in kernel.modules()):
        return True
    if any(isinstance(part, OutputMatrix) and not isinstance(part, FREE) for part in kernel.modules()):
        return True
    free = (DecomposableKernel, IndependentKernel)
    return is_operator_valued(kernel) and not any(isinstance(part, free) for part in kernel.modules())


BASE_KERNEL = [names_in(named_kernels), Kernel]  # allowed scalar kernels
RIDGE_KERNELS = ("auto", "independent", "decomposable", *FIELDS)
RIDGE_KERNEL_CONSTRAINTS = {
    "kernel": [one_of(*RIDGE_KERNELS, *ALIASES), Kernel],
    "base_kernel": BASE_KERNEL,
    "lengthscale": [one_of("median"), POSITIVE],
    "output_matrix": ["array-like", OutputMatrix, None],
}
MAX_DISTANCE_ROWS = 500  # maximum number of rows for the median distance
MAX_OUTPUT_DEVIATION = 3.0  # of outputs without outliers from their median, in robust standard deviations
NORMAL_MAD = 1.482602218505602  # standard deviation of a normal distribution over its median absolute deviation


def ridge_kernel(options, X: np.ndarray, Y: np.ndarray) -> Kernel:
    """Make the kernel of a ridge estimator for X (n, d) and Y (n, p), in float64.

    "auto" and "independent" are k(x, z) I; "decomposable" is k(x, z) Γ with the `output_matrix`, or the covariance of the
    outputs if it is None (BA-05), with another loss than the square loss without outliers. Fields have no output matrix.
    """
    kernel, p = name_structure(options.kernel), Y.shape[1]
    if kernel == "given":
        _reject_matrix(options, "a kernel object")
        return given_kernel(options.kernel, p).double()
    base = _base(options.base_kernel, options.lengthscale, X)
    if kernel in FIELDS:
        _reject_matrix(options, f"kernel={kernel!r}")
        return _unit_field(field_kernel(kernel, base, X.shape[1], p).double())
    if kernel == "independent":
        _reject_matrix(options, 'kernel="independent"')
    matrix = _output_matrix(
        kernel, options.output_matrix, Y, is_robust=not is_square(getattr(options, "loss", "square"))
    )
    return DecomposableKernel(base, output_matrix=matrix).double()


def _unit_field(kernel: Kernel) -> Kernel:
    """Set the outputscale of the papers: one, and the mean of both terms for a Helmholtz kernel (BT-29)."""
    parts = (kernel.curl, kernel.div) if isinstance(kernel, HelmholtzKernel) else (kernel,)
    for part in parts:
        part.outputscale = torch.tensor(1 / len(parts), dtype=torch.float64)
    return kernel


def _base(base: str | Kernel, lengthscale, X: np.ndarray) -> Kernel:
    """Make the scalar kernel, with one lengthscale for all columns unless it is an object."""
    kernel = base_kernel(base).double()
    if isinstance(base, Kernel):
        return kernel
    value = median_distance(X) if isinstance(lengthscale, str) else float(lengthscale)
    kernel.lengthscale = torch.tensor(value, dtype=torch.float64)  # a bare number would be rounded to float32
    return kernel


def check_base(options) -> None:
    """Check that a kernel object comes without a lengthscale."""
    is_given = any(isinstance(part, Kernel) for part in (options.kernel, options.base_kernel))
    if is_given and not isinstance(options.lengthscale, str):
        raise OptionError(
            "lengthscale is not supported with a kernel object. Set the lengthscale of the object instead."
        )


def median_distance(X: np.ndarray) -> float:
    """Compute the median distance between at most 500 distinct rows of X (n, d); 1 if all rows are equal."""
    rows = Observations(as_floating(X, "X"), torch.zeros(len(X), 1))
    return float(row_distances(choose_landmarks(rows, MAX_DISTANCE_ROWS).X).median)


def _output_matrix(kernel: str, matrix, Y: np.ndarray, is_robust: bool) -> OutputMatrix | torch.Tensor:
    p = Y.shape[1]
    if matrix is None and kernel == "decomposable":
        return output_covariance(torch.from_numpy(remove_outliers(Y) if is_robust else Y))
    if matrix is None:
        return torch.eye(p, dtype=torch.float64)
    if isinstance(matrix, OutputMatrix):
        shape = (matrix.num_outputs,) * 2
    else:
        matrix = torch.as_tensor(as_numbers(as_array(matrix), "output_matrix"))
        shape = tuple(matrix.shape)
    if shape != (p, p):
        raise InputError(f"output_matrix has shape {shape}, expected ({p}, {p}), one row per column of Y.")
    return deepcopy(matrix)


def remove_outliers(Y: np.ndarray) -> np.ndarray:
    """Return Y (n, p) with NaN for values that are further than 3 robust standard deviations from the median of their column.

    Columns of which half of the values are equal are unchanged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without values
        distances = np.abs(Y - np.nanmedian(Y, 0))
        limits = MAX_OUTPUT_DEVIATION * NORMAL_MAD * np.nanmedian(distances, 0)
    return np.where((distances > limits) & (limits > 0), np.nan, Y)


def _reject_matrix(options, condition: str) -> None:
    if options.output_matrix is not None:
        raise OptionError(f'output_matrix is not supported with {condition}. Use kernel="decomposable" or remove it.')


SEPARABLE_LIMIT = 4000  # number of rows up to which a separable kernel with complete outputs is exact


NUM_FEATURES = {"exact": 500, "orff": 500, "nystrom": 500, "variational": 200}
"""Number of frequencies, landmarks or inducing points of num_frequencies="auto", by approximation; those of an exact model are
used when rows are added to it."""


def num_features(num_frequencies: int | str, approximation: str) -> int:
    """Return the number of frequencies, landmarks or inducing points."""
    return NUM_FEATURES[approximation] if num_frequencies == "auto" else num_frequencies


def choose_approximation(
    approximation: str, kernel: Kernel, num_inputs: int, Y: np.ndarray, noise: np.ndarray | None
) -> str:
    """Return the requested approximation, or the one that the kernel and the size of Y (n, p) suggest."""
    if approximation != "auto":
        return approximation
    if fits_state_space(kernel, num_inputs, len(Y)):
        return "exact"
    observed = np.isfinite(Y)
    is_complete = bool(observed.all()) and noise is None
    if observed.sum() <= MAX_DENSE_ENTRIES or (
        components(kernel) is not None and is_complete and len(Y) <= SEPARABLE_LIMIT
    ):
        return "exact"
    return feature_kind(approximation, kernel)


def feature_kind(approximation: str, kernel: Kernel) -> str:
    """Return "nystrom" if requested or if the kernel has no spectral pair, else "orff"."""
    return "orff" if approximation != "nystrom" and _has_pair(kernel) else "nystrom"


def approximate(
    kernel: Kernel, approximation: str, X: Tensor, num_frequencies: int | str, seed: int
) -> FeatureMap | None:
    """Make the feature map of an approximation; None for the exact kernel."""
    if approximation == "exact":
        return None
    num_frequencies = num_features(num_frequencies, approximation)
    if approximation == "orff":
        return random_features(kernel, X.shape[1], num_frequencies, seed)
    if is_linear(kernel):
        return linear_features(kernel, X.shape[1])
    distinct = torch.unique(X, dim=0)
    order = torch.randperm(len(distinct), generator=torch.Generator().manual_seed(seed))
    return Nystrom(kernel, distinct[order[:num_frequencies]])


def random_features(
    kernel: Kernel, num_dims: int, num_frequencies: int, seed: int, block_size: int | None = None
) -> FeatureMap:
    """Make random features, orthogonal if the frequency distribution allows; in blocks that are never stored if a size is given.

    Those of a linear kernel are exact and not random.
    """
    if is_linear(kernel):
        return linear_features(kernel, num_dims)
    pair = spectral_pair(kernel, num_dims=num_dims)
    sampler = "orthogonal" if all(term.isotropic for term in pair.terms) else "iid"
    options = {"num_dims": num_dims, "sampler": sampler, "random_state": seed}
    if block_size is None:
        return ORFF(kernel, num_frequencies, **options)
    return BlockedORFF(kernel, num_frequencies, block_size, **options)


def is_linear(kernel: Kernel) -> bool:
    """Whether a kernel is c + v ⟨x, z⟩, times one output matrix if there are several outputs."""
    parts = components(kernel)
    return parts is not None and len(parts) == 1 and _is_linear_term(parts[0][0])


def _is_linear_term(kernel: Kernel) -> bool:
    if isinstance(kernel, AdditiveKernel):
        return all(map(_is_linear_term, kernel.kernels))
    return _is_linear_term(kernel.base_kernel) if isinstance(kernel, ScaleKernel) else type(kernel) in LINEAR_TERMS


def linear_features(kernel: Kernel, num_dims: int) -> Nystrom:
    """Make the features of a linear kernel: landmarks at the origin and the unit vectors determine its functions."""
    unit = torch.eye(num_dims, dtype=torch.float64)
    return Nystrom(kernel, torch.cat([torch.zeros_like(unit[:1]), unit]))


def _has_pair(kernel: Kernel) -> bool:
    try:
        spectral_pair(kernel)
    except (SpectralError, KernelTypeError):
        return False
    except OptionError:  # only the number of dimensions is missing
        return True
    return True


def scale_kernel(kernel: Kernel, scale: float) -> Kernel:
    """Multiply a kernel by a number."""
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = torch.tensor(scale, dtype=torch.float64)  # a bare number would be rounded to float32
    return scaled


def usable_scale(scale: float, Y: np.ndarray | None = None) -> float:
    """Return a positive scale: 1 if all outputs are zero, or with a warning if λ is numerically zero."""
    if scale > 0:
        return scale
    if Y is None or np.nan_to_num(Y).any():
        warnings.warn(
            'lam is numerically zero; the scale of scale="evidence" was lost to rounding and is set to 1. Increase lam.',
            FitWarning,
            stacklevel=4,
        )
    return 1.0
