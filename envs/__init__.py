"""The worlds: Gymnasium environments with text actions. Start with `env.py`."""


def register_envs() -> None:
    """Register the ids palestra/*; Gymnasium calls this through its entry point, and twice is fine."""
    import gymnasium

    for name, entry_point in {"palestra/Sql-v0": "palestra.envs.sql:SqlEnv"}.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=entry_point, disable_env_checker=True, order_enforce=False)
