"""Dense oracle of curves on a grid, and simulated curves with smooth individual deviations."""

import numpy as np

from ovkgp.inference.model.curve_noise import CurveNoise


def dense(kernel, *points):
    """Return a kernel matrix as an array."""
    from linear_operator import to_dense

    from ovkgp.kernels.evaluation import evaluate_kernel

    return to_dense(evaluate_kernel(kernel, *points)).detach().numpy()


class CurveOracle:
    """Mean, covariance and evidence of curves from the (n·g) × (n·g) covariance of all observed values, without structure."""

    def __init__(self, input_kernel, task_kernel, noise: CurveNoise, X, Y, tasks, channels=None):
        self.input_kernel, self.task_kernel, self.noise, self.X, self.tasks = input_kernel, task_kernel, noise, X, tasks
        self.channels = np.ones((1, 1)) if channels is None else channels
        y = Y.numpy().ravel()
        self.observed = ~np.isnan(y)
        K = np.kron(np.kron(dense(input_kernel, X), dense(task_kernel, tasks)), self.channels)
        C = K + np.kron(np.eye(len(X)), noise.matrix().detach().numpy())
        self.C, self.y = C[self.observed][:, self.observed], y[self.observed]

    @property
    def log_evidence(self):
        _, logdet = np.linalg.slogdet(self.C)
        return -0.5 * (self.y @ np.linalg.solve(self.C, self.y) + logdet + len(self.y) * np.log(2 * np.pi))

    def moments(self, X, tasks):
        """Return mean (m·M·q,) and covariance of f at all inputs and points."""
        over_tasks = np.kron(dense(self.task_kernel, tasks, self.tasks), self.channels)
        cross = np.kron(dense(self.input_kernel, X, self.X), over_tasks)[:, self.observed]
        prior = np.kron(np.kron(dense(self.input_kernel, X), dense(self.task_kernel, tasks)), self.channels)
        solved = np.linalg.solve(self.C, cross.T)
        return solved.T @ self.y, prior - cross @ solved


def simulate_curves(num_curves, num_points=30, seed=0, deviation=0.3, noise=0.05):
    """Return a grid, inputs (n, 2), and curves with smooth individual deviations and white noise."""
    rng = np.random.default_rng(seed)
    grid, X = np.linspace(0, 1, num_points), rng.uniform(-1, 1, (num_curves, 2))
    K = np.exp(-0.5 * (grid[:, None] - grid) ** 2 / 0.15**2) + 1e-8 * np.eye(num_points)
    smooth = rng.standard_normal((num_curves, num_points)) @ np.linalg.cholesky(K).T
    f = np.sin(2 * np.pi * (grid + 0.3 * X[:, :1])) * (1 + X[:, 1:])
    return grid, X, f + deviation * smooth + noise * rng.standard_normal(f.shape)


def simulate_decaying_curves(num_curves, num_points=30, seed=0):
    """Return a grid, inputs (n, 2), and curves whose standard deviation decreases to a twelfth along the grid."""
    grid, X, Y = simulate_curves(num_curves, num_points, seed, deviation=0.4, noise=0.1)
    return grid, X, 3 * np.cos(3 * grid) + np.exp(-2.5 * grid) * Y


def draw_curves(num_curves, num_points=30, seed=0):
    """Return a grid, inputs (n, 2), and curves of a random function (Matérn-5/2 in both) with smooth deviations and noise."""
    rng = np.random.default_rng(seed)
    grid, X = np.linspace(0, 1, num_points), rng.uniform(-1, 1, (num_curves, 2))
    lags = np.abs(grid[:, None] - grid)
    between = np.sqrt(((X[:, None] - X) ** 2).sum(-1))

    def matern(r):
        return (1 + r + r**2 / 3) * np.exp(-r)

    def draw(K, size):
        return np.linalg.cholesky(K + 1e-8 * np.eye(len(K))) @ rng.standard_normal((len(K), size))

    f = draw(matern(5**0.5 * lags / 0.3), num_curves)  # (m, n)
    f = (f @ np.linalg.cholesky(matern(5**0.5 * between) + 1e-8 * np.eye(num_curves)).T).T
    smooth = 0.3 * draw(np.exp(-0.5 * lags**2 / 0.15**2), num_curves).T
    return grid, X, f + smooth + 0.05 * rng.standard_normal(f.shape)
