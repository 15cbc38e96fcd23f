"""A recipe in a TOML file: read, and checked as far as it can be before anything is started."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pydantic

from palestra.cli.errors import UsageError
from palestra.cli.options import checked_model
from palestra.training.checks import hint, problems
from palestra.training.config import TrainConfig
from palestra.training.engine import EngineOptions
from palestra.training.policy import PolicyOptions
from palestra.training.recipe import Recipe

_SECTIONS: dict[str, Any] = {"train": TrainConfig, "policy": PolicyOptions, "engine": EngineOptions}
FREE = ("run_dir", "log", "train.steps", "train.threads", "train.token_budget")
"""Keys that may change when a run is continued."""


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file. Raises UsageError naming every key that does not fit."""
    try:
        recipe = Recipe.model_validate(_parse(path))
    except pydantic.ValidationError as error:
        raise UsageError(f"{path}: {'; '.join(map(_problem, error.errors()))}") from error
    if wrong := [f"train.{problem}" for problem in problems(recipe.train)]:
        raise UsageError(f"{path}: {'; '.join(wrong)}")
    try:
        recipe = recipe.model_copy(update={"model": checked_model(recipe.model)})
    except UsageError as error:
        raise UsageError(f"{path}: model: {error}") from error
    return recipe


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {path}: {why}; examples/sql_tiny.toml is one that works") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _problem(error: Any) -> str:
    key = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            section = _SECTIONS.get(error["loc"][0]) if len(error["loc"]) > 1 else None
            known = section.__dataclass_fields__ if section else Recipe.model_fields
            return f"there is no key {key}{hint(error['loc'][-1], known)}"
        case "missing":
            return f"the key {key} is missing"
    return f"{key}: {error['msg'].lower()}, not {error['input']!r}"
