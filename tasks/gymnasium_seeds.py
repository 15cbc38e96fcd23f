"""Tasks that are seeds of a Gymnasium environment.

    load_tasks("gymnasium?id=Blackjack-v1&train=1000")
    load_tasks("frozen-lake?size=4")                    a map of its own for every task

Seeds of dev and test begin where those of training never reach.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

FIRST_SEED: dict[Split, int] = {"train": 0, "dev": 1_000_000, "test": 2_000_000}
ENV_ID = "palestra/Gymnasium-v0"


def seed_tasks(
    env_id: str,
    seeds: Mapping[Split, Iterable[int]],
    kwargs: Mapping[str, Any] | None = None,
    *,
    instruction: str = "",
    score: str = "success",
    turns: int = 0,
) -> TaskSet:
    """One task per seed of `env_id`. `turns`: the budget; 0 takes the environment's own limit, or 100."""
    name = env_id.rpartition(":")[2]
    budget = Budget(turns=turns or _own_limit(env_id))
    source = {"id": env_id, "kwargs": dict(kwargs or {}), "score": score}
    return TaskSet(
        name,
        [
            _task(f"{name}/{split}/{seed}", split, source | {"seed": seed}, budget, instruction)
            for split, chosen in seeds.items()
            for seed in chosen
        ],
    )


def load(
    id: str, train: int = 1000, dev: int = 100, test: int = 200, turns: int = 0, score: str = "success"
) -> TaskSet:
    """The first seeds of each split for the environment `id`, with default arguments."""
    counts = {"train": train, "dev": dev, "test": test}
    seeds = {s: range(FIRST_SEED[s], FIRST_SEED[s] + counts[s]) for s in SPLITS}
    return seed_tasks(id, seeds, score=score, turns=turns)


def load_frozen_lake(
    size: int = 4, train: int = 1000, dev: int = 100, test: int = 200, slippery: bool = False
) -> TaskSet:
    """FrozenLake on random maps that have a way to the goal; maps of dev and test do not occur in training."""
    from gymnasium.envs.toy_text.frozen_lake import generate_random_map

    counts = {"train": train, "dev": dev, "test": test}
    tasks: list[Task] = []
    seen: set[tuple[str, ...]] = set()
    for split in SPLITS:
        maps: list[tuple[str, ...]] = []
        for offset in range(counts[split] * 50):
            drawn = tuple(generate_random_map(size, seed=FIRST_SEED[split] + offset))
            if len(maps) < counts[split] and (split == "train" or drawn not in seen):
                maps.append(drawn)
            if len(maps) == counts[split]:
                break
        seen.update(maps)
        for number, desc in enumerate(maps):
            source = {"id": "FrozenLake-v1", "kwargs": {"desc": list(desc), "is_slippery": slippery}}
            name = f"frozen-lake-{size}/{split}/{number:04d}"
            tasks.append(
                _task(name, split, source | {"score": "success", "seed": number}, Budget(turns=8 * size), "")
            )
    return TaskSet("frozen-lake", tasks)


def _own_limit(env_id: str) -> int:
    import gymnasium

    if ":" in env_id:
        importlib.import_module(env_id.partition(":")[0])
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    return (spec.max_episode_steps if spec is not None else None) or 100


def _task(name: str, split: Split, source: Mapping[str, Any], budget: Budget, instruction: str) -> Task:
    return Task(
        id=name,
        family="gymnasium",
        env=ENV_ID,
        split=split,
        instruction=instruction or f"Play {str(source['id']).rpartition(':')[2]}.",
        data={"gymnasium": dict(source), "kind": str(source["id"]).rpartition(":")[2]},
        budget=budget,
    )
