"""Recipes: read by name or path, changed, built, and refused in one sentence."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes import list_recipes, load_recipe, recipe_path


def test_a_recipe_has_a_name_a_title_and_an_estimator():
    recipe = load_recipe("vector_field")
    assert (recipe.name, recipe.estimator) == ("vector_field", "GPRegressor")
    assert recipe.title and recipe.purpose and recipe.data and recipe.paper
    assert recipe.options["kernel"] == "helmholtz"
    assert recipe.source == recipe_path("vector_field")


def test_a_recipe_is_built_with_its_options_and_the_changes():
    model = load_recipe("multitask").build(rank=3)
    assert (model.kernel, model.rank, model.random_state) == ("decomposable", 3, 0)


def test_the_recipe_itself_does_not_change():
    recipe = load_recipe("multitask")
    assert recipe.with_options(rank=5).options["rank"] == 5
    assert recipe.options["rank"] == 2


def test_numbers_and_arrays_of_numpy_are_plain_values():
    recipe = load_recipe("multitask").with_options(rank=np.int64(3), noise=np.array([0.1, 0.2]))
    assert recipe.options["rank"] == 3 and recipe.options["noise"] == [0.1, 0.2]


def test_an_unknown_name_is_answered_by_the_nearest():
    with pytest.raises(
        OptionError, match=r"no recipe 'multitsk' \(did you mean 'multitask'\?\); there are .*vector_field"
    ):
        load_recipe("multitsk")


def test_changes_are_checked_as_a_file_is():
    with pytest.raises(OptionError, match=r"^recipe multitask: rank must be a whole number, at least 1; got 'two'\.$"):
        load_recipe("multitask").with_options(rank="two")


def test_reading_and_listing_load_no_torch():
    code = (
        "import sys, ovkgp.recipes as r; [r.load_recipe(name) for name in r.list_recipes()]; "
        "print(sorted({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(recipe_path("multitask").read_text(encoding="utf-8").replace("rank = 2", "rank = 4"), "utf-8")
    recipe = load_recipe(path)
    assert (recipe.name, recipe.options["rank"], recipe.source) == ("mine", 4, path)
    assert load_recipe(str(path)).options == recipe.options


def test_a_recipe_is_shown_with_its_options():
    assert repr(load_recipe("multitask")).startswith("Recipe('multitask', GPRegressor, kernel='decomposable'")
    assert len(list_recipes()) >= 3


def test_a_file_without_an_ending_is_found_where_no_recipe_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text('[model]\nestimator = "OVKRidge"\n')
    assert load_recipe("mine").estimator == "OVKRidge"
    (tmp_path / "multitask").write_text("not TOML")
    assert load_recipe("multitask").estimator == "GPRegressor"


def test_a_path_from_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.toml").write_text('[model]\nestimator = "OVKRidge"\n')
    assert load_recipe("~/mine.toml").name == "mine"


@pytest.mark.parametrize("name", [3, None, b"multitask"])
def test_what_is_neither_name_nor_path(name):
    with pytest.raises(OptionError, match="a recipe is given by its name or by the path of a TOML file, got"):
        load_recipe(name)


def test_a_path_to_nowhere():
    with pytest.raises(InputError, match="there is no file nowhere"):
        load_recipe("nowhere/mine.toml")
    with pytest.raises(OptionError, match="there is no recipe"):
        load_recipe("x" * 5000)


def test_a_dictionary_changes_what_it_names():
    recipe = load_recipe("bayesian_multitask").with_options(sampling={"draws": 7})
    assert recipe.options["sampling"] == {**load_recipe("bayesian_multitask").options["sampling"], "draws": 7}
    plain = recipe.with_options(sampling=None, hyperparameters="evidence")
    assert plain.build().sampling is None


def test_a_recipe_is_frozen_copied_and_pickled():
    recipe = load_recipe("graph_tasks")
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"
    assert pickle.loads(pickle.dumps(recipe)) == recipe == copy.deepcopy(recipe)
    assert "graph={'edges': 'chain'" in repr(recipe)
