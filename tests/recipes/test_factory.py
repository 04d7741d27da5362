"""Tests of `ovkgp.recipes.factory`."""

import numpy as np
import pandas as pd
import pytest
import torch

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import GraphMatrix, block, num_outputs
from ovkgp.recipes import load_recipe
from ovkgp.recipes.factory import Outputs, choose_likelihoods, edge_weights, graph_kernel, likelihood_of
from ovkgp.recipes.schemas import SCHEMAS

X = np.linspace(0, 6, 30)[:, None]
Y = np.hstack([np.sin(X), np.cos(X), np.sin(X + 1)])


@pytest.mark.parametrize("name", SCHEMAS)
def test_any_estimator_with_a_schema_can_be_built(name, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(f'[model]\nestimator = "{name}"\n[model.options]\nverbose = 0\n')
    model = load_recipe(path).build()
    assert type(model) is getattr(ovkgp, name)
    assert model.get_params() == getattr(ovkgp, name)().get_params()


def test_a_graph_needs_the_outputs():
    with pytest.raises(InputError, match="the graph of recipe graph_tasks depends on the outputs: give Y as well"):
        load_recipe("graph_tasks").build()


def test_a_graph_is_built_from_the_columns():
    recipe = load_recipe("graph_tasks").with_options(graph={"edges": [["a", "c"]]})
    assert recipe.graph == {"edges": [("a", "c")], "mean_variance": 1.0}
    kernel = recipe.build(pd.DataFrame(Y, columns=list("abc")), X).kernel
    assert num_outputs(kernel) == 3
    assert kernel.base_kernel.base_kernel.ard_num_dims == 1


def test_inputs_that_are_no_table_are_refused_by_the_estimator():
    with pytest.raises(ValueError, match="2D array"):
        load_recipe("graph_tasks").fit(X[:, 0], Y)


def test_a_remedy_is_changed_for_the_other():
    recipe = load_recipe("graph_tasks").with_options(graph={"mean_variance": None, "ridge": 0.5})
    assert recipe.fit(X, Y).score(X, Y) > 0.99


def test_likelihoods_by_values_need_the_outputs():
    with pytest.raises(InputError, match="the likelihood of recipe mixed_outputs depends on the outputs"):
        load_recipe("mixed_outputs").build()
    counts = np.column_stack([np.arange(30), Y[:, 0]])
    assert load_recipe("mixed_outputs").build(counts).likelihood == ["negative_binomial", "gaussian"]
    assert load_recipe("mixed_outputs").build(Y).likelihood == "gaussian"


def test_a_likelihood_that_is_said_needs_nothing():
    model = load_recipe("mixed_outputs").build(likelihood=["poisson", "gaussian"])
    assert model.likelihood == ["poisson", "gaussian"]


@pytest.mark.parametrize(
    "target", [Y[:, 0], Y[:, :1], pd.DataFrame(Y[:, :1], columns=["u"]), torch.from_numpy(Y[:, :1])]
)
def test_a_target_of_one_column_may_be_a_table(target):
    model = load_recipe("quantiles").fit(X, target, lengthscale=0.5, lam=1e-3)
    assert model.predict(X).shape == (30,)


def test_two_columns_are_too_many_for_one_target():
    with pytest.raises(InputError, match=r"recipe quantiles takes one output column, and Y has the shape \(30, 3\)"):
        load_recipe("quantiles").fit(X, Y)


def test_a_target_that_is_not_there():
    with pytest.raises(InputError, match="recipe cost_sensitive needs a target column, and Y is None"):
        load_recipe("cost_sensitive").fit(X)


def test_none_and_the_words_for_it():
    recipe = load_recipe("large_scale")
    assert recipe.build(training_rows="all").training_rows is None
    assert recipe.build(training_rows=None, random_state="none").random_state is None
    assert load_recipe("quantiles").build(trend="none").trend is None


DAYS = Outputs.of(pd.DataFrame(np.ones((2, 4)), columns=["mon", "tue", "wed", "thu"]))


def test_a_chain_joins_neighbours():
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert edge_weights("chain", DAYS).tolist() == expected


def test_a_complete_graph_joins_all():
    assert torch.equal(edge_weights("complete", DAYS), 1 - torch.eye(4, dtype=torch.float64))


def test_edges_by_name_and_number_with_weights():
    weights = edge_weights([["mon", "thu"], [1, "wed", 0.5]], DAYS)
    assert weights[0, 3] == weights[3, 0] == 1 and weights[1, 2] == weights[2, 1] == 0.5
    assert weights.sum() == 3


def test_an_edge_joins_two():
    with pytest.raises(OptionError, match="'mon' to itself"):
        edge_weights([["mon", 0]], DAYS)


def test_an_edge_to_nobody():
    with pytest.raises(OptionError, match=r"'mond' \(did you mean 'mon'\?\); the columns of Y are mon, tue, wed, thu"):
        edge_weights([["tue", "mond"]], DAYS)


@pytest.mark.parametrize("remedy", [{"mean_variance": 2.0}, {"ridge": 0.1}, {"ridge": 0.1, "mean_variance": None}])
def test_the_kernel_is_the_scalar_one_times_the_matrix(remedy):
    kernel = graph_kernel({"edges": "chain", **remedy}, "rbf", DAYS, 2).double()
    x = torch.zeros(1, 2, dtype=torch.float64)
    expected = GraphMatrix(edge_weights("chain", DAYS), **remedy)()
    assert torch.allclose(block(kernel, x[0], x[0]), kernel.outputscale * expected)
    assert kernel.base_kernel.base_kernel.ard_num_dims == 2


def test_without_inputs_there_is_one_lengthscale():
    kernel = graph_kernel({"edges": "chain", "ridge": 0.1}, "matern32", DAYS)
    assert kernel.base_kernel.base_kernel.lengthscale.shape == (1, 1)


def test_names_come_from_data_frames_and_series():
    assert Outputs.of(pd.DataFrame({"a": [1.0], 7: [2.0]})).names == ["a", "7"]
    assert Outputs.of(pd.Series([1.0, 2.0], name="a")).names == ["a"]


@pytest.mark.parametrize("Y", [np.ones((3, 2)), torch.ones(3, 2), [[1, 1], [1, 1], [1, 1]]])
def test_columns_without_names_are_numbered(Y):
    outputs = Outputs.of(Y)
    assert outputs.names == ["y0", "y1"]
    assert outputs.values.shape == (3, 2)


def test_one_column_may_be_flat():
    assert Outputs.of(np.ones(3)).values.shape == (3, 1)


def test_a_name_comes_before_a_number():
    outputs = Outputs.of(pd.DataFrame({"1": [1.0], "0": [2.0]}))
    assert (outputs.number("1", "edges"), outputs.number(1, "edges")) == (0, 1)
    assert Outputs.of(np.ones((2, 3))).number("2", "edges") == 2


@pytest.mark.parametrize("key", ["east", 2, "2", "-1", "²"])
def test_columns_that_there_are_not(key):
    outputs = Outputs.of(pd.DataFrame({"easting": [1.0], "north": [2.0]}))
    with pytest.raises(
        OptionError, match=r"edges speaks of the output .*; the columns of Y are easting, north, or 0 to 1"
    ):
        outputs.number(key, "edges")


def test_words_are_no_outputs():
    with pytest.raises((InputError, ValueError)):
        Outputs.of(np.array([["a"], ["b"]]))


NAN = np.nan


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([0, 1, 0], "bernoulli"),
        ([1, NAN, 1], "bernoulli"),
        ([0, 1, 2], "negative_binomial"),
        ([5, 1000, NAN], "negative_binomial"),
        ([0, 1, -1], "gaussian"),
        ([0, 1, 0.5], "gaussian"),
        ([1e300, 0.5], "gaussian"),
    ],
)
def test_labels_counts_and_numbers(values, name):
    assert likelihood_of(values) == name


TABLE = pd.DataFrame({"bought": [0, 1, 0], "visits": [3, 0, NAN], "price": [0.5, 1.5, 2.5]})


def test_columns_that_a_table_does_not_name_go_by_their_values():
    outputs = Outputs.of(TABLE)
    assert choose_likelihoods("by_values", outputs) == ["bernoulli", "negative_binomial", "gaussian"]
    assert choose_likelihoods({"price": "student_t"}, outputs) == ["bernoulli", "negative_binomial", "student_t"]
    assert choose_likelihoods({"1": "poisson"}, outputs) == ["bernoulli", "poisson", "gaussian"]


def test_where_all_are_gaussian_there_is_one_word():
    assert choose_likelihoods("by_values", Outputs.of(TABLE[["price"]])) == "gaussian"
    assert choose_likelihoods({"bought": "gaussian"}, Outputs.of(TABLE[["bought", "price"]])) == "gaussian"


def test_a_column_that_there_is_not():
    with pytest.raises(OptionError, match=r"likelihood speaks of the output 'prize' \(did you mean 'price'\?\)"):
        choose_likelihoods({"prize": "poisson"}, Outputs.of(TABLE))
