"""`palestra proxy`: put the recorder before a model and hand out an address, for harnesses run by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.by_hand import free_name, without_task
from palestra.cli.options import (
    EngineModel,
    EngineUrl,
    MaxReplyTokens,
    ModelDir,
    Temperature,
    checked_model,
    start_engine,
    write_store,
)
from palestra.cli.serving import listening, until_stopped

if TYPE_CHECKING:
    from palestra.harness_proxy.server import Proxy
    from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class _Plan:
    model: Path
    run_dir: Path
    session: str | None
    host: str
    port: int
    max_reply_tokens: int
    temperature: float
    engine_url: str | None
    engine_model: str | None


def proxy(
    model: ModelDir,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="where the recording is kept")],
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="names the recording  [default: session-1, -2, ...]")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="port to listen on, 0 takes a free one")
    ] = 0,
    max_reply_tokens: MaxReplyTokens = 1024,
    temperature: Temperature = 1.0,
    engine_url: EngineUrl = None,
    engine_model: EngineModel = None,
) -> None:
    """Record one session of any harness, in any of the four API dialects.

    Prints the address and the key to give to it. Ctrl-C ends and commits the recording, without a score.

    \b
    Examples:
      palestra proxy --model runs/demo/warm --run-dir runs/by-hand
      palestra show runs/by-hand session-1 --model runs/demo/warm
    """
    from palestra.rollouts.loop import run

    plan = _Plan(
        checked_model(model),
        run_dir,
        session,
        host,
        port,
        max_reply_tokens,
        temperature,
        engine_url,
        engine_model,
    )
    run(_record(plan))


async def _record(plan: _Plan) -> None:
    """The store is opened first: what could refuse the recording refuses it before there is one."""
    from palestra.harness_proxy.rendering import Rendering
    from palestra.harness_proxy.server import Proxy

    with write_store(plan.run_dir) as store:
        name = free_name(store, plan.run_dir, plan.session, "session")
        rendering = Rendering.load(plan.model)
        engine = await start_engine(plan.model, plan.engine_url, plan.engine_model)
        try:
            await _serve(plan, store, Proxy(engine, rendering), name)
        finally:
            await engine.aclose()


async def _serve(plan: _Plan, store: Store, server: Proxy, name: str) -> None:
    from palestra.trajectories.model import Sampling

    with listening(plan.host, plan.port):
        await server.start(plan.host, plan.port)
    sampling = Sampling(plan.temperature, max_tokens=plan.max_reply_tokens)
    session = server.open(name, mode="eval", sampling=sampling)
    print(f"recording {name} in {plan.run_dir}; Ctrl-C ends and commits it", file=sys.stderr)
    print(f"export OPENAI_BASE_URL={session.base_url}\nexport OPENAI_API_KEY={session.key}", flush=True)
    await until_stopped()
    recording = server.close(session)
    store.append(without_task(name, recording, server.capability.capture_level))
    await server.aclose()
    where = f"palestra show {plan.run_dir} {name} --model {plan.model}"
    print(f"\nrecorded {len(recording.calls)} calls: {where}", file=sys.stderr)
