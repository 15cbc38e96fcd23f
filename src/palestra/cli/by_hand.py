"""Recordings without a task: what they are called and how they are kept."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.harness_proxy.sessions import Recording
    from palestra.trajectories.model import CaptureLevel, Failure, Trajectory
    from palestra.trajectories.store import Store


def free_name(store: Store, run_dir: Path, wanted: str | None, stem: str) -> str:
    """`wanted`, or <stem>-1, -2, ..., whichever is free. Raises UsageError where `wanted` is taken."""
    if wanted is None:
        return next(name for n in count(1) if (name := f"{stem}-{n}") not in store)
    if wanted in store:
        raise UsageError(f"{run_dir} has a recording {wanted!r} already: give another --session, or none")
    return wanted


def without_task(
    name: str,
    recording: Recording,
    level: CaptureLevel,
    *,
    harness: tuple[str, str] = ("unknown", ""),
    failure: Failure | None = None,
) -> Trajectory:
    """`recording` as a rollout without a score. `harness`: name and version; `failure`: how the harness broke."""
    from palestra.trajectories.model import Failure, Rollout, Trajectory

    by_hand = Failure("cancelled", "by hand", "a session run by hand has no task to score")
    rollout = Rollout(
        rollout_id=name,
        run_id="by-hand",
        group_id=name,
        task_id="none",
        sample_index=0,
        attempt=1,
        mode="eval",
        harness=harness[0],
        harness_version=harness[1],
        capture_level=level,
        seed=0,
        failure=recording.failure or failure or by_hand,
        findings=recording.findings,
    )
    return Trajectory(rollout, recording.nodes, recording.calls, (), recording.tools, recording.blobs)
