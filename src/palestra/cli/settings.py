"""What decided a run, kept beside it, so that it is never continued as something else.

`keep` writes the settings when a run begins and compares them whenever it goes on. Rollouts of two models or of
two temperatures then never end up under one name, where nobody could tell them apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from palestra.cli.errors import UsageError
from palestra.trajectories.disk import replace


def keep(
    path: Path, settings: Mapping[str, Any], *, what: str, begun: bool, free: Collection[str], way_out: str
) -> None:
    """Write `settings` to `path`, or check that they are those which are there.

    `what` is continued, if it was `begun`; keys in `free` may change ("train.steps" for nested ones); `way_out`
    is what to do instead. Raises UsageError where settings changed or are not known, and StoreFullError.
    """
    if path.exists():
        _compare(path, settings, what, free, way_out)
    elif begun:
        raise UsageError(f"{what} was begun with settings that are not known, {path} is missing: {way_out}")
    replace(path, orjson.dumps(settings, option=orjson.OPT_INDENT_2), fsync=False)


def digest(model: Path) -> str:
    """Names the model in a directory by what is in its files: 16 hex digits of SHA-256."""
    files = [model / "config.json", model / "tokenizer.json", *sorted(model.glob("*.safetensors"))]
    digests = []
    for file in files:
        with file.open("rb") as opened:
            digests.append(hashlib.file_digest(opened, "sha256").hexdigest())
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def _compare(path: Path, settings: Mapping[str, Any], what: str, free: Collection[str], way_out: str) -> None:
    try:
        known = dict(_flat(orjson.loads(path.read_bytes())))
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error}): {way_out}") from error
    wanted = dict(_flat(orjson.loads(orjson.dumps(settings))))
    changed = [key for key in known | wanted if key not in free and known.get(key) != wanted.get(key)]
    if changed:
        changes = ", ".join(f"{key} {known.get(key)!r} (now {wanted.get(key)!r})" for key in changed)
        raise UsageError(f"{what} was begun with {changes}: {way_out}")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
