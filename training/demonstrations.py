"""A scripted, deliberately mediocre agent for `sql-tiny`, from which a policy gets its first idea of the world.

A share of its episodes is careful: it lists the tables, describes the one that is no logbook, tries its query and
submits it. In the others it is careless: it asks the logbook, or nobody, and submits whatever came of it. It sees what
an agent sees, the question and the observations, and never the gold answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

import orjson

from palestra.rollouts.world import World
from palestra.tasks.sql import tiny
from palestra.tasks.sql import vocabulary as words

_SHAPES = {
    kind: re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(question)))
    for kind, (question, _) in tiny.KINDS.items()
}


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
    """Look, try, hand in."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._kind, self._slots = _understand(world.task.instruction)

    def replies(self) -> Iterator[str]:
        yield tool_call("list_tables")
        names = self._world.observation.split(", ")
        table = next(n for n in names if n not in words.LOGBOOKS)
        yield tool_call("describe", table=table)
        sql = self._sql(table, _columns(self._world.observation))
        yield tool_call("query", sql=sql)
        yield tool_call("submit", sql=sql)

    def _sql(self, table: str, columns: Sequence[str]) -> str:
        label, category, number = columns
        slots = self._slots | {"table": table, "label": label, "category": category, "number": number}
        return tiny.KINDS[self._kind][1].format(**slots)


class _Careless(_Careful):
    """Look at the wrong table, or at none; hand in without a second thought."""

    def replies(self) -> Iterator[str]:
        if self._rng.random() < 0.75:
            yield tool_call("list_tables")
            names = self._world.observation.split(", ")
            table = next(n for n in names if n in words.LOGBOOKS)
            yield tool_call("describe", table=table)
            sql = self._sql(table, _columns(self._world.observation))
        else:
            table = self._rng.choice(words.TABLES)
            guesses = [self._rng.choice(pool) for pool in (words.LABELS, words.CATEGORIES, words.NUMBERS)]
            sql = self._sql(table, guesses)
        if self._rng.random() < 0.5:
            yield tool_call("query", sql=sql)
        yield tool_call("submit", sql=sql)


def _columns(description: str) -> list[str]:
    """Names of the three columns in "lamp(title TEXT, color TEXT, price INTEGER)"."""
    return re.findall(r"(\w+) (?:TEXT|INTEGER)", description)


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
