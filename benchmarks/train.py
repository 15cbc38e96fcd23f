"""What the trainer computes, keeps in memory and saves, against the plain ways of doing the same.

    python benchmarks/train.py            tables
    python benchmarks/train.py --json     one object

Groups of rollouts on sql-gym are recorded through the proxy first: scripted agents that look at the same tables and
then part, spelt in bytes, so that prompts are long and shared. On them:

    max_grad_rel_err         gradient of each layout with chunked log-probabilities, against padded rows with the logits
                             of every position: norm of the difference over the norm
    prefix_tree_token_ratio  positions that packing computes over those of the tree
    prefix_tree_wall_ratio   the same of the seconds of forward and backward, paired
    trl_tokens_ratio         trained tokens/s of our update over those of one GRPO step of TRL (GRPOTrainer, rollouts
                             handed in ready, same model, same tokens, no generation in either)
    logprob_memory_ratio     peak memory of the log-probabilities of 1,024 tokens at V = 151,936, forward and backward,
                             with log_softmax over ours; without weights and their gradients, which both need
"""

from __future__ import annotations

import importlib.util
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import Tensor

from measure import Bench, measure
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts import loop
from palestra.rollouts.harnesses import Demonstrator
from palestra.rollouts.local import local
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.rollouts.world import World
from palestra.tasks.registry import load_tasks
from palestra.training.batch import Batch, make_batch
from palestra.training.demonstrations import tool_call
from palestra.training.policy import Policy
from palestra.training.tiny import byte_tokenizer, save_model_dir
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import Sample, samples

GROUP_SIZE = 8
TOKEN_BUDGET = 16_384
TOKENS, VOCABULARY, HIDDEN = 1024, 151_936, 256
"""Of the memory comparison."""


def main() -> None:
    """Record, compute, compare, print."""
    if "--memory" in sys.argv:
        print(orjson.dumps(peak_bytes(sys.argv[-1])).decode())
        return
    bench = Bench("The update of the trainer", example="python benchmarks/train.py --quick --json")
    bench.parser.add_argument("--without-trl", action="store_true", help="leave TRL out")
    args = bench.parse()
    if not args.without_trl:
        trl_needed()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="palestra-") as name:
        model = make_model(Path(name) / "model", hidden=64 if args.quick else 128)
        groups = record(model, tasks=2 if args.quick else 4)
        facts: dict[str, Any] = {"max_grad_rel_err": gradient_error(model, groups[0])}
        facts |= memory()
        facts |= tree(model, groups, args.repeats)
        if not args.without_trl:
            from trl_step import against_trl

            facts |= against_trl(model, groups, Path(name), steps=3 if args.quick else 6)
    bench.show({}, **facts)


def trl_needed() -> None:
    """Raises SystemExit where TRL is not there to be compared with."""
    missing = [name for name in ("trl", "datasets") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"{' and '.join(missing)} not installed: pip install 'palestra[bench]', or leave TRL out with --without-trl"
        )


def make_model(directory: Path, *, hidden: int) -> Path:
    """A random Qwen3 that spells bytes."""
    save_model_dir(directory, byte_tokenizer(), seed=0, hidden=hidden, layers=4, context_tokens=16_384)
    return directory


def record(model: Path, *, tasks: int) -> list[list[Sample]]:
    """Groups of rollouts, as they were recorded."""
    rendering = Rendering.load(model)
    jobs = group_jobs(list(load_tasks("sql-gym", "train"))[:tasks], GROUP_SIZE)

    async def run() -> list[Trajectory]:
        demonstrator = Demonstrator(Curious().play)
        engine = ScriptedEngine(rendering, demonstrator.reply)
        async with local(engine, rendering, harness=demonstrator) as stack:
            return await stack.runner.run(jobs, RunSpec("benchmark"))

    played = loop.run(run())
    failures = [t.rollout.failure for t in played if t.rollout.failure is not None]
    assert not failures, failures[0]
    return [
        [s for t in played[at : at + GROUP_SIZE] for s in samples(t)]
        for at in range(0, len(played), GROUP_SIZE)
    ]


class Curious:
    """Looks at every table like its siblings, then asks and submits something of its own."""

    def __init__(self) -> None:
        self._played = 0

    def play(self, world: World) -> Iterator[str]:
        """One episode."""
        self._played += 1
        pick = random.Random(self._played)
        yield tool_call("list_tables")
        tables = [name.strip() for name in world.observation.split(",")]
        for table in tables[:4]:
            yield tool_call("describe", table=table)
        for _ in range(2):
            yield tool_call(
                "query",
                sql=f"SELECT * FROM {pick.choice(tables)} LIMIT {pick.randint(1, 3)} OFFSET {pick.randint(0, 9)}",
            )
        yield tool_call("submit", sql=f"SELECT count(*) + {pick.randint(0, 99)} FROM {tables[0]}")


def batch_of(group: Sequence[Sample]) -> Batch:
    """With made-up advantages: a different one per decision."""
    keys = sorted({(s.rollout_id, int(q)) for s in group for q in s.calls[s.loss_mask]})
    return make_batch(group, {key: (-1.0) ** i * (1 + i % 5) for i, key in enumerate(keys)})


def loss(policy: Policy, batch: Batch, layout: str) -> None:
    """Forward and backward of a policy gradient."""
    for part in batch.micro_batches(TOKEN_BUDGET, layout):
        logprobs, _ = policy.logprobs(part)
        (-(logprobs * part.advantages * part.weights).sum()).backward()  # type: ignore[no-untyped-call]


def gradient(policy: Policy) -> Tensor:
    """All of it, flat; and forgets it."""
    flat = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    policy.model.zero_grad()
    return flat


def gradient_error(model: Path, group: Sequence[Sample]) -> float:
    """The largest over the layouts."""
    batch = batch_of(group)
    policy = Policy.load(model)
    plain_loss(policy, group, batch)
    plain = gradient(policy)
    errors = []
    for layout in ("rows", "packed", "tree"):
        loss(policy, batch, layout)
        errors.append(float((gradient(policy) - plain).norm() / plain.norm()))
    return max(errors)


def plain_loss(policy: Policy, group: Sequence[Sample], batch: Batch) -> None:
    """Padded to the longest, the logits of every position, log_softmax."""
    policy._see("sdpa")
    width = max(len(s.ids) for s in group)
    ids = torch.zeros(len(group), width, dtype=torch.long)
    advantages, weights = torch.zeros(len(group), width), torch.zeros(len(group), width)
    for row, sample in enumerate(group):
        span = slice(int(batch.offsets[row]), int(batch.offsets[row + 1]))
        ids[row, : len(sample.ids)] = torch.from_numpy(sample.ids.astype(np.int64))
        advantages[row, : len(sample.ids)] = torch.from_numpy(batch.advantages[span])
        weights[row, : len(sample.ids)] = torch.from_numpy(batch.weights[span])
    logits = policy.model(input_ids=ids, use_cache=False).logits[:, :-1]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    (-(chosen * advantages[:, 1:] * weights[:, 1:]).sum()).backward()  # type: ignore[no-untyped-call]


def tree(model: Path, groups: Sequence[Sequence[Sample]], repeats: int) -> dict[str, float]:
    """Packing against the prefix tree."""
    policy = Policy.load(model)
    batch = batch_of([s for group in groups for s in group])
    positions = {
        layout: sum(p.positions for p in batch.micro_batches(TOKEN_BUDGET, layout))
        for layout in ("rows", "packed", "tree")
    }
    runs = {layout: partial(loss, policy, batch, layout) for layout in ("tree", "packed", "rows")}
    timings = measure(runs, repeats=min(repeats, 5))
    cpu = timings.cpu_ratio("packed")
    assert cpu is not None
    return {
        "samples": len(batch),
        "loss_tokens": int(batch.loss_mask.sum()),
        "packed_positions": positions["packed"],
        "tree_positions": positions["tree"],
        "prefix_tree_token_ratio": positions["packed"] / positions["tree"],
        "prefix_tree_wall_ratio": timings.wall_ratio("packed").summary()["median"],
        "prefix_tree_cpu_ratio": cpu.summary()["median"],
        "prefix_tree_over_rows_wall_ratio": timings.wall_ratio("rows").summary()["median"],
    }


def memory() -> dict[str, float]:
    """Each way in a process of its own, since a process keeps what it once had."""
    peaks = {}
    for way in ("full", "chunked"):
        done = subprocess.run([sys.executable, __file__, "--memory", way], capture_output=True, check=True)
        peaks[way] = orjson.loads(done.stdout) / 2**20
    return {
        "logprob_full_mb": peaks["full"],
        "logprob_chunked_mb": peaks["chunked"],
        "logprob_memory_ratio": peaks["full"] / peaks["chunked"],
    }


def peak_bytes(way: str) -> float:
    """Peak resident memory beyond the hidden states, the head and their gradients.

    At least that of one chunk of logits, which is there whatever the allocator reuses.
    """
    from palestra.training.logprobs import LOGITS, chunked_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    small = torch.zeros(64, HIDDEN, requires_grad=True)
    chunked_logprobs(small, small, torch.zeros(64, dtype=torch.long))[0].sum().backward()  # type: ignore[no-untyped-call]
    weight = torch.empty(VOCABULARY, HIDDEN).normal_(std=1 / 16).requires_grad_()
    hidden = torch.randn(TOKENS, HIDDEN).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (TOKENS,))
    weight.grad = torch.ones_like(weight)
    held = torch.ones_like(weight)  # as the new gradient, before it is added to the old
    del held
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if way == "full":
        chosen = torch.log_softmax(hidden @ weight.T, -1).gather(-1, targets[:, None])[:, 0]
    else:
        chosen = chunked_logprobs(hidden, weight, targets)[0]
    chosen.mean().backward()  # type: ignore[no-untyped-call]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024.0
    return max(grown, 4.0 * LOGITS["cpu"])


if __name__ == "__main__":
    main()
