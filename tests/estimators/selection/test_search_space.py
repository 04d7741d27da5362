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
    make_space,
    parameters,
    propose,
    sobol_point,
)
from ovkgp.exceptions import OptionError

SPACE = make_space({"x": (0.0, 1.0), "y": (0.0, 1.0), "kind": ["a", "b"]})


def start(number, seed=0):
    return [sobol_point(SPACE, k, seed) for k in range(number)]


def score(point):
    return -((point["x"] - 0.4) ** 2) - (point["y"] - 0.7) ** 2 - 0.2 * (point["kind"] == 0)


def test_a_sobol_start_fills_every_quarter_of_every_range():
    points = start(16)
    for name in ("x", "y"):
        counts = np.histogram([point[name] for point in points], bins=16, range=(0, 1))[0]
        assert counts.tolist() == [1] * 16
    assert sum(point["kind"] for point in points) == 8


def test_a_proposal_forgets_everything_but_the_trials():
    points = start(8)
    scores = [score(point) for point in points]
    once = propose(SPACE, points, scores, 8, seed=0)
    propose(SPACE, points[:5], scores[:5], 5, seed=3)
    assert propose(SPACE, points, scores, 8, seed=0) == once
    assert once not in points


def test_there_are_more_sobol_points_until_two_trials_succeeded():
    scores = [math.nan, -1.0, math.inf, math.nan]
    assert propose(SPACE, start(4), scores, 2, seed=0) == sobol_point(SPACE, 4, 0)


def test_a_failure_is_not_proposed_again():
    points = start(8)
    scores = [score(point) for point in points]
    peak = {"x": 0.4, "y": 0.7, "kind": 1}
    failed = [peak] * 6
    proposed = propose(SPACE, points + failed, scores + [math.nan] * 6, 8, seed=0)
    assert math.dist((proposed["x"], proposed["y"]), (0.4, 0.7)) > 0.1 or proposed["kind"] == 0


def test_scores_that_are_all_alike_are_no_obstacle():
    proposed = propose(SPACE, start(6), [1.0] * 6, 6, seed=0)
    assert set(proposed) == set(SPACE)


UNIFORMS = (np.arange(6000) + 0.5) / 6000


def test_a_pair_of_whole_numbers_is_a_range_of_whole_numbers_all_equally_likely():
    values, counts = np.unique([make_space({"a": (2, 4)})["a"].at(u) for u in UNIFORMS], return_counts=True)
    assert values.tolist() == [2, 3, 4]
    assert counts.tolist() == [2000, 2000, 2000]
    assert isinstance(make_space({"a": (2, 4)})["a"].at(0.5), int)


def test_one_float_among_the_ends_makes_a_continuum():
    dimension = make_space({"a": (0, 1.0)})["a"]
    assert dimension.kind == "float"
    assert dimension.at(0.25) == 0.25


def test_a_log_range_is_uniform_in_the_logarithm():
    dimension = make_space({"a": (1e-2, 1e4, "log")})["a"]
    np.testing.assert_allclose([dimension.at(u) for u in (1e-12, 0.5, 1 - 1e-12)], [1e-2, 10.0, 1e4], rtol=1e-9)


def test_whole_numbers_on_a_log_scale_stay_inside_and_favour_small_ones():
    values, counts = np.unique([make_space({"a": (1, 100, "log")})["a"].at(u) for u in UNIFORMS], return_counts=True)
    assert (values.min(), values.max()) == (1, 100)
    # P(1) = log(1.5 / 0.5) / log(100.5 / 0.5)
    assert counts[0] / len(UNIFORMS) == pytest.approx(np.log(3) / np.log(201), abs=1e-3)


def test_the_points_of_every_kind_lie_in_the_distribution_that_optuna_sees():
    kinds = [(0, 7), (1, 1000, "log"), (0.0, 1.0), (1e-3, 1.0, "log"), ["a", None, 3.0]]
    kinds += [FloatDistribution(0, 1, step=0.25), IntDistribution(2, 11, step=3), CategoricalDistribution(["x", "y"])]
    for kind in kinds:
        dimension = make_space({"a": kind})["a"]
        distribution = dimension.distribution()
        for u in UNIFORMS[::97]:
            assert distribution._contains(distribution.to_internal_repr(dimension.at(u))), (kind, u)


def test_steps_of_optuna_are_kept_to_the_last():
    dimension = make_space({"a": FloatDistribution(0, 1, step=0.25)})["a"]
    assert sorted({dimension.at(u) for u in UNIFORMS}) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert {make_space({"a": IntDistribution(2, 11, step=3)})["a"].at(u) for u in UNIFORMS} == {2, 5, 8, 11}


def test_choices_may_be_objects_that_no_file_could_hold():
    ridge = Ridge()
    space = make_space({"step": [ridge, None, (1, 2)]})
    assert parameters(space, {"step": 0})["step"] is ridge
    assert parameters(space, {"step": 2})["step"] == (1, 2)
    assert {space["step"].at(u) for u in UNIFORMS} == {0, 1, 2}


def test_an_array_of_choices_gives_plain_numbers():
    value = parameters(make_space({"a": np.array([1, 2])}), {"a": 1})["a"]
    assert type(value) is int


def test_the_order_of_the_names_does_not_matter():
    assert list(make_space({"b": (0, 1), "a": (0, 1)})) == ["a", "b"]


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "at least one parameter"),
        ([("a", (0, 1))], "must be a dictionary"),
        ({3: (0, 1)}, "names of parameters"),
        ({"a": (1.0, 1.0)}, "low < high"),
        ({"a": (2, 1)}, "low < high"),
        ({"a": (0.0, np.inf)}, "finite"),
        ({"a": (0.0, np.nan)}, "finite"),
        ({"a": (0.0, 1.0, "log")}, "must be positive"),
        ({"a": (0.1, 1.0, "logarithmic")}, '"log" or "uniform"'),
        ({"a": (0.1, 1.0, 2.0)}, '"log" or "uniform"'),
        ({"a": ("svd", "lsqr")}, "Choices go into a list"),
        ({"a": (False, True)}, "Choices go into a list"),
        ({"a": (0.1, 1, 2, 3)}, "must be"),
        ({"a": 0.5}, "must be"),
        ({"a": "log"}, "must be"),
        ({"a": []}, "without choices"),
    ],
)
def test_a_space_that_is_none_is_refused_in_words(given, said):
    with pytest.raises(OptionError, match=said):
        make_space(given)


def test_the_message_names_the_parameter():
    with pytest.raises(OptionError, match=r"search_spaces\['alpha'\]"):
        make_space({"alpha": 0.5})


def test_unknown_parameters_are_refused_and_nested_ones_found():
    pipeline = make_pipeline(StandardScaler(), Ridge())
    check_parameters(pipeline, make_space({"ridge__alpha": (0.1, 1.0)}))
    with pytest.raises(OptionError, match=r"no parameter 'ridge__gamma'.*ridge__alpha"):
        check_parameters(pipeline, make_space({"ridge__gamma": (0.1, 1.0)}))


def test_a_part_that_is_searched_for_may_bring_its_own_parameters():
    pipeline = make_pipeline(StandardScaler(), "passthrough")
    space = make_space({"passthrough": [Ridge()], "passthrough__alpha": (0.1, 1.0)})
    check_parameters(pipeline, space)


def test_a_dimension_never_leaves_its_ends_by_rounding():
    dimension = Dimension("float", 0.1, 0.3, log=True)
    assert dimension.at(2.0**-54) >= 0.1 and dimension.at(1 - 2**-53) <= 0.3
