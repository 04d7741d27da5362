from ovkgp.recipes.recipe import Recipe as Recipe
from ovkgp.recipes.recipe import load_recipe as load_recipe
from ovkgp.recipes.toml_reader import list_recipes as list_recipes
from ovkgp.recipes.toml_reader import recipe_path as recipe_path
