"""What a harness is: anything that plays a world with a model behind an API address and a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from palestra.rollouts.world import World


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a harness finds its model: an OpenAI-compatible base URL ending in /v1, and a key."""

    base_url: str
    key: str
    session: str = ""
    """The rollout's id, which engines see as their session."""
    model: str = "palestra"


class Harness(Protocol):
    """Plays one episode. One instance serves many rollouts at once."""

    name: str
    version: str

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Act until the world is over or the harness gives up.

        Raises RolloutError at boundary provider when the model is out of reach. Any other exception is a
        failure at boundary harness; what the agent itself does wrong is none.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Calling it twice is fine."""
        ...
