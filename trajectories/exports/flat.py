"""A sample cut into prompt and response, as slime, verl and TRL all want it.

The prompt ends before the first token that carries loss; everything after it, tool results included, is the
response, and a mask says which of its tokens carry loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from palestra.trajectories.model import Rollout, Trajectory
from palestra.trajectories.sample import Sample, samples


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """One of the `count` samples of a rollout, cut at `start`."""

    rollout: Rollout
    sample: Sample
    index: int
    count: int
    start: int

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids before the first one that carries loss."""
        return list(self.sample.ids[: self.start].tolist())

    @property
    def response_ids(self) -> list[int]:
        """Token ids from the first one that carries loss, at least one."""
        return list(self.sample.ids[self.start :].tolist())

    @property
    def mask(self) -> list[int]:
        """1 on response tokens that carry loss, else 0."""
        return list(self.sample.loss_mask[self.start :].astype(int).tolist())

    @property
    def logprobs(self) -> list[float]:
        """Of the response tokens that carry loss, in nats; 0.0 on the others."""
        kept = np.where(self.sample.loss_mask, self.sample.logprobs, np.float32(0.0))
        return list(kept[self.start :].tolist())

    @property
    def versions(self) -> list[int]:
        """Policy versions that sampled tokens which carry loss, ascending."""
        return list(np.unique(self.sample.versions[self.sample.loss_mask]).tolist())

    @property
    def names(self) -> dict[str, Any]:
        """What identifies the sample. `samples` is how many share the rollout's one reward: statistics and
        weights are per rollout."""
        rollout = self.rollout
        return {
            "rollout_id": rollout.rollout_id,
            "group_id": rollout.group_id,
            "task_id": rollout.task_id,
            "run_id": rollout.run_id,
            "sample": self.index,
            "samples": self.count,
            "leaf": self.sample.leaf,
        }


def flat_samples(trajectory: Trajectory) -> Iterator[Flat]:
    """`samples(trajectory)`, each cut into prompt and response."""
    found = samples(trajectory)
    for index, sample in enumerate(found):
        start = int(np.argmax(sample.loss_mask))
        yield Flat(trajectory.rollout, sample, index, len(found), start)
