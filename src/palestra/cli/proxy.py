"""`palestra proxy`: put the recorder before a model and hand out an address, for harnesses run by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.by_hand import free_name, lost, without_task
from palestra.cli.errors import UsageError
from palestra.cli.model_choice import ModelChoice
from palestra.cli.options import (
    EngineModel,
    EngineUrl,
    MaxReplyTokens,
    ModelName,
    Temperature,
    UpstreamKeyEnv,
    UpstreamUrl,
    write_store,
)
from palestra.cli.serving import listening, until_stopped

if TYPE_CHECKING:
    from palestra.harness_proxy.server import Proxy
    from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class _Plan:
    model: ModelChoice
    run_dir: Path
    session: str | None
    host: str
    port: int
    max_reply_tokens: int
    temperature: float


def proxy(
    model: ModelName,
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
    upstream: UpstreamUrl = None,
    upstream_key_env: UpstreamKeyEnv = None,
) -> None:
    """Record one session of any harness, in any of the four API dialects.

    Prints the address and the key to give to it. Ctrl-C ends and commits the recording, without a score. With
    --upstream a hosted model answers: its replies are recorded as text, for evaluation and demonstrations.

    \b
    Examples:
      palestra proxy --model runs/demo/warm --run-dir runs/by-hand
      palestra show runs/by-hand session-1 --model runs/demo/warm
      palestra proxy --upstream https://api.openai.com/v1 --upstream-key-env KEY --model NAME --run-dir runs/hosted
    """
    from palestra.rollouts.loop import run

    choice = ModelChoice.of(model, engine_url, engine_model, upstream, upstream_key_env)
    run(_record(_Plan(choice, run_dir, session, host, port, max_reply_tokens, temperature)))


async def _record(plan: _Plan) -> None:
    """The store is opened first: what could refuse the recording refuses it before there is one."""
    from palestra.harness_proxy.server import Proxy

    with write_store(plan.run_dir) as store:
        name = free_name(store, plan.run_dir, plan.session, "session")
        server = Proxy(*await plan.model.start())
        try:
            await _serve(plan, store, server, name)
        finally:
            await server.engine.aclose()


async def _serve(plan: _Plan, store: Store, server: Proxy, name: str) -> None:
    from palestra.trajectories.errors import StoreFullError
    from palestra.trajectories.model import Sampling

    with listening(plan.host, plan.port):
        await server.start(plan.host, plan.port)
    sampling = Sampling(plan.temperature, max_tokens=plan.max_reply_tokens)
    level = server.capability.capture_level
    journal = store.journal(lost(name, level))
    session = server.open(name, mode="eval", sampling=sampling, journal=journal)
    print(f"recording {name} in {plan.run_dir}; Ctrl-C ends and commits it", file=sys.stderr)
    print(f"export OPENAI_BASE_URL={session.base_url}\nexport OPENAI_API_KEY={session.key}", flush=True)
    await until_stopped()
    recording = server.close(session)
    await server.aclose()
    where = f"palestra show {plan.run_dir} {name}" + (
        f" --model {plan.model.name}" if server.rendering else ""
    )
    try:
        store.append(without_task(name, recording, level))
    except StoreFullError as error:
        kept = (
            f" The {len(recording.calls)} calls are in {journal.path} meanwhile: {where}"
            if journal.path
            else ""
        )
        raise UsageError(f"{error}.{kept}") from error
    journal.discard()
    print(f"\nrecorded {len(recording.calls)} calls: {where}", file=sys.stderr)
