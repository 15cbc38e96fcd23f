"""A small policy that has seen how it is done: from a script that plays to weights to begin with.

A script plays demonstrations through the proxy, as any agent does. What the first of them read like makes the
tokenizer, and a random Qwen3 learns all of them (`warmstart.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.harnesses import Demonstrator
from palestra.rollouts.harnesses.demonstrator import Script
from palestra.rollouts.local import local
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.tasks.task import Task
from palestra.training.policy import Policy
from palestra.training.tiny import byte_tokenizer, phrase_tokenizer, save_model_dir, save_tokenizer
from palestra.training.warmstart import WarmStart, warm_start
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import samples
from palestra.trajectories.store import Store

Words = Callable[[Sequence[str]], Sequence[str]]
"""Which words of some texts get a token each."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """Who shows it, and on which tasks. `concurrency`: demonstrations at once."""

    script: Script
    tasks: Sequence[Task]
    seed: int
    concurrency: int = 256

    async def show(
        self,
        rendering: Rendering,
        tasks: Sequence[Task] | None = None,
        *,
        store: Store | None = None,
        on_done: Callable[[], None] = lambda: None,
    ) -> list[Trajectory]:
        """One demonstration per task, or per task of `tasks`; run "demonstrations" in `store`."""
        demonstrator = Demonstrator(self.script)
        engine = ScriptedEngine(rendering, demonstrator.reply)
        spec = RunSpec("demonstrations", "train", self.seed)
        jobs = group_jobs(self.tasks if tasks is None else tasks, 1)
        async with local(
            engine, rendering, harness=demonstrator, store=store, concurrency=self.concurrency
        ) as stack:
            return await stack.runner.run(jobs, spec, lambda _: on_done())

    async def texts(
        self, tasks: Sequence[Task] | None = None, on_done: Callable[[], None] = lambda: None
    ) -> list[str]:
        """What demonstrations read like, prompts and replies."""
        with TemporaryDirectory() as letters:
            save_tokenizer(Path(letters), byte_tokenizer())
            rendering = Rendering.load(letters)
            shown = await self.show(rendering, tasks, on_done=on_done)
        return [rendering.decode(s.ids.tolist()) for t in shown for s in samples(t)]


async def learned(
    directory: Path,
    teacher: Teacher,
    words: Words,
    config: WarmStart,
    *,
    hidden: int = 96,
    layers: int = 2,
    read: int = 50,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> Path:
    """Where the weights are, in `directory`; called again it finds them there. `read`: demonstrations that the
    tokenizer knows."""
    warm, model = directory / "warm", directory / "model"
    if not (warm / "model.safetensors").exists():
        texts = await teacher.texts(teacher.tasks[:read])
        tokenizer = phrase_tokenizer(texts, words(texts))
        save_model_dir(model, tokenizer, seed=teacher.seed, hidden=hidden, layers=layers)
        imitate(model, await teacher.show(Rendering.load(model)), config, warm, on_step)
    return warm


def imitate(
    model: Path,
    demonstrations: Sequence[Trajectory],
    config: WarmStart,
    target: Path,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """The weights in `model` learn from demonstrations and are written to `target`. Raises what `warm_start` does."""
    policy = Policy.load(model)
    warm_start(policy, [s for t in demonstrations for s in samples(t)], config, on_step)
    policy.save(target, tokenizer=model / "tokenizer.json")
