"""When the rollouts of the next step may begin.

in_turn    once those of the step before are complete, in order
capacity   as soon as the staleness bound leaves room, several steps at once: a slow rollout holds up its own step alone

Either way the policy of a rollout is at most `staleness` versions old when it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from palestra.training.samplers.staleness import rollout_capacity


class Pace(Protocol):
    """Decides on beginnings."""

    def may_begin(self, step: int, version: int, complete: int) -> bool:
        """Whether to begin step `step`, the steps before it having begun and `complete` of all having ended, while
        `version` is served."""
        ...


class InTurn:
    """One step after the other."""

    def __init__(self, staleness: int, batch: int) -> None:
        self._staleness = staleness

    def may_begin(self, step: int, version: int, complete: int) -> bool:
        return complete == step and step <= version + self._staleness


class Capacity:
    """As many steps at once as `rollout_capacity` has room for, at most `max_running` rollouts.

    A sampler that plays in rounds then proposes for several steps by turns, in an order that depends on how long
    rollouts take.
    """

    def __init__(self, staleness: int, batch: int, *, max_running: int | None = None) -> None:
        """`batch`: rollouts of a step. `max_running`: by default what the staleness allows.

        Raises ValueError where no step fits.
        """
        self._staleness, self._batch = staleness, batch
        self._max_running = (staleness + 1) * batch if max_running is None else max_running
        if self._max_running < batch:
            raise ValueError(
                f"max_running must be at least the {batch} rollouts of a step, not {max_running}"
            )

    def may_begin(self, step: int, version: int, complete: int) -> bool:
        room = rollout_capacity(
            version=version,
            batch=self._batch,
            max_staleness=self._staleness,
            accepted=complete * self._batch,
            running=(step - complete) * self._batch,
            max_running=self._max_running,
        )
        return room >= self._batch


paces: Mapping[str, Callable[..., Pace]] = {"in_turn": InTurn, "capacity": Capacity}
"""By name: (staleness, rollouts of a step, **options)."""
