"""Task sets of text worlds.

load_tasks("textworld?challenge=tw-cooking&train=100")     generated games, split by seed
load_tasks("textworld-kinds")                              split by challenge: coins in training, treasure in test
load_tasks("scienceworld?task=boil&simplify=easy")         ScienceWorld with its official splits
load_tasks("alfworld?path=json_2.1.1/valid_seen")          ALFWorld games that are on this machine
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskFileError, TaskParameterError
from palestra.tasks.files import read_json
from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

_FIRST_SEED: dict[Split, int] = {"train": 1, "dev": 100_001, "test": 200_001}
_TEXTWORLD = "You are in a text adventure. Reach its goal by typing commands."
_UNSUPPORTED = re.compile("movable|Sliced")
_ALFWORLD = "You are in a household. Do what is asked by typing commands."
_SCIENCE_SPLITS: Mapping[Split, str] = {"train": "train", "dev": "dev", "test": "test"}


def load_textworld(
    challenge: str = "tw-coin_collector",
    level: int = 5,
    train: int = 100,
    dev: int = 20,
    test: int = 50,
    turns: int = 30,
) -> TaskSet:
    """Generated games of one challenge; dev and test have other seeds than training. `level`: where it has levels."""
    settings = {"level": level} if challenge in ("tw-coin_collector", "tw-treasure_hunter") else {}
    counts = {"train": train, "dev": dev, "test": test}
    tasks = [
        _game(challenge, settings, split, _FIRST_SEED[split] + i, turns)
        for split in SPLITS
        for i in range(counts[split])
    ]
    return TaskSet("textworld", tasks)


def load_textworld_kinds(
    level: int = 5, train: int = 100, dev: int = 20, test: int = 50, turns: int = 30
) -> TaskSet:
    """Training on collecting coins, tests on hunting treasure: another kind of quest, with other seeds."""
    kinds: dict[Split, str] = {
        "train": "tw-coin_collector",
        "dev": "tw-coin_collector",
        "test": "tw-treasure_hunter",
    }
    counts = {"train": train, "dev": dev, "test": test}
    tasks = [
        _game(kinds[split], {"level": level}, split, _FIRST_SEED[split] + i, turns)
        for split in SPLITS
        for i in range(counts[split])
    ]
    return TaskSet("textworld-kinds", tasks)


def load_alfworld(path: str, split: Split = "train", turns: int = 50) -> TaskSet:
    """The ALFWorld games (Shridhar et al. 2021, arXiv:2010.03768) below a folder: game.tw-pddl beside traj_data.json.

    Those that its own environment plays: solvable, without slicing and movable receptacles (`collect_game_files` in
    alfworld/agents/environment/alfred_tw_env.py). The data is the user's (`alfworld-download`). Raises TaskFileError
    where there is none.
    """
    root = Path(path)
    found = (game for game in root.rglob("game.tw-pddl") if not _UNSUPPORTED.search(str(game.parent)))
    games = sorted(game for game in found if read_json(game).get("solvable"))
    if not games:
        raise TaskFileError(
            f"there is no solvable game.tw-pddl below {root}: give a folder of alfworld-download's json_2.1.1"
        )
    return TaskSet("alfworld", [_alfworld(root, game, split, turns) for game in games])


def load_scienceworld(task: str = "", simplify: str = "", turns: int = 100, per_task: int = 0) -> TaskSet:
    """ScienceWorld (Wang et al. 2022, arXiv:2203.07540): each variation of each task, or of one task, by its splits.

    `simplify` as the simulator takes it ("easy"); `per_task` bounds the variations of a task in each split, 0 has all.
    Raises TaskParameterError for an unknown task.
    """
    table = science_variations()
    if task and task not in table:
        raise TaskParameterError(f"ScienceWorld has no task {task!r}; it has {', '.join(table)}")
    chosen = [task] if task else list(table)
    tasks = [t for name in chosen for t in _science(name, table[name], simplify, turns, per_task)]
    return TaskSet("scienceworld", sorted(tasks, key=lambda t: SPLITS.index(t.split)))


def science_variations() -> dict[str, dict[str, list[int]]]:
    """For each task of ScienceWorld: {split: [first, last + 1]} of its variations."""
    body = resources.files("palestra.tasks").joinpath("scienceworld.json").read_text()
    return dict(json.loads(body))


def _science(
    name: str, splits: Mapping[str, list[int]], simplify: str, turns: int, per_task: int
) -> Iterator[Task]:
    for split in SPLITS:
        variations = range(*splits[split])
        for variation in variations[:per_task] if per_task else variations:
            data: dict[str, Any] = {"task": name, "variation": variation, "simplify": simplify, "kind": name}
            yield Task(
                id=f"scienceworld/{name}/{variation}",
                family="scienceworld",
                env="palestra/ScienceWorld-v0",
                split=split,
                instruction="",
                data=data,
                budget=Budget(turns=turns, command_s=30.0),
            )


def _game(challenge: str, settings: Mapping[str, Any], split: Split, seed: int, turns: int) -> Task:
    game = {"challenge": challenge, "settings": dict(settings), "seed": seed}
    return _textworld_task(f"{challenge}/{split}/{seed}", split, _TEXTWORLD, game, challenge, turns)


def _alfworld(root: Path, game: Path, split: Split, turns: int) -> Task:
    described = game.with_name("traj_data.json")
    kind = str(read_json(described).get("task_type", "alfworld")) if described.is_file() else "alfworld"
    name = f"alfworld/{game.parent.relative_to(root)}"
    return _textworld_task(name, split, _ALFWORLD, {"file": str(game)}, kind, turns)


def _textworld_task(
    name: str, split: Split, instruction: str, game: Mapping[str, Any], kind: str, turns: int
) -> Task:
    return Task(
        id=name,
        family="textworld",
        env="palestra/TextWorld-v0",
        split=split,
        instruction=instruction,
        data={"game": dict(game), "kind": kind},
        budget=Budget(turns=turns),
    )
