"""The texts of the recipes: what opens each file, and that what its comments say is true."""

import re

import pytest

from ovkgp.recipes import list_recipes, load_recipe, recipe_path
from ovkgp.recipes.schemas import SCHEMAS, Place, check

OPTION = re.compile(r"^(\w+) = (.*?)\s+# (.*)$", re.MULTILINE)
WORD = re.compile(r'"(\w+)"')


@pytest.fixture(params=list_recipes())
def name(request):
    return request.param


def text_of(name):
    return recipe_path(name).read_text(encoding="utf-8")


def test_each_opens_with_what_it_is_for_what_data_it_wants_and_the_paper(name):
    opening = text_of(name).split("\n\n[recipe]")[0]
    assert all(line.startswith("#") for line in opening.split("\n"))
    places = [opening.index(f"# {word}:") for word in ("For", "Data", "Paper")]
    assert places == sorted(places)
    paper = opening[places[-1] :]
    assert re.search(r'"[^"]+"', paper.replace("\n#", " ")) and re.search(r"\b(19|20)\d\d\b", paper)


def test_each_has_short_strings_about_itself(name):
    recipe = load_recipe(name)
    for about in (recipe.title, recipe.purpose, recipe.data, recipe.paper):
        assert 0 < len(about) <= 130
    assert re.search(r", (19|20)\d\d$", recipe.paper)


def test_titles_are_unlike():
    titles = [load_recipe(name).title for name in list_recipes()]
    assert len(set(titles)) == len(titles)


def test_words_in_comments_are_allowed_values(name):
    recipe, text = load_recipe(name), text_of(name).split("[model.options]")[-1].split("\n[")[0]
    schema = SCHEMAS[recipe.estimator]
    found = [(option, word) for option, _, comment in OPTION.findall(text) for word in WORD.findall(comment)]
    assert len(found) >= 2
    for option, word in found:
        check(schema, {option: word}, Place(name), "an option")


def test_lines_are_not_long(name):
    assert max(map(len, text_of(name).split("\n"))) <= 120


def test_values_survive_a_second_check(name):
    recipe = load_recipe(name)
    again = recipe.with_options()
    assert (again.options, again.graph) == (recipe.options, recipe.graph)
