"""A tiny model, a world that any text plays, hand-made rollouts, and the authors' vectors where they are there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from palestra.envs.env import TaskEnv
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.local import local
from palestra.tasks.task import Budget, Task, TaskSet
from palestra.training.config import TrainConfig
from palestra.training.policy import Policy
from palestra.training.tiny import save_model_dir
from palestra.training.trainer import Trainer
from palestra.trajectories.model import (
    Call,
    EnvStep,
    Failure,
    Message,
    Node,
    Rollout,
    Sampling,
    Score,
    Trajectory,
)
from palestra.trajectories.sample import Sample
from palestra.trajectories.store import Store
from tiny_training import CONFIG, MakeTrainer

torch.set_num_threads(1)

VECTORS = Path(__file__).parents[2].parent / "shared" / "vectors"
ENV_ID = "palestra-testing/Parity-v0"


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """The cases of one file of ../shared/vectors; skips where that is missing."""

    def load(name: str) -> Any:
        path = VECTORS / name
        if not path.exists():
            pytest.skip(f"{path} is not there: the authors' numbers are not part of this repository")
        return json.loads(path.read_text())["cases"]

    return load


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of some fifty thousand weights, with a tokenizer that spells anything."""
    directory = make_tiny_tokenizer(tmp_path_factory.mktemp("model"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    save_model_dir(directory, tokenizer, seed=0, hidden=32, layers=2, heads=2, context_tokens=512)
    return directory


@pytest.fixture
def policy(model_dir: Path) -> Policy:
    return Policy.load(model_dir)


class Parity(TaskEnv):
    """Three turns of any text. Scores 1 where the agent's words have an even number of bytes in all.

    The expert, where the task has one, says an even number of bytes at once.
    """

    family: ClassVar[str] = "parity"

    def _begin(self, task: Task) -> str:
        if task.data.get("broken"):
            raise RuntimeError("no world for this task")
        self._bytes, self._turns, self._said = 0, 0, 0
        return task.instruction

    def _on_text(self, text: str) -> str:
        self._said = len(text.encode())
        self._bytes += self._said
        self._turns += 1
        if self._turns == 3:
            self.finish()
        return "more"

    def _anchor(self) -> str:
        return f"{self._turns}/{self._bytes % 2}"

    def _matched(self) -> bool | None:
        return self._said % 2 == 0 if self.task.data.get("expert") else None

    def _score(self) -> Score:
        return Score(float(self._bytes % 2 == 0), True)


gymnasium.register(ENV_ID, entry_point=lambda **_: Parity(), disable_env_checker=True, order_enforce=False)


@pytest.fixture(scope="session")
def parity_tasks() -> Callable[..., TaskSet]:
    """`parity_tasks(count, **data)`."""

    def make(count: int, **data: Any) -> TaskSet:
        budget = Budget(turns=5, tokens=400, wall_s=60)
        tasks = [
            Task(
                id=f"t{i}",
                family="parity",
                env=ENV_ID,
                split="train",
                instruction=f"go {i}",
                data=data,
                budget=budget,
            )
            for i in range(count)
        ]
        return TaskSet("parity", tasks)

    return make


@pytest.fixture
async def make_trainer(
    model_dir: Path, parity_tasks: Callable[..., TaskSet], tmp_path: Path
) -> AsyncIterator[MakeTrainer]:
    """`await make_trainer(config, tasks=, run_dir=)`: a trainer over the embedded engine, closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(
            config: TrainConfig = CONFIG,
            *,
            tasks: TaskSet | None = None,
            run_dir: Path | None = None,
            name: str = "run",
            deterministic: bool = False,
        ) -> Trainer:
            where = run_dir or tmp_path / name
            engine = TorchEngine.load(model_dir, deterministic=deterministic)
            rendering = Rendering.load(model_dir)
            store = stack.enter_context(Store.open(where / "store", write=True))
            running = await stack.enter_async_context(local(engine, rendering, store=store))
            learnt = tasks or parity_tasks(6)
            policy, tokenizer = Policy.load(model_dir), model_dir / "tokenizer.json"
            return Trainer(config, policy, engine, running.runner, store, learnt, where, tokenizer)

        yield make


MakeRollout = Callable[..., Trajectory]


def make_call(number: int, **changes: Any) -> Call:
    fields: dict[str, Any] = {
        "seq": number,
        "dialect": "chat",
        "request_sha256": f"{number:064x}",
        "tools_sha256": None,
        "prompt_mode": "bridge",
        "requested": {},
        "effective": Sampling(),
        "logprob_semantics": "processed",
        "policy_version": 0,
        "finish_reason": "stop",
        "parse_status": "ok",
        "node_id": number,
        "prompt_tokens": 1,
        "started_s": 0.0,
        "duration_s": 0.0,
    }
    return Call(**fields | changes)


@pytest.fixture(scope="session")
def make_rollout() -> MakeRollout:
    """`make_rollout(id, steps=[(call, reward, anchor)], calls=2, score=1.0, group=..., changed={seq: {...}})`.

    Call k sampled k + 1 tokens. `score` None makes a failed rollout.
    """

    def make(
        rollout_id: str,
        steps: Sequence[tuple[int | None, float, str]],
        *,
        calls: int = 2,
        score: float | None = 1.0,
        group: str = "g",
        changed: dict[int, dict[str, Any]] | None = None,
    ) -> Trajectory:
        nodes = tuple(_node(k) for k in range(calls))
        made = tuple(make_call(k, **(changed or {}).get(k, {})) for k in range(calls))
        return Trajectory(
            _rollout(rollout_id, group, score), nodes, made, tuple(_step(i, s) for i, s in enumerate(steps))
        )

    return make


def _node(node_id: int) -> Node:
    size = node_id + 2
    sampled = np.arange(size) > 0
    ids = np.arange(size, dtype=np.int32)
    logprobs = np.full(size - 1, -1.0, np.float32)
    return Node(
        node_id, node_id - 1 if node_id else None, Message("assistant"), ids, sampled, logprobs, ((0, 0),)
    )


def _step(index: int, step: tuple[int | None, float, str]) -> EnvStep:
    call, reward, anchor = step
    return EnvStep(index, call, None, "a", "o", reward, False, False, anchor, "d")


def _rollout(rollout_id: str, group: str, score: float | None) -> Rollout:
    return Rollout(
        rollout_id=rollout_id,
        run_id="run",
        group_id=group,
        task_id="t",
        sample_index=0,
        attempt=1,
        mode="train",
        harness="h",
        harness_version="1",
        capture_level="tokens",
        seed=0,
        score=None if score is None else Score(score, True),
        failure=Failure("env", "step", "broke") if score is None else None,
    )


MakeSample = Callable[..., Sample]


@pytest.fixture(scope="session")
def make_sample() -> MakeSample:
    """`make_sample(rollout_id, prompt, replies, seed)`: a branch of `replies` replies after a prompt."""

    def make(
        rollout_id: str, *, prompt: int = 4, replies: Sequence[int] = (3,), first_call: int = 0, seed: int = 0
    ) -> Sample:
        random = np.random.default_rng([seed, *rollout_id.encode()])
        mask, calls = [False] * prompt, [-1] * prompt
        for k, size in enumerate(replies):
            mask += [True] * size + [False] * 2
            calls += [first_call + k] * size + [-1] * 2
        loss_mask, seqs = np.array(mask), np.array(calls, np.int32)
        return Sample(
            rollout_id=rollout_id,
            leaf=0,
            ids=random.integers(0, 300, len(mask)).astype(np.int32),
            loss_mask=loss_mask,
            logprobs=np.where(loss_mask, -random.random(len(mask)), 0).astype(np.float32),
            calls=seqs,
            versions=np.where(loss_mask, 0, -1).astype(np.int32),
        )

    return make
