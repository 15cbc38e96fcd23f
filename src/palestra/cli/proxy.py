"""`palestra proxy`: put the recorder before a model and hand out an address, for harnesses run by hand."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from palestra.cli.options import EngineUrl, ModelDir, checked_model, make_engine


def proxy(
    model: ModelDir,
    run_dir: Annotated[Path, typer.Option("--run-dir", help="where the recording is kept")],
    session: Annotated[str, typer.Option(help="id under which the session is recorded")] = "session-1",
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one")] = 0,
    max_reply_tokens: Annotated[int, typer.Option(help="bound on one reply")] = 1024,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    engine_url: EngineUrl = None,
) -> None:
    """Record one session of any OpenAI-compatible harness. Ctrl-C ends and commits it, without a score.

    Example: palestra proxy --model runs/demo/warm --run-dir runs/by-hand
    """
    from palestra.rollouts import loop

    loop.run(
        _serve(checked_model(model), run_dir, session, host, port, max_reply_tokens, temperature, engine_url)
    )


async def _serve(
    model: Path,
    run_dir: Path,
    name: str,
    host: str,
    port: int,
    max_reply_tokens: int,
    temperature: float,
    engine_url: str | None,
) -> None:
    from palestra.harness_proxy.rendering import Rendering
    from palestra.harness_proxy.server import Proxy
    from palestra.trajectories.model import Failure, Rollout, Sampling, Trajectory
    from palestra.trajectories.store import Store

    engine = make_engine(model, engine_url)
    server = Proxy(engine, Rendering.load(model))
    await server.start(host, port)
    opened = server.open(name, mode="eval", sampling=Sampling(temperature, max_tokens=max_reply_tokens))
    print(f"export OPENAI_BASE_URL={opened.base_url}\nexport OPENAI_API_KEY={opened.key}", flush=True)
    await _until_stopped()
    recording = server.close(opened)
    level = server.capability.capture_level
    await server.aclose()
    await engine.aclose()
    unscored = recording.failure or Failure(
        "cancelled", "by hand", "a session run by hand has no task to score"
    )
    rollout = Rollout(
        name,
        "by-hand",
        name,
        "none",
        0,
        1,
        "eval",
        "unknown",
        "",
        level,
        0,
        failure=unscored,
        findings=recording.findings,
    )
    with Store.open(run_dir / "store", write=True) as store:
        store.append(Trajectory(rollout, recording.nodes, recording.calls, (), recording.tools))
    print(f"\nrecorded {len(recording.calls)} calls: palestra show {run_dir} {name} --model {model}")


async def _until_stopped() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
