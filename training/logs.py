"""The figures of each step for TensorBoard and Weights & Biases, the extra [logging].

    with logging_to(["tensorboard"], run_dir, trainer.step) as write:
        write(result)

TensorBoard: `tensorboard --logdir runs`. Weights & Biases writes to run_dir/wandb and sends nothing unless WANDB_MODE
says so; `wandb sync` does it later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from palestra.training.errors import ConfigError

if TYPE_CHECKING:
    from palestra.training.trainer import StepResult

Write = Callable[[int, Mapping[str, float]], None]
"""Takes the number of the step and its figures by name."""
_Log = AbstractContextManager[Write]


@contextmanager
def logging_to(names: Sequence[str], run_dir: Path, step: int) -> Iterator[Callable[[StepResult], None]]:
    """A function that writes a step to every log of `names`, of a run that continues after `step`.

    Raises ConfigError for a log that does not exist or is not installed.
    """
    with ExitStack() as stack:
        writers = [stack.enter_context(_log(name)(run_dir, step)) for name in names]

        def write(result: StepResult) -> None:
            figures = {
                f"train/{name}": float(value) for name, value in asdict(result).items() if name != "step"
            }
            for writer in writers:
                writer(result.step, figures)

        yield write


def _log(name: str) -> Callable[[Path, int], _Log]:
    if name not in logs:
        raise ConfigError(f"log: there is no {name!r}; there are {', '.join(logs)}")
    return logs[name]


@contextmanager
def tensorboard(run_dir: Path, step: int) -> Iterator[Write]:
    """run_dir/tensorboard; what a killed run wrote beyond its last checkpoint is hidden."""
    with _installed():
        from torch.utils.tensorboard import SummaryWriter
    with SummaryWriter(str(run_dir / "tensorboard"), purge_step=step + 1) as writer:

        def write(number: int, figures: Mapping[str, float]) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, number)
            writer.flush()

        yield write


@contextmanager
def weights_and_biases(run_dir: Path, step: int) -> Iterator[Write]:
    """run_dir/wandb, as one run that goes on."""
    with _installed():
        import wandb
    run_dir.mkdir(parents=True, exist_ok=True)
    with wandb.init(
        project="palestra",
        name=run_dir.name,
        dir=str(run_dir),
        mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
        settings=wandb.Settings(silent=True, console="off"),
    ) as run:
        yield lambda number, figures: run.log(dict(figures), step=number)


logs: Mapping[str, Callable[[Path, int], _Log]] = {
    "tensorboard": tensorboard,
    "wandb": weights_and_biases,
}
"""By name."""


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"log: {error.name} is not installed: pip install 'palestra[logging]'") from error
