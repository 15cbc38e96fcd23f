"""`palestra harness run`: one prompt, one harness, one model, one recording."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from palestra.cli.by_hand import free_name, without_task
from palestra.cli.errors import UsageError
from palestra.cli.model_choice import ModelChoice
from palestra.cli.options import (
    EngineModel,
    EngineUrl,
    MaxReplyTokens,
    ModelName,
    RunDir,
    Temperature,
    UpstreamKeyEnv,
    UpstreamUrl,
    write_store,
)

if TYPE_CHECKING:
    from palestra.harness_proxy.server import Proxy
    from palestra.rollouts.harnesses.driver import Driver
    from palestra.trajectories.model import Failure, Sampling
    from palestra.trajectories.store import Store

Name = Annotated[str, typer.Argument(metavar="NAME", help="a harness of `palestra harness list`")]
Dialect = Annotated[
    Literal["chat", "responses", "anthropic", "gemini"] | None,
    typer.Option(help="the API that it is to speak  [default: its preferred one]"),
]
Isolation = Annotated[
    bool,
    typer.Option(
        "--isolation/--no-isolation",
        help="namespaces without a network but the proxy; without them nothing holds the harness back",
    ),
]
Work = Annotated[
    Path | None, typer.Option(metavar="DIR", help="directory to work in  [default: a fresh one, thrown away]")
]
SessionName = Annotated[
    str | None, typer.Option(metavar="NAME", help="names the recording  [default: <harness>-1, -2, ...]")
]


@dataclass(frozen=True, slots=True)
class _Plan:
    driver: Driver
    prompt: str
    model: ModelChoice
    run_dir: Path
    work: Path | None
    session: str | None
    sampling: Sampling
    timeout_s: float
    max_calls: int


def run_(
    name: Name,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="what the agent is to do")],
    model: ModelName,
    run_dir: RunDir,
    work: Work = None,
    session: SessionName = None,
    dialect: Dialect = None,
    isolation: Isolation = True,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="bound on the whole session")
    ] = 600.0,
    max_calls: Annotated[int, typer.Option(min=1, metavar="N", help="bound on the calls to the model")] = 100,
    max_reply_tokens: MaxReplyTokens = 1024,
    temperature: Temperature = 1.0,
    engine_url: EngineUrl = None,
    engine_model: EngineModel = None,
    upstream: UpstreamUrl = None,
    upstream_key_env: UpstreamKeyEnv = None,
) -> None:
    """Let a harness work on PROMPT with a model, keep every token, and print its last words.

    Outside of its directory it can read this machine's files and change none.

    \b
    Examples:
      palestra harness run codex "Make the tests pass." --model runs/demo/warm --run-dir runs/codex
      palestra show runs/codex codex-1 --model runs/demo/warm
    """
    from palestra.rollouts.harnesses.driver import Driver
    from palestra.rollouts.harnesses.recipes import find_recipe
    from palestra.rollouts.loop import run
    from palestra.trajectories.model import Sampling

    if work is not None and not work.is_dir():
        raise UsageError(f"{work} is no directory: make it, or leave --work out")
    driver = Driver(find_recipe(name), dialect=dialect, isolated=isolation, max_reply_tokens=max_reply_tokens)
    driver.installed()
    sampling = Sampling(temperature, max_tokens=max_reply_tokens)
    choice = ModelChoice.of(model, engine_url, engine_model, upstream, upstream_key_env)
    run(_record(_Plan(driver, prompt, choice, run_dir, work, session, sampling, timeout_s, max_calls)))


async def _record(plan: _Plan) -> None:
    """The store is opened first: what could refuse the recording refuses it before there is one."""
    from palestra.harness_proxy.server import Proxy

    with write_store(plan.run_dir) as store:
        name = free_name(store, plan.run_dir, plan.session, plan.driver.recipe.name)
        engine, rendering = await plan.model.start()
        proxy = Proxy(engine, rendering)
        try:
            await proxy.start()
            failure = await _play(plan, store, proxy, name)
        finally:
            await proxy.aclose()
            await engine.aclose()
    if failure is not None:
        raise UsageError(f"{failure.boundary} failed in {failure.stage}: {failure.message}")


async def _play(plan: _Plan, store: Store, proxy: Proxy, name: str) -> Failure | None:
    from palestra.rollouts.errors import RolloutError
    from palestra.rollouts.harnesses.base import Endpoint, ProxyLine

    session = proxy.open(name, mode="eval", sampling=plan.sampling, max_calls=plan.max_calls)
    endpoint = Endpoint(session.base_url, session.key, name, line=ProxyLine(proxy, session))
    driver, failure = plan.driver, None
    print(f"{driver.recipe.name} {driver.installed().version} works, recorded as {name}", file=sys.stderr)
    try:
        async with driver.place(endpoint, plan.work) as place:
            ended = await driver.prompt(place, endpoint, plan.prompt, timeout_s=plan.timeout_s)
            print(driver.recipe.answer(ended))
    except RolloutError as error:
        failure = error.failure
    recording = proxy.close(session)
    about = driver.recipe.name, driver.installed().version
    level = proxy.capability.capture_level
    store.append(without_task(name, recording, level, harness=about, failure=failure))
    tokens = sum(int(node.sampled.sum()) for node in recording.nodes)
    where = f"palestra show {plan.run_dir} {name}" + (
        f" --model {plan.model.name}" if proxy.rendering else ""
    )
    print(f"recorded {len(recording.calls)} calls, {tokens:,} sampled tokens: {where}", file=sys.stderr)
    return recording.failure or failure
