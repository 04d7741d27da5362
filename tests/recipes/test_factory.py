"""Tests of `ovkgp.recipes.factory`."""

import numpy as np
import pandas as pd
import pytest
import torch

import ovkgp
from ovkgp import estimators
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels import GraphMatrix, block, num_outputs
from ovkgp.recipes import load_recipe
from ovkgp.recipes.factory import Outputs, choose_likelihoods, guess_likelihood, make_edge_weights, make_graph_kernel

X = np.linspace(0, 6, 30)[:, None]
Y = np.hstack([np.sin(X), np.cos(X), np.sin(X + 1)])


@pytest.mark.parametrize(
    "name", [kind for kind in estimators.__all__ if hasattr(getattr(estimators, kind), "check_options")]
)
def test_every_estimator_is_built(name, tmp_path):
    path = tmp_path / "mine.toml"
    options = "verbose = 0\n" if "verbose" in getattr(ovkgp, name)().get_params() else ""
    path.write_text(f'[model]\nestimator = "{name}"\n[model.options]\n{options}')
    model = load_recipe(path).build()
    assert type(model) is getattr(ovkgp, name)
    assert model.get_params() == getattr(ovkgp, name)().get_params()


def test_graph_recipe_needs_outputs():
    with pytest.raises(InputError, match="graph of recipe graph_tasks"):
        load_recipe("graph_tasks").build()


def test_graph_recipe_uses_column_names():
    recipe = load_recipe("graph_tasks").with_options(graph={"edges": [["a", "c"]]})
    assert recipe.graph == {"edges": [["a", "c"]], "mean_variance": 1.0}
    kernel = recipe.build(pd.DataFrame(Y, columns=list("abc")), X).kernel
    assert num_outputs(kernel) == 3
    assert kernel.base_kernel.base_kernel.ard_num_dims == 1


def test_graph_recipe_rejects_flat_inputs():
    with pytest.raises(ValueError, match="2D array"):
        load_recipe("graph_tasks").fit(X[:, 0], Y)


def test_graph_recipe_replaces_mean_variance_by_ridge():
    recipe = load_recipe("graph_tasks").with_options(graph={"mean_variance": None, "ridge": 0.5})
    assert recipe.fit(X, Y).score(X, Y) > 0.99


def test_likelihood_by_values_needs_outputs():
    with pytest.raises(InputError, match="likelihood of recipe mixed_outputs"):
        load_recipe("mixed_outputs").build()
    counts = np.column_stack([np.arange(30), Y[:, 0]])
    assert load_recipe("mixed_outputs").build(counts).likelihood == ["negative_binomial", "gaussian"]
    assert load_recipe("mixed_outputs").build(Y).likelihood == "gaussian"


def test_explicit_likelihood_needs_no_outputs():
    model = load_recipe("mixed_outputs").build(likelihood=["poisson", "gaussian"])
    assert model.likelihood == ["poisson", "gaussian"]


@pytest.mark.parametrize(
    "target", [Y[:, 0], Y[:, :1], pd.DataFrame(Y[:, :1], columns=["u"]), torch.from_numpy(Y[:, :1])]
)
def test_fit_accepts_one_column_table(target):
    model = load_recipe("quantiles").fit(X, target, lengthscale=0.5, lam=1e-3)
    assert model.predict(X).shape == (30,)


def test_fit_rejects_several_columns_for_single_target():
    with pytest.raises(InputError, match=r"shape \(30, 3\), but recipe quantiles"):
        load_recipe("quantiles").fit(X, Y)


def test_fit_rejects_missing_target():
    with pytest.raises(InputError, match="cost_sensitive needs a target"):
        load_recipe("cost_sensitive").fit(X)


def test_none_strings_become_none():
    recipe = load_recipe("large_scale")
    assert recipe.build(training_rows="all").training_rows is None
    assert recipe.build(training_rows=None, random_state="none").random_state is None
    assert load_recipe("quantiles").build(trend="none").trend is None


DAYS = Outputs.from_table(pd.DataFrame(np.ones((2, 4)), columns=["mon", "tue", "wed", "thu"]))


def test_edge_weights_of_chain():
    expected = [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert make_edge_weights("chain", DAYS).tolist() == expected


def test_edge_weights_of_complete_graph():
    assert torch.equal(make_edge_weights("complete", DAYS), 1 - torch.eye(4, dtype=torch.float64))


def test_edge_weights_of_named_and_indexed_edges():
    weights = make_edge_weights([["mon", "thu"], [1, "wed", 0.5]], DAYS)
    assert weights[0, 3] == weights[3, 0] == 1 and weights[1, 2] == weights[2, 1] == 0.5
    assert weights.sum() == 3


def test_edge_weights_reject_loops():
    with pytest.raises(OptionError, match="'mon' to itself"):
        make_edge_weights([["mon", 0]], DAYS)


def test_edge_weights_reject_unknown_outputs():
    with pytest.raises(OptionError, match=r"'mond' .*'mon'\?.*mon, tue, wed, thu"):
        make_edge_weights([["tue", "mond"]], DAYS)


@pytest.mark.parametrize("variance", [{"mean_variance": 2.0}, {"ridge": 0.1}, {"ridge": 0.1, "mean_variance": None}])
def test_graph_kernel_is_scalar_kernel_times_matrix(variance):
    kernel = make_graph_kernel({"edges": "chain", **variance}, "rbf", DAYS, 2).double()
    x = torch.zeros(1, 2, dtype=torch.float64)
    expected = GraphMatrix(make_edge_weights("chain", DAYS), **variance)()
    assert torch.allclose(block(kernel, x[0], x[0]), kernel.outputscale * expected)
    assert kernel.base_kernel.base_kernel.ard_num_dims == 2


def test_graph_kernel_without_inputs_has_one_lengthscale():
    kernel = make_graph_kernel({"edges": "chain", "ridge": 0.1}, "matern32", DAYS)
    assert kernel.base_kernel.base_kernel.lengthscale.shape == (1, 1)


def test_outputs_take_names_of_frames_and_series():
    assert Outputs.from_table(pd.DataFrame({"a": [1.0], 7: [2.0]})).names == ["a", "7"]
    assert Outputs.from_table(pd.Series([1.0, 2.0], name="a")).names == ["a"]


@pytest.mark.parametrize("Y", [np.ones((3, 2)), torch.ones(3, 2), [[1, 1], [1, 1], [1, 1]]])
def test_outputs_number_unnamed_columns(Y):
    outputs = Outputs.from_table(Y)
    assert outputs.names == ["y0", "y1"]
    assert outputs.values.shape == (3, 2)


def test_outputs_accept_flat_column():
    assert Outputs.from_table(np.ones(3)).values.shape == (3, 1)


def test_outputs_prefer_names_to_indices():
    outputs = Outputs.from_table(pd.DataFrame({"1": [1.0], "0": [2.0]}))
    assert (outputs.find_index("1", "edges"), outputs.find_index(1, "edges")) == (0, 1)
    assert Outputs.from_table(np.ones((2, 3))).find_index("2", "edges") == 2


@pytest.mark.parametrize("key", ["east", 2, "2", "-1", "²"])
def test_outputs_reject_unknown_columns(key):
    outputs = Outputs.from_table(pd.DataFrame({"easting": [1.0], "north": [2.0]}))
    with pytest.raises(OptionError, match=r"edges refers to .*easting, north, or 0 to 1"):
        outputs.find_index(key, "edges")


def test_outputs_reject_strings():
    with pytest.raises((InputError, ValueError)):
        Outputs.from_table(np.array([["a"], ["b"]]))


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
def test_guess_likelihood(values, name):
    assert guess_likelihood(values) == name


TABLE = pd.DataFrame({"bought": [0, 1, 0], "visits": [3, 0, NAN], "price": [0.5, 1.5, 2.5]})


def test_choose_likelihoods_by_table_and_values():
    outputs = Outputs.from_table(TABLE)
    assert choose_likelihoods({}, outputs) == ["bernoulli", "negative_binomial", "gaussian"]
    assert choose_likelihoods({"price": "student_t"}, outputs) == ["bernoulli", "negative_binomial", "student_t"]
    assert choose_likelihoods({"1": "poisson"}, outputs) == ["bernoulli", "poisson", "gaussian"]


def test_choose_likelihoods_returns_single_gaussian():
    assert choose_likelihoods({}, Outputs.from_table(TABLE[["price"]])) == "gaussian"
    assert choose_likelihoods({"bought": "gaussian"}, Outputs.from_table(TABLE[["bought", "price"]])) == "gaussian"


def test_choose_likelihoods_rejects_unknown_column():
    with pytest.raises(OptionError, match=r"likelihood .*'prize' .*mean 'price'\?"):
        choose_likelihoods({"prize": "poisson"}, Outputs.from_table(TABLE))
