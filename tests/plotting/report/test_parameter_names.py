import numpy as np
import pytest

from ovkgp.plotting.report.parameters import MOST_OUTPUTS, Names, entries

TWO = Names(["x", "z"], ["u", "v"], "decomposable")


def listed(path, value, names=TWO):
    """Name, column and value of each entry of one hyperparameter."""
    found = entries(path, np.asarray(value, dtype=float)[None, None], names)
    return [(entry.name, entry.of, entry.draws.item()) for entry in found]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("lengthscale", [[2.0, 3.0]], [("lengthscale", "x", 2.0), ("lengthscale", "z", 3.0)]),
        ("lengthscale", [[2.0]], [("lengthscale", "all inputs", 2.0)]),
        ("noise", [4.0, 9.0], [("noise standard deviation", "u", 2.0), ("noise standard deviation", "v", 3.0)]),
        ("mean", [4.0, 9.0], [("mean", "u", 4.0), ("mean", "v", 9.0)]),
        ("1.lengthscale", [[2.0, 3.0]], [("lengthscale", "x, component 2", 2.0), ("lengthscale", "z, component 2", 3.0)]),
        ("alpha", [1.5], [("mixture of lengthscales α", "", 1.5)]),
        ("scale_1", 0.5, [("scale of the errors", "v", 0.5)]),
        ("input_kernel.lengthscale", 0.5, [("lengthscale", "input kernel", 0.5)]),
        ("my_own", 0.5, [("my own", "", 0.5)]),
        ("mean.slopes", [[1.0, 2.0], [3.0, 4.0]], [("slope of the mean", f"{y} along {x}", v) for x, y, v in [("x", "u", 1), ("x", "v", 2), ("z", "u", 3), ("z", "v", 4)]]),
    ],
)  # fmt: skip
def test_entries_belong_to_columns(path, value, found):
    assert listed(path, value) == found


def test_parts_of_fields_are_named_for_what_they_are():
    names = TWO._replace(structure="helmholtz")
    assert listed("0.outputscale", 4.0, names) == [("signal standard deviation", "the curl-free part", 2.0)]
    assert listed("1.lengthscale", [[2.0]], names) == [("lengthscale", "the divergence-free part", 2.0)]
    assert listed("outputscale", 4.0, TWO._replace(structure="curl_free"))[0][1] == "the potential"


def test_independent_outputs_own_their_hyperparameters():
    names = TWO._replace(structure="independent")
    assert listed("1.outputscale", 4.0, names) == [("signal standard deviation", "v", 2.0)]
    assert listed("1.lengthscale", [[2.0, 3.0]], names)[0] == ("lengthscale", "x, v", 2.0)
    alone = Names(["x"], ["u"], "independent")
    assert listed("0.lengthscale", [[2.0]], alone) == [("lengthscale", "x", 2.0)]


def test_a_full_noise_has_correlations():
    assert listed("noise", [[4.0, -3.0], [-3.0, 9.0]])[-1] == ("noise correlation", "u and v", -0.5)


def test_correlations_of_many_outputs_are_left_to_a_picture():
    many = Names(["x"], [f"y{a}" for a in range(MOST_OUTPUTS + 1)], "decomposable")
    found = listed("output_matrix", np.eye(MOST_OUTPUTS + 1), many)
    assert {name for name, _, _ in found} == {"signal standard deviation"}


def test_an_output_without_variance_has_no_correlation():
    assert listed("output_matrix", [[4.0, 0.0], [0.0, 0.0]])[-1] == ("signal correlation", "u and v", 0.0)


def test_draws_stay_together():
    draws = np.arange(1.0, 13.0).reshape(2, 3, 2)  # chains, draws, outputs
    first, second = entries("noise", draws, TWO)
    np.testing.assert_allclose(first.draws, np.sqrt(draws[..., 0]))
    assert second.draws.shape == (2, 3)
