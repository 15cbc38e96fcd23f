"""References between values."""

from __future__ import annotations

import re
from typing import Any

from config.parse import ConfigError, Section

_REFERENCE = re.compile(r"\$\{([^}]*)\}")


def resolve(sections: dict[str, Section], max_depth: int = 10) -> dict[str, Section]:
    """Replace ${section.key}, and ${key} of the same section.

    A value that is one reference takes the type of what it names; within text it becomes text. Raises ConfigError.
    """
    return {
        name: {key: _value(sections, name, value, max_depth) for key, value in section.items()}
        for name, section in sections.items()
    }


def _value(sections: dict[str, Section], section: str, value: Any, depth: int) -> Any:
    if depth < 0:
        raise ConfigError(f"references in [{section}] go round in circles")
    if isinstance(value, list):
        return [_value(sections, section, item, depth) for item in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return _look_up(sections, section, whole.group(1), depth - 1)
    return _REFERENCE.sub(lambda m: _text(_look_up(sections, section, m.group(1), depth - 1)), value)


def _look_up(sections: dict[str, Section], section: str, name: str, depth: int) -> Any:
    where, dot, key = name.rpartition(".")
    where = where if dot else section
    if where not in sections or key not in sections[where]:
        raise ConfigError(f"${{{name}}} in [{section}] names nothing")
    return _value(sections, where, sections[where][key], depth)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
