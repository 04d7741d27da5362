"""From recipes to estimators: options that depend on the data, and targets of one column."""

import numpy as np
import pandas as pd
import pytest
import torch

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.kernels import num_outputs
from ovkgp.recipes import load_recipe
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
