"""A recipe in a TOML file: read, and checked as far as it can be before anything is started."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydantic

from palestra.cli.errors import UsageError
from palestra.cli.options import checked_model
from palestra.training.advantages import estimators
from palestra.training.recipe import Recipe
from palestra.training.trainer import TrainConfig

FREE = ("run_dir", "train.steps", "train.threads")
"""Keys that may change when a run is continued."""

_AT_LEAST_ONE = (
    "steps",
    "groups_per_step",
    "group_size",
    "updates_per_step",
    "max_reply_tokens",
    "token_budget",
    "threads",
)
_ABOVE_ZERO = (
    "matrix_lr",
    "other_lr",
    "clip_low",
    "clip_high",
    "max_grad_norm",
    "temperature",
    "max_logprob_gap",
)


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file. Raises UsageError naming every key that does not fit."""
    try:
        recipe = Recipe.model_validate(_parse(path))
    except pydantic.ValidationError as error:
        raise UsageError(f"{path}: {'; '.join(map(_problem, error.errors()))}") from error
    if problems := list(_wrong_values(recipe.train)):
        raise UsageError(f"{path}: {'; '.join(problems)}")
    try:
        checked_model(recipe.model)
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
            known = TrainConfig.__dataclass_fields__ if len(error["loc"]) > 1 else Recipe.model_fields
            return f"there is no key {key}{_hint(error['loc'][-1], known)}"
        case "missing":
            return f"the key {key} is missing"
    return f"{key}: {error['msg'].lower()}, not {error['input']!r}"


def _hint(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def _wrong_values(train: TrainConfig) -> Iterator[str]:
    for name in _AT_LEAST_ONE:
        if (value := getattr(train, name)) < 1:
            yield f"train.{name} must be at least 1, not {value!r}"
    for name in _ABOVE_ZERO:
        if (value := getattr(train, name)) <= 0:
            yield f"train.{name} must be above 0, not {value!r}"
    if train.estimator not in estimators:
        yield f"train.estimator: there is no {train.estimator!r}{_hint(train.estimator, estimators)}"
        return
    options = [p.name for p in inspect.signature(estimators[train.estimator]).parameters.values()][1:]
    for name in train.estimator_options:
        if name not in options:
            yield f"train.estimator_options: {train.estimator} has no {name}{_hint(name, options)}"
