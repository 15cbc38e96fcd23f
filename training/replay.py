"""Replay: rollouts of earlier steps trained again.

A buffer holds names and numbers alone: the tokens, with the policy version that sampled each of them, are in the
store. What was credited to a decision when it was new stays its credit. Replayed rollouts are off-policy: the ratio
of the loss is taken to the policy that sampled (proximal "recorded"), or to a later one with an importance
correction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A rollout that may be trained again."""

    rollout_id: str
    group_id: str
    version: int
    """Of the policy that it was sampled with; the oldest, where there were several."""
    score: float
    tokens: int
    """Sampled tokens of its decisions."""
    credit: Mapping[str, float]
    """Advantage by Call.seq, written as text."""

    @property
    def informative(self) -> bool:
        """Some decision has credit."""
        return any(self.credit.values())


class Replay(Protocol):
    """Decides which rollouts a step trains on."""

    def mix(self, fresh: Sequence[Entry], version: int) -> list[Entry]:
        """What to train on in the step of policy `version`, given its own rollouts; remembers those."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


class NoReplay:
    """Every rollout once, when it is new."""

    def __init__(self, seed: int) -> None:
        pass

    def mix(self, fresh: Sequence[Entry], version: int) -> list[Entry]:
        """What is new."""
        return list(fresh)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing was."""


class RecentReplay:
    """What is new, and `share` as many of the last `capacity` informative rollouts, none twice in a step.

    Rollout replay: first in, first out; none older than `max_age` versions. Source: Sun et al. 2025,
    arXiv:2506.05316, section 4.3, where replayed rollouts take the place of new ones: lower `groups_per_step` for
    that.
    """

    def __init__(self, seed: int, *, share: float = 0.5, capacity: int = 512, max_age: int = 8) -> None:
        """Raises ValueError for a share below 0."""
        if share < 0:
            raise ValueError(f"share is at least 0, got {share}")
        self._seed, self._share, self._capacity, self._max_age = seed, share, capacity, max_age
        self._entries: list[Entry] = []

    def mix(self, fresh: Sequence[Entry], version: int) -> list[Entry]:
        """New ones first."""
        self._entries = [e for e in self._entries if version - e.version <= self._max_age]
        draw = random.Random(f"{self._seed}/{version}")
        weights = [self._weight(version - e.version) for e in self._entries]
        old = _without_replacement(self._entries, weights, round(self._share * len(fresh)), draw)
        self._entries = [*self._entries, *(e for e in fresh if e.informative)][-self._capacity :]
        return [*fresh, *old]

    def state_dict(self) -> dict[str, Any]:
        """The entries."""
        return {"entries": [asdict(e) for e in self._entries]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._entries = [Entry(**e) for e in state["entries"]]

    def _weight(self, age: int) -> float:
        return 1.0


class MixedReplay(RecentReplay):
    """What is new, and `share` as many older rollouts, drawn with probability proportional to decay^age.

    experimental: after ReMix (arXiv:2507.06892), which trains on a mixture of the current and past policies and more
    often per rollout; the weights of the mixture are assumed, its KL constraint is `kl_weight` here, and the policy
    is not reincarnated.
    """

    def __init__(
        self, seed: int, *, share: float = 0.5, capacity: int = 512, max_age: int = 8, decay: float = 0.7
    ) -> None:
        super().__init__(seed, share=share, capacity=capacity, max_age=max_age)
        self._decay = decay

    def _weight(self, age: int) -> float:
        return float(self._decay**age)


class Recomposition:
    """Short successes and long failures now, the rest together every `every` steps.

    A rollout is short or long by the median of the successes or the failures of its step. Every `every`-th step
    trains on everything that was held back as well, so nothing is lost and nothing gets older than that.

    experimental: after RoRecomp, of which the abstract alone was at hand; the medians and the schedule are assumed.
    """

    def __init__(self, seed: int, *, every: int = 4, success: float = 1.0) -> None:
        """`success`: scores from here on are successes. Raises ValueError for `every` below 1."""
        if every < 1:
            raise ValueError(f"every is at least 1, got {every}")
        self._every, self._success = every, success
        self._held: list[Entry] = []

    def mix(self, fresh: Sequence[Entry], version: int) -> list[Entry]:
        """The priority batch, or that and the compensation batch."""
        priority = self._priority(fresh)
        names = {e.rollout_id for e in priority}
        self._held += [e for e in fresh if e.rollout_id not in names]
        if (version + 1) % self._every and priority:
            return priority
        held, self._held = self._held, []
        return [*priority, *held]

    def state_dict(self) -> dict[str, Any]:
        """What was held back."""
        return {"held": [asdict(e) for e in self._held]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._held = [Entry(**e) for e in state["held"]]

    def _priority(self, fresh: Sequence[Entry]) -> list[Entry]:
        won = [e.tokens for e in fresh if e.score >= self._success]
        lost = [e.tokens for e in fresh if e.score < self._success]
        short, long = median_low(won) if won else 0, median_low(lost) if lost else 0
        return [e for e in fresh if (e.tokens <= short if e.score >= self._success else e.tokens >= long)]


replays: Mapping[str, Callable[..., Replay]] = {
    "none": NoReplay,
    "recent": RecentReplay,
    "remix": MixedReplay,
    "rorecomp": Recomposition,
}
"""Replay buffers by name: (seed, **options)."""


def _without_replacement(
    entries: Sequence[Entry], weights: Sequence[float], count: int, draw: random.Random
) -> list[Entry]:
    """`count` of `entries`, or all, one after another in proportion to `weights`."""
    keys = [draw.random() ** (1.0 / w) if w > 0 else -1.0 for w in weights]
    order = sorted(range(len(entries)), key=lambda i: -keys[i])
    return [entries[i] for i in sorted(order[:count])]
