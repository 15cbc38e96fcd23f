"""Pages of MiniWoB++ for `learning.py` and `web_learning.py`: a real browser as what a small policy learns in.

The pages ask for one to three clicks on what the goal names. Whoever shows them knows the solution and is
absent-minded: half of his clicks go anywhere. He calls elements by role and name, so that a small policy has to copy
words and not to look up ids.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import gymnasium
from rich.console import Console

from palestra.cli.progress import progress
from palestra.envs.tools import parse_action
from palestra.envs.web.miniwob_oracles import ORACLES, Script
from palestra.envs.web.observation import Element, View
from palestra.rollouts.world import World
from palestra.tasks.task import Split, TaskSet
from palestra.tasks.web.miniwob import make
from palestra.training.apprentice import Teacher, learned
from palestra.training.demonstrations import tool_call
from palestra.training.warmstart import WarmStart

ENV_ID = "benchmarks/Clicks-v0"
PAGES = (
    "click-test-2",
    "click-button",
    "click-dialog-2",
    "click-tab",
    "click-button-sequence",
    "click-collapsible",
)
TURNS = 4
CARE = 0.5
"""Share of the demonstrated clicks that are the solution's; the others go to any element."""
DEMONSTRATIONS = 320
CONCURRENCY = 12
_NAME = re.compile(r'^ *\[\d+\] \w+ "([^"]*)"', re.MULTILINE)
_ELEMENT = re.compile(r'( *)\[(\d+)\] (\S+)(?: ("(?:[^"\\]|\\.)*"))?(.*)')


def load() -> TaskSet:
    """2,000 episodes to learn on and 200 with other seeds to look at, the pages in turn."""
    seeds: dict[Split, range] = {"train": range(2000), "test": range(200_000, 200_200)}
    tasks = [
        make(PAGES[n % len(PAGES)], split, seed, TURNS).model_copy(update={"env": ENV_ID})
        for split, of in seeds.items()
        for n, seed in enumerate(of)
    ]
    return TaskSet("clicks", tasks)


def seen(text: str) -> tuple[str, View]:
    """(goal or what else stands above, page) of an observation."""
    found = [_ELEMENT.fullmatch(line) for line in text.splitlines()]
    elements = tuple(
        Element(len(m[1]) // 2, int(m[2]), m[3], _text(m[4]), tuple(m[5].split()), None) for m in found if m
    )
    return text.partition("\n")[0], View("", "", elements, 0, (0, 0, 0), True)


def _text(quoted: str | None) -> str:
    return "" if quoted is None else str(json.loads(quoted))


class Guide:
    """Knows the solution of every page and is absent-minded."""

    def __init__(self, seed: int) -> None:
        """Choices depend on the seed and the task alone."""
        self._seed = seed

    def play(self, world: World) -> Iterator[str]:
        """Replies in Qwen3's tool-call format, for a `Demonstrator`."""
        rng = random.Random(f"{self._seed}/{world.task.id}")
        goal, view = seen(world.observation)
        solution = ORACLES[world.task.data["miniwob"]](goal, view)
        wanted = _called(next(solution), view)
        while True:
            there = [_name(e) for e in seen(world.observation)[1].elements]
            target = wanted if rng.random() < CARE else rng.choice(there)
            yield tool_call("click", target=target)
            if target == wanted:
                wanted = _next(solution, seen(world.observation)[1]) or wanted


def _name(element: Element) -> str:
    return f"{element.role} {json.dumps(element.name)}"


def _next(solution: Script, view: View) -> str | None:
    try:
        return _called(solution.send(view), view)
    except (StopIteration, LookupError):
        return None


def _called(action: str, view: View) -> str:
    """What a click goes to, by role and name."""
    _, arguments = parse_action(action) or ("", {})
    return _name(next(e for e in view.elements if e.id == arguments["target"]))


def words(texts: Sequence[str]) -> Sequence[str]:
    """The words of elements' names that stand in at least three of the texts."""
    names = ({w for name in _NAME.findall(text) for w in re.findall(r"[A-Za-z]{2,}", name)} for text in texts)
    return sorted(w for w, n in Counter(chain.from_iterable(names)).items() if n >= 3)


async def prepare(directory: Path, seed: int, console: Console) -> Path:
    """The policy of a seed: a random Qwen3 that has read what a Guide did. Where it is."""
    tasks = random.Random(seed).sample(list(load().split("train")), DEMONSTRATIONS)
    teacher = Teacher(Guide(seed).play, tasks, seed, CONCURRENCY)
    config = WarmStart(steps=500, seed=seed)
    with progress(console, "warm start", config.steps) as advance:
        return await learned(
            directory, teacher, words, config, read=160, on_step=lambda _, loss: advance(f"loss {loss:.3f}")
        )


gymnasium.register(
    id=ENV_ID,
    entry_point="palestra.envs.web.env:WebEnv",
    kwargs={"tasks": f"{__name__}:load", "header": False},
    disable_env_checker=True,
    order_enforce=False,
)
