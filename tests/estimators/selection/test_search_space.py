"""Tests of `ovkgp.estimators.selection.search_space`."""

import math

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ovkgp.estimators.selection.search_space import (
    Dimension,
    check_parameters,
    compute_sobol_point,
    decode_point,
    make_space,
    propose,
)
from ovkgp.exceptions import OptionError

SPACE = make_space({"x": (0.0, 1.0), "y": (0.0, 1.0), "kind": ["a", "b"]})


def make_points(number, seed=0):
    return [compute_sobol_point(SPACE, k, seed) for k in range(number)]


def score(point):
    return -((point["x"] - 0.4) ** 2) - (point["y"] - 0.7) ** 2 - 0.2 * (point["kind"] == 0)


def test_sobol_points_fill_all_bins_of_every_range():
    points = make_points(16)
    for name in ("x", "y"):
        counts = np.histogram([point[name] for point in points], bins=16, range=(0, 1))[0]
        assert counts.tolist() == [1] * 16
    assert sum(point["kind"] for point in points) == 8


def test_proposal_depends_on_trials_and_seed_only():
    points = make_points(8)
    scores = [score(point) for point in points]
    once = propose(SPACE, points, scores, 8, seed=0)
    propose(SPACE, points[:5], scores[:5], 5, seed=3)
    assert propose(SPACE, points, scores, 8, seed=0) == once
    assert once not in points


def test_proposal_is_sobol_point_until_two_trials_succeed():
    scores = [math.nan, -1.0, math.inf, math.nan]
    assert propose(SPACE, make_points(4), scores, 2, seed=0) == compute_sobol_point(SPACE, 4, 0)


def test_proposal_avoids_failed_points():
    points = make_points(8)
    scores = [score(point) for point in points]
    peak = {"x": 0.4, "y": 0.7, "kind": 1}
    failed = [peak] * 6
    proposed = propose(SPACE, points + failed, scores + [math.nan] * 6, 8, seed=0)
    assert math.dist((proposed["x"], proposed["y"]), (0.4, 0.7)) > 0.1 or proposed["kind"] == 0


def test_proposal_accepts_constant_scores():
    proposed = propose(SPACE, make_points(6), [1.0] * 6, 6, seed=0)
    assert set(proposed) == set(SPACE)


UNIFORMS = (np.arange(6000) + 0.5) / 6000


def test_integer_range_is_uniform():
    values, counts = np.unique([make_space({"a": (2, 4)})["a"].quantile(u) for u in UNIFORMS], return_counts=True)
    assert values.tolist() == [2, 3, 4]
    assert counts.tolist() == [2000, 2000, 2000]
    assert isinstance(make_space({"a": (2, 4)})["a"].quantile(0.5), int)


def test_range_with_one_float_bound_is_continuous():
    dimension = make_space({"a": (0, 1.0)})["a"]
    assert dimension.kind == "float"
    assert dimension.quantile(0.25) == 0.25


def test_log_range_is_uniform_in_logarithm():
    dimension = make_space({"a": (1e-2, 1e4, "log")})["a"]
    np.testing.assert_allclose([dimension.quantile(u) for u in (1e-12, 0.5, 1 - 1e-12)], [1e-2, 10.0, 1e4], rtol=1e-9)


def test_integer_log_range_has_log_uniform_mass():
    values, counts = np.unique(
        [make_space({"a": (1, 100, "log")})["a"].quantile(u) for u in UNIFORMS], return_counts=True
    )
    assert (values.min(), values.max()) == (1, 100)
    # P(1) = log(1.5 / 0.5) / log(100.5 / 0.5)
    assert counts[0] / len(UNIFORMS) == pytest.approx(np.log(3) / np.log(201), abs=1e-3)


def test_quantiles_lie_in_optuna_distribution():
    kinds = [(0, 7), (1, 1000, "log"), (0.0, 1.0), (1e-3, 1.0, "log"), ["a", None, 3.0]]
    kinds += [FloatDistribution(0, 1, step=0.25), IntDistribution(2, 11, step=3), CategoricalDistribution(["x", "y"])]
    for kind in kinds:
        dimension = make_space({"a": kind})["a"]
        distribution = dimension.to_optuna()
        for u in UNIFORMS[::97]:
            assert distribution._contains(distribution.to_internal_repr(dimension.quantile(u))), (kind, u)


def test_optuna_steps_are_all_reached():
    dimension = make_space({"a": FloatDistribution(0, 1, step=0.25)})["a"]
    assert sorted({dimension.quantile(u) for u in UNIFORMS}) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert {make_space({"a": IntDistribution(2, 11, step=3)})["a"].quantile(u) for u in UNIFORMS} == {2, 5, 8, 11}


def test_choices_accept_objects():
    ridge = Ridge()
    space = make_space({"step": [ridge, None, (1, 2)]})
    assert decode_point(space, {"step": 0})["step"] is ridge
    assert decode_point(space, {"step": 2})["step"] == (1, 2)
    assert {space["step"].quantile(u) for u in UNIFORMS} == {0, 1, 2}


def test_choices_of_array_are_python_numbers():
    value = decode_point(make_space({"a": np.array([1, 2])}), {"a": 1})["a"]
    assert type(value) is int


def test_space_is_sorted_by_name():
    assert list(make_space({"b": (0, 1), "a": (0, 1)})) == ["a", "b"]


@pytest.mark.parametrize(
    "given, key",
    [
        ({}, "at least one"),
        ([("a", (0, 1))], "dictionary"),
        ({3: (0, 1)}, "keys"),
        ({"a": (1.0, 1.0)}, "low < high"),
        ({"a": (2, 1)}, "low < high"),
        ({"a": (0.0, np.inf)}, "finite"),
        ({"a": (0.0, np.nan)}, "finite"),
        ({"a": (0.0, 1.0, "log")}, "positive"),
        ({"a": (0.1, 1.0, "logarithmic")}, '"log" or "uniform"'),
        ({"a": (0.1, 1.0, 2.0)}, '"log" or "uniform"'),
        ({"a": ("svd", "lsqr")}, "choices as a list"),
        ({"a": (False, True)}, "choices as a list"),
        ({"a": (0.1, 1, 2, 3)}, "must be"),
        ({"a": 0.5}, "must be"),
        ({"a": "log"}, "must be"),
        ({"a": []}, "at least one choice"),
    ],
)
def test_space_rejects_invalid_values(given, key):
    with pytest.raises(OptionError, match=key):
        make_space(given)


def test_space_error_names_parameter():
    with pytest.raises(OptionError, match=r"search_spaces\['alpha'\]"):
        make_space({"alpha": 0.5})


def test_check_parameters_rejects_unknown_and_accepts_nested_names():
    pipeline = make_pipeline(StandardScaler(), Ridge())
    check_parameters(pipeline, make_space({"ridge__alpha": (0.1, 1.0)}))
    with pytest.raises(OptionError, match=r"'ridge__gamma'.*ridge__alpha"):
        check_parameters(pipeline, make_space({"ridge__gamma": (0.1, 1.0)}))


def test_check_parameters_accepts_parameters_of_searched_step():
    pipeline = make_pipeline(StandardScaler(), "passthrough")
    space = make_space({"passthrough": [Ridge()], "passthrough__alpha": (0.1, 1.0)})
    check_parameters(pipeline, space)


def test_quantile_stays_within_bounds_after_rounding():
    dimension = Dimension("float", 0.1, 0.3, log=True)
    assert dimension.quantile(2.0**-54) >= 0.1 and dimension.quantile(1 - 2**-53) <= 0.3
