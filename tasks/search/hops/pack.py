"""The task sets `search-hops` and `search-hops-adaptive`: questions over two to four passages of a generated world.

    question    Who founded the company that published The Silent Orchard of Kelford?
    evidence    The Silent Orchard of Kelford, then the passage of its publisher

Every world has entities of its own, passages for each, namesakes and passages that lead nowhere; dev and test have
other worlds than training. Where the last fact is told nowhere, the right answer is to abstain ("unknown"). In the
adaptive set a fifth of the questions contain their answer: there the right decision is not to search.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from palestra.tasks.search.hops.world import Entity, Fact, World, make_world
from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

WORLDS: dict[Split, range] = {"train": range(10), "dev": range(100, 102), "test": range(200, 204)}
PER_KIND = 12
HOPS = (2, 3, 4)
_BUDGET = Budget(turns=15, tokens=16_384, wall_s=300, command_s=5.0)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Facts, each about what the one before leads to."""

    facts: tuple[Fact, ...]

    @property
    def question(self) -> str:
        """The nested question, which names the first entity alone."""
        phrase = self.facts[0].subject.name
        for fact in self.facts[:-1]:
            phrase = fact.relation.phrase.format(x=phrase)
        return self.facts[-1].relation.ask.format(x=phrase)

    @property
    def names(self) -> list[str]:
        """The entities on the way; their passages are the evidence."""
        return [fact.subject.name for fact in self.facts]


@cache
def load() -> TaskSet:
    """12 questions of 2, 3 and 4 hops and 12 without an answer per world; 10 worlds train, 2 dev, 4 test."""
    return TaskSet(
        "search-hops", [t for split in SPLITS for seed in WORLDS[split] for t in _tasks(split, seed)]
    )


@cache
def load_adaptive() -> TaskSet:
    """The same with solve rates: 0 for what only the corpus knows, 1 for questions that tell their answer."""
    searched = [_adaptive(task, 0.0) for task in load()]
    told = [_adaptive(t, 1.0) for split in SPLITS for seed in WORLDS[split] for t in _told(split, seed)]
    tasks = sorted([*searched, *told], key=lambda task: SPLITS.index(task.split))
    return TaskSet("search-hops-adaptive", tasks)


def _tasks(split: Split, seed: int) -> Iterator[Task]:
    rng = random.Random(f"search-hops questions {seed}")
    world = make_world(seed)
    asked: set[str] = set()
    for hops in HOPS:
        for number, chain in enumerate(_draw(rng, world, hops, True, asked)):
            yield _task(split, seed, f"{hops}-hop", number, chain, True)
    for number, chain in enumerate(_draw(rng, world, 0, False, asked)):
        yield _task(split, seed, "unanswerable", number, chain, False)


def _draw(rng: random.Random, world: World, hops: int, answerable: bool, asked: set[str]) -> Iterator[_Chain]:
    """PER_KIND different questions; `hops` of 0 takes any length."""
    found = 0
    while found < PER_KIND:
        chain = _walk(rng, world, hops or rng.choice(HOPS), answerable)
        if chain is not None and chain.question not in asked:
            asked.add(chain.question)
            found += 1
            yield chain


def _walk(rng: random.Random, world: World, hops: int, answerable: bool) -> _Chain | None:
    """A random chain, ending early at a fact that is not told where `answerable` is false; None where it fails."""
    entity: Entity | None = rng.choice(world.entities)
    facts: list[Fact] = []
    visited: set[str] = set()
    while len(facts) < hops:
        if entity is None or entity.name in visited:
            return None
        visited.add(entity.name)
        last = len(facts) == hops - 1
        fact = rng.choice([f for f in world.of(entity) if last or f.object is not None] or [None])
        if fact is None or (answerable and not fact.told):
            return None
        facts.append(fact)
        entity = fact.object
    untold = [i for i, fact in enumerate(facts) if not fact.told]
    if not answerable and untold != [hops - 1]:
        return None
    answer = facts[-1].values
    return None if any(value in _Chain(tuple(facts)).question for value in answer) else _Chain(tuple(facts))


def _task(split: Split, seed: int, kind: str, number: int, chain: _Chain, answerable: bool) -> Task:
    data = {
        "corpus": {"builder": "palestra.tasks.search.hops.world:corpus", "args": {"seed": seed}},
        "answers": list(chain.facts[-1].values) if answerable else [],
        "answerable": answerable,
        "evidence": chain.names,
        "searches": chain.names,
        "kind": kind,
    }
    return Task(
        id=f"search-hops/{split}/{seed}/{kind}/{number:02d}",
        family="search",
        env="palestra/Search-v0",
        split=split,
        instruction=chain.question,
        data=data,
        budget=_BUDGET,
    )


def _told(split: Split, seed: int) -> Iterator[Task]:
    """Questions that say what they ask for."""
    rng = random.Random(f"search-hops told {seed}")
    facts = [fact for fact in make_world(seed).facts.values() if fact.told]
    for number, fact in enumerate(rng.sample(facts, PER_KIND)):
        task = _task(split, seed, "told", number, _Chain((fact,)), True)
        sentence = rng.choice(fact.relation.says).format(x=fact.subject.name, y=fact.values[0])
        yield task.model_copy(update={"instruction": f"{fact.subject.name}: {sentence} {task.instruction}"})


def _adaptive(task: Task, solve_rate: float) -> Task:
    return task.model_copy(
        update={
            "id": task.id.replace("search-hops/", "search-hops-adaptive/"),
            "env": "palestra/AdaptiveSearch-v0",
            "data": task.data | {"solve_rate": solve_rate},
        }
    )
