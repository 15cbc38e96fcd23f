"""Games by challenge, settings and seed: made once and kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from palestra.envs.errors import EnvSetupError

_COOKING = {
    "recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False, "drop": False,
    "recipe_seed": 0, "split": None,
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "tw-coin_collector": {"level": 5},
    "tw-treasure_hunter": {"level": 5},
    "tw-simple": {"rewards": "sparse", "goal": "detailed", "test": False},
    "tw-cooking": _COOKING,
}
"""Settings by challenge (textworld.challenges), which a task may change one by one."""


def cache_dir() -> Path:
    """Where games are kept."""
    return Path(os.environ.get("PALESTRA_CACHE") or Path.home() / ".cache" / "palestra") / "textworld"


def make_game(challenge: str, settings: Mapping[str, Any], seed: int) -> Path:
    """The compiled game. Raises EnvSetupError for an unknown challenge or setting, or where it cannot be made."""
    wanted = _settings(challenge, settings)
    import textworld

    key = orjson.dumps([textworld.__version__, challenge, wanted, seed], option=orjson.OPT_SORT_KEYS)
    path = cache_dir() / f"{challenge}-{seed}-{hashlib.sha256(key).hexdigest()[:16]}.z8"
    if not path.is_file():
        _compile(challenge, wanted, seed, path)
    return path


def _settings(challenge: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if challenge not in DEFAULTS:
        raise EnvSetupError(f"there is no challenge {challenge!r}; there are {', '.join(DEFAULTS)}")
    unknown = set(settings) - set(DEFAULTS[challenge])
    if unknown:
        known = ", ".join(DEFAULTS[challenge])
        raise EnvSetupError(f"{challenge} has no setting {', '.join(sorted(unknown))}; it has {known}")
    return DEFAULTS[challenge] | dict(settings)


def _compile(challenge: str, settings: dict[str, Any], seed: int, path: Path) -> None:
    """Make the game in a folder of its own and move it into place: two processes may make the same one."""
    from textworld.challenges import CHALLENGES
    from textworld.generator import GameOptions, compile_game

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = GameOptions()
        options.seeds = seed
        options.path = str(Path(folder) / path.name)
        try:
            _, make, _ = CHALLENGES[challenge]
            compile_game(make(settings, options), options)
        except Exception as error:  # the generator raises whatever its grammar and compiler do
            raise EnvSetupError(
                f"{challenge} with {settings} and seed {seed} cannot be made: {error}"
            ) from error
        for suffix in (".json", ".z8"):  # the game last: where it is, all of it is
            os.replace(Path(folder) / f"{path.stem}{suffix}", path.with_suffix(suffix))
