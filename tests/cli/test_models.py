"""``ovkgp models``: the list of recipes, and the file of one."""

import tomllib

import pytest
from cli_cases import assert_error, invoke, succeed
from rich.console import Console

from ovkgp.cli.models import recipe_table
from ovkgp.recipes import list_recipes, load_recipe, recipe_path


def printed(width):
    console = Console(width=width, record=True)
    recipes = [load_recipe(name) for name in list_recipes()]
    with console.capture() as capture:
        console.print(recipe_table(recipes, is_wide=width >= 120))
    return capture.get()


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_recipe_table_lists_every_recipe(width):
    text = printed(width)
    without_spaces = "".join(text.split())
    for name in list_recipes():
        recipe = load_recipe(name)
        assert name in text and recipe.estimator in without_spaces
    assert all(len(line) <= width for line in text.splitlines())
    assert ("estimator" in text.splitlines()[0].split()) == (width >= 120)


def test_models_command_lists_recipes():
    output = succeed("models")
    assert all(name in output for name in list_recipes()) and "ovkgp models NAME" in output


@pytest.mark.parametrize("name", list_recipes())
def test_models_command_prints_file(name, tmp_path):
    output = succeed("models", name)
    assert output == recipe_path(name).read_text(encoding="utf-8")
    assert tomllib.loads(output)["model"]["estimator"] == load_recipe(name).estimator


def test_models_command_rejects_unknown_recipe():
    assert_error(invoke("models", "vector_feild"), "did you mean 'vector_field'?", "multitask")
