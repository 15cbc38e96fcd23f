"""`palestra rollout`: have a model play tasks, and keep everything that happened."""

from __future__ import annotations

from typing import Annotated

import typer

from palestra.cli.options import (
    Concurrency,
    EngineModel,
    EngineUrl,
    HarnessName,
    Limit,
    MaxReplyTokens,
    Mode,
    ModelName,
    RunDir,
    Samples,
    Seed,
    SplitOption,
    TaskSetName,
    Temperature,
    UpstreamKeyEnv,
    UpstreamUrl,
)


def rollout(
    tasks: TaskSetName,
    model: ModelName,
    run_dir: RunDir,
    split: SplitOption = "test",
    limit: Limit = None,
    samples: Samples = 1,
    temperature: Temperature = 1.0,
    max_reply_tokens: MaxReplyTokens = 256,
    seed: Seed = 0,
    mode: Annotated[Mode, typer.Option(help="train: token ids are required of the engine")] = "eval",
    run: Annotated[str, typer.Option(metavar="NAME", help="name of the run within the store")] = "rollouts",
    engine_url: EngineUrl = None,
    engine_model: EngineModel = None,
    upstream: UpstreamUrl = None,
    upstream_key_env: UpstreamKeyEnv = None,
    harness: HarnessName = "tool-loop",
    concurrency: Concurrency = None,
) -> None:
    """Have a model play tasks and keep every rollout.

    Run it again to continue: what is there is not played again. A rollout that failed for a reason of ours has
    no reward and is counted apart; exit status 1 when all failed.

    The model plays through a loop with the tools of the world, or through an agent that you name: palestra harness
    install NAME puts it on this machine. On tasks whose world is a machine (swe-*) the agent runs inside the
    sandbox, with its own tools and no network but the proxy; elsewhere it gets the world as a shell command. Give
    such agents room: --max-reply-tokens 4096.

    \b
    Examples:
      palestra rollout sql-tiny --model runs/demo/warm --run-dir runs/try --limit 50 --samples 4
      palestra rollout swe-tiny --harness codex --model qwen3-8b --run-dir runs/swe --max-reply-tokens 4096
      palestra show runs/try
    """
    from palestra.cli.model_choice import ModelChoice
    from palestra.cli.play import Plan, play

    play(
        Plan(
            tasks=tasks,
            split=split,
            limit=limit,
            samples=samples,
            model=ModelChoice.of(model, engine_url, engine_model, upstream, upstream_key_env),
            run_dir=run_dir,
            run=run,
            mode=mode,
            seed=seed,
            temperature=temperature,
            max_reply_tokens=max_reply_tokens,
            harness=harness,
            concurrency=concurrency,
        )
    )
