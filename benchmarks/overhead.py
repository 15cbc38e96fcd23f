"""CPU time of one turn of a rollout apart from the model: runner, client, proxy, recording, environment.

    python benchmarks/overhead.py            tables
    python benchmarks/overhead.py --json     one object; `cpu_us_per_turn` is all but the environment

A rollout asks a scripted model five times over loopback HTTP (list_tables, describe, query, query, submit),
plays a task of sql-tiny, is graded on perturbed databases and appended to a store on disk. Everything runs in
one process and is counted. The same environment steps, engine calls and appends are measured alone in the same
rounds, and so is the floor: requests and replies of the same sizes through aiohttp and uvicorn, with nothing
between. Databases and grading copies are made in a first pass, which is reported apart. It measures CPU time,
not latency under load.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any, cast

import aiohttp
import gymnasium
import orjson

from measure import Bench, Measurement, measure
from palestra.envs.env import TaskEnv
from palestra.harness_proxy.asgi import Receive, Scope, Send
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.listener import Listener
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts import loop
from palestra.rollouts.harnesses import Demonstrator
from palestra.rollouts.local import Local, local
from palestra.rollouts.runner import Job, RunSpec, group_jobs
from palestra.rollouts.world import World
from palestra.tasks.registry import load_tasks
from palestra.trajectories.model import Message, Trajectory
from palestra.trajectories.store import Store

Exchange = tuple[bytes, bytes]
"""Bodies of a request and its reply."""

GOAL_US = 600.0
"""Per turn, for all but the environment."""
CONCURRENCY = 64
SAMPLES = 4


def main() -> None:
    """Measure and print."""
    bench = Bench("CPU time per turn of a rollout", example="python benchmarks/overhead.py --quick --json")
    bench.parser.add_argument(
        "--tasks", type=int, help="tasks per round, 4 attempts each (default 64, --quick 32)"
    )
    args = bench.parse()
    with ExitStack() as stack:
        workload = Workload(stack, args.tasks or (32 if args.quick else 64))
        first = workload.first_pass()
        measurement = measure(workload.candidates(), repeats=args.repeats)
        bench.show({"one round": measurement}, **first, **facts(measurement, workload))


def facts(measurement: Measurement, workload: Workload) -> dict[str, Any]:
    """The figures, in microseconds of CPU time per turn."""
    turns = workload.turns
    alone = {name: _us_per_turn(measurement, name, turns) for name in measurement.timings}
    total = alone.pop("rollouts")
    floor = alone.pop("bare HTTP")
    rounds = measurement.timings["rollouts"].cpu_s
    ours = total - alone["environment and grading"]
    return {
        "cpu_us_per_turn": ours,
        "cpu_us_per_turn_with_environment": total,
        "with_environment_quartiles": [1e6 * q / turns for q in quantiles(rounds * 2, n=4)[::2]],
        "breakdown_us": {**alone, "runner, client and proxy": total - sum(alone.values())},
        "goal_us": GOAL_US,
        "goal_met": ours <= GOAL_US,
        "floor_us": floor,
        "over_floor": ours / floor,
        "turns_per_s": turns / measurement.timings["rollouts"].summary()["wall_median_s"],
        "turns": turns,
        "rollouts": len(workload.trajectories),
        "concurrency": CONCURRENCY,
        "mean_prompt_tokens": sum(c.prompt_tokens for t in workload.trajectories for c in t.calls) / turns,
    }


def _us_per_turn(measurement: Measurement, name: str, turns: int) -> float:
    return 1e6 * measurement.timings[name].summary()["cpu_median_s"] / turns


class Workload:
    """A round of rollouts, and each of its parts alone."""

    def __init__(self, stack: ExitStack, tasks: int) -> None:
        """`stack` closes what is opened here: event loop, stores, proxy, bare server."""
        self.jobs: list[Job] = group_jobs(list(load_tasks("sql-tiny", "train"))[:tasks], SAMPLES)
        self.trajectories: list[Trajectory] = []
        self._round = 0
        self._loop = stack.enter_context(loop.runner())
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="palestra-")))
        self._store = stack.enter_context(Store.open(self._directory / "store", write=True))
        self._copies = stack.enter_context(Store.open(self._directory / "copies", write=True))
        self._env = cast(TaskEnv, gymnasium.make("palestra/Sql-v0").unwrapped)
        stack.callback(self._env.close)
        services = AsyncExitStack()
        stack.callback(lambda: self._loop.run(services.aclose()))
        self._rendering = Rendering.load(make_tiny_tokenizer(self._directory / "model"))
        self._local = self._loop.run(self._start(services))
        self._bare = self._loop.run(services.enter_async_context(bare_http()))

    async def _start(self, services: AsyncExitStack) -> Local:
        demonstrator = Demonstrator(play)
        engine = ScriptedEngine(self._rendering, demonstrator.reply)
        return await services.enter_async_context(
            local(engine, self._rendering, harness=demonstrator, store=self._store, concurrency=CONCURRENCY)
        )

    @property
    def turns(self) -> int:
        """Calls to the model in one round, each of which is a step of an environment."""
        return sum(len(t.calls) for t in self.trajectories)

    def first_pass(self) -> dict[str, float]:
        """Play one round with nothing in the caches."""
        started_s = time.process_time()
        self.rollouts()
        return {"first_pass_us_per_turn": 1e6 * (time.process_time() - started_s) / self.turns}

    def candidates(self) -> dict[str, Callable[[], object]]:
        """The round first, then its parts."""
        exchanges = [list(turn_bodies(t, self._env.tools)) for t in self.trajectories]
        return {
            "rollouts": self.rollouts,
            "environment and grading": self.environment,
            "store": self.store,
            "scripted model": lambda: self._loop.run(self._model()),
            "bare HTTP": lambda: self._loop.run(self._bare.exchange(exchanges)),
        }

    def rollouts(self) -> None:
        """The whole round, as a trainer runs it. Raises RuntimeError for a rollout that did not score 1."""
        self._round += 1
        self._engine.calls.clear()
        self._loop.run(self._play(RunSpec(f"round-{self._round}")))
        for trajectory in self.trajectories:
            if trajectory.rollout.reward != 1.0:
                raise RuntimeError(f"this workload must be solved, got {trajectory.rollout}")

    async def _play(self, spec: RunSpec) -> None:
        self.trajectories = await self._local.runner.run(self.jobs, spec)

    def environment(self) -> None:
        """The same steps and gradings, called directly."""
        for trajectory, job in zip(self.trajectories, self.jobs, strict=True):
            self._env.reset(seed=0, options={"task": job.task})
            for step in trajectory.steps:
                self._env.step(step.action)
            self._env.score()

    def store(self) -> None:
        """The same records, appended to another store."""
        self._round += 1
        for trajectory in self.trajectories:
            name = f"{self._round}/{trajectory.rollout.rollout_id}"
            self._copies.append(replace(trajectory, rollout=replace(trajectory.rollout, rollout_id=name)))

    async def _model(self) -> None:
        """The same prompts and replies through the scripted engine."""
        replies = iter([c.generation.token_ids for c in self._engine.calls if c.generation is not None])
        engine = ScriptedEngine(self._rendering, lambda prompt, session: next(replies))
        for call in self._engine.calls:
            await engine.generate(call.prompt_ids, call.sampling, session=call.session)

    @property
    def _engine(self) -> ScriptedEngine:
        return cast(ScriptedEngine, self._local.engine)


def play(world: World) -> Iterator[str]:
    """Five replies that solve a task of sql-tiny, in the text format of Qwen3."""
    gold = world.task.data["gold_sql"]
    table = gold.partition(" FROM ")[2].split()[0]
    yield _tool_call("list_tables")
    yield _tool_call("describe", table=table)
    yield _tool_call("query", sql=f"SELECT * FROM {table} LIMIT 3")
    yield _tool_call("query", sql=gold)
    yield _tool_call("submit", sql=gold)


def _tool_call(name: str, **arguments: str) -> str:
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"


class BareHttp:
    """An aiohttp client and a uvicorn server that answers with as many bytes as it is told."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http = url, http

    async def exchange(self, rollouts: Sequence[Sequence[Exchange]]) -> None:
        """Make the exchanges of each rollout in turn, of `CONCURRENCY` rollouts at once."""
        slots = asyncio.Semaphore(CONCURRENCY)

        async def play(exchanges: Sequence[Exchange]) -> None:
            async with slots:
                for request, reply in exchanges:
                    headers = {"x-reply-bytes": str(len(reply)), "content-type": "application/json"}
                    async with self._http.post(self._url, data=request, headers=headers) as response:
                        await response.read()

        await asyncio.gather(*map(play, rollouts))


@asynccontextmanager
async def bare_http() -> AsyncIterator[BareHttp]:
    """A server on a free port and a client for it."""
    async with AsyncExitStack() as stack:
        listener = await Listener.open(_bare_app, "127.0.0.1", 0)
        stack.push_async_callback(listener.aclose)
        connector = aiohttp.TCPConnector(limit=0)
        yield BareHttp(
            listener.url, await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        )


async def _bare_app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    size = int(dict(scope["headers"])[b"x-reply-bytes"])
    fields = [(b"content-length", b"%d" % size), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"x" * size})


def turn_bodies(trajectory: Trajectory, tools: Sequence[Any]) -> Iterator[Exchange]:
    """What went over the wire in each turn, but for a few bytes of ids."""
    messages: list[Mapping[str, Any]] = []
    for node in trajectory.nodes:
        message = _wire(node.message)
        if node.sampled.any():
            request = {"model": "palestra", "messages": messages, "tools": tools}
            yield (
                orjson.dumps(request),
                orjson.dumps(_REPLY | {"choices": [{"index": 0, "message": message}]}),
            )
        messages.append(message)


_REPLY = {
    "id": "chatcmpl-0-0123456789abcdef",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "palestra",
    "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
}


def _wire(message: Message) -> dict[str, Any]:
    """A message as the Chat Completions API spells it."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls = [(c.id, {"name": c.name, "arguments": c.arguments}) for c in message.tool_calls]
        wire["tool_calls"] = [{"id": i, "type": "function", "function": f} for i, f in calls]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


if __name__ == "__main__":
    main()
