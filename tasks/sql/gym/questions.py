"""Making questions: a kind's templates filled with words of a world, kept only where the answer is worth
asking for.

A question is kept when its gold result on the database is not empty, has no more than `MAX_ROWS` rows and
some value, is the same however ties are broken, and when on at least two of the first perturbed copies it is
different, not empty and free of ties too. So a constant, an empty answer and a lucky answer fail, and two
right answers agree.
"""

from __future__ import annotations

import random
import re
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from palestra.tasks.sql.database import connect
from palestra.tasks.sql.gym.population import build
from palestra.tasks.sql.gym.world import Entity, Field, World
from palestra.tasks.sql.perturb import perturbed
from palestra.tasks.sql.schema import quoted
from palestra.tasks.task import Split

MAX_ROWS = 40
COPIES = 6
_TRIES = 25
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou]|hour)")

Words = dict[str, str]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of question; `kinds.toml` says what its templates may say."""

    name: str
    needs: tuple[str, ...]
    asks: tuple[str, ...]
    gold: str
    tie: str
    split: Split
    """In the pack that is split by kind."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold SQL, in which {tie} stands where ties are left open, and what would break
    them.
    """

    world: str
    kind: str
    text: str
    gold: str
    tie: str = ""

    @property
    def gold_sql(self) -> str:
        """The gold SQL, ties left open."""
        return self.gold.replace("{tie}", "")

    @property
    def variants(self) -> list[str]:
        """The gold SQL with ties broken upwards and downwards; empty where there can be none."""
        return [self.gold.replace("{tie}", f", {self.tie} {way}") for way in ("ASC", "DESC") if self.tie]


@cache
def load_kinds() -> tuple[Kind, ...]:
    """All kinds of questions, in the order of their file."""
    body = tomllib.loads(resources.files(__package__).joinpath("kinds.toml").read_text(encoding="utf-8"))
    return tuple(
        Kind(
            name,
            tuple(k["needs"].split()),
            tuple(k["asks"]),
            k["gold"],
            k.get("tie", ""),
            k.get("split", "train"),
        )
        for name, k in body.items()
    )


def make_questions(world: World, seed: int) -> Iterator[Question]:
    """One question of every kind that the world can be asked."""
    rng = random.Random(f"{world.name}/{seed}/questions")
    image = build(world.name, seed)
    with ExitStack() as stack:
        images = [image, *(perturbed(image, s) for s in range(1, COPIES + 1))]
        original, *copies = (stack.enter_context(closing(connect(i))) for i in images)
        for kind in load_kinds():
            tries = (_fill(world, kind, original, rng) for _ in range(_TRIES))
            found = next((q for q in tries if q is not None and _worth_asking(q, original, copies)), None)
            if found is not None:
                yield found


def _fill(world: World, kind: Kind, connection: sqlite3.Connection, rng: random.Random) -> Question | None:
    entity = rng.choice(world.entities)
    words = _words(entity, connection, rng) | _relatives(world, entity, connection, rng)
    if any(need not in words for need in kind.needs):
        return None
    gold = kind.gold.format_map(words | {"tie": "{tie}"})
    text = _ARTICLE.sub(r"\1n ", rng.choice(kind.asks).format_map(words))
    return Question(world.name, kind.name, text, gold, kind.tie.format_map(words))


def _relatives(world: World, entity: Entity, connection: sqlite3.Connection, rng: random.Random) -> Words:
    """The words of a parent, of another one, and of the parent's parent, where there are any."""
    parents = [world.entity(name) for name in rng.sample(entity.parents, len(entity.parents))]
    words: Words = {}
    if parents:
        words |= _prefixed("p", _words(parents[0], connection, rng))
        words |= {"fk": world.foreign_key(parents[0].table), "pc": str(entity.rows // parents[0].rows)}
    if len(parents) > 1:
        words |= _prefixed("q", _words(parents[1], connection, rng))
        words["qfk"] = world.foreign_key(parents[1].table)
    if parents and parents[0].parents:
        above = world.entity(rng.choice(parents[0].parents))
        words |= _prefixed("a", _words(above, connection, rng)) | {"afk": world.foreign_key(above.table)}
    return words


def _prefixed(prefix: str, words: Words) -> Words:
    """The words of a relative: its table is the prefix itself."""
    return {prefix if name == "t" else prefix + name: word for name, word in words.items()}


def _words(entity: Entity, connection: sqlite3.Connection, rng: random.Random) -> Words:
    """The words for one table, with fields and values drawn at random."""
    words = {"t": entity.table, "one": entity.one, "many": entity.many, "key": entity.key}
    words |= {"I": entity.name if entity.label else entity.key, "Ip": _label_phrase(entity)}
    if entity.label:
        label = rng.choice(_values(connection, entity, entity.name))
        words |= {"L": entity.name, "Lp": _label_phrase(entity), "x": label, "letter": label[0]}
    categories, numbers = (_shuffled(entity.of_role(role), rng) for role in ("category", "number"))
    for field in categories[:1]:
        words |= {"C": field.name, "Cp": field.phrase} | _two_values(connection, entity, field, rng)
    for field in categories[1:2]:
        words |= {"B": field.name, "Bp": field.phrase}
    for field in [f for f in categories if not f.null][:1]:
        distinct = len(set(_values(connection, entity, field.name)))
        words |= {"G": field.name, "Gp": field.phrase, "c": str(entity.rows // distinct)}
    for field in numbers[:1]:
        words |= {"N": field.name, "Np": field.phrase} | _thresholds(connection, entity, field, rng)
    for field in numbers[1:2]:
        words |= {"M": field.name, "Mp": field.phrase}
    for field in entity.of_role("date"):
        day = rng.choice(_values(connection, entity, field.name))
        words |= {"D": field.name, "Dp": field.phrase, "d": day, "y": day[:4]}
    for field in _shuffled([f for f in entity.fields if f.null], rng)[:1]:
        words |= {"Z": field.name, "Zp": field.phrase}
    return words


def _label_phrase(entity: Entity) -> str:
    if not entity.label:
        return "id" if entity.key == "id" else f"{entity.one} id"
    return entity.label if entity.label in ("title", "plate") else "name"


def _shuffled(fields: list[Field], rng: random.Random) -> list[Field]:
    return rng.sample(fields, len(fields))


def _two_values(
    connection: sqlite3.Connection, entity: Entity, field: Field, rng: random.Random
) -> dict[str, str]:
    values = _values(connection, entity, field.name)
    first = rng.choice(values)
    return {"v": first, "v2": rng.choice([v for v in values if v != first])}


def _thresholds(
    connection: sqlite3.Connection, entity: Entity, field: Field, rng: random.Random
) -> dict[str, str]:
    """Values of the field at about a half, three quarters and nine tenths of its rows."""
    values = sorted(_values(connection, entity, field.name))
    places = (rng.uniform(0.4, 0.6), rng.uniform(0.7, 0.8), rng.uniform(0.88, 0.97))
    low, middle, high = (str(values[int(place * len(values))]) for place in places)
    return {"k": low, "k2": middle, "k3": high}


def _values(connection: sqlite3.Connection, entity: Entity, column: str) -> list[Any]:
    sql = f"SELECT {quoted(column)} FROM {quoted(entity.table)} WHERE {quoted(column)} IS NOT NULL"
    return [value for (value,) in connection.execute(sql)]


def _worth_asking(
    question: Question, original: sqlite3.Connection, copies: Sequence[sqlite3.Connection]
) -> bool:
    rows = _answer(question, original)
    if not rows or len(rows) > MAX_ROWS or any(value is None for value in rows[0]):
        return False
    telling = 0
    for copy in copies:
        other = _answer(question, copy)
        telling += bool(other) and Counter(other) != Counter(rows)
    return telling >= 2


def _answer(question: Question, connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """The rows of the gold, or none where breaking ties changes them."""
    rows = connection.execute(question.gold_sql).fetchall()
    broken = (connection.execute(variant).fetchall() for variant in question.variants)
    return rows if all(variant == rows for variant in broken) else []
