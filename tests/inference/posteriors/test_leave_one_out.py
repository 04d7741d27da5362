"""Leave-one-out densities against data from which each entry was actually deleted, with every strategy."""

import numpy as np
import pytest
import torch
from gp_cases import Problem, close
from posterior_oracle import leave_rows_out

from ovkgp.exceptions import InputError
from ovkgp.kernels import KnownMatrix

CASES = {
    "kronecker": dict(name="icm, rank 2", missing=0.0, noise="vector"),
    "kronecker, singular, full noise": dict(name="icm, singular", missing=0.0, noise="matrix"),
    "kronecker_missing": dict(name="icm, rank 2", noise="vector", strategy="kronecker_missing"),
    "kronecker_missing, full noise": dict(name="function-valued", noise="matrix", strategy="kronecker_missing"),
    "dense": dict(name="curl-free", missing=0.0, noise="float"),
    "dense, missing": dict(name="helmholtz", noise="vector"),
    "dense, missing, full noise": dict(name="icm, rank 2", noise="matrix"),
    "dense, missing, known noise": dict(name="lmc", noise="known"),
    "dense, one output": dict(name="scalar", noise="float"),
    "iterative": dict(name="lmc", missing=0.0, noise="vector", strategy="iterative"),
    "iterative, missing, full noise": dict(name="lmc", noise="matrix", strategy="iterative"),
    "iterative, missing, known noise": dict(name="icm, rank 2", noise="known", strategy="iterative"),
    "features": dict(name="icm, rank 2", missing=0.0, noise="vector", features="orff"),
    "features, full noise": dict(name="icm, rank 2", missing=0.0, noise="matrix", features="orff"),
    "features, missing, full noise": dict(name="helmholtz", noise="matrix", features="orff"),
    "features, missing, known noise": dict(name="curl-free", noise="known", features="orff"),
    "features, warped, missing": dict(name="delays", noise="vector", features="orff"),
    "features, nystrom, missing": dict(name="lmc", noise="vector", features="nystrom"),
    "independent": dict(name="independent", missing=0.0, noise="vector"),
    "independent, missing, known noise": dict(name="independent", noise="known"),
    "independent, features, missing": dict(name="independent", noise="float", features="orff"),
}


def ours(problem):
    return problem.gp.leave_one_out(problem.X, problem.Y, problem.known)


def make(case, **options):
    return Problem(**{"mean": "linear", "n": 9, "level": 0.05, **CASES[case], **options})


def close_where_observed(found, expected, rtol):
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    close(found[~np.isnan(expected)], expected[~np.isnan(expected)], rtol)


@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_equals_deleting_the_entry(case):
    problem = make(case)
    assert problem.strategy == case.split(",")[0]
    expected, rtol = problem.oracle().leave_one_out(), 1e-6 if problem.strategy == "iterative" else 1e-8
    found = ours(problem)
    for value, reference in zip(found, expected, strict=True):
        assert value.shape == problem.Y.shape and not value.requires_grad
        close_where_observed(value.numpy(), reference, rtol)
    assert found.total == pytest.approx(np.nansum(expected[2]), rel=rtol)


@pytest.mark.parametrize("case", [case for case in CASES if "full" not in case and "known" not in case])
def test_leave_one_out_equals_conditioning_without_the_entry(case):
    """Condition again; with independent noise the density of an observation is latent plus noise."""
    problem = make(case)
    found, rtol = ours(problem), 1e-6 if problem.strategy == "iterative" else 1e-8
    for i, a in (~torch.isnan(problem.Y)).nonzero()[::5].tolist():
        Y = problem.Y.clone()
        Y[i, a] = torch.nan
        prediction = problem.gp.condition(problem.X, Y).predict(problem.X[i : i + 1], noise=True)
        assert found.mean[i, a].item() == pytest.approx(prediction.mean[0, a].item(), rel=rtol, abs=rtol)
        assert found.std[i, a].item() == pytest.approx(prediction.std[0, a].item(), rel=rtol)


def test_leave_one_out_keeps_rows_without_outputs():
    for case in CASES:
        problem = make(case)
        expected = ours(problem)
        nothing = torch.full((1, problem.num_outputs), torch.nan, dtype=torch.float64)
        problem.X = torch.cat([problem.X[:4], torch.zeros(1, 2), problem.X[4:]])
        problem.Y = torch.cat([problem.Y[:4], nothing, problem.Y[4:]])
        if problem.known is not None:
            problem.known = torch.cat([problem.known[:4], nothing, problem.known[4:]])
        for value, reference in zip(ours(problem), expected, strict=True):
            whole = torch.cat([reference[:4], nothing, reference[4:]])
            torch.testing.assert_close(value, whole, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", ["features", "features, missing, full noise", "features, missing, known noise"])
def test_leave_one_out_is_unchanged_by_chunks(case, monkeypatch):
    problem = make(case)
    whole = ours(problem)
    monkeypatch.setattr("ovkgp.inference.strategies.features.CHUNK_ENTRIES", 1)
    for value, reference in zip(ours(problem), whole, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-10, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_leave_one_out_accepts_lists_arrays_and_single_precision(case):
    problem = make(case)
    problem.X, problem.Y = problem.X.float(), problem.Y.float()
    expected = problem.gp.leave_one_out(problem.X.double(), problem.Y.double(), problem.known)
    known = None if problem.known is None else problem.known.tolist()
    for given in (
        (problem.X, problem.Y),
        (problem.X.numpy(), problem.Y.numpy()),
        (problem.X.tolist(), problem.Y.tolist()),
    ):
        for value, reference in zip(problem.gp.leave_one_out(*given, known), expected, strict=True):
            torch.testing.assert_close(value, reference, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("groups", ["rows", ["b", "a", "b", "c", "a", "a", "b", "d", "d"]], ids=["rows", "labels"])
@pytest.mark.parametrize("case", [*CASES, "kronecker, proportional"])
def test_leave_groups_out_equals_deleting_the_group(case, groups):
    if case == "kronecker, proportional":
        problem = make("kronecker", noise="float")
        problem.gp.kernel.output_module = KnownMatrix(torch.eye(3).double())
    else:
        problem = make(case)
    if problem.Y.isnan().any():
        problem.Y[4] = torch.nan  # a row without observed outputs in a group with others
        problem.Y[3] = torch.nan  # a group without observed outputs
    labels = None if isinstance(groups, str) else np.array(groups)
    expected = leave_rows_out(problem.oracle(), labels)
    rtol = 1e-6 if problem.strategy == "iterative" else 1e-8
    found = problem.gp.leave_one_out(problem.X, problem.Y, problem.known, groups=groups)
    for value, reference in zip(found[:2], expected[:2], strict=True):
        assert value.shape == problem.Y.shape and not value.requires_grad
        close_where_observed(value.numpy(), reference, rtol)
    wanted = expected[2] if labels is None else np.nan_to_num(expected[2])
    close_where_observed(found.log_density.numpy(), wanted, rtol)


def test_leave_one_out_rejects_invalid_groups():
    problem = make("dense")
    for groups, message in [
        ("columns", "entries"),
        ([0, 1], "one label per row"),
        ([0] * 9, "2 different labels"),
        ([np.nan] + [1.0] * 8, "missing labels"),
        (np.array([None] + ["a"] * 8, dtype=object), "missing labels"),
        (np.array([1] + ["a"] * 8, dtype=object), "one type"),
    ]:
        with pytest.raises(InputError, match=message):
            problem.gp.leave_one_out(problem.X, problem.Y, groups=groups)


def test_leave_one_out_of_many_equal_groups_in_chunks(monkeypatch):
    from ovkgp.inference.posteriors import leave_one_out

    problem = make("kronecker")
    whole = problem.gp.leave_one_out(problem.X, problem.Y, groups=[0, 0, 0, 1, 1, 1, 2, 2, 2])
    monkeypatch.setattr(leave_one_out, "GROUP_ENTRIES", 1)
    parts = problem.gp.leave_one_out(problem.X, problem.Y, groups=[0, 0, 0, 1, 1, 1, 2, 2, 2])
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)
