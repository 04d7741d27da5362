"""Errors and warnings of `ovkgp`.

Each error also derives from a built-in error (``ValueError``, ``TypeError``, …), so that it can be caught without
importing `ovkgp`. Its message names the argument, the expected and the given value, and what to do next.
"""

from __future__ import annotations


class OvkgpError(Exception):
    """Base class of all errors raised by `ovkgp`.

    Parameters
    ----------
    message : str, default=""
        What was given and what was expected.
    advice : str, default=""
        What to do next, appended to the message.
    cli_advice : str or None, default=None
        Advice that the command line prints instead of `advice`. If None, it prints `advice`.
    """

    def __init__(self, message: str = "", *, advice: str = "", cli_advice: str | None = None):
        super().__init__(f"{message} {advice}".rstrip())
        self.cli_message = None if cli_advice is None else f"{message} {cli_advice}"


class InputError(OvkgpError, ValueError):
    """Data of the wrong shape, or with NaN or infinity where they are not allowed."""


class InputTypeError(InputError, TypeError):
    """Data with values of a type that is not supported, such as a dictionary in a column."""


class DomainError(InputError):
    """Input outside the group or the domain on which a kernel is defined."""


class OptionError(OvkgpError, ValueError):
    """Argument with a value that is not allowed."""


class KernelTypeError(OvkgpError, TypeError):
    """Kernel class that the operation does not support, or an object that is not a kernel."""


class SmoothnessError(OvkgpError, ValueError):
    """Kernel that is not smooth enough for the requested derivatives."""


class SpectralError(OvkgpError, ValueError):
    """Kernel without a usable spectral pair: not shift-invariant, not even, or of infinite variance."""


class FactorizationError(OvkgpError, ArithmeticError):
    """Covariance matrix that cannot be factorized even with jitter.

    Parameters
    ----------
    problem : str, default=""
        Message without the hyperparameters.
    hyperparameters : dict of str to Tensor or None, default=None
        Hyperparameters of the model by name, which the message lists.
    """

    def __init__(self, problem: str = "", hyperparameters: dict | None = None):
        values = {} if hyperparameters is None else hyperparameters
        listed = "; ".join(f"{name} = {value.squeeze().tolist()}" for name, value in values.items())
        super().__init__(f"{problem} The hyperparameters were {listed}." if listed else problem)
        self.problem, self.hyperparameters = problem, hyperparameters


class ModelFileError(OvkgpError, ValueError):
    """Model file that is truncated, modified or not written by ovkgp."""


class DistributedError(OvkgpError, RuntimeError):
    """Failure, exit or timeout of another process of a distributed fit; the message names the process and the step."""


class MissingExtraError(OvkgpError, ImportError):
    """Optional dependency that is required but not installed."""


class FitWarning(UserWarning):
    """Training that was interrupted or did not converge, or data that may degrade it; the best parameters are kept."""
