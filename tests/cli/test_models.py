"""``ovkgp models``: the list of recipes, and the file of one."""

import tomllib

import pytest
from cli_cases import assert_one_sentence, invoke, succeed
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
def test_every_recipe_is_listed_at_every_width(width):
    text = printed(width)
    squeezed = "".join(text.split())
    for name in list_recipes():
        recipe = load_recipe(name)
        assert name in text and recipe.estimator in squeezed
    assert all(len(line) <= width for line in text.splitlines())
    assert ("estimator" in text.splitlines()[0].split()) == (width >= 120)


def test_the_command_lists_them():
    said = succeed("models")
    assert all(name in said for name in list_recipes()) and "ovkgp models NAME" in said


@pytest.mark.parametrize("name", list_recipes())
def test_the_file_of_a_recipe_is_printed_as_it_is(name, tmp_path):
    said = succeed("models", name)
    assert said == recipe_path(name).read_text(encoding="utf-8")
    assert tomllib.loads(said)["model"]["estimator"] == load_recipe(name).estimator


def test_a_recipe_that_there_is_not():
    assert_one_sentence(invoke("models", "vector_feild"), "did you mean 'vector_field'?", "there are")
