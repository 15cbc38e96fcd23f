"""`palestra sandbox`: checking this machine, listing images, refusing what is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandboxes import backend, base_image

Command = Callable[..., Any]


def test_check_uses_a_sandbox(palestra: Command) -> None:
    base_image()
    backend("namespace").close()
    ended = palestra("sandbox", "check")
    assert ended.status == 0 and "as agent" in ended.out


def test_list_names_every_recipe(palestra: Command) -> None:
    ended = palestra("sandbox", "list")
    assert {line.split()[0] for line in ended.out.splitlines()} >= {"base", "swe", "harness"}


def test_reap_counts(palestra: Command) -> None:
    backend("namespace").close()
    assert palestra("sandbox", "reap").out == "0 removed\n"


def test_what_is_not_there_is_refused(palestra: Command, tmp_path: Path) -> None:
    for arguments, word in [
        (("check", "--backend", "podman"), "namespace, docker"),
        (("build", "bsae"), "base, harness, swe"),
        (("load", "x", str(tmp_path / "none.tar")), "--save"),
    ]:
        ended = palestra("sandbox", *arguments)
        assert ended.status == 2 and word in ended.err
