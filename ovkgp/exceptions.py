"""The errors this package raises on purpose.

Each is also one of Python's own kinds (``ValueError``, ``TypeError``, …), so that code
which knows nothing of `ovkgp` still catches it, and each message says what was given,
what was expected and what to do next.
"""

from __future__ import annotations


class OvkgpError(Exception):
    """Base class of every error raised on purpose by `ovkgp`."""


class InputError(OvkgpError, ValueError):
    """The data have the wrong shape, or hold NaN or infinity where none may be."""


class DomainError(InputError):
    """An input lies outside the group or the domain on which a kernel is defined."""


class OptionError(OvkgpError, ValueError):
    """An argument has a value that is not among those allowed."""


class KernelTypeError(OvkgpError, TypeError):
    """There is no rule for this class of kernel, or an object is not a kernel at all."""


class SmoothnessError(OvkgpError, ValueError):
    """A kernel is not smooth enough for the derivatives asked of it."""


class SpectralError(OvkgpError, ValueError):
    """A kernel has no usable spectral pair: not shift-invariant, not even, or of infinite variance."""


class FactorizationError(OvkgpError, ArithmeticError):
    """A covariance matrix could not be factorised, jitter and all; the message names the hyperparameters."""


class ModelFileError(OvkgpError, ValueError):
    """A file is not a whole, untouched model of this package."""


class DistributedError(OvkgpError, RuntimeError):
    """Another process of a distributed fit failed, left or fell silent; the message says which noticed, and doing what."""


class MissingExtraError(OvkgpError, ImportError):
    """A package that is not among the dependencies is needed, and not installed."""


class FitWarning(UserWarning):
    """Training was interrupted, did not converge or met data it may fail on; the model holds the best parameters found."""
