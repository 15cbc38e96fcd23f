"""Real harnesses on a proxy with a witness: what is recorded is held against an account of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import needs
from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording, Session
from palestra.rollouts.errors import NotInstalledError
from palestra.rollouts.harnesses.base import Endpoint, ProxyLine
from palestra.rollouts.harnesses.check import Audit, Witness, audit
from palestra.rollouts.harnesses.driver import Driver
from palestra.rollouts.harnesses.place import Ended, ScratchPlace
from palestra.rollouts.harnesses.recipes import HarnessRecipe
from palestra.rollouts.harnesses.recipes.install import require
from palestra.trajectories.model import Sampling

TIME_S = 90.0


@dataclass
class Played:
    """One session of a real harness."""

    recording: Recording
    audit: Audit
    ends: list[Ended]
    prompts: list[str]
    """What the engine was given, as text."""
    files: dict[str, str]
    """In the directory that the harness worked in."""

    @property
    def roles(self) -> list[str]:
        """Of the calls, in order."""
        return [c.role for c in self.recording.calls]

    def faithful(self) -> Played:
        """Each sampled token is recorded once, on a path that is what the engine was given and gave."""
        assert self.audit.calls > 0
        assert self.audit.mismatches == 0
        assert self.audit.recorded == self.audit.sampled
        return self

    def unbroken(self) -> Played:
        """The main thread is one branch, and all of it was delivered."""
        self.faithful()
        assert (self.audit.branches, dict(self.audit.drifts), self.audit.undelivered) == (1, {}, 0), (
            self.audit
        )
        assert self.recording.failure is None, self.recording.failure
        return self


class Stand:
    """Plays one session after the other; closes what it opened."""

    def __init__(self, rendering: Rendering) -> None:
        self.rendering = rendering
        self.proxies: list[Proxy] = []
        self.sessions: list[Session] = []

    async def play(
        self,
        recipe: HarnessRecipe,
        engine: Engine,
        *,
        dialect: Any = None,
        prompts: Sequence[str] = ("How many are there?",),
        begin: Callable[[str], None] = lambda work: None,
        rendering: Rendering | None = None,
        max_tokens: int = 4096,
        max_calls: int = 30,
    ) -> Played:
        """Prompt by prompt, the later ones in the conversation of the first; `begin` gets the directory."""
        needs_installed(recipe)
        rendering = rendering or self.rendering
        witness = Witness(engine)
        proxy = Proxy(witness, rendering, retry_after_s=1.0)
        self.proxies.append(proxy)
        await proxy.start()
        sampling = Sampling(max_tokens=max_tokens, seed=1)
        session = proxy.open("r", mode="train", sampling=sampling, max_calls=max_calls)
        self.sessions.append(session)
        endpoint = Endpoint(session.base_url, session.key, "r", line=ProxyLine(proxy, session))
        driver = Driver(recipe, dialect=dialect, grace_s=1.0, context_tokens=1_000_000)
        ends: list[Ended] = []
        async with driver.place(endpoint) as place:
            begin(place.path("work"))
            for number, prompt in enumerate(prompts):
                again = number > 0
                ends.append(await driver.prompt(place, endpoint, prompt, timeout_s=TIME_S, again=again))
            files = _files(place)
        recording, seen = proxy.close(session), witness.seen.get("r", [])
        texts = [rendering.decode(given) for given, _ in seen]
        return Played(recording, audit(recording, seen), ends, texts, files)

    async def aclose(self) -> None:
        """Close the proxies."""
        for proxy in self.proxies:
            await proxy.aclose()


def needs_installed(recipe: HarnessRecipe) -> None:
    """Skip, or fail on CI, where the harness is not on this machine."""
    try:
        require(recipe.name, recipe.install)
    except NotInstalledError as error:
        needs.need(False, str(error))


def _files(place: ScratchPlace) -> dict[str, str]:
    work = Path(place.path("work"))
    return {p.name: p.read_text() for p in work.iterdir() if p.is_file() and p.stat().st_size < 10_000}
