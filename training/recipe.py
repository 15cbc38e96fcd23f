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

from pydantic import BaseModel, ConfigDict

from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import local
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Split
from palestra.training.config import TrainConfig
from palestra.training.engine import EngineOptions, training_engine
from palestra.training.policy import Policy, PolicyOptions
from palestra.training.trainer import Trainer
from palestra.trajectories.store import Store


class Recipe(BaseModel):
    """One training run. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    """Directory of the model to start from: config.json, safetensors, tokenizer.json."""
    tasks: str
    split: Split = "train"
    run_dir: Path
    """Gets store/ and checkpoints/."""
    policy: PolicyOptions = PolicyOptions()
    engine: EngineOptions = EngineOptions()
    deterministic: bool = False
    """Sample one sequence at a time with fixed shapes: slow, but the same bits on every run."""
    train: TrainConfig = TrainConfig()


@asynccontextmanager
async def training(recipe: Recipe, store: Store | None = None) -> AsyncIterator[Trainer]:
    """Start engine, proxy and runner for `recipe`, and a trainer that has resumed where the run was.

    `store`: one that is open for writing already; by default run_dir/store.
    """
    tasks = load_tasks(recipe.tasks, recipe.split)
    policy, rendering = Policy.load(recipe.model, recipe.policy), Rendering.load(recipe.model)
    opened = store if store is not None else Store.open(recipe.run_dir / "store", write=True)
    try:
        engine = await training_engine(
            recipe.engine, recipe.model, recipe.run_dir, deterministic=recipe.deterministic
        )
        async with local(engine, rendering, store=opened) as stack:
            tokenizer = recipe.model / "tokenizer.json"
            trainer = Trainer(
                recipe.train, policy, engine, stack.runner, opened, tasks, recipe.run_dir, tokenizer
            )
            trainer.resume()
            yield trainer
    finally:
        if store is None:
            opened.close()
