"""A generated world: entities with names, facts between them, some of which no passage tells, and the passages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from palestra.tasks.search.corpus import Passage, corpus_builder
from palestra.tasks.search.hops import relations as words
from palestra.tasks.search.hops.relations import COUNTS, FILLERS, OPENINGS, RELATIONS, Kind, Relation

UNTOLD = 0.12
"""The share of facts that no passage tells."""
CHRONICLES = 60
"""Passages that name entities and say nothing about them."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Its names are what answers may call it; the first one is its passage's title and id."""

    kind: Kind
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The full name."""
        return self.names[0]


@dataclass(frozen=True, slots=True)
class Fact:
    """One relation of one entity. `values` are the spellings of its object; `object` is None for a number."""

    subject: Entity
    relation: Relation
    values: tuple[str, ...]
    object: Entity | None
    told: bool


@dataclass(frozen=True, slots=True)
class World:
    """Facts by the name of their subject and of their relation."""

    entities: tuple[Entity, ...]
    facts: dict[tuple[str, str], Fact]

    def of(self, entity: Entity) -> list[Fact]:
        """The facts of an entity, in the order of RELATIONS."""
        found = (self.facts.get((entity.name, relation.name)) for relation in RELATIONS)
        return [fact for fact in found if fact is not None]


@lru_cache(maxsize=32)
def make_world(seed: int) -> World:
    """The world of `seed`; the same on every machine."""
    rng = random.Random(f"search-hops {seed}")
    entities = tuple(_entities(rng))
    facts = {(f.subject.name, f.relation.name): f for e in entities for f in _facts(rng, e, entities)}
    return World(entities, facts)


@corpus_builder
def corpus(seed: int) -> list[Passage]:
    """The passages of a world: one for each entity, and chronicles that lead nowhere."""
    world = make_world(seed)
    rng = random.Random(f"search-hops passages {seed}")
    about = [Passage(e.name, e.name, _passage(rng, world, e)) for e in world.entities]
    leaves = [_chronicle(rng, world, number) for number in range(1, CHRONICLES + 1)]
    return [*about, *leaves]


def _entities(rng: random.Random) -> Iterator[Entity]:
    families = [_coined(rng, "family") for _ in range(24)]  # fewer than people: namesakes distract
    makers: dict[Kind, Callable[[], tuple[str, ...]]] = {
        "person": lambda: (f"{_coined(rng, 'given')} {rng.choice(families)}",),
        "town": lambda: (_coined(rng, "town"),),
        "company": lambda: _company(rng),
        "book": lambda: (
            f"The {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)} of {_coined(rng, 'town')}",
        ),
        "river": lambda: (_coined(rng, "river"),),
    }
    taken: set[str] = set()
    for kind, count in COUNTS.items():
        made = 0
        while made < count:
            names = makers[kind]()
            if not taken & set(names):
                taken.update(names)
                made += 1
                yield Entity(kind, names)


def _coined(rng: random.Random, ending: str) -> str:
    return rng.choice(words.STARTS) + rng.choice(words.MIDDLES) + rng.choice(words.ENDS[ending])


def _company(rng: random.Random) -> tuple[str, ...]:
    short = _coined(rng, "company")
    return f"{short} {rng.choice(words.TRADES)}", short


def _facts(rng: random.Random, entity: Entity, entities: tuple[Entity, ...]) -> Iterator[Fact]:
    for relation in RELATIONS:
        if relation.subject != entity.kind:
            continue
        told = rng.random() >= UNTOLD
        if relation.object is None:
            yield Fact(entity, relation, (str(rng.randint(relation.low, relation.high)),), None, told)
            continue
        other = rng.choice([e for e in entities if e.kind == relation.object and e != entity])
        yield Fact(entity, relation, other.names, other, told)


def _passage(rng: random.Random, world: World, entity: Entity) -> str:
    opening = OPENINGS[entity.kind].format(x=entity.name)
    other = f"It is also called {entity.names[1]}." if len(entity.names) > 1 else ""
    told = [f for f in world.of(entity) if f.told]
    sentences = [rng.choice(f.relation.says).format(x=entity.name, y=f.values[0]) for f in told]
    sentences += rng.sample(FILLERS[entity.kind], 2)
    rng.shuffle(sentences)
    return " ".join(filter(None, [opening, other, *sentences]))


def _chronicle(rng: random.Random, world: World, number: int) -> Passage:
    names = [e.name for e in rng.sample(world.entities, 4)]
    title = f"Chronicle, leaf {number}"
    year, others = rng.randint(1600, 1900), ", ".join(names[:3])
    text = f"This leaf of {year} mentions {others} and {names[3]}. Nothing else is legible."
    return Passage(title, title, text)
