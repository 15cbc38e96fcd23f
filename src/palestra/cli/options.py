"""Options that several commands share, and what they become: a checked model directory, a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.trajectories.store import Store

# `tasks.task` and `trajectories.model` have the same names; importing those would slow down every --help.
Split = Literal["train", "dev", "test"]
Mode = Literal["train", "eval"]

TaskSetName = Annotated[
    str,
    typer.Argument(
        metavar="TASKS", help="task set: a registered name, a .jsonl file, or package.module:function"
    ),
]
ModelDir = Annotated[
    Path,
    typer.Option("--model", metavar="DIR", help="local model: config.json, tokenizer.json, *.safetensors"),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="DIR",
        help="local model: config.json, tokenizer.json, *.safetensors; or a name at --upstream",
    ),
]
RunDir = Annotated[
    Path, typer.Option("--run-dir", metavar="DIR", help="where rollouts are kept, and continued")
]
SplitOption = Annotated[Split, typer.Option("--split", help="which part of the task set")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="only the first N tasks of the split")
]
Samples = Annotated[
    int, typer.Option("--samples", min=1, metavar="K", help="attempts at each task; with several also pass@K")
]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, metavar="T", help="0 is greedy")]
MaxReplyTokens = Annotated[
    int, typer.Option("--max-reply-tokens", min=1, metavar="N", help="bound on one reply")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="decides everything that is drawn")]
EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine-url",
        metavar="URL",
        help="sample from this /v1/completions server, or from several, URL,URL",
    ),
]
EngineModel = Annotated[
    str | None,
    typer.Option(
        "--engine-model", metavar="NAME", help="the model's name there, by default that of its directory"
    ),
]
UpstreamUrl = Annotated[
    str | None,
    typer.Option(
        "--upstream",
        metavar="URL",
        help="a hosted chat API (OpenAI-compatible) answers, recorded as text alone",
    ),
]
UpstreamKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--upstream-key-env", metavar="NAME", help="environment variable that holds the key of --upstream"
    ),
]
HarnessName = Annotated[
    str,
    typer.Option(
        "--harness",
        metavar="NAME",
        help="who plays: tool-loop, or a program of `palestra harness list`, inside the sandbox where there is one",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", min=1, metavar="N", help="attempts at once  [default: 256, of a program 2 per core]"
    ),
]


def checked_model(model: Path) -> Path:
    """The directory of `model`, fetched where it is a name on the hub, if it has what rendering needs.

    Raises UsageError.
    """
    from palestra.harness_proxy.errors import ModelNotFoundError
    from palestra.harness_proxy.models import model_dir

    help = "give the directory of a local model, for example one that `palestra demo` wrote: runs/demo/warm"
    try:
        found = model_dir(model)
    except ModelNotFoundError as error:
        raise UsageError(f"{error}: {help}") from error
    for name in ("tokenizer.json", "config.json"):
        if not (found / name).is_file():
            raise UsageError(f"{model} has no {name}: {help}")
    return found


@contextmanager
def loading(model: Path) -> Iterator[None]:
    """While a model is read: what is wrong with its files becomes UsageError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"the model in {model} cannot be loaded: {error}") from error


def read_store(where: Path) -> Store:
    """The store of a run directory, or the one that `where` is, for reading. Raises UsageError.

    What a process that died left in its journal is committed first, unless another one is writing.
    """
    from palestra.trajectories.errors import NoStoreError, StoreLockedError
    from palestra.trajectories.store import Store

    root = where / "store" if (where / "store").is_dir() else where
    try:
        if any((root / "journal").glob("*.journal")):
            with suppress(StoreLockedError, PermissionError):
                Store.open(root, write=True).close()
        return Store.open(root)
    except NoStoreError as error:
        raise UsageError(
            f"there are no rollouts in {where}: give the --run-dir of a palestra rollout, eval, train or demo"
        ) from error


def write_store(run_dir: Path) -> Store:
    """The store of a run directory, made where there is none. Raises UsageError, and what Store.open raises."""
    from palestra.trajectories.store import Store

    try:
        return Store.open(run_dir / "store", write=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"nothing can be kept in {run_dir}: {error.strerror}; choose another") from error
