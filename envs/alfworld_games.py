"""ALFWorld's games (Shridhar et al. 2021, arXiv:2010.03768): PDDL problems that TextWorld plays with Fast Downward.

Things get the names that ALFWorld's own environment gives them ("mug 1"), and lists of things an order: TextWorld's
follows Python's hashes, which change from process to process. What plays a game is kept for the next one, since each
has a copy of the planner's library that the process never lets go of.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import orjson

from palestra.envs.errors import EnvSetupError

_MEMORY = frozenset({"checked", "examined", "wasinreceptacle"})
"""Facts about what was done, not about what is there."""
_idle: list[Any] = []
_translating = threading.Lock()
"""Fast Downward's translator, which is Python, takes the place of sys.stdout."""


class Game:
    """A game that is being played. Two may be played in two threads."""

    def __init__(self, path: Path) -> None:
        """Raises EnvSetupError without the packages, and what its parsers raise."""
        with _translating:
            self._player = _idle.pop() if _idle else _player()
            self._player.load(orjson.loads(path.read_bytes()))
        logic = self._player.unwrapped._logic
        logic.grammar = _Steady(logic.grammar)

    def reset(self) -> Any:
        """The state at the beginning, as TextWorld's environments return it."""
        with _translating:
            return self._player.reset()

    def step(self, command: str) -> Any:
        """(state, points, whether it is over)."""
        return self._player.step(command)

    def close(self) -> None:
        """Leave what played it to the next game."""
        _idle.append(self._player)


def at_hand(facts: Collection[Any]) -> str:
    """What is true of where the agent is, of what can be seen there and of what it holds; "" where it is nowhere."""
    standing = _pairs(facts, "atlocation")
    places = {place for _, place in standing}
    near = {thing for thing, place in _pairs(facts, "receptacleatlocation") if place in places}
    closed = _ones(facts, "openable") - _ones(facts, "opened")
    seen = {thing for thing, where in _pairs(facts, "inreceptacle") if where in near - closed}
    known = near | seen | {name for pair in standing | _pairs(facts, "holds") for name in pair}
    told = (f for f in facts if {a.name for a in f.arguments} <= known and not _is_memory(f))
    return "\n".join(sorted(map(str, told))) if places else ""


def _is_memory(fact: Any) -> bool:
    """A negation is one too: it is told only once the fact was true."""
    return bool(fact.is_negation) or fact.name in _MEMORY


def _pairs(facts: Collection[Any], name: str) -> set[tuple[str, str]]:
    return {(f.arguments[0].name, f.arguments[1].name) for f in facts if f.name == name}


def _ones(facts: Collection[Any], name: str) -> set[str]:
    return {f.arguments[0].name for f in facts if f.name == name}


def _player() -> Any:
    try:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs.pddl import PddlEnv
    except ImportError as error:
        raise EnvSetupError(
            f"ALFWorld is not installed: pip install 'palestra[alfworld]' ({error})"
        ) from error
    wanted = {"admissible_commands": True, "won": True, "lost": True, "score": True}
    try:
        return AlfredDemangler(PddlEnv(textworld.EnvInfos(**wanted, extras=["walkthrough"])))
    except ImportError as error:
        raise EnvSetupError(f"{error}: pip install 'palestra[alfworld]'") from error


class _Steady:
    """A game's grammar, which finds the things that fit a description in alphabetical order."""

    def __init__(self, grammar: Any) -> None:
        self._grammar = grammar

    def derive(self, start: str, context: Mapping[str, Any]) -> Any:
        return self._grammar.derive(start, {**context, "state": _Ordered(context["state"])})


class _Ordered:
    """What a grammar asks a state for."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def all_assignments(self, rule: Any, mapping: Mapping[Any, Any]) -> list[Any]:
        found = self._state.all_assignments(rule, mapping)
        return sorted(found, key=lambda each: sorted((str(k), str(v)) for k, v in each.items()))
