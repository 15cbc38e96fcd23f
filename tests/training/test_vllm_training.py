"""Training with vLLM as the engine: what is trained is what it sampled, and it serves what was trained."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from palestra.harness_proxy.engines.base import Generation
from palestra.harness_proxy.engines.publishing import FileWeights
from palestra.harness_proxy.engines.vllm import VllmEngine
from palestra.harness_proxy.engines.vllm_server import VllmServer
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import local
from palestra.tasks.task import Task, TaskSet
from palestra.training.batch import make_batch
from palestra.training.config import TrainConfig
from palestra.training.engine import EngineOptions, Publish, training_engine
from palestra.training.lora import Lora, adapter_config
from palestra.training.policy import Policy, PolicyOptions
from palestra.training.trainer import StepResult, Trainer
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Sampling
from palestra.trajectories.sample import samples
from palestra.trajectories.store import Store

torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]
CONFIG = TrainConfig(
    steps=3, groups_per_step=2, group_size=4, max_reply_tokens=6, max_logprob_gap=1e-3, seed=1
)


@pytest.mark.parametrize("publish", get_args(Publish))
async def test_a_run_with_vllm_is_faithful_and_serves_what_it_learnt(
    vllm_server: VllmServer,
    vllm_model_dir: Path,
    parity_tasks: Callable[..., TaskSet],
    tmp_path: Path,
    publish: Publish,
) -> None:
    lora = Lora(rank=4, alpha=8) if publish == "adapters" else None
    policy = Policy.load(vllm_model_dir, PolicyOptions(lora=lora))
    adapter = adapter_config(policy.model, lora) if lora else None
    options = EngineOptions(kind="vllm", url=vllm_server.base_url, cpu=True, publish=publish)
    if lora:  # other tests have changed the base model that adapters are beside
        await _serve(vllm_server, Policy.load(vllm_model_dir))
    engine = await training_engine(options, vllm_model_dir, tmp_path, adapter=adapter)
    published: list[float] = []

    async def on_step(result: StepResult) -> None:
        assert result.failed == 0 and result.rollouts == 8
        assert 0 < result.logprob_gap < 1e-3
        reply = await engine.generate([5, 6, 7], Sampling(temperature=1.0, max_tokens=1, seed=3))
        assert reply.versions == ((0, result.step),)
        published.append(reply.logprobs[0])

    with Store.open(tmp_path / "store", write=True) as store:
        async with local(engine, Rendering.load(vllm_model_dir), store=store) as running:
            tokenizer, tasks = vllm_model_dir / "tokenizer.json", parity_tasks(6)
            config = replace(CONFIG, layout="tree", optimizer="adamw")
            trainer = Trainer(
                config, policy, engine, running.runner, store, tasks, tmp_path, tokenizer,
                published=policy.adapters if lora else None,
            )  # fmt: skip
            await trainer.train(on_step)
        assert len(set(published)) == 3, "the server's weights change with every step"
        for trajectory in store:
            graph = TokenGraph(trajectory.nodes)
            for call in trajectory.calls:
                assert call.policy_version == int(trajectory.rollout.group_id.split("/")[0])
                assert len(graph.path_ids(call.node_id)) > call.prompt_tokens
            assert sum(int(s.loss_mask.sum()) for s in samples(trajectory)) == sum(
                len(n.logprobs) for n in trajectory.nodes
            )


async def test_what_vllm_recorded_is_what_the_trainer_computes(
    vllm_server: VllmServer, vllm_model_dir: Path, parity_tasks: Callable[..., TaskSet], tmp_path: Path
) -> None:
    from palestra.rollouts.runner import RunSpec, group_jobs

    engine = await training_engine(
        EngineOptions(kind="vllm", url=vllm_server.base_url, cpu=True), vllm_model_dir, tmp_path
    )
    policy = Policy.load(vllm_model_dir)
    await engine.probe()
    await engine.update_weights(policy.weights(), 0)
    async with local(engine, Rendering.load(vllm_model_dir)) as running:
        spec = RunSpec("r", "train", 0, Sampling(1.0, max_tokens=12))
        played = await running.runner.run(group_jobs(list(parity_tasks(4)), 4), spec)
    views = [s for t in played for s in samples(t)]
    batch = make_batch(views, {(v.rollout_id, int(q)): 1.0 for v in views for q in np.unique(v.calls)})
    with torch.no_grad():
        gaps = [(policy.logprobs(p)[0] - p.logprobs).abs().max() for p in batch.micro_batches(4096, "tree")]
    assert float(max(gaps)) < 1e-4


async def test_a_server_killed_in_mid_rollout_comes_back_and_the_run_goes_on(
    vllm_server: VllmServer, vllm_model_dir: Path, parity_tasks: Callable[..., TaskSet], tmp_path: Path
) -> None:
    """Rollouts that it took along are played again or recorded as failures of the provider; none gets a score of 0."""
    engine = VllmEngine(vllm_server.base_url, "policy", publisher=FileWeights(untie=True), server=vllm_server)
    generate, calls = engine.generate, list[int]()

    async def dying(*args: Any, **options: Any) -> Generation:
        calls.append(1)
        if len(calls) == 10:
            assert vllm_server._process is not None
            os.killpg(vllm_server._process.pid, signal.SIGKILL)
        return await generate(*args, **options)

    engine.generate = dying  # type: ignore[method-assign]
    with Store.open(tmp_path / "store", write=True) as store:
        async with local(engine, Rendering.load(vllm_model_dir), store=store) as running:
            policy, tokenizer = Policy.load(vllm_model_dir), vllm_model_dir / "tokenizer.json"
            config = replace(CONFIG, steps=2)
            tasks = TaskSet("patient", [_patient(task) for task in parity_tasks(6)])
            trainer = Trainer(config, policy, engine, running.runner, store, tasks, tmp_path, tokenizer)
            await trainer.train(_ignore)
            engine._server = None
        assert [r.step for r in trainer.history] == [1, 2] and trainer.history[1].failed == 0
        failures = [r.failure for r in store.rollouts() if r.failure is not None]
        assert len(failures) == trainer.history[0].failed < 8
        assert {f.boundary for f in failures} <= {"provider"}


async def _serve(server: VllmServer, policy: Policy) -> None:
    engine = VllmEngine(server.base_url, "policy", publisher=FileWeights(untie=True))
    await engine.update_weights(policy.weights(), 0)
    await engine.aclose()


def _patient(task: Task) -> Task:
    """`task` with time enough for a server to start."""
    return task.model_copy(update={"budget": task.budget.model_copy(update={"wall_s": 600.0})})


async def _ignore(result: StepResult) -> None:
    assert result.logprob_gap < 1e-3
