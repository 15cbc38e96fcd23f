"""Tools: methods of an environment that an agent may call.

    @tool
    def describe(self, table: str) -> str:
        '''Show the columns of a table.'''

The JSON schema comes from the signature, the description from the docstring. Arguments are checked against
the signature before the method runs; what does not fit is answered with a sentence, not an exception.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pydantic

F = typing.TypeVar("F", bound=Callable[..., str])


class ToolError(Exception):
    """Raised by a tool, or on a call that does not fit one; its text is the observation the agent gets."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One callable tool with the definition that models and MCP clients see."""

    name: str
    description: str
    arguments: type[pydantic.BaseModel]
    method: str

    @property
    def definition(self) -> dict[str, Any]:
        """The OpenAI function-calling form: {"type": "function", "function": {...}}."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments, without the titles that pydantic adds."""
        schema = self.arguments.model_json_schema()
        properties = {k: _untitled(v) for k, v in schema.get("properties", {}).items()}
        return {"type": "object", "properties": properties, "required": schema.get("required", [])}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, converted. Raises ToolError naming every field that does not fit."""
        try:
            parsed = self.arguments.model_validate(arguments)
        except pydantic.ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()
            )
            raise ToolError(f"bad arguments for {self.name}: {problems}") from None
        return {name: getattr(parsed, name) for name in type(parsed).model_fields}


def tool(method: F) -> F:
    """Mark a method as a tool."""
    method.__palestra_tool__ = True  # type: ignore[attr-defined]
    return method


def tools_of(cls: type) -> dict[str, Tool]:
    """The tools of a class by name, in the order in which they are defined, base classes first."""
    found: dict[str, Tool] = {}
    for owner in reversed(cls.__mro__):
        for name, member in vars(owner).items():
            if getattr(member, "__palestra_tool__", False):
                found[name] = _make(name, member)
    return found


def parse_action(action: str) -> tuple[str, dict[str, Any]] | None:
    """(name, arguments) if `action` is a tool call as JSON, None if it is plain text.

    Raises ToolError for JSON that is almost a tool call.
    """
    try:
        parsed = orjson.loads(action)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict) or "name" not in parsed:
        return None
    name, arguments = parsed["name"], parsed.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ToolError('a tool call is {"name": <string>, "arguments": <object>}')
    return name, arguments


def _make(name: str, method: Callable[..., str]) -> Tool:
    hints = typing.get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    config = pydantic.ConfigDict(extra="forbid")
    model = pydantic.create_model(f"{name}_arguments", __config__=config, **fields)
    return Tool(name, inspect.cleandoc(method.__doc__ or ""), model, name)


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in schema.items() if k != "title"}
