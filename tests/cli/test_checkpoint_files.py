"""The files of an interrupted fit: found, required, replaced and taken away."""

import pytest

from ovkgp.cli.abilities import has_checkpoints, why_whole
from ovkgp.cli.checkpoint_files import CANDIDATES, CheckpointFiles
from ovkgp.estimators import structures
from ovkgp.exceptions import OptionError
from ovkgp.recipes import list_recipes, load_recipe


def test_candidates_are_those_of_the_regressor():
    assert CANDIDATES == structures.CANDIDATES


def test_files_of_the_fit_and_of_its_candidates(tmp_path, capsys):
    files = CheckpointFiles(tmp_path / "m.ovkgp")
    with pytest.raises(OptionError, match="there is nothing to resume"):
        files.require()
    files.clear()
    others = tmp_path / "m.ovkgp.training.csv", tmp_path / "m.ovkgp"
    for path in (*others, *(tmp_path / f"m.ovkgp.training{end}" for end in ("", ".independent", ".decomposable"))):
        path.write_text("")
    assert len(files.present) == 3
    files.require()
    assert capsys.readouterr().err == ""
    files.clear()
    assert "is replaced; --resume would have gone on from it" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == sorted(others)


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
