"""Actions as text: `click 12`, `fill 3 "a lamp"`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from palestra.envs.tools import ToolError


def parse_text(text: str, tools: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(tool, arguments) of an action as text: the tool's name and its arguments in order, quoted where needed.

    Raises ToolError.
    """
    lines = text.strip().splitlines()
    try:
        words = shlex.split(lines[-1]) if lines else []
    except ValueError:
        words = []
    if not words or words[0] not in tools:
        raise ToolError(f"answer with a tool call; the tools are {', '.join(tools)}")
    fields = list(tools[words[0]].arguments.model_fields)
    if len(words) - 1 > len(fields):
        raise ToolError(f"{words[0]} takes at most {len(fields)} arguments: {', '.join(fields)}")
    return words[0], dict(zip(fields, words[1:], strict=False))
