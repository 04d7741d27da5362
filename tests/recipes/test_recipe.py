"""Loading, changing and building recipes."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes import list_recipes, load_recipe, recipe_path


def test_recipe_has_name_title_and_estimator():
    recipe = load_recipe("vector_field")
    assert (recipe.name, recipe.estimator) == ("vector_field", "GPRegressor")
    assert recipe.title and recipe.purpose and recipe.data and recipe.paper
    assert recipe.options["kernel"] == "helmholtz"
    assert recipe.source == recipe_path("vector_field")


def test_build_uses_options_and_changes():
    model = load_recipe("multitask").build(rank=3)
    assert (model.kernel, model.rank, model.random_state) == ("decomposable", 3, 0)


def test_with_options_returns_copy():
    recipe = load_recipe("multitask")
    assert recipe.with_options(rank=5).options["rank"] == 5
    assert recipe.options["rank"] == 2


def test_with_options_converts_numpy_values():
    recipe = load_recipe("multitask").with_options(rank=np.int64(3), noise=np.array([0.1, 0.2]))
    assert recipe.options["rank"] == 3 and recipe.options["noise"] == [0.1, 0.2]


def test_load_recipe_suggests_nearest_name():
    with pytest.raises(OptionError, match=r"'multitsk' .*'multitask'\?.*vector_field"):
        load_recipe("multitsk")


def test_changed_options_are_checked():
    with pytest.raises(OptionError, match=r"^Recipe multitask: rank must .*got 'two'\.$"):
        load_recipe("multitask").with_options(rank="two").check_options()
    with pytest.raises(OptionError, match=r"^Recipe multitask: rank must .*got 'two'\.$"):
        load_recipe("multitask").build(rank="two")


def test_load_recipe_loads_no_torch():
    code = (
        "import sys, ovkgp.recipes as r; [r.load_recipe(name) for name in r.list_recipes()]; "
        "print(sorted({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", list_recipes())
def test_options_of_recipes_are_valid(name):
    load_recipe(name).check_options()


def test_unchanged_options_are_located_in_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nestimator = "OVKRidge"\n[model.options]\nlam = 0.0\nscale = "x"\n')
    recipe = load_recipe(path).with_options(scale="given")
    with pytest.raises(OptionError, match=r"mine\.toml, line 4: lam must be a positive number or .*, got 0\.0\.$"):
        recipe.build()
    with pytest.raises(OptionError, match=r"^Recipe mine: lam must be"):
        recipe.build(lam=-1.0)


def test_load_recipe_reads_custom_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(recipe_path("multitask").read_text(encoding="utf-8").replace("rank = 2", "rank = 4"), "utf-8")
    recipe = load_recipe(path)
    assert (recipe.name, recipe.options["rank"], recipe.source) == ("mine", 4, path)
    assert load_recipe(str(path)).options == recipe.options


def test_repr_shows_options():
    assert repr(load_recipe("multitask")).startswith("Recipe('multitask', GPRegressor, kernel='decomposable'")
    assert len(list_recipes()) >= 3


def test_load_recipe_reads_file_without_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text('[model]\nestimator = "OVKRidge"\n')
    assert load_recipe("mine").estimator == "OVKRidge"
    (tmp_path / "multitask").write_text("not TOML")
    assert load_recipe("multitask").estimator == "GPRegressor"


def test_load_recipe_expands_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "mine.toml").write_text('[model]\nestimator = "OVKRidge"\n')
    assert load_recipe("~/mine.toml").name == "mine"


@pytest.mark.parametrize("name", [3, None, b"multitask"])
def test_load_recipe_rejects_other_types(name):
    with pytest.raises(OptionError, match="TOML file"):
        load_recipe(name)


def test_load_recipe_rejects_missing_path():
    with pytest.raises(InputError, match="nowhere"):
        load_recipe("nowhere/mine.toml")
    with pytest.raises(OptionError, match="Unknown recipe"):
        load_recipe("x" * 5000)


def test_with_options_merges_dictionaries():
    recipe = load_recipe("bayesian_multitask").with_options(sampling={"draws": 7})
    assert recipe.options["sampling"] == {**load_recipe("bayesian_multitask").options["sampling"], "draws": 7}
    evidence = recipe.with_options(sampling=None, hyperparameters="evidence")
    assert evidence.build().sampling is None


def test_recipe_is_frozen_and_picklable():
    recipe = load_recipe("graph_tasks")
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"
    assert pickle.loads(pickle.dumps(recipe)) == recipe == copy.deepcopy(recipe)
    assert "graph={'edges': 'chain'" in repr(recipe)
