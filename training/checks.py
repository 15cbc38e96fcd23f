"""What is wrong with a config, found before anything is started."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from palestra.tasks.task import Task, TaskSet
from palestra.training.advantages import adjusters, estimators, reshapers
from palestra.training.config import Options, TrainConfig
from palestra.training.credit import advantages, needs_baseline, needs_reference
from palestra.training.decisions import decisions
from palestra.training.errors import ConfigError
from palestra.training.layouts import layouts
from palestra.training.losses import corrections, losses
from palestra.training.optimizer import optimizers
from palestra.training.pace import paces
from palestra.training.proximal import proximals
from palestra.training.replay import replays
from palestra.training.samplers import HorizonSchedule, samplers

_AT_LEAST_ONE = (
    "steps",
    "groups_per_step",
    "group_size",
    "updates_per_step",
    "max_reply_tokens",
    "token_budget",
    "threads",
    "horizon_tokens",
)
_ABOVE_ZERO = ("matrix_lr", "other_lr", "max_grad_norm", "temperature", "max_logprob_gap", "token_share")
_NAMED: Mapping[str, Mapping[str, Any]] = {
    "sampler": samplers,
    "pace": paces,
    "replay": replays,
    "estimator": estimators,
    "loss": losses,
    "correction": corrections,
    "proximal": proximals,
    "layout": layouts,
    "optimizer": optimizers,
}
_ANY = TaskSet("any", [Task(id="any", family="any", env="any", split="train", instruction="any")])


def problems(config: TrainConfig) -> Iterator[str]:
    """What is wrong with `config`, one sentence each, beginning with the key."""
    yield from _numbers(config)
    if names := [*_names(config), *_without_effect(config)]:
        yield from names
        return
    yield from _refused("proximal_options", lambda: proximals[config.proximal](**config.proximal_options))
    sampler = samplers[config.sampler]
    yield from _refused("sampler_options", lambda: sampler(_ANY, 0, **config.sampler_options))
    batch = config.groups_per_step * config.group_size
    yield from _refused(
        "pace_options", lambda: paces[config.pace](config.staleness, batch, **config.pace_options)
    )
    yield from _refused("replay_options", lambda: replays[config.replay](0, **config.replay_options))
    nothing = decisions(
        [], {} if needs_baseline(config) else None, {} if needs_reference(config) else None
    ).table
    alone = replace(config, adjust=())
    yield from list(_refused("estimator", lambda: advantages(nothing, alone))) or _refused(
        "adjust", lambda: advantages(nothing, config)
    )
    if config.horizon is not None:
        yield from _refused("horizon", lambda: HorizonSchedule(**config.horizon or {}))


def check(config: TrainConfig) -> None:
    """Raises ConfigError where `config` names something that does not exist or holds an impossible value."""
    if found := list(problems(config)):
        raise ConfigError("; ".join(found))


def hint(wrong: str, known: Iterable[str]) -> str:
    """What was meant, or what there is."""
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def _numbers(config: TrainConfig) -> Iterator[str]:
    for name in _AT_LEAST_ONE:
        if (value := getattr(config, name)) < 1:
            yield f"{name} must be at least 1, not {value!r}"
    for name in _ABOVE_ZERO:
        if (value := getattr(config, name)) <= 0:
            yield f"{name} must be above 0, not {value!r}"
    if config.staleness < 0:
        yield f"staleness must be at least 0, not {config.staleness!r}"
    if config.token_share > 1:
        yield f"token_share must be at most 1, not {config.token_share!r}"


def _names(config: TrainConfig) -> Iterator[str]:
    for key, registry in _NAMED.items():
        if (name := getattr(config, key)) is not None:
            yield from _entry(key, name, registry, getattr(config, f"{key}_options", {}), f"{key}_options")
    for key, changes in (("reshape", reshapers), ("adjust", adjusters)):
        for change in getattr(config, key):
            options = {n: v for n, v in change.items() if n != "name"}
            yield from _entry(key, change.get("name", ""), changes, options, key)


def _entry(key: str, name: str, registry: Mapping[str, Any], options: Options, where: str) -> Iterator[str]:
    if name not in registry:
        yield f"{key}: there is no {name!r}{hint(name, registry)}"
        return
    known = option_names(registry[name])
    for option in options:
        if option not in known:
            yield f"{where}: {name} has no {option}{hint(option, known) if known else ', it has no options'}"


def option_names(entry: Callable[..., Any]) -> list[str]:
    """What may be given to an entry of a registry by name."""
    if isinstance(named := getattr(entry, "options", None), list):
        return named
    return [p.name for p in inspect.signature(entry).parameters.values() if p.kind is p.KEYWORD_ONLY]


def _refused(key: str, make: Callable[[], Any]) -> Iterator[str]:
    """What `make` raises for values that it does not take."""
    try:
        make()
    except (ValueError, TypeError) as error:
        yield f"{key}: {error}"


def _without_effect(config: TrainConfig) -> Iterator[str]:
    if config.proximal == "recorded" and (config.correction is not None or config.scale_by_ess):
        key = "correction" if config.correction is not None else "scale_by_ess"
        yield (
            f"{key} compares the proximal policy with the one that sampled, which are the same with proximal "
            f"'recorded': take {', '.join(name for name in proximals if name != 'recorded')}"
        )
    if config.pace == "capacity" and not config.staleness:
        yield "pace: capacity begins steps ahead of the weights, which needs staleness of at least 1"
