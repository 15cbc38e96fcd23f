"""Tools made from methods, actions read from text, and the space of all strings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.envs.space import Unicode
from palestra.envs.tools import ToolError, parse_action, tool, tools_of


class World:
    @tool
    def look(self) -> str:
        """Look around."""
        return ""

    @tool
    def move(self, direction: str, steps: int = 1) -> str:
        """Move some steps."""
        return ""

    def hidden(self) -> str:
        return ""


class Larger(World):
    @tool
    def jump(self, high: bool) -> str:
        """Jump."""
        return ""


def test_definitions_come_from_signatures_and_docstrings() -> None:
    tools = tools_of(Larger)
    assert list(tools) == ["look", "move", "jump"]
    assert tools["move"].definition == {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Move some steps.",
            "parameters": {
                "type": "object",
                "properties": {"direction": {"type": "string"}, "steps": {"type": "integer", "default": 1}},
                "required": ["direction"],
            },
        },
    }


def test_arguments_are_checked_and_defaults_filled_in() -> None:
    assert tools_of(World)["move"].check({"direction": "north"}) == {"direction": "north", "steps": 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "direction: field required"),
        ({"direction": 3}, "direction: input should be a valid string"),
        ({"direction": "n", "steps": "many"}, "steps: input should be a valid integer"),
        ({"direction": "n", "speed": 3}, "speed: extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError, match=f"bad arguments for move: .*{says}"):
        tools_of(World)["move"].check(arguments)


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ('{"name": "look", "arguments": {}}', ("look", {})),
        ('{"name": "look"}', ("look", {})),
        (' {"name": "move", "arguments": {"direction": "n"}} ', ("move", {"direction": "n"})),
        ("go north", None),
        ("", None),
        ("3", None),
        ("[]", None),
        ('{"tool": "look"}', None),
        ("[" * 5000, None),
        ("\ud800", None),
    ],
)
def test_actions(action: str, parsed: object) -> None:
    assert parse_action(action) == parsed


@pytest.mark.parametrize("action", ['{"name": 3}', '{"name": "look", "arguments": "{}"}', '{"name": null}'])
def test_an_almost_tool_call_says_what_a_tool_call_is(action: str) -> None:
    with pytest.raises(ToolError, match="a tool call is"):
        parse_action(action)


@given(st.text())
def test_the_space_contains_every_string(text: str) -> None:
    assert Unicode().contains(text) and text in Unicode()


@pytest.mark.parametrize("other", [None, 3, b"bytes", ["a"]])
def test_the_space_contains_nothing_else(other: object) -> None:
    assert not Unicode().contains(other)


def test_samples_are_members_and_follow_the_seed() -> None:
    first, second = Unicode(seed=1), Unicode(seed=1)
    samples = [first.sample() for _ in range(20)]
    assert samples == [second.sample() for _ in range(20)]
    assert all(first.contains(s) for s in samples) and len(set(samples)) > 10


def test_spaces_are_equal_and_not_flattenable() -> None:
    assert Unicode() == Unicode(seed=3) and repr(Unicode()) == "Unicode()"
    assert not Unicode().is_np_flattenable
