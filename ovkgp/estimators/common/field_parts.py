"""Parts of fitted vector fields in original units: potential, stream function, curl, divergence and transport.

Standardized inputs x̃ = (x − o)/s and outputs ỹ = (y − c)/t give f(x) = c + t f̃(x̃). A potential of f̃ is multiplied by s t, curl and
divergence by t/s, and the constant flow c is added to the potential or the stream function.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_numbers, check_integer
from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import InputError, KernelTypeError
from ovkgp.inference.posteriors.fields import field_terms, strip_scales
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel

NODES_PER_SEGMENT = 24  # Gauss–Legendre nodes of `transport` on each segment of a line


class FieldPartsMixin:
    """Methods of regressors with a kernel of vector fields, as `kernel="helmholtz"`.

    Of a Helmholtz field, the constant mean flow belongs to the divergence-free part, since it has neither curl nor
    divergence.
    """

    def potential(self, X, reference=None, return_std=False):
        """Predict the potential φ of the field, or of its curl-free part, f = ∇φ.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        reference : array-like of shape (d,) or None, default=None
            Point at which φ is zero. If None, the mean is zero at the center of the training inputs, and the standard
            deviation includes that of the constant which a field does not determine.
        return_std : bool, default=False
            Whether to return the standard deviation.

        Returns
        -------
        mean : ndarray of shape (m,)
            Posterior mean, in units of the outputs times units of the inputs.
        std : ndarray of shape (m,)
            Only if `return_std`.
        """
        return self._integral("potential", X, reference, return_std)

    def stream_function(self, X, reference=None, return_std=False):
        """Predict the stream function ψ of the field, or of its divergence-free part, f = (∂₂ψ, −∂₁ψ).

        Parameters
        ----------
        X, reference, return_std
            As for `potential`.

        Returns
        -------
        mean, std : ndarray of shape (m,)
            As for `potential`.
        """
        return self._integral("stream_function", X, reference, return_std)

    def components(self, X, return_std=False) -> dict:
        """Predict the two parts of a Helmholtz field, which add up to the predicted mean.

        Parameters
        ----------
        X, return_std
            As for `potential`.

        Returns
        -------
        dict
            The keys "curl_free" and "divergence_free" have the mean (m, d), or pairs (mean, std) if `return_std`.
        """
        self._check_field(HelmholtzKernel)
        points, scale, found = self._inputs(X), self.scaling_.output_scale, {}
        for name, posterior in self.posterior_.components().items():
            prediction = posterior.predict(points, "diag" if return_std else "none")
            offset = self.scaling_.output_offset if name == "divergence_free" else 0.0
            mean = offset + scale * prediction.mean.numpy()
            found[name] = (mean, scale * prediction.std.numpy()) if return_std else mean
        return found

    def curl(self, X, return_std=False):
        """Predict the curl ∂₁f₂ − ∂₂f₁ of a field in two dimensions; it is zero for `kernel="curl_free"`.

        Parameters
        ----------
        X, return_std
            As for `potential`. A standard deviation needs a base kernel with four derivatives, as Matérn 5/2.

        Returns
        -------
        mean, std : ndarray of shape (m,)
            As for `potential`, in units of the outputs divided by units of the inputs.
        """
        return self._derivative("curl", CurlFreeKernel, X, return_std)

    def divergence(self, X, return_std=False):
        """Predict the divergence Σ_i ∂_i f_i of a field; it is zero for `kernel="divergence_free"`.

        Parameters
        ----------
        X, return_std
            As for `curl`.

        Returns
        -------
        mean, std : ndarray of shape (m,)
            As for `curl`.
        """
        return self._derivative("divergence", DivergenceFreeKernel, X, return_std)

    def transport(self, line, return_std=False, num_nodes=NODES_PER_SEGMENT):
        """Predict the transport across a line, the integral of the component of the field normal to it.

        Flow from the left to the right of the line, seen along it, is positive.

        Parameters
        ----------
        line : array-like of shape (k, 2)
            Vertices of a polygonal line with k − 1 segments.
        return_std : bool, default=False
            Whether to return the standard deviation.
        num_nodes : int, default=24
            Number of Gauss–Legendre nodes per segment. Segments longer than several lengthscales need more.

        Returns
        -------
        mean : float
            Posterior mean, in units of the outputs times units of the inputs.
        std : float
            Only if `return_std`.

        Notes
        -----
        Any regressor with two inputs and two outputs supports it. Complexity: one joint prediction at (k − 1) · num_nodes
        points.
        """
        check_is_fitted(self, "posterior_")
        line = as_numbers(as_array(line), "line")
        if (self.n_features_in_, self.n_outputs_) != (2, 2):
            raise KernelTypeError(
                f"transport needs 2 inputs and 2 outputs, got a model of {self.n_features_in_} and {self.n_outputs_}."
            )
        if line.ndim != 2 or line.shape[1] != 2 or len(line) < 2 or not np.isfinite(line).all():
            raise InputError(f"line must be finite vertices of shape (k, 2) with k >= 2, got shape {line.shape}.")
        nodes, weights = np.polynomial.legendre.leggauss(check_integer("num_nodes", num_nodes))
        steps = np.diff(line, axis=0)
        points = line[:-1, None] + (nodes[:, None] + 1) / 2 * steps[:, None]
        normals = np.stack([steps[:, 1], -steps[:, 0]], -1)[:, None] * weights[:, None] / 2
        points, normals = points.reshape(-1, 2), normals.reshape(-1)  # data-major
        points = self.scaling_.inputs(points)
        prediction = self.posterior_.predict(points, "full" if return_std else "none")
        mean = float(normals @ self.scaling_.mean(prediction.mean).reshape(-1))
        if not return_std:
            return mean
        return mean, float(np.sqrt(max(normals @ self.scaling_.cov(prediction.cov) @ normals, 0.0)))

    def _integral(self, kind: str, X, reference, return_std: bool):
        self._check_field(HelmholtzKernel, CurlFreeKernel if kind == "potential" else DivergenceFreeKernel)
        X, scaling = self._points(X), self.scaling_
        center = scaling.input_offset
        if reference is not None:
            center = as_numbers(as_array(reference), "reference")
            if center.shape != (self.n_features_in_,):
                raise InputError(f"reference must have shape ({self.n_features_in_},), got {center.shape}.")
        at = None if reference is None else scaling.inputs(center[None])[0]
        posterior = getattr(self.posterior_, kind)(at)
        prediction = posterior.predict(scaling.inputs(X), "diag" if return_std else "none")
        scale, flow = scaling.input_scale[0] * scaling.output_scale[0], scaling.output_offset
        mean = scale * prediction.mean[:, 0].numpy()
        if kind == "stream_function":
            mean = mean + (X - center) @ np.array([-flow[1], flow[0]])
        elif not isinstance(self.gp_.kernel, HelmholtzKernel):
            mean = mean + (X - center) @ flow
        return (mean, scale * prediction.std[:, 0].numpy()) if return_std else mean

    def _derivative(self, kind: str, vanishing: type, X, return_std: bool):
        self._check_field(HelmholtzKernel, CurlFreeKernel, DivergenceFreeKernel)
        if isinstance(strip_scales(self.gp_.kernel)[0], vanishing):
            zeros = np.zeros(len(self._inputs(X)))
            return (zeros, zeros.copy()) if return_std else zeros
        prediction = getattr(self.posterior_, kind)().predict(self._inputs(X), "diag" if return_std else "none")
        scale = self.scaling_.output_scale[0] / self.scaling_.input_scale[0]
        mean = scale * prediction.mean[:, 0].numpy()
        return (mean, scale * prediction.std[:, 0].numpy()) if return_std else mean

    def _check_field(self, *kinds: type) -> None:
        check_is_fitted(self, "posterior_")
        kernel = self.gp_.kernel
        fields = [kernel, *(strip_scales(term)[0] for term in field_terms(kernel))]
        if not any(isinstance(field, kinds) for field in fields):
            names = {HelmholtzKernel: "helmholtz", CurlFreeKernel: "curl_free", DivergenceFreeKernel: "divergence_free"}
            needed = " or ".join(f'kernel="{names[kind]}"' for kind in kinds)
            raise KernelTypeError(f"This needs {needed}, got a model with kernel {self.kernel_!r}.")
