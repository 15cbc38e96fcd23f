"""Recipes by name: those that come with palestra, those registered here, those of installed packages.

A package adds one by an entry point in the group "palestra.harnesses" that names a `HarnessRecipe` class.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from palestra.rollouts.errors import RecipeError
from palestra.rollouts.harnesses.recipes.claude_code import ClaudeCode
from palestra.rollouts.harnesses.recipes.codex import Codex
from palestra.rollouts.harnesses.recipes.gemini_cli import GeminiCli
from palestra.rollouts.harnesses.recipes.mini_swe_agent import MiniSweAgent
from palestra.rollouts.harnesses.recipes.pi import Pi
from palestra.rollouts.harnesses.recipes.recipe import HarnessRecipe
from palestra.rollouts.harnesses.recipes.sdks import AnthropicSdk, GenaiSdk, OpenaiSdk

GROUP = "palestra.harnesses"
_OURS = Codex, ClaudeCode, Pi, GeminiCli, MiniSweAgent, OpenaiSdk, AnthropicSdk, GenaiSdk
_registered: dict[str, HarnessRecipe] = {recipe.name: recipe() for recipe in _OURS}


def register(recipe: HarnessRecipe) -> None:
    """Make `recipe` known under its name. Raises RecipeError where another one has it."""
    if recipe.name in _registered:
        raise RecipeError(f"there is a recipe {recipe.name!r} already: choose another name")
    _registered[recipe.name] = recipe


def recipes() -> dict[str, HarnessRecipe]:
    """All recipes by name. Raises RecipeError for an entry point that gives none, or a name that is taken."""
    found = dict(_registered)
    for entry in entry_points(group=GROUP):
        recipe = entry.load()()
        if not isinstance(recipe, HarnessRecipe) or recipe.name in found:
            raise RecipeError(
                f"entry point {entry.name} = {entry.value} of {GROUP} must name a HarnessRecipe class whose "
                f"name is not one of {', '.join(found)}"
            )
        found[recipe.name] = recipe
    return found


def find_recipe(name: str) -> HarnessRecipe:
    """The recipe called `name`. Raises RecipeError."""
    known = recipes()
    if name not in known:
        raise RecipeError(f"there is no harness {name!r}; there are {', '.join(known)}")
    return known[name]
