"""The evidence of separable features from statistics, as a plain function, is that of the modules and of the data."""

import numpy as np
import pytest
import torch
from density_cases import assert_roads_agree
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.kernels import DecomposableKernel, FullMatrix, IndependentKernel

SEPARABLE = {
    "scalar": lambda: ScaleKernel(RBFKernel(ard_num_dims=2)),
    "icm": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2),
    "icm, full": lambda: ScaleKernel(
        DecomposableKernel(MaternKernel(nu=1.5, ard_num_dims=2), output_matrix=FullMatrix(3))
    ),
    "icm, singular": lambda: DecomposableKernel(ScaleKernel(RQKernel(ard_num_dims=2)), output_matrix=torch.ones(3, 3)),
    "independent": lambda: IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(3)]),
}
MEANS, NOISES = ("zero", "constant", "linear"), ("shared", "per_output", "full")


def data(p, n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.standard_normal((n, 2)))
    return X, X[:, :1] + torch.from_numpy(rng.standard_normal((n, p)))


def model(name, mean="constant", noise="per_output"):
    kernel = SEPARABLE[name]()
    return OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 15, random_state=0))


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", SEPARABLE)
def test_plain_statistics_are_those_of_the_modules(name, noise, mean):
    gp = model(name, mean, noise)
    is_tied = name == "independent" and noise == "full"  # then no longer separable
    assert_roads_agree(gp, gp.statistics(*data(1 if name == "scalar" else 3)), road="modules" if is_tied else "plain")


def test_missing_outputs_are_plain_where_outputs_share_nothing():
    X, Y = data(3)
    Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = torch.nan
    for name, road in (("independent", "plain"), ("icm", "modules")):
        gp = model(name)
        assert_roads_agree(gp, gp.statistics(X, Y), road=road)


def test_other_feature_maps_and_sums_take_the_modules():
    X, Y = data(3)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=Nystrom(kernel, X[:9]))
    assert LogPosterior(gp, gp.statistics(X, Y)).road == "modules"
    kernel = kernel + DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=3)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 9, random_state=0))
    assert LogPosterior(gp, gp.statistics(X, Y)).road == "modules"


def test_statistics_of_full_noise_and_missing_outputs_say_what_cannot_be_inferred():
    X, Y = data(3)
    Y[3, 1] = torch.nan
    gp = model("icm", "zero", "full")
    with pytest.raises(ValueError, match="one noise and output matrix"):
        LogPosterior(gp, gp.statistics(X, Y))
