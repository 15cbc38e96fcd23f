"""What sandboxes stand on: directories of images and frozen files of other sandboxes, and who still needs them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from palestra.envs.sandbox.cgroups import Group
from palestra.envs.sandbox.errors import SandboxLostError, SandboxSetupError
from palestra.envs.sandbox.supervisor import Supervisor

UPPER = "u"
"""The directory of what was written, among the files of a room."""


@dataclass(slots=True, eq=False)
class Layer:
    """Something that the supervisor can put below a sandbox."""

    name: str
    permanent: bool
    holders: int = 0
    group: Group | None = None
    """Its memory counts there: nobody else may be bound by that group as long as the layer exists."""

    @classmethod
    def of_room(cls, room: str, group: Group | None) -> Layer:
        """What an ended room has written, held once."""
        return cls(f"{room}/{UPPER}", permanent=False, holders=1, group=group)


@dataclass(slots=True)
class Layers:
    """Which layers there are, and who still needs them."""

    supervisor: Supervisor
    give_back: Callable[[Group | None], None]
    """What is done with the group of a layer that is gone."""
    directories: dict[Path, Layer] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def of_directory(self, path: Path) -> Layer:
        with self.lock:
            if path not in self.directories:
                if not path.is_dir():
                    raise SandboxSetupError(f"no image at {path}: build it with `palestra sandbox build`")
                name = f"image-{len(self.directories)}"
                self.supervisor.ask("layer", [("id", name), ("path", path)])
                self.directories[path] = Layer(name, permanent=True)
            return self.directories[path]

    def hold(self, layers: tuple[Layer, ...]) -> None:
        with self.lock:
            for layer in layers:
                layer.holders += 1

    def let_go(self, layers: tuple[Layer, ...]) -> None:
        with self.lock:
            unused = []
            for layer in layers:
                layer.holders -= 1
                if layer.holders == 0 and not layer.permanent:
                    unused.append(layer)
        for layer in unused:
            with contextlib.suppress(SandboxLostError):
                self.supervisor.ask("drop", [("id", layer.name.removesuffix(f"/{UPPER}"))])
            self.give_back(layer.group)
