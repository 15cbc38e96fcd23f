"""`palestra drift`: do engine and trainer agree about what was sampled?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.trajectories.sample import Sample


def drift(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="what a rollout, eval or train wrote")],
    model: Annotated[
        Path, typer.Option(metavar="DIR", help="the weights that the rollouts were sampled with")
    ],
    version: Annotated[
        int | None, typer.Option(metavar="N", help="compare tokens of this policy version alone")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="compute in bfloat16")] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Compare recorded log-probabilities with the trainer's own, and say what to switch on.

    \b
    Examples:
      palestra rollout sql-tiny --model runs/demo/warm --run-dir runs/x
      palestra drift runs/x --model runs/demo/warm
      palestra drift runs/sql-tiny --model runs/sql-tiny/checkpoints/000020 --version 20
    """
    from palestra.cli.options import checked_model, loading
    from palestra.training.drift import drift as measure
    from palestra.training.policy import Policy, PolicyOptions

    temperature, views = _views(run_dir, version)
    model = checked_model(model)
    with loading(model):
        policy = Policy.load(model, PolicyOptions(device=device, bf16=bf16))
    policy.temperature = temperature
    found = measure(policy, views)
    if as_json:
        print(orjson.dumps(asdict(found) | {"advice": list(found.advice())}).decode())
        return
    console = Console()
    for name, value in asdict(found).items():
        console.print(f"{name:8} {value:,}" if name == "tokens" else f"{name:8} {value:.3g}", highlight=False)
    console.print(*(f"- {line}" for line in found.advice()), sep="\n", highlight=False)


def _views(run_dir: Path, version: int | None) -> tuple[float, list[Sample]]:
    """(temperature, samples) of the rollouts in `run_dir`. Raises UsageError where they were not sampled alike."""
    from palestra.cli.options import read_store
    from palestra.trajectories.sample import samples

    with read_store(run_dir) as store:
        chosen = [t for t in store if version is None or t.rollout.policy_versions == (version, version)]
    temperatures = {c.effective.temperature for t in chosen for c in t.calls}
    if len(temperatures) != 1:
        what = "no call of that policy version" if version is not None else "no call"
        raise UsageError(
            f"{run_dir} holds rollouts of temperatures {sorted(temperatures)}: they must be one"
            if temperatures
            else f"{run_dir} holds {what}: give a run that sampled"
        )
    return temperatures.pop(), [s for t in chosen for s in samples(t)]
