"""The worlds: Gymnasium environments with text actions. Start with `env.py`.

Importing this package registers the ids palestra/*; `gymnasium.make("palestra.envs:palestra/Sql-v0")` imports
it first. Without tasks or a task of their own, environments play the small built-in set of their family.
"""

import gymnasium

ENVS: dict[str, tuple[str, str]] = {
    "palestra/Sql-v0": ("palestra.envs.sql:SqlEnv", "sql-tiny"),
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


register_envs()
