"""One recipe on one session: make a place, prompt, and say at which boundary it broke where it did.

driver = Driver(find_recipe("codex"))
async with driver.place(endpoint) as place:
    ended = await driver.prompt(place, endpoint, "Make the tests pass.", timeout_s=600)
    ended = await driver.prompt(place, endpoint, "And the linter.", timeout_s=600, again=True)
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from palestra.harness_proxy.errors import ProxyStateError
from palestra.rollouts.errors import NotInstalledError, PlaceError, RecipeError, RolloutError
from palestra.rollouts.harnesses.base import Endpoint, Line
from palestra.rollouts.harnesses.machine_place import MachinePlace
from palestra.rollouts.harnesses.place import PORT, Ended, Place, ScratchPlace, Wire, scratch_place
from palestra.rollouts.harnesses.recipes.install import Installed, folder_of, require
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch
from palestra.rollouts.world import World

GRACE_S = 5.0
"""Some harnesses would ask for ever."""
_POLL_S = 0.1


class Driver:
    """Drives `recipe` in `dialect`. Stateless but for what it found installed."""

    def __init__(
        self,
        recipe: HarnessRecipe,
        *,
        dialect: DialectName | None = None,
        isolated: bool = True,
        max_reply_tokens: int = 8192,
        context_tokens: int = 128_000,
        grace_s: float = GRACE_S,
    ) -> None:
        """`dialect`: by default the recipe's preferred one. The sizes are what the harness is told; `grace_s`
        it gets to end by itself once a budget of its session is spent.

        Raises RecipeError for a dialect that the harness does not speak.
        """
        self.recipe, self.isolated = recipe, isolated
        self.dialect: DialectName = dialect or recipe.dialects[0]
        if self.dialect not in recipe.dialects:
            raise RecipeError(f"{recipe.name} speaks {', '.join(recipe.dialects)}, not {dialect}")
        self._sizes = context_tokens, max_reply_tokens
        self._grace_s = grace_s
        self._installed: Installed | None = None

    def installed(self) -> Installed:
        """The harness on this machine. Raises NotInstalledError."""
        self._installed = self._installed or require(self.recipe.name, self.recipe.install)
        return self._installed

    @asynccontextmanager
    async def place(
        self, endpoint: Endpoint, work: Path | None = None, relays: Mapping[int, Path] | None = None
    ) -> AsyncIterator[ScratchPlace]:
        """A fresh place with a line to the proxy; `work` is a directory to work in, if not a fresh one.

        `relays`: unix sockets by the loopback ports at which they answer too, if the place is isolated.

        Raises RolloutError: at boundary sandbox without namespaces, at provider without a proxy, at harness
        where it is not installed.
        """
        with _attributed():
            await asyncio.to_thread(self.installed)
            wire = await self._wire(endpoint, relays or {})
            async with scratch_place(wire, isolated=self.isolated, work=work) as place:
                yield place

    @asynccontextmanager
    async def place_on(self, world: World, endpoint: Endpoint) -> AsyncIterator[MachinePlace]:
        """The machine of a world that has just begun, with a line to the proxy and with the harness on it.

        Raises what `place` raises, and RolloutError at boundary env where the world has no machine to give.
        """
        with _attributed():
            await asyncio.to_thread(self.installed)
            inside = self.recipe.install.inside(folder_of(self.recipe.name))
            assert endpoint.line is not None
            sockets = {PORT: await endpoint.line.unix_socket()}
            machine, work = await world.equip(sockets, inside.shared)
            with closing(MachinePlace(machine, work, inside)) as place:
                yield place

    async def prompt(
        self, place: Place, endpoint: Endpoint, text: str, *, timeout_s: float, again: bool = False
    ) -> Ended:
        """Let the harness work on `text`, with `again` in the conversation of the last time, to its end.

        Raises RolloutError: at boundary budget past `timeout_s`, at harness where it broke or asked no model,
        at provider where the proxy could not be reached. RecipeError where it cannot go on. A session whose
        budget is spent is an end like any other, and one that failed has its cause in its recording.
        """
        launch = self._launch(place, endpoint, text, again)
        env = {**_environment(place), **launch.env}
        files = {".profile": f"export PATH={shlex.quote(env['PATH'])}\n", **launch.files}
        await place.write({f"home/{name}": content for name, content in files.items()})
        stop, line = asyncio.Event(), endpoint.line
        watch = asyncio.create_task(_stop_when_over(line, self._grace_s, stop)) if line is not None else None
        before = line.last_call() if line is not None else None
        try:
            ended = await place.run(launch.argv, env=env, timeout_s=timeout_s, stop=stop)
        finally:
            if watch is not None:
                watch.cancel()
        await self._judge(ended, endpoint, before, timeout_s)
        return ended

    def _launch(self, place: Place, endpoint: Endpoint, text: str, again: bool) -> Launch:
        address = Address(place.proxy_url, endpoint.key, self.dialect, endpoint.model, *self._sizes)
        program, recipe = place.program(self.installed().program), self.recipe
        return recipe.resume(program, text, address) if again else recipe.launch(program, text, address)

    async def _wire(self, endpoint: Endpoint, relays: Mapping[int, Path]) -> Wire:
        url = endpoint.base_url.removesuffix("/v1")
        if not self.isolated:
            return Wire(url)
        if endpoint.line is None:
            raise ProxyStateError("the proxy is in another process: run with isolated=False")
        return Wire(url, await endpoint.line.unix_socket(), relays)

    async def _judge(self, ended: Ended, endpoint: Endpoint, before: int | None, timeout_s: float) -> None:
        line = endpoint.line
        if line is not None and (line.stops() or line.failed()):
            return
        if ended.exit_code is None:
            raise RolloutError("budget", "run", f"{self.recipe.name} ran for more than {timeout_s:g} s")
        silent = line is not None and line.last_call() == before
        problem = self.recipe.problem(ended)
        if silent:
            await _reach(line)
            problem = problem or f"it ended without asking the model once: {ended.tail}"
        if problem is not None:
            raise RolloutError("harness", "run", problem)


@contextmanager
def _attributed() -> Iterator[None]:
    """What keeps a place from being made, or breaks it, at its boundary."""
    try:
        yield
    except NotInstalledError as error:
        raise RolloutError("harness", "install", str(error)) from error
    except PlaceError as error:
        raise RolloutError("sandbox", "place", str(error), final=True) from error
    except ProxyStateError as error:
        raise RolloutError("provider", "place", str(error), final=True) from error


async def _stop_when_over(line: Line, grace_s: float, stop: asyncio.Event) -> None:
    while not (line.stops() or line.failed()):
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(grace_s)
    stop.set()


async def _reach(line: Line | None) -> None:
    """Raises RolloutError at boundary provider where nobody takes connections."""
    assert line is not None
    try:
        _, writer = await asyncio.open_unix_connection(await line.unix_socket())
        writer.close()
    except (OSError, ProxyStateError) as error:
        raise RolloutError("provider", "connect", f"the proxy cannot be reached: {error}") from error


def _environment(place: Place) -> dict[str, str]:
    """All that a harness gets of the environment, beside its recipe's."""
    home = place.path("home")  # its .profile repeats PATH: login shells, which codex starts, begin a new one
    path = os.pathsep.join([place.path("bin"), place.search_path])
    return {"HOME": home, "PATH": path, "TMPDIR": place.path("tmp"), "LANG": "C.UTF-8", "TERM": "dumb"}
