"""Recipes: read by name or path, changed, built, and refused in one sentence."""

import subprocess
import sys

import numpy as np
import pytest

from ovkgp.exceptions import OptionError
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
