"""Comments and descriptions in the recipe files."""

import re

import pytest

from ovkgp.estimators.common.options import Rule
from ovkgp.recipes import list_recipes, load_recipe, recipe_path

OPTION = re.compile(r"^(\w+) = (.*?)\s+# (.*)$", re.MULTILINE)
QUOTED = re.compile(r'"(\w+)"')


@pytest.fixture(params=list_recipes())
def name(request):
    return request.param


def text_of(name):
    return recipe_path(name).read_text(encoding="utf-8")


def test_file_opens_with_purpose_data_and_paper(name):
    opening = text_of(name).split("\n\n[recipe]")[0]
    assert all(line.startswith("#") for line in opening.split("\n"))
    positions = [opening.index(f"# {heading}:") for heading in ("For", "Data", "Paper")]
    assert positions == sorted(positions)
    paper = opening[positions[-1] :]
    assert re.search(r'"[^"]+"', paper.replace("\n#", " ")) and re.search(r"\b(19|20)\d\d\b", paper)


def test_file_has_short_descriptions(name):
    recipe = load_recipe(name)
    for about in (recipe.title, recipe.purpose, recipe.data, recipe.paper):
        assert 0 < len(about) <= 130
    assert re.search(r", (19|20)\d\d$", recipe.paper)


def test_titles_are_distinct():
    titles = [load_recipe(name).title for name in list_recipes()]
    assert len(set(titles)) == len(titles)


def test_quoted_values_in_comments_are_allowed(name):
    recipe, text = load_recipe(name), text_of(name).split("[model.options]")[-1].split("\n[")[0]
    found = [(option, value) for option, _, comment in OPTION.findall(text) for value in QUOTED.findall(comment)]
    assert len(found) >= 2
    for option, value in found:
        constraints = recipe.estimator_class._parameter_constraints[option]
        allowed = [known for one in constraints if isinstance(one, Rule) for known in one.names()]
        assert value in allowed or (value == "none" and None in constraints)


def test_lines_have_at_most_120_characters(name):
    assert max(map(len, text_of(name).split("\n"))) <= 120


def test_values_survive_second_validation(name):
    recipe = load_recipe(name)
    again = recipe.with_options()
    assert (again.options, again.graph) == (recipe.options, recipe.graph)
