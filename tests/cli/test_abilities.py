"""Which recipes learn from chunks, and which can be resumed."""

import pytest

from ovkgp.cli.fit_job import has_checkpoints, why_whole
from ovkgp.recipes import list_recipes, load_recipe


def test_which_recipes_can_be_resumed_and_streamed():
    recipes = [load_recipe(name) for name in list_recipes()]
    resumed = {r.name for r in recipes if has_checkpoints(r.estimator, r.options)}
    streamed = {r.name for r in recipes if why_whole(r) is None}
    fields = {"vector_field", "curl_free_field", "divergence_free_field"}
    assert resumed == fields | {
        *("multitask", "multitask_lmc", "graph_tasks", "large_scale", "bayesian_multitask", "mixed_outputs")
    }
    assert streamed == fields | {"multitask", "multitask_lmc", "graph_tasks", "large_scale"}


@pytest.mark.parametrize(
    "options",
    [{"likelihood": ["poisson", "gaussian"]}, {"hyperparameters": "fixed"}, {"approximation": "variational"}],
)
def test_options_without_a_checkpoint(options):
    assert has_checkpoints("GPRegressor", {}) and not has_checkpoints("GPRegressor", options)
    assert not has_checkpoints("ORFFRidge", {})


def test_ridge_on_random_features_learns_from_chunks_with_one_solver(tmp_path):
    (tmp_path / "ridge.toml").write_text('[model]\nestimator = "ORFFRidge"\n')
    ridge = load_recipe(tmp_path / "ridge.toml")
    assert why_whole(ridge) is None
    assert "solver=auto" in why_whole(ridge.with_options(solver="cg"))
