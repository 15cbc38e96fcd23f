"""A recipe: everything that decides a training run, in one small object that reads from TOML.

model = "runs/demo/warm"
tasks = "sql-tiny"
run_dir = "runs/mine"

[train]
steps = 50
estimator = "gigpo"
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from palestra.harness_proxy.engines.vllm import VllmEngine
from palestra.harness_proxy.models import model_dir
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import local
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Split
from palestra.training.config import TrainConfig
from palestra.training.engine import EngineOptions, training_engine
from palestra.training.lora import adapter_config
from palestra.training.policy import Policy, PolicyOptions
from palestra.training.sharded import ALONE, Team
from palestra.training.trainer import Trainer
from palestra.training.update import Updater
from palestra.trajectories.store import Store

_BEGIN = "begin"


class Recipe(BaseModel):
    """One training run. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    """The model to start from: a directory with config.json, safetensors, tokenizer.json, or its name on the hub."""
    tasks: str
    split: Split = "train"
    run_dir: Path
    """Gets store/ and checkpoints/."""
    policy: PolicyOptions = PolicyOptions()
    engine: EngineOptions = EngineOptions()
    deterministic: bool = False
    """Sample one sequence at a time with fixed shapes: slow, but the same bits on every run."""
    concurrency: int = Field(default=256, ge=1)
    """Episodes at once. Fewer where each holds something dear, a page of a browser for instance."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where the figures of each step go besides the checkpoints: `training.logs`."""
    train: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.engine.colocated and (self.engine.kind != "vllm" or self.train.staleness):
            raise ValueError(
                'engine.colocated lets vLLM sleep during updates: it needs kind = "vllm" and train.staleness = 0'
            )
        if self.engine.publish != "file" and self.engine.kind != "vllm":
            raise ValueError(f'engine.publish = "{self.engine.publish}" is for kind = "vllm"')
        if self.engine.publish == "adapters" and self.policy.lora is None:
            raise ValueError('engine.publish = "adapters" needs adapters: give policy.lora')
        if self.engine.publish == "broadcast" and self.engine.colocated:
            raise ValueError(
                'engine.publish = "broadcast" goes from one accelerator to another: with colocated take "file"'
            )
        return self


@asynccontextmanager
async def training(recipe: Recipe, store: Store | None = None, team: Team = ALONE) -> AsyncIterator[Trainer]:
    """Start engine, proxy and runner for `recipe`, and a trainer that has resumed where the run was.

    `store`: one that is open for writing already; by default run_dir/store. `team`: those who `follow` the same recipe.
    """
    recipe = recipe.model_copy(update={"model": model_dir(recipe.model)})
    tasks, rendering = load_tasks(recipe.tasks, recipe.split), Rendering.load(recipe.model)
    team.share(_BEGIN)
    policy = _policy(recipe, team)
    opened = store if store is not None else Store.open(recipe.run_dir / "store", write=True)
    try:
        adapter = _adapter(recipe, policy)
        engine = await training_engine(
            recipe.engine,
            recipe.model,
            recipe.run_dir,
            deterministic=recipe.deterministic,
            adapter=adapter,
        )
        async with local(engine, rendering, store=opened, concurrency=recipe.concurrency) as stack:
            tokenizer = recipe.model / "tokenizer.json"
            rest = engine.sleep if recipe.engine.colocated and isinstance(engine, VllmEngine) else None
            trainer = Trainer(
                recipe.train,
                policy,
                engine,
                stack.runner,
                opened,
                tasks,
                recipe.run_dir,
                tokenizer,
                rest,
                published=policy.weights if adapter is None else policy.adapters,
            )
            trainer.resume()
            yield trainer
    finally:
        if store is None:
            opened.close()


def follow(recipe: Recipe, team: Team) -> None:
    """Share in the computations of the process that leads `team` in `training`, until it dismisses."""
    if team.share(None) != _BEGIN:
        return
    policy = _policy(recipe, team)
    policy.temperature = recipe.train.temperature
    team.follow(policy=policy, updater=Updater(policy, recipe.train))


def _adapter(recipe: Recipe, policy: Policy) -> dict[str, Any] | None:
    """adapter_config.json of what is published, where that is adapters."""
    if recipe.engine.publish != "adapters" or recipe.policy.lora is None:
        return None
    return adapter_config(policy.model, recipe.policy.lora)


def _policy(recipe: Recipe, team: Team) -> Policy:
    policy = Policy.load(model_dir(recipe.model), recipe.policy)
    policy.shard(team)
    return policy
