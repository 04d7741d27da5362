"""Kernels against GPyTorch's, feature operators against their dense twins, and ORFFKernel against GPyTorch's RFFKernel.

    python benchmarks/features.py [--quick]

Prints ours, the twin's or peer's, and the ratio, in one run and on one thread. Values of scalar kernels at n = 2000 rows, d = 5
and 50 (medians of alternating runs), and values with the gradient in the lengthscales; our squared distances have a relative
error of at most 1e-12, those of GPyTorch an error that grows with the distance to the mean of the batch. Curl-free and divergence-free maps, N = 2000, d = p = 10, D = 500, with 1
and 50 right-hand sides: (a) build and one product, (b) one more product with cos and sin at hand, the peak memory of (a),
and the slopes of log time in log N, D and d. Then one training step and one prediction of a plain ExactGP.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from statistics import median

import gpytorch
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RFFKernel
from linear_operator import to_dense
from threadpoolctl import threadpool_limits
from timing import line, peak, seconds

from ovkgp.features import ORFF, ORFFKernel
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel
from ovkgp.kernels.evaluation import evaluate_kernel

FIELDS = {"curl-free": CurlFreeKernel, "divergence-free": DivergenceFreeKernel}


def kernels(quick: bool) -> None:
    n, repeats = (1000, 11) if quick else (2000, 41)
    print(f"\nscalar kernels, n = {n}{'':<38}ours{'GPyTorch':>16}{'theirs / ours':>14}")
    for d in (5, 50):
        for name, kind in {"RBF": RBFKernel, "Matern-5/2": MaternKernel}.items():  # nu is 2.5 by default
            for label, ard_num_dims in (("one lengthscale", None), ("ARD", d)):
                compare_kernel(f"{name}, d = {d}, {label}", kind(ard_num_dims=ard_num_dims).double(), n, d, repeats)


def compare_kernel(label: str, kernel: gpytorch.kernels.Kernel, n: int, d: int, repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    X, weights = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (d, n))
    kernel.lengthscale = math.sqrt(d)

    def values(evaluate):
        with torch.no_grad():
            return to_dense(evaluate(X, X))

    def gradient(evaluate):
        kernel.zero_grad()
        (to_dense(evaluate(X, X)) * weights).sum().backward()
        return kernel.raw_lengthscale.grad.clone()

    ours = partial(evaluate_kernel, kernel)
    for name, work in (("values", values), ("gradient", gradient)):
        torch.testing.assert_close(work(ours), work(kernel), rtol=1e-6, atol=1e-6)
        times = seconds(partial(work, ours), partial(work, kernel), repeats=repeats, summary=median)
        line(f"{label}: {name}", *times, "want > 0.87")


def make(field, N: int, d: int, D: int):
    orff = ORFF(FIELDS[field](RBFKernel(ard_num_dims=d)).double(), D, random_state=0)
    generator = torch.Generator().manual_seed(0)
    return orff, torch.rand(N, d, generator=generator, dtype=torch.float64)


def dense_features(orff: ORFF, X: torch.Tensor) -> torch.Tensor:
    """The dense twin: the (N·p) × r matrix, built block by block from the definition."""
    w, B = orff.frequencies, orff.factors[0]
    angles = X @ w.mT
    scalar_features = torch.stack([angles.cos(), angles.sin()], 1) / math.sqrt(len(w))
    return torch.einsum("nej,jpr->npejr", scalar_features, B).reshape(len(X) * B.shape[1], -1)


def products(quick: bool) -> None:
    N, d, D = (500, 10, 200) if quick else (2000, 10, 500)
    print(f"\nfeature products, N = {N}, d = p = {d}, D = {D}{'':<17}ours{'dense':>16}{'dense / ours':>14}")
    for field in FIELDS:
        orff, X = make(field, N, d, D)
        for k in (1, 50):
            compare_products(f"{field}, k = {k}", orff, X, k)
        compare_memory(field, orff, X)


def compare_products(label: str, orff: ORFF, X: torch.Tensor, k: int) -> None:
    Phi, dense = orff(X), dense_features(orff, X)
    theta, values = (torch.randn(size, k, dtype=torch.float64) for size in reversed(dense.shape))
    torch.testing.assert_close(Phi @ theta, dense @ theta)
    torch.testing.assert_close(Phi.mT @ values, dense.mT @ values)
    build = seconds(lambda: orff(X) @ theta, lambda: dense_features(orff, X) @ theta, repeats=3)
    line(f"{label}: (a) build + one product", *build, "want > 1")
    line(f"{label}: (b) Phi @ theta", *seconds(lambda: Phi @ theta, lambda: dense @ theta), "want > 0.83")
    line(f"{label}: (b) Phi.T @ y", *seconds(lambda: Phi.mT @ values, lambda: dense.mT @ values), "want > 0.83")


def compare_memory(label: str, orff: ORFF, X: torch.Tensor) -> None:
    theta = torch.randn(orff.num_features, 1, dtype=torch.float64)
    peaks = peak(lambda: orff(X) @ theta), peak(lambda: dense_features(orff, X) @ theta)
    line(f"{label}: peak memory of (a)", *peaks, "want > 5", "MB", 1e-6)


def slopes(quick: bool) -> None:
    """The fitted slope of log time of build + products against each size; at most linear, so at most about 1.

    The smallest sizes are past what the processor's caches and the allocator's pools hold, so that one cost is fitted.
    """
    base = {"N": 4000, "d": 8, "D": 1000} if quick else {"N": 8000, "d": 8, "D": 1000}
    factors = (1, 2, 4) if quick else (1, 2, 4, 8)
    print("\nslopes of log time (build + Phi @ theta + Phi.T @ y); linear is 1")
    for field in FIELDS:
        row = []
        for size in base:
            times = [pass_seconds(field, **{**base, size: base[size] * factor}) for factor in factors]
            row.append(f"{size}: {fitted_slope(factors, times):.2f}")
        print(f"{field:<20}" + "   ".join(row) + "   want <= 1.1")


def pass_seconds(field: str, N: int, d: int, D: int) -> float:
    orff, X = make(field, N, d, D)
    theta = torch.randn(orff.num_features, dtype=torch.float64)

    def work():
        Phi = orff(X)
        return Phi.mT @ (Phi @ theta)

    return seconds(work, repeats=5)[0]


def fitted_slope(sizes, times) -> float:
    x, y = (torch.tensor([math.log(value) for value in values]) for values in (sizes, times))
    x, y = x - x.mean(), y - y.mean()
    return ((x * y).sum() / x.square().sum()).item()


class Model(gpytorch.models.ExactGP):
    def __init__(self, X, y, kernel):
        super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def exact_gp(quick: bool) -> None:
    n, d, D = (1000 if quick else 5000), 4, 100
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator)
    y, Xs = torch.sin(X.sum(-1)), torch.rand(1000, d, generator=generator)
    models = {
        "ours": Model(X, y, ORFFKernel(ORFF(RBFKernel(ard_num_dims=d), D, random_state=0))),
        "gpytorch": Model(X, y, RFFKernel(num_samples=D, num_dims=d, ard_num_dims=d)),
    }

    def step(model):
        model.train()
        model.zero_grad()
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        (-mll(model(X), y)).backward()

    def predict(model):
        model.train()
        model.eval()  # drops the caches
        with torch.no_grad():
            posterior = model(Xs)
            return posterior.mean, posterior.variance

    print(f"\nplain ExactGP, n = {n}, p = 1, D = {D}{'':<27}ours{'RFFKernel':>16}{'theirs / ours':>14}")
    for label, work in (("one training step (evidence and gradient)", step), ("prediction at 1000 points", predict)):
        line(label, *seconds(*(partial(work, model) for model in models.values()), repeats=15), "want >= 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        kernels(quick)
        with torch.no_grad():
            products(quick)
            slopes(quick)
        exact_gp(quick)


if __name__ == "__main__":
    main()
