"""Command-line agents and SDK loops that palestra knows how to install, start and read, by name."""

from palestra.rollouts.harnesses.recipes.install import Beside, Installed, Npm, OnPath, Venv
from palestra.rollouts.harnesses.recipes.recipe import Address, HarnessRecipe, Launch
from palestra.rollouts.harnesses.recipes.registry import find_recipe, recipes, register

__all__ = [
    "Address",
    "Beside",
    "HarnessRecipe",
    "Installed",
    "Launch",
    "Npm",
    "OnPath",
    "Venv",
    "find_recipe",
    "recipes",
    "register",
]
