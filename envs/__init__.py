"""The worlds: Gymnasium environments with text actions. Start with `env.py`.

Importing this package registers the ids palestra/*; `gymnasium.make("palestra.envs:palestra/Sql-v0")` imports
it first. Without tasks or a task of their own, environments play the small built-in set of their family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from palestra.envs.wrapped import GymnasiumEnv

ENVS: dict[str, tuple[str, str]] = {
    "palestra/AdaptiveSearch-v0": ("palestra.envs.search.adaptive:AdaptiveSearchEnv", "search-hops-adaptive"),
    "palestra/Gymnasium-v0": ("palestra.envs.wrapped:GymnasiumEnv", "frozen-lake"),
    "palestra/ScienceWorld-v0": ("palestra.envs.scienceworld_env:ScienceWorldEnv", "scienceworld"),
    "palestra/Search-v0": ("palestra.envs.search.env:SearchEnv", "search-hops"),
    "palestra/Sql-v0": ("palestra.envs.sql:SqlEnv", "sql-tiny"),
    "palestra/SqlBrowse-v0": ("palestra.envs.sql_variants:SqlBrowseEnv", "sql-tiny"),
    "palestra/SqlReex-v0": ("palestra.envs.sql_variants:SqlReexEnv", "sql-tiny"),
    "palestra/TextWorld-v0": ("palestra.envs.textworld_env:TextWorldEnv", "textworld"),
    "palestra/Swe-v0": ("palestra.envs.swe:SweEnv", "swe-tiny"),
    "palestra/Web-v0": ("palestra.envs.web.env:WebEnv", "web-sites"),
    "palestra/WebOffline-v0": ("palestra.envs.web.offline:OfflineEnv", "web-offline"),
}
"""Gymnasium id -> (class, the task set that `reset` draws from by default)."""


def register_envs() -> None:
    """Register the ids palestra/*. Twice is fine."""
    for name, (entry_point, tasks) in ENVS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point=entry_point,
                kwargs={"tasks": tasks},
                disable_env_checker=True,
                order_enforce=False,
            )


def from_gymnasium(env_id: str, **options: Any) -> GymnasiumEnv:
    """Any Gymnasium environment with discrete or text actions, with text actions; see `wrapped.from_gymnasium`."""
    from palestra.envs.wrapped import from_gymnasium

    return from_gymnasium(env_id, **options)


register_envs()
