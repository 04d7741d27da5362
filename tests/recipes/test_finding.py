"""Where recipes are found, and what is said where they are not."""

import pytest

from ovkgp.exceptions import OptionError
from ovkgp.recipes import list_recipes, recipe_path
from ovkgp.recipes import toml_reader as finding


def test_each_name_has_a_file():
    assert all(recipe_path(name).is_file() for name in list_recipes())


def test_recipes_of_an_installed_package_are_beside_the_module(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.setattr(finding, "INSTALLED", tmp_path)
    assert list_recipes() == ("mine",)
    assert recipe_path("mine") == tmp_path / "mine.toml"


def test_no_folder_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "INSTALLED", tmp_path / "one")
    monkeypatch.setattr(finding, "REPOSITORY", tmp_path / "two")
    with pytest.raises(OptionError, match="the recipes are not installed"):
        list_recipes()


@pytest.mark.parametrize("name", ["", "..", "no/such", "multitask.toml"])
def test_names_that_are_none(name):
    with pytest.raises(OptionError, match="there is no recipe"):
        recipe_path(name)
