"""Manifold regularisation as the thesis writes it, densely: the primal system of Algorithm 6 and the dual system.

The first N of the N + U points are labelled. `V` maps the latent values R^u to the outputs R^p.
"""

import numpy as np


def primal_weights(labelled, everywhere, V, M, Y, lam, lam_m):
    """θ of Algorithm 6, from Φ (N·u, r) at the labelled points and ((N + U)·u, r) at all."""
    N = len(Y)
    observed = np.kron(np.eye(N), V) @ labelled
    M_tilde = np.eye(labelled.shape[1]) + lam_m / lam * everywhere.T @ M @ everywhere
    return np.linalg.solve(observed.T @ observed / N + lam * M_tilde, observed.T @ Y.ravel() / N)


def dual_coefficients(K, V, M, Y, lam, lam_m, right_scale=None):
    """u of the kernel system, not symmetric; its right-hand side is divided by N, or multiplied by `right_scale`."""
    N, size = len(Y), len(K)
    u = V.shape[1]
    total = size // u
    P = np.kron(np.diag((np.arange(total) < N).astype(float)), np.eye(u))
    matrix = np.kron(np.eye(total), V.T @ V) @ P @ K / N + lam_m * M @ K + lam * np.eye(size)
    right = np.zeros(size)
    right[: N * u] = (Y @ V).ravel() * (1 / N if right_scale is None else right_scale)
    return np.linalg.solve(matrix, right)


def warped(K_xz, K_xX, K_XX, K_Xz, M, strength):
    """K_M = K − K M (I/s + K M)⁻¹ K, as the identity states it."""
    inner = np.eye(len(M)) / strength + K_XX @ M
    return K_xz - K_xX @ M @ np.linalg.solve(inner, K_Xz)


def gp_mean(cross, within, V, Y, noise):
    """The posterior mean of the latent process given y = V f + noise: covariances (m·u, N·u) and (N·u, N·u)."""
    observe = np.kron(np.eye(len(Y)), V)
    covariance = observe @ within @ observe.T + noise * np.eye(Y.size)
    return cross @ observe.T @ np.linalg.solve(covariance, Y.ravel())
