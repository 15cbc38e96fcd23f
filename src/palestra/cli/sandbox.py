"""`palestra sandbox`: what this machine can do, images, and what dead processes left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.envs.sandbox.base import Backend

app = typer.Typer(
    help="Isolated machines for agents: check this one, build images, clean up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
BackendName = Annotated[str, typer.Option("--backend", metavar="NAME", help="namespace or docker")]


@app.command("list")
def list_images() -> None:
    """List the images: which there are and which are built.

    \b
    Example:
      palestra sandbox list
    """
    from palestra.envs.sandbox import images

    for name in images.names():
        image = images.built(name)
        print(f"{name:10}{image.layers[-1] if image else f'not built: palestra sandbox build {name}'}")


@app.command()
def build(
    name: Annotated[str, typer.Argument(metavar="IMAGE", help="base, swe or harness")] = "base",
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="also pack it into a tar file, for `palestra sandbox load`"),
    ] = None,
) -> None:
    """Build an image, unless it is built: with debootstrap, as root, without a registry.

    \b
    Examples:
      palestra sandbox build swe
      palestra sandbox build base --save base.tar
    """
    from palestra.envs.sandbox import images

    image = images.build(name)
    print(f"{name} {image.digest[:16]}: {' + '.join(str(layer) for layer in image.layers)}")
    if save:
        images.save(name, save)


@app.command()
def load(
    name: Annotated[str, typer.Argument(metavar="NAME", help="what to call it")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="tar file of a root file system")],
) -> None:
    """Unpack an image that belongs to you: how an ordinary user gets one.

    \b
    Examples:
      palestra sandbox load base base.tar
      docker export $(docker create debian:bookworm) > debian.tar; palestra sandbox load debian debian.tar
    """
    from palestra.envs.sandbox import images

    if not file.is_file():
        raise UsageError(f"no file {file}: make one with `palestra sandbox build base --save {file}` as root")
    print(images.load(name, file).layers[0])


@app.command()
def check(backend: BackendName = "namespace") -> None:
    """Make a sandbox and run a command in it; say what this machine does not give.

    \b
    Examples:
      palestra sandbox check
      palestra sandbox check --backend docker
    """
    import time

    from palestra.envs.sandbox import images

    with _open(backend) as made:
        for lack in made.lacks():
            print(f"limited: {lack}")
        image = images.built("base")
        if image is None:
            raise UsageError("the image is not built: palestra sandbox build base")
        made.create(image).close()
        began = time.perf_counter()
        with made.create(image) as sandbox:
            done = sandbox.exec(["id", "-un"])
        took_ms = 1000 * (time.perf_counter() - began)
        print(
            f"{backend}: a sandbox made, used and removed in {took_ms:.1f} ms, as {done.stdout.decode().strip()}"
        )


@app.command()
def reap(backend: BackendName = "namespace") -> None:
    """Remove what dead processes left. Every backend does so when it starts, too.

    \b
    Example:
      palestra sandbox reap --backend docker
    """
    with _open(backend) as made:
        print(f"{made.reap()} removed")


def _open(name: str) -> Backend:
    from palestra.envs.sandbox.backends import open_backend

    try:
        return open_backend(name)
    except ValueError as error:
        raise UsageError(str(error)) from error
