"""A scripted, deliberately mediocre agent for `sql-tiny`, from which a policy gets its first idea of the world.

A share of its episodes is careful: it describes tables until it finds the one it needs, tries its query and submits
it. In the others it is careless: it settles for any table, often without looking, guesses the label column, asks for
something simpler than the question did, and submits whatever came of it. It sees what an agent sees, the question and
the observations, and never the gold answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import orjson

from palestra.rollouts.world import World
from palestra.tasks.sql import tiny

_SHAPES = {
    kind: re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(question)))
    for kind, (question, _) in tiny.KINDS.items()
}


SIMPLER = {"highest": "total", "lookup": "total", "average": "total", "count": "distinct"}
"""What a careless episode asks for in place of the question's kind."""


class CarelessAgent:
    """Plays one episode per `play` call; its choices depend on the seed and the task alone."""

    def __init__(self, carelessness: float, seed: int) -> None:
        """`carelessness`: share of careless episodes, 0 for a faultless agent."""
        self._carelessness, self._seed = carelessness, seed

    def play(self, world: World) -> Iterator[str]:
        """Replies in Qwen3's tool-call format, for a `Demonstrator`."""
        rng = random.Random(f"{self._seed}/{world.task.id}")
        episode = _Careless if rng.random() < self._carelessness else _Careful
        return episode(world, rng).replies()


class _Careful:
    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._kind, self._slots = _understand(world.task.instruction)
        self._column = self._slots.get("number") or self._slots["category"]
        self._described: dict[str, str] = {}

    def replies(self) -> Iterator[str]:
        yield tool_call("list_tables")
        names = self._world.observation.split(", ")
        yield from self._look(self._rng.sample(names, len(names)))
        sql = self._sql(self._choose(names))
        yield tool_call("query", sql=sql)
        yield tool_call("submit", sql=sql)

    def _look(self, names: list[str]) -> Iterator[str]:
        """Describe tables until the question's column turns up."""
        for name in names:
            yield from self._describe(name)
            if self._fits(name):
                return

    def _describe(self, name: str) -> Iterator[str]:
        yield tool_call("describe", table=name)
        self._described[name] = self._world.observation

    def _choose(self, names: list[str]) -> str:
        return next(n for n in names if self._fits(n))

    def _sql(self, table: str) -> str:
        slots = self._slots | {"table": table, "label": self._label(table)}
        return tiny.KINDS[self._kind][1].format(**slots)

    def _label(self, table: str) -> str:
        """The first column of a table that was described, otherwise a guess."""
        shown = re.search(r"\((\w+)", self._described.get(table, ""))
        return shown[1] if shown else self._rng.choice(tiny.LABELS)

    def _fits(self, name: str) -> bool:
        return re.search(rf"\b{self._column}\b", self._described.get(name, "")) is not None


class _Careless(_Careful):
    def _look(self, names: list[str]) -> Iterator[str]:
        """Describe one table, or none."""
        if self._rng.random() < 0.5:
            yield from self._describe(names[0])
        if self._rng.random() < 0.5:
            self._kind = SIMPLER.get(self._kind, self._kind)

    def _choose(self, names: list[str]) -> str:
        return self._rng.choice(names)


def _understand(question: str) -> tuple[str, dict[str, str]]:
    """The kind of a question and the names in it."""
    for kind, shape in _SHAPES.items():
        if match := shape.fullmatch(question):
            return kind, match.groupdict()
    raise ValueError(f"this agent only knows the questions of sql-tiny, not {question!r}")


def tool_call(name: str, **arguments: str) -> str:
    """A tool call as Qwen3 writes it."""
    body = f'{{"name": "{name}", "arguments": {_json(arguments)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def _json(arguments: dict[str, str]) -> str:
    """JSON with a space after colons and commas, as the chat template writes it."""
    items = (f'"{k}": {orjson.dumps(v).decode()}' for k, v in arguments.items())
    return "{" + ", ".join(items) + "}"
