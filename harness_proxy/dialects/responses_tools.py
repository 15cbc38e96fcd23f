"""Tools of the Responses API: from its several forms to function definitions, and the way back for calls.

Tools stand in `tools`, or in an input item of type additional_tools; a namespace holds further tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from palestra.harness_proxy.dialects import shared

_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""A custom tool takes free text; the model writes it as the one argument of a function."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """A tool as the model sees it, and as the caller wants it called."""

    definition: Mapping[str, Any]
    name: str
    namespace: str | None
    custom: bool


def qualified(name: str, namespace: str | None) -> str:
    """The function name of a tool in a namespace."""
    return f"{namespace}__{name}" if namespace else name


def declarations(fields: Mapping[str, Any]) -> tuple[list[Declaration], list[str]]:
    """(tools that the caller runs, names of those that only OpenAI's servers can run).

    Raises BadRequestError.
    """
    declared: list[Declaration] = []
    left_out: list[str] = []
    for tool in _tools(fields):
        for found in _declared(shared.require(dict, tool, "a tool"), None):
            if isinstance(found, Declaration):
                declared.append(found)
            else:
                left_out.append(found)
    return declared, left_out


def _tools(fields: Mapping[str, Any]) -> Iterator[Any]:
    yield from shared.optional(list, fields.get("tools"), "tools") or ()
    items = fields.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            yield from shared.optional(list, item.get("tools"), "tools of additional_tools") or ()


def _declared(tool: Mapping[str, Any], namespace: str | None) -> Iterator[Declaration | str]:
    kind = tool.get("type")
    if kind == "function":
        yield _declaration(tool, namespace, tool.get("parameters"))
    elif kind == "custom":
        yield _declaration(tool, namespace, _CUSTOM)
    elif kind == "namespace" and namespace is None:
        name = shared.require(str, tool.get("name"), "the name of a namespace")
        for inner in shared.require(list, tool.get("tools"), "tools of a namespace"):
            yield from _declared(shared.require(dict, inner, "a tool"), name)
    else:
        yield f"tool {str(kind)[:80]}"


def _declaration(tool: Mapping[str, Any], namespace: str | None, parameters: Any) -> Declaration:
    name = shared.require(str, tool.get("name"), "the name of a tool")
    definition = shared.function_tool(qualified(name, namespace), tool.get("description"), parameters)
    return Declaration(definition, name, namespace, tool.get("type") == "custom")
