"""Is what would be trained exactly what the engine saw and sampled? Counted over rollouts of a real policy.

    python benchmarks/faithful.py                           makes a small policy first, then plays
    python benchmarks/faithful.py --model runs/demo/warm    plays a policy that exists

A wrapper around the engine keeps its own record of every prompt and reply. After at least 500 rollouts of three
turns or more on sql-tiny, sampled at temperature 1, that record is compared with what would be trained. Every
fifth rollout is played by a harness that forgets its oldest exchange as it goes on, so that token graphs fork.
The exit status is 1 where a promise does not hold:

    trained_exactly_once   share of delivered sampled tokens that carry loss once over all samples: 1
    mismatches             calls whose recorded path is not the engine's prompt and reply: 0
    unseen_prefixes        trained tokens that stand after a prefix the engine did not see: 0
    max_logprob_diff       trainer against engine, same weights, float32, in nats: at most 1e-4
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure import Bench
from palestra.harness_proxy.engines.base import Capability, Engine, Generation
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts import loop
from palestra.rollouts.harnesses import Demonstrator, Endpoint, ToolLoop
from palestra.rollouts.harnesses.chat_client import ChatClient, ChatReply
from palestra.rollouts.local import embedded_engine, local
from palestra.rollouts.runner import Runner, RunSpec, group_jobs
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.vocabulary import WORDS
from palestra.tasks.task import Task
from palestra.training.batch import make_batch
from palestra.training.demonstrations import CarelessAgent
from palestra.training.policy import Policy
from palestra.training.tiny import byte_tokenizer, phrase_tokenizer, save_model_dir, save_tokenizer
from palestra.training.warmstart import WarmStart, warm_start
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, IntArray, Sampling, Trajectory
from palestra.trajectories.sample import Sample, samples

MAX_LOGPROB_DIFF = 1e-4
MIN_ROLLOUTS = 500
"""Of three turns or more."""
ROUND, MAX_ROUNDS = 250, 10
"""Tasks played before looking whether that is enough, and how often."""
FORGETFUL_SHARE = 5
TRAINED_POSITIONS = 16_384
"""Positions that the trainer looks at together."""


def main() -> None:
    """Play, count, print, and exit with 1 where a promise is broken."""
    bench = Bench("Faithful recording", example="python benchmarks/faithful.py --quick --json")
    bench.parser.add_argument("--model", type=Path, help="directory of a local Qwen3; by default one is made")
    args = bench.parse()
    torch.set_num_threads(1)  # on a busy machine two threads that wait for each other take many times as long
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palestra-")))
        started_s = time.perf_counter()
        model = args.model or make_policy(directory, demonstrations=300, steps=120 if args.quick else 400)
        made_s = time.perf_counter()
        played = loop.run(play(model))
        played_s = time.perf_counter()
        found = audit(played, model)
        audited_s = time.perf_counter()
    seconds = {"make_s": made_s - started_s, "play_s": played_s - made_s, "audit_s": audited_s - played_s}
    bench.show({}, **found, **seconds)
    sys.exit(0 if found["faithful"] else 1)


def make_policy(directory: Path, *, demonstrations: int, steps: int) -> Path:
    """A small Qwen3 that has seen some demonstrations: enough to act for several turns, with mistakes."""
    tasks = random.Random(0).sample(list(load_tasks("sql-tiny", "train")), demonstrations)
    save_tokenizer(directory / "bytes", byte_tokenizer())
    letters = Rendering.load(directory / "bytes")
    texts = [letters.decode(s.ids.tolist()) for s in demonstrate(letters, tasks[:150])]
    model, warm = directory / "model", directory / "warm"
    save_model_dir(model, phrase_tokenizer(texts, WORDS), seed=0, hidden=96, layers=2)
    policy = Policy.load(model)
    warm_start(policy, demonstrate(Rendering.load(model), tasks), WarmStart(steps=steps))
    policy.save(warm, tokenizer=model / "tokenizer.json")
    return warm


def demonstrate(rendering: Rendering, tasks: Sequence[Task]) -> list[Sample]:
    """What a scripted agent does on `tasks`, in the tokens of `rendering`."""

    async def run() -> list[Trajectory]:
        demonstrator = Demonstrator(CarelessAgent(0.3, seed=0).play)
        engine = ScriptedEngine(rendering, demonstrator.reply)
        async with local(engine, rendering, harness=demonstrator) as stack:
            return await stack.runner.run(group_jobs(tasks, 1), RunSpec("demonstrations"))

    return [s for t in loop.run(run()) for s in samples(t)]


@dataclass(frozen=True, slots=True)
class Witnessed:
    """One call, as the engine saw it."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Witness:
    """An engine that hands everything on to another one and keeps its own record, by session."""

    def __init__(self, engine: Engine) -> None:
        self.calls: defaultdict[str, list[Witnessed]] = defaultdict(list)
        self._engine = engine

    async def probe(self) -> Capability:
        """What the engine behind gives."""
        return await self._engine.probe()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """Sample, and write down what was asked and answered."""
        prompt = tuple(prompt_ids)
        reply = await self._engine.generate(prompt_ids, sampling, session=session)
        self.calls[session].append(Witnessed(prompt, tuple(reply.token_ids), tuple(reply.logprobs)))
        return reply

    async def aclose(self) -> None:
        """Close the engine behind."""
        await self._engine.aclose()


class ForgetfulClient(ChatClient):
    """Sends the history without its oldest exchange once it holds two, as harnesses with compaction do."""

    async def chat(self, endpoint: Endpoint, messages: Sequence[Any], tools: Sequence[Any]) -> ChatReply:
        """One turn, on what is remembered."""
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        kept = [*messages[: replies[0]], *messages[replies[-1] :]] if len(replies) > 1 else messages
        return await super().chat(endpoint, kept, tools)


class ForgetfulLoop(ToolLoop):
    """A ToolLoop with a short memory: its token graphs fork."""

    name = "forgetful-loop"

    def __init__(self) -> None:
        super().__init__()
        self._client = ForgetfulClient()


@dataclass(frozen=True, slots=True)
class Played:
    """Rollouts, and the engine's own record by rollout id."""

    trajectories: list[Trajectory] = field(default_factory=list)
    witnessed: Mapping[str, list[Witnessed]] = field(default_factory=dict)

    @property
    def long(self) -> int:
        """Rollouts of three turns or more."""
        return sum(len(t.calls) >= 3 for t in self.trajectories)


async def play(model: Path) -> Played:
    """Rounds of rollouts until there are enough long ones. Raises RuntimeError where the policy never acts."""
    witness = Witness(embedded_engine(model))
    tasks = list(load_tasks("sql-tiny", "train"))
    played = Played(witnessed=witness.calls)
    async with local(witness, Rendering.load(model)) as stack:
        forgetful = Runner(stack.proxy, ForgetfulLoop())
        for number in range(MAX_ROUNDS):
            jobs = group_jobs(tasks[number * ROUND : (number + 1) * ROUND], 1)
            spec = RunSpec(f"round-{number}", "train", number, Sampling(max_tokens=128))
            steady, short = [j for i, j in enumerate(jobs) if i % FORGETFUL_SHARE], jobs[::FORGETFUL_SHARE]
            played.trajectories.extend(await stack.runner.run(steady, spec))
            played.trajectories.extend(await forgetful.run(short, spec))
            if played.long >= MIN_ROLLOUTS:
                break
        await forgetful.aclose()
    if played.long < MIN_ROLLOUTS:
        raise RuntimeError(f"only {played.long} of {len(played.trajectories)} rollouts had three turns")
    return played


def audit(played: Played, model: Path) -> dict[str, Any]:
    """Every figure; `faithful` says whether all promises hold."""
    counts: defaultdict[str, int] = defaultdict(int)
    views: list[Sample] = []
    for trajectory in played.trajectories:
        own = samples(trajectory)
        views += own
        for name, count in audit_rollout(trajectory, own, played.witnessed).items():
            counts[name] += count
    difference, compared = compare_logprobs(views, model)
    share = counts["trained_once"] / max(counts["sampled_tokens"], 1)
    kept = share == 1.0 and not counts["mismatches"] and not counts["unseen_prefixes"]
    whole = counts["failed"] == 0 and compared == counts["trained_once"]
    return {
        "faithful": kept and whole and difference <= MAX_LOGPROB_DIFF,
        "rollouts": len(played.trajectories),
        "rollouts_of_3_turns": played.long,
        "failed_rollouts": counts["failed"],
        "calls": counts["calls"],
        "sampled_tokens": counts["sampled_tokens"],
        "trained_exactly_once": share,
        "mismatches": counts["mismatches"],
        "unseen_prefixes": counts["unseen_prefixes"],
        "max_logprob_diff": difference,
        "logprobs_compared": compared,
        "forks": counts["forks"],
        "samples": len(views),
        "bridged_calls": counts["bridged"] / max(counts["calls"], 1),
        "malformed_calls": counts["malformed"] / max(counts["calls"], 1),
        "mean_turns": counts["calls"] / len(played.trajectories),
    }


def audit_rollout(
    trajectory: Trajectory, views: Sequence[Sample], witnessed: Mapping[str, list[Witnessed]]
) -> dict[str, int]:
    """What one rollout adds to the counts. A call that the engine has no record of is a mismatch."""
    graph = TokenGraph(trajectory.nodes)
    records = witnessed[trajectory.rollout.rollout_id]
    delivered = [c for c in trajectory.calls if c.delivered]
    missing = abs(len(records) - len(trajectory.calls))
    by_seq = {c.seq: record for c, record in zip(trajectory.calls, records, strict=False)}
    times, unseen = trained_times(views, by_seq)
    return {
        "failed": int(trajectory.rollout.failure is not None),
        "calls": len(delivered),
        "sampled_tokens": sum(len(by_seq[c.seq].token_ids) for c in delivered if c.seq in by_seq),
        "trained_once": sum(int((times[c.seq] == 1).sum()) for c in delivered if c.seq in by_seq),
        "unseen_prefixes": unseen,
        "mismatches": missing + sum(not agrees(graph, c, by_seq.get(c.seq)) for c in trajectory.calls),
        "forks": sum(1 for _ in graph.leaves()) - 1,
        "bridged": sum(c.prompt_mode == "bridge" for c in delivered),
        "malformed": sum(c.parse_status == "malformed" for c in delivered),
    }


def agrees(graph: TokenGraph, call: Call, record: Witnessed | None) -> bool:
    """Whether the path to the call's node is the engine's prompt and reply, with its log-probabilities."""
    if record is None:
        return False
    path = graph.path_ids(call.node_id).tolist()
    logprobs = np.array(record.logprobs, np.float32)
    same = np.array_equal(graph.nodes[call.node_id].logprobs, logprobs)
    return same and path == [*record.prompt_ids, *record.token_ids]


def trained_times(
    views: Sequence[Sample], by_seq: Mapping[int, Witnessed]
) -> tuple[dict[int, IntArray], int]:
    """(how often each sampled token of each call carries loss, trained tokens after an unseen prefix)."""
    times = {seq: np.zeros(len(record.token_ids), np.int32) for seq, record in by_seq.items()}
    unseen = 0
    for view in views:
        for seq in np.unique(view.calls[view.calls >= 0]).tolist():
            positions = np.flatnonzero(view.calls == seq)
            trained = view.loss_mask[positions]
            record = by_seq.get(seq)
            if record is None or len(positions) != len(record.token_ids):
                unseen += int(trained.sum())
                continue
            times[seq] += trained
            until = int(positions[-1]) + 1
            if view.ids[:until].tolist() != [*record.prompt_ids, *record.token_ids]:
                unseen += int(trained.sum())
    return times, unseen


def compare_logprobs(views: Sequence[Sample], model: Path) -> tuple[float, int]:
    """(largest difference between trainer and record in nats, number of tokens compared); NaN is kept."""
    policy = Policy.load(model)
    ones = {(v.rollout_id, int(seq)): 1.0 for v in views for seq in np.unique(v.calls)}
    gaps, compared = [], 0
    with torch.no_grad():
        for rows in make_batch(views, ones).micro_batches(TRAINED_POSITIONS):
            logprobs, _ = policy.logprobs(rows)
            gaps.append((logprobs - rows.logprobs).abs().max())
            compared += len(logprobs)
    return float(torch.stack(gaps).max()), compared


if __name__ == "__main__":
    main()
