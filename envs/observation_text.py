"""Observations of well-known Gymnasium environments in words, and the names of their actions.

What is not known here is shown as the environment renders itself in text, or else as its observation. Colours of a
terminal become brackets: [x] has a background, <x> a colour.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from palestra.envs.errors import EnvSetupError

_Env = gymnasium.Env[Any, Any]
_NAMES = {
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
    "BlackjackEnv": ("stick", "hit"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
}
_GOALS = {
    "FrozenLakeEnv": "Walk over the frozen cells F from S to the goal G; a hole H is the end. You are at the cell in "
    "brackets.",
    "TaxiEnv": "Drive to the passenger, pick them up, drive to their destination and drop them off. A wall is |.",
    "BlackjackEnv": "Come closer to 21 than the dealer without going over it.",
    "CliffWalkingEnv": "Walk from the start to the goal T without stepping on the cliff C. You are at x.",
}
_BACKGROUND = re.compile(r"\x1b\[(?:[0-9;]*;)?4[0-9](?:;[0-9]+)?m(.*?)\x1b\[0m", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m", re.DOTALL)
_LAST_ACTION = re.compile(r"^\s*\((?:\w+)\)\s*$\n?", re.MULTILINE)
_FACING = ("east", "south", "west", "north")


def action_names(env: _Env) -> list[str] | None:
    """Names of the actions in order, or None where actions are text. Raises EnvSetupError for other actions."""
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Text) or type(space).__name__ == "Unicode":
        return None
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise EnvSetupError(
            f"{env.spec.id if env.spec else env} has actions {space}; only Discrete and text actions can be played"
        )
    known = _NAMES.get(type(env.unwrapped).__name__)
    listed = getattr(env.unwrapped, "actions", None)
    if known is None and isinstance(listed, type) and issubclass(listed, enum.IntEnum):
        known = tuple(member.name for member in listed)
    if known is None or len(known) != int(space.n):
        return [str(int(space.start) + i) for i in range(int(space.n))]
    return list(known)


def goal_of(env: _Env) -> str:
    """What is to be done, where it is known; else nothing."""
    return _GOALS.get(type(env.unwrapped).__name__, "")


def in_words(env: _Env, observation: Any) -> str:
    """The observation as text."""
    kind = type(env.unwrapped).__name__
    if kind in _WORDS:
        return _WORDS[kind](env, observation)
    if isinstance(observation, dict) and "mission" in observation and "image" in observation:
        return _grid(observation)
    if env.render_mode == "ansi":
        return plain(str(env.render()))
    return observation if isinstance(observation, str) else _brief(observation)


def plain(ansi: str) -> str:
    """Text drawn for a terminal, without escape codes and without the line that names the last action."""
    marked = _COLOUR.sub(r"<\1>", _BACKGROUND.sub(r"[\1]", ansi))
    return _LAST_ACTION.sub("", marked).strip("\n")


def _brief(observation: Any) -> str:
    with np.printoptions(threshold=200, edgeitems=5, linewidth=120):
        return str(observation)


def _taxi(env: _Env, observation: Any) -> str:
    world: Any = env.unwrapped
    row, column, passenger, destination = world.decode(int(observation))
    places = [f"{name} (row {r}, column {c})" for name, (r, c) in zip("RGYB", world.locs, strict=True)]
    waiting = "in the taxi" if passenger == len(places) else f"at {places[passenger]}"
    walls = "\n".join("".join(c.decode() for c in line) for line in world.desc)
    return (
        f"{walls}\nThe taxi is at row {row}, column {column}. The passenger is {waiting} and wants to go to "
        f"{places[destination]}."
    )


def _blackjack(env: _Env, observation: Any) -> str:
    total, dealer, ace = (int(x) for x in observation)
    return f"You have {total}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."


def _grid(observation: Any) -> str:
    """A MiniGrid view: the agent stands in the middle of the last row and looks up (minigrid/minigrid_env.py)."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    image = observation["image"]
    width, height, _ = image.shape
    seen = []
    for x in range(width):
        for y in range(height):
            kind = IDX_TO_OBJECT[int(image[x, y, 0])]
            if kind in ("unseen", "empty", "wall", "agent", "floor"):
                continue
            state = ("open ", "closed ", "locked ")[int(image[x, y, 2])] if kind == "door" else ""
            what = f"a {state}{IDX_TO_COLOR[int(image[x, y, 1])]} {kind}"
            right, far = x - width // 2, height - 1 - y
            seen.append(f"{what} {_where(right, far)}" if right or far else f"{what} in your hands")
    ahead = _reach(image)
    facing = _FACING[int(observation["direction"])]
    return (
        f"Mission: {observation['mission']}. You face {facing}, and can go {ahead} steps ahead. "
        f"You see {', '.join(seen) or 'nothing'}."
    )


def _reach(image: Any) -> int:
    """Free cells straight ahead."""
    width, height, _ = image.shape
    column = image[width // 2, : height - 1, 0][::-1]
    blocked = [i for i, kind in enumerate(column) if int(kind) not in (1, 3, 8)]
    return blocked[0] if blocked else len(column)


def _where(right: int, ahead: int) -> str:
    side = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return " and ".join(part for part in (f"{ahead} ahead" if ahead else "", side) if part)


_WORDS: dict[str, Callable[[_Env, Any], str]] = {"TaxiEnv": _taxi, "BlackjackEnv": _blackjack}
