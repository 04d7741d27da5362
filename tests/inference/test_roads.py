"""Every road of OperatorValuedGP against dense algebra on the observed entries: mean, covariance, evidence, gradients.

The tolerance is relative, to the largest entry: 1e-8 for the exact roads and the features, 1e-6 for conjugate gradients, whose
evidence is an estimate and is held against its own standard error.
"""

from functools import partial

import numpy as np
import pytest
import torch
from gp_cases import KERNELS, MEANS, NOISES, ONE_COMPONENT, SEPARABLE, SPECTRAL, Problem, close
from posterior_oracle import diagonal_parts

MISSING = (0.0, 0.3)


def check(problem, rtol=1e-8):
    """Mean, covariance in all forms, and evidence both from the posterior and from `log_evidence`."""
    mean, covariance, evidence = problem.expected()
    posterior = problem.condition()
    check_forms(posterior, problem, mean, covariance, rtol)
    slack = 3 * posterior.log_evidence_error + rtol * abs(evidence)
    assert abs(posterior.log_evidence - evidence) < slack
    assert abs(problem.log_evidence().item() - evidence) < slack


def check_forms(posterior, problem, mean, covariance, rtol):
    variances, blocks = diagonal_parts(covariance, problem.num_outputs)
    for form, expected in {"none": None, "diag": variances, "output": blocks, "full": covariance}.items():
        prediction = posterior.predict(problem.test, cov=form)
        close(prediction.mean, mean, rtol)
        if form != "none":
            close(prediction.variance, variances, rtol)
            close(prediction.std, np.sqrt(variances), rtol)
        if form in ("output", "full"):
            close(prediction.cov, expected, rtol)


def automatic(name, noise, missing, features):
    """The road that the table of the design gives for few data."""
    if name == "independent" and noise != "matrix":
        return "independent"
    if features is not None:
        return "features"
    return "kronecker" if name in ONE_COMPONENT and missing == 0 and noise != "known" else "dense"


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", KERNELS)
def test_exact_roads(name, noise, missing):
    problem = Problem(name, noise, missing)
    assert problem.road == automatic(name, noise, missing, None)
    check(problem)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", SPECTRAL)
def test_random_features_equal_dense_algebra_with_their_kernel(name, noise, missing):
    problem = Problem(name, noise, missing, features="orff")
    assert problem.road == automatic(name, noise, missing, "orff")
    check(problem)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", KERNELS)
def test_nystrom_features_equal_dense_algebra_with_their_kernel(name, noise, missing):
    problem = Problem(name, noise, missing, features="nystrom")
    assert problem.road == automatic(name, noise, missing, "nystrom")
    check(problem)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", SEPARABLE)
def test_iterative_road(name, noise, missing):
    problem = Problem(name, noise, missing, road="iterative")
    assert problem.road == "iterative"
    check(problem, rtol=1e-6)


@pytest.mark.parametrize("noise", NOISES)
def test_the_dense_road_can_be_insisted_on(noise):
    for name in ("icm, rank 2", "independent"):
        problem = Problem(name, noise, 0.0, road="dense")
        assert problem.road == "dense"
        check(problem)


def test_the_kronecker_road_can_be_insisted_on_for_one_output():
    problem = Problem("scalar", "float", 0.0, road="kronecker")
    assert problem.road == "kronecker"
    check(problem)


