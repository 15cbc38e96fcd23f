"""The generated pack: its size, its splits, and that its questions can be answered from its passages alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from palestra.envs.search.retriever import open_retriever
from palestra.envs.validate import validate_task
from palestra.tasks.registry import load_tasks
from palestra.tasks.search.corpus import source_of
from palestra.tasks.search.hops.pack import WORLDS
from palestra.tasks.search.hops.relations import RELATIONS
from palestra.tasks.search.hops.world import Entity, Fact, World, corpus, make_world
from palestra.tasks.task import SPLITS, Task, TaskSet


@pytest.fixture(scope="module")
def hops() -> TaskSet:
    return load_tasks("search-hops")


@pytest.fixture(scope="module")
def adaptive() -> TaskSet:
    return load_tasks("search-hops-adaptive")


def test_the_pack_is_large_and_its_kinds_are_even(hops: TaskSet) -> None:
    assert len(hops) >= 600
    kinds = Counter(t.data["kind"] for t in hops)
    assert set(kinds) == {"2-hop", "3-hop", "4-hop", "unanswerable"} and len(set(kinds.values())) == 1
    assert all(Counter(t.split for t in hops)[split] >= 96 for split in SPLITS)
    assert len({t.instruction for t in hops}) == len(hops)


def test_entities_of_dev_and_test_are_never_seen_in_training() -> None:
    entities = {
        split: {e.name for seed in seeds for e in make_world(seed).entities}
        for split, seeds in WORLDS.items()
    }
    seen = entities["train"]
    for split in ("dev", "test"):
        # Coined names of towns and rivers may fall together; whole worlds of facts do not.
        assert len(entities[split] & seen) / len(entities[split]) < 0.05


def test_worlds_are_the_same_every_time() -> None:
    assert corpus(3) == corpus(3) and corpus(3) != corpus(4)
    make_world.cache_clear()
    assert corpus(3)[0].text == corpus(3)[0].text


@pytest.mark.parametrize("split", SPLITS)
def test_answers_follow_from_the_passages_alone(hops: TaskSet, split: str) -> None:
    """Each hop is read again out of the text of its passage, by the sentences that tell it."""
    for task in [t for t in hops if t.split == split][::3]:
        texts = {p.id: p.text for p in source_of(task).passages()}
        world = make_world(task.data["corpus"]["args"]["seed"])
        *way, last = task.data["evidence"]
        for name, following in zip(way, [*way[1:], last], strict=True):
            assert any(_tells(texts[name], f) for f in _facts(world, name) if _leads_to(f, following)), (
                task.id
            )
        told = [f for f in _facts(world, last) if _tells(texts[last], f)]
        asked = [f for f in _facts(world, last) if _asked(task, f)]
        assert asked and bool([f for f in asked if f in told]) is task.data["answerable"], task.id
        if task.data["answerable"]:
            assert any(list(f.values) == task.data["answers"] for f in asked)


def _facts(world: World, name: str) -> list[Fact]:
    (entity,) = [e for e in world.entities if e.name == name]
    return world.of(entity)


def _leads_to(fact: Fact, name: str) -> bool:
    return isinstance(fact.object, Entity) and fact.object.name == name


def _tells(text: str, fact: Fact) -> bool:
    return any(s.format(x=fact.subject.name, y=fact.values[0]) in text for s in fact.relation.says)


def _asked(task: Task, fact: Fact) -> bool:
    start = fact.relation.ask.partition("{x}")[0]
    return task.instruction.startswith(start)


def test_what_is_not_told_is_told_nowhere() -> None:
    for seed in (0, 200):
        texts = " ".join(p.text for p in corpus(seed))
        for fact in make_world(seed).facts.values():
            # A sentence without its subject ("The founder was Y.") may be another's.
            own = [s for s in fact.relation.says if "{x}" in s]
            said = any(s.format(x=fact.subject.name, y=fact.values[0]) in texts for s in own)
            assert not (said and not fact.told), fact


def test_every_passage_of_the_evidence_is_found_by_its_name(hops: TaskSet) -> None:
    for task in hops:
        retriever = open_retriever(source_of(task), {"kind": "bm25"})
        for query, wanted in zip(task.data["searches"], task.data["evidence"], strict=True):
            assert wanted in [hit.passage.id for hit in retriever.search(query, 3)], (task.id, query)


def test_the_answer_is_not_in_the_question(hops: TaskSet) -> None:
    for task in hops:
        assert not any(answer in task.instruction for answer in task.data["answers"]), task.id
        assert task.instruction.endswith("?") and not re.search(r"[{}]|  ", task.instruction)


def test_a_fifth_of_the_adaptive_questions_needs_no_search(adaptive: TaskSet, hops: TaskSet) -> None:
    told = [t for t in adaptive if t.data["solve_rate"] == 1.0]
    assert len(adaptive) == 5 * len(told) and len(adaptive) - len(told) == len(hops)
    for task in told:
        assert any(answer in task.instruction for answer in task.data["answers"]), task.id


@pytest.mark.parametrize("name", ["search-hops", "search-hops-adaptive"])
def test_every_kind_is_valid(name: str) -> None:
    """A few of each kind and split here; `palestra tasks validate` does all."""
    chosen: dict[tuple[str, str], list[Task]] = {}
    for task in load_tasks(name):
        chosen.setdefault((task.split, task.data["kind"]), []).append(task)
    for tasks in chosen.values():
        for task in tasks[::15]:
            report = validate_task(task)
            assert report.passed, report


def test_every_relation_is_asked_about(hops: TaskSet) -> None:
    for relation in RELATIONS:
        start = relation.ask.partition("{x}")[0]
        assert any(t.instruction.startswith(start) for t in hops), relation.name
