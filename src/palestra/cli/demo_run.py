"""The stages of the demo, each of which leaves its result on disk and is skipped when that is there.

    model/         tokenizer and random weights        store/        every rollout of every stage
    warm/          weights after the warm start        checkpoints/  the newest two training steps
    summary.json   the figures                         report.html   the same for people

Run ids in the store: demonstrations, before, train, dev-NNN, after.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from palestra.cli.demo_report import Outcome, behaviour, print_outcome, write_page, write_summary
from palestra.cli.errors import UsageError
from palestra.cli.play import watched
from palestra.cli.progress import progress
from palestra.cli.train import step_line
from palestra.evaluation.passk import collect, pass_at_k
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import child_engine, local
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.vocabulary import WORDS
from palestra.tasks.task import Task
from palestra.training.apprentice import Teacher, imitate
from palestra.training.config import TrainConfig
from palestra.training.demonstrations import CarelessAgent
from palestra.training.policy import Policy
from palestra.training.recipe import Recipe, training
from palestra.training.tiny import phrase_tokenizer, save_model_dir
from palestra.training.trainer import StepResult, read_history
from palestra.training.warmstart import WarmStart
from palestra.trajectories.model import Rollout, Sampling, Trajectory
from palestra.trajectories.store import Store

TASKS = "sql-tiny"


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """What the demo does. The defaults fit into five minutes on two idle cores."""

    seed: int = 0
    demonstrations: int = 2000
    carelessness: float = 0.65
    hidden: int = 96
    layers: int = 2
    warm: WarmStart = field(default_factory=lambda: WarmStart(steps=1200))
    train: TrainConfig = field(default_factory=lambda: TrainConfig(steps=40))
    test_tasks: int = 426
    dev_tasks: int = 105
    dev_every: int = 5
    deterministic: bool = False

    @classmethod
    def make(
        cls, *, seed: int = 0, estimator: str = "gigpo", steps: int | None = None, deterministic: bool = False
    ) -> DemoConfig:
        """The demo with one thing or another changed."""
        config = cls(seed=seed, deterministic=deterministic)
        train = replace(config.train, seed=seed, estimator=estimator, steps=steps or config.train.steps)
        return replace(config, warm=replace(config.warm, seed=seed), train=train)


class Demo:
    """One demo in one directory."""

    def __init__(self, run_dir: Path, config: DemoConfig, console: Console) -> None:
        """Raises UsageError when the directory holds a demo with other settings."""
        self.run_dir, self.config, self.console = run_dir, config, console
        self._check_config()
        tasks = load_tasks(TASKS)
        self._train = list(tasks.split("train"))
        self._dev = list(tasks.split("dev"))[: config.dev_tasks]
        self._test = list(tasks.split("test"))[: config.test_tasks]

    async def run(self) -> dict[str, Any]:
        """Do what is not done yet; returns and writes the summary."""
        with Store.open(self.run_dir / "store", write=True) as store:
            if (self.run_dir / "summary.json").exists():
                self.console.print(f"{self.run_dir} is finished; --fresh starts over")
            else:
                await self._stages(store)
            return self._report(store)

    async def prepare(self, store: Store) -> Path:
        """Do what comes before reinforcement learning; returns where the policy is that it begins with."""
        with self._stage("model"):
            await self._make_model()
        warm = self.run_dir / "warm"
        if not (warm / "model.safetensors").exists():
            with self._stage("demonstrations"):
                demonstrations = await self._demonstrate(store)
            with self._stage("warm start"):
                self._warm_start(demonstrations)
        return warm

    async def _stages(self, store: Store) -> None:
        warm = await self.prepare(store)
        with self._stage("before"):
            await self._evaluate(store, "before", warm, 0)
        with self._stage("training"):
            final = await self._reinforce(store)
        with self._stage("after"):
            await self._evaluate(store, "after", final, self.config.train.steps)

    # Stages.

    async def _make_model(self) -> None:
        """A tokenizer from the text of some demonstrations, and random weights for it."""
        target = self.run_dir / "model"
        if (target / "model.safetensors").exists():
            return
        teacher = self._teacher(random.Random(self.config.seed).sample(self._train, 200))
        with progress(self.console, "reading the world", len(teacher.tasks)) as advance:
            tokenizer = phrase_tokenizer(await teacher.texts(on_done=advance), WORDS)
        sizes = {"hidden": self.config.hidden, "layers": self.config.layers}
        save_model_dir(target, tokenizer, seed=self.config.seed, **sizes)

    async def _demonstrate(self, store: Store) -> list[Trajectory]:
        sampled = random.Random(self.config.seed + 1).sample(self._train, self.config.demonstrations)
        rendering = Rendering.load(self.run_dir / "model")
        with progress(self.console, "demonstrations", len(sampled)) as advance:
            return await self._teacher(sampled).show(rendering, store=store, on_done=advance)

    def _teacher(self, tasks: Sequence[Task]) -> Teacher:
        agent = CarelessAgent(self.config.carelessness, self.config.seed)
        return Teacher(agent.play, tasks, self.config.seed)

    def _warm_start(self, demonstrations: Sequence[Trajectory]) -> None:
        model, warm = self.run_dir / "model", self.run_dir / "warm"
        with progress(self.console, "warm start", self.config.warm.steps) as advance:
            imitate(
                model, demonstrations, self.config.warm, warm, lambda step, loss: advance(f"loss {loss:.3f}")
            )

    async def _evaluate(self, store: Store, name: str, model: Path, version: int) -> None:
        """Play the test split with the weights in `model`."""
        engine = await child_engine(model, version=version, deterministic=self.config.deterministic)
        async with local(engine, Rendering.load(self.run_dir / "model"), store=store) as stack:
            rollouts = await watched(self.console, stack.runner, self._test, 1, self._eval_spec(name), name)
        self._say(name, rollouts)

    async def _reinforce(self, store: Store) -> Path:
        """Train; every few steps a look at the dev split. Returns where the final weights are."""
        recipe = Recipe(
            model=self.run_dir / "warm",
            tasks=TASKS,
            run_dir=self.run_dir,
            deterministic=self.config.deterministic,
            train=self.config.train,
        )
        async with training(recipe, store) as trainer:

            async def look(step: int) -> None:
                await trainer.runner.run(group_jobs(self._dev, 1), self._eval_spec(f"dev-{step:03d}"))

            async def on_step(result: StepResult) -> None:
                self.console.print(step_line(result, recipe.train.steps), highlight=False, soft_wrap=True)
                if result.step % self.config.dev_every == 0:
                    await look(result.step)

            if trainer.step == 0:
                await look(0)
            await trainer.train(on_step)
            return trainer.checkpoint

    def _report(self, store: Store) -> dict[str, Any]:
        history = read_history(self.run_dir)
        sampled = sum(r.sampled_tokens for r in history)
        outcome = Outcome(
            estimator=self.config.train.estimator,
            seed=self.config.seed,
            parameters=Policy.load(self.run_dir / "warm").num_parameters,
            before=behaviour(store, "before"),
            after=behaviour(store, "after"),
            tokens_per_s=sampled / max(sum(r.rollout_s for r in history), 1e-9),
            history=history,
            costs=self._costs(),
        )
        summary = write_summary(self.run_dir / "summary.json", outcome, store)
        write_page(self.run_dir / "report.html", outcome, store, Rendering.load(self.run_dir / "model"))
        print_outcome(self.console, outcome, self.run_dir)
        return summary

    # Bookkeeping.

    def _eval_spec(self, name: str) -> RunSpec:
        sampling = Sampling(self.config.train.temperature, max_tokens=self.config.train.max_reply_tokens)
        return RunSpec(name, "eval", self.config.seed, sampling)

    def _say(self, name: str, rollouts: Sequence[Rollout]) -> None:
        e = pass_at_k(collect(rollouts))
        self.console.print(
            f"{name:<15} {e.value:5.1%} of {e.tasks} tasks on unseen databases ({e.low:.1%} to {e.high:.1%})",
            highlight=False,
            soft_wrap=True,
        )

    def _check_config(self) -> None:
        path = self.run_dir / "config.json"
        wanted = orjson.loads(orjson.dumps(asdict(self.config)))
        if path.exists() and orjson.loads(path.read_bytes()) != wanted:
            raise UsageError(
                f"{self.run_dir} holds a demo with other settings: --fresh starts over, --run-dir goes elsewhere"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(wanted, option=orjson.OPT_INDENT_2))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Add the stage's wall and CPU seconds to those of earlier, interrupted runs."""
        wall, cpu = time.perf_counter(), _cpu_s()
        try:
            yield
        finally:
            costs = self._costs()
            spent = costs.setdefault(name, {"wall_s": 0.0, "cpu_s": 0.0})
            spent["wall_s"] += time.perf_counter() - wall
            spent["cpu_s"] += _cpu_s() - cpu
            (self.run_dir / "costs.json").write_bytes(orjson.dumps(costs))

    def _costs(self) -> dict[str, dict[str, float]]:
        path = self.run_dir / "costs.json"
        return orjson.loads(path.read_bytes()) if path.exists() else {}


def _cpu_s() -> float:
    """CPU seconds of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)


def forget(run_dir: Path) -> None:
    """Remove what a demo left in `run_dir`, and nothing else."""
    for name in ("bytes", "model", "warm", "store", "checkpoints"):
        shutil.rmtree(run_dir / name, ignore_errors=True)
    for name in ("config.json", "costs.json", "summary.json", "report.html"):
        (run_dir / name).unlink(missing_ok=True)
